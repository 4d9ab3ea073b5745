"""A login that means harm: settings, objects of its own, and what it may not even try (DESIGN §8).

Whatever a session sets or makes, the steps answer as they do for a plain one, or the call is
refused with a code and nothing has moved.
"""

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from tests import acting, sqltext
from tests.doors import LOGINS, Doors, life, logins_of
from tests.engines import Engine
from tests.server import SQL_ROOT, Server

pytestmark = pytest.mark.all_versions
Connection = psycopg.Connection[Any]
REFUSED = "42501"
NOTHING_GRANTED = "01007"  # a warning


@pytest.fixture
def logins(postgres_server: Server, postgres_dsn: str) -> Iterator[dict[str, str]]:
    with logins_of(postgres_server, postgres_dsn) as found:
        yield found


@pytest.fixture
def doors(logins: dict[str, str]) -> Iterator[Doors]:
    with closing(Doors(logins)) as opened:
        yield opened


@pytest.fixture
def dba(postgres_dsn: str) -> Iterator[Connection]:
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        yield connection


# -- every setting that a login can change

SETTABLE = """
  select name, vartype, min_val, max_val, enumvals from pg_settings
  where context = 'user' and name <> all(%s) order by name"""
# settings that are texts, at two values each
TEXTS = {
    "DateStyle": ("German, DMY", "SQL, YMD"),
    "TimeZone": ("Pacific/Kiritimati", "America/St_Johns"),
    "application_name": ("'; drop table ql.run; --", ""),
    "client_encoding": ("LATIN1", "UTF8"),
    "createrole_self_grant": ("set, inherit", ""),
    "debug_io_direct": ("", ""),
    "default_table_access_method": ("heap", "heap"),
    "default_tablespace": ("", "pg_default"),
    "default_text_search_config": ("pg_catalog.simple", "pg_catalog.english"),
    "local_preload_libraries": ("", ""),
    "lc_monetary": ("C", "POSIX"),
    "lc_numeric": ("C", "POSIX"),
    "lc_time": ("C", "POSIX"),
    "plpgsql.extra_errors": ("all", "none"),
    "plpgsql.extra_warnings": ("all", "none"),
    "search_path": ("", "pg_temp, public, ql, ql_worker, pg_catalog"),
    "temp_tablespaces": ("", "pg_default"),
    "timezone_abbreviations": ("Australia", "India"),
}
LATER = {"transaction_timeout", "restrict_nonsystem_relation_kind"}  # not in every version
# a call is refused under these, or answers as ever: setting → value → codes; each tried alone below
ALONE: dict[str, dict[str, set[str]]] = {
    "default_transaction_isolation": {
        one: {"QL503"} for one in ("read uncommitted", "repeatable read", "serializable")
    },
    "default_transaction_read_only": {"on": {"25006"}},
    "restrict_nonsystem_relation_kind": {"view": {"55000"}, "view, foreign-table": {"55000"}},
    "statement_timeout": {"1": {"57014", ""}},
    "transaction_timeout": {"1": {"25P04", ""}},
}


def values(dba: Connection, which: int) -> dict[str, str]:
    """One end (0, 1) of every setting that a login can change."""
    found: dict[str, str] = {}
    for name, kind, low, high, words in dba.execute(SETTABLE, [[*ALONE]]).fetchall():
        if kind == "string":
            assert name in TEXTS, f"{name}: a setting that nobody thought of"
            found[name] = TEXTS[name][which]
        else:
            ends = {"bool": ["off", "on"], "enum": words}.get(kind, [low, high])
            found[name] = ends[-which]
    found["jit_above_cost"] = "-1"  # compiling takes 20 s here; every step has `jit = off` anyway
    return found


@pytest.mark.parametrize("which", [0, 1], ids=["lowest", "highest"])
def test_no_setting_of_a_session_changes_an_answer(
    dba: Connection, doors: Doors, which: int
) -> None:
    plain = life(doors, "plain")
    for connection in doors.every():
        connection.execute("do 'begin end'")  # PL/pgSQL's own settings are there from now on
    dba.execute("do 'begin end'")
    wanted = values(dba, which)
    for connection in doors.every():
        for name, value in sorted(wanted.items(), key=lambda one: one[0] == "exit_on_error"):
            try:
                connection.execute("select set_config(%s, %s, false)", [name, value])
            except psycopg.Error as error:  # too much for this machine, or too late to be set
                assert error.sqlstate in ("22023", "25001", "42501"), f"{name} = {value}: {error}"
    told = doors.every()[0].execute("show jit").fetchone()
    assert told == {"jit": ("off", "on")[which]}
    assert life(doors, "hostile") == plain


