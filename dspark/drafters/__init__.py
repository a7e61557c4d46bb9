"""Drafter checkpoints, translated to one canonical config, and the models that read it."""
