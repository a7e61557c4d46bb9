"""Checks made once at load: that what speculation relies on really holds for this model."""

import math

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, RotatingKVCache

from dspark.arrays import floats
from dspark.errors import DecodingError, PairingError, RollbackError
from dspark.targets.caches import Rollback, TargetCache
from dspark.targets.rewind import leaves
from dspark.targets.target import Target

_PROBE_WIDTH = 6
_BEFORE = 5
_SMALL_WINDOW = 64
_TOLERANCE = 0.05


def probe_taps(target: Target, ids: tuple[int, ...], target_hidden: int) -> None:
    """Show that a tapped forward gives the model's own logits, and rows of the width that the drafter reads.

    Raises:
        PairingError: tap ids or widths do not fit the model.
        DecodingError: tapping changed the logits.
    """
    depth = target.depth
    if not ids or list(ids) != sorted(set(ids)) or ids[0] < -1 or ids[-1] >= depth - 1:
        raise PairingError(
            f"the drafter taps layers {list(ids)}, this model has layers 0 to {depth - 1} (the last cannot be tapped)"
        )
    tokens = _probe_tokens(target, 0)
    target.tap(())
    plain, _ = target.forward(tokens, target.new_cache())
    target.tap(ids)
    tapped, rows = target.forward(tokens, target.new_cache())
    assert rows is not None
    mx.eval(plain, tapped, rows)
    if not bool(mx.array_equal(plain, tapped)):
        raise DecodingError(
            "reading hidden states changes this model's logits; use --arm baseline and report the model"
        )
    width = len(ids) * target_hidden
    if rows.shape[-1] != width:
        raise PairingError(
            f"the drafter reads {width} features a token, this model's taps give {rows.shape[-1]}: wrong pairing"
        )


def rollback_refusal(target: Target) -> str | None:
    """Why speculation cannot be exact on this model, or None.

    Rejects parts of blocks and compares with caches that never saw them: what they hold, and the logits that follow.
    Where recurrent state can be rebuilt from a recording, that is what is tried; if it does not agree, the target goes
    without and runs the kept tokens again. A dozen tiny forwards, half as many more for recurrent models.
    """
    target.tap(())
    if (reason := target.new_cache().rollback_refusal) is not None:
        return reason
    if target.recorder is not None:
        if _recording_agrees(target):
            return None
        target.recorder = None
    try:
        drift = _rollback_drift(target)
    except RollbackError as error:
        return str(error)
    return None if drift < _TOLERANCE else f"a rejected block left traces in its cache (logits moved by {drift:.0%})"


def rollback_kind(target: Target) -> Rollback:
    """How this model's rejected rows are taken back, after `rollback_refusal` had its say."""
    cache = target.new_cache()
    target.forward(_probe_tokens(target, 0), cache)
    return cache.rollback


def probe_kv_bits(target: Target) -> None:
    """Show that the model's attention reads a quantized cache.

    Raises:
        PairingError: it does not.
    """
    cache = target.new_cache()
    try:
        for _ in range(2):  # the first forward fills the cache, the second reads it quantized
            mx.eval(target.forward(_probe_tokens(target, 0), cache)[0])
    except (ValueError, TypeError, AttributeError, RuntimeError, NotImplementedError) as error:
        raise PairingError(
            f"the {target.family} family cannot read a quantized KV cache ({str(error).splitlines()[0]});"
            " leave the KV bits out"
        ) from error


def _recording_agrees(target: Target) -> bool:
    try:
        return _rollback_drift(target) < _TOLERANCE
    except (ValueError, TypeError, AttributeError, RuntimeError, RollbackError):
        return False  # the library's functions are not what a recording takes them for; replaying needs none of it


def _rollback_drift(target: Target) -> float:
    """The largest relative difference that a rejection made, over several places of rejection."""
    worst = 0.0
    for prefix, keep in _rejections(target):
        drift = _drift(target, prefix, keep, text=0)
        if drift >= _TOLERANCE:
            # A router on the edge between two experts is tipped by rounding alone; rows left behind show in any text.
            drift = min(drift, _drift(target, prefix, keep, text=1))
        worst = max(worst, drift)
    return worst


def _rejections(target: Target) -> list[tuple[int, int]]:
    """Tokens before a block, and rows kept of it: mid-way, on a fresh recurrent state, behind the wrap of a ring."""
    kinds = list(leaves(target.new_cache().entries))
    cases = [(_BEFORE, 1), (_BEFORE, _PROBE_WIDTH - 2)]
    if any(isinstance(entry, ArraysCache) for entry in kinds):
        cases.append((0, 2))
    window = min((entry.max_size for entry in kinds if isinstance(entry, RotatingKVCache)), default=_SMALL_WINDOW + 1)
    if window <= _SMALL_WINDOW:  # a larger one would make loading slow
        cases += [(window + 1, 1), (window + 1, _PROBE_WIDTH - 2)]
    return cases


def _drift(target: Target, prefix: int, keep: int, text: int) -> float:
    before, block = _probe_tokens(target, text, prefix), _probe_tokens(target, text + 2)
    cache, clean = target.new_cache(), target.new_cache()
    for one, rows in ((cache, _PROBE_WIDTH), (clean, keep)):
        if prefix:
            target.forward(before, one)
        target.forward(block[:, :rows], one)
    cache.truncate(prefix + keep)
    if cache.length != clean.length:
        return 1.0
    pairs = list(zip(_recurrent(cache), _recurrent(clean), strict=True))
    pairs.append((target.forward(block[:, -1:], cache)[0], target.forward(block[:, -1:], clean)[0]))
    drifts = floats(mx.stack([_relative(a, b) for a, b in pairs]))
    return max(drift if drift == drift else math.inf for drift in drifts)


def _recurrent(cache: TargetCache) -> list[mx.array]:
    held = [array for entry in leaves(cache.entries) if isinstance(entry, ArraysCache) for array in entry.cache]
    return [array for array in held if array is not None]


def _relative(found: mx.array, expected: mx.array) -> mx.array:
    found, expected = found.astype(mx.float32), expected.astype(mx.float32)
    # Other widths may take other kernels, so a little rounding is no fault; a stale row moves things far.
    return mx.abs(found - expected).max() / mx.maximum(mx.abs(expected).max(), 1e-6)


def _probe_tokens(target: Target, text: int, width: int = _PROBE_WIDTH) -> mx.array:
    return mx.array([[(7 * i + 5 + 3 * text * (i + 1)) % target.vocabulary for i in range(width)]], dtype=mx.int32)
