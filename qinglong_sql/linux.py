"""What fork server, launcher and worker ask of Linux beyond the standard library (DESIGN §9).

Only light modules may be imported here: each launcher is a fork of a process that holds them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 15, 36, 38
TFD_TIMER_ABSTIME = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, call: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")
    return result


def prctl(option: int, value: int | bytes) -> None:
    """Call prctl(2) with one argument. Raises OSError."""
    argument = value if isinstance(value, bytes) else ctypes.c_ulong(value)
    zero = ctypes.c_ulong(0)
    _checked(_libc.prctl(option, argument, zero, zero, zero), "prctl")


def child_signals() -> int:
    """A non-blocking signalfd for SIGCHLD, which must be blocked. Raises OSError."""
    mask = (ctypes.c_ulong * (128 // ctypes.sizeof(ctypes.c_ulong)))()
    mask[0] = 1 << (signal.SIGCHLD - 1)
    flags = os.O_NONBLOCK | os.O_CLOEXEC
    return _checked(_libc.signalfd(-1, ctypes.byref(mask), flags), "signalfd")


def boottime_timer() -> int:
    """A non-blocking, disarmed timerfd of CLOCK_BOOTTIME, so that suspend counts (DESIGN §9)."""
    flags = os.O_NONBLOCK | os.O_CLOEXEC
    return _checked(_libc.timerfd_create(time.CLOCK_BOOTTIME, flags), "timerfd_create")


def arm(timer: int, at_ms: int | None, every_ms: int = 0) -> None:
    """Let `timer` fire at a CLOCK_BOOTTIME of `at_ms` and then each `every_ms`; None disarms it."""
    at = max(1, at_ms) if at_ms is not None else 0
    value = (ctypes.c_long * 4)(
        every_ms // 1000, every_ms % 1000 * 1_000_000, at // 1000, at % 1000 * 1_000_000
    )
    call = _libc.timerfd_settime(timer, TFD_TIMER_ABSTIME, ctypes.byref(value), None)
    _checked(call, "timerfd_settime")


def drain(fd: int) -> None:
    """Read what a timerfd or signalfd holds, without waiting."""
    with suppress(BlockingIOError):
        while os.read(fd, 4096):
            pass


def boottime_ms() -> int:
    """Milliseconds since boot, suspend included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def read_small(path: str) -> bytes:
    """The whole of a small file of /proc. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_all(fd)
    finally:
        os.close(fd)


def read_all(fd: int, limit: int = 1 << 24) -> bytes:
    """What is left to read of a file, `limit` bytes at most. Raises OSError."""
    parts = []
    while limit > 0 and (part := os.read(fd, min(limit, 65_536))):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


def boot_id() -> str:
    """The id of this boot of the kernel."""
    return read_small("/proc/sys/kernel/random/boot_id").decode().strip()


def start_ticks(pid: int) -> int | None:
    """Clock ticks between boot and the start of `pid`; None when it is dead, a zombie included."""
    try:
        stat = read_small(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in b"ZXx" else int(fields[19])


def is_stopped(pid: int) -> bool:
    """Whether `pid` was stopped by a signal or a debugger, so that it does nothing."""
    try:
        stat = read_small(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat[stat.rindex(b")") + 2 :][:1] in b"Tt"


def namespace(kind: str) -> int:
    """The inode of our namespace of that kind ("pid", "time"); 0 where the kernel has none."""
    try:
        return os.stat(f"/proc/self/ns/{kind}").st_ino  # noqa: PTH116  pathlib is not light
    except FileNotFoundError:
        return 0


def children() -> list[int]:
    """Our own children, zombies included.

    The kernel calls the list unreliable because a child that is reaped meanwhile can hide
    another. Only we reap ours, and not while reading, so a child that is there from the first
    byte to the last is in it; and a tree that is not empty always has such a child.
    """
    return [int(pid) for pid in read_small("/proc/thread-self/children").split()]


def kill(pid: int, number: int) -> None:
    """Send a signal to a child that has not been reaped; one that cannot be signalled is left."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


class NotSupported(RuntimeError):
    """This machine lacks what executions need."""


def require_linux() -> None:
    """Raise NotSupported, naming all that is missing here for executions (DESIGN §9)."""
    missing = []
    if not sys.platform.startswith("linux"):
        raise NotSupported(f"executions need Linux, this is {sys.platform}")
    probes: dict[str, Callable[[], object]] = {
        "CLOCK_BOOTTIME timers": lambda: os.close(boottime_timer()),
        "signalfd": lambda: os.close(child_signals()),
        "SOCK_SEQPACKET sockets": lambda: list(map(socket.socket.close, packet_sockets())),
        "/proc/thread-self/children (CONFIG_PROC_CHILDREN)": children,
        "/proc/sys/kernel/random/boot_id": boot_id,
    }
    for name, probe in probes.items():
        try:
            probe()
        except (OSError, AttributeError) as error:
            missing.append(f"{name} ({error})")
    with suppress(OSError):
        if os.readlink("/proc/self") != str(os.getpid()):  # noqa: PTH115
            missing.append("a /proc of this PID namespace")
    if missing:
        raise NotSupported("executions need " + ", ".join(missing))


def packet_sockets() -> tuple[socket.socket, socket.socket]:
    """A connected pair that keeps each message whole. Raises OSError."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
