-- READING — what people and tools look at: the state of things, without the columns that only
-- machines need (no token digests, no identities). Filter by the leading columns.

create view package_state as
select
  g.package_key,
  g.generation,
  g.state,
  g.digest,
  g.published_at_ms,
  g.ended_at_ms,
  (select p.base_dir from package as p where p.package_key = g.package_key) as base_dir
from package_generation as g;

create view target_state as
select
  w.package_key,
  w.generation,
  'workflow' as kind,
  w.workflow_key as target_key,
  w.workflow_id as target_id,
  w.timeout_ms,
  w.step_count
from workflow_revision as w
union all
select
  t.package_key,
  t.generation,
  'task' as kind,
  t.task_key as target_key,
  t.task_id as target_id,
  t.timeout_ms,
  cast(1 as bigint) as step_count
from task_revision as t;

create view trigger_state as
select
  t.package_key,
  t.trigger_key,
  t.generation,
  t.state,
  t.cron,
  t.tz,
  t.kind,
  t.target_key,
  t.misfire,
  t.overlap,
  s.next_fire_at_ms,
  s.due_at_ms,
  s.updated_at_ms as since_ms,
  s.last_scheduled_at_ms,
  s.last_outcome,
  s.last_run_id,
  (select r.status from run as r where r.run_id = s.last_run_id) as last_run_status,
  f.error as fault_error,
  f.fault_count,
  f.next_try_at_ms as fault_next_try_at_ms
from trigger as t
join trigger_schedule as s on s.package_key = t.package_key and s.trigger_key = t.trigger_key
left join trigger_fault as f on f.package_key = t.package_key and f.trigger_key = t.trigger_key;

create view run_state as
select
  r.run_id,
  r.package_key,
  r.generation,
  r.kind,
  r.target_key,
  r.target_id,
  r.run_key,
  r.input_digest,
  r.retry_of_run_id,
  r.trigger_key,
  r.scheduled_at_ms,
  r.step_count,
  r.status,
  r.version,
  r.attempt_count,
  r.admitted_at_ms,
  r.deadline_at_ms,
  r.cancel_requested_at_ms,
  r.cancel_reason,
  r.result_code,
  r.finished_at_ms,
  r.updated_at_ms
from run as r;

-- The literal is what the index of open runs is found by.
create view open_run as
select
  r.run_id,
  r.package_key,
  r.generation,
  r.kind,
  r.target_key,
  r.target_id,
  r.run_key,
  r.input_digest,
  r.retry_of_run_id,
  r.trigger_key,
  r.scheduled_at_ms,
  r.step_count,
  r.status,
  r.version,
  r.attempt_count,
  r.admitted_at_ms,
  r.deadline_at_ms,
  r.cancel_requested_at_ms,
  r.cancel_reason,
  r.result_code,
  r.finished_at_ms,
  r.updated_at_ms
from run as r
where r.finished_at_ms is null;

create view intent_state as
select
  i.run_id,
  i.reason,
  i.actor,
  i.requested_at_ms
from cancel_intent as i;

create view input_state as
select
  i.run_id,
  i.input
from run_input as i;

create view step_state as
select
  s.run_id,
  s.step_key,
  s.status,
  s.version,
  s.attempt_count,
  s.claim_return_count,
  s.ready_at_ms,
  s.started_at_ms,
  s.finished_at_ms,
  s.due_at_ms,
  s.result_code,
  t.task_key,
  t.queue,
  t.on_lost,
  (select o.output from step_output as o where o.run_id = s.run_id and o.step_key = s.step_key)
    as output
from step_run as s
join task_revision as t on t.task_id = s.task_id;

create view step_need as
select
  s.run_id,
  s.step_key,
  w.ancestor_key as need_key
from step_run as s
join workflow_ancestor as w
  on w.workflow_id = (select r.target_id from run as r where r.run_id = s.run_id)
  and w.step_key = s.step_key
  and w.distance = 1;

create view attempt_state as
select
  a.run_id,
  a.attempt_id,
  a.number,
  a.step_key,
  a.epoch,
  a.queue,
  a.status,
  a.admitted_at_ms,
  a.starting_at_ms,
  a.started_at_ms,
  a.finished_at_ms,
  a.deadline_at_ms,
  a.exit_code,
  a.result_code,
  (select l.status from attempt_lease as l where l.attempt_id = a.attempt_id) as lease_status,
  (select l.worker_id from attempt_lease as l where l.attempt_id = a.attempt_id) as worker_id,
  (select l.offer_id from attempt_lease as l where l.attempt_id = a.attempt_id) as offer_id,
  (select l.fence from attempt_lease as l where l.attempt_id = a.attempt_id) as fence,
  (select l.expires_at_ms from attempt_lease as l where l.attempt_id = a.attempt_id)
    as lease_expires_at_ms,
  (
    select p.error
    from attempt_report as p
    where p.run_id = a.run_id and p.attempt_id = a.attempt_id and p.kind = 'ended'
    order by p.fence desc
    limit 1
  ) as error
from task_attempt as a;

create view event_log as
select
  e.run_id,
  e.sequence,
  e.type,
  e.entity,
  e.entity_id,
  e.from_status,
  e.to_status,
  e.entity_version,
  e.result_code,
  e.created_at_ms
from run_event as e;

create view attestation_state as
select
  n.run_id,
  n.attempt_id,
  n.evidence,
  n.follow,
  n.reason,
  n.actor,
  n.attested_at_ms
from attestation as n;

create view refused_state as
select
  f.run_id,
  f.attempt_id,
  f.ordinal,
  f.code,
  f.kind,
  f.how,
  f.exit_code,
  f.fence,
  f.refused_at_ms
from refused_report as f;

create view agenda_state as
select
  a.run_id,
  a.stage,
  a.due_at_ms
from agenda as a;

create view fault_state as
select
  f.run_id,
  f.stage,
  f.error,
  f.fault_count,
  f.first_at_ms,
  f.last_at_ms,
  f.next_try_at_ms
from run_fault as f;

create view worker_state as
select
  w.worker_id,
  w.session_id,
  w.generation,
  w.status,
  w.queues,
  w.slots,
  w.self_fencing,
  w.registered_at_ms,
  w.seen_at_ms,
  w.expires_at_ms,
  w.drain_requested_at_ms
from worker_session as w;

-- By way of the open runs, so that leases that are over are not read.
create view worker_hold as
select
  l.worker_id,
  l.run_id,
  l.attempt_id,
  a.step_key,
  a.number,
  a.status,
  l.fence,
  l.expires_at_ms,
  l.leased_at_ms
from run as r
cross join task_attempt as a
cross join attempt_lease as l
where r.finished_at_ms is null
  and a.run_id = r.run_id
  and a.finished_at_ms is null
  and l.attempt_id = a.attempt_id
  and l.status = 'leased';

create view worker_audit_log as
select
  u.minute_ms,
  u.worker_id,
  u.route,
  u.certificate,
  u.first_at_ms
from worker_audit as u;

-- What waits for a worker, by queue; only waiting work is read.
create view queue_state as
select
  a.queue,
  count(*) as waiting_count,
  min(a.offer_at_ms) as oldest_at_ms
from task_attempt as a
where a.offer_at_ms is not null
group by a.queue;
