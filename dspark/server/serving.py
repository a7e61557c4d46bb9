"""What answers: a loaded pair, with everything that handlers need of it. Made once a load, and never changed."""

import json
import logging
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark.hub.shelves import spelled_out
from dspark.server.conversation import Conversation
from dspark.server.dialects.models import ModelCard
from dspark.server.order import Message, Order, SamplingWishes, Thinking
from dspark.server.wishes import Wish

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from dspark.decoding.request import Speculation, SpeculationOptions
    from dspark.engine import Engine, Loaded
    from dspark.targets.traffic import Traffic
    from dspark.tuning.costs import CostModel
    from dspark.tuning.profile import Profile

GENERATION_CONFIG = "generation_config.json"
_CONFIG_BYTES = 1 << 20
# Name, least, most, and whether the least itself is out.
_RANGES = (
    ("temperature", 0.0, 2.0, False),
    ("top_p", 0.0, 1.0, True),
    ("min_p", 0.0, 0.999999, False),
    ("repetition_penalty", 0.0, math.inf, True),
)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Serving:
    """`engine` is for the worker's thread alone, but for what it reports of memory and of its prefix cache.

    `window` bounds prompt and answer together, in tokens. `wishes` are what the model's own files say of sampling.
    `asked` is how to speculate as a request to the engine says it, `speculation` what that comes to. `profile` is the
    calibration in force, `costs` what rounds cost by it, or by a look at the load. `warm` says that a generation ran
    before the first request.
    """

    name: str
    wish: Wish
    engine: "Engine" = field(repr=False)
    loaded: "Loaded"
    tokenizer: "TokenizerWrapper" = field(repr=False)
    conversation: Conversation = field(repr=False)
    asked: "SpeculationOptions"
    speculation: "Speculation"
    window: int
    wishes: SamplingWishes
    traffic: "Traffic | None"
    costs: "CostModel | None"
    profile: "Profile | None"
    warnings: tuple[str, ...]
    warm: bool
    thinking: Thinking
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def wants_boundaries(self) -> bool:
        """Whether the prefix cache makes use of `Request.boundaries`."""
        prefix = self.engine.prefix_cache
        return prefix is not None and prefix.wants_boundaries

    def card(self, max_output_tokens: int) -> ModelCard:
        """As it is listed."""
        return ModelCard(self.name, self.created, self.window, min(max_output_tokens, self.window - 1))


def listed_name(model: str) -> str:
    """The id under which a model is listed: of a path no more than says which model it is."""
    path = Path(model)
    if not path.is_absolute() and not model.startswith((".", "~")):
        return model
    path = spelled_out(model)
    parts = path.parts
    if len(parts) > 2 and parts[-2] == "snapshots" and parts[-3].startswith("models--"):
        return parts[-3].removeprefix("models--").replace("--", "/", 1)
    return path.resolve().name or model


def probe(conversation: Conversation) -> None:
    """Render once what is found out by rendering, so that no request waits for it."""
    try:
        _ = (conversation.template.traits, conversation.template.effort, conversation.template.thinks_unasked)
        conversation.prompts(Order(messages=(Message("user", "Hello"),)))
    except Exception as error:  # a template that cannot render this may yet render what is asked
        _logger.info("the chat template could not be tried: %s", error)


def own_wishes(folder: Path) -> SamplingWishes:
    """What a model's `generation_config.json` says of sampling; nothing where there is none that makes sense."""
    file = folder / GENERATION_CONFIG
    try:
        if not file.is_file() or file.stat().st_size > _CONFIG_BYTES:
            return SamplingWishes()
        config = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        _logger.warning("%s cannot be read and counts for nothing: %s", GENERATION_CONFIG, error)
        return SamplingWishes()
    if not isinstance(config, dict) or config.get("do_sample") is False:
        return SamplingWishes()
    said: dict[str, Any] = {}
    for name, least, most, open_ in _RANGES:
        value = config.get(name)
        if value is None:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and math.isfinite(value) and least <= value <= most and not (open_ and value == least):
            said[name] = float(value)
        else:
            _logger.warning("%s says %s = %r, which counts for nothing", GENERATION_CONFIG, name, value)
    top_k = config.get("top_k")
    if isinstance(top_k, int) and not isinstance(top_k, bool) and top_k >= 0:
        said["top_k"] = top_k
    if config.get("do_sample") is True:
        said.setdefault("temperature", 1.0)
    return SamplingWishes(**said)
