"""The stages of the scheduler as data, and the one bounded page loop (DESIGN §6, §7)."""

from dataclasses import dataclass
from itertools import pairwise

from qinglong_sql.limits import MAX_STEPS, PAGE_SIZE, PAGES
from qinglong_sql.store import Row, Store

OUTCOMES = frozenset({"applied", "settled", "blocked", "contended", "faulted"})
START = (-1, "")


@dataclass(frozen=True, slots=True)
class Stage:
    """A kind of work: `page_step` does a page in one transaction, `run_step` one run."""

    name: str
    page_step: str | None
    run_step: str | None

    @property
    def agenda(self) -> str:
        """The agenda's word for it; the two roads of cancellation share one."""
        return "cancellation" if self.name == "task_cancellation" else self.name


STAGES = {
    stage.name: stage
    for stage in (
        Stage("deadline", "deadline_page", "deadline_run"),
        Stage("cancellation", None, "converge_cancellation"),
        Stage("task_cancellation", "settle_task_cancellations", None),
        Stage("expiry", None, "recover_run"),
        Stage("retry", "retry_page", "retry_run"),
        Stage("frontier", "frontier_page", "advance_frontier"),
        Stage("task_admission", "task_admission_page", "admit_tasks"),
    )
}


@dataclass(frozen=True, slots=True)
class Tally:
    """What a stage did: runs it looked at, those of them that moved, and what became of the rest.

    `blocked` counts runs that something stands in the way of, `settled` those with nothing left to
    do; `settled_attempts` is convergence's own count; `has_more` says that the last page was full.
    """

    scanned: int = 0
    applied: int = 0
    settled: int = 0
    blocked: int = 0
    contended: int = 0
    faulted: int = 0
    effects: int = 0
    settled_attempts: int = 0
    has_more: bool = False
    lag_ms: int = 0  # of the schedule: how late the latest trigger was looked at


class StalledContinuation(RuntimeError):
    """A page broke its contract: too large, not moving on, or counts that cannot be."""

    def __init__(self, stage: str, after: object, found: object) -> None:
        super().__init__(f"{stage}: after {after!r} came {found!r}")
        self.stage = stage
        self.after = after
        self.found = found


def run_stage(store: Store, stage: Stage, *, size: int = PAGE_SIZE, pages: int = PAGES) -> Tally:
    """Drive one stage: at most `pages` pages of `size` candidates, in the order of the agenda.

    Fails closed: raises StalledContinuation for a page that breaks its contract, and whatever the
    store raises; what was committed before is found by the next cycle (DESIGN §7).
    """
    tally, after = Tally(), START
    for _ in range(pages):
        page = store.page(stage, after, size)
        keys = [(row["due_at_ms"], row["run_id"]) for row in page]
        if len(page) > size or any(b <= a for a, b in pairwise([after, *keys])):
            raise StalledContinuation(stage.name, after, keys)
        tally = _added(tally, stage, page, has_more=len(page) == size)
        if not tally.has_more:
            break
        after = keys[-1]
    return tally


def _added(tally: Tally, stage: Stage, page: list[Row], *, has_more: bool) -> Tally:
    for row in page:
        if row["outcome"] not in OUTCOMES or not _possible(row):
            raise StalledContinuation(stage.name, row["run_id"], row)
    counts = {word: sum(row["outcome"] == word for row in page) for word in OUTCOMES}
    return Tally(
        scanned=tally.scanned + len(page),
        applied=tally.applied + sum(_moved(stage, row) for row in page),
        settled=tally.settled + counts["settled"],
        blocked=tally.blocked + counts["blocked"],
        contended=tally.contended + counts["contended"],
        faulted=tally.faulted + counts["faulted"],
        effects=tally.effects + sum(row["effects"] for row in page),
        settled_attempts=tally.settled_attempts + sum(_attempts(row) for row in page),
        has_more=has_more,
    )


def _attempts(row: Row) -> int:
    return int(row.get("settled_attempts", 0))


def _possible(row: Row) -> bool:
    """The bounds of a row: a run has at most 128 live attempts, and one that ended is not held."""
    blocked = int(row.get("blocked_count", 0))
    return (
        0 <= _attempts(row) <= MAX_STEPS
        and row["effects"] >= 0
        and blocked >= 0
        and (blocked == 0 or row["outcome"] == "blocked")
    )


def _moved(stage: Stage, row: Row) -> bool:
    # A run that convergence settled was on the agenda until then, so it ended just now.
    ended = row["outcome"] == "settled" and stage.agenda == "cancellation"
    return bool(row["outcome"] == "applied" or row["effects"] or _attempts(row) or ended)
