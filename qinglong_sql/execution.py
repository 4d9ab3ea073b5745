"""The worker's side of executions: fork server and launchers (DESIGN §9).

One poll loop drives it: select on `ForkServer.fileno()` (readable: the fork server is gone) and
on each `Execution.fileno()` (readable: call `poll`). Times are CLOCK_BOOTTIME milliseconds, but
`_at_ms` is the wall clock. What the folder of an execution holds is in `evidence`, and passed on
from here. Nothing here speaks SQL.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from qinglong_sql.evidence import (
    GRACE_MS,
    Receipt,
    RecordBroken,
    Spec,
    evidence,
    prepare,
    read_journal,
    read_receipt,
    write_journal,
)
from qinglong_sql.linux import (
    NotSupported,
    boot_id,
    boottime_ms,
    packet_sockets,
    require_linux,
    start_ticks,
)

__all__ = [
    "GRACE_MS", "Execution", "ForkServer", "LaunchFailed", "NotSupported", "Receipt",
    "RecordBroken", "Spec", "adopt", "boot_id", "boottime_ms", "evidence", "greet",
    "prepare", "read_journal", "read_receipt", "require_linux", "start_forkserver", "write_journal",
]  # fmt: skip

ANSWER_S = 5.0


class LaunchFailed(RuntimeError):
    """No launcher came up; the command cannot have started. `errno` is the system's, if known."""

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


def _answer(sock: socket.socket) -> dict[str, Any]:
    """The next message of a launcher. Raises LaunchFailed when none comes within ANSWER_S."""
    if not select.select([sock], [], [], ANSWER_S)[0]:
        raise LaunchFailed(f"the launcher did not answer within {ANSWER_S:g} s")
    try:
        packet = sock.recv(4096)
    except OSError as error:
        raise LaunchFailed(f"the launcher is gone: {error}") from error
    if not packet:
        raise LaunchFailed("the launcher is gone")
    message: dict[str, Any] = json.loads(packet)
    if message["type"] == "failed":
        raise LaunchFailed(message["error"], message.get("errno"))
    return message


class Execution:
    """A live launcher and, after `go`, its command. Close it or let it end; both leave no fd."""

    def __init__(self, folder: Path, sock: socket.socket, hello: dict[str, Any]) -> None:
        hello = dict(hello)
        hello.pop("type")
        self.folder = folder
        self.child: int | None = hello.pop("child")  # None: still waiting for `go`
        self.identity: dict[str, Any] = hello
        self._sock: socket.socket | None = sock
        sock.setblocking(False)

    def fileno(self) -> int:
        """The descriptor to select on; -1 once `poll` has said "ended" or after `close`."""
        return self._sock.fileno() if self._sock else -1

    def _send(self, **message: Any) -> bool:
        if not self._sock:
            return False
        try:
            self._sock.send(json.dumps(message).encode(), socket.MSG_NOSIGNAL)
        except OSError:
            return False
        return True

    def go(self, lease_end_ms: int, deadline_ms: int | None = None) -> bool:
        """Let the command start; past the lease end less the margin it ends as `not_started`.

        False, here and below, says that the launcher did not get it: ask `receipt` and `evidence`.
        """
        return self._send(type="go", lease_end_ms=lease_end_ms, deadline_ms=deadline_ms)

    def renew(self, lease_end_ms: int) -> bool:
        """Move the lease end, which only grows."""
        return self._send(type="renew", lease_end_ms=lease_end_ms)

    def stop(self, reason: str, grace_ms: int | None = None) -> bool:
        """TERM, grace (the spec's unless given), KILL; said again it can only shorten the grace.

        Before `go` it ends the launcher as `not_started` with why `stop`.
        """
        return self._send(type="stop", reason=reason, grace_ms=grace_ms)

    def poll(self) -> Literal["started", "ended"] | None:
        """The next message, without waiting.

        "ended" also stands for a launcher that went away, or that another worker took over. Then
        `receipt` may be None: the fork server may still be killing what is left.
        """
        if not self._sock:
            return None
        try:
            packet = self._sock.recv(4096)
        except BlockingIOError:
            return None
        except OSError:
            packet = b""
        message: dict[str, Any] = json.loads(packet) if packet else {"type": "ended"}
        if message["type"] == "started":
            self.child = message["child"]
            return "started"
        self.close()
        return "ended"

    def receipt(self) -> Receipt | None:
        """The receipt, which is the truth. Raises RecordBroken."""
        return read_receipt(self.folder)

    def close(self) -> None:
        """Leave the launcher alone; before `go` that ends it as `not_started` with why `eof`."""
        if self._sock:
            self._sock.close()
            self._sock = None


