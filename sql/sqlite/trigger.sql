-- TRIGGERS — what may not change, in place of PostgreSQL's column rights. An insert of an existing
-- key is refused too, since `insert or replace` would walk past a delete trigger; connections turn
-- recursive_triggers on. Such a trigger fires on `set x = x` as well.

create trigger package_keeps before update of package_key on package
begin
  select raise(abort, 'QL500 a package keeps its key');
end;

create trigger package_generation_keeps
before update of package_key, generation, digest, manifest, published_at_ms on package_generation
begin
  select raise(abort, 'QL500 a generation keeps what was published');
end;

create trigger trigger_keeps before update of package_key, trigger_key on trigger
begin
  select raise(abort, 'QL500 a trigger keeps its key');
end;

create trigger trigger_schedule_keeps before update of package_key, trigger_key on trigger_schedule
begin
  select raise(abort, 'QL500 a schedule keeps its key');
end;

create trigger trigger_run_keeps before update of run_id, package_key, trigger_key on trigger_run
begin
  select raise(abort, 'QL500 a run stays that of its trigger');
end;

create trigger trigger_fault_keeps before update of package_key, trigger_key on trigger_fault
begin
  select raise(abort, 'QL500 a fault keeps its trigger');
end;

create trigger run_keeps
before update of
  run_id, package_key, generation, kind, target_key, target_id, run_key, input_digest, step_count,
  deadline_at_ms, retry_of_run_id, trigger_key, scheduled_at_ms, admitted_at_ms
on run
begin
  select raise(abort, 'QL500 a run keeps its admission');
end;

create trigger step_run_keeps before update of run_id, step_key, task_id on step_run
begin
  select raise(abort, 'QL500 a step keeps its task');
end;

create trigger task_attempt_keeps
before update of
  attempt_id, run_id, number, step_key, epoch, task_id, queue, jitter, admitted_at_ms
on task_attempt
begin
  select raise(abort, 'QL500 an attempt keeps its admission');
end;

create trigger attempt_lease_keeps before update of attempt_id, run_id on attempt_lease
begin
  select raise(abort, 'QL500 a lease keeps its attempt');
end;

create trigger agenda_keeps before update of run_id, stage on agenda
begin
  select raise(abort, 'QL500 an agenda row keeps its run and stage');
end;

create trigger worker_session_keeps before update of worker_id on worker_session
begin
  select raise(abort, 'QL500 a session keeps its worker');
end;

create trigger run_fault_keeps before update of run_id, stage on run_fault
begin
  select raise(abort, 'QL500 a fault keeps its run and stage');
end;

-- append-only

create trigger task_revision_is_new before insert on task_revision
when exists (select 1 from task_revision as x where x.task_id = new.task_id)
begin
  select raise(abort, 'QL409 task_revision has this key already');
end;

create trigger task_revision_never_changes before update on task_revision
begin
  select raise(abort, 'QL500 task_revision is append-only');
end;

create trigger task_revision_never_goes before delete on task_revision
begin
  select raise(abort, 'QL500 task_revision is append-only');
end;

create trigger workflow_revision_is_new before insert on workflow_revision
when exists (select 1 from workflow_revision as x where x.workflow_id = new.workflow_id)
begin
  select raise(abort, 'QL409 workflow_revision has this key already');
end;

create trigger workflow_revision_never_changes before update on workflow_revision
begin
  select raise(abort, 'QL500 workflow_revision is append-only');
end;

create trigger workflow_revision_never_goes before delete on workflow_revision
begin
  select raise(abort, 'QL500 workflow_revision is append-only');
end;

create trigger workflow_step_is_new before insert on workflow_step
when exists (
  select 1
  from workflow_step as x
  where x.workflow_id = new.workflow_id and x.step_key = new.step_key
)
begin
  select raise(abort, 'QL409 workflow_step has this key already');
end;

create trigger workflow_step_never_changes before update on workflow_step
begin
  select raise(abort, 'QL500 workflow_step is append-only');
end;

create trigger workflow_step_never_goes before delete on workflow_step
begin
  select raise(abort, 'QL500 workflow_step is append-only');
end;

create trigger workflow_ancestor_is_new before insert on workflow_ancestor
when exists (
  select 1
  from workflow_ancestor as x
  where x.workflow_id = new.workflow_id
    and x.ancestor_key = new.ancestor_key
    and x.step_key = new.step_key
)
begin
  select raise(abort, 'QL409 workflow_ancestor has this key already');
end;

create trigger workflow_ancestor_never_changes before update on workflow_ancestor
begin
  select raise(abort, 'QL500 workflow_ancestor is append-only');
end;

create trigger workflow_ancestor_never_goes before delete on workflow_ancestor
begin
  select raise(abort, 'QL500 workflow_ancestor is append-only');
end;

create trigger run_input_is_new before insert on run_input
when exists (select 1 from run_input as x where x.run_id = new.run_id)
begin
  select raise(abort, 'QL409 run_input has this key already');
end;

create trigger run_input_never_changes before update on run_input
begin
  select raise(abort, 'QL500 run_input is append-only');
end;

create trigger run_input_goes_with_its_run before delete on run_input
when exists (select 1 from run as r where r.run_id = old.run_id)
begin
  select raise(abort, 'QL500 run_input is append-only');
end;

create trigger step_output_is_new before insert on step_output
when exists (
  select 1
  from step_output as x
  where x.run_id = new.run_id and x.step_key = new.step_key
)
begin
  select raise(abort, 'QL409 step_output has this key already');
end;

create trigger step_output_never_changes before update on step_output
begin
  select raise(abort, 'QL500 step_output is append-only');
end;

create trigger step_output_goes_with_its_run before delete on step_output
when exists (select 1 from run as r where r.run_id = old.run_id)
begin
  select raise(abort, 'QL500 step_output is append-only');
