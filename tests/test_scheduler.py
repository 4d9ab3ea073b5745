"""The coordinator: order of the stages, their bounds, and what a failed one means (DESIGN §7).

A scripted store stands in for a database here: what stages do to one is each stage's own test.
"""

from collections.abc import Callable
from typing import Any

import pytest

from qinglong_sql.edge_setting import SETTINGS
from qinglong_sql.limits import PAGE_SIZE, PAGES
from qinglong_sql.scheduler import (
    EDGE,
    STANDALONE,
    Cycle,
    StageFailed,
    Turn,
    cancellation_cycle,
    local_cycle,
    scheduler_cycle,
)
from qinglong_sql.stage import Stage, StalledContinuation

Row = dict[str, Any]
Script = Callable[[tuple[int, str], int], list[Row]]

LOCAL = [
    "deadline", "cancellation", "task_cancellation", "expiry", "retry", "sweep", "frontier",
    "task_admission",
]  # fmt: skip


def row(number: int, outcome: str = "applied", effects: int = 1) -> Row:
    return {
        "run_id": f"run-{number:04}",
        "due_at_ms": number,
        "outcome": outcome,
        "effects": effects,
        "settled_attempts": 0,
        "blocked_count": int(outcome == "blocked"),
    }


class Scripted:
    """A store whose pages are written down by the test; other stages have nothing due."""

    engine = "sqlite"

    def __init__(self, **scripts: Script) -> None:
        self.scripts = scripts
        self.asked: list[tuple[str, tuple[int, str], int]] = []
        self.runs: list[str] = []
        self.put_back: dict[str, int] = {}

    def page(self, stage: Stage, after: tuple[int, str], limit: int) -> list[Row]:
        self.asked.append((stage.name, after, limit))
        script = self.scripts.get(stage.name)
        return script(after, limit) if script else []

    def call(self, step: str, /, **params: Any) -> list[Row]:
        if step == "sweep_schedule":
            self.asked.append(("sweep_schedule", (0, ""), params["p_limit"]))
            return []
        if step == "claim_schedule":
            self.asked.append(("schedule", (0, ""), params["p_limit"]))
            return []
        assert step == "sweep_agenda"
        self.asked.append(("sweep", (0, params["p_after_run_id"]), params["p_limit"]))
        script = self.scripts.get("sweep")
        if script:
            return script((0, params["p_after_run_id"]), params["p_limit"])
        rest = [run for run in self.runs if run > params["p_after_run_id"]][: params["p_limit"]]
        return [{"run_id": run, "stages": self.put_back.get(run, 0)} for run in rest]

    def read(self, view: str, /, **_: Any) -> list[Row]:
        raise AssertionError(f"the scheduler read {view}")

    def ends_cycle(self, error: Exception) -> bool:
        raise AssertionError(f"the scheduler asked about {error!r}")

    def close(self) -> None:
        pass

    @property
    def order(self) -> list[str]:
        return [stage for stage, _, _ in self.asked]


def endless(after: tuple[int, str], limit: int) -> list[Row]:
    return [row(after[0] + 1 + number) for number in range(limit)]


def once(*rows: Row) -> Script:
    return lambda after, limit: [one for one in rows if one["due_at_ms"] > after[0]][:limit]


def broken(after: tuple[int, str], limit: int) -> list[Row]:
    raise ConnectionError("gone")


def failure(store: Scripted, turn: Turn = Turn()) -> StageFailed:  # noqa: B008  it is immutable
    with pytest.raises(StageFailed) as raised:
        local_cycle(store, turn)
    return raised.value


def test_a_local_cycle_runs_deadlines_cancellation_recovery_frontier_admission() -> None:
    store = Scripted()
    cycle = local_cycle(store, Turn())
    assert store.order == LOCAL == list(cycle.tallies)
    assert not cycle.applied and not cycle.stopping


@pytest.mark.parametrize(("profile", "size"), [("edge", 4), ("standalone", 16)])
def test_an_edge_looks_for_due_triggers_between_recovery_and_frontier(
    profile: str, size: int
) -> None:
    store = Scripted()
    local_cycle(store, Turn(), SETTINGS[profile].pages)
    at = LOCAL.index("frontier")
    assert store.order == [*LOCAL[:at], "schedule", *LOCAL[at:]]
    assert ("schedule", (0, ""), size) in store.asked


def test_when_the_clock_may_have_been_set_back_cursors_are_swept_first() -> None:
    store = Scripted()
    local_cycle(store, Turn(whole=True), SETTINGS["edge"].pages)
    assert store.order[-4:] == ["sweep_schedule", "schedule", "frontier", "task_admission"]


