"""How drafting has fared lately, beyond the answer at hand. Pure: no MLX, no clock."""

from dataclasses import dataclass

# Chosen by replaying recorded drafts of the demo pair over 24 prompts; broad optimum, nothing is sharp.
_FIRST_PARK_ROUNDS = 8
_LONGEST_PARK_ROUNDS = 64
_GAIN_MEMORY = 0.1
_HOPE = 0.05  # what drafting is credited with before it is tried
_HOPE_AGAIN = 0.01  # and after it was parked: one failed trial parks it again, a good one keeps it


@dataclass
class Standing:
    """How drafting has fared lately, from one answer to the next.

    Whoever asks for texts of one kind asks for more of it, and an answer is short against the rounds that it takes to
    find out that drafting does not pay.
    """

    # Another answer may be of another kind, so drafting is tried soon, however long it was to rest.
    _LONGEST_WAIT_ROUNDS = 24

    gain: float = _HOPE  # plain steps a drafted round, the latest counting most
    parked: int = 0  # rounds that drafting still rests
    park_rounds: int = _FIRST_PARK_ROUNDS  # that it will rest when it is parked again

    def begin(self) -> None:
        """Another answer begins."""
        self.parked = min(self.parked, self._LONGEST_WAIT_ROUNDS)

    def passed(self) -> None:
        """A round was done, of whatever kind."""
        self.parked = max(self.parked - 1, 0)

    def judge(self, gain: float) -> None:
        """A drafted round gained that much."""
        self.gain += _GAIN_MEMORY * (gain - self.gain)
        if self.gain < 0.0:
            self.parked = self.park_rounds
            self.park_rounds = min(2 * self.park_rounds, _LONGEST_PARK_ROUNDS)
            self.gain = _HOPE_AGAIN
        elif self.gain > _HOPE:
            self.park_rounds = _FIRST_PARK_ROUNDS