end;

create trigger cancel_intent_is_new before insert on cancel_intent
when exists (select 1 from cancel_intent as x where x.run_id = new.run_id)
begin
  select raise(abort, 'QL409 cancel_intent has this key already');
end;

create trigger cancel_intent_never_changes before update on cancel_intent
begin
  select raise(abort, 'QL500 cancel_intent is append-only');
end;

create trigger cancel_intent_goes_with_its_run before delete on cancel_intent
when exists (select 1 from run as r where r.run_id = old.run_id)
begin
  select raise(abort, 'QL500 cancel_intent is append-only');
end;

create trigger attempt_offer_is_new before insert on attempt_offer
when exists (
  select 1
  from attempt_offer as x
  where x.run_id = new.run_id and x.attempt_id = new.attempt_id and x.fence = new.fence
)
begin
  select raise(abort, 'QL409 attempt_offer has this key already');
end;

create trigger attempt_offer_never_changes before update on attempt_offer
begin
  select raise(abort, 'QL500 attempt_offer is append-only');
end;

create trigger attempt_offer_goes_with_its_run before delete on attempt_offer
when exists (select 1 from run as r where r.run_id = old.run_id)
begin
  select raise(abort, 'QL500 attempt_offer is append-only');
end;

create trigger attempt_report_is_new before insert on attempt_report
when exists (
  select 1
  from attempt_report as x
  where x.run_id = new.run_id
    and x.attempt_id = new.attempt_id
    and x.fence = new.fence
    and x.kind = new.kind
)
begin
  select raise(abort, 'QL409 attempt_report has this key already');
end;

create trigger attempt_report_never_changes before update on attempt_report
begin
  select raise(abort, 'QL500 attempt_report is append-only');
end;

create trigger attempt_report_goes_with_its_run before delete on attempt_report
when exists (select 1 from run as r where r.run_id = old.run_id)
begin
  select raise(abort, 'QL500 attempt_report is append-only');
end;

create trigger attestation_is_new before insert on attestation
when exists (
  select 1
  from attestation as x
  where x.run_id = new.run_id and x.attempt_id = new.attempt_id
)
begin
  select raise(abort, 'QL409 attestation has this key already');
end;

create trigger attestation_never_changes before update on attestation
begin
  select raise(abort, 'QL500 attestation is append-only');
end;

create trigger attestation_goes_with_its_run before delete on attestation
when exists (select 1 from run as r where r.run_id = old.run_id)
begin
  select raise(abort, 'QL500 attestation is append-only');
end;

create trigger refused_report_is_new before insert on refused_report
when exists (
  select 1
  from refused_report as x
  where x.run_id = new.run_id and x.attempt_id = new.attempt_id and x.ordinal = new.ordinal
)
begin
  select raise(abort, 'QL409 refused_report has this key already');
end;

create trigger refused_report_never_changes before update on refused_report
begin
  select raise(abort, 'QL500 refused_report is append-only');
end;

create trigger refused_report_goes_with_its_run before delete on refused_report
when exists (select 1 from run as r where r.run_id = old.run_id)
begin
  select raise(abort, 'QL500 refused_report is append-only');
end;

create trigger worker_audit_is_new before insert on worker_audit
when exists (
  select 1
  from worker_audit as x
  where x.minute_ms = new.minute_ms
    and x.worker_id = new.worker_id
    and x.route = new.route
    and x.certificate = new.certificate
)
begin
  select raise(abort, 'QL409 worker_audit has this key already');
end;

create trigger worker_audit_never_changes before update on worker_audit
begin
  select raise(abort, 'QL500 worker_audit is append-only');
end;

create trigger worker_audit_keeps_its_newest before delete on worker_audit
when not exists (select 1 from worker_audit as x where x.minute_ms > old.minute_ms)
begin
  select raise(abort, 'QL500 the newest minute of worker_audit stays');
end;

create trigger run_event_is_new before insert on run_event
when exists (select 1 from run_event as x where x.run_id = new.run_id and x.sequence = new.sequence)
begin
  select raise(abort, 'QL409 run_event has this key already');
end;

create trigger run_event_never_changes before update on run_event
begin
  select raise(abort, 'QL500 run_event is append-only');
end;

create trigger run_event_goes_with_its_run before delete on run_event
when exists (select 1 from run as r where r.run_id = old.run_id)
begin
  select raise(abort, 'QL500 run_event is append-only');
end;

-- RETENTION — a run goes only when it has ended, and what is its own only with it: the run first
-- (purge_runs), which foreign keys refuse to a stray delete. PostgreSQL has ql_retention for that.

create trigger run_goes_when_it_has_ended before delete on run
when old.finished_at_ms is null
  or exists (
    select 1 from task_attempt as a where a.run_id = old.run_id and a.finished_at_ms is null
  )
begin
  select raise(abort, 'QL500 a run goes only when it has ended');
end;

create trigger step_run_goes_with_its_run before delete on step_run
when exists (select 1 from run as r where r.run_id = old.run_id)
begin
  select raise(abort, 'QL500 a step goes only with its run');
end;

create trigger trigger_run_goes_with_its_run before delete on trigger_run
when exists (select 1 from run as r where r.run_id = old.run_id)
begin
  select raise(abort, 'QL500 a run stays that of its trigger');
end;

create trigger task_attempt_goes_with_its_run before delete on task_attempt
when exists (select 1 from run as r where r.run_id = old.run_id)
begin
  select raise(abort, 'QL500 an attempt goes only with its run');
end;

create trigger attempt_lease_goes_with_its_run before delete on attempt_lease
when exists (select 1 from run as r where r.run_id = old.run_id)
begin
  select raise(abort, 'QL500 a lease goes only with its run');
end;
