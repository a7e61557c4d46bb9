"""The environment variables that change what this tool does. Secrets are named, never shown."""

import re
from collections.abc import Mapping
from pathlib import Path

from dspark.doctor.check import Check, Subject

ENVIRONMENT = Subject("environment", "Environment")
TOKEN = "HF_TOKEN"
SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD")
PROXY = re.compile(r"(HTTPS?|ALL)_PROXY", re.IGNORECASE)
VARIABLES = re.compile(
    r"MLX_\w+|HF_\w+|HUGGINGFACE_HUB_CACHE|XDG_CACHE_HOME|TRANSFORMERS_OFFLINE|LD_PRELOAD|DYLD_INSERT_LIBRARIES"
    r"|OPENBLAS_\w+|OMP_NUM_THREADS|(?:HTTPS?|ALL|NO)_PROXY|(?:https?|all|no)_proxy|REQUESTS_CA_BUNDLE|SSL_CERT_FILE"
)
FILES = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
YES = ("1", "true", "yes", "on")


def variables(environment: Mapping[str, str]) -> list[Check]:
    """Those that are set, by name; the Hub's token always."""
    names = {name for name in environment if VARIABLES.fullmatch(name) and environment[name]}
    return [_variable(name, environment.get(name, "")) for name in sorted(names | {TOKEN})]


def offline(environment: Mapping[str, str]) -> str | None:
    """The variable that forbids the network, if one does."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return next((name for name in names if environment.get(name, "").strip().lower() in YES), None)


def without_credentials(value: str) -> str:
    """A URL without user name and password."""
    return re.sub(r"//\S*@", "//", value)


def _variable(name: str, value: str) -> Check:
    subject = Subject(f"environment.{name}", name)
    if SECRET.search(name):
        return subject.ok("set" if value else "not set")
    if PROXY.fullmatch(name) and "//" not in value:
        value = value.rpartition("@")[2]
    value = without_credentials(value)
    if name == "MLX_DSPARK_TRUST_REMOTE_CODE" and value.strip().lower() in YES:
        todo = "unset it unless you have read the code: checkpoints may run Python of their own"
        return subject.warn(value, todo, f"unset {name}")
    if name == "LD_PRELOAD":
        missing = [path for path in re.split(r"[:\s]+", value) if path.startswith("/") and not Path(path).exists()]
        if missing:
            todo = "correct it: the loader passes over a file that is not there"
            return subject.warn(f"{value}, of which {', '.join(missing)} is missing", todo)
    if name in FILES and not Path(value).exists():
        return subject.warn(f"{value}, which is missing", "correct it: without certificates nothing can be fetched")
    return subject.ok(value)
