"""The small process around each execution: barrier, tree, limits, log, receipt (DESIGN §9).

It is forked before the start barrier and waits for "go"; end of file instead of "go" makes it
write `not_started`. After "go" the worker may vanish: the command goes on until it exits, is
stopped, meets its deadline, or its lease is nearly over. The receipt is written when
`waitpid(-1)` says ECHILD, which is the proof that nothing of the tree is left.

Files in the execution's folder: `spec.json` (read), `launcher.sock` (to be taken over), `log`,
`receipt.tmp` (space reserved before the identity is sent), `receipt.json`, `child` (its command).
"""

from __future__ import annotations

import json
import os
import select
import socket
import time

from qinglong_sql import linux
from qinglong_sql.channel import Channel, receive, send
from qinglong_sql.command import Log, ask_to_end, group_left, kill_children, start_command
from qinglong_sql.receipt import (
    WAITED_FOR,
    clean,
    exists,
    keep_child,
    read_spec,
    receipt_fields,
    reserve_receipt,
    write_receipt,
)
from qinglong_sql.slot import (
    EMPTY,
    ENDED,
    GO_BOOT,
    GO_WALL,
    LEASE_END,
    MARGIN,
    MIN_MARGIN_MS,
    NEW,
    RUNNING,
    STATE,
    TICKS,
    WAITING,
)

REASON_CHARS = 64
FIRST_PAUSE_S, LAST_PAUSE_S = 0.25, 2.0

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


def run(
    connection: socket.socket, folder: str, slot: memoryview[int], server: dict[str, Any]
) -> NoReturn:
    """Be the launcher of the execution in `folder`; `server` is what it says of itself."""
    try:
        linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
        linux.prctl(linux.PR_SET_NAME, b"ql-launcher")
        launcher = Launcher(connection, folder, slot, server)
    except Exception as error:
        slot[STATE] = NEW
        number, why = getattr(error, "errno", None), getattr(error, "strerror", None)
        told = clean(why or f"{type(error).__name__}: {error}")
        send(connection, {"type": "failed", "error": told, "errno": number})
        os._exit(1)
    launcher.serve()
    os._exit(0)


