"""Workers that die under a cancellation.

A cancelled run ends by itself when its worker fenced itself; where no clock proves anything it
waits, says for what, and ends when an operator says so (DESIGN §9).
"""

from collections.abc import Iterator

import pytest

from qinglong_sql.scheduler import Turn, cancellation_cycle, scheduler_cycle
from tests import acting
from tests.acting import GRACE_MS, LEASE_MS, Held, Store
from tests.stores import FakeClock

DAY_MS = 24 * 3600 * 1000
POINTS = ("claimed", "starting", "running")
# What the lease says at each point, and how its attempt ends when nobody comes back.
ENDS = {"claimed": LEASE_MS, "starting": LEASE_MS + GRACE_MS, "running": LEASE_MS + GRACE_MS}


@pytest.fixture
def unbroken(store: Store) -> Iterator[None]:
    yield
    assert acting.unbroken(store)


after_it = pytest.mark.usefixtures("unbroken")


def cycles(store: Store) -> None:
    """What the lifecycles of a control do until nothing moves any more."""
    turn = Turn()
    for _ in range(20):
        done = [scheduler_cycle(store, turn), cancellation_cycle(store, turn)]
        turn = done[0].next
        if not any(cycle.applied for cycle in done):
            return
    raise AssertionError("the cycles find no end")


def died(store: Store, point: str, *, self_fencing: int = 1, **work: object) -> tuple[str, Held]:
    """A flow of three steps, the first of which got this far when its worker died.

    Its neighbour waits for a worker, the third for the first.
    """
    run_id = acting.begun(store, {"a": [], "b": [], "c": ["a"]}, **work)
    acting.register(store, self_fencing=self_fencing)
    held = acting.lease(store, worker="w1")["a"]
    if point != "claimed":
        acting.cross(store, held)
    if point == "running":
        store.call("running_attempts", p_commands=acting.commands(held))
    cycles(store)
    return run_id, held


@after_it
@pytest.mark.parametrize("first", ["cancelled", "died"])
@pytest.mark.parametrize("point", POINTS)
def test_a_cancelled_run_ends_by_itself_when_its_worker_fenced_itself(
    store: Store, clock: FakeClock, point: str, first: str
) -> None:
    """Not before its lease proves something, and with the next cycles after that."""
    run_id, _ = died(store, point, on_lost="retry", retry={"attempts": 5})
    clock.advance(ENDS[point] - 1)
    if first == "died":
        cycles(store)
    acting.cancel(store, run_id)
    cycles(store)
    still = "ready" if point != "running" else "running"
    assert acting.statuses(store, run_id) == {"a": still, "b": "cancelled", "c": "cancelled"}
    assert acting.ended(store, run_id) == ("running", None)
    (why,) = store.read("explain", run_id=run_id)
    assert (why["waits_for"], why["waits_on"], why["after_due"]) == (
        "lease" if point == "claimed" else "report", "w1", None,
    )  # fmt: skip
    assert "recovery" in why["resolved_by"]
    clock.advance(1)
    cycles(store)
    assert set(acting.statuses(store, run_id).values()) == {"cancelled"}
    assert acting.ended(store, run_id)[0] == "cancelled"
    assert len(store.read("attempt_state", run_id=run_id)) == 2  # nothing was tried again


@after_it
@pytest.mark.parametrize(
    ("on_lost", "self_fencing", "after_due"), [("hold", 1, "hold"), ("fail", 0, "evidence")]
)
@pytest.mark.parametrize("point", POINTS[1:])
def test_where_no_clock_proves_anything_it_waits_and_says_for_what(
    store: Store, clock: FakeClock, point: str, on_lost: str, self_fencing: int, after_due: str
) -> None:
    run_id, held = died(store, point, self_fencing=self_fencing, on_lost=on_lost)
    acting.cancel(store, run_id)
    cycles(store)
    for _ in range(3):
        clock.advance(DAY_MS)
        cycles(store)
    assert acting.ended(store, run_id) == ("running", None)
    (why,) = store.read("explain", run_id=run_id)
    assert (why["attempt_id"], why["after_due"]) == (held.attempt_id, after_due)
    assert "declare-stopped" in why["resolved_by"]
    (blocked,) = store.read("recovery_blocked", run_id=run_id)
    assert (blocked["waits_for"], blocked["waits_on"]) == (after_due, "w1")
    told = store.call(
        "declare_stopped",
        p_attempt_id=held.attempt_id,
        p_reason="the host is gone",
        p_actor="ann",
        p_follow="retry",  # under an intent nothing follows
    )
    assert told[0]["outcome"] == "applied"
    cycles(store)
    assert acting.statuses(store, run_id) == {"a": "cancelled", "b": "cancelled", "c": "cancelled"}
    assert acting.ended(store, run_id)[0] == "cancelled"


@after_it
def test_a_claim_on_hold_comes_back_all_the_same(store: Store, clock: FakeClock) -> None:
    """Nothing of it was begun, so there is nothing to hold."""
    run_id, _ = died(store, "claimed", self_fencing=0, on_lost="hold")
    acting.cancel(store, run_id)
    clock.advance(LEASE_MS)
    cycles(store)
    assert acting.ended(store, run_id)[0] == "cancelled"
