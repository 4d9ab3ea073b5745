"""A worker's state folder: who owns it, one folder an execution, the logs that stay (DESIGN §9).

worker.lock             held by the one worker of this folder; another process waits for it
worker_id               who that worker is, for as long as the folder lives
exec/<offer_id>/        spec, input, output, journal, receipt, log of one execution (0700)
log/<run_id>/<step>.<number>.log
log/<run_id>/<step>.<number>.dropped    how many bytes a log does not hold
"""

import fcntl
import os
import stat
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qinglong_sql.apart import open_up, read_plain
from qinglong_sql.canonical import canonical, read_json, utf8_text
from qinglong_sql.evidence import LOG_CAP_BYTES, OURS, RecordBroken, read_receipt
from qinglong_sql.execution import Receipt, Spec
from qinglong_sql.limits import ERROR_BYTES, OUTPUT_BYTES

# Pretty-printed JSON may be longer than its canonical text, within reason.
OUTPUT_FILE_BYTES = 8 * OUTPUT_BYTES
SETTINGS_PREFIX, EXECUTION_PREFIX = "QINGLONG_", "QL_"
# What libpq and systemd tell one process alone: a login, a folder of secrets, sockets.
OF_ONE_PREFIXES = ("PG", "LISTEN_")
OF_ONE = ("CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "INVOCATION_ID")
# What the worker says with a stop whose reason is that its authority is gone.
LEASE_LOST = "lease"


@dataclass(frozen=True, slots=True)
class End:
    """How an execution ended, as `report_attempts` takes it; error is at most ERROR_BYTES."""

    how: str
    exit_code: int | None = None
    output: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """Nothing of an execution is left and its end is unknown, as `attest_attempts` takes it."""

    reason: str


def take_lock(state_dir: Path) -> int | None:
    """Become the owner of a state folder: a descriptor to keep open, or None when it has one.

    The kernel gives it back when its owner dies. Raises OSError.
    """
    try:
        lock = _open_lock(state_dir)
    except PermissionError:  # a command may have taken our own rights away
        open_up(state_dir)
        lock = _open_lock(state_dir)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except BaseException:
        os.close(lock)
        raise
    return lock


def _open_lock(state_dir: Path) -> int:
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(state_dir / "worker.lock", flags, 0o600)


def worker_id(state_dir: Path, name: str | None = None) -> str:
    """The id of the worker of this folder: `name`, or one that is made at its first use.

    Raises OSError, and ValueError for the folder of another one: what it journaled is not ours.
    """
    path = state_dir / "worker_id"
    if not path.exists():
        new = path.with_suffix(".new")
        new.write_text(name or "wk" + uuid.uuid4().hex[:24], encoding="utf-8")
        new.replace(path)
    found = path.read_text(encoding="utf-8").strip()
    if name not in (None, found):
        raise ValueError(f"{state_dir} is the folder of worker {found}, not of {name}")
    return found


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """What a worker process passes on: nothing of its login at a database, nor of its service.

    A step that needs a PG* variable says so in its `env`. What `run` and `edge` start gets those of
    the shell that they were started in.
    """
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(OF_ONE_PREFIXES) and name not in OF_ONE
    }


def environment(inherited: Mapping[str, str], task: Mapping[str, Any]) -> dict[str, Any]:
    """The worker's environment without our own settings, and the task's on top.

    Settings may hold a DSN with its password. A variable that is not UTF-8 cannot travel in a spec.
    """
    plain = {utf8_text(name): utf8_text(value) for name, value in inherited.items()}
    kept = {
        name: value
        for name, value in plain.items()
        if not name.startswith((SETTINGS_PREFIX, EXECUTION_PREFIX)) and _is_utf8(name + value)
    }
    return {**kept, **task}


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def spec_of(lease: Mapping[str, Any], folder: Path, inherited: Mapping[str, str]) -> Spec:
    """What the launcher runs for a row of `lease_attempts`. Raises ValueError for a broken spec."""
    task = read_json(lease["spec"])
    argv = task["run"] if isinstance(task["run"], list) else ["/bin/sh", "-c", task["run"]]
    env = environment(inherited, task["env"]) | {
        "QL_RUN_ID": lease["run_id"],
        "QL_STEP": lease["step_key"],
        "QL_ATTEMPT": str(lease["number"]),
        "QL_TRY": str(lease["try_number"]),
        "QL_INPUT": utf8_text(str(input_file(folder))),
        "QL_OUTPUT": utf8_text(str(output_file(folder))),
    }
    cwd = os.path.normpath(os.path.join(lease["base_dir"], task["cwd"]))  # noqa: PTH118
    return Spec(attempt=lease["attempt_id"], argv=argv, cwd=cwd, env=env)


