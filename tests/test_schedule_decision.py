"""The views of decision/schedule.sql against the oracle, in every combination, on both engines."""

import itertools
import sqlite3
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from qinglong_sql.cron_fire import next_fire
from qinglong_sql.limits import CRON_GRACE_MS
from qinglong_sql.schedule import run_schedule
from tests import acting, facts, oracle_schedule
from tests.acting import Store
from tests.facts import Connection
from tests.scheduling import MINUTE_MS, NIGHTLY, publish, trigger
from tests.stores import FakeClock

ARRIVALS = ("early", "on_time", "late")
STATES = ("active", "paused", "withdrawn")
GENERATIONS = ("active", "superseded", "withdrawn")
MISFIRES, OVERLAPS = ("fire_once", "skip"), ("allow", "skip")
RUNS = ("none", "open", "ended", "purged", "open_of_another", "open_and_ended", "marked")
CURSORS, CLAIMS, TRIES = (None, 0, 7), (None, 11), (None, 13)


@pytest.fixture
def sqlite() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    facts.install(connection)
    yield connection
    connection.close()


@pytest.fixture
def postgres(empty_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        facts.install(connection)
        yield connection


def insert(connection: Connection, table: str, **values: object) -> None:
    prefix = "" if isinstance(connection, sqlite3.Connection) else "ql."
    mark = "?" if prefix == "" else "%s"
    marks = ", ".join([mark] * len(values))
    text = f"insert into {prefix}{table} ({', '.join(values)}) values ({marks})"
    connection.execute(text, list(values.values()))  # type: ignore[arg-type]


def package(connection: Connection, key: str, state: str) -> None:
    insert(connection, "package", package_key=key, generation=1, base_dir="/", updated_at_ms=1)
    insert(
        connection, "package_generation", package_key=key, generation=1, digest="d", manifest="{}",
        published_at_ms=1, state=state, ended_at_ms=None if state == "active" else 2,
    )  # fmt: skip


def one(connection: Connection, package_key: str, key: str, **changes: object) -> None:
    """A trigger with its schedule; `changes` are of either."""
    schedule = {
        "next_fire_at_ms": 5, "state_version": 1, "claim_version": 0, "updated_at_ms": 1,
    }  # fmt: skip
    own = {
        "generation": 1, "state": "active", "cron": "* * * * *", "tz": "UTC", "kind": "task",
        "target_key": "work", "misfire": "skip", "overlap": "skip", "updated_at_ms": 1,
    }  # fmt: skip
    names = {"package_key": package_key, "trigger_key": key}
    insert(connection, "trigger", **names, **{k: changes.get(k, v) for k, v in own.items()})
    more = {k: v for k, v in changes.items() if k not in own}
    insert(connection, "trigger_schedule", **names, **schedule | more)


def run(connection: Connection, package_key: str, key: str, word: str) -> None:
    """`marked` is known as ended, as only a foreign hand can make it while it is open."""
    for status in word.replace("open_of_another", "open").split("_and_"):
        owner = f"{key}-other" if word == "open_of_another" else key
        run_id = f"ru-{package_key}-{key}-{status}"
        insert(
            connection, "trigger_run", run_id=run_id, package_key=package_key, trigger_key=owner,
            open_at_ms=None if word == "marked" else 1,
        )  # fmt: skip
        if status == "purged":
            continue
        ended = status == "ended"
        insert(
            connection, "run", run_id=run_id, package_key=package_key, generation=1, kind="task",
            target_key="work", target_id="ta", run_key="k", input_digest="d", step_count=1,
            admitted_at_ms=1, status="succeeded" if ended else "running", version=1,
            attempt_count=0, finished_at_ms=2 if ended else None, updated_at_ms=1,
        )  # fmt: skip


def differences(connection: Connection) -> tuple[set[Any], set[Any]]:
    """What the views and the oracle say otherwise, in every combination: decided, blocked."""
    expected: dict[tuple[str, str, str], tuple[str, str | None]] = {}
    blocked: dict[tuple[str, str], set[str]] = {}
    combinations = itertools.product(STATES, GENERATIONS, MISFIRES, OVERLAPS, RUNS)
    for generation in GENERATIONS:
        package(connection, generation, generation)
    for number, (state, generation, misfire, overlap, word) in enumerate(combinations):
        key = f"t{number:03}"
        one(connection, generation, key, state=state, misfire=misfire, overlap=overlap)
        if word != "none":
            run(connection, generation, key, word)
        is_open = word in {"open", "open_and_ended"}
        if state == generation == "active":
            for found in ARRIVALS:
                told = oracle_schedule.decide(found, misfire, overlap, is_open)
                expected[generation, key, found] = told
        waits = {"resume"} if state == "paused" else set()
        if state == "active" and overlap == "skip" and is_open:
            waits.add("overlap")
        if waits:
            blocked[generation, key] = waits
    prefix = "" if isinstance(connection, sqlite3.Connection) else "ql."
    columns = "package_key, trigger_key, arrival, disposition, cause"
    found_rows = connection.execute(f"select {columns} from {prefix}schedule_decision").fetchall()  # type: ignore[arg-type]
    decided = {(*row,) for row in found_rows}
    wanted = {(*key, *told) for key, told in expected.items()}
    assert len(wanted) == 84
    columns = "package_key, trigger_key, waits_for"
    waiting = connection.execute(f"select {columns} from {prefix}schedule_blocked").fetchall()  # type: ignore[arg-type]
    told_waits: dict[tuple[str, str], set[str]] = {}
    for package_key, key, waits_for in waiting:
        told_waits.setdefault((package_key, key), set()).add(waits_for)
    told = {(*key, *sorted(waits)) for key, waits in told_waits.items()}
    return decided ^ wanted, told ^ {(*key, *sorted(waits)) for key, waits in blocked.items()}


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_every_combination_is_decided_as_the_oracle_does(
    kind: str, request: pytest.FixtureRequest
) -> None:
    assert differences(request.getfixturevalue(kind)) == (set(), set())


MUTANTS = {
    "a late one is skipped whatever its misfire": (
        "a.word = 'late' and t.misfire = 'skip'",
        "a.word = 'late'",
    ),
    "what is due on time is a misfire": ("a.word = 'late' and t.misfire", "t.misfire"),
    "overlap is not looked at": ("when t.overlap = 'skip'", "when t.overlap = 'never'"),
    "a run that has ended is in the way": (
        "(select r.status from run as r where r.run_id = m.run_id) = 'running'",
        "(select r.status from run as r where r.run_id = m.run_id) is not null",
    ),
    "a paused trigger fires": ("where t.state = 'active'", "where t.state <> 'withdrawn'"),
    "a trigger of an old generation fires": ("      and g.state = 'active'\n", ""),
    "a run that was marked as ended is in the way": (
        "          and m.open_at_ms is not null\n",
        "",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_changed_rule_is_caught(sqlite: sqlite3.Connection, name: str) -> None:
    old, new = MUTANTS[name]
    text = facts.decision("schedule")
    assert old in text
    facts.decide(sqlite, {"schedule": text.replace(old, new)})
    assert differences(sqlite) != (set(), set())


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_trigger_is_due_as_the_oracle_says(kind: str, request: pytest.FixtureRequest) -> None:
    connection: Connection = request.getfixturevalue(kind)
    package(connection, "p", "active")
    expected: dict[str, int | None] = {}
    for number, (state, cursor, claim, next_try) in enumerate(
        itertools.product(STATES, CURSORS, CLAIMS, TRIES)
    ):
        key = f"t{number:03}"
        held = {} if claim is None else {
            "claim_owner": "me", "claim_token": "t", "claim_expires_at_ms": claim,
            "claimed_at_ms": 1, "seen_at_ms": 1,
        }  # fmt: skip
        one(connection, "p", key, state=state, next_fire_at_ms=cursor, **held)
        if next_try is not None:
            insert(
                connection, "trigger_fault", package_key="p", trigger_key=key, error="e",
                fault_count=1, first_at_ms=1, last_at_ms=1, next_try_at_ms=next_try,
            )  # fmt: skip
        expected[key] = oracle_schedule.due_at(state, cursor, claim, next_try)
    prefix = "" if kind == "sqlite" else "ql."
    text = f"select trigger_key, due_at_ms from {prefix}schedule_due"
    assert dict(connection.execute(text).fetchall()) == expected  # type: ignore[arg-type]
    text = f"select rule, entity_id from {prefix}violation"
    lies = {key for key, due_ms in expected.items() if due_ms is not None}
    assert set(connection.execute(text).fetchall()) == {  # type: ignore[arg-type]
        ("a_trigger_is_due_when_its_cursor_says", f"p/{key}") for key in lies
    }


@pytest.mark.parametrize("mark", [None, "t", "other", "ended"])
@pytest.mark.parametrize("how", ["trigger_key", "retry_of_run_id"])
def test_an_open_run_that_its_trigger_does_not_know_is_named(
    sqlite: sqlite3.Connection, how: str, mark: str | None
) -> None:
    package(sqlite, "p", "active")
    own = {"trigger_key": "t"} if how == "trigger_key" else {"retry_of_run_id": "old"}
    insert(
        sqlite, "run", run_id="ru", package_key="p", generation=1, kind="task",
        target_key="work", target_id="ta", run_key="k", input_digest="d", step_count=0,
        admitted_at_ms=1, status="running", version=1, attempt_count=0, updated_at_ms=1, **own,
    )  # fmt: skip
    if how == "retry_of_run_id":
        insert(sqlite, "trigger_run", run_id="old", package_key="p", trigger_key="t")
    if mark is not None:
        insert(
            sqlite, "trigger_run", run_id="ru", package_key="p",
            trigger_key="t" if mark == "ended" else mark,
            open_at_ms=None if mark == "ended" else 1,
        )  # fmt: skip
    text = "select entity_id from violation where rule = 'an_open_run_is_known_to_its_trigger'"
    assert sqlite.execute(text).fetchall() == ([] if mark == "t" else [("t",)])


@pytest.mark.parametrize("late_ms", [-1, 0, CRON_GRACE_MS, CRON_GRACE_MS + 1, 49 * MINUTE_MS * 60])
def test_a_commit_does_what_the_oracle_says(store: Store, clock: FakeClock, late_ms: int) -> None:
    kinds = list(itertools.product(MISFIRES, OVERLAPS, (False, True), (False, True)))
    names = [f"t{number:02}" for number in range(len(kinds))]
    triggers = {
        key: NIGHTLY | {"misfire": misfire, "overlap": overlap}
        for key, (misfire, overlap, _, _) in zip(names, kinds, strict=True)
    }
    # those without a cursor are published, but not looked at before
    cron, tz = NIGHTLY["cron"], NIGHTLY["tz"]
    publish(store, triggers)
    due_ms = next_fire(cron, tz, clock.now_ms)
    assert due_ms is not None
    for key, (_, _, has_cursor, is_open) in zip(names, kinds, strict=True):
        name = {"p_package_key": "nightly", "p_trigger_key": key}
        if not has_cursor:
            store.call("pause_trigger", **name)
        if is_open:
            store.call("fire_trigger", **name, p_run_key="open")
    run_schedule(store)
    for key, (_, _, has_cursor, _) in zip(names, kinds, strict=True):
        assert (trigger(store, key)["next_fire_at_ms"] == due_ms) == has_cursor
        if not has_cursor:
            store.call("resume_trigger", p_package_key="nightly", p_trigger_key=key)
    clock.set(due_ms + late_ms)
    run_schedule(store)
    next_ms = next_fire(cron, tz, clock.now_ms)
    assert next_ms is not None
    for key, (misfire, overlap, _, is_open) in zip(names, kinds, strict=True):
        told = oracle_schedule.occurrence(
            due_ms, next_ms, clock.now_ms, CRON_GRACE_MS, misfire, overlap, is_open
        )
        found = trigger(store, key)
        started = store.read("run_state", trigger_key=key, scheduled_at_ms=due_ms)
        assert (found["next_fire_at_ms"], len(started)) == (told.cursor, told.runs), (key, told)
        last = {"initialize": None, "admit": "admitted"}.get(told.disposition, told.cause)
        assert found["last_outcome"] == last
    assert store.read("violation") == []
    assert acting.unbroken(store)
