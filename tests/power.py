"""A disk that loses what was not synced, under SQLite: an apsw VFS that records what is asked.

One run of a script is recorded with everything SQLite does to its files. From the record the disk
after a power failure at any moment is made as often as wanted: of what was written after the last
sync, each sector of 512 bytes is as it was at any moment since, alone; the size of a file too; and
of files made and removed since the folder was synced any first part is there. The product's own
store then opens what is left, with Python's own SQLite.

A flash controller that lies (answers a sync, and loses what it answered for) is not covered: under
it SQLite promises nothing, as the controls without sync show. Nor is a file system on which cutting
a file short is not one change (ext2 and FAT have no journal): SQLite takes it for one, as commits
under TRUNCATE are.
"""

import random
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import apsw

from qinglong_sql.store.sqlite import Profile, SqliteStore

SECTOR = 512
POWERSAFE_OVERWRITE = 0x1000  # as SQLite's own VFS says of every disk
MAIN = "qinglong.db"

# one thing done to the disk: kind, file (a number of its own) or name, and what
Event = tuple[Literal["write", "size", "sync", "create", "delete", "folder", "ack"], Any, Any, Any]


@dataclass(slots=True)
class Disk:
    """What SQLite sees (`names`, `live`), and every event in order."""

    names: dict[str, int] = field(default_factory=dict)
    live: dict[int, bytearray] = field(default_factory=dict)
    log: list[Event] = field(default_factory=list)
    unsynced: set[int] = field(default_factory=set)  # files made since the folder was synced

    def create(self, name: str, content: bytes = b"") -> int:
        inode = len(self.live)
        self.names[name], self.live[inode] = inode, bytearray(content)
        self.log.append(("create", name, inode, content))
        self.unsynced.add(inode)
        return inode

    def delete(self, name: str, *, sync: bool) -> None:
        self.log.append(("delete", name, self.names.pop(name), None))
        if sync:
            self.sync_folder()

    def sync(self, inode: int) -> None:
        self.log.append(("sync", inode, None, None))
        if inode in self.unsynced:  # SQLite syncs the folder with the first sync of a new file
            self.sync_folder()

    def sync_folder(self) -> None:
        self.log.append(("folder", None, None, None))
        self.unsynced.clear()

    def write(self, inode: int, what: bytes, offset: int) -> None:
        content = self.live[inode]
        if len(content) < offset:
            content.extend(bytes(offset - len(content)))
        content[offset : offset + len(what)] = what
        self.log.append(("write", inode, offset, bytes(what)))

    def resize(self, inode: int, size: int) -> None:
        del self.live[inode][size:]
        self.log.append(("size", inode, size, None))


class Vfs(apsw.VFS):
    """The file system of one Disk; one connection, so locks are nobody's concern."""

    def __init__(self, name: str, disk: Disk) -> None:
        self.disk = disk
        super().__init__(name, "unix")

    def xOpen(self, name: Any, flags: list[int]) -> "Opened":  # noqa: N802
        path = base_name(name.filename() if isinstance(name, apsw.URIFilename) else name)
        if path not in self.disk.names:
            if not flags[0] & apsw.SQLITE_OPEN_CREATE:
                raise apsw.CantOpenError(path)
            self.disk.create(path)
        flags[1] = flags[0]
        return Opened(self.disk, self.disk.names[path])

    def xAccess(self, pathname: str, flags: int) -> bool:  # noqa: N802
        return base_name(pathname) in self.disk.names

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        if base_name(filename) in self.disk.names:
            self.disk.delete(base_name(filename), sync=bool(syncdir))

    def xFullPathname(self, name: str) -> str:  # noqa: N802
        return "/" + base_name(name)


class Opened:
    """An open file of a Disk."""

    def __init__(self, disk: Disk, inode: int) -> None:
        self.disk, self.inode = disk, inode

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        return bytes(self.disk.live[self.inode][offset : offset + amount])

    def xWrite(self, what: bytes, offset: int) -> None:  # noqa: N802
        self.disk.write(self.inode, what, offset)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self.disk.resize(self.inode, size)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self.disk.sync(self.inode)

    def xFileSize(self) -> int:  # noqa: N802
        return len(self.disk.live[self.inode])

    def xSectorSize(self) -> int:  # noqa: N802
        return 4096

    def xDeviceCharacteristics(self) -> int:  # noqa: N802
        return POWERSAFE_OVERWRITE

    def xFileControl(self, op: int, pointer: int) -> bool:  # noqa: N802
        return False

    def xCheckReservedLock(self) -> bool:  # noqa: N802
        return False

    def xLock(self, level: int) -> None: ...  # noqa: N802

    def xUnlock(self, level: int) -> None: ...  # noqa: N802

    def xClose(self) -> None: ...  # noqa: N802


def base_name(name: Any) -> str:
    return Path(str(name)).name


# --- Python's sqlite3 as far as the store uses it, over apsw


