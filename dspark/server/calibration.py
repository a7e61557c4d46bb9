"""The profile in force, as `GET /calibration` tells it."""

from dataclasses import asdict
from typing import Any

from dspark.server.serving import Serving


def calibration(serving: Serving | None) -> dict[str, Any]:
    """Cost curves, the cap that follows, and where they came from; null where nothing was measured."""
    if serving is None:
        return {"model": None, "source": None, "cap": None, "costs": None}
    costs = serving.costs
    return {
        "model": serving.name,
        "source": costs.source if costs else None,
        "cap": serving.speculation.cap,
        "costs": asdict(costs) if costs else None,
    }
