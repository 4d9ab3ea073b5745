"""`start_retry`: a new run that takes over what would come out the same (sql/README.md, rules)."""

import json
import sqlite3
import threading
from contextlib import closing

import psycopg
import pytest

from qinglong_sql.canonical import canonical, derived_id
from qinglong_sql.errors import Malformed, Unknown
from qinglong_sql.store import Store
from qinglong_sql.store.postgres import PostgresStore
from tests import acting
from tests.engines import Engine
from tests.test_admission import waits

CHAIN = {"a": [], "b": ["a"], "c": ["b"]}
DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}
Needs = dict[str, list[str]]


def flow(store: Store, needs: Needs, **texts: str) -> None:
    """Publish `flow` with a task of its own for each step; texts say what a step runs otherwise."""
    steps = {key: {"needs": list(wants), "task": f"t-{key}"} for key, wants in needs.items()}
    tasks = {f"t-{key}": acting.task(run=[texts.get(key, "true"), key]) for key in needs}
    flows = {"flow": {"steps": steps, "timeout_ms": 3_600_000}}
    acting.publish_model(store, acting.model(tasks, flows))


def drive(store: Store, run_id: str, **exits: int) -> str:
    """Run everything to the end; each step's output names its run. The run's status."""
    acting.advance(store, run_id)
    for turn in range(9):
        count = len(store.read("attempt_state", run_id=run_id, status="claimed"))
        held = acting.lease(store, *(f"{run_id[-8:]}.{turn}.{one}" for one in range(count)))
        acting.run(store, *held.values())
        for key, one in held.items():
            code = exits.get(key, 0)
            acting.report(store, one, exit_code=code, output=None if code else output(run_id))
        acting.advance(store, run_id)
        if acting.run_row(store, run_id)["status"] != "running":
            break
    return str(acting.run_row(store, run_id)["status"])


def output(run_id: str) -> str:
    return canonical({"by": run_id})


def failed(store: Store, needs: Needs, *steps: str, text: str = "{}") -> str:
    """A run of `flow` in which these steps have failed."""
    flow(store, needs)
    run_id = acting.start(store, text=text)
    assert drive(store, run_id, **dict.fromkeys(steps, 1)) == "failed"
    return run_id


def retry(store: Store, run_id: str, key: str | None = None) -> acting.Row:
    return store.call("start_retry", p_run_id=run_id, p_run_key=key)[0]


def taken(store: Store, run_id: str) -> str:
    """Keys of the steps that were taken over."""
    rows = store.read("step_state", order="step_key", run_id=run_id)
    return "".join(row["step_key"] for row in rows if row["result_code"] == "taken_over")


def ran(store: Store, run_id: str) -> set[str]:
    return {row["step_key"] for row in store.read("attempt_state", run_id=run_id)}


def causes(store: Store, run_id: str, target_id: str | None = None) -> dict[str, str | None]:
    """What `takeover` says of a retry in the active generation."""
    row = acting.run_row(store, run_id)
    active = store.read("package_state", package_key="nightly", state="active")[0]["generation"]
    wanted = {"kind": row["kind"], "target_key": row["target_key"], "generation": active}
    target_id = target_id or store.read("target_state", **wanted)[0]["target_id"]
    rows = store.read("takeover", run_id=run_id, retried_run_id=run_id, target_id=target_id)
    return {row["step_key"]: row["cause"] for row in rows}


def test_what_succeeded_is_taken_over_and_the_rest_runs(store: Store) -> None:
    old = failed(store, DIAMOND, "c")
    assert causes(store, old) == {"a": None, "b": None, "c": "not_succeeded", "d": "not_succeeded"}
    new = derived_id("ru", "retry", old)
    assert retry(store, old) == {
        "run_id": new, "outcome": "created", "status": "running", "generation": 1,
        "taken_over_count": 2,
    }  # fmt: skip
    assert acting.statuses(store, new) == {
        "a": "succeeded", "b": "succeeded", "c": "pending", "d": "pending",
    }  # fmt: skip
    assert drive(store, new) == "succeeded"
    assert ran(store, new) == {"c", "d"}
    assert acting.unbroken(store)


