"""Launchers and fork servers, found by the journals of the executions that they guard."""

import json
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from qinglong_sql.linux import start_ticks


@dataclass(frozen=True, slots=True)
class Guard:
    """A launcher or a fork server, as a journal names it."""

    kind: str
    pid: int
    ticks: int

    def send(self, *numbers: signal.Signals) -> bool:
        """Signal it, if it is still that process."""
        for number in numbers:
            if start_ticks(self.pid) != self.ticks:
                return False
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
        return True


def guards_in(*folders: Path) -> list[Guard]:
    """Those that live now, of the workers with these state folders."""
    found: set[Guard] = set()
    for folder in folders:
        for journal in (folder / "exec").glob("*/journal.json"):
            with suppress(OSError, ValueError, KeyError):
                said = json.loads(journal.read_text(encoding="utf-8"))
                for kind in ("launcher", "forkserver"):
                    found.add(Guard(kind, said[f"{kind}_pid"], said[f"{kind}_ticks"]))
    return sorted((one for one in found if start_ticks(one.pid) == one.ticks), key=repr)
