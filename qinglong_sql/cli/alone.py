"""Who works on a database of this machine, and keeping them out for as long as nobody may."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from qinglong_sql.cli.exits import Refused
from qinglong_sql.cli.options import state_folder
from qinglong_sql.store import SQLITE

WORKER, EDGE = "worker.lock", "edge.lock"


def who_works(dsn: str) -> str | None:
    """Words for the edge or run that works on this database here; None when nobody does.

    Workers of other machines, which PostgreSQL may have, are not seen.
    """
    folder = state_folder(dsn)
    edge = _edge(folder)
    if edge is not None:
        return f"an edge (pid {edge['pid']})" if "pid" in edge else "an edge"
    held = [lock for lock in _locks(folder) if not _is_free(lock)]
    return f"a run or an edge (it holds {held[0]})" if held else None


@contextmanager
def alone(dsn: str, what: str) -> Iterator[None]:
    """Keep every worker of this machine out. Raises Refused, saying who works, when one does.

    The locks that an edge and a first run take are made when they are not there yet.
    """
    who = who_works(dsn)
    if who is not None:
        raise Refused(f"{who} works on this database; stop it before {what}")
    folder = state_folder(dsn)
    held: list[int] = []
    try:
        for lock in sorted({*_locks(folder), folder / EDGE, folder / "0" / WORKER}):
            lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            held.append(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            try:
                fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Refused(
                    f"somebody begins to work on this database; {what} has to wait"
                ) from error
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)


def openers(path: Path) -> list[int]:
    """Pids of other processes that have a file open, as far as this user may see them."""
    try:
        wanted = path.stat()
    except FileNotFoundError:
        return []
    found = set()
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # another user's, or gone meanwhile
            seen = entry.stat()
            if (seen.st_dev, seen.st_ino) == (wanted.st_dev, wanted.st_ino):
                found.add(int(entry.parts[2]))
    return sorted(found - {os.getpid()})


def file_of(dsn: str, command: str) -> Path:
    """The file of a SQLite DSN. Raises Refused, with the other engine's way, for PostgreSQL."""
    if dsn.startswith(SQLITE):
        return Path(dsn.removeprefix(SQLITE)).resolve()
    raise Refused(f"{command} is for SQLite files; PostgreSQL has pg_dump and pg_basebackup")


def _edge(folder: Path) -> dict[str, object] | None:
    from qinglong_sql.door import ask

    return ask(folder, "status")


def _locks(folder: Path) -> list[Path]:
    return sorted([*folder.glob(EDGE), *folder.glob(f"*/{WORKER}")])


def _is_free(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # gone, or another user's
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
