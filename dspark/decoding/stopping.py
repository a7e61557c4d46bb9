"""The one stop rule, for plain and speculative decoding alike: tokens are settled one by one, in order."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from mlx_lm.generate import TextStateMachine
from mlx_lm.tokenizer_utils import TokenizerWrapper

from dspark.decoding.events import FinishReason


@dataclass(frozen=True)
class Settlement:
    """What became of a run of tokens.

    `count` of them were settled (an end-of-sequence token among them), the rest never happened. `tokens` reach the
    answer, `text` is what can now be shown. `reason` is set when the answer ends here.
    """

    count: int
    tokens: tuple[int, ...]
    text: str
    reason: FinishReason | None


class StopRule:
    """Settles tokens in order: end-of-sequence first, then stop strings, then the budget.

    An end-of-sequence token is no part of the answer and is not charged to the budget; a budget spent before it is
    reached ends the answer as `length`. A stop string ends the text before its first character, even when it began in
    earlier tokens: those whose text is wholly cut are taken back from the answer.
    """

    def __init__(self, tokenizer: TokenizerWrapper, eos: Collection[int], stop: Iterable[str], max_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = tokenizer.detokenizer
        self._eos = frozenset(eos)
        self._budget = max_tokens
        self._words = [word for word in stop if word]
        self._state = TextStateMachine({"normal": [(word, None) for word in self._words]}).make_state()
        self.tokens: list[int] = []
        self._pieces: list[str] = []
        self._shown = 0
        self._read = 0
        self._matched: str | None = None

    @property
    def remaining(self) -> int:
        """Tokens that the answer may still have."""
        return self._budget - len(self.tokens)

    @property
    def text(self) -> str:
        """Everything shown so far."""
        return "".join(self._pieces)

    @property
    def matched(self) -> str | None:
        """The stop string that ended the answer, if one did."""
        return self._matched

    def take(self, run: Iterable[int]) -> Settlement:
        """Settle the next tokens of the answer, as many as it still takes."""
        before = len(self.tokens)
        shown = len(self._pieces)
        count, reason = 0, None
        for token in run:
            count += 1
            reason = self._settle(token)
            if reason is not None:
                break
        return Settlement(count, tuple(self.tokens[before:]), "".join(self._pieces[shown:]), reason)

    def finish(self) -> str:
        """End the answer for an outside reason (cancelled); returns the text that was still held back."""
        shown = len(self._pieces)
        self._close()
        return "".join(self._pieces[shown:])

    def _settle(self, token: int) -> FinishReason | None:
        if token in self._eos:
            self._close()
            return "stop"
        self.tokens.append(token)
        self._detokenizer.add_token(token)
        matched = self._show(self._new_text())
        if matched:
            self._withdraw()
            return "stop"
        if self.remaining <= 0:
            return "stop" if self._close() else "length"
        return None

    def _close(self) -> bool:
        """Show what the detokenizer and the stop strings still held back; True if that completes a stop string."""
        self._detokenizer.finalize()
        if self._show(self._new_text()):
            self._withdraw()
            return True
        self._flush()
        return False

    def _new_text(self) -> str:
        """What the detokenizer has added. Its text may shrink for a moment, while a character is incomplete."""
        text = self._detokenizer.text
        new = text[self._read :]
        self._read = max(self._read, len(text))
        return new

    def _show(self, segment: str) -> bool:
        """Pass on text that cannot be part of a stop string; True when one is complete."""
        if not segment:
            return False
        self._state, safe, state = TextStateMachine.step(self._state, segment)
        if safe:
            self._pieces.append(safe)
            self._shown += len(safe)
        if state is None:
            rest = self._detokenizer.text[self._shown :]
            self._matched = next((word for word in self._words if rest.startswith(word)), None)
        return state is None

    def _flush(self) -> None:
        self._state, held, _ = TextStateMachine.flush(self._state)
        if held:
            self._pieces.append(held)
            self._shown += len(held)

    def _withdraw(self) -> None:
        """Keep the fewest tokens whose text covers what is shown."""
        while self.tokens and self._covers(self.tokens[:-1]):
            self.tokens.pop()

    def _covers(self, tokens: list[int]) -> bool:
        # A character that is not complete yet decodes to replacements.
        return len(str(self._tokenizer.decode(tokens)).rstrip("\ufffd")) >= self._shown
