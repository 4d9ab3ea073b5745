-- SCHEMAS — the schema is the permission class (DESIGN §8): `ql` holds tables, views and internals,
-- every other schema the functions that the role of its name may execute.
-- Owners: ql_migrator of `ql`, its tables, views and helpers, so that ql_authority, which owns the
-- capability functions, has no right on a table that grant.sql does not give.

do $$
declare
  v_missing text;
  v_mode text := case when current_setting('server_version_num')::int >= 160000 then 'set'
    else 'member' end;
begin
  select string_agg(r.name, ', ')
  into v_missing
  from (
    values
      ('ql_authority'), ('ql_migrator'), ('ql_admission'), ('ql_scheduler'), ('ql_worker'),
      ('ql_operator'), ('ql_reader'), ('ql_retention')
  ) as r (name)
  where not exists (select from pg_catalog.pg_roles as p where p.rolname = r.name);
  if v_missing is not null then
    raise exception 'roles are missing: %', v_missing
      using errcode = 'QL503', hint = 'a DBA runs sql/postgres/role.sql with psql, once a cluster';
  elsif current_user <> 'ql_migrator' then
    raise exception 'the schema is installed as ql_migrator, not as %', current_user
      using errcode = 'QL503', hint = 'set role ql_migrator';
  elsif exists (
    select from pg_catalog.pg_roles as p
    where (p.rolname = 'ql_migrator' and p.rolsuper)
      or (p.rolname in ('ql_authority', 'ql_retention') and (p.rolsuper or p.rolcanlogin))
  ) then
    raise exception 'ql_migrator is a superuser, or ql_authority or ql_retention may log in'
      using errcode = 'QL503', hint = 'make the roles as sql/postgres/role.sql has them';
  elsif not pg_has_role('ql_authority', v_mode) or not pg_has_role('ql_retention', v_mode) then
    raise exception 'ql_migrator may not act as ql_authority and ql_retention'
      using errcode = 'QL503', hint = 'grant ql_authority, ql_retention to ql_migrator';
  elsif not has_database_privilege(current_database(), 'create') then
    raise exception 'ql_migrator may not create schemas in this database'
      using errcode = 'QL503',
        hint = format('grant create on database %I to ql_migrator', current_database());
  elsif current_setting('server_encoding') <> 'UTF8' then
    raise exception 'the encoding is %, not UTF8', current_setting('server_encoding')
      using errcode = 'QL503', hint = 'create the database with encoding UTF8: digests need it';
  end if;
end;
$$;

create schema ql authorization ql_migrator;
create schema ql_admission authorization ql_authority;
create schema ql_scheduler authorization ql_authority;
create schema ql_worker authorization ql_authority;
create schema ql_operator authorization ql_authority;
create schema ql_retention authorization ql_retention;

comment on schema ql is 'qinglong: tables, decision views and internals';
comment on schema ql_admission is 'qinglong: publish, withdraw, start, request cancellation';
comment on schema ql_scheduler is 'qinglong: the stages';
comment on schema ql_worker is 'qinglong: lease, start, renew, report';
comment on schema ql_operator is 'qinglong: declare stopped, pause, release faults';
comment on schema ql_retention is 'qinglong: purge';

-- one state change that a decision asks for (DESIGN §4)
create type ql.effect as (
  run_id text collate "C",
  ordinal bigint,
  entity text collate "C",
  entity_id text collate "C",
  from_status text collate "C",
  to_status text collate "C",
  expected_version bigint,
  result_code text collate "C",
  event_type text collate "C",
  due_at_ms bigint,
  input_id text collate "C"
);

-- one command of a worker's batch, and what became of it (authority.sql)
create type ql.command as (
  position bigint,
  attempt_id text,
  run_id text,
  fence bigint,
  token_digest text,
  identity text,
  how text,
  exit_code bigint,
  output text,
  error text,
  reason text,
  code text,  -- QL400, QL404, contended or QL410 when it goes no further; null so far
  worker_id text  -- whose certificate brought it; null when nobody looked
);

-- HELPER   now_ms — the only clock: milliseconds since 1970, read when it is called
create or replace function ql.now_ms ()
returns bigint
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  return floor(extract(epoch from clock_timestamp()) * 1000)::bigint;
end;
$$;

-- HELPER   assert_read_committed — under repeatable read, lock-then-read would read the past
-- RAISES   QL503
create or replace function ql.assert_read_committed ()
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'isolation is %, not read committed', current_setting('transaction_isolation')
      using errcode = 'QL503';
  end if;
end;
$$;

-- HELPER   sha256_hex — digest of the text's UTF-8 bytes, 64 lower-case hex digits
create or replace function ql.sha256_hex (p_text text)
returns text
language plpgsql
immutable
strict
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
  return encode(sha256(convert_to(p_text, 'UTF8')), 'hex');
end;
$$;

-- HELPER   derived_id — prefix and 24 hex digits over the parts, each as `<byte length>:<bytes>`
--          (DESIGN §4); null when a part is null
create or replace function ql.derived_id (p_prefix text, variadic p_parts text[])
returns text
language plpgsql
immutable
strict
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
  v_framed text := '';
  v_part text;
begin
  foreach v_part in array p_parts loop
    v_framed := v_framed || octet_length(v_part) || ':' || v_part;
  end loop;
  return p_prefix || left(encode(sha256(convert_to(v_framed, 'UTF8')), 'hex'), 24);
end;
$$;

