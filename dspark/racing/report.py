"""A race in words and table cells, for a terminal and for Markdown alike."""

from collections.abc import Callable, Iterator, Sequence

from dspark.decoding.verdict import END, Evidence
from dspark.racing.comparison import Check
from dspark.racing.prompts import OVERALL, overall_at
from dspark.racing.regression import Comparison
from dspark.racing.result import RaceResult
from dspark.racing.series import Series
from dspark.racing.statistics import Figures, Ratio

NOTHING = "-"
SHOWN_POSITIONS = 8
SHOWN_EVIDENCE = 12

Column = tuple[str, Callable[[Figures], str]]

SPEED: tuple[Column, ...] = (
    ("tok/s", lambda seen: number(seen.tokens_per_second, ".1f")),
    ("spread", lambda seen: number(seen.spread, ".1%")),
    ("ratio", lambda seen: number(_value(seen.end_to_end), ".2f")),
    ("95%", lambda seen: interval(seen.end_to_end)),
)
PARTS: tuple[Column, ...] = (
    ("prompt ms", lambda seen: number(None if seen.prefill_s is None else 1000 * seen.prefill_s, ".0f")),
    ("decode tok/s", lambda seen: number(seen.decode_tokens_per_second, ".1f")),
    ("decode ratio", lambda seen: number(_value(seen.decode), ".2f")),
    ("tokens a round", lambda seen: number(seen.accept_len, ".2f")),
    ("forwards", lambda seen: number(seen.target_forwards, ".0f")),
)
LEGEND = (
    "tok/s: end-to-end rate, median. spread: how far repeats of one prompt lie apart (median deviation). "
    "ratio: end-to-end speed over plain decoding's, median over pairs of answers; overall, the geometric mean of the "
    "classes. 95%: bootstrap over prompts and trials. forwards: target passes an answer."
)
MEASURES = {"ratio": "ratio to plain", "rate": "tok/s"}
CHANGE_HEAD = ("arm", "measure", "prompts", "old", "new", "new/old", "95%", "outcome")
SERIES_HEAD = ("race", "state", "verdict", "fastest: ratio (95%)", "went wrong")
STAMPED = ("chip", "gpu_cores", "os", "device", "blas", "mlx", "mlx_lm", "mlx_dspark", "git")


def arm_rows(result: RaceResult) -> Iterator[tuple[str, str, str, str]]:
    """Arm, resolved settings, answers against plain decoding's, answers against its own."""
    repeats = {True: "yes", False: "no", None: "not tried"}
    for entrant in result.entrants:
        label = entrant.label
        outcome = result.against_baseline(label)
        if label in result.failures:
            state = "failed"
        else:
            state = "reference" if label == result.baseline else outcome or "not compared"
        yield label, entrant.speculation.describe(), state, repeats[result.repeatable(label)]


def rows(result: RaceResult, klass: str, columns: Sequence[Column]) -> Iterator[list[str]]:
    """One row an arm: its label, then `columns`."""
    for arm, row in result.table.items():
        failed = arm in result.failures
        yield [f"{arm} (failed)" if failed else arm, *(cell(row[klass]) for _, cell in columns)]


def positions(result: RaceResult, klass: str, shown: int = SHOWN_POSITIONS) -> Iterator[str]:
    """Of each arm that drafts: how many of the proposals tested at each draft position were accepted."""
    for arm, row in result.table.items():
        pairs = list(zip(row[klass].accepted_at, row[klass].offered_at, strict=True))
        if pairs:
            counts = "  ".join(f"{at}: {kept}/{tested}" for at, (kept, tested) in enumerate(pairs[:shown], start=1))
            more = f"  and {len(pairs) - shown} more" if len(pairs) > shown else ""
            yield f"{arm} accepted by position  {counts}{more}"


