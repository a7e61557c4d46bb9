"""What stops this process from taking more memory: each bound, what is left under it, and what must stay left."""

from dataclasses import dataclass

from dspark.machine.platform import Platform

# Of each bound a share stays untouched for whatever is not foreseen. A share, so that it is right for 8 GB and 512 GB.
RESERVE_SHARE = 1 / 32


@dataclass(frozen=True)
class Ceiling:
    """`free_bytes` of `limit_bytes` are left, and `reserve_bytes` of them are not to be taken."""

    binds: str
    remedy: str
    limit_bytes: int
    free_bytes: int
    reserve_bytes: int

    @property
    def room_bytes(self) -> int:
        """What may be taken."""
        return max(self.free_bytes - self.reserve_bytes, 0)


def hard_ceilings(here: Platform) -> tuple[Ceiling, ...]:
    """Those that fail or end a process that passes them."""
    return tuple(
        Ceiling(limit.binds, limit.remedy, limit.limit_bytes, limit.free_bytes, _reserve(limit.limit_bytes))
        for limit in here.limits()
    )


def ceilings(here: Platform, working_set_bytes: int | None = None, gpu_used_bytes: int = 0) -> tuple[Ceiling, ...]:
    """Every bound that can be read now; empty where none can. The GPU's working set counts where one is given."""
    found = [*hard_ceilings(here)]
    if working_set_bytes is not None:
        left = max(working_set_bytes - gpu_used_bytes, 0)
        # The system's own recommendation, which leaves a reserve already.
        found.append(Ceiling("the GPU's working set", "take a smaller quantization", working_set_bytes, left, 0))
    memory = here.memory()
    total, free = memory.total_bytes, memory.available_bytes
    if total is not None and free is not None:
        found.append(Ceiling("the machine's free memory", "close other programs", total, free, _reserve(total)))
    return tuple(found)


def binding(found: tuple[Ceiling, ...]) -> Ceiling | None:
    """The one with the least room; None among none."""
    return min(found, key=lambda ceiling: ceiling.room_bytes, default=None)


def _reserve(limit_bytes: int) -> int:
    return int(limit_bytes * RESERVE_SHARE)
