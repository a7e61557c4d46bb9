"""The block drafter: DSpark, DFlash and DFlash 2 heads, bound to a target."""

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from dspark.drafters.config import DrafterConfig
from dspark.drafters.context import ContextCache
from dspark.drafters.drafter import Draft, DrafterContext, Pick, greedy
from dspark.drafters.model import DrafterModel
from dspark.drafters.steps import Steps, markov_steps, parallel_steps, selector_steps
from dspark.drafters.tables import Tables


class BlockDrafter:
    """Fills a block of mask tokens behind the anchor in one pass. One evaluation for the whole draft."""

    def __init__(self, config: DrafterConfig, model: DrafterModel, tables: Tables, d2t: mx.array | None) -> None:
        """`d2t` [draft vocabulary] maps draft ids to target ids (absolute), None where they are the same."""
        self.config = config
        self.block = config.block
        self.taps = config.taps
        self.has_confidence = config.confidence is not None
        self.d2t = d2t
        self._model = model
        self._tables = tables
        self._masks = tables.embed(mx.full((1, config.rows - 1), config.mask_id, dtype=mx.int32))
        mx.eval(self._masks)

    @property
    def parameter_bytes(self) -> int:
        """Memory held beyond the tables shared with the target."""
        modules: list[nn.Module] = [self._model, *self._tables.own]
        return sum(array.nbytes for module in modules for _, array in tree_flatten(module.parameters()))

    def new_context(self) -> ContextCache:
        """An empty context for one sequence."""
        return ContextCache(self._model)

    def hidden(self, context: DrafterContext, anchor: mx.array, count: int | None = None) -> mx.array:
        """Rows [1, n, d] of the predicting slots of the block that starts at `anchor` [1], after the final norm.

        At least `count` of them (None: all). A block whose slots see later ones keeps its full width, since leaving
        slots out would change the others; a causal one is computed no further than asked.
        """
        assert isinstance(context, ContextCache)
        masks, skip = self._masks, self.config.rows - self.block
        if count is not None and self.config.causal:
            masks = masks[:, : count + skip - 1]
        block = mx.concatenate([self._tables.embed(anchor[None]), masks], axis=1)
        hidden = self._model(block, context.pending_features(), context.layers)
        context.settle_pending()
        return self._model.norm(hidden[:, skip:] if skip else hidden)

    def draft(self, context: DrafterContext, anchor: mx.array, cap: int, pick: Pick = greedy) -> Draft:
        """Propose min(cap, block) tokens after `anchor`; the head and the sequential steps run over these only."""
        count = min(cap, self.block)
        return self.propose(self.hidden(context, anchor, count)[0, :count], anchor, pick)

    def propose(self, hidden: mx.array, anchor: mx.array, pick: Pick = greedy) -> Draft:
        """Tokens [n] for hidden rows [n, d] of the block that starts at `anchor` [1]."""
        steps = self.steps(hidden, anchor, pick)
        return Draft(steps.tokens, self.confidence(hidden, steps))

    def steps(self, hidden: mx.array, anchor: mx.array, pick: Pick = greedy) -> Steps:
        """The tokens that `pick` takes, slot by slot, with the logits and ids that it chose from."""
        base = self._tables.logits(hidden)
        if self.config.selector is not None:
            return selector_steps(self._model.candidate_selector, base, hidden, anchor, pick)
        if self.config.markov is not None:
            return markov_steps(self._model.markov_head, base, hidden, anchor, self.d2t, pick)
        return parallel_steps(base, self.d2t, pick)

    def step_logits(self, hidden: mx.array, anchor: mx.array) -> mx.array:
        """[n, K] logits of each greedy step, the influence of the token before it included (see `Steps`)."""
        return self.steps(hidden, anchor).logits

    def confidence(self, hidden: mx.array, steps: Steps) -> mx.array | None:
        """Chances [n] that each step's token is accepted, or None without a confidence head."""
        if self.config.confidence is None:
            return None
        return self._model.confidence_head(hidden, steps.embedded if self.config.confidence.with_markov else None)
