"""Commands that look at a run: show, explain."""

import sys
import time

import click

from qinglong_sql.cli.exits import reported
from qinglong_sql.cli.options import opened, resolve_run, with_dsn, with_json
from qinglong_sql.cli.words import (
    Row,
    clock,
    coloured,
    print_json,
    print_rows,
    say,
    span,
    table,
)
from qinglong_sql.store import Store

with_utc = click.option("--utc", is_flag=True, help="Times in UTC.")


@click.command()
@click.argument("run")
@with_utc
@with_dsn
@with_json
@reported
def show(run: str, utc: bool, dsn: str, as_json: bool) -> None:
    """Show a RUN: its state, its steps, what went wrong."""
    with opened(dsn) as store:
        row = resolve_run(store, run)
        steps = store.read("step_state", order="step_key", run_id=row["run_id"])
        attempts = store.read("attempt_state", order="number", run_id=row["run_id"])
    if as_json:
        print_json({**row, "steps": steps, "attempts": attempts})
        return
    say(f"run      {row['run_id']}")
    say(f"target   {row['package_key']} / {row['target_key']}, generation {row['generation']}")
    say(f"status   {coloured(row['status'])}{reason(row)}")
    say(f"started  {clock(row['admitted_at_ms'], utc=utc)}")
    if row["finished_at_ms"] is not None:
        took = span(row["admitted_at_ms"], row["finished_at_ms"])
        say(f"ended    {clock(row['finished_at_ms'], utc=utc)}, after {took}")
    say("")
    say(step_table(steps, attempts))


def reason(row: Row) -> str:
    """Why a run is as it is, in brackets; nothing for a plain one."""
    said = [row["result_code"]] if row["result_code"] else []
    if row["cancel_reason"]:
        said.append(f"cancel requested: {row['cancel_reason']}")
    return f" ({'; '.join(said)})" if said else ""


def step_table(steps: list[Row], attempts: list[Row]) -> str:
    """One line a step: state, attempts, duration and the reason of its last attempt."""
    last = {attempt["step_key"]: attempt for attempt in attempts}
    lines = []
    for step in sorted(steps, key=lambda s: (s["started_at_ms"] or sys.maxsize, s["step_key"])):
        attempt = last.get(step["step_key"])
        lines.append(
            [
                step["step_key"],
                step["status"],
                str(step["attempt_count"]),
                span(step["started_at_ms"], step["finished_at_ms"] or running_until(step)),
                why(step, attempt),
            ]
        )
    return table(["STEP", "STATUS", "ATTEMPTS", "TOOK", "WHY"], lines)


def running_until(step: Row) -> int | None:
    """Now, for a step that runs; a step that waits has no end yet."""
    return int(time.time() * 1000) if step["status"] == "running" else None


def why(step: Row, attempt: Row | None) -> str:
    """Result code, exit code and the worker's words."""
    if step["result_code"] is None:
        return ""
    words = str(step["result_code"])
    if attempt is not None and step["status"] in ("failed", "retry_wait"):
        if attempt["exit_code"] is not None:
            words += f", exit {attempt['exit_code']}"
        if attempt["error"]:
            words += f": {attempt['error'].splitlines()[0][:120]}"
    return words


@click.command()
@click.argument("run")
@with_utc
@with_dsn
@with_json
@reported
def explain(run: str, utc: bool, dsn: str, as_json: bool) -> None:
    """Say what a RUN waits for, and what would resolve it."""
    with opened(dsn) as store:
        row = resolve_run(store, run)
        rows = waits(store, row["run_id"])
    if as_json:
        print_json(rows)
        return
    for wait in rows:
        wait["since"] = clock(wait["since_ms"], utc=utc)
        wait["due"] = clock(wait["due_at_ms"], utc=utc)
        words = f"declare-stopped {wait['attempt_id']}"
        wait["resolved_by"] = wait["resolved_by"].replace("declare-stopped", words)
    print_rows(
        rows,
        [
            ("STEP", "step_key"),
            ("STATUS", "status"),
            ("WAITS FOR", "waits_for"),
            ("ON", "waits_on"),
            ("SINCE", "since"),
            ("DUE", "due"),
            ("RESOLVED BY", "resolved_by"),
        ],
        f"nothing: the run has ended, {row['status']}"
        if row["status"] != "running"
        else "nothing: the next cycle moves it",
    )


def waits(store: Store, run_id: str) -> list[Row]:
    """The rows of `explain`, with what a silent worker means once its lease is over.

    The view has no clock (DESIGN §4), so `after_due` is applied here.
    """
    now = int(time.time() * 1000)
    rows = store.read("explain", order="step_key, attempt_id, waits_for, waits_on", run_id=run_id)
    for row in rows:
        after = row.pop("after_due")
        if after is not None and row["due_at_ms"] is not None and row["due_at_ms"] < now:
            row["waits_for"] = after
    return rows
