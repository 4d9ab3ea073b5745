-- EFFECTS ON ATTEMPTS AND LEASES — called by apply_effects and by nothing else. Mirror of
-- sql/postgres/effect_attempt.sql.

-- HELPER   add_attempts — admit attempts for the present epoch of their steps
select 1 from temp.change as c where c.entity = 'attempt' and c.from_status is null limit 1;

insert into task_attempt (
  attempt_id, run_id, number, step_key, epoch, task_id, queue, jitter, admitted_at_ms, status,
  version, offer_at_ms
)
select
  c.entity_id,
  c.run_id,
  cast(substr(c.entity_id, length(c.run_id) + 2) as integer),
  s.step_key,
  s.version,
  s.task_id,
  k.queue,
  jitter(c.run_id, s.step_key, cast(substr(c.entity_id, length(c.run_id) + 2) as integer)),
  t.at_ms,
  c.to_status,
  1,
  t.at_ms
from temp.change as c
cross join temp.touched as t on t.run_id = c.run_id
cross join step_run as s on s.run_id = c.run_id and s.step_key = c.input_id
cross join task_revision as k on k.task_id = s.task_id
where c.entity = 'attempt' and c.from_status is null;

insert into temp.moved (entity, wanted, changed)
select 'attempt', count(*), changes()
from temp.change as c
where c.entity = 'attempt' and c.from_status is null
having count(*) <> changes();

-- HELPER   move_attempts — over the start barrier and to their ends
select 1 from temp.change as c where c.entity = 'attempt' and c.from_status is not null limit 1;

update task_attempt
set
  status = c.to_status,
  version = task_attempt.version + c.effect_count,
  offer_at_ms = null,
  starting_at_ms = case
    when c.to_status = 'starting' then t.at_ms
    else task_attempt.starting_at_ms
  end,
  identity = case
    when c.to_status = 'starting' then (
      select p.identity
      from attempt_report as p
      where p.run_id = c.run_id
        and p.attempt_id = c.entity_id
        and p.fence = (select l.fence from attempt_lease as l where l.attempt_id = c.entity_id)
        and p.kind = 'starting'
    )
    else task_attempt.identity
  end,
  deadline_at_ms = case
    when c.to_status = 'starting' then t.at_ms + (
      select k.timeout_ms from task_revision as k where k.task_id = task_attempt.task_id
    )
    else task_attempt.deadline_at_ms
  end,
  started_at_ms = case
    when c.to_status = 'running' then t.at_ms
    else task_attempt.started_at_ms
  end,
  finished_at_ms = case when c.to_status not in ('starting', 'running') then t.at_ms end,
  exit_code = case
    when c.to_status not in ('starting', 'running') then (
      select p.exit_code
      from attempt_report as p
      where p.run_id = c.run_id
        and p.attempt_id = c.entity_id
        and p.fence = (select l.fence from attempt_lease as l where l.attempt_id = c.entity_id)
        and p.kind = 'ended'
    )
  end,
  result_code = c.result_code
from temp.change as c
cross join temp.touched as t on t.run_id = c.run_id
where c.entity = 'attempt'
  and c.from_status is not null
  and task_attempt.attempt_id = c.entity_id
  and task_attempt.status = c.from_status
  and task_attempt.version = c.expected_version;

insert into temp.moved (entity, wanted, changed)
select 'attempt', count(*), changes()
from temp.change as c
where c.entity = 'attempt' and c.from_status is not null
having count(*) <> changes();

-- HELPER   close_leases — an attempt that ends takes its lease with it; no effect, no event
select 1
from temp.change as c
where c.entity = 'attempt' and c.to_status not in ('claimed', 'starting', 'running')
limit 1;

update attempt_lease
set
  status = case
    when c.to_status = 'lost' or c.from_status = 'claimed' then 'released'
    else 'completed'
  end,
  version = attempt_lease.version + 1,
  fence = attempt_lease.fence + 1,
  closed_at_ms = t.at_ms
from temp.change as c
cross join temp.touched as t on t.run_id = c.run_id
where c.entity = 'attempt'
  and c.to_status not in ('claimed', 'starting', 'running')
  and attempt_lease.attempt_id = c.entity_id
  and attempt_lease.status = 'leased';

-- HELPER   move_leases — take leases for the first time, take them again, release them
select 1 from temp.change as c where c.entity = 'lease' limit 1;

insert into attempt_lease (
  attempt_id, run_id, status, version, fence, offer_id, worker_id, token_digest, self_fencing,
  grace_ms, leased_at_ms, expires_at_ms
)
select
  c.entity_id,
  c.run_id,
  c.to_status,
  1,
  1,
  o.offer_id,
  o.worker_id,
  o.token_digest,
  o.self_fencing,
  o.grace_ms,
  t.at_ms,
  o.expires_at_ms
from temp.change as c
cross join temp.touched as t on t.run_id = c.run_id
cross join attempt_offer as o on o.offer_id = c.input_id
where c.entity = 'lease' and c.from_status is null;

insert into temp.moved (entity, wanted, changed)
select 'lease', count(*), changes()
from temp.change as c
where c.entity = 'lease' and c.from_status is null
having count(*) <> changes();

update attempt_lease
set
  status = c.to_status,
  version = attempt_lease.version + c.effect_count,
  fence = attempt_lease.fence + 1,
  offer_id = coalesce(o.offer_id, attempt_lease.offer_id),
  worker_id = coalesce(o.worker_id, attempt_lease.worker_id),
  token_digest = coalesce(o.token_digest, attempt_lease.token_digest),
  self_fencing = coalesce(o.self_fencing, attempt_lease.self_fencing),
  grace_ms = coalesce(o.grace_ms, attempt_lease.grace_ms),
  leased_at_ms = case when c.to_status = 'leased' then t.at_ms else attempt_lease.leased_at_ms end,
  expires_at_ms = coalesce(o.expires_at_ms, attempt_lease.expires_at_ms),
  closed_at_ms = case when c.to_status <> 'leased' then t.at_ms end
from temp.change as c
cross join temp.touched as t on t.run_id = c.run_id
left join attempt_offer as o on c.to_status = 'leased' and o.offer_id = c.input_id
where c.entity = 'lease'
  and c.from_status is not null
  and attempt_lease.attempt_id = c.entity_id
  and attempt_lease.status = c.from_status
  and attempt_lease.version = c.expected_version;

insert into temp.moved (entity, wanted, changed)
select 'lease', count(*), changes()
from temp.change as c
where c.entity = 'lease' and c.from_status is not null
having count(*) <> changes();
