"""Who may do what, tried as real logins, and every grant of the catalog (DESIGN §8).

Each login is a member of one role, the stranger of none. What they were told stands in
golden/authority.txt for people to read; `QINGLONG_GOLDEN=write` writes it anew. The rule behind it
is `expected`, so a wrong grant fails whatever was written there.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest

from qinglong_sql import migrate
from qinglong_sql.store.steps import STEPS
from tests import sqltext
from tests.catalog import catalog
from tests.doors import GROUPS, LOGINS, logins_of
from tests.engines import NEWEST
from tests.server import SQL_ROOT, Server, dsn, tool

every_version = pytest.mark.all_versions
GOLDEN = Path(__file__).parent / "golden" / "authority.txt"
REFUSED = "42501"
NOT_POSSIBLE = "55000"  # a view that nobody could write to
PATH = "search_path=pg_catalog, pg_temp"
TABLES = sqltext.tables("postgres")
DELETABLE = {
    "agenda",
    "run_fault",
    "trigger_fault",
}  # what is due, and what failed: gone when it is done
Connection = psycopg.Connection[Any]


@pytest.fixture
def logins(postgres_server: Server, postgres_dsn: str) -> Iterator[dict[str, str]]:
    with logins_of(postgres_server, postgres_dsn) as found:
        yield found


@pytest.fixture
def dba(postgres_dsn: str) -> Iterator[Connection]:
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        yield connection


# -- the matrix


@dataclass(frozen=True, slots=True)
class Thing:
    """An object of ours, and what may be tried with it: {word: statement}."""

    kind: Literal["schema", "function", "table", "view", "type"]
    schema: str
    name: str
    tries: dict[str, str]


FUNCTIONS = """
  select n.nspname, p.proname, p.provariadic <> 0,
    array(select format_type(t.oid, null) from unnest(p.proargtypes) as t (oid))
  from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace
  where n.nspname ~ '^ql(_|$)' order by 1 desc, 2"""
RELATIONS = """
  select c.relname, c.relkind::text,
    (select min(a.attname) from pg_attribute as a where a.attrelid = c.oid and a.attnum = 1)
  from pg_class as c
  where c.relnamespace::regnamespace::text ~ '^ql(_|$)' and c.relkind not in ('i', 't')
  order by 2, 1"""


OTHER_TYPES = """
  select t.typname from pg_type as t
  where t.typnamespace::regnamespace::text ~ '^ql(_|$)' and t.typtype <> 'c' and t.typelem = 0"""


def things(dba: Connection) -> list[Thing]:
    """Everything below ql and ql_*. A null would do, but strict functions are not called then."""
    schemas = dba.execute("select nspname from pg_namespace where nspname ~ '^ql(_|$)' order by 1")
    found = [
        Thing("schema", name, name, {"creates": f"create function {name}.x () {BODY}"})
        for (name,) in schemas.fetchall()
    ]
    for schema, name, variadic, types in dba.execute(FUNCTIONS).fetchall():
        words = [f"{HARMLESS.get(one, 'null')}::{one}" for one in types]
        if variadic:
            words[-1] = f"variadic {words[-1]}"
        text = f"select * from {schema}.{name}({', '.join(words)})"
        found.append(Thing("function", schema, name, {"calls": text}))
    for name, kind, column in dba.execute(RELATIONS).fetchall():
        if kind == "c":
            text = f"create temp table x (c ql.{name})"
            found.append(Thing("type", "ql", name, {"uses": text}))
            continue
        assert kind in "rv", f"{name} is of a kind that nobody thought of: {kind}"
        tries = {
            "selects": f"select * from ql.{name} limit 0",
            "inserts": f"insert into ql.{name} default values",
            "updates": f"update ql.{name} set {column} = null",
            "deletes": f"delete from ql.{name}",
        }
        if kind == "r":
            tries["truncates"] = f"truncate ql.{name}"
        found.append(Thing("table" if kind == "r" else "view", "ql", name, tries))
    return found


HARMLESS = {
    "text": "'x'", "bigint": "1", "integer": "1", "json": "'{}'", "jsonb": "'{}'",
    "text[]": "'{}'",
}  # fmt: skip
BODY = "returns int language sql as 'select 1'"


def told(connection: Connection, text: str) -> bool:
    """Whether a statement gets past every check of rights; what it did is rolled back."""
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(text)  # type: ignore[arg-type]
    except psycopg.Error as error:
        return error.sqlstate not in (REFUSED, NOT_POSSIBLE)
    return True


def expected(role: str, thing: Thing) -> list[str]:
    """DESIGN §8: the functions in the schema of one's name; for the reader, the views.

    An operator purges as well: ql_retention owns the function and has no members.
    """
    schemas = {f"ql_{role}"} | ({"ql_retention"} if role == "operator" else set())
    own = thing.kind == "function" and thing.schema in schemas
    seen = thing.kind == "view" and role == "reader"
    return ["calls"] if own else ["selects"] if seen else []


@every_version
def test_each_login_may_do_its_own_and_nothing_else(
    dba: Connection, logins: dict[str, str]
) -> None:
    found = things(dba)
    assert {one.name for one in found if one.kind == "table"} == TABLES.keys()
    assert dba.execute(OTHER_TYPES).fetchall() == []
    cells: dict[int, list[str]] = {number: [] for number in range(len(found))}
    for role in LOGINS:
        with psycopg.connect(logins[role], autocommit=True) as connection:
            for number, thing in enumerate(found):
                may = [word for word, text in thing.tries.items() if told(connection, text)]
                cells[number].append(" ".join(may) or "·")
                wanted = expected(role, thing)
                assert may == wanted, f"{role}: {thing.schema}.{thing.name} {may}, not {wanted}"
    text = rendered([(thing, cells[number]) for number, thing in enumerate(found)])
    if os.environ.get("QINGLONG_GOLDEN") == "write":
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def rendered(rows: list[tuple[Thing, list[str]]]) -> str:
    lines = [
        "What a login that is a member of one role may do; the stranger is a member of none.",
        "Written by `QINGLONG_GOLDEN=write pytest tests/test_authority.py`. · is refused.",
    ]
    title = ""
    for thing, cells in rows:
        here = "schemas" if thing.kind == "schema" else f"{thing.schema}: {thing.kind}s"
        if here != title:
            tried = ", ".join(thing.tries)
            heads = "".join(one.ljust(11) for one in LOGINS).rstrip()
            lines += ["", f"{here} ({tried})", f"{'':<30}{heads}"]
            title = here
        lines.append(f"  {thing.name:<28}{''.join(cell.ljust(11) for cell in cells).rstrip()}")
    return "\n".join(lines) + "\n"


# -- the catalog

GRANTS = """
  select x.kind, x.schema, x.name, a.grantee::regrole::text, a.privilege_type
  from (
    select 'schema', n.nspname, '', coalesce(n.nspacl, acldefault('n', n.nspowner)), n.nspowner
    from pg_namespace as n
    union all
    select 'function', p.pronamespace::regnamespace::text, p.proname,
      coalesce(p.proacl, acldefault('f', p.proowner)), p.proowner
    from pg_proc as p
    union all
    select case c.relkind when 'v' then 'view' else 'table' end,
      c.relnamespace::regnamespace::text, c.relname,
      coalesce(c.relacl, acldefault('r', c.relowner)), c.relowner
    from pg_class as c where c.relkind in ('r', 'v', 'S')
    union all
    select 'column', c.relnamespace::regnamespace::text, c.relname, t.attacl, c.relowner
    from pg_class as c join pg_attribute as t on t.attrelid = c.oid where t.attacl is not null
    union all
    select 'type', t.typnamespace::regnamespace::text, t.typname,
      coalesce(t.typacl, acldefault('T', t.typowner)), t.typowner
    from pg_type as t join pg_class as c on c.oid = t.typrelid and c.relkind = 'c'
  ) as x (kind, schema, name, acl, owner)
  cross join aclexplode(x.acl) as a
  where x.schema ~ '^ql(_|$)' and a.grantee <> x.owner"""
TO_AUTHORITY = {
    "schema": {"USAGE"},
    "function": {"EXECUTE"},
    "view": {"SELECT"},
    "type": {"USAGE"},
    "table": {"SELECT", "INSERT", "DELETE"},
    "column": {"UPDATE"},
}
TO_RETENTION = {
    "schema": {"USAGE"},
    "function": {"EXECUTE"},
    "view": {"SELECT"},
    "type": set[str](),
    "table": {"SELECT", "DELETE"},
    "column": {"UPDATE"},  # of run alone, since a row lock asks for it
}
RETENTION_MAY = {
    ("ql", name)
    for name in (
        "",
        "assert_read_committed",
        "retention_due",
        "run",
        "worker_audit",
        *(name for name, table in TABLES.items() if "run_id" in table.keeps + table.moves),
    )
}


@every_version
def test_every_grant_is_one_of_the_design_and_none_is_to_public(dba: Connection) -> None:
    """PUBLIC is `-` here. The columns of ql_authority are tried one by one below."""
    found = dba.execute(GRANTS).fetchall()
    for kind, schema, name, grantee, privilege in found:
        wanted: set[str] = set()
        if grantee == "ql_authority":
            wanted = TO_AUTHORITY[kind] if schema == "ql" else set()
        elif grantee == "ql_reader":
            wanted = {"schema": {"USAGE"}, "view": {"SELECT"}}.get(kind, set())
        elif grantee == "ql_retention":
            wanted = TO_RETENTION[kind] if (schema, name) in RETENTION_MAY else set()
        elif grantee == schema or (grantee, schema) == ("ql_operator", "ql_retention"):
            wanted = {"schema": {"USAGE"}, "function": {"EXECUTE"}}.get(kind, set())
        assert privilege in wanted, f"{grantee}: {privilege} on {kind} {schema}.{name}"
    assert {grantee for *_, grantee, _ in found} == {
        "ql_authority", "ql_retention", *(f"ql_{role}" for role in GROUPS)
    }  # fmt: skip
    assert dba.execute("select count(*) from pg_default_acl").fetchone() == (0,)


@every_version
def test_every_function_runs_as_its_owner_should_and_on_a_fixed_path(dba: Connection) -> None:
    """The capability functions as ql_authority, who is no login; helpers as whoever calls them."""
    found = dba.execute(
        """select n.nspname, p.proname, p.prosecdef, p.proowner::regrole::text, p.proconfig
        from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace
        where n.nspname ~ '^ql(_|$)'"""
    ).fetchall()
    steps = set()
    for schema, name, definer, owner, settings in found:
        where = f"{schema}.{name}"
        assert PATH in (settings or []), f"{where} runs on {settings}"
        wanted = (False, "ql_migrator") if schema == "ql" else (True, "ql_authority")
        if schema == "ql_retention":
            wanted = (True, "ql_retention")
        assert (definer, owner) == wanted, f"{where}: definer, owner"
        if definer:
            steps.add((schema, name))
            quick = {"lock_timeout=1s", "lock_timeout=100ms"}.intersection(settings)
            assert "jit=off" in settings and quick, f"{where} runs with {settings}"
    assert steps == {(one.schema, one.name) for one in STEPS.values()}


@every_version
def test_roles_are_what_they_should_be_and_members_of_nothing(dba: Connection) -> None:
    roles = dba.execute(
        """select r.rolname, r.rolcanlogin,
          r.rolsuper or r.rolcreaterole or r.rolcreatedb or r.rolreplication or r.rolbypassrls,
          array(select m.roleid::regrole::text from pg_auth_members as m
            where m.member = r.oid order by 1)
        from pg_roles as r where r.rolname ~ '^ql_' order by 1"""
    ).fetchall()
    assert len(roles) == 8
    for name, may_log_in, mighty, above in roles:
        migrates = name == "ql_migrator"
        assert may_log_in == migrates, f"{name} may log in: {may_log_in}"
        assert not mighty, f"{name} has rights over the whole cluster"
        wanted = ["ql_authority", "ql_retention"] if migrates else []
        assert above == wanted, f"{name} is a member of {above}"


@every_version
def test_ql_migrator_is_no_superuser_and_migrates(postgres_server: Server, empty_dsn: str) -> None:
    """Both ways, and everything is then its own but for the functions and their schemas."""
    folder = SQL_ROOT / "postgres"
    words = ["-Xq", "-v", "ON_ERROR_STOP=1", "-d", empty_dsn, "-f", str(folder / "role.sql")]
    tool(postgres_server, "psql", *words)
    login = dsn(postgres_server, empty_dsn.rsplit("/", 1)[1], "ql_migrator")
    assert migrate.upgrade(login) == NEWEST
    owners = {owner for _, _, _, owner, *_ in catalog(empty_dsn)["relation"]}
    assert owners == {"ql_migrator"}
    migrate.downgrade(login)
    assert migrate.current(login) is None
    assert migrate.upgrade(login) == NEWEST


@every_version
def test_ql_retention_deletes_what_is_of_runs_or_audited_and_writes_nothing(
    dba: Connection,
) -> None:
    """It alone may; to lock a run it must be able to update a column of it."""
    dba.execute("set role ql_retention")
    for name, table in TABLES.items():
        owned = "run_id" in table.keeps + table.moves or name == "worker_audit"
        assert told(dba, f"delete from ql.{name}") == owned, f"ql_retention deletes from {name}"
        assert told(dba, f"select from ql.{name}") == owned, f"ql_retention reads {name}"
        for text in (f"insert into ql.{name} default values", f"truncate ql.{name}"):
            assert not told(dba, text), f"ql_retention may {text}"
        for column in table.keeps + table.moves:
            may = told(dba, f"update ql.{name} set {column} = null")
            assert may == ((name, column) == ("run", "updated_at_ms")), f"{name}.{column}: {may}"


@every_version
def test_ql_authority_moves_what_moves_and_deletes_no_history(dba: Connection) -> None:
    """`set role` by the superuser; the columns before the line `-- moves` are written once."""
    dba.execute("set role ql_authority")
    for name, table in TABLES.items():
        for column in table.keeps + table.moves:
            may = told(dba, f"update ql.{name} set {column} = null")
            assert may == (column in table.moves), f"ql_authority updates {name}.{column}: {may}"
        assert told(dba, f"select from ql.{name}"), name
        assert told(dba, f"insert into ql.{name} default values"), name
        may = told(dba, f"delete from ql.{name}")
        assert may == (name in DELETABLE), f"ql_authority deletes from {name}: {may}"
        for text in (
            f"truncate ql.{name}",
            f"alter table ql.{name} add column more text",
            f"drop table ql.{name} cascade",
            f"create trigger x before update on ql.{name} execute function ql.now_ms()",
        ):
            assert not told(dba, text), f"ql_authority: {text}"
    assert not told(dba, "create table ql.more (more text)")
