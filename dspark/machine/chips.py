"""Published facts of Apple's chips. One chip name covers several memory buses, so GPU cores are part of the key."""

from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True)
class Published:
    """One row of chips.yaml; `status` says in words how far its figures were checked."""

    chip: str
    gpu_cores: tuple[int, ...]
    bandwidth_gb_s: float
    status: str


def published(chip: str | None, gpu_cores: int | None) -> Published | None:
    """Facts of a chip with that many GPU cores; None for a pair that is not in the table, never the nearest one."""
    return next((row for row in _rows() if row.chip == chip and gpu_cores in row.gpu_cores), None)


@cache
def _rows() -> tuple[Published, ...]:
    import yaml

    text = resources.files("dspark.machine").joinpath("chips.yaml").read_text(encoding="utf-8")
    return tuple(
        Published(row["chip"], tuple(row["gpu_cores"]), float(row["bandwidth_gb_s"]), row["status"])
        for row in yaml.safe_load(text)["chips"]
    )
