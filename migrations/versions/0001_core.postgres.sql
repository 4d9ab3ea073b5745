-- 0001_core, postgres: written by scripts/freeze.py, never by hand.
-- LOCKS    only what it makes itself
set local lock_timeout = '5s';
set local statement_timeout = '60s';
set local search_path = pg_catalog, pg_temp;

set local search_path = pg_catalog, pg_temp;

-- from sql/postgres/schema.sql sha256 2fed746df239115bc1a1faf74306008a22ad187a356452225a8081ce3f66753c
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

-- from sql/postgres/table.sql sha256 6f0f47c158ef4131e192ad199f37e9dce85d1c57714afdec735ebfa1e712f66d
-- TABLES — what exists. Immutable columns come first in each table; ql_authority may update only
-- the columns after the line "moves". Ids compare by byte: every text key is collate "C".
-- Facts: DESIGN §5; shapes: DOMAIN §2.4.

create table ql.package (
  package_key text collate "C" primary key,
  -- moves
  generation bigint not null,  -- the newest number given
  base_dir text not null,  -- where relative paths start; not part of the digest
  updated_at_ms bigint not null
);

create table ql.package_generation (
  package_key text collate "C" not null references ql.package (package_key),
  generation bigint not null,
  digest text collate "C" not null,
  manifest text not null,
  published_at_ms bigint not null,
  -- moves
  state text collate "C" not null,
  ended_at_ms bigint,
  primary key (package_key, generation),
  constraint generation_starts_at_one check (generation >= 1),
  constraint manifest_fits check (octet_length(manifest) <= 262144),
  constraint generation_state_is_known check (state in ('active', 'superseded', 'withdrawn')),
  constraint only_an_active_generation_has_no_end check ((state = 'active') = (ended_at_ms is null))
);

create unique index one_active_generation on ql.package_generation (package_key)
where state = 'active';

create table ql.task_revision (
  task_id text collate "C" primary key,
  package_key text collate "C" not null,
  generation bigint not null,
  task_key text collate "C" not null,
  digest text collate "C" not null,
  spec text not null,  -- canonical JSON: run, env, cwd and the rest as published
  timeout_ms bigint,
  retry_attempts bigint not null,
  backoff_ms bigint not null,
  max_backoff_ms bigint not null,
  retry_failed bigint not null,
  retry_timed_out bigint not null,
  idempotent bigint not null,
  on_lost text collate "C" not null,
  queue text collate "C" not null,
  foreign key (package_key, generation)
    references ql.package_generation (package_key, generation),
  constraint one_revision_a_task_and_generation unique (package_key, generation, task_key),
  constraint attempts_within_bounds check (retry_attempts between 1 and 64),
  constraint task_key_fits check (length(task_key) between 1 and 127),
  constraint task_timeout_within_bounds check (timeout_ms between 1 and 2592000000),
  constraint backoff_within_bounds check (backoff_ms between 0 and 86400000),
  constraint max_backoff_within_bounds check (max_backoff_ms between 0 and 86400000),
  constraint queue_fits check (length(queue) between 1 and 200),
  constraint on_lost_is_known check (on_lost in ('retry', 'fail', 'hold')),
  constraint only_idempotent_work_is_retried_when_lost check (on_lost <> 'retry' or idempotent = 1)
);

create table ql.workflow_revision (
  workflow_id text collate "C" primary key,
  package_key text collate "C" not null,
  generation bigint not null,
  workflow_key text collate "C" not null,
  timeout_ms bigint,
  step_count bigint not null,
  foreign key (package_key, generation)
    references ql.package_generation (package_key, generation),
  constraint one_revision_a_workflow_and_generation unique (package_key, generation, workflow_key),
  constraint workflow_key_fits check (length(workflow_key) between 1 and 63),
  constraint workflow_timeout_within_bounds check (timeout_ms between 1 and 2592000000),
  constraint steps_within_bounds check (step_count between 1 and 128)
);

create table ql.workflow_step (
  workflow_id text collate "C" not null references ql.workflow_revision (workflow_id),
  step_key text collate "C" not null,
  task_id text collate "C" not null references ql.task_revision (task_id),
  need_count bigint not null,
  primary key (workflow_id, step_key),
  constraint step_key_fits check (length(step_key) between 1 and 63),
  constraint needs_within_bounds check (need_count between 0 and 127)
);

-- every (ancestor, step) pair of a workflow; distance 1 is a direct need
create table ql.workflow_ancestor (
  workflow_id text collate "C" not null,
  ancestor_key text collate "C" not null,
  step_key text collate "C" not null,
  distance bigint not null,
  primary key (workflow_id, ancestor_key, step_key),
  foreign key (workflow_id, ancestor_key) references ql.workflow_step (workflow_id, step_key),
  foreign key (workflow_id, step_key) references ql.workflow_step (workflow_id, step_key),
  constraint no_step_is_its_own_ancestor check (ancestor_key <> step_key),
  constraint distance_within_bounds check (distance between 1 and 127)
);

create index workflow_need on ql.workflow_ancestor (workflow_id, step_key, ancestor_key)
where distance = 1;

create table ql.trigger (
  package_key text collate "C" not null references ql.package (package_key),
  trigger_key text collate "C" not null,
  -- moves
  generation bigint not null,
  state text collate "C" not null,
  cron text not null,
  tz text not null,
  kind text collate "C" not null,
  target_key text collate "C" not null,
  misfire text collate "C" not null,
  overlap text collate "C" not null,
  updated_at_ms bigint not null,
  primary key (package_key, trigger_key),
  constraint trigger_key_fits check (length(trigger_key) between 1 and 63),
  constraint trigger_state_is_known check (state in ('active', 'paused', 'withdrawn')),
  constraint trigger_kind_is_known check (kind in ('workflow', 'task')),
  constraint misfire_is_known check (misfire in ('fire_once', 'skip')),
  constraint overlap_is_known check (overlap in ('allow', 'skip'))
);

create table ql.trigger_schedule (
  package_key text collate "C" not null,
  trigger_key text collate "C" not null,
  -- moves
  next_fire_at_ms bigint,
  last_scheduled_at_ms bigint,
  state_version bigint not null,
  claim_owner text collate "C",
  claim_token text collate "C",
  claim_version bigint not null,
  claim_expires_at_ms bigint,
  updated_at_ms bigint not null,
  primary key (package_key, trigger_key),
  foreign key (package_key, trigger_key) references ql.trigger (package_key, trigger_key),
  constraint a_claim_is_whole_or_absent check (
    (claim_owner is null) = (claim_token is null)
    and (claim_owner is null) = (claim_expires_at_ms is null)
  )
);

create table ql.run (
  run_id text collate "C" primary key,
  package_key text collate "C" not null,
  generation bigint not null,
  kind text collate "C" not null,
  target_key text collate "C" not null,
  target_id text collate "C" not null,  -- the workflow_id or task_id of the pinned generation
  run_key text collate "C" not null,
  input_digest text collate "C" not null,
  step_count bigint not null,
  deadline_at_ms bigint,
  retry_of_run_id text collate "C",  -- the run whose results it took over; that one may be purged
  trigger_key text collate "C",
  scheduled_at_ms bigint,
  admitted_at_ms bigint not null,
  -- moves
  status text collate "C" not null,
  version bigint not null,
  attempt_count bigint not null,
  cancel_requested_at_ms bigint,
  cancel_reason text collate "C",
  result_code text collate "C",
  finished_at_ms bigint,
  updated_at_ms bigint not null,
  foreign key (package_key, generation)
    references ql.package_generation (package_key, generation),
  constraint run_id_fits check (length(run_id) between 1 and 36),
  constraint run_kind_is_known check (kind in ('workflow', 'task')),
  constraint run_status_is_known
    check (status in ('running', 'succeeded', 'failed', 'cancelled', 'timed_out')),
  constraint run_version_is_not_negative check (version >= 0),
  constraint run_attempts_within_bounds check (attempt_count between 0 and 8192),
  constraint an_intent_has_a_reason
    check ((cancel_requested_at_ms is null) = (cancel_reason is null)),
  constraint cancel_reason_is_known
    check (cancel_reason in ('user', 'policy', 'shutdown', 'reconcile', 'timeout')),
  constraint only_a_terminal_run_has_an_end check ((status = 'running') = (finished_at_ms is null)),
  constraint a_run_that_did_not_succeed_says_why
    check ((status in ('running', 'succeeded')) = (result_code is null))
) with (fillfactor = 70);

create index run_recent on ql.run (admitted_at_ms, run_id);
create index run_target on ql.run (target_id, admitted_at_ms, run_id);
-- what people look at first: its end is written once, so it costs a run two entries
create index run_open on ql.run (admitted_at_ms, run_id) where finished_at_ms is null;
-- retention follows what is due, not the runs that exist; written once a run
create index run_ended on ql.run (finished_at_ms, run_id) where finished_at_ms is not null;

create table ql.run_input (
  run_id text collate "C" primary key references ql.run (run_id),
  input text not null,
  constraint input_fits check (octet_length(input) <= 16384)
);

create table ql.step_run (
  run_id text collate "C" not null references ql.run (run_id),
  step_key text collate "C" not null,
  task_id text collate "C" not null,
  -- moves
  status text collate "C" not null,
  version bigint not null,
  attempt_count bigint not null,
  claim_return_count bigint not null,
  ready_at_ms bigint,
  started_at_ms bigint,
  finished_at_ms bigint,
  due_at_ms bigint,
  result_code text collate "C",
  primary key (run_id, step_key),
  constraint step_status_is_known check (
    status in (
      'pending', 'ready', 'waiting_approval', 'running', 'retry_wait', 'lost',
      'succeeded', 'failed', 'skipped', 'cancelled', 'timed_out'
    )
  ),
  constraint step_version_starts_at_one check (version >= 1),
  constraint step_attempts_within_bounds check (attempt_count between 0 and 64),
  constraint claim_returns_within_bounds check (claim_return_count between 0 and 64),
  constraint a_pending_step_has_no_times
    check (status <> 'pending' or (ready_at_ms is null and started_at_ms is null)),
  constraint a_ready_step_has_a_ready_time_only check (
    status not in ('ready', 'waiting_approval')
    or (ready_at_ms is not null and started_at_ms is null)
  ),
  constraint a_running_step_has_started check (
    status not in ('running', 'lost') or (ready_at_ms is not null and started_at_ms is not null)
  ),
  constraint only_a_waiting_retry_is_due check ((status = 'retry_wait') = (due_at_ms is not null)),
  constraint only_a_terminal_step_has_an_end check (
    (status in ('succeeded', 'failed', 'skipped', 'cancelled', 'timed_out'))
    = (finished_at_ms is not null)
  ),
  constraint a_step_that_did_not_succeed_says_why check (
    (status in ('retry_wait', 'lost', 'failed', 'skipped', 'cancelled', 'timed_out'))
    = (result_code is not null and result_code <> 'taken_over')
  ),
  constraint only_a_succeeded_step_is_taken_over
    check (result_code <> 'taken_over' or status = 'succeeded'),
  constraint step_times_grow check (
    ready_at_ms <= started_at_ms and started_at_ms <= finished_at_ms
  )
) with (fillfactor = 60);

create table ql.step_output (
  run_id text collate "C" not null,
  step_key text collate "C" not null,
  attempt_id text collate "C" not null,
  output text not null,
  primary key (run_id, step_key),
  constraint output_fits check (octet_length(output) <= 16384)
);

create table ql.task_attempt (
  attempt_id text collate "C" primary key,
  run_id text collate "C" not null,
  number bigint not null,
  step_key text collate "C" not null,
  epoch bigint not null,  -- the step's version while it was ready; good for exactly this one
  task_id text collate "C" not null,
  queue text collate "C" not null,
  jitter bigint not null,  -- 0 to 1023 parts of 8192 added to a back-off
  admitted_at_ms bigint not null,
  -- moves
  status text collate "C" not null,
  version bigint not null,
  offer_at_ms bigint,  -- what dispatch looks for; set by admission, nulled by the start
  deadline_at_ms bigint,
  identity text,
  starting_at_ms bigint,
  started_at_ms bigint,
  finished_at_ms bigint,
  exit_code bigint,
  result_code text collate "C",
  constraint one_admission_an_epoch unique (run_id, step_key, epoch),
  constraint attempt_number_within_bounds check (number between 1 and 8192),
  constraint jitter_within_bounds check (jitter between 0 and 1023),
  constraint attempt_status_is_known check (
    status in (
      'claimed', 'starting', 'running', 'succeeded', 'failed', 'cancelled', 'timed_out', 'lost'
    )
  ),
  constraint attempt_version_starts_at_one check (version >= 1),
  constraint only_a_claimed_attempt_is_offered
    check ((status = 'claimed') = (offer_at_ms is not null)),
  constraint a_claimed_attempt_has_not_crossed_the_barrier check (
    status <> 'claimed' or (starting_at_ms is null and started_at_ms is null)
  ),
  constraint a_started_attempt_crossed_the_barrier
    check (status not in ('starting', 'running') or starting_at_ms is not null),
  constraint only_a_terminal_attempt_has_an_end check (
    (status in ('claimed', 'starting', 'running')) = (finished_at_ms is null)
  ),
  constraint an_attempt_that_did_not_succeed_says_why check (
    (status in ('failed', 'cancelled', 'timed_out', 'lost')) = (result_code is not null)
  ),
  constraint identity_fits check (octet_length(identity) <= 512)
) with (fillfactor = 50);

create index attempt_offered on ql.task_attempt (queue, offer_at_ms, attempt_id)
where offer_at_ms is not null;

create table ql.attempt_lease (
  attempt_id text collate "C" primary key,
  run_id text collate "C" not null,
  -- moves
  status text collate "C" not null,
  version bigint not null,
  fence bigint not null,  -- grows by one whenever the lease is taken, released or completed
  offer_id text collate "C" not null,
  worker_id text collate "C" not null,
  token_digest text collate "C" not null,
  self_fencing bigint not null,
  grace_ms bigint not null,
  leased_at_ms bigint not null,
  expires_at_ms bigint not null,
  closed_at_ms bigint,
  constraint lease_status_is_known check (status in ('leased', 'released', 'completed')),
  constraint lease_version_starts_at_one check (version >= 1),
  constraint fence_starts_at_one check (fence >= 1),
  constraint only_a_closed_lease_has_an_end check ((status = 'leased') = (closed_at_ms is null))
) with (fillfactor = 50);

-- Inputs: one row a command, under its natural key; append-only.

create table ql.cancel_intent (
  run_id text collate "C" primary key,
  reason text collate "C" not null,
  actor text not null,
  requested_at_ms bigint not null,
  constraint intent_reason_is_known
    check (reason in ('user', 'policy', 'shutdown', 'reconcile', 'timeout'))
);

create table ql.attempt_offer (
  run_id text collate "C" not null,
  attempt_id text collate "C" not null,
  fence bigint not null,  -- the fence that the lease gets when it is taken
  offer_id text collate "C" not null,
  worker_id text collate "C" not null,
  token_digest text collate "C" not null,
  self_fencing bigint not null,
  grace_ms bigint not null,
  offered_at_ms bigint not null,
  expires_at_ms bigint not null,
  primary key (run_id, attempt_id, fence),
  constraint an_offer_is_made_once unique (offer_id),
  constraint token_is_a_digest check (length(token_digest) = 64)
);

create table ql.attempt_report (
  run_id text collate "C" not null,
  attempt_id text collate "C" not null,
  fence bigint not null,
  kind text collate "C" not null,
  how text collate "C",
  exit_code bigint,
  identity text,
  output text,
  error text,
  reported_at_ms bigint not null,
  primary key (run_id, attempt_id, fence, kind),
  constraint report_kind_is_known check (kind in ('starting', 'running', 'ended')),
  constraint an_end_says_how check ((kind = 'ended') = (how is not null)),
  constraint how_is_known check (
    how in ('exit', 'signal', 'stop', 'deadline', 'start_failed', 'bad_output', 'not_started')
  ),
  constraint report_output_fits check (octet_length(output) <= 16384),
  constraint report_error_fits check (octet_length(error) <= 2048)
);

create table ql.attestation (
  run_id text collate "C" not null,
  attempt_id text collate "C" not null,
  evidence text collate "C" not null,
  follow text collate "C",  -- what an operator wants to follow: retry, fail, or null for on_lost
  reason text not null,
  actor text not null,
  attested_at_ms bigint not null,
  primary key (run_id, attempt_id),
  constraint evidence_is_known check (evidence in ('expired', 'fenced', 'attested', 'declared')),
  constraint follow_is_known check (follow in ('retry', 'fail')),
  constraint only_a_declaration_says_what_follows check (follow is null or evidence = 'declared')
);

-- what was refused and is kept, at most eight an attempt
create table ql.refused_report (
  run_id text collate "C" not null,
  attempt_id text collate "C" not null,
  ordinal bigint not null,
  code text collate "C" not null,
  kind text collate "C" not null,
  how text collate "C",
  exit_code bigint,
  fence bigint,
  refused_at_ms bigint not null,
  primary key (run_id, attempt_id, ordinal),
  constraint refusals_within_bounds check (ordinal between 1 and 8)
);

create table ql.run_event (
  run_id text collate "C" not null,
  sequence bigint not null,
  type text collate "C" not null,
  entity text collate "C" not null,
  entity_id text collate "C" not null,
  from_status text collate "C",
  to_status text collate "C" not null,
  entity_version bigint not null,
  result_code text collate "C",
  input_id text collate "C",
  created_at_ms bigint not null,
  primary key (run_id, sequence),
  constraint event_entity_is_known check (entity in ('run', 'step', 'attempt', 'lease'))
);

create table ql.agenda (
  run_id text collate "C" not null,
  stage text collate "C" not null,
  -- moves
  due_at_ms bigint not null,
  primary key (run_id, stage),
  constraint stage_is_known check (
    stage in ('frontier', 'task_admission', 'cancellation', 'deadline', 'retry', 'expiry')
  )
) with (fillfactor = 50);

create index agenda_due on ql.agenda (stage, due_at_ms, run_id);

create table ql.worker_session (
  worker_id text collate "C" primary key,
  -- moves
  session_id text collate "C" not null,
  generation bigint not null,
  status text collate "C" not null,
  queues text not null,
  slots bigint not null,
  self_fencing bigint not null,
  grace_ms bigint not null,
  registered_at_ms bigint not null,
  expires_at_ms bigint not null,
  constraint session_status_is_known check (status in ('online', 'draining', 'offline')),
  constraint slots_within_bounds check (slots between 1 and 1024)
);

create table ql.run_fault (
  run_id text collate "C" not null,
  stage text collate "C" not null,
  -- moves
  error text not null,
  fault_count bigint not null,
  first_at_ms bigint not null,
  last_at_ms bigint not null,
  next_try_at_ms bigint not null,
  primary key (run_id, stage),
  constraint fault_error_fits check (octet_length(error) <= 2048)
);

set local search_path = ql, pg_catalog, pg_temp;

-- from sql/decision/state.sql sha256 fae8436ca80becdfcd2ba2f88ccd6d0cf5e6a6000499ae66d2f585fe4c808649
-- STATE — the machines of DESIGN §5 and DOMAIN §3 as relations, and the admissions as views.
-- Every decision below reads facts of one run; callers filter by run_id and by nothing else.

create view state_transition as
with legal (entity, from_status, to_status) as (
  values
    ('run', 'running', 'running'),  -- the intent
    ('run', 'running', 'succeeded'),
    ('run', 'running', 'failed'),
    ('run', 'running', 'cancelled'),
    ('run', 'running', 'timed_out'),
    ('step', 'pending', 'ready'),
    ('step', 'pending', 'skipped'),
    ('step', 'pending', 'cancelled'),
    ('step', 'ready', 'ready'),  -- a new epoch after a claim came back
    ('step', 'ready', 'waiting_approval'),
    ('step', 'ready', 'running'),
    ('step', 'ready', 'retry_wait'),
    ('step', 'ready', 'failed'),
    ('step', 'ready', 'skipped'),
    ('step', 'ready', 'cancelled'),
    ('step', 'ready', 'timed_out'),
    ('step', 'waiting_approval', 'ready'),
    ('step', 'waiting_approval', 'running'),
    ('step', 'waiting_approval', 'cancelled'),
    ('step', 'waiting_approval', 'timed_out'),
    ('step', 'running', 'retry_wait'),
    ('step', 'running', 'lost'),
    ('step', 'running', 'succeeded'),
    ('step', 'running', 'failed'),
    ('step', 'running', 'cancelled'),
    ('step', 'running', 'timed_out'),
    ('step', 'retry_wait', 'ready'),
    ('step', 'retry_wait', 'cancelled'),
    ('step', 'retry_wait', 'timed_out'),
    ('step', 'lost', 'ready'),
    ('step', 'lost', 'failed'),
    ('step', 'lost', 'cancelled'),
    ('attempt', 'claimed', 'starting'),
    ('attempt', 'claimed', 'cancelled'),
    ('attempt', 'claimed', 'timed_out'),
    ('attempt', 'claimed', 'lost'),
    ('attempt', 'starting', 'running'),
    ('attempt', 'starting', 'succeeded'),
    ('attempt', 'starting', 'failed'),
    ('attempt', 'starting', 'cancelled'),
    ('attempt', 'starting', 'timed_out'),
    ('attempt', 'starting', 'lost'),
    ('attempt', 'running', 'succeeded'),
    ('attempt', 'running', 'failed'),
    ('attempt', 'running', 'cancelled'),
    ('attempt', 'running', 'timed_out'),
    ('attempt', 'running', 'lost'),
    ('lease', 'released', 'leased'),
    ('lease', 'leased', 'released'),
    ('lease', 'leased', 'completed')
)
select
  l.entity,
  l.from_status,
  l.to_status
from legal as l;

create view run_admission as
select
  r.run_id,
  r.package_key,
  r.generation,
  r.kind,
  r.target_key,
  r.target_id,
  r.run_key,
  r.input_digest,
  r.step_count,
  r.deadline_at_ms,
  r.retry_of_run_id,
  r.trigger_key,
  r.scheduled_at_ms,
  r.admitted_at_ms
from run as r;

create view task_attempt_admission as
select
  a.attempt_id,
  a.run_id,
  a.number,
  a.step_key,
  a.epoch,
  a.task_id,
  a.queue,
  a.jitter,
  a.admitted_at_ms
from task_attempt as a;

-- One mutation a step row and event; its id is the event's (DESIGN §4, derived ids).
create view step_run_mutation as
select
  e.run_id,
  e.run_id || '.' || cast(e.sequence as text) as mutation_id,
  e.sequence,
  e.entity_id as step_key,
  e.from_status,
  e.to_status,
  e.entity_version as step_version,
  e.result_code,
  e.created_at_ms
from run_event as e
where e.entity = 'step';

-- An attempt that may still act, with all that decides about it; no row for ended ones. It may have
-- no lease yet. It always has a revision; by `left join` only who names its columns reads it.
-- `started_count` counts this one as past the start barrier. The back-off doubles from `backoff` to
-- `max_backoff`; the jitter is a digest that admission stored, up to an eighth more (DESIGN §5).
create view live_attempt as
select
  a.run_id,
  a.attempt_id,
  a.step_key,
  a.status,
  a.version,
  a.epoch,
  a.deadline_at_ms,
  l.status as lease_status,
  l.version as lease_version,
  l.fence,
  (select r.cancel_reason from run as r where r.run_id = a.run_id) as cancel_reason,
  s.status as step_status,
  s.version as step_version,
  s.attempt_count + case when s.status = 'ready' then 1 else 0 end as started_count,
  s.claim_return_count,
  t.retry_attempts,
  t.retry_failed,
  t.retry_timed_out,
  t.on_lost,
  (
    select d.delay_ms + d.delay_ms * a.jitter / 8192
    from (
      select
        case
          when t.max_backoff_ms >> cast(
              s.attempt_count + case when s.status = 'ready' then 0 else -1 end as int
            ) < t.backoff_ms
            then t.max_backoff_ms
          else t.backoff_ms << cast(
            s.attempt_count + case when s.status = 'ready' then 0 else -1 end as int
          )
        end as delay_ms
    ) as d
  ) as delay_ms
from task_attempt as a
join step_run as s on s.run_id = a.run_id and s.step_key = a.step_key
left join attempt_lease as l on l.attempt_id = a.attempt_id
left join task_revision as t on t.task_id = a.task_id
where a.status in ('claimed', 'starting', 'running');

-- from sql/decision/admission.sql sha256 332c2f124e7f7d61175f3d45d50d67730b937ce4939a1416a7e4db1898437ebb
-- ADMISSION — what follows an inserted run: the first event, and a step for each node.
-- Roots are ready, all others pending (DOMAIN §3.2). A task run has one step, `main` (DESIGN §5).
-- The retry of a run takes over what would come out the same: its input is the old run's, so a step
-- is taken over when it succeeded there, its task's text and its needs are the same in both
-- generations, and so it is for every step above it.

-- The steps that retries have: those of a run that is one (`retried_run_id` is another run), and
-- those that a retry of the run itself would have in each generation of its target.
create view takeover_node as
select
  r.run_id,
  r.retry_of_run_id as retried_run_id,
  r.target_id,
  w.step_key,
  w.task_id,
  w.need_count
from run as r
join workflow_step as w on w.workflow_id = r.target_id
where r.retry_of_run_id is not null and r.kind = 'workflow'
union all
select
  r.run_id,
  r.retry_of_run_id as retried_run_id,
  r.target_id,
  'main' as step_key,
  r.target_id as task_id,
  cast(0 as bigint) as need_count
from run as r
where r.retry_of_run_id is not null and r.kind = 'task'
union all
select
  r.run_id,
  r.run_id as retried_run_id,
  w.workflow_id as target_id,
  w.step_key,
  w.task_id,
  w.need_count
from run as r
join workflow_revision as v on v.package_key = r.package_key and v.workflow_key = r.target_key
join workflow_step as w on w.workflow_id = v.workflow_id
where r.kind = 'workflow'
union all
select
  r.run_id,
  r.run_id as retried_run_id,
  k.task_id as target_id,
  'main' as step_key,
  k.task_id,
  cast(0 as bigint) as need_count
from run as r
join task_revision as k on k.package_key = r.package_key and k.task_key = r.target_key
where r.kind = 'task';

-- Each of them by itself: its status in the retried run, and why its result cannot be kept.
create view takeover_alone as
select
  s.run_id,
  s.retried_run_id,
  s.target_id,
  s.step_key,
  s.task_id,
  s.need_count,
  s.status,
  case
    when s.status is null then 'not_there'
    when s.status <> 'succeeded' then 'not_succeeded'
    when s.digest <> (
      select t.digest
      from step_run as o
      join task_revision as t on t.task_id = o.task_id
      where o.run_id = s.retried_run_id and o.step_key = s.step_key
    )
      then 'task_changed'
    when s.need_count <> (
        select count(*)
        from workflow_ancestor as o
        where o.workflow_id = s.old_target_id and o.step_key = s.step_key and o.distance = 1
      )
      or s.need_count <> (
        select count(*)
        from workflow_ancestor as n
        join workflow_ancestor as o
          on o.workflow_id = s.old_target_id
          and o.ancestor_key = n.ancestor_key
          and o.step_key = s.step_key
        where n.workflow_id = s.target_id
          and n.step_key = s.step_key
          and n.distance = 1
          and o.distance = 1
      )
      then 'needs_changed'
  end as cause
