"""Schedulers, a publisher and an operator at the same triggers of one PostgreSQL, at once.

No step of a schedule waits for a row that another step of it holds: no deadlock, nothing twice.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import Any

import psycopg
import pytest

from qinglong_sql.schedule import run_schedule
from qinglong_sql.store import Contended
from qinglong_sql.store.postgres import PostgresStore
from tests import acting
from tests.acting import Row
from tests.scheduling import MINUTE_MS, NAME, begun, claim, commit, many, publish
from tests.stores import ServerClock

TRIGGERS, MINUTES, SCHEDULERS = 24, 8, 3
Work = Callable[[PostgresStore], object]


@pytest.fixture
def clock(postgres_dsn: str) -> Iterator[ServerClock]:
    clock = ServerClock(postgres_dsn, 1_700_000_040_000)  # a whole minute
    yield clock
    clock.close()


def at_once(dsn: str, *works: Work) -> list[BaseException]:
    """Run each on a thread with a store of its own; what they raised."""
    raised: list[BaseException] = []

    def run(work: Work) -> None:
        store = PostgresStore(dsn)
        try:
            work(store)
        except BaseException as error:
            raised.append(error)
        finally:
            store.close()

    threads = [threading.Thread(target=run, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def drained(store: PostgresStore) -> None:
    while run_schedule(store, size=4).scanned:
        pass


def fired(store: PostgresStore) -> "Counter[tuple[Any, Any]]":
    rows = store.read("run_state")
    return Counter(
        (row["trigger_key"], row["scheduled_at_ms"]) for row in rows if row["scheduled_at_ms"]
    )


def deadlocks(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        text = "select deadlocks from pg_stat_database where datname = current_database()"
        (found,) = connection.execute(text).fetchone() or (0,)
    return int(found)


@pytest.fixture
def store(postgres_dsn: str) -> Iterator[PostgresStore]:
    store = PostgresStore(postgres_dsn)
    yield store
    store.close()


@pytest.fixture
def foreign(postgres_dsn: str) -> Iterator["psycopg.Connection[Any]"]:
    """A hand of somebody else, in a transaction that ends when the test says so."""
    with psycopg.connect(postgres_dsn) as connection:
        yield connection


def due(store: PostgresStore, clock: ServerClock) -> Row:
    """The claim of the trigger `every-night`."""
    clock.set(begun(store))
    (row,) = claim(store)
    return row


def test_a_schedule_that_is_held_is_contended_and_not_waited_for(
    store: PostgresStore, clock: ServerClock, foreign: "psycopg.Connection[Any]"
) -> None:
    row = due(store, clock)
    foreign.execute("select from ql.trigger_schedule for update")
    assert commit(store, row)["outcome"] == "contended"
    assert store.call("record_trigger_fault", **NAME, p_state_version=row["state_version"],
                      p_error="held") == []  # fmt: skip
    foreign.rollback()
    assert commit(store, row)["outcome"] == "applied"


def test_a_generation_that_is_held_gives_the_claim_back(
    store: PostgresStore, clock: ServerClock, foreign: "psycopg.Connection[Any]"
) -> None:
    """It is due at once again, and not only when the claim has run out."""
    row = due(store, clock)
    foreign.execute("select from ql.package_generation for update")
    assert commit(store, row)["outcome"] == "contended"
    assert run_schedule(store).contended == 1  # and that was tried again, and no page follows
    foreign.rollback()
    assert run_schedule(store).effects == 1 and len(fired(store)) == 1


def test_what_was_paused_past_all_rules_is_blocked(
    store: PostgresStore, clock: ServerClock, foreign: "psycopg.Connection[Any]"
) -> None:
    row = due(store, clock)
    foreign.execute("update ql.trigger set state = 'paused'")
    foreign.commit()
    assert commit(store, row)["outcome"] == "blocked"
    assert store.read("run_state") == []


def test_a_claim_is_answered_again_to_its_owner_alone(
    store: PostgresStore, clock: ServerClock
) -> None:
    row = due(store, clock)
    assert claim(store) == [row]
    assert claim(store, owner="you") == [] == claim(store, token="t2")
    assert commit(store, row)["outcome"] == "applied"
    assert claim(store) == []


@pytest.mark.parametrize(
    "text",
    [
        "ql_scheduler.record_trigger_fault('nightly', 'every-night', 1, null)",
        "ql_scheduler.claim_schedule(null, 't', 1)",
        "ql_scheduler.claim_schedule('me', 't', null)",
        "ql_scheduler.sweep_schedule(null)",
        "ql_scheduler.commit_schedule('p', 't', 'me', 't', 1, 1, 1, null, 1, 1, 1)",
        "ql_operator.fire_trigger('nightly', null, 'k')",
    ],
)
def test_null_is_refused_by_the_functions_themselves(
    foreign: "psycopg.Connection[Any]", text: str
) -> None:
    with pytest.raises(psycopg.Error) as raised:
        foreign.execute(f"select * from {text}")  # type: ignore[arg-type]
    assert raised.value.sqlstate == "QL400"


def test_every_occurrence_is_fired_by_one_of_several(
    postgres_dsn: str, store: PostgresStore, clock: ServerClock
) -> None:
    publish(store, many(TRIGGERS, cron="* * * * *", tz="UTC"))
    drained(store)
    for _ in range(MINUTES):
        clock.advance(MINUTE_MS)
        assert at_once(postgres_dsn, *[drained] * SCHEDULERS) == []
    found = fired(store)
    assert len(found) == TRIGGERS * (MINUTES + 1) and set(found.values()) == {1}
    assert store.read("violation") == [] and deadlocks(postgres_dsn) == 0


def test_a_publisher_and_an_operator_are_in_nobody_s_way(
    postgres_dsn: str, store: PostgresStore, clock: ServerClock
) -> None:
    publish(store, many(TRIGGERS, cron="* * * * *", tz="UTC"))
    over = threading.Event()
    contended = count()

    def patiently(work: Callable[[], object]) -> None:
        try:
            work()
        except Contended:
            next(contended)

    def scheduler(own: PostgresStore) -> None:
        while not over.is_set():
            run_schedule(own, size=8, pages=2)

    def publisher(own: PostgresStore) -> None:
        for number in range(1_000):
            if over.is_set():
                return
            overlap = ("skip", "allow")[number % 2]
            triggers = many(TRIGGERS, cron="* * * * *", tz="UTC", overlap=overlap)
            patiently(lambda triggers=triggers: publish(own, triggers))  # type: ignore[misc]

    def operator(own: PostgresStore) -> None:
        random = Random(5)
        for number in range(100_000):
            if over.is_set():
                return
            key = f"t{random.randrange(TRIGGERS):04}"
            step = random.choice(["pause_trigger", "resume_trigger", "fire_trigger"])
            more = {"p_run_key": f"by hand {number}"} if step == "fire_trigger" else {}
            names = {"p_package_key": "nightly", "p_trigger_key": key}
            patiently(lambda: own.call(step, **names, **more))  # noqa: B023  called at once

    def minutes(own: PostgresStore) -> None:
        for _ in range(25):
            over.wait(0.2)
            clock.advance(MINUTE_MS)
        over.set()

    works = (scheduler, scheduler, publisher, operator, operator, minutes)
    raised = at_once(postgres_dsn, *works)
    over.set()
    assert raised == []
    for number in range(TRIGGERS):
        store.call("resume_trigger", p_package_key="nightly", p_trigger_key=f"t{number:04}")
    clock.advance(2 * MINUTE_MS)
    drained(store)
    assert deadlocks(postgres_dsn) == 0 and store.read("violation") == []
    found = fired(store)
    assert len(found) > TRIGGERS and set(found.values()) == {1}
    assert acting.unbroken(store)
    faults = [row["fault_error"] for row in store.read("trigger_state") if row["fault_error"]]
    assert faults == []
