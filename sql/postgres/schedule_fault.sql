-- FAULTS OF TRIGGERS — what a scheduler does with one that raised, and when any of them is looked
-- at again.

-- STEP     record_trigger_fault — a trigger raised: keep the error, try again later (1 s, then
--          twice as long each time, up to 5 min), and let the others pass
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

-- STEP     sweep_schedule — bring near what a clock wrote that was ahead: a cursor that was set
--          more than a minute later than now begins anew, a back-off is at most its longest
-- LOCKS    trigger_schedule, trigger_fault (skip locked)
-- READS    trigger_schedule, trigger_fault
-- WRITES   trigger_schedule, trigger_fault
-- RETURNS  package_key, trigger_key of those that were brought near
-- RAISES   QL400, QL503
-- REPLAY   exact: the second call finds none of them
create or replace function ql_scheduler.sweep_schedule (p_limit int)
returns table (package_key text, trigger_key text)
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
  v_now bigint;
begin
  perform ql.assert_read_committed();
  if p_limit is null or p_limit not between 1 and 32 then
    raise exception 'a page has 1 to 32 candidates, not %', p_limit using errcode = 'QL400';
  end if;

  v_now := ql.now_ms();
  for package_key, trigger_key in
    select
      s.package_key,
      s.trigger_key
    from ql.trigger_schedule as s
    where s.updated_at_ms > v_now + 60000 and s.due_at_ms is not null
    order by s.updated_at_ms
    limit p_limit
    for no key update skip locked
  loop
    delete from ql.trigger_fault as f
    where f.package_key = sweep_schedule.package_key
      and f.trigger_key = sweep_schedule.trigger_key;
    update ql.trigger_schedule as s
    set
      next_fire_at_ms = null,
      updated_at_ms = v_now
    where s.package_key = sweep_schedule.package_key
      and s.trigger_key = sweep_schedule.trigger_key;
    perform ql.return_claim(sweep_schedule.package_key, sweep_schedule.trigger_key);
    return next;
  end loop;

  for package_key, trigger_key in
    select
      s.package_key,
      s.trigger_key
    from ql.trigger_fault as f
    join ql.trigger_schedule as s
      on s.package_key = f.package_key and s.trigger_key = f.trigger_key
    where f.next_try_at_ms > v_now + 300000 and s.due_at_ms is not null
    limit p_limit
    for no key update skip locked
  loop
    update ql.trigger_fault as f
    set next_try_at_ms = v_now + 300000
    where f.package_key = sweep_schedule.package_key
      and f.trigger_key = sweep_schedule.trigger_key;
    perform ql.set_due(sweep_schedule.package_key, sweep_schedule.trigger_key);
    return next;
  end loop;
end;
$$;

-- HELPER   return_claim — nobody has it any more; it is due as it was
-- LOCKS    none (the caller holds trigger_schedule)
-- WRITES   trigger_schedule
create or replace function ql.return_claim (p_package_key text, p_trigger_key text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  update ql.trigger_schedule as s
  set
    state_version = s.state_version + 1,
    claim_owner = null,
    claim_token = null,
    claim_expires_at_ms = null,
    claimed_at_ms = null,
    seen_at_ms = null
  where s.package_key = p_package_key and s.trigger_key = p_trigger_key;
  perform ql.set_due(p_package_key, p_trigger_key);
end;
$$;

-- HELPER   set_due — when the triggers of a package are looked at again; null is all of them. One
--          that is not active loses its claim
-- LOCKS    none (the caller holds trigger and trigger_schedule)
-- READS    schedule_due
-- WRITES   trigger_schedule
create or replace function ql.set_due (p_package_key text, p_trigger_key text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  update ql.trigger_schedule as s
  set
    state_version = s.state_version + 1,
    claim_owner = null,
    claim_token = null,
    claim_expires_at_ms = null,
    claimed_at_ms = null,
    seen_at_ms = null
  from ql.trigger as t
  where s.package_key = p_package_key
    and s.trigger_key = coalesce(p_trigger_key, s.trigger_key)
    and s.claim_token is not null
    and t.package_key = s.package_key
    and t.trigger_key = s.trigger_key
    and t.state <> 'active';

  update ql.trigger_schedule as s
  set due_at_ms = d.due_at_ms
  from ql.schedule_due as d
  where s.package_key = p_package_key
    and s.trigger_key = coalesce(p_trigger_key, s.trigger_key)
    and d.package_key = s.package_key
    and d.trigger_key = s.trigger_key
    and d.due_at_ms is distinct from s.due_at_ms;
end;
$$;
