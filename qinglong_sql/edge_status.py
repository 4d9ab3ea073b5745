"""What an edge says of itself, kept in a file for whoever cannot ask at its door."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOLATILE = ("cycles", "last_cycle_ms")  # they move without anything having changed


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
        new = self._path.with_name(f".{self._path.name}.new")
        new.write_text(json.dumps(found) + "\n", encoding="utf-8")
        new.replace(self._path)
        self._known = known
