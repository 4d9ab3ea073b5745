"""Admission: a run begins once, under its key, in the active generation (DESIGN §5)."""

import threading
import time

import psycopg
import pytest

from qinglong_sql.canonical import canonical, derived_id, digest
from qinglong_sql.errors import Malformed, NotReady, Unknown
from qinglong_sql.store import Store, error_of
from qinglong_sql.store.postgres import PostgresStore
from tests import acting
from tests.engines import Engine

DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}


def start(store: Store, **changes: object) -> acting.Row:
    wanted: dict[str, object] = {
        "p_package_key": "nightly",
        "p_kind": "workflow",
        "p_target_key": "flow",
        "p_run_key": "one",
        "p_input": "{}",
    }
    return store.call("start_run", **(wanted | changes))[0]


@pytest.fixture
def published(store: Store) -> Store:
    acting.publish(store, DIAMOND)
    return store


def test_a_run_is_named_by_its_key(published: Store) -> None:
    run_id = derived_id("ru", "nightly", "workflow", "flow", "one")
    assert start(published) == {
        "run_id": run_id, "outcome": "created", "status": "running", "generation": 1,
    }  # fmt: skip
    row = acting.run_row(published, run_id)
    assert (row["input_digest"], row["step_count"], row["attempt_count"]) == (digest("{}"), 4, 0)
    assert acting.unbroken(published)


def test_its_history_begins_with_the_admission_and_its_steps_by_key(published: Store) -> None:
    run_id = start(published)["run_id"]
    rows = published.read("event_log", run_id=run_id, order="sequence")
    assert [(row["sequence"], row["type"], row["entity_id"], row["to_status"]) for row in rows] == [
        (1, "workflow.admitted", run_id, "running"),
        (2, "step.created", "a", "ready"),
        (3, "step.created", "b", "pending"),
        (4, "step.created", "c", "pending"),
        (5, "step.created", "d", "pending"),
    ]
    assert {row["from_status"] for row in rows} == {None}
    assert {row["entity_version"] for row in rows} == {1}
    assert acting.run_row(published, run_id)["version"] == 5
    assert set(acting.agenda(published, run_id)) == {"task_admission"}


def test_a_repeated_start_finds_the_run_and_adds_nothing(published: Store, engine: Engine) -> None:
    first = start(published)
    before = acting.everything(engine)
    assert start(published) == first | {"outcome": "existing"}
    assert acting.everything(engine) == before


def test_another_input_under_the_same_key_is_a_conflict(published: Store, engine: Engine) -> None:
    first = start(published)
    before = acting.everything(engine)
    assert start(published, p_input='{"day":1}') == first | {"outcome": "conflict"}
    assert acting.everything(engine) == before


def test_a_key_is_good_for_one_target(published: Store) -> None:
    flow = start(published)
    task = start(published, p_kind="task", p_target_key="work")
    assert task["outcome"] == "created"
    assert task["run_id"] != flow["run_id"]


def test_a_replay_needs_no_active_generation(published: Store) -> None:
    first = start(published)
    acting.publish(published, {"a": []})
    assert start(published) == first | {"outcome": "existing"}
    assert start(published, p_run_key="two")["generation"] == 2
    published.call("withdraw_package", p_package_key="nightly")
    assert start(published) == first | {"outcome": "existing"}
    with pytest.raises(Unknown):
        start(published, p_run_key="three")


def test_a_run_keeps_its_generation(published: Store) -> None:
    run_id = start(published)["run_id"]
    acting.publish(published, {"a": []})
    acting.admit(published, run_id)
    for _ in range(3):
        acting.finish(published, run_id)
        acting.advance(published, run_id)
    assert acting.ended(published, run_id) == ("succeeded", None)
    assert len(acting.statuses(published, run_id)) == 4


def test_a_task_run_has_the_one_step_main(published: Store) -> None:
    run_id = start(published, p_kind="task", p_target_key="work")["run_id"]
    assert acting.statuses(published, run_id) == {"main": "ready"}
    assert acting.events(published, run_id) == ["workflow.admitted", "step.created"]
    assert acting.unbroken(published)


def test_a_workflows_timeout_is_the_runs_deadline(store: Store) -> None:
    acting.publish(store, DIAMOND, run_timeout_ms=60_000)
    run_id = start(store)["run_id"]
    row = acting.run_row(store, run_id)
    assert row["deadline_at_ms"] == row["admitted_at_ms"] + 60_000
    assert acting.agenda(store, run_id)["deadline"] == row["deadline_at_ms"]


