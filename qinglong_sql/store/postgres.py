"""The store on PostgreSQL: calls steps by name and reads views; nothing else here speaks SQL.

One connection in autocommit: a step is a function, and a function is a transaction (DESIGN §6). All
works behind pgbouncer in transaction mode: no LISTEN, no session lock, no server-side cursor.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from qinglong_sql.canonical import storable
from qinglong_sql.errors import Malformed, NotReady, QinglongError, error_of
from qinglong_sql.host_words import words_of_hosts
from qinglong_sql.store import VIEWS, Row, select_text
from qinglong_sql.store import link as links
from qinglong_sql.store.link import READ_ONLY, Link
from qinglong_sql.store.steps import STEPS, Contended, check_params, lacking

if TYPE_CHECKING:
    from qinglong_sql.stage import Stage

Composable = sql.SQL | sql.Composed

ISOLATION_WAY = (
    ": reset default_transaction_isolation of the database, of the role or in postgresql.conf"
)
CONTENTION = frozenset({"40001", "40P01", "55P03"})
# connection, resources, shutdown, input and output: nothing that one run is the cause of
NOT_A_RUNS = frozenset({"08", "53", "58"})

_CLOCK = sql.SQL("select floor(extract(epoch from clock_timestamp()) * 1000)::bigint as now_ms")
_COLUMNS = sql.SQL("""
  select a.attname from pg_catalog.pg_attribute as a
  where a.attrelid = %s::regclass and a.attnum > 0 and not a.attisdropped
  order by a.attnum
""")
_SIGNATURES = """
  select n.nspname as schema, p.proname as name, p.proargnames[1:p.pronargs] as params
  from pg_catalog.pg_proc as p
  join pg_catalog.pg_namespace as n on n.oid = p.pronamespace
  where n.nspname ~ '^ql_'
"""
_REVISION = "select a.version_num as revision from ql_migration.alembic_version as a"
_LACKING = """
  select g.name
  from unnest(%s::text[]) with ordinality as g (name, place)
  where not case
    when g.name = 'ql_reader' then
      has_schema_privilege('ql', 'usage') and has_table_privilege('ql.run_state', 'select')
    else has_schema_privilege(g.name, 'usage')
  end
  order by g.place
