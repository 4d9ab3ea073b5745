"""Many at once: bounded cycles, nobody starves (issue 5); the long proof takes ten thousand."""

from contextlib import closing

import pytest

from qinglong_sql import scheduler
from tests import crowds
from tests.acting import Engine, Store
from tests.stores import FakeClock, store_on

COUNT = 130  # more than a cycle takes


def test_triggers_and_runs_behind_a_poisoned_one_are_on_their_way_within_bounded_cycles(
    engine: Engine, store: Store, clock: FakeClock
) -> None:
    found = crowds.rush(engine, store, clock, COUNT)
    assert found.wrong == [] and found.cycles == 2 and found.lag_ms == crowds.CYCLE_MS


def test_who_can_converge_does_not_wait_for_those_who_cannot(
    store: Store, clock: FakeClock
) -> None:
    assert crowds.behind(store, clock, COUNT) == []


@pytest.mark.parametrize("kind", ["workflow", "task"])
def test_no_intent_waits_for_more_pages_than_are_before_it(
    store: Store, clock: FakeClock, kind: str
) -> None:
    wrong, cycles = crowds.in_turn(store, clock, COUNT, kind)
    assert wrong == [] and cycles <= 2


def test_a_cycle_that_takes_less_is_noticed(
    sqlite_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One page a stage, and not four."""
    real = scheduler.run_stage
    monkeypatch.setattr(
        scheduler,
        "run_stage",
        lambda store, stage, size, pages: real(store, stage, size=size, pages=1),
    )
    clock = FakeClock()
    with closing(store_on(Engine("sqlite", sqlite_dsn, None), clock)) as store:
        wrong, _ = crowds.in_turn(store, clock, COUNT, "workflow")
    assert any("waits after" in line for line in wrong)
