"""Exit codes of the command line, and how an error becomes one of them."""

import functools
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any, ParamSpec
from urllib.parse import unquote

import click

from qinglong_sql.cli.file_trouble import hint
from qinglong_sql.cli.words import Unsaid, complain, hush
from qinglong_sql.errors import NotReady, QinglongError
from qinglong_sql.host_words import NO_WRITES, words_of_hosts
from qinglong_sql.package_fault import PackageFaults
from qinglong_sql.package_source import WIDTH
from qinglong_sql.start import begun
from qinglong_sql.whole_file import NoFile

P = ParamSpec("P")
OPTIONAL = {"psycopg": "postgres", "psycopg_pool": "postgres", "alembic": "migrate",
            "sqlalchemy": "migrate", "cheroot": "control",
            "prometheus_client": "control"}  # fmt: skip
NOT_ALLOWED = "42501"
READ_ONLY = "25006"
LOST = ("psycopg.OperationalError", "psycopg.InterfaceError")
GROUPS = ("ql_admission", "ql_scheduler", "ql_worker", "ql_operator")
BOLD = ("place", "caret")
FAULT_COLOURS = {"caret": "red", "code": "cyan"}


class Exit(IntEnum):
    """What a command tells its caller; the same for every command."""

    OK = 0
    FAILED = 1
    BAD_FILE = 2
    CANCELLED = 3
    TIMED_OUT = 4
    REFUSED = 5
    NOT_READY = 6
    KILLED = 130


OF_STATUS = {
    "succeeded": Exit.OK,
    "failed": Exit.FAILED,
    "cancelled": Exit.CANCELLED,
    "timed_out": Exit.TIMED_OUT,
}


class Refused(Exception):
    """A command that cannot be done as asked, in words for people; exit 5."""


class BadFile(Exception):
    """A file that cannot be used, in words for people; exit 2."""


def leave(code: Exit) -> None:
    """End the command with an exit code."""
    raise SystemExit(int(code))


