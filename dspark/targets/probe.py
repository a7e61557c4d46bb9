"""Checks made once at load: that what speculation relies on really holds for this model."""

import mlx.core as mx

from dspark.arrays import floats
from dspark.errors import DecodingError, PairingError
from dspark.targets.target import Target

_PROBE_WIDTH = 6
_KEEP = 2


def probe_taps(target: Target, ids: tuple[int, ...], target_hidden: int) -> None:
    """Show that a tapped forward gives the model's own logits, and rows of the width that the drafter reads.

    Raises:
        PairingError: tap ids or widths do not fit the model.
        DecodingError: tapping changed the logits.
    """
    depth = len(target.layers)
    if not ids or list(ids) != sorted(set(ids)) or ids[0] < -1 or ids[-1] >= depth - 1:
        raise PairingError(
            f"the drafter taps layers {list(ids)}, this model has layers 0 to {depth - 1} (the last cannot be tapped)"
        )
    tokens = _probe_tokens(target)
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

    Tries one rejection and compares with a cache that never saw it.
    """
    target.tap(())
    cache = target.new_cache()
    if (reason := cache.rollback_refusal) is not None:
        return reason
    tokens = _probe_tokens(target)
    target.forward(tokens, cache)
    cache.truncate(_KEEP)
    after, _ = target.forward(tokens[:, :1], cache)
    clean = target.new_cache()
    target.forward(tokens[:, :_KEEP], clean)
    expected, _ = target.forward(tokens[:, :1], clean)
    # Widths 6 and 2 may take different kernels, so a little rounding is no fault; a stale row moves logits far.
    scale = mx.maximum(mx.abs(expected).max(), 1.0)
    drift = floats((mx.abs(after.astype(mx.float32) - expected.astype(mx.float32)).max() / scale)[None])[0]
    return None if drift < 0.05 else f"a rejected block left traces in its cache (logits moved by {drift:.0%})"


def _probe_tokens(target: Target) -> mx.array:
    return mx.array([[(7 * i + 5) % target.vocabulary for i in range(_PROBE_WIDTH)]])
