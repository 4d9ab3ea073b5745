-- EXPLAIN — why something does not move: one row for each thing that a live run waits for.
-- `after_due` is what it waits for once `due_at_ms` has passed without a word: views have no clock.
-- waits_for: need, retry, admission, lease, worker, report, evidence, hold, intent, fault, queue.

create view explain as
select
  e.run_id,
  e.step_key,
  e.attempt_id,
  e.status,
  e.waits_for,
  e.waits_on,
  e.since_ms,
  e.due_at_ms,
  e.after_due,
  e.resolved_by
from (
  -- pending, without an intent
  select
    s.run_id,
    s.step_key,
    cast(null as text) as attempt_id,
    s.status,
    'need' as waits_for,
    f.waits_on,
    (select r.admitted_at_ms from run as r where r.run_id = s.run_id) as since_ms,
    cast(null as bigint) as due_at_ms,
    cast(null as text) as after_due,
    'the end of that step' as resolved_by,
    0 as under_intent
  from step_run as s
  join frontier_blocked as f on f.run_id = s.run_id and f.step_key = s.step_key
  union all
  select
    s.run_id,
    s.step_key,
    cast(null as text) as attempt_id,
    s.status,
    'need' as waits_for,
    'frontier' as waits_on,
    (select r.admitted_at_ms from run as r where r.run_id = s.run_id) as since_ms,
    cast(null as bigint) as due_at_ms,
    cast(null as text) as after_due,
    'the frontier stage, next cycle' as resolved_by,
    0 as under_intent
  from frontier_ready as s0
  join step_run as s on s.run_id = s0.run_id and s.step_key = s0.step_key
  union all
  -- ready, not yet admitted
  select
    t.run_id,
    t.entity_id as step_key,
    cast(null as text) as attempt_id,
    'ready' as status,
    'admission' as waits_for,
    'task_admission' as waits_on,
    (
      select s.ready_at_ms
      from step_run as s
      where s.run_id = t.run_id and s.step_key = t.entity_id
    ) as since_ms,
    cast(null as bigint) as due_at_ms,
    cast(null as text) as after_due,
    'the task admission stage, next cycle' as resolved_by,
    0 as under_intent
  from (
    select
      s.run_id,
      s.step_key as entity_id
    from step_run as s
    where s.status = 'ready'
      and not exists (
        select 1
        from task_attempt as a
        where a.run_id = s.run_id and a.step_key = s.step_key and a.epoch = s.version
      )
  ) as t
  union all
  -- admitted, held by nobody
  select
    a.run_id,
    a.step_key,
    a.attempt_id,
    a.status,
    case
      when exists (select 1 from worker_session as w where w.status = 'online') then 'queue'
      else 'worker'
    end as waits_for,
    a.queue as waits_on,
    a.admitted_at_ms as since_ms,
    cast(null as bigint) as due_at_ms,
    cast(null as text) as after_due,
    'a worker of this queue with a free slot' as resolved_by,
    0 as under_intent
  from task_attempt as a
  where a.status = 'claimed'
    and (select l.status from attempt_lease as l where l.attempt_id = a.attempt_id)
      is distinct from 'leased'
  union all
  -- leased, not started; or past the barrier
  select
    v.run_id,
    v.step_key,
    v.attempt_id,
    v.status,
    case when v.status = 'claimed' then 'lease' else 'report' end as waits_for,
    l.worker_id as waits_on,
    l.leased_at_ms as since_ms,
    l.expires_at_ms as due_at_ms,
    case
      when v.status = 'claimed' then null
      when v.on_lost = 'hold' then 'hold'
      when l.self_fencing = 0 then 'evidence'
    end as after_due,
    case
      when v.status = 'claimed' then 'the worker starts it, or recovery returns it after due_at_ms'
      when v.on_lost = 'hold' or l.self_fencing = 0
        then 'the worker reports; after due_at_ms: its worker comes back, or declare-stopped'
      when v.cancel_reason is not null
        then 'the worker stops it and reports, or recovery after due_at_ms'
      else 'the worker reports, or recovery after due_at_ms'
    end as resolved_by,
    1 as under_intent
  from live_attempt as v
  join attempt_lease as l on l.attempt_id = v.attempt_id
  where l.status = 'leased'
  union all
  select
    s.run_id,
    s.step_key,
    cast(null as text) as attempt_id,
    s.status,
    'retry' as waits_for,
    s.result_code as waits_on,
    s.started_at_ms as since_ms,
    s.due_at_ms,
    cast(null as text) as after_due,
    'the retry stage at due_at_ms' as resolved_by,
    0 as under_intent
  from step_run as s
  where s.status = 'retry_wait'
  union all
  -- under an intent, held by nobody
  select
    c.run_id,
    case c.entity when 'step' then c.entity_id end as step_key,
    case c.entity when 'attempt' then c.entity_id end as attempt_id,
    c.from_status as status,
    'intent' as waits_for,
    (select r.cancel_reason from run as r where r.run_id = c.run_id) as waits_on,
    (select r.cancel_requested_at_ms from run as r where r.run_id = c.run_id) as since_ms,
    cast(null as bigint) as due_at_ms,
    cast(null as text) as after_due,
    'convergence, next cycle' as resolved_by,
    1 as under_intent
  from cancellation_effect as c
  union all
  select
    f.run_id,
    cast(null as text) as step_key,
    cast(null as text) as attempt_id,
    'running' as status,
    'fault' as waits_for,
    f.stage as waits_on,
    f.first_at_ms as since_ms,
    f.next_try_at_ms as due_at_ms,
    cast(null as text) as after_due,
    f.error as resolved_by,
    1 as under_intent
  from run_fault as f
) as e
where (select r.status from run as r where r.run_id = e.run_id) = 'running'
  and (
    e.under_intent = 1
    or (select r.cancel_requested_at_ms from run as r where r.run_id = e.run_id) is null
  );
