"""A Mac played from recordings: answers macOS commands with what real machines printed."""

import json
from pathlib import Path

RECORDINGS = Path(__file__).parent / "recordings"


def recording(name: str) -> str:
    """The output in a file, without the line that says where it comes from."""
    return (RECORDINGS / f"{name}.txt").read_text(encoding="utf-8").split("\n", 1)[1]


class RecordedMac:
    """Called in place of `shell.output`. sysctl gives only the keys that are asked for, as the real one does.

    `power` gives recordings, or lines, for pmset's `g`, `batt`, `custom` and `therm`, and for `notify`.
    """

    def __init__(
        self,
        *sysctl: str,
        vm_stat: str = "",
        ioreg: str = "",
        profiler: tuple[str, ...] = (),
        sw_vers: str = "",
        **power: str,
    ) -> None:
        self._sysctl = "\n".join(line if ": " in line else recording(line) for line in sysctl)
        self._vm_stat = recording(vm_stat) if vm_stat else None
        self._ioreg = recording(ioreg) if ioreg else ""
        self._profiler = profiler
        self._sw_vers = recording(sw_vers) if sw_vers else None
        self._power = power
        self.asked: list[str] = []

    def __call__(self, *command: str) -> str | None:
        program = Path(command[0]).name
        self.asked.append(program)
        if program == "sysctl":
            lines = self._sysctl.splitlines()
            return "\n".join(
                line for line in lines if line.partition(":")[0].strip() in command[1:] or line.startswith("sysctl: ")
            )
        if program == "system_profiler":
            return self._report()
        if program in ("pmset", "notifyutil"):
            return self._told(program, command[-1].removeprefix("-"))
        return {"vm_stat": self._vm_stat, "ioreg": self._ioreg, "sw_vers": self._sw_vers}[program]

    def _told(self, program: str, asked: str) -> str | None:
        name = self._power.get("notify" if program == "notifyutil" else asked)
        return name if name is None or " " in name else recording(name)

    def _report(self) -> str:
        texts = [recording(name) for name in self._profiler]
        if len(texts) == 1:
            return texts[0]
        merged: dict[str, object] = {}
        for text in texts:
            merged |= json.loads(text)
        return json.dumps(merged)
