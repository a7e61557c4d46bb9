"""The profile in force, as `GET /calibration` tells it."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from dspark.server.serving import Serving


def calibration(serving: Serving | None) -> dict[str, Any]:
    """The profile, or else the curves that a quick look at load gave; null where nothing was measured."""
    if serving is None:
        return {"model": None, "source": None, "path": None, "cap": None, "profile": None, "costs": None}
    costs, profile, path = serving.costs, serving.profile, serving.loaded.profile
    return {
        "model": serving.name,
        "source": costs.source if costs else None,
        "path": Path(path).name if path else None,
        "cap": serving.speculation.cap,
        "profile": profile.as_dict() if profile else None,
        "costs": asdict(costs) if costs else None,
    }
