-- AUDIT — who used the ingress when and with which certificate, and until when that is kept
-- (DESIGN §8). ql_retention owns the latter step (grant.sql).

-- STEP     audit_worker — keep that a worker asked something of the ingress, once a minute for each
--          route and certificate
-- LOCKS    none
-- READS    nothing
-- WRITES   worker_audit
-- RETURNS  minute_ms, when the minute began that the row is about
-- RAISES   QL400, QL503
-- REPLAY   exact: the row is there
create or replace function ql_worker.audit_worker (
  p_worker_id text,
  p_route text,
  p_certificate text
)
returns table (minute_ms bigint)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set lock_timeout = '1s'
as $$
declare
  v_now bigint := ql.now_ms();
  v_minute bigint := v_now - v_now % 60000;
begin
  perform ql.assert_read_committed();
  if coalesce(length(p_worker_id), 0) not between 1 and 36
    or coalesce(length(p_route), 0) not between 1 and 64
    or coalesce(length(p_certificate), 0) not between 1 and 64
  then
    raise exception 'an audit row has a worker, a route and a certificate'
      using errcode = 'QL400';
  end if;
  insert into ql.worker_audit (minute_ms, worker_id, route, certificate, first_at_ms)
  values (v_minute, p_worker_id, p_route, p_certificate, v_now)
  on conflict do nothing;
  return query select v_minute;
end;
$$;

-- STEP     purge_audit — delete what was audited before a time, the oldest first; the newest minute
--          stays
-- LOCKS    none
-- READS    worker_audit
-- WRITES   worker_audit
-- RETURNS  purged, how many rows went; fewer than the limit: no more are due
-- RAISES   QL400, QL503
-- REPLAY   exact: what is gone is not found again
create or replace function ql_retention.purge_audit (p_before_ms bigint, p_limit int)
returns table (purged bigint)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set lock_timeout = '1s'
as $$
begin
  perform ql.assert_read_committed();
  if p_before_ms is null then
    raise exception 'a time is needed' using errcode = 'QL400';
  end if;
  if p_limit is null or p_limit not between 1 and 4096 then
    raise exception 'a page has 1 to 4096 rows, not %', p_limit using errcode = 'QL400';
  end if;
  return query
  with gone as (
    delete from ql.worker_audit as u
    where (u.minute_ms, u.worker_id, u.route, u.certificate) in (
      select
        o.minute_ms,
        o.worker_id,
        o.route,
        o.certificate
      from ql.worker_audit as o
      where o.minute_ms < p_before_ms
        and exists (select from ql.worker_audit as n where n.minute_ms > o.minute_ms)
      order by o.minute_ms, o.worker_id, o.route, o.certificate
      limit p_limit
    )
    returning u.minute_ms
  )
  select count(*)
  from gone;
end;
$$;
