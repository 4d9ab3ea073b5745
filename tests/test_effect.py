"""Effects: one update an entity, one event an effect, and the agenda (DESIGN §4, §5)."""

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qinglong_sql.canonical import canonical, derived_id, digest
from qinglong_sql.store import Store
from qinglong_sql.store.postgres import PostgresStore
from tests import acting

CHAIN = {"a": [], "b": ["a"]}


def test_a_report_from_starting_writes_both_steps_of_the_way(store: Store) -> None:
    run_id = acting.begun(store, CHAIN)
    held = acting.lease(store)["a"]
    acting.cross(store, held)
    mark = acting.run_row(store, run_id)["version"]
    acting.report(store, held)
    assert acting.events(store, run_id, after=mark) == [
        "step.running", "workflow.task_attempt.succeeded", "step.succeeded",
    ]  # fmt: skip
    step = acting.step(store, run_id)
    assert (step["status"], step["version"], step["attempt_count"]) == ("succeeded", 3, 1)
    assert step["ready_at_ms"] <= step["started_at_ms"] == step["finished_at_ms"]
    assert acting.unbroken(store)


def test_sequence_version_and_time_of_the_history_agree(store: Store) -> None:
    run_id = acting.begun(store, CHAIN)
    acting.finish(store, run_id)
    acting.advance(store, run_id)
    acting.finish(store, run_id)
    acting.advance(store, run_id)
    run = acting.run_row(store, run_id)
    rows = store.read("event_log", run_id=run_id, order="sequence")
    assert [row["sequence"] for row in rows] == list(range(1, run["version"] + 1))
    assert rows[-1]["entity_version"] == run["version"]
    times = [row["created_at_ms"] for row in rows]
    assert times == sorted(times)
    assert times[-1] == run["updated_at_ms"] == run["finished_at_ms"]
    seen: dict[tuple[str, str], int] = {}
    for row in rows:
        if row["entity"] != "run":
            entity = (row["entity"], row["entity_id"])
            seen[entity] = seen.get(entity, 0) + 1
            assert row["entity_version"] == seen[entity]
    assert acting.unbroken(store)


def test_the_start_barrier_ends_the_offer(store: Store) -> None:
    acting.begun(store, CHAIN)
    held = acting.lease(store)["a"]
    acting.cross(store, held)
    attempt = acting.attempt(store, held.attempt_id)
    assert (attempt["status"], attempt["deadline_at_ms"]) == ("starting", None)
    assert acting.lease(store, "o2") == {}


def test_a_tasks_timeout_counts_from_the_barrier(store: Store) -> None:
    acting.publish(store, timeout_ms=7_000)
    acting.admit(store, acting.start(store, kind="task"))
    held = acting.lease(store)["main"]
    acting.cross(store, held)
    attempt = acting.attempt(store, held.attempt_id)
    assert attempt["deadline_at_ms"] == attempt["starting_at_ms"] + 7_000


def test_the_end_of_an_attempt_completes_its_lease(store: Store) -> None:
    acting.begun(store, CHAIN)
    held = acting.lease(store)["a"]
    acting.run(store, held)
    before = acting.attempt(store, held.attempt_id)
    acting.report(store, held, exit_code=3)
    after = acting.attempt(store, held.attempt_id)
    assert (after["status"], after["exit_code"], after["result_code"]) == (
        "failed", 3, "execution_failed",
    )  # fmt: skip
    assert (after["lease_status"], after["fence"]) == ("completed", before["fence"] + 1)
    assert acting.unbroken(store)


def test_a_claim_that_comes_back_releases_its_lease_and_opens_an_epoch(store: Store) -> None:
    run_id = acting.begun(store, CHAIN)
    held = acting.lease(store)["a"]
    before = acting.step(store, run_id)
    acting.report(store, held, how="not_started", exit_code=None)
    assert acting.attempt(store, held.attempt_id)["lease_status"] == "released"
    step = acting.step(store, run_id)
    assert (step["status"], step["version"]) == ("ready", before["version"] + 1)
    assert (step["claim_return_count"], step["attempt_count"]) == (1, 0)
    assert step["ready_at_ms"] == before["ready_at_ms"]
    assert "task_admission" in acting.agenda(store, run_id)


