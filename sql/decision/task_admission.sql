-- TASK ADMISSION — one attempt for each ready step and epoch; the step stays ready (DOMAIN §3.4).
-- The attempt's number comes from the run's counter; past 8192 the step fails instead.

create view task_admission_effect as
select
  e.run_id,
  row_number() over (partition by e.run_id order by e.step_key) as ordinal,
  case when e.number <= 8192 then 'attempt' else 'step' end as entity,
  case when e.number <= 8192 then e.run_id || '-' || cast(e.number as text) else e.step_key end
    as entity_id,
  case when e.number > 8192 then 'ready' end as from_status,
  case when e.number <= 8192 then 'claimed' else 'failed' end as to_status,
  case when e.number <= 8192 then 0 else e.version end as expected_version,
  case when e.number > 8192 then 'attempt_budget_exhausted' end as result_code,
  case when e.number <= 8192 then 'workflow.task_attempt_admitted' else 'step.failed' end
    as event_type,
  cast(null as bigint) as due_at_ms,
  case when e.number <= 8192 then e.step_key end as input_id
from (
  select
    s.run_id,
    s.step_key,
    s.version,
    (select r.attempt_count from run as r where r.run_id = s.run_id)
      + row_number() over (partition by s.run_id order by s.step_key) as number
  from step_run as s
  where s.status = 'ready'
    and not exists (
      select 1
      from task_attempt as a
      where a.run_id = s.run_id and a.step_key = s.step_key and a.epoch = s.version
    )
    and (
      select case when r.cancel_requested_at_ms is null then r.status end
      from run as r
      where r.run_id = s.run_id
    ) = 'running'
) as e;
