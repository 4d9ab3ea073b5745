"""Exit codes of the command line, and how an error becomes one of them."""

import functools
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any, ParamSpec

import click

from qinglong_sql.errors import NotReady, QinglongError
from qinglong_sql.package_fault import PackageFaults

P = ParamSpec("P")


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


def leave(code: Exit) -> None:
    """End the command with an exit code."""
    raise SystemExit(int(code))


def reported(command: Callable[P, Any]) -> Callable[P, Any]:
    """Turn every expected error into one message on standard error and its exit code."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Any:
        try:
            return command(*args, **kwargs)
        except PackageFaults as faults:
            click.echo(str(faults), err=True)
            leave(Exit.BAD_FILE)
        except Refused as refusal:
            click.echo(f"refused: {refusal}", err=True)
            leave(Exit.REFUSED)
        except NotReady as error:
            click.echo(f"not ready: {error}", err=True)
            leave(Exit.NOT_READY)
        except QinglongError as error:
            click.echo(f"refused: {error}", err=True)
            leave(Exit.REFUSED)
        except BrokenPipeError:
            leave(Exit.OK)
        except Exception as error:
            words = unavailable(error)
            if words is None:
                raise
            click.echo(f"not ready: {words}", err=True)
            leave(Exit.NOT_READY)

    return wrapped


def unavailable(error: BaseException) -> str | None:
    """Words for an error of the database or its file itself; None for anything else.

    Never the DSN: it may hold a password.
    """
    kind = f"{type(error).__module__}.{type(error).__name__}"
    if kind.startswith("psycopg.") or kind.startswith("psycopg_pool."):
        return f"PostgreSQL: {first_line(error)}"
    if kind.startswith("sqlite3."):
        return f"SQLite: {first_line(error)}"
    if isinstance(error, OSError):
        name = error.filename
        place = f" {Path(name)}" if isinstance(name, str) else ""
        return f"{error.strerror or type(error).__name__}{place}"
    return None


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
