-- RECOVERY — what may be done about an attempt whose worker is silent (DESIGN §9).
-- A lease that expires proves nothing by itself. `recovery_due` says which evidence the clock gives
-- and when; the step writes it as an attestation, and `recovery_effect` decides from attestations.

create view recovery_due as
select
  v.run_id,
  v.attempt_id,
  case when v.status = 'claimed' then 'expired' else 'fenced' end as evidence,
  l.expires_at_ms + case when v.status = 'claimed' then 0 else l.grace_ms end as due_at_ms
from live_attempt as v
join attempt_lease as l on l.attempt_id = v.attempt_id
where l.status = 'leased'
  and (v.status = 'claimed' or (l.self_fencing = 1 and v.on_lost <> 'hold'));

-- Work past the barrier that no clock resolves: it waits for its worker, or for a declaration.
create view recovery_blocked as
select
  v.run_id,
  v.attempt_id,
  v.step_key,
  case when v.on_lost = 'hold' then 'hold' else 'evidence' end as waits_for,
  l.worker_id as waits_on,
  l.expires_at_ms as due_at_ms
from live_attempt as v
join attempt_lease as l on l.attempt_id = v.attempt_id
where l.status = 'leased'
  and v.status in ('starting', 'running')
  and (l.self_fencing = 0 or v.on_lost = 'hold');

-- One dead worker loses much at one moment, so what it left does not come back at one: each waits
-- 5 ms more a point of its jitter (0 to 1023), so up to 5.1 s, however short its back-off. That an
-- operator wants it tried again is about one attempt, and is not put off.
create view recovery_end as
select
  x.run_id,
  x.attempt_id,
  x.step_key,
  x.status,
  x.version,
  x.step_status,
  x.step_version,
  x.claim_return_count,
  x.cancel_reason,
  x.attempt_end,
  x.code,
  case
    when x.cancel_reason is not null or x.started_count >= 64 then null
    when x.follow = 'retry' then x.attested_at_ms + x.delay_ms
    when x.follow = 'fail' or x.started_count >= x.retry_attempts then null
    when x.attempt_end = 'timed_out' and x.retry_timed_out = 1
      then x.attested_at_ms + x.delay_ms + 5 * x.jitter
    when x.attempt_end = 'lost' and x.on_lost = 'retry'
      then x.attested_at_ms + x.delay_ms + 5 * x.jitter
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
    v.cancel_reason,
    v.retry_attempts,
    v.retry_timed_out,
    v.on_lost,
    v.delay_ms,
    v.jitter,
    n.follow,
    n.attested_at_ms,
    case
      when v.status <> 'claimed'
        and v.cancel_reason is null
        and v.deadline_at_ms <= n.attested_at_ms
        then 'timed_out'
      else 'lost'
    end as attempt_end,
    case
      when v.status = 'claimed' then 'claim_expired'
      when v.cancel_reason is null and v.deadline_at_ms <= n.attested_at_ms
        then 'execution_timed_out'
      else 'execution_lost'
    end as code
  from live_attempt as v
  join attestation as n on n.run_id = v.run_id and n.attempt_id = v.attempt_id
  where (n.evidence <> 'expired' or v.status = 'claimed')
    and (n.evidence <> 'fenced' or v.on_lost <> 'hold')
) as x;

-- Past the barrier, without an intent: retry_wait, timed_out, or failed (running by way of lost).
-- With an intent on_lost is not asked: a running step becomes lost, and convergence ends it.
create view recovery_effect as
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
    'attempt' as entity,
    c.attempt_id as entity_id,
    c.status as from_status,
    c.attempt_end as to_status,
    c.version as expected_version,
    c.code as result_code,
    'workflow.task_attempt.' || c.attempt_end as event_type,
    cast(null as bigint) as due_at_ms
  from recovery_end as c
  union all
  select
    c.run_id,
    c.attempt_id,
    2 as part,
    'step' as entity,
    c.step_key as entity_id,
    'ready' as from_status,
    case when c.claim_return_count < 63 then 'ready' else 'failed' end as to_status,
    c.step_version as expected_version,
    case when c.claim_return_count < 63 then null else 'claim_budget_exhausted' end as result_code,
    case when c.claim_return_count < 63 then 'step.ready' else 'step.failed' end as event_type,
    cast(null as bigint) as due_at_ms
  from recovery_end as c
  where c.status = 'claimed'
  union all
  select
    c.run_id,
    c.attempt_id,
    2 as part,
    'step' as entity,
    c.step_key as entity_id,
    c.step_status as from_status,
    'retry_wait' as to_status,
    c.step_version as expected_version,
    c.code as result_code,
    'step.retry_wait' as event_type,
    c.retry_at_ms as due_at_ms
  from recovery_end as c
  where c.status <> 'claimed' and c.retry_at_ms is not null
  union all
  select
    c.run_id,
    c.attempt_id,
    2 as part,
    'step' as entity,
    c.step_key as entity_id,
    c.step_status as from_status,
    'timed_out' as to_status,
    c.step_version as expected_version,
    c.code as result_code,
    'step.timed_out' as event_type,
    cast(null as bigint) as due_at_ms
  from recovery_end as c
  where c.status <> 'claimed' and c.retry_at_ms is null and c.attempt_end = 'timed_out'
  union all
  select
    c.run_id,
    c.attempt_id,
    2 as part,
    'step' as entity,
    c.step_key as entity_id,
    'running' as from_status,
    'lost' as to_status,
    c.step_version as expected_version,
    c.code as result_code,
    'step.lost' as event_type,
    cast(null as bigint) as due_at_ms
  from recovery_end as c
  where c.status <> 'claimed'
    and c.retry_at_ms is null
    and c.attempt_end = 'lost'
    and c.step_status = 'running'
  union all
  select
    c.run_id,
    c.attempt_id,
    3 as part,
    'step' as entity,
    c.step_key as entity_id,
    case when c.step_status = 'running' then 'lost' else 'ready' end as from_status,
    'failed' as to_status,
    c.step_version + case when c.step_status = 'running' then 1 else 0 end as expected_version,
    c.code as result_code,
    'step.failed' as event_type,
    cast(null as bigint) as due_at_ms
  from recovery_end as c
  where c.status <> 'claimed'
    and c.retry_at_ms is null
    and c.attempt_end = 'lost'
    and c.cancel_reason is null
) as e;

-- The longest that a step may wait, jitter included, as after a loss. A back-off that ends further
-- ahead was written by a clock that was ahead: nobody knows how much of it is left, and it is over.
create view retry_longest as
select
  s.run_id,
  s.step_key,
  s.due_at_ms,
  t.max_backoff_ms + t.max_backoff_ms / 8 + 5 * 1023 as longest_ms
from step_run as s
join task_revision as t on t.task_id = s.task_id
where s.status = 'retry_wait';

-- A back-off that is over opens a new epoch. The step takes effects whose `due_at_ms` has come, or
-- is further ahead than `retry_longest` says.
create view retry_effect as
select
  s.run_id,
  row_number() over (partition by s.run_id order by s.step_key) as ordinal,
  'step' as entity,
  s.step_key as entity_id,
  'retry_wait' as from_status,
  'ready' as to_status,
  s.version as expected_version,
  cast(null as text) as result_code,
  'step.ready' as event_type,
  s.due_at_ms,
  cast(null as text) as input_id
from step_run as s
where s.status = 'retry_wait'
  and (
    select case when r.cancel_requested_at_ms is null then r.status end
    from run as r
    where r.run_id = s.run_id
  ) = 'running';
