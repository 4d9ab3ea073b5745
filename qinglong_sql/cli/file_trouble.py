"""Words for what a SQLite file's disk does to it: what is full or fails, where, what to do."""

import errno
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

import click

from qinglong_sql.room import room_in
from qinglong_sql.store import SQLITE
from qinglong_sql.store.sqlite_error import name_of

WITH_HINT = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_CORRUPT", "SQLITE_READONLY")
NEEDED_BYTES = 256 * 1024  # a write-ahead log's index and a transaction want about so much


def hint(error: BaseException) -> str:
    """What to add to the words of SQLite or of the system, with a leading separator, if any."""
    name = name_of(error) if isinstance(error, sqlite3.Error) else ""
    path = _file()
    number, at = getattr(error, "errno", None), getattr(error, "filename", None)
    if number in (errno.ENOSPC, errno.EDQUOT):
        if at:
            return f"{_room(Path(str(at)))}; make room there; try again"
        if path:
            where = f" in {path.parent}{_room(path)}"
            return f"{where} (logs and receipts of executions); make room there; try again"
    if number == errno.EIO:
        where = f" in {path.parent}" if path and not at else ""
        return f"{where}: look at the disk and its kernel messages (dmesg); try again"
    if path is None or not name.startswith(WITH_HINT):
        return ""
    try:
        if lacks := _lacks(path):
            return f": {lacks}"
        room = room_in(path.parent)
    except OSError as lacking:
        return f": {path.parent}: {lacking.strerror}"
    if name.startswith("SQLITE_FULL") or room.free_bytes < NEEDED_BYTES or room.files == 0:
        return f": the file system of {path} is full ({room}); make room there; try again"
    if name.startswith("SQLITE_IOERR"):
        return (
            f" ({name.removeprefix('SQLITE_').lower()}) at {path}; nothing that was answered is"
            " lost: look at the disk and its kernel messages (dmesg); try again"
        )
    if name.startswith("SQLITE_CORRUPT"):  # a read that fails is told so as well
        return (
            f": {path}, or its disk cannot be read: look at the kernel messages (dmesg); try again;"
            " if it stays so, `qinglong-sql restore` puts a backup in its place"
        )
    return f": {path}"


def _lacks(path: Path) -> str:
    """What this user may not do with a SQLite file, which SQLite does not tell. Raises OSError."""
    if os.statvfs(path.parent).f_flag & os.ST_RDONLY:
        return f"the file system of {path} is mounted read-only"
    for place, mode, words in (
        (path.parent, os.X_OK, "enter {}"),
        (path, os.F_OK, "find {}: it is not there"),
        (path, os.R_OK, "read {}"),
        (path, os.W_OK, "write {}"),
        (path.parent, os.W_OK, "make files in {}, where SQLite keeps its journal"),
    ):
        if not os.access(place, mode, effective_ids=True):
            return f"this user cannot {words.format(place)}"
    return ""


def _room(path: Path) -> str:
    """How much room there is where a file should be, in parentheses."""
    for folder in (path, *path.parents):
        with suppress(OSError):
            return f" ({room_in(folder)})"
    return ""


def _file() -> Path | None:
    """The SQLite file of the command that is running; None for PostgreSQL, or none at all."""
    context = click.get_current_context(silent=True)
    dsn = context.params.get("dsn") if context else None
    if not isinstance(dsn, str) or not dsn.startswith(SQLITE):
        return None
    return Path(dsn.removeprefix(SQLITE)).absolute()
