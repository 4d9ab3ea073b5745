"""Where logs of remote executions are kept: an interface, and its form as files (DESIGN §9).

A worker ships a log in chunks that carry their offset, and ends it with the number of bytes that
are not kept. What is repeated changes nothing, so a chunk whose answer was lost is sent again. An
object store can implement the same: it needs no more than the size it holds of each log.

<root>/<run_id>/<step>.<number>.log        0600, folders 0700, and those above them that are made
<root>/<run_id>/<step>.<number>.dropped    no more will come, and how many bytes are not kept
"""

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from qinglong_sql.evidence import LOG_MAX_BYTES

# A run's id (DESIGN §4) and a step's key (§12): neither is ever a way out of the folder.
RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,35}", re.ASCII)
STEP_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}", re.ASCII)
MOST_NUMBER = 2**31


class LogStore(Protocol):
    """Holds logs of attempts, each as one growing row of bytes. Never raises for a full disk."""

    def append(self, run_id: str, step_key: str, number: int, offset: int, chunk: bytes) -> int:
        """Hold `chunk`, which begins at `offset`; the size that is held now, in bytes.

        What is held already is not written again, and what would leave a gap is not written: the
        answer is where to go on. An empty chunk asks for it. An answer below `offset + len(chunk)`
        says that the rest was not taken: a full disk, or the cap of LOG_MAX_BYTES. After `dropped`
        nothing is added any more. Raises ValueError for what cannot name a log.
        """

    def dropped(self, run_id: str, step_key: str, number: int, count: int) -> None:
        """No more will come, and `count` bytes are not kept; the first word stands."""


def take(
    store: LogStore,
    run_id: str,
    step_key: str,
    number: int,
    offset: int,
    chunk: bytes,
    dropped: int | None,
) -> int:
    """What one message of a worker does: append, and end the log when all of it is held.

    Returns the size that is held. `dropped` is None while more will come; a last chunk that was
    not taken whole ends nothing, and is sent again. Raises ValueError.
    """
    size = store.append(run_id, step_key, number, offset, chunk)
    if dropped is not None and size >= offset + len(chunk):
        store.dropped(run_id, step_key, number, dropped)
    return size


class FileLogStore:
    """Logs as files below `root`, at most `cap_bytes` each; several processes may share it.

    A disk that is full or fails leaves a log shorter, and the answer says so: its worker sends the
    rest again when it wants to, or counts it as dropped. `tell` gets each error, on the thread that
    met it, and None when something was written; it does not raise.
    """

    def __init__(
        self,
        root: Path,
        *,
        cap_bytes: int = LOG_MAX_BYTES,
        tell: Callable[[OSError | None], object] = lambda error: None,
    ) -> None:
        self.root = root
        self._cap = cap_bytes
        self._tell = tell

    def append(self, run_id: str, step_key: str, number: int, offset: int, chunk: bytes) -> int:
        """As `LogStore.append`."""
        path = self.path(run_id, step_key, number)
        try:
            _make(path.parent)
            fd = _open(path, os.O_WRONLY | os.O_CREAT)
        except OSError as error:
            self._tell(error)
            return 0
        try:
            return self._append(fd, offset, chunk, ended=os.path.lexists(ending(path)))
        finally:
            os.close(fd)

    def _append(self, fd: int, offset: int, chunk: bytes, *, ended: bool) -> int:
        size = os.fstat(fd).st_size
        fresh = memoryview(chunk)[max(0, size - offset) : max(0, self._cap - offset)]
        if ended or offset > size or not fresh:
            return size
        # Written at its place, not at the end: two who send the same write the same.
        try:
            while fresh:
                written = os.pwrite(fd, fresh, size)
                size, fresh = size + written, fresh[written:]
        except OSError as error:
            self._tell(error)
        else:
            self._tell(None)
        return size

    def dropped(self, run_id: str, step_key: str, number: int, count: int) -> None:
        """As `LogStore.dropped`; where a full disk has no room for the number, a hole so long."""
        path = self.path(run_id, step_key, number)
        try:
            fd = _open(ending(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                try:
                    os.pwrite(fd, f"{count}\n".encode(), 0)
                except OSError:
                    os.ftruncate(fd, count)
            finally:
                os.close(fd)
        except FileExistsError:
            pass
        except OSError as error:
            self._tell(error)

    def path(self, run_id: str, step_key: str, number: int) -> Path:
        """Where a log is. Raises ValueError for what is no run, step or number of an attempt."""
        if not RUN_ID.fullmatch(run_id) or not STEP_KEY.fullmatch(step_key):
            raise ValueError("a log is named by a run and the key of a step")
        if not 0 < number < MOST_NUMBER:
            raise ValueError("a log is named by the number of an attempt")
        return self.root / run_id / f"{step_key}.{number}.log"


def ending(log: Path) -> Path:
    """The file that says of a log that no more will come."""
    return log.with_suffix(".dropped")


def _make(folder: Path) -> None:
    """A folder for its user alone, and so are those above it that are not there. Raises OSError."""
    missing = []
    for one in (folder, *folder.parents):
        if one.is_dir():
            break
        missing.append(one)
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)


def _open(path: Path, flags: int) -> int:
    """A descriptor of a regular file, mode 0600. Raises OSError."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(0, "not a file", str(path))
