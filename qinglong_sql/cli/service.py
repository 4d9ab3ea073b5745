"""Commands about a database itself: migrate, doctor."""

import time
from pathlib import Path
from typing import Any

import click

from qinglong_sql import migrate as revisions
from qinglong_sql.cli.exits import NOT_ALLOWED, Exit, Refused, first_line, leave, reported
from qinglong_sql.cli.options import opened, with_dsn, with_json
from qinglong_sql.cli.words import complain, print_json, say, span
from qinglong_sql.errors import WAY_TO_PRIMARY, Malformed
from qinglong_sql.store import Store
from qinglong_sql.zones import TZ_RELEASE, assert_pinned

ANY_SERVER = ("any", "prefer-standby", "read-only", "standby")
TRIGGER_FAULT = ("package_key", "trigger_key", "fault_error", "fault_count")


@click.command()
@click.option("--to", default="head", show_default=True, help="The revision to go to.")
@click.option("--sql", "offline", is_flag=True, help="Only print the SQL that would run.")
@click.option(
    "--from",
    "since",
    default="base",
    help="With --sql: where the database stands.",
    show_default="nowhere",
)
@click.option("--drop-rows", is_flag=True, help="With --to base: every row may go, for good.")
@with_dsn
@with_json
@reported
def migrate(to: str, offline: bool, since: str, drop_rows: bool, dsn: str, as_json: bool) -> None:
    """Install the schema, or bring it to the newest revision.

    Nothing of it is changed when it fails: it is one transaction. The only way back is to `base`,
    which drops all of the schema; while there are rows it says how many and does nothing, unless
    --drop-rows says that they may go.
    """
    known = known_revisions()
    if to not in ("head", "base", *known):
        raise Refused(f"no revision {to!r}; there are: {', '.join(known)}")
    if since not in ("base", *known[:-1]):
        raise Refused(f"nothing is printed from {since!r}; there are: {', '.join(known[:-1])}")
    if since != "base" and (not offline or to in known[: known.index(since) + 1]):
        raise Refused("--from goes with --sql, and with a later revision in --to")
    if to == "base":
        if offline:
            raise Refused("the way back is not printed: what it drops depends on what is there")
        way_back(dsn, drop_rows, as_json)
        return
    if drop_rows:
        raise Refused("--drop-rows goes with --to base alone")
    if offline:
        sqlite = dsn.startswith(revisions.SQLITE)
        text = revisions.offline_sql("sqlite" if sqlite else "postgres", f"{since}:{to}")
        if as_json:
            print_json({"sql": text})
        else:
            say(text, end=False)
        return
    if dsn.startswith(revisions.SQLITE):
        Path(dsn.removeprefix(revisions.SQLITE)).parent.mkdir(parents=True, exist_ok=True)
    before, after = upgraded(dsn, to)
    if before and to != "head" and before > to:
        raise Refused(
            f"the database stands at {before}, and there is no way back to {to}: restore a copy"
        )
    if as_json:
        print_json({"before": before, "after": after})
    else:
        said = "already at" if before == after else "now at"
        say(f"{said} revision {after}")


def upgraded(dsn: str, to: str) -> tuple[str | None, str]:
    """Where a database stood before, and stands then. Raises Refused for a login that may not."""
    try:
        return revisions.current(dsn), revisions.upgrade(dsn, to, complain)
    except Exception as error:
        cause = getattr(error, "orig", None) or error
        if getattr(cause, "sqlstate", None) != NOT_ALLOWED:
            raise
        raise Refused(
            f"PostgreSQL: {first_line(cause)}; the schema is made by ql_migrator: log in as it,"
            " or as a login with `grant ql_migrator to LOGIN`"
        ) from error


def way_back(dsn: str, drop_rows: bool, as_json: bool) -> None:
    """Drop the schema, rows only when that was said."""
    before = revisions.current(dsn)
    if before is not None:
        try:
            revisions.downgrade(dsn, drop_rows=drop_rows)
        except Malformed as error:
            raise Refused(error.message) from error
    if as_json:
        print_json({"before": before, "after": None})
    else:
        say("there is nothing of ours" if before is None else f"{before} is dropped")


def known_revisions() -> list[str]:
    """The numbers of all frozen revisions, oldest first."""
    versions = revisions.migrations_folder() / "versions"
    return sorted(path.name[:4] for path in versions.glob("[0-9]*.py"))


