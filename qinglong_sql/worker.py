"""The worker: lease, start, renew, report, take over what an earlier one left (DESIGN §9).

A launcher waits behind each start that is to be acknowledged and gets "go" only after the answer; a
lost answer is asked for again in the next tick. One thread drives it: `settle` looks at executions
and reports, `dispatch` leases and starts. Both send all that a tick has in one call a command; what
can share a transaction does, if `settle` is told how. It is the same behind any port.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from qinglong_sql.adoption import Adoption
from qinglong_sql.apart import Apart, Note, there
from qinglong_sql.asking import Asking, Command, Fuse
from qinglong_sql.execution import GRACE_MS, boottime_ms
from qinglong_sql.holding import FOLDER, Held
from qinglong_sql.intake import Intake, Terms
from qinglong_sql.leftover import Leftovers
from qinglong_sql.limits import LEASE_MAX_MS, LEASE_MIN_MS, LEASE_MS, STANDALONE_DISPATCH
from qinglong_sql.orphans import Orphans
from qinglong_sql.port import Away, Port, Shut
from qinglong_sql.session import Standing
from qinglong_sql.store import Call, Row
from qinglong_sql.workplace import End, take_lock, worker_id

LOOK_MS = 250
PREPARED = 8  # at once: others wait to be renewed


class Worker:
    """Leases attempts of `queues` up to `slots` at once and runs them below `state_dir`.

    With a `run_id` it leases that run's alone; what it takes over it ends, of whatever run. One
    process at a time is the worker of a state folder; another one is idle until it can take over.
    `settle` and `dispatch` do all that they can and then raise the first error of a call; what was
    asked for is asked for again the next time. `lease_ms` is 5 s to 5 min (DESIGN §12), or
    ValueError; `stop_grace_ms` is between TERM and KILL of a stop; `clock`: CLOCK_BOOTTIME. `note`
    is told of a folder that its command has broken, which never holds up the others. One with a
    `name` is that worker, and somebody calls `heartbeat`; `base_dir` stands for the packages' own;
    `on_end` is told of each end, before its log is kept.
    """

    def __init__(
        self,
        store: Port,
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
        note: Note | None = None,
        name: str | None = None,
        base_dir: Path | None = None,
        on_end: Callable[[Held], object] | None = None,
    ) -> None:
        if not LEASE_MIN_MS <= lease_ms <= LEASE_MAX_MS:
            raise ValueError(f"a lease lasts {LEASE_MIN_MS} to {LEASE_MAX_MS} ms, not {lease_ms}")
        self.store = store
        self.state_dir = state_dir.absolute()
        self.slots = slots or max(4, os.cpu_count() or 1)
        self.lease_ms = lease_ms
        self.held: dict[str, Held] = {}  # by attempt
        how = (self.slots, lease_ms, offers, stop_grace_ms, inherited, base_dir, name is not None)
        terms = Terms(queues, run_id, *how)
        self._intake = Intake(store, self.state_dir, self.held, terms, clock)
        self._name, self._clock = name, clock
        self._lock: int | None = None
        self._apart = Apart(note)
        self._leftovers = Leftovers(self.state_dir, self.held, clock, self._apart, on_end)
        self._adoption = Adoption(self.held, self._leftovers)
        self._orphans = Orphans(store, self.state_dir, self.held, note)
        self._asking = Asking(self.held, self._leftovers, lease_ms, clock)
        self.offered = False  # the last `settle` asked every queue for work
        self._fuse: Fuse | None = None
        self._offering = self._renew_all = self._untold = False
        self._look_at_ms = self._moved = 0
        self._errors: list[Exception] = []

    def settle(self, fuse: Fuse | None = None, *, lease: bool = False) -> int:
        """Listen to executions; report, renew and forget what is due. Returns how much moved.

        With `fuse` starts, reports and, if wanted, a lease for the slots that they free share a
        transaction with what follows from them; if it came to nothing each is sent alone.
        """
        self._fuse, self._offering, self.offered = fuse, lease, False
        ours = (self._leftovers.clear, self._listen, self._renew, self._tell, self._renew)
        return self._all(*ours, lambda: self._leftovers.look_again(self.store))

    def dispatch(self, *, lease: bool = True) -> int:
        """Lease attempts for free slots unless told not to, and start all that can be started.

        After a `settle` that could fuse, starts wait for the next one if it will have more to say.
        """
        # Folders go last: their commands are over, and others wait for their start.
        phases = (self._renew, self._prepare, self._renew, self._start, self._leftovers.clear)
        return self._all(*([self._renew, self._lease] if lease else []), *phases)

    def heartbeat(self) -> Standing:
        """Say that this worker is there, and hear what is wanted of it; see Session."""
        return self._intake.heartbeat()

    def hand_back(self) -> None:
        """Give back, with the next `settle`, what has not begun: its launchers get no "go"."""
        for held in self._asking.within("leased", "waiting"):
            held.phase, held.end = "ended", End("not_started")

    def serve(self, queues: Sequence[str]) -> None:
        """Lease attempts of these queues from now on. Between ticks only."""
        self._intake.serve(queues)

    def adopt(self, folders: Iterable[Path]) -> None:
        """Take over what workers that are gone left in these state folders as well."""
        if self.own():
            self._adoption.look(folders)

    def renew_soon(self) -> None:
        """Renew all with the next `settle`: somebody may want an execution to stop."""
        self._renew_all = True

    def stop(self, reason: str, *, grace_ms: int | None = None, run_id: str | None = None) -> None:
        """Stop what runs (of one run): TERM, the grace, KILL. It is reported as ever."""
        for held in list(self.held.values()):  # an interrupt may say so from another thread
            if held.execution and run_id in (None, held.run_id):
                held.execution.stop(reason, grace_ms)

    def busy(self) -> int:
        """How many slots are taken."""
        return sum(held.phase != "unproven" for held in self.held.values())

    def backs_off(self) -> bool:
        """Whether what was leased last could not begin here, and nothing has begun since."""
        return self._intake.backs_off()

    def owes(self) -> bool:
        """Whether an end was not told yet, or what nobody guards was killed in vain: not lost."""
        if self._lock is not None:
            before = self._asking.signs()
            self._listen()  # nothing wakes us any more for what was heard here
            self._untold = self._untold or self._asking.signs() != before
        untold = any(not held.refused for held in self._asking.within("ended"))
        return self._orphans.look() or untold

    def filenos(self) -> list[int]:
        """Descriptors that are readable when `settle` has something to do."""
        guards = (held.execution for held in self.held.values())
        return [
            fd for one in (self._intake.forkserver, *guards) if one and (fd := one.fileno()) >= 0
        ]

    def due_at_ms(self) -> int | None:
        """When `settle` has something to do by itself (CLOCK_BOOTTIME)."""
        due = [held.renew_at_ms for held in self.held.values() if held.renewable()]
        if self._untold or (due and self._renew_all):
            due.append(0)
        if self._leftovers or any(held.phase == "parted" for held in self.held.values()):
            due.append(self._look_at_ms)
        return min(due, default=None)

    def close(self) -> None:
        """Leave, once or more. What runs keeps its lease. Raises what ending a session raises."""
        for held in self.held.values():
            held.part()
        self.held.clear()
        lock, self._lock = self._lock, None
        try:
            self._intake.end()
        finally:
            self._adoption.close()
            if lock is not None:
                os.close(lock)

    def _all(self, *phases: Callable[[], None]) -> int:
        if not self.own():
            return 0
        self._moved, self._errors = 0, []
        for phase in phases:
            try:
                phase()
            except Exception as error:
                self._errors.append(error)
            if self._shut_out():  # the rest would wait as well, for longer than a renewal may
                break
        if self._errors:
            raise self._errors[0]
        return self._moved

    def own(self) -> bool:
        """Whether this process is the worker of the folder by now; at first it takes over."""
        if self._lock is None:
            self._lock = take_lock(self.state_dir)
            if self._lock is None:
                return False
            try:
                self._leftovers.take_over()
                self._intake.begin(worker_id(self.state_dir, self._name))
            except BaseException:
                os.close(self._lock)  # what was not taken over is not ours
                self._lock = None
                self.held.clear()
                raise
        return True

    def _send(self, *commands: Command) -> int:
        """Send each alone; how many attempts were answered."""
        answered = 0
        for number, command in enumerate(commands):
            if number:
                self._renew()  # none waits for more than one answer
            if self._shut_out():
                break
            rows, error = command.alone(self.store)
            answered += len(rows)
            self._count(rows)
            self._errors += [error] if error else []
        return answered

    def _shut_out(self) -> bool:
        return any(isinstance(error, Away | Shut) for error in self._errors)

    def _count(self, rows: list[Row]) -> None:
        self._moved += sum(row["outcome"] == "applied" for row in rows)

    def _listen(self) -> None:
        self._intake.reap()
        self._apart.each(self._asking.within("waiting", "live"), FOLDER, Held.hear)
        now_ms = self._clock()
        parted = self._asking.within("parted")
        self._apart.each(parted, FOLDER, lambda held: held.take_proof(now_ms))
        self._look_at_ms = now_ms + LOOK_MS

    def _tell(self) -> None:
        self._untold = False
        commands = [*self._asking.ends(), self._asking.running()]
        if not (self._fuse and self._told_together(self._fuse, commands)):
            self._fuse = None
            self._send(*commands)

    def _told_together(self, fuse: Fuse, commands: list[Command]) -> bool:
        """Whether all of it was said in one transaction, with what follows from it."""
        starts, ended = self._asking.starts(), self._asking.within("ended")
        commands = [starts, *commands]  # what a start opened comes before what an end does
        calls = [command.calls() for command in commands]
        said = [call for each in calls for call in each]
        if not said:
            return True
        offered = self._offer(self.slots - self.busy() + len(ended)) if self._offering else []
        try:
            answers = fuse(said, sorted({held.run_id for held in ended}), offered)
        except BaseException:
            starts.unsure()
            raise
        if answers is None:
            return False
        for command, each in zip(commands, calls, strict=True):
            mine, answers = answers[: len(each)], answers[len(each) :]
            self._count(command.answered(row for rows in mine for row in rows))
        for rows in answers:
            self._moved += self._intake.take(rows)
            self.offered = self._intake.covers_all()
        return True

    def _offer(self, free: int) -> list[Call]:
        try:
            return self._intake.offer(free)
        except OSError as error:  # a full disk must not hold up what is reported
            self._errors.append(error)
            return []

    def _renew(self) -> None:
        renewals = self._asking.renewals(every=self._renew_all)
        answered = self._send(renewals)
        self._renew_all = self._renew_all and answered < len(renewals.held)

    def _lease(self) -> None:
        self._moved += self._intake.lease(self.slots - self.busy())

    def _prepare(self) -> None:
        leased = self._asking.within("leased")
        fresh = [held for held in leased if not there(held.folder)]
        for held in leased:  # of an earlier worker that did not come to its journal
            if held not in fresh and held.folder not in self._leftovers:
                self._leftovers.add(held.folder)
        for held in self._intake.prepare(fresh[:PREPARED]):
            self._leftovers.lose(held)
        self._errors += self._intake.failures

    def _start(self) -> None:
        starts = self._asking.starts()
        if self._fuse and len(starts.held) < self.busy():
            self._moved += len(starts.held)  # they share the transaction of the next tick
            return
        self._send(starts)
        if self._errors:
            starts.unsure()
