"""`backup` and `restore`: a SQLite database as one file."""

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from qinglong_sql.cli.alone import alone, file_of, openers
from qinglong_sql.cli.exits import BadFile, Refused, reported
from qinglong_sql.cli.longwork import consent, count_text, meter, size_text
from qinglong_sql.cli.options import opened, with_dsn, with_json
from qinglong_sql.cli.words import print_json, say
from qinglong_sql.errors import NotReady
from qinglong_sql.store import SQLITE, snapshot
from qinglong_sql.store.sqlite_error import absent
from qinglong_sql.store.sqlite_shipped import newest_revision
from qinglong_sql.whole_file import like, part_of, put, target_of

the_file = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
OPEN_MOST = 1_000


@click.command()
@the_file
@click.option("--force", is_flag=True, help="Replace FILE when it is there.")
@with_dsn
@with_json
@reported
def backup(file: Path, force: bool, dsn: str, as_json: bool) -> None:
    """Copy the SQLite database to FILE while it is in use.

    The copy is of one moment, checked, on the disk, and only then called FILE. Logs of steps are
    not in it. On PostgreSQL use pg_dump or pg_basebackup.
    """
    source = file_of(dsn, "backup")
    if not source.exists():
        raise absent(Path(dsn.removeprefix(SQLITE)))
    with opened(dsn):  # one of ours, of the newest revision
        pass
    target = free_for(file, source, force)
    folder, writing = target.parent, os.W_OK | os.X_OK
    if folder.is_dir() and not os.access(folder, writing, effective_ids=True):
        raise Refused(f"{file}: this user cannot make files in {folder}; name another FILE")
    began = time.monotonic()
    new = part_of(target)
    has_room(target.parent, snapshot.whole_size(source))
    try:
        with meter("backup") as told:
            snapshot.copy_online(source, new, told.part)
        revision = checked(new, file)
        like(new, source, 0o666)
        put(new, target, replace=force)
    except FileExistsError as error:
        raise Refused(f"{file} is there already; give another name, or --force") from error
    finally:
        snapshot.remove(new)
    size, took_ms = file.stat().st_size, int((time.monotonic() - began) * 1000)
    if as_json:
        row = {"file": str(file), "bytes": size, "revision": revision, "took_ms": took_ms}
        print_json(row)
    else:
        say(f"{file}: {size_text(size)}, revision {revision}, checked, in {took_ms / 1000:.1f}s")


@click.command()
@the_file
@click.option("--yes", is_flag=True, help="Replace the database that is there, without a question.")
@with_dsn
@with_json
@reported
def restore(file: Path, yes: bool, dsn: str, as_json: bool) -> None:
    """Put a FILE that `backup` made in the place of the SQLite database.

    FILE is checked first, and the database that is there is kept beside. Nothing may work on it:
    stop the edge and every run. What ran at the time of the backup cannot be known any more:
    recovery tells it lost, and the tasks' on_lost decides.
    """
    path = target_of(file_of(dsn, "restore"))
    if not file.is_file():
        raise BadFile(f"{file}: no such file")
    there = path.exists()
    if there and file.samefile(path):
        raise Refused(f"{file} is the database itself")
    if there:
        consent(yes, f"replaces {path} by {file}, and keeps the old one beside it")
    path.parent.mkdir(parents=True, exist_ok=True)
    has_room(path.parent, snapshot.whole_size(file))
    with alone(dsn, "restore"):
        new = part_of(path)
        try:
            with meter("restore") as told:
                copied(file, new, told.part)
            revision = checked(new, file)
            like(new, path if there else file, 0o666)
            kept = put_in_place(new, path)
        finally:
            snapshot.remove(new)
    tell(dsn, path, revision, kept, as_json)


def free_for(file: Path, source: Path, force: bool) -> Path:
    """Where the copy goes. Raises Refused when that is not free, or belongs to a database."""
    target = target_of(file)
    if snapshot.of_one(target, source):
        raise Refused(f"{file} is there already, as a part of the database; give another name")
    if target.exists() and not force:
        raise Refused(f"{file} is there already; give another name, or --force")
    log = snapshot.log_beside(target)
    if log is not None:
        raise Refused(f"{log} is there, and would be applied to the copy; give another name")
    return target


def copied(file: Path, new: Path, on_part: snapshot.OnPart) -> None:
    """A copy of what is to be restored, with the log beside it if it has one."""
    import sqlite3

    try:
        snapshot.copy_online(file, new, on_part, live=False)
    except sqlite3.DatabaseError as error:
        raise BadFile(f"{file}: it is not a database that can be read: {error}") from error


def checked(new: Path, file: Path) -> str:
    """The revision of a copy. Raises BadFile, naming the file that people know."""
    try:
        return snapshot.checked(new, newest_revision())
    except NotReady as error:
        raise BadFile(f"{file}: {error.message}") from error


def put_in_place(new: Path, path: Path) -> Path | None:
    """See snapshot.put_in_place. Raises Refused while others have the database open."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    pids = openers(path)
    if pids:
        some = ", ".join(map(str, pids[:5]))
        raise Refused(f"{path} is open in process {some}; end it before restore")
    try:
        return snapshot.put_in_place(new, path, stamp)
    except snapshot.Held as error:
        raise Refused(f"{path} is in use; restore has to wait for it") from error


def has_room(folder: Path, size: int) -> None:
    """Raises Refused when a file of that size cannot be written there."""
    free = snapshot.room(folder)
    if free < size:
        raise Refused(f"{folder} has {size_text(free)} free; {size_text(size)} are needed")


def tell(dsn: str, path: Path, revision: str, kept: Path | None, as_json: bool) -> None:
    row: dict[str, Any] = {"database": str(path), "revision": revision}
    row["kept"] = str(kept) if kept else None
    open_runs = None
    if revision == newest_revision():
        with opened(dsn) as store:
            open_runs = len(store.read("open_run", limit=OPEN_MOST + 1))
    row["open_runs"] = open_runs
    if as_json:
        print_json(row)
        return
    say(f"{path} restored, revision {revision}")
    if kept is not None:
        say(f"the database before is {kept}")
    if open_runs is None:
        say("run `qinglong-sql migrate` before anything else: the backup is of an older revision")
    elif open_runs:
        say(
            f"{count_text(open_runs, 'run', OPEN_MOST)} open at the time of the backup: what they"
            " executed then is told lost once an edge or `run` drives them"
        )
