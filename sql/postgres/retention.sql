-- RETENTION — runs that ended long ago go, with everything that belongs to them. ql_retention owns
-- the step and is the only role that may delete history (grant.sql).

-- STEP     purge_runs — delete the runs that ended first, if that was before a time
-- LOCKS    2 run (skip locked); a run that has ended has no live attempt, so there is no 1, and
--          whoever waits for the run finds that it is gone
-- READS    run; retention_due (only after the locks are held)
-- WRITES   run_event, refused_report, attestation, attempt_report, attempt_offer, cancel_intent,
--          attempt_lease, task_attempt, step_output, step_run, run_input, agenda, run_fault,
--          trigger_run, run
-- RETURNS  the runs that are gone, those that ended first at the top
-- RAISES   QL400, QL503
-- REPLAY   exact: what is gone is not found again
create or replace function ql_retention.purge_runs (p_before_ms bigint, p_limit int)
returns table (run_id text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off  -- a sort below the limit would lock every run that is due
set lock_timeout = '1s'
as $$
declare
  v_held text[];
  v_run_ids text[];
begin
  perform ql.assert_read_committed();
  if p_before_ms is null then
    raise exception 'a time is needed' using errcode = 'QL400';
  end if;
  if p_limit is null or p_limit not between 1 and 32 then
    raise exception 'a page has 1 to 32 runs, not %', p_limit using errcode = 'QL400';
  end if;

  v_held := array(
    select r.run_id
    from ql.run as r
    where r.finished_at_ms < p_before_ms
    order by r.finished_at_ms, r.run_id
    limit p_limit
    for update skip locked
  );
  v_run_ids := array(
    select u.run_id
    from unnest(v_held) with ordinality as u (run_id, place)
    cross join lateral (
      select 1
      from ql.retention_due as d
      where d.run_id = u.run_id and d.finished_at_ms < p_before_ms
      offset 0
    ) as due
    order by u.place
  );
  if cardinality(v_run_ids) = 0 then
    return;  -- a plan for no run at all may walk through an index
  end if;

  delete from ql.run_event as e where e.run_id = any(v_run_ids);
  delete from ql.refused_report as f where f.run_id = any(v_run_ids);
  delete from ql.attestation as n where n.run_id = any(v_run_ids);
  delete from ql.attempt_report as p where p.run_id = any(v_run_ids);
  delete from ql.attempt_offer as o where o.run_id = any(v_run_ids);
  delete from ql.cancel_intent as i where i.run_id = any(v_run_ids);
  delete from ql.attempt_lease as l
  where l.attempt_id = any(array(
    select a.attempt_id from ql.task_attempt as a where a.run_id = any(v_run_ids)
  ));
  delete from ql.task_attempt as a where a.run_id = any(v_run_ids);
  delete from ql.step_output as o where o.run_id = any(v_run_ids);
  delete from ql.step_run as s where s.run_id = any(v_run_ids);
  delete from ql.run_input as i where i.run_id = any(v_run_ids);
  delete from ql.agenda as g where g.run_id = any(v_run_ids);
  delete from ql.run_fault as f where f.run_id = any(v_run_ids);
  delete from ql.trigger_run as m where m.run_id = any(v_run_ids);
  delete from ql.run as r where r.run_id = any(v_run_ids);

  return query
  select u.run_id
  from unnest(v_run_ids) with ordinality as u (run_id, place)
  order by u.place;
end;
$$;
