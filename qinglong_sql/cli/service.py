"""Commands about a database itself: migrate, doctor."""

import time
from typing import Any

import click

from qinglong_sql import migrate as revisions
from qinglong_sql.cli.exits import Exit, leave, reported
from qinglong_sql.cli.options import opened, with_dsn, with_json
from qinglong_sql.cli.words import print_json, span
from qinglong_sql.store import Store


@click.command()
@click.option("--to", default="head", show_default=True, help="The revision to go to.")
@click.option("--sql", "offline", is_flag=True, help="Only print the SQL that would run.")
@with_dsn
@with_json
@reported
def migrate(to: str, offline: bool, dsn: str, as_json: bool) -> None:
    """Install the schema, or bring it to the newest revision."""
    if offline:
        engine = "sqlite" if dsn.startswith(revisions.SQLITE) else "postgres"
        click.echo(revisions.offline_sql(engine, f"base:{to}"), nl=False)
        return
    before = revisions.current(dsn)
    after = revisions.upgrade(dsn, to)
    if as_json:
        print_json({"before": before, "after": after})
    else:
        said = "already at" if before == after else "now at"
        click.echo(f"{said} revision {after}")


@click.command()
@with_dsn
@with_json
@reported
def doctor(dsn: str, as_json: bool) -> None:
    """Look whether the database is ready and nothing in it is wrong (exit 6, or 1)."""
    with opened(dsn) as store:
        found = findings(store)
    found["revision"] = revisions.current(dsn)
    if as_json:
        print_json(found)
    else:
        told(found)
    if found["violations"]:
        leave(Exit.FAILED)


def findings(store: Store) -> dict[str, Any]:
    """What the database says of itself: violations, faults, and the oldest due work."""
    now = int(time.time() * 1000)
    oldest = store.read("agenda_state", order="due_at_ms", limit=1)
    return {
        "engine": store.engine,
        "violations": store.read("violation", order="run_id, rule, entity_id"),
        "faults": store.read("fault_state", order="run_id, stage"),
        "running": len(store.read("run_state", status="running")),
        "lag_ms": max(0, now - oldest[0]["due_at_ms"]) if oldest else 0,
    }


def told(found: dict[str, Any]) -> None:
    """Print the findings for people."""
    click.echo(f"ready: {found['engine']}, revision {found['revision']}")
    click.echo(f"running runs: {found['running']}")
    click.echo(f"oldest due work: {span(0, found['lag_ms'])} ago")
    for fault in found["faults"]:
        click.echo(
            f"fault: {fault['run_id']} {fault['stage']}, {fault['fault_count']} times: "
            f"{fault['error']}"
        )
    for row in found["violations"]:
        click.echo(f"violation: {row['rule']}: run {row['run_id']}, {row['entity_id']}")
    if not found["violations"]:
        click.echo("violations: none")
