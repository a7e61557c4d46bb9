"""Finding, fetching and vetting checkpoints; the registry of pairs; the demo pair."""
