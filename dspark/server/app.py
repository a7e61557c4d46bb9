"""The whole server, put together: one worker, one table of routes, one listening socket."""

from functools import cache

from dspark.doctor import Address
from dspark.server import schema, sse
from dspark.server.admin import Admin
from dspark.server.answering import Around
from dspark.server.auth import Guard
from dspark.server.hardware import Hardware
from dspark.server.inference import Defaults, Inference
from dspark.server.keys import SubKeys
from dspark.server.load import Load
from dspark.server.loads import Loads
from dspark.server.order import NO_WISHES, SamplingWishes
from dspark.server.origins import Browsers
from dspark.server.routing import Route, Router
from dspark.server.status import Status
from dspark.server.telemetry import Telemetry
from dspark.server.transport import HttpServer
from dspark.server.watchdog import Watchdog
from dspark.server.wishes import Wish, standing_wishes
from dspark.server.worker import Worker
from dspark.settings import Settings

FINISH_SECONDS = 10.0
WORKER_SECONDS = 5.0
# To write to disk what is not there yet, which a second signal cuts short.
LEAVING_SECONDS = 30.0


class App:
    """Answers on `http`, which is bound already, with what `settings` say. `key` is the main key, None without one.

    `measuring` off spares a load the measurement of the machine's bandwidth, and leaves ceilings unknown.
    """

    def __init__(self, http: HttpServer, settings: Settings, key: str | None = None, *, measuring: bool = True) -> None:
        self.http = http
        self.worker = Worker(idle=lambda: self.loads.settle(), leave=lambda: self.loads.let_go())
        self.telemetry = Telemetry()
        self._watchdog = Watchdog(self.telemetry)
        self.hardware = Hardware(measuring=measuring)
        self.loads = Loads(self.worker, self.telemetry, self.hardware, standing_wishes(settings))
        self._settings = settings
        self._key = key
        self._router = self._table(sse.keepalive_seconds())

    def start(self) -> None:
        """Answer from now on."""
        self.worker.start()
        self._watchdog.start()
        self.http.start(self._router)

    def load(self) -> Load:
        """Begin to load the pair that the settings name."""
        return self.loads.begin(Wish.of(self._settings), NO_WISHES)

    def stop(self, finish_s: float = FINISH_SECONDS) -> bool:
        """Let requests finish for `finish_s`, cut the rest at a round border, and write to disk what is to be kept.

        Returns whether all ended in an orderly way.
        """
        self._watchdog.stop()
        self.loads.cancel()
        self.telemetry.hang_up()  # who listens would listen for as long as requests may take
        ended = self.http.stop(finish_s, self.worker.cancel_all)
        return self.worker.stop(WORKER_SECONDS, LEAVING_SECONDS) and ended

    def _table(self, keepalive_s: float) -> Router:
        generation, server = self._settings.generation, self._settings.server
        defaults = Defaults(
            SamplingWishes(generation.default_temperature, generation.default_top_p, generation.default_top_k),
            generation.default_max_tokens,
            generation.max_tokens_cap,
        )
        around = Around(self.telemetry, self.hardware, keepalive_s)
        routes: list[Route] = []
        document = cache(lambda: schema.document(routes))
        routes += [
            *Inference(self.worker, self.loads, around, defaults).routes(),
            *Status(
                self.worker,
                self.loads,
                self.telemetry,
                self.hardware,
                max_output_tokens=generation.max_tokens_cap,
                keepalive_s=keepalive_s,
                address=Address(self.http.host, self.http.port),
                document=document,
            ).routes(),
            *Admin(
                self.worker,
                self.loads,
                self.hardware,
                self._settings,
                url=self.http.url,
                key=self._key,
                keepalive_s=keepalive_s,
            ).routes(),
        ]
        guard = Guard(
            browsers=Browsers(
                loopback=self.http.loopback, cors_origins=server.cors_origins, server_aliases=server.server_aliases
            ),
            key=self._key,
            sub_keys=SubKeys.at_home() if self._key else None,
            open_inference=server.allow_unauthenticated_inference,
        )
        return Router(routes, guard)
