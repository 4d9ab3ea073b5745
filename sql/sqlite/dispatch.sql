-- DISPATCH — offers that take leases. Mirror of sql/postgres/dispatch.sql.

-- STEP     lease_attempts — offers take the oldest claimed attempts of a queue, or of one run in it
-- LOCKS    the database (begin immediate, by the caller)
-- READS    dispatch_effect
-- WRITES   attempt_offer; through apply_effects
-- RAISES   QL400, QL410
-- RETURNS  one row an offer that holds a lease; try_number counts this attempt, and those of its
--          step that came past the start barrier before it
-- REPLAY   an offer that still holds its lease answers with the same row
insert into temp.refusal (code, message)
select 'QL400', 'a batch is a JSON array of at most 128 offers'
where case
  when json_valid(:p_offers) then json_type(:p_offers) <> 'array'
    or json_array_length(:p_offers) > 128
  else 1
end;

insert into temp.refusal (code, message)
select 'QL410', 'session ' || :p_session_id || ' of worker ' || :p_worker_id || ' is not online'
where not exists (
  select 1
  from worker_session as w
  where w.worker_id = :p_worker_id and w.session_id = :p_session_id and w.status = 'online'
);

insert into temp.refusal (code, message)
select 'QL400', 'a lease lasts 5 s to 5 min, not ' || coalesce(:p_lease_ms, 'null') || ' ms'
where :p_lease_ms is null or :p_lease_ms not between 5000 and 300000;

insert into temp.refusal (code, message)
select 'QL400', 'an offer has an offer_id and a token_digest, and is made once'
from json_each(:p_offers) as o
where o.type <> 'object'
  or coalesce(length(o.value ->> '$.offer_id'), 0) not between 1 and 36
  or coalesce(length(o.value ->> '$.token_digest'), 0) <> 64
  or (o.value ->> '$.token_digest') glob '*[^0-9a-f]*'
union all
select 'QL400', 'an offer is made once'
where (
  select count(*) <> count(distinct o.value ->> '$.offer_id')
  from json_each(:p_offers) as o
);

delete from temp.offer;

insert into temp.offer (ordinal, offer_id, token_digest, attempt_id, run_id)
select
  o.key,
  o.value ->> '$.offer_id',
  o.value ->> '$.token_digest',
  f.attempt_id,
  f.run_id
from json_each(:p_offers) as o
left join attempt_offer as f on f.offer_id = (o.value ->> '$.offer_id');

delete from temp.candidate;

insert into temp.candidate (ordinal, attempt_id, run_id)
select
  row_number() over (order by a.offer_at_ms, a.attempt_id),
  a.attempt_id,
  a.run_id
from task_attempt as a
cross join run as r on r.run_id = a.run_id
cross join step_run as s on s.run_id = a.run_id and s.step_key = a.step_key
left join attempt_lease as l on l.attempt_id = a.attempt_id
where a.queue = :p_queue
  and a.offer_at_ms is not null
  and (:p_run_id is null or a.run_id = :p_run_id)
  and l.status is distinct from 'leased'
  and r.status = 'running'
  and r.cancel_requested_at_ms is null
  and s.status = 'ready'
  and s.version = a.epoch
order by a.offer_at_ms, a.attempt_id
limit (select count(*) from temp.offer as o where o.attempt_id is null);

delete from temp.chosen;

insert into temp.chosen (run_id)
select distinct d.run_id
from temp.candidate as d;

insert into attempt_offer (
  run_id, attempt_id, fence, offer_id, worker_id, token_digest, self_fencing, grace_ms,
  offered_at_ms, expires_at_ms
)
select
  d.run_id,
  d.attempt_id,
  coalesce(l.fence, 0) + 1,
  p.offer_id,
  w.worker_id,
  p.token_digest,
  w.self_fencing,
  w.grace_ms,
  :now_ms,
  :now_ms + :p_lease_ms
from (
  select
    o.offer_id,
    o.token_digest,
    row_number() over (order by o.ordinal) as ordinal
  from temp.offer as o
  where o.attempt_id is null
) as p
cross join temp.candidate as d on d.ordinal = p.ordinal
cross join worker_session as w on w.worker_id = :p_worker_id
left join attempt_lease as l on l.attempt_id = d.attempt_id;

delete from temp.effect;

-- EACH     decide_dispatch
-- CALL     apply_effects

select
  l.attempt_id,
  l.run_id,
  a.step_key,
  a.number,
  l.offer_id,
  l.fence,
  l.expires_at_ms,
  :p_lease_ms as lease_ms,
  k.timeout_ms,
  k.package_key,
  g.base_dir,
  k.spec,
  k.task_key,
  s.attempt_count + case s.status when 'ready' then 1 else 0 end as try_number
from temp.offer as o
cross join attempt_offer as f on f.offer_id = o.offer_id
cross join attempt_lease as l
  on l.attempt_id = f.attempt_id
  and l.offer_id = o.offer_id
  and l.status = 'leased'
  and l.worker_id = :p_worker_id
  and l.token_digest = o.token_digest
cross join task_attempt as a on a.attempt_id = l.attempt_id
cross join step_run as s on s.run_id = a.run_id and s.step_key = a.step_key
cross join task_revision as k on k.task_id = a.task_id
cross join package as g on g.package_key = k.package_key
order by o.ordinal;

-- HELPER   decide_dispatch — run by run: a view with a window takes a run_id only as a parameter
insert into temp.effect (
  run_id, ordinal, entity, entity_id, from_status, to_status, expected_version, result_code,
  event_type, due_at_ms, input_id
)
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
  e.due_at_ms,
  e.input_id
from dispatch_effect as e
where e.run_id = :each_run_id;
