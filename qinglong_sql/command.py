"""The command of an execution: environment and secrets, exec, output, signals (DESIGN §9).

Only light modules may be imported here: each launcher is a fork of a process that holds them.
"""

from __future__ import annotations

import errno
import os
import signal
from contextlib import suppress

from qinglong_sql import linux
from qinglong_sql.receipt import clean
from qinglong_sql.slot import DROPPED, LOGGED

SECRET_BYTES = 65_536
CHUNK = 65_536
TAIL_BYTES = 64 * 1024
LINE_BYTES = 4_096  # of the end of a full log: what stands before its first whole line
FULL_LOG = "the log was full"
FULL = (errno.ENOSPC, errno.EDQUOT)
RESET = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


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
            secret = linux.read_all(fd, SECRET_BYTES + 1)
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
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
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


def start_command(spec: dict[str, Any], log: int, errors: int) -> int:
    """Fork the command and give its pid; it has `log` and `errors` then, we no longer.

    Raises OSError when there is no fork.
    """
    launcher_pid = os.getpid()
    child = os.fork()
    if child == 0:
        exec_command(spec, launcher_pid, log, errors)
    os.close(errors)
    os.close(log)
    return child


def ask_to_end(child: int) -> None:
    """TERM the group of the command, and wake it so that it hears."""
    for number in (signal.SIGTERM, signal.SIGCONT):
        try:
            os.killpg(child, number)
        except ProcessLookupError:  # it has not made its group yet
            linux.kill(child, number)


def group_left(child: int) -> bool:
    """Whether a child of ours is in the group of the command."""
    for pid in linux.children():
        try:
            if os.getpgid(pid) == child:
                return True
        except ProcessLookupError:
            continue
    return False


def kill_children() -> None:
    for pid in linux.children():
        linux.kill(pid, signal.SIGKILL)


class Log:
    """The log of an execution and the pipe that the command writes it through.

    What a full disk does not take is counted, and told at its place by what is written next. Of
    what is beyond the cap the end is kept in memory and written last: an error stands at the end.
    """

    def __init__(self, folder_fd: int, slot: memoryview[int]) -> None:
        self.slot = slot
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self.file = os.open("log", flags, 0o600, dir_fd=folder_fd)
        self.source, self.sink = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(self.sink, True)
        self.open = True
        self.lost = 0
        self.why = "the disk was full"
        self.last = b"\n"
        self.over = 0  # bytes after the cap
        self.beyond = bytearray()  # the last of them

    def read(self, cap_bytes: int) -> bool:
        """Move one chunk of output to the log, as far as its cap lets; False when none is left."""
        try:
            chunk = os.read(self.source, CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self.open = False
            return False
        room = 0 if self.over else max(0, cap_bytes - self.slot[LOGGED])
        note = self.note()
        wanted = (note + chunk)[:room]
        taken = max(0, len(wanted) - len(note))
        written = max(0, self.write(wanted) - len(note)) if taken else 0
        self.lost += taken - written  # a full disk costs the log, not the execution
        self.over += len(chunk) - taken
        self.beyond += chunk[taken:]
        del self.beyond[:-TAIL_BYTES]
        self.slot[DROPPED] += len(chunk) - written
        return True

    def close(self) -> None:
        """Tell what is lost at the end, and write the last of what was beyond the cap."""
        last = bytes(self.beyond)
        if self.over > len(last):
            last = last[last.find(b"\n", 0, LINE_BYTES) + 1 :]
        if self.over:
            self.lost, self.why = self.lost + self.over - len(last), FULL_LOG
        note = self.note()
        if note or last:
            self.slot[DROPPED] -= max(0, self.write(note + last) - len(note))

    def note(self) -> bytes:
        """The line for what was lost since the last write; nothing when nothing was."""
        if not self.lost:
            return b""
        start = "" if self.last == b"\n" else "\n"
        return f"{start}[{self.lost} bytes are not kept: {self.why}]\n".encode()

    def write(self, wanted: bytes) -> int:
        """Write what the disk takes, and say how much; a note is written whole or not at all."""
        note = len(self.note())
        try:
            written = os.write(self.file, wanted)
            if written < note:
                os.ftruncate(self.file, os.fstat(self.file).st_size - written)
                written = 0
        except OSError as error:
            self.why = "the disk was full" if error.errno in FULL else str(error.strerror)
            return 0
        if written:
            self.lost, self.last = 0, wanted[written - 1 : written]
        self.slot[LOGGED] += written
        return written
