"""One process on one SQLite file: packages of a folder, the local cycle, a worker (DESIGN §7).

It never gives up on a database that is away, tells what is wrong, and is idle without a write: one
wake-up a cadence. The first interrupt ends it within its drain bound; executions that are not over
by then go on with their leases, for the edge that is back before they end.
"""

import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import qinglong_sql
from qinglong_sql.clock_watch import ClockWatch, words_of_jump
from qinglong_sql.door import Door
from qinglong_sql.drive import drive
from qinglong_sql.edge_fault import Faults
from qinglong_sql.edge_log import Log
from qinglong_sql.edge_packages import Packages, publisher
from qinglong_sql.edge_purge import AGAIN_MS, Purge
from qinglong_sql.edge_queues import Queues
from qinglong_sql.edge_runs import Runs
from qinglong_sql.edge_setting import LOCK, Setting
from qinglong_sql.edge_status import StatusFile
from qinglong_sql.execution import boottime_ms
from qinglong_sql.store.place import Place
from qinglong_sql.store.sqlite import SqliteStore, wall_ms
from qinglong_sql.worker import Worker

DRAIN_IDLE_MS = 100
KILL_WITHIN_MS = 5_000
LOOK_AGAIN_MS = 200  # how soon after a look a `wake` gets another one
SHOWN_EXECUTIONS = 128