from (
  select
    n.run_id,
    n.retried_run_id,
    n.target_id,
    n.step_key,
    n.task_id,
    n.need_count,
    (select t.digest from task_revision as t where t.task_id = n.task_id) as digest,
    (select r.target_id from run as r where r.run_id = n.retried_run_id) as old_target_id,
    (
      select o.status
      from step_run as o
      where o.run_id = n.retried_run_id and o.step_key = n.step_key
    ) as status
  from takeover_node as n
) as s;

-- What becomes of each of them: `cause` null says that it is taken over. What must run again is
-- read first and once; all below it runs again as well, and every ancestor is stored: no walk.
create view takeover as
select
  e.run_id,
  e.retried_run_id,
  e.target_id,
  e.step_key,
  e.task_id,
  e.need_count,
  e.status,
  case
    when e.cause is not null then e.cause
    when e.below = 1 then 'need_runs_again'
  end as cause
from (
  select
    u.run_id,
    u.retried_run_id,
    u.target_id,
    u.step_key,
    u.task_id,
    u.need_count,
    u.status,
    u.cause,
    u.part,
    max(u.part) over (partition by u.run_id, u.retried_run_id, u.target_id, u.step_key) as below
  from (
    select
      a.run_id,
      a.retried_run_id,
      a.target_id,
      a.step_key,
      a.task_id,
      a.need_count,
      a.status,
      a.cause,
      0 as part
    from takeover_alone as a
    union all
    select
      a.run_id,
      a.retried_run_id,
      a.target_id,
      w.step_key,
      cast(null as text) as task_id,
      cast(null as bigint) as need_count,
      cast(null as text) as status,
      cast(null as text) as cause,
      1 as part
    from takeover_alone as a
    join workflow_ancestor as w on w.workflow_id = a.target_id and w.ancestor_key = a.step_key
    where a.cause is not null
  ) as u
) as e
where e.part = 0;

create view admission_effect as
select
  e.run_id,
  row_number() over (partition by e.run_id order by e.part, e.entity_id) as ordinal,
  e.entity,
  e.entity_id,
  cast(null as text) as from_status,
  e.to_status,
  cast(0 as bigint) as expected_version,
  case when e.to_status = 'succeeded' then 'taken_over' end as result_code,
  case
    when e.entity = 'run' then 'workflow.admitted'
    when e.to_status = 'succeeded' then 'step.taken_over'
    else 'step.created'
  end as event_type,
  cast(null as bigint) as due_at_ms,
  e.input_id
from (
  select
    r.run_id,
    1 as part,
    'run' as entity,
    r.run_id as entity_id,
    'running' as to_status,
    cast(null as text) as input_id
  from run as r
  where r.version = 0
  union all
  select
    r.run_id,
    2 as part,
    'step' as entity,
    w.step_key as entity_id,
    case when w.need_count = 0 then 'ready' else 'pending' end as to_status,
    w.task_id as input_id
  from run as r
  join workflow_step as w on w.workflow_id = r.target_id
  where r.version = 0 and r.kind = 'workflow' and r.retry_of_run_id is null
  union all
  select
    r.run_id,
    2 as part,
    'step' as entity,
    'main' as entity_id,
    'ready' as to_status,
    r.target_id as input_id
  from run as r
  where r.version = 0 and r.kind = 'task' and r.retry_of_run_id is null
  union all
  select
    k.run_id,
    2 as part,
    'step' as entity,
    k.step_key as entity_id,
    case
      when k.cause is null then 'succeeded'
      when k.need_count = 0 then 'ready'
      else 'pending'
    end as to_status,
    k.task_id as input_id
  from takeover as k
  where k.retried_run_id <> k.run_id
    and (select r.version from run as r where r.run_id = k.run_id) = 0
) as e;

-- from sql/decision/frontier.sql sha256 dd4c95a15b531123420b959b1ea9a1b4e870203a1f874a9b475c12ab3b641601
-- FRONTIER — which pending steps open, which can never run, and when a run ends (DOMAIN §3.3).
-- All needs must succeed. A step with any ancestor that ended otherwise is skipped in the same
-- pass, because every ancestor is stored: a join, no walk. Runs with an intent are cancellation's.

create view frontier_ready as
select
  s.run_id,
  s.step_key,
  s.version
from step_run as s
where s.status = 'pending'
  and not exists (
    select 1
    from workflow_ancestor as w
    where w.workflow_id = (select r.target_id from run as r where r.run_id = s.run_id)
      and w.step_key = s.step_key
      and w.distance = 1
      and not exists (
        select 1
        from step_run as n
        where n.run_id = s.run_id and n.step_key = w.ancestor_key and n.status = 'succeeded'
      )
  );

-- The steps that ended otherwise are read first and once (distinct keeps them apart from the join):
-- a run without any costs one look at its steps.
create view frontier_skip as
select distinct
  b.run_id,
  s.step_key,
  s.version
from (
  select distinct
    n.run_id,
    n.step_key
  from step_run as n
  where n.status in ('failed', 'skipped', 'cancelled', 'timed_out')
) as b
join workflow_ancestor as w
  on w.workflow_id = (select r.target_id from run as r where r.run_id = b.run_id)
  and w.ancestor_key = b.step_key
join step_run as s on s.run_id = b.run_id and s.step_key = w.step_key
where s.status = 'pending';

create view frontier_effect as
select
  e.run_id,
  row_number() over (partition by e.run_id order by e.part, e.entity_id) as ordinal,
  e.entity,
  e.entity_id,
  e.from_status,
  e.to_status,
  e.expected_version,
  e.result_code,
  e.event_type,
  cast(null as bigint) as due_at_ms,
  cast(null as text) as input_id
from (
  select
    f.run_id,
    1 as part,
    'step' as entity,
    f.step_key as entity_id,
    'pending' as from_status,
    'ready' as to_status,
    f.version as expected_version,
    cast(null as text) as result_code,
    'step.ready' as event_type
  from frontier_ready as f
  union all
  select
    f.run_id,
    1 as part,
    'step' as entity,
    f.step_key as entity_id,
    'pending' as from_status,
    'skipped' as to_status,
    f.version as expected_version,
    'dependency_not_succeeded' as result_code,
    'step.skipped' as event_type
  from frontier_skip as f
  union all
  select
    d.run_id,
    2 as part,
    'run' as entity,
    d.run_id as entity_id,
    'running' as from_status,
    d.to_status,
    d.version as expected_version,
    case when d.to_status <> 'succeeded' then 'workflow_step_' || d.to_status end as result_code,
    'workflow.' || d.to_status as event_type
  from (
    select
      r.run_id,
      r.version,
      (
        select
          case min(
              case t.status
                when 'failed' then 1
                when 'timed_out' then 2
                when 'cancelled' then 3
                else 4
              end
            )
            when 1 then 'failed'
            when 2 then 'timed_out'
            when 3 then 'cancelled'
            else 'succeeded'
          end
        from step_run as t
        where t.run_id = r.run_id
      ) as to_status
    from run as r
    where not exists (
        select 1
        from step_run as a
        where a.run_id = r.run_id
          and a.status in ('ready', 'waiting_approval', 'running', 'retry_wait', 'lost')
      )
      -- a pending step that does not open here has an ancestor that ended otherwise: it is skipped
      and not exists (select 1 from frontier_ready as f where f.run_id = r.run_id)
  ) as d
) as e
where (
    select case when r.cancel_requested_at_ms is null then r.status end
    from run as r
    where r.run_id = e.run_id
  ) = 'running';

create view frontier_blocked as
select
  s.run_id,
  s.step_key,
  w.ancestor_key as waits_on,
  (select n.status from step_run as n where n.run_id = s.run_id and n.step_key = w.ancestor_key)
    as need_status
from step_run as s
join workflow_ancestor as w
  on w.workflow_id = (select r.target_id from run as r where r.run_id = s.run_id)
  and w.step_key = s.step_key
  and w.distance = 1
where s.status = 'pending'
  and (select n.status from step_run as n where n.run_id = s.run_id and n.step_key = w.ancestor_key)
    is distinct from 'succeeded';

-- from sql/decision/task_admission.sql sha256 f7aadc722af21f3c609c1dc4b8eceaa8e4a0e654765441db07f66925224b18e7
-- TASK ADMISSION — one attempt for each ready step and epoch; the step stays ready (DOMAIN §3.4).
-- The attempt's number comes from the run's counter; past 8192 the step fails instead.

create view task_admission_effect as
select
  e.run_id,
  row_number() over (partition by e.run_id order by e.step_key) as ordinal,
  case when e.number <= 8192 then 'attempt' else 'step' end as entity,
  case when e.number <= 8192 then e.run_id || '-' || cast(e.number as text) else e.step_key end
    as entity_id,
  case when e.number > 8192 then 'ready' end as from_status,
  case when e.number <= 8192 then 'claimed' else 'failed' end as to_status,
  case when e.number <= 8192 then 0 else e.version end as expected_version,
  case when e.number > 8192 then 'attempt_budget_exhausted' end as result_code,
  case when e.number <= 8192 then 'workflow.task_attempt_admitted' else 'step.failed' end
    as event_type,
  cast(null as bigint) as due_at_ms,
  case when e.number <= 8192 then e.step_key end as input_id
from (
  select
    s.run_id,
    s.step_key,
    s.version,
    (select r.attempt_count from run as r where r.run_id = s.run_id)
      + row_number() over (partition by s.run_id order by s.step_key) as number
  from step_run as s
  where s.status = 'ready'
    and not exists (
      select 1
      from task_attempt as a
      where a.run_id = s.run_id and a.step_key = s.step_key and a.epoch = s.version
    )
    and (
      select case when r.cancel_requested_at_ms is null then r.status end
      from run as r
      where r.run_id = s.run_id
    ) = 'running'
) as e;

-- from sql/decision/dispatch.sql sha256 5d808487099b9660d1062a9d534c02ef78149b648de6facf814b5c84136064bd
-- DISPATCH — what an offer, a starting ACK and a running ACK do (DOMAIN §3.5, DESIGN §5).
-- An offer takes the lease of a claimed attempt. The starting ACK is the start barrier; under an
-- intent it is refused, and the lease goes back because nothing has started. The running ACK counts
-- even under an intent: it tells the truth about something that runs.

create view dispatch_effect as
select
  e.run_id,
  e.ordinal,
  e.entity,
  e.entity_id,
  e.from_status,
  e.to_status,
  e.expected_version,
  e.result_code,
  e.event_type,
  cast(null as bigint) as due_at_ms,
  e.input_id
from (
  select
    w.run_id,
    row_number() over (partition by w.run_id order by w.attempt_id, b.part) as ordinal,
    b.entity,
    case b.entity when 'step' then w.step_key else w.attempt_id end as entity_id,
    case b.entity when 'lease' then w.lease_status else b.from_status end as from_status,
    w.turn as to_status,
    case
      when b.entity = 'attempt' then w.version
      when b.entity = 'step' then w.step_version
      when w.lease_status is null then 0
      else w.lease_version
    end as expected_version,
    case w.turn when 'released' then 'start_refused' end as result_code,
    b.event_type,
    case w.turn
      when 'leased' then (
        select o.offer_id
        from attempt_offer as o
        where o.run_id = w.run_id and o.attempt_id = w.attempt_id and o.fence = w.fence
      )
      else (
        select p.attempt_id
        from attempt_report as p
        where p.run_id = w.run_id
          and p.attempt_id = w.attempt_id
          and p.fence = w.fence
          and p.kind = case w.turn when 'running' then 'running' else 'starting' end
      )
    end as input_id
  from (
    select
      f.run_id,
      f.attempt_id,
      f.step_key,
      f.version,
      f.step_version,
      f.lease_status,
      f.lease_version,
      f.epoch_stands,
      case
        when f.lease_status is null or f.lease_status = 'released'
          then case when f.status = 'claimed' and f.cancel_reason is null then 'leased' end
        when f.lease_status <> 'leased' then null
        when f.status = 'starting' then 'running'
        when f.status <> 'claimed' then null
        when f.cancel_reason is null then 'starting'
        else 'released'
      end as turn,
      case f.lease_status when 'leased' then f.fence else coalesce(f.fence, 0) + 1 end as fence
    from (
      select
        v.run_id,
        v.attempt_id,
        v.step_key,
        v.status,
        v.version,
        v.step_version,
        v.lease_status,
        v.lease_version,
        v.fence,
        v.cancel_reason,
        case when v.step_status = 'ready' and v.step_version = v.epoch then 1 else 0 end
          as epoch_stands,
        -- a fence: what is above is looked up once, not wherever it is used
        row_number() over (partition by v.run_id order by v.attempt_id) as position
      from live_attempt as v
      -- most of a wide run waits for an offer: that is seen before it is decided about
      where v.lease_status = 'leased' or exists (
        select 1
        from attempt_offer as o
        where o.run_id = v.run_id
          and o.attempt_id = v.attempt_id
          and o.fence = coalesce(v.fence, 0) + 1
      )
    ) as f
  ) as w
  join (
    select
      'leased' as turn,
      1 as part,
      'lease' as entity,
      cast(null as text) as from_status,
      'workflow.task_dispatch_leased' as event_type
    union all
    select 'released', 1, 'lease', null, 'workflow.task_dispatch_released'
    union all
    select 'starting', 1, 'attempt', 'claimed', 'workflow.task_attempt.starting'
    union all
    select 'running', 1, 'attempt', 'starting', 'workflow.task_attempt.running'
    union all
    select 'running', 2, 'step', 'ready', 'step.running'
  ) as b on b.turn = w.turn
  where (w.epoch_stands = 1 or w.turn = 'released')
    and not (
      w.turn = 'running'
      and exists (
        select 1
        from attempt_report as q
        where q.run_id = w.run_id
          and q.attempt_id = w.attempt_id
          and q.fence = w.fence
          and q.kind = 'ended'
      )
    )
) as e
where e.input_id is not null;

-- from sql/decision/completion.sql sha256 61e2af7e2807d2becd04b7b66c78f7835bb30634f498e26c357b15b7c99652a2
-- COMPLETION — what a worker's report of an end does (DOMAIN §3.5; retry: DESIGN §5).
-- Priority: not started, intent, deadline, exit 0, failure. With an intent the reason decides, so a
-- clean exit after a stop request is recorded as cancelled. A report from `starting` writes
-- ready → running → end. `not_started` returns the claim and costs no retry.

create view completion_end as
select
  x.run_id,
  x.attempt_id,
  x.step_key,
  x.status,
  x.version,
  x.step_status,
  x.step_version,
  x.claim_return_count,
  x.attempt_end,
  case x.attempt_end
    when 'lost' then 'not_started'
    when 'timed_out' then 'execution_timed_out'
    when 'cancelled' then 'execution_cancelled'
    when 'failed' then case x.how
      when 'bad_output' then 'bad_output'
      when 'start_failed' then 'executor_start_failed'
      when 'stop' then 'execution_stopped'
      else 'execution_failed'
    end
  end as code,
  case
    when x.cancel_reason is null
      and x.started_count < x.retry_attempts
      and (
        (x.attempt_end = 'failed' and x.retry_failed = 1)
        or (x.attempt_end = 'timed_out' and x.retry_timed_out = 1)
      )
      then x.reported_at_ms + x.delay_ms
  end as retry_at_ms
from (
  select
    v.run_id,
    v.attempt_id,
    v.step_key,
    v.status,
    v.version,
    v.step_status,
    v.step_version,
    v.started_count,
    v.claim_return_count,
    v.retry_attempts,
    v.retry_failed,
    v.retry_timed_out,
    v.delay_ms,
    v.cancel_reason,
    p.reported_at_ms,
    p.how,
    (
      select
        case
          when p.how = 'not_started' then 'lost'
          when r.cancel_reason = 'timeout' then 'timed_out'
          when r.cancel_reason is not null then 'cancelled'
          when p.how = 'deadline' or v.deadline_at_ms <= p.reported_at_ms then 'timed_out'
          when p.how = 'exit' and p.exit_code = 0 then 'succeeded'
          else 'failed'
        end
      from run as r
      where r.run_id = v.run_id
    ) as attempt_end,
    -- a fence: what is above is decided once, not wherever it is used
    row_number() over (partition by v.run_id order by v.attempt_id) as position
  from live_attempt as v
  join attempt_report as p
    on p.run_id = v.run_id
    and p.attempt_id = v.attempt_id
    and p.kind = 'ended'
  where p.fence = (
      select l.fence from attempt_lease as l
      where l.attempt_id = v.attempt_id and l.status = 'leased'
    )
    and (v.status in ('starting', 'running') or p.how = 'not_started')
    and (v.status <> 'running' or p.how <> 'not_started')
) as x;

-- Told in parts: 1 the step that starts with its end (from `ready`), 2 the attempt, 3 the step.
create view completion_effect as
select
  e.run_id,
  row_number() over (partition by e.run_id order by e.attempt_id, e.part) as ordinal,
  case e.part when 2 then 'attempt' else 'step' end as entity,
  case e.part when 2 then e.attempt_id else e.step_key end as entity_id,
  e.from_status,
  e.to_status,
  case
    when e.part = 2 then e.version
    when e.part = 3 and e.from_status = 'running' and e.step_status = 'ready'
      then e.step_version + 1
    else e.step_version
  end as expected_version,
  case
    when e.part = 1 or e.to_status = 'ready' then null
    when e.part = 3 and e.from_status = 'ready' then 'claim_budget_exhausted'
    else e.code
  end as result_code,
  case e.part when 2 then 'workflow.task_attempt.' else 'step.' end || e.to_status as event_type,
  case when e.to_status = 'retry_wait' then e.retry_at_ms end as due_at_ms,
  e.attempt_id as input_id
from (
  select
    c.run_id,
    c.attempt_id,
    c.step_key,
    c.version,
    c.step_status,
    c.step_version,
    c.code,
    c.retry_at_ms,
    b.part,
    case
      when b.part = 2 then c.status
      when b.part = 1 or c.attempt_end = 'lost' then 'ready'
      else 'running'
    end as from_status,
    case
      when b.part = 1 then 'running'
      when b.part = 2 then c.attempt_end
      when c.attempt_end <> 'lost' and c.retry_at_ms is not null then 'retry_wait'
      when c.attempt_end <> 'lost' then c.attempt_end
      when c.claim_return_count < 63 then 'ready'
      else 'failed'
    end as to_status
  from completion_end as c
  cross join (select 1 as part union all select 2 as part union all select 3 as part) as b
  where b.part > 1 or (c.step_status = 'ready' and c.attempt_end <> 'lost')
) as e;

-- from sql/decision/recovery.sql sha256 047e3d83243b1d84ef400237e0025f2b924e3407815b738fdd4a85db9b5f88a3
-- RECOVERY — what may be done about an attempt whose worker is silent (DESIGN §9).
-- A lease that expires proves nothing by itself. `recovery_due` says which evidence the clock gives
-- and when; the step writes it as an attestation, and `recovery_effect` decides from attestations.

create view recovery_due as
select
  v.run_id,
  v.attempt_id,
  case when v.status = 'claimed' then 'expired' else 'fenced' end as evidence,
  l.expires_at_ms + case when v.status = 'claimed' then 0 else l.grace_ms end as due_at_ms
from live_attempt as v
join attempt_lease as l on l.attempt_id = v.attempt_id
where l.status = 'leased'
  and (v.status = 'claimed' or (l.self_fencing = 1 and v.on_lost <> 'hold'));

-- Work past the barrier that no clock resolves: it waits for its worker, or for a declaration.
create view recovery_blocked as
select
  v.run_id,
  v.attempt_id,
  v.step_key,
  case when v.on_lost = 'hold' then 'hold' else 'evidence' end as waits_for,
  l.worker_id as waits_on,
  l.expires_at_ms as due_at_ms
from live_attempt as v
join attempt_lease as l on l.attempt_id = v.attempt_id
where l.status = 'leased'
  and v.status in ('starting', 'running')
  and (l.self_fencing = 0 or v.on_lost = 'hold');

create view recovery_end as
select
  x.run_id,
  x.attempt_id,
  x.step_key,
  x.status,
  x.version,
  x.step_status,
  x.step_version,
  x.claim_return_count,
  x.cancel_reason,
  x.attempt_end,
  x.code,
  case
    when x.cancel_reason is not null or x.started_count >= 64 then null
    when x.follow = 'retry' then x.attested_at_ms + x.delay_ms
    when x.follow = 'fail' or x.started_count >= x.retry_attempts then null
    when x.attempt_end = 'timed_out' and x.retry_timed_out = 1 then x.attested_at_ms + x.delay_ms
    when x.attempt_end = 'lost' and x.on_lost = 'retry' then x.attested_at_ms + x.delay_ms
  end as retry_at_ms
from (
  select
    v.run_id,
    v.attempt_id,
    v.step_key,
    v.status,
    v.version,
    v.step_status,
    v.step_version,
    v.started_count,
    v.claim_return_count,
    v.cancel_reason,
    v.retry_attempts,
    v.retry_timed_out,
    v.on_lost,
    v.delay_ms,
    n.follow,
    n.attested_at_ms,
    case
      when v.status <> 'claimed'
        and v.cancel_reason is null
        and v.deadline_at_ms <= n.attested_at_ms
        then 'timed_out'
      else 'lost'
    end as attempt_end,
    case
      when v.status = 'claimed' then 'claim_expired'
      when v.cancel_reason is null and v.deadline_at_ms <= n.attested_at_ms
        then 'execution_timed_out'
      else 'execution_lost'
    end as code
  from live_attempt as v
  join attestation as n on n.run_id = v.run_id and n.attempt_id = v.attempt_id
  where (n.evidence <> 'expired' or v.status = 'claimed')
    and (n.evidence <> 'fenced' or v.on_lost <> 'hold')
) as x;

-- Past the barrier, without an intent: retry_wait, timed_out, or failed (running by way of lost).
-- With an intent on_lost is not asked: a running step becomes lost, and convergence ends it.
create view recovery_effect as
select
  e.run_id,
  row_number() over (partition by e.run_id order by e.attempt_id, e.part) as ordinal,
  e.entity,
  e.entity_id,
  e.from_status,
  e.to_status,
  e.expected_version,
  e.result_code,
  e.event_type,
  e.due_at_ms,
  e.attempt_id as input_id
from (
  select
    c.run_id,
    c.attempt_id,
    1 as part,
    'attempt' as entity,
    c.attempt_id as entity_id,
    c.status as from_status,
    c.attempt_end as to_status,
    c.version as expected_version,
    c.code as result_code,
    'workflow.task_attempt.' || c.attempt_end as event_type,
    cast(null as bigint) as due_at_ms
  from recovery_end as c
  union all
  select
    c.run_id,
    c.attempt_id,
    2 as part,
    'step' as entity,
    c.step_key as entity_id,
    'ready' as from_status,
    case when c.claim_return_count < 63 then 'ready' else 'failed' end as to_status,
    c.step_version as expected_version,
    case when c.claim_return_count < 63 then null else 'claim_budget_exhausted' end as result_code,
    case when c.claim_return_count < 63 then 'step.ready' else 'step.failed' end as event_type,
    cast(null as bigint) as due_at_ms
  from recovery_end as c
  where c.status = 'claimed'
  union all
  select
    c.run_id,
    c.attempt_id,
    2 as part,
    'step' as entity,
    c.step_key as entity_id,
    c.step_status as from_status,
    'retry_wait' as to_status,
    c.step_version as expected_version,
    c.code as result_code,
    'step.retry_wait' as event_type,
    c.retry_at_ms as due_at_ms
  from recovery_end as c
  where c.status <> 'claimed' and c.retry_at_ms is not null
  union all
  select
    c.run_id,
    c.attempt_id,
    2 as part,
    'step' as entity,
    c.step_key as entity_id,
    c.step_status as from_status,
    'timed_out' as to_status,
    c.step_version as expected_version,
    c.code as result_code,
    'step.timed_out' as event_type,
    cast(null as bigint) as due_at_ms
  from recovery_end as c
  where c.status <> 'claimed' and c.retry_at_ms is null and c.attempt_end = 'timed_out'
  union all
  select
    c.run_id,
    c.attempt_id,
    2 as part,
    'step' as entity,
    c.step_key as entity_id,
    'running' as from_status,
    'lost' as to_status,
    c.step_version as expected_version,
    c.code as result_code,
    'step.lost' as event_type,
    cast(null as bigint) as due_at_ms
  from recovery_end as c
  where c.status <> 'claimed'
    and c.retry_at_ms is null
    and c.attempt_end = 'lost'
    and c.step_status = 'running'
  union all
  select
    c.run_id,
    c.attempt_id,
    3 as part,
    'step' as entity,
    c.step_key as entity_id,
    case when c.step_status = 'running' then 'lost' else 'ready' end as from_status,
    'failed' as to_status,
    c.step_version + case when c.step_status = 'running' then 1 else 0 end as expected_version,
    c.code as result_code,
    'step.failed' as event_type,
    cast(null as bigint) as due_at_ms
  from recovery_end as c
  where c.status <> 'claimed'
    and c.retry_at_ms is null
    and c.attempt_end = 'lost'
    and c.cancel_reason is null
) as e;

-- The longest that a step may wait, jitter included. A back-off that ends further ahead was written
-- by a clock that was ahead: nobody knows how much of it is left, and it is over.
create view retry_longest as
select
  s.run_id,
  s.step_key,
  s.due_at_ms,
  t.max_backoff_ms + t.max_backoff_ms / 8 as longest_ms
from step_run as s
join task_revision as t on t.task_id = s.task_id
where s.status = 'retry_wait';

-- A back-off that is over opens a new epoch. The step takes effects whose `due_at_ms` has come, or
-- is further ahead than `retry_longest` says.
create view retry_effect as
select
  s.run_id,
  row_number() over (partition by s.run_id order by s.step_key) as ordinal,
  'step' as entity,
  s.step_key as entity_id,
  'retry_wait' as from_status,
  'ready' as to_status,
  s.version as expected_version,
  cast(null as text) as result_code,
  'step.ready' as event_type,
  s.due_at_ms,
  cast(null as text) as input_id
from step_run as s
where s.status = 'retry_wait'
  and (
    select case when r.cancel_requested_at_ms is null then r.status end
    from run as r
    where r.run_id = s.run_id
  ) = 'running';

-- from sql/decision/cancellation.sql sha256 2172616e6147a561e58eb6b9461bd9a48fbadfa4185b73501e49437def846d49
-- CANCELLATION — an intent first, convergence after it (DOMAIN §3.9, DESIGN §5).
-- The first intent wins. Convergence ends what nobody holds: attempts without a live lease, steps
-- without such an attempt, and the run once nothing stands in the way. A lease with status `leased`
-- blocks even after its expiry; recovery releases it. The reason decides between the two ends.

create view intent_effect as
select
  r.run_id,
  cast(1 as bigint) as ordinal,
  'run' as entity,
  r.run_id as entity_id,
  'running' as from_status,
  'running' as to_status,
  r.version as expected_version,
  cast(null as text) as result_code,
  'run.cancel_requested' as event_type,
  cast(null as bigint) as due_at_ms,
  r.run_id as input_id
from run as r
where r.status = 'running'
  and r.cancel_requested_at_ms is null
  and exists (select 1 from cancel_intent as i where i.run_id = r.run_id);

create view cancellation_blocked as
select
  v.run_id,
  v.step_key,
  v.attempt_id,
  case when v.status = 'claimed' then 'lease' else 'report' end as waits_for
from live_attempt as v
where v.cancel_reason is not null and (v.status <> 'claimed' or v.lease_status = 'leased')
union all
select
  s.run_id,
  s.step_key,
  cast(null as text) as attempt_id,
  'evidence' as waits_for
