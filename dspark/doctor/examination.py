"""All checks of this machine, gathered into one report. Nothing here can hang or raise."""

import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import Generic, TypeVar

from dspark import __version__
from dspark.doctor import configuration, environment, hardware, network, packages, pairs, port, probe, profiles, storage
from dspark.doctor.check import Check, Subject
from dspark.doctor.configuration import Configuration
from dspark.doctor.pairs import PairState
from dspark.doctor.port import Address
from dspark.doctor.probe import Stack
from dspark.doctor.report import Report
from dspark.hub import inventory
from dspark.machine import platform, runtime, watch
from dspark.machine.facts import Chip, Machine, Memory
from dspark.machine.platform import Platform
from dspark.tuning.key import machine_part

LIMIT_S = 15.0  # for any one thing that is found out

T = TypeVar("T")
Answer = Check | Iterable[Check] | None


def examine(
    address: Address | None = None,
    here: Platform | None = None,
    look: Callable[[], Stack] = probe.look,
    limit_s: float = LIMIT_S,
) -> Report:
    """Run every check.

    `address` is where a server would run (None: as the settings say).

    Slow things are found out side by side, each within `limit_s`; MLX is tried out in another process, within a limit
    of its own. A check that itself goes wrong is reported as broken, under its own name.
    """
    here = here or platform.current()
    late_s = probe.TIMEOUT_S + limit_s
    conditions = _Later(lambda: watch.glance(here), limit_s)
    conditions.wait()  # before the work of our own begins
    stack = _Later(look, late_s)
    required = _Later(packages.requirements, limit_s)
    system, chip, memory = _Later(here.system, limit_s), _Later(here.chip, limit_s), _Later(here.memory, limit_s)
    home, searched = _Later(storage.home, limit_s), _Later(storage.searched, limit_s)
    folders = _Later(lambda: [inventory.take(shelf.path) if shelf.exists else None for shelf in searched()], limit_s)
    rooms = _Later(lambda: storage.disks(searched()), limit_s)
    hub = _Later(lambda: network.hub(os.environ), limit_s)
    settings = _Later(configuration.read, limit_s)
    served = _Later(lambda: _served(address, settings()), limit_s)
    states = _Later(lambda: pairs.survey(folders(), Machine(chip(), system(), memory(), stack().runtime)), late_s)
    questions: list[tuple[Subject, Callable[[], Answer]]] = [
        (packages.VERSION, packages.version),
        (packages.PYTHON, lambda: packages.python(stack().runtime.python, runtime.required_python())),
        (packages.MLX, lambda: packages.mlx(stack())),
        (packages.MLX_LM, lambda: packages.mlx_lm(stack())),
        (packages.REQUIREMENTS, required),
        (packages.KNOWN_BAD, lambda: packages.known_trouble(stack(), os.environ)),
        (hardware.ARCHITECTURE, lambda: hardware.architecture(system())),
        (hardware.SYSTEM, lambda: hardware.operating_system(system())),
        (hardware.DEVICE, lambda: hardware.device(stack(), system())),
        (hardware.BLAS, lambda: _blas(stack(), chip().features)),
        (hardware.MEMORY, lambda: hardware.memory(memory())),
        (hardware.PRESSURE, lambda: hardware.pressure(memory())),
        (hardware.SWAP, lambda: hardware.swap(memory())),
        (hardware.POWER, lambda: hardware.power(conditions())),
        (hardware.HEAT, lambda: hardware.heat(conditions())),
        (hardware.LOAD, lambda: hardware.load(conditions())),
        (configuration.SETTINGS, lambda: configuration.check(settings())),
        (storage.HOME, home),
        (storage.DISK, rooms),
        (storage.MODELS, lambda: map(storage.model_folder, searched(), folders(), count(1))),
        (pairs.PAIRS, lambda: pairs.summary(states())),
        (profiles.PROFILES, lambda: _profiles(chip(), memory(), stack(), states())),
        (port.PORT, served),
        (environment.ENVIRONMENT, lambda: environment.variables(os.environ)),
        (network.HUB, hub),
    ]
    checks = tuple(check for subject, question in questions for check in _ask(subject, question))
    return Report(
        ok=all(check.status != "fail" for check in checks),
        version=__version__,
        date=_now(),
        checks=checks,
        models=_known(states),
    )


def _profiles(chip: Chip, memory: Memory, stack: Stack, pairs: Iterable[PairState]) -> list[Check]:
    found = profiles.states(machine_part(chip, memory, stack.runtime, stack.blas))
    known = {state.pair for state in found}
    on_disk = [folder for pair in pairs for folder in pair.targets if pair.complete]
    return profiles.profile_checks(found, [folder for folder in on_disk if folder not in known])


class _Later(Generic[T]):
    """What `find` returns, found out in a thread that is waited for no longer than `limit_s`; called, it is the value.

    Raises what `find` raised, or `TimeoutError`. The thread ends with the process, however it hangs.
    """

    def __init__(self, find: Callable[[], T], limit_s: float) -> None:
        self._future: Future[T] = Future()
        self._deadline = time.monotonic() + limit_s
        threading.Thread(target=self._find, args=(find,), daemon=True).start()

    def __call__(self) -> T:
        return self._future.result(max(self._deadline - time.monotonic(), 0))

    def wait(self) -> None:
        """Until there is a value or something went wrong."""
        with suppress(Exception):
            self()

    def _find(self, find: Callable[[], T]) -> None:
        try:
            self._future.set_result(find())
        except BaseException as error:  # whatever it is, it belongs to whoever asks for the value
            self._future.set_exception(error)


def _served(address: Address | None, found: Configuration) -> list[Check]:
    return list(port.port_and_server(address or found.address, found.key, found.key_place))


def _blas(stack: Stack, cpu_flags: frozenset[str]) -> Check | None:
    return hardware.blas_library(stack.blas, cpu_flags, os.environ) if stack.blas else None


def _known(states: _Later[tuple[PairState, ...]]) -> tuple[PairState, ...]:
    try:
        return states()
    except Exception:  # the check of the pairs says so
        return ()


def _ask(subject: Subject, question: Callable[[], Answer]) -> list[Check]:
    """The checks that answer a question, each with the time; one that failed, if the question itself goes wrong."""
    try:
        answer = question()
        checks = [answer] if isinstance(answer, Check) else list(answer or ())
    except TimeoutError:
        checks = [subject.warn("no answer in time", "run this again; if it stays so, something here hangs")]
    except Exception as error:  # a report with a hole is worth more than none
        todo = "report this, with the output of 'mlx-dspark doctor --json --redact'"
        checks = [subject.fail(f"the check itself failed ({type(error).__name__}: {error})", todo)]
    return [replace(check, checked=_now()) for check in checks]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
