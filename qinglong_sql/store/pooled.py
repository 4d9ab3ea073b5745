"""The store of a process that serves: every call borrows a connection of one pool, and returns it.

Both lifecycles and the metrics share it (DESIGN §7). The pool is opened and closed by its owner.
"""

import contextlib
import threading
from collections.abc import Iterator

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from qinglong_sql.store import Row
from qinglong_sql.store.postgres import PostgresStore

Pool = ConnectionPool[psycopg.Connection[Row]]
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
) -> dict[str, object]:
    """How connections of a process that serves are made; what the DSN itself says stays.

    within_s: what making one may take; libpq counts whole seconds.
    """
    said = conninfo_to_dict(dsn)
    wanted = {
        **NETWORK,
        "connect_timeout": max(2, int(within_s)),
        "application_name": f"qinglong-{program}",
    }
    options: dict[str, object] = {key: value for key, value in wanted.items() if key not in said}
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
    psycopg.connect(dsn, **options).close()  # type: ignore[arg-type]
    pool: Pool = ConnectionPool(
        dsn,
        min_size=size,  # a server without room for them says so now, and not in the middle of work
        max_size=size,
        kwargs={
            **options,
            "autocommit": True,
            "row_factory": dict_row,
            "prepare_threshold": None,  # see PostgresStore
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
    """See PostgresStore; calls of several threads go on at the same time."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(str(pool.conninfo))
        self._pool = pool
        self._latest = threading.local()

    def close(self) -> None:
        """Take no more calls; the pool is its owner's."""
        self._closed = True

    @contextlib.contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Row]]:
        if self._closed:
            raise RuntimeError("this store is closed")
        self._latest.lost = True  # unless one is got, and is still good afterwards
        connection = self._pool.getconn()
        try:
            yield connection
        finally:
            self._latest.lost = bool(connection.closed)
            self._pool.putconn(connection)

    def _lost(self) -> bool:
        return bool(getattr(self._latest, "lost", False))