from step_run as s
where s.status = 'running'
  and (select r.cancel_reason from run as r where r.run_id = s.run_id) is not null
  and not exists (
    select 1
    from task_attempt as a
    where a.run_id = s.run_id
      and a.step_key = s.step_key
      and a.status in ('claimed', 'starting', 'running')
  );

create view cancellation_effect as
select
  e.run_id,
  row_number() over (partition by e.run_id order by e.part, e.entity_id) as ordinal,
  e.entity,
  e.entity_id,
  e.from_status,
  e.to_status,
  e.expected_version,
  case e.entity when 'attempt' then 'execution_' else 'workflow_' end || e.to_status as result_code,
  case e.entity
    when 'attempt' then 'workflow.task_attempt.'
    when 'step' then 'step.'
    else 'workflow.'
  end || e.to_status as event_type,
  cast(null as bigint) as due_at_ms,
  cast(null as text) as input_id
from (
  select
    v.run_id,
    1 as part,
    'attempt' as entity,
    v.attempt_id as entity_id,
    v.status as from_status,
    case when v.cancel_reason = 'timeout' then 'timed_out' else 'cancelled' end as to_status,
    v.version as expected_version
  from live_attempt as v
  where v.status = 'claimed' and v.lease_status is distinct from 'leased'
    and v.cancel_reason is not null
  union all
  select
    s.run_id,
    2 as part,
    'step' as entity,
    s.step_key as entity_id,
    s.status as from_status,
    case
      when s.status in ('pending', 'lost') then 'cancelled'
      when (select r.cancel_reason from run as r where r.run_id = s.run_id) = 'timeout'
        then 'timed_out'
      else 'cancelled'
    end as to_status,
    s.version as expected_version
  from step_run as s
  where s.status in ('pending', 'lost', 'ready', 'waiting_approval', 'retry_wait')
    and (select r.cancel_reason from run as r where r.run_id = s.run_id) is not null
    and not exists (
      select 1
      from task_attempt as a
      where a.run_id = s.run_id
        and a.step_key = s.step_key
        and (
          a.status in ('starting', 'running')
          or (
            a.status = 'claimed'
            and (select l.status from attempt_lease as l where l.attempt_id = a.attempt_id)
              is not distinct from 'leased'
          )
        )
    )
  union all
  select
    r.run_id,
    3 as part,
    'run' as entity,
    r.run_id as entity_id,
    'running' as from_status,
    case when r.cancel_reason = 'timeout' then 'timed_out' else 'cancelled' end as to_status,
    r.version as expected_version
  from run as r
  where r.cancel_reason is not null
    and (select count(*) from cancellation_blocked as b where b.run_id = r.run_id) = 0
) as e
where (
    select case when r.cancel_requested_at_ms is not null then r.status end
    from run as r
    where r.run_id = e.run_id
  ) = 'running';

-- from sql/decision/retention.sql sha256 46e4a0a1c43ff7b099b1dfdeb0bd21e35c375ad8b40de5e7e6b89306819b5d5f
-- RETENTION — which runs may go (DESIGN §5). When is the caller's: the step compares
-- finished_at_ms with the time that it is given.

-- Ended, and nothing of it can still be executing. Whatever belongs to the run goes with it.
create view retention_due as
select
  r.run_id,
  r.finished_at_ms
from run as r
where r.finished_at_ms is not null
  and r.status <> 'running'
  and not exists (
    select 1
    from task_attempt as a
    where a.run_id = r.run_id and a.finished_at_ms is null
  );

-- from sql/decision/explain.sql sha256 ce946e245dd2fe36ac6c4f74e163fcb912ab43489e90474127aa0ff37ddcdb4b
-- EXPLAIN — why something does not move: one row for each thing that a live run waits for.
-- `after_due` is what it waits for once `due_at_ms` has passed without a word: views have no clock.
-- waits_for: need, retry, admission, lease, worker, report, evidence, hold, intent, fault, queue.

create view explain as
select
  e.run_id,
  e.step_key,
  e.attempt_id,
  e.status,
  e.waits_for,
  e.waits_on,
  e.since_ms,
  e.due_at_ms,
  e.after_due,
  e.resolved_by
from (
  -- pending, without an intent
  select
    s.run_id,
    s.step_key,
    cast(null as text) as attempt_id,
    s.status,
    'need' as waits_for,
    f.waits_on,
    (select r.admitted_at_ms from run as r where r.run_id = s.run_id) as since_ms,
    cast(null as bigint) as due_at_ms,
    cast(null as text) as after_due,
    'the end of that step' as resolved_by,
    0 as under_intent
  from step_run as s
  join frontier_blocked as f on f.run_id = s.run_id and f.step_key = s.step_key
  union all
  select
    s.run_id,
    s.step_key,
    cast(null as text) as attempt_id,
    s.status,
    'need' as waits_for,
    'frontier' as waits_on,
    (select r.admitted_at_ms from run as r where r.run_id = s.run_id) as since_ms,
    cast(null as bigint) as due_at_ms,
    cast(null as text) as after_due,
    'the frontier stage, next cycle' as resolved_by,
    0 as under_intent
  from frontier_ready as s0
  join step_run as s on s.run_id = s0.run_id and s.step_key = s0.step_key
  union all
  -- ready, not yet admitted
  select
    t.run_id,
    t.entity_id as step_key,
    cast(null as text) as attempt_id,
    'ready' as status,
    'admission' as waits_for,
    'task_admission' as waits_on,
    (
      select s.ready_at_ms
      from step_run as s
      where s.run_id = t.run_id and s.step_key = t.entity_id
    ) as since_ms,
    cast(null as bigint) as due_at_ms,
    cast(null as text) as after_due,
    'the task admission stage, next cycle' as resolved_by,
    0 as under_intent
  from (
    select
      s.run_id,
      s.step_key as entity_id
    from step_run as s
    where s.status = 'ready'
      and not exists (
        select 1
        from task_attempt as a
        where a.run_id = s.run_id and a.step_key = s.step_key and a.epoch = s.version
      )
  ) as t
  union all
  -- admitted, held by nobody
  select
    a.run_id,
    a.step_key,
    a.attempt_id,
    a.status,
    case
      when exists (select 1 from worker_session as w where w.status = 'online') then 'queue'
      else 'worker'
    end as waits_for,
    a.queue as waits_on,
    a.admitted_at_ms as since_ms,
    cast(null as bigint) as due_at_ms,
    cast(null as text) as after_due,
    'a worker of this queue with a free slot' as resolved_by,
    0 as under_intent
  from task_attempt as a
  where a.status = 'claimed'
    and (select l.status from attempt_lease as l where l.attempt_id = a.attempt_id)
      is distinct from 'leased'
  union all
  -- leased, not started; or past the barrier
  select
    v.run_id,
    v.step_key,
    v.attempt_id,
    v.status,
    case when v.status = 'claimed' then 'lease' else 'report' end as waits_for,
    l.worker_id as waits_on,
    l.leased_at_ms as since_ms,
    l.expires_at_ms as due_at_ms,
    case
      when v.status = 'claimed' then null
      when v.on_lost = 'hold' then 'hold'
      when l.self_fencing = 0 then 'evidence'
    end as after_due,
    case
      when v.status = 'claimed' then 'the worker starts it, or recovery returns it after due_at_ms'
      when v.on_lost = 'hold' or l.self_fencing = 0
        then 'the worker reports; after due_at_ms: its worker comes back, or declare-stopped'
      when v.cancel_reason is not null
        then 'the worker stops it and reports, or recovery after due_at_ms'
      else 'the worker reports, or recovery after due_at_ms'
    end as resolved_by,
    1 as under_intent
  from live_attempt as v
  join attempt_lease as l on l.attempt_id = v.attempt_id
  where l.status = 'leased'
  union all
  select
    s.run_id,
    s.step_key,
    cast(null as text) as attempt_id,
    s.status,
    'retry' as waits_for,
    s.result_code as waits_on,
    s.started_at_ms as since_ms,
    s.due_at_ms,
    cast(null as text) as after_due,
    'the retry stage at due_at_ms' as resolved_by,
    0 as under_intent
  from step_run as s
  where s.status = 'retry_wait'
  union all
  -- under an intent, held by nobody
  select
    c.run_id,
    case c.entity when 'step' then c.entity_id end as step_key,
    case c.entity when 'attempt' then c.entity_id end as attempt_id,
    c.from_status as status,
    'intent' as waits_for,
    (select r.cancel_reason from run as r where r.run_id = c.run_id) as waits_on,
    (select r.cancel_requested_at_ms from run as r where r.run_id = c.run_id) as since_ms,
    cast(null as bigint) as due_at_ms,
    cast(null as text) as after_due,
    'convergence, next cycle' as resolved_by,
    1 as under_intent
  from cancellation_effect as c
  union all
  select
    f.run_id,
    cast(null as text) as step_key,
    cast(null as text) as attempt_id,
    'running' as status,
    'fault' as waits_for,
    f.stage as waits_on,
    f.first_at_ms as since_ms,
    f.next_try_at_ms as due_at_ms,
    cast(null as text) as after_due,
    f.error as resolved_by,
    1 as under_intent
  from run_fault as f
) as e
where (select r.status from run as r where r.run_id = e.run_id) = 'running'
  and (
    e.under_intent = 1
    or (select r.cancel_requested_at_ms from run as r where r.run_id = e.run_id) is null
  );

-- from sql/decision/violation.sql sha256 da025af4adbbe276536de34b39664673e58d513aeb8914f22682ba793651c610
-- VIOLATION — what must never be true. Empty, always; `doctor` and every test read it.

-- Work that is due but not on the agenda: recovery sweeps for it slowly and puts it back.
create view agenda_missing as
select
  m.run_id,
  m.stage,
  m.due_at_ms
from (
  select distinct
    f.run_id,
    'frontier' as stage,
    cast(0 as bigint) as due_at_ms
  from frontier_effect as f
  union all
  select distinct
    t.run_id,
    'task_admission' as stage,
    cast(0 as bigint) as due_at_ms
  from task_admission_effect as t
  union all
  select distinct
    c.run_id,
    'cancellation' as stage,
    cast(0 as bigint) as due_at_ms
  from cancellation_effect as c
  union all
  select
    r.run_id,
    'deadline' as stage,
    r.deadline_at_ms as due_at_ms
  from run as r
  where r.status = 'running' and r.cancel_requested_at_ms is null and r.deadline_at_ms is not null
  union all
  select
    s.run_id,
    'retry' as stage,
    min(s.due_at_ms) as due_at_ms
  from step_run as s
  where s.status = 'retry_wait'
    and (
      select case when r.cancel_requested_at_ms is null then r.status end
      from run as r
      where r.run_id = s.run_id
    ) = 'running'
  group by s.run_id
  union all
  select
    d.run_id,
    'expiry' as stage,
    min(d.due_at_ms) as due_at_ms
  from recovery_due as d
  group by d.run_id
) as m
where not exists (
  select 1
  from agenda as a
  where a.run_id = m.run_id
    and a.stage = m.stage
    and (a.due_at_ms <= m.due_at_ms or m.due_at_ms = 0 or exists (
      select 1 from run_fault as f where f.run_id = m.run_id and f.stage = m.stage
    ))
);

-- A row is right only from `since_ms` on: before, it is of a clock that was ahead, and the sweep
-- brings it to `wait_ms` from now. Only a fault may put off what is done at once, for its longest
-- back-off; a deadline and a lease end when they say.
create view agenda_ahead as
select
  a.run_id,
  a.stage,
  a.due_at_ms,
  case
    when a.faults > 0 then a.due_at_ms - 300000
    when a.stage = 'retry' then (
      select max(w.due_at_ms - w.longest_ms)
      from retry_longest as w
      where w.run_id = a.run_id
    )
    else a.due_at_ms
  end as since_ms,
  case when a.faults > 0 then 300000 else 0 end as wait_ms
from (
  select
    g.run_id,
    g.stage,
    g.due_at_ms,
    (
      select count(*) from run_fault as f where f.run_id = g.run_id and f.stage = g.stage
    ) as faults
  from agenda as g
) as a
where a.faults > 0 or a.stage in ('frontier', 'task_admission', 'cancellation', 'retry');

create view violation as
select
  a.run_id,
  'due_work_is_on_the_agenda' as rule,
  a.stage as entity_id
from agenda_missing as a
union all
select
  r.run_id,
  'run_version_is_its_event_count' as rule,
  r.run_id as entity_id
from run as r
where 1 = (
    select case when count(*) <> r.version or coalesce(max(e.sequence), 0) <> r.version then 1 end
    from run_event as e
    where e.run_id = r.run_id
  )
union all
select
  e.run_id,
  'event_times_never_step_back' as rule,
  cast(e.sequence as text) as entity_id
from run_event as e
join run_event as b on b.run_id = e.run_id and b.sequence = e.sequence - 1
where b.created_at_ms > e.created_at_ms
union all
select
  e.run_id,
  'events_follow_the_state_machine' as rule,
  cast(e.sequence as text) as entity_id
from run_event as e
where e.from_status is not null
  and (e.entity, e.from_status, e.to_status) not in (
    select t.entity, t.from_status, t.to_status from state_transition as t
  )
union all
-- A step stands behind its last event, so that one window counts them and looks back: a look for
-- each of them would cost the square of a run's length.
select
  c.run_id,
  'step_is_what_its_events_say' as rule,
  c.entity_id
from (
  select
    f.run_id, f.entity_id, f.version, f.status,
    row_number() over (partition by f.run_id, f.entity_id order by f.sequence) - 1 as event_count,
    lag(f.status) over (partition by f.run_id, f.entity_id order by f.sequence) as last_status
  from (
    select s.run_id, s.step_key as entity_id, s.version, s.status, 9223372036854775807 as sequence
    from step_run as s
    union all
    select e.run_id, e.entity_id, cast(null as bigint) as version, e.to_status, e.sequence
    from run_event as e
    where e.entity = 'step'
  ) as f
) as c
where c.version <> c.event_count
  or (c.version is not null and c.status is distinct from c.last_status)
union all
select
  c.run_id,
  'attempt_is_what_its_events_say' as rule,
  c.entity_id
from (
  select
    f.run_id, f.entity_id, f.version, f.status,
    row_number() over (partition by f.run_id, f.entity_id order by f.sequence) - 1 as event_count,
    lag(f.status) over (partition by f.run_id, f.entity_id order by f.sequence) as last_status
  from (
    select a.run_id, a.attempt_id as entity_id, a.version, a.status, 9223372036854775807 as sequence
    from task_attempt as a
    union all
    select e.run_id, e.entity_id, cast(null as bigint) as version, e.to_status, e.sequence
    from run_event as e
    where e.entity = 'attempt'
  ) as f
) as c
where c.version <> c.event_count
  or (c.version is not null and c.status is distinct from c.last_status)
union all
select
  r.run_id,
  'attempts_are_counted' as rule,
  r.run_id as entity_id
from run as r
where r.attempt_count <> (select count(*) from task_attempt as a where a.run_id = r.run_id)
  or r.attempt_count
    <> (select coalesce(max(a.number), 0) from task_attempt as a where a.run_id = r.run_id)
union all
select
  r.run_id,
  'a_run_has_all_its_steps' as rule,
  r.run_id as entity_id
from run as r
where r.step_count <> (select count(*) from step_run as s where s.run_id = r.run_id)
  or r.version = 0
union all
select
  s.run_id,
  'a_terminal_run_has_only_terminal_steps' as rule,
  s.step_key as entity_id
from step_run as s
where s.finished_at_ms is null
  and (select r.status from run as r where r.run_id = s.run_id) <> 'running'
union all
select
  a.run_id,
  'a_terminal_run_has_no_live_attempt' as rule,
  a.attempt_id as entity_id
from task_attempt as a
where a.status in ('claimed', 'starting', 'running')
  and (select r.status from run as r where r.run_id = a.run_id) <> 'running'
union all
select
  a.run_id,
  'a_terminal_run_has_no_agenda' as rule,
  a.stage as entity_id
from agenda as a
where (select r.status from run as r where r.run_id = a.run_id) is distinct from 'running'
union all
select
  s.run_id,
  'a_running_step_has_one_live_attempt' as rule,
  s.step_key as entity_id
from step_run as s
where (s.status = 'running') <> (
    (
      select count(*)
      from task_attempt as a
      where a.run_id = s.run_id
        and a.step_key = s.step_key
        and a.status = 'running'
        and a.epoch + 1 = s.version
    ) = 1
  )
union all
select
  a.run_id,
  'a_live_attempt_sits_on_its_epoch' as rule,
  a.attempt_id as entity_id
from task_attempt as a
where (
    a.status in ('claimed', 'starting')
    and not exists (
      select 1
      from step_run as s
      where s.run_id = a.run_id
        and s.step_key = a.step_key
        and s.status = 'ready'
        and s.version = a.epoch
    )
  )
  or (
    a.status = 'running'
    and not exists (
      select 1
      from step_run as s
      where s.run_id = a.run_id
        and s.step_key = a.step_key
        and s.status = 'running'
        and s.version = a.epoch + 1
    )
  )
union all
select
  a.run_id,
  'work_past_the_barrier_has_a_lease' as rule,
  a.attempt_id as entity_id
from task_attempt as a
where a.status in ('starting', 'running')
  and (select l.status from attempt_lease as l where l.attempt_id = a.attempt_id)
    is distinct from 'leased'
union all
select
  a.run_id,
  'a_held_lease_belongs_to_a_live_attempt' as rule,
  a.attempt_id as entity_id
from task_attempt as a
where a.finished_at_ms is not null
  and (select l.status from attempt_lease as l where l.attempt_id = a.attempt_id) = 'leased'
union all
select
  e.run_id,
  'a_lease_belongs_to_an_attempt_of_its_run' as rule,
  e.entity_id
from run_event as e
where e.entity = 'lease'
  and (
    (select a.run_id from task_attempt as a where a.attempt_id = e.entity_id)
      is distinct from e.run_id
    or (select l.run_id from attempt_lease as l where l.attempt_id = e.entity_id)
      is distinct from e.run_id
  )
union all
select
  o.run_id,
  'only_a_succeeded_step_has_output' as rule,
  o.step_key as entity_id
from step_output as o
where (
    select s.status from step_run as s where s.run_id = o.run_id and s.step_key = o.step_key
  ) is distinct from 'succeeded'
union all
select
  s.run_id,
  'a_succeeded_step_has_its_attempt' as rule,
  s.step_key as entity_id
from step_run as s
where s.status = 'succeeded'
  and s.result_code is null
  and not exists (
    select 1
    from task_attempt as a
    where a.run_id = s.run_id and a.step_key = s.step_key and a.status = 'succeeded'
  )
union all
select
  s.run_id,
  'only_a_retry_takes_over_what_never_ran_in_it' as rule,
  s.step_key as entity_id
from step_run as s
where s.result_code = 'taken_over'
  and (
    (select r.retry_of_run_id from run as r where r.run_id = s.run_id) is null
    or exists (
      select 1 from task_attempt as a where a.run_id = s.run_id and a.step_key = s.step_key
    )
  )
union all
select
  i.run_id,
  'an_intent_is_on_its_run' as rule,
  i.run_id as entity_id
from cancel_intent as i
where (select r.cancel_reason from run as r where r.run_id = i.run_id) is distinct from i.reason
union all
select
  r.run_id,
  'a_run_has_its_intent' as rule,
  r.run_id as entity_id
from run as r
where r.cancel_reason is not null
  and not exists (select 1 from cancel_intent as i where i.run_id = r.run_id)
union all
select
  o.run_id,
  'every_row_belongs_to_a_run' as rule,
  o.entity_id
from (
  select e.run_id, cast(e.sequence as text) as entity_id from run_event as e
  union all
  select n.run_id, n.run_id as entity_id from run_input as n
  union all
  select s.run_id, s.step_key as entity_id from step_run as s
  union all
  select t.run_id, t.step_key as entity_id from step_output as t
  union all
  select a.run_id, a.attempt_id as entity_id from task_attempt as a
  union all
  select l.run_id, l.attempt_id as entity_id from attempt_lease as l
  union all
  select p.run_id, p.attempt_id as entity_id from attempt_report as p
  union all
  select f.run_id, f.attempt_id as entity_id from attempt_offer as f
  union all
  select x.run_id, x.attempt_id as entity_id from refused_report as x
  union all
  select w.run_id, w.attempt_id as entity_id from attestation as w
  union all
  select i.run_id, i.run_id as entity_id from cancel_intent as i
  union all
  select g.run_id, g.stage as entity_id from agenda as g
  union all
  select u.run_id, u.stage as entity_id from run_fault as u
) as o
where not exists (select 1 from run as r where r.run_id = o.run_id);

-- from sql/decision/reading.sql sha256 5e0d8b5b06f71de7457e163aedfd720de34a6286f30586cf58d08a16dbfc5ae0
-- READING — what people and tools look at: the state of things, without the columns that only
-- machines need (no token digests, no identities). Filter by the leading columns.

create view package_state as
select
  g.package_key,
  g.generation,
  g.state,
  g.digest,
  g.published_at_ms,
  g.ended_at_ms,
  (select p.base_dir from package as p where p.package_key = g.package_key) as base_dir
from package_generation as g;

create view target_state as
select
  w.package_key,
  w.generation,
  'workflow' as kind,
  w.workflow_key as target_key,
  w.workflow_id as target_id,
  w.timeout_ms,
  w.step_count
from workflow_revision as w
union all
select
  t.package_key,
  t.generation,
  'task' as kind,
  t.task_key as target_key,
  t.task_id as target_id,
  t.timeout_ms,
  cast(1 as bigint) as step_count
from task_revision as t;

create view trigger_state as
select
  t.package_key,
  t.trigger_key,
  t.generation,
  t.state,
  t.cron,
  t.tz,
  t.kind,
  t.target_key,
  t.misfire,
  t.overlap,
  (
    select s.next_fire_at_ms
    from trigger_schedule as s
    where s.package_key = t.package_key and s.trigger_key = t.trigger_key
  ) as next_fire_at_ms
from trigger as t;

create view run_state as
select
  r.run_id,
  r.package_key,
  r.generation,
  r.kind,
  r.target_key,
  r.target_id,
  r.run_key,
  r.input_digest,
  r.retry_of_run_id,
  r.step_count,
  r.status,
  r.version,
  r.attempt_count,
  r.admitted_at_ms,
  r.deadline_at_ms,
  r.cancel_requested_at_ms,
  r.cancel_reason,
  r.result_code,
  r.finished_at_ms,
  r.updated_at_ms
from run as r;

-- The literal is what the index of open runs is found by.
create view open_run as
select
  r.run_id,
  r.package_key,
  r.generation,
  r.kind,
  r.target_key,
  r.target_id,
  r.run_key,
  r.input_digest,
  r.retry_of_run_id,
  r.step_count,
  r.status,
  r.version,
  r.attempt_count,
  r.admitted_at_ms,
  r.deadline_at_ms,
  r.cancel_requested_at_ms,
  r.cancel_reason,
  r.result_code,
  r.finished_at_ms,
  r.updated_at_ms
from run as r
where r.finished_at_ms is null;

create view intent_state as
select
  i.run_id,
  i.reason,
  i.actor,
  i.requested_at_ms
from cancel_intent as i;

create view input_state as
select
  i.run_id,
  i.input
from run_input as i;

create view step_state as
select
  s.run_id,
  s.step_key,
  s.status,
  s.version,
  s.attempt_count,
  s.claim_return_count,
  s.ready_at_ms,
  s.started_at_ms,
  s.finished_at_ms,
  s.due_at_ms,
  s.result_code,
  t.task_key,
  t.queue,
  t.on_lost,
  (select o.output from step_output as o where o.run_id = s.run_id and o.step_key = s.step_key)
    as output
from step_run as s
join task_revision as t on t.task_id = s.task_id;

create view step_need as
select
  s.run_id,
  s.step_key,
  w.ancestor_key as need_key
from step_run as s
join workflow_ancestor as w
  on w.workflow_id = (select r.target_id from run as r where r.run_id = s.run_id)
  and w.step_key = s.step_key
  and w.distance = 1;

create view attempt_state as
select
  a.run_id,
  a.attempt_id,
  a.number,
  a.step_key,
  a.epoch,
  a.queue,
  a.status,
  a.admitted_at_ms,
  a.starting_at_ms,
  a.started_at_ms,
  a.finished_at_ms,
  a.deadline_at_ms,
  a.exit_code,
  a.result_code,
  (select l.status from attempt_lease as l where l.attempt_id = a.attempt_id) as lease_status,
  (select l.worker_id from attempt_lease as l where l.attempt_id = a.attempt_id) as worker_id,
  (select l.offer_id from attempt_lease as l where l.attempt_id = a.attempt_id) as offer_id,
  (select l.fence from attempt_lease as l where l.attempt_id = a.attempt_id) as fence,
  (select l.expires_at_ms from attempt_lease as l where l.attempt_id = a.attempt_id)
    as lease_expires_at_ms,
  (
    select p.error
    from attempt_report as p
    where p.run_id = a.run_id and p.attempt_id = a.attempt_id and p.kind = 'ended'
    order by p.fence desc
    limit 1
  ) as error
from task_attempt as a;

create view event_log as
select
  e.run_id,
  e.sequence,
  e.type,
  e.entity,
  e.entity_id,
  e.from_status,
  e.to_status,
  e.entity_version,
  e.result_code,
  e.created_at_ms
from run_event as e;

create view attestation_state as
select
  n.run_id,
  n.attempt_id,
  n.evidence,
  n.follow,
  n.reason,
  n.actor,
  n.attested_at_ms
from attestation as n;

create view refused_state as
select
  f.run_id,
  f.attempt_id,
  f.ordinal,
  f.code,
  f.kind,
  f.how,
  f.exit_code,
  f.fence,
  f.refused_at_ms
from refused_report as f;

create view agenda_state as
select
  a.run_id,
  a.stage,
  a.due_at_ms
from agenda as a;

create view fault_state as
select
  f.run_id,
  f.stage,
  f.error,
  f.fault_count,
  f.first_at_ms,
  f.last_at_ms,
  f.next_try_at_ms
from run_fault as f;

create view worker_state as
select
  w.worker_id,
  w.session_id,
  w.generation,
  w.status,
  w.queues,
  w.slots,
  w.self_fencing,
  w.registered_at_ms
from worker_session as w;

-- What waits for a worker, by queue; only waiting work is read.
create view queue_state as
select
  a.queue,
  count(*) as waiting_count,
  min(a.offer_at_ms) as oldest_at_ms
from task_attempt as a
where a.offer_at_ms is not null
group by a.queue;

set local search_path = pg_catalog, pg_temp;

-- from sql/postgres/effect.sql sha256 a7b7bfb6a71abf38e82c110946018383c522e1df4d9d50cd9d6237a938a01188
-- EFFECT — the only code that moves a state (DESIGN §4). Effects come from a decision view, are
-- read after every lock, and may span many runs; ordinals inside a run may have holes.
--
-- The runs are moved first: their version gives each effect its sequence, and `updated_at_ms` is
-- the effect time: the later of now and the run's newest time, so a clock that steps back never
-- breaks the write that ends a run. Nearly always that is one time for all runs, which then nobody
-- has to look up (p_at_ms; null when they differ).
-- An entity is updated once: compare-and-swap on its first effect, status of its last, version plus
-- the number of its effects. What a command brought is joined from its input row by `input_id`.

