"""`violation` names what must never be true, and nothing else (DESIGN §5, DOMAIN §3.9)."""

import itertools
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg
import pytest

from tests import acting, oracle
from tests.facts import SQL_ROOT, Connection, install, read, write
from tests.state import State
from tests.stores import FakeClock, sqlite_store
from tests.stories import broken_stories, legal_stories, other_shapes, shapes, story
from tests.telling import facts_of

HISTORY = {
    "run_version_is_its_event_count",
    "event_times_never_step_back",
    "events_follow_the_state_machine",
    "step_is_what_its_events_say",
    "attempt_is_what_its_events_say",
    "a_lease_belongs_to_an_attempt_of_its_run",
    "every_row_belongs_to_a_run",
}
ORPHANS = (
    "run_event (run_id, sequence, type, entity, entity_id, to_status, entity_version,"
    " created_at_ms) values ('{}', 1, 'workflow.admitted', 'run', '{}', 'running', 1, 0)",
    "attempt_report (run_id, attempt_id, fence, kind, reported_at_ms)"
    " values ('{}', 'at', 1, 'starting', 0)",
    "attestation (run_id, attempt_id, evidence, reason, actor, attested_at_ms)"
    " values ('{}', 'at', 'declared', '', '', 0)",
    "cancel_intent (run_id, reason, actor, requested_at_ms) values ('{}', 'user', '', 0)",
    "attempt_offer (run_id, attempt_id, fence, offer_id, worker_id, token_digest, self_fencing,"
    " grace_ms, offered_at_ms, expires_at_ms) values ('{}', 'at', 1, 'of', 'w',"
    " '0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef', 1, 0, 0, 0)",
)


@pytest.fixture
def sqlite() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    install(connection)
    yield connection
    connection.close()


