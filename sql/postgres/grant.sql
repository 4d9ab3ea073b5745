-- GRANTS — who may do what (DESIGN §8). PUBLIC may do nothing; the groups may only execute the
-- functions in the schema of their name, and ql_reader may select from the views.
-- ql_authority, as whom those functions run, may change the columns below the line "moves" in
-- table.sql; history and inputs it may only add to; only what is due, open or failed may it delete.
-- ql_retention, as whom purge_runs and purge_audit run, may delete runs with all that is theirs and
-- what was audited, and add nothing.
-- Run again after every change of functions: it leaves everything as it says here.

-- A function in a capability schema belongs to its schema's owner and runs with that role's rights.
do $$
declare
  v_function regprocedure;
  v_owner regrole;
begin
  for v_function, v_owner in
    select p.oid::regprocedure, n.nspowner::regrole
    from pg_catalog.pg_proc as p
    join pg_catalog.pg_namespace as n on n.oid = p.pronamespace
    where n.nspname in (
        'ql_admission', 'ql_scheduler', 'ql_worker', 'ql_operator', 'ql_retention'
      )
      and p.proowner <> n.nspowner
  loop
    execute format('alter function %s owner to %s', v_function, v_owner);
  end loop;
end;
$$;

revoke all on schema ql, ql_admission, ql_scheduler, ql_worker, ql_operator, ql_retention
from public;
revoke all on all tables in schema ql from public;
revoke all on all functions
in schema ql, ql_admission, ql_scheduler, ql_worker, ql_operator, ql_retention
from public;
revoke all on type ql.effect, ql.command from public;

-- the groups
grant usage on schema ql_admission to ql_admission;
grant execute on all functions in schema ql_admission to ql_admission;
grant usage on schema ql_scheduler to ql_scheduler;
grant execute on all functions in schema ql_scheduler to ql_scheduler;
grant usage on schema ql_worker to ql_worker;
grant execute on all functions in schema ql_worker to ql_worker;
grant usage on schema ql_operator to ql_operator;
grant execute on all functions in schema ql_operator to ql_operator;
-- nobody is a member of ql_retention: whoever keeps the place running says when history goes
grant usage on schema ql_retention to ql_operator;
grant execute on all functions in schema ql_retention to ql_operator;

-- the views
grant usage on schema ql to ql_authority, ql_reader;
grant select on
  ql.state_transition, ql.run_admission, ql.task_attempt_admission, ql.step_run_mutation,
  ql.live_attempt,
  ql.takeover_node, ql.takeover_alone, ql.takeover, ql.admission_effect,
  ql.schedule_decision, ql.schedule_blocked, ql.schedule_due,
  ql.frontier_ready, ql.frontier_skip, ql.frontier_effect, ql.frontier_blocked,
  ql.task_admission_effect,
  ql.dispatch_effect,
  ql.completion_end, ql.completion_effect,
  ql.recovery_due, ql.recovery_blocked, ql.recovery_end, ql.recovery_effect,
  ql.retry_longest, ql.retry_effect,
  ql.intent_effect, ql.cancellation_blocked, ql.cancellation_effect,
  ql.retention_due,
  ql.explain,
  ql.agenda_missing, ql.agenda_ahead, ql.violation,
  ql.package_state, ql.target_state, ql.trigger_state, ql.run_state, ql.open_run, ql.intent_state,
  ql.input_state, ql.step_state, ql.step_need,
  ql.attempt_state, ql.event_log, ql.attestation_state, ql.refused_state, ql.agenda_state,
  ql.fault_state, ql.worker_state, ql.worker_hold, ql.worker_audit_log, ql.queue_state
to ql_authority, ql_reader;

-- internals and types
grant execute on all functions in schema ql to ql_authority;
grant usage on type ql.effect, ql.command to ql_authority;

-- what moves
grant select, insert on
  ql.package, ql.package_generation, ql.trigger, ql.trigger_schedule, ql.run, ql.step_run,
  ql.task_attempt, ql.attempt_lease, ql.worker_session, ql.trigger_run
to ql_authority;
grant update (open_at_ms) on ql.trigger_run to ql_authority;
grant update (generation, base_dir, updated_at_ms) on ql.package to ql_authority;
grant update (state, ended_at_ms) on ql.package_generation to ql_authority;
grant update (
  generation, state, cron, tz, kind, target_key, misfire, overlap, updated_at_ms
) on ql.trigger to ql_authority;
grant update (
  next_fire_at_ms, last_scheduled_at_ms, state_version, claim_owner, claim_token, claim_version,
  claim_expires_at_ms, updated_at_ms, due_at_ms, claimed_at_ms, seen_at_ms, last_outcome,
  last_run_id
) on ql.trigger_schedule to ql_authority;
grant update (
  status, version, attempt_count, cancel_requested_at_ms, cancel_reason, result_code,
  finished_at_ms, updated_at_ms
) on ql.run to ql_authority;
grant update (
  status, version, attempt_count, claim_return_count, ready_at_ms, started_at_ms, finished_at_ms,
  due_at_ms, result_code
) on ql.step_run to ql_authority;
grant update (
  status, version, offer_at_ms, deadline_at_ms, identity, starting_at_ms, started_at_ms,
  finished_at_ms, exit_code, result_code
) on ql.task_attempt to ql_authority;
grant update (
  status, version, fence, offer_id, worker_id, token_digest, self_fencing, grace_ms, leased_at_ms,
  expires_at_ms, closed_at_ms
) on ql.attempt_lease to ql_authority;
grant update (
  session_id, generation, status, queues, slots, self_fencing, grace_ms, registered_at_ms,
  expires_at_ms, seen_at_ms, drain_requested_at_ms
) on ql.worker_session to ql_authority;

-- what is due, and what failed: gone when it is done
grant select, insert, delete on ql.agenda, ql.run_fault, ql.trigger_fault to ql_authority;
grant update (due_at_ms) on ql.agenda to ql_authority;
grant update (error, fault_count, first_at_ms, last_at_ms, next_try_at_ms) on ql.run_fault
to ql_authority;
grant update (error, fault_count, first_at_ms, last_at_ms, next_try_at_ms) on ql.trigger_fault
to ql_authority;

-- what is written once
grant select, insert on
  ql.task_revision, ql.workflow_revision, ql.workflow_step, ql.workflow_ancestor,
  ql.run_input, ql.step_output,
  ql.cancel_intent, ql.attempt_offer, ql.attempt_report, ql.attestation, ql.refused_report,
  ql.run_event, ql.worker_audit
to ql_authority;

-- what has ended long ago; a row lock asks for the right to update some column
grant usage on schema ql to ql_retention;
grant execute on function ql.assert_read_committed() to ql_retention;
grant select on ql.retention_due to ql_retention;
grant select, delete on
  ql.run, ql.run_input, ql.step_run, ql.step_output, ql.task_attempt, ql.attempt_lease,
  ql.cancel_intent, ql.attempt_offer, ql.attempt_report, ql.attestation, ql.refused_report,
  ql.run_event, ql.agenda, ql.run_fault, ql.trigger_run, ql.worker_audit
to ql_retention;
grant update (updated_at_ms) on ql.run to ql_retention;