class Launcher:
    """One execution: waiting, running, ending. `serve` returns when its receipt is written."""

    def __init__(
        self, connection: socket.socket, folder: str, slot: memoryview[int], server: dict[str, Any]
    ) -> None:
        self.slot = slot
        self.folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.spec = read_spec(self.folder_fd)
        self.margin_ms = max(MIN_MARGIN_MS, int(self.spec["margin_ms"]))
        if exists(self.folder_fd, "receipt.json"):
            raise FileExistsError("the folder has a receipt already")
        self.poll = select.poll()
        self.channel = Channel(self.folder_fd, self.poll)
        slot[MARGIN] = self.margin_ms
        slot[TICKS] = linux.start_ticks(os.getpid()) or 0
        slot[STATE] = WAITING
        reserve_receipt(self.folder_fd)
        self.log = Log(self.folder_fd, slot)
        self.errors = -1
        self.signals = linux.child_signals()
        self.timer = linux.boottime_timer()
        self.armed: int | None = None
        for fd in (self.signals, self.timer, self.log.source):
            self.poll.register(fd, select.POLLIN)
        self.child = 0
        self.empty = False
        self.killing = False
        self.exit: str | None = None
        self.why: str | None = None
        self.reason: str | None = None
        self.error: str | None = None
        self.deadline_ms: int | None = None
        self.kill_at_ms: int | None = None
        self.identity = {
            "launcher_pid": os.getpid(),
            "launcher_ticks": slot[TICKS],
            **server,
        }
        self.greet(connection)

    def greet(self, connection: socket.socket) -> None:
        hello = {"type": "identity", "child": self.child or None, **self.identity}
        self.channel.greet(connection, hello)

    def serve(self) -> None:
        while not (self.empty if self.child else self.why):
            self.arm_timer()
            ready = dict(self.poll.poll(20 if self.killing else None))
            linux.drain(self.signals)
            linux.drain(self.timer)
            if self.errors in ready:
                self.read_errors()
            if self.log.source in ready:
                self.read_log()
            if self.child:
                self.reap()
            self.listen(ready)
            if self.child:
                self.expire(linux.boottime_ms())
        self.finish()

    def listen(self, ready: dict[int, int]) -> None:
        """Obey the worker, then let a newer one take over; without any, waiting is over."""
        gone = False
        connection = self.channel.connection
        if connection and connection.fileno() in ready:
            gone = not self.obey_all(connection)
        if gone and connection:
            self.channel.hang_up(connection)
        if (gone or self.channel.listener.fileno() in ready) and (newer := self.channel.newer()):
            self.greet(newer)
        if not self.channel.connection and not self.child and not self.why:
            self.why = "eof"

    def obey_all(self, connection: socket.socket) -> bool:
        """Obey each message that is there; False at end of file."""
        while packet := receive(connection):
            try:
                self.obey(json.loads(packet))
            except (ValueError, KeyError, TypeError):
                continue
        return packet is None

    def obey(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "go" if not self.child and not self.why:
                self.go(int(message["lease_end_ms"]), message["deadline_ms"])
            case "renew" | "go" if self.child:
                lease_end_ms = int(message["lease_end_ms"])
                self.slot[LEASE_END] = max(self.slot[LEASE_END], lease_end_ms)
            case "stop":
                self.reason = self.reason or clean(str(message["reason"]))[:REASON_CHARS]
                self.stop("stop", message["grace_ms"])

    def go(self, lease_end_ms: int, deadline_ms: int | None) -> None:
        now_ms = linux.boottime_ms()
        if now_ms >= lease_end_ms - self.margin_ms:
            self.why = "lease_over"
            return
        self.deadline_ms = deadline_ms
        self.slot[LEASE_END] = lease_end_ms
        self.slot[GO_BOOT] = now_ms
        self.slot[GO_WALL] = time.time_ns() // 1_000_000
        self.slot[STATE] = RUNNING  # from here on a lost launcher counts as started
        self.errors, errors = os.pipe2(os.O_CLOEXEC)
        try:
            self.child = start_command(self.spec, self.log.sink, errors)
        except OSError as error:
            self.why, self.error = "start_failed", clean(f"fork: {error.strerror}")
            return
        self.poll.register(self.errors, select.POLLIN)
        keep_child(self.folder_fd, self.child)

    def read_errors(self) -> None:
        """The start is over when this pipe ends: empty by exec, with a text by a failure."""
        told = os.read(self.errors, 4096).decode("utf-8", "replace")
        self.poll.unregister(self.errors)
        os.close(self.errors)
        self.errors = -1
        if told:
            self.why, self.error = "start_failed", clean(told)
        else:
            self.channel.tell({"type": "started", "child": self.child})

    def read_log(self) -> bool:
        more = self.log.read(int(self.spec["log_cap_bytes"]))
        if not self.log.open:
            self.poll.unregister(self.log.source)
        return more

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.empty = True
                return
            if pid == 0:
                break
            if pid == self.child:
                code = os.waitstatus_to_exitcode(status)
                self.exit = f"exit:{code}" if code >= 0 else f"signal:{-code}"
                if self.errors >= 0:
                    self.read_errors()
        # While stopping, the grace belongs to the whole group, not only to its first process.
        if self.exit is not None and not (self.kill_at_ms and group_left(self.child)):
            self.killing = True
        if self.killing:
            kill_children()

    def stop(self, why: str, grace_ms: int | None) -> None:
        """TERM the group and let it have the grace; a later stop can only shorten it."""
        if not self.child:
            self.why = self.why or why
            return
        if self.exit is not None and not self.why:
            return
        grace_ms = int(self.spec["grace_ms"]) if grace_ms is None else int(grace_ms)
        kill_at_ms = linux.boottime_ms() + grace_ms
        if self.kill_at_ms:
            self.kill_at_ms = min(self.kill_at_ms, kill_at_ms)
            return
        self.why = self.why or why
        self.kill_at_ms = kill_at_ms
        if self.exit is None:
            ask_to_end(self.child)

    def expire(self, now_ms: int) -> None:
        if self.killing:
            return
        if self.deadline_ms is not None and not self.kill_at_ms and now_ms >= self.deadline_ms:
            self.stop("deadline", None)
        if now_ms >= self.slot[LEASE_END] - self.margin_ms:
            self.why = self.why or "lease"
            self.killing = True
        elif self.kill_at_ms and now_ms >= self.kill_at_ms:
            self.killing = True
        if self.killing:
            kill_children()

    def arm_timer(self) -> None:
        at_ms = None
        if self.child and not self.killing:
            at_ms = self.slot[LEASE_END] - self.margin_ms
            if self.kill_at_ms:
                at_ms = min(at_ms, self.kill_at_ms)
            elif self.deadline_ms is not None:
                at_ms = min(at_ms, self.deadline_ms)
        if at_ms != self.armed:
            linux.arm(self.timer, at_ms)
            self.armed = at_ms

    def finish(self) -> None:
        """Nothing of the tree is left: keep what the pipe holds, write the receipt, say so."""
        if self.slot[STATE] == RUNNING:
            self.slot[STATE] = EMPTY
        # Something outside the tree may hold the pipe and write for ever: never wait for its end.
        left = 16
        while left and self.log.open and self.read_log():
            left -= 1
        self.log.close()
        why = self.why or "exit"
        kind = "ended" if self.slot[STATE] == EMPTY else "not_started"
        attempt = self.spec["attempt"]
        receipt = receipt_fields(attempt, os.getpid(), self.slot, kind=kind, why=why)
        receipt["exit"] = None if why == "start_failed" else self.exit
        receipt["reason"], receipt["error"] = self.reason, self.error
        self.keep(receipt)
        self.slot[STATE] = ENDED
        self.channel.tell({"type": "ended"})

    def keep(self, receipt: dict[str, Any]) -> None:
        """Write it, whenever that may be: what ended must not be lost by a disk that comes back."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                write_receipt(self.folder_fd, receipt)
                return
            except OSError as error:
                if error.errno not in WAITED_FOR:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)
            self.listen(dict(self.poll.poll(0)))  # who takes over meanwhile is to know that we live
