"""The small single-threaded parent of all launchers, and what both ask of Linux (DESIGN §9).

It forks a launcher for each `spawn`, outlives the worker until its last launcher is gone, KILLs
a launcher that overstays its lease, and attests for a launcher that died. Started by
`execution.start_forkserver`. Only light modules may be imported here: each launcher is a fork of
this process, so all that is loaded here is paid for by every execution.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import mmap
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress

MIN_MARGIN_MS = 1_000
POLL_MS = MIN_MARGIN_MS // 4
MAX_LAUNCHERS = 1_024

# A slot is eight 64-bit words shared by one launcher and the fork server. Each word is written
# whole, so the fork server never reads half a lease end.
STATE, LEASE_END, MARGIN, TICKS, GO_BOOT, GO_WALL, LOGGED, DROPPED = range(8)
SLOT_WORDS = 8

# NEW owes no receipt; WAITING is before "go"; EMPTY has no tree and no receipt yet; ENDED has both.
NEW, WAITING, RUNNING, EMPTY, ENDED = range(5)

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


def complain() -> None:
    """Print the exception at hand; the module traceback is not light."""
    kind, error, trace = sys.exc_info()
    if kind and error:
        sys.excepthook(kind, error, trace)


class ForkServer:
    """One control connection, its launchers, and the slots they share."""

    def __init__(self, control: socket.socket) -> None:
        self.control: socket.socket | None = control
        self.slots = memoryview(mmap.mmap(-1, MAX_LAUNCHERS * SLOT_WORDS * 8)).cast("q")
        self.free = list(range(MAX_LAUNCHERS - 1, -1, -1))
        self.launchers: dict[int, tuple[int, str]] = {}
        self.lost: list[tuple[int, int, str]] = []
        self.identity = {
            "forkserver_pid": os.getpid(),
            "forkserver_ticks": start_ticks(os.getpid()),
            "boot_id": boot_id(),
            "pid_ns": namespace("pid"),
            "time_ns": namespace("time"),
        }
        self.signals = child_signals()
        self.timer = boottime_timer()
        self.ticking = False
        self.killing = False
        self.poll = select.poll()
        for fd in (control.fileno(), self.signals, self.timer):
            self.poll.register(fd, select.POLLIN)

    def serve(self) -> None:
        """Work until the worker and the last launcher are gone."""
        while self.control or self.launchers or self.lost:
            self.tick_when_needed()
            ready = dict(self.poll.poll(10 if self.killing else None))
            drain(self.signals)
            drain(self.timer)
            self.reap()
            if self.lost:
                self.attest()
            self.end_overdue(boottime_ms())
            if self.control and self.control.fileno() in ready:
                self.accept(self.control)

    def tick_when_needed(self) -> None:
        wanted = bool(self.launchers or self.lost)
        if wanted != self.ticking:
            arm(self.timer, boottime_ms() + POLL_MS if wanted else None, POLL_MS if wanted else 0)
            self.ticking = wanted

    def accept(self, control: socket.socket) -> None:
        try:
            folder, fds, _, _ = socket.recv_fds(control, 8192, 1, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            folder, fds = b"", []
        if not folder:
            self.poll.unregister(control.fileno())
            control.close()
            self.control = None
            return
        if not fds:
            return
        with socket.socket(fileno=fds[0]) as connection:
            self.spawn(connection, os.fsdecode(folder))

    def spawn(self, connection: socket.socket, folder: str) -> None:
        from qinglong_sql import launcher

        if not self.free:
            launcher.send(connection, {"type": "failed", "error": "too many launchers"})
            return
        index = self.free[-1]
        slot = self.slots[index * SLOT_WORDS : (index + 1) * SLOT_WORDS]
        for word in range(SLOT_WORDS):
            slot[word] = 0
        try:
            pid = os.fork()
        except OSError as error:
            launcher.send(connection, {"type": "failed", "error": f"fork: {error.strerror}"})
            return
        if pid:
            self.free.pop()
            self.launchers[pid] = (index, folder)
            return
        try:
            for fd in (self.signals, self.timer):
                os.close(fd)
            if self.control:
                self.control.close()
            launcher.run(connection, folder, slot, self.identity)
        except BaseException:
            complain()
        finally:
            os._exit(1)

    def reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.launchers:
                index, folder = self.launchers.pop(pid)
                if self.slots[index * SLOT_WORDS + STATE] in (NEW, ENDED):
                    self.free.append(index)
                else:
                    self.lost.append((pid, index, folder))

    def attest(self) -> None:
        """KILL what dead launchers left; when nothing of it is left, write their receipts.

        Every child that is no launcher came from a dead launcher: a live one is a subreaper.
        """
        strays = [pid for pid in children() if pid not in self.launchers]
        for pid in strays:
            kill(pid, signal.SIGKILL)
        self.killing = bool(strays)
        if strays:
            return
        from qinglong_sql import launcher

        unwritten = []
        for pid, index, folder in self.lost:
            slot = self.slots[index * SLOT_WORDS : (index + 1) * SLOT_WORDS]
            try:
                launcher.attest_lost(folder, pid, slot)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    unwritten.append((pid, index, folder))
                    continue
                complain()
            except Exception:
                complain()
            self.free.append(index)
        self.lost = unwritten

    def end_overdue(self, now_ms: int) -> None:
        for pid, (index, _) in self.launchers.items():
            base = index * SLOT_WORDS
            if self.slots[base + STATE] != RUNNING:
                continue
            half = self.slots[base + MARGIN] // 2
            if now_ms >= self.slots[base + LEASE_END] - half:
                kill(pid, signal.SIGKILL)


def main(control_fd: int) -> None:
    """Serve the worker at the other end of `control_fd`, a SOCK_SEQPACKET socket."""
    # Ctrl-C, TERM and hang-ups are the worker's to decide about; the commands get them unblocked.
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_NAME, b"ql-forkserver")
    os.chdir("/")
    import qinglong_sql.launcher  # noqa: F401  before the first fork, so that no launcher does it

    server = ForkServer(socket.socket(fileno=control_fd))
    gc.disable()
    gc.freeze()
    if server.control:
        server.control.send(b"ready")
    server.serve()
