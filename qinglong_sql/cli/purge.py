"""`purge`: what ended long ago goes, and how much room that makes."""

import sqlite3
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from qinglong_sql import snapshot
from qinglong_sql.cli.alone import alone, file_of, openers
from qinglong_sql.cli.exits import Refused, reported
from qinglong_sql.cli.longwork import consent, count_text, meter, size_text
from qinglong_sql.cli.options import opened, state_folder, with_dsn, with_json
from qinglong_sql.cli.waiting import Duration
from qinglong_sql.cli.words import clock, print_json, say
from qinglong_sql.retention import Purged
from qinglong_sql.retention import purge as purge_runs
from qinglong_sql.store import SQLITE, Span, Store

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
    database for itself. On PostgreSQL a login needs ql_operator, and autovacuum does the rest.
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
            row["before_vacuum"] = pages(path)
            rewrite(dsn, path)
        row |= pages(path)
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


def pages(path: Path) -> dict[str, int]:
    """Bytes of the file, and those of its free pages."""
    with closing(snapshot.reader(path)) as connection:
        size, count, free = (
            connection.execute(f"pragma {name}").fetchone()[0]
            for name in ("page_size", "page_count", "freelist_count")
        )
    return {"file_bytes": size * count, "free_bytes": size * free}


def rewrite(dsn: str, path: Path) -> None:
    """VACUUM in place: whoever waits for the file meanwhile finds it afterwards, which a new file
    under the same name could not promise. Raises Refused while others use it, or without room.

    It takes room for the live pages twice: in a copy, and in the log or journal beside the file.
    No auto_vacuum instead: purging 20,000 runs (188 MB) then wrote 2,234 MB as `incremental` and
    2,479 MB as `full`, not 1,741 MB, and flash wears by what is written, not by a file's size.
    """
    now = pages(path)
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
        with closing(sqlite3.connect(path, isolation_level=None, timeout=5)) as connection:
            connection.execute("pragma temp_store = file")
            folder = str(path.parent).replace("'", "''")
            connection.execute(f"pragma temp_store_directory = '{folder}'")  # not a RAM disk
            connection.execute("pragma synchronous = full")
            connection.execute("vacuum")
            connection.execute("pragma wal_checkpoint(truncate)")


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
