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
  case x.attempt_end
    when 'lost' then 'not_started'
    when 'timed_out' then 'execution_timed_out'
    when 'cancelled' then 'execution_cancelled'
    when 'failed' then case x.how
      when 'bad_output' then 'bad_output'
      when 'start_failed' then 'executor_start_failed'
      when 'stop' then 'execution_stopped'
      else 'execution_failed'
    end
  end as code,
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
    p.how,
    (
      select
        case
          when p.how = 'not_started' then 'lost'
          when r.cancel_reason = 'timeout' then 'timed_out'
          when r.cancel_reason is not null then 'cancelled'
          when p.how = 'deadline' or v.deadline_at_ms <= p.reported_at_ms then 'timed_out'
          when p.how = 'exit' and p.exit_code = 0 then 'succeeded'
          else 'failed'
        end
      from run as r
      where r.run_id = v.run_id
    ) as attempt_end,
    -- a fence: what is above is decided once, not wherever it is used
    row_number() over (partition by v.run_id order by v.attempt_id) as position
  from live_attempt as v
  join attempt_report as p
    on p.run_id = v.run_id
    and p.attempt_id = v.attempt_id
    and p.kind = 'ended'
  where p.fence = (
      select l.fence from attempt_lease as l
      where l.attempt_id = v.attempt_id and l.status = 'leased'
    )
    and (v.status in ('starting', 'running') or p.how = 'not_started')
    and (v.status <> 'running' or p.how <> 'not_started')
) as x;

-- Told in parts: 1 the step that starts with its end (from `ready`), 2 the attempt, 3 the step.
create view completion_effect as
select
  e.run_id,
  row_number() over (partition by e.run_id order by e.attempt_id, e.part) as ordinal,
  case e.part when 2 then 'attempt' else 'step' end as entity,
  case e.part when 2 then e.attempt_id else e.step_key end as entity_id,
  e.from_status,
  e.to_status,
  case
    when e.part = 2 then e.version
    when e.part = 3 and e.from_status = 'running' and e.step_status = 'ready'
      then e.step_version + 1
    else e.step_version
  end as expected_version,
  case
    when e.part = 1 or e.to_status = 'ready' then null
    when e.part = 3 and e.from_status = 'ready' then 'claim_budget_exhausted'
    else e.code
  end as result_code,
  case e.part when 2 then 'workflow.task_attempt.' else 'step.' end || e.to_status as event_type,
  case when e.to_status = 'retry_wait' then e.retry_at_ms end as due_at_ms,
  e.attempt_id as input_id
from (
  select
    c.run_id,
    c.attempt_id,
    c.step_key,
    c.version,
    c.step_status,
    c.step_version,
    c.code,
    c.retry_at_ms,
    b.part,
    case
      when b.part = 2 then c.status
      when b.part = 1 or c.attempt_end = 'lost' then 'ready'
      else 'running'
    end as from_status,
    case
      when b.part = 1 then 'running'
      when b.part = 2 then c.attempt_end
      when c.attempt_end <> 'lost' and c.retry_at_ms is not null then 'retry_wait'
      when c.attempt_end <> 'lost' then c.attempt_end
      when c.claim_return_count < 63 then 'ready'
      else 'failed'
    end as to_status
  from completion_end as c
  cross join (select 1 as part union all select 2 as part union all select 3 as part) as b
  where b.part > 1 or (c.step_status = 'ready' and c.attempt_end <> 'lost')
) as e;
