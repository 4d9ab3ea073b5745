"""Every connection to PostgreSQL is made here: to which of several hosts, and what it must hear.

High availability is PostgreSQL's own. Ours is to ask the node that takes writes, to leave one that
takes none any more or is from before a failover, and to take nothing for done that PostgreSQL
itself does not answer for (DESIGN §7, DOMAIN §8).
"""

import os
import time
from dataclasses import dataclass
from typing import Any, Final, Self

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PGconn
from psycopg.rows import dict_row

from qinglong_sql.store.last_host import Hosts, several

READ_ONLY: Final = "25006"
PLAN_CHANGED: Final = "0A000"  # a migration changed a result under a prepared statement
REPLAYED: Final = "existing"
UNANSWERED: Final = frozenset({"", "08", "57"})  # network, connection, intervention: done or not
HOST_S: Final = 5  # for one of several hosts, where nobody says: a dead one must not take minutes
WAITS_FOR_STANDBY: Final = "SyncRepWaitForLSN"  # PostgreSQL's function; its words are translated
# One round trip: the time, whether it takes writes, and how many promotions its history has.
LOOK: Final = """
  select floor(extract(epoch from clock_timestamp()) * 1000)::bigint as now_ms,
    pg_is_in_recovery() as in_recovery,
    current_setting('transaction_read_only') = 'on' as read_only,
    case when not pg_is_in_recovery() then
      ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int
    end as timeline
"""
# A login sees what its own sessions wait for; behind a pooler none of them is known as ours.
UNHEARD: Final = """
  select exists (
    select from pg_catalog.pg_stat_activity as a
    where a.datname = current_database() and a.usename = session_user and a.wait_event = 'SyncRep'
  )
"""
# A commit that waits for the standbys as every other: what was committed before it is there then.
BARRIER: Final = """
  select case when not pg_is_in_recovery() then
    pg_logical_emit_message(true, 'qinglong_sql', '')::text
  end as lsn
"""


class NotPrimary(psycopg.errors.ReadOnlySqlTransaction):
    """The server of a connection is not, or not any more, the one that decides. SQLSTATE 25006."""


IN_DOUBT: Final = (
    "the wait for the synchronous standby was cancelled: it is committed here, and lost if this"
    " server fails before a standby has it"
)


class InDoubt(psycopg.OperationalError):
    """Committed on one node alone, whose standbys have not answered for it: as if unanswered."""

    def __init__(self) -> None:
        super().__init__(IN_DOUBT)


class Interrupted(KeyboardInterrupt):
    """The same, for whoever interrupted the wait."""

    def __init__(self) -> None:
        super().__init__(IN_DOUBT)


class Link(psycopg.Connection[Any]):
    """A connection that hears when its server stops waiting for the standbys of a commit."""

    def __init__(self, *words: Any, **more: Any) -> None:
        super().__init__(*words, **more)
        self.born = time.monotonic()
        self.seen = False
        self._named: Hosts | None = None
        self._doubt = _Doubt()
        self.add_notice_handler(self._doubt.hear)

    @classmethod
    def connect(cls, conninfo: str = "", **options: Any) -> Self:
        """As psycopg's, in UTF-8 whatever the environment or the role's settings say.

        Of several hosts it asks the one first that answered last. Nothing is prepared unless the
        caller says so: a pgbouncer before 1.21 breaks it.
        """
        options = {"prepare_threshold": None, **options, "client_encoding": "UTF8"}
        named = several(conninfo, options)
        if named is None:
            return super().connect(conninfo, **options)
        made = super().connect(conninfo, **{**options, **named.in_order()})
        named.answered(made)
        made._named = named
        return made

    def meet(self, place: "Place") -> bool:
        """Look who is at the other end: see Place.meet. A host that is refused is asked last."""
        with self.cursor(row_factory=dict_row) as cursor:
            found = cursor.execute(LOOK).fetchone()
        assert found is not None
        try:
            return place.meet(found)
        except NotPrimary:
            if self._named:
                self._named.refused(self)
            raise

    @property
    def in_doubt(self) -> bool:
        """Whether a commit of it was not answered for."""
        return self._doubt.heard


