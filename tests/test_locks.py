"""Locks (DESIGN §6), on PostgreSQL only: SQLite has one writer, and no locks to get wrong.

One connection holds what a step took and does not commit; a second one meets it. Stages never wait,
batches wait a tenth of a second, and a hammer at the end looks for deadlocks.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest

from qinglong_sql.errors import NotReady, Violated
from qinglong_sql.store.postgres import PostgresStore, open_postgres_store
from qinglong_sql.store.steps import Contended
from tests import acting
from tests.acting import Held, Row, Store

HAMMER_S = 10.0
HAMMER_LEASE_MS = 5_000


@pytest.fixture
def store(postgres_dsn: str) -> Iterator[PostgresStore]:
    opened = open_postgres_store(postgres_dsn)
    yield opened
    assert acting.unbroken(opened)
    opened.close()


@pytest.fixture
def other(postgres_dsn: str) -> Iterator[psycopg.Connection]:
    """A second session whose transaction stays open until `commit`."""
    with psycopg.connect(postgres_dsn) as connection:
        yield connection
        connection.rollback()


def hold_run(other: psycopg.Connection, run_id: str) -> None:
    other.execute("select from ql.run where run_id = %s for no key update", [run_id])


def running(store: Store) -> tuple[str, Held]:
    run_id = acting.begun(store, {"a": [], "b": ["a"]})
    held = acting.lease(store)["a"]
    acting.run(store, held)
    return run_id, held


# Stages pass over what is held


def test_a_page_takes_the_next_run_instead_of_a_held_one(
    store: Store, other: psycopg.Connection
) -> None:
    acting.publish(store, {"a": [], "b": ["a"]})
    runs = [acting.start(store, key=f"k{number}") for number in range(3)]
    hold_run(other, runs[0])
    first = acting.page(store, "task_admission_page", limit=2)
    assert {row["run_id"] for row in first} == set(runs[1:])
    other.rollback()
    assert [row["run_id"] for row in acting.page(store, "task_admission_page")] == runs[:1]


def test_a_page_locks_no_more_runs_than_it_takes(store: Store, other: psycopg.Connection) -> None:
    acting.publish(store, {"a": []})
    runs = {acting.start(store, key=f"k{number}") for number in range(20)}
    ask = "select run_id from ql_scheduler.task_admission_page(-1, '', 2)"
    taken = {run_id for (run_id,) in other.execute(ask).fetchall()}
    assert len(taken) == 2
    assert {row["run_id"] for row in acting.page(store, "task_admission_page")} == runs - taken


@pytest.mark.parametrize(
    "step", ["advance_frontier", "admit_tasks", "retry_run", "deadline_run", "recover_run",
             "converge_cancellation"],
)  # fmt: skip
def test_a_stage_is_contended_by_a_held_run_and_never_waits(
    store: Store, other: psycopg.Connection, step: str
) -> None:
    run_id, _ = running(store)
    before = acting.agenda(store, run_id)
    hold_run(other, run_id)
    started = time.monotonic()
    assert store.call(step, p_run_id=run_id)[0]["outcome"] == "contended"
    assert time.monotonic() - started < 0.5
    assert acting.agenda(store, run_id) == before


def test_a_fault_of_a_held_run_is_not_counted(store: Store, other: psycopg.Connection) -> None:
    """Whoever holds it may be getting through."""
    run_id, _ = running(store)
    hold_run(other, run_id)
    fault = {"p_run_id": run_id, "p_stage": "expiry", "p_error": "broken"}
    assert store.call("record_fault", **fault) == []
    assert store.read("fault_state") == []
    other.rollback()
    assert store.call("record_fault", **fault)[0]["fault_count"] == 1


def test_an_attempt_that_is_admitted_between_the_locks_is_contended(
    store: PostgresStore, other: psycopg.Connection, postgres_dsn: str
) -> None:
    """Its authority was not asked for, so the run is left to the next cycle."""
    run_id = acting.begun(store, {"a": [], "b": [], "c": ["b"]})
    held = acting.lease(store, "o1", "o2")
    acting.run(store, *held.values())
    acting.report(store, held["b"])
    store.call("advance_frontier", p_run_id=run_id)  # c is ready, and has no attempt yet
    (text,) = other.execute("select pg_get_functiondef('ql.attempt_key'::regproc)").fetchone() or ()
    wait = "begin\n  perform pg_advisory_xact_lock_shared(4711);\n"
    other.execute(text.replace("begin\n", wait, 1))
    # it waits for us for as long as a loaded machine needs
    other.execute("alter function ql_scheduler.recover_run set lock_timeout to '60s'")
    other.commit()
    other.execute("select pg_advisory_xact_lock(4711)")
    answers: list[Row] = []
    with closing(open_postgres_store(postgres_dsn)) as second:
        hand = threading.Thread(target=lambda: answers.append(acting.recover(second, run_id)))
        hand.start()
        waiting = "select 1 from pg_locks where locktype = 'advisory' and not granted"
        for _ in range(20_000):
            if other.execute(waiting).fetchone():
                break
            time.sleep(0.001)
        assert acting.admit(store, run_id)["outcome"] == "applied"
        other.rollback()
        hand.join()
    assert [row["outcome"] for row in answers] == ["contended"]


@pytest.mark.parametrize("command", ["start", "running", "report", "renew"])
def test_convergence_is_contended_while_a_worker_acts(
    store: Store, other: psycopg.Connection, command: str
) -> None:
    run_id = acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    if command in ("running", "report"):
        acting.cross(store, held)
    if command != "start":
        acting.cancel(store, run_id)
    batch = acting.commands(held, identity="pid 7", how="stop", exit_code=None)
    call = {
        "start": "ql_worker.start_attempts(%s)",
        "running": "ql_worker.running_attempts(%s)",
        "report": "ql_worker.report_attempts(%s)",
        "renew": "ql_worker.renew_attempts(%s, 30000)",
    }[command]
    (row,) = other.execute(f"select outcome from {call}", [batch]).fetchall()
    assert row == ("applied",)
    agenda = acting.agenda(store, run_id)
    assert acting.converge(store, run_id)["outcome"] == "contended"
    assert acting.agenda(store, run_id) == agenda
    other.commit()
    if command == "start":
        acting.cancel(store, run_id)
    expected = "settled" if command == "report" else "blocked"
    assert acting.converge(store, run_id)["outcome"] == expected


def test_what_convergence_holds_is_neither_leased_nor_waited_for(
    store: Store, other: psycopg.Connection
) -> None:
    run_id = acting.begun(store, {"a": []})
    acting.register(store)
    other.execute("select pg_advisory_xact_lock(ql.attempt_key(%s))", [f"{run_id}-1"])
    started = time.monotonic()
    assert acting.offer_rows(store, ["o1"]) == []
    assert time.monotonic() - started < 0.5
    other.rollback()
    assert len(acting.offer_rows(store, ["o1"])) == 1


def test_two_workers_lease_different_attempts(store: Store, other: psycopg.Connection) -> None:
    acting.begun(store, {"a": [], "b": []})
    other.execute("select ql_worker.register_worker('w2', 's2', '[\"default\"]', 8, 1, 0)")
    other.commit()
    ask = "select attempt_id from ql_worker.lease_attempts('w2', 's2', 'default', %s, 30000, null)"
    (taken,) = other.execute(ask, [acting.offers(["o2"])]).fetchall()
    acting.register(store)
    # the other worker holds the run as well, so its sibling is contended until it commits
    assert acting.offer_rows(store, ["o1"]) == []
    other.commit()
    (row,) = acting.offer_rows(store, ["o1"])
    assert row["attempt_id"] != taken[0]


def test_an_offer_id_that_another_worker_took_meanwhile_leases_nothing(
    store: Store, other: psycopg.Connection
) -> None:
    acting.publish(store, {"a": []})
    for key in ("k1", "k2"):
        acting.admit(store, acting.start(store, key=key))
    acting.register(store)
    other.execute("select ql_worker.register_worker('w2', 's2', '[\"default\"]', 8, 1, 0)")
    other.commit()
    ask = "select attempt_id from ql_worker.lease_attempts('w2', 's2', 'default', %s, 30000, null)"
    assert len(other.execute(ask, [acting.offers(["o1"])]).fetchall()) == 1
    release = threading.Timer(0.03, other.commit)
    release.start()
    assert [row["offer_id"] for row in acting.offer_rows(store, ["o1", "o2"])] in ([], ["o2"])
    release.join()


def test_an_uncommitted_intent_wins_over_a_start_that_waits_for_it(
    store: Store, other: psycopg.Connection
) -> None:
    run_id = acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    other.execute("select ql_admission.request_cancel(%s, 'user', 'ann')", [run_id])
    (row,) = acting.cross(store, held)
    assert (row["outcome"], row["code"]) == ("contended", None)
    answers: list[acting.Row] = []
    waiting = threading.Thread(target=lambda: answers.extend(acting.cross(store, held)))
    waiting.start()
    time.sleep(0.05)
    other.commit()
    waiting.join()
    assert [(row["outcome"], row["code"]) for row in answers] == [("blocked", "QL410")]
    assert acting.converge(store, run_id)["outcome"] == "settled"


# Batches wait a little, in order


def test_a_held_run_hides_no_other_run_of_the_batch(
    store: Store, other: psycopg.Connection
) -> None:
    acting.publish(store, {"a": []})
    runs = [acting.start(store, key=f"k{number}") for number in range(3)]
    for run_id in runs:
        acting.admit(store, run_id)
    acting.register(store)
    rows = acting.offer_rows(store, ["o1", "o2", "o3"])
    held = [Held(r["attempt_id"], r["fence"], acting.token(r["offer_id"]), r) for r in rows]
    hold_run(other, held[1].row["run_id"])
    outcomes = [row["outcome"] for row in acting.cross(store, *held)]
    assert outcomes == ["applied", "contended", "applied"]
    other.rollback()
    assert [row["outcome"] for row in acting.cross(store, *held)] == ["applied"] * 3


def test_a_batch_gets_a_run_that_is_soon_free(store: Store, other: psycopg.Connection) -> None:
    run_id, held = running(store)
    hold_run(other, run_id)
    release = threading.Timer(0.03, other.rollback)
    release.start()
    assert acting.report(store, held)[0]["outcome"] == "applied"
    release.join()


def test_renewals_do_not_queue_on_their_run(store: Store, other: psycopg.Connection) -> None:
    run_id, held = running(store)
    hold_run(other, run_id)
    assert acting.renew(store, held)[0]["outcome"] == "applied"


def test_a_single_command_gives_up_after_a_second(store: Store, other: psycopg.Connection) -> None:
    run_id, _ = running(store)
    hold_run(other, run_id)
    with pytest.raises(Contended):
        acting.cancel(store, run_id)


def test_a_page_walks_run_by_run_when_one_of_them_raises(
    store: PostgresStore, other: psycopg.Connection
) -> None:
    from qinglong_sql.stage import STAGES

    acting.publish(store, {"a": []})
    runs = [acting.start(store, key=f"k{number}") for number in range(3)]
    # a foreign writer puts an attempt where the counter says that none is
    other.execute(
        "insert into ql.task_attempt (attempt_id, run_id, number, step_key, epoch, task_id, queue,"
        " jitter, admitted_at_ms, status, version, offer_at_ms)"
        " values (%s || '-1', 'foreign', 1, 'a', 9, 't', 'foreign', 0, 0, 'claimed', 1, 0)",
        [runs[1]],
    )
    other.commit()
    rows = store.page(STAGES["task_admission"], acting.START, 32)
    assert {row["run_id"]: row["outcome"] for row in rows} == {
        runs[0]: "applied", runs[1]: "faulted", runs[2]: "applied",
    }  # fmt: skip
    (fault,) = store.read("fault_state")
    assert (fault["run_id"], fault["stage"]) == (runs[1], "task_admission")
    other.execute("delete from ql.task_attempt where run_id = 'foreign'")
    other.commit()
    store.call("release_fault", p_run_id=runs[1], p_stage="task_admission")
    assert [row["outcome"] for row in store.page(STAGES["task_admission"], acting.START, 32)] == [
        "applied"
    ]


def test_another_isolation_is_refused(store: Store, postgres_dsn: str) -> None:
    run_id, _ = running(store)
    with psycopg.connect(postgres_dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(psycopg.Error) as caught:
            connection.execute("select ql_scheduler.advance_frontier(%s)", [run_id])
    assert caught.value.sqlstate == "QL503"


def test_a_database_without_the_steps_is_not_ready(empty_dsn: str) -> None:
    with pytest.raises(NotReady, match="migrate"):
        open_postgres_store(empty_dsn)


# The hammer


def test_no_deadlock_and_no_violation_under_four_hands_on_a_wide_run(
    store: PostgresStore, postgres_dsn: str
) -> None:
    needs: dict[str, list[str]] = {f"a{number:02}": [] for number in range(40)}
    needs |= {f"b{number:02}": [f"a{number:02}", f"a{39 - number:02}"] for number in range(40)}
    acting.publish(store, needs, retry={"attempts": 2, "backoff_ms": 10}, on_lost="retry")
    stop = threading.Event()
    hands = [
        Hand(postgres_dsn, stop, work, seed)
        for seed, work in enumerate((work_once, work_once, stage_once, disturb_once))
    ]
    for hand in hands:
        hand.thread.start()
    stop.wait(HAMMER_S)
    stop.set()
    for hand in hands:
        hand.thread.join()
        assert hand.error is None, hand.error
        assert hand.rounds > 10
    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    with psycopg.connect(postgres_dsn) as connection:
        assert connection.execute(deadlocks).fetchone() == (0,)
    assert store.read("attempt_state", status="succeeded", limit=1)
    end_all(store)


def end_all(store: Store) -> None:
    """Cancel what still runs: nothing that the hammer left may stand in the way for ever."""
    limit = time.monotonic() + 30
    while runs := [row["run_id"] for row in store.read("run_state", status="running")]:
        assert time.monotonic() < limit, store.read("explain", run_id=runs[0])
        for run_id in runs:
            acting.cancel(store, run_id)
            acting.recover(store, run_id)
            acting.converge(store, run_id)
        time.sleep(0.2)


class Hand:
    """One thread with its own connection that repeats a kind of work until it is stopped."""

    def __init__(
        self, dsn: str, stop: threading.Event, once: "Callable[[Hand], None]", seed: int
    ) -> None:
        self.store = open_postgres_store(dsn)
        self.random = random.Random(seed)
        self.name = f"h{seed}"
        self.rounds = 0
        self.error: Exception | None = None
        self.held: list[Held] = []
        self._stop, self._once = stop, once
        self.thread = threading.Thread(target=self._repeat)

    def _repeat(self) -> None:
        try:
            while not self._stop.is_set():
                self._once(self)
                self.rounds += 1
        except Exception as error:
            self.error = error
        finally:
            self.store.close()


def work_once(hand: Hand) -> None:
    """Lease up to eight, start and run most, renew them, report what is held."""
    acting.register(hand.store, hand.name, hand.name)
    try:
        rows = acting.offer_rows(
            hand.store,
            [f"{hand.name}.{hand.rounds}.{number}" for number in range(8)],
            worker=hand.name,
            session=hand.name,
            lease_ms=HAMMER_LEASE_MS,
        )
    except Contended:
        return
    new = [Held(r["attempt_id"], r["fence"], acting.token(r["offer_id"]), r) for r in rows]
    crossing = new[: hand.random.randint(0, len(new))]
    acting.run(hand.store, *crossing)
    acting.renew(hand.store, *new, lease_ms=HAMMER_LEASE_MS)
    hand.held += new
    code = hand.random.choice([0, 0, 0, 1])
    answers = acting.report(hand.store, *hand.held[:128], exit_code=code)
    again = {row["attempt_id"] for row in answers if row["outcome"] == "contended"}
    hand.held = [one for one in hand.held if one.attempt_id in again]


def stage_once(hand: Hand) -> None:
    """All stages by pages, as a scheduler does them."""
    from qinglong_sql.stage import STAGES

    for stage in STAGES.values():
        hand.store.page(stage, acting.START, 32)
    assert hand.store.read("fault_state") == []


def disturb_once(hand: Hand) -> None:
    """Start runs while few are open, cancel one now and then, recover and converge at random."""
    open_runs = [row["run_id"] for row in hand.store.read("run_state", status="running")]
    if len(open_runs) < 2:
        acting.start(hand.store, key=f"k{hand.rounds}")
        return
    run_id = hand.random.choice(open_runs)
    for step in ("recover_run", "converge_cancellation", "advance_frontier", "admit_tasks"):
        hand.store.call(step, p_run_id=run_id)
    if hand.random.random() < 0.01:
        try:
            acting.cancel(hand.store, run_id)
        except Contended:
            return


# What a foreign hand on the schema can break


def test_an_offer_that_no_decision_leases_breaks_a_promise(
    store: PostgresStore, other: psycopg.Connection
) -> None:
    acting.begun(store, {"a": []})
    (text,) = (
        other.execute("select pg_get_viewdef('ql.dispatch_effect'::regclass)").fetchone() or ()
    )
    blind = f"select * from ({text.rstrip(';')}) as v where false"
    other.execute(f"create or replace view ql.dispatch_effect as {blind}")  # type: ignore[arg-type]
    other.commit()
    with pytest.raises(Violated, match="leases nothing"):
        acting.lease(store)
    assert store.read("attempt_state", lease_status=None)[0]["status"] == "claimed"