def test_its_admission_is_that_of_the_old_run_in_the_active_generation(store: Store) -> None:
    old = acting.run_row(store, failed(store, CHAIN, "b", text='{"day":1}'))
    flow(store, CHAIN, b="sh")
    new = acting.run_row(store, retry(store, old["run_id"])["run_id"])
    assert (new["generation"], new["retry_of_run_id"], new["run_key"]) == (2, old["run_id"], "")
    same = ("package_key", "kind", "target_key", "input_digest", "step_count")
    assert [new[name] for name in same] == [old[name] for name in same]
    assert new["deadline_at_ms"] == new["admitted_at_ms"] + 3_600_000
    assert old["retry_of_run_id"] is None
    assert store.read("run_admission", run_id=new["run_id"])[0]["retry_of_run_id"] == old["run_id"]


def test_a_step_that_is_taken_over_has_no_attempt_and_one_event(store: Store) -> None:
    new = retry(store, failed(store, CHAIN, "b"))["run_id"]
    rows = store.read("event_log", run_id=new, order="sequence")
    assert [(row["sequence"], row["type"], row["entity_id"], row["to_status"]) for row in rows] == [
        (1, "workflow.admitted", new, "running"),
        (2, "step.taken_over", "a", "succeeded"),
        (3, "step.created", "b", "pending"),
        (4, "step.created", "c", "pending"),
    ]
    assert {row["from_status"] for row in rows} == {None}
    step = acting.step(store, new)
    assert (step["attempt_count"], step["result_code"]) == (0, "taken_over")
    run = acting.run_row(store, new)
    assert (run["version"], run["attempt_count"]) == (4, 0)
    assert (step["started_at_ms"], step["finished_at_ms"]) == (None, run["admitted_at_ms"])
    assert set(acting.agenda(store, new)) == {"frontier", "deadline"}
    assert acting.unbroken(store)


def test_an_output_is_passed_on(store: Store) -> None:
    old = failed(store, CHAIN, "b", text='{"day":1}')
    new = retry(store, old)["run_id"]
    acting.advance(store, new)
    held = acting.lease(store, "again")["b"]
    answer = store.call("attempt_input", p_attempt_id=held.attempt_id, p_token=held.token)[0]
    assert json.loads(answer["input"]) == {"input": {"day": 1}, "needs": {"a": {"by": old}}}


def test_a_task_that_says_something_else_runs_again_with_all_below_it(store: Store) -> None:
    old = failed(store, DIAMOND, "d")
    flow(store, DIAMOND, b="sh")
    assert causes(store, old) == {
        "a": None, "b": "task_changed", "c": None, "d": "not_succeeded",
    }  # fmt: skip
    assert taken(store, retry(store, old)["run_id"]) == "ac"
    flow(store, DIAMOND, a="sh")
    assert causes(store, old)["c"] == "need_runs_again"
    assert taken(store, retry(store, old, "other")["run_id"]) == ""


def test_the_same_text_under_another_name_is_the_same_task(store: Store) -> None:
    old = failed(store, CHAIN, "c")
    task = acting.task(run=["true", "a"])
    steps = {"a": {"needs": [], "task": "renamed"}}
    flows = {"flow": {"steps": steps, "timeout_ms": None}}
    acting.publish_model(store, acting.model({"renamed": task}, flows))
    new = retry(store, old)["run_id"]
    assert taken(store, new) == "a"


def test_what_comes_between_runs_and_all_below_it(store: Store) -> None:
    old = failed(store, CHAIN, "c")
    flow(store, {"a": [], "n": ["a"], "b": ["n"], "c": ["b"]})
    assert causes(store, old) == {
        "a": None, "n": "not_there", "b": "needs_changed", "c": "not_succeeded",
    }  # fmt: skip
    new = retry(store, old)["run_id"]
    assert taken(store, new) == "a"
    assert drive(store, new) == "succeeded"
    assert ran(store, new) == {"n", "b", "c"}


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ({"a": [], "b": [], "c": ["b"]}, {"a": [], "b": ["a"], "c": ["b"]}),
        ({"a": [], "b": ["a"], "c": ["b"]}, {"a": [], "b": [], "c": ["b"]}),
    ],
    ids=["more", "less"],
)
def test_a_step_with_other_needs_runs_again(store: Store, was: Needs, now: Needs) -> None:
    old = failed(store, was, "c")
    flow(store, now)
    assert causes(store, old)["b"] == "needs_changed"
    assert taken(store, retry(store, old)["run_id"]) == "a"


def test_a_step_that_is_no_longer_there_is_left_out(store: Store) -> None:
    old = failed(store, DIAMOND, "c")
    flow(store, {"a": [], "b": ["a"]})
    new = retry(store, old)["run_id"]
    assert taken(store, new) == "ab"
    assert drive(store, new) == "succeeded", "nothing is left to run"
    assert ran(store, new) == set()
    assert acting.unbroken(store)