class ForkServer:
    """The parent of this worker's launchers; it outlives the worker until the last one is gone."""

    def __init__(self, popen: subprocess.Popen[bytes], control: socket.socket, log: Path) -> None:
        self._popen = popen
        self._control = control
        self._log = log
        self._ready = False
        self.pid = popen.pid
        self.ticks = start_ticks(popen.pid)

    def fileno(self) -> int:
        """The descriptor to select on: readable when the fork server is gone."""
        return self._control.fileno()

    def alive(self) -> bool:
        """Whether it still runs; otherwise start another, its launchers go on without it."""
        if not self._ready:  # what it says first must not keep `fileno` readable
            with suppress(OSError):
                self._ready = self._control.recv(64, socket.MSG_DONTWAIT) == b"ready"
        return self._popen.poll() is None

    def ready(self) -> None:
        """Wait until it can be asked, once. Raises LaunchFailed."""
        if self._ready:
            return
        self._control.settimeout(ANSWER_S)
        with suppress(OSError):
            self._ready = self._control.recv(64) == b"ready"
        if not self._ready:
            self._popen.kill()
            raise LaunchFailed(f"the fork server did not start, see {self._log}")

    def ask(self, folder: Path) -> socket.socket:
        """Ask for a launcher for a folder of `prepare`; `greet` waits for it. Raises LaunchFailed.

        Several are forked side by side when all are asked for before the first is waited for.
        """
        self.ready()
        ours, theirs = packet_sockets()
        try:
            with theirs:
                path = os.fsencode(folder.absolute())
                socket.send_fds(self._control, [path], [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise LaunchFailed(f"the fork server does not answer: {error}") from error
        except BaseException:
            ours.close()
            raise
        return ours

    def spawn(self, folder: Path) -> Execution:
        """Fork a launcher for a folder of `prepare`; it waits for `go`. Raises LaunchFailed."""
        return greet(folder, self.ask(folder))

    def close(self, wait_s: float = 0.0) -> bool:
        """Let it go when its last launcher has; True when it has gone within `wait_s`."""
        self._control.close()
        try:
            self._popen.wait(wait_s)
        except subprocess.TimeoutExpired:
            return False
        return True


def start_forkserver(state_dir: Path) -> ForkServer:
    """Start a fork server; what it has to complain about goes to `state_dir`/forkserver.log.

    It is waited for when it is first asked. It gets none of our environment, which may hold
    secrets. Raises OSError, NotSupported.
    """
    require_linux()
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = state_dir.absolute() / "forkserver.log"
    home = str(Path(__file__).absolute().parent.parent)
    code = (
        "'qinglong-sql: launchers of executions'; import sys; sys.path.append(sys.argv[2]); "
        "from qinglong_sql import forkserver; "
        "forkserver.main(int(sys.argv[1]))"
    )
    keep = {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}
    ours, theirs = packet_sockets()
    with theirs, log.open("ab") as complaints:
        log.chmod(0o600)
        popen = subprocess.Popen(
            # The first words of the code and argv[3] are for people who look at ps.
            [sys.executable, "-I", "-S", "-X", "utf8", "-c", code, str(theirs.fileno()), home,
             str(state_dir.absolute())],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=complaints,
            pass_fds=[theirs.fileno()], env=keep, start_new_session=True,
        )  # fmt: skip
    return ForkServer(popen, ours, log)


def greet(folder: Path, sock: socket.socket) -> Execution:
    """The launcher that was asked for, waiting for `go`. Raises LaunchFailed."""
    try:
        return Execution(folder, sock, _answer(sock))
    except BaseException:
        sock.close()
        raise


def adopt(folder: Path) -> Execution | None:
    """Take a live launcher over by its named socket; the worker that had it loses it.

    None when nobody answers, or somebody other than the journal names. Raises RecordBroken.
    """
    journal = read_journal(folder)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(ANSWER_S)
    try:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sock.connect(f"/proc/self/fd/{at}/launcher.sock")
        finally:
            os.close(at)
        execution = Execution(folder, sock, _answer(sock))
    # Whatever listens there may be the command's.
    except (OSError, LaunchFailed, ValueError, KeyError, TypeError, AttributeError):
        sock.close()
        return None
    named = ("boot_id", "launcher_pid", "launcher_ticks")
    if journal and any(journal.get(k) != execution.identity[k] for k in named):
        execution.close()
        return None
    return execution
