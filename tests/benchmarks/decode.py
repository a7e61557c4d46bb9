"""Plain decoding against mlx-lm's own, and the cost of a draft in plain steps. Prints ratios; asserts nothing.

    python tests/benchmarks/decode.py --precision fp32 --tokens 96 --repeats 7

Both decoders run in this process on the same loaded model, interleaved and with the order alternating.
"""

import argparse
import json
import time
from collections.abc import Callable
from statistics import median

import mlx.core as mx
from mlx_lm import stream_generate

from dspark.decoding.events import Finished
from dspark.decoding.request import Request, SpeculationOptions
from dspark.engine import Engine, LoadOptions
from dspark.machine import stamp

PROMPT = "Explain in a few sentences how a bicycle stays upright while it is moving."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=["fp32", "bf16", "q4"], default=None)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    engine = Engine()
    engine.load(LoadOptions(precision=args.precision))
    prompt = engine.encode_chat(PROMPT)
    pair = engine._pair
    assert pair is not None and pair.drafter is not None

    def ours() -> float:
        request = Request(prompt, max_tokens=args.tokens, speculation=SpeculationOptions("baseline"), reuse=False)
        *_, last = engine.generate(request)
        assert isinstance(last, Finished)
        return last.statistics.decode_seconds / last.statistics.emitted

    def stock() -> float:
        started, count = 0.0, 0
        for response in stream_generate(pair.target.model, pair.target.tokenizer, prompt, max_tokens=args.tokens):
            if count == 0:
                started = time.perf_counter()
            count = response.generation_tokens
        return (time.perf_counter() - started) / (count - 1)

    plain, reference = paired(ours, stock, args.repeats)
    ratios = sorted(b / a for a, b in zip(plain, reference, strict=True))
    costs = engine.costs()
    report = {
        "stamp": stamp(),
        "plain_ms": median(plain) * 1e3,
        "mlx_lm_ms": median(reference) * 1e3,
        "plain_over_mlx_lm": median(ratios),
        "plain_over_mlx_lm_range": [ratios[0], ratios[-1]],
        "verify_in_plain_steps": {width: ms / costs.plain_ms for width, ms in costs.verify},
        "draft_in_plain_steps": draft_costs(pair.target, pair.drafter, args.repeats),
    }
    print(json.dumps(report, indent=1))


def paired(a: Callable[[], float], b: Callable[[], float], repeats: int) -> tuple[list[float], list[float]]:
    """Times of `a` and `b`, warmed once, then in alternating order."""
    times: dict[Callable[[], float], list[float]] = {a: [], b: []}
    for repeat in range(repeats + 1):
        for run in (a, b) if repeat % 2 else (b, a):
            seconds = run()
            if repeat:
                times[run].append(seconds)
    return times[a], times[b]


def draft_costs(target, drafter, repeats: int) -> dict[int, float]:
    """Median draft time by cap over the median width-1 forward of the same run, interleaved."""
    tokens = mx.array([[(11 * i + 3) % target.vocabulary for i in range(128)]])
    target.tap(drafter.taps)
    cache = target.new_cache()
    _, rows = target.forward(tokens, cache)
    context = drafter.new_context()
    context.append(rows)
    mx.eval(cache.arrays, rows)
    anchor = mx.array([1], dtype=mx.int32)
    times: dict[int, list[float]] = {cap: [] for cap in range(drafter.block + 1)}
    for repeat in range(4 * repeats + 1):
        for cap, values in times.items():
            started = time.perf_counter()
            if cap == 0:
                logits, _ = target.forward(tokens[:, :1], cache)
                mx.eval(mx.argmax(logits[0], axis=-1))
                cache.truncate(128)
            else:
                context.append(rows[:, :2])
                draft = drafter.draft(context, anchor, cap)
                mx.eval(draft.tokens, *([] if draft.confidence is None else [draft.confidence]))
            if repeat:
                values.append(time.perf_counter() - started)
    step = median(times.pop(0))
    return {cap: round(median(values) / step, 3) for cap, values in times.items()}


if __name__ == "__main__":
    main()
