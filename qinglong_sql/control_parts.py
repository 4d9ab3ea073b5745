"""What a control process is really put together from; tests put others in its place."""

import logging
from typing import Any, Final

from psycopg.conninfo import conninfo_to_dict

from qinglong_sql.clock_watch import ClockWatch
from qinglong_sql.control import Parts
from qinglong_sql.control_log import Log
from qinglong_sql.health import Health
from qinglong_sql.metrics import Metrics
from qinglong_sql.readiness import CONTROL_GROUPS, assert_ready
from qinglong_sql.settings import ControlSettings
from qinglong_sql.store.pooled import Pool, PooledStore, open_pool
from qinglong_sql.zones import assert_pinned

PLACE: Final = ("host", "hostaddr", "port", "dbname", "user", "service")


def real_parts(settings: ControlSettings, log: Log) -> Parts:
    """The parts of a process that serves; nothing is started. Raises SettingFault."""
    _speak_through(log)
    password = settings.password()

    def pool() -> Pool:
        return open_pool(
            settings.dsn,
            size=settings.pool_size,
            within_s=settings.boot_timeout / 1000,
            password=password,
        )

    return Parts(
        listener=lambda ready, text: Health(
            settings.listen, ready, text, on_error=lambda words: log.trouble("listener", words)
        ),
        pool=pool,
        readiness=readiness,
        store=PooledStore,
        meter=Metrics(),
        watch=lambda store: ClockWatch(wall=store.clock),
    )


def readiness(pool: Pool) -> str:
    """See that time zones and database are as shipped, and this login's rights as they should be.

    Raises NotReady (QL503) with all that is wrong.
    """
    assert_pinned()
    with pool.connection() as connection:
        found = assert_ready(connection, CONTROL_GROUPS)
    return f"PostgreSQL {found.server}; {found}"


def place_of(dsn: str) -> str:
    """Which database a DSN means, without what is secret."""
    said = conninfo_to_dict(dsn)
    return " ".join(f"{name}={said[name]}" for name in PLACE if said.get(name))


def _speak_through(log: Log) -> None:
    """What the pool tells of its own accord is for who looks closely."""

    class Forward(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            log.say("debug", "pool", record.getMessage())

    for name in ("psycopg", "psycopg.pool"):
        logger: Any = logging.getLogger(name)
        logger.handlers, logger.propagate = [Forward()], False
