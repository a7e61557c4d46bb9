"""Time to the first token, warm against cold, over the turns of conversations. Writes a table; asserts nothing.

    python tests/benchmarks/turns.py --precision fp32 --json results/turns-demo.json --markdown results/turns-demo.md

Each prompt is answered twice: with the prefix cache, and by an engine that was made to forget everything. Prompts are
plain token ids of a long English text, cut into turns: what matters here is how much of them is the same.
"""

import argparse
import json
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from dspark.decoding.events import Finished, RoundCommitted
from dspark.decoding.request import Request, SpeculationOptions
from dspark.engine import Engine, LoadOptions
from dspark.machine import stamp
from dspark.racing.filler import sentences

TURNS = 8
FIRST = 0.6
"""Share of the longest prompt that the first message is."""


@dataclass(frozen=True)
class Step:
    """A prompt, and which kind of turn it is."""

    kind: str
    prompt: list[int]


@dataclass(frozen=True)
class Row:
    """First-token times in seconds."""

    kind: str
    prompt_tokens: int
    cached_tokens: int
    outcome: str
    warm_s: float
    cold_s: float
    ids_equal: bool

    @property
    def share(self) -> float:
        return self.warm_s / self.cold_s

    @property
    def read(self) -> float:
        """Share of the prompt that was not remembered."""
        return 1.0 - self.cached_tokens / self.prompt_tokens


def steps(engine: Engine, longest: int) -> Generator[Step, list[int], None]:
    """Eight turns that grow to `longest` tokens; a retry, another session, an edit, and two sessions that alternate.

    As with agents, most of it is a first message that is sent again with every turn. The answer to each is sent back.
    """
    assert engine._pair is not None
    # A sentence has ten tokens or more, and all turns together read less than two such texts.
    text = engine._pair.target.tokenizer.encode(" ".join(islice(sentences("turns"), longest // 5)))
    first = int(longest * FIRST)
    part = (longest - first) // TURNS
    system, rest = list(text[:first]), list(text[first:])

    def said(count: int) -> list[int]:
        taken = rest[:count]
        del rest[:count]
        return taken

    agent, answer = list(system), list[int]()
    for turn in range(1, TURNS + 1):
        agent = [*agent, *answer, *said(first + part * turn - len(agent) - len(answer))]
        answer = yield Step(f"turn {turn}", agent)
    yield Step("identical retry", agent)
    chat = [*system, *said(part)]
    heard = yield Step("new session, same system prompt", chat)
    half = len(agent) // 2
    yield Step("edited in the middle", [*agent[:half], *said(20), *agent[half + 20 :]])
    for turn in (1, 2):
        agent = [*agent, *answer, *said(part // 2)]
        answer = yield Step(f"alternating, agent {turn}", agent)
        chat = [*chat, *heard, *said(part // 2)]
        heard = yield Step(f"alternating, chat {turn}", chat)


def first_token(engine: Engine, prompt: Sequence[int], tokens: int) -> tuple[float, Finished]:
    """Seconds to the first round, and the end."""
    request = Request(list(prompt), max_tokens=tokens, speculation=SpeculationOptions())
    started, seconds = time.perf_counter(), 0.0
    for event in engine.generate(request):
        if isinstance(event, RoundCommitted) and not seconds:
            seconds = time.perf_counter() - started
        if isinstance(event, Finished):
            return seconds, event
    raise AssertionError("a generation ends with Finished")


def measure(warm: Engine, cold: Engine, longest: int, tokens: int) -> Iterator[Row]:
    for engine in (warm, cold):
        engine.costs()
    assert warm.prefix_cache is not None and cold.prefix_cache is not None
    conversation = steps(warm, longest)
    step: Step | None = next(conversation)
    while step is not None:
        warm_s, answer = first_token(warm, step.prompt, tokens)
        last = warm.prefix_cache.report().last
        cold_s, expected = first_token(cold, step.prompt, tokens)
        cold.prefix_cache.shed("all")
        yield Row(
            step.kind,
            len(step.prompt),
            answer.statistics.cached_tokens,
            last.outcome if last else "miss",
            warm_s,
            cold_s,
            answer.tokens == expected.tokens,
        )
        try:
            step = conversation.send(list(answer.tokens))
        except StopIteration:
            step = None


def table(rows: Sequence[Row]) -> str:
    lines = ["| turn | prompt | cached | found | read | warm: s | cold: s | warm / cold | ids equal |"]
    lines.append("|---|---:|---:|---|---:|---:|---:|---:|---|")
    lines += [
        f"| {row.kind} | {row.prompt_tokens} | {row.cached_tokens} | {row.outcome} | {row.read:.1%} "
        f"| {row.warm_s:.3f} | {row.cold_s:.3f} | {row.share:.1%} | {'yes' if row.ids_equal else 'NO'} |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=["fp32", "bf16", "q4"], default=None)
    parser.add_argument("--mode", choices=["auto", "baseline", "lookup", "dspark"], default="auto")
    parser.add_argument("--longest", type=int, default=6000)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    engines = [Engine(), Engine()]
    for engine in engines:
        loaded = engine.load(LoadOptions(precision=args.precision, mode=args.mode))
    rows = []
    for row in measure(*engines, args.longest, args.tokens):
        rows.append(row)
        print(f"{row.kind}: {row.warm_s:.3f} s warm, {row.cold_s:.3f} s cold, {row.cached_tokens} cached", flush=True)
    about = {
        "stamp": stamp(),
        "model": loaded.model,
        "dtype": loaded.dtype,
        "mode": loaded.default.describe(),
        "tokens": args.tokens,
    }
    if args.json:
        args.json.write_text(json.dumps({**about, "turns": [asdict(row) for row in rows]}, indent=1) + "\n")
    text = table(rows)
    if args.markdown:
        stamped = about["stamp"]
        args.markdown.write_text(
            "# First-token time, warm against cold\n\n"
            f"{loaded.model} ({loaded.dtype}), {about['mode']}, answers of {args.tokens} tokens. "
            f"{', '.join(f'{name} {value}' for name, value in stamped.items() if isinstance(value, str))}.\n\n{text}\n"
        )
    print(text)


if __name__ == "__main__":
    main()
