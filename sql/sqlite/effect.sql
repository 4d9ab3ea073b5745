-- EFFECT — the only code that moves a state (DESIGN §4). Mirror of sql/postgres/effect.sql.

-- STEP     apply_effects — apply temp.effect, whichever runs it is about
-- LOCKS    the database (begin immediate, by the caller)
-- WRITES   run, step_run, task_attempt, attempt_lease, step_output, run_event, agenda, run_fault
-- RAISES   QL409 when something is not as the decision read it
-- Each entity is updated once: compare-and-swap on its first effect, the status of its last one.
-- The time is the later of now and the run's newest, so a clock that steps back breaks nothing.
delete from temp.change;

-- WHEN     apply_some

-- HELPER   apply_some — runs, history, steps, attempts, leases, agenda
select 1 from temp.effect limit 1;

insert into temp.change (
  run_id, entity, entity_id, from_status, expected_version, to_status, result_code, due_at_ms,
  input_id, effect_count, start_count, return_count, ran
)
select
  g.run_id,
  g.entity,
  g.entity_id,
  a.from_status,
  a.expected_version,
  z.to_status,
  z.result_code,
  z.due_at_ms,
  z.input_id,
  g.effect_count,
  g.start_count,
  g.return_count,
  g.ran
from (
  select
    e.run_id,
    e.entity,
    e.entity_id,
    min(e.ordinal) as first_ordinal,
    max(e.ordinal) as last_ordinal,
    count(*) as effect_count,
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
    max(e.to_status = 'running') as ran
  from temp.effect as e
  group by e.run_id, e.entity, e.entity_id
) as g
cross join temp.effect as a on a.run_id = g.run_id and a.ordinal = g.first_ordinal
cross join temp.effect as z on z.run_id = g.run_id and z.ordinal = g.last_ordinal;

delete from temp.touched;

insert into temp.touched (
  run_id, version, at_ms, deadline_at_ms, effect_count, admitted_count, to_status, result_code,
  intent, under_intent, ended
)
select
  g.run_id,
  coalesce(c.expected_version, r.version),
  max(:now_ms, r.updated_at_ms),
  r.deadline_at_ms,
  g.effect_count,
  g.admitted_count,
  c.to_status,
  c.result_code,
  coalesce(c.from_status = 'running' and c.to_status = 'running', 0),
  r.cancel_requested_at_ms is not null
    or coalesce(c.from_status = 'running' and c.to_status = 'running', 0),
  coalesce(c.to_status <> 'running', 0)
from (
  select
    d.run_id,
    sum(d.effect_count) as effect_count,
    count(*) filter (where d.entity = 'attempt' and d.from_status is null) as admitted_count
  from temp.change as d
  group by d.run_id
) as g
cross join run as r on r.run_id = g.run_id
left join temp.change as c on c.entity = 'run' and c.run_id = g.run_id and c.entity_id = g.run_id;

update run
set
  status = coalesce(t.to_status, run.status),
  version = run.version + t.effect_count,
  attempt_count = run.attempt_count + t.admitted_count,
  cancel_requested_at_ms = case
    when t.intent = 1
      then (select i.requested_at_ms from cancel_intent as i where i.run_id = t.run_id)
    else run.cancel_requested_at_ms
  end,
  cancel_reason = case
    when t.intent = 1 then (select i.reason from cancel_intent as i where i.run_id = t.run_id)
    else run.cancel_reason
  end,
  result_code = t.result_code,
  finished_at_ms = case when t.ended = 1 then t.at_ms end,
  updated_at_ms = t.at_ms
from temp.touched as t
where run.run_id in (select u.run_id from temp.touched as u)  -- else SQLite scans all runs
  and run.run_id = t.run_id
  and run.status = 'running'
  and run.version = t.version;

insert into temp.moved (entity, wanted, changed)
select 'run', count(distinct c.run_id), changes()
from temp.change as c
having count(distinct c.run_id) <> changes();

insert into run_event (
  run_id, sequence, type, entity, entity_id, from_status, to_status, entity_version, result_code,
  input_id, created_at_ms
)
select
  e.run_id,
  t.version + row_number() over (partition by e.run_id order by e.ordinal),
  e.event_type,
  e.entity,
  e.entity_id,
  e.from_status,
  e.to_status,
  case
    when e.entity = 'run'
      then t.version + row_number() over (partition by e.run_id order by e.ordinal)
    else e.expected_version + 1
  end,
  e.result_code,
  e.input_id,
  t.at_ms
from temp.effect as e
cross join temp.touched as t on t.run_id = e.run_id;

-- WHEN     add_steps
-- WHEN     move_steps
-- WHEN     keep_outputs
-- WHEN     add_attempts
-- WHEN     move_attempts
-- WHEN     close_leases
-- WHEN     move_leases
-- WHEN     clear_agenda
-- CALL     announce

-- HELPER   clear_agenda — what an intent or the end of a run takes off the agenda (DESIGN §5)
select 1 from temp.touched as t where t.intent = 1 or t.ended = 1 limit 1;

delete from agenda
where run_id in (select t.run_id from temp.touched as t where t.intent = 1 or t.ended = 1)
  and (
    stage in ('frontier', 'task_admission', 'retry', 'deadline')
    or run_id in (select t.run_id from temp.touched as t where t.ended = 1)
  );

delete from run_fault
where run_id in (select t.run_id from temp.touched as t where t.ended = 1);

-- HELPER   announce — put what is due next on the agenda (DESIGN §5)
insert into agenda (run_id, stage, due_at_ms)
select
  d.run_id,
  d.stage,
  d.due_at_ms
from (
  select
    c.run_id,
    case
      when t.under_intent = 1 then case
        when t.intent = 1 or (c.entity <> 'run' and :p_stage <> 'cancellation') then 'cancellation'
      end
      when c.entity = 'run' and c.from_status is null then 'deadline'
      when c.entity <> 'step' or c.to_status = 'pending' then null
      when c.to_status = 'ready' then 'task_admission'
      when c.to_status = 'retry_wait' then 'retry'
      when c.to_status in ('succeeded', 'failed', 'skipped', 'cancelled', 'timed_out')
        then 'frontier'
    end as stage,
    case
      when t.under_intent = 1 then :now_ms
      when c.entity = 'run' then t.deadline_at_ms
      when c.to_status = 'retry_wait' then c.due_at_ms
      else :now_ms  -- the effect time may lie ahead of a clock that stepped back
    end as due_at_ms
  from temp.change as c
  cross join temp.touched as t on t.run_id = c.run_id
  where t.ended = 0
  union all
  select
    c.run_id,
    'expiry' as stage,
    l.expires_at_ms as due_at_ms
  from temp.change as c
  cross join attempt_lease as l on l.attempt_id = c.entity_id
  where c.entity = 'lease' and c.to_status = 'leased'
) as d
where d.stage is not null and d.due_at_ms is not null
on conflict (run_id, stage) do update set due_at_ms = excluded.due_at_ms
where excluded.due_at_ms < agenda.due_at_ms;
