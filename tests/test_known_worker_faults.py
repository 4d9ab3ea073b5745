"""Rows of shared/cases/faults.md on workers and leases that no other test shows (known_faults)."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from qinglong_sql.scheduler import Turn, cancellation_cycle, scheduler_cycle
from qinglong_sql.store.postgres import PostgresStore
from qinglong_sql.store.steps import Contended
from tests import acting
from tests.acting import GRACE_MS, LEASE_MS, Engine, Held, Store
from tests.racing import NEVER
from tests.site import Site, opened
from tests.stores import FakeClock, ServerClock
from tests.tended import Tended
from tests.test_schedule_races import at_once

ROUNDS = 25
MINUTE_MS = 60_000


@pytest.fixture
def site(sqlite_dsn: str, tmp_path: Path) -> Iterator[Site]:
    with opened(sqlite_dsn, tmp_path) as made:
        yield made


def test_a_refused_end_is_dropped_and_the_worker_goes_on(site: Site) -> None:
    """B029: while it ran somebody else said that it is gone, so its own end comes too late."""
    site.publish("one: {run: sleep 0.5}\ntwo: {run: 'true'}")
    first = site.start("first")
    worker = site.worker(slots=1)
    site.drive(worker, lambda: running_at(site, first))
    (late,) = running_at(site, first)
    site.store.call(
        "declare_stopped",
        p_attempt_id=late["attempt_id"],
        p_reason="I believed so",
        p_actor="test",
        p_follow=None,
    )
    assert site.finish(first, worker)["status"] == "failed"
    assert site.finish(site.start("second"), worker)["status"] == "succeeded"
    assert worker.held == {}


def running_at(site: Site, run_id: str) -> list[acting.Row]:
    return [one for one in site.attempts(run_id) if one["status"] == "running"]


def both(dsn: str, run_id: str, held: Held) -> dict[str, str]:
    """The report and the recovery of one attempt at one instant; what each was told."""
    told: dict[str, str] = {}

    def report(store: PostgresStore) -> None:
        while True:
            (row,) = acting.report(store, held)
            if row["outcome"] != "contended":
                told["report"] = row["outcome"]
                return

    def recovery(store: PostgresStore) -> None:
        while True:
            outcome = acting.recover(store, run_id)["outcome"]
            if outcome != "contended":
                told["recovery"] = outcome
                return

    assert at_once(dsn, report, recovery) == []
    return told


def test_of_an_end_and_its_expiry_at_one_instant_exactly_one_counts(postgres_dsn: str) -> None:
    """B032: again and again, and both sides win now and then or not: never both, never none."""
    with closing(ServerClock(postgres_dsn)) as clock, closing(PostgresStore(postgres_dsn)) as store:
        acting.publish(store, {"a": []})
        for number in range(ROUNDS):
            run_id = acting.start(store, key=f"k{number}")
            acting.admit(store, run_id)
            held = acting.lease(store, f"o{number}")["a"]
            acting.run(store, held)
            clock.advance(LEASE_MS + GRACE_MS)
            told = both(postgres_dsn, run_id, held)
            acting.advance(store, run_id)
            status, refused = acting.ended(store, run_id)[0], store.read("refused_state")
            if told["report"] == "applied":
                assert (told["recovery"], status) == ("settled", "succeeded")
            else:
                assert (told, status) == ({"report": "blocked", "recovery": "applied"}, "failed")
                assert held.attempt_id in {row["attempt_id"] for row in refused}
            of_it = store.read("event_log", run_id=run_id, entity_id=held.attempt_id)
            assert len([row for row in of_it if row["entity"] == "attempt"]) == 4  # one end
        assert acting.unbroken(store)
    with psycopg.connect(postgres_dsn) as connection:
        for words, query in NEVER.items():
            assert connection.execute(query.encode()).fetchall() == [], words


def test_a_declaration_and_an_expiry_at_one_instant_give_one_new_attempt(
    postgres_dsn: str,
) -> None:
    """B034: an operator says that it is gone and shall be retried, while its lease ends."""
    with closing(ServerClock(postgres_dsn)) as clock, closing(PostgresStore(postgres_dsn)) as store:
        acting.publish(store, {"a": []}, on_lost="retry", retry={"attempts": 64, "backoff_ms": 1})
        run_id = acting.start(store)
        acting.admit(store, run_id)
        for number in range(ROUNDS):
            held = acting.lease(store, f"o{number}")["a"]
            assert held.row["number"] == number + 1
            acting.run(store, held)
            clock.advance(LEASE_MS + GRACE_MS)

            def declared(store: PostgresStore, held: Held = held) -> None:
                while True:
                    try:
                        rows = store.call(
                            "declare_stopped", p_attempt_id=held.attempt_id, p_reason="gone",
                            p_actor="ann", p_follow="retry",
                        )  # fmt: skip
                    except Contended:
                        continue
                    if rows[0]["outcome"] != "contended":
                        return

            assert at_once(postgres_dsn, declared, lambda one: acting.recover(one, run_id)) == []
            clock.advance(10 * MINUTE_MS)
            store.call("retry_run", p_run_id=run_id)
            acting.admit(store, run_id)
            acting.admit(store, run_id)
            rows = store.read("attempt_state", run_id=run_id)
            assert sorted(row["number"] for row in rows) == list(range(1, number + 3))
            assert [row["status"] for row in rows].count("claimed") == 1
        assert len(store.read("attestation_state")) == ROUNDS
        assert acting.unbroken(store)


@pytest.mark.parametrize("renewed", [True, False], ids=["renewed", "silent"])
def test_work_longer_than_its_lease_is_one_attempt_or_one_a_lease(
    store: Store, clock: FakeClock, renewed: bool
) -> None:
    """B035: three leases long; silent ones are tried up to their limit, and then it is over."""
    run_id = acting.begun(store, {"a": []}, on_lost="retry", retry={"attempts": 3})
    held = acting.lease(store, "o0")["a"]
    acting.run(store, held)
    turn, old = Turn(), []
    for tick in range(3 * 3 * 10):  # thirds of a lease
        clock.advance(LEASE_MS // 3)
        if renewed and tick < 9:
            assert acting.renew(store, held)[0]["outcome"] == "applied"
        elif renewed:
            acting.report(store, held)
        turn = scheduler_cycle(store, turn).next
        if not renewed and acting.attempt(store, held.attempt_id)["status"] == "lost":
            old.append(held)
            assert acting.report(store, held)[0]["code"] == "QL410"
            if new := acting.lease(store, f"o{tick + 1}"):
                held = new["a"]
                acting.run(store, held)
    count = len(store.read("attempt_state", run_id=run_id))
    assert (count, acting.ended(store, run_id)[0]) == (
        (1, "succeeded") if renewed else (3, "failed")
    )
    assert renewed or {row["attempt_id"] for row in store.read("refused_state")} == {
        one.attempt_id for one in old
    }
    assert acting.unbroken(store)


def test_without_any_control_for_long_what_is_renewed_goes_on(
    store: Store, engine: Engine, clock: FakeClock
) -> None:
    """B039: and what nobody renewed meanwhile is lost once, with the first cycles after it."""
    run_id = acting.begun(store, {"a": [], "b": []})
    held = acting.lease(store, "o1", "o2")
    acting.run(store, *held.values())
    for _ in range(30):
        clock.advance(LEASE_MS - 1)
        acting.renew(store, held["a"])
    turn = Turn()
    for _ in range(3):
        turn = scheduler_cycle(store, turn).next
        cancellation_cycle(store, turn)
    assert acting.statuses(store, run_id) == {"a": "running", "b": "failed"}
    assert acting.report(store, held["b"])[0]["code"] == "QL410"
    assert acting.report(store, held["a"])[0]["status"] == "succeeded"
    assert acting.unbroken(store)


@pytest.mark.parametrize("first", ["control", "worker"])
def test_an_outage_shorter_than_a_lease_loses_nothing(
    store: Store, clock: FakeClock, first: str
) -> None:
    """B033: whoever is back first, since time is the database's and counts the outage as well."""
    run_id, held = held_by_five(store)
    clock.advance(LEASE_MS - 1)
    for who in ("control", "worker") if first == "control" else ("worker", "control"):
        if who == "control":
            scheduler_cycle(store, Turn())
        else:
            answers = [acting.renew(store, one)[0]["outcome"] for one in held]
            assert answers == ["applied"] * 5
    assert set(acting.statuses(store, run_id).values()) == {"running"}
    assert acting.unbroken(store)


