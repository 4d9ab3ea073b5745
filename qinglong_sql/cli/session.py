"""One run driven to its end in this process, and what interrupts do to it (DESIGN §5, §9)."""

import os
import time
from contextlib import AbstractContextManager, nullcontext, suppress

from qinglong_sql.cli.exits import Exit, Refused, told_as
from qinglong_sql.cli.interrupts import Interrupts
from qinglong_sql.cli.progress import View, Watch
from qinglong_sql.cli.reasons import waits
from qinglong_sql.cli.runs import request_cancel
from qinglong_sql.cli.words import Row
from qinglong_sql.drive import drain, drive
from qinglong_sql.errors import Displaced
from qinglong_sql.scheduler import StageFailed
from qinglong_sql.store import Store
from qinglong_sql.troubles import Troubles
from qinglong_sql.worker import Worker

IDLE_MS = 250
KILL_WITHIN_MS = 5_000
TELL_AGAIN_S = 10.0
LEAVE_WITHIN_S = 8.0


class Session:
    """Drives one run until it has ended, and listens to interrupts meanwhile.

    `signals` that are entered already may have counted some: then the run is cancelled at once.
    """

    def __init__(
        self,
        store: Store,
        worker: Worker,
        run_id: str,
        view: View,
        signals: Interrupts | None = None,
    ) -> None:
        self.store = store
        self.worker = worker
        self.run_id = run_id
        self.view = view
        self.watch = Watch(store, run_id, view)
        self.signals = signals or Interrupts(None, None, LEAVE_WITHIN_S)
        self.listening: AbstractContextManager[object] = nullcontext() if signals else self.signals
        self.asked = False
        self.killed = False
        self.troubles = Troubles(TELL_AGAIN_S)
        self.wake_read, self.wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def to_the_end(self) -> Row:
        """Drive; returns the run as it is then, terminal unless a second interrupt came."""
        try:
            with self.listening:
                self.signals.tell(self.wake, self.leave)
                drive(
                    self.store,
                    self.worker,
                    self.ended,
                    idle_ms=IDLE_MS,
                    on_error=self.failed,
                    wake=self.wake_read,
                )
                self.let_go()
                with suppress(Exception):  # an ended session is a courtesy; its lease ends anyway
                    self.worker.close()
        finally:
            with suppress(Exception):
                self.worker.close()
            self.signals.tell()
            os.close(self.wake_read)
            os.close(self.wake_write)
        return self.watch.run

    @property
    def interrupts(self) -> int:
        return self.signals.count

    def wake(self) -> None:
        """End the wait; the loop does the rest."""
        with suppress(OSError):  # full is awake
            os.write(self.wake_write, b".")

    def leave(self) -> None:
        """On a thread of its own: a database that does not answer cannot keep us. Never returns."""
        try:
            self.worker.stop("interrupt", grace_ms=0)
            self.view.note("the database does not answer: killed, left; the same command goes on")
        finally:
            os._exit(Exit.KILLED)

    def ended(self) -> bool:
        """Whether to stop driving. A database that is away is waited for, as in every tick."""
        interrupts = self.interrupts  # read once: nobody kills what was not cancelled first
        try:
            if interrupts and not self.asked:
                self.cancel()
                self.asked = True
            open_still = self.look()
        except Exception as error:
            if told_as(error) is None or isinstance(error, Refused | Displaced):
                raise
            self.failed(error)
            open_still = True
        return interrupts > 1 or not open_still

    def look(self) -> bool:
        """Look at the run; whether it is still open."""
        return bool(self.watch.look(now_ms())["status"] == "running")

    def cancel(self) -> None:
        request_cancel(self.store, self.run_id)
        self.worker.renew_soon()
        held = [row for row in waits(self.store, self.run_id) if row["waits_for"] == "report"]
        names = ", ".join(row["step_key"] for row in held)
        words = f"cancelling; waiting for: {names}" if names else "cancelling"
        self.view.note(f"{words} (again: kill at once)")

    def failed(self, error: Exception) -> None:
        cause = error.__cause__ if isinstance(error, StageFailed) else error
        found = told_as(cause or error)
        words = found[1] if found else f"{type(cause).__name__}: {cause}"
        if self.troubles.news(words):
            self.view.note(f"trying again: {words}")

    def let_go(self) -> None:
        """Kill what is left after a second interrupt; wait for what a killed worker left here."""
        if self.watch.run.get("status", "running") == "running":
            self.killed = True
            self.view.note("killing what runs")
            self.worker.stop("interrupt", grace_ms=0)
            try:
                drain(self.store, self.worker, within_ms=KILL_WITHIN_MS, idle_ms=IDLE_MS)
                open_still = self.look()
            except Exception as error:
                if told_as(error) is None:
                    raise
                open_still = True
            if open_still and self.asked:
                by = "this command or an edge" if self.store.engine == "sqlite" else "this command"
                self.view.note(f"the run is being cancelled: {by}, started again, ends it")
            elif open_still:
                self.view.note("the run is still open: the same command goes on with it")
        elif self.worker.busy():
            self.view.note(
                f"still here: {self.worker.busy()} executions, of other runs or lost ones"
                " (Ctrl-C leaves them; their own command goes on with them)"
            )
            before = self.interrupts
            drive(
                self.store,
                self.worker,
                lambda: not self.worker.busy() or self.interrupts > before,
                idle_ms=IDLE_MS,
                on_error=self.failed,
                wake=self.wake_read,
                lease=False,
            )


def now_ms() -> int:
    return int(time.time() * 1000)
