-- RETENTION — which runs may go (DESIGN §5). When is the caller's: the step compares
-- finished_at_ms with the time that it is given.

-- Ended, and nothing of it can still be executing. Whatever belongs to the run goes with it.
create view retention_due as
select
  r.run_id,
  r.finished_at_ms
from run as r
where r.finished_at_ms is not null
  and r.status <> 'running'
  and not exists (
    select 1
    from task_attempt as a
    where a.run_id = r.run_id and a.finished_at_ms is null
  );
