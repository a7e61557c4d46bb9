"""What is to be loaded, and how: out of the settings, and out of the body of `POST /admin/load`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import Discriminator, Field, Tag

from dspark.prefix.options import PrefixOptions
from dspark.server.dialects.wire import Wire, invalid
from dspark.server.order import Effort, Thinking
from dspark.settings import SETTINGS, Settings

if TYPE_CHECKING:
    from dspark.decoding.request import SpeculationOptions
    from dspark.drafters.loading import Bits
    from dspark.engine import LoadOptions
    from dspark.machine.precision import Precision

Cap = int | Literal["auto"]
LoadMode = Literal["auto", "baseline", "lookup", "dspark", "dflash"]
# What a later version will do; a request for it now is refused by name.
NOT_YET = ("small_m", "multirow_attn", "cpu_split")


def _number_or_word(value: Any) -> str | None:
    return "<int>" if isinstance(value, int) and not isinstance(value, bool) else "<str>" if value == "auto" else None


CapField = Annotated[
    Annotated[int, Field(ge=0), Tag("<int>")] | Annotated[Literal["auto"], Tag("<str>")],
    Discriminator(
        _number_or_word, custom_error_type="cap", custom_error_message="Input should be a valid integer or 'auto'"
    ),
]


class LoadBody(Wire):
    """`POST /admin/load`."""

    model: str = Field(min_length=1, max_length=4096, description="repo id or local path")
    mode: LoadMode | None = None
    drafter: str | None = Field(None, min_length=1, max_length=4096)
    max_draft: CapField | None = None
    lookup_drafts: bool | None = None
    confidence_threshold: float | None = Field(None, ge=0, le=1)
    context_window: int | None = Field(None, ge=0, description="0: what the model was made for")
    kv_bits: Literal[0, 4, 8] | None = None
    drafter_window: int | None = Field(None, ge=0, description="0: the whole context")
    small_m: bool | None = None
    multirow_attn: bool | None = None
    sdpa_split: bool | None = None
    cpu_split: float | None = Field(None, ge=0, lt=1)
    warmup: bool | None = None
    memory_guard: bool | None = None
    enable_thinking: bool | None = Field(None, description="sticks across swaps")
    reasoning_effort: Literal["low", "medium", "high", "xhigh"] | None = Field(None, description="sticks across swaps")

    @classmethod
    def parse(cls, body: bytes) -> "LoadBody":
        """The fields of a body.

        Raises:
            BadRequest, ValidationFailed: they cannot be meant, or ask for what this version does not do.
        """
        asked = cls.read(body)
        refused = [name for name in NOT_YET if getattr(asked, name)]
        if refused:
            raise invalid([((name,), "not supported by this version; leave it out") for name in refused])
        return asked

    @property
    def thinking(self) -> Thinking:
        """What it wishes for all answers from then on."""
        return Thinking(self.enable_thinking, self.reasoning_effort)


@dataclass(frozen=True)
class Wish:
    """A pair to load, with everything that a load can be told. `context_window` 0 is the model's own."""

    model: str
    drafter: str | None
    mode: LoadMode
    precision: str | None
    trust_remote_code: bool
    kv_bits: int
    drafter_bits: "Bits"
    drafter_window: Cap
    sdpa_split: bool | None
    profile: str | None
    warmup: bool
    max_draft: Cap | None
    lookup_drafts: bool | None
    confidence_threshold: float | None
    context_window: int
    memory_guard: bool
    prefix: PrefixOptions

    @classmethod
    def of(cls, settings: Settings) -> "Wish":
        """What the settings name."""
        model, speculation = settings.model, settings.speculation
        return cls(
            model=model.model,
            drafter=model.drafter,
            mode=cast(LoadMode, model.mode),
            precision=model.precision,
            trust_remote_code=model.trust_remote_code,
            kv_bits=model.kv_bits,
            drafter_bits=model.drafter_bits,
            drafter_window=model.drafter_window,
            sdpa_split=model.sdpa_split,
            profile=model.profile,
            warmup=model.warmup,
            max_draft=speculation.max_draft,
            lookup_drafts=speculation.lookup_drafts,
            confidence_threshold=speculation.confidence_threshold,
            context_window=settings.memory.context_window,
            memory_guard=settings.memory.memory_guard,
            prefix=PrefixOptions.of(settings.cache),
        )

    @classmethod
    def asked(cls, body: LoadBody, settings: Settings) -> "Wish":
        """What a request names.

        Where it does not say, the machine's settings hold, the context window among them; those that belong to a model
        hold for the model that they were given with.
        """
        own = cls.of(settings)
        values = {name: getattr(own, name) for name in cls.__dataclass_fields__}
        if body.model != own.model:
            pairwise = (name for name, row in SETTINGS.items() if row.pairwise and name != "context_window")
            values |= {name: SETTINGS[name].default for name in pairwise}
        said = {name: value for name in values if (value := getattr(body, name, None)) is not None}
        return cls(**{**values, **said})

    def load_options(self) -> "LoadOptions":
        """As the engine takes it. Imports MLX."""
        from dspark.engine import LoadOptions

        return LoadOptions(
            self.model,
            self.drafter,
            mode=self.mode,
            precision=cast("Precision | None", self.precision),
            trust_remote_code=self.trust_remote_code,
            kv_bits=self.kv_bits or None,
            drafter_bits=self.drafter_bits,
            drafter_window=self.drafter_window,
            sdpa_split=self.sdpa_split,
            profile=self.profile,
            context_window=self.context_window,
            memory_guard=self.memory_guard,
            prefix=self.prefix,
        )

    def speculation(self) -> "SpeculationOptions":
        """How to speculate."""
        from dspark.decoding.request import SpeculationOptions

        return SpeculationOptions.of(self.mode, self.max_draft, self.lookup_drafts, self.confidence_threshold)


def standing_wishes(settings: Settings) -> Thinking:
    """What the settings say of thinking, for clients that do not."""
    generation = settings.generation
    return Thinking(generation.enable_thinking, cast("Effort | None", generation.reasoning_effort))