@pytest.fixture
def postgres(empty_dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        install(connection)
        yield connection


def broken_rules(connection: Connection, states: list[State]) -> dict[str, set[str]]:
    """Write the runs and read which rules each of them breaks."""
    write(connection, states)
    found = {
        run_id: {row[1] for row in rows}
        for run_id, rows in read(connection, "violation", "run_id, rule").items()
    }
    return {state.run_id: found.get(state.run_id, set()) for state in states}


def test_a_true_history_breaks_no_rule(
    sqlite: sqlite3.Connection, postgres: psycopg.Connection
) -> None:
    states = list(legal_stories(itertools.count(1)))
    for connection in (sqlite, postgres):
        broken = broken_rules(connection, states)
        assert not [(facts_of(one), broken[one.run_id]) for one in states if broken[one.run_id]]


def test_a_lie_in_the_history_is_named(
    sqlite: sqlite3.Connection, postgres: psycopg.Connection
) -> None:
    stories = list(broken_stories(itertools.count(1)))
    for connection in (sqlite, postgres):
        broken = broken_rules(connection, [state for _, state in stories])
        for wanted, state in stories:
            assert broken[state.run_id] == wanted


def test_every_illegal_shape_of_a_step_is_named(
    sqlite: sqlite3.Connection, postgres: psycopg.Connection
) -> None:
    numbers = itertools.count(1)
    states = [*shapes(numbers), *other_shapes(numbers)]
    for connection in (sqlite, postgres):
        broken = broken_rules(connection, states)
        parted = [
            (facts_of(one), one.agenda, broken[one.run_id] - HISTORY, oracle.violations(one))
            for one in states
            if broken[one.run_id] - HISTORY != oracle.violations(one)
        ]
        assert not parted, f"{len(parted)}, such as {parted[:3]}"


def test_a_row_without_its_run_is_named(
    sqlite: sqlite3.Connection, postgres: psycopg.Connection
) -> None:
    for connection, prefix in ((sqlite, ""), (postgres, "ql.")):
        for number, row in enumerate(ORPHANS):
            own_id = f"ru-orphan-{number}"
            connection.execute(f"insert into {prefix}{row.format(own_id, own_id)}")
            rules = {found[1] for found in read(connection, "violation", "run_id, rule")[own_id]}
            assert "every_row_belongs_to_a_run" in rules


def test_every_rule_of_the_view_is_broken_by_some_test() -> None:
    text = (SQL_ROOT / "decision" / "violation.sql").read_text()
    rules = set(re.findall(r"'(\w+)' as rule", text))
    numbers = itertools.count(1)
    shown = set[str]().union(*(wanted for wanted, _ in broken_stories(numbers)))
    for state in (*shapes(numbers), *other_shapes(numbers)):
        shown |= oracle.violations(state)
    of_triggers = {"a_trigger_is_due_when_its_cursor_says", "an_open_run_is_known_to_its_trigger"}
    assert rules == shown | {"every_row_belongs_to_a_run"} | of_triggers  # test_schedule_decision


LIES = (  # what is written, of which rows of a run that succeeded, and the rule that names it
    ("update {}run set version = version + 1", "", "run_version_is_its_event_count"),
    ("update {}run set version = version - 1", "", "run_version_is_its_event_count"),
    (
        "update {}run_event set sequence = sequence + 1",
        "and entity = 'run' and from_status is not null",
        "run_version_is_its_event_count",
    ),
    ("update {}step_run set version = version + 1", "", "step_is_what_its_events_say"),
    ("update {}step_run set version = version - 1", "", "step_is_what_its_events_say"),
    (
        "update {}step_run set status = 'failed', result_code = 'x'",
        "",
        "step_is_what_its_events_say",
    ),
    ("delete from {}run_event", "and entity = 'step'", "step_is_what_its_events_say"),
    ("update {}task_attempt set version = version + 1", "", "attempt_is_what_its_events_say"),
    ("update {}task_attempt set version = version - 1", "", "attempt_is_what_its_events_say"),
    (
        "update {}task_attempt set status = 'failed', result_code = 'x'",
        "",
        "attempt_is_what_its_events_say",
    ),
    ("delete from {}run_event", "and entity = 'attempt'", "attempt_is_what_its_events_say"),
    (
        "update {}run_event set from_status = 'succeeded'",
        "and entity = 'attempt' and to_status = 'running'",
        "events_follow_the_state_machine",
    ),
)


def test_a_row_that_differs_from_its_events_is_named(
    sqlite: sqlite3.Connection, postgres: psycopg.Connection
) -> None:
    for connection, prefix in ((sqlite, ""), (postgres, "ql.")):
        states = [story(number, "succeeded", status="succeeded") for number in range(len(LIES))]
        broken = broken_rules(connection, states)
        assert not any(broken.values())
        for state, (lie, of, _) in zip(states, LIES, strict=True):
            text = f"{lie.format(prefix)} where run_id = '{state.run_id}' {of}"
            assert connection.execute(text).rowcount, text
        found = read(connection, "violation", "run_id, rule")
        for state, (lie, _, rule) in zip(states, LIES, strict=True):
            assert rule in {row[1] for row in found.get(state.run_id, ())}, lie


def test_looking_grows_with_a_history_and_not_with_its_square(tmp_path: Path) -> None:
    """Instructions of SQLite for runs of 16 and of 128 steps."""
    cost = {}
    for width in (16, 128):
        store = sqlite_store(tmp_path, FakeClock(), name=f"{width}.db")
        run_id = acting.begun(store, {f"s{number:03}": [] for number in range(width)})
        acting.finish(store, run_id)
        store.close()
        with closing(sqlite3.connect(tmp_path / f"{width}.db")) as connection:
            looked: list[None] = []
            connection.set_progress_handler(partial(looked.append, None), 100)
            assert connection.execute("select * from violation").fetchall() == []
            cost[width] = len(looked)
    assert cost[16] > 100
    assert cost[128] < 12 * cost[16], cost
