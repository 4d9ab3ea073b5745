"""What SQLite raises, as our errors; what is the file's own trouble stays sqlite3.Error."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qinglong_sql.errors import Conflict, Malformed, NotReady, QinglongError, error_of
from qinglong_sql.store.steps import Contended

DUPLICATES = ("SQLITE_CONSTRAINT_PRIMARYKEY", "SQLITE_CONSTRAINT_UNIQUE")
CHECKS = ("SQLITE_CONSTRAINT_CHECK", "SQLITE_CONSTRAINT_NOTNULL", "SQLITE_CONSTRAINT_DATATYPE")
# what is the file's or the machine's trouble, and no run's
NOT_A_RUNS = (
    "SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CORRUPT",
    "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_NOMEM", "SQLITE_NOTADB", "SQLITE_INTERRUPT",
    "SQLITE_PROTOCOL", "SQLITE_PERM", "SQLITE_AUTH", "SQLITE_SCHEMA",
)  # fmt: skip


@contextmanager
def typed(check_code: str = "QL500") -> Iterator[None]:
    """Turn what SQLite raises into our errors; leave what is the file's own."""
    try:
        yield
    except (UnicodeEncodeError, OverflowError) as error:
        raise Malformed(f"no database would store this: {error}") from error
    except sqlite3.Error as error:
        name, message = name_of(error), str(error)
        if message[:2] == "QL" and message[2:5].isdigit():
            raise error_of(message[:5], message[6:]) from error
        if name in DUPLICATES:
            raise Conflict(message) from error
        if name in CHECKS:
            raise error_of(check_code, message) from error
        if name.startswith("SQLITE_CONSTRAINT"):
            raise error_of("QL500", message) from error
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise Contended(message) from error
        if "user-defined function raised" in message or "malformed JSON" in message:
            raise Malformed("an argument is not the JSON or text that it should be") from error
        raise


def name_of(error: sqlite3.Error) -> str:
    """SQLite's own name of an error, such as SQLITE_BUSY; empty when Python raised it."""
    return getattr(error, "sqlite_errorname", None) or ""


def ends_cycle(error: Exception) -> bool:
    """Whether an error is the file's or the machine's, and no run's."""
    if isinstance(error, QinglongError):
        return isinstance(error, NotReady | Contended)
    if not isinstance(error, sqlite3.Error) or isinstance(error, sqlite3.ProgrammingError):
        return True
    return name_of(error).startswith(NOT_A_RUNS)


def absent(path: Path) -> NotReady:
    """There is no file, as for cron, which starts in another folder: no way out makes one there."""
    doubt = "path" if path.is_absolute() else "folder"
    return NotReady(
        f"no database {path.absolute()}; is this the right {doubt}? else"
        " --dsn sqlite:////absolute/path or QINGLONG_DSN; a new one: qinglong-sql run FILE, or"
        " migrate"
    )
