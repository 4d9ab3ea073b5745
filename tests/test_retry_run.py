"""`start_retry`: a new run that takes over what would come out the same (sql/README.md, rules)."""

import json
import threading
from typing import Any

import psycopg
import pytest

from qinglong_sql.canonical import derived_id
from qinglong_sql.errors import Malformed, Unknown
from qinglong_sql.store import Store
from qinglong_sql.store.postgres import PostgresStore
from tests import acting
from tests.engines import Engine

CHAIN = {"a": [], "b": ["a"], "c": ["b"]}
DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}
Needs = dict[str, list[str]]


def flow(store: Store, needs: Needs, **texts: str) -> None:
    """Publish `flow` with a task of its own for each step; texts say what a step runs otherwise."""
    steps = {key: {"needs": list(wants), "task": f"t-{key}"} for key, wants in needs.items()}
    tasks = {f"t-{key}": acting.task(run=[texts.get(key, "true"), key]) for key in needs}
    acting.publish_model(store, acting.model(tasks, {"flow": {"steps": steps, "timeout_ms": None}}))


def drive(store: Store, run_id: str, **exits: int) -> str:
    """Run everything to the end; each step's output names the step and its run. Its status."""
    acting.admit(store, run_id)
    for turn in range(20):
        acting.advance(store, run_id)
        count = len(store.read("attempt_state", run_id=run_id, status="claimed"))
        held = acting.lease(store, *(f"{run_id[-8:]}.{turn}.{one}" for one in range(count)))
        acting.run(store, *held.values())
        for key, one in held.items():
            output = json.dumps({"by": run_id, "step": key}, separators=(",", ":"))
            acting.report(store, one, exit_code=exits.get(key, 0), output=output)
        if acting.run_row(store, run_id)["status"] != "running":
            break
    return str(acting.run_row(store, run_id)["status"])


def failed(store: Store, needs: Needs, *steps: str) -> str:
    """A run of `flow` in which these steps have failed."""
    flow(store, needs)
    run_id = acting.start(store)
    assert drive(store, run_id, **dict.fromkeys(steps, 1)) == "failed"
    return run_id


def retry(store: Store, run_id: str, key: str | None = None) -> acting.Row:
    return store.call("start_retry", p_run_id=run_id, p_run_key=key)[0]


def taken(store: Store, run_id: str) -> str:
    """Keys of the steps that were taken over."""
    rows = store.read("step_state", order="step_key", run_id=run_id)
    return "".join(row["step_key"] for row in rows if row["result_code"] == "taken_over")


def causes(store: Store, run_id: str) -> dict[str, str | None]:
    """What the view says of a retry in the active generation."""
    active = store.read("package_state", package_key="nightly", state="active")[0]["generation"]
    row = acting.run_row(store, run_id)
    target = store.read(
        "target_state", generation=active, kind=row["kind"], target_key=row["target_key"]
    )[0]["target_id"]
    rows = store.read("takeover", run_id=run_id, target_id=target)
    return {row["step_key"]: row["cause"] for row in rows}


def test_what_succeeded_is_taken_over_and_the_rest_runs(store: Store) -> None:
    old = failed(store, DIAMOND, "c")
    answer = retry(store, old)
    new = derived_id("ru", "retry", old)
    assert answer == {
        "run_id": new, "outcome": "created", "status": "running", "generation": 1,
        "taken_over_count": 2,
    }  # fmt: skip
    assert acting.statuses(store, new) == {
        "a": "succeeded", "b": "succeeded", "c": "pending", "d": "pending",
    }  # fmt: skip
    assert drive(store, new) == "succeeded"
    ran = {row["step_key"] for row in store.read("attempt_state", run_id=new)}
    assert ran == {"c", "d"}
    assert acting.unbroken(store)
