"""Logs as files beside a worker: opened as what they are, not as what they should be (DESIGN §9).

A command of the same user can make anything of its log: a link, a pipe, a folder, a shorter file.
"""

import json
import os
import stat
from pathlib import Path

DROPPED_BYTES = 16 * 1024  # a receipt stands there where a disk was full


def open_log(path: Path, *, within: int | None = None) -> int | None:
    """A descriptor of a regular file to read, or None; no link is followed, no pipe waited for.

    `within` is the descriptor of the folder that a relative path begins in.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, dir_fd=within)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


def open_log_of(folder: Path) -> int | None:
    """The same for the log of an execution that has its folder still."""
    try:
        at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return open_log(Path("log"), within=at)
    finally:
        os.close(at)


def read_dropped(path: Path) -> int | None:
    """How many bytes a log does not hold, from the file beside it; None without one.

    It is a number, or a receipt, or where a disk was full a hole of so many bytes.
    """
    fd = open_log(path)
    if fd is None:
        return None
    try:
        text = os.read(fd, DROPPED_BYTES)
        if not text.strip(b"\0"):
            return os.fstat(fd).st_size
        found = json.loads(text)
        return int(found["bytes_dropped"] if isinstance(found, dict) else found)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    finally:
        os.close(fd)
