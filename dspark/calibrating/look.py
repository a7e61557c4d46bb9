"""What rounds cost, by a quick look at load: for pairs without a calibration profile."""

from dspark.calibrating.rounds import AnswerRounds
from dspark.drafters.drafter import Drafter
from dspark.errors import PromptError
from dspark.targets.target import Target
from dspark.tuning.costs import CostModel
from dspark.tuning.curves import Curves
from dspark.tuning.measure import Bench
from dspark.tuning.timing import Stopwatch

_WIDTHS = (1, 2, 3, 4, 5, 8, 16)
_PROMPT = "Tell me about the sea, in a few sentences."


def look(target: Target, drafter: Drafter | None) -> CostModel:
    """Some dozens of target forwards behind a short context."""
    bench, live, caps = Bench(target, drafter, Stopwatch(0.0, least=4)), None, []
    if drafter is not None:
        caps = sorted({1, (drafter.block + 1) // 2, drafter.block})
        live = AnswerRounds(target, drafter, _prompts(target))
    found = bench.shallow(_WIDTHS, caps, live)
    return Curves((found.level,), found.ahead, host=found.host).costs("measured at load")


def _prompts(target: Target) -> list[list[int]]:
    try:
        return [target.encode_chat(_PROMPT)]
    except PromptError:
        return []