@pytest.mark.parametrize("first", ["control", "worker"])
def test_an_outage_longer_than_a_lease_doubles_nothing(
    store: Store, clock: FakeClock, first: str
) -> None:
    """B033: who is back first is believed: an end that is told, or else evidence of the clock."""
    run_id, held = held_by_five(store, on_lost="retry", retry={"attempts": 2, "backoff_ms": 1})
    clock.advance(2 * LEASE_MS + GRACE_MS)
    assert {acting.renew(store, one)[0]["code"] for one in held} == {"QL410"}
    if first == "control":
        turn = scheduler_cycle(store, Turn()).next
        clock.advance(LEASE_MS)
        scheduler_cycle(store, turn)
    told = {acting.report(store, one)[0]["outcome"] for one in held}
    scheduler_cycle(store, Turn())
    rows = store.read("attempt_state", run_id=run_id)
    if first == "control":
        assert told == {"blocked"} and len(store.read("refused_state")) == 5
        assert sorted(row["status"] for row in rows) == ["claimed"] * 5 + ["lost"] * 5
    else:
        assert told == {"applied"} and acting.ended(store, run_id)[0] == "succeeded"
        assert len(rows) == 5
    assert acting.unbroken(store)


def held_by_five(store: Store, **work: object) -> tuple[str, list[Held]]:
    """A run of five steps, each of them run by a worker of its own."""
    run_id = acting.begun(store, {f"a{number}": [] for number in range(5)}, **work)
    held = []
    for number in range(5):
        acting.register(store, f"w{number}")
        (one,) = acting.lease(store, f"o{number}", worker=f"w{number}").values()
        acting.run(store, one)
        held.append(one)
    return run_id, held


