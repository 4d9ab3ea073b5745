"""The command line with a watch on its store: how long each transaction held the lock of the file.

    QL_HELD=FILE python -m tests.held edge …

A line a transaction: ms from `begin immediate` to the commit, ms of processor time in that, its
instructions of SQLite in hundreds, ms of the commit, ms of processor time in that, and the steps.
The watch stands at the store's cursor, so the product has nothing in it that could be armed by
mistake.
"""

import os
import runpy
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from qinglong_sql.store import sqlite

EVERY = 100  # instructions


class Watched:
    """A cursor that notes when the lock is taken and when it is let go."""

    def __init__(self, cursor: Any, path: Path) -> None:
        self._cursor = cursor
        self._file = path.open("a", buffering=1)
        self._ticks: list[None] = []
        self._begun: tuple[float, float] | None = None
        self.steps: list[str] = []
        cursor.connection.set_progress_handler(partial(self._ticks.append, None), EVERY)

    def execute(self, text: str, *values: Any) -> Any:
        if text not in ("begin immediate", "commit", "rollback"):
            return self._cursor.execute(text, *values)
        before = time.perf_counter(), time.thread_time()
        ticks = len(self._ticks)
        found = self._cursor.execute(text)
        after = time.perf_counter(), time.thread_time()
        if text == "begin immediate":
            self._begun = after
            self._ticks.clear()
            self.steps.clear()
        elif self._begun:
            parts = [(b - a) * 1000 for a, b in zip(self._begun, before, strict=True)]
            parts += [(b - a) * 1000 for a, b in zip(before, after, strict=True)]
            work, work_cpu, end, end_cpu = (f"{ms:.3f}" for ms in parts)
            print(work, work_cpu, ticks, end, end_cpu, "+".join(self.steps), file=self._file)
            self._begun = None
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


def watch(path: Path) -> None:
    """Watch every store that is opened from now on."""
    made, step = sqlite.SqliteStore.__init__, sqlite.SqliteStore._step

    def init(self: Any, *args: Any, **named: Any) -> None:
        made(self, *args, **named)
        self._cursor = Watched(self._cursor, path)

    def named(self: Any, one: Any, params: Any, now_ms: int) -> Any:
        self._cursor.steps.append(one.name)
        return step(self, one, params, now_ms)

    sqlite.SqliteStore.__init__ = init  # type: ignore[method-assign]
    sqlite.SqliteStore._step = named  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    watch(Path(os.environ["QL_HELD"]))
    sys.argv[0] = "qinglong-sql"
    runpy.run_module("qinglong_sql", run_name="__main__")
