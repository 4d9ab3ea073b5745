-- TASK ADMISSION — one attempt for each ready step and epoch. Mirror of
-- sql/postgres/task_admission.sql.

-- STEP     admit_tasks — one run
-- LOCKS    the database (begin immediate, by the caller)
-- READS    task_admission_effect
-- WRITES   through apply_effects; agenda, run_fault
-- RETURNS  applied | settled
-- RAISES   QL404, QL409
-- REPLAY   exact: a second call finds no effects
-- CALL     choose_run
-- EACH     decide_task_admission
-- CALL     admit_chosen
-- CALL     answer_run

-- STEP     task_admission_page — a page of runs in one transaction, at most 512 admissions
-- CALL     choose_due
-- EACH     decide_task_admission

-- what goes past the bound keeps its row on the agenda
delete from temp.chosen
where run_id in (
  select b.run_id
  from (
    select
      c.run_id,
      row_number() over (order by c.due_at_ms, c.run_id) as place,
      sum((select count(*) from temp.effect as e where e.run_id = c.run_id))
        over (order by c.due_at_ms, c.run_id) as admissions
    from temp.chosen as c
  ) as b
  where b.admissions > 512 and b.place > 1
);

delete from temp.effect
where run_id not in (select c.run_id from temp.chosen as c);

-- CALL     admit_chosen
-- CALL     answer_page

-- HELPER   admit_chosen — apply what was decided
-- CALL     apply_effects
-- CALL     clear_stage

-- HELPER   decide_task_admission — run by run: a view with a window takes a run_id as a parameter
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
from task_admission_effect as e
where e.run_id = :each_run_id;
