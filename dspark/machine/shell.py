"""Running one of the system's own tools and reading what it prints."""

import os
import subprocess

TIMEOUT_S = 10.0


def output(*command: str) -> str | None:
    """What `command` wrote to stdout, or None when it could not be run or took too long.

    The exit status is left alone: sysctl reports 1 for one unknown key and still prints all the others.
    """
    environment = os.environ | {"LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace")