def test_a_stop_renews_until_the_last_execution_has_ended(site: Site) -> None:
    """B040: a step longer than the lease, and a worker that is asked to end meanwhile."""
    one = Tended(site, lease_ms=5_000, drain_ms=20_000)
    try:
        site.publish('one: {run: "echo $QL_ATTEMPT >> witness; sleep 7; echo over >> witness"}')
        run_id = site.start()
        one.until(lambda: running_at(site, run_id))
        assert one.stop() == "stopped"
    finally:
        one.close()
    site.drive(site.worker(), lambda: site.run(run_id)["status"] != "running")
    assert [row["status"] for row in site.attempts(run_id)] == ["succeeded"]
    assert site.lines("witness") == ["1", "over"]


@pytest.mark.parametrize("skew_s", [3600, -3600])
def test_the_time_of_day_of_a_worker_decides_nothing(
    postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skew_s: int
) -> None:
    """B043: it counts by a clock that nobody sets, and who is late is judged by the database."""
    wall, wall_ns = time.time, time.time_ns
    with opened(postgres_dsn, tmp_path) as site:
        worker = site.worker(lease_ms=5_000)
        site.publish('one: {run: "echo $QL_ATTEMPT >> witness; sleep 2.5"}')
        run_id = site.start()
        site.drive(worker, lambda: running_at(site, run_id))
        expiry_ms = site.attempts(run_id)[0]["lease_expires_at_ms"]
        with monkeypatch.context() as patched:
            patched.setattr(time, "time", lambda: wall() + skew_s)
            patched.setattr(time, "time_ns", lambda: wall_ns() + skew_s * 10**9)
            site.drive(worker, lambda: site.run(run_id)["status"] != "running")
        (row,) = site.attempts(run_id)
        assert 0 < row["lease_expires_at_ms"] - expiry_ms < 5_000  # renewed, by its own time
        assert site.run(run_id)["status"] == "succeeded"
        assert site.lines("witness") == ["1"]