@click.command()
@with_dsn
@with_json
@reported
def doctor(dsn: str, as_json: bool) -> None:
    """See whether the database is ready and right.

    Exit 6 when it cannot be used, 1 when something in it must never be so. A PostgreSQL that takes
    no writes cannot be used, unless the DSN asks for one by target_session_attrs.
    """
    with opened(dsn) as store:
        schema = schema_of(dsn)
        found = findings(store)
        server, place, lack = server_of(store, dsn)
    found |= {**server, "schema": schema}
    found["revision"], words = revision_of(dsn)
    unfit = lack and not may_only_read(dsn)
    if as_json:
        print_json(found)
    else:
        ready = "not ready" if unfit else "ready to read" if lack else "ready"
        told(found, ready, ", ".join([*place, words]))
    if found["violations"]:
        leave(Exit.FAILED)
    if unfit:
        complain(f"not ready: PostgreSQL: {lack}; {WAY_TO_PRIMARY}")
        leave(Exit.NOT_READY)


def server_of(store: Store, dsn: str) -> tuple[dict[str, Any], list[str], str]:
    """Which server answers, for programs and for people, and why it takes no writes, if so.

    People are told which of several hosts it is. Nothing of all this for SQLite.
    """
    if store.engine == "sqlite":
        return {}, [], ""
    from qinglong_sql.store import link
    from qinglong_sql.store.postgres import PostgresStore

    assert isinstance(store, PostgresStore)
    here = store.standing()
    words = [f"{here.address} answers"] if link.hosts(link.said(dsn)) > 1 else []
    words += [here.lack] if here.lack else []
    return {"answered_by": here.address, "takes_writes": here.takes_writes}, words, here.lack


def may_only_read(dsn: str) -> bool:
    """Whether the user asks for a server of PostgreSQL that may take no writes."""
    from qinglong_sql.store import link

    return link.wanted(dsn, link.said(dsn)) in ANY_SERVER


def revision_of(dsn: str) -> tuple[str | None, str]:
    """The revision and words for it; the open store has seen every step whatever it says."""
    try:
        revision = revisions.current(dsn)
    except Exception as error:
        if getattr(error, "sqlstate", None) != NOT_ALLOWED:
            raise
        return None, "revision not shown to this login"
    return revision, f"revision {revision}" if revision else "installed without a revision"


def schema_of(dsn: str) -> str:
    """What was compared with the shipped schema. Raises NotReady when it differs."""
    if not dsn.startswith(revisions.SQLITE):
        from qinglong_sql.readiness import assert_shipped as compare
        from qinglong_sql.store.link import connect

        with connect(dsn, autocommit=True) as connection:
            return str(compare(connection))
    from qinglong_sql.store.sqlite_shipped import assert_shipped

    number = assert_shipped(Path(dsn.removeprefix(revisions.SQLITE)))
    return f"the texts of all {number} tables, indexes, views and triggers are the shipped ones"


def findings(store: Store) -> dict[str, Any]:
    """What the database says of itself: violations, faults, and the oldest due work.

    Raises NotReady when time zones are not those that this release names.
    """
    assert_pinned()
    now = int(time.time() * 1000)
    oldest = store.read("agenda_state", order="due_at_ms", limit=1)
    return {
        "engine": store.engine,
        "time_zones": f"tzdata {TZ_RELEASE}",
        "violations": store.read("violation", order="run_id, rule, entity_id"),
        "faults": store.read("fault_state", order="run_id, stage"),
        "trigger_faults": [
            {name: row[name] for name in TRIGGER_FAULT}
            for row in store.read("trigger_state", order="package_key, trigger_key")
            if row["fault_error"] is not None
        ],
        "running": len(store.read("open_run")),
        "lag_ms": now - oldest[0]["due_at_ms"] if oldest and oldest[0]["due_at_ms"] < now else 0,
    }


def told(found: dict[str, Any], ready: str, place: str) -> None:
    """Print the findings for people."""
    say(f"{ready}: {found['engine']}, {place}")
    say(f"schema: {found['schema']}")
    say(f"time zones: {found['time_zones']}")
    say(f"running runs: {found['running']}")
    say(f"due work: oldest {span(0, found['lag_ms'])} ago" if found["lag_ms"] else "due work: none")
    for fault in found["faults"]:
        say(
            f"fault: {fault['run_id']} {fault['stage']}, {fault['fault_count']} times: "
            f"{fault['error']}"
        )
    for row in found["trigger_faults"]:
        say(
            f"fault: trigger {row['package_key']}/{row['trigger_key']}, {row['fault_count']} times:"
            f" {row['fault_error']}"
        )
    for row in found["violations"]:
        run = f"run {row['run_id']}, " if row["run_id"] else ""
        say(f"violation: {row['rule']}: {run}{row['entity_id']}")
    if not found["violations"]:
        say("violations: none")
