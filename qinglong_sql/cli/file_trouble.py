"""Words for what a SQLite file's disk does to it: what is full or fails, where, what to do."""

import errno
import os
import sqlite3
from pathlib import Path

import click

from qinglong_sql.store import SQLITE
from qinglong_sql.store.sqlite_error import name_of

NEEDED_BYTES = 256 * 1024  # a write-ahead log's index and a transaction want about so much
MIB = 1 << 20


def hint(error: BaseException) -> str:
    """What to add to SQLite's words, with a leading separator; empty when there is nothing."""
    name = name_of(error) if isinstance(error, sqlite3.Error) else ""
    path = _file()
    if path and isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f" in {path.parent} (logs and receipts of executions); make room there; try again"
    if path is None or not name.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN")):
        return ""
    try:
        found = os.statvfs(path.parent)
    except OSError as lacking:
        return f": {path.parent}: {lacking.strerror}"
    free = found.f_bavail * found.f_frsize
    if name.startswith("SQLITE_FULL") or free < NEEDED_BYTES or not found.f_favail:
        size = found.f_blocks * found.f_frsize
        return (
            f": the file system of {path} is full ({free / MIB:.1f} of {size / MIB:.1f} MiB free);"
            " make room there; try again"
        )
    if name.startswith("SQLITE_IOERR"):
        return (
            f" ({name.removeprefix('SQLITE_').lower()}) at {path}; nothing that was answered is"
            " lost: look at the disk and its kernel messages (dmesg); try again"
        )
    return f": {path}"


def _file() -> Path | None:
    """The SQLite file of the command that is running; None for PostgreSQL, or none at all."""
    context = click.get_current_context(silent=True)
    dsn = context.params.get("dsn") if context else None
    if not isinstance(dsn, str) or not dsn.startswith(SQLITE):
        return None
    return Path(dsn.removeprefix(SQLITE)).absolute()
