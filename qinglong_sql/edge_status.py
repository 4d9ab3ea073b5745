"""What an edge says of itself, kept in a file for whoever cannot ask at its door."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qinglong_sql.store.snapshot import of_one
from qinglong_sql.whole_file import target_of, write_whole

BEGINS = b'{"pid": '  # of what is kept here
VOLATILE = ("cycles", "last_cycle_ms")  # they move without anything having changed


def may_keep(path: Path, database: Path) -> bool:
    """Whether a status may be kept at a path: nothing is there, or an older one.

    Raises NoFile for what is no file, OSError for one that cannot be read.
    """
    target = target_of(path)
    if of_one(target, database):
        return False
    try:
        with target.open("rb") as file:
            return file.read(len(BEGINS)) in (b"", BEGINS)
    except FileNotFoundError:
        return True


class StatusFile:
    """Written whole or not at all: when something changed, and at most once in `every_ms`.

    Without a path it is nothing. `clock` counts milliseconds.
    """

    def __init__(self, path: Path | None, every_ms: int, clock: Callable[[], int]) -> None:
        self._path = path
        self._every_ms = every_ms
        self._clock = clock
        self._known = ""
        self._not_before_ms = 0

    def keep(self, status: Callable[[], dict[str, Any]], *, now: bool = False) -> None:
        """Write what has changed, if it is time. Raises OSError, and tries again the next time."""
        now_ms = self._clock()
        if not self._path or (now_ms < self._not_before_ms and not now):
            return
        found = status()
        known = json.dumps({k: v for k, v in found.items() if k not in VOLATILE})
        if known == self._known:
            return
        self._not_before_ms = now_ms + self._every_ms
        raw = json.dumps(found).encode() + b"\n"
        write_whole(self._path, raw, replace=True, durable=False)  # it is of no use after a crash
        self._known = known
