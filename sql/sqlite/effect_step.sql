-- EFFECTS ON STEPS — called by apply_effects and by nothing else. Mirror of
-- sql/postgres/effect_step.sql.

-- HELPER   add_steps — insert the steps of an admission
select 1 from temp.change as c where c.entity = 'step' and c.from_status is null limit 1;

insert into step_run (
  run_id, step_key, task_id, status, version, attempt_count, claim_return_count, ready_at_ms,
  finished_at_ms, result_code
)
select
  c.run_id,
  c.entity_id,
  c.input_id,
  c.to_status,
  1,
  0,
  0,
  case when c.to_status = 'ready' then t.at_ms end,
  case when c.to_status = 'succeeded' then t.at_ms end,  -- taken over
  c.result_code
from temp.change as c
cross join temp.touched as t on t.run_id = c.run_id
where c.entity = 'step' and c.from_status is null;

-- HELPER   move_steps — status, times, counts of starts and of claims that came back
select 1 from temp.change as c where c.entity = 'step' and c.from_status is not null limit 1;

update step_run
set
  status = c.to_status,
  version = step_run.version + c.effect_count,
  attempt_count = step_run.attempt_count + c.start_count,
  claim_return_count = step_run.claim_return_count + c.return_count,
  ready_at_ms = case
    when c.to_status = 'ready' then coalesce(step_run.ready_at_ms, t.at_ms)
    else step_run.ready_at_ms
  end,
  started_at_ms = case
    when c.to_status = 'ready' then null
    when c.ran = 1 then t.at_ms
    else step_run.started_at_ms
  end,
  finished_at_ms = case
    when c.to_status in ('succeeded', 'failed', 'skipped', 'cancelled', 'timed_out') then t.at_ms
  end,
  due_at_ms = case when c.to_status = 'retry_wait' then c.due_at_ms end,
  result_code = case when c.to_status not in ('ready', 'running') then c.result_code end
from temp.change as c
cross join temp.touched as t on t.run_id = c.run_id
where c.entity = 'step'
  and c.from_status is not null
  and step_run.run_id = c.run_id
  and step_run.step_key = c.entity_id
  and step_run.status = c.from_status
  and step_run.version = c.expected_version;

insert into temp.moved (entity, wanted, changed)
select 'step', count(*), changes()
from temp.change as c
where c.entity = 'step' and c.from_status is not null
having count(*) <> changes();

-- HELPER   keep_outputs — what a succeeded execution wrote; before its lease closes, because a
--          report belongs to the fence that the lease has now
select 1 from temp.change as c where c.entity = 'step' and c.to_status = 'succeeded' limit 1;

insert into step_output (run_id, step_key, attempt_id, output)
select
  c.run_id,
  c.entity_id,
  c.input_id,
  p.output
from temp.change as c
cross join attempt_lease as l on l.attempt_id = c.input_id
cross join attempt_report as p
  on p.run_id = c.run_id
  and p.attempt_id = c.input_id
  and p.fence = l.fence
  and p.kind = 'ended'
where c.entity = 'step' and c.to_status = 'succeeded' and p.output is not null;
