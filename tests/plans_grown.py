"""A database that has grown: 200,000 finished runs, and what waits for years."""

from typing import Any

import psycopg

from tests import acting
from tests.plans import CHAIN, FAR_MS, HOUR_MS, Site, start

RUNS = 200_000
WAITING = 20_000
TRIGGERS = 20_000
# what a clone takes along of the run that is cloned: the rest would only take time
COPIED = {
    "run": "true",
    "run_input": "true",
    "step_run": "true",
    "step_output": "step_key = 'a'",
    "task_attempt": "number <= 2",
    "attempt_lease": "attempt_id like '%-2' or attempt_id like '%-3'",
    "attempt_offer": "attempt_id like '%-1'",
    "attempt_report": "kind = 'ended' and attempt_id like '%-2'",
    "attestation": "true",
    "run_event": "sequence = 1",
}
DEFINED = ("package_generation", "task_revision", "workflow_revision", "workflow_step",
           "workflow_ancestor")  # fmt: skip
GENERATIONS = 500
OLD = {
    "generation": "1000 * t.generation + c.g",
    "state": "'superseded'",
    "ended_at_ms": "t.published_at_ms",
    "task_id": "'ta' || left(md5(t.task_id || c.g), 24)",
    "workflow_id": "'wf' || left(md5(t.workflow_id || c.g), 24)",
}
IDS = {"run_id", "attempt_id", "entity_id", "input_id", "offer_id"}


def finished_run(site: Site) -> str:
    """A run of three steps that has succeeded after a loss; its offers are named after it."""
    store, run_id = site.store, start(site, "flow", "done")
    acting.admit(store, run_id)
    lost = acting.lease(store, f"{run_id}.lost")["a"]
    acting.cross(store, lost)
    store.call("attest_attempts", p_commands=acting.commands(lost, reason="gone"))
    site.clock.advance(HOUR_MS)
    store.call("retry_run", p_run_id=run_id)
    for number in range(len(CHAIN)):
        acting.admit(store, run_id)
        held = acting.lease(store, f"{run_id}.{number}")
        acting.run(store, *held.values())
        acting.report(store, *held.values(), output='{"x":1}')
        acting.advance(store, run_id)
    assert acting.ended(store, run_id) == ("succeeded", None)
    return run_id


def grow(site: Site, done: str) -> None:
    """Copy a finished run many times over, set by set, past all rules but those of the tables."""
    with psycopg.connect(site.dsn, autocommit=True) as connection:
        connection.execute("set session_replication_role = replica")  # no foreign keys
        connection.execute("set synchronous_commit = off")
        connection.execute(
            "create temp table clone as select 'ru' || left(md5(g::text), 24) collate \"C\""
            f" as run_id from generate_series(1, {RUNS}) as g order by 1"
        )
        new = {name: f"replace(t.{name}, '{done}', c.run_id)" for name in IDS}
        for table, which in COPIED.items():
            copy(connection, table, new, "clone as c", f"t.run_id = '{done}' and {which}")
        for table in DEFINED:
            copy(connection, table, OLD, f"generate_series(1, {GENERATIONS}) as c (g)", "true")
        # some that fire in years, and more that are paused
        others = f"generate_series(1, {TRIGGERS}) as c (g)"
        state = "case c.g % 2 when 0 then 'active' else 'paused' end"
        named = {"trigger_key": "'far' || c.g", "state": state}
        times = (
            named
            | {"next_fire_at_ms": str(FAR_MS), "claim_owner": "null"}
            | {"due_at_ms": f"case c.g % 2 when 0 then {FAR_MS} end"}
        )
        first = "t.package_key = 'crons' and t.trigger_key = 't00'"
        copy(connection, "trigger", named, others, first)
        copy(connection, "trigger_schedule", times, others, first)
        count = connection.execute("select count(*) from ql.run where status <> 'running'")
        assert count.fetchone()[0] >= RUNS


def audited(site: Site) -> None:
    """As many requests that were audited as runs that have ended."""
    with psycopg.connect(site.dsn, autocommit=True) as connection:
        connection.execute(
            "insert into ql.worker_audit (minute_ms, worker_id, route, certificate, first_at_ms)"
            " select g * 60000::bigint, 'w1', 'lease', '2a', g * 60000::bigint"
            f" from generate_series(1, {RUNS}) as g"
        )


def put_far(site: Site) -> None:
    """An agenda as long as if many runs waited for something that is not due for years."""
    with psycopg.connect(site.dsn, autocommit=True) as connection:
        connection.execute(
            "insert into ql.agenda (run_id, stage, due_at_ms)"
            f" select r.run_id, 'deadline', {FAR_MS} from ql.run as r limit {WAITING}"
        )


def copy(connection: psycopg.Connection[Any], table: str, new: dict[str, str], clones: str,
         which: str) -> None:  # fmt: skip
    """Insert a table's rows once more for each clone, with new values in some columns."""
    listed = "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0"
    names = [name for (name,) in connection.execute(listed, [f"ql.{table}"])]
    values = ", ".join(new.get(name, f"t.{name}") for name in names)
    connection.execute(
        f"insert into ql.{table} ({', '.join(names)}) select {values} from {clones}"
        f" cross join ql.{table} as t where {which}"
    )
