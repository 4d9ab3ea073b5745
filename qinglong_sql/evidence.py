"""What is written and known of an execution: spec, journal, receipt, evidence (DESIGN §9).

The worker's side; the receipt is written by launcher or fork server. Nothing here speaks SQL.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from qinglong_sql.apart import read_plain
from qinglong_sql.limits import STOP_GRACE_MS
from qinglong_sql.linux import boot_id, is_stopped, namespace, start_ticks
from qinglong_sql.slot import MIN_MARGIN_MS

LOG_CAP_BYTES = 4 * 1024 * 1024
LOG_MAX_BYTES = LOG_CAP_BYTES + 65 * 1024  # with the last of what is beyond the cap
GRACE_MS = STOP_GRACE_MS
RECORD_BYTES = 64 * 1024
# These say something of this process, not of what is read: time can help.
OURS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)

Kind = Literal["not_started", "ended", "launcher_lost"]
Why = Literal[
    "eof", "lease_over", "exit", "stop", "deadline", "lease", "launcher_died", "start_failed"
]
EXIT = re.compile(r"(exit|signal):(\d\d?|1\d\d|2[0-4]\d|25[0-5])", re.ASCII)
Evidence = Literal["receipt", "alive", "other_boot", "none"]
# able: what guards it can end it, or nothing of it is left · stopped: it cannot now · gone: never
Guarded = Literal["able", "stopped", "gone"]


class RecordBroken(RuntimeError):
    """A journal or receipt is there and is not one of ours."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What a launcher is to run.

    `env` is the whole environment of the command. A value `{"file": path}` is read by the command's
    own process right before exec, one final newline taken off, so a secret never reaches disk.
    """

    attempt: str
    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str | Mapping[str, str]]
    log_cap_bytes: int = LOG_CAP_BYTES
    grace_ms: int = GRACE_MS
    margin_ms: int = MIN_MARGIN_MS


@dataclass(frozen=True, slots=True)
class Receipt:
    """How an execution ended; it is written only when nothing of its tree is left (DESIGN §9)."""

    attempt: str
    launcher_pid: int
    launcher_ticks: int
    boot_id: str
    kind: Kind
    why: Why
    exit: str | None  # exit:N or signal:N
    reason: str | None  # what the worker gave with its stop
    go_boot_ms: int | None
    go_at_ms: int | None
    end_boot_ms: int
    end_at_ms: int
    tree: Literal["empty"]
    bytes_logged: int
    bytes_dropped: int
    error: str | None


@dataclass(frozen=True, slots=True)
class Guard:
    """Whether launcher or fork server of an execution can end it, and what names its processes."""

    state: Guarded
    attempt: str = ""
    launcher_pid: int | None = None  # only one that lives
    session: tuple[int, int] | None = None  # of the command: pid and start ticks of its leader


def prepare(folder: Path, spec: Spec) -> None:
    """Make the folder of one execution (0700) with its `spec.json` (0600). Raises OSError.

    The folder must not exist: each attempt has its own.
    """
    folder.mkdir(mode=0o700, parents=True)
    # Not `asdict`, which copies a whole environment, value by value.
    record = {name: getattr(spec, name) for name in Spec.__slots__}
    _write(folder, "spec.json", record, durable=False)


def _write(folder: Path, name: str, record: Mapping[str, Any], *, durable: bool) -> None:
    """Replace a file as a whole: a reader finds the old or the new one."""
    new = folder / f"{name}.new"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(json.dumps(record, separators=(",", ":")).encode())
        file.flush()
        if durable:
            os.fsync(fd)
    new.replace(folder / name)
    if durable:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(at)
        finally:
            os.close(at)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(read_plain(path, RECORD_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in OURS:
            raise
        raise RecordBroken(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RecordBroken(f"{path}: not JSON") from error
    if not isinstance(record, dict):
        raise RecordBroken(f"{path}: not an object")
    return record


def write_journal(folder: Path, record: Mapping[str, Any]) -> None:
    """Make the journal of an execution durable, mode 0600, in place of an older one.

    Beside `Execution.identity` it holds attempt, offer, fence, folder, token, run_id, step_key.
    Raises OSError.
    """
    _write(folder, "journal.json", record, durable=True)


def read_journal(folder: Path) -> dict[str, Any] | None:
    """The journal, or None. Raises RecordBroken; OSError when this process is short of things."""
    return _read(folder / "journal.json")


def read_receipt(folder: Path) -> Receipt | None:
    """The receipt, or None. Raises RecordBroken; OSError when this process is short of things."""
    record = _read(folder / "receipt.json")
    if record is None:
        return None
    try:
        receipt = Receipt(**record)
    except TypeError as error:
        raise RecordBroken(f"{folder}/receipt.json: not one of ours") from error
    texts = (receipt.attempt, receipt.reason or "", receipt.error or "", receipt.exit or "exit:0")
    if (
        not all(isinstance(text, str) for text in texts)
        or not EXIT.fullmatch(texts[-1])
        or receipt.kind not in get_args(Kind)
        or receipt.why not in get_args(Why)
    ):
        raise RecordBroken(f"{folder}/receipt.json: not one of ours")
    return receipt


def evidence(folder: Path) -> Evidence:
    """What is known of an execution: the rows of DESIGN §9 that a worker can see by itself.

    "alive" says that a receipt will come: its launcher runs, or the fork server that attests for
    it. "none" proves nothing: neither that it runs, nor that it does not. Raises RecordBroken.
    """
    # A receipt stands by itself, whatever became of the journal.
    if read_receipt(folder):
        return "receipt"
    journal = read_journal(folder)
    if journal is None:
        return "none"
    try:
        seen = _seen(journal)
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise RecordBroken(f"{folder}/journal.json: {error!r}") from error
    return "receipt" if seen == "none" and read_receipt(folder) else seen


def _seen(journal: Mapping[str, Any]) -> Evidence:
    if journal["boot_id"] != boot_id():
        return "other_boot"
    # Pids and start times of another namespace mean nothing here.
    if (journal["pid_ns"], journal["time_ns"]) != (namespace("pid"), namespace("time")):
        return "none"
    for who in ("launcher", "forkserver"):
        if start_ticks(int(journal[f"{who}_pid"])) == journal[f"{who}_ticks"]:
            return "alive"
    return "none"


def guard(folder: Path) -> Guard:
    """Who can end an execution: `gone` and `stopped` need somebody else to (DESIGN §9).

    Raises RecordBroken; OSError when this process is short of things.
    """
    seen = evidence(folder)
    journal = read_journal(folder)
    if journal is None or seen in ("receipt", "other_boot"):
        return Guard("able")
    try:
        if (journal["pid_ns"], journal["time_ns"]) != (namespace("pid"), namespace("time")):
            return Guard("able")
        attempt = str(journal["attempt"])
        living = [
            (int(journal[f"{who}_pid"]), who)
            for who in ("launcher", "forkserver")
            if start_ticks(int(journal[f"{who}_pid"])) == journal[f"{who}_ticks"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise RecordBroken(f"{folder}/journal.json: {error!r}") from error
    if any(not is_stopped(pid) for pid, _ in living):  # each of them alone ends it
        return Guard("able")
    launcher_pid = next((pid for pid, who in living if who == "launcher"), None)
    state: Guarded = "stopped" if living else "gone"
    return Guard(state, attempt, launcher_pid, _session(folder))


def _session(folder: Path) -> tuple[int, int] | None:
    """What the launcher wrote of its child, if it came to it."""
    try:
        pid, ticks = map(int, read_plain(folder / "child", RECORD_BYTES).split())
    except (OSError, ValueError):
        return None
    return (pid, ticks) if pid > 1 else None
