"""Targets whose drafters are known, as data. The tables of the README are rendered from here.

A target is recognised in any quantization and from any organisation or folder, by its name less the words that only say
how it is stored; its config, where at hand, can still veto.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

__all__ = ["DEMO", "PAIRS", "Pair", "find", "fits"]

_PEER = "the peer project mlx-dspark 0.20.3, on an M4 Pro with 48 GB"


@dataclass(frozen=True)
class Pair:
    """A target and its drafters, with the mode that was measured best and by whom.

    `lookup` says whether draft-free continuations from the context pay as an extra. `peak_ram_gb` belongs to the
    quantization named in `target`. `hidden_size` and `layers` are the target's, where known.
    """

    id: str
    target: str
    dspark: str | None
    dflash: str | None
    mode: Literal["dspark", "dflash"]
    peak_ram_gb: float
    lookup: bool
    published_speedup: str | None
    measured_by: str
    hidden_size: int | None = None
    layers: int | None = None

    @property
    def drafter(self) -> str | None:
        """The drafter of the mode measured best."""
        return self.dspark if self.mode == "dspark" else self.dflash


DEMO = Pair(
    id="demo",
    target="HuggingFaceTB/SmolLM2-135M-Instruct",
    dspark="demo",
    dflash=None,
    mode="dspark",
    peak_ram_gb=1.0,
    lookup=True,
    published_speedup=None,
    measured_by="this project",
    hidden_size=576,
    layers=30,
)

PAIRS: tuple[Pair, ...] = (
    DEMO,
    Pair(
        id="qwen3-4b",
        target="mlx-community/Qwen3-4B-8bit",
        dspark="deepseek-ai/dspark_qwen3_4b_block7",
        dflash="z-lab/Qwen3-4B-DFlash-b16",
        mode="dspark",
        peak_ram_gb=8.0,
        lookup=True,
        published_speedup="~2.0×",
        measured_by=_PEER,
        hidden_size=2560,
        layers=36,
    ),
    Pair(
        id="qwen3-8b",
        target="mlx-community/Qwen3-8B-8bit",
        dspark="deepseek-ai/dspark_qwen3_8b_block7",
        dflash="z-lab/Qwen3-8B-DFlash-b16",
        mode="dspark",
        peak_ram_gb=11.0,
        lookup=True,
        published_speedup="~2.2×",
        measured_by=_PEER,
        hidden_size=4096,
        layers=36,
    ),
    Pair(
        id="qwen3-14b",
        target="mlx-community/Qwen3-14B-8bit",
        dspark="deepseek-ai/dspark_qwen3_14b_block7",
        dflash=None,
        mode="dspark",
        peak_ram_gb=19.0,
        lookup=True,
        published_speedup="~2.0×",
        measured_by=_PEER,
        hidden_size=5120,
        layers=40,
    ),
    Pair(
        id="gemma-4-12b",
        target="mlx-community/gemma-4-12B-it-8bit",
        dspark="deepseek-ai/dspark_gemma4_12b_block7",
        dflash="z-lab/gemma4-12B-it-DFlash",
        mode="dspark",
        peak_ram_gb=15.0,
        lookup=True,
        published_speedup="~3.2×",
        measured_by=_PEER,
        hidden_size=3840,
        layers=48,
    ),
    Pair(
        id="ternary-bonsai-27b",
        target="prism-ml/Ternary-Bonsai-27B-mlx-2bit",
        dspark="Rahim/Ternary-Bonsai-27B-dspark",
        dflash=None,
        mode="dspark",
        peak_ram_gb=12.0,
        lookup=True,
        published_speedup="~1.15× code",
        measured_by=_PEER,
    ),
    Pair(
        id="qwen3.6-27b",
        target="mlx-community/Qwen3.6-27B-8bit",
        dspark="satgeze/Qwen3.6-27B-DSpark",
        dflash=None,
        mode="dspark",
        peak_ram_gb=32.0,
        lookup=True,
        published_speedup="~2.3×",
        measured_by=_PEER,
    ),
    Pair(
        id="ornith-1.0-9b",
        target="mlx-community/Ornith-1.0-9B-8bit",
        dspark="stanleyphoong/Ornith-1.0-9B-DSpark",
        dflash=None,
        mode="dspark",
        peak_ram_gb=13.0,
        lookup=True,
        published_speedup="~2.4×",
        measured_by=_PEER,
    ),
    Pair(
        id="qwen3.6-35b-a3b",
        target="mlx-community/Qwen3.6-35B-A3B-4bit",
        dspark="Koopah/Qwen3.6-35B-A3B-NVFP4-DSPARK",
        dflash=None,
        mode="dspark",
        peak_ram_gb=23.0,
        lookup=False,
        published_speedup="~1.3×",
        measured_by=_PEER,
    ),
    Pair(
        id="qwen3.8-27b",
        target="mlx-community/Qwen3.8-27B-4bit",
        dspark="RedHatAI/Qwen3.8-27B-speculator.dspark",
        dflash="incoai/Qwen3.8-27B-DFlash2",
        mode="dflash",
        peak_ram_gb=18.0,
        lookup=False,
        published_speedup="~2.7×",
        measured_by=_PEER,
    ),
    Pair(
        id="qwen3.8-27b-8bit",
        target="mlx-community/Qwen3.8-27B-8bit",
        dspark="RedHatAI/Qwen3.8-27B-speculator.dspark",
        dflash="incoai/Qwen3.8-27B-DFlash2",
        mode="dflash",
        peak_ram_gb=29.0,
        lookup=False,
        published_speedup="~3.7×",
        measured_by=_PEER,
    ),
    Pair(
        id="nemotron-3.5-lightning-30b-a3b",
        target="mlx-community/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-4bit",
        dspark="mlx-community/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-DSpark-bf16",
        dflash=None,
        mode="dspark",
        peak_ram_gb=20.0,
        lookup=False,
        published_speedup="~1.25× code",
        measured_by=_PEER,
    ),
    Pair(
        id="muse-glimmer-30b",
        target="mlx-community/Muse-Glimmer-30B-4bit",
        dspark="DaoCloud/Muse-Glimmer-30B-DSpark",
        dflash=None,
        mode="dspark",
        peak_ram_gb=26.0,
        lookup=False,
        published_speedup="~1.7× (8-bit: ~2.5×)",
        measured_by=_PEER,
    ),
    Pair(
        id="lfm2.5-2.6b",
        target="LiquidAI/LFM2.5-2.6B-MLX-bf16",
        dspark="LiquidAI/LFM2.5-2.6B-DSpark",
        dflash=None,
        mode="dspark",
        peak_ram_gb=7.0,
        lookup=True,
        published_speedup="~2.8×",
        measured_by=_PEER,
        hidden_size=2048,
        layers=30,
    ),
    Pair(
        id="lfm2.5-1.2b",
        target="LiquidAI/LFM2.5-1.2B-Instruct-MLX-bf16",
        dspark="LiquidAI/LFM2.5-1.2B-Instruct-DSpark",
        dflash=None,
        mode="dspark",
        peak_ram_gb=4.0,
        lookup=True,
        published_speedup="~3.4× (3.8× code)",
        measured_by=_PEER,
    ),
    Pair(
        id="lfm2.5-8b-a1b",
        target="LiquidAI/LFM2.5-8B-A1B-MLX-bf16",
        dspark="LiquidAI/LFM2.5-8B-A1B-DSpark",
        dflash=None,
        mode="dspark",
        peak_ram_gb=19.0,
        lookup=False,
        published_speedup="~1.2× (MoE, bf16)",
        measured_by=_PEER,
    ),
    Pair(
        id="nanbeige4.2-3b",
        target="MercuriusDream/Nanbeige4.2-3B-mlx-bf16",
        dspark="Nanbeige/Nanbeige4.2-3B-DSpark",
        dflash=None,
        mode="dspark",
        peak_ram_gb=10.0,
        lookup=True,
        published_speedup="~2.9× (4.3× math)",
        measured_by=_PEER,
    ),
    Pair(
        id="minicpm5-2b",
        target="mlx-community/MiniCPM5-2B-bf16",
        dspark="openbmb/MiniCPM5-2B-DSpark",
        dflash=None,
        mode="dspark",
        peak_ram_gb=6.0,
        lookup=True,
        published_speedup="~3.2× (4.2× math)",
        measured_by=_PEER,
    ),
)

# Words at the end of a model's name that tell how the same weights are stored: quantization, number format, packaging.
_STORAGE = re.compile(
    r"[-_.](mlx|gguf|hf|safetensors|(\d+|mixed[-_]\d[-_]\d)[-_]?bits?|[qw]\d+(a\d+)?|b?fp?(16|32)|fp8|u?int[48]|mxfp[48]|nvfp4"
    r"|gs\d+|g\d+|dwq([-_]?v\d|[-_]\d{6,8})?|awq|gptq|qat|quantized)$"
)
_BITS = re.compile(r"[-_.](?:(\d+)[-_]?bits?|[qw](\d+)(?:a\d+)?|u?int([48])|(?:mx|nv)?fp([48]))(?=[-_.]|$)")


def find(name_or_path: str | PurePath, config: Mapping[str, Any] | None = None) -> Pair | None:
    """The pair of a target given by id, repository, or folder; None if it is unknown.

    With the target's `config`, its `_name_or_path` counts as another name, its quantization chooses between pairs that
    differ only in that, and a width or depth that is not the pair's means it is another model.
    """
    name = str(name_or_path)
    known = next((pair for pair in PAIRS if pair.id == name), None)
    if known is not None:
        return known
    names = [name]
    if config is not None and isinstance(config.get("_name_or_path"), str):
        names.append(config["_name_or_path"])
    for base in map(_base, names):
        stems = _stems(base)
        pairs = [pair for pair in PAIRS if _stem(_base(pair.target)) in stems and _agrees(pair, config)]
        if pairs:
            bits = _config_bits(config) or _bits(base)
            # The nearest build that is not smaller: its memory figure is then no understatement.
            return min(pairs, key=lambda pair: (_bits(pair.target) < bits, abs(_bits(pair.target) - bits)))
    return None


def fits(memory_gb: float, pairs: Iterable[Pair] = PAIRS) -> list[Pair]:
    """Pairs whose published peak fits a Mac with `memory_gb` of unified memory, largest first.

    macOS lets the GPU hold about two thirds of the memory up to 36 GB and three quarters above.
    """
    usable = memory_gb * (2 / 3 if memory_gb <= 36 else 3 / 4)
    return sorted((pair for pair in pairs if pair.peak_ram_gb <= usable), key=lambda pair: -pair.peak_ram_gb)


def _base(name: str) -> str:
    """The last part of a repository or path, in lower case."""
    parts = [part for part in re.split(r"[/\\]", name.lower()) if part]
    if len(parts) > 2 and parts[-2] == "snapshots":  # the Hugging Face cache names the folder after the revision
        parts = parts[:-2]
    return parts[-1] if parts else ""


def _stem(base: str) -> str:
    while (shorter := _STORAGE.sub("", base)) != base:
        base = shorter
    return base


def _stems(base: str) -> set[str]:
    """Names that a folder may stand for: its own, and what follows an organisation or the like put before it."""
    stem = _stem(base)
    return {stem} | {stem[match.end() :] for match in re.finditer(r"^demo-|--|_", stem)}


def _bits(name: str) -> int:
    """Bits per weight that a name declares; 16 if it declares none."""
    match = _BITS.search(name.lower())
    return int(next(group for group in match.groups() if group)) if match else 16


def _config_bits(config: Mapping[str, Any] | None) -> int | None:
    quantization = config.get("quantization") if config is not None else None
    bits = quantization.get("bits") if isinstance(quantization, Mapping) else None
    return bits if isinstance(bits, int) and not isinstance(bits, bool) else None


def _agrees(pair: Pair, config: Mapping[str, Any] | None) -> bool:
    if config is None:
        return True
    text = config.get("text_config")
    dimensions = text if isinstance(text, Mapping) else config
    return all(
        ours is None or dimensions.get(key) in (None, ours)
        for key, ours in (("hidden_size", pair.hidden_size), ("num_hidden_layers", pair.layers))
    )
