"""What behaviour tests do to a store, in the words of the flow; and what they look at afterwards.

Everything goes through `store.call` and `store.read`, so one test speaks for both engines. Only
`everything` opens the database itself: a replay must leave every row of every table as it was.
"""

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg

from qinglong_sql.canonical import canonical, digest
from qinglong_sql.store import Store
from tests.engines import Engine

Row = dict[str, Any]
LEASE_MS = 30_000
GRACE_MS = 2_000
START = (-1, "")
PAIR = {"a": [], "b": ["a"]}  # needs of a workflow


@dataclass(frozen=True, slots=True)
class Held:
    """An attempt as its worker holds it; `row` is the whole answer of lease_attempts."""

    attempt_id: str
    fence: int
    token: str
    row: Row


def task(**changes: Any) -> dict[str, Any]:
    """A task of the canonical model; retry takes attempts, backoff_ms, max_backoff_ms, on."""
    retry = {"attempts": 1, "backoff_ms": 1_000, "max_backoff_ms": 300_000, "on": ["failed"]}
    return {
        "cwd": ".",
        "env": {},
        "idempotent": changes.get("on_lost") == "retry",
        "on_lost": "fail",
        "queue": "default",
        "run": ["true"],
        "timeout_ms": None,
    } | (changes | {"retry": retry | changes.get("retry", {})})


def workflow(needs: dict[str, list[str]], timeout_ms: int | None = None) -> dict[str, Any]:
    """A workflow whose steps all run the task `work`; needs are {step: [direct needs]}."""
    steps = {key: {"needs": list(wants), "task": "work"} for key, wants in needs.items()}
    return {"steps": steps, "timeout_ms": timeout_ms}


def model(tasks: dict[str, Any], workflows: dict[str, Any] | None = None) -> dict[str, Any]:
    """The package `nightly` as the canonical model."""
    return {
        "package": "nightly",
        "tasks": tasks,
        "triggers": {},
        "workflows": workflows or {},
    }


def publish_model(store: Store, value: dict[str, Any]) -> Row:
    return store.call(
        "publish_package",
        p_package_key="nightly",
        p_manifest=canonical(value),
        p_base_dir="/srv/nightly",
    )[0]


def publish(
    store: Store,
    needs: dict[str, list[str]] | None = None,
    *,
    run_timeout_ms: int | None = None,
    **work: Any,
) -> None:
    """Publish the task `work` (fields in `work`), and the workflow `flow` when needs are given."""
    flows = {} if needs is None else {"flow": workflow(needs, run_timeout_ms)}
    publish_model(store, model({"work": task(**work)}, flows))


def start(store: Store, kind: str = "workflow", key: str = "one", text: str = "{}") -> str:
    """Start `flow`, or `work` alone; its run_id."""
    target = "flow" if kind == "workflow" else "work"
    row = store.call(
        "start_run",
        p_package_key="nightly",
        p_kind=kind,
        p_target_key=target,
        p_run_key=key,
        p_input=text,
    )[0]
    return str(row["run_id"])


def begun(store: Store, needs: dict[str, list[str]], **published: Any) -> str:
    """Publish, start and admit a workflow; its run_id."""
    publish(store, needs, **published)
    run_id = start(store)
    admit(store, run_id)
    return run_id


def admit(store: Store, run_id: str) -> Row:
    return store.call("admit_tasks", p_run_id=run_id)[0]


def advance(store: Store, run_id: str) -> Row:
    """The frontier, and then an attempt for what it opened; the frontier's answer."""
    row = store.call("advance_frontier", p_run_id=run_id)[0]
    admit(store, run_id)
    return row


def register(
    store: Store, worker: str = "w1", session: str = "s1", *, self_fencing: int = 1
) -> Row:
    return store.call(
        "register_worker",
        p_worker_id=worker,
        p_session_id=session,
        p_queues='["default"]',
        p_slots=64,
        p_self_fencing=self_fencing,
        p_grace_ms=GRACE_MS,
    )[0]


def offers(names: Iterable[str]) -> str:
    """Offers as JSON; the token of an offer is its name and a tail."""
    return json.dumps([{"offer_id": name, "token_digest": digest(token(name))} for name in names])


def token(offer: str) -> str:
    return f"token of {offer} {'x' * 32}"


def offer_rows(store: Store, names: Iterable[str], *, worker: str = "w1", session: str = "s1",
               queue: str = "default", lease_ms: int = LEASE_MS,
               run_id: str | None = None) -> list[Row]:  # fmt: skip
    return store.call(
        "lease_attempts",
        p_worker_id=worker,
        p_session_id=session,
        p_queue=queue,
        p_offers=offers(names),
        p_lease_ms=lease_ms,
        p_run_id=run_id,
    )


