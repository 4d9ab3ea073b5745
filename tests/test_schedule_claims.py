"""An occurrence between claim and commit: nothing twice, nothing lost, whatever happens there."""

from collections.abc import Callable
from typing import Any

import pytest

from qinglong_sql.errors import Malformed, Unknown
from qinglong_sql.limits import CRON_GRACE_MS, PAGE_SIZE, SCHEDULE_CLAIM_MS
from qinglong_sql.schedule import run_schedule
from qinglong_sql.stage import Tally
from tests import acting
from tests.acting import Engine, Row, Store
from tests.scheduling import (
    DAY_MS,
    MINUTE_MS,
    NAME,
    begun,
    claim,
    commit,
    publish,
    runs,
    times,
    trigger,
)
from tests.stores import FakeClock, store_on

Change = Callable[[Store], object]


@pytest.fixture(autouse=True)
def nothing_is_violated(store: Store) -> Any:
    yield
    assert store.read("violation") == []


def test_a_commit_is_replayed(store: Store, engine: Engine, clock: FakeClock) -> None:
    clock.set(begun(store))
    (row,) = claim(store)
    done = commit(store, row)
    assert (done["outcome"], done["disposition"]) == ("applied", "admit")
    before = acting.everything(engine)
    again = commit(store, row)
    assert (again["outcome"], again["run_id"]) == ("settled", done["run_id"])
    assert acting.everything(engine) == before


@pytest.mark.parametrize("misfire", ["skip", "fire_once"])
def test_a_scheduler_that_dies_between_claim_and_commit_loses_nothing(
    store: Store, engine: Engine, clock: FakeClock, misfire: str
) -> None:
    """Its claim runs out; the next one takes over, and who was in time has not made it late."""
    due_ms = begun(store, misfire=misfire)
    clock.set(due_ms + CRON_GRACE_MS)
    (dead,) = claim(store)
    if engine.kind == "postgres":
        assert claim(store, "t2") == []
        clock.set(due_ms + CRON_GRACE_MS + SCHEDULE_CLAIM_MS - 1)
        assert claim(store, "t2") == []
        clock.advance(1)
    assert run_schedule(store).effects == 1
    assert commit(store, dead)["outcome"] in {"contended", "settled"}
    assert times(store) == [due_ms] and trigger(store)["last_outcome"] == "admitted"


def test_a_claim_that_was_given_up_long_ago_does_not_make_it_punctual(
    store: Store, clock: FakeClock
) -> None:
    due_ms = begun(store, misfire="skip")
    clock.set(due_ms)
    claim(store)
    clock.advance(SCHEDULE_CLAIM_MS + 30_001)
    run_schedule(store)
    assert times(store) == [] and trigger(store)["last_outcome"] == "misfire"


