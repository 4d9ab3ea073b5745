-- ADMISSION — a run begins. Mirror of sql/postgres/admission.sql.

-- STEP     start_run — admit one run of a workflow or of a single task
-- LOCKS    the database (begin immediate, by the caller)
-- READS    admission_effect
-- WRITES   run, run_input; through apply_effects
-- RETURNS  created | existing | conflict
-- RAISES   QL400, QL404
-- REPLAY   exact: the run's id is derived from its key, whatever generation is active now
insert into temp.refusal (code, message)
select 'QL400', m.message
from (
  select case
    when :p_kind is null or :p_kind not in ('workflow', 'task')
      then 'kind is workflow or task'
    when :p_package_key is null or :p_target_key is null
      then 'package and target are needed'
    when :p_run_key is null or length(:p_run_key) not between 1 and 200
      then 'a run key has 1 to 200 characters'
    when length(cast(:p_input as blob)) > 16384
      then 'the input is larger than 16 KiB'
    when not is_object(:p_input) then 'the input is a JSON object'
  end as message
) as m
where m.message is not null;

delete from temp.admission;

insert into temp.admission (
  run_id, package_key, kind, target_key, run_key, input, retry_of_run_id, outcome
)
select
  d.run_id,
  :p_package_key,
  :p_kind,
  :p_target_key,
  :p_run_key,
  :p_input,
  null,
  case
    when r.run_id is null then 'created'
    when r.input_digest = sha256_hex(:p_input) and r.retry_of_run_id is null then 'existing'
    else 'conflict'
  end
from (
  select derived_id('ru', :p_package_key, :p_kind, :p_target_key, :p_run_key) as run_id
) as d
left join run as r on r.run_id = d.run_id;

-- CALL     admit_run

select
  r.run_id,
  a.outcome,
  r.status,
  r.generation
from temp.admission as a
cross join run as r on r.run_id = a.run_id;

-- HELPER   admit_run — the run of temp.admission with its input, and what follows at once; nothing
--          when it is there already
insert into run (
  run_id, package_key, generation, kind, target_key, target_id, run_key, input_digest, step_count,
  deadline_at_ms, retry_of_run_id, trigger_key, scheduled_at_ms, admitted_at_ms, status, version,
  attempt_count, updated_at_ms
)
select
  a.run_id,
  g.package_key,
  g.generation,
  a.kind,
  a.target_key,
  t.target_id,
  a.run_key,
  sha256_hex(a.input),
  t.step_count,
  :now_ms + t.timeout_ms,
  a.retry_of_run_id,
  a.trigger_key,
  a.scheduled_at_ms,
  :now_ms,
  'running',
  0,
  0,
  :now_ms
from temp.admission as a
cross join package_generation as g on g.package_key = a.package_key and g.state = 'active'
cross join (
  select
    w.workflow_id as target_id,
    w.step_count,
    w.timeout_ms
  from workflow_revision as w
  where (w.package_key, w.workflow_key, 'workflow') = (
      select b.package_key, b.target_key, b.kind from temp.admission as b
    )
    and w.generation = (
      select b.generation
      from package_generation as b
      where b.package_key = w.package_key and b.state = 'active'
    )
  union all
  -- a task run has one step, and no deadline but its attempt's (DESIGN §5)
  select
    k.task_id as target_id,
    1 as step_count,
    cast(null as integer) as timeout_ms
  from task_revision as k
  where (k.package_key, k.task_key, 'task') = (
      select b.package_key, b.target_key, b.kind from temp.admission as b
    )
    and k.generation = (
      select b.generation
      from package_generation as b
      where b.package_key = k.package_key and b.state = 'active'
    )
) as t
where a.outcome = 'created';

insert into temp.refusal (code, message)
select
  'QL404',
  case
    when exists (
      select 1
      from package_generation as g
      where g.package_key = a.package_key and g.state = 'active'
    ) then 'no ' || a.kind || ' ' || a.target_key || ' in package ' || a.package_key
    else 'no active package ' || a.package_key
  end
from temp.admission as a
where a.outcome = 'created' and not exists (select 1 from run as r where r.run_id = a.run_id);

insert into run_input (run_id, input)
select
  a.run_id,
  a.input
from temp.admission as a
where a.outcome = 'created';

delete from temp.chosen;

insert into temp.chosen (run_id)
select a.run_id
from temp.admission as a
where a.outcome = 'created';

delete from temp.effect;

-- EACH     decide_admission
-- CALL     apply_effects

-- HELPER   decide_admission — a view with a window takes a run_id only as a parameter, never a join
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
from admission_effect as e
where e.run_id = :each_run_id;
