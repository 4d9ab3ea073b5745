-- DISPATCH — what an offer, a starting ACK and a running ACK do (DOMAIN §3.5, DESIGN §5).
-- An offer takes the lease of a claimed attempt. The starting ACK is the start barrier; under an
-- intent it is refused, and the lease goes back because nothing has started. The running ACK counts
-- even under an intent: it tells the truth about something that runs.

create view dispatch_effect as
select
  e.run_id,
  row_number() over (partition by e.run_id order by e.attempt_id, e.part) as ordinal,
  e.entity,
  e.entity_id,
  e.from_status,
  e.to_status,
  e.expected_version,
  e.result_code,
  e.event_type,
  cast(null as bigint) as due_at_ms,
  e.input_id
from (
  select
    v.run_id,
    v.attempt_id,
    1 as part,
    'lease' as entity,
    v.attempt_id as entity_id,
    v.lease_status as from_status,
    'leased' as to_status,
    coalesce(v.lease_version, 0) as expected_version,
    cast(null as text) as result_code,
    'workflow.task_dispatch_leased' as event_type,
    o.offer_id as input_id
  from live_attempt as v
  join attempt_offer as o
    on o.run_id = v.run_id
    and o.attempt_id = v.attempt_id
    and o.fence = coalesce(v.fence, 0) + 1
  where v.status = 'claimed'
    and (v.lease_status is null or v.lease_status = 'released')
    and v.step_status = 'ready'
    and v.step_version = v.epoch
    and v.cancel_reason is null
  union all
  select
    v.run_id,
    v.attempt_id,
    1 as part,
    case when v.cancel_reason is null then 'attempt' else 'lease' end as entity,
    v.attempt_id as entity_id,
    case when v.cancel_reason is null then 'claimed' else 'leased' end as from_status,
    case when v.cancel_reason is null then 'starting' else 'released' end as to_status,
    case when v.cancel_reason is null then v.version else v.lease_version end as expected_version,
    case when v.cancel_reason is not null then 'start_refused' end as result_code,
    case
      when v.cancel_reason is null then 'workflow.task_attempt.starting'
      else 'workflow.task_dispatch_released'
    end as event_type,
    v.attempt_id as input_id
  from live_attempt as v
  join attempt_report as p
    on p.run_id = v.run_id
    and p.attempt_id = v.attempt_id
    and p.fence = v.fence
    and p.kind = 'starting'
  where v.status = 'claimed'
    and v.lease_status = 'leased'
    and (
      v.cancel_reason is not null or (v.step_status = 'ready' and v.step_version = v.epoch)
    )
  union all
  select
    v.run_id,
    v.attempt_id,
    b.part,
    case b.part when 1 then 'attempt' else 'step' end as entity,
    case b.part when 1 then v.attempt_id else v.step_key end as entity_id,
    case b.part when 1 then 'starting' else 'ready' end as from_status,
    'running' as to_status,
    case b.part when 1 then v.version else v.step_version end as expected_version,
    cast(null as text) as result_code,
    case b.part when 1 then 'workflow.task_attempt.running' else 'step.running' end as event_type,
    v.attempt_id as input_id
  from live_attempt as v
  join attempt_report as p
    on p.run_id = v.run_id
    and p.attempt_id = v.attempt_id
    and p.fence = v.fence
    and p.kind = 'running'
  cross join (select 1 as part union all select 2 as part) as b
  where v.status = 'starting'
    and v.lease_status = 'leased'
    and v.step_status = 'ready'
    and v.step_version = v.epoch
    and not exists (
      select 1
      from attempt_report as q
      where q.run_id = v.run_id
        and q.attempt_id = v.attempt_id
        and q.fence = v.fence
        and q.kind = 'ended'
    )
) as e;