def test_a_retry_is_retried_in_turn_and_takes_over_along_the_chain(store: Store) -> None:
    first = failed(store, CHAIN, "b")
    second = retry(store, first)["run_id"]
    assert drive(store, second, c=1) == "failed"
    third = retry(store, second)
    assert (third["outcome"], third["taken_over_count"]) == ("created", 2)
    assert taken(store, third["run_id"]) == "ab"
    assert drive(store, third["run_id"]) == "succeeded"
    held = {row["step_key"]: row for row in store.read("step_state", run_id=third["run_id"])}
    assert held["a"]["attempt_count"] == 0
    assert acting.unbroken(store)


def test_a_repeated_retry_finds_the_run_and_adds_nothing(store: Store, engine: Engine) -> None:
    old = failed(store, CHAIN, "b")
    first = retry(store, old)
    before = acting.everything(engine)
    assert retry(store, old) == first | {"outcome": "existing"}
    assert acting.everything(engine) == before
    flow(store, CHAIN, b="sh")
    store.call("withdraw_package", p_package_key="nightly")
    assert retry(store, old) == first | {"outcome": "existing"}, "whatever is active now"


def test_with_keys_a_run_is_retried_more_than_once(store: Store, engine: Engine) -> None:
    old = failed(store, CHAIN, "b")
    plain, keyed = retry(store, old), retry(store, old, "k")
    assert keyed["run_id"] == derived_id("ru", "nightly", "workflow", "flow", "k")
    assert keyed == plain | {"run_id": keyed["run_id"]}
    assert acting.run_row(store, keyed["run_id"])["run_key"] == "k"
    before = acting.everything(engine)
    assert retry(store, old, "k") == keyed | {"outcome": "existing"}
    assert acting.everything(engine) == before


def test_a_key_of_another_run_is_a_conflict(store: Store, engine: Engine) -> None:
    one = failed(store, CHAIN, "b")
    other = acting.start(store, key="two")
    assert drive(store, other, a=1) == "failed"
    keyed = retry(store, one, "k")
    before = acting.everything(engine)
    assert retry(store, other, "k") == keyed | {"outcome": "conflict"}
    assert retry(store, one, "two")["outcome"] == "conflict", "a key of start_run"
    started = store.call(
        "start_run", p_package_key="nightly", p_kind="workflow", p_target_key="flow",
        p_run_key="k", p_input="{}",
    )[0]  # fmt: skip
    assert (started["run_id"], started["outcome"]) == (keyed["run_id"], "conflict")
    assert acting.everything(engine) == before


def test_no_key_of_a_start_is_in_the_way_of_a_retry(store: Store) -> None:
    old = failed(store, CHAIN, "b")
    for key in (old, "retry", f"retry of {old}"):
        acting.start(store, key=key)
    assert retry(store, old)["outcome"] == "created"


@pytest.mark.parametrize("key", ["", "k" * 201])
def test_a_key_has_1_to_200_characters(store: Store, key: str) -> None:
    old = failed(store, CHAIN, "b")
    with pytest.raises(Malformed, match="1 to 200"):
        retry(store, old, key)


def test_an_open_run_and_a_succeeded_one_are_refused_with_the_way_out(store: Store) -> None:
    flow(store, CHAIN)
    run_id = acting.start(store)
    for key in (None, "k"):
        with pytest.raises(Malformed, match="is still open: cancel it first"):
            retry(store, run_id, key)
    assert drive(store, run_id) == "succeeded"
    with pytest.raises(Malformed, match="has succeeded: there is nothing to retry"):
        retry(store, run_id)
    assert len(store.read("run_state")) == 1


def test_an_unknown_run_is_refused(store: Store) -> None:
    for run_id, refusal in (("ru-nobody", Unknown), (None, Malformed)):
        with pytest.raises(refusal):
            store.call("start_retry", p_run_id=run_id, p_run_key=None)


def test_without_an_active_target_nothing_is_retried(store: Store) -> None:
    old = failed(store, CHAIN, "b")
    acting.publish(store, None)
    with pytest.raises(Unknown, match="no workflow flow in package nightly"):
        retry(store, old)
    store.call("withdraw_package", p_package_key="nightly")
    with pytest.raises(Unknown, match="no active package nightly"):
        retry(store, old)
    assert len(store.read("run_state")) == 1