def test_the_two_roads_of_cancellation_take_turns() -> None:
    store, turn, first = Scripted(), Turn(), []
    for _ in range(4):
        store.asked.clear()
        turn = local_cycle(store, turn).next
        first.append(store.order[1])
        assert store.order[0] == "deadline" and sorted(store.order) == sorted(LOCAL)
    assert first == ["cancellation", "task_cancellation"] * 2


def test_a_road_that_fails_does_not_keep_the_other_from_its_turn() -> None:
    store = Scripted(cancellation=broken, task_cancellation=once(row(1)))
    failed = failure(store)
    assert "task_cancellation" not in store.order
    assert failure(store, failed.cycle.next).cycle.tallies["task_cancellation"].applied == 1


def test_a_cluster_has_two_lifecycles_with_stages_of_their_own() -> None:
    store = Scripted()
    scheduler_cycle(store, Turn())
    assert store.order == ["expiry", "retry", "sweep", "schedule", "frontier", "task_admission"]
    store.asked.clear()
    cancellation_cycle(store, Turn())
    assert store.order == ["deadline", "cancellation", "task_cancellation"]


def test_a_failed_stage_ends_the_cycle_and_reports_no_success_for_the_rest() -> None:
    store = Scripted(retry=broken, expiry=once(row(1)), frontier=once(row(2)))
    failed = failure(store)
    assert failed.stage == "retry" and isinstance(failed.__cause__, ConnectionError)
    assert store.order[-1] == "retry"
    assert list(failed.cycle.tallies) == LOCAL[:4]
    assert failed.cycle.tallies["expiry"].applied == 1


def test_after_a_failure_the_next_cycle_begins_with_the_first_stage_and_the_first_page() -> None:
    pages = {"count": 0}

    def second_page_fails(after: tuple[int, str], limit: int) -> list[Row]:
        pages["count"] += 1
        return broken(after, limit) if pages["count"] == 2 else endless(after, limit)

    store = Scripted(frontier=second_page_fails)
    turn = failure(store).cycle.next
    first = next(after for stage, after, _ in store.asked if stage == "frontier")
    store.asked.clear()
    local_cycle(store, turn)
    assert store.order[0] == "deadline"
    assert next(after for stage, after, _ in store.asked if stage == "frontier") == first


@pytest.mark.parametrize(
    ("stage", "standalone", "edge"),
    [
        ("deadline", (32, 4), (4, 1)),
        ("cancellation", (32, 4), (4, 1)),
        ("task_cancellation", (32, 4), (4, 1)),
        ("expiry", (32, 4), (4, 1)),
        ("retry", (32, 4), (4, 1)),
        ("frontier", (16, 4), (1, 1)),
        ("task_admission", (16, 4), (1, 1)),
    ],
)
def test_local_pages_are_bounded(
    stage: str, standalone: tuple[int, int], edge: tuple[int, int]
) -> None:
    for pages, (size, count) in ((STANDALONE, standalone), (EDGE, edge)):
        store = Scripted(**{stage: endless})
        tally = local_cycle(store, Turn(), pages).tallies[stage]
        asked = [limit for name, _, limit in store.asked if name == stage]
        assert asked == [size] * count
        assert (tally.scanned, tally.applied, tally.effects) == (size * count,) * 3


@pytest.mark.parametrize("stage", ["expiry", "retry", "frontier", "task_admission"])
def test_a_cluster_stage_has_four_pages_of_thirty_two(stage: str) -> None:
    store = Scripted(**{stage: endless})
    scheduler_cycle(store, Turn())
    assert [limit for name, _, limit in store.asked if name == stage] == [PAGE_SIZE] * PAGES


CLUSTER_STAGES = [
    (scheduler_cycle, ["expiry", "retry", "sweep", "schedule", "frontier", "task_admission"]),
    (cancellation_cycle, ["deadline", "cancellation", "task_cancellation"]),
]
PAGED = [
    (cycle, stages, stage)
    for cycle, stages in CLUSTER_STAGES
    for stage in stages
    if stage not in ("sweep", "schedule")
]


@pytest.mark.parametrize(("cycle", "stages", "stage"), PAGED)
def test_a_cluster_stage_with_two_pages_counts_both_and_the_next_stage_comes_after(
    cycle: Callable[..., Cycle], stages: list[str], stage: str
) -> None:
    rows = [row(number, "blocked" if number == 3 else "applied") for number in range(PAGE_SIZE + 5)]
    store = Scripted(**{stage: once(*rows)})
    tally = cycle(store, Turn()).tallies[stage]
    assert (tally.scanned, tally.blocked, tally.has_more) == (PAGE_SIZE + 5, 1, False)
    asked = [after for name, after, _ in store.asked if name == stage]
    assert asked == [(-1, ""), (PAGE_SIZE - 1, f"run-{PAGE_SIZE - 1:04}")]
    at = stages.index(stage)
    assert store.order == [*stages[:at], stage, stage, *stages[at + 1 :]]


