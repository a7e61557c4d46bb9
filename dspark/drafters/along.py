"""A drafter tried along an answer of its target's: what it would propose at every token, and what of it is right."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
from mlx_lm import batch_generate

from dspark.arrays import floats, integers
from dspark.drafters.drafter import Drafter
from dspark.sequences import common_prefix
from dspark.targets.caches import TargetCache
from dspark.targets.target import Target

logger = logging.getLogger(__name__)

_CHUNK_TOKENS = 512


@dataclass(frozen=True)
class Tried:
    """One draft: how many of its proposals the target would accept, and the head's confidences in them, if any."""

    accepted: int
    confidences: tuple[float, ...] | None


@dataclass(frozen=True)
class Answered:
    """A prompt, its target's greedy answer without an end-of-sequence token, and the tapped rows of both.

    `rows` is [1, n, taps * d] of all but the last token; None where nothing was tapped.
    """

    prompt: list[int]
    answer: list[int]
    rows: mx.array | None


def greedy_answer(target: Target, prompt: list[int], tokens: int) -> list[int]:
    """The target's own greedy continuation of `prompt`, `tokens` long or up to its end."""
    cache = target.new_cache()
    _rows(target, (), prompt[:-1], cache)
    answer, _ = _decode(target, cache, prompt[-1:], tokens)
    return answer


def answered(target: Target, taps: tuple[int, ...], prompts: list[list[int]], tokens: int) -> list[Answered]:
    """Every prompt read once, and answered: all in one batch where the model allows it."""
    read = []
    for prompt in prompts:
        cache = target.new_cache()
        read.append((prompt, cache, _rows(target, taps, prompt[:-1], cache)))
    answers = _batch(target, [(prompt, cache) for prompt, cache, _ in read], tokens)
    found = []
    for at, (prompt, cache, rows) in enumerate(read):
        if answers is None:
            target.tap(taps)
            answer, more = _decode(target, cache, prompt[-1:], tokens)
        else:
            answer = answers[at]
            more = _rows(target, taps, [prompt[-1], *answer[:-1]], cache) if taps else []
        answer = [token for token in answer if token not in target.eos]
        found.append(Answered(prompt, answer, _joined([*rows, *more])))
    target.tap(())
    return found


def _batch(target: Target, read: list[tuple[list[int], TargetCache]], tokens: int) -> list[list[int]] | None:
    """Answers to prompts of which all but the last token are read already; their caches stay as they are."""
    target.tap(())
    try:
        batch = batch_generate(
            target.model,
            target.tokenizer,
            [prompt[-1:] for prompt, _ in read],
            prompt_caches=[cache.entries for _, cache in read],
            max_tokens=tokens,
            return_token_ids=True,
        )
    except Exception as error:  # a cache without a batched form raises whatever its author thought of
        logger.debug("no batch of %s: %s", target.family, error)
        return None
    return [list(answer) for answer in batch.token_ids]


def _decode(target: Target, cache: TargetCache, fed: list[int], tokens: int) -> tuple[list[int], list[mx.array]]:
    """Greedy ids after `fed`, up to and including the end of the sequence, and what is tapped on the way."""
    answer: list[int] = []
    rows = []
    last = mx.array([fed], dtype=mx.int32)
    while len(answer) < tokens and not (answer and answer[-1] in target.eos):
        logits, hidden = target.forward(last, cache)
        choice = mx.argmax(logits[0, -1:], axis=-1)
        answer += integers(choice)
        last = choice[None].astype(mx.int32)
        if hidden is not None:
            rows.append(hidden)
    return answer, rows


def hidden_rows(target: Target, taps: tuple[int, ...], ids: list[int]) -> mx.array | None:
    """The tapped rows [1, n, taps * d] of all `ids`; None for a drafter that reads none."""
    if not taps:
        return None
    found = _rows(target, taps, ids, target.new_cache())
    target.tap(())
    return _joined(found)


def drafts_along(
    drafter: Drafter,
    rows: mx.array | None,
    prompt: list[int],
    answer: list[int],
    tick: Callable[[], None] = lambda: None,
) -> list[Tried]:
    """A full draft at every token of `answer` but the last, as the anchor. `tick` is called after each.

    `rows` are the `hidden_rows` of both, of all but the last token at least.
    """
    context, tried, held = drafter.new_context(), [], 0
    ids = [*prompt, *answer]
    for anchor in range(len(prompt), len(ids) - 1):
        context.append(None if rows is None else rows[:, held:anchor], ids[held:anchor])
        held = anchor
        draft = drafter.draft(context, mx.array([ids[anchor]], dtype=mx.int32), drafter.block)
        truth = ids[anchor + 1 : anchor + 1 + drafter.block]
        accepted = common_prefix(integers(draft.tokens), truth)
        tried.append(Tried(accepted, None if draft.confidence is None else tuple(floats(draft.confidence))))
        tick()
    return tried


def _rows(target: Target, taps: tuple[int, ...], ids: list[int], cache: TargetCache) -> list[mx.array]:
    """Read `ids` into `cache`, chunk by chunk; what is tapped of them."""
    target.tap(taps)
    found = []
    for at in range(0, len(ids), _CHUNK_TOKENS):
        logits, rows = target.forward(mx.array([ids[at : at + _CHUNK_TOKENS]], dtype=mx.int32), cache)
        if rows is None:
            mx.eval(logits[:, -1], cache.arrays)
        else:
            mx.eval(rows, cache.arrays)
            found.append(rows)
    return found


def _joined(rows: list[mx.array]) -> mx.array | None:
    return mx.concatenate(rows, axis=1) if rows else None
