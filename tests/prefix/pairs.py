"""Tiny pairs of every kind of cache and every mode, and a comparison with reading everything anew."""

import random
from functools import cache

from families import WINDOW, write_family
from tiny import dflash_config, random_weights, write_head, write_llama

from dspark.decoding.events import Finished
from dspark.decoding.request import Request, SpeculationOptions
from dspark.drafters.packaging import translate
from dspark.engine import Engine, LoadOptions
from dspark.prefix.options import PrefixOptions

RUNGS = 32
# Name → what it is made of: a folder's writer, a drafter, bits of keys and values.
KINDS = {
    "trimmed, dspark": ("llama", "dspark", None),
    "trimmed, dflash": ("llama", "dflash", None),
    "kv-bits 8": ("llama", "dspark", 8),
    "hybrid": ("qwen3_5", None, None),
    "short convolutions": ("lfm2", None, None),
    "Mamba": ("jamba", None, None),
    "ring": ("gemma3_text", None, None),
    "chunks": ("llama4", None, None),
    "latent": ("deepseek_v32", None, None),
}
assert WINDOW < RUNGS


class Home:
    """Writes each pair once."""

    def __init__(self, root):
        self._root = root

    @cache  # noqa: B019
    def folders(self, kind):
        name, mode, kv_bits = KINDS[kind]
        root = self._root / kind.replace(" ", "-")
        if name != "llama":
            return str(write_family(root / "target", name)), "none"
        target = write_llama(root / "target", max_position_embeddings=1024, **({"head_dim": 32} if kv_bits else {}))
        if mode == "dspark":
            return str(target), str(write_head(root / "head"))
        return str(target), str(write_head(root / "head", dflash_config(), random_weights(translate(dflash_config()))))

    def options(self, kind, **prefix):
        target, drafter = self.folders(kind)
        settings = {"rung_tokens": RUNGS, "limit_bytes": 50_000_000, **prefix}
        return LoadOptions(target, drafter, kv_bits=KINDS[kind][2], prefix=PrefixOptions(**settings))

    def engine(self, kind, **prefix):
        engine = Engine()
        engine.load(self.options(kind, **prefix))
        return engine


def ask(engine, prompt, max_tokens=10, mode="auto", **request):
    # A fixed cap needs no costs, which would be measured after each load.
    *_, last = engine.generate(Request(prompt, max_tokens, speculation=SpeculationOptions(mode, cap=2), **request))
    assert isinstance(last, Finished)
    return last


def forget(engine):
    engine.prefix_cache.shed("all")


def assert_same(engine, prompt, warm, cold):
    """Equal ids; where they part, the two best tokens must lie so close that either is the target's choice."""
    if list(warm) == list(cold):
        return
    at = next(i for i, (a, b) in enumerate(zip(warm, cold, strict=False)) if a != b)
    gap = engine.top_two([*prompt, *cold[:at]]).gap
    assert gap < (0.05 if engine.loaded.kv_bits else 2e-3), f"other ids than cold, {gap} apart: {warm} {cold}"


def tokens(count, seed=0):
    """Token ids without an end of sequence among them."""
    rng = random.Random(seed)
    return [rng.randrange(3, 60) for _ in range(count)]
