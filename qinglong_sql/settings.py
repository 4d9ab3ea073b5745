"""Settings of a control process: a TOML file, then the environment, then flags (DESIGN §7).

Of the environment only names that are ours are read: Kubernetes puts names of its own beside them,
such as QINGLONG_CONTROL_SERVICE_HOST for a service `qinglong-control`.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from qinglong_sql.control_log import LEVELS, Form, Level
from qinglong_sql.duration import DurationFault, read_duration, write_duration
from qinglong_sql.limits import CRON_GRACE_MAX_MS, CRON_GRACE_MS, IDLE_CLUSTER_MS
from qinglong_sql.store import POSTGRES

PREFIX: Final = "QINGLONG_CONTROL_"
FILE_BYTES: Final = 64 * 1024
TIMEOUT_MAX_MS: Final = 60 * 60 * 1000
SHOWN: Final = "***"
SECRET: Final = ("password", "sslpassword")


class SettingFault(Exception):
    """A setting that cannot be used: where it was said, what is wrong, and the way out."""


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
        if self.password_file is None:
            return None
        try:
            text = self.password_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            raise SettingFault(f"password_file {self.password_file}: {why}") from None
        return text.rstrip("\r\n")


@dataclass(frozen=True, slots=True)
class Key:
    """One setting. `read` raises ValueError with the reason; `write` gives what TOML takes."""

    read: Callable[[object], object]
    default: object
    meaning: str
    write: Callable[[Any], str] = lambda value: _quoted(str(value))


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("it is text")
    return value


def _dsn(value: object) -> str:
    text = _text(value)
    if not text.startswith(POSTGRES):  # it is not shown, it may hold a password
        raise ValueError(
            "a control process works on PostgreSQL alone: postgresql://user@host/database"
            " (one machine with SQLite: `qinglong-sql edge`)"
        )
    return text


def _listen(value: object) -> tuple[str, int]:
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:\s]+)):([0-9]{1,5})", _text(value))
    if not found or int(found[3]) > 65_535:
        raise ValueError("write host:port, such as 127.0.0.1:8271, [::1]:8271 or 0.0.0.0:8271")
    return found[1] or found[2], int(found[3])


def _number(least: int, most: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if isinstance(value, str) and re.fullmatch("[0-9]{1,12}", value):
            value = int(value)
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"it is a whole number from {least} to {most}")
        return value

    return read


def _duration(value: object) -> int:
    try:
        return read_duration(str(value), TIMEOUT_MAX_MS)
    except DurationFault as error:
        raise ValueError(f"it is a time such as 30s: {error}") from None


def _one_of(*words: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in words:
            raise ValueError(f"it is one of {', '.join(words)}")
        return str(value)

    return read


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04X}" for c in escaped) + '"'


def _address(listen: tuple[str, int]) -> str:
    host = f"[{listen[0]}]" if ":" in listen[0] else listen[0]
    return f"{host}:{listen[1]}"


REQUIRED: Final = object()
KEYS: Final[dict[str, Key]] = {
    "dsn": Key(_dsn, REQUIRED, "the database: postgresql://user@host/database",
               lambda dsn: _quoted(without_password(dsn))),
    "password_file": Key(lambda value: Path(_text(value)), None,
                         "a file that holds the login's password and nothing else"),
    "listen": Key(_listen, ("127.0.0.1", 8271), "where /livez, /readyz and /metrics are",
                  lambda listen: _quoted(_address(listen))),
    "pool_size": Key(_number(3, 32), 4, "connections to the database", str),
    "idle_ms": Key(_number(10, 60_000), IDLE_CLUSTER_MS,
                   "milliseconds between two looks when nothing is due", str),
    "grace_ms": Key(_number(0, CRON_GRACE_MAX_MS), CRON_GRACE_MS,
                    "milliseconds that a trigger may be late without being missed", str),
    "boot_timeout": Key(_duration, 30_000, "for each step of the boot",
                        lambda ms: _quoted(write_duration(ms))),
    "recovery_timeout": Key(_duration, 60_000, "for the recovery before it is ready",
                            lambda ms: _quoted(write_duration(ms))),
    "drain_timeout": Key(_duration, 10_000, "for the cycle that runs, of each lifecycle",
                         lambda ms: _quoted(write_duration(ms))),
    "stop_timeout": Key(_duration, 3_000, "for each other step of the stop",
                        lambda ms: _quoted(write_duration(ms))),
    "log_format": Key(_one_of("text", "json"), "text", "text or json"),
    "log_level": Key(_one_of(*LEVELS), "info", "debug, info, warning or error"),
}  # fmt: skip
assert KEYS.keys() == {one.name for one in fields(ControlSettings)}

Said = Mapping[str, tuple[object, str]]  # of each key: the value, and where it was said


def load(
    file: Path | None, flags: Mapping[str, object], environ: Mapping[str, str] = os.environ
) -> tuple[ControlSettings, dict[str, str]]:
    """The settings, and of each key where its value comes from. Raises SettingFault.

    A flag that is None was not given. Later sources win: file, environment, flags.
    """
    said: dict[str, tuple[object, str]] = {}
    if file is not None:
        said |= {key: (value, str(file)) for key, value in _of_file(file).items()}
    if dsn := environ.get("QINGLONG_DSN"):
        said["dsn"] = dsn, "QINGLONG_DSN"
    for key in KEYS:
        name = PREFIX + key.upper()
        if value := environ.get(name):
            said[key] = value, name
    for key, given in flags.items():
        if given is not None:
            said[key] = given, f"--{key.replace('_', '-')}"
    values: dict[str, Any] = {key: _read(key, said) for key in KEYS}
    origins = {key: said[key][1] if key in said else "default" for key in KEYS}
    return ControlSettings(**values), origins


def shown(settings: ControlSettings, origins: Mapping[str, str]) -> str:
    """The settings as a TOML file, secrets hidden, each with where it comes from."""
    lines = []
    for key, rule in KEYS.items():
        value = getattr(settings, key)
        line = f"# {key} =" if value is None else f"{key} = {rule.write(value)}"
        lines.append(f"{line}  # {origins[key]}; {rule.meaning}")
    return "\n".join(lines)


def without_password(dsn: str) -> str:
    """A DSN with *** for what is secret in it, wherever it is said."""
    # up to the last @, since a password may hold one that nobody wrote as %40
    found = re.sub(r"(//[^:/?#@]*):.*@", rf"\1:{SHOWN}@", dsn, flags=re.DOTALL)
    head, sign, tail = found.partition("?")
    parts = [part.partition("=") for part in tail.split("&")]
    tail = "&".join(
        f"{name}={SHOWN}" if unquote(name).strip().lower() in SECRET else f"{name}{equals}{value}"
        for name, equals, value in parts
    )
    return head + sign + tail


def _read(key: str, said: Said) -> object:
    rule = KEYS[key]
    if key not in said:
        if rule.default is REQUIRED:
            raise SettingFault(
                f"{key} is missing: {rule.meaning}; say --dsn, {PREFIX}DSN, or `dsn =` in the file"
                " of --config"
            )
        return rule.default
    value, where = said[key]
    try:
        return rule.read(value)
    except ValueError as error:
        place = where if where.startswith(("--", "QINGLONG_")) else f"{where}: {key}"
        raise SettingFault(f"{place}: {error}") from None


def _of_file(file: Path) -> dict[str, object]:
    try:
        with file.open("rb") as source:
            raw = source.read(FILE_BYTES + 1)
        if len(raw) > FILE_BYTES:
            raise SettingFault(f"{file}: a file of settings is at most {FILE_BYTES // 1024} KiB")
        found = tomllib.loads(raw.decode("utf-8"))
    except OSError as error:
        raise SettingFault(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingFault(f"{file}: it is no UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingFault(f"{file}: it is no TOML: {error}") from None
    for key in found:
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(KEYS)}"
            raise SettingFault(f"{file}: no setting {key[:60]!r}{hint}")
    return found
