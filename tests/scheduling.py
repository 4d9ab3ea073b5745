"""The trigger `nightly every-night`, and the steps of its schedule as tests ask for them."""

from typing import Any

from qinglong_sql import schedule
from qinglong_sql.limits import CRON_GRACE_MS, PAGE_SIZE
from qinglong_sql.schedule import run_schedule
from tests import acting
from tests.acting import Row, Store

DAY_MS = 86_400_000
MINUTE_MS = 60_000
NIGHTLY = {
    "cron": "30 2 * * *",
    "kind": "task",
    "misfire": "fire_once",
    "overlap": "allow",
    "target": "work",
    "tz": "Europe/Berlin",
}
NAME = {"p_package_key": "nightly", "p_trigger_key": "every-night"}


def publish(store: Store, triggers: dict[str, Any] | None = None, **changes: str) -> Row:
    """Publish the trigger `every-night` with changes, or others."""
    model = acting.model({"work": acting.task()}, {"flow": acting.workflow({"a": []})})
    found = {"every-night": NIGHTLY | changes} if triggers is None else triggers
    return acting.publish_model(store, model | {"triggers": found})


def trigger(store: Store, key: str = "every-night") -> Row:
    return store.read("trigger_state", package_key="nightly", trigger_key=key)[0]


def begun(store: Store, **changes: str) -> int:
    """Publish the trigger and set its cursor; when it is due."""
    publish(store, **changes)
    assert run_schedule(store).applied == 1
    due_ms = trigger(store)["next_fire_at_ms"]
    assert isinstance(due_ms, int)
    return due_ms


def runs(store: Store) -> list[Row]:
    return store.read("run_state", order="scheduled_at_ms")


def times(store: Store) -> list[int]:
    """The scheduled times of all runs."""
    return [row["scheduled_at_ms"] for row in runs(store)]


def claim(store: Store, token: str = "t1", owner: str = "me", limit: int = PAGE_SIZE) -> list[Row]:
    return store.call("claim_schedule", p_owner=owner, p_token=token, p_limit=limit)


def commit(store: Store, row: Row, token: str = "t1", owner: str = "me", **changes: Any) -> Row:
    """Commit a claim with the times that `next_fire` gives, and changes."""
    due_ms, next_ms = schedule._times(row)
    given = {
        "p_package_key": row["package_key"], "p_trigger_key": row["trigger_key"],
        "p_owner": owner, "p_token": token, "p_claim_version": row["claim_version"],
        "p_state_version": row["state_version"], "p_cursor_ms": row["next_fire_at_ms"],
        "p_due_at_ms": due_ms, "p_observed_at_ms": row["observed_at_ms"],
        "p_next_at_ms": next_ms, "p_grace_ms": CRON_GRACE_MS,
    }  # fmt: skip
    return store.call("commit_schedule", **given | changes)[0]


# --- many, and a poisoned one


def many(count: int, **changes: str) -> dict[str, Any]:
    return {f"t{number:04}": NIGHTLY | changes for number in range(count)}