"""
_CALLS = {
    step.name: sql.SQL("select * from {}.{}({})").format(
        sql.Identifier(step.schema),
        sql.Identifier(step.name),
        sql.SQL(", ").join(
            sql.SQL("{} => %s").format(sql.Identifier(param)) for param in step.params
        ),
    )
    for step in STEPS.values()
}


def open_postgres_store(
    dsn: str, *, prepare_threshold: int | None = None, kind: "type[PostgresStore] | None" = None
) -> "PostgresStore":
    """A store whose database was seen to have every step. Raises NotReady (QL503)."""
    store = (kind or PostgresStore)(dsn, prepare_threshold=prepare_threshold)
    try:
        store.check()
    except BaseException:
        store.close()
        raise
    return store


class PostgresStore:
    """See qinglong_sql.store.Store. May be shared by threads: calls take turns.

    prepare_threshold: psycopg's. None, or a pgbouncer before 1.21 breaks what is prepared; steps
    would gain nothing by it, for a function keeps its own plans. A lost connection
    ends the call with psycopg.OperationalError; the next call makes a new one. A server that takes
    no writes is left, and asked for once more by the DSN: nothing was done. `contended` counts
    what was given up because someone else held it, in pages.
    """

    engine: Literal["sqlite", "postgres"] = "postgres"
    _tries = 2

    def __init__(self, dsn: str, *, prepare_threshold: int | None = None) -> None:
        self.dsn = dsn
        self.contended = 0
        self._prepare_threshold = prepare_threshold
        self._turn = threading.RLock()
        self._closed = False
        self._owes = False  # an answer that was lost may be of a commit that no standby has
        self._known: dict[str, list[str]] = {}
        self._connection: Link | None = None

    def call(self, step: str, /, **params: object) -> list[Row]:
        """Call one step, committed on return.

        Raises KeyError for an unknown step, TypeError when its parameters are others, a
        QinglongError by code, Contended, psycopg.OperationalError when the connection is lost or
        no standby answers for the commit (then whether it was committed is unknown; the step is
        repeated, DOMAIN §4).
        """
        check_params(step, params)
        with self._typed():
            rows = self._rows(_CALLS[step], [params[name] for name in STEPS[step].params])
            if self._owes or any(row.get("outcome") == links.REPLAYED for row in rows):
                self._owes = False  # a replay writes nothing, so it waits for no standby
                self._rows(sql.SQL(links.BARRIER), [])
            return rows

    def page(self, stage: "Stage", after: tuple[int, str], limit: int) -> list[Row]:
        """One page of a stage: rows run_id, due_at_ms, outcome, effects in key order.

        Stages with a page function do it in one transaction; when that raises, and for all other
        stages, one run a transaction. What raises for one run alone goes to its fault (DESIGN §6).
        """
        if stage.page_step is not None:
            try:
                return self.call(stage.page_step, **_keys(after, limit))
            except (QinglongError, psycopg.Error) as error:
                if self.ends_cycle(error):
                    raise
                # else it was rolled back, and its runs are walked one by one
        due = self.call("due_page", p_stage=stage.agenda, **_keys(after, limit))
        return [
            {"run_id": one["run_id"], "due_at_ms": one["due_at_ms"], **self._one(stage, one)}
            for one in due
        ]

    def read(self, view: str, /, *, order: str = "", limit: int = 0, **equals: object) -> list[Row]:
        """Rows of a reading view whose columns equal `equals`; None is null. limit 0 is all.

        Raises KeyError for a view, a column or an order that is none.
        """
        if view not in VIEWS:
            raise KeyError(view)
        where, values = select_text(view, self._columns(view), order, limit, equals)
        query = sql.SQL("select * from ql.{}").format(sql.Identifier(view))
        text = sql.SQL(where.replace("{}", "%s"))  # names were checked against the view's own
        with self._typed():
            return self._rows(query + text, values)

    def clock(self) -> int:
        """The server's time, in milliseconds since 1970."""
        with self._typed():
            return int(self._rows(_CLOCK, [])[0]["now_ms"])

    def standing(self) -> links.Standing:
        """Which server answers, and whether it takes writes."""
        with self._connected() as connection:
            return links.look(connection)

    def ends_cycle(self, error: Exception) -> bool:
        """Whether an error is the server's or the connection's, and no candidate's."""
        if not isinstance(error, psycopg.Error):
            return isinstance(error, NotReady) or not isinstance(error, QinglongError)
        code = error.sqlstate or ""
        return self._lost() or code[:2] in NOT_A_RUNS or code == READ_ONLY

    def close(self) -> None:
        """Let the connection go; a closed store raises RuntimeError."""
        with self._turn:
            self._closed = True
            self._hang_up()

    def check(self) -> None:
        """See that every step is there with its parameters. Raises NotReady (QL503)."""
        try:
            found = {
                (row["schema"], row["name"]): row["params"]
                for row in self._rows(sql.SQL(_SIGNATURES), [])
            }
        except psycopg.OperationalError as error:
            raise NotReady(f"no connection to PostgreSQL: {words_of_hosts(str(error))}") from error
        if words := lacking(found):
            raise NotReady(f"this database{self._stamp()} {words}")

    def _stamp(self) -> str:
        """Words for the revision where the database stands; nothing when it does not say."""
        try:
            rows = self._rows(sql.SQL(_REVISION), [])
        except psycopg.Error:
            return ""
        return f" stands at revision {rows[0]['revision']} and" if rows else ""

    def lacks(self, groups: Sequence[str]) -> list[str]:
        """Those of the groups of DESIGN §8 whose rights this login does not have."""
        return [row["name"] for row in self._rows(sql.SQL(_LACKING), [list(groups)])]

    def _one(self, stage: "Stage", candidate: Row) -> Row:
        """One run in its own transaction: its outcome, or `contended`, or `faulted`."""
        run_id = candidate["run_id"]
        try:
            row = self.call(stage.run_step or "converge_cancellation", p_run_id=run_id)[0]
        except Contended:
            self.contended += 1
            return _outcome("contended")
        except (QinglongError, psycopg.Error) as error:
            if self.ends_cycle(error):
                raise
            with contextlib.suppress(Contended):
                said = storable(str(error))
                self.call("record_fault", p_run_id=run_id, p_stage=stage.agenda, p_error=said)
            return _outcome("faulted")
        if row["outcome"] == "contended":
            self.contended += 1
        return _outcome(**{key: value for key, value in row.items() if key != "run_id"})

    def _columns(self, view: str) -> list[str]:
        if view not in self._known:
            with self._typed():  # to plan a view, as `limit 0` does, may cost more than its rows
                self._known[view] = [row["attname"] for row in self._rows(_COLUMNS, [f"ql.{view}"])]
        return self._known[view]

    def _rows(self, query: Composable, values: list[object]) -> list[Row]:
        for left in reversed(range(self._tries)):
            try:
                return self._asked(query, values)
            except psycopg.Error as error:
                self._owes = self._owes or (error.sqlstate or "")[:2] in links.UNANSWERED
                if error.sqlstate != READ_ONLY or not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _asked(self, query: Composable, values: list[object]) -> list[Row]:
        with self._connected() as connection:
            return links.ask(connection, query, values)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Link]:
        """The connection for one statement, which is a transaction."""
        with self._turn:
            yield self._open()

    def _lost(self) -> bool:
        """Whether the statement of this thread that raised just now has cost its connection."""
        return self._connection is None or self._connection.closed

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> Link:
        if self._closed:
            raise RuntimeError("this store is closed")
        if self._connection is None or self._connection.closed:
            self._connection = links.connect(
                self.dsn,
                autocommit=True,
                row_factory=dict_row,
                prepare_threshold=self._prepare_threshold,
            )
        return self._connection

    @contextlib.contextmanager
    def _typed(self) -> Iterator[None]:
        """Turn what SQL raises by code into our errors; leave what is the connection's own."""
        try:
            yield
        except psycopg.Error as error:
            code = error.sqlstate or ""
            message = error.diag.message_primary or str(error)
            if code.startswith("QL"):
                way = ISOLATION_WAY * message.startswith("isolation is ")
                raise error_of(code, f"{message}{way}") from error
            if code in CONTENTION:
                raise Contended(message) from error
            if isinstance(error, psycopg.DataError):
                raise Malformed("an argument is not the JSON or text that it should be") from error
            raise
        except UnicodeEncodeError as error:
            raise Malformed("no database would store this: a lone surrogate") from error


def _keys(after: tuple[int, str], limit: int) -> dict[str, object]:
    return {"p_after_due_at_ms": after[0], "p_after_run_id": after[1], "p_limit": limit}


def _outcome(
    outcome: str, effects: int = 0, settled_attempts: int = 0, blocked_count: int = 0
) -> Row:
    return {
        "outcome": outcome,
        "effects": effects,
        "settled_attempts": settled_attempts,
        "blocked_count": blocked_count,
    }
