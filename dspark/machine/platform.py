"""The seam between what is asked of a machine and the operating system that answers."""

import sys
from typing import Protocol

from dspark.machine.facts import Chip, Limit, Memory, Power, Strain, System


class Platform(Protocol):
    """One operating system. No method raises; what cannot be read is None in the answer."""

    def chip(self) -> Chip: ...

    def system(self) -> System: ...

    def memory(self) -> Memory:
        """Cheap enough to be polled."""
        ...

    def strain(self) -> Strain:
        """Cheaper still: once a request, and every other second while one runs."""
        ...

    def limits(self) -> tuple[Limit, ...]:
        """What bounds this process besides the machine's memory; empty without such bounds."""
        ...

    def footprint_bytes(self) -> int | None:
        """What this process takes of the machine's memory, swapped or compressed pages included. May take a second."""
        ...

    def power(self) -> Power: ...


class Unknown:
    """Any other operating system: nothing is known, and nothing is guessed."""

    def chip(self) -> Chip:
        return Chip()

    def system(self) -> System:
        return System(name=sys.platform)

    def memory(self) -> Memory:
        return Memory()

    def strain(self) -> Strain:
        return Strain()

    def limits(self) -> tuple[Limit, ...]:
        return ()

    def footprint_bytes(self) -> int | None:
        return None

    def power(self) -> Power:
        return Power()


def current() -> Platform:
    """The platform that this process runs on."""
    if sys.platform == "darwin":
        from dspark.machine.darwin import Darwin

        return Darwin()
    if sys.platform == "linux":
        from dspark.machine.linux import Linux

        return Linux()
    return Unknown()
