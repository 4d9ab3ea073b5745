"""What is done to a database or a login, the words with which it is refused, and what is free."""

import os

from qinglong_sql import migrate

LOGIN = f"control_{os.getpid()}"
STRANGER = f"stranger_{os.getpid()}"
OLD_TEXT = "execute replace(pg_get_functiondef('{}'::regprocedure), '{}', '{}')"


def anew(function: str, before: str, after: str) -> str:
    """Make a function again with some of its text replaced."""
    text = OLD_TEXT.format(function, before.replace("'", "''"), after.replace("'", "''"))
    return f"do $x$ begin {text}; end $x$"


# What is done to a database, and what is said of it.
OBJECTS = {
    "a view is gone": ("drop view ql.violation", "view ql.violation is missing: make it as"
        " sql/decision/violation.sql has it"),
    "a view is added": ("create view ql.mine as select 1 as x", "view ql.mine is not ours: drop"),
    "a view reads less": (
        "do $$ begin execute 'create or replace view ql.fault_state as '"
        " || rtrim(pg_get_viewdef('ql.fault_state'), ';') || ' limit 5'; end $$",
        "view ql.fault_state: definition is changed: make it as sql/decision/reading.sql has it"),
    "a view checks its reader": ("alter view ql.run_state set (security_invoker = true)",
        "view ql.run_state: option is security_invoker=true, not unset"),
    "a body": (anew("ql.lock_run(text)", "skip locked", "nowait"),
        "function ql.lock_run(p_run_id text): body is changed: make it as sql/postgres/schema.sql"),
    "a clock": ("create or replace function ql.now_ms() returns bigint language sql as 'select 1'",
        "function ql.now_ms(): body is changed"),
    "a function is gone": ("drop function ql_worker.attempt_input(text, text)",
        "function ql_worker.attempt_input(p_attempt_id text, p_token text) is missing"),
    "a function is added": ("create function ql_worker.mine() returns int language sql as"
        " 'select 1'", "function ql_worker.mine() is not ours"),
    "a function has a namesake": ("create function ql.now_ms(p_x int) returns int language sql as"
        " 'select 1'", "function ql.now_ms(p_x integer) is not ours"),
    "a procedure is added": ("create procedure ql.mine() language sql as 'select 1'",
        "procedure ql.mine() is not ours"),
    "a volatility": ("alter function ql.lock_run(text) stable",
        "function ql.lock_run(p_run_id text): volatility is stable, not volatile"),
    "a definer": ("alter function ql_scheduler.recover_run(text) security invoker",
        "recover_run(p_run_id text): security is unset, not definer"),
    "an owner": ("alter function ql_scheduler.recover_run(text) owner to postgres",
        "recover_run(p_run_id text): owner is postgres, not ql_authority"),
    "a set clause": ("alter function ql_scheduler.recover_run(text) set lock_timeout = '9s'",
        "recover_run(p_run_id text): set clause is "),
    "a path": ("alter function ql_scheduler.recover_run(text) reset search_path",
        "recover_run(p_run_id text): set clause is "),
    "a strict function": ("alter function ql.lock_run(text) strict",
        "function ql.lock_run(p_run_id text): strict is yes, not unset"),
    "a parallel function": ("alter function ql.lock_run(text) parallel safe", "parallel is safe"),
    "a cost": ("alter function ql.lock_run(text) cost 7", "cost is 7, not unset"),
    "a number of rows": ("alter function ql_worker.attempt_input rows 7", "rows is 7, not unset"),
    "a result": ("drop function ql.is_object(text); create function ql.is_object(p_text text)"
        " returns int language sql as 'select 1'", "p_text text): result is integer, not boolean"),
    "an index that is not valid": ("set local allow_system_table_mods = on; update pg_index set"
        " indisvalid = false where indexrelid = 'ql.agenda_due'::regclass",
        "index ql.agenda_due: state is not valid, not unset"),
    "a leakproof function": ("alter function ql.lock_run(text) leakproof", "leakproof is yes"),
    "a parameter's default": (anew("ql.lock_run(text)", "p_run_id text)", "p_run_id text = 'x')"),
        "function ql.lock_run(p_run_id text): parameter list is changed"),
    "a column is added": ("alter table ql.run add x int",
        "table ql.run: column x is not ours: make it as sql/postgres/table.sql has it"),
    "a column is gone": ("alter table ql.trigger_schedule rename claim_token to x",
        "table ql.trigger_schedule: column claim_token is missing"),
    "a type of a column": ("alter table ql.attempt_report alter output type varchar(999)",
        "table ql.attempt_report: column output is "),
    "a collation": ('alter table ql.attempt_report alter output type text collate "POSIX"',
        "text collate POSIX, not "),
    "a column may be null": ("alter table ql.run alter status drop not null",
        "table ql.run: column status is 15. text collate C, not 15. text not null collate C"),
    "a default": ("alter table ql.run alter status set default 'running'",
        "table ql.run: default of status is not ours"),
    "a constraint is gone": ("alter table ql.run drop constraint run_attempts_within_bounds",
        "constraint run_attempts_within_bounds on ql.run is missing: make it as sql/postgres/tab"),
    "a constraint is added": ("alter table ql.run add constraint mine check (version > -5)",
        "constraint mine on ql.run is not ours"),
    "a constraint": ("alter table ql.run drop constraint run_attempts_within_bounds,"
        " add constraint run_attempts_within_bounds"
        " check (attempt_count < 9)",
        "constraint run_attempts_within_bounds on ql.run: definition is changed"),
    "a constraint that nobody checked": ("alter table ql.run add constraint mine check"
        " (version > 5) not valid", "constraint mine on ql.run is not ours"),
    "a foreign key is not enforced": ("alter table ql.step_run disable trigger all",
        "ql.step_run: enforcement is disabled, not unset"),
    "a foreign key of others": ("create table public.x (r text references ql.run)",
        "which is not ours but refers to ql.run is not ours"),
    "an index is gone": ("drop index ql.agenda_due", "index ql.agenda_due is missing"),
    "an index is added": ("create index mine on ql.run (status)", "index ql.mine is not ours"),
    "an index": ("drop index ql.agenda_due; create index agenda_due on ql.agenda (due_at_ms)",
        "index ql.agenda_due: definition is changed"),
    "a trigger": ("create trigger mine before update on ql.run for each row execute function"
        " suppress_redundant_updates_trigger()", "trigger mine on ql.run is not ours: drop it"),
    "a rule": ("create rule mine as on delete to ql.run do instead nothing",
        "rule mine on ql.run is not ours"),
    "a rule of a view": ("create rule mine as on insert to ql.run_state do instead nothing",
        "rule mine on ql.run_state is not ours: drop it"),
    "a policy": ("create policy mine on ql.run", "policy mine on ql.run is not ours"),
    "row security": ("alter table ql.run enable row level security",
        "table ql.run: row security is on, not unset"),
    "a child table": ("create table public.x () inherits (ql.run)",
        "table public.x, which inherits ql.run is not ours"),
    "a table is added": ("create table ql.mine (x int)", "table ql.mine is not ours"),
    "a table is not logged": ("alter table ql.worker_session set unlogged",
        "table ql.worker_session: persistence is unlogged, not unset"),
    "a fillfactor": ("alter table ql.run set (fillfactor = 100)",
        "table ql.run: option is fillfactor=100, not fillfactor=70"),
    "an owner of a table": (f"alter table ql.run owner to {STRANGER}",
        f"table ql.run: owner is {STRANGER}, not ql_migrator"),
    "a sequence is added": ("create sequence ql.mine", "sequence ql.mine is not ours"),
    "a type is added": ("create type ql.mine as enum ('a')", "type ql.mine is not ours"),
    "an attribute of a type": ("alter type ql.effect add attribute x int",
        "type ql.effect: column x is not ours"),
    "an operator is added": ("create operator ql.=== (leftarg = int, rightarg = int, function ="
        " int4eq)", "operator ql.===(integer,integer) is not ours"),
    "a schema is added": ("create schema ql_mine", "schema ql_mine is not ours: drop or rename it"),
    "a schema is gone": ("drop schema ql_retention cascade", "schema ql_retention is missing"),
    "an owner of a schema": ("alter schema ql_worker owner to ql_migrator",
        "schema ql_worker: owner is ql_migrator, not ql_authority"),
    "everything is gone": (f"drop schema {', '.join(migrate.SCHEMAS)} cascade",
        "has no schema of ours: `qinglong-sql migrate`"),
}  # fmt: skip
RIGHTS = {
    "a table is read": (f"grant select on ql.run to {STRANGER}",
        f"table ql.run: {STRANGER} has SELECT too many: revoke select on ql.run from {STRANGER}"),
    "a column is written": (f"grant update (status) on ql.run to {STRANGER}",
        f"{STRANGER} has UPDATE (status) too many: revoke update (status) on ql.run from"),
    "a group writes": ("grant insert on ql.agenda to ql_scheduler",
        "table ql.agenda: ql_scheduler has INSERT too many"),
    "authority writes what is kept": ("grant update (run_key) on ql.run to ql_authority",
        "table ql.run: ql_authority has UPDATE (run_key) too many"),
    "everyone executes": ("grant execute on function ql_worker.attempt_input to public",
        "PUBLIC has EXECUTE too many: revoke execute on function ql_worker.attempt_input("),
    "everyone finds": ("grant usage on schema ql to public", "schema ql: PUBLIC has USAGE too many:"
        " revoke usage on schema ql from PUBLIC"),
    "a group makes": ("grant create on schema ql_worker to ql_worker",
        "schema ql_worker: ql_worker has CREATE too many"),
    "a group gives on": ("grant select on ql.run_state to ql_reader with grant option",
        "ql_reader has SELECT with grant option too many: revoke grant option for select on"),
    "a type is used": (f"grant usage on type ql.effect to {STRANGER}",
        f"type ql.effect: {STRANGER} has USAGE too many"),
    "a row type is used": (f"grant usage on type ql.run to {STRANGER}",
        "row type ql.run is not ours: no one has rights on it as shipped"),
    "a view is not read": ("revoke select on ql.run_state from ql_reader",
        "view ql.run_state: ql_reader lacks SELECT: grant select on ql.run_state to ql_reader"),
    "a column is not written": ("revoke update (status) on ql.run from ql_authority",
        "table ql.run: ql_authority lacks UPDATE (status): grant update (status) on ql.run to"),
    "a step is not called": ("revoke execute on function ql_scheduler.recover_run from"
        " ql_scheduler", "ql_scheduler lacks EXECUTE: grant execute on function ql_scheduler."),
    "a schema is not found": ("revoke usage on schema ql_scheduler from ql_scheduler",
        "schema ql_scheduler: ql_scheduler lacks USAGE"),
    "an owner has not all": ("revoke delete on ql.run from ql_migrator",
        "table ql.run: ql_migrator lacks DELETE"),
    "what will be made is given": (f"alter default privileges in schema ql grant select on tables"
        f" to {STRANGER}", "default privileges of postgres in ql is not ours: take them back"),
    "what ql_migrator makes is given": ("alter default privileges for role ql_migrator revoke"
        " execute on functions from public", "default privileges of ql_migrator is not ours"),
}  # fmt: skip
ROLES = {
    "authority logs in": ("alter role ql_authority login",
        "role ql_authority: login is yes, not unset: make it as sql/postgres/role.sql has it"),
    "the migrator is mighty": ("alter role ql_migrator superuser", "role ql_migrator: superuser"),
    "a group is in a group": ("grant ql_operator to ql_worker",
        "role ql_worker: membership is ql_operator, not unset"),
    "a stranger is authority": (f"grant ql_authority to {STRANGER}",
        f"role ql_authority: member is ql_migrator, {STRANGER}, not ql_migrator"),
    "the migrator is not authority": ("revoke ql_authority from ql_migrator",
        "role ql_migrator: membership is ql_retention, not ql_authority, ql_retention"),
}  # fmt: skip
LOGINS = {
    "too many groups": (f"grant ql_worker to {LOGIN}", f"login {LOGIN} is a member of ql_worker,"
        f" which it does not need: revoke ql_worker from {LOGIN}"),
    "too many by another": (f"grant ql_operator to {STRANGER}; grant {STRANGER} to {LOGIN}",
        "is a member of ql_operator, which it does not need"),
    "reads everything": (f"grant pg_read_all_data to {LOGIN}", "is a member of pg_read_all_data"),
    "is the owner": (f"grant ql_migrator to {LOGIN}", "is a member of ql_authority, which"),
    "a superuser": (f"alter role {LOGIN} superuser", f"login {LOGIN} is a superuser: alter role"
        f" {LOGIN} nosuperuser"),
    "becomes a superuser": (f"alter role {STRANGER} superuser; grant {STRANGER} to {LOGIN}",
        f"login {LOGIN} may become {STRANGER}, which is a superuser"),
    "creates roles": (f"alter role {LOGIN} createrole", f"login {LOGIN} may create roles"),
    "passes by": (f"alter role {LOGIN} bypassrls", f"login {LOGIN} passes by row security"),
    "replicates": (f"alter role {LOGIN} replication", f"login {LOGIN} may replicate"),
    "owns the database": (f"do $$ begin execute format('alter database %I owner to {LOGIN}',"
        " current_database()); end $$", f"login {LOGIN} owns this database: alter database ql_"),
    "owns a table": (f"alter table ql.run owner to {LOGIN}", f"table ql.run: owner is {LOGIN}"),
    "a group is missing": (f"revoke ql_reader from {LOGIN}", f"login {LOGIN} lacks the rights of"
        f" ql_reader: grant ql_reader to {LOGIN}"),
    "no group at all": (f"revoke ql_reader, ql_scheduler from {LOGIN}", "the rights of"
        " ql_scheduler: grant ql_scheduler to"),
}  # fmt: skip
SPOILED = OBJECTS | RIGHTS | ROLES | LOGINS
# What a DBA may do without asking.
FREE = {
    "autovacuum": "alter table ql.run set (autovacuum_vacuum_scale_factor = 0.01)",
    "a comment": "comment on table ql.run is 'mine'",
    "a target of statistics": "alter table ql.run alter status set statistics 500",
    "a view elsewhere": "create view public.mine as select * from ql.run_state",
    "a schema of others": "create schema qlx; create table qlx.run (run_id text)",
    "a DBA who migrates": f"grant ql_migrator to {STRANGER}",
    "a team of logins": f"grant {STRANGER} to {LOGIN}",
    "one more reader": f"grant ql_reader to {STRANGER}",
}
