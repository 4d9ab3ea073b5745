-- RETRY OF A RUN — mirror of sql/postgres/admission_retry.sql.

-- STEP     start_retry — admit a run that takes over what succeeded in a run that did not
-- LOCKS    the database (begin immediate, by the caller)
-- READS    run, run_input, step_output, trigger_run of the retried run; admission_effect
-- WRITES   run, run_input, step_output, trigger_run; through apply_effects
-- RETURNS  created | existing | conflict (the key belongs to another run)
-- RAISES   QL400, QL404
-- REPLAY   exact: one retry a run without a key, and one a key
-- STAGE    admission
delete from temp.admission;

-- without a key the answer needs nothing of the retried run, which may be purged by now
insert into temp.admission (run_id, outcome)
select
  r.run_id,
  'existing'
from run as r
where :p_run_key is null and r.run_id = derived_id('ru', 'retry', :p_run_id);

insert into temp.refusal (code, message)
select m.code, m.message
from (
  select
    case when length(:p_run_key) not between 1 and 200 or r.run_id is not null then 'QL400'
      else 'QL404'
    end as code,
    case
      when length(:p_run_key) not between 1 and 200 then 'a run key has 1 to 200 characters'
      when r.run_id is null then 'no run ' || coalesce(:p_run_id, '')
      when r.status = 'running' then 'run ' || r.run_id || ' is still open: cancel it first'
      when r.status = 'succeeded'
        then 'run ' || r.run_id || ' has succeeded: there is nothing to retry'
    end as message
  from (select 1) as one
  left join run as r on r.run_id = :p_run_id
) as m
where m.message is not null and not exists (select 1 from temp.admission);

insert into temp.admission (
  run_id, package_key, kind, target_key, run_key, input, retry_of_run_id, outcome
)
select
  d.run_id,
  d.package_key,
  d.kind,
  d.target_key,
  coalesce(:p_run_key, ''),
  i.input,
  :p_run_id,
  case
    when r.run_id is null then 'created'
    when r.retry_of_run_id = :p_run_id then 'existing'
    else 'conflict'
  end
from (
  select
    o.package_key,
    o.kind,
    o.target_key,
    case
      when :p_run_key is null then derived_id('ru', 'retry', :p_run_id)
      else derived_id('ru', o.package_key, o.kind, o.target_key, :p_run_key)
    end as run_id
  from run as o
  where o.run_id = :p_run_id and not exists (select 1 from temp.admission)
) as d
cross join run_input as i on i.run_id = :p_run_id
left join run as r on r.run_id = d.run_id;

-- CALL     admit_run

insert into step_output (run_id, step_key, attempt_id, output)
select
  s.run_id,
  s.step_key,
  o.attempt_id,
  o.output
from temp.admission as a
cross join step_run as s on s.run_id = a.run_id and s.result_code = 'taken_over'
cross join step_output as o on o.run_id = a.retry_of_run_id and o.step_key = s.step_key
where a.outcome = 'created';

-- marked or not: the retried one has ended; its own row is what a retry of this one finds
insert into trigger_run (run_id, package_key, trigger_key, open_at_ms)
select
  a.run_id,
  m.package_key,
  m.trigger_key,
  :now_ms
from temp.admission as a
cross join trigger_run as m on m.run_id = a.retry_of_run_id
where a.outcome = 'created';

select
  r.run_id,
  a.outcome,
  r.status,
  r.generation,
  (
    select count(*)
    from step_run as s
    where s.run_id = r.run_id and s.result_code = 'taken_over'
  ) as taken_over_count
from temp.admission as a
cross join run as r on r.run_id = a.run_id;
