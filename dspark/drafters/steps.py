"""Choosing the tokens of a block: all at once, or left to right, where each choice moves the next one's logits."""

from dataclasses import dataclass

import mlx.core as mx

from dspark.drafters.drafter import Pick
from dspark.drafters.markov import MarkovHead
from dspark.drafters.selector import CandidateSelector


@dataclass(frozen=True)
class Steps:
    """Tokens [n] in target ids, and the logits [n, K] that each was chosen from.

    `support` holds the target ids of the columns: [K], or [n, K] where each step has its own; None means that a column
    is its id. `embedded` [n, r] are the Markov rows of the tokens before, where there is a Markov head.
    """

    tokens: mx.array
    logits: mx.array
    support: mx.array | None
    embedded: mx.array | None = None


def parallel_steps(base: mx.array, support: mx.array | None, pick: Pick) -> Steps:
    """Every slot by itself (DFlash, or DSpark without a Markov head)."""
    chosen = mx.concatenate([pick(base[step : step + 1], step, support) for step in range(base.shape[0])])
    return Steps(chosen if support is None else support[chosen], base, support)


def markov_steps(
    head: MarkovHead, base: mx.array, hidden: mx.array, anchor: mx.array, support: mx.array | None, pick: Pick
) -> Steps:
    """DSpark: the token before, in target ids, biases a slot's logits."""
    previous, state = anchor, None
    tokens, embedded, logits = [], [], []
    for step in range(hidden.shape[0]):
        embedded.append(head.markov_w1(previous))
        bias, state = head.bias(embedded[-1], hidden[step : step + 1], state)
        logits.append(base[step : step + 1] + bias)
        chosen = pick(logits[-1], step, support)
        previous = chosen if support is None else support[chosen]
        tokens.append(previous)
    return Steps(mx.concatenate(tokens), mx.concatenate(logits), support, mx.concatenate(embedded))


def selector_steps(
    selector: CandidateSelector, base: mx.array, hidden: mx.array, anchor: mx.array, pick: Pick
) -> Steps:
    """DFlash 2: the token before chooses among a slot's few best."""
    ids, best = selector.candidates(base)
    projected = selector.hidden_projection(hidden)
    previous = anchor
    tokens, logits = [], []
    for step in range(hidden.shape[0]):
        row = slice(step, step + 1)
        logits.append(selector.scores(previous, projected[row], ids[row], best[row]))
        previous = ids[step][pick(logits[-1], step, ids[step])]
        tokens.append(previous)
    return Steps(mx.concatenate(tokens), mx.concatenate(logits), ids)
