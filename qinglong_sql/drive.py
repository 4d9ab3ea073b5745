"""The loop of one process: cycle, worker, and a wait that a finished execution ends (DESIGN §7)."""

import math
import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qinglong_sql.asking import Fuse
from qinglong_sql.cadence import next_delay
from qinglong_sql.clock_watch import ClockWatch
from qinglong_sql.errors import Malformed, NotReady
from qinglong_sql.execution import boottime_ms
from qinglong_sql.limits import IDLE_STANDALONE_MS, LOCAL_PAUSE_MS, PAGE_SIZE
from qinglong_sql.port import Port
from qinglong_sql.scheduler import STANDALONE, Cycle, Pages, StageFailed, Turn, local_cycle
from qinglong_sql.stage import STAGES
from qinglong_sql.store import Call, Row, Store
from qinglong_sql.worker import Worker

Doors = Mapping[int, Callable[[], object]]  # descriptors, and what is called when one is readable

NO_DOORS: Doors = {}
GIVE_UP_MS = 60_000
DRAIN_MS = 30_000


def drive(
    store: Store,
    worker: Worker,
    until: Callable[[], bool],
    on_change: Callable[[], object] | None = None,
    *,
    pages: Pages = STANDALONE,
    idle_ms: float = IDLE_STANDALONE_MS,
    on_error: Callable[[Exception], object] | None = None,
    give_up_ms: float = GIVE_UP_MS,
    wake: int | None = None,
    doors: Doors = NO_DOORS,
    lease: bool = True,
    clock: Callable[[], int] = boottime_ms,
    watch: ClockWatch | None = None,
    on_jump: Callable[[int], object] | None = None,
    on_fault: Callable[[], object] | None = None,
) -> None:
    """Run cycles and the worker until `until` says so; `on_change` is called when something moved.

    At first, and when `watch` says that the clock was set back, the whole agenda is swept at once.
    `on_jump` is told by how many milliseconds the clock was set; `on_fault` is called when a run or
    a trigger raised, which then waits for its next try while all others go on.

    What a tick raises is told to `on_error` and tried again in the next one. It is raised when time
    cannot help (NotReady, Malformed), and when every tick of the last `give_up_ms` raised; who
    never gives up (math.inf) lets one malformed thing not end all others. A wait
    ends when the descriptor `wake` is readable, which is then emptied, or one of `doors`, of which
    then its function is called. Without `lease` the worker takes nothing new. It stays open.
    """
    turn, delay_ms, failing_since_ms = Turn(whole=True), 0.0, None
    watch = watch or ClockWatch()
    hopeless = NotReady if math.isinf(give_up_ms) else NotReady | Malformed
    while not until():
        jump_ms = watch.look()
        if jump_ms < 0:
            turn = replace(turn, swept="", whole=True)
        if jump_ms and on_jump:
            on_jump(jump_ms)
        early = lease and failing_since_ms is None
        cycle, moved, error = _tick(store, worker, turn, pages, lease=lease, early=early)
        turn = cycle.next
        if moved and on_change:
            on_change()
        if cycle.faulted and on_fault:
            on_fault()
        if error is None:
            failing_since_ms = None
        else:
            if failing_since_ms is None:
                failing_since_ms = clock()
            cause = error.__cause__ if isinstance(error, StageFailed) else error
            if isinstance(cause, hopeless) or clock() - failing_since_ms >= give_up_ms:
                raise error
            if on_error:
                on_error(error)
        at_once = (moved or turn.whole) and error is None
        delay_ms = next_delay(delay_ms, applied=at_once, idle_ms=idle_ms)
        _wait(worker, delay_ms, wake, doors, clock)


def drain(
    store: Store,
    worker: Worker,
    *,
    within_ms: int = DRAIN_MS,
    clock: Callable[[], int] = boottime_ms,
    **options: Any,
) -> bool:
    """Finish what the worker holds and take nothing new; True when all of it ended in time.

    `options` are those of `drive`, which also says what is raised.
    """
    end_ms = clock() + within_ms
    drive(
        store,
        worker,
        lambda: not worker.busy() or clock() >= end_ms,
        lease=False,
        clock=clock,
        **options,
    )
    return not worker.busy()


def _tick(
    store: Store, worker: Worker, turn: Turn, pages: Pages, *, lease: bool, early: bool
) -> tuple[Cycle, bool, Exception | None]:
    """Report, then a cycle, then dispatch; the cycle, whether anything moved, the first error.

    Reports and renewals do not wait for a cycle that fails, but nothing new is leased after it.
    What could not be reported yet is not declared lost either.
    With `early` what a report opens is leased with it, if the store can fuse.
    """
    first: Exception | None = None
    moved = False
    try:
        moved = worker.settle(fusion(worker.store), lease=early) > 0
    except Exception as error:
        first = error
    try:
        cycle = local_cycle(store, turn, pages, owing=worker.owes)
    except StageFailed as error:
        cycle, lease, first = error.cycle, False, first or error
    if cycle.stopping:
        worker.renew_soon()
    lease = lease and (cycle.applied or not worker.offered)
    try:
        moved = worker.dispatch(lease=lease) > 0 or moved
    except Exception as error:
        first = first or error
    return cycle, moved or cycle.applied, first


def fusion(store: Port) -> Fuse | None:
    """One transaction for what a tick says, and what follows from it, where a store has that.

    A run whose execution ended gets its frontier and its admissions with the report (DESIGN §6).
    """
    together: Callable[[list[Call]], list[list[Row]] | None] | None = getattr(store, "fuse", None)
    if together is None:
        return None

    def fuse(
        said: Sequence[Call], runs: Sequence[str], offered: Sequence[Call]
    ) -> list[list[Row]] | None:
        follows: list[Call] = [
            (STAGES[name].run_step or "", {"p_run_id": run_id})
            for run_id in runs[:PAGE_SIZE]  # the cycle does the rest
            for name in ("frontier", "task_admission")
        ]
        answers = together([*said, *follows, *offered])
        return answers and answers[: len(said)] + answers[len(said) + len(follows) :]

    return fuse


def _wait(
    worker: Worker, delay_ms: float, wake: int | None, doors: Doors, clock: Callable[[], int]
) -> None:
    """Wait for the delay, an execution, `wake`, a door, or what the worker has to do by itself."""
    start = time.monotonic()
    due_ms = worker.due_at_ms()
    left_ms = delay_ms if due_ms is None else min(delay_ms, due_ms - clock())
    poll = select.poll()
    for fd in worker.filenos():
        poll.register(fd, select.POLLIN)
    for fd in doors if wake is None else (wake, *doors):
        poll.register(fd, select.POLLIN)
    ready = dict(poll.poll(max(0.0, left_ms)))
    # Always a little, or another process finds the database taken for seconds (DESIGN §6).
    pause_s = LOCAL_PAUSE_MS / 1000 - (time.monotonic() - start)
    if pause_s > 0:
        time.sleep(pause_s)
    if wake in ready:
        os.read(wake, 4096)
    for fd in doors.keys() & ready.keys():
        doors[fd]()
