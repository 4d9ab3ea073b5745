"""Settings of a worker process: a TOML file, QINGLONG_WORKER_*, flags (DESIGN §7)."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

from qinglong_sql import setting_file
from qinglong_sql.control_log import LEVELS, Form, Level
from qinglong_sql.duration import DurationFault, read_duration
from qinglong_sql.limits import (
    ID_CHARS,
    LEASE_MAX_MS,
    LEASE_MIN_MS,
    LEASE_MS,
    QUEUE_CHARS,
    STOP_GRACE_MAX_MS,
    STOP_GRACE_MS,
    WORKER_QUEUES,
)
from qinglong_sql.setting_file import (
    Book,
    Key,
    SettingFault,
    dsn_of,
    number,
    one_of,
    password_in,
    path,
    text,
    texts,
    write_dsn,
    write_ms,
    write_texts,
)

PREFIX: Final = "QINGLONG_WORKER_"
NAME: Final = f"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{ID_CHARS - 1}}}"  # as a certificate's subject
SLOTS_MAX: Final = 1024
DRAIN_MS: Final = 30_000
DRAIN_MAX_MS: Final = 60 * 60 * 1000
TWO_WAYS: Final = "ingress and dsn are two ways to the same work: say one of them"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What one worker process is told. Times are milliseconds.

    Either `ingress` with its three files, or `dsn` with a `name`; with an ingress the certificate
    says the name.
    """

    ingress: str | None
    certificate: Path | None
    key: Path | None
    ca: Path | None
    dsn: str | None
    password_file: Path | None
    name: str | None
    queue: tuple[str, ...]
    slots: int
    lease: int
    grace: int
    drain_timeout: int
    state: Path | None
    base_dir: Path | None
    log_format: Form
    log_level: Level

    def password(self) -> str | None:
        """What the password file holds, without the end of its line. Raises SettingFault."""
        return password_in(self.password_file)

    def state_folder(self, name: str, environ: Mapping[str, str] = os.environ) -> Path:
        """Where this worker keeps what it runs."""
        root = Path(environ.get("QINGLONG_STATE_DIR") or ".qinglong")
        return (self.state or root / f"remote-{name}").absolute()


def _ingress(value: object) -> str:
    from qinglong_sql.remote import place_of

    place_of(said := text(value))
    return said


def _name(value: object) -> str:
    if not re.fullmatch(NAME, said := text(value), re.ASCII):
        raise ValueError(f"a worker's name is 1 to {ID_CHARS} of A-Z a-z 0-9 _ . -")
    return said


def _queues(value: object) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(texts(value)))
    if len(found) > WORKER_QUEUES or any(len(one) > QUEUE_CHARS for one in found):
        raise ValueError(f"at most {WORKER_QUEUES} queues, of {QUEUE_CHARS} characters each")
    return found


def _within(least_ms: int, most_ms: int, words: str) -> Key:
    """A time within bounds; none only by `0s`, where that is within them."""

    def read(value: object) -> int:
        try:
            found = 0 if value in ("0s", 0) else read_duration(str(value), most_ms)
        except DurationFault as error:
            raise ValueError(f"it is a time such as 30s: {error}") from None
        if found < least_ms:
            raise ValueError(f"it is at least {least_ms // 1000}s")
        return found

    def write(ms: int) -> str:
        return write_ms(ms) if ms else '"0s"'

    return Key(read, 0, words, write)


KEYS: Final[dict[str, Key]] = {
    "ingress": Key(_ingress, None, "the workers' door: https://host:port"),
    "certificate": Key(path, None, "this worker's certificate, in PEM; its subject is its name"),
    "key": Key(path, None, "its key, in PEM, without a passphrase"),
    "ca": Key(path, None, "whose certificate the ingress has to show, in PEM"),
    "dsn": Key(dsn_of("a worker without an ingress comes to PostgreSQL: postgresql://user@host/db"
                      " (one machine with SQLite: `qinglong-sql edge`)"), None,
               "without an ingress: the database, for a login of ql_worker", write_dsn),
    "password_file": Key(path, None, "a file that holds the login's password and nothing else"),
    "name": Key(_name, None, "without an ingress: who this worker is; one process a name"),
    "queue": Key(_queues, ("default",), "what it takes work from", write_texts),
    "slots": Key(number(1, SLOTS_MAX), max(4, os.cpu_count() or 1), "steps at once", str),
    "lease": replace(_within(LEASE_MIN_MS, LEASE_MAX_MS, "how long a step goes on without a word"
                             " of this process; what is cancelled is heard of within a third"),
                     default=LEASE_MS),
    "grace": replace(_within(0, STOP_GRACE_MAX_MS, "between TERM and KILL of a step that is to"
                             " stop"), default=STOP_GRACE_MS),
    "drain_timeout": replace(_within(0, DRAIN_MAX_MS, "for steps that run, after TERM"),
                             default=DRAIN_MS),
    "state": Key(path, None, "the folder of what it runs, else"
                 " (QINGLONG_STATE_DIR or .qinglong)/remote-NAME"),
    "base_dir": Key(path, None, "where steps run, in place of the folders of their packages"),
    "log_format": Key(one_of("text", "json"), "text", "text or json"),
    "log_level": Key(one_of(*LEVELS), "info", "debug, info, warning or error"),
}  # fmt: skip
assert KEYS.keys() == {one.name for one in fields(WorkerSettings)}
BOOK: Final = Book(KEYS, PREFIX)


def load(
    file: Path | None, flags: Mapping[str, object], environ: Mapping[str, str] = os.environ
) -> tuple[WorkerSettings, dict[str, str]]:
    """The settings, and of each key where its value comes from. Raises SettingFault."""
    if flags.get("ingress") or environ.get(f"{PREFIX}INGRESS"):
        if flags.get("dsn") or environ.get(f"{PREFIX}DSN"):  # also one that cannot be read
            raise SettingFault(TWO_WAYS)
        environ = {name: value for name, value in environ.items() if name != "QINGLONG_DSN"}
    values, origins = setting_file.gather(BOOK, file, flags, environ)
    if values["ingress"] is not None and origins["dsn"] == "QINGLONG_DSN":  # it is for operators
        values["dsn"], origins["dsn"] = None, "default"
    return _complete(WorkerSettings(**values)), origins


def shown(settings: WorkerSettings, origins: Mapping[str, str]) -> str:
    """The settings as a TOML file, secrets hidden, each with where it comes from."""
    values = {key: getattr(settings, key) for key in KEYS}
    return setting_file.written(BOOK, values, origins)


def _complete(said: WorkerSettings) -> WorkerSettings:
    """Refuse half of one way, and two ways at once."""
    if said.ingress is None and said.dsn is None:
        raise SettingFault(
            "where is the work? say --ingress https://host:port with --certificate, --key and --ca,"
            " or --dsn postgresql://… with --name"
        )
    if said.ingress is not None and said.dsn is not None:
        raise SettingFault(TWO_WAYS)
    if said.ingress is not None:
        for key in ("certificate", "key", "ca"):
            if getattr(said, key) is None:
                raise SettingFault(f"{key} is missing: {KEYS[key].meaning}; say --{key}")
    elif said.name is None:
        raise SettingFault(
            "name is missing: say --ingress URL (with a certificate), or --dsn DSN and --name"
        )
    return said
