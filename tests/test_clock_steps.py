"""A clock that is set back puts nothing off for the time that it was ahead (DESIGN §4, §5).

What an at-once stage, a back-off or a fault has on the agenda was written by the old clock. The
sweep brings it near; what is announced after the step is announced for now.
"""

from typing import Any

import pytest

from qinglong_sql.cli.reasons import OVERDUE_MS, Screen, reason_of, waits
from qinglong_sql.scheduler import STANDALONE, Turn, local_cycle
from tests import acting
from tests.acting import Engine, Store
from tests.oracle_ends import longest_wait_ms
from tests.screens import standing_still
from tests.state import Policy
from tests.stores import FakeClock
from tests.test_status import found_by

HOUR_MS = 3_600_000
MAX_FAULT_MS = 300_000
RETRY = {"attempts": 3, "backoff_ms": 8_000, "max_backoff_ms": 16_000}


def swept(store: Store, run_id: str) -> int:
    """What the sweep says of the run; a second time it has nothing left to say."""
    first, again = (
        {
            row["run_id"]: row["stages"]
            for row in store.call("sweep_agenda", p_after_run_id="", p_limit=32)
        }
        for _ in range(2)
    )
    assert again[run_id] == 0
    return int(first[run_id])


def cycles(store: Store, count: int = 4) -> None:
    turn = Turn(whole=True)
    for _ in range(count):
        turn = local_cycle(store, turn, STANDALONE).next


def ready(store: Store) -> str:
    acting.publish(store, {"a": []})
    return acting.start(store)


def half_done(store: Store) -> str:
    run_id = acting.begun(store, {"a": [], "b": ["a"]})
    acting.finish(store, run_id)
    return run_id


def cancelled(store: Store) -> str:
    run_id = ready(store)
    acting.cancel(store, run_id)
    return run_id


@pytest.mark.parametrize(
    ("begin", "stage"),
    [(ready, "task_admission"), (half_done, "frontier"), (cancelled, "cancellation")],
)
def test_what_is_done_at_once_is_due_when_the_clock_steps_back(
    store: Store, clock: FakeClock, begin: Any, stage: str
) -> None:
    run_id = begin(store)
    assert acting.agenda(store, run_id)[stage] == clock.now_ms
    now = clock.advance(-HOUR_MS)
    (ahead,) = store.read("agenda_ahead", run_id=run_id, stage=stage)
    assert ahead["since_ms"] == now + HOUR_MS
    assert swept(store, run_id) == 1
    assert acting.agenda(store, run_id)[stage] == now
    assert acting.unbroken(store)


def test_a_run_comes_to_its_end_within_a_few_cycles_after_a_step_back(
    store: Store, clock: FakeClock
) -> None:
    run_id = acting.begun(store, {"a": [], "b": ["a"]})
    acting.finish(store, run_id)
    clock.advance(-HOUR_MS)
    cycles(store, 2)
    assert acting.statuses(store, run_id) == {"a": "succeeded", "b": "ready"}
    acting.finish(store, run_id)
    cycles(store, 2)
    assert acting.ended(store, run_id) == ("succeeded", None)
    assert acting.unbroken(store)


@pytest.mark.parametrize("step_ms", [-HOUR_MS, -60_000, -1])
def test_what_is_announced_after_a_step_back_is_announced_for_now(
    store: Store, clock: FakeClock, step_ms: int
) -> None:
    """The effect time is the run's newest; an agenda row of that time would wait once more."""
    run_id = acting.begun(store, {"a": [], "b": ["a"]})
    now = clock.advance(step_ms)
    acting.finish(store, run_id)
    assert acting.agenda(store, run_id)["frontier"] == now
    store.call("advance_frontier", p_run_id=run_id)
    assert acting.agenda(store, run_id)["task_admission"] == now
    acting.cancel(store, run_id)
    assert acting.agenda(store, run_id)["cancellation"] == now
    assert swept(store, run_id) == 0
    times = [row["created_at_ms"] for row in store.read("event_log", run_id=run_id)]
    assert min(times) == now - step_ms  # no event is older than the one before it


@pytest.mark.parametrize("stage", ["task_admission", "deadline"])
def test_a_fault_puts_off_for_its_longest_back_off_at_most(
    store: Store, clock: FakeClock, stage: str
) -> None:
    acting.publish(store, {"a": []}, run_timeout_ms=60_000)
    run_id = acting.start(store)
    store.call("record_fault", p_run_id=run_id, p_stage=stage, p_error="broken")
    at = acting.agenda(store, run_id)[stage]
    clock.advance(-1_000)
    assert swept(store, run_id) == (0 if stage == "task_admission" else 1)  # the other one
    assert acting.agenda(store, run_id)[stage] == at
    now = clock.advance(-HOUR_MS)
    assert swept(store, run_id) == (1 if stage == "task_admission" else 2)
    assert acting.agenda(store, run_id)[stage] == now + MAX_FAULT_MS
    (fault,) = store.read("fault_state", run_id=run_id)
    assert fault["next_try_at_ms"] == now + MAX_FAULT_MS


