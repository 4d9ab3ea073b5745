"""Settings of a control process: a TOML file, then the environment, then flags (DESIGN §7)."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from qinglong_sql import setting_file
from qinglong_sql.control_log import LEVELS, Form, Level
from qinglong_sql.limits import CRON_GRACE_MAX_MS, CRON_GRACE_MS, IDLE_CLUSTER_MS
from qinglong_sql.setting_file import (
    REQUIRED,
    Book,
    Key,
    SettingFault,
    dsn_of,
    duration,
    listen,
    number,
    one_of,
    password_in,
    path,
    without_password,
    write_dsn,
    write_listen,
    write_ms,
)

__all__ = ("KEYS", "PREFIX", "ControlSettings", "SettingFault", "load", "shown", "without_password")

PREFIX: Final = "QINGLONG_CONTROL_"


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """What one control process is told. Times are milliseconds; `listen` is host and port."""

    dsn: str
    password_file: Path | None
    listen: tuple[str, int]
    pool_size: int
    idle_ms: int
    grace_ms: int
    boot_timeout: int
    recovery_timeout: int
    drain_timeout: int
    stop_timeout: int
    log_format: Form
    log_level: Level

    def password(self) -> str | None:
        """What the password file holds, without the end of its line. Raises SettingFault."""
        return password_in(self.password_file)


_DSN: Final = dsn_of(
    "a control process works on PostgreSQL alone: postgresql://user@host/database"
    " (one machine with SQLite: `qinglong-sql edge`)"
)
KEYS: Final[dict[str, Key]] = {
    "dsn": Key(_DSN, REQUIRED, "the database: postgresql://user@host/database", write_dsn),
    "password_file": Key(path, None, "a file that holds the login's password and nothing else"),
    "listen": Key(listen, ("127.0.0.1", 8271), "where /livez, /readyz and /metrics are",
                  write_listen),
    "pool_size": Key(number(3, 32), 4, "connections to the database", str),
    "idle_ms": Key(number(10, 60_000), IDLE_CLUSTER_MS,
                   "milliseconds between two looks when nothing is due", str),
    "grace_ms": Key(number(0, CRON_GRACE_MAX_MS), CRON_GRACE_MS,
                    "milliseconds that a trigger may be late without being missed", str),
    "boot_timeout": Key(duration, 30_000, "for each step of the boot", write_ms),
    "recovery_timeout": Key(duration, 60_000, "for the recovery before it is ready", write_ms),
    "drain_timeout": Key(duration, 10_000, "for the cycle that runs, of each lifecycle", write_ms),
    "stop_timeout": Key(duration, 3_000, "for each other step of the stop", write_ms),
    "log_format": Key(one_of("text", "json"), "text", "text or json"),
    "log_level": Key(one_of(*LEVELS), "info", "debug, info, warning or error"),
}  # fmt: skip
assert KEYS.keys() == {one.name for one in fields(ControlSettings)}

BOOK: Final = Book(KEYS, PREFIX, aside=("ingress",))


def load(
    file: Path | None, flags: Mapping[str, object], environ: Mapping[str, str] = os.environ
) -> tuple[ControlSettings, dict[str, str]]:
    """The settings, and of each key where its value comes from. Raises SettingFault.

    A flag that is None was not given. Later sources win: file, environment, flags.
    """
    values, origins = setting_file.gather(BOOK, file, flags, environ)
    return ControlSettings(**values), origins


def shown(settings: ControlSettings, origins: Mapping[str, str]) -> str:
    """The settings as a TOML file, secrets hidden, each with where it comes from."""
    values = {key: getattr(settings, key) for key in KEYS}
    return setting_file.written(BOOK, values, origins)
