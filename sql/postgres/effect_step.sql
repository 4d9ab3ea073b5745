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
