"""What a control process is really put together from; tests put others in its place."""

from qinglong_sql.clock_watch import ClockWatch
from qinglong_sql.control import Application, Parts
from qinglong_sql.control_log import Log, speak_through
from qinglong_sql.health import Health
from qinglong_sql.ingress_settings import IngressSettings
from qinglong_sql.metrics import Metrics
from qinglong_sql.readiness import CONTROL_GROUPS, assert_ready
from qinglong_sql.settings import ControlSettings
from qinglong_sql.store.pooled import Pool, PooledStore, open_pool
from qinglong_sql.zones import assert_pinned


def real_parts(
    settings: ControlSettings, log: Log, ingress: IngressSettings | None = None
) -> Parts:
    """The parts of a process that serves; nothing is started. Raises SettingFault.

    With settings of an ingress, the workers' door is its application.
    """
    speak_through(log)
    password = settings.password()

    def pool() -> Pool:
        return open_pool(
            settings.dsn,
            size=settings.pool_size,
            within_s=settings.boot_timeout / 1000,
            password=password,
        )

    meter = Metrics()
    return Parts(
        listener=lambda ready, text: Health(
            settings.listen, ready, text, on_error=lambda words: log.trouble("listener", words)
        ),
        pool=pool,
        readiness=readiness,
        store=PooledStore,
        meter=meter,
        watch=lambda store: ClockWatch(wall=store.clock),
        applications=[] if ingress is None else [_door(ingress, log, meter)],
    )


def readiness(pool: Pool) -> str:
    """See that time zones and database are as shipped, and this login's rights as they should be.

    Raises NotReady (QL503) with all that is wrong.
    """
    assert_pinned()
    with pool.connection() as connection:
        found = assert_ready(connection, CONTROL_GROUPS)
    return f"PostgreSQL {found.server}; {found}"


def _door(settings: IngressSettings, log: Log, meter: Metrics) -> Application:
    from qinglong_sql.ingress import Ingress  # only who has one needs what it is made with

    return Ingress(settings, log, meter.registry)