class _Doubt:
    """Apart from the connection, which would else hold itself."""

    heard = False

    def hear(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.source_function == WAITS_FOR_STANDBY:
            self.heard = True


@dataclass(slots=True)
class Place:
    """The newest primary that a process has met. Each promotion begins a timeline, so it grows."""

    timeline: int = 0

    def meet(self, found: dict[str, Any]) -> bool:
        """Whether this row of LOOK is of a newer one, so that older connections are to be left.

        Raises NotPrimary for a server without writes, or from before a promotion that was seen.
        """
        if found["in_recovery"]:
            raise NotPrimary("the server is in recovery, a standby")
        if found["read_only"]:
            raise NotPrimary("sessions are read-only here (default_transaction_read_only)")
        if found["timeline"] < self.timeline:
            raise NotPrimary(
                f"the server is on timeline {found['timeline']}, from before the promotion to"
                f" {self.timeline}"
            )
        newer = 0 < self.timeline < int(found["timeline"])
        self.timeline = int(found["timeline"])
        return newer


@dataclass(frozen=True, slots=True)
class Standing:
    """Which server answered, and whether it takes writes."""

    host: str
    port: int
    in_recovery: bool
    read_only: bool

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def takes_writes(self) -> bool:
        return not (self.in_recovery or self.read_only)

    @property
    def lack(self) -> str:
        """Why it takes no writes, in words; empty when it does."""
        if self.in_recovery:
            return "a standby: it takes no writes"
        return "read-only: it takes no writes" if self.read_only else ""


def look(connection: Link) -> Standing:
    """Who is at the other end: one query."""
    with connection.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(LOOK).fetchone() or {}
    at = connection.info
    return Standing(at.host, at.port, found["in_recovery"], found["read_only"])


def connect(dsn: str, kind: type[Link] = Link, **options: Any) -> Link:
    """A connection to the node that takes writes, when the DSN leads to several.

    options: psycopg's; they go before what is found here. Raises psycopg.OperationalError, and
    psycopg.ProgrammingError for a DSN that is none.
    """
    return kind.connect(dsn, **{**reach(dsn), **options})


def ask(connection: Link, query: sql.SQL | sql.Composed, values: list[object]) -> list[Any]:
    """The rows of one statement. A connection that is not to be used again is closed.

    Raises psycopg.Error, InDoubt when it is committed and no standby answers for it, Interrupted
    when it was interrupted then.
    """
    try:
        with connection.cursor() as cursor:
            rows = cursor.execute(query, values).fetchall()
    except psycopg.Error as error:
        if error.sqlstate in (PLAN_CHANGED, READ_ONLY):
            connection.close()
        raise
    except KeyboardInterrupt:
        if connection.in_doubt:
            raise Interrupted from None
        raise
    if connection.in_doubt:
        connection.close()
        raise InDoubt
    return rows


def confirm(dsn: str) -> None:
    """Wait until the standbys have all that is committed, as a commit does. Raises InDoubt."""
    with connect(dsn, autocommit=True) as connection:
        connection.execute(BARRIER)
        if connection.in_doubt:
            raise InDoubt


def waits_for_standby(dsn: str) -> bool:
    """Whether a commit of this login waits for a standby now; not, when nobody answers in time."""
    try:
        with connect(dsn, autocommit=True, connect_timeout=HOST_S) as connection:
            return connection.execute(UNHEARD).fetchone() == (True,)
    except psycopg.Error:
        return False


def reach(dsn: str) -> dict[str, Any]:
    """What is added to a DSN with several hosts, whether it, a service file or PGHOST names them.

    `target_session_attrs` is read-write unless the user says another.
    Empty for one host. Raises psycopg.ProgrammingError for a DSN that is none.
    """
    asked = conninfo_to_dict(dsn)
    found = said(dsn)
    if hosts(found) < 2:
        return {}
    added: dict[str, Any] = {}
    for name in ("host", "hostaddr", "port"):
        # psycopg tries each host in its time, but knows of none that only a service file names
        if "service" in found and name in found and name not in asked:
            added[name] = found[name]
    if not wanted(dsn, found):
        added["target_session_attrs"] = "read-write"
    if "connect_timeout" not in found:
        added["connect_timeout"] = HOST_S
    return added


def wanted(dsn: str, found: dict[str, str]) -> str:
    """What the user says of `target_session_attrs`, or nothing; found: what is `said`.

    `any` counts as said in the DSN or as PGTARGETSESSIONATTRS, for in a service file it is not told
    from libpq's default.
    """
    asked = conninfo_to_dict(dsn).get("target_session_attrs")
    chosen = asked or os.environ.get("PGTARGETSESSIONATTRS")
    default = found.get("target_session_attrs", "any")
    return str(chosen or ("" if default == "any" else default))


def said(dsn: str) -> dict[str, str]:
    """Every parameter as libpq has it: of the DSN, else the service file, the environment, its own.

    Nobody is asked: libpq refuses the value of sslmode before it connects. Not to be shown.
    """
    probe = PGconn.connect_start(make_conninfo(dsn, sslmode="nowhere").encode())
    try:
        return {one.keyword.decode(): one.val.decode() for one in probe.info if one.val}
    finally:
        probe.finish()


def hosts(found: dict[str, str]) -> int:
    """How many hosts parameters name."""
    return 1 + max(found.get(name, "").count(",") for name in ("host", "hostaddr"))