def test_a_setting_that_stops_a_call_stops_it_whole(
    dba: Connection, doors: Doors, logins: dict[str, str], postgres_dsn: str
) -> None:
    engine = Engine("postgres", postgres_dsn, None)
    acting.begun(doors, {"a": []})
    there = {name for (name,) in dba.execute("select name from pg_settings").fetchall()}
    assert ALONE.keys() - there <= LATER
    tried = [(name, value) for name in ALONE.keys() & there for value in ALONE[name]]
    for name, value in tried:
        before, got = acting.everything(engine), ""
        with closing(Doors(logins)) as fresh:  # no plan of the session is older than the setting
            try:
                door = fresh.of["admission"]
                door.execute("select set_config(%s, %s, false)", [name, value])
                acting.start(fresh, key=f"{name} {value}")
            except psycopg.Error as error:
                got = str(error.sqlstate)
        assert got in ALONE[name][value], f"{name} = {value}: {got}"
        assert got == "" or acting.everything(engine) == before, f"{name} = {value}"


def test_a_transaction_of_another_kind_is_refused(doors: Doors) -> None:
    acting.begun(doors, {"a": []})
    for level, code in KINDS.items():
        for role, text in CALLS.items():
            with pytest.raises(psycopg.Error) as caught, doors.of[role].transaction():
                doors.of[role].execute(f"set transaction {level}")  # type: ignore[arg-type]
                doors.of[role].execute(text)  # type: ignore[arg-type]
            assert caught.value.sqlstate == code, f"{role}: {level}"


KINDS = {
    "isolation level read uncommitted": "QL503",
    "isolation level repeatable read": "QL503",
    "isolation level serializable": "QL503",
    "read only": "25006",
}
CALLS = {
    "admission": "select * from ql_admission.start_run('nightly', 'workflow', 'flow', 'k', '{}')",
    "scheduler": "select * from ql_scheduler.task_admission_page(-1, '', 32)",
    "worker": "select * from ql_worker.register_worker('w9', 's9', '[\"default\"]', 1, 1, 2000)",
    "operator": "select * from ql_retention.purge_runs(1, 1)",
}


# -- objects of its own

TRAP = """
do $trap$
declare
  v record;
  v_args text;
  v_spring text := 'begin raise ''trapped''; end';
begin
  create schema trap;
  grant usage on schema trap to public;
  for v in
    select p.proname, p.proargtypes, p.prorettype
    from pg_catalog.pg_proc as p
    where p.pronamespace = 'pg_catalog'::regnamespace and p.proname = any($n$%(names)s$n$::text[])
  loop
    begin
      v_args := (
        select string_agg(format_type(t.oid, null), ', ' order by t.place)
        from unnest(v.proargtypes::oid[]) with ordinality as t (oid, place)
      );
      execute format(
        'create function trap.%%I (%%s) returns %%s language plpgsql as %%L',
        v.proname, coalesce(v_args, ''), format_type(v.prorettype, null), v_spring
      );
    exception when others then
      null;  -- of a kind that PL/pgSQL does not have
    end;
  end loop;
  for v in
    select o.oprname, format_type(o.oprleft, null) as l, format_type(o.oprright, null) as r,
      format_type(o.oprresult, null) as result, o.oid
    from pg_catalog.pg_operator as o
    where o.oprnamespace = 'pg_catalog'::regnamespace and o.oprleft <> 0
      and o.oprleft = any('{text,bigint,integer,jsonb,json,boolean,numeric,name,text[]}'::regtype[])
      and o.oprname = any('{=,<>,<,>,<=,>=,||,+,-,*,/,%%,->,->>,#>>,~,<<,@>}')
  loop
    execute format(
      'create function trap.o%%s (%%s, %%s) returns %%s language plpgsql as %%L',
      v.oid, v.l, v.r, v.result, v_spring
    );
    execute format(
      'create operator trap.%%s (leftarg = %%s, rightarg = %%s, function = trap.o%%s)',
      v.oprname, v.l, v.r, v.oid
    );
  end loop;
  for v in
    select unnest('{text,int8,int4,bool,jsonb,json,bytea,numeric,bit,name}'::text[]) as name
  loop
    execute format('create domain trap.%%I as pg_catalog.date', v.name);
  end loop;
  for v in
    select c.relname from pg_catalog.pg_class as c
    where c.relnamespace = 'ql'::regnamespace and c.relkind in ('r', 'v', 'c')
  loop
    execute format('create table trap.%%I (trapped int)', v.relname);
  end loop;
end
$trap$"""
TEMPORARY = """
do $trap$
declare
  v text;
begin
  foreach v in array $n$%(tables)s$n$::pg_catalog.text[] loop
    execute format('create temp table %%I (trapped int)', v);
  end loop;
  foreach v in array '{text,int8,int4,bool,jsonb,json,bytea,numeric}'::pg_catalog.text[] loop
    execute format('create domain pg_temp.%%I as pg_catalog.date', v);
  end loop;
  create function pg_temp.length (pg_catalog.text) returns int language plpgsql
    as $x$ begin raise 'trapped'; end $x$;
  create function pg_temp.now_ms () returns pg_catalog.int8 language plpgsql
    as $x$ begin raise 'trapped'; end $x$;
end
$trap$"""