def test_two_schedulers_fire_each_occurrence_once(
    store: Store, engine: Engine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their own clocks are ten minutes apart: no step and no stage asks them."""
    import time

    begun(store, cron="* * * * *", tz="UTC")
    other = store_on(engine, clock)
    real = time.time_ns
    shown = []
    for minute in range(10):
        clock.set((clock.now_ms // MINUTE_MS + 1) * MINUTE_MS)
        for store_of, skew_s in ((store, 0), (other, 600)):
            monkeypatch.setattr(time, "time_ns", lambda skew=skew_s: real() + skew * 10**9)
            shown.append(run_schedule(store_of).effects)
        monkeypatch.setattr(time, "time_ns", real)
        assert len(times(store)) == minute + 1
    assert shown == [1, 0] * 10 and len(set(times(store))) == 10
    other.close()


def paused(store: Store) -> None:
    store.call("pause_trigger", **NAME)


def withdrawn(store: Store) -> None:
    store.call("withdraw_package", p_package_key="nightly")


def gone(store: Store) -> None:
    publish(store, {})


def other_calendar(store: Store) -> None:
    publish(store, cron="0 4 * * *")


def other_zone(store: Store) -> None:
    publish(store, tz="Asia/Tokyo")


def paused_and_resumed(store: Store) -> None:
    paused(store)
    store.call("resume_trigger", **NAME)


@pytest.mark.parametrize("change", [paused, withdrawn, gone])
def test_what_stops_a_trigger_between_claim_and_commit_stops_it(
    store: Store, clock: FakeClock, change: Change
) -> None:
    clock.set(begun(store))
    (row,) = claim(store)
    change(store)
    assert commit(store, row)["outcome"] in {"blocked", "contended"}
    clock.advance(2 * SCHEDULE_CLAIM_MS)
    assert run_schedule(store) == Tally() and runs(store) == []


@pytest.mark.parametrize("change", [other_calendar, other_zone])
def test_another_calendar_between_claim_and_commit_begins_anew(
    store: Store, clock: FakeClock, change: Change
) -> None:
    clock.set(begun(store))
    (row,) = claim(store)
    change(store)
    assert commit(store, row)["outcome"] == "contended"
    assert run_schedule(store).applied == 1 and runs(store) == []
    assert trigger(store)["next_fire_at_ms"] > clock.now_ms


def test_a_new_generation_keeps_the_cursor_and_the_claim(store: Store, clock: FakeClock) -> None:
    due_ms = begun(store)
    clock.set(due_ms)
    (row,) = claim(store)
    publish(store, overlap="skip")
    assert commit(store, row)["outcome"] == "applied"
    (run,) = runs(store)
    assert (run["scheduled_at_ms"], run["generation"]) == (due_ms, 2)


def test_a_pause_keeps_the_cursor(store: Store, clock: FakeClock) -> None:
    due_ms = begun(store)
    store.call("pause_trigger", **NAME)
    clock.set(due_ms + 2 * DAY_MS)
    assert run_schedule(store) == Tally()
    (blocked,) = store.read("schedule_blocked", package_key="nightly")
    assert blocked["waits_for"] == "resume"
    store.call("resume_trigger", **NAME)
    run_schedule(store)
    assert times(store) == [due_ms]


def test_resuming_between_claim_and_commit_fires_once(store: Store, clock: FakeClock) -> None:
    due_ms = begun(store)
    clock.set(due_ms)
    (row,) = claim(store)
    paused_and_resumed(store)
    first = commit(store, row)["outcome"]
    run_schedule(store)
    assert first in {"applied", "contended"} and times(store) == [due_ms]


def test_a_calendar_that_comes_back_does_not_fire_a_time_again(
    store: Store, clock: FakeClock
) -> None:
    due_ms = begun(store)
    clock.set(due_ms)
    run_schedule(store)
    other_calendar(store)
    clock.set(due_ms)
    publish(store)  # from now on, and now is one of its times
    run_schedule(store)
    assert times(store) == [due_ms] and trigger(store)["next_fire_at_ms"] == due_ms + DAY_MS


def test_a_clock_that_jumps_forward_and_back_fires_nothing_twice(
    store: Store, clock: FakeClock
) -> None:
    begun(store, cron="* * * * *", tz="UTC")
    clock.set((clock.now_ms // MINUTE_MS + 1) * MINUTE_MS)
    run_schedule(store)
    clock.advance(60 * MINUTE_MS)
    run_schedule(store)
    assert len(times(store)) == 2  # what the jump left out is one run
    clock.advance(-10 * MINUTE_MS)
    for _ in range(11):
        assert run_schedule(store) == Tally()
        clock.advance(MINUTE_MS)
    run_schedule(store)
    assert len(times(store)) == len(set(times(store))) == 3


def test_a_cursor_of_a_clock_that_was_a_month_ahead_begins_anew(
    store: Store, engine: Engine, clock: FakeClock
) -> None:
    due_ms = begun(store)
    clock.set(due_ms + 30 * DAY_MS)
    run_schedule(store)
    assert times(store) == [due_ms]
    clock.set(due_ms - 10 * MINUTE_MS)
    assert run_schedule(store) == Tally()
    assert run_schedule(store, whole=True).applied == 1
    assert trigger(store)["next_fire_at_ms"] == due_ms
    before = acting.everything(engine)
    assert store.call("sweep_schedule", p_limit=PAGE_SIZE) == []
    assert acting.everything(engine) == before
    for day in range(2):  # its first time was fired by the clock that was ahead
        clock.set(due_ms + day * DAY_MS)
        run_schedule(store)
    assert times(store) == [due_ms, due_ms + DAY_MS]


def test_a_back_off_of_a_clock_that_was_ahead_is_no_longer_than_the_longest(
    store: Store, clock: FakeClock
) -> None:
    begun(store)
    publish(store, cron="no cron at all")
    clock.advance(30 * DAY_MS)
    run_schedule(store)
    clock.advance(-30 * DAY_MS)
    assert store.call("sweep_schedule", p_limit=PAGE_SIZE) == [
        {"package_key": "nightly", "trigger_key": "every-night"}
    ]
    assert trigger(store)["due_at_ms"] == clock.now_ms + 300_000
    clock.advance(300_000)
    assert run_schedule(store).faulted == 1


@pytest.mark.parametrize("limit", [0, 33])
def test_a_sweep_has_bounds(store: Store, limit: int) -> None:
    with pytest.raises(Malformed):
        store.call("sweep_schedule", p_limit=limit)
    with pytest.raises(Malformed):
        store.call("claim_schedule", p_owner="me", p_token="t", p_limit=limit)


@pytest.mark.parametrize("who", [{"p_owner": ""}, {"p_token": "x" * 65}])
def test_a_claim_has_an_owner_and_a_token(store: Store, who: dict[str, str]) -> None:
    with pytest.raises(Malformed):
        store.call("claim_schedule", **{"p_owner": "me", "p_token": "t", "p_limit": 1} | who)


def test_a_clock_that_went_back_since_the_claim_decides_nothing(
    store: Store, engine: Engine, clock: FakeClock
) -> None:
    due_ms = begun(store)
    clock.set(due_ms)
    (row,) = claim(store)
    clock.advance(-1)
    before = acting.everything(engine)
    assert commit(store, row)["outcome"] == "contended"
    assert acting.everything(engine) == before
    clock.set(due_ms + SCHEDULE_CLAIM_MS)
    run_schedule(store)
    assert times(store) == [due_ms]


@pytest.mark.parametrize(
    "changes",
    [
        {"p_state_version": 99}, {"p_claim_version": 99}, {"p_observed_at_ms": 1},
        {"p_cursor_ms": 1, "p_due_at_ms": 1}, {"p_cursor_ms": None},
    ],
    ids=lambda changes: next(iter(changes)),
)  # fmt: skip
def test_a_commit_that_is_not_what_was_claimed_changes_nothing(
    store: Store, engine: Engine, clock: FakeClock, changes: Row
) -> None:
    clock.set(begun(store))
    (row,) = claim(store)
    before = acting.everything(engine)
    assert commit(store, row, **changes)["outcome"] == "contended"
    assert acting.everything(engine) == before


@pytest.mark.parametrize("who", [{"token": "t2"}, {"owner": "you"}])
def test_who_has_no_claim_cannot_commit(
    store: Store, engine: Engine, clock: FakeClock, who: dict[str, str]
) -> None:
    clock.set(begun(store))
    (row,) = claim(store)
    expected = "contended" if engine.kind == "postgres" else "applied"  # SQLite has no claims
    assert commit(store, row, **who)["outcome"] == expected


@pytest.mark.parametrize(
    "changes",
    [{"p_grace_ms": -1}, {"p_grace_ms": 300_001}, {"p_next_at_ms": 1}, {"p_due_at_ms": 7}],
    ids=lambda changes: next(iter(changes)),
)
def test_times_that_cannot_be_are_refused(
    store: Store, clock: FakeClock, changes: dict[str, int]
) -> None:
    clock.set(begun(store))
    (row,) = claim(store)
    with pytest.raises(Malformed):
        commit(store, row, **changes)
    assert commit(store, row)["outcome"] == "applied"


def test_a_trigger_that_is_none_cannot_be_committed(store: Store, clock: FakeClock) -> None:
    clock.set(begun(store))
    (row,) = claim(store)
    with pytest.raises(Unknown):
        commit(store, row, p_trigger_key="no-such")