def depth_rows(result: RaceResult) -> Iterator[list[str]]:
    """One row an arm that is not plain decoding: its label, then ratio and interval at each of several depths."""
    for arm, row in result.table.items():
        if arm != result.baseline:
            ratios = [row[overall_at(depth)].end_to_end for depth in result.depths]
            yield [arm, *(f"{number(_value(each), '.2f')} ({interval(each)})" for each in ratios)]


def heading(result: RaceResult, section: str) -> str:
    members = result.sections[section]
    name, _, depth = section.partition("@")
    at = f" at depth {depth}" if depth else ""
    if len(members) > 1:
        what = "class" if depth or len(result.depths) == 1 else "section"
        return f"{name}{at} ({len(members)} {_plural(what, len(members))})"
    count = sum(prompt.section == section for prompt in result.prompts)
    return f"{name}{at} ({count} {_plural('prompt', count)})"


def verdict(result: RaceResult) -> str:
    """The verdict in one sentence."""
    against = [check for check in result.checks if check.arm != check.against]
    arms = len({check.arm for check in against})
    what = f"{len(against)} {_plural('answer', len(against))} of {arms} {_plural('arm', arms)}"
    if result.verdict is None:
        failed = result.baseline in result.failures
        return "no verdict: " + ("plain decoding failed" if failed else "there was nothing to compare")
    if result.verdict == "identical":
        tokens = sum(check.compared for check in against)
        return f"identical: {what} equal plain decoding token for token ({tokens} tokens compared)"
    if result.verdict == "tied":
        unread = sum(check.length - check.compared for check in against)
        rest = f"{unread} tokens behind a tie were not compared" if unread else "everything else is equal"
        return f"tied: {what} differ from plain decoding, or from themselves, only at floating-point ties; {rest}"
    arms_off = sorted({check.arm for check in result.checks if check.outcome == "diverged"})
    return (
        f"DIVERGED: {', '.join(arms_off)} gave other tokens than the target would, beyond a floating-point tie; "
        "do not use these settings, and report this with the --json file"
    )


def evidence(result: RaceResult, shown: int = SHOWN_EVIDENCE) -> list[str]:
    """One line a difference, divergences first, each said once."""
    found = [
        (each, check)
        for wanted in ("diverged", "tied")
        for check in result.checks
        if check.outcome == wanted
        for each in check.evidence
    ]
    lines = list(dict.fromkeys(_difference(result, check, each) for each, check in found))
    more = [f"and {len(lines) - shown} more, in --json"] if len(lines) > shown else []
    return lines[:shown] + more


def repeatability(result: RaceResult) -> str:
    """Whether each arm gave the same answer again."""
    labels = [entrant.label for entrant in result.entrants if entrant.label not in result.failures]
    off = [label for label in labels if result.repeatable(label) is False]
    if off:
        return f"not repeatable with themselves: {', '.join(off)} gave different answers to one prompt"
    if any(result.repeatable(label) is None for label in labels):
        return "self-consistency not tested: that takes two trials or more"
    return "each arm gave the same tokens in all its trials"


def failures(result: RaceResult) -> Iterator[str]:
    for arm, message in result.failures.items():
        yield f"{arm} failed: {message}"


def stamp_line(result: RaceResult) -> str:
    """What a reader must know of the machine, in one line; exports hold the whole stamp."""
    known = [f"{key} {result.stamp[key]}" for key in STAMPED if result.stamp.get(key) is not None]
    return ", ".join([f"{result.loaded.model} in {result.loaded.dtype}", *known])


def stamp_rows(result: RaceResult) -> Iterator[tuple[str, str]]:
    """The whole stamp, without what is unknown."""
    yield "pair", " + ".join(name for name in (result.loaded.model, result.loaded.drafter) if name is not None)
    yield "activations", result.loaded.dtype
    yield from ((key, str(value)) for key, value in result.stamp.items() if value not in (None, {}, []))


