"""All rows of a database as plain values, and the way back from rows to a tests.state.State.

The inverse of tests.facts: what the oracle reads of a run, from whatever engine wrote it.
"""

import sqlite3
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import psycopg

from tests import state as plain
from tests.state import Graph, Node, Policy, State

Row = dict[str, Any]
Facts = dict[str, dict[tuple[Any, ...], Row]]  # table → primary key → row
Columns = dict[str, tuple[list[str], list[str]]]  # table → all columns, those of the key


def columns_of(connection: sqlite3.Connection) -> Columns:
    """Every table with its columns, as SQLite has them."""
    names = connection.execute("select name from sqlite_schema where type = 'table'").fetchall()
    found: Columns = {}
    for (name,) in names:
        rows = connection.execute(f"pragma table_info({name})").fetchall()
        key = [row[1] for row in sorted(rows, key=lambda row: row[5]) if row[5]]
        found[name] = ([row[1] for row in rows], key)
    return {name: both for name, both in found.items() if both[1] and "alembic" not in name}


def sqlite_facts(connection: sqlite3.Connection, columns: Columns) -> Facts:
    """Every row of every table."""
    found: Facts = {}
    for name, (all_columns, key) in columns.items():
        rows = connection.execute(f"select {', '.join(all_columns)} from {name}")
        found[name] = _keyed((dict(zip(all_columns, row, strict=True)) for row in rows), key)
    return found


def postgres_facts(connection: psycopg.Connection[Any], columns: Columns) -> Facts:
    """The same, in one round trip. Raises AssertionError for a table that SQLite does not have."""
    text = " union all ".join(
        f"select '{name}', (select json_agg(t) from ql.{name} as t)" for name in sorted(columns)
    )
    rows = connection.execute(text.encode(), prepare=True).fetchall()
    return {name: _keyed(found or (), columns[name][1]) for name, found in rows}


def _keyed(rows: Iterable[Row], key: list[str]) -> dict[tuple[Any, ...], Row]:
    return {tuple(row[name] for name in key): row for row in rows}


def rows_of(facts: Facts, table: str, run_id: str) -> list[Row]:
    """What belongs to a run, by key."""
    rows = facts[table]
    return [rows[key] for key in sorted(rows) if rows[key]["run_id"] == run_id]


def state_of(facts: Facts, run_id: str) -> State:
    """A run as the oracle sees it, with the run that it retries when that one is still there."""
    state = _alone(facts, run_id)
    before = state.run.retry_of
    if before is not None and (before,) in facts["run"]:
        state = replace(state, before=_alone(facts, before))
    return state


def _alone(facts: Facts, run_id: str) -> State:
    run = facts["run"][(run_id,)]
    numbers = {row["attempt_id"]: row["number"] for row in rows_of(facts, "task_attempt", run_id)}
    outputs = {row["step_key"] for row in rows_of(facts, "step_output", run_id)}
    intent = facts["cancel_intent"].get((run_id,))
    return State(
        run_id,
        plain.Run(
            run["status"], run["version"], run["attempt_count"], run["kind"], run["cancel_reason"],
            run["deadline_at_ms"], run["retry_of_run_id"],
        ),
        graph_of(facts, run),
        tuple(_step(row, outputs) for row in rows_of(facts, "step_run", run_id)),
        tuple(_attempt(row) for row in rows_of(facts, "task_attempt", run_id)),
        tuple(
            plain.Lease(
                numbers[row["attempt_id"]], row["status"], row["version"], row["fence"],
                row["expires_at_ms"], bool(row["self_fencing"]), row["grace_ms"],
            )
            for row in rows_of(facts, "attempt_lease", run_id)
        ),
        tuple(
            plain.Offer(numbers[row["attempt_id"]], row["fence"])
            for row in rows_of(facts, "attempt_offer", run_id)
        ),
        tuple(
            plain.Report(
                numbers[row["attempt_id"]], row["fence"], row["kind"], row["how"],
                row["exit_code"], row["reported_at_ms"],
            )
            for row in rows_of(facts, "attempt_report", run_id)
        ),
        tuple(
            plain.Attestation(
                numbers[row["attempt_id"]], row["evidence"], row["follow"], row["attested_at_ms"]
            )
            for row in rows_of(facts, "attestation", run_id)
        ),
        plain.Intent(intent["reason"], intent["requested_at_ms"]) if intent else None,
        tuple((row["stage"], row["due_at_ms"]) for row in rows_of(facts, "agenda", run_id)),
    )  # fmt: skip


def _step(row: Row, outputs: set[str]) -> plain.Step:
    return plain.Step(
        row["step_key"], row["status"], row["version"], row["attempt_count"],
        row["claim_return_count"], row["due_at_ms"], row["step_key"] in outputs,
        row["result_code"] == "taken_over",
    )  # fmt: skip


def _attempt(row: Row) -> plain.Attempt:
    return plain.Attempt(
        row["number"], row["step_key"], row["status"], row["epoch"], row["version"],
        row["deadline_at_ms"], row["jitter"],
    )  # fmt: skip


def graph_of(facts: Facts, run: Row) -> Graph:
    """The pinned graph of a run; needs are what stands at distance 1."""
    target = run["target_id"]
    if run["kind"] == "task":
        return Graph((Node("main", (), _policy(facts["task_revision"][(target,)])),))
    needs: dict[str, list[str]] = {}
    for (workflow_id, above, key), row in facts["workflow_ancestor"].items():
        if workflow_id == target and row["distance"] == 1:
            needs.setdefault(key, []).append(above)
    return Graph(
        tuple(
            Node(
                key,
                tuple(sorted(needs.get(key, ()))),
                _policy(facts["task_revision"][(row["task_id"],)]),
            )
            for (workflow_id, key), row in sorted(facts["workflow_step"].items())
            if workflow_id == target
        )
    )


def tasks_of(facts: Facts, run: Row) -> dict[str, str]:
    """{step: task_id} of the pinned graph."""
    target = run["target_id"]
    if run["kind"] == "task":
        return {"main": target}
    return {
        key: row["task_id"] for (wf, key), row in facts["workflow_step"].items() if wf == target
    }


def _policy(row: Row) -> Policy:
    return Policy(
        row["retry_attempts"], row["backoff_ms"], row["max_backoff_ms"], bool(row["retry_failed"]),
        bool(row["retry_timed_out"]), row["on_lost"], row["spec"], row["generation"],
    )  # fmt: skip
