-- AUDIT — who used the ingress when and with which certificate, and until when that is kept
-- (DESIGN §8). Mirror of sql/postgres/audit.sql.

-- STEP     audit_worker — keep that a worker asked something of the ingress, once a minute for each
--          route and certificate
-- WRITES   worker_audit
-- RAISES   QL400
-- REPLAY   exact: the row is there
insert into temp.refusal (code, message)
select 'QL400', 'an audit row has a worker, a route and a certificate'
where coalesce(length(:p_worker_id), 0) not between 1 and 36
  or coalesce(length(:p_route), 0) not between 1 and 64
  or coalesce(length(:p_certificate), 0) not between 1 and 64;

insert into worker_audit (minute_ms, worker_id, route, certificate, first_at_ms)
select
  :now_ms - :now_ms % 60000,
  :p_worker_id,
  :p_route,
  :p_certificate,
  :now_ms
where not exists (select 1 from temp.refusal)
  and not exists (
    select 1
    from worker_audit as u
    where u.minute_ms = :now_ms - :now_ms % 60000
      and u.worker_id = :p_worker_id
      and u.route = :p_route
      and u.certificate = :p_certificate
  );

select :now_ms - :now_ms % 60000 as minute_ms;

-- STEP     purge_audit — delete what was audited before a time, the oldest first; the newest minute
--          stays
-- REPLAY   exact: what is gone is not found again
insert into temp.refusal (code, message)
select 'QL400', 'a time is needed'
where :p_before_ms is null;

insert into temp.refusal (code, message)
select 'QL400', 'a page has 1 to 4096 rows, not ' || coalesce(:p_limit, 'null')
where coalesce(:p_limit, 0) not between 1 and 4096;

delete from temp.answer;

insert into temp.answer (outcome, number)
select
  'purged',
  count(*)
from (
  select 1
  from worker_audit as o
  where o.minute_ms >= 0
    and o.minute_ms < :p_before_ms
    and exists (select 1 from worker_audit as n where n.minute_ms > o.minute_ms)
    and not exists (select 1 from temp.refusal)
  limit :p_limit
) as g;

delete from worker_audit
where (minute_ms, worker_id, route, certificate) in (
  select
    o.minute_ms,
    o.worker_id,
    o.route,
    o.certificate
  from worker_audit as o
  where o.minute_ms >= 0
    and o.minute_ms < :p_before_ms
    and exists (select 1 from worker_audit as n where n.minute_ms > o.minute_ms)
    and not exists (select 1 from temp.refusal)
  order by o.minute_ms, o.worker_id, o.route, o.certificate
  limit :p_limit
);

select n.number as purged
from temp.answer as n;
