-- PARTS OF THE SCHEDULE — what claims, commits and commands of an operator share.

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

-- HELPER   set_due — when the triggers of a package are looked at again; null is all of them. Who is
--          not active loses its claim.
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

-- HELPER   admit_occurrence — the run of a trigger, false when it is there already; runs of it that
--          have ended are forgotten
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
  delete from ql.trigger_run as m
  where m.package_key = p_package_key
    and m.trigger_key = p_trigger_key
    and not exists (
      select from ql.run as r where r.run_id = m.run_id and r.finished_at_ms is null
    );
  if exists (select from ql.run as r where r.run_id = p_run_id) then
    return false;
  end if;

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
  insert into ql.trigger_run (package_key, trigger_key, run_id)
  values (p_package_key, p_trigger_key, p_run_id);
  return true;
end;
$$;