def waiting(store: Store) -> str:
    run_id = acting.begun(store, {"a": [], "b": []}, retry=RETRY)
    held = acting.lease(store, "o1", "o2")
    acting.run(store, *held.values())
    acting.report(store, held["a"], exit_code=1)
    return run_id


def test_a_back_off_by_a_clock_that_was_ahead_is_over(store: Store, clock: FakeClock) -> None:
    run_id = waiting(store)
    now = clock.advance(-HOUR_MS)
    assert swept(store, run_id) == 1
    assert acting.agenda(store, run_id)["retry"] == now
    assert acting.page(store, "retry_page")[0]["outcome"] == "applied"
    assert acting.step(store, run_id)["status"] == "ready"
    assert acting.unbroken(store)


def test_a_back_off_that_may_be_right_is_kept(store: Store, clock: FakeClock) -> None:
    """Up to the longest wait of its task nothing shows that the clock was ahead."""
    run_id = waiting(store)
    due = acting.agenda(store, run_id)["retry"]
    longest = longest_wait_ms(Policy(backoff_ms=8_000, max_backoff_ms=16_000))
    clock.set(due - longest)
    assert swept(store, run_id) == 0
    assert store.call("retry_run", p_run_id=run_id)[0]["outcome"] == "settled"
    assert acting.agenda(store, run_id)["retry"] == due
    clock.advance(-1)
    assert swept(store, run_id) == 1
    assert store.call("retry_run", p_run_id=run_id)[0]["outcome"] == "applied"
    assert acting.step(store, run_id)["status"] == "ready"


def test_a_deadline_and_a_lease_end_when_they_say(store: Store, clock: FakeClock) -> None:
    acting.publish(store, {"a": []}, run_timeout_ms=60_000)
    run_id = acting.start(store)
    acting.admit(store, run_id)
    acting.run(store, acting.lease(store)["a"])
    before = acting.agenda(store, run_id)
    clock.advance(-HOUR_MS)
    assert swept(store, run_id) == 0
    assert acting.agenda(store, run_id) == before
    assert acting.recover(store, run_id)["outcome"] == "settled"


def test_a_sweep_with_a_right_clock_writes_nothing(
    store: Store, engine: Engine, clock: FakeClock
) -> None:
    run_id = waiting(store)
    store.call("record_fault", p_run_id=run_id, p_stage="frontier", p_error="broken")
    clock.advance(1)
    before = acting.everything(engine)
    assert swept(store, run_id) == 0
    assert acting.everything(engine) == before


@pytest.mark.parametrize(
    ("begin", "kind"), [(ready, "admission"), (half_done, "need"), (cancelled, "intent")]
)
@pytest.mark.parametrize("driven", [True, False])
def test_what_was_put_off_is_not_well_and_is_told(
    store: Store, engine: Engine, clock: FakeClock, begin: Any, kind: str, driven: bool
) -> None:
    run_id = begin(store)
    at = clock.now_ms
    assert found_by(store, clock, engine.dsn)["ok"]
    found = found_by(store, clock, engine.dsn, driven=driven, later_ms=-HOUR_MS)
    assert not found["ok"]
    assert [row["waits_for"] for row in found["stuck"]] == ([kind] if driven else [])
    assert "put off" in found["open"][0]["waits_for"]
    with standing_still(at - HOUR_MS):
        rows = [row for row in waits(store, run_id) if row["due_at_ms"] is not None]
        why = [reason_of(row, Screen(at - HOUR_MS, True, store.engine)) for row in rows]
    assert {row["waits_for"] for row in rows} == {kind}
    assert all(one.stuck and "set back" in one.words for one in why)
    clock.advance(-HOUR_MS)
    swept(store, run_id)
    assert found_by(store, clock, engine.dsn)["stuck"] == []


def test_a_little_ahead_is_another_clock_and_no_trouble(
    store: Store, engine: Engine, clock: FakeClock
) -> None:
    """A screen's clock may be behind the database's; the next cycle does the work."""
    ready(store)
    found = found_by(store, clock, engine.dsn, later_ms=-OVERDUE_MS)
    assert found["ok"] and "put off" not in found["open"][0]["waits_for"]
