"""Measuring a loaded pair, and deriving the settings that win from what was measured."""
