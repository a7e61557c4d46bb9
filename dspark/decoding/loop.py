"""The decoding loop: prefill, then rounds until the stop rule ends the answer."""

import logging
import time
from collections.abc import Generator, Iterator

import mlx.core as mx

from dspark.decoding.events import Event, Finished, FinishReason, PrefillProgress, RoundCommitted, Text
from dspark.decoding.lookup import LookupIndex
from dspark.decoding.request import Request
from dspark.decoding.round import Reading, Rounds, Submission
from dspark.decoding.sampling import Chooser
from dspark.decoding.sequence import Sequence
from dspark.decoding.slow import slow_round_seconds
from dspark.decoding.stopping import Settlement, StopRule
from dspark.drafters.drafter import Drafter
from dspark.prefix.cache import PrefixCache
from dspark.prefix.lease import Lease
from dspark.targets.target import Target
from dspark.tuning.pilot import Pilot

# mlx-lm's own chunk, so that plain decoding here and there split a prompt alike.
PREFILL_CHUNK_TOKENS = 2048
# How often the allocator's unused buffers are given back.
_CLEAR_EVERY_TOKENS = 256

_LOG = logging.getLogger("dspark.decoding")


class Decoding:
    """One generation. Iterate over `events` once; `sequence` tells the state at any time, also after an early exit."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        pilot: Pilot,
        request: Request,
        *,
        lookup: bool,
        prefix: PrefixCache | None = None,
        chunk: int = PREFILL_CHUNK_TOKENS,
    ) -> None:
        """`prefix` is what to start from and to keep this in, `chunk` how many prompt tokens a forward reads."""
        self._target = target
        chooser = Chooser(request.sampling, target.vocabulary)
        self._rounds = Rounds(target, drafter, pilot, chooser, request.sampling.top_logprobs)
        self._pilot = pilot
        self._poll_cancelled = request.cancelled
        self._was_cancelled = False
        self._pending: Submission | None = None
        prompt = list(request.prompt)
        budget = min(request.max_tokens, target.context_window - len(prompt))
        self.sequence = Sequence(
            prompt,
            target.new_cache(),
            drafter.new_context() if drafter else None,
            StopRule(target.tokenizer, target.eos, request.stop, budget),
            request.constraint(target) if request.constraint is not None else None,
        )
        self._lookup = lookup
        self._prefix = prefix if request.reuse else None
        self._boundaries = request.boundaries
        self._chunk = chunk
        self._lease = Lease()
        self._started = time.perf_counter()
        self._first_token_at: float | None = None
        self._cleared_at = 0
        self._slow_round_s = slow_round_seconds()

    def events(self) -> Generator[Event]:
        """Decode. However this ends, both caches hold exactly `sequence.record` afterwards, and belong to the prefix
        cache where there is one; after an error they are given up.

        Raises:
            DecodingError: the decoder found its own state wrong; nothing of the failed round was emitted.
        """
        sequence = self.sequence
        ended = failed = False
        self._started = time.perf_counter()
        try:
            self._resume()
            yield from self._prefill()
            reason: FinishReason | None = None
            while reason is None:
                if self._cancelled():
                    reason = "cancelled"
                    break
                reason = yield from self._round()
            if reason == "cancelled":
                rest = sequence.stop.finish()  # which may complete a stop string and take tokens back
                self._back_to_settled()
                if rest:
                    yield Text(rest)
            ended = True
            yield self._finished(reason)
        except GeneratorExit:  # whoever listened has gone; what was read is as good as ever
            raise
        except BaseException as error:
            failed = True
            if isinstance(error, Exception) and self._first_token_at is None:
                yield PrefillProgress(sequence.cache.length, len(sequence.prompt), done=True)
            raise
        finally:
            if not ended:
                self._back_to_settled()
            self._give_back(failed=failed)

    def _resume(self) -> None:
        """Start from what is kept of the prompt. Only now, since others may have decoded since this was made."""
        if self._prefix is None:
            return
        sequence = self.sequence
        lease = self._lease = self._prefix.check_out(
            sequence.prompt,
            sequence.cache,
            drafted=sequence.context is not None,
            budget=sequence.stop.remaining,
            boundaries=self._boundaries,
        )
        if lease.cache is not None:
            sequence.resume(lease.cache, lease.context)

    def _give_back(self, *, failed: bool) -> None:
        if self._prefix is None:
            return
        if failed:
            self._prefix.drop()
        else:
            sequence = self.sequence
            self._prefix.give_back(self._lease, sequence.record, sequence.cache, sequence.context)

    def _cancelled(self) -> bool:
        self._was_cancelled = self._was_cancelled or self._poll_cancelled()
        return self._was_cancelled

    def _prefill(self) -> Iterator[Event]:
        """Read all of the prompt but its last token, which the first round feeds as its anchor."""
        sequence = self.sequence
        total = len(sequence.prompt)
        yield PrefillProgress(sequence.cache.length, total)
        if self._lookup:
            sequence.index = LookupIndex(sequence.prompt)
        while (at := sequence.cache.length) < total - 1:
            if self._cancelled():
                yield PrefillProgress(at, total, done=True)
                return
            end = self._lease.next_cut(at, min(self._chunk_end(at), total - 1))
            chunk = sequence.prompt[at:end]
            rows = self._rounds.feed(sequence, mx.array([chunk], dtype=mx.int32))[1]
            held = sequence.cache.arrays
            if sequence.context is not None:
                sequence.context.append(rows, chunk)
                held += sequence.context.arrays
            mx.eval(held)
            # Evaluated is not given back: the stream lets go of a chunk's buffers a moment later, and meanwhile the
            # next chunk's would come on top, which no estimate of the guard's counts.
            mx.synchronize()
            mx.clear_cache()
            self._lease.mark(sequence.cache)
            yield PrefillProgress(sequence.cache.length, total)

    def _chunk_end(self, at: int) -> int:
        if at == 0 and self._prefix is not None and self._target.kv_bits is not None:
            # A cache is quantized behind its first forward. Later turns find all rows quantized, so this one must too.
            return 1
        # Where the chunks of an unknown prompt would end, so that rows come out of the same kernels.
        return at - at % self._chunk + self._chunk

    def _round(self) -> Generator[Event, None, FinishReason | None]:
        """One round; its value is why the answer ends, or None."""
        sequence = self.sequence
        started = time.perf_counter()
        first = self._first_token_at is None
        submission = self._pending or self._rounds.submit(sequence, 0 if first else self._room())
        self._pending = None
        if self._more_than(1 + submission.verified):
            self._pending = self._rounds.submit_after(sequence, submission)
        reading = self._rounds.read(sequence, submission)
        if sequence.constraint is not None:
            sequence.constraint.advance(reading.run)
        settlement = sequence.stop.take(reading.run)
        now = time.perf_counter()
        if now - started > self._slow_round_s:
            _LOG.warning(
                "slow round: %.1f s for %d rows behind %d tokens (%s)",
                now - started,
                1 + submission.verified,
                submission.start,
                reading.outcome.source,
            )
        if first:
            self._first_token_at = now
        logprobs = reading.logprobs[: len(settlement.tokens)]
        sequence.logprobs += logprobs
        self._commit(submission, reading, settlement, now - started, first=first)
        if first:
            yield PrefillProgress(len(sequence.prompt), len(sequence.prompt), done=True)
        yield RoundCommitted(
            index=sequence.tally.rounds,
            source=reading.outcome.source,
            drafted=submission.verified,
            accepted=reading.outcome.accepted,
            tokens=settlement.tokens,
            cap=submission.plan.cap,
            elapsed_ms=(now - started) * 1e3,
            context=sequence.cache.length,
            logprobs=logprobs,
        )
        if settlement.text:
            yield Text(settlement.text)
        return settlement.reason

    def _room(self) -> int:
        """Proposals worth verifying: the round's own choice always takes one token of the budget."""
        return self.sequence.stop.remaining - 1

    def _more_than(self, tokens: int) -> bool:
        return self.sequence.stop.remaining > tokens

    def _commit(
        self, submission: Submission, reading: Reading, settlement: Settlement, seconds: float, *, first: bool
    ) -> None:
        sequence, outcome = self.sequence, reading.outcome
        if not first:
            # Proposals after the end of the answer never happened, to the counts as to the text.
            verified = min(submission.verified, settlement.count)
            accepted = min(outcome.accepted, settlement.count)
            sequence.tally.count(outcome.source, verified, accepted, settlement.count, seconds)
            self._pilot.observe(outcome)
        if settlement.reason is not None:
            self._pending = None
            sequence.retain(min(submission.start + outcome.accepted + 1, sequence.length))
            return
        self._lease.mark(sequence.cache)
        sequence.anchor = reading.run[-1]
        if sequence.index is not None:
            sequence.index.extend(reading.run)
        if len(sequence.stop.tokens) - self._cleared_at >= _CLEAR_EVERY_TOKENS:
            self._cleared_at = len(sequence.stop.tokens)
            mx.clear_cache()

    def _back_to_settled(self) -> None:
        """Bring both caches back to the last settled round."""
        self._pending = None
        settled = max(self.sequence.length - 1, 0)
        context = self.sequence.context
        held = min(self.sequence.cache.length, settled)
        if context is not None:
            held = min(held, context.length)
        self.sequence.retain(held)

    def _finished(self, reason: FinishReason) -> Finished:
        sequence, now = self.sequence, time.perf_counter()
        first = self._first_token_at if self._first_token_at is not None else now
        return Finished(
            reason=reason,
            tokens=tuple(sequence.stop.tokens),
            text=sequence.stop.text,
            statistics=sequence.tally.statistics(
                completion_tokens=len(sequence.stop.tokens),
                prefill_seconds=first - self._started,
                decode_seconds=now - first,
            ),
            logprobs=tuple(sequence.logprobs[: len(sequence.stop.tokens)]),
            stop_string=sequence.stop.matched,
        )