def test_an_output_belongs_to_the_step_that_succeeded(store: Store) -> None:
    run_id = acting.begun(store, {"a": [], "b": []})
    held = acting.lease(store, "o1", "o2")
    acting.run(store, *held.values())
    acting.report(store, held["a"], output='{"rows":7}')
    acting.report(store, held["b"], exit_code=1, output='{"rows":8}')
    assert acting.step(store, run_id, "a")["output"] == '{"rows":7}'
    assert acting.step(store, run_id, "b")["output"] is None


def test_a_back_off_keeps_the_times_and_then_opens_an_epoch(store: Store) -> None:
    run_id = acting.begun(store, CHAIN, retry={"attempts": 2, "backoff_ms": 0, "max_backoff_ms": 0})
    held = acting.lease(store)["a"]
    acting.run(store, held)
    acting.report(store, held, exit_code=1)
    waiting = acting.step(store, run_id)
    assert (waiting["status"], waiting["result_code"]) == ("retry_wait", "execution_failed")
    assert waiting["started_at_ms"] is not None
    assert acting.agenda(store, run_id)["retry"] == waiting["due_at_ms"]
    store.call("retry_run", p_run_id=run_id)
    ready = acting.step(store, run_id)
    assert (ready["status"], ready["result_code"], ready["due_at_ms"]) == ("ready", None, None)
    assert ready["started_at_ms"] is None
    assert ready["ready_at_ms"] == waiting["ready_at_ms"]
    assert set(acting.agenda(store, run_id)) == {"task_admission", "expiry"}


# -- the agenda


def test_work_announces_itself(store: Store) -> None:
    acting.publish(store, CHAIN)
    run_id = acting.start(store)
    assert set(acting.agenda(store, run_id)) == {"task_admission"}
    acting.admit(store, run_id)
    assert acting.agenda(store, run_id) == {}
    held = acting.lease(store)["a"]
    expires = held.row["expires_at_ms"]
    assert acting.agenda(store, run_id) == {"expiry": expires}
    acting.run(store, held)
    acting.report(store, held)
    assert set(acting.agenda(store, run_id)) == {"expiry", "frontier"}
    store.call("advance_frontier", p_run_id=run_id)
    assert set(acting.agenda(store, run_id)) == {"expiry", "task_admission"}


def test_the_end_of_a_run_clears_its_agenda_and_its_faults(store: Store) -> None:
    run_id = acting.begun(store, {"a": []}, run_timeout_ms=60_000)
    acting.finish(store, run_id)
    assert set(acting.agenda(store, run_id)) == {"deadline", "expiry", "frontier"}
    store.call("record_fault", p_run_id=run_id, p_stage="deadline", p_error="a test")
    store.call("advance_frontier", p_run_id=run_id)
    assert acting.ended(store, run_id) == ("succeeded", None)
    assert acting.agenda(store, run_id) == {}
    assert store.read("fault_state", run_id=run_id) == []


def test_an_intent_leaves_cancellation_and_expiry_on_the_agenda(store: Store) -> None:
    run_id = acting.begun(store, {"a": [], "b": []}, run_timeout_ms=60_000)
    held = acting.lease(store)
    acting.run(store, *held.values())
    acting.report(store, *held.values())
    acting.lease(store, "o2")
    acting.cancel(store, run_id)
    run = acting.run_row(store, run_id)
    assert (run["cancel_reason"], run["status"]) == ("user", "running")
    assert set(acting.agenda(store, run_id)) == {"cancellation", "expiry"}
    assert acting.unbroken(store)


def test_an_end_under_an_intent_calls_for_convergence(store: Store) -> None:
    run_id = acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    acting.run(store, held)
    acting.cancel(store, run_id)
    assert acting.converge(store, run_id)["outcome"] == "blocked"
    assert "cancellation" not in acting.agenda(store, run_id)
    acting.report(store, held, how="stop", exit_code=None)
    assert "cancellation" in acting.agenda(store, run_id)
    assert "frontier" not in acting.agenda(store, run_id)
    assert acting.converge(store, run_id)["outcome"] == "settled"
    assert acting.agenda(store, run_id) == {}
    assert acting.unbroken(store)


# -- PostgreSQL alone: apply_effects called directly


