"""Machines and answers made by chance, for tests of what is derived from them."""

import random

from dspark.tuning.costs import CostModel, Depth
from dspark.tuning.traces import Place, Trace

WIDTHS = (*range(1, 17), 32)


def curve(draw: random.Random, base: float) -> list[float]:
    """A monotone curve over `WIDTHS` with a knee or a cliff somewhere, or none."""
    slope = base * draw.choice([0.0, 0.005, 0.02, 0.05, 0.2, 1.0])
    cliff, height = draw.choice([*range(2, 18), 99]), base * draw.uniform(0.1, 1.5)
    knee, steep = draw.choice([*range(2, 18), 99]), base * draw.uniform(0.05, 1.0)
    return [
        base + slope * (width - 1) + (height if width >= cliff else 0.0) + steep * max(width - knee, 0)
        for width in WIDTHS
    ]


def machine(draw: random.Random, block: int, noise: float = 0.0) -> tuple[CostModel, CostModel]:
    """True costs of a machine, and as a noisy calibration would have them."""
    base = draw.uniform(5, 100)
    verify, draft = curve(draw, base), [base * draw.uniform(0.02, 0.4)] * block
    draft = [ms * (1 + 0.03 * k) for k, ms in enumerate(draft)]

    def model(spread: float) -> CostModel:
        def off(ms: float) -> float:
            return ms * (1 + draw.gauss(0, spread)) if spread else ms

        return CostModel(
            tuple((width, off(ms)) for width, ms in zip(WIDTHS, verify, strict=True)),
            tuple((cap, off(ms)) for cap, ms in enumerate(draft, start=1)),
            "simulated",
        )

    return model(0.0), model(noise)


def rates(draw: random.Random, block: int) -> list[float]:
    """Chance of each draft position, given the ones before it."""
    first, fall = draw.uniform(0.05, 0.98), draw.uniform(0.0, 0.1)
    return [max(first - fall * k, 0.01) for k in range(block)]


def answer(draw: random.Random, chances: list[float], tokens: int, klass: str = "chat") -> Trace:
    """An answer whose drafts are accepted by chance."""
    places = []
    for _ in range(tokens):
        right = 0
        while right < len(chances) and draw.random() < chances[right]:
            right += 1
        places.append(Place(drafted=right))
    return Trace(klass, 100, tuple(places))


def throughput(costs: CostModel, chances: list[float], cap: int) -> float:
    """Expected rate of a fixed cap, in rates of plain decoding."""
    tokens, alive = 1.0, 1.0
    for chance in chances[:cap]:
        alive *= chance
        tokens += alive
    return tokens / ((costs.draft_ms(cap) + costs.verify_ms(1 + cap)) / costs.plain_ms)


def deepening(slope_per_row: float) -> CostModel:
    """Costs that are flat in width at a short context, and grow with each row and each token of context."""
    shallow = tuple((width, 10.0 + 0.1 * width) for width in WIDTHS)
    deep = tuple((width, ms + slope_per_row * width * 32) for width, ms in shallow)
    return CostModel(shallow, ((1, 0.5), (7, 0.7)), "simulated", None, 64, (Depth(64 + 32 * 1024, deep, ((7, 0.7),)),))