-- HELPER   jitter — 0 to 1023 parts of 8192 added to the back-off after this attempt (DESIGN §5)
create or replace function ql.jitter (p_run_id text, p_step_key text, p_number bigint)
returns bigint
language plpgsql
immutable
strict
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
  v_digits text := substr(ql.derived_id('ji', p_run_id, p_step_key, p_number::text), 3, 3);
begin
  return ('x' || v_digits)::bit(12)::bigint % 1024;
end;
$$;

-- HELPER   canonical — JSON with keys sorted by byte and no insignificant space (DESIGN §4); not
--          parallel safe, as is_storable: they are called where a worker could not begin a block
create or replace function ql.canonical (p_value jsonb)
returns text
language plpgsql
immutable
strict
set search_path = pg_catalog, pg_temp
as $$
begin
  return case jsonb_typeof(p_value)
    when 'object' then (
      select
        '{'
        || coalesce(
          string_agg(to_jsonb(e.key)::text || ':' || ql.canonical(e.value), ','
            order by e.key collate "C"), ''
        )
        || '}'
      from jsonb_each(p_value) as e
    )
    when 'array' then (
      select
        '['
        || coalesce(string_agg(ql.canonical(i.value), ',' order by i.ordinality), '')
        || ']'
      from jsonb_array_elements(p_value) with ordinality as i
    )
    else p_value::text
  end;
end;
$$;

-- HELPER   canonical_object — an object as canonical JSON; null when it is none, or nested too
--          deeply to be walked
create or replace function ql.canonical_object (p_value jsonb)
returns text
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  return case when jsonb_typeof(p_value) = 'object' then ql.canonical(p_value) end;
exception
  when program_limit_exceeded or statement_too_complex then
    return null;
end;
$$;

-- HELPER   is_storable — whether a value is the same for every reader: no key twice, numbers within
--          64 bits or finite, at most 64 levels (what Python's `read_json` takes, DESIGN §4)
create or replace function ql.is_storable (p_value json, p_depth int)
returns boolean
language plpgsql
immutable
strict
set search_path = pg_catalog, pg_temp
as $$
declare
  v_text text;
begin
  if p_depth > 64 then
    return false;
  end if;
  case json_typeof(p_value)
    when 'object' then
      return (
        select
          count(*) = count(distinct e.key collate "C")
          and coalesce(bool_and(ql.is_storable(e.value, p_depth + 1)), true)
        from json_each(p_value) as e
      );
    when 'array' then
      return (
        select coalesce(bool_and(ql.is_storable(i.value, p_depth + 1)), true)
        from json_array_elements(p_value) as i
      );
    when 'number' then
      v_text := p_value #>> '{}';
      if v_text ~ '[.eE]' then
        -- from here on a double is infinite
        return abs(v_text::numeric) < 1.797693134862315807937289714053034150e308;
      end if;
      return v_text::numeric between -9223372036854775808 and 9223372036854775807;
    else
      return true;
  end case;
end;
$$;

-- HELPER   is_object — whether a text is a JSON object, the same for every reader
create or replace function ql.is_object (p_text text)
returns boolean
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  return jsonb_typeof(p_text::jsonb) = 'object' and ql.is_storable(p_text::json, 0);
exception
  when data_exception or program_limit_exceeded or statement_too_complex then
    return false;
end;
$$;

-- HELPER   attempt_key — the advisory key of lock 1
create or replace function ql.attempt_key (p_attempt_id text)
returns bigint
language plpgsql
immutable
strict
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
  return hashtextextended('ql-attempt:' || p_attempt_id, 0);
end;
$$;

-- HELPER   lock_run — take one run's tree in lock order (DESIGN §6)
-- LOCKS    1 attempt advisory (try) · 2 run (skip locked) · 3 task_attempt · 4 attempt_lease ·
--          5 step_run; of attempts and leases the live ones
-- RETURNS  the run's version; null when someone else holds a part of it (contended)
-- RAISES   QL404
create or replace function ql.lock_run (p_run_id text)
returns bigint
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_held text[];
  v_all_held boolean;
  v_version bigint;
begin
  select array_agg(x.attempt_id), bool_and(x.held)
  into v_held, v_all_held
  from (
    select a.attempt_id, pg_try_advisory_xact_lock(ql.attempt_key(a.attempt_id)) as held
    from (
      select t.attempt_id
      from ql.task_attempt as t
      where t.run_id = p_run_id and t.finished_at_ms is null
      order by t.attempt_id
      offset 0  -- a fence: nothing is locked that this list does not hold
    ) as a
  ) as x;
  if not v_all_held then
    return null;
  end if;

  select r.version
  into v_version
  from ql.run as r
  where r.run_id = p_run_id
  for no key update skip locked;
  if not found then
    if not exists (select from ql.run as r where r.run_id = p_run_id) then
      raise exception 'no run %', p_run_id using errcode = 'QL404';
    end if;
    return null;
  end if;

  -- one that was admitted between the locks 1 and 2 is not ours to move
  if exists (
    select from ql.task_attempt as a
    where a.run_id = p_run_id
      and a.finished_at_ms is null
      and a.attempt_id <> all (coalesce(v_held, '{}'))
  ) then
    return null;
  end if;
  perform from ql.task_attempt as a
  where a.run_id = p_run_id and a.finished_at_ms is null
  order by a.attempt_id
  for no key update;
  perform from ql.attempt_lease as l
  where l.attempt_id = any (v_held)
  order by l.attempt_id
  for no key update;
  perform from ql.step_run as s
  where s.run_id = p_run_id
  order by s.step_key
  for no key update;
  return v_version;
end;
$$;
