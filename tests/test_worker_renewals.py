"""A wide run whose worker lives: its leases are renewed in time, whatever happens to the run."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

import psycopg
import pytest

from qinglong_sql.limits import LEASE_MIN_MS, LEASE_RENEWALS
from qinglong_sql.scheduler import Turn, cancellation_cycle, scheduler_cycle
from qinglong_sql.store.postgres import PostgresStore, open_postgres_store
from qinglong_sql.store.steps import Contended
from tests import acting
from tests.acting import Held
from tests.racing import NEVER

WIDE = 126
FOR_S = LEASE_MIN_MS / 1000 + 1.5  # so that recovery looks at the run as well
HELD_FROM_S, HELD_FOR_S = 1.5, 2.4
TICK_S = 0.02  # of a worker, about
LEFT_MS = LEASE_MIN_MS // LEASE_RENEWALS  # of a lease, at the least, when it has been renewed


@dataclass(slots=True)
class Crowd:
    """What the hands on one run share, and what they saw."""

    dsn: str
    run_id: str
    live: list[Held]
    stop: threading.Event = field(default_factory=threading.Event)
    ended: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    least_ms: int = LEASE_MIN_MS
    errors: list[BaseException] = field(default_factory=list)

    def hand(self, work: Callable[["Crowd", PostgresStore], None]) -> threading.Thread:
        thread = threading.Thread(target=self._work, args=[work])
        thread.start()
        return thread

    def _work(self, work: Callable[["Crowd", PostgresStore], None]) -> None:
        try:
            with closing(open_postgres_store(self.dsn)) as store:
                work(self, store)
        except BaseException as error:
            self.errors.append(error)
            self.stop.set()


def renewing(crowd: Crowd, store: PostgresStore) -> None:
    """Each third of a lease all at once; what was contended is asked for again in the next tick."""
    begins = time.monotonic()
    while not crowd.stop.wait(max(0.0, begins - time.monotonic())):
        due = [one for one in crowd.live if one.attempt_id not in crowd.ended]
        while due and not crowd.stop.is_set():
            rows = renewed(store, due)
            done = {row["attempt_id"] for row in rows if row["outcome"] == "applied"}
            over = [row for row in rows if row["outcome"] == "blocked"]
            assert all(row["attempt_id"] in crowd.ended for row in over), over[:3]
            crowd.counts["renewed"] += len(done)
            crowd.counts["contended"] += len(due) - len(done) - len(over)
            late_ms = round((time.monotonic() - begins) * 1000)
            left_ms = LEASE_MIN_MS - LEASE_MIN_MS // LEASE_RENEWALS - late_ms
            crowd.least_ms = min(crowd.least_ms, left_ms)
            due = [one for one in due if one.attempt_id not in done | crowd.ended]
            crowd.stop.wait(TICK_S if due else 0)
        begins += LEASE_MIN_MS / 1000 / LEASE_RENEWALS


def renewed(store: PostgresStore, due: list[Held]) -> list[acting.Row]:
    try:
        return acting.renew(store, *due, lease_ms=LEASE_MIN_MS)
    except Contended:
        return []


def reporting(crowd: Crowd, store: PostgresStore) -> None:
    """Run what opens in the run, let it fail, and say so again and again: each locks the run."""
    worker = f"r{threading.get_ident()}"
    said: list[Held] = []
    for number in itertools.count():
        if crowd.stop.is_set():
            return
        try:
            held = leased(store, worker, f"{worker}.{number}"[-36:])
            if held:
                acting.run(store, held)
                said.append(held)
            for one in said[-2:]:
                (row,) = acting.report(store, one, exit_code=1)
                crowd.counts["reports"] += row["outcome"] == "applied"
        except Contended:
            crowd.counts["late"] += 1


def leased(store: PostgresStore, worker: str, offer: str) -> Held | None:
    acting.register(store, worker, worker)
    rows = acting.offer_rows(store, [offer], worker=worker, session=worker, lease_ms=LEASE_MIN_MS)
    return next(
        (Held(r["attempt_id"], r["fence"], acting.token(r["offer_id"]), r) for r in rows), None
    )


def deciding(crowd: Crowd, store: PostgresStore) -> None:
    """A control, and one that holds the authority over all that lives, far more often than any."""
    turn = Turn()
    while not crowd.stop.wait(0.01):
        turn = scheduler_cycle(store, turn).next
        cancellation_cycle(store, turn)
        crowd.counts["cycles"] += 1
        crowd.counts["recovery " + acting.recover(store, crowd.run_id)["outcome"]] += 1


def holding(crowd: Crowd, store: PostgresStore) -> None:
    """Somebody holds the run's row for longer than a third of a lease: nobody can report."""
    with psycopg.connect(crowd.dsn) as connection:
        crowd.stop.wait(HELD_FROM_S)
        held = "select from ql.run where run_id = %s for no key update"
        connection.execute(held, [crowd.run_id])
        crowd.stop.wait(HELD_FOR_S)
        connection.rollback()


def ending(crowd: Crowd, store: PostgresStore) -> None:
    """End what lives one by one, while the others are renewed."""
    for one in crowd.live:
        crowd.ended.add(one.attempt_id)
        while acting.report(store, one)[0]["outcome"] == "contended":
            crowd.stop.wait(TICK_S)


HANDS = (renewing, reporting, reporting, deciding, holding)


@pytest.fixture
def crowd(postgres_dsn: str) -> Iterator[Crowd]:
    """A run of 128 steps, of which 126 live in the hands of one worker."""
    needs: dict[str, list[str]] = {f"a{number:03}": [] for number in range(WIDE + 2)}
    with closing(open_postgres_store(postgres_dsn)) as store:
        run_id = acting.begun(store, needs, retry={"attempts": 64, "backoff_ms": 1})
        held = acting.lease(store, *(f"o{number}" for number in range(WIDE)), lease_ms=LEASE_MIN_MS)
        acting.run(store, *held.values())
    crowd = Crowd(postgres_dsn, run_id, list(held.values()))
    yield crowd
    crowd.stop.set()


def test_126_live_steps_of_a_run_renew_in_time_while_reports_pour_in(crowd: Crowd) -> None:
    assert len(crowd.live) == WIDE
    threads = [crowd.hand(work) for work in HANDS]
    crowd.stop.wait(FOR_S)
    crowd.hand(ending).join()
    crowd.stop.set()
    for thread in threads:
        thread.join()
    assert crowd.errors == []
    counts = crowd.counts
    assert crowd.least_ms >= LEFT_MS, (crowd.least_ms, counts)
    assert counts["renewed"] >= 4 * WIDE and counts["reports"] > 100, counts
    assert counts["cycles"] > 20 and counts["recovery settled"] > 2, counts
    with closing(open_postgres_store(crowd.dsn)) as store:
        rows = store.read("attempt_state", run_id=crowd.run_id)
        ends = {row["attempt_id"]: row["status"] for row in rows}
        assert {ends[one.attempt_id] for one in crowd.live} == {"succeeded"}
        assert acting.unbroken(store)
    with psycopg.connect(crowd.dsn) as connection:
        for words, query in NEVER.items():
            assert connection.execute(query.encode()).fetchall() == [], words
        deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
        assert connection.execute(deadlocks).fetchone() == (0,)
