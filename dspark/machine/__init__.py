"""What this machine is and can do, behind one protocol per platform."""

from dspark.machine.facts import Machine
from dspark.machine.provenance import stamp
from dspark.machine.watch import Conditions, Watch
from dspark.machine.watch import glance as conditions

__all__ = ["Conditions", "Machine", "Watch", "conditions", "describe", "stamp"]


def describe() -> Machine:
    """Everything known of this machine. Imports MLX where it is installed."""
    from dspark.machine import platform, runtime

    here = platform.current()
    return Machine(here.chip(), here.system(), here.memory(), runtime.describe())
