"""What a PostgreSQL catalog says of our schemas and roles, in words that two databases can share.

Read by whoever is connected (pg_catalog is readable by all), in one transaction and five round
trips, behind pgbouncer too. Texts come as SHA-256. What the server *prints* (views, constraints,
indexes, defaults) is apart from what it *stores*, since majors print one definition differently.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from qinglong_sql.errors import NotReady
from qinglong_sql.migrate import VERSION_SCHEMA
from qinglong_sql.store.catalog_text import OBJECTS

# a lock that a migration holds, and an object that was dropped between two looks at it
MEANWHILE = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.InternalError_,
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedObject,
)
Facts = dict[str, dict[str, str]]  # section `is`, `may` or `printed`: {word: value}


@dataclass(frozen=True, slots=True)
class Standing:
    """The server as this session sees it."""

    version: int  # server_version_num
    in_recovery: bool
    read_only: bool
    database: str
    login: str
    shows_revision: bool  # whether this login may read it
    encoding: str  # of the database
    isolation: str  # of a transaction that says none

    @property
    def major(self) -> int:
        return self.version // 10_000


# What is printed must not depend on a login's settings: a name is qualified unless it is on the
# path. `local` by the third argument, so it ends with the transaction (pgbouncer).
_STAND = (
    """
  select current_setting('server_version_num')::int, pg_catalog.pg_is_in_recovery(),
    current_setting('transaction_read_only') = 'on', current_database()::text, session_user::text,
    coalesce((
      select has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'select')
      from pg_catalog.pg_namespace as n
      join pg_catalog.pg_class as c on c.relnamespace = n.oid and c.relname = 'alembic_version'
      where n.nspname = '"""
    + VERSION_SCHEMA
    + """'
    ), false),
    current_setting('server_encoding'), current_setting('default_transaction_isolation'),
    pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
    pg_catalog.set_config('quote_all_identifiers', 'off', true),
    pg_catalog.set_config('datestyle', 'ISO, YMD', true),
    pg_catalog.set_config('intervalstyle', 'postgres', true),
    pg_catalog.set_config('standard_conforming_strings', 'on', true),
    pg_catalog.set_config('bytea_output', 'hex', true),
    pg_catalog.set_config('jit', 'off', true),
    pg_catalog.set_config('lock_timeout', '5s', true)  -- to print a view locks what it reads
"""
)
_REVISION = f"select v.version_num from {VERSION_SCHEMA}.alembic_version as v"
# From 16 on, who made a role may administer it without having its rights: no such row counts.
_MEMBERS = """
  select m.roleid, m.member, to_jsonb(m) as row
  from pg_auth_members as m
  where coalesce((to_jsonb(m) ->> 'inherit_option')::bool, true)
    or coalesce((to_jsonb(m) ->> 'set_option')::bool, true)"""
_ROLES = f"""
  select 'role ' || r.rolname,
    jsonb_strip_nulls(jsonb_build_object(
      'login', case when r.rolcanlogin then 'yes' end,
      'superuser', case when r.rolsuper then 'yes' end,
      'createrole', case when r.rolcreaterole then 'yes' end,
      'createdb', case when r.rolcreatedb then 'yes' end,
      'replication', case when r.rolreplication then 'yes' end,
      'bypassrls', case when r.rolbypassrls then 'yes' end,
      'membership', (
        select string_agg(distinct pg_get_userbyid(m.roleid), ', ')
        from ({_MEMBERS}) as m where m.member = r.oid
      ),
      'member', case when r.rolname in ('ql_authority', 'ql_retention') then (
        select string_agg(distinct pg_get_userbyid(m.member), ', ')
        from ({_MEMBERS}) as m where m.roleid = r.oid
      ) end
    )),
    '{{}}'::jsonb, '{{}}'::jsonb
  from pg_roles as r
  where r.rolname in ('ql_authority', 'ql_migrator', 'ql_admission', 'ql_scheduler', 'ql_worker',
    'ql_operator', 'ql_reader', 'ql_retention')"""
CATALOG = " union all ".join((*OBJECTS, _ROLES))
# All that a login is or may become, itself first; then the groups whose rights it has as it is.
_LOGIN = f"""
  with recursive become as (
    select r.oid from pg_roles as r where r.rolname = session_user
    union
    select m.roleid from become as b join ({_MEMBERS}) as m on m.member = b.oid
  )
  select r.rolname::text, r.rolname = session_user, pg_has_role(current_user, r.oid, 'usage'),
    r.oid = d.datdba, r.rolsuper, r.rolcreaterole, r.rolcreatedb, r.rolreplication, r.rolbypassrls
  from become as b
  join pg_roles as r on r.oid = b.oid
  cross join pg_database as d
  where d.datname = current_database()
  order by 2 desc, 1"""
_HELD = """
  select coalesce((
    select pg_has_role(current_user, r.oid, 'usage') from pg_roles as r where r.rolname = g.name
  ), false)
  from unnest(%s::text[]) with ordinality as g (name, place)
  order by g.place"""


@dataclass(frozen=True, slots=True)
class Role:
    """A role that the session's login is, or is a member of."""

    name: str
    is_login: bool
    inherited: bool  # its rights hold without `set role`
    owns_database: bool
    superuser: bool
    creates_roles: bool
    creates_databases: bool
    replicates: bool
    bypasses: bool


class Catalog:
    """Reads within one transaction; see `reading`."""

    def __init__(self, cursor: psycopg.Cursor[tuple[Any, ...]]) -> None:
        self._cursor = cursor
        self.standing = Standing(*self._rows(_STAND)[0][:8])

    def revision(self) -> str | None:
        """What alembic has stamped; None when there is no stamp or this login may not see it."""
        if not self.standing.shows_revision:
            return None
        rows = self._rows(_REVISION)
        return str(rows[0][0]) if rows else None

    def objects(self) -> dict[str, Facts]:
        """Every object in our schemas, what hangs on it, and our roles, by kind and name."""
        return {
            name: {"is": stored, "may": may, "printed": printed}
            for name, stored, may, printed in self._rows(CATALOG)
        }

    def roles(self) -> list[Role]:
        """The session's login and every role it is a member of, however far."""
        return [Role(*row) for row in self._rows(_LOGIN)]

    def holds(self, groups: Sequence[str]) -> list[bool]:
        """Of each of the groups, whether the session has its rights."""
        return [held for (held,) in self._rows(_HELD, [list(groups)])]

    def _rows(self, text: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        # psycopg's own prepared statements would outlive the transaction
        return self._cursor.execute(text.encode(), values or None, prepare=False).fetchall()


@contextmanager
def reading(connection: psycopg.Connection[Any]) -> Iterator[Catalog]:
    """The catalog, read in one transaction (a savepoint when one is open); nothing is written.

    Raises NotReady when somebody changes the schema meanwhile.
    """
    try:
        with connection.transaction(), connection.cursor(row_factory=tuple_row) as cursor:
            yield Catalog(cursor)
    except MEANWHILE as error:
        said = "the schema is being changed, by a migration perhaps: look again when that is over"
        raise NotReady(f"{said} ({error.diag.message_primary})") from error