def test_a_tasks_timeout_is_no_deadline_of_its_run(store: Store) -> None:
    acting.publish(store, DIAMOND, timeout_ms=60_000, run_timeout_ms=90_000)
    run_id = acting.start(store, kind="task")
    assert acting.run_row(store, run_id)["deadline_at_ms"] is None
    assert "deadline" not in acting.agenda(store, run_id)


@pytest.mark.parametrize(
    "changes", [{"p_package_key": "daily"}, {"p_target_key": "work"}, {"p_kind": "task"}]
)
def test_what_is_not_published_cannot_be_started(
    published: Store, engine: Engine, changes: dict[str, str]
) -> None:
    before = acting.everything(engine)
    with pytest.raises(Unknown):
        start(published, **changes)
    assert acting.everything(engine) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"p_kind": "package"},
        {"p_kind": None},
        {"p_target_key": None},
        {"p_run_key": None},
        {"p_run_key": ""},
        {"p_run_key": "k" * 201},
        {"p_input": None},
        {"p_input": "[]"},
        {"p_input": "{"},
        {"p_input": canonical({"text": "x" * 16_374})},
    ],
)
def test_a_malformed_start_is_refused(published: Store, changes: dict[str, object]) -> None:
    with pytest.raises(Malformed):
        start(published, **changes)
    assert published.read("run_state") == []


def test_an_input_of_16_kib_is_kept(published: Store) -> None:
    text = canonical({"text": "é" * 8_186 + "x"})
    assert len(text.encode()) == 16_384
    run_id = start(published, p_input=text)["run_id"]
    acting.admit(published, run_id)
    held = acting.lease(published)["a"]
    answer = published.call("attempt_input", p_attempt_id=held.attempt_id, p_token=held.token)
    assert answer[0]["input"] == canonical({"input": {"text": "é" * 8_186 + "x"}, "needs": {}})


# -- PostgreSQL alone: what happens while someone else is at it


CALL = "select * from ql_admission.start_run('nightly', 'workflow', 'flow', %s, '{}')"


def waits(dsn: str) -> None:
    """Return when some session waits for a lock."""
    with psycopg.connect(dsn, autocommit=True) as watcher:
        for _ in range(200):
            found = watcher.execute(
                "select from pg_stat_activity"
                " where wait_event_type = 'Lock' and datname = current_database()"
            ).fetchone()
            if found is not None:
                return
            time.sleep(0.02)
    raise AssertionError("nobody waits")


def beside(dsn: str, holder: psycopg.Connection, key: str) -> acting.Row:
    """Start a run while `holder` has an open transaction; commit that once the start waits."""
    answers: list[acting.Row] = []
    store = PostgresStore(dsn)
    thread = threading.Thread(target=lambda: answers.append(start(store, p_run_key=key)))
    thread.start()
    waits(dsn)
    holder.commit()
    thread.join(timeout=10)
    store.close()
    return answers[0]


def test_a_start_that_waits_for_a_publication_gets_its_generation(postgres_dsn: str) -> None:
    store = PostgresStore(postgres_dsn)
    acting.publish(store, DIAMOND)
    with psycopg.connect(postgres_dsn) as other:
        other.execute(
            "select ql_admission.publish_package('nightly', manifest || ' ', '/srv')"
            " from (select replace(manifest, 'true', 'false') as manifest"
            " from ql.package_generation) as m"
        )
        answer = beside(postgres_dsn, other, "one")
    assert (answer["outcome"], answer["generation"]) == ("created", 2)
    store.close()


def test_two_starts_of_one_key_make_one_run(postgres_dsn: str) -> None:
    store = PostgresStore(postgres_dsn)
    acting.publish(store, DIAMOND)
    with psycopg.connect(postgres_dsn) as other:
        other.execute(CALL, ["one"])
        answer = beside(postgres_dsn, other, "one")
    assert answer["outcome"] == "existing"
    assert len(store.read("run_state")) == 1
    assert acting.unbroken(store)
    store.close()


def test_a_step_asks_for_read_committed(postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(psycopg.Error) as caught:
            other.execute(CALL, ["one"])
    assert isinstance(error_of(caught.value.sqlstate or "", ""), NotReady)


@pytest.mark.parametrize(
    "text", ['{"a":1e400000}', '{"a":' * 20_000 + "1" + "}" * 20_000], ids=["huge", "deep"]
)
def test_an_input_that_cannot_be_read_is_refused(published: Store, text: str) -> None:
    with pytest.raises(Malformed):
        start(published, p_input=text)
