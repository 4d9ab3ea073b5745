-- DISPATCH, SESSIONS — who a worker is, whether it is there, whether it may lease. Mirror of
-- sql/postgres/dispatch_session.sql.

-- STEP     register_worker — a worker's new session takes over from its older one; one that an
--          operator drains goes on being drained
-- WRITES   worker_session
-- RAISES   QL400
-- REPLAY   exact: the same session registers once
insert into temp.refusal (code, message)
select 'QL400', 'a worker has an id, a session, queues, 1 to 1024 slots and a grace up to 1 h'
where coalesce(length(:p_worker_id), 0) not between 1 and 36
  or coalesce(length(:p_session_id), 0) not between 1 and 36
  or case
    when json_valid(:p_queues) then json_type(:p_queues) <> 'array'
      or json_array_length(:p_queues) not between 1 and 128
      or length(cast(:p_queues as blob)) > 131072
      or exists (
        select 1
        from json_each(:p_queues) as q
        where q.type <> 'text'
          or length(q.value) not between 1 and 200
      )
    else 1
  end
  or coalesce(:p_slots, 0) not between 1 and 1024
  or coalesce(:p_self_fencing, -1) not in (0, 1)
  or coalesce(:p_grace_ms, -1) not between 0 and 3600000;

insert into worker_session (
  worker_id, session_id, generation, status, queues, slots, self_fencing, grace_ms,
  registered_at_ms, expires_at_ms, seen_at_ms
)
values (
  :p_worker_id, :p_session_id, 1, 'online', :p_queues, :p_slots, :p_self_fencing, :p_grace_ms,
  :now_ms, :now_ms + 300000, :now_ms
)
on conflict (worker_id) do update set
  session_id = excluded.session_id,
  generation = worker_session.generation + 1,
  status = case when worker_session.drain_requested_at_ms is null then 'online' else 'draining' end,
  queues = excluded.queues,
  slots = excluded.slots,
  self_fencing = excluded.self_fencing,
  grace_ms = excluded.grace_ms,
  registered_at_ms = excluded.registered_at_ms,
  expires_at_ms = excluded.expires_at_ms,
  seen_at_ms = excluded.seen_at_ms
where worker_session.session_id <> excluded.session_id;

select
  w.worker_id,
  w.generation,
  w.status
from worker_session as w
where w.worker_id = :p_worker_id;

-- STEP     heartbeat_worker — the worker is there; and which of its sessions is the current one
-- WRITES   worker_session
-- RAISES   QL404
-- REPLAY   exact: seen again
-- CALL     find_worker

update worker_session
set
  seen_at_ms = :now_ms,
  expires_at_ms = :now_ms + 60000
where worker_id = :p_worker_id
  and session_id = :p_session_id
  and status <> 'offline';

select
  w.worker_id,
  w.session_id,
  w.generation,
  w.status
from worker_session as w
where w.worker_id = :p_worker_id;

-- STEP     end_session — a worker leaves; what it holds stays held
-- WRITES   worker_session
-- RAISES   QL404, QL410
-- REPLAY   exact
insert into temp.refusal (code, message)
select
  case when w.worker_id is null then 'QL404' else 'QL410' end,
  case
    when w.worker_id is null then 'no worker ' || :p_worker_id
    else 'worker ' || :p_worker_id || ' has another session'
  end
from (select 1) as one
left join worker_session as w on w.worker_id = :p_worker_id
where w.session_id is distinct from :p_session_id;

update worker_session
set status = 'offline'
where worker_id = :p_worker_id;

select
  w.worker_id,
  w.status
from worker_session as w
where w.worker_id = :p_worker_id;

-- STEP     drain_worker — an operator wants a worker to lease nothing more; what it holds goes on,
--          and its later sessions are draining as well
-- WRITES   worker_session
-- RETURNS  outcome applied | existing
-- RAISES   QL404
-- REPLAY   existing
-- CALL     find_worker

delete from temp.answer;

insert into temp.answer (entity_id, outcome)
select
  w.worker_id,
  case when w.drain_requested_at_ms is null then 'applied' else 'existing' end
from worker_session as w
where w.worker_id = :p_worker_id;

update worker_session
set
  drain_requested_at_ms = :now_ms,
  status = case status when 'online' then 'draining' else status end
where worker_id = :p_worker_id and drain_requested_at_ms is null;

select
  w.worker_id,
  w.status,
  n.outcome
from temp.answer as n
cross join worker_session as w on w.worker_id = n.entity_id;

-- STEP     undrain_worker — it may lease again
-- WRITES   worker_session
-- RETURNS  outcome applied | existing
-- RAISES   QL404
-- REPLAY   existing
-- CALL     find_worker

delete from temp.answer;

insert into temp.answer (entity_id, outcome)
select
  w.worker_id,
  case when w.drain_requested_at_ms is not null then 'applied' else 'existing' end
from worker_session as w
where w.worker_id = :p_worker_id;

update worker_session
set
  drain_requested_at_ms = null,
  status = case status when 'draining' then 'online' else status end
where worker_id = :p_worker_id and drain_requested_at_ms is not null;

select
  w.worker_id,
  w.status,
  n.outcome
from temp.answer as n
cross join worker_session as w on w.worker_id = n.entity_id;

-- HELPER   find_worker — a worker that has registered once
-- RAISES   QL404
insert into temp.refusal (code, message)
select 'QL404', 'no worker ' || :p_worker_id
where not exists (select 1 from worker_session as w where w.worker_id = :p_worker_id);
