"""Who works on a database of this machine, and keeping them out for as long as nobody may."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from qinglong_sql import door
from qinglong_sql.cli.exits import Refused
from qinglong_sql.cli.options import same_dsn, state_folder
from qinglong_sql.cli.words import now_ms
from qinglong_sql.listing import listed
from qinglong_sql.store import SQLITE, Span, Store

WORKER, EDGE = "worker.lock", "edge.lock"
LEASES = 32  # live ones are looked for among the oldest that are open
LATE_MS = 15_000  # whoever drives does what is due within a cadence
FIRST_S, AGAIN_S = 1.0, 5.0
SILENT_S, ASK_AGAIN_S = 1.5, 0.05  # an edge answers between two of its ticks


def who_works(dsn: str) -> str | None:
    """Words for the edge or run that works on this database here; None when nobody does.

    Workers of other machines, which PostgreSQL may have, are not seen.
    """
    edge = edge_here(dsn)
    if edge is not None:
        return silent_words(edge) or (
            f"an edge (pid {edge['pid']})" if "pid" in edge else "an edge"
        )
    held = _held(state_folder(dsn))
    return f"a run or an edge (it holds {held[0]})" if held else None


def edge_here(dsn: str) -> dict[str, Any] | None:
    """What the edge of a database says of itself; None without one.

    One that lives, by its lock, and says nothing within SILENT_S has its `pid`, and as its `error`
    how it is: it is stopped, or busy with something that it does not come back from.
    """
    folder = state_folder(dsn)
    end = time.monotonic() + SILENT_S
    while True:
        found = door.ask(folder, "status")
        pid = None if found is not None else _holder(folder / EDGE)
        if pid is None:
            return found
        if time.monotonic() >= end:
            return {"pid": pid, "error": "it is stopped" if is_stopped(pid) else "it is busy"}
        time.sleep(ASK_AGAIN_S)


def silent_words(edge: dict[str, Any] | None) -> str:
    """Words for an edge that does not answer; nothing for one that does, or none."""
    if edge is None or "error" not in edge:
        return ""
    named = f"an edge (pid {edge['pid']})" if "pid" in edge else "an edge"
    return f"{named} that does not answer ({edge['error']})"


def undriven(store: Store, dsn: str) -> bool:
    """Whether nobody drives the database or executes, as far as that can be known from here."""
    return bool(undone(store, dsn))


def undone(store: Store, dsn: str) -> str:
    """What nobody does for the database: `drives`, `executes`, or nothing when all is done.

    A folder of another user says nothing. PostgreSQL may have workers elsewhere: nobody executes
    when no worker is registered, though a control process may drive; and nobody drives when work is
    long due and no lease stands.
    """
    folder = state_folder(dsn)
    if folder.exists() and not os.access(folder, os.R_OK | os.X_OK):
        return ""
    if not all(os.access(lock, os.R_OK) for lock in _locks(folder)) or _held(folder):
        return ""
    if dsn.startswith(SQLITE):
        return "drives"
    there = any(store.read("worker_state", limit=1, status=one) for one in ("online", "draining"))
    late = _long_due(store)
    if not there:
        return "drives" if late else "executes"
    return "drives" if late and not _leased(store) else ""


def nobody_drives(store: Store, dsn: str, run_id: str) -> str:
    """Words for that, and what to type for a run; nothing when somebody drives the database.

    An edge that does not answer is told as well.
    """
    what = undone(store, dsn)
    if not what:
        silent = silent_words(edge_here(dsn)) if dsn.startswith(SQLITE) else ""
        return f"this database has {silent}" if silent else ""
    more = same_dsn(dsn)
    if what == "executes":
        return f"nobody executes for this database now: {executors(f'resume {run_id[:12]}{more}')}"
    edge = f"`qinglong-sql edge{more}` or " if dsn.startswith(SQLITE) else ""
    return f"nobody drives this database now: {edge}`qinglong-sql resume {run_id[:12]}{more}` does"


def executors(resume: str) -> str:
    """Who would execute for a cluster; `resume` are the words of that command."""
    return (
        "`qinglong-sql worker` does, beside a control process, or"
        f" `qinglong-sql {resume}` on this machine"
    )


class Lookout:
    """Says once that nobody drives the database, while somebody waits for a run of it."""

    def __init__(self, store: Store, dsn: str, run_id: str, say: Callable[[str], object]) -> None:
        self.store, self.dsn, self.run_id, self.say = store, dsn, run_id, say
        self.next_at = time.monotonic() + FIRST_S
        self.told = False

    def look(self) -> None:
        """Look now and then; what is said once is said again when somebody drove meanwhile."""
        if time.monotonic() < self.next_at:
            return
        self.next_at = time.monotonic() + AGAIN_S
        words = nobody_drives(self.store, self.dsn, self.run_id)
        if words and not self.told:
            self.say(words)
        self.told = bool(words)


def worker_lives(dsn: str, worker_id: str) -> bool | None:
    """Whether a worker has its folder on this machine now; None when it may be of another one."""
    folder = state_folder(dsn)
    for lock in folder.glob(f"*/{WORKER}"):
        with suppress(OSError, UnicodeDecodeError):  # it goes, or is another user's
            if (lock.parent / "worker_id").read_text(encoding="ascii").strip() == worker_id:
                return not _is_free(lock)
    known = not folder.exists() or os.access(folder, os.R_OK | os.X_OK)
    return False if dsn.startswith(SQLITE) and known and not _held(folder) else None


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
    for process in listed(Path("/proc")):
        for entry in listed(process / "fd") if process.name.isdecimal() else ():
            with suppress(OSError):  # another user's, or gone meanwhile
                if os.path.samestat(entry.stat(), wanted):
                    found.add(int(process.name))
    return sorted(found - {os.getpid()})


def file_of(dsn: str, command: str) -> Path:
    """The file of a SQLite DSN. Raises Refused, with the other engine's way, for PostgreSQL."""
    if dsn.startswith(SQLITE):
        return Path(dsn.removeprefix(SQLITE)).resolve()
    raise Refused(f"{command} is for SQLite files; PostgreSQL has pg_dump and pg_basebackup")


def _long_due(store: Store) -> bool:
    """Whether work has been left lying that whoever drives does within a cadence."""
    from qinglong_sql.cli.standing import STAGES

    long_due = Span(0, now_ms() - LATE_MS)
    return any(
        store.read("agenda_state", limit=1, stage=stage, due_at_ms=long_due) for stage in STAGES
    )


def _leased(store: Store) -> bool:
    """Whether a lease stands, of one of the oldest runs that are open."""
    now = now_ms()
    open_runs = store.read("open_run", order="admitted_at_ms, run_id", limit=LEASES)
    return any(
        one["lease_status"] == "leased" and one["lease_expires_at_ms"] > now
        for run in open_runs
        for status in ("claimed", "starting", "running")
        for one in store.read("attempt_state", run_id=run["run_id"], status=status)
    )


def _holder(lock: Path) -> int | None:
    """The edge that wrote itself into its lock, and has it; None for any other, or none."""
    if _is_free(lock):
        return None
    try:
        pid, wanted = int(lock.read_text(encoding="ascii")), lock.stat()
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                if os.path.samestat(entry.stat(), wanted):
                    return pid
    except (OSError, ValueError):  # it ends, or could not write
        pass
    return None


def is_stopped(pid: int) -> bool:
    """Whether somebody has stopped a process, as Ctrl-Z does."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


def _held(folder: Path) -> list[Path]:
    return [lock for lock in _locks(folder) if not _is_free(lock)]


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
