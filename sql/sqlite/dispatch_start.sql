-- DISPATCH, FROM THE START BARRIER ON — start, running, renewal. Mirror of
-- sql/postgres/dispatch_start.sql.

-- STEP     start_attempts — the start barrier: after this commit a side effect must be presumed
-- LOCKS    the database (begin immediate, by the caller)
-- READS    dispatch_effect
-- WRITES   attempt_report; through apply_effects
-- RETURNS  applied, with deadline and lease end | blocked (QL400, QL404, QL410)
-- REPLAY   exact while the lease is held: the report of this fence is found; another identity for
--          it is QL410, and so is all after the lease: nobody goes on an answer that is no longer
--          true
-- Under an intent the lease goes back in the same transaction, since nothing has started.
-- CALL     read_commands

insert into attempt_report (run_id, attempt_id, fence, kind, identity, reported_at_ms)
select
  c.run_id,
  c.attempt_id,
  c.fence,
  'starting',
  c.identity,
  :now_ms
from temp.command as c
cross join attempt_lease as l on l.attempt_id = c.attempt_id
cross join task_attempt as a on a.attempt_id = c.attempt_id
where c.code is null
  and l.status = 'leased'
  and l.fence = c.fence
  and l.token_digest = c.token_digest
  and l.expires_at_ms > :now_ms
  and a.status = 'claimed'
  and not exists (
    select 1
    from attempt_report as p
    where p.run_id = c.run_id
      and p.attempt_id = c.attempt_id
      and p.fence = c.fence
      and p.kind = 'starting'
  );

-- CALL     choose_commands
-- EACH     decide_dispatch
-- CALL     apply_effects

update temp.command as c
set code = 'QL410'
where c.code is null
  and not exists (
    select 1
    from attempt_report as p
    cross join attempt_offer as o
      on o.run_id = p.run_id and o.attempt_id = p.attempt_id and o.fence = p.fence
    cross join task_attempt as a on a.attempt_id = p.attempt_id
    where p.run_id = c.run_id
      and p.attempt_id = c.attempt_id
      and p.fence = c.fence
      and p.kind = 'starting'
      and p.identity is not distinct from c.identity
      and o.token_digest = c.token_digest
      and a.starting_at_ms is not null
      and (select l.status from attempt_lease as l where l.attempt_id = a.attempt_id) = 'leased'
  );

select
  c.attempt_id,
  case when c.code is null then 'applied' else 'blocked' end as outcome,
  c.code,
  a.deadline_at_ms,
  l.expires_at_ms
from temp.command as c
left join task_attempt as a on a.attempt_id = c.attempt_id and c.code is null
left join attempt_lease as l on l.attempt_id = c.attempt_id and c.code is null
order by c.ordinal;

-- STEP     running_attempts — the execution runs; true even under an intent
-- LOCKS    the database (begin immediate, by the caller)
-- READS    dispatch_effect
-- WRITES   attempt_report; through apply_effects
-- RETURNS  applied | blocked (QL400, QL404, QL410)
-- REPLAY   exact: the report of this fence is found
-- CALL     read_commands

insert into attempt_report (run_id, attempt_id, fence, kind, reported_at_ms)
select
  c.run_id,
  c.attempt_id,
  c.fence,
  'running',
  :now_ms
from temp.command as c
cross join attempt_lease as l on l.attempt_id = c.attempt_id
cross join task_attempt as a on a.attempt_id = c.attempt_id
where c.code is null
  and l.status = 'leased'
  and l.fence = c.fence
  and l.token_digest = c.token_digest
  and a.status = 'starting'
  and not exists (
    select 1
    from attempt_report as p
    where p.run_id = c.run_id
      and p.attempt_id = c.attempt_id
      and p.fence = c.fence
      and p.kind = 'running'
  );

-- CALL     choose_commands
-- EACH     decide_dispatch
-- CALL     apply_effects

update temp.command as c
set code = 'QL410'
where c.code is null
  and not exists (
    select 1
    from attempt_report as p
    cross join attempt_offer as o
      on o.run_id = p.run_id and o.attempt_id = p.attempt_id and o.fence = p.fence
    where p.run_id = c.run_id
      and p.attempt_id = c.attempt_id
      and p.fence = c.fence
      and p.kind = 'running'
      and o.token_digest = c.token_digest
  );

select
  c.attempt_id,
  case when c.code is null then 'applied' else 'blocked' end as outcome,
  c.code
from temp.command as c
order by c.ordinal;

-- STEP     renew_attempts — a worker keeps what it holds, and hears whether to stop
-- LOCKS    the database (begin immediate, by the caller)
-- WRITES   attempt_lease (the expiry alone: no effect, no event; DESIGN §4)
-- RETURNS  applied, with lease end and stop_reason | blocked (QL400, QL404, QL410)
-- RAISES   QL400
-- REPLAY   renews again; past deadline and grace the expiry stands still
insert into temp.refusal (code, message)
select 'QL400', 'a lease lasts 5 s to 5 min, not ' || coalesce(:p_lease_ms, 'null') || ' ms'
where :p_lease_ms is null or :p_lease_ms not between 5000 and 300000;

-- CALL     read_commands

update temp.command as c
set code = 'QL410'
where c.code is null
  and not exists (
    select 1
    from attempt_lease as l
    where l.attempt_id = c.attempt_id
      and l.status = 'leased'
      and l.fence = c.fence
      and l.token_digest = c.token_digest
      and l.expires_at_ms > :now_ms
  );

update attempt_lease
set expires_at_ms = :now_ms + :p_lease_ms
where attempt_id in (select c.attempt_id from temp.command as c where c.code is null)
  and expires_at_ms < :now_ms + :p_lease_ms
  and not exists (
    select 1
    from task_attempt as a
    where a.attempt_id = attempt_lease.attempt_id
      and a.deadline_at_ms + attempt_lease.grace_ms <= :now_ms
  );

select
  c.attempt_id,
  case when c.code is null then 'applied' else 'blocked' end as outcome,
  c.code,
  l.expires_at_ms,
  coalesce(
    (select r.cancel_reason from run as r where r.run_id = l.run_id),
    case when a.deadline_at_ms + l.grace_ms <= :now_ms then 'deadline' end
  ) as stop_reason
from temp.command as c
left join attempt_lease as l on l.attempt_id = c.attempt_id and c.code is null
left join task_attempt as a on a.attempt_id = l.attempt_id
order by c.ordinal;
