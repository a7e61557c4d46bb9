"""One round: draft, one target forward over the anchor and the proposals, accept, and keep only what was accepted."""

from dataclasses import dataclass
from itertools import takewhile

import mlx.core as mx

from dspark.arrays import floats, integers
from dspark.decoding.acceptance import accepted_prefix
from dspark.decoding.constraint import Constraint
from dspark.decoding.events import TokenLogprob
from dspark.decoding.lookup import NO_MATCH, Match
from dspark.decoding.sampling import HISTORY_TOKENS, Chooser, Logprobs
from dspark.decoding.sequence import Sequence
from dspark.drafters.drafter import Drafter
from dspark.errors import VerifierError
from dspark.targets.target import Target
from dspark.tuning.pilot import PLAIN, Outcome, Pilot, Plan


@dataclass(frozen=True)
class Submission:
    """A round that the device may still be computing. Arrays are lazy; `start` is the cache length before it.

    `confidences` are a draft's, and None where nobody wants them.
    """

    plan: Plan
    start: int
    proposals: mx.array | None
    verified: int
    match_length: int
    confidences: mx.array | None
    choices: mx.array
    peaks: mx.array
    rows: mx.array | None
    logprobs: Logprobs | None


@dataclass(frozen=True)
class Reading:
    """A round read back: the tokens it settles (`accepted` proposals and the target's own next choice)."""

    run: tuple[int, ...]
    outcome: Outcome
    logprobs: tuple[TokenLogprob, ...]