def series_rows(series: Series) -> Iterator[tuple[str, ...]]:
    """A row a race of a suite: name, state, verdict, fastest arm with its ratio, what went wrong."""
    for entry in series.entries:
        result = entry.result
        if result is None:
            yield entry.name, entry.state, NOTHING, NOTHING, entry.error or NOTHING
            continue
        ratios = {arm: row[OVERALL].end_to_end for arm, row in result.table.items() if arm != result.baseline}
        known = {arm: seen for arm, seen in ratios.items() if seen is not None}
        best = max(known, key=lambda arm: known[arm].value, default=None)
        fastest = NOTHING if best is None else f"{best}: {known[best].value:.2f} ({interval(known[best])})"
        wrong = "; ".join(failures(result)) or NOTHING
        yield entry.name, "interrupted" if result.interrupted else "done", result.verdict or NOTHING, fastest, wrong


def change_rows(comparison: Comparison) -> Iterator[list[str]]:
    """A row an arm and measure: old, new, new over old, its interval, what that means."""
    for change in comparison.changes:
        form = ".2f" if change.measure == "ratio" else ".1f"
        bounds = NOTHING if change.interval is None else f"{change.interval.low:.2f}-{change.interval.high:.2f}"
        figures = [format(change.old, form), format(change.new, form), f"{change.change:.2f}", bounds]
        yield [change.arm, MEASURES[change.measure], str(change.prompts), *figures, change.outcome]


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """What stands beside the table: why there is none, what changed, what is wrong."""
    if comparison.incomparable is not None:
        yield f"not comparable: {comparison.incomparable}"
    yield from comparison.notes
    yield from comparison.faults


def comparison_verdict(comparisons: Sequence[Comparison], bound: float) -> str:
    """All comparisons in one sentence."""
    lost = [
        f"{each.name} {change.arm}".strip()
        for each in comparisons
        for change in each.changes
        if change.outcome == "lost"
    ]
    outcomes = [change.outcome for each in comparisons for change in each.changes]
    faults = sum(len(each.faults) for each in comparisons)
    if any(each.diverged for each in comparisons):
        return "failed: the outputs of the new race diverged, so its speed means nothing"
    if lost:
        return f"failed: {', '.join(dict.fromkeys(lost))} lost speed, with the whole interval below {bound:g}"
    if not outcomes:
        return "nothing was compared"
    if faults:
        return f"no loss of speed, but {faults} {_plural('fault', faults)} in the new result"
    figures = f"{len(outcomes)} {_plural('figure', len(outcomes))}"
    said = f"passed: none of {figures} lies below {bound:g} with its whole interval"
    unclear = outcomes.count("unclear")
    return f"{said}; {unclear} reach below it, which more prompts and trials would settle" if unclear else said


def number(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)


def interval(ratio: Ratio | None) -> str:
    """`0.98-1.21`, or a dash."""
    if ratio is None or ratio.interval is None:
        return NOTHING
    return f"{ratio.interval.low:.2f}-{ratio.interval.high:.2f}"


def _difference(result: RaceResult, check: Check, seen: Evidence) -> str:
    where = (
        f"{check.arm}, prompt {check.prompt + 1} ({result.prompts[check.prompt].section}), token {seen.position + 1}"
    )
    against = "its own first answer" if check.arm == check.against else "plain decoding"
    said = f"{_token(result, seen.found)} where {against} has {_token(result, seen.expected)}"
    if seen.top_two is None:
        return f"{where}: {said}"
    best = seen.top_two
    judged = f"tied below {seen.threshold:.2g}"
    pair = f"{_token(result, best.first)} and {_token(result, best.second)}"
    return f"{where}: {said}; the target's two best are {pair}, {best.gap:.3g} apart ({judged})"


def _token(result: RaceResult, token: int | None) -> str:
    if token is None:
        return "nothing"
    return "the end" if token == END else f"{result.spelling.get(token, '')!r} ({token})"


def _value(ratio: Ratio | None) -> float | None:
    return None if ratio is None else ratio.value


def _plural(word: str, count: int) -> str:
    return word if count == 1 else word + ("es" if word.endswith("s") else "s")
