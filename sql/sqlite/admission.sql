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
    when not is_object(:p_input) then 'the input is a JSON object'
    when length(cast(:p_input as blob)) > 16384
      then 'the input is larger than 16 KiB'
  end as message
) as m
where m.message is not null;

delete from temp.effect;

delete from temp.answer;

insert into temp.answer (entity_id, outcome)
select
  d.run_id,
  case (select r.input_digest from run as r where r.run_id = d.run_id)
    when sha256_hex(:p_input) then 'existing'
    else case
      when exists (select 1 from run as r where r.run_id = d.run_id) then 'conflict'
      else 'created'
    end
  end
from (
  select derived_id('ru', :p_package_key, :p_kind, :p_target_key, :p_run_key) as run_id
) as d;

insert into run (
  run_id, package_key, generation, kind, target_key, target_id, run_key, input_digest, step_count,
  deadline_at_ms, admitted_at_ms, status, version, attempt_count, updated_at_ms
)
select
  a.entity_id,
  g.package_key,
  g.generation,
  :p_kind,
  :p_target_key,
  t.target_id,
  :p_run_key,
  sha256_hex(:p_input),
  t.step_count,
  :now_ms + t.timeout_ms,
  :now_ms,
  'running',
  0,
  0,
  :now_ms
from temp.answer as a
cross join package_generation as g on g.package_key = :p_package_key and g.state = 'active'
cross join (
  select
    w.workflow_id as target_id,
    w.step_count,
    w.timeout_ms
  from workflow_revision as w
  where :p_kind = 'workflow'
    and w.package_key = :p_package_key
    and w.workflow_key = :p_target_key
    and w.generation = (
      select b.generation
      from package_generation as b
      where b.package_key = :p_package_key and b.state = 'active'
    )
  union all
  -- a task run has one step, and no deadline but its attempt's (DESIGN §5)
  select
    k.task_id as target_id,
    1 as step_count,
    cast(null as integer) as timeout_ms
  from task_revision as k
  where :p_kind = 'task'
    and k.package_key = :p_package_key
    and k.task_key = :p_target_key
    and k.generation = (
      select b.generation
      from package_generation as b
      where b.package_key = :p_package_key and b.state = 'active'
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
      where g.package_key = :p_package_key and g.state = 'active'
    ) then 'no ' || :p_kind || ' ' || :p_target_key || ' in package ' || :p_package_key
    else 'no active package ' || :p_package_key
  end
from temp.answer as a
where a.outcome = 'created' and not exists (select 1 from run as r where r.run_id = a.entity_id);

insert into run_input (run_id, input)
select
  a.entity_id,
  :p_input
from temp.answer as a
where a.outcome = 'created';

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
where e.run_id = derived_id('ru', :p_package_key, :p_kind, :p_target_key, :p_run_key);

-- CALL     apply_effects

select
  r.run_id,
  a.outcome,
  r.status,
  r.generation
from temp.answer as a
cross join run as r on r.run_id = a.entity_id;
