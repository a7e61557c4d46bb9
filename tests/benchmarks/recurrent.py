"""What it costs to take back rejected rows of a recurrent model: rebuilt from a recording, replayed, or never written.

    python tests/benchmarks/recurrent.py --repeats 15
    python tests/benchmarks/recurrent.py --markdown

Random qwen3_5 models, tiny and of 50M parameters. Every number is a median of interleaved runs; nothing is asserted.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3_5

from dspark.machine import stamp
from dspark.targets.caches import TargetCache
from dspark.targets.recurrence import Recorder
from dspark.targets.target import Target

CONTEXT_TOKENS = 64
BLOCKS = (2, 4, 8, 16)  # rows of a verify pass
SHAPES: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "vocab_size": 512,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
    },
    "50M": {
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "vocab_size": 32000,
        "linear_num_value_heads": 8,
        "linear_num_key_heads": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--markdown", action="store_true", help="print the table only")
    args = parser.parse_args()
    rows = [row for name in SHAPES for row in costs(name, args.dtype, args.repeats)]
    if args.markdown:
        print(table(rows))
    else:
        print(
            json.dumps(
                {"stamp": stamp(), "dtype": args.dtype, "context_tokens": CONTEXT_TOKENS, "rows": rows}, indent=1
            )
        )


def build(name: str, dtype: str) -> tuple[Target, int]:
    """The model as a target (its tokenizer is never asked), and its number of parameters."""
    config = {
        "model_type": "qwen3_5",
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": SHAPES[name]["hidden_size"] // 8,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6,
        **SHAPES[name],
    }
    mx.random.seed(0)
    model = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(config))
    model.set_dtype(getattr(mx, dtype))
    model.eval()
    mx.eval(model.parameters())
    return Target(model, None, config, Path(name)), sum(value.size for _, value in tree_flatten(model.parameters()))


def costs(name: str, dtype: str, repeats: int) -> list[dict[str, Any]]:
    """Milliseconds of a plain step, of verifying each block, and of settling it: accepted whole, or half taken back."""
    target, parameters = build(name, dtype)
    recorder = target.recorder
    assert recorder is not None
    tokens = mx.array([[(11 * i + 3) % target.vocabulary for i in range(CONTEXT_TOKENS)]])

    def cache(using: Recorder | None) -> TargetCache:
        target.recorder = using
        held = target.new_cache()
        target.forward(tokens, held)
        mx.eval(held.arrays)
        return held

    recorded, replayed = cache(recorder), cache(None)

    def round_of(held: TargetCache, width: int, keep: int) -> Callable[[], tuple[float, float]]:
        def run() -> tuple[float, float]:
            started = time.perf_counter()
            logits, _ = target.forward(tokens[:, :width], held)
            mx.eval(mx.argmax(logits[0], axis=-1))  # the verdict is read before anything is taken back
            verified = time.perf_counter()
            held.truncate(CONTEXT_TOKENS + keep)
            mx.eval(held.arrays)
            settled = time.perf_counter()
            held.truncate(CONTEXT_TOKENS)  # back to where every run begins
            return verified - started, settled - verified

        return run

    runs: dict[Any, Callable[[], tuple[float, float]]] = {"plain": round_of(replayed, 1, 1)}
    for width in BLOCKS:
        runs[width, "accepted"] = round_of(replayed, width, width)
        runs[width, "accepted, recording"] = round_of(recorded, width, width)
        runs[width, "recorded"] = round_of(recorded, width, width // 2)
        runs[width, "replay"] = round_of(replayed, width, width // 2)
    times: dict[Any, list[tuple[float, float]]] = {key: [] for key in runs}
    for repeat in range(repeats + 1):
        for key, run in runs.items():
            seconds = run()
            if repeat:  # the first pass warms
                times[key].append(seconds)
    verify = {key: median(v for v, _ in values) * 1e3 for key, values in times.items()}
    settle = {key: median(s for _, s in values) * 1e3 for key, values in times.items()}
    return [
        {
            "model": name,
            "parameters": parameters,
            "rows": width,
            "kept": width // 2,
            "plain_step_ms": round(verify["plain"], 3),
            "verify_ms": round(verify[width, "accepted"], 3),
            "verify_recording_ms": round(verify[width, "accepted, recording"], 3),
            "accept_ms": round(settle[width, "accepted"], 3),
            "recorded_ms": round(settle[width, "recorded"], 3),
            "replay_ms": round(settle[width, "replay"], 3),
        }
        for width in BLOCKS
    ]


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: one line a block; percentages are of the verify pass."""
    lines = [
        "| model | rows | kept | plain step | verify | recording | rebuilt from it | replayed |",
        "|---|" + "---:|" * 7,
    ]
    for row in rows:
        verify = row["verify_ms"]
        recording = row["verify_recording_ms"] / verify - 1
        back = [f"{row[key]:.2f} ms ({row[key] / verify:.0%})" for key in ("recorded_ms", "replay_ms")]
        name = f"{row['model']} ({row['parameters'] / 1e6:.1f}M)"
        cells = [
            name,
            row["rows"],
            row["kept"],
            f"{row['plain_step_ms']:.2f} ms",
            f"{verify:.2f} ms",
            f"{recording:+.0%}",
        ]
        lines.append("| " + " | ".join(map(str, [*cells, *back])) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
