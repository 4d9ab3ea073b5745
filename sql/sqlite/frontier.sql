-- FRONTIER — open what may run, skip what cannot, end the run. Mirror of sql/postgres/frontier.sql.

-- STEP     advance_frontier — one run
-- LOCKS    the database (begin immediate, by the caller)
-- READS    frontier_effect
-- WRITES   through apply_effects; agenda, run_fault
-- RETURNS  applied | settled
-- RAISES   QL404, QL409
-- REPLAY   exact: a second call finds no effects
-- CALL     choose_run
-- CALL     advance_chosen
-- CALL     answer_run

-- STEP     frontier_page — a page of runs in one transaction
-- CALL     choose_due
-- CALL     advance_chosen
-- CALL     answer_page

-- HELPER   advance_chosen — decide run by run, apply at once
-- EACH     decide_frontier
-- CALL     apply_effects
-- CALL     clear_stage

-- HELPER   decide_frontier — a view with a window takes a run_id only as a parameter, never a join
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
from frontier_effect as e
where e.run_id = :each_run_id;
