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
