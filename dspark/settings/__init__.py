"""Settings: one table, read from flags, variables and a file, with the origin of every value."""

from dspark.settings.precedence import Given, Settings, api_key, resolve
from dspark.settings.table import SECTIONS, SETTINGS, Setting

__all__ = ["SECTIONS", "SETTINGS", "Given", "Setting", "Settings", "api_key", "resolve"]
