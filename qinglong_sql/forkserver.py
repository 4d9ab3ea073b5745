"""The small single-threaded parent of all launchers (DESIGN §9).

It forks a launcher for each `spawn`, outlives the worker until its last launcher is gone, KILLs
a launcher that overstays its lease, and attests for a launcher that died. Started by
`execution.start_forkserver`. Only light modules may be imported here: each launcher is a fork of
this process, so all that is loaded here is paid for by every execution. The launcher's are loaded
here too, before the first fork, so that no launcher does it.
"""

from __future__ import annotations

import gc
import mmap
import os
import select
import signal
import socket
import sys

from qinglong_sql import launcher
from qinglong_sql.channel import send
from qinglong_sql.linux import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_NAME,
    arm,
    boot_id,
    boottime_ms,
    boottime_timer,
    child_signals,
    children,
    drain,
    kill,
    namespace,
    prctl,
    start_ticks,
)
from qinglong_sql.receipt import WAITED_FOR, attest_lost
from qinglong_sql.slot import (
    ENDED,
    LEASE_END,
    MARGIN,
    MIN_MARGIN_MS,
    NEW,
    RUNNING,
    SLOT_WORDS,
    STATE,
)

POLL_MS = MIN_MARGIN_MS // 4
MAX_LAUNCHERS = 1_024


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
        if not self.free:
            send(connection, {"type": "failed", "error": "too many launchers"})
            return
        index = self.free[-1]
        slot = self.slots[index * SLOT_WORDS : (index + 1) * SLOT_WORDS]
        for word in range(SLOT_WORDS):
            slot[word] = 0
        try:
            pid = os.fork()
        except OSError as error:
            send(connection, {"type": "failed", "error": f"fork: {error.strerror}"})
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
        unwritten = []
        for pid, index, folder in self.lost:
            slot = self.slots[index * SLOT_WORDS : (index + 1) * SLOT_WORDS]
            try:
                attest_lost(folder, pid, slot)
            except OSError as error:
                if error.errno in WAITED_FOR:
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
    server = ForkServer(socket.socket(fileno=control_fd))
    gc.disable()
    gc.freeze()
    if server.control:
        server.control.send(b"ready")
    server.serve()
