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
