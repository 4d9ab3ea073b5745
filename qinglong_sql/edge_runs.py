"""Tells of the runs that an edge works on: one line when a run begins here, one when it ends."""

from collections.abc import Callable, Iterable
from typing import Any

from qinglong_sql.duration import write_duration
from qinglong_sql.edge_log import Log
from qinglong_sql.store import Store

EVERY_MS = 250
LOOKED_AT = 32  # of the runs that wait for something, at a time
REMEMBERED = 1024


class Runs:
    """`met` is told of runs whenever something moved, `look` reads what became of them.

    `clock` counts milliseconds.
    """

    def __init__(self, store: Store, log: Log, clock: Callable[[], int]) -> None:
        self.started = self.ended = 0
        self._store = store
        self._log = log
        self._clock = clock
        self._open: dict[str, None] = {}  # told as started, in the order of the last look
        self._new: dict[str, None] = {}
        self._moved = False
        self._looked_ms = 0

    def begin(self) -> None:
        """Know the runs that began before: their end is told as well. Raises as `read` does."""
        for run in self._store.read("open_run", order="admitted_at_ms, run_id", limit=REMEMBERED):
            if run["attempt_count"]:
                self._open[run["run_id"]] = None
        if self._open:
            self._log.say("open", f"going on with runs that have begun: {len(self._open)}")

    def met(self, run_ids: Iterable[str]) -> None:
        """Something moved while executions of these runs are here."""
        self._moved = True
        self._new.update((run_id, None) for run_id in run_ids if run_id not in self._open)

    def look(self, here: Iterable[str], *, now: bool = False) -> None:
        """Tell what is new; `here` are the runs that have an execution here at this moment."""
        at_ms = self._clock()
        if not self._moved or (not now and at_ms - self._looked_ms < EVERY_MS):
            return
        self._looked_ms, self._moved = at_ms, False
        for run_id in list(self._new):
            del self._new[run_id]
            for run in self._store.read("run_state", run_id=run_id):
                self.started += 1
                self._open[run_id] = None
                self._log.often("started", f"run {_named(run)} started", run_id=run_id)
        busy = set(here)
        waiting = [run_id for run_id in self._open if run_id not in busy]
        for run_id in waiting[: None if now else LOOKED_AT]:
            del self._open[run_id]
            for run in self._store.read("run_state", run_id=run_id):
                if run["finished_at_ms"] is None:
                    self._open[run_id] = None
                else:
                    self._tell_end(run)
        for run_id in list(self._open)[: max(0, len(self._open) - REMEMBERED)]:
            del self._open[run_id]
        self._moved = len(waiting) > LOOKED_AT

    def _tell_end(self, run: dict[str, Any]) -> None:
        self.ended += 1
        ms = max(0, run["finished_at_ms"] - run["admitted_at_ms"])
        took = f"{ms / 1000:.1f}s" if ms < 10_000 else write_duration(ms // 1000 * 1000)
        code = f" ({run['result_code']})" if run["result_code"] else ""
        self._log.often(
            "ended",
            f"run {_named(run)} {run['status']}{code} after {took}",
            run_id=run["run_id"],
            status=run["status"],
        )


def _named(run: dict[str, Any]) -> str:
    return f"{run['run_id']} {run['package_key']}/{run['target_key']}"
