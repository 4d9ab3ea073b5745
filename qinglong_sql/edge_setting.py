"""What a profile sets for an edge, and the lock that keeps it the only one (DESIGN §7, §12)."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from qinglong_sql.errors import NotReady
from qinglong_sql.limits import (
    CRON_GRACE_STANDALONE_MS,
    EDGE_DISPATCH,
    EDGE_SCHEDULE,
    IDLE_EDGE_MS,
    IDLE_STANDALONE_MS,
    STANDALONE_DISPATCH,
    STANDALONE_SCHEDULE,
)
from qinglong_sql.scheduler import EDGE, STANDALONE, Pages
from qinglong_sql.store.sqlite import Profile

LOCK = "edge.lock"  # in the state folder
# Steps mostly wait for something else, and each is a process with memory of its own.
MOST_SLOTS_ON_A_SMALL_DEVICE = 4


@dataclass(frozen=True, slots=True)
class Setting:
    """What a profile sets (DESIGN §7, §12)."""

    profile: Profile
    pages: Pages
    idle_ms: int
    offers: int
    drain_ms: int
    slots: int


SETTINGS = {
    "edge": Setting(
        "edge", replace(EDGE, schedule=EDGE_SCHEDULE), IDLE_EDGE_MS, EDGE_DISPATCH, 5_000,
        MOST_SLOTS_ON_A_SMALL_DEVICE,
    ),
    "standalone": Setting(
        "standalone",
        replace(STANDALONE, schedule=STANDALONE_SCHEDULE, grace_ms=CRON_GRACE_STANDALONE_MS),
        IDLE_STANDALONE_MS, STANDALONE_DISPATCH, 10_000,
        max(4, os.cpu_count() or 1),
    ),
}  # fmt: skip


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Be the one edge of a state folder. Raises NotReady when there is one, OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(folder / LOCK, flags, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
            raise NotReady(
                f"an edge already runs on this database as pid {pid or 'unknown'}"
            ) from None
        with suppress(OSError):  # a full disk: the lock is what counts
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)