def input_file(folder: Path) -> Path:
    """Where an execution reads its input (QL_INPUT)."""
    return folder / "input.json"


def output_file(folder: Path) -> Path:
    """Where an execution may write its output (QL_OUTPUT)."""
    return folder / "output.json"


def write_input(folder: Path, text: str) -> None:
    """Write the input of an execution, mode 0600. Raises OSError."""
    fd = os.open(input_file(folder), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)


def read_output(folder: Path) -> str | None:
    """The canonical text of an execution's output; None when it wrote none.

    Raises ValueError, saying what is wrong, for anything but a JSON object of at most OUTPUT_BYTES,
    and OSError when this process is short of things.
    """
    try:
        raw = read_plain(output_file(folder), OUTPUT_FILE_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in OURS:
            raise
        raise ValueError(f"QL_OUTPUT cannot be read: {error.strerror}") from error
    if len(raw) > OUTPUT_FILE_BYTES:
        raise ValueError(f"QL_OUTPUT is larger than {OUTPUT_BYTES} bytes")
    if not raw.strip():
        raise ValueError("QL_OUTPUT is empty: write a JSON object to it, or no file at all")
    try:
        value = read_json(raw)
    except ValueError as error:
        raise ValueError(f"QL_OUTPUT is not the JSON that can be stored: {error}") from error
    if not isinstance(value, dict):
        raise ValueError("QL_OUTPUT is not a JSON object")
    text = canonical(value)
    if len(text.encode()) > OUTPUT_BYTES:
        raise ValueError(f"QL_OUTPUT is larger than {OUTPUT_BYTES} bytes")
    return text


def end_of(receipt: Receipt, folder: Path) -> End | Gone:
    """What a receipt says to the database (the evidence table of DESIGN §9)."""
    if receipt.kind == "not_started":
        return End("not_started")
    if receipt.kind == "launcher_lost":
        return Gone("launcher_lost")
    kind, _, number = (receipt.exit or "").partition(":")
    code = int(number) if kind == "exit" else None
    match receipt.why:
        case "lease":
            return Gone("lease")
        case "stop" if receipt.reason == LEASE_LOST:
            return Gone("lease")
        case "stop" if receipt.reason == "deadline":
            return End("deadline", code)
        case "start_failed":
            return End(
                "start_failed", error=clean_error(receipt.error or "the command did not start")
            )
        case "stop" | "deadline":
            return End(receipt.why, code)
    if kind == "signal":
        return End("signal", error=f"ended by signal {number}")
    if code != 0:
        return End("exit", code)
    try:
        return End("exit", code, output=read_output(folder))
    except ValueError as error:
        return End("bad_output", code, error=clean_error(str(error)))


def clean_error(text: str) -> str:
    """At most ERROR_BYTES of text that every database stores (DESIGN §12)."""
    shown = text.replace("\0", "?").encode("utf-8", "replace")
    return shown[:ERROR_BYTES].decode("utf-8", "ignore")


def keep_log(folder: Path, state_dir: Path, run_id: str, step_key: str, number: int) -> None:
    """Move the log of an execution to where it stays; what cannot be moved is lost.

    What is not a file any more, or no longer in our folder, was never our log.
    """
    at = state_dir / "log" / run_id
    with suppress(OSError):  # a full disk must not keep an attempt that is reported
        log = (folder / "log").lstat()
        if not stat.S_ISDIR(folder.lstat().st_mode) or not stat.S_ISREG(log.st_mode):
            return
        at.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = at / f"{step_key}.{number}.log"
        with suppress(OSError, RecordBroken):
            receipt = read_receipt(folder)
            # What is shorter though so much was written was cut by its command.
            if (
                receipt is not None
                and receipt.bytes_dropped
                and (log.st_size >= LOG_CAP_BYTES or receipt.bytes_logged < LOG_CAP_BYTES)
            ):
                _keep_dropped(kept, receipt.bytes_dropped, folder / "receipt.json")
        (folder / "log").replace(kept)


def _keep_dropped(log: Path, count: int, receipt: Path) -> None:
    """Keep the count; where a full disk has no room for it, the receipt, which says it as well."""
    at = dropped_file(log)
    try:
        at.write_text(f"{count}\n", encoding="utf-8")
    except OSError:
        at.unlink(missing_ok=True)
        at.hardlink_to(receipt)


def dropped_file(log: Path) -> Path:
    """Where it is kept how many bytes a log does not hold."""
    return log.with_suffix(".dropped")