def reported(command: Callable[P, Any]) -> Callable[P, Any]:
    """Turn every expected error into one message on standard error and its exit code."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Any:
        try:
            begun()
            return command(*args, **kwargs)
        except BrokenPipeError:
            hush()
            leave(Exit.OK)
        except (KeyboardInterrupt, click.Abort) as error:  # a question that is not answered as well
            told = ": ".join(["interrupted", *map(str, error.args)])
            known = error.args or hasattr(error, "__notes__")
            complain(f"{told}; {again(error)}" if known else told)
            leave(Exit.KILLED)
        except Exception as error:
            found = told_as(error)
            if found is None:
                raise
            code, words = found
            complain(without_secrets(words, str(kwargs.get("dsn") or "")))
            leave(code)

    return wrapped


def told_as(error: BaseException) -> tuple[Exit, str] | None:
    """The exit code and the words of an expected error; None for one that is a bug of ours."""
    match error:
        case PackageFaults():
            return Exit.BAD_FILE, faults_text(error)
        case BadFile():
            return Exit.BAD_FILE, str(error)
        case Refused():
            return Exit.REFUSED, f"refused: {error}"
        case NoFile():
            return Exit.REFUSED, f"refused: {error.filename}: {error.strerror}"
        case NotReady():
            return Exit.NOT_READY, f"not ready: {first_line(error)}"
        case QinglongError(code="contended"):
            return Exit.NOT_READY, "not ready: the database is held by somebody else; try again"
        case QinglongError():
            return Exit.REFUSED, f"refused: {first_line(error)}"
        case ModuleNotFoundError() if error.name in OPTIONAL:
            extra = OPTIONAL[error.name]
            return Exit.NOT_READY, f"not ready: {error.name} is not installed: " + (
                f"pip install 'qinglong-sql[{extra}]'"
            )
    if error.__cause__ is not None and type(error).__name__ == "StageFailed":
        return told_as(error.__cause__)
    return unavailable(error)


def faults_text(faults: PackageFaults) -> str:
    """All faults with their places; a file that cannot be read has none."""
    if [fault.code for fault in faults.faults] == ["unreadable"]:
        return f"{faults.filename}: {faults.faults[0].message}"
    width = min(WIDTH, max(shutil.get_terminal_size().columns - 4, 20)) if on_terminal() else WIDTH
    return faults.render(painted_fault, width)


def on_terminal() -> bool:
    """Whether standard error, where faults are told, is read by a person right now."""
    return sys.stderr is not None and sys.stderr.isatty()


def painted_fault(text: str, part: str) -> str:
    """A part of a fault in its colour; all of them are told apart by their signs as well."""
    return click.style(text, bold=True if part in BOLD else None, fg=FAULT_COLOURS.get(part))


def unavailable(error: BaseException) -> tuple[Exit, str] | None:
    """Words for an error of the database or its file itself; None for anything else."""
    kind = f"{type(error).__module__}.{type(error).__name__}"
    original = getattr(error, "orig", None)
    if kind.startswith("sqlalchemy.exc.") and isinstance(original, BaseException):
        return unavailable(original)
    if type(error).__name__ == "InDoubt":
        return Exit.NOT_READY, f"in doubt: PostgreSQL: {first_line(error)}; {again(error)}"
    if kind.startswith(("psycopg.", "psycopg_pool.")) or type(error).__name__ == "NotPrimary":
        if getattr(error, "sqlstate", None) == NOT_ALLOWED:
            return Exit.REFUSED, f"refused: PostgreSQL: {first_line(error)}; {who_may(error)}"
        if getattr(error, "sqlstate", None) == READ_ONLY:
            return Exit.NOT_READY, f"not ready: PostgreSQL: {first_line(error)}; {NO_WRITES}"
        if kind == "psycopg.ProgrammingError" and "connect_timeout" in str(error):
            return Exit.NOT_READY, "not ready: connect_timeout (PGCONNECT_TIMEOUT) takes seconds"
        if kind == "psycopg.ProgrammingError":  # its words would quote parts of the DSN
            return Exit.NOT_READY, (
                "not ready: the DSN cannot be read: postgresql://user:password@host:port/database,"
                " with %XX for special signs"
            )
        known = f"; {again(error)}" if hasattr(error, "__notes__") else ""
        words = first_line(error) if "HINT:" in str(error) else words_of_hosts(str(error))
        return Exit.NOT_READY, f"not ready: PostgreSQL: {words or kind}{known}"
    if kind.startswith("sqlite3."):
        return Exit.NOT_READY, f"not ready: SQLite: {first_line(error)}{hint(error)}"
    if type(error).__name__ == "LaunchFailed":
        return Exit.NOT_READY, f"not ready: no execution can begin here: {error}{hint(error)}"
    if isinstance(error, Unsaid):
        return Exit.NOT_READY, f"standard output: {error.strerror}; it does not hold all of it"
    if isinstance(error, FileNotFoundError) and error.filename is None:  # of os.getcwd
        return Exit.NOT_READY, "not ready: the folder that this was started in is gone"
    if isinstance(error, OSError):
        name = error.filename
        place = f"{Path(name)}: " if isinstance(name, str) else ""
        told = f"{place}{error.strerror or type(error).__name__}"
        return Exit.NOT_READY, f"not ready: {told}{hint(error)}"
    return None


def is_lost(error: BaseException) -> bool:
    """Whether it did not answer, or was held; what it was asked to do may be done or not."""
    return getattr(error, "code", "") == "contended" or any(
        f"{kind.__module__}.{kind.__name__}" in LOST for kind in type(error).__mro__
    )


@contextmanager
def repeatable(key: str | None) -> Iterator[str]:
    """The key of a command, or a new one, which is told when nobody knows whether it counts."""
    said = str(uuid.uuid4()) if key is None else key
    try:
        yield said
    except (Exception, KeyboardInterrupt) as error:
        if key is None and (is_lost(error) or isinstance(error, KeyboardInterrupt)):
            error.add_note(f"with --key {said}")
        raise


def again(error: BaseException) -> str:
    """How a command whose outcome nobody knows is repeated."""
    notes: list[str] = getattr(error, "__notes__", [])
    return " ".join(["the same command again", *notes, "is safe"])


WHO_MAY = (
    "a login may look with `grant ql_reader`, publish and start with ql_admission,"
    " `run` needs ql_scheduler and ql_worker as well, and purge, declare-stopped, worker drain and"
    " undrain, and what changes a trigger ql_operator"
)


def who_may(error: BaseException) -> str:
    """Which group lets a login do what it may not, by the schema that was closed to it."""
    found = re.search(r"for (?:schema|function|view|table) (ql_[a-z]+)", first_line(error))
    group = {"ql_retention": "ql_operator"}.get(found[1], found[1]) if found else ""
    return f"it needs `grant {group} to LOGIN`: {WHO_MAY}" if group in GROUPS else WHO_MAY


def without_secrets(words: str, dsn: str) -> str:
    """The words without any piece of a DSN's password, whatever a driver took it for."""
    found = re.search(r"//[^:/?#]*:(.*)@", dsn) or re.search(r"//[^:/?#@]*:([^/?#]*)", dsn)
    texts = [found[1]] if found and "@" in dsn else []
    texts += re.findall(r"(?:password|passfile|sslpassword)=([^&\s]+)", dsn)
    for text in texts:
        pieces = [text, unquote(text), *re.split(r"[@:/?#&=%\s]", text)]
        for piece in sorted(pieces, key=len, reverse=True):
            if piece:
                words = words.replace(f"{piece}@", "***@")
            if len(piece) > 2:
                words = words.replace(piece, "***")
    return words


def first_line(error: BaseException) -> str:
    """The first line of an error's words, and the way out that SQL gives as its hint."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    hints = [line.partition("HINT:")[2].strip() for line in lines[1:] if "HINT:" in line]
    return ": ".join([lines[0], *hints[:1]])
