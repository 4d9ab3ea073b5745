-- TRIGGERS — what an operator does with one: pause, resume, fire now. A withdrawn trigger is unknown
-- (DESIGN §5, generations). And what a scheduler does with one that raised.

-- HELPER   set_trigger — move a trigger between active and paused
-- LOCKS    trigger, trigger_schedule (waits)
-- WRITES   trigger, trigger_schedule, trigger_fault
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

  if p_state = 'active' then
    delete from ql.trigger_fault as f
    where f.package_key = p_package_key and f.trigger_key = p_trigger_key;
  end if;
  update ql.trigger as t
  set state = p_state, updated_at_ms = ql.now_ms()
  where t.package_key = p_package_key and t.trigger_key = p_trigger_key and t.state <> p_state;
  perform ql.set_due(p_package_key, p_trigger_key);
end;
$$;

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
  return query select p_trigger_key, 'paused';
end;
$$;

-- STEP     resume_trigger — a paused trigger fires again, by its misfire rule if it is late; one that
--          raised is tried at once
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
  return query select p_trigger_key, 'active';
end;
$$;

-- STEP     fire_trigger — what a trigger starts, now and once; whether it is paused or what it started
--          before is still open does not matter, and its cursor stays
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

-- STEP     record_trigger_fault — a trigger raised: keep the error, try again later (1 s, then twice
--          as long each time, up to 5 min), and let the others pass
-- LOCKS    trigger_schedule (skip locked)
-- READS    trigger_fault
-- WRITES   trigger_fault, trigger_schedule
-- RETURNS  fault_count, next_try_at_ms; no row when it is not as the caller saw it
-- RAISES   QL400, QL503
-- REPLAY   no row: the state has moved
create or replace function ql_scheduler.record_trigger_fault (
  p_package_key text,
  p_trigger_key text,
  p_state_version bigint,
  p_error text
)
returns table (fault_count bigint, next_try_at_ms bigint)
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
  if p_error is null then
    raise exception 'a fault has an error' using errcode = 'QL400';
  end if;
  perform
  from ql.trigger_schedule as s
  where s.package_key = p_package_key
    and s.trigger_key = p_trigger_key
    and s.state_version = p_state_version
    and s.due_at_ms is not null
  for no key update skip locked;
  if not found then
    return;
  end if;

  v_now := ql.now_ms();
  select 1 + coalesce(max(f.fault_count), 0)
  into v_count
  from ql.trigger_fault as f
  where f.package_key = p_package_key and f.trigger_key = p_trigger_key;
  v_next := v_now + least(300000, 1000 * (1 << least(v_count - 1, 9)::int));

  insert into ql.trigger_fault (
    package_key, trigger_key, error, fault_count, first_at_ms, last_at_ms, next_try_at_ms
  )
  values (
    p_package_key,
    p_trigger_key,
    -- a character has at most four bytes, so 512 of them fit whatever they are
    case when octet_length(p_error) <= 2048 then p_error else left(p_error, 512) end,
    v_count,
    v_now,
    v_now,
    v_next
  )
  on conflict on constraint trigger_fault_pkey do update
  set
    error = excluded.error,
    fault_count = excluded.fault_count,
    last_at_ms = excluded.last_at_ms,
    next_try_at_ms = excluded.next_try_at_ms;
  perform ql.return_claim(p_package_key, p_trigger_key);
  return query select v_count, v_next;
end;
$$;
