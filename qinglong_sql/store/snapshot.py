"""Whole SQLite files: a copy made while others write, a check, and one file in another's place.

A file with a `-wal` or a `-journal` beside it is only whole together with that; whatever is put in
its place must never meet them (a stale log would be applied to it).
"""

import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from qinglong_sql.errors import NotReady
from qinglong_sql.limits import LOCAL_PAUSE_MS, SQLITE_BUSY_MS
from qinglong_sql.migrate import stands_at
from qinglong_sql.whole_file import owners_alone, synced

STEP_PAGES = 256
# A copy begins anew whenever somebody has written, unless a log keeps its snapshot (WAL). After
# so many times it is done in one step, for which the writer waits.
RESTARTS = 3
LOGS = ("-wal", "-journal")  # a database is whole only with them
COMPANIONS = (*LOGS, "-shm")

OnPart = Callable[[int, int], object]


class Held(Exception):
    """Another process has the file open."""


class _Restarted(Exception):
    pass


def copy_online(
    source: Path,
    target: Path,
    on_part: OnPart = lambda done, whole: None,
    *,
    live: bool = True,
) -> None:
    """Copy a database as it is at one moment, while others read and write it; fsynced.

    `target` is new and its owner's alone, `live` as in `reader`. `on_part` gets the pages that are
    done and all of them.
    Raises sqlite3.Error and OSError, and what `on_part` raises; then the target is of no use.
    """
    owners_alone(target)
    with (
        closing(reader(source, live=live)) as origin,
        closing(sqlite3.connect(target, isolation_level=None)) as copy,
    ):
        if origin.execute("pragma journal_mode").fetchone() == ("wal",):
            origin.execute("begin")  # one snapshot from the first page to the last
            origin.execute("select count(*) from sqlite_schema").fetchone()
        left, restarts = -1, 0

        def step(status: int, remaining: int, whole: int) -> None:
            nonlocal left, restarts
            restarts += 0 <= left <= remaining  # no further than before: from the first page again
            left = remaining
            on_part(whole - remaining, whole)
            if restarts >= RESTARTS:
                raise _Restarted
            time.sleep(LOCAL_PAUSE_MS / 1000)

        pause = 2 * LOCAL_PAUSE_MS / 1000
        try:
            origin.backup(copy, pages=STEP_PAGES, progress=step, sleep=pause)
        except _Restarted:
            origin.backup(copy, pages=-1, sleep=pause)
    synced(target)


def reader(path: Path, *, live: bool = True) -> sqlite3.Connection:
    """A connection that changes no row. Without `live`, nobody has the file in use: unless a log
    with something in it lies beside it, it is read as it is and nothing is written beside it.
    """
    live = live or log_beside(path) is not None
    uri = f"{path.absolute().as_uri()}?{'mode=rw' if live else 'immutable=1'}"
    timeout_s = SQLITE_BUSY_MS / 1000
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=timeout_s)
    connection.execute("pragma query_only = on")
    return connection


def checked(path: Path, newest: str) -> str:
    """The revision of a file that is one of ours, whole and not newer than `newest`.

    Nobody else has it in use. Raises NotReady, saying what is wrong with it.
    """
    uri = f"{path.absolute().as_uri()}?immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            revision = stands_at(connection)
            if revision is None:
                raise NotReady("it is empty")
            if revision > newest:
                raise NotReady(f"it has revision {revision}, newer than {newest}: upgrade first")
            ((told, *_),) = connection.execute("pragma integrity_check(1)").fetchall()
            if told != "ok":
                raise NotReady(f"it is damaged: {told}")
            broken = connection.execute("pragma foreign_key_check").fetchone()
            if broken is not None:
                raise NotReady(f"it is damaged: a row of {broken[0]} lacks one of {broken[2]}")
    except sqlite3.DatabaseError as error:
        raise NotReady(f"it is not a database that can be read: {error}") from error
    return revision


