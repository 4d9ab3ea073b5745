"""The temporary folder of a server: traversable, locked while alive, swept when left behind."""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from tests.binaries import NoServer

PREFIX = "qinglong-pg-"
STALE_S = 60
MEMORY = Path("/dev/shm")
ROOM_BYTES = 2 * 1024**3


def traversable(folder: Path) -> bool:
    """Whether any user may walk down to this folder."""
    return all(part.stat().st_mode & stat.S_IXOTH for part in (folder, *folder.parents))


def roomy(folder: Path) -> bool:
    """Whether a server has room enough there, and may run a copy of its programs."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize >= ROOM_BYTES and not found.f_flag & os.ST_NOEXEC


def scratch_folder(*, durable: bool) -> tuple[Path, int]:
    """A short-named folder that any user may traverse (a socket's path is at most 107 bytes).

    durable: on a disk, never in memory. Returns it with the descriptor of the lock that keeps a
    sweep off. Raises NoServer.
    """
    memory = [] if durable or not roomy(MEMORY) else [MEMORY]
    for base in (*memory, Path(tempfile.gettempdir()).resolve(), Path("/tmp"), Path("/var/tmp")):
        if len(str(base)) < 60 and os.access(base, os.W_OK) and traversable(base):
            break
    else:
        raise NoServer("no temporary folder that other users may traverse: set TMPDIR to one")
    _sweep(base)
    scratch = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    scratch.chmod(0o755)
    alive = os.open(scratch / "alive", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(alive, fcntl.LOCK_EX)
    return scratch, alive


def _sweep(base: Path) -> None:
    """Remove what sessions of ours left behind that were killed."""
    for old in base.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if old.stat().st_uid != os.geteuid() or time.time() - old.stat().st_mtime < STALE_S:
                continue
            alive = os.open(old / "alive", os.O_RDWR | os.O_CLOEXEC)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(old, ignore_errors=True)
            os.close(alive)


def discard(scratch: Path, alive: int) -> None:
    """Remove the folder, then let its lock go."""
    shutil.rmtree(scratch, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.close(alive)
