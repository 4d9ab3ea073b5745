-- FRONTIER — which pending steps open, which can never run, and when a run ends (DOMAIN §3.3).
-- All needs must succeed. A step with any ancestor that ended otherwise is skipped in the same
-- pass, because every ancestor is stored: a join, no walk. Runs with an intent are cancellation's.

create view frontier_ready as
select
  s.run_id,
  s.step_key,
  s.version
from step_run as s
where s.status = 'pending'
  and not exists (
    select 1
    from workflow_ancestor as w
    where w.workflow_id = (select r.target_id from run as r where r.run_id = s.run_id)
      and w.step_key = s.step_key
      and w.distance = 1
      and not exists (
        select 1
        from step_run as n
        where n.run_id = s.run_id and n.step_key = w.ancestor_key and n.status = 'succeeded'
      )
  );

-- The steps that ended otherwise are read first and once (distinct keeps them apart from the join):
-- a run without any costs one look at its steps.
create view frontier_skip as
select distinct
  b.run_id,
  s.step_key,
  s.version
from (
  select distinct
    n.run_id,
    n.step_key
  from step_run as n
  where n.status in ('failed', 'skipped', 'cancelled', 'timed_out')
) as b
join workflow_ancestor as w
  on w.workflow_id = (select r.target_id from run as r where r.run_id = b.run_id)
  and w.ancestor_key = b.step_key
join step_run as s on s.run_id = b.run_id and s.step_key = w.step_key
where s.status = 'pending';

create view frontier_effect as
select
  e.run_id,
  row_number() over (partition by e.run_id order by e.part, e.entity_id) as ordinal,
  e.entity,
  e.entity_id,
  e.from_status,
  e.to_status,
  e.expected_version,
  e.result_code,
  e.event_type,
  cast(null as bigint) as due_at_ms,
  cast(null as text) as input_id
from (
  select
    f.run_id,
    1 as part,
    'step' as entity,
    f.step_key as entity_id,
    'pending' as from_status,
    'ready' as to_status,
    f.version as expected_version,
    cast(null as text) as result_code,
    'step.ready' as event_type
  from frontier_ready as f
  union all
  select
    f.run_id,
    1 as part,
    'step' as entity,
    f.step_key as entity_id,
    'pending' as from_status,
    'skipped' as to_status,
    f.version as expected_version,
    'dependency_not_succeeded' as result_code,
    'step.skipped' as event_type
  from frontier_skip as f
  union all
  select
    d.run_id,
    2 as part,
    'run' as entity,
    d.run_id as entity_id,
    'running' as from_status,
    d.to_status,
    d.version as expected_version,
    case when d.to_status <> 'succeeded' then 'workflow_step_' || d.to_status end as result_code,
    'workflow.' || d.to_status as event_type
  from (
    select
      r.run_id,
      r.version,
      (
        select
          case min(
              case t.status
                when 'failed' then 1
                when 'timed_out' then 2
                when 'cancelled' then 3
                else 4
              end
            )
            when 1 then 'failed'
            when 2 then 'timed_out'
            when 3 then 'cancelled'
            else 'succeeded'
          end
        from step_run as t
        where t.run_id = r.run_id
      ) as to_status
    from run as r
    where not exists (
        select 1
        from step_run as a
        where a.run_id = r.run_id
          and a.status in ('ready', 'waiting_approval', 'running', 'retry_wait', 'lost')
      )
      -- a pending step that does not open here has an ancestor that ended otherwise: it is skipped
      and not exists (select 1 from frontier_ready as f where f.run_id = r.run_id)
  ) as d
) as e
where (
    select case when r.cancel_requested_at_ms is null then r.status end
    from run as r
    where r.run_id = e.run_id
  ) = 'running';

create view frontier_blocked as
select
  s.run_id,
  s.step_key,
  w.ancestor_key as waits_on,
  (select n.status from step_run as n where n.run_id = s.run_id and n.step_key = w.ancestor_key)
    as need_status
from step_run as s
join workflow_ancestor as w
  on w.workflow_id = (select r.target_id from run as r where r.run_id = s.run_id)
  and w.step_key = s.step_key
  and w.distance = 1
where s.status = 'pending'
  and (select n.status from step_run as n where n.run_id = s.run_id and n.step_key = w.ancestor_key)
    is distinct from 'succeeded';