@pytest.mark.parametrize(("cycle", "stages", "stage"), PAGED)
@pytest.mark.parametrize(
    "script",
    [
        broken,
        lambda after, limit: endless(after, limit + 1),
        lambda after, limit: [row(1 + number) for number in range(limit)],
    ],
    ids=["raises", "oversized", "stalled"],
)
def test_a_cluster_stage_that_fails_ends_its_cycle_and_no_success_is_told_of_the_rest(
    cycle: Callable[..., Cycle], stages: list[str], stage: str, script: Script
) -> None:
    store = Scripted(**{name: once(row(1)) for _, _, name in PAGED} | {stage: script})
    with pytest.raises(StageFailed) as raised:
        cycle(store, Turn())
    before = stages[: stages.index(stage)]
    assert (raised.value.stage, list(raised.value.cycle.tallies)) == (stage, before)
    assert set(store.order) == {*before, stage}, "nothing after it was asked"


def test_an_oversized_page_fails_closed() -> None:
    store = Scripted(frontier=lambda after, limit: endless(after, limit + 1))
    failed = failure(store)
    assert isinstance(failed.__cause__, StalledContinuation)
    assert "task_admission" not in store.order and "frontier" not in failed.cycle.tallies


def test_a_page_that_does_not_move_on_fails_closed() -> None:
    store = Scripted(frontier=lambda after, limit: [row(1 + number) for number in range(limit)])
    assert isinstance(failure(store).__cause__, StalledContinuation)
    assert store.order.count("frontier") == 2


def test_a_tally_counts_each_outcome_apart() -> None:
    outcomes = ["applied", "settled", "blocked", "contended", "faulted"]
    rows = [row(number, outcome, 0) for number, outcome in enumerate(outcomes, start=1)]
    rows[0]["effects"] = 3
    cycle = local_cycle(Scripted(frontier=once(*rows)), Turn())
    tally = cycle.tallies["frontier"]
    counted = (tally.scanned, tally.blocked, tally.contended, tally.faulted, tally.effects)
    assert counted == (5, 1, 1, 1, 3)
    assert cycle.applied


def test_only_runs_that_moved_make_the_next_cycle_follow_at_once() -> None:
    idle = once(row(1, "blocked", 0), row(2, "contended", 0), row(3, "faulted", 0))
    assert not local_cycle(Scripted(frontier=idle), Turn()).applied


def test_a_cycle_says_when_executions_should_hear_of_an_intent() -> None:
    assert local_cycle(Scripted(cancellation=once(row(1, "blocked", 0))), Turn()).stopping
    assert not local_cycle(Scripted(frontier=once(row(1))), Turn()).stopping


def swept(store: Scripted, turn: Turn) -> Cycle:
    store.asked.clear()
    return local_cycle(store, turn)


def test_the_sweep_takes_a_slice_a_cycle_and_begins_anew_at_the_end() -> None:
    store = Scripted()
    store.runs = [f"run-{number:04}" for number in range(PAGE_SIZE + 5)]
    store.put_back = {"run-0003": 2, "run-0034": 1}
    cycle = swept(store, Turn())
    assert cycle.next.swept == f"run-{PAGE_SIZE - 1:04}"
    tally = cycle.tallies["sweep"]
    assert (tally.scanned, tally.applied, tally.effects) == (PAGE_SIZE, 1, 2)
    cycle = swept(store, cycle.next)
    assert (cycle.tallies["sweep"].scanned, cycle.next.swept) == (5, "")
    assert swept(store, cycle.next).next.swept == f"run-{PAGE_SIZE - 1:04}"


@pytest.mark.parametrize(
    "script",
    [
        lambda after, limit: [{"run_id": f"r{n:04}", "stages": 0} for n in range(limit + 1)],
        lambda after, limit: [{"run_id": "b", "stages": 0}, {"run_id": "a", "stages": 0}],
        lambda after, limit: [{"run_id": "a", "stages": 0}, {"run_id": "a", "stages": 0}],
    ],
)
def test_a_sweep_that_breaks_its_contract_fails_closed(script: Script) -> None:
    failed = failure(Scripted(sweep=script))
    assert failed.stage == "sweep" and isinstance(failed.__cause__, StalledContinuation)
