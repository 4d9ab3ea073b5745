-- ADMISSION — what follows an inserted run: the first event, and a step for each node.
-- Roots are ready, all others pending (DOMAIN §3.2). A task run has one step, `main` (DESIGN §5).

create view admission_effect as
select
  e.run_id,
  row_number() over (partition by e.run_id order by e.part, e.entity_id) as ordinal,
  e.entity,
  e.entity_id,
  cast(null as text) as from_status,
  e.to_status,
  cast(0 as bigint) as expected_version,
  cast(null as text) as result_code,
  e.event_type,
  cast(null as bigint) as due_at_ms,
  e.input_id
from (
  select
    r.run_id,
    1 as part,
    'run' as entity,
    r.run_id as entity_id,
    'running' as to_status,
    'workflow.admitted' as event_type,
    cast(null as text) as input_id
  from run as r
  where r.version = 0
  union all
  select
    r.run_id,
    2 as part,
    'step' as entity,
    w.step_key as entity_id,
    case when w.need_count = 0 then 'ready' else 'pending' end as to_status,
    'step.created' as event_type,
    w.task_id as input_id
  from run as r
  join workflow_step as w on w.workflow_id = r.target_id
  where r.version = 0 and r.kind = 'workflow'
  union all
  select
    r.run_id,
    2 as part,
    'step' as entity,
    'main' as entity_id,
    'ready' as to_status,
    'step.created' as event_type,
    r.target_id as input_id
  from run as r
  where r.version = 0 and r.kind = 'task'
) as e;
