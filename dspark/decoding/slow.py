"""How long a round may take before it is told of."""

import logging
import os

SLOW_ROUND_VARIABLE = "MLX_DSPARK_SLOW_ROUND_LOG_S"
_SLOW_ROUND_S = 10.0

_LOG = logging.getLogger("dspark.decoding")


def slow_round_seconds() -> float:
    """As the variable says; what is no number is logged, and the default holds."""
    given = os.environ.get(SLOW_ROUND_VARIABLE, "")
    try:
        return float(given or _SLOW_ROUND_S)
    except ValueError:
        _LOG.warning("%s=%s is not a number of seconds; %g is in force", SLOW_ROUND_VARIABLE, given, _SLOW_ROUND_S)
        return _SLOW_ROUND_S