class Rounds:
    """Builds and reads rounds for one target and, where there is one, its drafter."""

    def __init__(
        self, target: Target, drafter: Drafter | None, pilot: Pilot, chooser: Chooser, top_logprobs: int | None
    ) -> None:
        self._target = target
        self._drafter = drafter
        self._pilot = pilot
        self._chooser = chooser
        self._top_logprobs = top_logprobs

    def feed(self, sequence: Sequence, tokens: mx.array) -> tuple[mx.array, mx.array | None]:
        """Run `tokens` [1, w] through the target: logits, and the hidden rows that this drafter reads.

        The taps are set each time, since others use the target between rounds.
        """
        self._target.tap(self._drafter.taps if self._drafter else ())
        return self._target.forward(tokens, sequence.cache)

    def submit(self, sequence: Sequence, room: int) -> Submission:
        """Start the next round; `room` bounds its proposals."""
        match = sequence.index.match() if sequence.index is not None and room > 0 else NO_MATCH
        plan = self._pilot.plan(match.length, len(match.tokens), room)
        anchor = mx.array([sequence.anchor], dtype=mx.int32)
        if plan.source == "drafter":
            return self._submit_draft(sequence, plan, anchor)
        if plan.source == "lookup":
            proposals = mx.array(match.tokens[: plan.cap], dtype=mx.int32)
            return self._verify(sequence, plan, anchor, proposals, match=match)
        return self._verify(sequence, PLAIN, anchor, None)

    def submit_after(self, sequence: Sequence, pending: Submission) -> Submission | None:
        """Start a plain round on top of a plain one that was not read yet, where the pilot wants one in any case.

        Keeps the device busy while the host reads, streams and plans.
        """
        suffix = sequence.index.suffix_length if sequence.index is not None else 0
        if pending.verified or self._chooser.reads_history or not self._pilot.plain_ahead(suffix):
            return None
        if _constraining(sequence, 2) is not None:  # what may come depends on the token that is still unread
            return None
        return self._verify(sequence, PLAIN, pending.choices, None, ahead=1)

    def _submit_draft(self, sequence: Sequence, plan: Plan, anchor: mx.array) -> Submission:
        assert self._drafter is not None and sequence.context is not None
        noise = self._chooser.noise(len(sequence.stop.tokens), plan.cap + 1)
        constraint = _constraining(sequence, 1)
        first = None if constraint is None else constraint.masks(())
        draft = self._drafter.draft(sequence.context, anchor, plan.cap, self._chooser.pick(noise, first))
        proposals, count = draft.tokens, int(draft.tokens.shape[0])
        confidences = None if plan.confidences == "never" else draft.confidence
        if plan.confidences == "first":
            if confidences is not None:
                mx.eval(proposals, confidences)
            count = self._pilot.trim(_values(confidences), count)
        mx.async_eval(proposals, *_some(confidences))  # the device drafts while the host builds the target's forward
        kept = proposals[:count].astype(mx.int32) if count else None
        return self._verify(sequence, plan, anchor, kept, confidences=confidences, noise=noise)

    def _verify(
        self,
        sequence: Sequence,
        plan: Plan,
        anchor: mx.array,
        proposals: mx.array | None,
        *,
        match: Match = NO_MATCH,
        confidences: mx.array | None = None,
        noise: mx.array | None = None,
        ahead: int = 0,
    ) -> Submission:
        """Start the target's forward; `ahead` tokens of the answer are still unread, `noise` is of its places."""
        start = sequence.cache.length
        constraint = _constraining(sequence, ahead + 1 + (0 if proposals is None else int(proposals.shape[0])))
        draft: list[int] = []
        if constraint is not None and proposals is not None:
            draft = self._admitted(constraint, integers(proposals))
            proposals = proposals[: len(draft)] if draft else None
            if not draft and plan.source == "lookup":
                plan = PLAIN
        tokens = anchor if proposals is None else mx.concatenate([anchor, proposals])
        logits, rows = self.feed(sequence, tokens[None])
        verified = 0 if proposals is None else int(proposals.shape[0])
        if noise is None:
            noise = self._chooser.noise(len(sequence.stop.tokens) + ahead, 1 + verified)
        history: list[int] = []
        if self._chooser.reads_history:  # only then are the proposals waited for
            history = sequence.recent(HISTORY_TOKENS) + ([] if proposals is None else integers(proposals))
        allowed = None
        if constraint is not None:
            mx.async_eval(logits)  # the device computes while the host walks the grammar
            allowed = constraint.masks(draft)
        values = self._chooser.process(logits[0], history, allowed)
        choices = self._chooser.choose(values, None if noise is None else noise[: 1 + verified])
        peaks = mx.max(logits[0], axis=-1)
        logprobs = None if self._top_logprobs is None else Logprobs(logits[0], choices, self._top_logprobs)
        sequence.tally.target_forwards += 1
        extra = [*_some(rows), *([] if logprobs is None else logprobs.arrays)]
        mx.async_eval(choices, peaks, *extra)
        return Submission(plan, start, proposals, verified, match.length, confidences, choices, peaks, rows, logprobs)

    def read(self, sequence: Sequence, submission: Submission) -> Reading:
        """Wait for a round, decide what is accepted, and give back the rest of the cache.

        Raises:
            VerifierError: the target's output is not finite or not a token.
            RollbackError: a cache did not roll back.
        """
        choices = integers(submission.choices)
        self._check(choices, floats(submission.peaks))
        proposals = [] if submission.proposals is None else integers(submission.proposals)
        accepted = accepted_prefix(proposals, choices)
        if accepted < submission.verified:
            sequence.cache.truncate(submission.start + accepted + 1)
        if sequence.context is not None:
            kept = None if submission.rows is None else submission.rows[:, : accepted + 1]
            sequence.context.append(kept, [sequence.anchor, *proposals[:accepted]])
        outcome = Outcome(
            submission.plan.source,
            submission.plan.cap,
            submission.verified,
            accepted,
            submission.match_length,
            _values(submission.confidences),
            sequence.cache.length,
            submission.plan.confidences == "first" and submission.confidences is not None,
        )
        logprobs = () if submission.logprobs is None else submission.logprobs.read(accepted + 1)
        return Reading((*proposals[:accepted], choices[accepted]), outcome, logprobs)

    def _admitted(self, constraint: Constraint, draft: list[int]) -> list[int]:
        """The start of `draft` that may come next; what ends the answer is left to the target's own choice."""
        text = list(takewhile(lambda token: token not in self._target.eos, draft))
        return text[: constraint.admitted(text)]

    def _check(self, choices: list[int], peaks: list[float]) -> None:
        finite, vocabulary = all(peak - peak == 0.0 for peak in peaks), self._target.vocabulary
        if not finite or not all(0 <= choice < vocabulary for choice in choices):
            raise VerifierError(
                "the target's logits are not finite, so this round was dropped; check the model's files and free memory"
            )


def _some(array: mx.array | None) -> list[mx.array]:
    return [] if array is None else [array]


def _values(confidences: mx.array | None) -> tuple[float, ...] | None:
    return None if confidences is None else tuple(floats(confidences))


def _constraining(sequence: Sequence, tokens: int) -> Constraint | None:
    """The sequence's constraint, unless the next `tokens` tokens are free."""
    constraint = sequence.constraint
    return None if constraint is None or constraint.idle(tokens) else constraint
