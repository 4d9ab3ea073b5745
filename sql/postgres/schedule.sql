-- SCHEDULE — a due trigger fires once (DOMAIN §3.10). A scheduler claims what is due, computes the
-- next times outside, by the pinned time zone database, and commits; whatever dies in between, the
-- claim runs out, and the run's id is derived from trigger and time. Commit never waits for a row.

-- STEP     claim_schedule — take due triggers for 30 s, in the order in which they became due
-- LOCKS    trigger_schedule (skip locked)
-- READS    trigger, package_generation
-- WRITES   trigger_schedule
-- RETURNS  what a scheduler needs to compute the next times; claim_version is the fence
-- RAISES   QL400, QL503
-- REPLAY   exact while anything of it is held: the same owner and token get the same
create or replace function ql_scheduler.claim_schedule (p_owner text, p_token text, p_limit int)
returns table (
  package_key text, trigger_key text, cron text, tz text, next_fire_at_ms bigint,
  since_ms bigint, state_version bigint, claim_version bigint, observed_at_ms bigint
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
  v_now bigint;
begin
  perform ql.assert_read_committed();
  perform ql.check_claim(p_owner, p_token);
  if p_limit is null or p_limit not between 1 and 32 then
    raise exception 'a page has 1 to 32 candidates, not %', p_limit using errcode = 'QL400';
  end if;

  return query
  select
    s.package_key,
    s.trigger_key,
    t.cron,
    t.tz,
    s.next_fire_at_ms,
    s.updated_at_ms,
    s.state_version,
    s.claim_version,
    s.claimed_at_ms
  from ql.trigger_schedule as s
  join ql.trigger as t on t.package_key = s.package_key and t.trigger_key = s.trigger_key
  where s.claim_token = p_token and s.claim_owner = p_owner
  order by coalesce(s.next_fire_at_ms, 0), s.package_key, s.trigger_key;
  if found then
    return;
  end if;

  v_now := ql.now_ms();
  return query
  with picked as materialized (
    select
      d.package_key,
      d.trigger_key,
      d.due_at_ms
    from ql.trigger_schedule as d
    where d.due_at_ms <= v_now
    order by d.due_at_ms, d.package_key, d.trigger_key
    limit p_limit
    for no key update skip locked
  ),
  claimed as (
    update ql.trigger_schedule as s
    set
      state_version = s.state_version + 1,
      claim_owner = p_owner,
      claim_token = p_token,
      claim_version = s.claim_version + 1,
      claim_expires_at_ms = v_now + 30000,
      claimed_at_ms = v_now,
      -- who was in time and died does not make it late: another takes over as soon as it may
      seen_at_ms = case
        when s.claim_expires_at_ms >= v_now - 30000 then s.seen_at_ms
        else v_now
      end,
      due_at_ms = v_now + 30000
    from picked as p
    where s.package_key = p.package_key
      and s.trigger_key = p.trigger_key
      -- a scalar subquery, which no planner makes a join with all triggers of
      and (
        select g.state
        from ql.trigger as t
        join ql.package_generation as g
          on g.package_key = t.package_key and g.generation = t.generation
        where t.package_key = p.package_key
          and t.trigger_key = p.trigger_key
          and t.state = 'active'
      ) = 'active'
    returning
      s.package_key,
      s.trigger_key,
      (
        select t.cron
        from ql.trigger as t
        where t.package_key = s.package_key and t.trigger_key = s.trigger_key
      ) as cron,
      (
        select t.tz
        from ql.trigger as t
        where t.package_key = s.package_key and t.trigger_key = s.trigger_key
      ) as tz,
      s.next_fire_at_ms,
      s.updated_at_ms,
      s.state_version,
      s.claim_version
  )
  select
    c.package_key,
    c.trigger_key,
    c.cron,
    c.tz,
    c.next_fire_at_ms,
    c.updated_at_ms,
    c.state_version,
    c.claim_version,
    v_now
  from claimed as c
  order by coalesce(c.next_fire_at_ms, 0), c.package_key, c.trigger_key;
end;
$$;

-- STEP     commit_schedule — what becomes of a claimed occurrence, and where the cursor goes
-- LOCKS    trigger_schedule (skip locked) · package_generation (for share, skip locked)
-- READS    schedule_decision; the time once more, after the locks
-- WRITES   trigger_schedule, trigger_run, trigger_fault, run, run_input; through ql.apply_effects
-- RETURNS  applied | settled (done before) | blocked (it may not fire) | contended (no longer ours)
-- RAISES   QL400, QL404, QL503
-- REPLAY   settled, until the trigger is claimed again
create or replace function ql_scheduler.commit_schedule (
  p_package_key text,
  p_trigger_key text,
  p_owner text,
  p_token text,
  p_claim_version bigint,
  p_state_version bigint,
  p_cursor_ms bigint,
  p_due_at_ms bigint,
  p_observed_at_ms bigint,
  p_next_at_ms bigint,
  p_grace_ms bigint
)
returns table (outcome text, disposition text, cause text, run_id text, next_fire_at_ms bigint)
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
  v_schedule ql.trigger_schedule;
  v_now bigint;
  v_cursor bigint := case
    when p_due_at_ms > p_observed_at_ms then p_due_at_ms
    else p_next_at_ms
  end;
  v_disposition text;
  v_cause text;
  v_run_id text;
begin
  perform ql.assert_read_committed();
  perform ql.check_claim(p_owner, p_token);
  perform ql.check_commit(p_cursor_ms, p_due_at_ms, p_observed_at_ms, p_next_at_ms, p_grace_ms);
  select s.*
  into v_schedule
  from ql.trigger_schedule as s
  where s.package_key = p_package_key and s.trigger_key = p_trigger_key
  for no key update skip locked;
  if not found then
    perform ql.find_trigger(p_package_key, p_trigger_key);
    return query select 'contended', null, null, null, null::bigint;
    return;
  end if;

  v_now := ql.now_ms();
  if v_schedule.claim_token is null
    and v_schedule.state_version = p_state_version + 1
    and v_schedule.claim_version = p_claim_version
    and v_schedule.next_fire_at_ms = v_cursor
  then
    return query select 'settled', null, null, v_schedule.last_run_id, v_cursor;
    return;
  end if;
  -- a clock that has gone back since the claim proves nothing: it is not decided by
  if v_schedule.state_version is distinct from p_state_version
    or v_schedule.next_fire_at_ms is distinct from p_cursor_ms
    or v_schedule.claim_owner is distinct from p_owner
    or v_schedule.claim_token is distinct from p_token
    or v_schedule.claim_version is distinct from p_claim_version
    or v_schedule.claimed_at_ms is distinct from p_observed_at_ms
    or v_now not between v_schedule.claimed_at_ms and v_schedule.claim_expires_at_ms - 1
  then
    return query select 'contended', null, null, null, null::bigint;
    return;
  end if;

  perform
  from ql.package_generation as g
  where g.package_key = p_package_key and g.state = 'active'
  for share skip locked;
  if not found then
    perform ql.return_claim(p_package_key, p_trigger_key);
    return query select 'contended', null, null, null, null::bigint;
    return;
  end if;
  select d.disposition, d.cause
  into v_disposition, v_cause
  from ql.schedule_decision as d
  where d.package_key = p_package_key
    and d.trigger_key = p_trigger_key
    and d.arrival = case
      when p_due_at_ms > p_observed_at_ms then 'early'
      when v_schedule.seen_at_ms - p_due_at_ms > p_grace_ms then 'late'
      else 'on_time'
    end;
  if not found then
    perform ql.return_claim(p_package_key, p_trigger_key);
    return query select 'blocked', null, null, null, null::bigint;
    return;
  end if;

  if v_disposition = 'admit' then
    v_run_id := ql.derived_id('ru', p_package_key, p_trigger_key, p_due_at_ms::text);
    perform ql.admit_occurrence(v_run_id, p_package_key, p_trigger_key, p_due_at_ms);
  end if;
  delete from ql.trigger_fault as f
  where f.package_key = p_package_key and f.trigger_key = p_trigger_key;
  update ql.trigger_schedule as s
  set
    next_fire_at_ms = v_cursor,
    last_scheduled_at_ms = case
      when v_disposition = 'initialize' then s.last_scheduled_at_ms
      else p_due_at_ms
    end,
    last_outcome = case v_disposition
      when 'admit' then 'admitted'
      when 'skip' then v_cause
      else s.last_outcome
    end,
    last_run_id = coalesce(v_run_id, s.last_run_id),
    state_version = s.state_version + 1,
    claim_owner = null,
    claim_token = null,
    claim_expires_at_ms = null,
    claimed_at_ms = null,
    seen_at_ms = null,
    due_at_ms = v_cursor,
    updated_at_ms = v_now
  where s.package_key = p_package_key and s.trigger_key = p_trigger_key;
  return query select 'applied', v_disposition, v_cause, v_run_id, v_cursor;
end;
$$;

-- HELPER   check_commit — the times that a scheduler has computed
-- RAISES   QL400
create or replace function ql.check_commit (
  p_cursor_ms bigint,
  p_due_at_ms bigint,
  p_observed_at_ms bigint,
  p_next_at_ms bigint,
  p_grace_ms bigint
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if not coalesce(
    p_due_at_ms >= 0
    and p_next_at_ms > p_observed_at_ms
    and p_next_at_ms >= p_due_at_ms
    and p_due_at_ms = coalesce(p_cursor_ms, p_due_at_ms)
    and p_grace_ms between 0 and 300000,
    false
  ) then
    raise exception 'the due time is the cursor, the next one is later than what was observed'
      using errcode = 'QL400';
  end if;
end;
$$;
