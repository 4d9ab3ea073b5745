"""The local worker: lease, start, renew, report, take over what an earlier one left (DESIGN §9).

It leases like any other worker. A launcher waits behind each start that is to be acknowledged and
gets "go" only after the answer; a lost answer is asked for again in the next tick. One thread
drives it: `settle` looks at executions and reports, `dispatch` leases and starts. Both send all
that a tick has in one call a command.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qinglong_sql.execution import GRACE_MS, RecordBroken, adopt, boottime_ms
from qinglong_sql.holding import Held, command_all
from qinglong_sql.intake import Intake
from qinglong_sql.leftover import Leftovers, standing
from qinglong_sql.limits import (
    LEASE_MAX_MS,
    LEASE_MIN_MS,
    LEASE_MS,
    LEASE_RENEWALS,
    STANDALONE_DISPATCH,
)
from qinglong_sql.store import Store
from qinglong_sql.workplace import (
    LEASE_LOST,
    End,
    Gone,
    keep_log,
    take_lock,
    worker_id,
)

LOOK_MS = 250
FORGET_MS = 2_000
REJOIN_MS = 2_000


class Worker:
    """Leases attempts of `queues` up to `slots` at once and runs them below `state_dir`.

    With a `run_id` it leases that run's alone; what it takes over it ends whatever run it is of.

    One process at a time is the worker of a state folder; another one is idle until it can take
    over. `settle` and `dispatch` do all that they can and then raise the first error of a store
    call; what was asked for is asked for again the next time. `lease_ms` is 5 s to 5 min (DESIGN
    §12); raises ValueError beyond. `stop_grace_ms` lies between TERM and KILL of a stop. `clock`
    gives CLOCK_BOOTTIME in milliseconds.
    """

    def __init__(
        self,
        store: Store,
        state_dir: Path,
        *,
        queues: Sequence[str] = ("default",),
        run_id: str | None = None,
        slots: int | None = None,
        lease_ms: int = LEASE_MS,
        offers: int = STANDALONE_DISPATCH,
        stop_grace_ms: int = GRACE_MS,
        inherited: Mapping[str, str] = os.environ,
        clock: Callable[[], int] = boottime_ms,
    ) -> None:
        if not LEASE_MIN_MS <= lease_ms <= LEASE_MAX_MS:
            raise ValueError(f"a lease lasts {LEASE_MIN_MS} to {LEASE_MAX_MS} ms, not {lease_ms}")
        self.store = store
        self.state_dir = state_dir.absolute()
        self.slots = slots or max(4, os.cpu_count() or 1)
        self.lease_ms = lease_ms
        self.held: dict[str, Held] = {}  # by attempt
        self._intake = Intake(
            store,
            self.state_dir,
            self.held,
            queues=queues,
            run_id=run_id,
            slots=self.slots,
            lease_ms=lease_ms,
            offers=offers,
            stop_grace_ms=stop_grace_ms,
            inherited=inherited,
            clock=clock,
        )
        self._clock = clock
        self._lock: int | None = None
        self._leftovers = Leftovers(clock)
        self._renew_all = False
        self._look_at_ms = 0
        self._forget_at_ms = 0
        self._moved = 0
        self._errors: list[Exception] = []

    def settle(self) -> int:
        """Listen to executions; report, renew and forget what is due. Returns how much moved."""
        return self._all(
            self._listen, self._report, self._tell_running, self._renew, self._clear_away
        )

    def dispatch(self, *, lease: bool = True) -> int:
        """Lease attempts for free slots unless told not to, and start all that can be started."""
        if lease:
            return self._all(self._lease, self._prepare, self._start)
        return self._all(self._prepare, self._start)

    def renew_soon(self) -> None:
        """Renew all with the next `settle`: somebody may want an execution to stop."""
        self._renew_all = True

    def stop(self, reason: str, *, grace_ms: int | None = None, run_id: str | None = None) -> None:
        """Stop what runs (of one run): TERM, the grace, KILL. It is reported as ever."""
        for held in self.held.values():
            if held.execution and run_id in (None, held.run_id):
                held.execution.stop(reason, grace_ms)

    def busy(self) -> int:
        """How many slots are taken."""
        return sum(held.phase != "unproven" for held in self.held.values())

    def filenos(self) -> list[int]:
        """Descriptors that are readable when `settle` has something to do."""
        own = [held.execution.fileno() for held in self.held.values() if held.execution]
        if self._intake.forkserver:
            own.append(self._intake.forkserver.fileno())
        return [fd for fd in own if fd >= 0]

    def due_at_ms(self) -> int | None:
        """When `settle` has something to do by itself (CLOCK_BOOTTIME)."""
        due = [held.renew_at_ms for held in self.held.values() if self._renewable(held)]
        if due and self._renew_all:
            due.append(0)
        if self._leftovers or any(held.phase == "parted" for held in self.held.values()):
            due.append(self._look_at_ms)
        return min(due, default=None)

    def close(self) -> None:
        """Leave. Executions that run go on until their lease ends, for another worker to take over.

        May be repeated. Raises what ending the session raises, after everything is closed.
        """
        for held in self.held.values():
            held.part()
        self.held.clear()
        lock, self._lock = self._lock, None
        try:
            self._intake.end()
        finally:
            if lock is not None:
                os.close(lock)

    # --- the frame of a tick

    def _all(self, *phases: Callable[[], None]) -> int:
        if not self.own():
            return 0
        self._moved, self._errors = 0, []
        for phase in phases:
            try:
                phase()
            except Exception as error:
                self._errors.append(error)
        if self._errors:
            raise self._errors[0]
        return self._moved

    def own(self) -> bool:
        """Whether this process is the worker of the folder by now; at first it takes over."""
        if self._lock is None:
            self._lock = take_lock(self.state_dir)
            if self._lock is None:
                return False
            self._intake.begin(worker_id(self.state_dir))
            for held in self._leftovers.take_over(self.state_dir):
                self.held[held.attempt_id] = held
        return True

    def _command(
        self, step: str, held: list[Held], command: Callable[[Held], Mapping[str, Any]], **more: Any
    ) -> list[tuple[Held, dict[str, Any]]]:
        """The answered ones with their rows, `contended` ones left out: they come again."""
        answered, error = command_all(self.store, step, held, command, **more)
        if error:
            self._errors.append(error)
        done = [(one, row) for one, row in answered if row["outcome"] != "contended"]
        self._moved += sum(row["outcome"] == "applied" for _, row in done)
        return done

    def _in(self, *phases: str) -> list[Held]:
        return [held for held in self.held.values() if held.phase in phases]

    def _rejoin(self, held: Held) -> None:
        """Connect to a launcher that lives; one that never got its "go" is let go instead."""
        now_ms = self._clock()
        if now_ms < held.renew_at_ms:
            return
        held.renew_at_ms = now_ms + REJOIN_MS  # one that hangs must not hold up every tick
        try:
            execution = adopt(held.folder)
        except RecordBroken:
            return
        if execution and execution.child is None:
            execution.close()
        elif execution:
            held.execution, held.phase, held.started = execution, "live", True
            held.renew_at_ms = 0

    # --- settle

    def _listen(self) -> None:
        self._intake.reap()
        for held in self._in("waiting", "live"):
            while held.execution and (said := held.execution.poll()):
                held.started = held.started or said == "started"
                if said == "ended":
                    held.part()
                    held.phase = "parted"
        for held in self._in("parted"):
            match held.look():
                case "known":
                    held.phase = "ended"
                case "none":
                    held.phase = "unproven"
                case "alive":
                    self._rejoin(held)
        self._look_at_ms = self._clock() + LOOK_MS

    def _report(self) -> None:
        ended = self._in("ended")
        reports = [held for held in ended if isinstance(held.end, End)]
        attests = [held for held in ended if isinstance(held.end, Gone)]
        answered = self._command("report_attempts", reports, Held.report)
        answered += self._command("attest_attempts", attests, Held.attestation)
        for held, row in answered:
            if row["code"] == "QL400" and isinstance(held.end, End) and held.end.output is not None:
                held.end = End("bad_output", held.end.exit_code, error="QL_OUTPUT was refused")
            else:
                self._finish(held)

    def _tell_running(self) -> None:
        news = [held for held in self._in("live") if held.started and not held.told_running]
        for held, _ in self._command("running_attempts", news, Held.command):
            held.told_running = True

    def _renewable(self, held: Held) -> bool:
        return held.phase in ("leased", "waiting", "live") and not held.lost

    def _renew(self) -> None:
        sent_ms = self._clock()
        due = [
            held
            for held in self.held.values()
            if self._renewable(held) and (self._renew_all or held.renew_at_ms <= sent_ms)
        ]
        for held in due:  # unless it is answered
            held.renew_at_ms = sent_ms + self.lease_ms // (5 * LEASE_RENEWALS)
        answered = self._command("renew_attempts", due, Held.command, p_lease_ms=self.lease_ms)
        self._renew_all = self._renew_all and len(answered) < len(due)
        for held, row in answered:
            if row["outcome"] != "applied":
                self._lose(held)
                continue
            held.renew_at_ms = sent_ms + self.lease_ms // LEASE_RENEWALS
            # Past its deadline and grace a lease is not prolonged, whatever the reason to stop.
            if row["stop_reason"] is None or row["expires_at_ms"] > held.expires_at_ms > 0:
                held.lease_end_ms = max(held.lease_end_ms, sent_ms + self.lease_ms)
            held.expires_at_ms = row["expires_at_ms"]
            if held.execution and held.phase == "live":
                held.execution.renew(held.lease_end_ms)
                if row["stop_reason"]:
                    held.execution.stop(row["stop_reason"])

    def _lose(self, held: Held) -> None:
        """The lease is no longer ours: what has not started never will, what runs is killed."""
        if held.phase == "live" and held.execution:
            held.lost = True
            held.execution.stop(LEASE_LOST, 0)
        elif held.start_unsure:  # it may have been committed before: then its receipt counts
            held.part()
            held.phase = "parted"
        else:
            self._dismiss(held)

    def _dismiss(self, held: Held) -> None:
        """Let a launcher go that waits, and remove its folder when it has gone."""
        launcher = held.execution is not None or held.lease is not None
        held.part()
        self._leftovers.add(held.folder, launcher=launcher)
        self.held.pop(held.attempt_id, None)

    def _finish(self, held: Held) -> None:
        if not (isinstance(held.end, End) and held.end.how == "not_started"):
            keep_log(held.folder, self.state_dir, held.run_id, held.step_key, held.number)
        self._dismiss(held)

    def _clear_away(self) -> None:
        now_ms = self._clock()
        unproven = self._in("unproven") if now_ms >= self._forget_at_ms else []
        for held in unproven:
            match standing(self.store, held):
                case "settled":
                    self._finish(held)
                case "unstarted":
                    held.phase, held.end = "ended", End("not_started")
        if unproven:
            self._forget_at_ms = now_ms + FORGET_MS
        self._leftovers.clear()

    # --- dispatch

    def _lease(self) -> None:
        self._moved += self._intake.lease(self.slots - self.busy())

    def _prepare(self) -> None:
        for held in self._in("leased"):
            if held.folder.exists():  # of an earlier worker that did not come to its journal
                if held.folder not in self._leftovers:
                    self._leftovers.add(held.folder)
            elif not self._intake.prepare(held):
                self._lose(held)

    def _start(self) -> None:
        sent_ms = self._clock()
        # Where the lease is over for all that we know, it has to be renewed first.
        waiting = [held for held in self._in("waiting") if held.lease_end_ms > sent_ms]
        unsure = {held.attempt_id for held in waiting}
        answered = self._command("start_attempts", waiting, Held.start)
        for held, row in answered:
            unsure.discard(held.attempt_id)
            if row["outcome"] != "applied":
                self._lose(held)
                continue
            assert held.execution is not None
            deadline_ms = None if held.timeout_ms is None else sent_ms + held.timeout_ms
            held.execution.go(held.lease_end_ms, deadline_ms)
            held.phase = "live"
        if self._errors:
            for held in waiting:
                held.start_unsure = held.start_unsure or held.attempt_id in unsure
