-- TRIGGERS — what an operator does with one: pause, resume, fire now. A withdrawn one is unknown
-- (DESIGN §5, generations).

-- STEP     pause_trigger — a paused trigger does not fire; its cursor stays where it is
-- LOCKS    trigger, trigger_schedule (waits)
-- READS    trigger
-- WRITES   trigger, trigger_schedule
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
  perform ql.set_due(p_package_key, p_trigger_key);
  return query select p_trigger_key, 'paused';
end;
$$;

-- STEP     resume_trigger — a paused trigger fires again, by its misfire rule if it is late; one
--          that raised is tried at once
-- LOCKS    trigger, trigger_schedule (waits)
-- READS    trigger
-- WRITES   trigger, trigger_schedule, trigger_fault
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
  delete from ql.trigger_fault as f
  where f.package_key = p_package_key and f.trigger_key = p_trigger_key;
  perform ql.set_due(p_package_key, p_trigger_key);
  return query select p_trigger_key, 'active';
end;
$$;

-- STEP     fire_trigger — what a trigger starts, now and once; whether it is paused or what it
--          started before is still open does not matter, and its cursor stays
-- LOCKS    package_generation (for share: the start guard), trigger_schedule (waits)
-- READS    trigger, run
-- WRITES   trigger_run, run, run_input; through ql.apply_effects
-- RETURNS  created | existing
-- RAISES   QL400, QL404, QL503
-- REPLAY   exact: one run a key
create or replace function ql_operator.fire_trigger (
  p_package_key text,
  p_trigger_key text,
  p_run_key text
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
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  v_run_id text := ql.derived_id(
    'ru', p_package_key, 'trigger', p_trigger_key, 'fire', p_run_key
  );
  v_outcome text := 'existing';
begin
  perform ql.assert_read_committed();
  if p_package_key is null
    or p_trigger_key is null
    or coalesce(length(p_run_key), 0) not between 1 and 200
  then
    raise exception 'package, trigger and a run key of 1 to 200 characters are needed'
      using errcode = 'QL400';
  end if;

  if not exists (select from ql.run as r where r.run_id = v_run_id) then
    perform
    from ql.package_generation as g
    where g.package_key = p_package_key and g.state = 'active'
    for share;
    perform
    from ql.trigger_schedule as s
    where s.package_key = p_package_key and s.trigger_key = p_trigger_key
    for no key update;
    perform ql.find_trigger(p_package_key, p_trigger_key);
    if ql.admit_occurrence(v_run_id, p_package_key, p_trigger_key, null) then
      v_outcome := 'created';
    end if;
  end if;
  return query
  select
    r.run_id,
    v_outcome,
    r.status,
    r.generation
  from ql.run as r
  where r.run_id = v_run_id;
end;
$$;

-- HELPER   admit_occurrence — the run of a trigger, false when it is there already; runs of it that
--          have ended are marked
-- LOCKS    package_generation (for share; the caller holds trigger_schedule)
-- READS    trigger
-- WRITES   trigger_run, run, run_input; through ql.apply_effects
-- RAISES   QL404
create or replace function ql.admit_occurrence (
  p_run_id text,
  p_package_key text,
  p_trigger_key text,
  p_scheduled_at_ms bigint
)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_kind text;
  v_target_key text;
begin
  update ql.trigger_run as m
  set open_at_ms = null
  where m.package_key = p_package_key
    and m.trigger_key = p_trigger_key
    and m.open_at_ms is not null
    and (select r.status from ql.run as r where r.run_id = m.run_id) is distinct from 'running';
  select t.kind, t.target_key
  into v_kind, v_target_key
  from ql.trigger as t
  where t.package_key = p_package_key and t.trigger_key = p_trigger_key;
  if not ql.admit_run(
    p_run_id,
    p_package_key,
    v_kind,
    v_target_key,
    coalesce(p_trigger_key || ' ' || p_scheduled_at_ms, p_trigger_key),
    '{}',
    null,
    p_trigger_key,
    p_scheduled_at_ms
  ) then
    return false;
  end if;
  insert into ql.trigger_run (run_id, package_key, trigger_key, open_at_ms)
  values (p_run_id, p_package_key, p_trigger_key, ql.now_ms());
  return true;
end;
$$;

-- HELPER   set_trigger — move a trigger between active and paused
-- LOCKS    trigger, trigger_schedule (waits)
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
  perform ql.hold_triggers(p_package_key, p_trigger_key);
  perform ql.find_trigger(p_package_key, p_trigger_key);

  update ql.trigger as t
  set state = p_state, updated_at_ms = ql.now_ms()
  where t.package_key = p_package_key and t.trigger_key = p_trigger_key and t.state <> p_state;
end;
$$;

-- HELPER   find_trigger — a trigger that its package still has
-- READS    trigger
-- RAISES   QL404
create or replace function ql.find_trigger (p_package_key text, p_trigger_key text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform
  from ql.trigger as t
  where t.package_key = p_package_key and t.trigger_key = p_trigger_key and t.state <> 'withdrawn';
  if not found then
    raise exception 'no trigger % in package %', p_trigger_key, p_package_key
      using errcode = 'QL404';
  end if;
end;
$$;

-- HELPER   hold_triggers — lock triggers of a package with their schedules; null is all of them
-- LOCKS    trigger, trigger_schedule, each by key (waits)
create or replace function ql.hold_triggers (p_package_key text, p_trigger_key text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform
  from ql.trigger as t
  where t.package_key = p_package_key and t.trigger_key = coalesce(p_trigger_key, t.trigger_key)
  order by t.trigger_key
  for no key update;
  perform
  from ql.trigger_schedule as s
  where s.package_key = p_package_key and s.trigger_key = coalesce(p_trigger_key, s.trigger_key)
  order by s.trigger_key
  for no key update;
end;
$$;

-- HELPER   check_claim — whose it is
-- RAISES   QL400
create or replace function ql.check_claim (p_owner text, p_token text)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if coalesce(length(p_owner), 0) not between 1 and 200
    or coalesce(length(p_token), 0) not between 1 and 64
  then
    raise exception 'a claim has an owner and a token' using errcode = 'QL400';
  end if;
end;
$$;