class Edge:
    """Serves until it is interrupted. `interrupts` says how often it was; `words` of an error.

    The caller holds `only_one(folder)`, and owns the store. Times are CLOCK_BOOTTIME milliseconds.
    """

    def __init__(
        self,
        store: SqliteStore,
        folder: Path,
        setting: Setting,
        log: Log,
        words: Callable[[BaseException], str],
        *,
        lease_ms: int,
        grace_ms: int,
        packages: Path | None = None,
        status_file: Path | None = None,
        keep_ms: int | None = None,
    ) -> None:
        self.setting = setting
        self.state = "serving"
        self.killed = False
        self.interrupts: Callable[[], int] = lambda: 0
        self._store = store
        self._log = log
        self._words = words
        self._status_file = StatusFile(status_file, setting.idle_ms, boottime_ms)
        self._folder = folder
        self._still_locked = Place(folder / LOCK).look
        self.purge = Purge(store, folder, keep_ms, log, boottime_ms)
        self._worker = Worker(
            store,
            folder / "edge",
            slots=setting.slots,
            lease_ms=lease_ms,
            offers=setting.offers,
            stop_grace_ms=grace_ms,
            note=lambda words: log.say("fault", words),
        )
        self._packages = packages and Packages(packages, publisher(store), log.say)
        self._runs = Runs(store, log, boottime_ms)
        self._since_ms = wall_ms()
        self._cycles = self._last_cycle_ms = 0
        self._erred = False
        self._last_error: dict[str, Any] | None = None
        self._look_at_ms = self._looked_ms = 0
        self._watch = ClockWatch()
        self._queues = Queues(store, log, boottime_ms)
        self._faults = Faults(store, log)
        self.wake_read, self.wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._door = Door(folder, self.answer)

    def serve(self) -> None:
        """Work until interrupted, then drain. Raises NotReady when the file is no longer there."""
        self._log.say("begin", self._first_words(), pid=os.getpid())
        self._trying(self._runs.begin)
        self._drive(self._enough)
        self._drain()

    def wake(self) -> None:
        """End the wait; from any thread or signal."""
        with suppress(OSError):  # full is awake
            os.write(self.wake_write, b".")

    def leave(self) -> None:
        """Kill what runs, on a thread of its own: the database does not answer."""
        self._worker.stop("shutdown", grace_ms=0)
        self._log.say("killed", "the database does not answer: killed what ran, left")

    def close(self) -> None:
        """Leave; what still runs keeps its lease. May be repeated."""
        for _ in range(2):  # an ended session is a courtesy, the second call does the rest
            with suppress(Exception):
                self._worker.close()
        self._door.close()
        for fd in (self.wake_read, self.wake_write):
            with suppress(OSError):
                os.close(fd)
        self.wake_read = self.wake_write = -1

    def answer(self, word: str) -> dict[str, Any] | None:
        """What the door says to a word."""
        match word:
            case "status":
                return self.status()
            case "wake":
                self._look_at_ms = min(self._look_at_ms, self._looked_ms + LOOK_AGAIN_MS)
                return {"pid": os.getpid()}
            case "modules":
                return {"modules": sorted({name.partition(".")[0] for name in sys.modules})}
        return None

    def status(self) -> dict[str, Any]:
        """What only this process knows; times are epoch milliseconds."""
        held = list(self._worker.held.values())
        return {
            "pid": os.getpid(),
            "version": qinglong_sql.__version__,
            "profile": self.setting.profile,
            "journal": "wal" if self._store.profile == "standalone" else "truncate",
            "state": self.state,
            "since_ms": self._since_ms,
            "database": str(self._store.path.absolute()),
            "packages": self._packages.answer() if self._packages else None,
            "queues": sorted(self._queues.served),
            "queues_waiting": self._queues.waiting,
            "slots": self._worker.slots,
            "busy": self._worker.busy(),
            "executions": [
                {"run_id": one.run_id, "step_key": one.step_key, "number": one.number}
                for one in held[:SHOWN_EXECUTIONS]
            ],
            "runs_started": self._runs.started,
            "runs_ended": self._runs.ended,
            "idle_ms": self.setting.idle_ms,
            "drain_ms": self.setting.drain_ms,
            "cycles": self._cycles,
            "last_cycle_ms": self._last_cycle_ms or None,
            "faults_met": self._faults.count,
            "last_error": self._last_error,
        }

    # --- the loop

    def _drive(self, until: Callable[[], bool], *, lease: bool = True) -> None:
        drive(
            self._store,
            self._worker,
            until,
            self._moved,
            pages=self.setting.pages,
            idle_ms=self.setting.idle_ms if lease else DRAIN_IDLE_MS,
            on_error=self._failed,
            give_up_ms=math.inf,
            wake=self.wake_read,
            doors={self._door.fileno(): self._door.serve},
            lease=lease,
            watch=self._watch,
            on_jump=lambda ms: self._log.say("note", words_of_jump(ms), jump_ms=ms),
            on_fault=lambda: self._trying(self._faults.look),
        )

    def _enough(self) -> bool:
        """Between two ticks: whether to stop, and what is due besides."""
        if self.interrupts():
            return True
        self._between()
        now_ms = boottime_ms()
        if now_ms >= self._look_at_ms:
            self._store.still_there()
            self._still_locked()  # else another edge may begin, and executions have no folder
            self._looked_ms, self._look_at_ms = now_ms, now_ms + self.setting.idle_ms
            self._trying(lambda: self._worker.adopt(sorted(self._folder.glob("[0-9]*"))))
            self._trying(self._look)
            self._clean()
        return bool(self.interrupts())

    def _between(self) -> None:
        if self._cycles and not self._erred and not self._worker.backs_off():
            self._log.over()
        self._erred = False
        self._cycles += 1
        self._last_cycle_ms = wall_ms()
        self._door.serve()
        self._log.tidy()
        self._trying(lambda: self._runs.look(self._here()))
        self._trying(lambda: self._status_file.keep(self.status))

    def _moved(self) -> None:
        self._runs.met(self._here())

    def _here(self) -> list[str]:
        return [held.run_id for held in self._worker.held.values()]

    def _failed(self, error: BaseException) -> None:
        cause = error.__cause__ if type(error).__name__ == "StageFailed" else None
        words = self._words(cause or error)
        self._erred = True
        self._last_error = {"at_ms": wall_ms(), "words": words}
        self._log.trouble(words)

    def _trying(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            self._failed(error)

    # --- what is due besides

    def _look(self) -> None:
        try:
            again_ms = self._packages.look() if self._packages else None
            if again_ms is not None:
                self._look_at_ms = min(self._look_at_ms, self._looked_ms + again_ms)
        finally:
            known = self._packages.queues() if self._packages else set()
            self._worker.serve(self._queues.look(known))

    def _clean(self) -> None:
        try:
            if self.purge.look():
                self._look_at_ms = 0
        except Exception as error:
            minutes = AGAIN_MS // 60_000
            words = f"purge by --keep, again in {minutes} minutes: {self._words(error)}"
            self._last_error = {"at_ms": wall_ms(), "words": words}
            self._log.say("trouble", words)

    # --- leaving

    def _drain(self) -> None:
        """Give what runs its time to end; what goes on after that keeps a full lease."""
        self.state = "draining"
        if self._worker.busy():
            self._log.say(
                "draining",
                f"stopping: {self._executions()} may take {self.setting.drain_ms / 1000:g}s to end"
                " (again: kill now)",
            )
        self._until_over(self.setting.drain_ms, 1)
        if self.interrupts() > 1:
            self._kill()
        elif self._worker.busy():
            self._worker.renew_soon()
            self._trying(self._worker.settle)
        self._trying(lambda: self._runs.look(self._here(), now=True))
        if self._worker.busy():
            self._log.say(
                "left",
                f"stopped; {self._executions()} may go on for {self._worker.lease_ms / 1000:g}s,"
                " and longer if an edge is back by then and takes over",
            )
        else:
            self._log.say("end", "stopped")
        self.state = "stopped"
        self._trying(lambda: self._status_file.keep(self.status, now=True))

    def _kill(self) -> None:
        self.state, self.killed = "killing", True
        self._log.say("killed", f"killing {self._executions()}")
        self._worker.stop("shutdown", grace_ms=0)
        self._until_over(KILL_WITHIN_MS, math.inf)

    def _until_over(self, within_ms: int, interrupts: float) -> None:
        end_ms = boottime_ms() + within_ms

        def over() -> bool:
            self._between()
            ended = not self._worker.busy() or boottime_ms() >= end_ms
            return ended or self.interrupts() > interrupts

        self._drive(over, lease=False)

    def _executions(self) -> str:
        return f"{(count := self._worker.busy())} execution{'s' * (count != 1)}"

    def _first_words(self) -> str:
        folder = f", packages in {self._packages.folder}" if self._packages else ""
        how = f"{self.setting.profile}, {self.setting.slots} slots{folder}"
        return f"edge {qinglong_sql.__version__} on {self._store.path.absolute()} ({how})"
