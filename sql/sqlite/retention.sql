-- RETENTION — runs that ended long ago go, with everything that belongs to them. Mirror of
-- sql/postgres/retention.sql.
-- The run goes first, which foreign keys allow until the commit: trigger.sql lets nothing else go
-- while its run is there, and no run go that has not ended.

-- STEP     purge_runs — delete the runs that ended first, if that was before a time
-- REPLAY   exact: what is gone is not found again
insert into temp.refusal (code, message)
select 'QL400', 'a time is needed'
where :p_before_ms is null;

insert into temp.refusal (code, message)
select 'QL400', 'a page has 1 to 32 runs, not ' || coalesce(:p_limit, 'null')
where coalesce(:p_limit, 0) not between 1 and 32;

delete from temp.chosen;

insert into temp.chosen (run_id, due_at_ms)
select
  d.run_id,
  d.finished_at_ms
from retention_due as d
where d.finished_at_ms < :p_before_ms
  and coalesce(:p_limit, 0) between 1 and 32
order by d.finished_at_ms, d.run_id
limit :p_limit;

pragma defer_foreign_keys = on;

delete from run where run_id in (select c.run_id from temp.chosen as c);

delete from run_event where run_id in (select c.run_id from temp.chosen as c);

delete from refused_report where run_id in (select c.run_id from temp.chosen as c);

delete from attestation where run_id in (select c.run_id from temp.chosen as c);

delete from attempt_report where run_id in (select c.run_id from temp.chosen as c);

delete from attempt_offer where run_id in (select c.run_id from temp.chosen as c);

delete from cancel_intent where run_id in (select c.run_id from temp.chosen as c);

delete from attempt_lease
where attempt_id in (
  select a.attempt_id
  from task_attempt as a
  where a.run_id in (select c.run_id from temp.chosen as c)
);

delete from task_attempt where run_id in (select c.run_id from temp.chosen as c);

delete from step_output where run_id in (select c.run_id from temp.chosen as c);

delete from step_run where run_id in (select c.run_id from temp.chosen as c);

delete from run_input where run_id in (select c.run_id from temp.chosen as c);

delete from agenda where run_id in (select c.run_id from temp.chosen as c);

delete from run_fault where run_id in (select c.run_id from temp.chosen as c);

delete from trigger_run where run_id in (select c.run_id from temp.chosen as c);

select c.run_id
from temp.chosen as c
order by c.due_at_ms, c.run_id;
