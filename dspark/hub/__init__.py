"""Finding, fetching and vetting checkpoints; the registry of pairs; the demo pair."""

from dspark.hub.resolving import Kind, resolve

__all__ = ["Kind", "resolve"]