def lease(store: Store, *names: str, **where: Any) -> dict[str, Held]:
    """Register w1 and lease one attempt an offer (default one, `o1`); by step key."""
    if "worker" not in where:
        register(store)
    rows = offer_rows(store, names or ("o1",), **where)
    return {
        row["step_key"]: Held(row["attempt_id"], row["fence"], token(row["offer_id"]), row)
        for row in rows
    }


def commands(*held: Held, **fields: Any) -> str:
    """A batch as JSON: the authority of each, and the same further fields for all."""
    return json.dumps(
        [
            {"attempt_id": one.attempt_id, "fence": one.fence, "token": one.token} | fields
            for one in held
        ]
    )


def cross(store: Store, *held: Held, identity: str = "pid 7") -> list[Row]:
    """The starting ACK."""
    return store.call("start_attempts", p_commands=commands(*held, identity=identity))


def run(store: Store, *held: Held) -> list[Row]:
    """The starting and the running ACK; the answers of the latter."""
    cross(store, *held)
    return store.call("running_attempts", p_commands=commands(*held))


def renew(store: Store, *held: Held, lease_ms: int = LEASE_MS) -> list[Row]:
    return store.call("renew_attempts", p_commands=commands(*held), p_lease_ms=lease_ms)


def report(store: Store, *held: Held, how: str = "exit", exit_code: int | None = 0,
           output: str | None = None, error: str | None = None) -> list[Row]:  # fmt: skip
    return store.call(
        "report_attempts",
        p_commands=commands(*held, how=how, exit_code=exit_code, output=output, error=error),
    )


def codes(rows: list[Row]) -> list[tuple[str, str | None]]:
    """What a batch was answered: an outcome and a code each."""
    return [(row["outcome"], row["code"]) for row in rows]


def finish(store: Store, run_id: str, **ends: int) -> None:
    """Run all admitted attempts and end each with its step's exit code (0 when not named)."""
    count = len(store.read("attempt_state", run_id=run_id, status="claimed"))
    mark = len(store.read("event_log", run_id=run_id))
    held = lease(store, *(f"{run_id[-8:]}.{mark}.{number}" for number in range(count)))
    run(store, *held.values())
    for key, one in held.items():
        report(store, one, exit_code=ends.get(key, 0))


def cancel(store: Store, run_id: str, reason: str = "user", actor: str = "ann") -> Row:
    return store.call("request_cancel", p_run_id=run_id, p_reason=reason, p_actor=actor)[0]


def converge(store: Store, run_id: str) -> Row:
    return store.call("converge_cancellation", p_run_id=run_id)[0]


def recover(store: Store, run_id: str) -> Row:
    return store.call("recover_run", p_run_id=run_id)[0]


def page(store: Store, step: str, limit: int = 32, after: tuple[int, str] = START) -> list[Row]:
    return store.call(step, p_after_due_at_ms=after[0], p_after_run_id=after[1], p_limit=limit)


def run_row(store: Store, run_id: str) -> Row:
    return store.read("run_state", run_id=run_id)[0]


def ended(store: Store, run_id: str) -> tuple[str, str | None]:
    """Status and result code of a run."""
    row = run_row(store, run_id)
    return row["status"], row["result_code"]


def statuses(store: Store, run_id: str) -> dict[str, str]:
    """{step: status}."""
    return {row["step_key"]: row["status"] for row in store.read("step_state", run_id=run_id)}


def step(store: Store, run_id: str, key: str = "a") -> Row:
    return store.read("step_state", run_id=run_id, step_key=key)[0]


def attempt(store: Store, attempt_id: str) -> Row:
    return store.read("attempt_state", attempt_id=attempt_id)[0]


def events(store: Store, run_id: str, after: int = 0) -> list[str]:
    """Event types in order, those past a sequence."""
    rows = store.read("event_log", run_id=run_id, order="sequence")
    return [row["type"] for row in rows if row["sequence"] > after]


def agenda(store: Store, run_id: str) -> dict[str, int]:
    """{stage: due_at_ms}."""
    return {row["stage"]: row["due_at_ms"] for row in store.read("agenda_state", run_id=run_id)}


def everything(engine: Engine) -> dict[str, list[str]]:
    """Every row of every table as text."""
    if engine.kind == "sqlite":
        with closing(sqlite3.connect(engine.dsn.removeprefix("sqlite:///"))) as connection:
            names = "select name from sqlite_master where type = 'table' order by name"
            tables = [name for (name,) in connection.execute(names)]
            return {
                name: sorted(map(repr, connection.execute(f'select * from "{name}"')))
                for name in tables
            }
    with psycopg.connect(engine.dsn) as connected:
        listed = "select tablename from pg_tables where schemaname = 'ql' order by tablename"
        return {
            name: sorted(map(repr, connected.execute(f"select * from ql.{name}").fetchall()))
            for (name,) in connected.execute(listed).fetchall()
        }


def unbroken(store: Store) -> bool:
    """Whether no invariant is violated."""
    return store.read("violation") == []
