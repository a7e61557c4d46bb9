"""Draft-free proposals: the continuation of the longest earlier occurrence of what was just written."""

from dataclasses import dataclass

from dspark.tuning.pilot import MAX_ROUND_TOKENS, MIN_MATCH_TOKENS


@dataclass(frozen=True)
class Match:
    """The newest `length` tokens occurred before, and `tokens` are proposed to follow."""

    length: int
    tokens: tuple[int, ...]


NO_MATCH = Match(0, ())


class LookupIndex:
    """An online suffix automaton over prompt and answer.

    Appending a token costs amortized constant time whatever the context, and the longest suffix that also ends
    somewhere earlier is always at hand: it is the suffix link of the newest state. A state's `end` is the position of
    one occurrence, renewed each time it is used, so that the most recent occurrence wins among equals.
    """

    def __init__(self, tokens: list[int] | tuple[int, ...] = ()) -> None:
        self.tokens: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link: list[int] = [-1]
        self._length: list[int] = [0]
        self._end: list[int] = [-1]
        self._last = 0
        self.extend(tokens)

    def extend(self, tokens: list[int] | tuple[int, ...]) -> None:
        """Append committed tokens."""
        for token in tokens:
            self._renew()
            self._append(token)

    def _renew(self) -> None:
        # Only now, one token later, does the newest position become an earlier occurrence.
        link = self._link[self._last]
        if link > 0:
            self._end[link] = len(self.tokens) - 1

    def _append(self, token: int) -> None:
        position = len(self.tokens)
        self.tokens.append(token)
        state = self._new_state(self._length[self._last] + 1, position)
        walk = self._last
        while walk >= 0 and token not in self._next[walk]:
            self._next[walk][token] = state
            walk = self._link[walk]
        self._link[state] = self._suffix(walk, token) if walk >= 0 else 0
        self._last = state

    def _suffix(self, walk: int, token: int) -> int:
        """The state of the longest earlier suffix, split off a longer one where it has none of its own yet."""
        found = self._next[walk][token]
        if self._length[walk] + 1 == self._length[found]:
            return found
        clone = self._new_state(self._length[walk] + 1, self._end[found])
        self._next[clone] = dict(self._next[found])
        self._link[clone] = self._link[found]
        self._link[found] = clone
        while walk >= 0 and self._next[walk].get(token) == found:
            self._next[walk][token] = clone
            walk = self._link[walk]
        return clone

    def _new_state(self, length: int, end: int) -> int:
        self._next.append({})
        self._link.append(-1)
        self._length.append(length)
        self._end.append(end)
        return len(self._next) - 1

    @property
    def suffix_length(self) -> int:
        """How many of the newest tokens, taken together, also end somewhere earlier."""
        link = self._link[self._last]
        return self._length[link] if link > 0 else 0

    def match(self, limit: int = MAX_ROUND_TOKENS) -> Match:
        """The longest earlier occurrence of the newest tokens and what followed it.

        At most as many tokens are proposed as matched, and at most `limit`: a long match is a reason to trust a long
        draft. Where the occurrence overlaps the end, the text is periodic and the period is continued.
        """
        length = self.suffix_length
        if length < MIN_MATCH_TOKENS:
            return NO_MATCH
        after = self._end[self._link[self._last]] + 1
        period = len(self.tokens) - after
        count = min(limit, length)
        return Match(length, tuple(self.tokens[after + i % period] for i in range(count)))
