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
