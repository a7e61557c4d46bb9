"""Replaying recorded answers under a policy and a cost model: what a setting would come to, without the machine."""

from dataclasses import dataclass

from dspark.tuning.costs import CostModel
from dspark.tuning.pilot import PLAIN, Outcome, Pilot
from dspark.tuning.traces import Trace


@dataclass(frozen=True)
class Replay:
    """What one answer came to. `rounds` holds (tokens settled, milliseconds) of each round."""

    rounds: tuple[tuple[int, float], ...]

    @property
    def tokens(self) -> int:
        """Tokens settled."""
        return sum(tokens for tokens, _ in self.rounds)

    @property
    def ms(self) -> float:
        """Time of all rounds."""
        return sum(ms for _, ms in self.rounds)


def replay(trace: Trace, pilot: Pilot, costs: CostModel) -> Replay:
    """Decode `trace` with `pilot` as the loop would, at `costs`.

    A plain round is fed ahead where the pilot promises that it will be plain, as the loop does.
    """
    rounds: list[tuple[int, float]] = []
    at, ahead, total = 0, False, len(trace.places)
    while at < total:
        place, room = trace.places[at], total - at - 1
        plan = PLAIN if ahead else pilot.plan(place.suffix if place.offered else 0, place.offered, room)
        verified, right = 0, 0
        if plan.source == "drafter":
            verified = plan.cap
            if plan.confidences == "first":
                verified = pilot.trim(place.confidences[: plan.cap] if place.confidences else None, plan.cap)
            right = place.drafted
        elif plan.source == "lookup":
            verified, right = plan.cap, place.matched
        accepted = min(right, verified, room)
        promised = plan.source == "plain" and pilot.plain_ahead(place.suffix)
        cap = plan.cap if plan.source == "drafter" else 0
        waited = plan.confidences == "first" and place.confidences is not None
        # Fed ahead on both sides: the first and the last of a run of plain rounds wait, or are waited for.
        ms = costs.plain_ms if ahead and promised else costs.round_ms(1 + verified, cap, waits=waited)
        ahead = promised
        confidences = place.confidences[: plan.cap] if place.confidences and plan.confidences != "never" else None
        pilot.observe(Outcome(plan.source, plan.cap, verified, accepted, place.suffix, confidences, waited=waited))
        rounds.append((accepted + 1, ms))
        at += accepted + 1
    return Replay(tuple(rounds))