-- HELPER   apply_effects — apply what a stage decided; p_stage tells convergence from the rest
-- LOCKS    held by the caller: 1 to 5 as far as the effects reach
-- WRITES   run, run_event, step_run, step_output, task_attempt, attempt_lease, agenda, run_fault
-- RETURNS  the number of effects
-- RAISES   QL409
create or replace function ql.apply_effects (p_effects ql.effect[], p_stage text)
returns bigint
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_count bigint := coalesce(cardinality(p_effects), 0)::bigint;
  v_step_new bigint;
  v_step bigint;
  v_attempt_new bigint;
  v_attempt bigint;
  v_lease bigint;
  v_moved record;
begin
  if v_count = 0 then
    return v_count;
  end if;
  select
    count(*) filter (where e.entity = 'step' and e.from_status is null),
    count(*) filter (where e.entity = 'step' and e.from_status is not null),
    count(*) filter (where e.entity = 'attempt' and e.from_status is null),
    count(*) filter (where e.entity = 'attempt' and e.from_status is not null),
    count(*) filter (where e.entity = 'lease')
  into v_step_new, v_step, v_attempt_new, v_attempt, v_lease
  from unnest(p_effects) as e;

  v_moved := ql.move_runs(p_effects, v_count);
  perform ql.write_events(p_effects, v_moved.versions, v_moved.at_ms);
  if v_step_new > 0 then
    perform ql.add_steps(p_effects, v_step_new);
  end if;
  if v_step > 0 then
    perform ql.move_steps(p_effects, v_step, v_moved.at_ms);
  end if;
  if v_attempt_new > 0 then
    perform ql.add_attempts(p_effects, v_attempt_new, v_moved.at_ms);
  end if;
  if v_attempt > 0 then
    perform ql.move_attempts(p_effects, v_attempt, v_moved.at_ms);
    perform ql.keep_outputs(p_effects);  -- finds the report by the fence, so before leases close
    perform ql.close_leases(p_effects, v_moved.at_ms);
  end if;
  if v_lease > 0 then
    perform ql.move_leases(p_effects, v_lease, v_moved.at_ms);
  end if;
  perform ql.announce(p_effects, p_stage);
  return v_count;
end;
$$;

-- HELPER   assert_all_hit — every entity was there as the decision saw it: the effects of what
--          was hit are all there are
-- RAISES   QL409
create or replace function ql.assert_all_hit (p_entity text, p_wanted bigint, p_hit bigint)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if p_wanted <> p_hit then
    raise exception 'compare-and-swap lost: % of % % effects found what the decision saw',
      p_hit, p_wanted, p_entity
      using errcode = 'QL409';
  end if;
end;
$$;

