-- DISPATCH — what an offer, a starting ACK and a running ACK do (DOMAIN §3.5, DESIGN §5).
-- An offer takes the lease of a claimed attempt. The starting ACK is the start barrier; under an
-- intent it is refused, and the lease goes back because nothing has started. The running ACK counts
-- even under an intent: it tells the truth about something that runs.

create view dispatch_effect as
select
  e.run_id,
  e.ordinal,
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
    w.run_id,
    row_number() over (partition by w.run_id order by w.attempt_id, b.part) as ordinal,
    b.entity,
    case b.entity when 'step' then w.step_key else w.attempt_id end as entity_id,
    case b.entity when 'lease' then w.lease_status else b.from_status end as from_status,
    w.turn as to_status,
    case
      when b.entity = 'attempt' then w.version
      when b.entity = 'step' then w.step_version
      when w.lease_status is null then 0
      else w.lease_version
    end as expected_version,
    case w.turn when 'released' then 'start_refused' end as result_code,
    b.event_type,
    case w.turn
      when 'leased' then (
        select o.offer_id
        from attempt_offer as o
        where o.run_id = w.run_id and o.attempt_id = w.attempt_id and o.fence = w.fence
      )
      else (
        select p.attempt_id
        from attempt_report as p
        where p.run_id = w.run_id
          and p.attempt_id = w.attempt_id
          and p.fence = w.fence
          and p.kind = case w.turn when 'running' then 'running' else 'starting' end
      )
    end as input_id
  from (
    select
      f.run_id,
      f.attempt_id,
      f.step_key,
      f.version,
      f.step_version,
      f.lease_status,
      f.lease_version,
      f.epoch_stands,
      case
        when f.lease_status is null or f.lease_status = 'released'
          then case when f.status = 'claimed' and f.cancel_reason is null then 'leased' end
        when f.lease_status <> 'leased' then null
        when f.status = 'starting' then 'running'
        when f.status <> 'claimed' then null
        when f.cancel_reason is null then 'starting'
        else 'released'
      end as turn,
      case f.lease_status when 'leased' then f.fence else coalesce(f.fence, 0) + 1 end as fence
    from (
      select
        v.run_id,
        v.attempt_id,
        v.step_key,
        v.status,
        v.version,
        v.step_version,
        v.lease_status,
        v.lease_version,
        v.fence,
        v.cancel_reason,
        case when v.step_status = 'ready' and v.step_version = v.epoch then 1 else 0 end
          as epoch_stands,
        -- a fence: what is above is looked up once, not wherever it is used
        row_number() over (partition by v.run_id order by v.attempt_id) as position
      from live_attempt as v
      -- most of a wide run waits for an offer: that is seen before it is decided about
      where v.lease_status = 'leased' or exists (
        select 1
        from attempt_offer as o
        where o.run_id = v.run_id
          and o.attempt_id = v.attempt_id
          and o.fence = coalesce(v.fence, 0) + 1
      )
    ) as f
  ) as w
  join (
    select
      'leased' as turn,
      1 as part,
      'lease' as entity,
      cast(null as text) as from_status,
      'workflow.task_dispatch_leased' as event_type
    union all
    select
      'released' as turn,
      1 as part,
      'lease' as entity,
      null as from_status,
      'workflow.task_dispatch_released' as event_type
    union all
    select
      'starting' as turn,
      1 as part,
      'attempt' as entity,
      'claimed' as from_status,
      'workflow.task_attempt.starting' as event_type
    union all
    select
      'running' as turn,
      1 as part,
      'attempt' as entity,
      'starting' as from_status,
      'workflow.task_attempt.running' as event_type
    union all
    select
      'running' as turn,
      2 as part,
      'step' as entity,
      'ready' as from_status,
      'step.running' as event_type
  ) as b on b.turn = w.turn
  where (w.epoch_stands = 1 or w.turn = 'released')
    and not (
      w.turn = 'running'
      and exists (
        select 1
        from attempt_report as q
        where q.run_id = w.run_id
          and q.attempt_id = w.attempt_id
          and q.fence = w.fence
          and q.kind = 'ended'
      )
    )
) as e
where e.input_id is not null;
