"""Markov heads: the bias of a step's logits from the token chosen at the step before (specification 1.7)."""

import mlx.core as mx
import mlx.nn as nn

from dspark.drafters.config import MarkovConfig


class MarkovHead(nn.Module):
    """`vanilla`: W2 · W1[token]. W1 is indexed by target ids; rows of W2 are draft ids."""

    def __init__(self, config: MarkovConfig, hidden_size: int, vocabulary: int, draft_vocabulary: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocabulary, config.rank)
        self.markov_w2 = nn.Linear(config.rank, draft_vocabulary, bias=False)

    def bias(self, embedded: mx.array, hidden: mx.array, state: mx.array | None) -> tuple[mx.array, mx.array | None]:
        """Bias [1, V_d] of one step and the state for the next.

        `embedded` [1, r] is W1 of the token before, `hidden` [1, d] the slot's row; `state` is None at the first step.
        """
        return self.markov_w2(embedded), None


class GatedMarkovHead(MarkovHead):
    """W2 · (σ(G [h ; e] + b) ⊙ e): the slot decides how much of the token before matters."""

    def __init__(self, config: MarkovConfig, hidden_size: int, vocabulary: int, draft_vocabulary: int) -> None:
        super().__init__(config, hidden_size, vocabulary, draft_vocabulary)
        self.gate_proj = nn.Linear(hidden_size + config.rank, config.rank)

    def bias(self, embedded: mx.array, hidden: mx.array, state: mx.array | None) -> tuple[mx.array, mx.array | None]:
        gate = mx.sigmoid(self.gate_proj(mx.concatenate([hidden, embedded], axis=-1)))
        return self.markov_w2(gate * embedded), None


class RecurrentMarkovHead(MarkovHead):
    """`rnn`: a gated state, zero at the start of every block, remembers more than one token."""

    def __init__(self, config: MarkovConfig, hidden_size: int, vocabulary: int, draft_vocabulary: int) -> None:
        super().__init__(config, hidden_size, vocabulary, draft_vocabulary)
        self.joint_proj = nn.Linear(2 * config.rank + hidden_size, 3 * config.rank)

    def bias(self, embedded: mx.array, hidden: mx.array, state: mx.array | None) -> tuple[mx.array, mx.array | None]:
        if state is None:
            state = mx.zeros_like(embedded)
        joint = self.joint_proj(mx.concatenate([state, embedded, hidden], axis=-1))
        gate, update, out = mx.split(joint, 3, axis=-1)
        gate = mx.sigmoid(gate)
        return self.markov_w2(mx.tanh(out)), gate * state + (1 - gate) * mx.tanh(update)


_KINDS = {"vanilla": MarkovHead, "gated": GatedMarkovHead, "rnn": RecurrentMarkovHead}


def markov_head(config: MarkovConfig, hidden_size: int, vocabulary: int, draft_vocabulary: int) -> MarkovHead:
    """The head of `config.kind`, with random weights."""
    return _KINDS[config.kind](config, hidden_size, vocabulary, draft_vocabulary)
