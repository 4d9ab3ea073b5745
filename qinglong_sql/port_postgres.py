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

from qinglong_sql.errors import WAY_TO_PRIMARY, Malformed, NotReady
from qinglong_sql.host_words import words_of_hosts
from qinglong_sql.port import Away, Shut, only_worker_steps, within_s
from qinglong_sql.store import Row
from qinglong_sql.store.link import READ_ONLY, Link, Place, connect, hosts, said
from qinglong_sql.store.postgres import PostgresStore

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
        self._served = False

    def call(self, step: str, /, **params: object) -> list[Row]:
        """Call one step of ql_worker, committed on return.

        Raises KeyError for any other step, Away when no answer came, Shut for a login without the
        right, NotReady (QL503) for a database without the step or one that never took a write, and
        what the step refuses. One that takes none any more is away: another is to come.
        """
        only_worker_steps(step)
        try:
            rows = self._store.call(step, **params)
        except psycopg.Error as error:
            if error.sqlstate == READ_ONLY and self._served:
                raise Away(f"PostgreSQL takes no writes: {_first_line(error)}") from error
            raise _told(error, step) from error
        self._served = True
        return rows

    def close(self) -> None:
        """Let the connection go. May be repeated."""
        self._store.close()


class _Store(PostgresStore):
    def __init__(self, dsn: str, name: str, lease_ms: int, password: str | None) -> None:
        super().__init__(dsn)
        connect_s, self._answer_s = within_s(lease_ms)
        try:
            asked, found = conninfo_to_dict(dsn), said(dsn)
        except psycopg.ProgrammingError:
            raise ValueError("the DSN cannot be read") from None
        self._place = Place()
        self._owes = True  # an earlier process of this worker may have had no answer
        wanted: dict[str, Any] = {
            **NETWORK,
            "tcp_user_timeout": int(self._answer_s * 1000),
            # libpq counts whole seconds, from two, and for each host
            "connect_timeout": max(2, int(connect_s / hosts(found))),
            "application_name": f"qinglong-worker {name}",
        }
        self._options = {key: value for key, value in wanted.items() if key not in asked}
        if password is not None:
            self._options["password"] = password

    def _open(self) -> Link:
        if self._closed:
            raise RuntimeError("this port is closed")
        if self._connection is None or self._connection.closed:
            made = connect(
                self.dsn,
                _Bounded,
                autocommit=True,
                row_factory=dict_row,
                **self._options,
            )
            assert isinstance(made, _Bounded)
            made.within_s = self._answer_s
            try:
                made.meet(self._place)
            except BaseException:
                made.close()
                raise
            self._connection = made
        return self._connection


class _Bounded(Link):
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
    if code == NOT_ALLOWED:
        return Shut("this login may not do a worker's work: `grant ql_worker to LOGIN`")
    if code in NO_SUCH:
        return NotReady(f"this database has no ql_worker.{step}: run `qinglong-sql migrate` there")
    if code == READ_ONLY:
        words = f"this database takes no writes: {_first_line(error)}"
        return NotReady(f"{words}; {WAY_TO_PRIMARY}")
    if isinstance(error, psycopg.ProgrammingError) and not code:
        return Malformed("the DSN cannot be read")  # its words would quote parts of it
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return Away(f"PostgreSQL: {_first_line(error)}")
    return error


def _first_line(error: psycopg.Error) -> str:
    return words_of_hosts(str(error)) or type(error).__name__
