"""The coordinator: which stages run in which order (DESIGN §7).

It keeps nothing: what one cycle leaves to the next is a `Turn`. A failed stage ends its cycle and
says nothing of the rest; what was committed before is found by the next cycle. Dispatch, the last
stage of the local cycle, belongs to the worker.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from qinglong_sql.limits import CRON_GRACE_MS, EDGE_PAGES, PAGE_SIZE, PAGES, STANDALONE_PAGES
from qinglong_sql.schedule import SCHEDULE, run_schedule
from qinglong_sql.stage import STAGES, StalledContinuation, Tally, run_stage
from qinglong_sql.store import Store

SWEEP = "sweep"
WHOLE_SLICE = 256  # of a sweep that goes through at once; few of them are open, so it is short


@dataclass(frozen=True, slots=True)
class Pages:
    """(size, pages) of each kind of stage; recovery and deadlines have the bounds of a cluster.

    Without `schedule` no trigger fires. `grace_ms` is how late one may be without being missed.
    """

    cancellation: tuple[int, int] = (PAGE_SIZE, PAGES)
    frontier: tuple[int, int] = (PAGE_SIZE, PAGES)
    admission: tuple[int, int] = (PAGE_SIZE, PAGES)
    recovery: tuple[int, int] = (PAGE_SIZE, PAGES)
    schedule: tuple[int, int] | None = None
    grace_ms: int = CRON_GRACE_MS


CLUSTER = Pages(schedule=(PAGE_SIZE, PAGES))
STANDALONE = Pages(*STANDALONE_PAGES)
EDGE = Pages(*EDGE_PAGES, recovery=EDGE_PAGES[0])


@dataclass(frozen=True, slots=True)
class Turn:
    """What a cycle is told by the one before: its number, and how far the sweep has come.

    `whole`: all runs are to be swept now, in larger slices and cycle after cycle, since the clock
    may have been set back: what stands later than it should is nowhere else found (DESIGN §5).
    """

    number: int = 0
    swept: str = ""
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Cycle:
    """What a cycle did, a tally a stage in the order in which they ran, and the next turn.

    `seconds` is how long each took, one that raised as well.
    """

    tallies: dict[str, Tally]
    next: Turn
    seconds: dict[str, float] = field(default_factory=dict, compare=False)

    @property
    def applied(self) -> bool:
        """Whether anything moved, so that the next cycle follows at once."""
        return any(tally.applied for tally in self.tallies.values())

    @property
    def faulted(self) -> int:
        """How many candidates raised; each is in `fault_state` or in `trigger_state`."""
        return sum(tally.faulted for tally in self.tallies.values())

    @property
    def stopping(self) -> bool:
        """Whether runs with an intent were looked at: their executions should hear of it."""
        return any(self.tallies[road].scanned for road in ROADS if road in self.tallies)


class StageFailed(RuntimeError):
    """A stage raised; `cycle` holds what the stages before it did, `__cause__` what it raised."""

    def __init__(self, stage: str, cycle: Cycle) -> None:
        super().__init__(f"stage {stage} failed")
        self.stage = stage
        self.cycle = cycle


Work = tuple[str, Callable[[Store], Tally]]
ROADS = ("cancellation", "task_cancellation")


def local_cycle(
    store: Store,
    turn: Turn,
    pages: Pages = STANDALONE,
    *,
    owing: Callable[[], bool] = lambda: False,
) -> Cycle:
    """One cycle of a single process, without dispatch. Raises StageFailed.

    While this process is `owing` ends that it knows, nothing is declared lost: its own report comes
    first, however long the database did not answer.
    """
    return _in_order(
        store,
        turn,
        [
            *_cancelling(turn, pages),
            *_recovering(pages, owing),
            *_scheduling(turn, pages),
            _stage("frontier", pages.frontier),
            _stage("task_admission", pages.admission),
        ],
    )


def scheduler_cycle(store: Store, turn: Turn, pages: Pages = CLUSTER) -> Cycle:
    """One cycle of a cluster's scheduler lifecycle. Raises StageFailed."""
    return _in_order(
        store,
        turn,
        [
            *_recovering(pages),
            *_scheduling(turn, pages),
            _stage("frontier", pages.frontier),
            _stage("task_admission", pages.admission),
        ],
    )


def cancellation_cycle(store: Store, turn: Turn, pages: Pages = CLUSTER) -> Cycle:
    """One cycle of a cluster's cancellation lifecycle, a fault domain apart. Raises StageFailed."""
    return _in_order(store, turn, _cancelling(turn, pages), sweeps=False)


def _cancelling(turn: Turn, pages: Pages) -> list[Work]:
    # The roads take turns, so that one that is long or fails cannot keep the other from moving.
    roads = ROADS if turn.number % 2 == 0 else ROADS[::-1]
    return [_stage(name, pages.cancellation) for name in ("deadline", *roads)]


def _recovering(pages: Pages, owing: Callable[[], bool] = lambda: False) -> list[Work]:
    name, expire = _stage("expiry", pages.recovery)
    # Asked right before, since the stages before it may have waited for a lease's length.
    expiry = name, lambda store: Tally() if owing() else expire(store)
    return [expiry, _stage("retry", pages.recovery)]


def _scheduling(turn: Turn, pages: Pages) -> list[Work]:
    if pages.schedule is None:
        return []
    size, count = pages.schedule
    bounds = {"size": size, "pages": count, "grace_ms": pages.grace_ms}
    return [(SCHEDULE, lambda store: run_schedule(store, **bounds, whole=turn.whole))]


def _stage(name: str, bounds: tuple[int, int]) -> Work:
    size, pages = bounds
    return name, lambda store: run_stage(store, STAGES[name], size=size, pages=pages)


def _in_order(store: Store, turn: Turn, work: Iterable[Work], *, sweeps: bool = True) -> Cycle:
    tallies: dict[str, Tally] = {}
    seconds: dict[str, float] = {}
    turn = replace(turn, number=turn.number + 1)
    for name, run in work:
        began_s = time.monotonic()
        try:
            tallies[name] = run(store)
            if name == "retry" and sweeps:
                seconds[name] = time.monotonic() - began_s
                name, began_s = SWEEP, time.monotonic()
                size = WHOLE_SLICE if turn.whole else PAGE_SIZE
                tallies[name], swept = sweep(store, turn.swept, size)
                turn = replace(turn, swept=swept, whole=turn.whole and swept != "")
        except Exception as error:
            seconds[name] = time.monotonic() - began_s
            raise StageFailed(name, Cycle(tallies, turn, seconds)) from error
        seconds[name] = time.monotonic() - began_s
    return Cycle(tallies, turn, seconds)


def sweep(store: Store, after: str, size: int = PAGE_SIZE) -> tuple[Tally, str]:
    """Put back agenda rows that are missing or too late, for one slice; returns where to go on.

    Raises StalledContinuation for a slice that is too large or does not move on.
    """
    rows = store.call("sweep_agenda", p_after_run_id=after, p_limit=size)
    keys = [row["run_id"] for row in rows]
    if len(keys) > size or any(b <= a for a, b in pairwise([after, *keys])):
        raise StalledContinuation(SWEEP, after, keys)
    moved = sum(row["stages"] > 0 for row in rows)
    tally = Tally(scanned=len(rows), applied=moved, effects=sum(row["stages"] for row in rows))
    return tally, keys[-1] if len(keys) == size else ""