-- HELPER   move_runs — count what happened to each run, end it, or note its intent
-- WRITES   run
-- RETURNS  by run_id the version that each had; the effect time, if it is the same for all
-- RAISES   QL409
create or replace function ql.move_runs (
  p_effects ql.effect[],
  p_wanted bigint,
  out versions bigint[],
  out at_ms bigint
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now_ms bigint := ql.now_ms();
  v_hit bigint;
begin
  -- every effect of a run starts from `running`; at admission the run has been inserted before
  with moved as (
    update ql.run as r
    set
      status = coalesce(m.to_status, r.status),
      version = r.version + m.effect_count,
      attempt_count = r.attempt_count + m.admitted_count,
      cancel_requested_at_ms = case
        when m.intent_count = 0 then r.cancel_requested_at_ms
        else (select i.requested_at_ms from ql.cancel_intent as i where i.run_id = r.run_id)
      end,
      cancel_reason = case
        when m.intent_count = 0 then r.cancel_reason
        else (select i.reason from ql.cancel_intent as i where i.run_id = r.run_id)
      end,
      result_code = case when m.to_status <> 'running' then m.result_code end,
      finished_at_ms = case
        when m.to_status <> 'running' then greatest(v_now_ms, r.updated_at_ms)
      end,
      updated_at_ms = greatest(v_now_ms, r.updated_at_ms)
    from (
      select
        e.run_id,
        count(*) as effect_count,
        count(*) filter (where e.entity = 'attempt' and e.from_status is null) as admitted_count,
        count(*) filter (where e.event_type = 'run.cancel_requested') as intent_count,
        min(e.expected_version) filter (where e.entity = 'run') as expected_version,
        (array_agg(e.to_status order by e.ordinal desc) filter (where e.entity = 'run'))[1]
          as to_status,
        (array_agg(e.result_code order by e.ordinal desc) filter (where e.entity = 'run'))[1]
          as result_code
      from unnest(p_effects) as e
      group by e.run_id
    ) as m
    where r.run_id = m.run_id
      and r.status = 'running'
      and r.version = coalesce(m.expected_version, r.version)
    returning r.run_id, m.effect_count, r.version - m.effect_count as version, r.updated_at_ms
  )
  select
    coalesce(sum(w.effect_count), 0)::bigint,
    array_agg(w.version order by w.run_id),
    case when min(w.updated_at_ms) = max(w.updated_at_ms) then min(w.updated_at_ms) end
  into v_hit, versions, at_ms
  from moved as w;
  perform ql.assert_all_hit('run', p_wanted, v_hit);
end;
$$;

-- HELPER   write_events — one row of history for each effect, in the order of the ordinals
-- WRITES   run_event
create or replace function ql.write_events (
  p_effects ql.effect[],
  p_versions bigint[],
  p_at_ms bigint
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan  -- else planned at each call, and no better
as $$
begin
  insert into ql.run_event (
    run_id, sequence, type, entity, entity_id, from_status, to_status, entity_version, result_code,
    input_id, created_at_ms
  )
  select
    x.run_id,
    x.sequence,
    x.event_type,
    x.entity,
    x.entity_id,
    x.from_status,
    x.to_status,
    case x.entity when 'run' then x.sequence else x.expected_version + 1 end,
    x.result_code,
    x.input_id,
    coalesce(p_at_ms, (select r.updated_at_ms from ql.run as r where r.run_id = x.run_id))
  from (
    select
      e.*,
      p_versions[dense_rank() over (order by e.run_id)]
        + row_number() over (partition by e.run_id order by e.ordinal) as sequence
    from unnest(p_effects) as e
  ) as x;
end;
$$;

-- HELPER   announce — put what is due next on the agenda, and take off what is not (DESIGN §5)
-- WRITES   agenda, run_fault
create or replace function ql.announce (p_effects ql.effect[], p_stage text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now_ms bigint := ql.now_ms();  -- the effect time may lie ahead of a clock that stepped back
  v_ended text[];
  v_intended text[];
begin
  select
    array_agg(e.run_id) filter (where e.to_status <> 'running'),
    array_agg(e.run_id) filter (where e.event_type = 'run.cancel_requested')
  into v_ended, v_intended
  from unnest(p_effects) as e
  where e.entity = 'run';

  if v_ended is not null then
    delete from ql.agenda as a
    where a.run_id = any (v_ended);
    delete from ql.run_fault as f
    where f.run_id = any (v_ended);
  end if;
  if v_intended is not null then
    delete from ql.agenda as a
    where a.run_id = any (v_intended)
      and a.stage in ('frontier', 'task_admission', 'retry', 'deadline');
  end if;

  insert into ql.agenda as a (run_id, stage, due_at_ms)
  select
    g.run_id,
    d.stage,
    d.due_at_ms
  from (
    select
      e.run_id,
      count(*) filter (where e.entity = 'run') as run_count,
      count(*) filter (where e.entity = 'step' and e.to_status = 'ready') as ready_count,
      count(*) filter (
        where e.entity = 'step'
          and e.to_status in ('succeeded', 'failed', 'skipped', 'cancelled', 'timed_out')
      ) as end_count,
      min(e.due_at_ms) filter (where e.entity = 'step' and e.to_status = 'retry_wait')
        as retry_at_ms
    from unnest(p_effects) as e
    group by e.run_id
  ) as g
  join ql.run as r on r.run_id = g.run_id
  cross join lateral (
    values
      -- convergence clears its own row by its outcome, the frontier after its decision
      (
        'cancellation',
        case
          when r.cancel_requested_at_ms is not null
            and (p_stage <> 'cancellation' or g.run_count > 0)
            then least(r.updated_at_ms, v_now_ms)
        end
      ),
      ('deadline', case when g.run_count > 0 then r.deadline_at_ms end),
      ('task_admission', case when g.ready_count > 0 then least(r.updated_at_ms, v_now_ms) end),
      ('retry', g.retry_at_ms),
      (
        'frontier',
        case
          when g.end_count > 0 and p_stage <> 'frontier' then least(r.updated_at_ms, v_now_ms)
        end
      )
  ) as d (stage, due_at_ms)
  where r.status = 'running'
    and d.due_at_ms is not null
    and (d.stage = 'cancellation' or r.cancel_requested_at_ms is null)
  union all
  select
    e.run_id,
    'expiry',
    min(o.expires_at_ms)
  from unnest(p_effects) as e
  join ql.attempt_offer as o on o.offer_id = e.input_id and o.attempt_id = e.entity_id
  where e.entity = 'lease' and e.to_status = 'leased'
  group by e.run_id
  on conflict (run_id, stage) do update
  set due_at_ms = excluded.due_at_ms
  where excluded.due_at_ms < a.due_at_ms;
end;
$$;

-- from sql/postgres/effect_step.sql sha256 4b8385b42c6c2cc587b4b3e82af33ea7db7edaa3b3e7267f11573c4d9233261e
-- EFFECTS ON STEPS — called by apply_effects (effect.sql) and by nothing else. The effect time is
-- the run's `updated_at_ms`.

-- HELPER   add_steps — insert the steps of an admission
-- WRITES   step_run
-- RAISES   QL409
create or replace function ql.add_steps (p_effects ql.effect[], p_wanted bigint)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_hit bigint;
begin
  insert into ql.step_run (
    run_id, step_key, task_id, status, version, attempt_count, claim_return_count, ready_at_ms,
    finished_at_ms, result_code
  )
  select
    e.run_id,
    e.entity_id,
    e.input_id,
    e.to_status,
    1,
    0,
    0,
    case when e.to_status = 'ready' then r.updated_at_ms end,
    case when e.to_status = 'succeeded' then r.updated_at_ms end,  -- taken over
    e.result_code
  from unnest(p_effects) as e
  join ql.run as r on r.run_id = e.run_id
  where e.entity = 'step' and e.from_status is null
  on conflict do nothing;
  get diagnostics v_hit = row_count;
  perform ql.assert_all_hit('new step', p_wanted, v_hit);
end;
$$;

-- HELPER   move_steps — move steps: status, times, counts of starts and of claims that came back
-- WRITES   step_run
-- RAISES   QL409
create or replace function ql.move_steps (
  p_effects ql.effect[],
  p_wanted bigint,
  p_at_ms bigint
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_hit bigint;
begin
  -- attempt_count: past the start barrier; claim_return_count: an epoch that ended before it
  with moved as (
    update ql.step_run as s
    set
      status = m.to_status,
      version = s.version + m.effect_count,
      attempt_count = s.attempt_count + m.start_count,
      claim_return_count = s.claim_return_count + m.return_count,
      ready_at_ms = case
        when m.to_status = 'ready' then coalesce(s.ready_at_ms, m.time_ms)
        else s.ready_at_ms
      end,
      started_at_ms = case
        when m.to_status = 'ready' then null
        when m.running_count > 0 then m.time_ms
        else s.started_at_ms
      end,
      finished_at_ms = case
        when m.to_status in ('succeeded', 'failed', 'skipped', 'cancelled', 'timed_out')
          then m.time_ms
      end,
      due_at_ms = case when m.to_status = 'retry_wait' then m.due_at_ms end,
      result_code = m.result_code
    from (
      select
        e.run_id,
        e.entity_id,
        count(*) as effect_count,
        min(e.expected_version) as expected_version,
        (array_agg(e.from_status order by e.ordinal))[1] as from_status,
        (array_agg(e.to_status order by e.ordinal desc))[1] as to_status,
        (array_agg(e.result_code order by e.ordinal desc))[1] as result_code,
        (array_agg(e.due_at_ms order by e.ordinal desc))[1] as due_at_ms,
        count(*) filter (where e.to_status = 'running') as running_count,
        count(*) filter (
          where e.from_status = 'ready'
            and e.to_status <> 'ready'
            and e.input_id is not null
            and e.result_code is distinct from 'claim_budget_exhausted'
        ) as start_count,
        count(*) filter (
          where e.from_status = 'ready'
            and (e.to_status = 'ready' or e.result_code = 'claim_budget_exhausted')
        ) as return_count,
        coalesce(p_at_ms, (select r.updated_at_ms from ql.run as r where r.run_id = e.run_id))
          as time_ms
      from unnest(p_effects) as e
      where e.entity = 'step' and e.from_status is not null
      group by e.run_id, e.entity_id
    ) as m
    where s.run_id = m.run_id
      and s.step_key = m.entity_id
      and s.status = m.from_status
      and s.version = m.expected_version
    returning m.effect_count
  )
  select coalesce(sum(w.effect_count), 0)::bigint
  into v_hit
  from moved as w;
  perform ql.assert_all_hit('step', p_wanted, v_hit);
end;
$$;

-- HELPER   keep_outputs — what a succeeded execution wrote becomes its step's output
-- READS    attempt_report at the lease's fence
-- WRITES   step_output
create or replace function ql.keep_outputs (p_effects ql.effect[])
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  insert into ql.step_output (run_id, step_key, attempt_id, output)
  select
    e.run_id,
    e.entity_id,
    e.input_id,
    p.output
  from unnest(p_effects) as e
  -- by itself, by the whole key: most have no output, and no plan may look it up by less
  cross join lateral (
    select
      r.fence,
      r.output
    from ql.attempt_report as r
    where r.run_id = e.run_id
      and r.attempt_id = e.input_id
      and r.kind = 'ended'
      and r.output is not null
    offset 0
  ) as p
  where e.entity = 'step'
    and e.to_status = 'succeeded'
    and p.fence = (select l.fence from ql.attempt_lease as l where l.attempt_id = e.input_id);
end;
$$;

-- from sql/postgres/effect_attempt.sql sha256 189a1906d0123de259d14e13fef6b247ca1c6d177e95e8ec9d298180f1c1677f
-- EFFECTS ON ATTEMPTS AND LEASES — called by apply_effects (effect.sql) and by nothing else. The
-- effect time is the run's `updated_at_ms`.

-- HELPER   add_attempts — admit attempts for the present epoch of their steps
-- WRITES   task_attempt
-- RAISES   QL409
create or replace function ql.add_attempts (
  p_effects ql.effect[],
  p_wanted bigint,
  p_at_ms bigint
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_hit bigint;
begin
  insert into ql.task_attempt (
    attempt_id, run_id, number, step_key, epoch, task_id, queue, jitter, admitted_at_ms, status,
    version, offer_at_ms
  )
  select
    e.entity_id,
    e.run_id,
    n.number,
    s.step_key,
    s.version,
    s.task_id,
    t.queue,
    ql.jitter(e.run_id, s.step_key, n.number),
    w.at_ms,
    e.to_status,
    1,
    w.at_ms
  from unnest(p_effects) as e
  cross join lateral (select substr(e.entity_id, length(e.run_id) + 2)::bigint as number) as n
  cross join lateral (
    select
      coalesce(p_at_ms, (select r.updated_at_ms from ql.run as r where r.run_id = e.run_id))
        as at_ms
  ) as w
  join ql.step_run as s on s.run_id = e.run_id and s.step_key = e.input_id
  join ql.task_revision as t on t.task_id = s.task_id
  where e.entity = 'attempt' and e.from_status is null
  on conflict do nothing;
  get diagnostics v_hit = row_count;
  perform ql.assert_all_hit('new attempt', p_wanted, v_hit);
end;
$$;

-- HELPER   move_attempts — move attempts over the start barrier and to their ends
-- READS    attempt_report at the lease's fence: what the worker said under this very lease
-- WRITES   task_attempt
-- RAISES   QL409
create or replace function ql.move_attempts (
  p_effects ql.effect[],
  p_wanted bigint,
  p_at_ms bigint
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_hit bigint;
begin
  with moved as (
    update ql.task_attempt as a
    set
      status = m.to_status,
      version = a.version + m.effect_count,
      offer_at_ms = null,
      deadline_at_ms = case
        when m.starting_count = 0 then a.deadline_at_ms
        else m.time_ms
          + (select t.timeout_ms from ql.task_revision as t where t.task_id = a.task_id)
      end,
      identity = case
        when m.starting_count = 0 then a.identity
        else (
          select p.identity
          from ql.attempt_lease as l
          join ql.attempt_report as p
            on p.run_id = l.run_id and p.attempt_id = l.attempt_id and p.fence = l.fence
          where l.attempt_id = a.attempt_id and p.run_id = a.run_id and p.kind = 'starting'
        )
      end,
      starting_at_ms = case when m.starting_count > 0 then m.time_ms else a.starting_at_ms end,
      started_at_ms = case when m.running_count > 0 then m.time_ms else a.started_at_ms end,
      finished_at_ms = case when m.to_status not in ('starting', 'running') then m.time_ms end,
      exit_code = case
        when m.to_status not in ('starting', 'running') then (
          select p.exit_code
          from ql.attempt_lease as l
          join ql.attempt_report as p
            on p.run_id = l.run_id and p.attempt_id = l.attempt_id and p.fence = l.fence
          where l.attempt_id = a.attempt_id and p.run_id = a.run_id and p.kind = 'ended'
        )
      end,
      result_code = m.result_code
    from (
      select
        e.run_id,
        e.entity_id,
        count(*) as effect_count,
        min(e.expected_version) as expected_version,
        (array_agg(e.from_status order by e.ordinal))[1] as from_status,
        (array_agg(e.to_status order by e.ordinal desc))[1] as to_status,
        (array_agg(e.result_code order by e.ordinal desc))[1] as result_code,
        count(*) filter (where e.to_status = 'starting') as starting_count,
        count(*) filter (where e.to_status = 'running') as running_count,
        coalesce(p_at_ms, (select r.updated_at_ms from ql.run as r where r.run_id = e.run_id))
          as time_ms
      from unnest(p_effects) as e
      where e.entity = 'attempt' and e.from_status is not null
      group by e.run_id, e.entity_id
    ) as m
    where a.attempt_id = m.entity_id
      and a.run_id = m.run_id
      and a.status = m.from_status
      and a.version = m.expected_version
    returning m.effect_count
  )
  select coalesce(sum(w.effect_count), 0)::bigint
  into v_hit
  from moved as w;
  perform ql.assert_all_hit('attempt', p_wanted, v_hit);
end;
$$;

-- HELPER   close_leases — the end of an attempt ends its lease; no effect or event of its own
-- WRITES   attempt_lease
create or replace function ql.close_leases (p_effects ql.effect[], p_at_ms bigint)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  update ql.attempt_lease as l
  set
    status = case
      when e.to_status = 'lost' or e.from_status = 'claimed' then 'released'
      else 'completed'
    end,
    version = l.version + 1,
    fence = l.fence + 1,
    closed_at_ms = w.at_ms
  from unnest(p_effects) as e
  cross join lateral (
    select
      coalesce(p_at_ms, (select r.updated_at_ms from ql.run as r where r.run_id = e.run_id))
        as at_ms
  ) as w
  where l.attempt_id = e.entity_id
    and l.status = 'leased'
    and e.entity = 'attempt'
    and e.to_status in ('succeeded', 'failed', 'cancelled', 'timed_out', 'lost');
end;
$$;

-- HELPER   move_leases — take leases for the first time, take them again, or release them
-- READS    attempt_offer: who takes it, under which token, until when
-- WRITES   attempt_lease
-- RAISES   QL409
create or replace function ql.move_leases (
  p_effects ql.effect[],
  p_wanted bigint,
  p_at_ms bigint
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_new bigint;
  v_hit bigint;
begin
  insert into ql.attempt_lease (
    attempt_id, run_id, status, version, fence, offer_id, worker_id, token_digest, self_fencing,
    grace_ms, leased_at_ms, expires_at_ms
  )
  select
    e.entity_id,
    e.run_id,
    e.to_status,
    1,
    1,
    o.offer_id,
    o.worker_id,
    o.token_digest,
    o.self_fencing,
    o.grace_ms,
    w.at_ms,
    o.expires_at_ms
  from unnest(p_effects) as e
  cross join lateral (
    select
      coalesce(p_at_ms, (select r.updated_at_ms from ql.run as r where r.run_id = e.run_id))
        as at_ms
  ) as w
  join ql.attempt_offer as o on o.offer_id = e.input_id and o.attempt_id = e.entity_id
  where e.entity = 'lease' and e.from_status is null
  on conflict do nothing;
  get diagnostics v_new = row_count;

  update ql.attempt_lease as l
  set
    status = e.to_status,
    version = l.version + 1,
    fence = l.fence + 1,
    offer_id = coalesce(o.offer_id, l.offer_id),
    worker_id = coalesce(o.worker_id, l.worker_id),
    token_digest = coalesce(o.token_digest, l.token_digest),
    self_fencing = coalesce(o.self_fencing, l.self_fencing),
    grace_ms = coalesce(o.grace_ms, l.grace_ms),
    expires_at_ms = coalesce(o.expires_at_ms, l.expires_at_ms),
    leased_at_ms = case when e.to_status = 'leased' then w.at_ms else l.leased_at_ms end,
    closed_at_ms = case when e.to_status <> 'leased' then w.at_ms end
  from unnest(p_effects) as e
  cross join lateral (
    select
      coalesce(p_at_ms, (select r.updated_at_ms from ql.run as r where r.run_id = e.run_id))
        as at_ms
  ) as w
  left join ql.attempt_offer as o
    on o.offer_id = e.input_id and o.attempt_id = e.entity_id and e.to_status = 'leased'
  where l.attempt_id = e.entity_id
    and l.status = e.from_status
    and l.version = e.expected_version
    and e.entity = 'lease'
    and e.from_status is not null
    and (e.to_status <> 'leased' or o.offer_id is not null);
  get diagnostics v_hit = row_count;
  perform ql.assert_all_hit('lease', p_wanted, v_new + v_hit);
end;
$$;

-- from sql/postgres/publication_manifest.sql sha256 bddd4605c323f4bc7b763bfc5afaf737fac0180e430e760800d08f2cf41cea41
-- MANIFEST — the parts of publication: a model becomes revisions, a graph, triggers.

-- HELPER   check_manifest — what no table catches: references, sizes
-- RAISES   QL400
create or replace function ql.check_manifest (p_package_key text, p_model jsonb)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_fault text;
begin
  select f.fault
  into v_fault
  from (
    select 'the manifest is of package ' || coalesce(p_model ->> 'package', 'null') as fault
    where p_model ->> 'package' is distinct from p_package_key
    union all
    select format('workflow %s has %s steps, not 1 to 128', w.key, c.step_count)
    from jsonb_each(p_model -> 'workflows') as w
    cross join lateral (
      select count(*) as step_count
      from jsonb_each(w.value -> 'steps')
    ) as c
    where c.step_count not between 1 and 128
    union all
    select format('step %s of workflow %s: unknown task %s', s.key, w.key, s.value ->> 'task')
    from jsonb_each(p_model -> 'workflows') as w
    cross join lateral jsonb_each(w.value -> 'steps') as s
    where p_model -> 'tasks' -> (s.value ->> 'task') is null
    union all
    select format('step %s of workflow %s: unknown need %s', s.key, w.key, n.need)
    from jsonb_each(p_model -> 'workflows') as w
    cross join lateral jsonb_each(w.value -> 'steps') as s
    cross join lateral jsonb_array_elements_text(s.value -> 'needs') as n (need)
    where w.value -> 'steps' -> n.need is null
    union all
    select format('trigger %s: unknown %s %s', t.key, t.value ->> 'kind', t.value ->> 'target')
    from jsonb_each(p_model -> 'triggers') as t
    where p_model -> ((t.value ->> 'kind') || 's') -> (t.value ->> 'target') is null
  ) as f
  limit 1;
  if v_fault is not null then
    raise exception '%', v_fault using errcode = 'QL400';
  end if;
end;
$$;

-- HELPER   add_revisions — the tasks, workflows, steps and direct needs of a generation
-- WRITES   task_revision, workflow_revision, workflow_step, workflow_ancestor
create or replace function ql.add_revisions (
  p_package_key text,
  p_generation bigint,
  p_model jsonb
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_generation text := p_generation::text;
begin
  insert into ql.task_revision (
    task_id, package_key, generation, task_key, digest, spec, timeout_ms, retry_attempts,
    backoff_ms, max_backoff_ms, retry_failed, retry_timed_out, idempotent, on_lost, queue
  )
  select
    ql.derived_id('ta', p_package_key, v_generation, t.key),
    p_package_key,
    p_generation,
    t.key,
    ql.sha256_hex(c.spec),
    c.spec,
    (t.value ->> 'timeout_ms')::bigint,
    (t.value -> 'retry' ->> 'attempts')::bigint,
    (t.value -> 'retry' ->> 'backoff_ms')::bigint,
    (t.value -> 'retry' ->> 'max_backoff_ms')::bigint,
    (t.value -> 'retry' -> 'on' ? 'failed')::int,
    (t.value -> 'retry' -> 'on' ? 'timed_out')::int,
    (t.value ->> 'idempotent')::boolean::int,
    t.value ->> 'on_lost',
    t.value ->> 'queue'
  from jsonb_each(p_model -> 'tasks') as t
  cross join lateral (select ql.canonical(t.value) as spec) as c;

  insert into ql.workflow_revision (
    workflow_id, package_key, generation, workflow_key, timeout_ms, step_count
  )
  select
    ql.derived_id('wf', p_package_key, v_generation, w.key),
    p_package_key,
    p_generation,
    w.key,
    (w.value ->> 'timeout_ms')::bigint,
    (select count(*) from jsonb_each(w.value -> 'steps'))
  from jsonb_each(p_model -> 'workflows') as w;

  insert into ql.workflow_step (workflow_id, step_key, task_id, need_count)
  select
    ql.derived_id('wf', p_package_key, v_generation, w.key),
    s.key,
    ql.derived_id('ta', p_package_key, v_generation, s.value ->> 'task'),
    (select count(distinct n.need) from jsonb_array_elements_text(s.value -> 'needs') as n (need))
  from jsonb_each(p_model -> 'workflows') as w
  cross join lateral jsonb_each(w.value -> 'steps') as s;

  insert into ql.workflow_ancestor (workflow_id, ancestor_key, step_key, distance)
  select distinct
    ql.derived_id('wf', p_package_key, v_generation, w.key),
    n.need,
    s.key,
    1
  from jsonb_each(p_model -> 'workflows') as w
  cross join lateral jsonb_each(w.value -> 'steps') as s
  cross join lateral jsonb_array_elements_text(s.value -> 'needs') as n (need);
end;
$$;

-- HELPER   deepen_ancestors — every ancestor with its shortest distance, level by level; a cycle
--          meets the constraint that no step is its own ancestor
-- WRITES   workflow_ancestor
create or replace function ql.deepen_ancestors (p_workflow_ids text[])
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_distance int := 1;
begin
  loop
    insert into ql.workflow_ancestor (workflow_id, ancestor_key, step_key, distance)
    select distinct
      a.workflow_id,
      n.ancestor_key,
      a.step_key,
      v_distance + 1
    from ql.workflow_ancestor as a
    join ql.workflow_ancestor as n
      on n.workflow_id = a.workflow_id and n.step_key = a.ancestor_key and n.distance = 1
    where a.workflow_id = any (p_workflow_ids) and a.distance = v_distance
    on conflict do nothing;
    exit when not found;
    v_distance := v_distance + 1;
  end loop;
end;
$$;

-- HELPER   set_triggers — triggers follow the newest generation; a cursor stays while the calendar
--          stays the same, a pause stays in any case, an absent trigger is withdrawn
-- WRITES   trigger, trigger_schedule
create or replace function ql.set_triggers (
  p_package_key text,
  p_generation bigint,
  p_triggers jsonb
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now_ms bigint := ql.now_ms();
begin
  update ql.trigger_schedule as s
  set
    next_fire_at_ms = null,
    state_version = s.state_version + 1,
    claim_owner = null,
    claim_token = null,
    claim_expires_at_ms = null,
    updated_at_ms = v_now_ms
  from ql.trigger as t
  where s.package_key = p_package_key
    and t.package_key = p_package_key
    and t.trigger_key = s.trigger_key
    and p_triggers -> t.trigger_key is not null
    and (
      t.state = 'withdrawn'
      or t.cron <> p_triggers -> t.trigger_key ->> 'cron'
      or t.tz <> p_triggers -> t.trigger_key ->> 'tz'
    );

  insert into ql.trigger as t (
    package_key, trigger_key, generation, state, cron, tz, kind, target_key, misfire, overlap,
    updated_at_ms
  )
  select
    p_package_key,
    j.key,
    p_generation,
    'active',
    j.value ->> 'cron',
    j.value ->> 'tz',
    j.value ->> 'kind',
    j.value ->> 'target',
    j.value ->> 'misfire',
    j.value ->> 'overlap',
    v_now_ms
  from jsonb_each(p_triggers) as j
  on conflict on constraint trigger_pkey do update
  set
    generation = excluded.generation,
    state = case t.state when 'paused' then 'paused' else 'active' end,
    cron = excluded.cron,
    tz = excluded.tz,
    kind = excluded.kind,
    target_key = excluded.target_key,
    misfire = excluded.misfire,
    overlap = excluded.overlap,
    updated_at_ms = excluded.updated_at_ms;

  insert into ql.trigger_schedule (
    package_key, trigger_key, state_version, claim_version, updated_at_ms
  )
  select
    p_package_key,
    j.key,
    1,
    0,
    v_now_ms
  from jsonb_each(p_triggers) as j
  on conflict do nothing;

  update ql.trigger as t
  set
    state = 'withdrawn',
    updated_at_ms = v_now_ms
  where t.package_key = p_package_key
    and t.state <> 'withdrawn'
    and p_triggers -> t.trigger_key is null;
end;
$$;

-- from sql/postgres/publication.sql sha256 00017a0dbaf1c5cd5e5c8d810925e944741aca26e97c182ee7c8456d8705e5e2
-- PUBLICATION — a manifest becomes a generation (DESIGN §5). The same content is a replay; an older
-- content again is a new number. Runs keep the generation that they were started with.

-- STEP     publish_package — a manifest becomes the active generation of its package
-- LOCKS    package, package_generation (for update: waits for starts that hold the start guard)
-- WRITES   package, package_generation, task_revision, workflow_revision, workflow_step,
--          workflow_ancestor, trigger, trigger_schedule
-- RETURNS  published | existing
-- RAISES   QL400, QL503
-- REPLAY   exact while the generation is active: the same content changes nothing but base_dir
create or replace function ql_admission.publish_package (
  p_package_key text,
  p_manifest text,
  p_base_dir text
)
returns table (package_key text, generation bigint, digest text, outcome text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  v_now_ms bigint;
  v_model jsonb;
  v_manifest text;
  v_digest text;
  v_generation bigint;
  v_constraint text;
begin
  perform ql.assert_read_committed();
  if coalesce(length(p_package_key), 0) not between 1 and 63
    or p_base_dir is null
    or not coalesce(ql.is_object(p_manifest), false)
  then
    raise exception 'a package has a key, a manifest (a JSON object) and a folder'
      using errcode = 'QL400';
  end if;
  v_model := p_manifest::jsonb;
  v_manifest := ql.canonical(v_model);
  v_digest := ql.sha256_hex(v_manifest);

  insert into ql.package (package_key, generation, base_dir, updated_at_ms)
  values (p_package_key, 0, p_base_dir, ql.now_ms())
  on conflict do nothing;
  perform from ql.package as p where p.package_key = p_package_key for no key update;
  perform from ql.package_generation as g
  where g.package_key = p_package_key and g.state = 'active'
  for update;
  v_now_ms := ql.now_ms();

  select g.generation
  into v_generation
  from ql.package_generation as g
  where g.package_key = p_package_key and g.state = 'active' and g.digest = v_digest;
  if found then
    update ql.package as p
    set
      base_dir = p_base_dir,
      updated_at_ms = v_now_ms
    where p.package_key = p_package_key and p.base_dir <> p_base_dir;
    return query select p_package_key, v_generation, v_digest, 'existing';
    return;
  end if;

  update ql.package as p
  set
    generation = p.generation + 1,
    base_dir = p_base_dir,
    updated_at_ms = v_now_ms
  where p.package_key = p_package_key
  returning p.generation into v_generation;
  update ql.package_generation as g
  set
    state = 'superseded',
    ended_at_ms = v_now_ms
  where g.package_key = p_package_key and g.state = 'active';
  begin
    perform ql.check_manifest(p_package_key, v_model);
    insert into ql.package_generation (
      package_key, generation, digest, manifest, published_at_ms, state
    )
    values (p_package_key, v_generation, v_digest, v_manifest, v_now_ms, 'active');
    perform ql.add_revisions(p_package_key, v_generation, v_model);
    perform ql.deepen_ancestors(
      array(
        select w.workflow_id
        from ql.workflow_revision as w
        where w.package_key = p_package_key and w.generation = v_generation
      )
    );
    perform ql.set_triggers(
      p_package_key, v_generation, coalesce(v_model -> 'triggers', '{}')
    );
  exception
    when data_exception or not_null_violation or check_violation then
      get stacked diagnostics v_constraint = constraint_name;
      raise exception 'the manifest is refused: %', coalesce(nullif(v_constraint, ''), sqlerrm)
        using errcode = 'QL400';
  end;
  return query select p_package_key, v_generation, v_digest, 'published';
end;
$$;

-- STEP     withdraw_package — no new runs of it; existing ones go on, its triggers fire no more
-- LOCKS    package, package_generation (for update)
-- WRITES   package_generation, trigger
-- RETURNS  withdrawn | existing
-- RAISES   QL404, QL503
-- REPLAY   exact: a second call finds nothing active
create or replace function ql_admission.withdraw_package (p_package_key text)
returns table (package_key text, generation bigint, outcome text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  v_now_ms bigint;
  v_newest bigint;
  v_generation bigint;
begin
  perform ql.assert_read_committed();
  select p.generation
  into v_newest
  from ql.package as p
  where p.package_key = p_package_key
  for no key update;
  if not found then
    raise exception 'no package %', p_package_key using errcode = 'QL404';
  end if;
  perform from ql.package_generation as g
  where g.package_key = p_package_key and g.state = 'active'
  for update;
  v_now_ms := ql.now_ms();

  update ql.package_generation as g
  set
    state = 'withdrawn',
    ended_at_ms = v_now_ms
  where g.package_key = p_package_key and g.state = 'active'
  returning g.generation into v_generation;
  if not found then
    return query select p_package_key, v_newest, 'existing';
    return;
  end if;
  update ql.trigger as t
  set
    state = 'withdrawn',
    updated_at_ms = v_now_ms
  where t.package_key = p_package_key and t.state <> 'withdrawn';
  return query select p_package_key, v_generation, 'withdrawn';
end;
$$;

-- from sql/postgres/admission.sql sha256 36f9da99584cda7184c1a0ed49866ebe9dd1dc05b295213dc7b35c0b42285b62
-- ADMISSION — a run begins (DESIGN §5). Its id is derived from its key, so a repeated command finds
-- the run, whatever generation is active by then; another command under the same key is a conflict.

-- STEP     start_run — admit one run of a workflow or of a single task
-- LOCKS    package_generation (for share: the start guard)
-- READS    admission_effect
-- WRITES   run, run_input; through ql.apply_effects
-- RETURNS  created | existing | conflict
-- RAISES   QL400, QL404, QL503
-- REPLAY   exact, and checked before the guard
create or replace function ql_admission.start_run (
  p_package_key text,
  p_kind text,
  p_target_key text,
  p_run_key text,
  p_input text
)
returns table (run_id text, outcome text, status text, generation bigint)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  v_run_id text;
  v_digest text;
  v_outcome text := 'existing';
begin
  perform ql.assert_read_committed();
  perform ql.check_start(p_package_key, p_kind, p_target_key, p_run_key, p_input);
  v_run_id := ql.derived_id('ru', p_package_key, p_kind, p_target_key, p_run_key);
  v_digest := ql.sha256_hex(p_input);

  loop
    return query
    select
      r.run_id,
      case
        when r.input_digest = v_digest and r.retry_of_run_id is null then v_outcome
        else 'conflict'
      end,
      r.status,
      r.generation
    from ql.run as r
    where r.run_id = v_run_id;
    exit when found;
    -- false: someone else has just started it, and may purge it before we look
    if ql.admit_run(
      v_run_id, p_package_key, p_kind, p_target_key, p_run_key, p_input, null
    ) then
      v_outcome := 'created';
    end if;
  end loop;
end;
$$;

-- HELPER   check_start — the arguments of start_run
-- RAISES   QL400
create or replace function ql.check_start (
  p_package_key text,
  p_kind text,
  p_target_key text,
  p_run_key text,
  p_input text
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_fault text;
begin
  v_fault := case
    when p_kind is null or p_kind not in ('workflow', 'task') then 'kind is workflow or task'
    when p_package_key is null or p_target_key is null then 'package and target are needed'
    when p_run_key is null or length(p_run_key) not between 1 and 200
      then 'a run key has 1 to 200 characters'
    when octet_length(p_input) > 16384 then 'the input is larger than 16 KiB'
    when not coalesce(ql.is_object(p_input), false) then 'the input is a JSON object'
  end;
  if v_fault is not null then
    raise exception '%', v_fault using errcode = 'QL400';
  end if;
end;
$$;

-- HELPER   admit_run — a run with its input, and what follows at once; false when someone else has
--          just inserted it
-- LOCKS    package_generation (for share)
-- READS    admission_effect
-- WRITES   run, run_input; through ql.apply_effects
-- RAISES   QL404
create or replace function ql.admit_run (
  p_run_id text,
  p_package_key text,
  p_kind text,
  p_target_key text,
  p_run_key text,
  p_input text,
  p_retry_of_run_id text
)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_effects ql.effect[];
begin
  if not ql.insert_run(
    p_run_id, p_package_key, p_kind, p_target_key, p_run_key, ql.sha256_hex(p_input),
    p_retry_of_run_id
  ) then
    return false;
  end if;
  insert into ql.run_input (run_id, input)
  values (p_run_id, p_input);

  select array_agg(
    row(
      e.run_id, e.ordinal, e.entity, e.entity_id, e.from_status, e.to_status, e.expected_version,
      e.result_code, e.event_type, e.due_at_ms, e.input_id
    )::ql.effect
  )
  into v_effects
  from ql.admission_effect as e
  where e.run_id = p_run_id;
  perform ql.apply_effects(v_effects, 'admission');
  return true;
end;
$$;

-- HELPER   insert_run — the run itself, at version 0; false when someone else has just inserted it
-- LOCKS    package_generation (for share)
-- WRITES   run
-- RAISES   QL404
create or replace function ql.insert_run (
  p_run_id text,
  p_package_key text,
  p_kind text,
  p_target_key text,
  p_run_key text,
  p_input_digest text,
  p_retry_of_run_id text
)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now_ms bigint;
  v_generation bigint;
  v_target_id text;
  v_step_count bigint;
  v_timeout_ms bigint;
begin
  loop
    select g.generation
    into v_generation
    from ql.package_generation as g
    where g.package_key = p_package_key and g.state = 'active'
    for share;
    exit when found;
    -- a publication that we waited for has replaced the row that we saw: look once more
    if not exists (
      select from ql.package_generation as g
      where g.package_key = p_package_key and g.state = 'active'
    ) then
      raise exception 'no active package %', p_package_key using errcode = 'QL404';
    end if;
  end loop;
  v_now_ms := ql.now_ms();

  select t.target_id, t.step_count, t.timeout_ms
  into v_target_id, v_step_count, v_timeout_ms
  from (
    select
      w.workflow_id as target_id,
      w.step_count,
      w.timeout_ms
    from ql.workflow_revision as w
    where p_kind = 'workflow'
      and w.package_key = p_package_key
      and w.generation = v_generation
      and w.workflow_key = p_target_key
    union all
    -- a task run has one step, and no deadline but its attempt's (DESIGN §5)
    select
      k.task_id as target_id,
      1 as step_count,
      null as timeout_ms
    from ql.task_revision as k
    where p_kind = 'task'
      and k.package_key = p_package_key
      and k.generation = v_generation
      and k.task_key = p_target_key
  ) as t;

  insert into ql.run (
    run_id, package_key, generation, kind, target_key, target_id, run_key, input_digest, step_count,
    deadline_at_ms, retry_of_run_id, admitted_at_ms, status, version, attempt_count, updated_at_ms
  )
  select
    p_run_id,
    p_package_key,
    v_generation,
    p_kind,
    p_target_key,
    v_target_id,
    p_run_key,
    p_input_digest,
    v_step_count,
    v_now_ms + v_timeout_ms,
    p_retry_of_run_id,
    v_now_ms,
    'running',
    0,
    0,
    v_now_ms
  where v_target_id is not null
  on conflict do nothing;
  if found then
    return true;
  end if;
  if v_target_id is null and not exists (select from ql.run as r where r.run_id = p_run_id) then
    raise exception 'no % % in package %', p_kind, p_target_key, p_package_key
      using errcode = 'QL404';
  end if;
  return false;
end;
$$;

-- from sql/postgres/admission_retry.sql sha256 25359be6406d704b104f70560731d5a6b13df7825a7071138f4b52bdb5703482
-- RETRY OF A RUN — a run of its own that takes over what would come out the same; what that is, is
-- decision/admission.sql's matter. Without a key its id is derived from the retried run alone, by
-- other parts than any key's, so that no key can be in its way.

-- STEP     start_retry — admit a run that takes over what succeeded in a run that did not
-- LOCKS    2 run (the retried one; waits) · package_generation (for share: the start guard)
-- READS    run, run_input, step_output of the retried run; admission_effect
-- WRITES   run, run_input, step_output; through ql.apply_effects
-- RETURNS  created | existing | conflict (the key belongs to another run)
-- RAISES   QL400, QL404, QL503
-- REPLAY   exact: one retry a run without a key, and one a key
create or replace function ql_admission.start_retry (p_run_id text, p_run_key text)
returns table (
  run_id text, outcome text, status text, generation bigint, taken_over_count bigint
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  v_run_id text := ql.derived_id('ru', 'retry', p_run_id);
  v_outcome text := 'existing';
  v_old record;
begin
  perform ql.assert_read_committed();
  if length(p_run_key) not between 1 and 200 then
    raise exception 'a run key has 1 to 200 characters' using errcode = 'QL400';
  end if;

  loop
    -- without a key the answer needs nothing of the retried run, which may be purged by now
    if p_run_key is not null or not exists (select from ql.run as r where r.run_id = v_run_id) then
      perform ql.wait_run(p_run_id);  -- what is copied cannot be purged meanwhile
      select
        r.package_key,
        r.kind,
        r.target_key,
        case r.status
          when 'running' then 'is still open: cancel it first'
          when 'succeeded' then 'has succeeded: there is nothing to retry'
        end as fault,
        i.input
      into v_old
      from ql.run as r
      join ql.run_input as i on i.run_id = r.run_id
      where r.run_id = p_run_id;
      if v_old.fault is not null then
        raise exception 'run % %', p_run_id, v_old.fault using errcode = 'QL400';
      end if;
      if p_run_key is not null then
        v_run_id := ql.derived_id(
          'ru', v_old.package_key, v_old.kind, v_old.target_key, p_run_key
        );
      end if;
      if not exists (select from ql.run as r where r.run_id = v_run_id)
        and ql.admit_run(
          v_run_id,
          v_old.package_key,
          v_old.kind,
          v_old.target_key,
          coalesce(p_run_key, ''),
          v_old.input,
          p_run_id
        )
      then
        v_outcome := 'created';
        perform ql.take_over_outputs(v_run_id);
      end if;
    end if;

    return query
    select
      r.run_id,
      case when r.retry_of_run_id = p_run_id then v_outcome else 'conflict' end,
      r.status,
      r.generation,
      (
        select count(*)
        from ql.step_run as s
        where s.run_id = r.run_id and s.result_code = 'taken_over'
      )
    from ql.run as r
    where r.run_id = v_run_id;
    exit when found;  -- else it was purged before we looked
  end loop;
end;
$$;

-- HELPER   take_over_outputs — what steps wrote that were taken over
-- READS    run, step_run; step_output of the retried run
-- WRITES   step_output
create or replace function ql.take_over_outputs (p_run_id text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  insert into ql.step_output (run_id, step_key, attempt_id, output)
  select
    s.run_id,
    s.step_key,
    o.attempt_id,
    o.output
  from ql.run as r
  join ql.step_run as s on s.run_id = r.run_id and s.result_code = 'taken_over'
  join ql.step_output as o on o.run_id = r.retry_of_run_id and o.step_key = s.step_key
  where r.run_id = p_run_id;
end;
$$;

-- from sql/postgres/schedule.sql sha256 06b299f8860c4686895bbc353980b03a57f495af75fdb789c52826537c76072b
-- SCHEDULE — triggers: pause and resume. A withdrawn trigger is unknown (DESIGN §5, generations).

-- HELPER   set_trigger — move a trigger between active and paused
-- LOCKS    trigger (waits)
-- WRITES   trigger
-- RAISES   QL404
create or replace function ql.set_trigger (
  p_package_key text,
  p_trigger_key text,
  p_state text
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform
  from ql.trigger as t
  where t.package_key = p_package_key and t.trigger_key = p_trigger_key and t.state <> 'withdrawn'
  for no key update;
  if not found then
    raise exception 'no trigger % in package %', p_trigger_key, p_package_key
      using errcode = 'QL404';
  end if;

  update ql.trigger as t
  set state = p_state, updated_at_ms = ql.now_ms()
  where t.package_key = p_package_key and t.trigger_key = p_trigger_key and t.state <> p_state;
end;
$$;

-- STEP     pause_trigger — a paused trigger does not fire; its cursor stays where it is
-- LOCKS    trigger (waits)
-- READS    trigger
-- WRITES   trigger
-- RETURNS  trigger_key, state
-- RAISES   QL404, QL503
-- REPLAY   exact
create or replace function ql_operator.pause_trigger (p_package_key text, p_trigger_key text)
returns table (trigger_key text, state text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set lock_timeout = '1s'
as $$
begin
  perform ql.assert_read_committed();
  perform ql.set_trigger(p_package_key, p_trigger_key, 'paused');
  return query select p_trigger_key, 'paused';
end;
$$;

-- STEP     resume_trigger — a paused trigger fires again, by its misfire rule if it is late
-- LOCKS    trigger (waits)
-- READS    trigger
-- WRITES   trigger
-- RETURNS  trigger_key, state
-- RAISES   QL404, QL503
-- REPLAY   exact
create or replace function ql_operator.resume_trigger (p_package_key text, p_trigger_key text)
returns table (trigger_key text, state text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set lock_timeout = '1s'
as $$
begin
  perform ql.assert_read_committed();
  perform ql.set_trigger(p_package_key, p_trigger_key, 'active');
  return query select p_trigger_key, 'active';
end;
$$;

-- from sql/postgres/agenda.sql sha256 9b62b9dc6e33d030de82867a42663a34542ac3e8c7c585642e8fda4f84ad02b2
-- AGENDA — what is due, for which run, when (DESIGN §5). Rows are written under the run's lock.
-- Pages take runs, never agenda rows; the sweep puts back what is missing; faults move a row away.

-- HELPER   pick_runs — lock the first due runs of a stage that nobody holds, in key order
-- LOCKS    2 run (skip locked)
-- READS    agenda: once to find, once more in a new statement, since a row may have been cleared
-- RAISES   QL400
create or replace function ql.pick_runs (
  p_stage text,
  p_after_due_at_ms bigint,
  p_after_run_id text,
  p_limit int
)
returns table (run_id text, due_at_ms bigint)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_sort = off  -- a sort above the lateral lock would lock every due run
set enable_bitmapscan = off
as $$
declare
  v_now bigint := ql.now_ms();
  v_run_ids text[];
begin
  if p_limit is null or p_limit not between 1 and 32 then
    raise exception 'a page has 1 to 32 candidates, not %', p_limit using errcode = 'QL400';
  end if;

  v_run_ids := array(
    select a.run_id
    from ql.agenda as a
    cross join lateral (
      select 1
      from ql.run as r
      where r.run_id = a.run_id
      for no key update skip locked
    ) as held
    where a.stage = p_stage
      and a.due_at_ms <= v_now
      and (a.due_at_ms, a.run_id) > (p_after_due_at_ms, p_after_run_id)
    order by a.due_at_ms, a.run_id
    limit p_limit
  );

  return query
  select
    a.run_id,
    a.due_at_ms
  from ql.agenda as a
  where a.run_id = any(v_run_ids)
    and a.stage = p_stage
    and a.due_at_ms <= v_now
    and (a.due_at_ms, a.run_id) > (p_after_due_at_ms, p_after_run_id)
  order by a.due_at_ms, a.run_id;
end;
$$;

-- HELPER   hold_run — lock one run without waiting; false means someone else holds it
-- LOCKS    2 run (skip locked)
-- RAISES   QL404
create or replace function ql.hold_run (p_run_id text)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform
  from ql.run as r
  where r.run_id = p_run_id
  for no key update skip locked;
  if found then
    return true;
  end if;
  if not exists (select from ql.run as r where r.run_id = p_run_id) then
    raise exception 'no run %', p_run_id using errcode = 'QL404';
  end if;
  return false;
end;
$$;

-- HELPER   wait_run — lock one run for a single command, waiting for whoever holds it
-- LOCKS    2 run (waits up to lock_timeout)
-- RAISES   QL404
create or replace function ql.wait_run (p_run_id text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform
  from ql.run as r
  where r.run_id = p_run_id
  for no key update;
  if not found then
    raise exception 'no run %', p_run_id using errcode = 'QL404';
  end if;
end;
$$;

-- HELPER   clear_agenda — a stage is done with these runs: its row and its fault go
-- LOCKS    none (the caller holds 2)
-- WRITES   agenda, run_fault
create or replace function ql.clear_agenda (p_stage text, p_run_ids text[])
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  delete from ql.agenda as a
  where a.run_id = any(p_run_ids) and a.stage = p_stage;

  delete from ql.run_fault as f
  where f.run_id = any(p_run_ids) and f.stage = p_stage;
end;
$$;

-- HELPER   rearm_agenda — move a stage's row to its next due time, or clear it when that is null
-- LOCKS    none (the caller holds 2)
-- WRITES   agenda, run_fault
create or replace function ql.rearm_agenda (p_stage text, p_run_id text, p_due_at_ms bigint)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  if p_due_at_ms is null then
    perform ql.clear_agenda(p_stage, array[p_run_id]);
    return;
  end if;

  insert into ql.agenda as a (run_id, stage, due_at_ms)
  values (p_run_id, p_stage, p_due_at_ms)
  on conflict on constraint agenda_pkey do update
  set due_at_ms = excluded.due_at_ms
  where a.due_at_ms <> excluded.due_at_ms;

  delete from ql.run_fault as f
  where f.run_id = p_run_id and f.stage = p_stage;
end;
$$;

-- HELPER   effect_counts — how many effects each run gets, in the order of the runs
create or replace function ql.effect_counts (p_run_ids text[], p_effects ql.effect[])
returns bigint[]
language plpgsql  -- not sql, which would be planned anew at every call
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  return array(
    select count(e.run_id)
    from unnest(p_run_ids) with ordinality as r (run_id, position)
    left join unnest(p_effects) as e on e.run_id = r.run_id
    group by r.position
    order by r.position
  );
end;
$$;

-- STEP     due_page — candidates of a stage, for stages that take one run a transaction
-- LOCKS    none
-- READS    agenda
-- WRITES   nothing
-- RETURNS  run_id, due_at_ms in key order; a candidate is no promise
-- RAISES   QL400, QL503
-- REPLAY   reads only
create or replace function ql_scheduler.due_page (
  p_stage text,
  p_after_due_at_ms bigint,
  p_after_run_id text,
  p_limit int
)
returns table (run_id text, due_at_ms bigint)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'
as $$
declare
  v_now bigint;
begin
  perform ql.assert_read_committed();
  if p_limit is null or p_limit not between 1 and 32 then
    raise exception 'a page has 1 to 32 candidates, not %', p_limit using errcode = 'QL400';
  end if;

  v_now := ql.now_ms();
  return query
  select
    a.run_id,
    a.due_at_ms
  from ql.agenda as a
  where a.stage = p_stage
    and a.due_at_ms <= v_now
    and (a.due_at_ms, a.run_id) > (p_after_due_at_ms, p_after_run_id)
  order by a.due_at_ms, a.run_id
  limit p_limit;
end;
$$;

-- STEP     sweep_agenda — put back due work that is missing, for one slice of runs by id, and bring
--          near what a clock wrote that was ahead
-- LOCKS    2 run (skip locked)
-- READS    run, agenda_missing, agenda_ahead
-- WRITES   agenda, run_fault (its next try)
-- RETURNS  every run_id of the slice, with the number of rows put back
-- RAISES   QL400, QL503
-- REPLAY   exact: nothing is missing the second time
create or replace function ql_scheduler.sweep_agenda (p_after_run_id text, p_limit int)
returns table (run_id text, stages bigint)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'
as $$
declare
  v_now bigint;
  v_slice text[];
  v_held text[];
  v_back text[];
begin
  perform ql.assert_read_committed();
  if p_limit is null or p_limit not between 1 and 1024 then
    raise exception 'a sweep takes 1 to 1024 runs, not %', p_limit using errcode = 'QL400';
  end if;

  v_slice := array(
    select r.run_id from ql.run as r where r.run_id > p_after_run_id order by r.run_id limit p_limit
  );
  v_held := array(
    select r.run_id
    from ql.run as r
    where r.run_id = any(v_slice) and r.status = 'running'
    order by r.run_id
    for no key update skip locked
  );
  v_now := ql.now_ms();

  with put_back as (
    insert into ql.agenda as a (run_id, stage, due_at_ms)
    select
      m.run_id,
      m.stage,
      min(m.due_at_ms)
    from (
      select
        l.run_id,
        l.stage,
        case when l.due_at_ms = 0 then v_now else l.due_at_ms end as due_at_ms
      from ql.agenda_missing as l
      where l.run_id = any(v_held)
      union all
      select
        h.run_id,
        h.stage,
        v_now + h.wait_ms
      from ql.agenda_ahead as h
      where h.run_id = any(v_held)
        and h.since_ms > v_now
        and h.due_at_ms > v_now + h.wait_ms
    ) as m
    group by m.run_id, m.stage
    on conflict on constraint agenda_pkey do update
    set due_at_ms = least(a.due_at_ms, excluded.due_at_ms)
    returning a.run_id
  )
  select coalesce(array_agg(p.run_id), '{}')
  into v_back
  from put_back as p;

  update ql.run_fault as f
  set next_try_at_ms = v_now + 300000
  where f.run_id = any(v_back) and f.next_try_at_ms > v_now + 300000;

  return query
  select
    s.run_id,
    (select count(*) from unnest(v_back) as b (run_id) where b.run_id = s.run_id)
  from unnest(v_slice) with ordinality as s (run_id, position)
  order by s.position;
end;
$$;

-- STEP     record_fault — a candidate raised: keep the error, try again later (1 s, then twice as
--          long each time, up to 5 min)
-- LOCKS    2 run (skip locked)
-- READS    run_fault
-- WRITES   run_fault, agenda
-- RETURNS  run_id, fault_count, next_try_at_ms; no row when someone else holds the run
-- RAISES   QL400, QL404, QL503
-- REPLAY   counts again
create or replace function ql_scheduler.record_fault (p_run_id text, p_stage text, p_error text)
returns table (run_id text, fault_count bigint, next_try_at_ms bigint)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set lock_timeout = '1s'
as $$
declare
  v_now bigint;
  v_count bigint;
  v_next bigint;
begin
  perform ql.assert_read_committed();
  if p_error is null or p_stage is null or p_stage not in (
    'frontier', 'task_admission', 'cancellation', 'deadline', 'retry', 'expiry'
  ) then
    raise exception 'a fault has an error and a stage of the agenda' using errcode = 'QL400';
  end if;
  if not ql.hold_run(p_run_id) then
    return;
  end if;

  v_now := ql.now_ms();
  select 1 + coalesce(max(f.fault_count), 0)
  into v_count
  from ql.run_fault as f
  where f.run_id = p_run_id and f.stage = p_stage;
  v_next := v_now + least(300000, 1000 * (1 << least(v_count - 1, 9)::int));

  insert into ql.run_fault (
    run_id, stage, error, fault_count, first_at_ms, last_at_ms, next_try_at_ms
  )
  values (
    p_run_id,
    p_stage,
    -- a character has at most four bytes, so 512 of them fit whatever they are
    case when octet_length(p_error) <= 2048 then p_error else left(p_error, 512) end,
    v_count,
    v_now,
    v_now,
    v_next
  )
  on conflict on constraint run_fault_pkey do update
  set
    error = excluded.error,
    fault_count = excluded.fault_count,
    last_at_ms = excluded.last_at_ms,
    next_try_at_ms = excluded.next_try_at_ms;

  update ql.agenda as a
  set due_at_ms = v_next
  where a.run_id = p_run_id and a.stage = p_stage;

  return query select p_run_id, v_count, v_next;
end;
$$;

-- STEP     release_fault — an operator has mended the cause: forget the fault, try now
-- LOCKS    2 run (waits)
-- READS    run_fault, agenda_missing
-- WRITES   run_fault, agenda
-- RETURNS  applied | settled (there was no fault)
-- RAISES   QL404, QL503
-- REPLAY   settled, and nothing moves
create or replace function ql_operator.release_fault (p_run_id text, p_stage text)
returns table (run_id text, outcome text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set lock_timeout = '1s'
as $$
declare
  v_outcome text := 'settled';
begin
  perform ql.assert_read_committed();
  perform ql.wait_run(p_run_id);

  delete from ql.run_fault as f
  where f.run_id = p_run_id and f.stage = p_stage;
  if found then
    v_outcome := 'applied';
    update ql.agenda as a
    set due_at_ms = least(a.due_at_ms, ql.now_ms())
    where a.run_id = p_run_id and a.stage = p_stage;
  end if;
  -- only a fault excuses a row that stands later than its work was due
  if found and p_stage in ('deadline', 'retry', 'expiry') then
    update ql.agenda as a set due_at_ms = m.due_at_ms
    from ql.agenda_missing as m
    where (a.run_id, a.stage) = (p_run_id, p_stage) and (m.run_id, m.stage) = (p_run_id, p_stage);
  end if;
  return query select p_run_id, v_outcome;
end;
$$;

-- from sql/postgres/frontier.sql sha256 61bae9fbdc378cdfa094b292f954a268e15bdb57968b9f9832d7de1a08e90612
-- FRONTIER — open what can run, skip what never can, end the run (DOMAIN §3.3).
-- A page of runs is one transaction: its decisions can be made again (DESIGN §6).

-- HELPER   advance_frontiers — decide and apply for runs that the caller has locked
-- LOCKS    none (the caller holds 2); step_run and run rows by ql.apply_effects
-- READS    frontier_effect
-- WRITES   through ql.apply_effects; then agenda, run_fault
-- RETURNS  the number of effects of each run
-- RAISES   QL409
create or replace function ql.advance_frontiers (p_run_ids text[])
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_effects ql.effect[];
begin
  select coalesce(array_agg(row(e.*)::ql.effect), '{}')
  into v_effects
  from unnest(p_run_ids) as i (run_id)
  cross join lateral (
    select * from ql.frontier_effect as v where v.run_id = i.run_id offset 0
  ) as e;

  perform ql.apply_effects(v_effects, 'frontier');
  perform ql.clear_agenda('frontier', p_run_ids);
  return ql.effect_counts(p_run_ids, v_effects);
end;
$$;

-- STEP     frontier_page — advance the first due runs that nobody holds
-- LOCKS    2 run (skip locked)
-- READS    agenda, frontier_effect
-- WRITES   step_run, run, run_event (through ql.apply_effects); agenda, run_fault
-- RETURNS  applied | settled (nothing to do any more), in key order
-- RAISES   QL400, QL409, QL503
-- REPLAY   exact: the rows are cleared
create or replace function ql_scheduler.frontier_page (
  p_after_due_at_ms bigint,
  p_after_run_id text,
  p_limit int
)
returns table (run_id text, due_at_ms bigint, outcome text, effects bigint)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'
as $$
declare
  v_run_ids text[];
  v_due bigint[];
  v_counts bigint[];
begin
  perform ql.assert_read_committed();
  select
    coalesce(array_agg(p.run_id), '{}'),
    coalesce(array_agg(p.due_at_ms), '{}')
  into v_run_ids, v_due
  from ql.pick_runs('frontier', p_after_due_at_ms, p_after_run_id, p_limit) as p;
  if cardinality(v_run_ids) = 0 then
    return;
  end if;

  v_counts := ql.advance_frontiers(v_run_ids);
  return query
  select
    c.run_id,
    c.due_at_ms,
    case when c.effects > 0 then 'applied' else 'settled' end,
    c.effects
  from rows from (unnest(v_run_ids), unnest(v_due), unnest(v_counts))
    with ordinality as c (run_id, due_at_ms, effects, position)
  order by c.position;
end;
$$;

-- STEP     advance_frontier — the same for one run
-- LOCKS    2 run (skip locked)
-- READS    frontier_effect
-- WRITES   step_run, run, run_event (through ql.apply_effects); agenda, run_fault
-- RETURNS  applied | settled | contended
-- RAISES   QL404, QL409, QL503
-- REPLAY   settled: a second call finds no effects
create or replace function ql_scheduler.advance_frontier (p_run_id text)
returns table (run_id text, outcome text, effects bigint)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'
as $$
declare
  v_counts bigint[];
begin
  perform ql.assert_read_committed();
  if not ql.hold_run(p_run_id) then
    return query select p_run_id, 'contended', 0::bigint;
    return;
  end if;

  v_counts := ql.advance_frontiers(array[p_run_id]);
  return query
  select p_run_id, case when v_counts[1] > 0 then 'applied' else 'settled' end, v_counts[1];
end;
$$;

-- from sql/postgres/task_admission.sql sha256 b958626fe867bfa309bc1b6d3c85e393409c2c100df896a4a2975059368ba71f
-- TASK ADMISSION — one attempt for each ready step and epoch (DOMAIN §3.4).
-- A call admits at most 512; a run that was cut, and the runs after it, keep their row.

-- HELPER   admit_ready_steps — decide and apply for runs that the caller has locked
-- LOCKS    none (the caller holds 2); rows by ql.apply_effects
-- READS    task_admission_effect
-- WRITES   through ql.apply_effects; then agenda, run_fault
-- RETURNS  the number of effects of each run; shorter than the runs when the rest has to wait
-- RAISES   QL409
create or replace function ql.admit_ready_steps (p_run_ids text[])
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_effects ql.effect[];
  v_run_ids text[] := p_run_ids;
  v_wanted bigint[];
begin
  select coalesce(array_agg(row(e.*)::ql.effect), '{}')
  into v_effects
  from unnest(p_run_ids) as i (run_id)
  cross join lateral (
    select * from ql.task_admission_effect as v where v.run_id = i.run_id offset 0
  ) as e;

  v_wanted := ql.effect_counts(p_run_ids, v_effects);
  if cardinality(v_effects) > 512 then
    -- whole runs only; the first has at most 128 steps, so a call always gets on
    select array_agg(c.run_id order by c.position)
    into v_run_ids
    from (
      select
        w.run_id,
        w.position,
        sum(w.wanted) over (order by w.position) as admitted
      from rows from (unnest(p_run_ids), unnest(v_wanted))
        with ordinality as w (run_id, wanted, position)
    ) as c
    where c.admitted <= 512;
    v_effects := array(select e from unnest(v_effects) as e where e.run_id = any(v_run_ids));
  end if;

  perform ql.apply_effects(v_effects, 'task_admission');
  perform ql.clear_agenda('task_admission', v_run_ids);
  return v_wanted[1:cardinality(v_run_ids)];
end;
$$;

-- STEP     task_admission_page — admit the ready steps of the first due runs that nobody holds
-- LOCKS    2 run (skip locked)
-- READS    agenda, task_admission_effect
-- WRITES   task_attempt, step_run, run, run_event (through ql.apply_effects); agenda, run_fault
-- RETURNS  applied | settled (nothing to do any more), in key order; runs past 512 are left out
-- RAISES   QL400, QL409, QL503
-- REPLAY   exact: (run, step, epoch) has its attempt and the rows are cleared
create or replace function ql_scheduler.task_admission_page (
  p_after_due_at_ms bigint,
  p_after_run_id text,
  p_limit int
)
returns table (run_id text, due_at_ms bigint, outcome text, effects bigint)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'
as $$
declare
  v_run_ids text[];
  v_due bigint[];
  v_counts bigint[];
begin
  perform ql.assert_read_committed();
  select
    coalesce(array_agg(p.run_id), '{}'),
    coalesce(array_agg(p.due_at_ms), '{}')
  into v_run_ids, v_due
  from ql.pick_runs('task_admission', p_after_due_at_ms, p_after_run_id, p_limit) as p;
  if cardinality(v_run_ids) = 0 then
    return;
  end if;

  v_counts := ql.admit_ready_steps(v_run_ids);
  return query
  select
    c.run_id,
    c.due_at_ms,
    case when c.effects > 0 then 'applied' else 'settled' end,
    c.effects
  from rows from (unnest(v_run_ids), unnest(v_due), unnest(v_counts))
    with ordinality as c (run_id, due_at_ms, effects, position)
  where c.effects is not null
  order by c.position;
end;
$$;

-- STEP     admit_tasks — the same for one run
-- LOCKS    2 run (skip locked)
-- READS    task_admission_effect
-- WRITES   task_attempt, step_run, run, run_event (through ql.apply_effects); agenda, run_fault
-- RETURNS  applied | settled | contended
-- RAISES   QL404, QL409, QL503
-- REPLAY   settled: a second call finds no effects
create or replace function ql_scheduler.admit_tasks (p_run_id text)
returns table (run_id text, outcome text, effects bigint)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'
as $$
declare
  v_counts bigint[];
begin
  perform ql.assert_read_committed();
  if not ql.hold_run(p_run_id) then
    return query select p_run_id, 'contended', 0::bigint;
    return;
  end if;

  v_counts := ql.admit_ready_steps(array[p_run_id]);
  return query
  select p_run_id, case when v_counts[1] > 0 then 'applied' else 'settled' end, v_counts[1];
end;
$$;

-- from sql/postgres/authority.sql sha256 3df56147766f8c76fa529cac2db12b43441b4218cb2b3f242914d8f7d8e9102e
-- AUTHORITY — what all batches of workers share: expand, lock in order, keep what was said.
-- The order is the one of DESIGN §6; start, running, report and attest go through it, and nothing
-- else does.

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
  code text  -- QL400, QL404, contended or QL410 when it goes no further; null so far
);

-- HELPER   command_list — a batch as JSON: an array of at most 128
-- RAISES   QL400
create or replace function ql.command_list (p_commands text)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_list jsonb;
begin
  begin
    v_list := p_commands::jsonb;
  exception
    when data_exception or program_limit_exceeded or statement_too_complex then
      v_list := null;
  end;
  if jsonb_typeof(v_list) is distinct from 'array' or jsonb_array_length(v_list) > 128 then
    raise exception 'a batch is a JSON array of at most 128 commands' using errcode = 'QL400';
  end if;
  return v_list;
end;
$$;

-- HELPER   expand_commands — a batch as typed rows, sorted by attempt, each with its code so far
-- READS    task_attempt (run_id, which never changes)
-- RAISES   QL400
create or replace function ql.expand_commands (p_commands text, p_kind text)
returns ql.command[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan  -- else planned at each call, and no better
as $$
declare
  v_list jsonb := ql.command_list(p_commands);
begin
  return array(
    select
      row(
        c.position, c.attempt_id, c.run_id, c.fence, ql.sha256_hex(c.token), c.identity, c.how,
        c.exit_code, c.output, c.error, c.reason,
        case
          when c.attempt_id is null or c.fence is null or c.token is null or c.times > 1
            or octet_length(c.identity) > 512 or octet_length(c.reason) > 2048
            then 'QL400'
          when p_kind = 'attested' and c.reason is null then 'QL400'
          when p_kind = 'ended' and (
            c.how is null
            or c.how not in (
              'exit', 'signal', 'stop', 'deadline', 'start_failed', 'bad_output', 'not_started'
            )
            or (c.how = 'exit' and c.exit_code is null)
            or (c.exit_code is null) <> (c.exit_text is null)
            or octet_length(c.output) > 16384
            or not ql.is_object(c.output)
            or octet_length(c.error) > 2048
          )
            then 'QL400'
          when c.run_id is null then 'QL404'
        end
      )::ql.command
    from (
      select
        e.position,
        e.value ->> 'attempt_id' as attempt_id,
        (
          select a.run_id from ql.task_attempt as a where a.attempt_id = e.value ->> 'attempt_id'
        ) as run_id,
        case when e.value ->> 'fence' ~ '^[0-9]{1,18}$' then (e.value ->> 'fence')::bigint end
          as fence,
        e.value ->> 'token' as token,
        case when p_kind = 'starting' then e.value ->> 'identity' end as identity,
        case when p_kind = 'ended' then e.value ->> 'how' end as how,
        case when p_kind = 'ended' then e.value ->> 'exit_code' end as exit_text,
        case
          when p_kind = 'ended'
            and jsonb_typeof(e.value -> 'exit_code') = 'number'
            and e.value ->> 'exit_code' ~ '^-?[0-9]{1,9}$'
            then (e.value ->> 'exit_code')::bigint
        end as exit_code,
        case
          when p_kind <> 'ended' then null
          when jsonb_typeof(e.value -> 'output') = 'object'
            then coalesce(ql.canonical_object(e.value -> 'output'), '')
          else e.value ->> 'output'
        end as output,
        case when p_kind = 'ended' then e.value ->> 'error' end as error,
        case when p_kind = 'attested' then e.value ->> 'reason' end as reason,
        row_number() over (partition by e.value ->> 'attempt_id' order by e.position) as times
      from jsonb_array_elements(v_list) with ordinality as e (value, position)
    ) as c
    order by c.attempt_id collate "C", c.position
  );
end;
$$;

-- HELPER   lock_runs — lock runs for a batch: wait for each in order, and after a wait that took
--          too long once more without those that are still held
-- LOCKS    2 run (by run_id; waits up to lock_timeout, then skip locked)
-- RETURNS  the runs that are locked
create or replace function ql.lock_runs (p_run_ids text[])
returns text[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_run_id text;
  v_held text[] := array[]::text[];
begin
  begin
    for v_run_id in
      select r.run_id
      from ql.run as r
      where r.run_id = any(p_run_ids)
      order by r.run_id
      for no key update
    loop
      v_held := v_held || v_run_id;
    end loop;
    return v_held;
  exception
    when lock_not_available then
      v_held := array[]::text[];  -- the locks of the block are gone, variables are not
  end;

  for v_run_id in
    select r.run_id
    from ql.run as r
    where r.run_id = any(p_run_ids)
    order by r.run_id
    for no key update skip locked
  loop
    v_held := v_held || v_run_id;
  end loop;
  return v_held;
end;
$$;

-- HELPER   lock_attempts — authority over attempts and their runs, for a batch; p_run_ids names the
--          run of each
-- LOCKS    1 attempt advisory (by attempt_id, try) · 2 run (by run_id, as in lock_runs); 3, 4 and 5
--          are taken by the updates of ql.apply_effects, since no one writes them without 1 and 2
-- RETURNS  the attempts that are covered by both; all others are contended
create or replace function ql.lock_attempts (p_attempt_ids text[], p_run_ids text[])
returns text[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_mine boolean[];
  v_held text[];
begin
  v_mine := array(
    select pg_try_advisory_xact_lock(ql.attempt_key(i.attempt_id))
    from unnest(p_attempt_ids) with ordinality as i (attempt_id, position)
    order by i.position
  );
  v_held := ql.lock_runs(array(
    select distinct i.run_id from unnest(p_run_ids, v_mine) as i (run_id, mine) where i.mine
  ));
  return array(
    select i.attempt_id
    from unnest(p_attempt_ids, p_run_ids, v_mine) as i (attempt_id, run_id, mine)
    where i.mine and i.run_id = any(v_held)
  );
end;
$$;

-- HELPER   refuse_others — the commands that went this far and are not among those get a code
create or replace function ql.refuse_others (
  p_commands ql.command[],
  p_attempt_ids text[],
  p_code text
)
returns ql.command[]
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if cardinality(p_attempt_ids)
    = (select count(*) from unnest(p_commands) as c where c.code is null)
  then
    return p_commands;  -- as nearly always
  end if;
  return array(
    select
      row(
        c.position, c.attempt_id, c.run_id, c.fence, c.token_digest, c.identity, c.how,
        c.exit_code, c.output, c.error, c.reason,
        coalesce(c.code, case when not c.attempt_id = any(p_attempt_ids) then p_code end)
      )::ql.command
    from unnest(p_commands) as c
    order by c.attempt_id collate "C", c.position
  );
end;
$$;

-- HELPER   lock_commands — lock_attempts for the commands that go further; the others are contended
-- LOCKS    1 · 2, as in lock_attempts
create or replace function ql.lock_commands (p_commands ql.command[])
returns ql.command[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_attempt_ids text[];
  v_run_ids text[];
begin
  select
    coalesce(array_agg(c.attempt_id), '{}'),
    coalesce(array_agg(c.run_id), '{}')
  into v_attempt_ids, v_run_ids
  from unnest(p_commands) as c  -- sorted by attempt
  where c.code is null;
  return ql.refuse_others(p_commands, ql.lock_attempts(v_attempt_ids, v_run_ids), 'contended');
end;
$$;

-- HELPER   runs_of — the runs of the commands that go further
create or replace function ql.runs_of (p_commands ql.command[])
returns text[]
language plpgsql  -- not sql, which would be planned anew at every call
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  return array(select distinct c.run_id from unnest(p_commands) as c where c.code is null);
end;
$$;

-- HELPER   accept_reports — insert the reports that have authority: leased, same fence, same token
-- LOCKS    none (the caller holds 1 and 2)
-- READS    attempt_lease, task_attempt
-- WRITES   attempt_report
-- RETURNS  the attempts whose report is new
create or replace function ql.accept_reports (
  p_commands ql.command[],
  p_kind text,
  p_now_ms bigint
)
returns text[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_new text[];
begin
  with fresh as (
    insert into ql.attempt_report as p (
      run_id, attempt_id, fence, kind, how, exit_code, identity, output, error, reported_at_ms
    )
    select
      c.run_id, c.attempt_id, c.fence, p_kind, c.how, c.exit_code, c.identity, c.output, c.error,
      p_now_ms
    from unnest(p_commands) as c
    join ql.attempt_lease as l on l.attempt_id = c.attempt_id
    join ql.task_attempt as a on a.attempt_id = c.attempt_id
    where c.code is null
      and l.status = 'leased'
      and l.fence = c.fence
      and l.token_digest = c.token_digest
      and case
        when p_kind = 'starting' then a.status = 'claimed' and l.expires_at_ms > p_now_ms
        when p_kind = 'running' then a.status = 'starting'
        when c.how = 'not_started' then a.status in ('claimed', 'starting')
        else a.status in ('starting', 'running')
      end
    on conflict do nothing
    returning p.attempt_id
  )
  select coalesce(array_agg(f.attempt_id), '{}')
  into v_new
  from fresh as f;
  return v_new;
end;
$$;

-- HELPER   known_reports — the attempts, apart from new ones, whose report of a kind says what the
--          command says, made by the holder of that fence: replays
-- READS    attempt_report, attempt_offer
create or replace function ql.known_reports (
  p_commands ql.command[],
  p_new text[],
  p_kind text
)
returns text[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  if cardinality(p_new)
    = (select count(*) from unnest(p_commands) as c where c.code is null)
  then
    return array[]::text[];  -- as nearly always
  end if;
  return array(
    select c.attempt_id
    from unnest(p_commands) as c
    join ql.attempt_report as p
      on p.run_id = c.run_id
      and p.attempt_id = c.attempt_id
      and p.fence = c.fence
      and p.kind = p_kind
    join ql.attempt_offer as o
      on o.run_id = c.run_id and o.attempt_id = c.attempt_id and o.fence = c.fence
    where c.code is null
      and not c.attempt_id = any(p_new)
      and o.token_digest = c.token_digest
      and p.how is not distinct from c.how
      and p.exit_code is not distinct from c.exit_code
      and p.identity is not distinct from c.identity
      and p.output is not distinct from c.output
  );
end;
$$;

-- HELPER   answers — what each command is told, in the order in which the batch came
create or replace function ql.answers (p_commands ql.command[])
returns table (attempt_id text, outcome text, code text)
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  return query
  select
    c.attempt_id,
    case
      when c.code is null then 'applied'
      when c.code = 'contended' then 'contended'
      else 'blocked'
    end,
    nullif(c.code, 'contended')
  from unnest(p_commands) as c
  order by c.position;
end;
$$;

-- from sql/postgres/dispatch.sql sha256 f52dee6255c001c00a77234b6bcf074c7f172b0025a19a6a65fe0b734580fbb7
-- DISPATCH — sessions, and offers that take leases (DOMAIN §3.5, DESIGN §5, §6).
-- What a holder of a lease may do with it is in dispatch_start.sql.
-- What runs for each step of a workflow has `plan_cache_mode = force_generic_plan`: decisions are
-- read run by run, so one plan fits any batch, and planning at each call cost more than it all.

-- STEP     register_worker — a worker's new session takes over from its older one
-- LOCKS    apart: worker_session
-- READS    worker_session
-- WRITES   worker_session
-- RETURNS  worker_id, generation, status
-- RAISES   QL400, QL503
-- REPLAY   exact: the same session registers once
create or replace function ql_worker.register_worker (
  p_worker_id text,
  p_session_id text,
  p_queues text,
  p_slots int,
  p_self_fencing int,
  p_grace_ms bigint
)
returns table (worker_id text, generation bigint, status text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set lock_timeout = '1s'
as $$
declare
  v_now bigint := ql.now_ms();
begin
  perform ql.assert_read_committed();
  if coalesce(length(p_worker_id), 0) not between 1 and 36
    or coalesce(length(p_session_id), 0) not between 1 and 36
    or octet_length(p_queues) > 131072 or jsonb_array_length(ql.command_list(p_queues)) = 0
    or exists (
      select from jsonb_array_elements(ql.command_list(p_queues)) as q (value)
      where jsonb_typeof(q.value) <> 'string' or length(q.value #>> '{}') not between 1 and 200
    )
    or coalesce(p_slots, 0) not between 1 and 1024
    or coalesce(p_self_fencing, -1) not in (0, 1)
    or coalesce(p_grace_ms, -1) not between 0 and 3600000
  then
    raise exception 'a worker has an id, a session, queues, 1 to 1024 slots and a grace up to 1 h'
      using errcode = 'QL400';
  end if;

  insert into ql.worker_session as w (
    worker_id, session_id, generation, status, queues, slots, self_fencing, grace_ms,
    registered_at_ms, expires_at_ms
  )
  values (
    p_worker_id, p_session_id, 1, 'online', p_queues, p_slots, p_self_fencing, p_grace_ms,
    v_now, v_now + 300000
  )
  on conflict on constraint worker_session_pkey do update
  set
    session_id = excluded.session_id,
    generation = w.generation + 1,
    status = excluded.status,
    queues = excluded.queues,
    slots = excluded.slots,
    self_fencing = excluded.self_fencing,
    grace_ms = excluded.grace_ms,
    registered_at_ms = excluded.registered_at_ms,
    expires_at_ms = excluded.expires_at_ms
  where w.session_id <> excluded.session_id;

  return query
  select
    w.worker_id,
    w.generation,
    w.status
  from ql.worker_session as w
  where w.worker_id = p_worker_id;
end;
$$;

-- STEP     end_session — the worker leaves; what it holds stays its own until it ends or expires
-- LOCKS    apart: worker_session
-- READS    worker_session
-- WRITES   worker_session
-- RETURNS  worker_id, status
-- RAISES   QL404, QL410 (another session holds the worker), QL503
-- REPLAY   exact
create or replace function ql_worker.end_session (p_worker_id text, p_session_id text)
returns table (worker_id text, status text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set lock_timeout = '1s'
as $$
declare
  v_session_id text;
begin
  perform ql.assert_read_committed();
  select w.session_id
  into v_session_id
  from ql.worker_session as w
  where w.worker_id = p_worker_id
  for no key update;
  if not found then
    raise exception 'no worker %', p_worker_id using errcode = 'QL404';
  elsif v_session_id is distinct from p_session_id then
    raise exception 'worker % has a newer session', p_worker_id using errcode = 'QL410';
  end if;

  update ql.worker_session as w
  set status = 'offline'
  where w.worker_id = p_worker_id and w.status <> 'offline';
  return query select p_worker_id, 'offline';
end;
$$;

-- HELPER   hold_session — the worker's session, which must be the one that is online
-- LOCKS    apart: worker_session (so that the calls of one worker lease one after another)
-- RAISES   QL410
create or replace function ql.hold_session (p_worker_id text, p_session_id text)
returns ql.worker_session
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_session ql.worker_session;
begin
  select w.*
  into v_session
  from ql.worker_session as w
  where w.worker_id = p_worker_id and w.session_id = p_session_id and w.status = 'online'
  for no key update;
  if not found then
    raise exception 'session % of worker % is not online', p_session_id, p_worker_id
      using errcode = 'QL410';
  end if;
  return v_session;
end;
$$;

-- HELPER   check_offers — ids of at most 36 characters, once each, with a digest of their token
-- RAISES   QL400
create or replace function ql.check_offers (p_offers jsonb, p_lease_ms bigint)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_odd bigint;
  v_twice bigint;
begin
  if p_lease_ms is null or p_lease_ms not between 5000 and 300000 then
    raise exception 'a lease lasts 5 s to 5 min, not % ms', p_lease_ms using errcode = 'QL400';
  end if;

  select
    count(*) filter (
      where coalesce(length(o.offer_id), 0) not between 1 and 36
        or coalesce(length(o.token_digest), 0) <> 64
        or translate(o.token_digest, '0123456789abcdef', '') <> ''
    ),
    count(*) - count(distinct o.offer_id)
  into v_odd, v_twice
  from jsonb_to_recordset(p_offers) as o (offer_id text, token_digest text);
  if v_odd > 0 then
    raise exception 'an offer has an offer_id and a token_digest' using errcode = 'QL400';
  elsif v_twice > 0 then
    raise exception 'an offer is made once' using errcode = 'QL400';
  end if;
end;
$$;

-- HELPER   pick_attempts — candidates of a queue (of one run, when it is given), oldest first, and
--          authority over at most as many as were asked for
-- LOCKS    1 attempt advisory (try, one by one until the batch is full)
-- READS    task_attempt, attempt_lease, run (without row locks; read again under the run's lock)
create or replace function ql.pick_attempts (
  p_queue text,
  p_run_id text,
  p_count bigint,
  out attempt_ids text[],
  out run_ids text[]
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_sort = off  -- a queue is read in the order of its index, no further than needed
set enable_bitmapscan = off
as $$
begin
  select
    coalesce(array_agg(w.attempt_id), '{}'),
    coalesce(array_agg(w.run_id), '{}')
  into attempt_ids, run_ids
  from (
    select
      f.attempt_id,
      f.run_id
    from (
      -- two branches, of which one runs: each has an index of its own. They are not sorted again,
      -- so that no more is read, and locked, than fills the batch
      (
        select a.attempt_id, a.run_id
        from ql.task_attempt as a
        where p_run_id is null
          and a.queue = p_queue
          and a.offer_at_ms is not null
          and (select l.status from ql.attempt_lease as l where l.attempt_id = a.attempt_id)
            is distinct from 'leased'
          and (select r.cancel_requested_at_ms from ql.run as r where r.run_id = a.run_id) is null
        order by a.offer_at_ms, a.attempt_id
        limit 4 * p_count
      )
      union all
      (
        select a.attempt_id, a.run_id
        from ql.task_attempt as a
        where a.run_id = p_run_id
          and a.queue = p_queue
          and a.offer_at_ms is not null
          and (select l.status from ql.attempt_lease as l where l.attempt_id = a.attempt_id)
            is distinct from 'leased'
          and (select r.cancel_requested_at_ms from ql.run as r where r.run_id = a.run_id) is null
        order by a.offer_at_ms, a.attempt_id
        limit 4 * p_count
      )
    ) as f
    where pg_try_advisory_xact_lock(ql.attempt_key(f.attempt_id))
    limit p_count
  ) as w;
end;
$$;

-- HELPER   make_offers — give new offers to the attempts that may still be leased, oldest first
-- LOCKS    none (the caller holds 1 and 2)
-- READS    task_attempt, attempt_lease, step_run, run
-- WRITES   attempt_offer
-- RETURNS  the offers that found an attempt
create or replace function ql.make_offers (
  p_session ql.worker_session,
  p_held text[],
  p_offer_ids text[],
  p_digests text[],
  p_now_ms bigint,
  p_lease_ms bigint
)
returns text[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_made text[];
begin
  with made as (
    insert into ql.attempt_offer as m (
      run_id, attempt_id, fence, offer_id, worker_id, token_digest, self_fencing, grace_ms,
      offered_at_ms, expires_at_ms
    )
    select
      f.run_id, f.attempt_id, f.fence, p_offer_ids[f.position], p_session.worker_id,
      p_digests[f.position], p_session.self_fencing, p_session.grace_ms, p_now_ms,
      p_now_ms + p_lease_ms
    from (
      select
        a.run_id,
        a.attempt_id,
        row_number() over (order by a.offer_at_ms, a.attempt_id) as position,
        1 + coalesce(l.fence, 0) as fence
      from ql.task_attempt as a
      left join lateral (
        select
          l.status,
          l.fence
        from ql.attempt_lease as l
        where l.attempt_id = a.attempt_id
        offset 0
      ) as l on true
      where a.attempt_id = any(p_held)
        and a.status = 'claimed'
        and l.status is distinct from 'leased'
        and (
          select case when r.cancel_requested_at_ms is null then r.status end
          from ql.run as r
          where r.run_id = a.run_id
        ) = 'running'
        and (
          select case when s.status = 'ready' then s.version end
          from ql.step_run as s
          where s.run_id = a.run_id and s.step_key = a.step_key
        ) = a.epoch
    ) as f
    where f.position <= cardinality(p_offer_ids)
    order by f.attempt_id
    on conflict do nothing  -- another worker has made an offer of this id meanwhile
    returning m.offer_id
  )
  select coalesce(array_agg(m.offer_id), '{}')
  into v_made
  from made as m;
  return v_made;
end;
$$;

-- STEP     lease_attempts — give a worker's offers to the oldest admitted attempts of a queue, or
--          of one run in it
-- LOCKS    apart: worker_session · 1 attempt advisory (try) · 2 run (by run_id, waits, then skips)
-- READS    task_attempt, attempt_lease, attempt_offer, dispatch_effect
-- WRITES   attempt_offer; attempt_lease, run, run_event, agenda (through ql.apply_effects)
-- RETURNS  one row an offer that holds a lease, in the order of the offers; try_number counts this
--          attempt, and those of its step that came past the start barrier before it
-- RAISES   QL400, QL409, QL410 (session), QL500, QL503
-- REPLAY   exact while the lease is held; an offer that was spent gives no row
create or replace function ql_worker.lease_attempts (
  p_worker_id text,
  p_session_id text,
  p_queue text,
  p_offers text,
  p_lease_ms bigint,
  p_run_id text
)
returns table (
  attempt_id text, run_id text, step_key text, number bigint, offer_id text, fence bigint,
  expires_at_ms bigint, lease_ms bigint, timeout_ms bigint, package_key text, base_dir text,
  spec text, task_key text, try_number bigint
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '100ms'
as $$
declare
  v_session ql.worker_session;
  v_offers jsonb := ql.command_list(p_offers);
  v_offer_ids text[];
  v_digests text[];
  v_picked record;
  v_made text[];
  v_effects ql.effect[];
begin
  perform ql.assert_read_committed();
  v_session := ql.hold_session(p_worker_id, p_session_id);
  perform ql.check_offers(v_offers, p_lease_ms);

  -- an offer that was made before is a replay, whatever became of it
  select
    coalesce(array_agg(o.value ->> 'offer_id' order by o.position), '{}'),
    coalesce(array_agg(o.value ->> 'token_digest' order by o.position), '{}')
  into v_offer_ids, v_digests
  from jsonb_array_elements(v_offers) with ordinality as o (value, position)
  where not exists (
    select from ql.attempt_offer as m where m.offer_id = o.value ->> 'offer_id'
  );

  if cardinality(v_offer_ids) > 0 then
    v_picked := ql.pick_attempts(p_queue, p_run_id, cardinality(v_offer_ids));
    v_made := ql.make_offers(
      v_session,
      ql.lock_attempts(v_picked.attempt_ids, v_picked.run_ids),
      v_offer_ids,
      v_digests,
      ql.now_ms(),
      p_lease_ms
    );
    select coalesce(array_agg(row(e.*)::ql.effect), '{}')
    into v_effects
    from (
      select distinct p.run_id from unnest(v_picked.run_ids) as p (run_id)
    ) as i
    cross join lateral (
      select * from ql.dispatch_effect as v where v.run_id = i.run_id offset 0
    ) as e
    where e.input_id = any(v_made);
    if cardinality(v_effects) <> cardinality(v_made) then
      raise exception 'an offer was made that leases nothing' using errcode = 'QL500';
    end if;
    perform ql.apply_effects(v_effects, 'dispatch');
  end if;

  return query
  select
    a.attempt_id, a.run_id, a.step_key, a.number, l.offer_id, l.fence,
    l.expires_at_ms, p_lease_ms, t.timeout_ms, t.package_key, p.base_dir, t.spec, t.task_key,
    s.attempt_count + case s.status when 'ready' then 1 else 0 end
  from jsonb_array_elements(v_offers) with ordinality as o (value, position)
  -- each by itself: a plan that joins them may walk through all leases, or all tasks, there are
  cross join lateral (
    select m.attempt_id
    from ql.attempt_offer as m
    where m.offer_id = o.value ->> 'offer_id'
    offset 0
  ) as m
  cross join lateral (
    select l.*
    from ql.attempt_lease as l
    where l.attempt_id = m.attempt_id
    offset 0
  ) as l
  join ql.task_attempt as a on a.attempt_id = m.attempt_id
  join ql.step_run as s on s.run_id = a.run_id and s.step_key = a.step_key
  cross join lateral (
    select t.* from ql.task_revision as t where t.task_id = a.task_id offset 0
  ) as t
  join ql.package as p on p.package_key = t.package_key
  where l.status = 'leased'
    and l.offer_id = o.value ->> 'offer_id'
    and l.worker_id = p_worker_id
    and l.token_digest = o.value ->> 'token_digest'
  order by o.position;
end;
$$;

-- from sql/postgres/dispatch_start.sql sha256 c6c29466d4ed2d856272f74aa4a01e43e5ddbc9f232e9daed254292629424911
-- DISPATCH, START — what the holder of a lease does with it: read the input, cross the start
-- barrier, say that the execution runs, renew (DOMAIN §3.5, DESIGN §5, §6).

-- STEP     attempt_input — the run's input and what the attempt's direct needs gave
-- LOCKS    none
-- READS    attempt_lease, task_attempt, run, run_input, workflow_ancestor, step_output
-- WRITES   nothing
-- RETURNS  attempt_id and canonical JSON; no row without a live token for this attempt
-- RAISES   QL503
-- REPLAY   reads only
create or replace function ql_worker.attempt_input (p_attempt_id text, p_token text)
returns table (attempt_id text, input text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'
as $$
begin
  perform ql.assert_read_committed();
  return query
  select
    a.attempt_id,
    '{"input":' || i.input || ',"needs":{' || coalesce(
      (
        select string_agg(
          to_jsonb(w.ancestor_key)::text || ':' || coalesce(o.output, 'null'),
          ',' order by w.ancestor_key
        )
        from ql.workflow_ancestor as w
        left join ql.step_output as o on o.run_id = a.run_id and o.step_key = w.ancestor_key
        where w.workflow_id = r.target_id and w.step_key = a.step_key and w.distance = 1
      ),
      ''
    ) || '}}'
  from ql.attempt_lease as l
  join ql.task_attempt as a on a.attempt_id = l.attempt_id
  join ql.run as r on r.run_id = a.run_id
  join ql.run_input as i on i.run_id = a.run_id
  where l.attempt_id = p_attempt_id
    and l.status = 'leased'
    and l.token_digest = ql.sha256_hex(p_token);
end;
$$;

-- STEP     start_attempts — the start barrier: after this commit a side effect must be presumed
-- LOCKS    1 attempt advisory (by attempt_id, try) · 2 run (by run_id, waits, then skips)
-- READS    attempt_lease, task_attempt, dispatch_effect
-- WRITES   attempt_report; task_attempt, attempt_lease, run, run_event, agenda (ql.apply_effects)
-- RETURNS  applied, with deadline and lease end | blocked (QL400, QL404, QL410) | contended
-- RAISES   QL400 (not a batch), QL409, QL503
-- REPLAY   exact while the lease is held: the report of this fence is found. After that QL410, for
--          nobody may go past the barrier on an answer that is no longer true. Under an intent the
--          lease goes back: QL410
create or replace function ql_worker.start_attempts (p_commands text)
returns table (
  attempt_id text, outcome text, code text, deadline_at_ms bigint, expires_at_ms bigint
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '100ms'
as $$
declare
  v_commands ql.command[] := ql.expand_commands(p_commands, 'starting');
  v_new text[];
  v_started text[];
  v_effects ql.effect[];
begin
  perform ql.assert_read_committed();
  v_commands := ql.lock_commands(v_commands);
  v_new := ql.accept_reports(v_commands, 'starting', ql.now_ms());

  select array_agg(row(e.*)::ql.effect)
  into v_effects
  from unnest(ql.runs_of(v_commands)) as i (run_id)
  cross join lateral (
    select * from ql.dispatch_effect as v where v.run_id = i.run_id offset 0
  ) as e
  where e.input_id = any(v_new);
  perform ql.apply_effects(v_effects, 'dispatch');

  -- what is new crossed the barrier by its effect; what is not is looked up
  v_started := array(select e.entity_id from unnest(v_effects) as e where e.to_status = 'starting')
    || array(
      select a.attempt_id
      from unnest(ql.known_reports(v_commands, v_new, 'starting')) as k (attempt_id)
      join ql.task_attempt as a on a.attempt_id = k.attempt_id
      where a.starting_at_ms is not null
        and (
          select l.status from ql.attempt_lease as l where l.attempt_id = a.attempt_id
        ) = 'leased'
    );
  v_commands := ql.refuse_others(v_commands, v_started, 'QL410');
  return query
  select
    w.attempt_id,
    w.outcome,
    w.code,
    a.deadline_at_ms,
    l.expires_at_ms
  from ql.answers(v_commands)
    with ordinality as w (attempt_id, outcome, code, position)
  left join ql.task_attempt as a on a.attempt_id = w.attempt_id and w.outcome = 'applied'
  left join ql.attempt_lease as l on l.attempt_id = w.attempt_id and w.outcome = 'applied'
  order by w.position;
end;
$$;

-- STEP     running_attempts — the execution runs; true even under an intent
-- LOCKS    1 attempt advisory (by attempt_id, try) · 2 run (by run_id, waits, then skips)
-- READS    attempt_lease, task_attempt, dispatch_effect
-- WRITES   attempt_report; task_attempt, step_run, run, run_event, agenda (ql.apply_effects)
-- RETURNS  applied | blocked (QL400, QL404, QL410) | contended
-- RAISES   QL400 (not a batch), QL409, QL503
-- REPLAY   exact: the report of this fence is found
create or replace function ql_worker.running_attempts (p_commands text)
returns table (attempt_id text, outcome text, code text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '100ms'
as $$
declare
  v_commands ql.command[] := ql.expand_commands(p_commands, 'running');
  v_new text[];
  v_effects ql.effect[];
begin
  perform ql.assert_read_committed();
  v_commands := ql.lock_commands(v_commands);
  v_new := ql.accept_reports(v_commands, 'running', ql.now_ms());

  select array_agg(row(e.*)::ql.effect)
  into v_effects
  from unnest(ql.runs_of(v_commands)) as i (run_id)
  cross join lateral (
    select * from ql.dispatch_effect as v where v.run_id = i.run_id offset 0
  ) as e
  where e.input_id = any(v_new);
  perform ql.apply_effects(v_effects, 'dispatch');

  return query
  select
    w.attempt_id,
    w.outcome,
    w.code
  from ql.answers(
    ql.refuse_others(
      v_commands, v_new || ql.known_reports(v_commands, v_new, 'running'), 'QL410'
    )
  ) as w;
end;
$$;

-- STEP     renew_attempts — keep leases alive, and hear whether to stop
-- LOCKS    1 attempt advisory (by attempt_id, try) · 4 attempt_lease (by attempt_id); never 2, so
--          that the live steps of a wide run renew without queueing on it
-- READS    attempt_lease, task_attempt, run
-- WRITES   attempt_lease (the expiry alone: no effect, no event)
-- RETURNS  applied, with lease end and stop_reason | blocked (QL400, QL404, QL410) | contended
-- RAISES   QL400 (not a batch, or the length of a lease), QL503
-- REPLAY   renews again; past deadline and grace the expiry stands still
create or replace function ql_worker.renew_attempts (p_commands text, p_lease_ms bigint)
returns table (
  attempt_id text, outcome text, code text, expires_at_ms bigint, stop_reason text
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '100ms'
as $$
declare
  v_commands ql.command[] := ql.expand_commands(p_commands, 'renewal');
  v_now bigint;
begin
  perform ql.assert_read_committed();
  perform ql.check_offers('[]', p_lease_ms);
  v_commands := ql.refuse_others(v_commands, array(
    select c.attempt_id
    from unnest(v_commands) as c
    where c.code is null and pg_try_advisory_xact_lock(ql.attempt_key(c.attempt_id))
  ), 'contended');
  perform
  from ql.attempt_lease as l
  where l.attempt_id = any(array(
      select c.attempt_id from unnest(v_commands) as c where c.code is null
    ))
  order by l.attempt_id
  for no key update;
  v_now := ql.now_ms();

  v_commands := ql.refuse_others(v_commands, array(
    select c.attempt_id
    from unnest(v_commands) as c
    join ql.attempt_lease as l on l.attempt_id = c.attempt_id
    where c.code is null
      and l.status = 'leased'
      and l.fence = c.fence
      and l.token_digest = c.token_digest
      and l.expires_at_ms > v_now
  ), 'QL410');
  update ql.attempt_lease as l
  set expires_at_ms = v_now + p_lease_ms
  from ql.task_attempt as a
  where l.attempt_id = any(array(
      select c.attempt_id from unnest(v_commands) as c where c.code is null
    ))
    and l.expires_at_ms < v_now + p_lease_ms
    and a.attempt_id = l.attempt_id
    and coalesce(a.deadline_at_ms + l.grace_ms > v_now, true);

  return query
  select
    w.attempt_id,
    w.outcome,
    w.code,
    l.expires_at_ms,
    coalesce(
      (select r.cancel_reason from ql.run as r where r.run_id = l.run_id),
      case when a.deadline_at_ms + l.grace_ms <= v_now then 'deadline' end
    )
  from ql.answers(v_commands)
    with ordinality as w (attempt_id, outcome, code, position)
  left join ql.attempt_lease as l on l.attempt_id = w.attempt_id and w.outcome = 'applied'
  left join ql.task_attempt as a on a.attempt_id = l.attempt_id
  order by w.position;
end;
$$;

-- from sql/postgres/completion.sql sha256 c370fa978f2190cf0609b6e5cdc94f2f24e9d43159d47f28cddd45b564f71271
-- COMPLETION — how executions ended, as workers say it (DOMAIN §3.5, DESIGN §9).
-- The lease row is the authority: a report may come after its expiry while the fence stands.

-- HELPER   keep_refused — what the former holder of a fence said too late: it changes nothing, but
--          is kept
-- LOCKS    none (the caller holds 1 and 2)
-- READS    attempt_offer (a stranger's report is not kept), refused_report
-- WRITES   refused_report (at most 8 an attempt, each content once)
create or replace function ql.keep_refused (p_commands ql.command[], p_now_ms bigint)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  insert into ql.refused_report (
    run_id, attempt_id, ordinal, code, kind, how, exit_code, fence, refused_at_ms
  )
  select
    c.run_id, c.attempt_id, 1 + f.refused, 'QL410', 'ended', c.how, c.exit_code, c.fence, p_now_ms
  from unnest(p_commands) as c
  join ql.attempt_offer as o
    on o.run_id = c.run_id and o.attempt_id = c.attempt_id and o.fence = c.fence
  cross join lateral (
    select
      count(*) as refused,
      count(*) filter (
        where k.fence = c.fence and k.how = c.how and k.exit_code is not distinct from c.exit_code
      ) as known
    from ql.refused_report as k
    where k.run_id = c.run_id and k.attempt_id = c.attempt_id
  ) as f
  where c.code = 'QL410'
    and o.token_digest = c.token_digest
    and f.refused < 8
    and f.known = 0;
end;
$$;

-- STEP     report_attempts — end executions: attempt, step and lease together
-- LOCKS    1 attempt advisory (by attempt_id, try) · 2 run (by run_id, waits, then skips)
-- READS    attempt_lease, task_attempt, attempt_offer, refused_report, completion_effect
-- WRITES   attempt_report, refused_report; task_attempt, attempt_lease, step_run, step_output, run,
--          run_event, agenda (through ql.apply_effects)
-- RETURNS  applied, with the attempt's status | blocked (QL400, QL404, QL410) | contended
-- RAISES   QL400 (not a batch), QL409, QL503
-- REPLAY   exact: the report of this fence is found; another content for it is QL410
create or replace function ql_worker.report_attempts (p_commands text)
returns table (attempt_id text, outcome text, code text, status text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '100ms'
as $$
declare
  v_commands ql.command[] := ql.expand_commands(p_commands, 'ended');
  v_now bigint;
  v_new text[];
  v_effects ql.effect[];
begin
  perform ql.assert_read_committed();
  v_commands := ql.lock_commands(v_commands);
  v_now := ql.now_ms();
  v_new := ql.accept_reports(v_commands, 'ended', v_now);

  select array_agg(row(e.*)::ql.effect)
  into v_effects
  from unnest(ql.runs_of(v_commands)) as i (run_id)
  cross join lateral (
    select * from ql.completion_effect as v where v.run_id = i.run_id offset 0
  ) as e
  where e.input_id = any(v_new);
  perform ql.apply_effects(v_effects, 'completion');

  v_commands := ql.refuse_others(
    v_commands, v_new || ql.known_reports(v_commands, v_new, 'ended'), 'QL410'
  );
  perform ql.keep_refused(v_commands, v_now);
  return query
  select
    w.attempt_id,
    w.outcome,
    w.code,
    (
      select a.status
      from ql.task_attempt as a
      where a.attempt_id = w.attempt_id and w.outcome = 'applied'
    )
  from ql.answers(v_commands) as w;
end;
$$;

-- STEP     attest_attempts — the worker knows that an execution is gone, but not how it ended
-- LOCKS    1 attempt advisory (by attempt_id, try) · 2 run (by run_id, waits, then skips)
-- READS    attempt_lease, attempt_offer, recovery_effect
-- WRITES   attestation; task_attempt, attempt_lease, step_run, run, run_event, agenda
--          (through ql.apply_effects)
-- RETURNS  applied, with the attempt's status | blocked (QL400, QL404, QL410) | contended
-- RAISES   QL400 (not a batch), QL409, QL503
-- REPLAY   exact: the attestation is found; another reason for it is QL410
create or replace function ql_worker.attest_attempts (p_commands text)
returns table (attempt_id text, outcome text, code text, status text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '100ms'
as $$
declare
  v_commands ql.command[] := ql.expand_commands(p_commands, 'attested');
  v_now bigint;
begin
  perform ql.assert_read_committed();
  v_commands := ql.lock_commands(v_commands);
  v_now := ql.now_ms();

  insert into ql.attestation (
    run_id, attempt_id, evidence, follow, reason, actor, attested_at_ms
  )
  select c.run_id, c.attempt_id, 'attested', null, c.reason, l.worker_id, v_now
  from unnest(v_commands) as c
  join ql.attempt_lease as l on l.attempt_id = c.attempt_id
  where c.code is null
    and l.status = 'leased'
    and l.fence = c.fence
    and l.token_digest = c.token_digest
  on conflict do nothing;
  perform ql.apply_attested(
    array(select c.attempt_id from unnest(v_commands) as c where c.code is null)
  );

  v_commands := ql.refuse_others(v_commands, array(
    select c.attempt_id
    from unnest(v_commands) as c
    join ql.attestation as n on n.run_id = c.run_id and n.attempt_id = c.attempt_id
    join ql.attempt_offer as o
      on o.run_id = c.run_id and o.attempt_id = c.attempt_id and o.fence = c.fence
    where c.code is null
      and o.token_digest = c.token_digest
      and n.evidence = 'attested'
      and n.reason = c.reason
  ), 'QL410');
  return query
  select
    w.attempt_id,
    w.outcome,
    w.code,
    (
      select a.status
      from ql.task_attempt as a
      where a.attempt_id = w.attempt_id and w.outcome = 'applied'
    )
  from ql.answers(v_commands) as w;
end;
$$;

-- from sql/postgres/recovery.sql sha256 47994e0ea8a1657ed41ca26d5096fb25cb086065bce0a0ae9f98754507a954ad
-- RECOVERY — back-offs that are over, and work whose worker is silent (DESIGN §5, §9).
-- A lease that expires proves nothing by itself: evidence becomes an attestation, and that decides.

-- HELPER   apply_attested — what follows from the attestations of attempts that are covered
-- LOCKS    none (the caller holds 1 and 2)
-- READS    recovery_effect (attested attempts that still live; ended ones have no effects)
-- WRITES   through ql.apply_effects
-- RETURNS  the number of effects
-- RAISES   QL409
create or replace function ql.apply_attested (p_attempt_ids text[])
returns bigint
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_run_ids text[];
  v_effects ql.effect[];
begin
  v_run_ids := array(
    select distinct a.run_id
    from ql.task_attempt as a
    where a.attempt_id = any(p_attempt_ids)
      and a.finished_at_ms is null
      and exists (
        select from ql.attestation as n where n.run_id = a.run_id and n.attempt_id = a.attempt_id
      )
  );
  select array_agg(row(e.*)::ql.effect)
  into v_effects
  from unnest(v_run_ids) as i (run_id)
  cross join lateral (
    select * from ql.recovery_effect as v where v.run_id = i.run_id offset 0
  ) as e
  where e.input_id = any(p_attempt_ids);
  return ql.apply_effects(v_effects, 'recovery');
end;
$$;

-- STEP     recover_run — act on what the clock proves about one run's silent leases
-- LOCKS    1 attempt advisory (try) · 2 run (skip locked) · 3 task_attempt · 4 attempt_lease ·
--          5 step_run
-- READS    recovery_due, recovery_effect
-- WRITES   attestation; task_attempt, attempt_lease, step_run, run, run_event (through
--          ql.apply_effects); agenda (moved to the next real expiry), run_fault
-- RETURNS  applied | settled (nothing proved) | contended
-- RAISES   QL404, QL409, QL503
-- REPLAY   settled: a second call finds nothing due
create or replace function ql_scheduler.recover_run (p_run_id text)
returns table (run_id text, outcome text, effects bigint)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'
as $$
declare
  v_now bigint;
  v_attempt_ids text[];
  v_effects bigint;
begin
  perform ql.assert_read_committed();
  if ql.lock_run(p_run_id) is null then
    return query select p_run_id, 'contended', 0::bigint;
    return;
  end if;

  v_now := ql.now_ms();
  with proved as (
    insert into ql.attestation as n (
      run_id, attempt_id, evidence, follow, reason, actor, attested_at_ms
    )
    select d.run_id, d.attempt_id, d.evidence, null, '', 'scheduler', v_now
    from ql.recovery_due as d
    where d.run_id = p_run_id and d.due_at_ms <= v_now
    order by d.attempt_id
    returning n.attempt_id
  )
  select array_agg(p.attempt_id)
  into v_attempt_ids
  from proved as p;

  v_effects := ql.apply_attested(v_attempt_ids);
  perform ql.rearm_agenda(
    'expiry',
    p_run_id,
    (select min(d.due_at_ms) from ql.recovery_due as d where d.run_id = p_run_id)
  );
  return query
  select p_run_id, case when v_effects > 0 then 'applied' else 'settled' end, v_effects;
end;
$$;

-- STEP     declare_stopped — an operator says that an execution is gone, and may say what follows
-- LOCKS    1 attempt advisory (try) · 2 run (waits)
-- READS    task_attempt, attestation, recovery_effect
-- WRITES   attestation; task_attempt, attempt_lease, step_run, run, run_event, agenda
--          (through ql.apply_effects)
-- RETURNS  applied, with the attempt's status | blocked (QL410: not past the barrier, or ended
--          otherwise) | contended
-- RAISES   QL400, QL404, QL409, QL503
-- REPLAY   exact: the declaration is found
create or replace function ql_operator.declare_stopped (
  p_attempt_id text,
  p_reason text,
  p_actor text,
  p_follow text
)
returns table (attempt_id text, outcome text, code text, status text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'
as $$
declare
  v_run_id text;
  v_outcome text := 'contended';
begin
  perform ql.assert_read_committed();
  if coalesce(octet_length(p_reason), 0) not between 1 and 2048
    or coalesce(octet_length(p_actor), 0) not between 1 and 256
    or p_follow not in ('retry', 'fail')
  then
    raise exception 'a declaration has a reason, an actor, and is followed by retry, fail or null'
      using errcode = 'QL400';
  end if;
  v_run_id := (select a.run_id from ql.task_attempt as a where a.attempt_id = p_attempt_id);
  if v_run_id is null then
    raise exception 'no attempt %', p_attempt_id using errcode = 'QL404';
  end if;

  if cardinality(ql.lock_attempts(array[p_attempt_id], array[v_run_id])) = 1 then
    insert into ql.attestation (
      run_id, attempt_id, evidence, follow, reason, actor, attested_at_ms
    )
    select a.run_id, a.attempt_id, 'declared', p_follow, p_reason, p_actor, ql.now_ms()
    from ql.task_attempt as a
    where a.attempt_id = p_attempt_id and a.status in ('starting', 'running')
    on conflict do nothing;
    perform ql.apply_attested(array[p_attempt_id]);

    v_outcome := case
      when exists (
        select
        from ql.attestation as n
        where n.run_id = (
            select a.run_id from ql.task_attempt as a where a.attempt_id = p_attempt_id
          )
          and n.attempt_id = p_attempt_id
          and n.evidence = 'declared'
          and n.reason = p_reason
          and n.actor = p_actor
          and n.follow is not distinct from p_follow
      ) then 'applied'
      else 'blocked'
    end;
  end if;

  return query
  select
    a.attempt_id,
    v_outcome,
    case when v_outcome = 'blocked' then 'QL410' end,
    case when v_outcome = 'applied' then a.status end
  from ql.task_attempt as a
  where a.attempt_id = p_attempt_id;
end;
$$;

-- HELPER   retry_runs — open the back-offs that are over, for runs that the caller has locked
-- LOCKS    none (the caller holds 2); rows by ql.apply_effects
-- READS    retry_effect
-- WRITES   through ql.apply_effects; then agenda (moved to the next back-off), run_fault
-- RETURNS  the number of effects of each run
-- RAISES   QL409
create or replace function ql.retry_runs (p_run_ids text[])
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now bigint := ql.now_ms();
  v_effects ql.effect[];
  v_later ql.effect[];
begin
  select
    coalesce(array_agg(row(e.*)::ql.effect) filter (where b.is_over is true), '{}'),
    coalesce(array_agg(row(e.*)::ql.effect) filter (where b.is_over is not true), '{}')
  into v_effects, v_later
  from unnest(p_run_ids) as i (run_id)
  cross join lateral (
    select * from ql.retry_effect as v where v.run_id = i.run_id offset 0
  ) as e
  cross join lateral (
    select
      e.due_at_ms <= v_now
      or e.due_at_ms > v_now + (
        select w.longest_ms
        from ql.retry_longest as w
        where w.run_id = e.run_id and w.step_key = e.entity_id
      ) as is_over
  ) as b;

  perform ql.apply_effects(v_effects, 'retry');
  perform
    ql.rearm_agenda(
      'retry',
      r.run_id,
      (select min(e.due_at_ms) from unnest(v_later) as e where e.run_id = r.run_id)
    )
  from unnest(p_run_ids) as r (run_id);
  return ql.effect_counts(p_run_ids, v_effects);
end;
$$;

-- STEP     retry_page — open the back-offs that are over in the first due runs that nobody holds
-- LOCKS    2 run (skip locked)
-- READS    agenda, retry_effect
-- WRITES   step_run, run, run_event (through ql.apply_effects); agenda, run_fault
-- RETURNS  applied | settled (nothing to do any more), in key order
-- RAISES   QL400, QL409, QL503
-- REPLAY   exact: the rows are cleared or moved
create or replace function ql_scheduler.retry_page (
  p_after_due_at_ms bigint,
  p_after_run_id text,
  p_limit int
)
returns table (run_id text, due_at_ms bigint, outcome text, effects bigint)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'
as $$
declare
  v_run_ids text[];
  v_due bigint[];
  v_counts bigint[];
begin
  perform ql.assert_read_committed();
  select
    coalesce(array_agg(p.run_id), '{}'),
    coalesce(array_agg(p.due_at_ms), '{}')
  into v_run_ids, v_due
  from ql.pick_runs('retry', p_after_due_at_ms, p_after_run_id, p_limit) as p;
  if cardinality(v_run_ids) = 0 then
    return;
  end if;

  v_counts := ql.retry_runs(v_run_ids);
  return query
  select
    c.run_id,
    c.due_at_ms,
    case when c.effects > 0 then 'applied' else 'settled' end,
    c.effects
  from rows from (unnest(v_run_ids), unnest(v_due), unnest(v_counts))
    with ordinality as c (run_id, due_at_ms, effects, position)
  order by c.position;
end;
$$;

-- STEP     retry_run — the same for one run
-- LOCKS    2 run (skip locked)
-- READS    retry_effect
-- WRITES   step_run, run, run_event (through ql.apply_effects); agenda, run_fault
-- RETURNS  applied | settled | contended
-- RAISES   QL404, QL409, QL503
-- REPLAY   settled: a second call finds nothing due
create or replace function ql_scheduler.retry_run (p_run_id text)
returns table (run_id text, outcome text, effects bigint)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'
as $$
declare
  v_counts bigint[];
begin
  perform ql.assert_read_committed();
  if not ql.hold_run(p_run_id) then
    return query select p_run_id, 'contended', 0::bigint;
    return;
  end if;

  v_counts := ql.retry_runs(array[p_run_id]);
  return query
  select p_run_id, case when v_counts[1] > 0 then 'applied' else 'settled' end, v_counts[1];
end;
$$;

-- from sql/postgres/cancellation.sql sha256 09e9fcf7feeca67f7a57bd81724e297647425a1ed9fc09318ce030a6924afab6
-- CANCELLATION — an intent first, convergence after it (DOMAIN §3.9, DESIGN §5).
-- The first intent wins. Two roads: task runs that never started settle by a set-based page, all
-- other runs one a transaction, by attempt authority. What is held elsewhere is passed over.

-- HELPER   intend — write the intents of runs that the caller has locked, and what follows at once
-- LOCKS    none (the caller holds 2); rows by ql.apply_effects
-- READS    run, intent_effect
-- WRITES   cancel_intent; run, run_event, agenda (through ql.apply_effects)
-- RETURNS  the effects that were applied
-- RAISES   QL409
create or replace function ql.intend (p_run_ids text[], p_reason text, p_actor text)
returns ql.effect[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_effects ql.effect[];
begin
  insert into ql.cancel_intent (run_id, reason, actor, requested_at_ms)
  select r.run_id, p_reason, p_actor, ql.now_ms()
  from ql.run as r
  where r.run_id = any(p_run_ids) and r.status = 'running'
  order by r.run_id
  on conflict do nothing;

  select array_agg(row(e.*)::ql.effect)
  into v_effects
  from unnest(p_run_ids) as i (run_id)
  cross join lateral (
    select * from ql.intent_effect as v where v.run_id = i.run_id offset 0
  ) as e;
  perform ql.apply_effects(v_effects, 'intent');
  return v_effects;
end;
$$;

-- STEP     request_cancel — write the intent of someone who wants a run to end
-- LOCKS    2 run (waits)
-- READS    run, cancel_intent, intent_effect
-- WRITES   cancel_intent; run, run_event, agenda (through ql.apply_effects)
-- RETURNS  accepted | already_requested (another intent came first) | already_terminal
-- RAISES   QL400, QL404, QL409, QL503
-- REPLAY   exact: the same reason and actor are accepted again
create or replace function ql_admission.request_cancel (
  p_run_id text,
  p_reason text,
  p_actor text
)
returns table (
  run_id text, outcome text, status text, cancel_reason text, cancel_requested_at_ms bigint
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'
as $$
begin
  perform ql.assert_read_committed();
  -- the timeout is the deadline stage's own reason
  if coalesce(p_reason, '') not in ('user', 'policy', 'shutdown', 'reconcile')
    or coalesce(octet_length(p_actor), 0) not between 1 and 256
  then
    raise exception 'a reason is user, policy, shutdown or reconcile, and an actor has a name'
      using errcode = 'QL400';
  end if;
  perform ql.wait_run(p_run_id);
  perform ql.intend(array[p_run_id], p_reason, p_actor);

  return query
  select
    r.run_id,
    case
      when i.run_id is null then 'already_terminal'
      when i.reason = p_reason and i.actor = p_actor then 'accepted'
      else 'already_requested'
    end,
    r.status,
    r.cancel_reason,
    r.cancel_requested_at_ms
  from ql.run as r
  left join ql.cancel_intent as i on i.run_id = r.run_id
  where r.run_id = p_run_id;
end;
$$;

-- HELPER   expire_runs — the intent `timeout` for runs past their deadline; the caller has locked
--          them
-- LOCKS    none (the caller holds 2)
-- READS    run, intent_effect
-- WRITES   as intend; then agenda, run_fault
-- RETURNS  the number of effects of each run
-- RAISES   QL409
create or replace function ql.expire_runs (p_run_ids text[])
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now bigint := ql.now_ms();
  v_effects ql.effect[];
begin
  v_effects := ql.intend(
    array(
      select r.run_id
      from ql.run as r
      where r.run_id = any(p_run_ids)
        and r.cancel_requested_at_ms is null
        and r.deadline_at_ms <= v_now
    ),
    'timeout',
    'scheduler'
  );
  perform
    ql.rearm_agenda(
      'deadline',
      r.run_id,
      case
        when r.status = 'running' and r.cancel_requested_at_ms is null then r.deadline_at_ms
      end
    )
  from ql.run as r
  where r.run_id = any(p_run_ids);
  return ql.effect_counts(p_run_ids, v_effects);
end;
$$;

-- STEP     deadline_page — the intent `timeout` for the first due runs that nobody holds
-- LOCKS    2 run (skip locked)
-- READS    agenda, run, intent_effect
-- WRITES   cancel_intent; run, run_event, agenda (through ql.apply_effects); run_fault
-- RETURNS  applied | settled (nothing to do any more), in key order
-- RAISES   QL400, QL409, QL503
-- REPLAY   exact: the first intent stands and the rows are cleared
create or replace function ql_scheduler.deadline_page (
  p_after_due_at_ms bigint,
  p_after_run_id text,
  p_limit int
)
returns table (run_id text, due_at_ms bigint, outcome text, effects bigint)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'
as $$
declare
  v_run_ids text[];
  v_due bigint[];
  v_counts bigint[];
begin
  perform ql.assert_read_committed();
  select
    coalesce(array_agg(p.run_id), '{}'),
    coalesce(array_agg(p.due_at_ms), '{}')
  into v_run_ids, v_due
  from ql.pick_runs('deadline', p_after_due_at_ms, p_after_run_id, p_limit) as p;
  if cardinality(v_run_ids) = 0 then
    return;
  end if;

  v_counts := ql.expire_runs(v_run_ids);
  return query
  select
    c.run_id,
    c.due_at_ms,
    case when c.effects > 0 then 'applied' else 'settled' end,
    c.effects
  from rows from (unnest(v_run_ids), unnest(v_due), unnest(v_counts))
    with ordinality as c (run_id, due_at_ms, effects, position)
  order by c.position;
end;
$$;

-- STEP     deadline_run — the same for one run
-- LOCKS    2 run (skip locked)
-- READS    run, intent_effect
-- WRITES   cancel_intent; run, run_event, agenda (through ql.apply_effects); run_fault
-- RETURNS  applied | settled | contended
-- RAISES   QL404, QL409, QL503
-- REPLAY   settled: the first intent stands
create or replace function ql_scheduler.deadline_run (p_run_id text)
returns table (run_id text, outcome text, effects bigint)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'
as $$
declare
  v_counts bigint[];
begin
  perform ql.assert_read_committed();
  if not ql.hold_run(p_run_id) then
    return query select p_run_id, 'contended', 0::bigint;
    return;
  end if;

  v_counts := ql.expire_runs(array[p_run_id]);
  return query
  select p_run_id, case when v_counts[1] > 0 then 'applied' else 'settled' end, v_counts[1];
end;
$$;

-- STEP     converge_cancellation — end what nobody holds in one run with an intent, and the run
--          itself once nothing stands in the way
-- LOCKS    1 attempt advisory (try) · 2 run (skip locked) · 3 task_attempt · 4 attempt_lease ·
--          5 step_run
-- READS    cancellation_effect, cancellation_blocked (only after every lock is held)
-- WRITES   task_attempt, step_run, run, run_event (through ql.apply_effects); agenda, run_fault
-- RETURNS  settled (the run has ended) | blocked (something is held, whether or not something else
--          moved) | applied (no intent to converge, or moved and not blocked) | contended
-- RAISES   QL404, QL409, QL503
-- REPLAY   exact: a second call finds no effects
create or replace function ql_scheduler.converge_cancellation (p_run_id text)
returns table (run_id text, outcome text, settled_attempts bigint, blocked_count bigint)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'
as $$
declare
  v_effects ql.effect[];
  v_settled bigint;
  v_blocked bigint;
begin
  perform ql.assert_read_committed();
  if ql.lock_run(p_run_id) is null then
    return query select p_run_id, 'contended', 0::bigint, 0::bigint;
    return;
  end if;

  select
    array_agg(row(e.*)::ql.effect),
    count(*) filter (where e.entity = 'attempt')
  into v_effects, v_settled
  from ql.cancellation_effect as e
  where e.run_id = p_run_id;
  select count(*)
  into v_blocked
  from ql.cancellation_blocked as b
  where b.run_id = p_run_id;

  perform ql.apply_effects(v_effects, 'cancellation');
  perform ql.clear_agenda('cancellation', array[p_run_id]);
  return query
  select
    r.run_id,
    case
      when r.status <> 'running' then 'settled'
      when v_blocked > 0 then 'blocked'
      else 'applied'
    end,
    v_settled,
    v_blocked
  from ql.run as r
  where r.run_id = p_run_id;
end;
$$;

-- HELPER   pick_unstarted — lock the first due task runs that never started, without attempt
--          authority: whoever could lease or report one has to come through its run
-- LOCKS    2 run (skip locked)
-- READS    agenda, run, task_attempt, attempt_lease
-- RAISES   QL400
create or replace function ql.pick_unstarted (
  p_after_due_at_ms bigint,
  p_after_run_id text,
  p_limit int
)
returns table (run_id text, due_at_ms bigint)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_sort = off  -- a sort above the lateral lock would lock every due run
set enable_bitmapscan = off
as $$
declare
  v_now bigint := ql.now_ms();
  v_run_ids text[];
begin
  if p_limit is null or p_limit not between 1 and 32 then
    raise exception 'a page has 1 to 32 candidates, not %', p_limit using errcode = 'QL400';
  end if;

  v_run_ids := array(
    select a.run_id
    from ql.agenda as a
    cross join lateral (
      select 1
      from ql.run as r
      where r.run_id = a.run_id
        and r.kind = 'task'
        and not exists (
          select
          from ql.task_attempt as t
          where t.run_id = r.run_id
            and t.finished_at_ms is null
            and (
              t.status <> 'claimed'
              or (select l.status from ql.attempt_lease as l where l.attempt_id = t.attempt_id)
                is not distinct from 'leased'
            )
        )
      for no key update skip locked
    ) as held
    where a.stage = 'cancellation'
      and a.due_at_ms <= v_now
      and (a.due_at_ms, a.run_id) > (p_after_due_at_ms, p_after_run_id)
    order by a.due_at_ms, a.run_id
    limit p_limit
  );

  return query
  select
    a.run_id,
    a.due_at_ms
  from ql.agenda as a
  where a.run_id = any(v_run_ids)
    and a.stage = 'cancellation'
    and a.run_id <> all (array(
      select b.run_id from ql.cancellation_blocked as b where b.run_id = any(v_run_ids)
    ))
  order by a.due_at_ms, a.run_id;
end;
$$;

-- STEP     settle_task_cancellations — end task runs with an intent that never started, as a set
-- LOCKS    2 run (skip locked)
-- READS    agenda, cancellation_effect (only after the lock)
-- WRITES   task_attempt, step_run, run, run_event, agenda, run_fault (through ql.apply_effects)
-- RETURNS  settled, in key order; runs that are held or have started are left to the other road
-- RAISES   QL400, QL409, QL503
-- REPLAY   exact: the rows are gone
create or replace function ql_scheduler.settle_task_cancellations (
  p_after_due_at_ms bigint,
  p_after_run_id text,
  p_limit int
)
returns table (run_id text, due_at_ms bigint, outcome text, effects bigint)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'
as $$
declare
  v_run_ids text[];
  v_due bigint[];
  v_effects ql.effect[];
begin
  perform ql.assert_read_committed();
  select
    coalesce(array_agg(p.run_id), '{}'),
    coalesce(array_agg(p.due_at_ms), '{}')
  into v_run_ids, v_due
  from ql.pick_unstarted(p_after_due_at_ms, p_after_run_id, p_limit) as p;
  if cardinality(v_run_ids) = 0 then
    return;
  end if;

  select array_agg(row(e.*)::ql.effect)
  into v_effects
  from unnest(v_run_ids) as i (run_id)
  cross join lateral (
    select * from ql.cancellation_effect as v where v.run_id = i.run_id offset 0
  ) as e;
  perform ql.apply_effects(v_effects, 'cancellation');

  return query
  select
    c.run_id,
    c.due_at_ms,
    'settled',
    c.effects
  from rows from (
    unnest(v_run_ids), unnest(v_due), unnest(ql.effect_counts(v_run_ids, v_effects))
  ) with ordinality as c (run_id, due_at_ms, effects, position)
  order by c.position;
end;
$$;

-- from sql/postgres/retention.sql sha256 70a4b531fff7102d663ec0ea5615d23d48525675e49c2551be8c881d22ff496e
-- RETENTION — runs that ended long ago go, with everything that belongs to them. ql_retention owns
-- the step and is the only role that may delete history (grant.sql).

-- STEP     purge_runs — delete the runs that ended first, if that was before a time
-- LOCKS    2 run (skip locked); a run that has ended has no live attempt, so there is no 1, and
--          whoever waits for the run finds that it is gone
-- READS    run; retention_due (only after the locks are held)
-- WRITES   run_event, refused_report, attestation, attempt_report, attempt_offer, cancel_intent,
--          attempt_lease, task_attempt, step_output, step_run, run_input, agenda, run_fault, run
-- RETURNS  the runs that are gone, those that ended first at the top
-- RAISES   QL400, QL503
-- REPLAY   exact: what is gone is not found again
create or replace function ql_retention.purge_runs (p_before_ms bigint, p_limit int)
returns table (run_id text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off  -- a sort below the limit would lock every run that is due
set lock_timeout = '1s'
as $$
declare
  v_held text[];
  v_run_ids text[];
begin
  perform ql.assert_read_committed();
  if p_before_ms is null then
    raise exception 'a time is needed' using errcode = 'QL400';
  end if;
  if p_limit is null or p_limit not between 1 and 32 then
    raise exception 'a page has 1 to 32 runs, not %', p_limit using errcode = 'QL400';
  end if;

  v_held := array(
    select r.run_id
    from ql.run as r
    where r.finished_at_ms < p_before_ms
    order by r.finished_at_ms, r.run_id
    limit p_limit
    for update skip locked
  );
  v_run_ids := array(
    select u.run_id
    from unnest(v_held) with ordinality as u (run_id, place)
    cross join lateral (
      select 1
      from ql.retention_due as d
      where d.run_id = u.run_id and d.finished_at_ms < p_before_ms
      offset 0
    ) as due
    order by u.place
  );
  if cardinality(v_run_ids) = 0 then
    return;  -- a plan for no run at all may walk through an index
  end if;

  delete from ql.run_event as e where e.run_id = any(v_run_ids);
  delete from ql.refused_report as f where f.run_id = any(v_run_ids);
  delete from ql.attestation as n where n.run_id = any(v_run_ids);
  delete from ql.attempt_report as p where p.run_id = any(v_run_ids);
  delete from ql.attempt_offer as o where o.run_id = any(v_run_ids);
  delete from ql.cancel_intent as i where i.run_id = any(v_run_ids);
  delete from ql.attempt_lease as l
  where l.attempt_id = any(array(
    select a.attempt_id from ql.task_attempt as a where a.run_id = any(v_run_ids)
  ));
  delete from ql.task_attempt as a where a.run_id = any(v_run_ids);
  delete from ql.step_output as o where o.run_id = any(v_run_ids);
  delete from ql.step_run as s where s.run_id = any(v_run_ids);
  delete from ql.run_input as i where i.run_id = any(v_run_ids);
  delete from ql.agenda as g where g.run_id = any(v_run_ids);
  delete from ql.run_fault as f where f.run_id = any(v_run_ids);
  delete from ql.run as r where r.run_id = any(v_run_ids);

  return query
  select u.run_id
  from unnest(v_run_ids) with ordinality as u (run_id, place)
  order by u.place;
end;
$$;

-- from sql/postgres/grant.sql sha256 ea3a3ef1c2461b85c7c659543248165b7f352603ce2446d2cc3558d7f43df153
-- GRANTS — who may do what (DESIGN §8). PUBLIC may do nothing; the groups may only execute the
-- functions in the schema of their name, and ql_reader may select from the views.
-- ql_authority, as whom those functions run, may change the columns below the line "moves" in
-- table.sql; history and inputs it may only add to; nothing but agenda and run_fault may it delete.
-- ql_retention, as whom purge_runs runs, may delete runs with all that is theirs, and add nothing.
-- Run again after every change of functions: it leaves everything as it says here.

-- A function in a capability schema belongs to its schema's owner and runs with that role's rights.
do $$
declare
  v_function regprocedure;
  v_owner regrole;
begin
  for v_function, v_owner in
    select p.oid::regprocedure, n.nspowner::regrole
    from pg_catalog.pg_proc as p
    join pg_catalog.pg_namespace as n on n.oid = p.pronamespace
    where n.nspname in (
        'ql_admission', 'ql_scheduler', 'ql_worker', 'ql_operator', 'ql_retention'
      )
      and p.proowner <> n.nspowner
  loop
    execute format('alter function %s owner to %s', v_function, v_owner);
  end loop;
end;
$$;

revoke all on schema ql, ql_admission, ql_scheduler, ql_worker, ql_operator, ql_retention
from public;
revoke all on all tables in schema ql from public;
revoke all on all functions
in schema ql, ql_admission, ql_scheduler, ql_worker, ql_operator, ql_retention
from public;
revoke all on type ql.effect, ql.command from public;

-- the groups
grant usage on schema ql_admission to ql_admission;
grant execute on all functions in schema ql_admission to ql_admission;
grant usage on schema ql_scheduler to ql_scheduler;
grant execute on all functions in schema ql_scheduler to ql_scheduler;
grant usage on schema ql_worker to ql_worker;
grant execute on all functions in schema ql_worker to ql_worker;
grant usage on schema ql_operator to ql_operator;
grant execute on all functions in schema ql_operator to ql_operator;
-- nobody is a member of ql_retention: whoever keeps the place running says when history goes
grant usage on schema ql_retention to ql_operator;
grant execute on all functions in schema ql_retention to ql_operator;

-- the views
grant usage on schema ql to ql_authority, ql_reader;
grant select on
  ql.state_transition, ql.run_admission, ql.task_attempt_admission, ql.step_run_mutation,
  ql.live_attempt,
  ql.takeover_node, ql.takeover_alone, ql.takeover, ql.admission_effect,
  ql.frontier_ready, ql.frontier_skip, ql.frontier_effect, ql.frontier_blocked,
  ql.task_admission_effect,
  ql.dispatch_effect,
  ql.completion_end, ql.completion_effect,
  ql.recovery_due, ql.recovery_blocked, ql.recovery_end, ql.recovery_effect,
  ql.retry_longest, ql.retry_effect,
  ql.intent_effect, ql.cancellation_blocked, ql.cancellation_effect,
  ql.retention_due,
  ql.explain,
  ql.agenda_missing, ql.agenda_ahead, ql.violation,
  ql.package_state, ql.target_state, ql.trigger_state, ql.run_state, ql.open_run, ql.intent_state,
  ql.input_state, ql.step_state, ql.step_need,
  ql.attempt_state, ql.event_log, ql.attestation_state, ql.refused_state, ql.agenda_state,
  ql.fault_state, ql.worker_state, ql.queue_state
to ql_authority, ql_reader;

-- internals and types
grant execute on all functions in schema ql to ql_authority;
grant usage on type ql.effect, ql.command to ql_authority;

-- what moves
grant select, insert on
  ql.package, ql.package_generation, ql.trigger, ql.trigger_schedule, ql.run, ql.step_run,
  ql.task_attempt, ql.attempt_lease, ql.worker_session
to ql_authority;
grant update (generation, base_dir, updated_at_ms) on ql.package to ql_authority;
grant update (state, ended_at_ms) on ql.package_generation to ql_authority;
grant update (
  generation, state, cron, tz, kind, target_key, misfire, overlap, updated_at_ms
) on ql.trigger to ql_authority;
grant update (
  next_fire_at_ms, last_scheduled_at_ms, state_version, claim_owner, claim_token, claim_version,
  claim_expires_at_ms, updated_at_ms
) on ql.trigger_schedule to ql_authority;
grant update (
  status, version, attempt_count, cancel_requested_at_ms, cancel_reason, result_code,
  finished_at_ms, updated_at_ms
) on ql.run to ql_authority;
grant update (
  status, version, attempt_count, claim_return_count, ready_at_ms, started_at_ms, finished_at_ms,
  due_at_ms, result_code
) on ql.step_run to ql_authority;
grant update (
  status, version, offer_at_ms, deadline_at_ms, identity, starting_at_ms, started_at_ms,
  finished_at_ms, exit_code, result_code
) on ql.task_attempt to ql_authority;
grant update (
  status, version, fence, offer_id, worker_id, token_digest, self_fencing, grace_ms, leased_at_ms,
  expires_at_ms, closed_at_ms
) on ql.attempt_lease to ql_authority;
grant update (
  session_id, generation, status, queues, slots, self_fencing, grace_ms, registered_at_ms,
  expires_at_ms
) on ql.worker_session to ql_authority;

-- what is due, and what failed: gone when it is done
grant select, insert, delete on ql.agenda, ql.run_fault to ql_authority;
grant update (due_at_ms) on ql.agenda to ql_authority;
grant update (error, fault_count, first_at_ms, last_at_ms, next_try_at_ms) on ql.run_fault
to ql_authority;

-- what is written once
grant select, insert on
  ql.task_revision, ql.workflow_revision, ql.workflow_step, ql.workflow_ancestor,
  ql.run_input, ql.step_output,
  ql.cancel_intent, ql.attempt_offer, ql.attempt_report, ql.attestation, ql.refused_report,
  ql.run_event
to ql_authority;

-- what has ended long ago; a row lock asks for the right to update some column
grant usage on schema ql to ql_retention;
grant execute on function ql.assert_read_committed() to ql_retention;
grant select on ql.retention_due to ql_retention;
grant select, delete on
  ql.run, ql.run_input, ql.step_run, ql.step_output, ql.task_attempt, ql.attempt_lease,
  ql.cancel_intent, ql.attempt_offer, ql.attempt_report, ql.attestation, ql.refused_report,
  ql.run_event, ql.agenda, ql.run_fault
to ql_retention;
grant update (updated_at_ms) on ql.run to ql_retention;