def cancelled(store: Store, kind: str) -> str:
    """A run of the one task `work` that succeeded, but was cancelled before its end."""
    acting.publish(store, {"a": []})
    run_id = acting.start(store, kind)
    acting.admit(store, run_id)
    acting.finish(store, run_id)
    acting.cancel(store, run_id)
    acting.converge(store, run_id)
    assert acting.ended(store, run_id) == ("cancelled", "workflow_cancelled")
    return run_id


@pytest.mark.parametrize("kind", ["workflow", "task"])
def test_a_cancelled_run_in_which_all_succeeded_is_over_at_once(store: Store, kind: str) -> None:
    old = cancelled(store, kind)
    new = retry(store, old)
    assert (new["status"], new["taken_over_count"]) == ("running", 1)
    assert acting.advance(store, new["run_id"])["outcome"] == "applied"
    assert acting.ended(store, new["run_id"]) == ("succeeded", None)
    assert acting.agenda(store, new["run_id"]) == {}
    assert ran(store, new["run_id"]) == set()
    assert acting.unbroken(store)


def test_a_task_run_is_retried_like_a_workflow_of_one_step(store: Store) -> None:
    acting.publish(store)
    old = acting.start(store, "task")
    assert drive(store, old, main=1) == "failed"
    assert causes(store, old) == {"main": "not_succeeded"}
    new = retry(store, old)["run_id"]
    assert acting.statuses(store, new) == {"main": "ready"}
    assert drive(store, new) == "succeeded"


def test_a_task_run_that_succeeded_runs_again_when_its_task_changed(store: Store) -> None:
    old = cancelled(store, "task")
    assert causes(store, old) == {"main": None}
    acting.publish(store, {"a": []}, run=["sh"])
    assert causes(store, old) == {"main": "task_changed"}
    assert acting.statuses(store, retry(store, old)["run_id"]) == {"main": "ready"}


def test_a_retry_outlives_the_run_that_it_retries(store: Store, engine: Engine) -> None:
    old = failed(store, CHAIN, "b")
    first = retry(store, old)
    new = first["run_id"]
    past = acting.run_row(store, old)["finished_at_ms"] + 1
    purge(store, past)
    assert store.read("run_state", run_id=old) == []
    assert retry(store, old) == first | {"outcome": "existing"}
    with pytest.raises(Unknown):
        retry(store, old, "k")
    acting.advance(store, new)
    held = acting.lease(store, "again")["b"]
    answer = store.call("attempt_input", p_attempt_id=held.attempt_id, p_token=held.token)[0]
    assert json.loads(answer["input"])["needs"] == {"a": {"by": old}}
    assert acting.unbroken(store)


def purge(store: Store, before_ms: int) -> None:
    store.call("purge_runs", p_before_ms=before_ms, p_limit=32)


@pytest.mark.parametrize(
    "question",
    [
        "admission_effect where run_id = 'ru'",
        "takeover where run_id = 'ru' and retried_run_id = 'ru' and target_id = 'wf'",
    ],
)
def test_only_the_rows_of_the_two_runs_are_read(sqlite_dsn: str, question: str) -> None:
    with closing(sqlite3.connect(sqlite_dsn.removeprefix("sqlite:///"))) as connection:
        plan = [
            row[3] for row in connection.execute(f"explain query plan select * from {question}")
        ]
        tables = "select name from sqlite_schema where type = 'table'"
        names = {name for (name,) in connection.execute(tables)}
    assert sum(line.startswith("SEARCH") for line in plan) > 20
    scanned = {line.split()[1] for line in plan if line.startswith("SCAN")}
    assert all(len(name) > 1 or name in "enu" for name in scanned), scanned  # views' own names
    assert not scanned & names


# -- PostgreSQL alone: what happens while someone else is at it


def test_two_retries_of_one_run_make_one(postgres_dsn: str) -> None:
    store = PostgresStore(postgres_dsn)
    old = failed(store, CHAIN, "b")
    answers: list[acting.Row] = []
    other = PostgresStore(postgres_dsn)
    thread = threading.Thread(target=lambda: answers.append(retry(other, old)))
    with psycopg.connect(postgres_dsn) as holder:
        holder.execute("select * from ql_admission.start_retry(%s, null)", [old])
        thread.start()
        waits(postgres_dsn)
        holder.commit()
        thread.join(timeout=10)
    assert answers[0]["outcome"] == "existing"
    assert len(store.read("run_state", retry_of_run_id=old)) == 1
    assert acting.unbroken(store)
    store.close()
    other.close()
