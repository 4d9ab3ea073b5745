"""The store of a process that serves: every call borrows a connection of one pool, and returns it.

Both lifecycles and the metrics share it (DESIGN §7). The pool is opened and closed by its owner.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from qinglong_sql.store.link import LOOK, READ_ONLY, Link, Place, connect, hosts, reach, said
from qinglong_sql.store.postgres import PostgresStore

Pool = ConnectionPool[Link]
TURNS = 4  # of connections at the start: one alone, then those of the pool, three at a time
BORROW_S = 5.0  # nobody keeps a connection longer than one statement
# A host that is gone without a word is noticed in half a minute, not in the kernel's two hours.
NETWORK = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}


def pool_options(
    dsn: str, password: str | None, within_s: float, program: str = "control"
) -> dict[str, Any]:
    """How connections of a process that serves are made; what the DSN itself says stays.

    within_s: what making all of them may take, by whichever host; libpq counts whole seconds. The
    first of several hosts may be gone without a word, and each connection asks it anew.
    """
    asked = conninfo_to_dict(dsn)
    count = hosts(said(dsn))
    wanted = {
        **reach(dsn),
        **NETWORK,
        "connect_timeout": max(2, int(within_s / (1 if count == 1 else count * TURNS))),
        "application_name": f"qinglong-{program}",
    }
    options: dict[str, Any] = {key: value for key, value in wanted.items() if key not in asked}
    if password is not None:
        options["password"] = password
    return options


def open_pool(
    dsn: str,
    *,
    size: int,
    within_s: float,
    password: str | None = None,
    program: str = "control",
    borrow_s: float = BORROW_S,
) -> Pool:
    """A pool with a connection in it. Close it.

    program: as the server's administrator sees it. borrow_s: how long a caller waits for one.

    Raises psycopg.OperationalError in the server's own words (the pool would try again until its
    time is up, and tell of nothing but that), psycopg.ProgrammingError for a DSN that is none.
    """
    options = pool_options(dsn, password, within_s, program)
    connect(dsn, **options).close()
    pool: Pool = ConnectionPool(
        dsn,
        connection_class=Link,
        min_size=size,  # a server without room for them says so now, and not in the middle of work
        max_size=size,
        kwargs={
            **options,
            "autocommit": True,
            "row_factory": dict_row,
        },
        open=True,
        name=program,
        timeout=borrow_s,
        reconnect_timeout=within_s,
    )
    try:
        pool.wait(timeout=within_s)
    except BaseException:
        pool.close(timeout=0)
        raise
    return pool


class PooledStore(PostgresStore):
    """See PostgresStore; calls of several threads go on at the same time.

    Once a server takes no writes, or is from before a promotion that was seen, the call ends with
    SQLSTATE 25006, and no connection from before is used any more.
    """

    _tries = 1  # who serves hears of it and does as it must

    def __init__(self, pool: Pool) -> None:
        super().__init__(str(pool.conninfo))
        self._pool = pool
        self._latest = threading.local()
        self._place = Place()
        self._since_s = 0.0

    def close(self) -> None:
        """Take no more calls; the pool is its owner's."""
        self._closed = True

    def clock(self) -> int:
        """The server's time in milliseconds since 1970; raises as a write would, on a standby."""
        with self._typed():
            found = self._rows(sql.SQL(LOOK), [])[0]
            try:
                if self._place.meet(found):
                    self._since_s = time.monotonic()
            except psycopg.Error:
                self._since_s = time.monotonic()
                raise
            return int(found["now_ms"])

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Link]:
        if self._closed:
            raise RuntimeError("this store is closed")
        self._latest.lost = True  # unless one is got, and is still good afterwards
        connection = self._borrowed()
        try:
            if not connection.seen:
                self._see(connection)
            yield connection
        except psycopg.Error as error:
            if error.sqlstate == READ_ONLY:
                self._since_s = time.monotonic()
                connection.close()
            raise
        finally:
            self._latest.lost = bool(connection.closed)
            self._pool.putconn(connection)

    def _borrowed(self) -> Link:
        """A connection that is not to be left."""
        end = time.monotonic() + self._pool.timeout
        while True:
            connection = self._pool.getconn(timeout=max(0.0, end - time.monotonic()))
            if connection.born > self._since_s:
                return connection
            connection.close()
            self._pool.putconn(connection)

    def _see(self, connection: Link) -> None:
        """Know its server before it is asked for anything: a DSN may lead to one from before."""
        began_s = time.monotonic()
        if connection.meet(self._place):
            self._since_s = began_s
        connection.seen = True

    def _lost(self) -> bool:
        return bool(getattr(self._latest, "lost", False))
