"""Settings of a program: a TOML file, then the environment, then flags (DESIGN §7).

Each program has a `Book` of its keys. Of the environment only names that are ours are read:
Kubernetes puts names of its own beside them, such as QINGLONG_CONTROL_SERVICE_HOST for a service
`qinglong-control`.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from qinglong_sql.duration import DurationFault, read_duration, write_duration
from qinglong_sql.store import POSTGRES

FILE_BYTES: Final = 64 * 1024
LONGEST_PASSWORD: Final = 4096
TIMEOUT_MAX_MS: Final = 60 * 60 * 1000
SHOWN: Final = "***"
SECRET: Final = ("password", "sslpassword")
REQUIRED: Final = object()


class SettingFault(Exception):
    """A setting that cannot be used: where it was said, what is wrong, and the way out."""


def quoted(text: str) -> str:
    """Text as TOML takes it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04X}" for c in escaped) + '"'


@dataclass(frozen=True, slots=True)
class Key:
    """One setting. `read` raises ValueError with the reason; `write` gives what TOML takes.

    A `default` of REQUIRED is none: the setting has to be said.
    """

    read: Callable[[object], object]
    default: object
    meaning: str
    write: Callable[[Any], str] = lambda value: quoted(str(value))


@dataclass(frozen=True, slots=True)
class Book:
    """All settings of one program.

    prefix: of its names in the environment, which are the keys in capitals. table: where they are
    in the file; "" is the top, where `aside` names tables of other programs. flags: whether the
    command has an option for each. shared_dsn: whether QINGLONG_DSN counts for the key `dsn`.
    """

    keys: Mapping[str, Key]
    prefix: str
    table: str = ""
    aside: tuple[str, ...] = ()
    flags: bool = True
    shared_dsn: bool = True


Said = Mapping[str, tuple[object, str]]  # of each key: the value, and where it was said


def gather(
    book: Book, file: Path | None, flags: Mapping[str, object], environ: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The value of each key, and where it comes from. Raises SettingFault.

    A flag that is None was not given. Later sources win: file, environment, flags.
    """
    said: dict[str, tuple[object, str]] = {}
    if file is not None:
        said |= {key: (value, str(file)) for key, value in _of_file(book, file).items()}
    if "dsn" in book.keys and book.shared_dsn and (dsn := environ.get("QINGLONG_DSN")):
        said["dsn"] = dsn, "QINGLONG_DSN"
    for key in book.keys:
        name = book.prefix + key.upper()
        if value := environ.get(name):
            said[key] = value, name
    for key, given in flags.items():
        if given is not None:
            said[key] = given, f"--{key.replace('_', '-')}"
    values = {key: _read(book, key, said) for key in book.keys}
    origins = {key: said[key][1] if key in said else "default" for key in book.keys}
    return values, origins


def written(book: Book, values: Mapping[str, Any], origins: Mapping[str, str]) -> str:
    """The settings as a TOML file, secrets hidden, each with where it comes from."""
    lines = [f"[{book.table}]"] if book.table else []
    for key, rule in book.keys.items():
        value = values[key]
        line = f"# {key} =" if value is None else f"{key} = {rule.write(value)}"
        lines.append(f"{line}  # {origins[key]}; {rule.meaning}")
    return "\n".join(lines)


def password_in(file: Path | None) -> str | None:
    """What a password file holds, without the end of its line. Raises SettingFault."""
    if file is None:
        return None
    try:
        with file.open(encoding="utf-8") as held:
            text = held.read(LONGEST_PASSWORD + 1)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise SettingFault(f"password_file {file}: {why}") from None
    if not text.rstrip("\r\n") or len(text) > LONGEST_PASSWORD:
        why = f"longer than {LONGEST_PASSWORD} characters" if text.rstrip("\r\n") else "empty"
        raise SettingFault(f"password_file {file}: it is {why}")
    return text.rstrip("\r\n")


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


# --- kinds of settings


def text(value: object) -> str:
    """Text that is not empty."""
    if not isinstance(value, str):
        raise ValueError("it is text")
    if not value:
        raise ValueError("it must not be empty")
    return value


def path(value: object) -> Path:
    """A path, by the folder that the program is started in."""
    return Path(text(value))


def dsn_of(words: str) -> Callable[[object], str]:
    """A DSN of PostgreSQL; `words` tell who needs one."""

    def read(value: object) -> str:
        said = text(value)
        if not said.startswith(POSTGRES):  # it is not shown, it may hold a password
            raise ValueError(words)
        return said

    return read


def listen(value: object, port: int = 8271) -> tuple[str, int]:
    """Host and port; `port` is shown to who says neither."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:\s]+)):([0-9]{1,5})", text(value))
    if not found or int(found[3]) > 65_535:
        shown = f"127.0.0.1:{port}, [::1]:{port} or 0.0.0.0:{port}"
        raise ValueError(f"write host:port, such as {shown}")
    return found[1] or found[2], int(found[3])


