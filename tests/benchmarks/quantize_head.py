"""Make the head that ships with the package from the trained one.

    python tests/benchmarks/quantize_head.py TRAINED OUT

TRAINED is a drafter folder in the "speculators" packaging (bf16), OUT usually `dspark/hub/demo_head`. Matrices become
8-bit in groups of 64; what is small or wants its precision stays: norms, the confidence head, the vocabulary map.
"""

import argparse
import json
from pathlib import Path

import mlx.core as mx

GROUP, BITS = 64, 8


def quantize(trained: Path, out: Path) -> None:
    tensors = {}
    for name, value in mx.load(str(trained / "model.safetensors")).items():
        if name == "t2d":  # follows from d2t
            continue
        if name == "d2t":
            tensors[name] = value.astype(mx.int32)
        elif value.ndim == 2 and value.shape[-1] % GROUP == 0 and not name.startswith("confidence_head"):
            stem = name.removesuffix(".weight")
            packed = mx.quantize(value, group_size=GROUP, bits=BITS)
            tensors |= dict(zip((name, f"{stem}.scales", f"{stem}.biases"), packed, strict=True))
        else:
            tensors[name] = value
    out.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(out / "model.safetensors"), tensors, metadata={"format": "mlx"})
    config = json.loads((trained / "config.json").read_text())
    config["quantization"] = {"group_size": GROUP, "bits": BITS}
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trained", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    quantize(arguments.trained, arguments.out)
