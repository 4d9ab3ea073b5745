"""Writing the receipt of an execution: once, whole, for good (DESIGN §9).

Launcher and fork server write receipts; `evidence` reads them. Only light modules may be imported.
"""

from __future__ import annotations

import errno
import json
import os
import time
from contextlib import suppress

from qinglong_sql import linux
from qinglong_sql.slot import DROPPED, GO_BOOT, GO_WALL, LOGGED, STATE, TICKS, WAITING

RECEIPT_BYTES = 4_096
ERROR_BYTES = 512
# A disk that is full, fails or was made read-only may come back, and the receipt is the only proof.
WAITED_FOR = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def clean(text: str) -> str:
    """At most ERROR_BYTES bytes of printable text, as a receipt may hold it."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return shown.encode("utf-8", "replace")[:ERROR_BYTES].decode("utf-8", "ignore")


def reserve_receipt(folder_fd: int) -> None:
    """Claim the receipt's space while failing is still harmless. Raises OSError."""
    fd = os.open("receipt.tmp", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=folder_fd)
    os.posix_fallocate(fd, 0, RECEIPT_BYTES)
    os.close(fd)


def write_receipt(folder_fd: int, receipt: dict[str, Any]) -> None:
    """Write `receipt.json` for good; one that is there already stays. Raises OSError."""
    with suppress(OSError):  # the command may have taken our own rights away
        os.fchmod(folder_fd, 0o700)
    # The first receipt and receipt.tmp may still be one inode: look before writing.
    if not exists(folder_fd, "receipt.json"):
        body = json.dumps(receipt, ensure_ascii=False, separators=(",", ":")).encode(
            "utf-8", "replace"
        )
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open("receipt.tmp", flags, 0o600, dir_fd=folder_fd)
        try:
            os.pwrite(fd, body, 0)
            os.ftruncate(fd, len(body))
            os.fsync(fd)
        finally:
            os.close(fd)
        with suppress(FileExistsError):
            os.link("receipt.tmp", "receipt.json", src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
    for name in ("receipt.tmp", "launcher.sock"):
        with suppress(OSError):  # it may be gone, or a folder by now
            os.unlink(name, dir_fd=folder_fd)
    os.fsync(folder_fd)


def exists(folder_fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def keep_child(folder_fd: int, child: int) -> None:
    """Keep pid and start ticks of the command, whose session is its pid, while this boot lasts.

    Who has to end what was left without a launcher finds it by that; without room by less.
    """
    with suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open("child", flags, 0o600, dir_fd=folder_fd)
        try:
            os.write(fd, f"{child} {linux.start_ticks(child) or 0}\n".encode())
        finally:
            os.close(fd)


def read_spec(folder_fd: int) -> dict[str, Any]:
    # A command may have put a link or a pipe there; the fork server must not wait for it.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open("spec.json", flags, dir_fd=folder_fd)
    try:
        spec: dict[str, Any] = json.loads(linux.read_all(fd))
    finally:
        os.close(fd)
    return spec


def attest_lost(folder: str, pid: int, slot: memoryview[int]) -> None:
    """Write the receipt of a launcher that died, once its tree is gone. Raises OSError."""
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        kind = "not_started" if slot[STATE] == WAITING else "launcher_lost"
        attempt = read_spec(folder_fd)["attempt"]
        receipt = receipt_fields(attempt, pid, slot, kind=kind, why="launcher_died")
        write_receipt(folder_fd, receipt)
    finally:
        os.close(folder_fd)


def receipt_fields(
    attempt: str, pid: int, slot: memoryview[int], *, kind: str, why: str
) -> dict[str, Any]:
    return {
        "attempt": attempt,
        "launcher_pid": pid,
        "launcher_ticks": slot[TICKS],
        "boot_id": linux.boot_id(),
        "kind": kind,
        "why": why,
        "exit": None,
        "reason": None,
        "go_boot_ms": slot[GO_BOOT] or None,
        "go_at_ms": slot[GO_WALL] or None,
        "end_boot_ms": linux.boottime_ms(),
        "end_at_ms": time.time_ns() // 1_000_000,
        "tree": "empty",
        "bytes_logged": slot[LOGGED],
        "bytes_dropped": slot[DROPPED],
        "error": None,
    }