def called_names() -> set[str]:
    """Whatever stands before a parenthesis in the SQL of ours."""
    found: set[str] = set()
    for path in (*SQL_ROOT.glob("postgres/*.sql"), *SQL_ROOT.glob("decision/*.sql")):
        found |= set(re.findall(r"(?<![.\w])([a-z_]\w*)\s*\(", path.read_text(encoding="utf-8")))
    return found


def trapped(dba: Connection, doors: Doors) -> None:
    """Traps for every name that our bodies use, first in the path of every session."""
    dba.execute(TRAP % {"names": "{" + ",".join(sorted(called_names())) + "}"})  # type: ignore[arg-type]
    made = "select count(*) from pg_proc where pronamespace = 'trap'::regnamespace"
    assert (dba.execute(made).fetchone() or (0,))[0] > 200
    tables = "{pg_class,pg_proc," + ",".join(sqltext.tables("postgres")) + "}"
    for connection in doors.of.values():
        connection.execute(TEMPORARY % {"tables": tables})  # type: ignore[arg-type]
        connection.execute("set search_path = trap, pg_temp, pg_catalog, ql, ql_worker")


def test_objects_named_like_ours_and_like_those_we_use_change_nothing(
    dba: Connection, doors: Doors
) -> None:
    plain = life(doors, "plain")
    views = dba.execute("select viewname from pg_views where schemaname = 'ql'").fetchall()
    trapped(dba, doors)
    for text in ("select length('x'::pg_catalog.text)", "select 'a'::pg_catalog.text = 'a'"):
        with pytest.raises(psycopg.errors.RaiseException, match="trapped"):
            doors.of["worker"].execute(text)  # type: ignore[arg-type]
    assert life(doors, "trapped") == plain
    for (view,) in views:
        seen = doors.of["reader"].execute(f"select * from ql.{view}").fetchall()  # type: ignore[arg-type]
        assert len(seen) == len(doors.read(view)), view


def test_a_function_that_forgot_its_path_falls_into_a_trap(dba: Connection, doors: Doors) -> None:
    """So the test above would see it."""
    trapped(dba, doors)
    assert acting.page(doors, "frontier_page") == []
    for change in ("reset search_path", "set search_path = trap, pg_catalog"):
        dba.execute(f"alter function ql_scheduler.frontier_page {change}")  # type: ignore[arg-type]
        with pytest.raises(psycopg.Error, match=r"trapped|type|trap"):
            acting.page(doors, "frontier_page")


# -- what it may not even try