@pytest.fixture
def bare(postgres_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A superuser's connection, autocommit."""
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        yield connection


def apply(bare: psycopg.Connection[Any], *effects: dict[str, Any]) -> int:
    row = bare.execute(
        "select ql.apply_effects(array(select e from"
        " jsonb_populate_recordset(null::ql.effect, %s) as e), 'frontier')",
        [json.dumps(effects)],
    ).fetchone()
    assert row is not None
    return int(row[0])


def opening(run_id: str, key: str = "b", **changes: Any) -> dict[str, Any]:
    """The effect that opens a pending step of version 1."""
    effect = {
        "run_id": run_id,
        "ordinal": 1,
        "entity": "step",
        "entity_id": key,
        "from_status": "pending",
        "to_status": "ready",
        "expected_version": 1,
        "result_code": None,
        "event_type": "step.ready",
        "due_at_ms": None,
        "input_id": None,
    }
    return effect | changes


@pytest.mark.parametrize(
    "changes",
    [
        {"from_status": "ready"},
        {"expected_version": 2},
        {"entity_id": "nobody"},
        {"run_id": "nobody"},
        {"from_status": None, "input_id": "some task"},
        {"entity": "attempt"},
        {"entity": "lease"},
        {"entity": "run", "from_status": "running", "to_status": "failed", "result_code": "x"},
    ],
    ids=str,
)
@pytest.mark.all_versions
def test_what_the_decision_did_not_see_is_refused_whole(
    postgres_dsn: str, bare: psycopg.Connection[Any], changes: dict[str, Any]
) -> None:
    store = PostgresStore(postgres_dsn)
    acting.publish(store, {"a": [], "b": ["a"], "c": ["a"]})
    run_id = acting.start(store)
    before = store.read("event_log"), store.read("step_state"), store.read("run_state")
    with pytest.raises(psycopg.Error) as caught:
        apply(bare, opening(run_id, "c"), opening(run_id, ordinal=2) | changes)
    assert caught.value.sqlstate == "QL409"
    assert before == (store.read("event_log"), store.read("step_state"), store.read("run_state"))
    store.close()


def test_one_call_moves_many_runs_and_ordinals_may_have_holes(
    postgres_dsn: str, bare: psycopg.Connection[Any]
) -> None:
    store = PostgresStore(postgres_dsn)
    acting.publish(store, CHAIN | {"c": ["a"]})
    runs = [acting.start(store, key=f"k{number}") for number in range(32)]
    effects = [
        opening(run_id, key, ordinal=ordinal)
        for run_id in runs
        for key, ordinal in (("c", 9), ("b", 4))
    ]
    assert apply(bare, *effects) == 64
    for run_id in runs:
        rows = store.read("event_log", run_id=run_id, order="sequence")[-2:]
        assert [(row["sequence"], row["entity_id"]) for row in rows] == [(5, "b"), (6, "c")]
        assert acting.run_row(store, run_id)["version"] == 6
    store.close()


def test_a_clock_that_steps_back_breaks_nothing(
    postgres_dsn: str, bare: psycopg.Connection[Any]
) -> None:
    store = PostgresStore(postgres_dsn)
    run_id = acting.begun(store, CHAIN)
    newest = acting.run_row(store, run_id)["updated_at_ms"]
    bare.execute(
        "create or replace function ql.now_ms () returns bigint"
        f" language sql as 'select {newest - 60_000}::bigint'"
    )
    apply(bare, opening(run_id))
    assert acting.run_row(store, run_id)["updated_at_ms"] == newest
    assert acting.step(store, run_id, "b")["ready_at_ms"] == newest
    assert acting.unbroken(store)
    store.close()


def test_ids_and_digests_are_pythons(bare: psycopg.Connection[Any]) -> None:
    text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
    number = st.integers(-(2**63), 2**63 - 1)
    value = st.recursive(
        st.none() | st.booleans() | number | text,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
        max_leaves=12,
    )

    @settings(max_examples=150, deadline=None, database=None, derandomize=True)
    @given(st.lists(text, min_size=1, max_size=4), value)
    def same(parts: list[str], tree: Any) -> None:
        row = bare.execute(
            "select ql.derived_id('ru', variadic %s::text[]), ql.sha256_hex(%s),"
            " ql.canonical(%s::jsonb), ql.jitter(%s, 'step', 3)",
            [parts, parts[0], canonical(tree), parts[0]],
        ).fetchone()
        jitter = int(derived_id("ji", parts[0], "step", 3)[2:5], 16) % 1024
        assert row == (derived_id("ru", *parts), digest(parts[0]), canonical(tree), jitter)

    same()
