"""How much room a file system has, and whether executions would fit there."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
# Of one execution: folder, spec, input, journal, receipt, socket, the first of its log.
EXECUTION_BYTES = 64 * 1024
EXECUTION_FILES = 8


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes and files that this user may still make; `files` is None without such a limit."""

    free_bytes: int
    size_bytes: int
    files: int | None

    def executions(self) -> int:
        """How many can begin, without the room that their logs and outputs take later."""
        fit = self.free_bytes // EXECUTION_BYTES
        return fit if self.files is None else min(fit, self.files // EXECUTION_FILES)

    def __str__(self) -> str:
        if self.files is not None and self.files < EXECUTION_FILES:
            return f"{self.files} more files possible"
        return f"{self.free_bytes / MIB:.1f} of {self.size_bytes / MIB:.1f} MiB free"


def room_in(folder: Path) -> Room:
    """Look at the file system of a folder. Raises OSError."""
    seen = os.statvfs(folder)
    root = os.geteuid() == 0  # it may use what is kept back from others
    return Room(
        (seen.f_bfree if root else seen.f_bavail) * seen.f_frsize,
        seen.f_blocks * seen.f_frsize,
        (seen.f_ffree if root else seen.f_favail) if seen.f_files else None,
    )


def full(folder: Path) -> OSError:
    """The error of a folder that has too little room."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
