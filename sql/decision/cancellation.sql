-- CANCELLATION — an intent first, convergence after it (DOMAIN §3.9, DESIGN §5).
-- The first intent wins. Convergence ends what nobody holds: attempts without a live lease, steps
-- without such an attempt, and the run once nothing stands in the way. A lease with status `leased`
-- blocks even after its expiry; recovery releases it. The reason decides between the two ends.

create view intent_effect as
select
  r.run_id,
  cast(1 as bigint) as ordinal,
  'run' as entity,
  r.run_id as entity_id,
  'running' as from_status,
  'running' as to_status,
  r.version as expected_version,
  cast(null as text) as result_code,
  'run.cancel_requested' as event_type,
  cast(null as bigint) as due_at_ms,
  r.run_id as input_id
from run as r
where r.status = 'running'
  and r.cancel_requested_at_ms is null
  and exists (select 1 from cancel_intent as i where i.run_id = r.run_id);

create view cancellation_blocked as
select
  v.run_id,
  v.step_key,
  v.attempt_id,
  case when v.status = 'claimed' then 'lease' else 'report' end as waits_for
from live_attempt as v
where v.cancel_reason is not null and (v.status <> 'claimed' or v.lease_status = 'leased')
union all
select
  s.run_id,
  s.step_key,
  cast(null as text) as attempt_id,
  'evidence' as waits_for
from step_run as s
where s.status = 'running'
  and (select r.cancel_reason from run as r where r.run_id = s.run_id) is not null
  and not exists (
    select 1
    from task_attempt as a
    where a.run_id = s.run_id
      and a.step_key = s.step_key
      and a.status in ('claimed', 'starting', 'running')
  );

create view cancellation_effect as
select
  e.run_id,
  row_number() over (partition by e.run_id order by e.part, e.entity_id) as ordinal,
  e.entity,
  e.entity_id,
  e.from_status,
  e.to_status,
  e.expected_version,
  case e.entity when 'attempt' then 'execution_' else 'workflow_' end || e.to_status as result_code,
  case e.entity
    when 'attempt' then 'workflow.task_attempt.'
    when 'step' then 'step.'
    else 'workflow.'
  end || e.to_status as event_type,
  cast(null as bigint) as due_at_ms,
  cast(null as text) as input_id
from (
  select
    v.run_id,
    1 as part,
    'attempt' as entity,
    v.attempt_id as entity_id,
    v.status as from_status,
    case when v.cancel_reason = 'timeout' then 'timed_out' else 'cancelled' end as to_status,
    v.version as expected_version
  from live_attempt as v
  where v.status = 'claimed' and v.lease_status is distinct from 'leased'
    and v.cancel_reason is not null
  union all
  select
    s.run_id,
    2 as part,
    'step' as entity,
    s.step_key as entity_id,
    s.status as from_status,
    case
      when s.status in ('pending', 'lost') then 'cancelled'
      when (select r.cancel_reason from run as r where r.run_id = s.run_id) = 'timeout'
        then 'timed_out'
      else 'cancelled'
    end as to_status,
    s.version as expected_version
  from step_run as s
  where s.status in ('pending', 'lost', 'ready', 'waiting_approval', 'retry_wait')
    and (select r.cancel_reason from run as r where r.run_id = s.run_id) is not null
    and not exists (
      select 1
      from task_attempt as a
      where a.run_id = s.run_id
        and a.step_key = s.step_key
        and (
          a.status in ('starting', 'running')
          or (
            a.status = 'claimed'
            and (select l.status from attempt_lease as l where l.attempt_id = a.attempt_id)
              is not distinct from 'leased'
          )
        )
    )
  union all
  select
    r.run_id,
    3 as part,
    'run' as entity,
    r.run_id as entity_id,
    'running' as from_status,
    case when r.cancel_reason = 'timeout' then 'timed_out' else 'cancelled' end as to_status,
    r.version as expected_version
  from run as r
  where r.cancel_reason is not null
    and (select count(*) from cancellation_blocked as b where b.run_id = r.run_id) = 0
) as e
where (
    select case when r.cancel_requested_at_ms is not null then r.status end
    from run as r
    where r.run_id = e.run_id
  ) = 'running';