def put_in_place(new: Path, path: Path, stamp: str) -> Path | None:
    """Make `new` the database `path`; where the old one is kept, None when there was none.

    Killed at any moment, `path` is the old database, whole, or the new one; only when the old one
    cannot be read any more it may be neither, and the command is to be repeated. Raises Held.
    """
    kept = None
    there, whole = path.exists(), False
    beside = _free(path.with_name(f"{path.name}.before-restore-{stamp}"))
    if there:
        kept, whole = beside, folded(path)
    logs = [end for end in LOGS if _is_log(path.with_name(path.name + end))]
    for end in logs:  # first, so that a kill never parts a database from what it is whole with
        _twin(path.with_name(path.name + end), beside.with_name(beside.name + end))
    if there and not (whole and _linked(path, beside)):
        path.rename(beside)
    synced(path.parent)
    for end in COMPANIONS:
        path.with_name(path.name + end).unlink(missing_ok=True)
    synced(path.parent)
    new.replace(path)
    synced(path.parent)
    return kept


def folded(path: Path) -> bool:
    """Bring everything into the one file, so that no log is left beside it.

    False when it is damaged; one that is none at all is not even touched, nor what lies beside it.
    Raises Held when another process has it open.
    """
    try:
        uri = f"{path.absolute().as_uri()}?immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            connection.execute("pragma schema_version").fetchone()
        with closing(sqlite3.connect(path, isolation_level=None, timeout=1)) as connection:
            connection.execute("pragma journal_mode = delete")
            connection.execute("select count(*) from sqlite_schema").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise Held from error
        return False
    except sqlite3.DatabaseError:
        return False
    return not path.with_name(path.name + "-wal").exists()


def pages(path: Path) -> dict[str, int]:
    """Bytes of a file (`file_bytes`), and those of its free pages (`free_bytes`)."""
    with closing(reader(path)) as connection:
        size, count, free = (
            connection.execute(f"pragma {name}").fetchone()[0]
            for name in ("page_size", "page_count", "freelist_count")
        )
    return {"file_bytes": size * count, "free_bytes": size * free}


def vacuum(path: Path) -> None:
    """Rewrite a file without its free pages, in place: whoever waits for it meanwhile finds it
    afterwards, which a new file under the same name could not promise.

    It takes room for the live pages twice: in a copy, and in the log or journal beside the file.
    No auto_vacuum instead: purging 20,000 runs (188 MB) then wrote 2,234 MB as `incremental` and
    2,479 MB as `full`, not 1,741 MB, and flash wears by what is written, not by a file's size.
    """
    with closing(sqlite3.connect(path, isolation_level=None, timeout=5)) as connection:
        connection.execute("pragma temp_store = file")
        folder = str(path.parent).replace("'", "''")
        connection.execute(f"pragma temp_store_directory = '{folder}'")  # not a RAM disk
        connection.execute("pragma synchronous = full")
        connection.execute("vacuum")
        connection.execute("pragma wal_checkpoint(truncate)")
        connection.execute("pragma temp_store_directory = ''")


def whole_size(path: Path) -> int:
    """Bytes of a database with its log."""
    parts = [path, path.with_name(path.name + "-wal")]
    return sum(part.stat().st_size for part in parts if part.exists())


def room(folder: Path) -> int:
    """Bytes that are free for this user on the file system of a folder."""
    return shutil.disk_usage(folder).free


def remove(path: Path) -> None:
    """Remove an unfinished file with whatever SQLite keeps beside it."""
    for end in ("", *COMPANIONS):
        path.with_name(path.name + end).unlink(missing_ok=True)


def of_one(path: Path, file: Path) -> bool:
    """Whether a path is a database itself, by whatever name, or what SQLite keeps beside it."""
    with suppress(OSError):
        if path.samefile(file):
            return True
    names = {file.name + end for end in COMPANIONS}
    try:
        return path.name in names and path.parent.samefile(file.parent)
    except OSError:
        return False


def log_beside(path: Path) -> Path | None:
    """A log or journal with something in it that SQLite would apply to a file of this path."""
    beside = [path.with_name(path.name + end) for end in LOGS]
    return next((one for one in beside if _is_log(one)), None)


def _is_log(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


def _twin(path: Path, other: Path) -> None:
    """Another name for a file, or a copy of it where a file has one name only."""
    if _linked(path, other):
        return
    try:
        shutil.copyfile(path, other)
        synced(other)
    except BaseException:
        other.unlink(missing_ok=True)
        raise


def _linked(path: Path, other: Path) -> bool:
    try:
        os.link(path, other)
    except OSError:
        return False
    return True


def _free(path: Path) -> Path:
    number, found = 1, path
    while any(found.with_name(found.name + end).exists() for end in ("", *COMPANIONS)):
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found