class Cursor:
    def __init__(self, connection: "Connection") -> None:
        self.connection = connection
        self._cursor = connection.wrapped.cursor()
        self._cursor.exec_trace = self._trace
        self.description: list[tuple[str]] | None = None

    def _trace(self, cursor: Any, sql: str, bindings: Any) -> bool:
        self.description = [(column[0],) for column in cursor.get_description()] or None
        return True

    @property
    def rowcount(self) -> int:
        return self.connection.wrapped.changes()

    def execute(self, text: str, bound: Mapping[str, Any] | Sequence[Any] = ()) -> "Cursor":
        self._asked(lambda: self._cursor.execute(text, bound))
        return self

    def fetchall(self) -> list[Any]:
        return list(self._asked(self._cursor.fetchall))

    def fetchone(self) -> Any:
        row = self._asked(self._cursor.fetchone)
        self._asked(self._cursor.fetchall)
        return row

    def _asked(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except apsw.Error as error:
            raise as_sqlite3(error) from error


class Connection:
    def __init__(self, vfs: Vfs, name: str, profile: Profile) -> None:
        self.wrapped = apsw.Connection(MAIN, vfs=name, flags=apsw.SQLITE_OPEN_READWRITE)
        self._vfs = vfs
        if profile == "standalone":
            # the index of the log is then in memory: a VFS in Python shares none
            self.wrapped.execute("pragma locking_mode = exclusive")

    def cursor(self) -> Cursor:
        return Cursor(self)

    def execute(self, text: str, bound: Any = ()) -> Cursor:
        return self.cursor().execute(text, bound)

    def create_function(self, name: str, count: int, function: Any, *, deterministic: bool) -> None:
        self.wrapped.create_scalar_function(name, function, count, deterministic=deterministic)

    @property
    def in_transaction(self) -> bool:
        return bool(self.wrapped.in_transaction)

    def close(self) -> None:
        self.wrapped.close()
        self._vfs.unregister()


def as_sqlite3(error: apsw.Error) -> sqlite3.Error:
    code = getattr(error, "extendedresult", getattr(error, "result", 1))
    name = apsw.mapping_extended_result_codes.get(code) or apsw.mapping_result_codes.get(code)
    broken = isinstance(error, apsw.ConstraintError)
    told = (sqlite3.IntegrityError if broken else sqlite3.OperationalError)(str(error))
    told.sqlite_errorname = str(name)
    return told


class OnDisk(SqliteStore):
    """The product's store whose file is on a Disk. `path` is a file that merely exists."""

    def __init__(self, disk: Disk, path: Path, profile: Profile, clock: Callable[[], int]) -> None:
        self.disk, self.wanted = disk, profile
        super().__init__(path, profile=profile, clock=clock)

    def _connect(self) -> sqlite3.Connection:
        name = f"power-{id(self.disk)}"
        return Connection(Vfs(name, self.disk), name, self.wanted)  # type: ignore[return-value]


# --- what a power failure leaves


@dataclass(slots=True)
class Kept:
    """One file: what is on the platter for sure, and what was done to it since."""

    synced: bytes = b""
    since: list[Event] = field(default_factory=list)
    now: bytearray = field(default_factory=bytearray)

    def do(self, event: Event) -> None:
        kind, _, at, what = event
        if kind == "sync":
            self.synced, self.since = bytes(self.now), []
            return
        apply(self.now, event)
        self.since.append((kind, None, at, what))

    def torn(self, draw: random.Random, share: float) -> bytes:
        """Each sector, and the size, as at a moment since the last sync of its own."""
        if not self.since:
            return self.synced
        longest = max(len(self.synced), *(_end(event) for event in self.since))
        versions, content = [self.synced], bytearray(self.synced)
        for event in self.since:
            apply(content, event)
            versions.append(bytes(content))
        sized = _moment(draw, share, len(versions))
        made = bytearray()
        for at in range(0, longest, SECTOR):
            made += _sector(versions, _moment(draw, share, len(versions)), at, sized)
        return bytes(made[: len(versions[sized])])


def _sector(versions: Sequence[bytes], moment: int, at: int, sized: int) -> bytes:
    """A sector as at a moment. Cutting a file short is its new size alone: while the old one
    stands, nothing behind the cut has changed.
    """
    while moment > sized and len(versions[moment]) <= at < len(versions[sized]):
        moment -= 1
    return versions[moment][at : at + SECTOR].ljust(SECTOR, b"\0")


def apply(content: bytearray, event: Event) -> None:
    kind, _, at, what = event
    if kind == "size":
        del content[at:]
    else:
        if len(content) < at:
            content.extend(bytes(at - len(content)))
        content[at : at + len(what)] = what


def _end(event: Event) -> int:
    return int(event[2]) + len(event[3] or b"")


def _moment(draw: random.Random, share: float, count: int) -> int:
    """The newest version with the probability `share`, else any older one."""
    return count - 1 if draw.random() < share else draw.randrange(count - 1)


def after(log: Sequence[Event], draw: random.Random) -> dict[str, bytes]:
    """The files when power fails behind the last of these events."""
    files: dict[int, Kept] = {}
    folder: dict[str, int] = {}
    pending: list[Event] = []
    for event in log:
        kind, key, inode, content = event
        if kind == "create":
            files[inode] = Kept(content, [], bytearray(content))
            pending.append(event)
        elif kind == "delete":
            pending.append(event)
        elif kind == "folder":
            _link(folder, pending)
            pending = []
        elif kind != "ack":
            files[key].do(event)
    share = draw.choice((0.0, 0.2, 0.5, 0.8, 1.0))
    _link(folder, pending[: draw.randint(0, len(pending))])
    return {name: files[inode].torn(draw, share) for name, inode in folder.items()}


def _link(folder: dict[str, int], events: Sequence[Event]) -> None:
    for kind, name, inode, _ in events:
        if kind == "create":
            folder[name] = inode
        else:
            folder.pop(name, None)


def acked(log: Sequence[Event]) -> int:
    return sum(event[0] == "ack" for event in log)
