"""Many leases that are lost at one moment: how what was lost comes back (DESIGN §5, §7).

Back-offs end apart, for each attempt has a jitter of its own, and what a lost worker left waits up
to five seconds more by it, however short the back-off; a cycle takes a bounded number of runs. What
is lost before the start barrier has no back-off: nothing of it was begun, and workers take of it
what they have slots for.
"""

from collections import Counter
from itertools import pairwise

from qinglong_sql.limits import BACKOFF_MS, PAGE_SIZE, PAGES
from qinglong_sql.scheduler import Turn, scheduler_cycle
from tests import acting
from tests.acting import GRACE_MS, LEASE_MS, Held, Store
from tests.stores import FakeClock

WIDE = 128
SPREAD_MS = 5 * 1_023 + BACKOFF_MS * 1_023 // 8_192  # of the jitter, at the most
FIFTH = WIDE * 2 // 5  # of two wide runs


def lost(
    store: Store, clock: FakeClock, *, wide: int, runs: int = 1, phase: str = "running"
) -> None:
    """Lease all of it, bring it this far, and let every lease be over at the same moment."""
    needs: dict[str, list[str]] = {f"a{number:03}": [] for number in range(wide)}
    acting.publish(store, needs, on_lost="retry", retry={"attempts": 3, "backoff_ms": BACKOFF_MS})
    for number in range(runs):
        acting.admit(store, acting.start(store, key=f"k{number}"))
    held: list[Held] = []
    while len(held) < wide * runs:
        names = [f"o{len(held)}.{number}" for number in range(min(WIDE, wide * runs - len(held)))]
        rows = acting.offer_rows(store, names) if held else list(leased(store, names))
        batch = [Held(r["attempt_id"], r["fence"], acting.token(r["offer_id"]), r) for r in rows]
        if phase == "running":
            acting.run(store, *batch)
        held += batch
    clock.advance(LEASE_MS + (GRACE_MS if phase == "running" else 0))


def leased(store: Store, names: list[str]) -> list[acting.Row]:
    acting.register(store)
    return acting.offer_rows(store, names)


def back(store: Store, clock: FakeClock, turn: Turn, steps: int, every_ms: int) -> list[int]:
    """How many are offered again after each of so many cycles, the first one now."""
    came = []
    for _ in range(steps):
        turn = scheduler_cycle(store, turn).next
        came.append(len(store.read("attempt_state", status="claimed")))
        clock.advance(every_ms)
    return came


def test_retries_of_what_was_lost_at_once_are_due_apart(store: Store, clock: FakeClock) -> None:
    """At the default back-off no tenth of the spread holds more than a fifth of them."""
    lost(store, clock, wide=WIDE, runs=2)
    lost_at_ms = clock.now_ms
    turn = scheduler_cycle(store, Turn()).next
    due = sorted(row["due_at_ms"] - lost_at_ms for row in store.read("step_state"))
    assert due[0] >= BACKOFF_MS and due[-1] <= BACKOFF_MS + SPREAD_MS
    tenths = Counter((ms - BACKOFF_MS) * 10 // (SPREAD_MS + 1) for ms in due)
    assert len(tenths) == 10 and max(tenths.values()) <= FIFTH, tenths
    assert max(two - one for one, two in pairwise(due)) < SPREAD_MS // 5
    clock.advance(BACKOFF_MS)
    came = back(store, clock, turn, 11, SPREAD_MS // 10 + 1)
    assert came[0] < WIDE // 4 and came[-1] == 2 * WIDE
    assert max(two - one for one, two in pairwise(came)) <= FIFTH, came
    assert acting.unbroken(store)


def test_a_thousand_that_were_lost_at_once_come_back_over_seconds(
    store: Store, clock: FakeClock
) -> None:
    """In cycles every half second: four seconds after the first of them there are some to come."""
    runs = 8
    lost(store, clock, wide=WIDE, runs=runs)
    turn = scheduler_cycle(store, Turn()).next
    assert len(store.read("step_state", status="retry_wait")) == runs * WIDE
    clock.advance(BACKOFF_MS)
    came = back(store, clock, turn, 12, 500)
    new = [two - one for one, two in pairwise([0, *came])]
    some = [number * 500 for number, one in enumerate(new) if one]
    assert some[-1] - some[0] >= 4_000, new
    assert came[-1] == runs * WIDE and max(new) <= runs * WIDE // 5, new
    assert acting.unbroken(store)


def test_a_cycle_brings_back_a_bounded_number_of_runs(store: Store, clock: FakeClock) -> None:
    """What was claimed only comes back at once, as far as the pages of a cycle go."""
    runs = PAGE_SIZE * PAGES + 10
    lost(store, clock, wide=1, runs=runs, phase="claimed")
    turn = scheduler_cycle(store, Turn()).next
    assert len(store.read("attempt_state", status="lost")) == PAGE_SIZE * PAGES
    scheduler_cycle(store, turn)
    assert len(store.read("attempt_state", status="lost")) == runs
    assert acting.unbroken(store)