def number(least: int, most: int) -> Callable[[object], int]:
    """A whole number within bounds."""

    def read(value: object) -> int:
        if isinstance(value, str) and re.fullmatch("[0-9]{1,12}", value):
            value = int(value)
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"it is a whole number from {least} to {most}")
        return value

    return read


def duration(value: object) -> int:
    """A time such as 30s, in milliseconds, at most an hour."""
    try:
        return read_duration(str(value), TIMEOUT_MAX_MS)
    except DurationFault as error:
        raise ValueError(f"it is a time such as 30s: {error}") from None


def one_of(*words: str) -> Callable[[object], str]:
    """One of some words."""

    def read(value: object) -> str:
        if value not in words:
            raise ValueError(f"it is one of {', '.join(words)}")
        return str(value)

    return read


def texts(value: object) -> tuple[str, ...]:
    """One or more texts: a list, or one text with commas between them."""
    said = value.split(",") if isinstance(value, str) else value
    if not isinstance(said, list | tuple) or not said:
        raise ValueError("it is a list of texts, or one text with commas between them")
    return tuple(text(one.strip() if isinstance(one, str) else one) for one in said)


def write_dsn(dsn: str) -> str:
    return quoted(without_password(dsn))


def write_listen(place: tuple[str, int]) -> str:
    return quoted(address(place))


def write_ms(ms: int) -> str:
    return quoted(write_duration(ms))


def write_texts(found: tuple[str, ...]) -> str:
    return f"[{', '.join(map(quoted, found))}]"


def address(place: tuple[str, int]) -> str:
    """Host and port as one text, as `listen` reads it."""
    host = f"[{place[0]}]" if ":" in place[0] else place[0]
    return f"{host}:{place[1]}"


def _read(book: Book, key: str, said: Said) -> object:
    rule = book.keys[key]
    if key not in said:
        if rule.default is REQUIRED:
            flag = f"--{key.replace('_', '-')}, " if book.flags else ""
            below = f" below [{book.table}]" if book.table else ""
            raise SettingFault(
                f"{key} is missing: {rule.meaning}; say {flag}{book.prefix}{key.upper()}, or"
                f" `{key} =`{below} in the file of --config"
            )
        return rule.default
    value, where = said[key]
    try:
        return rule.read(value)
    except ValueError as error:
        name = f"{book.table}.{key}" if book.table else key
        place = where if where.startswith(("--", "QINGLONG_")) else f"{where}: {name}"
        raise SettingFault(f"{place}: {error}") from None


def _of_file(book: Book, file: Path) -> dict[str, object]:
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
    for name in book.aside:
        if isinstance(found.get(name), dict):
            del found[name]
    if book.table:
        found = found.get(book.table, {})
        if not isinstance(found, dict):
            raise SettingFault(f"{file}: {book.table} is a table: write [{book.table}]")
    for key in found:
        if key not in book.keys:
            near = difflib.get_close_matches(key, book.keys, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(book.keys)}"
            raise SettingFault(f"{file}: no setting {key[:60]!r}{hint}")
    return found
