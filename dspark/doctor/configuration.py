"""The settings in force: whether they can be read, and where they put the server and its key."""

import os
from dataclasses import dataclass

from dspark.doctor.check import Check, Subject
from dspark.doctor.port import KEY_VARIABLE, Address
from dspark.errors import DSparkError
from dspark.settings import api_key, resolve

SETTINGS = Subject("settings", "Settings")


@dataclass(frozen=True)
class Configuration:
    """`key` is what a client would send, `key_place` where it was given; `trouble` is why settings cannot be read."""

    address: Address
    key: str | None
    key_place: str = KEY_VARIABLE
    trouble: str | None = None


def read() -> Configuration:
    """From variables and the settings file; where these are of no use, from the variable alone."""
    try:
        settings = resolve()
        places = [settings.given[name].place for name in ("api_key", "api_key_file")]
        place = next((place for place in places if place), KEY_VARIABLE)
        # Port 0 lets the system choose: then nothing tells where a server is.
        address = Address(settings.server.host, settings.server.port or Address.port)
        return Configuration(address, api_key(settings), place)
    except DSparkError as error:
        return Configuration(Address(), os.environ.get(KEY_VARIABLE) or None, trouble=str(error))


def check(found: Configuration) -> Check:
    if found.trouble:
        return SETTINGS.fail(found.trouble, "correct what is named here; 'mlx-dspark --show-config' prints the rest")
    return SETTINGS.ok("read; 'mlx-dspark --show-config' prints each with its origin")
