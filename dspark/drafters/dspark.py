"""The DSpark drafter: a bidirectional block, corrected left to right by a Markov head, rated by a confidence head."""

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from dspark.drafters.backbone import Backbone
from dspark.drafters.config import ConfidenceConfig, DrafterConfig, MarkovConfig
from dspark.drafters.context import ContextCache
from dspark.drafters.drafter import Draft, DrafterContext, Pick, greedy
from dspark.targets.target import Target


class MarkovHead(nn.Module):
    """Bias of step k from the token chosen at step k-1: W2 · W1[token] (specification 1.7, `vanilla`).

    W1 is indexed by target ids; rows of W2 are draft ids.
    """

    def __init__(self, config: MarkovConfig, vocabulary: int, draft_vocabulary: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocabulary, config.rank)
        self.markov_w2 = nn.Linear(config.rank, draft_vocabulary, bias=False)


class ConfidenceHead(nn.Module):
    """Chance that the token of a step is accepted, before it is drawn: σ(P [h ; e] + b) (specification 1.8)."""

    def __init__(self, config: ConfidenceConfig, hidden_size: int, rank: int) -> None:
        super().__init__()
        self.proj = nn.Linear(hidden_size + (rank if config.with_markov else 0), 1)

    def __call__(self, hidden: mx.array, previous: mx.array | None) -> mx.array:
        """[n] chances for hidden rows [n, d] and, where it reads them, the Markov rows [n, r] of the tokens before."""
        rows = hidden if previous is None else mx.concatenate([hidden, previous], axis=-1)
        return mx.sigmoid(self.proj(rows).astype(mx.float32)).squeeze(-1)


class DSparkModel(Backbone):
    """The tensors of a checkpoint, under the names that all packagings share."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        if config.markov is not None:
            self.markov_head = MarkovHead(config.markov, config.vocabulary, config.draft_vocabulary)
        if config.confidence is not None:
            rank = config.markov.rank if config.markov else 0
            self.confidence_head = ConfidenceHead(config.confidence, config.hidden_size, rank)


class DSparkDrafter:
    """A DSpark head bound to a target. Greedy proposals; one evaluation for the whole draft."""

    def __init__(
        self,
        config: DrafterConfig,
        model: DSparkModel,
        target: Target,
        *,
        embedding: nn.Module | None,
        head: nn.Module | None,
        d2t: mx.array | None,
    ) -> None:
        """`embedding` and `head` are the checkpoint's own tables, None to share the target's.

        `d2t` [draft vocabulary] maps draft ids to target ids (absolute), None where they are the same.
        """
        self.config = config
        self.block = config.block
        self.taps = config.taps
        self._model = model
        self._own_embedding, self._own_head = embedding, head
        self._embedding = embedding if embedding is not None else target.embedding
        self._head = head if head is not None else target.head
        self._d2t = d2t
        self._dtype = model.norm.weight.dtype
        masks = mx.full((1, config.block - 1), config.mask_id, dtype=mx.int32)
        self._masks = self._embedding(masks).astype(self._dtype)
        mx.eval(self._masks)

    @property
    def parameter_bytes(self) -> int:
        """Memory held beyond the tables shared with the target."""
        tables = [module for module in (self._own_embedding, self._own_head) if module is not None]
        modules: list[nn.Module] = [self._model, *tables]
        return sum(array.nbytes for module in modules for _, array in tree_flatten(module.parameters()))

    def new_context(self) -> ContextCache:
        """An empty context for one sequence."""
        return ContextCache(self._model)

    def hidden(self, context: DrafterContext, anchor: mx.array) -> mx.array:
        """Hidden rows [1, γ, d] of the block that starts at `anchor` [1], after the final norm."""
        assert isinstance(context, ContextCache)
        first = self._embedding(anchor[None]).astype(self._dtype)
        block = mx.concatenate([first, self._masks], axis=1)
        hidden = self._model(block, context.pending_features(), context.caches)
        context.settle_pending()
        return self._model.norm(hidden)

    def draft(self, context: DrafterContext, anchor: mx.array, cap: int, pick: Pick = greedy) -> Draft:
        """Propose min(cap, block) tokens after `anchor`.

        The block keeps its full width, since every slot sees every other; the head and the sequential steps run over
        the cap.
        """
        count = min(cap, self.block)
        hidden = self.hidden(context, anchor)[0, :count]
        return self.propose(hidden, anchor, pick)

    def propose(self, hidden: mx.array, anchor: mx.array, pick: Pick = greedy) -> Draft:
        """Tokens [n] for hidden rows [n, d] of the block that starts at `anchor` [1]."""
        chosen, embedded, _ = self._steps(hidden, anchor, pick)
        return Draft(chosen, self._confidence(hidden, embedded))

    def step_logits(self, hidden: mx.array, anchor: mx.array) -> mx.array:
        """[n, V_d] logits of each sequential step, the Markov bias of the token before it included."""
        return self._steps(hidden, anchor, greedy)[2]

    def _steps(self, hidden: mx.array, anchor: mx.array, pick: Pick) -> tuple[mx.array, mx.array | None, mx.array]:
        """Left to right: tokens [n], the Markov rows [n, r] of the tokens before them, and the logits they won by."""
        base = self._head(hidden)
        if self.config.markov is None:
            picked = [pick(base[step : step + 1], step, self._d2t) for step in range(hidden.shape[0])]
            return self._to_target(mx.concatenate(picked)), None, base
        markov = self._model.markov_head
        previous, chosen, embedded, logits = anchor, [], [], []
        for step in range(hidden.shape[0]):
            embedded.append(markov.markov_w1(previous))
            logits.append(base[step : step + 1] + markov.markov_w2(embedded[-1]))
            previous = self._to_target(pick(logits[-1], step, self._d2t))
            chosen.append(previous)
        return mx.concatenate(chosen), mx.concatenate(embedded), mx.concatenate(logits)

    def _to_target(self, ids: mx.array) -> mx.array:
        return ids if self._d2t is None else self._d2t[ids]

    def _confidence(self, hidden: mx.array, embedded: mx.array | None) -> mx.array | None:
        if self.config.confidence is None:
            return None
        return self._model.confidence_head(hidden, embedded if self.config.confidence.with_markov else None)
