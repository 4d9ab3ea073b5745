"""The way of a worker to PostgreSQL with a login of its own, a member of ql_worker (DESIGN §8).

One connection, the steps of ql_worker, and a bound on everything that waits: a server that hangs,
or a network that forgets packets, must not keep a worker from its other executions.
"""

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from qinglong_sql.errors import Malformed, NotReady
from qinglong_sql.port import Away, Shut, only_worker_steps, within_s
from qinglong_sql.store import Row
from qinglong_sql.store.postgres import READ_ONLY, PostgresStore

LOOK_S = 0.1
NOT_ALLOWED = "42501"
NO_SUCH = ("42883", "3F000")  # function, schema
NETWORK = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
T = TypeVar("T")


class Late(psycopg.OperationalError):
    """No answer within the bound."""


class PostgresPort:
    """See qinglong_sql.port.Port. Not for several threads.

    Raises ValueError for a DSN that is none; its words quote nothing of it.
    """

    def __init__(self, dsn: str, *, name: str, lease_ms: int, password: str | None = None) -> None:
        self._store = _Store(dsn, name, lease_ms, password)

    def call(self, step: str, /, **params: object) -> list[Row]:
        """Call one step of ql_worker, committed on return.

        Raises KeyError for any other step, Away when no answer came, Shut for a login without the
        right, NotReady (QL503) for a database without the step or one that takes no writes, and
        what the step refuses.
        """
        only_worker_steps(step)
        try:
            return self._store.call(step, **params)
        except psycopg.Error as error:
            raise _told(error, step) from error

    def close(self) -> None:
        """Let the connection go. May be repeated."""
        self._store.close()


class _Store(PostgresStore):
    def __init__(self, dsn: str, name: str, lease_ms: int, password: str | None) -> None:
        super().__init__(dsn)
        connect_s, self._answer_s = within_s(lease_ms)
        try:
            said = conninfo_to_dict(dsn)
        except psycopg.ProgrammingError:
            raise ValueError("the DSN cannot be read") from None
        wanted: dict[str, Any] = {
            **NETWORK,
            "tcp_user_timeout": int(self._answer_s * 1000),
            "connect_timeout": max(2, int(connect_s)),  # libpq counts whole seconds, from two
            "application_name": f"qinglong-worker {name}",
        }
        self._options = {key: value for key, value in wanted.items() if key not in said}
        if password is not None:
            self._options["password"] = password

    def _open(self) -> psycopg.Connection[Row]:
        if self._closed:
            raise RuntimeError("this port is closed")
        if self._connection is None or self._connection.closed:
            self._connection = _Bounded.connect(
                self.dsn,
                autocommit=True,
                row_factory=dict_row,
                prepare_threshold=None,
                **self._options,
            )
            self._connection.within_s = self._answer_s
        return self._connection


class _Bounded(psycopg.Connection[Row]):
    """A connection that is closed when one statement has no answer in time."""

    within_s = 0.0  # none, while it is made: connect_timeout is for that

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        if not self.within_s:
            return super().wait(gen, *args, **options)
        end = time.monotonic() + self.within_s
        try:
            return super().wait(_until(gen, end), interval=LOOK_S)
        except Late:
            self.close()  # what it says later would be taken for the next answer
            raise


def _until(gen: Generator[Any, Any, T], end: float) -> Generator[Any, Any, T]:
    """The same, and Late when it is not over by then; psycopg looks in every LOOK_S."""
    said = None
    while True:
        try:
            wanted = gen.send(said)
        except StopIteration as over:
            result: T = over.value
            return result
        if time.monotonic() >= end:
            gen.close()
            raise Late("no answer in time")
        said = yield wanted


def _told(error: psycopg.Error, step: str) -> Exception:
    """What a worker has to know of an error, without what the server quotes of a statement."""
    code = error.sqlstate or ""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if code == NOT_ALLOWED:
        return Shut("this login may not do a worker's work: `grant ql_worker to LOGIN`")
    if code in NO_SUCH:
        return NotReady(f"this database has no ql_worker.{step}: run `qinglong-sql migrate` there")
    if code == READ_ONLY:
        return NotReady("this database takes no writes: it is a standby, or was made read-only")
    if isinstance(error, psycopg.ProgrammingError) and not code:
        return Malformed("the DSN cannot be read")  # its words would quote parts of it
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return Away(f"PostgreSQL: {lines[0]}")
    return error
