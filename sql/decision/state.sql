-- STATE — the machines of DESIGN §5 and DOMAIN §3 as relations, and the admissions as views.
-- Every decision below reads facts of one run; callers filter by run_id and by nothing else.

create view state_transition as
with legal (entity, from_status, to_status) as (
  values
    ('run', 'running', 'running'),  -- the intent
    ('run', 'running', 'succeeded'),
    ('run', 'running', 'failed'),
    ('run', 'running', 'cancelled'),
    ('run', 'running', 'timed_out'),
    ('step', 'pending', 'ready'),
    ('step', 'pending', 'skipped'),
    ('step', 'pending', 'cancelled'),
    ('step', 'ready', 'ready'),  -- a new epoch after a claim came back
    ('step', 'ready', 'waiting_approval'),
    ('step', 'ready', 'running'),
    ('step', 'ready', 'retry_wait'),
    ('step', 'ready', 'failed'),
    ('step', 'ready', 'skipped'),
    ('step', 'ready', 'cancelled'),
    ('step', 'ready', 'timed_out'),
    ('step', 'waiting_approval', 'ready'),
    ('step', 'waiting_approval', 'running'),
    ('step', 'waiting_approval', 'cancelled'),
    ('step', 'waiting_approval', 'timed_out'),
    ('step', 'running', 'retry_wait'),
    ('step', 'running', 'lost'),
    ('step', 'running', 'succeeded'),
    ('step', 'running', 'failed'),
    ('step', 'running', 'cancelled'),
    ('step', 'running', 'timed_out'),
    ('step', 'retry_wait', 'ready'),
    ('step', 'retry_wait', 'cancelled'),
    ('step', 'retry_wait', 'timed_out'),
    ('step', 'lost', 'ready'),
    ('step', 'lost', 'failed'),
    ('step', 'lost', 'cancelled'),
    ('attempt', 'claimed', 'starting'),
    ('attempt', 'claimed', 'cancelled'),
    ('attempt', 'claimed', 'timed_out'),
    ('attempt', 'claimed', 'lost'),
    ('attempt', 'starting', 'running'),
    ('attempt', 'starting', 'succeeded'),
    ('attempt', 'starting', 'failed'),
    ('attempt', 'starting', 'cancelled'),
    ('attempt', 'starting', 'timed_out'),
    ('attempt', 'starting', 'lost'),
    ('attempt', 'running', 'succeeded'),
    ('attempt', 'running', 'failed'),
    ('attempt', 'running', 'cancelled'),
    ('attempt', 'running', 'timed_out'),
    ('attempt', 'running', 'lost'),
    ('lease', 'released', 'leased'),
    ('lease', 'leased', 'released'),
    ('lease', 'leased', 'completed')
)
select
  l.entity,
  l.from_status,
  l.to_status
from legal as l;

create view run_admission as
select
  r.run_id,
  r.package_key,
  r.generation,
  r.kind,
  r.target_key,
  r.target_id,
  r.run_key,
  r.input_digest,
  r.step_count,
  r.deadline_at_ms,
  r.retry_of_run_id,
  r.trigger_key,
  r.scheduled_at_ms,
  r.admitted_at_ms
from run as r;

create view task_attempt_admission as
select
  a.attempt_id,
  a.run_id,
  a.number,
  a.step_key,
  a.epoch,
  a.task_id,
  a.queue,
  a.jitter,
  a.admitted_at_ms
from task_attempt as a;

-- One mutation a step row and event; its id is the event's (DESIGN §4, derived ids).
create view step_run_mutation as
select
  e.run_id,
  e.run_id || '.' || cast(e.sequence as text) as mutation_id,
  e.sequence,
  e.entity_id as step_key,
  e.from_status,
  e.to_status,
  e.entity_version as step_version,
  e.result_code,
  e.created_at_ms
from run_event as e
where e.entity = 'step';

-- An attempt that may still act, with all that decides about it; no row for ended ones. It may have
-- no lease yet. It always has a revision; by `left join` only who names its columns reads it.
-- `started_count` counts this one as past the start barrier. The back-off doubles from `backoff` to
-- `max_backoff`; the jitter is a digest that admission stored, up to an eighth more (DESIGN §5).
create view live_attempt as
select
  a.run_id,
  a.attempt_id,
  a.step_key,
  a.status,
  a.version,
  a.epoch,
  a.deadline_at_ms,
  a.jitter,
  l.status as lease_status,
  l.version as lease_version,
  l.fence,
  (select r.cancel_reason from run as r where r.run_id = a.run_id) as cancel_reason,
  s.status as step_status,
  s.version as step_version,
  s.attempt_count + case when s.status = 'ready' then 1 else 0 end as started_count,
  s.claim_return_count,
  t.retry_attempts,
  t.retry_failed,
  t.retry_timed_out,
  t.on_lost,
  (
    select d.delay_ms + d.delay_ms * a.jitter / 8192
    from (
      select
        case
          when t.max_backoff_ms >> cast(
              s.attempt_count + case when s.status = 'ready' then 0 else -1 end as int
            ) < t.backoff_ms
            then t.max_backoff_ms
          else t.backoff_ms << cast(
            s.attempt_count + case when s.status = 'ready' then 0 else -1 end as int
          )
        end as delay_ms
    ) as d
  ) as delay_ms
from task_attempt as a
join step_run as s on s.run_id = a.run_id and s.step_key = a.step_key
left join attempt_lease as l on l.attempt_id = a.attempt_id
left join task_revision as t on t.task_id = a.task_id
where a.status in ('claimed', 'starting', 'running');
