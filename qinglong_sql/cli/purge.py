"""`purge`: what ended long ago goes, and how much room that makes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from qinglong_sql.cli.alone import alone, file_of, openers
from qinglong_sql.cli.exits import Refused, reported
from qinglong_sql.cli.longwork import consent, count_text, meter, size_text
from qinglong_sql.cli.options import Duration, opened, with_dsn, with_json
from qinglong_sql.cli.tail import Places, places_of
from qinglong_sql.cli.words import clock, print_json, say, table
from qinglong_sql.retention import Purged, purge_audit
from qinglong_sql.retention import purge as purge_runs
from qinglong_sql.store import SQLITE, Span, Store, snapshot

COUNT_MOST = 10_000
SHOWN = 20
GONE_S = 10.0  # a command that looks is over by then


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
@click.option(
    "--log-dir",
    envvar="QINGLONG_LOG_DIR",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where an ingress keeps the logs of its workers, for this database alone; also from"
    " QINGLONG_LOG_DIR. What is left there of runs that are gone goes as well.",
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
    log_dir: Path | None,
    dsn: str,
    as_json: bool,
) -> None:
    """Delete runs that ended long ago, with their history and logs.

    Open runs always stay, and so do packages. The pages of SQLite's file that this frees are used
    again by new runs; only --vacuum makes the file smaller, which writes all of it and needs the
    database for itself. On PostgreSQL a login needs ql_reader and ql_operator, autovacuum does the
    rest, and what workers asked of an ingress is forgotten as well (`worker_audit`). Logs go from
    this machine alone: on that of an ingress, purge with --log-dir.
    """
    if vacuum and not dsn.startswith(SQLITE):
        raise click.UsageError("--vacuum is for SQLite files; PostgreSQL has autovacuum")
    before_ms = int(time.time() * 1000) - age_ms
    with opened(dsn, writes=True) as store:
        due = foreseen(store, before_ms, limit)
        if preview:
            due["groups"] = grouped(store, due.pop("ids"), before_ms)
            print_json(due) if as_json else say(previewed(due))
            return
        if due["runs"] or due["audits"]:
            consent(yes, f"deletes {told(due)} for good")
        with for_itself(dsn) if vacuum else nullcontext():
            done = purged(store, before_ms, limit, places_of(dsn, log_dir), log_dir)
            audits = purge_audit(store, before_ms) if due["audits"] else 0
            row: dict[str, Any] = {**asdict(done), "audits": audits, "before_ms": before_ms}
            if vacuum:
                row["before_vacuum"] = snapshot.pages(file_of(dsn, "purge"))
                store.close()
                rewrite(file_of(dsn, "purge"), done.runs)
    if dsn.startswith(SQLITE):
        row |= snapshot.pages(file_of(dsn, "purge"))
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
    last = store.read("worker_audit_log", order="minute_ms desc", limit=1)  # it stays
    past_ms = min(before_ms, last[0]["minute_ms"]) if last else 0
    audited = store.read("worker_audit_log", limit=COUNT_MOST + 1, minute_ms=Span(0, past_ms))
    return {
        "runs": min(len(rows), COUNT_MOST),
        "audits": len(audited),
        "more": len(rows) > COUNT_MOST,
        "before_ms": before_ms,
        "first_ended_at_ms": rows[0]["finished_at_ms"] if rows else None,
        "last_ended_at_ms": rows[-1]["finished_at_ms"] if 0 < len(rows) <= COUNT_MOST else None,
        "ids": {row["run_id"] for row in rows[:COUNT_MOST]},
    }


def grouped(store: Store, ids: set[str], before_ms: int) -> list[dict[str, Any]]:
    """The runs that would go, by package and status, the most first."""
    rows = store.read(
        "run_state",
        order="finished_at_ms, run_id",
        limit=2 * COUNT_MOST,
        finished_at_ms=Span(0, before_ms),
    )
    found: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        if row["run_id"] in ids:
            key = (row["package_key"], row["status"])
            found.setdefault(key, []).append(row["finished_at_ms"])
    return [
        {"package_key": package, "status": status, "runs": len(ends),
         "first_ended_at_ms": ends[0], "last_ended_at_ms": ends[-1]}
        for (package, status), ends in sorted(found.items(), key=lambda one: -len(one[1]))
    ]  # fmt: skip


def previewed(due: dict[str, Any]) -> str:
    if not due["runs"]:
        return told(due)
    groups = due["groups"]
    head = ["PACKAGE", "STATUS", "RUNS", "OLDEST", "NEWEST"]
    rows = [
        [one["package_key"], one["status"], str(one["runs"]), clock(one["first_ended_at_ms"]),
         clock(one["last_ended_at_ms"])]
        for one in groups[:SHOWN]
    ]  # fmt: skip
    more = sum(one["runs"] for one in groups[SHOWN:])
    rest = [f"and {count_text(more, 'run')} of other kinds"] if more else []
    return "\n".join([f"{told(due)}:", table(head, rows, right=["RUNS"]), *rest])


def told(due: dict[str, Any]) -> str:
    many = count_text(due["audits"], "audit row", COUNT_MOST)
    if not due["runs"]:
        before = clock(due["before_ms"])
        return f"{many} from before {before}" if due["audits"] else f"no run ended before {before}"
    count = count_text(due["runs"] + due["more"], "run", COUNT_MOST)
    first, last = due["first_ended_at_ms"], due["last_ended_at_ms"]
    ends = clock(first) if first == last else f"{clock(first)} to {clock(last)}"
    if last is None:
        ends = f"{clock(first)} and later"
    more = f", and {many}" * (due["audits"] > 0)
    return f"{count} that ended before {clock(due['before_ms'])} ({ends}){more}"


def purged(
    store: Store, before_ms: int, limit: int | None, where: Places, log_dir: Path | None
) -> Purged:
    own = [log_dir.absolute()] if log_dir else []
    workers = [worker / "log" for worker in where.workers() if worker.parent != where.state]
    with meter("purge") as shown:
        return purge_runs(
            store,
            before_ms,
            folder=where.state,
            shared=[*workers, *(one for one in where.stores if one not in own)],
            own=own,
            limit=limit,
            on_page=lambda done: shown.tell(count_text(done.runs, "run")),
        )


@contextmanager
def for_itself(dsn: str) -> Iterator[None]:
    """Keep everybody out from before the first run is deleted until the file is rewritten.

    Raises Refused, and nothing is deleted, while others use the file, or without the room that its
    live pages need now, twice.
    """
    path = file_of(dsn, "purge")
    needed, free = room_of(path)
    if free < needed:
        raise Refused(
            f"{path.parent} has {size_text(free)} free; --vacuum needs {size_text(needed)} now:"
            " nothing is purged; without --vacuum it is, and then --vacuum needs less"
        )
    with alone(dsn, "--vacuum"):
        pids = openers(path)
        if pids:
            raise Refused(
                f"{path} is open in process {pids[0]}; end it before --vacuum: nothing is purged"
            )
        yield


def room_of(path: Path) -> tuple[int, int]:
    """Bytes that rewriting a file takes beside it, and bytes that are free there."""
    now = snapshot.pages(path)
    return 2 * (now["file_bytes"] - now["free_bytes"]), snapshot.room(path.parent)


def rewrite(path: Path, runs: int) -> None:
    """Raises Refused when somebody who only looks came meanwhile and stays."""
    end = time.monotonic() + GONE_S
    while pids := openers(path):
        if time.monotonic() > end:
            raise Refused(
                f"{path} is open in process {pids[0]} by now, and is not made smaller;"
                f" {count_text(runs, 'run')} purged: end it, and repeat the command"
            )
        time.sleep(0.1)
    snapshot.vacuum(path)


def summary(row: dict[str, Any]) -> str:
    words = f"{count_text(row['runs'], 'run')} purged, with {count_text(row['logs'], 'log folder')}"
    words += f" of {size_text(row['log_bytes'])}"
    if row["audits"]:
        words += f", and {count_text(row['audits'], 'audit row')}"
    if "file_bytes" in row:
        words += f"; the file has {size_text(row['file_bytes'])}"
        if row["free_bytes"]:
            words += f", {size_text(row['free_bytes'])} of it free for new runs"
        if "before_vacuum" in row:
            words += f" (before: {size_text(row['before_vacuum']['file_bytes'])})"
    return words
