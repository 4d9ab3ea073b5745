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