TRIES = """
set role ql_authority
set role ql_migrator
set role postgres
set session authorization postgres
set session_replication_role = replica
set log_statement = 'all'
load 'auto_explain'
create schema mine
create table public.mine (mine int)
create function public.mine () returns int language sql as 'select 1'
create role mine
create event trigger mine on ddl_command_start execute function pg_catalog.now()
create publication mine for all tables
create language mine handler plpgsql_call_handler
create foreign data wrapper mine
create cast (text as bigint) with inout as implicit
create temp table mine (like ql.run)
create temp table mine () inherits (ql.run)
create trigger mine before insert on ql.run execute function suppress_redundant_updates_trigger()
create rule mine as on insert to ql.run do instead nothing
create policy mine on ql.run
create index mine on ql.run (run_id)
create view pg_temp.mine as select * from ql.run; select * from pg_temp.mine
create or replace view ql.run_state as select 1
create function ql.mine () returns int language sql as 'select 1'
create function ql_scheduler.mine () returns int language sql as 'select 1'
alter table ql.run disable trigger all
alter table ql.run add column mine int
alter table ql.run owner to current_user
alter view ql.run_state owner to current_user
alter schema ql owner to current_user
alter function ql_scheduler.due_page reset search_path
alter function ql_scheduler.due_page security invoker
alter function ql_scheduler.due_page owner to current_user
alter type ql.effect add attribute mine int
alter role ql_authority login
alter role ql_authority set search_path = public
alter role postgres nologin
alter default privileges for role ql_migrator grant all on tables to public
alter database postgres set search_path = public
grant ql_authority to current_user
grant ql_scheduler to ql_worker
grant all on ql.run to current_user
grant execute on function ql_operator.pause_trigger(text, text) to public
reassign owned by ql_authority to current_user
drop owned by ql_authority
drop schema ql cascade
drop table ql.run cascade
drop view ql.run_state cascade
drop function ql_scheduler.due_page
comment on table ql.run is 'mine'
lock table ql.run in share mode
lock table ql.run in access exclusive mode
lock table ql.run_state in access exclusive mode
copy ql.run to '/tmp/mine'
copy (select 1) to program 'true'
truncate ql.run
select pg_read_file('/etc/passwd')
select pg_ls_dir('.')
select lo_import('/etc/passwd')
select * from pg_authid
select * from pg_catalog.pg_statistic limit 1
select pg_terminate_backend(pid) from pg_stat_activity where usename = 'postgres'
select pg_cancel_backend(pid) from pg_stat_activity where usename = 'postgres'
select pg_reload_conf()
select pg_stat_reset()
""".strip().splitlines()
ALWAYS_ALONE = (
    "alter system set work_mem = '1MB'",
    "create database mine",
    "drop database postgres",
)


def test_no_login_gets_a_right_that_it_has_not(logins: dict[str, str]) -> None:
    assert [f"{role}: {text}" for role in LOGINS for text in gained(logins[role])] == []


def gained(login: str) -> list[str]:
    """What was not refused for want of a right."""
    done: list[str] = []
    warned: list[str | None] = []
    with psycopg.connect(login, autocommit=True) as connection:
        connection.add_notice_handler(lambda told: warned.append(told.sqlstate))
        for text in ALWAYS_ALONE:  # not inside a transaction
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(text)  # type: ignore[arg-type]
        for text in TRIES:
            warned.clear()
            try:
                with connection.transaction(force_rollback=True):
                    connection.execute(text)  # type: ignore[arg-type]
                if warned != [NOTHING_GRANTED]:
                    done.append(text)
            except psycopg.Error as error:
                if error.sqlstate != REFUSED:
                    done.append(f"{text}: {error.sqlstate} {error}")
    return done


def test_a_token_is_seen_by_nobody_else(doors: Doors, logins: dict[str, str]) -> None:
    acting.begun(doors, {"a": []})
    held = acting.lease(doors)["a"]
    acting.cross(doors, held)
    for role in ("stranger", "scheduler", "reader", "worker"):
        with psycopg.connect(logins[role], autocommit=True) as connection:
            seen = connection.execute("select query from pg_stat_activity").fetchall()
        assert seen and held.token not in str(seen), role


def test_a_stranger_who_takes_an_advisory_lock_makes_others_wait_and_no_more(
    dba: Connection, doors: Doors, logins: dict[str, str]
) -> None:
    """PostgreSQL lets every login take any advisory lock: the step is contended till it is gone."""
    run_id = acting.begun(doors, {"a": []})
    held = acting.lease(doors)["a"]
    acting.run(doors, held)
    key = dba.execute("select ql.attempt_key(%s)", [held.attempt_id]).fetchone()
    with psycopg.connect(logins["stranger"], autocommit=True) as stranger:
        stranger.execute("select pg_advisory_lock(%s)", key)
        assert acting.report(doors, held)[0]["outcome"] == "contended"
        acting.cancel(doors, run_id)
        assert acting.converge(doors, run_id)["outcome"] == "contended"
        stranger.execute("select pg_advisory_unlock_all()")
    assert acting.report(doors, held)[0]["outcome"] == "applied"
    assert acting.unbroken(doors)
