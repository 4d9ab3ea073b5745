-- COMPLETION — what a worker's report of an end does (DOMAIN §3.5; retry: DESIGN §5).
-- Priority: not started, intent, deadline, exit 0, failure. With an intent the reason decides, so a
-- clean exit after a stop request is recorded as cancelled. A report from `starting` writes
-- ready → running → end. `not_started` returns the claim and costs no retry.

create view completion_end as
select
  x.run_id,
  x.attempt_id,
  x.step_key,
  x.status,
  x.version,
  x.step_status,
  x.step_version,
  x.claim_return_count,
  x.attempt_end,
  x.code,
  case
    when x.cancel_reason is null
      and x.started_count < x.retry_attempts
      and (
        (x.attempt_end = 'failed' and x.retry_failed = 1)
        or (x.attempt_end = 'timed_out' and x.retry_timed_out = 1)
      )
      then x.reported_at_ms + x.delay_ms
  end as retry_at_ms
from (
  select
    v.run_id,
    v.attempt_id,
    v.step_key,
    v.status,
    v.version,
    v.step_status,
    v.step_version,
    v.started_count,
    v.claim_return_count,
    v.retry_attempts,
    v.retry_failed,
    v.retry_timed_out,
    v.delay_ms,
    v.cancel_reason,
    p.reported_at_ms,
    case
      when p.how = 'not_started' then 'lost'
      when v.cancel_reason = 'timeout' then 'timed_out'
      when v.cancel_reason is not null then 'cancelled'
      when p.how = 'deadline' or v.deadline_at_ms <= p.reported_at_ms then 'timed_out'
      when p.how = 'exit' and p.exit_code = 0 then 'succeeded'
      else 'failed'
    end as attempt_end,
    case
      when p.how = 'not_started' then 'not_started'
      when v.cancel_reason = 'timeout' then 'execution_timed_out'
      when v.cancel_reason is not null then 'execution_cancelled'
      when p.how = 'deadline' or v.deadline_at_ms <= p.reported_at_ms then 'execution_timed_out'
      when p.how = 'exit' and p.exit_code = 0 then null
      when p.how = 'bad_output' then 'bad_output'
      when p.how = 'start_failed' then 'executor_start_failed'
      when p.how = 'stop' then 'execution_stopped'
      else 'execution_failed'
    end as code
  from live_attempt as v
  join attempt_report as p
    on p.run_id = v.run_id
    and p.attempt_id = v.attempt_id
    and p.fence = v.fence
    and p.kind = 'ended'
  where v.lease_status = 'leased'
    and (v.status in ('starting', 'running') or p.how = 'not_started')
    and (v.status <> 'running' or p.how <> 'not_started')
) as x;

create view completion_effect as
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
  e.due_at_ms,
  e.attempt_id as input_id
from (
  select
    c.run_id,
    c.attempt_id,
    1 as part,
    'step' as entity,
    c.step_key as entity_id,
    'ready' as from_status,
    'running' as to_status,
    c.step_version as expected_version,
    cast(null as text) as result_code,
    'step.running' as event_type,
    cast(null as bigint) as due_at_ms
  from completion_end as c
  where c.step_status = 'ready' and c.attempt_end <> 'lost'
  union all
  select
    c.run_id,
    c.attempt_id,
    2 as part,
    'attempt' as entity,
    c.attempt_id as entity_id,
    c.status as from_status,
    c.attempt_end as to_status,
    c.version as expected_version,
    c.code as result_code,
    'workflow.task_attempt.' || c.attempt_end as event_type,
    cast(null as bigint) as due_at_ms
  from completion_end as c
  union all
  select
    c.run_id,
    c.attempt_id,
    3 as part,
    'step' as entity,
    c.step_key as entity_id,
    'running' as from_status,
    case when c.retry_at_ms is null then c.attempt_end else 'retry_wait' end as to_status,
    c.step_version + case when c.step_status = 'ready' then 1 else 0 end as expected_version,
    c.code as result_code,
    'step.' || case when c.retry_at_ms is null then c.attempt_end else 'retry_wait' end
      as event_type,
    c.retry_at_ms as due_at_ms
  from completion_end as c
  where c.attempt_end <> 'lost'
  union all
  select
    c.run_id,
    c.attempt_id,
    3 as part,
    'step' as entity,
    c.step_key as entity_id,
    'ready' as from_status,
    case when c.claim_return_count < 63 then 'ready' else 'failed' end as to_status,
    c.step_version as expected_version,
    case when c.claim_return_count < 63 then null else 'claim_budget_exhausted' end as result_code,
    case when c.claim_return_count < 63 then 'step.ready' else 'step.failed' end as event_type,
    cast(null as bigint) as due_at_ms
  from completion_end as c
  where c.attempt_end = 'lost'
) as e;
