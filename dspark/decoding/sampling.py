"""Choosing tokens from logits: greedy, or a draw from exactly the target's law under the request's settings.

A draw is the Gumbel-max rule: the token with the largest log-probability plus noise, over log-probabilities that went
through mlx-lm's own processors and filters in mlx-lm's order. The noise of a token depends on the request's seed and on
the token's place in the answer, and on nothing else. So the emitted token is one fixed function of the seed, the place
and what stands before it, in plain and in speculative decoding alike: proposals decide only how many places are settled
in one pass. That makes speculation exact for any proposal and for any rule about how many to verify, and an equal seed
gives equal text whatever the mode, the drafter or the cap (up to floating-point ties, as in greedy decoding). A drafter
that draws with the same noise agrees with the target with a chance of at least (1 - TV) / (1 + TV), TV being the total
variation distance of the two laws (Daliri, Musco, Suresh: Coupling without Communication and Drafter-Invariant
Speculative Decoding, 2024).
"""

import secrets
from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, make_logits_processors

from dspark.arrays import floats, integers
from dspark.decoding.constraint import forbid
from dspark.decoding.events import TokenLogprob
from dspark.decoding.request import Sampling
from dspark.drafters.drafter import Pick

# As far back as mlx-lm's penalties look.
HISTORY_TOKENS = 20
_MASK = (1 << 64) - 1
# Settings nearer to nothing, or larger than one over it, would leave float32 on the way and make junk of the logits.
_LEAST = 1e-30
_HALF_STEP = 2.0**-33


class Chooser:
    """Chooses the tokens of one request. Holds no random state: equal arguments give equal tokens."""

    def __init__(self, sampling: Sampling, vocabulary: int) -> None:
        self._sampling = sampling
        self._vocabulary = vocabulary
        self._seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        bias = {token: min(max(value, -1 / _LEAST), 1 / _LEAST) for token, value in sampling.logit_bias.items()}
        repetition = min(max(sampling.repetition_penalty, _LEAST), 1 / _LEAST)
        penalties = {
            "repetition_penalty": None if repetition == 1.0 else repetition,
            "presence_penalty": sampling.presence_penalty or None,
            "frequency_penalty": sampling.frequency_penalty or None,
        }
        self._processors = make_logits_processors(logit_bias=bias or None, **penalties)
        self.reads_history = any(value is not None for value in penalties.values())

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn."""
        return self._sampling.temperature == 0.0

    def noise(self, place: int, count: int) -> mx.array | None:
        """Gumbel noise [count, V] for the answer's tokens `place`, `place` + 1, …; None for greedy decoding."""
        if self.greedy:
            return None
        return mx.concatenate([self._gumbel(_mixed(self._seed, place + row)) for row in range(count)])

    def _gumbel(self, key: int) -> mx.array:
        """Noise [1, V]. MLX's own has steps of 2**-24 where it is large, and so never draws what is rarer than that.

        Uniform numbers are finest next to 0, in steps of 2**-32; here those become the large noise.
        """
        uniform = mx.random.uniform(shape=(1, self._vocabulary), key=mx.random.key(key))
        return -mx.log(-mx.log1p(-mx.maximum(uniform, _HALF_STEP)))

    def process(self, logits: mx.array, history: Sequence[int], allowed: mx.array | None = None) -> mx.array:
        """`logits` [w, V] after bias and penalties; row j has seen `history` less its newest w - 1 - j tokens.

        `history` ends with the token that the last row was fed. What `allowed` [w, V] excludes is excluded whatever the
        bias, and before the filters: they see the law that is left.
        """
        values = self._penalized(logits, history)
        return values if allowed is None else forbid(values, allowed)

    def _penalized(self, logits: mx.array, history: Sequence[int]) -> mx.array:
        if not self._processors:
            return logits
        width = logits.shape[0]
        rows = []
        for row in range(width):
            seen = mx.array(list(history[: len(history) - (width - 1 - row)][-HISTORY_TOKENS:]))
            values = logits[row : row + 1]
            for processor in self._processors:
                values = processor(seen, values)
            rows.append(values)
        return mx.concatenate(rows)

    def choose(self, logits: mx.array, noise: mx.array | None) -> mx.array:
        """[w] tokens from processed logits [w, V] and the noise of their places [w, V]."""
        return mx.argmax(self.scores(logits, noise), axis=-1)

    def scores(self, logits: mx.array, noise: mx.array | None) -> mx.array:
        """[w, V] what the chosen token is the largest of."""
        return logits if noise is None else self._log_law(logits) + noise

    def pick(self, noise: mx.array | None, allowed: mx.array | None = None) -> Pick:
        """The same rule for a drafter: step k of a draft is settled at the place of noise row k, if it is right.

        Of what may come, only step 0 can be told before the draft is read: `allowed` [1, V].
        """

        def choose(logits: mx.array, step: int, ids: mx.array | None) -> mx.array:
            if allowed is not None and step == 0:
                logits = forbid(logits, allowed if ids is None else allowed[:, ids])
            row = None if noise is None else noise[step : step + 1]
            return self.choose(logits, row if row is None or ids is None else row[:, ids])

        return choose

    def _log_law(self, logits: mx.array) -> mx.array:
        """Unnormalized log-probabilities [w, V] of the law that is drawn from, minus infinity where filtered out."""
        sampling = self._sampling
        values = logits.astype(mx.float32)
        values = values - mx.logsumexp(values, axis=-1, keepdims=True)
        if sampling.top_p < 1.0:
            values = apply_top_p(values, max(sampling.top_p, _LEAST))
        if sampling.min_p > 0.0:
            values = apply_min_p(values, sampling.min_p)
        if 0 < sampling.top_k < values.shape[-1]:
            values = apply_top_k(values, sampling.top_k)
        return values * (1.0 / max(sampling.temperature, _LEAST))


class Logprobs:
    """Raw log-probabilities of the rows of one forward, for the caller who asked for them."""

    def __init__(self, logits: mx.array, choices: mx.array, top: int) -> None:
        """`logits` [w, V] before any processing, `choices` [w]."""
        values = logits.astype(mx.float32)
        values = values - mx.logsumexp(values, axis=-1, keepdims=True)
        self._chosen = mx.take_along_axis(values, choices[:, None], axis=-1)[:, 0]
        self._choices = choices
        self._best = mx.argsort(-values, axis=-1)[:, :top] if top else None
        self._best_values = None if self._best is None else mx.take_along_axis(values, self._best, axis=-1)

    @property
    def arrays(self) -> list[mx.array]:
        """Arrays to evaluate with the round."""
        return [a for a in (self._chosen, self._best, self._best_values) if a is not None]

    def read(self, count: int) -> tuple[TokenLogprob, ...]:
        """The first `count` rows."""
        entries = []
        for row, (token, value) in enumerate(zip(integers(self._choices), floats(self._chosen), strict=True)):
            top: tuple[tuple[int, float], ...] = ()
            if self._best is not None and self._best_values is not None:
                top = tuple(zip(integers(self._best[row]), floats(self._best_values[row]), strict=True))
            entries.append(TokenLogprob(token, value, top))
        return tuple(entries[:count])


def _mixed(seed: int, place: int) -> int:
    """One well-spread 64-bit key from a seed and a place (the SplitMix64 finalizer)."""
    value = (seed + (place + 1) * 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
