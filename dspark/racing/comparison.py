"""Compares the answers of a race: every arm with plain decoding, and every arm with itself."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dspark.decoding.events import Finished, RoundCommitted
from dspark.decoding.request import Request, Sampling, SpeculationOptions
from dspark.decoding.verdict import Answer, Evidence, Outcome, Verdict, compare
from dspark.racing.arms import BASELINE
from dspark.racing.decoder import Decoder
from dspark.racing.trials import Trial

Compared = tuple[Outcome, tuple[Evidence, ...], int]
"""Outcome, evidence, and how many ids of the answer were compared."""


@dataclass(frozen=True)
class Check:
    """One answer of `arm` held against one of `against` (the same label: the arm with itself, trial against trial).

    `evidence` lists the differences in the order of the text: ties, and at most one divergence, which is the last.
    `compared` counts the ids that were held against plain decoding, of `length` in the answer.
    """

    arm: str
    against: str
    prompt: int
    trial: int
    outcome: Outcome
    evidence: tuple[Evidence, ...]
    compared: int
    length: int


@dataclass(frozen=True)
class Judge:
    """Compares answers with the help of the target they came from.

    A tie does not end a comparison: behind it the answers are in different contexts, so plain decoding is asked to
    continue from the arm's own token and the rest is compared with that, however many ties there are. Each continuation
    stops where it leaves the answer, so that all of them together decode about as many tokens as the answer has.
    `follow` off leaves the rest unread, as does sampling, whose draws belong to their places in the answer.
    """

    decoder: Decoder
    dtype: str
    eos: Sequence[int]
    max_tokens: int
    follow: bool = True
    sampling: Sampling = Sampling()

    def compare(self, prompt: Sequence[int], expected: Answer, found: Answer) -> Compared:
        """Hold `found` against `expected`, two answers to `prompt` (token ids)."""
        evidence: list[Evidence] = []
        while True:
            verdict = self._first_difference(prompt, expected, found)
            if verdict.evidence is None:
                return ("tied" if evidence else "identical"), tuple(evidence), len(found.ids)
            evidence.append(verdict.evidence)
            seen = verdict.evidence.position + 1
            if verdict.outcome == "diverged" or seen >= len(found.ids):
                return verdict.outcome, tuple(evidence), min(seen, len(found.ids))
            if not self.follow or self.sampling.temperature > 0:
                return "tied", tuple(evidence), seen
            expected = self._continue(prompt, found.tokens, seen)

    def _first_difference(self, prompt: Sequence[int], expected: Answer, found: Answer) -> Verdict:
        return compare(
            expected,
            found,
            dtype=self.dtype,
            eos=self.eos,
            top_two=lambda tokens: self.decoder.top_two([*prompt, *tokens], self.sampling, len(tokens)),
        )

    def _continue(self, prompt: Sequence[int], found: tuple[int, ...], seen: int) -> Answer:
        """What plain decoding makes of the first `seen` tokens of `found`, up to where it says something else."""
        said = found[:seen]
        room = self.max_tokens - seen
        if room <= 0:
            return Answer(said, ended=False)
        request = Request(
            [*prompt, *said],
            room,
            speculation=SpeculationOptions(BASELINE),
            sampling=self.sampling,
            reuse=False,
            cancelled=lambda: said[: len(found)] != found[: len(said)],
        )
        for event in self.decoder.generate(request):
            if isinstance(event, Finished):
                return Answer((*found[:seen], *event.tokens), ended=event.reason == "stop")
            if isinstance(event, RoundCommitted):
                said += event.tokens
        return Answer(said, ended=False)


def check(
    trials: Sequence[Trial], prompts: Sequence[Sequence[int]], arms: Sequence[str], judge: Judge
) -> Iterator[Check]:
    """All comparisons of a race; the first of `arms` is plain decoding, `prompts` are token ids.

    Each arm is compared with plain decoding's first answer to the prompt, and with its own first answer. Equal answers
    share one look. The decoder's errors are raised out of the iterator.
    """
    for index, prompt in enumerate(prompts):
        answers = {arm: [trial for trial in trials if trial.prompt == index and trial.arm == arm] for arm in arms}
        reference = answers[arms[0]]
        for arm in arms:
            yield from _against(answers[arm][:1], answers[arm][1:], prompt, judge)
            if arm != arms[0]:
                yield from _against(reference, answers[arm], prompt, judge)


def _against(
    reference: Sequence[Trial], trials: Sequence[Trial], prompt: Sequence[int], judge: Judge
) -> Iterator[Check]:
    if not reference:
        return
    accepted = {trial.answer for trial in reference}
    known: dict[Answer, Compared] = {answer: ("identical", (), len(answer.ids)) for answer in accepted}
    for trial in trials:
        if trial.answer not in known:
            known[trial.answer] = judge.compare(prompt, reference[0].answer, trial.answer)
        outcome, evidence, compared = known[trial.answer]
        yield Check(
            trial.arm, reference[0].arm, trial.prompt, trial.number, outcome, evidence, compared, len(trial.answer.ids)
        )
