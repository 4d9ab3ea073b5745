"""The small process around each execution: barrier, tree, limits, log, receipt (DESIGN §9).

It is forked before the start barrier and waits for "go"; end of file instead of "go" makes it
write `not_started`. After "go" the worker may vanish: the command goes on until it exits, is
stopped, meets its deadline, or its lease is nearly over. The receipt is written when
`waitpid(-1)` says ECHILD, which is the proof that nothing of the tree is left.

Files in the execution's folder: `spec.json` (read), `launcher.sock` (to be taken over), `log`,
`receipt.tmp` (space reserved before the identity is sent), `receipt.json`.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import time
from contextlib import suppress

from qinglong_sql import forkserver as fs

RECEIPT_BYTES = 4_096
ERROR_BYTES = 512
REASON_CHARS = 64
SECRET_BYTES = 65_536
CHUNK = 65_536
RESET = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send one packet without waiting; who does not read misses it (the receipt is the truth)."""
    with suppress(OSError):
        connection.send(json.dumps(message).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def run(
    connection: socket.socket, folder: str, slot: memoryview[int], server: dict[str, Any]
) -> NoReturn:
    """Be the launcher of the execution in `folder`; `server` is what it says of itself."""
    try:
        fs.prctl(fs.PR_SET_CHILD_SUBREAPER, 1)
        fs.prctl(fs.PR_SET_NAME, b"ql-launcher")
        launcher = Launcher(connection, folder, slot, server)
    except Exception as error:
        slot[fs.STATE] = fs.NEW
        send(connection, {"type": "failed", "error": clean(f"{type(error).__name__}: {error}")})
        os._exit(1)
    launcher.serve()
    os._exit(0)


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
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder_fd)
    os.fsync(folder_fd)


def exists(folder_fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def read_spec(folder_fd: int) -> dict[str, Any]:
    fd = os.open("spec.json", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder_fd)
    try:
        spec: dict[str, Any] = json.loads(fs.read_all(fd))
    finally:
        os.close(fd)
    return spec


def attest_lost(folder: str, pid: int, slot: memoryview[int]) -> None:
    """Write the receipt of a launcher that died, once its tree is gone. Raises OSError."""
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        kind = "not_started" if slot[fs.STATE] == fs.WAITING else "launcher_lost"
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
        "launcher_ticks": slot[fs.TICKS],
        "boot_id": fs.boot_id(),
        "kind": kind,
        "why": why,
        "exit": None,
        "reason": None,
        "go_boot_ms": slot[fs.GO_BOOT] or None,
        "go_at_ms": slot[fs.GO_WALL] or None,
        "end_boot_ms": fs.boottime_ms(),
        "end_at_ms": time.time_ns() // 1_000_000,
        "tree": "empty",
        "bytes_logged": slot[fs.LOGGED],
        "bytes_dropped": slot[fs.DROPPED],
        "error": None,
    }


def resolve_env(env: dict[str, Any]) -> dict[bytes, bytes]:
    """The environment with each `{"file": path}` read, one final newline taken off.

    Called in the child right before exec: a secret is in no other process and in no file of ours.
    Raises RuntimeError naming variable and path, never a value.
    """
    resolved = {}
    for name, value in env.items():
        if isinstance(value, str):
            resolved[os.fsencode(name)] = os.fsencode(value)
            continue
        try:
            fd = os.open(value["file"], os.O_RDONLY | os.O_CLOEXEC)
            secret = fs.read_all(fd, SECRET_BYTES + 1)
            os.close(fd)
        except OSError as error:
            told = f"env {name}: cannot read {value['file']}: {error.strerror}"
            raise RuntimeError(told) from None
        if len(secret) > SECRET_BYTES or b"\0" in secret:
            told = f"env {name}: {value['file']} holds a NUL or more than {SECRET_BYTES} bytes"
            raise RuntimeError(told)
        resolved[os.fsencode(name)] = secret.removesuffix(b"\n").removesuffix(b"\r")
    return resolved


