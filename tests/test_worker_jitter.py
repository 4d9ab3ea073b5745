"""Many leases that are lost at one moment: how what was lost comes back (DESIGN §5, §7).

Back-offs end apart, for each attempt has a jitter of its own, and a cycle takes a bounded number of
runs. What is lost before the start barrier has no back-off: nothing of it was begun, and workers
take of it what they have slots for.
"""

from collections import Counter
from itertools import pairwise

from qinglong_sql.limits import PAGE_SIZE, PAGES
from qinglong_sql.scheduler import Turn, scheduler_cycle
from tests import acting
from tests.acting import GRACE_MS, LEASE_MS, Held, Store
from tests.stores import FakeClock

WIDE = 128
BACKOFF_MS = 60_000
SPREAD_MS = BACKOFF_MS // 8  # of the jitter, at the most


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


def test_retries_of_what_was_lost_at_once_are_due_apart(store: Store, clock: FakeClock) -> None:
    """No tenth of the spread holds more than a fifth of them, and cycles admit them so."""
    lost(store, clock, wide=WIDE, runs=2)
    lost_at_ms = clock.now_ms
    turn = scheduler_cycle(store, Turn()).next
    due = sorted(row["due_at_ms"] - lost_at_ms for row in store.read("step_state"))
    assert due[0] >= BACKOFF_MS and due[-1] < BACKOFF_MS + SPREAD_MS
    tenths = Counter((ms - BACKOFF_MS) * 10 // SPREAD_MS for ms in due)
    assert len(tenths) == 10 and max(tenths.values()) <= 2 * WIDE // 5, tenths
    assert max(two - one for one, two in pairwise(due)) < SPREAD_MS // 5
    came = []
    for tenth in range(11):
        clock.set(lost_at_ms + BACKOFF_MS + tenth * SPREAD_MS // 10)
        turn = scheduler_cycle(store, turn).next
        came.append(len(store.read("attempt_state", status="claimed")))
    assert came[0] < WIDE // 4 and came[-1] == 2 * WIDE
    assert max(two - one for one, two in pairwise(came)) <= 2 * WIDE // 5, came
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
