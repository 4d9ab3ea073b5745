"""`purge`: what ended long ago goes, and how much room that makes."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from qinglong_sql.cli.alone import alone, file_of, openers
from qinglong_sql.cli.exits import Refused, reported
from qinglong_sql.cli.longwork import consent, count_text, meter, size_text
from qinglong_sql.cli.options import opened, state_folder, with_dsn, with_json
from qinglong_sql.cli.waiting import Duration
from qinglong_sql.cli.words import clock, print_json, say
from qinglong_sql.retention import Purged
from qinglong_sql.retention import purge as purge_runs
from qinglong_sql.store import SQLITE, Span, Store, snapshot

COUNT_MOST = 10_000


@click.command()
@click.option(
    "--older-than",
    "age_ms",
    type=Duration(),
    required=True,
    metavar="D",
    help="Runs that ended longer ago than this: 12h, 30d.",
)
@click.option("--limit", type=click.IntRange(min=1), help="At most so many runs, the oldest first.")
@click.option("--preview", is_flag=True, help="Say what would go, and do nothing.")
@click.option("--yes", is_flag=True, help="Do it without a question.")
@click.option(
    "--vacuum", is_flag=True, help="SQLite: then rewrite the file without its free pages."
)
@with_dsn
@with_json
@reported
def purge(
    age_ms: int,
    limit: int | None,
    preview: bool,
    yes: bool,
    vacuum: bool,
    dsn: str,
    as_json: bool,
) -> None:
    """Delete runs that ended long ago, with their history and logs.

    Open runs always stay, and so do packages. The pages of SQLite's file that this frees are used
    again by new runs; only --vacuum makes the file smaller, which writes all of it and needs the
    database for itself. On PostgreSQL a login needs ql_reader and ql_operator, and autovacuum does
    the rest.
    """
    if vacuum and not dsn.startswith(SQLITE):
        raise click.UsageError("--vacuum is for SQLite files; PostgreSQL has autovacuum")
    before_ms = int(time.time() * 1000) - age_ms
    with opened(dsn) as store:
        due = foreseen(store, before_ms, limit)
        if preview:
            print_json(due) if as_json else say(told(due))
            return
        if due["runs"]:
            consent(yes, f"{told(due)}. Delete them for good?")
        done = purged(store, before_ms, limit, state_folder(dsn))
    row: dict[str, Any] = {**asdict(done), "before_ms": before_ms}
    if dsn.startswith(SQLITE):
        path = file_of(dsn, "purge")
        if vacuum:
            row["before_vacuum"] = snapshot.pages(path)
            rewrite(dsn, path)
        row |= snapshot.pages(path)
    if as_json:
        print_json(row)
    else:
        say(summary(row))


def foreseen(store: Store, before_ms: int, limit: int | None) -> dict[str, Any]:
    """What a purge would delete; counted up to COUNT_MOST."""
    most = COUNT_MOST + 1 if limit is None else min(limit, COUNT_MOST + 1)
    rows = store.read(
        "retention_due",
        order="finished_at_ms, run_id",
        limit=most,
        finished_at_ms=Span(0, before_ms),
    )
    return {
        "runs": min(len(rows), COUNT_MOST),
        "more": len(rows) > COUNT_MOST,
        "before_ms": before_ms,
        "first_ended_at_ms": rows[0]["finished_at_ms"] if rows else None,
    }


def told(due: dict[str, Any]) -> str:
    if not due["runs"]:
        return f"no run ended before {clock(due['before_ms'])}"
    count = count_text(due["runs"] + due["more"], "run", COUNT_MOST)
    first = clock(due["first_ended_at_ms"])
    return f"{count} ended before {clock(due['before_ms'])}, the first {first}"


def purged(store: Store, before_ms: int, limit: int | None, folder: Path) -> Purged:
    with meter("purge") as shown:
        return purge_runs(
            store,
            before_ms,
            folder=folder,
            limit=limit,
            on_page=lambda done: shown.tell(count_text(done.runs, "run")),
        )


def rewrite(dsn: str, path: Path) -> None:
    """Raises Refused while others use the file, or without room for the live pages twice."""
    now = snapshot.pages(path)
    needed = 2 * (now["file_bytes"] - now["free_bytes"])
    free = snapshot.room(path.parent)
    if free < needed:
        raise Refused(
            f"{path.parent} has {size_text(free)} free; --vacuum needs {size_text(needed)}"
        )
    with alone(dsn, "--vacuum"):
        pids = openers(path)
        if pids:
            raise Refused(f"{path} is open in process {pids[0]}; end it before --vacuum")
        snapshot.vacuum(path)


def summary(row: dict[str, Any]) -> str:
    words = f"{count_text(row['runs'], 'run')} purged, with {count_text(row['logs'], 'log folder')}"
    words += f" of {size_text(row['log_bytes'])}"
    if "file_bytes" in row:
        words += f"; the file has {size_text(row['file_bytes'])}"
        if row["free_bytes"]:
            words += f", {size_text(row['free_bytes'])} of it free for new runs"
        if "before_vacuum" in row:
            words += f" (before: {size_text(row['before_vacuum']['file_bytes'])})"
    return words