def exec_command(spec: dict[str, Any], launcher_pid: int, log: int, errors: int) -> NoReturn:
    """In the new child: become the command, or say on `errors` why not."""
    told = "cannot start the command"
    try:
        os.setsid()
        for number in RESET:
            signal.signal(number, signal.SIG_DFL)
        fs.prctl(fs.PR_SET_NO_NEW_PRIVS, 1)
        fs.prctl(fs.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher_pid:
            os._exit(127)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        told = f"cannot enter {spec['cwd']}"
        os.chdir(spec["cwd"])
        told = ""
        env = resolve_env(spec["env"])
        told = f"cannot run {spec['argv'][0]}"
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  pathlib is not light
            with suppress(OSError):  # the listing's own descriptor is closed by now
                os.set_inheritable(int(name), int(name) <= 2)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.execvpe(spec["argv"][0], spec["argv"], env)
    except BaseException as error:
        cause = error.strerror if isinstance(error, OSError) else str(error)
        os.write(errors, clean(f"{told}: {cause}" if told else str(cause)).encode())
    finally:
        os._exit(127)


class Launcher:
    """One execution: waiting, running, ending. `serve` returns when its receipt is written."""

    def __init__(
        self, connection: socket.socket, folder: str, slot: memoryview[int], server: dict[str, Any]
    ) -> None:
        self.slot = slot
        self.folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.spec = read_spec(self.folder_fd)
        self.margin_ms = max(fs.MIN_MARGIN_MS, int(self.spec["margin_ms"]))
        if exists(self.folder_fd, "receipt.json"):
            raise FileExistsError("the folder has a receipt already")
        # Binding fails when another launcher lives here, before anything of its is touched. A
        # folder's path may be longer than a socket's may, hence the short name of its descriptor.
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(f"/proc/self/fd/{self.folder_fd}/launcher.sock")
        self.listener.listen(8)
        self.listener.setblocking(False)
        slot[fs.MARGIN] = self.margin_ms
        slot[fs.TICKS] = fs.start_ticks(os.getpid()) or 0
        slot[fs.STATE] = fs.WAITING
        reserve_receipt(self.folder_fd)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self.log_file = os.open("log", flags, 0o600, dir_fd=self.folder_fd)
        self.log_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(self.log_end[1], True)
        self.log_open = True
        self.errors = -1
        self.signals = fs.child_signals()
        self.timer = fs.boottime_timer()
        self.armed: int | None = None
        self.poll = select.poll()
        for fd in (self.listener.fileno(), self.signals, self.timer, self.log_end[0]):
            self.poll.register(fd, select.POLLIN)
        self.connection: socket.socket | None = None
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
            "launcher_ticks": slot[fs.TICKS],
            **server,
        }
        self.greet(connection)

    def greet(self, connection: socket.socket) -> None:
        """Let this worker's connection be the one that counts, and tell it who we are."""
        if self.connection:
            self.hang_up(self.connection)
        connection.setblocking(False)
        self.connection = connection
        self.poll.register(connection.fileno(), select.POLLIN)
        send(connection, {"type": "identity", "child": self.child or None, **self.identity})

    def hang_up(self, connection: socket.socket) -> None:
        self.poll.unregister(connection.fileno())
        connection.close()
        self.connection = None

    def tell(self, message: dict[str, Any]) -> None:
        if self.connection:
            send(self.connection, message)

    def serve(self) -> None:
        while not (self.empty if self.child else self.why):
            self.arm_timer()
            ready = dict(self.poll.poll(20 if self.killing else None))
            fs.drain(self.signals)
            fs.drain(self.timer)
            if self.errors in ready:
                self.read_errors()
            if self.log_end[0] in ready:
                self.read_log()
            if self.child:
                self.reap()
            self.listen(ready)
            if self.child:
                self.expire(fs.boottime_ms())
        self.finish()

    def listen(self, ready: dict[int, int]) -> None:
        """Obey the worker, then let a newer one take over; without any, waiting is over."""
        gone = False
        if self.connection and self.connection.fileno() in ready:
            gone = not self.obey_all(self.connection)
        if gone and self.connection:
            self.hang_up(self.connection)
        if gone or self.listener.fileno() in ready:
            try:
                newer, _ = self.listener.accept()
            except OSError:
                pass
            else:
                self.greet(newer)
        if not self.connection and not self.child and not self.why:
            self.why = "eof"

    def obey_all(self, connection: socket.socket) -> bool:
        """Obey each message that is there; False at end of file."""
        while True:
            try:
                packet = connection.recv(4096)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not packet:
                return False
            try:
                self.obey(json.loads(packet))
            except (ValueError, KeyError, TypeError):
                continue

    def obey(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "go" if not self.child and not self.why:
                self.go(int(message["lease_end_ms"]), message["deadline_ms"])
            case "renew" | "go" if self.child:
                lease_end_ms = int(message["lease_end_ms"])
                self.slot[fs.LEASE_END] = max(self.slot[fs.LEASE_END], lease_end_ms)
            case "stop":
                self.reason = self.reason or clean(str(message["reason"]))[:REASON_CHARS]
                self.stop("stop", message["grace_ms"])

    def go(self, lease_end_ms: int, deadline_ms: int | None) -> None:
        now_ms = fs.boottime_ms()
        if now_ms >= lease_end_ms - self.margin_ms:
            self.why = "lease_over"
            return
        self.deadline_ms = deadline_ms
        self.slot[fs.LEASE_END] = lease_end_ms
        self.slot[fs.GO_BOOT] = now_ms
        self.slot[fs.GO_WALL] = time.time_ns() // 1_000_000
        self.slot[fs.STATE] = fs.RUNNING  # from here on a lost launcher counts as started
        self.errors, errors = os.pipe2(os.O_CLOEXEC)
        launcher_pid = os.getpid()
        try:
            self.child = os.fork()
        except OSError as error:
            self.why, self.error = "start_failed", clean(f"fork: {error.strerror}")
            return
        if self.child == 0:
            exec_command(self.spec, launcher_pid, self.log_end[1], errors)
        os.close(errors)
        os.close(self.log_end[1])
        self.poll.register(self.errors, select.POLLIN)

    def read_errors(self) -> None:
        """The start is over when this pipe ends: empty by exec, with a text by a failure."""
        told = os.read(self.errors, 4096).decode("utf-8", "replace")
        self.poll.unregister(self.errors)
        os.close(self.errors)
        self.errors = -1
        if told:
            self.why, self.error = "start_failed", clean(told)
        else:
            self.tell({"type": "started", "child": self.child})

    def read_log(self) -> bool:
        """Move one chunk of output to the log, as far as its cap lets; False when none is left."""
        try:
            chunk = os.read(self.log_end[0], CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self.poll.unregister(self.log_end[0])
            self.log_open = False
            return False
        room = max(0, int(self.spec["log_cap_bytes"]) - self.slot[fs.LOGGED])
        try:
            written = os.write(self.log_file, chunk[:room]) if room else 0
        except OSError:  # a full disk costs the log, not the execution
            written = 0
        self.slot[fs.LOGGED] += written
        self.slot[fs.DROPPED] += len(chunk) - written
        return True

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
        if self.exit is not None and not (self.kill_at_ms and self.group_left()):
            self.killing = True
        if self.killing:
            self.kill_children()

    def group_left(self) -> bool:
        """While stopping, the grace belongs to the whole group, not only to its first process."""
        for pid in fs.children():
            try:
                if os.getpgid(pid) == self.child:
                    return True
            except ProcessLookupError:
                continue
        return False

    def kill_children(self) -> None:
        for pid in fs.children():
            fs.kill(pid, signal.SIGKILL)

    def stop(self, why: str, grace_ms: int | None) -> None:
        """TERM the group and let it have the grace; a later stop can only shorten it."""
        if not self.child:
            self.why = self.why or why
            return
        if self.exit is not None and not self.why:
            return
        grace_ms = int(self.spec["grace_ms"]) if grace_ms is None else int(grace_ms)
        kill_at_ms = fs.boottime_ms() + grace_ms
        if self.kill_at_ms:
            self.kill_at_ms = min(self.kill_at_ms, kill_at_ms)
            return
        self.why = self.why or why
        self.kill_at_ms = kill_at_ms
        if self.exit is None:
            for number in (signal.SIGTERM, signal.SIGCONT):
                try:
                    os.killpg(self.child, number)
                except ProcessLookupError:  # it has not made its group yet
                    fs.kill(self.child, number)

    def expire(self, now_ms: int) -> None:
        if self.killing:
            return
        if self.deadline_ms is not None and not self.kill_at_ms and now_ms >= self.deadline_ms:
            self.stop("deadline", None)
        if now_ms >= self.slot[fs.LEASE_END] - self.margin_ms:
            self.why = self.why or "lease"
            self.killing = True
        elif self.kill_at_ms and now_ms >= self.kill_at_ms:
            self.killing = True
        if self.killing:
            self.kill_children()

    def arm_timer(self) -> None:
        at_ms = None
        if self.child and not self.killing:
            at_ms = self.slot[fs.LEASE_END] - self.margin_ms
            if self.kill_at_ms:
                at_ms = min(at_ms, self.kill_at_ms)
            elif self.deadline_ms is not None:
                at_ms = min(at_ms, self.deadline_ms)
        if at_ms != self.armed:
            fs.arm(self.timer, at_ms)
            self.armed = at_ms

    def finish(self) -> None:
        """Nothing of the tree is left: keep what the pipe holds, write the receipt, say so."""
        if self.slot[fs.STATE] == fs.RUNNING:
            self.slot[fs.STATE] = fs.EMPTY
        # Something outside the tree may hold the pipe and write for ever: never wait for its end.
        left = 16
        while left and self.log_open and self.read_log():
            left -= 1
        why = self.why or "exit"
        kind = "ended" if self.slot[fs.STATE] == fs.EMPTY else "not_started"
        attempt = self.spec["attempt"]
        receipt = receipt_fields(attempt, os.getpid(), self.slot, kind=kind, why=why)
        receipt["exit"] = None if why == "start_failed" else self.exit
        receipt["reason"], receipt["error"] = self.reason, self.error
        while True:
            try:
                write_receipt(self.folder_fd, receipt)
                break
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
            time.sleep(0.25)
        self.slot[fs.STATE] = fs.ENDED
        self.tell({"type": "ended"})
