"""A drafter tried along an answer of its target's: what it would propose at every token, and what of it is right."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
from mlx_lm import batch_generate

from dspark.arrays import floats, integers
from dspark.drafters.drafter import Drafter
from dspark.targets.target import Target

logger = logging.getLogger(__name__)

_CHUNK_TOKENS = 512


@dataclass(frozen=True)
class Tried:
    """One draft: how many of its proposals the target would accept, and the head's confidences in them, if any."""

    accepted: int
    confidences: tuple[float, ...] | None


def greedy_answer(target: Target, prompt: list[int], tokens: int) -> list[int]:
    """The target's own greedy continuation of `prompt`, `tokens` long or up to its end."""
    target.tap(())
    cache = target.new_cache()
    fed = mx.array([prompt], dtype=mx.int32)
    answer: list[int] = []
    while len(answer) < tokens and not (answer and answer[-1] in target.eos):
        logits, _ = target.forward(fed, cache)
        choice = mx.argmax(logits[0, -1:], axis=-1)
        answer += integers(choice)
        fed = choice[None].astype(mx.int32)
    return answer


def greedy_answers(target: Target, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """The same for many prompts at once, in one batch where the model allows it. No end-of-sequence tokens."""
    target.tap(())
    try:
        batch = batch_generate(target.model, target.tokenizer, prompts, max_tokens=tokens, return_token_ids=True)
    except Exception as error:  # a cache without a batched form raises whatever its author thought of
        logger.debug("no batch of %s: %s", target.family, error)
        answers = (greedy_answer(target, prompt, tokens) for prompt in prompts)
        return [[token for token in answer if token not in target.eos] for answer in answers]
    return [list(answer) for answer in batch.token_ids]


def drafts_along(
    drafter: Drafter,
    target: Target,
    prompt: list[int],
    answer: list[int],
    tick: Callable[[], None] = lambda: None,
) -> list[Tried]:
    """A full draft at every token of `answer` but the last, as the anchor. `tick` is called after each."""
    rows = _hidden_rows(target, drafter.taps, [*prompt, *answer[:-1]])
    context, tried, held = drafter.new_context(), [], 0
    ids = [*prompt, *answer]
    for anchor in range(len(prompt), len(ids) - 1):
        context.append(None if rows is None else rows[:, held:anchor], ids[held:anchor])
        held = anchor
        draft = drafter.draft(context, mx.array([ids[anchor]], dtype=mx.int32), drafter.block)
        truth = ids[anchor + 1 : anchor + 1 + drafter.block]
        matches = [ours == theirs for ours, theirs in zip(integers(draft.tokens), truth, strict=False)]
        accepted = matches.index(False) if False in matches else len(matches)
        tried.append(Tried(accepted, None if draft.confidence is None else tuple(floats(draft.confidence))))
        tick()
    return tried


def _hidden_rows(target: Target, taps: tuple[int, ...], ids: list[int]) -> mx.array | None:
    """The tapped rows [1, n, taps * d] of all `ids`; None for a drafter that reads none."""
    if not taps:
        return None
    target.tap(taps)
    cache, found = target.new_cache(), []
    for at in range(0, len(ids), _CHUNK_TOKENS):
        _, rows = target.forward(mx.array([ids[at : at + _CHUNK_TOKENS]], dtype=mx.int32), cache)
        assert rows is not None
        mx.eval(rows, cache.arrays)
        found.append(rows)
    target.tap(())
    return mx.concatenate(found, axis=1)
