CREATE INDEX agenda_due on agenda (stage, due_at_ms, run_id);

CREATE INDEX attempt_offered on task_attempt (queue, offer_at_ms, attempt_id)
where offer_at_ms is not null;

CREATE UNIQUE INDEX one_active_generation on package_generation (package_key)
where state = 'active';

CREATE INDEX run_ended on run (finished_at_ms, run_id) where finished_at_ms is not null;

CREATE INDEX run_open on run (admitted_at_ms, run_id) where finished_at_ms is null;

CREATE INDEX run_recent on run (admitted_at_ms, run_id);

CREATE INDEX run_target on run (target_id, admitted_at_ms, run_id);

CREATE INDEX trigger_due on trigger_schedule (due_at_ms, package_key, trigger_key)
where due_at_ms is not null;

CREATE INDEX trigger_run_open on trigger_run (package_key, trigger_key, run_id)
where open_at_ms is not null;

CREATE INDEX trigger_settled on trigger_schedule (updated_at_ms) where due_at_ms is not null;

CREATE INDEX workflow_need on workflow_ancestor (workflow_id, step_key, ancestor_key, distance)
where distance = 1;

CREATE TABLE agenda (
  run_id text not null,
  stage text not null,
  -- moves
  due_at_ms integer not null,
  primary key (run_id, stage),
  constraint stage_is_known check (
    stage in ('frontier', 'task_admission', 'cancellation', 'deadline', 'retry', 'expiry')
  )
) strict, without rowid;

CREATE TABLE attempt_lease (
  attempt_id text primary key,
  run_id text not null,
  -- moves
  status text not null,
  version integer not null,
  fence integer not null,  -- grows by one whenever the lease is taken, released or completed
  offer_id text not null,
  worker_id text not null,
  token_digest text not null,
  self_fencing integer not null,
  grace_ms integer not null,
  leased_at_ms integer not null,
  expires_at_ms integer not null,
  closed_at_ms integer,
  constraint lease_status_is_known check (status in ('leased', 'released', 'completed')),
  constraint lease_version_starts_at_one check (version >= 1),
  constraint fence_starts_at_one check (fence >= 1),
  constraint only_a_closed_lease_has_an_end check ((status = 'leased') = (closed_at_ms is null))
) strict, without rowid;

CREATE TABLE attempt_offer (
  run_id text not null,
  attempt_id text not null,
  fence integer not null,  -- the fence that the lease gets when it is taken
  offer_id text not null,
  worker_id text not null,
  token_digest text not null,
  self_fencing integer not null,
  grace_ms integer not null,
  offered_at_ms integer not null,
  expires_at_ms integer not null,
  primary key (run_id, attempt_id, fence),
  constraint an_offer_is_made_once unique (offer_id),
  constraint token_is_a_digest check (length(token_digest) = 64)
) strict, without rowid;

CREATE TABLE attempt_report (
  run_id text not null,
  attempt_id text not null,
  fence integer not null,
  kind text not null,
  how text,
  exit_code integer,
  identity text,
  output text,
  error text,
  reported_at_ms integer not null,
  primary key (run_id, attempt_id, fence, kind),
  constraint report_kind_is_known check (kind in ('starting', 'running', 'ended')),
  constraint an_end_says_how check ((kind = 'ended') = (how is not null)),
  constraint how_is_known check (
    how in ('exit', 'signal', 'stop', 'deadline', 'start_failed', 'bad_output', 'not_started')
  ),
  constraint report_output_fits check (length(cast(output as blob)) <= 16384),
  constraint report_error_fits check (length(cast(error as blob)) <= 2048)
) strict, without rowid;

CREATE TABLE attestation (
  run_id text not null,
  attempt_id text not null,
  evidence text not null,
  follow text,  -- what an operator wants to follow: retry, fail, or null for on_lost
  reason text not null,
  actor text not null,
  attested_at_ms integer not null,
  primary key (run_id, attempt_id),
  constraint evidence_is_known check (evidence in ('expired', 'fenced', 'attested', 'declared')),
  constraint follow_is_known check (follow in ('retry', 'fail')),
  constraint only_a_declaration_says_what_follows check (follow is null or evidence = 'declared')
) strict, without rowid;

CREATE TABLE cancel_intent (
  run_id text primary key,
  reason text not null,
  actor text not null,
  requested_at_ms integer not null,
  constraint intent_reason_is_known
    check (reason in ('user', 'policy', 'shutdown', 'reconcile', 'timeout'))
) strict, without rowid;

CREATE TABLE package (
  package_key text primary key,
  -- moves
  generation integer not null,  -- the newest number given
  base_dir text not null,  -- where relative paths start; not part of the digest
  updated_at_ms integer not null
) strict, without rowid;

CREATE TABLE package_generation (
  package_key text not null references package (package_key),
  generation integer not null,
  digest text not null,
  manifest text not null,
  published_at_ms integer not null,
  -- moves
  state text not null,
  ended_at_ms integer,
  primary key (package_key, generation),
  constraint generation_starts_at_one check (generation >= 1),
  constraint manifest_fits check (length(cast(manifest as blob)) <= 262144),
  constraint generation_state_is_known check (state in ('active', 'superseded', 'withdrawn')),
  constraint only_an_active_generation_has_no_end check ((state = 'active') = (ended_at_ms is null))
) strict, without rowid;

CREATE TABLE refused_report (
  run_id text not null,
  attempt_id text not null,
  ordinal integer not null,
  code text not null,
  kind text not null,
  how text,
  exit_code integer,
  fence integer,
  refused_at_ms integer not null,
  primary key (run_id, attempt_id, ordinal),
  constraint refusals_within_bounds check (ordinal between 1 and 8)
) strict, without rowid;

CREATE TABLE run (
  run_id text primary key,
  package_key text not null,
  generation integer not null,
  kind text not null,
  target_key text not null,
  target_id text not null,  -- the workflow_id or task_id of the pinned generation
  run_key text not null,
  input_digest text not null,
  step_count integer not null,
  deadline_at_ms integer,
  retry_of_run_id text,  -- the run whose results it took over; that one may be purged
  trigger_key text,
  scheduled_at_ms integer,
  admitted_at_ms integer not null,
  -- moves
  status text not null,
  version integer not null,
  attempt_count integer not null,
  cancel_requested_at_ms integer,
  cancel_reason text,
  result_code text,
  finished_at_ms integer,
  updated_at_ms integer not null,
  foreign key (package_key, generation)
    references package_generation (package_key, generation),
  constraint run_id_fits check (length(run_id) between 1 and 36),
  constraint run_kind_is_known check (kind in ('workflow', 'task')),
  constraint run_status_is_known
    check (status in ('running', 'succeeded', 'failed', 'cancelled', 'timed_out')),
  constraint run_version_is_not_negative check (version >= 0),
  constraint run_attempts_within_bounds check (attempt_count between 0 and 8192),
  constraint an_intent_has_a_reason
    check ((cancel_requested_at_ms is null) = (cancel_reason is null)),
  constraint cancel_reason_is_known
    check (cancel_reason in ('user', 'policy', 'shutdown', 'reconcile', 'timeout')),
  constraint only_a_terminal_run_has_an_end check ((status = 'running') = (finished_at_ms is null)),
  constraint a_run_that_did_not_succeed_says_why
    check ((status in ('running', 'succeeded')) = (result_code is null))
) strict, without rowid;

CREATE TABLE run_event (
  run_id text not null,
  sequence integer not null,
  type text not null,
  entity text not null,
  entity_id text not null,
  from_status text,
  to_status text not null,
  entity_version integer not null,
  result_code text,
  input_id text,
  created_at_ms integer not null,
  primary key (run_id, sequence),
  constraint event_entity_is_known check (entity in ('run', 'step', 'attempt', 'lease'))
) strict, without rowid;

CREATE TABLE run_fault (
  run_id text not null,
  stage text not null,
  -- moves
  error text not null,
  fault_count integer not null,
  first_at_ms integer not null,
  last_at_ms integer not null,
  next_try_at_ms integer not null,
  primary key (run_id, stage),
  constraint fault_error_fits check (length(cast(error as blob)) <= 2048)
) strict, without rowid;

CREATE TABLE run_input (
  run_id text primary key references run (run_id),
  input text not null,
  constraint input_fits check (length(cast(input as blob)) <= 16384)
) strict, without rowid;

CREATE TABLE step_output (
  run_id text not null,
  step_key text not null,
  attempt_id text not null,
  output text not null,
  primary key (run_id, step_key),
  constraint output_fits check (length(cast(output as blob)) <= 16384)
) strict, without rowid;

CREATE TABLE step_run (
  run_id text not null references run (run_id),
  step_key text not null,
  task_id text not null,
  -- moves
  status text not null,
  version integer not null,
  attempt_count integer not null,
  claim_return_count integer not null,
  ready_at_ms integer,
  started_at_ms integer,
  finished_at_ms integer,
  due_at_ms integer,
  result_code text,
  primary key (run_id, step_key),
  constraint step_status_is_known check (
    status in (
      'pending', 'ready', 'waiting_approval', 'running', 'retry_wait', 'lost',
      'succeeded', 'failed', 'skipped', 'cancelled', 'timed_out'
    )
  ),
  constraint step_version_starts_at_one check (version >= 1),
  constraint step_attempts_within_bounds check (attempt_count between 0 and 64),
  constraint claim_returns_within_bounds check (claim_return_count between 0 and 64),
  constraint a_pending_step_has_no_times
    check (status <> 'pending' or (ready_at_ms is null and started_at_ms is null)),
  constraint a_ready_step_has_a_ready_time_only check (
    status not in ('ready', 'waiting_approval')
    or (ready_at_ms is not null and started_at_ms is null)
  ),
  constraint a_running_step_has_started check (
    status not in ('running', 'lost') or (ready_at_ms is not null and started_at_ms is not null)
  ),
  constraint only_a_waiting_retry_is_due check ((status = 'retry_wait') = (due_at_ms is not null)),
  constraint only_a_terminal_step_has_an_end check (
    (status in ('succeeded', 'failed', 'skipped', 'cancelled', 'timed_out'))
    = (finished_at_ms is not null)
  ),
  constraint a_step_that_did_not_succeed_says_why check (
    (status in ('retry_wait', 'lost', 'failed', 'skipped', 'cancelled', 'timed_out'))
    = (result_code is not null and result_code <> 'taken_over')
  ),
  constraint only_a_succeeded_step_is_taken_over
    check (result_code <> 'taken_over' or status = 'succeeded'),
  constraint step_times_grow check (
    ready_at_ms <= started_at_ms and started_at_ms <= finished_at_ms
  )
) strict, without rowid;

CREATE TABLE task_attempt (
  attempt_id text primary key,
  run_id text not null,
  number integer not null,
  step_key text not null,
  epoch integer not null,  -- the step's version while it was ready; good for exactly this one
  task_id text not null,
  queue text not null,
  jitter integer not null,  -- 0 to 1023 parts of 8192 added to a back-off
  admitted_at_ms integer not null,
  -- moves
  status text not null,
  version integer not null,
  offer_at_ms integer,  -- what dispatch looks for; set by admission, nulled by the start
  deadline_at_ms integer,
  identity text,
  starting_at_ms integer,
  started_at_ms integer,
  finished_at_ms integer,
  exit_code integer,
  result_code text,
  constraint one_admission_an_epoch unique (run_id, step_key, epoch),
  constraint attempt_number_within_bounds check (number between 1 and 8192),
  constraint jitter_within_bounds check (jitter between 0 and 1023),
  constraint attempt_status_is_known check (
    status in (
      'claimed', 'starting', 'running', 'succeeded', 'failed', 'cancelled', 'timed_out', 'lost'
    )
  ),
  constraint attempt_version_starts_at_one check (version >= 1),
  constraint only_a_claimed_attempt_is_offered
    check ((status = 'claimed') = (offer_at_ms is not null)),
  constraint a_claimed_attempt_has_not_crossed_the_barrier check (
    status <> 'claimed' or (starting_at_ms is null and started_at_ms is null)
  ),
  constraint a_started_attempt_crossed_the_barrier
    check (status not in ('starting', 'running') or starting_at_ms is not null),
  constraint only_a_terminal_attempt_has_an_end check (
    (status in ('claimed', 'starting', 'running')) = (finished_at_ms is null)
  ),
  constraint an_attempt_that_did_not_succeed_says_why check (
    (status in ('failed', 'cancelled', 'timed_out', 'lost')) = (result_code is not null)
  ),
  constraint identity_fits check (length(cast(identity as blob)) <= 512)
) strict, without rowid;

CREATE TABLE task_revision (
  task_id text primary key,
  package_key text not null,
  generation integer not null,
  task_key text not null,
  digest text not null,
  spec text not null,  -- canonical JSON: run, env, cwd and the rest as published
  timeout_ms integer,
  retry_attempts integer not null,
  backoff_ms integer not null,
  max_backoff_ms integer not null,
  retry_failed integer not null,
  retry_timed_out integer not null,
  idempotent integer not null,
  on_lost text not null,
  queue text not null,
  foreign key (package_key, generation)
    references package_generation (package_key, generation),
  constraint one_revision_a_task_and_generation unique (package_key, generation, task_key),
  constraint attempts_within_bounds check (retry_attempts between 1 and 64),
  constraint task_key_fits check (length(task_key) between 1 and 127),
  constraint task_timeout_within_bounds check (timeout_ms between 1 and 2592000000),
  constraint backoff_within_bounds check (backoff_ms between 0 and 86400000),
  constraint max_backoff_within_bounds check (max_backoff_ms between 0 and 86400000),
  constraint queue_fits check (length(queue) between 1 and 200),
  constraint on_lost_is_known check (on_lost in ('retry', 'fail', 'hold')),
  constraint only_idempotent_work_is_retried_when_lost check (on_lost <> 'retry' or idempotent = 1)
) strict, without rowid;

CREATE TABLE trigger (
  package_key text not null references package (package_key),
  trigger_key text not null,
  -- moves
  generation integer not null,
  state text not null,
  cron text not null,
  tz text not null,
  kind text not null,
  target_key text not null,
  misfire text not null,
  overlap text not null,
  updated_at_ms integer not null,
  primary key (package_key, trigger_key),
  constraint trigger_key_fits check (length(trigger_key) between 1 and 63),
  constraint trigger_state_is_known check (state in ('active', 'paused', 'withdrawn')),
  constraint trigger_kind_is_known check (kind in ('workflow', 'task')),
  constraint misfire_is_known check (misfire in ('fire_once', 'skip')),
  constraint overlap_is_known check (overlap in ('allow', 'skip'))
) strict, without rowid;

CREATE TABLE trigger_fault (
  package_key text not null,
  trigger_key text not null,
  -- moves
  error text not null,
  fault_count integer not null,
  first_at_ms integer not null,
  last_at_ms integer not null,
  next_try_at_ms integer not null,
  primary key (package_key, trigger_key),
  constraint trigger_fault_error_fits check (length(cast(error as blob)) <= 2048)
) strict, without rowid;

CREATE TABLE trigger_run (
  run_id text primary key,
  package_key text not null,
  trigger_key text not null,
  -- moves
  open_at_ms integer  -- null once a decision has found that the run has ended
) strict, without rowid;

CREATE TABLE trigger_schedule (
  package_key text not null,
  trigger_key text not null,
  -- moves
  next_fire_at_ms integer,
  last_scheduled_at_ms integer,
  state_version integer not null,
  claim_owner text,
  claim_token text,
  claim_version integer not null,
  claim_expires_at_ms integer,
  updated_at_ms integer not null,
  due_at_ms integer,  -- what a claim looks for; null while the trigger is not active
  claimed_at_ms integer,  -- what the claim observed
  seen_at_ms integer,  -- since when it has been claimed again and again without a pause
  last_outcome text,
  last_run_id text,
  primary key (package_key, trigger_key),
  foreign key (package_key, trigger_key) references trigger (package_key, trigger_key),
  constraint last_outcome_is_known check (last_outcome in ('admitted', 'misfire', 'overlap')),
  constraint an_admitted_occurrence_has_a_run
    check (last_outcome <> 'admitted' or last_run_id is not null),
  constraint a_claim_says_what_it_observed check (
    (claim_owner is null) = (claimed_at_ms is null)
    and (claim_owner is null) = (seen_at_ms is null)
  ),
  constraint a_claim_is_whole_or_absent check (
    (claim_owner is null) = (claim_token is null)
    and (claim_owner is null) = (claim_expires_at_ms is null)
  )
) strict, without rowid;

CREATE TABLE worker_audit (
  minute_ms integer not null,
  worker_id text not null,
  route text not null,
  certificate text not null,  -- its serial number
  first_at_ms integer not null,
  primary key (minute_ms, worker_id, route, certificate)
) strict, without rowid;

CREATE TABLE worker_session (
  worker_id text primary key,
  -- moves
  session_id text not null,
  generation integer not null,
  status text not null,
  queues text not null,
  slots integer not null,
  self_fencing integer not null,
  grace_ms integer not null,
  registered_at_ms integer not null,
  expires_at_ms integer not null,
  seen_at_ms integer,
  drain_requested_at_ms integer,  -- an operator wants it to lease nothing more
  constraint session_status_is_known check (status in ('online', 'draining', 'offline')),
  constraint slots_within_bounds check (slots between 1 and 1024)
) strict, without rowid;

CREATE TABLE workflow_ancestor (
  workflow_id text not null,
  ancestor_key text not null,
  step_key text not null,
  distance integer not null,
  primary key (workflow_id, ancestor_key, step_key),
  foreign key (workflow_id, ancestor_key) references workflow_step (workflow_id, step_key),
  foreign key (workflow_id, step_key) references workflow_step (workflow_id, step_key),
  constraint no_step_is_its_own_ancestor check (ancestor_key <> step_key),
  constraint distance_within_bounds check (distance between 1 and 127)
) strict, without rowid;

CREATE TABLE workflow_revision (
  workflow_id text primary key,
  package_key text not null,
  generation integer not null,
  workflow_key text not null,
  timeout_ms integer,
  step_count integer not null,
  foreign key (package_key, generation)
    references package_generation (package_key, generation),
  constraint one_revision_a_workflow_and_generation unique (package_key, generation, workflow_key),
  constraint workflow_key_fits check (length(workflow_key) between 1 and 63),
  constraint workflow_timeout_within_bounds check (timeout_ms between 1 and 2592000000),
  constraint steps_within_bounds check (step_count between 1 and 128)
) strict, without rowid;

CREATE TABLE workflow_step (
  workflow_id text not null references workflow_revision (workflow_id),
  step_key text not null,
  task_id text not null references task_revision (task_id),
  need_count integer not null,
  primary key (workflow_id, step_key),
  constraint step_key_fits check (length(step_key) between 1 and 63),
  constraint needs_within_bounds check (need_count between 0 and 127)
) strict, without rowid;

CREATE TRIGGER agenda_keeps before update of run_id, stage on agenda
begin
  select raise(abort, 'QL500 an agenda row keeps its run and stage');
end;

CREATE TRIGGER attempt_lease_goes_with_its_run before delete on attempt_lease
when exists (select 1 from run as r where r.run_id = old.run_id)
begin
  select raise(abort, 'QL500 a lease goes only with its run');
end;

CREATE TRIGGER attempt_lease_keeps before update of attempt_id, run_id on attempt_lease
begin
  select raise(abort, 'QL500 a lease keeps its attempt');
end;

CREATE TRIGGER attempt_offer_goes_with_its_run before delete on attempt_offer
when exists (select 1 from run as r where r.run_id = old.run_id)
begin
  select raise(abort, 'QL500 attempt_offer is append-only');
end;

CREATE TRIGGER attempt_offer_is_new before insert on attempt_offer
when exists (
  select 1
  from attempt_offer as x
  where x.run_id = new.run_id and x.attempt_id = new.attempt_id and x.fence = new.fence
)
begin
  select raise(abort, 'QL409 attempt_offer has this key already');
end;

CREATE TRIGGER attempt_offer_never_changes before update on attempt_offer
begin
  select raise(abort, 'QL500 attempt_offer is append-only');
end;

CREATE TRIGGER attempt_report_goes_with_its_run before delete on attempt_report
when exists (select 1 from run as r where r.run_id = old.run_id)
begin
  select raise(abort, 'QL500 attempt_report is append-only');
end;

CREATE TRIGGER attempt_report_is_new before insert on attempt_report
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

CREATE TRIGGER attempt_report_never_changes before update on attempt_report
begin
  select raise(abort, 'QL500 attempt_report is append-only');
end;

CREATE TRIGGER attestation_goes_with_its_run before delete on attestation
when exists (select 1 from run as r where r.run_id = old.run_id)
begin
  select raise(abort, 'QL500 attestation is append-only');
end;

CREATE TRIGGER attestation_is_new before insert on attestation
when exists (
  select 1
  from attestation as x
  where x.run_id = new.run_id and x.attempt_id = new.attempt_id
)
begin
  select raise(abort, 'QL409 attestation has this key already');
end;

CREATE TRIGGER attestation_never_changes before update on attestation
begin
  select raise(abort, 'QL500 attestation is append-only');
end;

CREATE TRIGGER cancel_intent_goes_with_its_run before delete on cancel_intent
when exists (select 1 from run as r where r.run_id = old.run_id)
begin
  select raise(abort, 'QL500 cancel_intent is append-only');
end;

CREATE TRIGGER cancel_intent_is_new before insert on cancel_intent
when exists (select 1 from cancel_intent as x where x.run_id = new.run_id)
begin
  select raise(abort, 'QL409 cancel_intent has this key already');
end;

CREATE TRIGGER cancel_intent_never_changes before update on cancel_intent
begin
  select raise(abort, 'QL500 cancel_intent is append-only');
end;

CREATE TRIGGER package_generation_keeps
before update of package_key, generation, digest, manifest, published_at_ms on package_generation
begin
  select raise(abort, 'QL500 a generation keeps what was published');
end;

CREATE TRIGGER package_keeps before update of package_key on package
begin
  select raise(abort, 'QL500 a package keeps its key');
end;

CREATE TRIGGER refused_report_goes_with_its_run before delete on refused_report
when exists (select 1 from run as r where r.run_id = old.run_id)
begin
  select raise(abort, 'QL500 refused_report is append-only');
end;

CREATE TRIGGER refused_report_is_new before insert on refused_report
when exists (
  select 1
  from refused_report as x
  where x.run_id = new.run_id and x.attempt_id = new.attempt_id and x.ordinal = new.ordinal
)
begin
  select raise(abort, 'QL409 refused_report has this key already');
end;

CREATE TRIGGER refused_report_never_changes before update on refused_report
begin
  select raise(abort, 'QL500 refused_report is append-only');
end;

CREATE TRIGGER run_event_goes_with_its_run before delete on run_event
when exists (select 1 from run as r where r.run_id = old.run_id)
begin
  select raise(abort, 'QL500 run_event is append-only');
end;

CREATE TRIGGER run_event_is_new before insert on run_event
when exists (select 1 from run_event as x where x.run_id = new.run_id and x.sequence = new.sequence)
begin
  select raise(abort, 'QL409 run_event has this key already');
end;

CREATE TRIGGER run_event_never_changes before update on run_event
begin
  select raise(abort, 'QL500 run_event is append-only');
end;

CREATE TRIGGER run_fault_keeps before update of run_id, stage on run_fault
begin
  select raise(abort, 'QL500 a fault keeps its run and stage');
end;

CREATE TRIGGER run_goes_when_it_has_ended before delete on run
when old.finished_at_ms is null
  or exists (
    select 1 from task_attempt as a where a.run_id = old.run_id and a.finished_at_ms is null
  )
begin
  select raise(abort, 'QL500 a run goes only when it has ended');
end;

CREATE TRIGGER run_input_goes_with_its_run before delete on run_input
when exists (select 1 from run as r where r.run_id = old.run_id)
begin
  select raise(abort, 'QL500 run_input is append-only');
end;

CREATE TRIGGER run_input_is_new before insert on run_input
when exists (select 1 from run_input as x where x.run_id = new.run_id)
begin
  select raise(abort, 'QL409 run_input has this key already');
end;

CREATE TRIGGER run_input_never_changes before update on run_input
begin
  select raise(abort, 'QL500 run_input is append-only');
end;

CREATE TRIGGER run_keeps
before update of
  run_id, package_key, generation, kind, target_key, target_id, run_key, input_digest, step_count,
  deadline_at_ms, retry_of_run_id, trigger_key, scheduled_at_ms, admitted_at_ms
on run
begin
  select raise(abort, 'QL500 a run keeps its admission');
end;

CREATE TRIGGER step_output_goes_with_its_run before delete on step_output
when exists (select 1 from run as r where r.run_id = old.run_id)
begin
  select raise(abort, 'QL500 step_output is append-only');
end;

CREATE TRIGGER step_output_is_new before insert on step_output
when exists (
  select 1
  from step_output as x
  where x.run_id = new.run_id and x.step_key = new.step_key
)
begin
  select raise(abort, 'QL409 step_output has this key already');
end;

CREATE TRIGGER step_output_never_changes before update on step_output
begin
  select raise(abort, 'QL500 step_output is append-only');
end;

CREATE TRIGGER step_run_goes_with_its_run before delete on step_run
when exists (select 1 from run as r where r.run_id = old.run_id)
begin
  select raise(abort, 'QL500 a step goes only with its run');
end;

CREATE TRIGGER step_run_keeps before update of run_id, step_key, task_id on step_run
begin
  select raise(abort, 'QL500 a step keeps its task');
end;

CREATE TRIGGER task_attempt_goes_with_its_run before delete on task_attempt
when exists (select 1 from run as r where r.run_id = old.run_id)
begin
  select raise(abort, 'QL500 an attempt goes only with its run');
end;

CREATE TRIGGER task_attempt_keeps
before update of
  attempt_id, run_id, number, step_key, epoch, task_id, queue, jitter, admitted_at_ms
on task_attempt
begin
  select raise(abort, 'QL500 an attempt keeps its admission');
end;

CREATE TRIGGER task_revision_is_new before insert on task_revision
when exists (select 1 from task_revision as x where x.task_id = new.task_id)
begin
  select raise(abort, 'QL409 task_revision has this key already');
end;

CREATE TRIGGER task_revision_never_changes before update on task_revision
begin
  select raise(abort, 'QL500 task_revision is append-only');
end;

CREATE TRIGGER task_revision_never_goes before delete on task_revision
begin
  select raise(abort, 'QL500 task_revision is append-only');
end;

CREATE TRIGGER trigger_fault_keeps before update of package_key, trigger_key on trigger_fault
begin
  select raise(abort, 'QL500 a fault keeps its trigger');
end;

CREATE TRIGGER trigger_keeps before update of package_key, trigger_key on trigger
begin
  select raise(abort, 'QL500 a trigger keeps its key');
end;

CREATE TRIGGER trigger_run_goes_with_its_run before delete on trigger_run
when exists (select 1 from run as r where r.run_id = old.run_id)
begin
  select raise(abort, 'QL500 a run stays that of its trigger');
end;

CREATE TRIGGER trigger_run_keeps before update of run_id, package_key, trigger_key on trigger_run
begin
  select raise(abort, 'QL500 a run stays that of its trigger');
end;

CREATE TRIGGER trigger_schedule_keeps before update of package_key, trigger_key on trigger_schedule
begin
  select raise(abort, 'QL500 a schedule keeps its key');
end;

CREATE TRIGGER worker_audit_is_new before insert on worker_audit
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

CREATE TRIGGER worker_audit_keeps_its_newest before delete on worker_audit
when not exists (select 1 from worker_audit as x where x.minute_ms > old.minute_ms)
begin
  select raise(abort, 'QL500 the newest minute of worker_audit stays');
end;

CREATE TRIGGER worker_audit_never_changes before update on worker_audit
begin
  select raise(abort, 'QL500 worker_audit is append-only');
end;

CREATE TRIGGER worker_session_keeps before update of worker_id on worker_session
begin
  select raise(abort, 'QL500 a session keeps its worker');
end;

CREATE TRIGGER workflow_ancestor_is_new before insert on workflow_ancestor
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

CREATE TRIGGER workflow_ancestor_never_changes before update on workflow_ancestor
begin
  select raise(abort, 'QL500 workflow_ancestor is append-only');
end;

CREATE TRIGGER workflow_ancestor_never_goes before delete on workflow_ancestor
begin
  select raise(abort, 'QL500 workflow_ancestor is append-only');
end;

CREATE TRIGGER workflow_revision_is_new before insert on workflow_revision
when exists (select 1 from workflow_revision as x where x.workflow_id = new.workflow_id)
begin
  select raise(abort, 'QL409 workflow_revision has this key already');
end;

CREATE TRIGGER workflow_revision_never_changes before update on workflow_revision
begin
  select raise(abort, 'QL500 workflow_revision is append-only');
end;

CREATE TRIGGER workflow_revision_never_goes before delete on workflow_revision
begin
  select raise(abort, 'QL500 workflow_revision is append-only');
end;

CREATE TRIGGER workflow_step_is_new before insert on workflow_step
when exists (
  select 1
  from workflow_step as x
  where x.workflow_id = new.workflow_id and x.step_key = new.step_key
)
begin
  select raise(abort, 'QL409 workflow_step has this key already');
end;

CREATE TRIGGER workflow_step_never_changes before update on workflow_step
begin
  select raise(abort, 'QL500 workflow_step is append-only');
end;

CREATE TRIGGER workflow_step_never_goes before delete on workflow_step
begin
  select raise(abort, 'QL500 workflow_step is append-only');
end;

CREATE VIEW admission_effect as
select
  e.run_id,
  row_number() over (partition by e.run_id order by e.part, e.entity_id) as ordinal,
  e.entity,
  e.entity_id,
  cast(null as text) as from_status,
  e.to_status,
  cast(0 as bigint) as expected_version,
  case when e.to_status = 'succeeded' then 'taken_over' end as result_code,
  case
    when e.entity = 'run' then 'workflow.admitted'
    when e.to_status = 'succeeded' then 'step.taken_over'
    else 'step.created'
  end as event_type,
  cast(null as bigint) as due_at_ms,
  e.input_id
from (
  select
    r.run_id,
    1 as part,
    'run' as entity,
    r.run_id as entity_id,
    'running' as to_status,
    cast(null as text) as input_id
  from run as r
  where r.version = 0
  union all
  select
    r.run_id,
    2 as part,
    'step' as entity,
    w.step_key as entity_id,
    case when w.need_count = 0 then 'ready' else 'pending' end as to_status,
    w.task_id as input_id
  from run as r
  join workflow_step as w on w.workflow_id = r.target_id
  where r.version = 0 and r.kind = 'workflow' and r.retry_of_run_id is null
  union all
  select
    r.run_id,
    2 as part,
    'step' as entity,
    'main' as entity_id,
    'ready' as to_status,
    r.target_id as input_id
  from run as r
  where r.version = 0 and r.kind = 'task' and r.retry_of_run_id is null
  union all
  select
    k.run_id,
    2 as part,
    'step' as entity,
    k.step_key as entity_id,
    case
      when k.cause is null then 'succeeded'
      when k.need_count = 0 then 'ready'
      else 'pending'
    end as to_status,
    k.task_id as input_id
  from takeover as k
  where k.retried_run_id <> k.run_id
    and (select r.version from run as r where r.run_id = k.run_id) = 0
) as e;

CREATE VIEW agenda_ahead as
select
  a.run_id,
  a.stage,
  a.due_at_ms,
  case
    when a.faults > 0 then a.due_at_ms - 300000
    when a.stage = 'retry' then (
      select max(w.due_at_ms - w.longest_ms)
      from retry_longest as w
      where w.run_id = a.run_id
    )
    else a.due_at_ms
  end as since_ms,
  case when a.faults > 0 then 300000 else 0 end as wait_ms
from (
  select
    g.run_id,
    g.stage,
    g.due_at_ms,
    (
      select count(*) from run_fault as f where f.run_id = g.run_id and f.stage = g.stage
    ) as faults
  from agenda as g
) as a
where a.faults > 0 or a.stage in ('frontier', 'task_admission', 'cancellation', 'retry');

CREATE VIEW agenda_missing as
select
  m.run_id,
  m.stage,
  m.due_at_ms
from (
  select distinct
    f.run_id,
    'frontier' as stage,
    cast(0 as bigint) as due_at_ms
  from frontier_effect as f
  union all
  select distinct
    t.run_id,
    'task_admission' as stage,
    cast(0 as bigint) as due_at_ms
  from task_admission_effect as t
  union all
  select distinct
    c.run_id,
    'cancellation' as stage,
    cast(0 as bigint) as due_at_ms
  from cancellation_effect as c
  union all
  select
    r.run_id,
    'deadline' as stage,
    r.deadline_at_ms as due_at_ms
  from run as r
  where r.status = 'running' and r.cancel_requested_at_ms is null and r.deadline_at_ms is not null
  union all
  select
    s.run_id,
    'retry' as stage,
    min(s.due_at_ms) as due_at_ms
  from step_run as s
  where s.status = 'retry_wait'
    and (
      select case when r.cancel_requested_at_ms is null then r.status end
      from run as r
      where r.run_id = s.run_id
    ) = 'running'
  group by s.run_id
  union all
  select
    d.run_id,
    'expiry' as stage,
    min(d.due_at_ms) as due_at_ms
  from recovery_due as d
  group by d.run_id
) as m
where not exists (
  select 1
  from agenda as a
  where a.run_id = m.run_id
    and a.stage = m.stage
    and (a.due_at_ms <= m.due_at_ms or m.due_at_ms = 0 or exists (
      select 1 from run_fault as f where f.run_id = m.run_id and f.stage = m.stage
    ))
);

CREATE VIEW agenda_state as
select
  a.run_id,
  a.stage,
  a.due_at_ms
from agenda as a;

CREATE VIEW attempt_state as
select
  a.run_id,
  a.attempt_id,
  a.number,
  a.step_key,
  a.epoch,
  a.queue,
  a.status,
  a.admitted_at_ms,
  a.starting_at_ms,
  a.started_at_ms,
  a.finished_at_ms,
  a.deadline_at_ms,
  a.exit_code,
  a.result_code,
  (select l.status from attempt_lease as l where l.attempt_id = a.attempt_id) as lease_status,
  (select l.worker_id from attempt_lease as l where l.attempt_id = a.attempt_id) as worker_id,
  (select l.offer_id from attempt_lease as l where l.attempt_id = a.attempt_id) as offer_id,
  (select l.fence from attempt_lease as l where l.attempt_id = a.attempt_id) as fence,
  (select l.expires_at_ms from attempt_lease as l where l.attempt_id = a.attempt_id)
    as lease_expires_at_ms,
  (
    select p.error
    from attempt_report as p
    where p.run_id = a.run_id and p.attempt_id = a.attempt_id and p.kind = 'ended'
    order by p.fence desc
    limit 1
  ) as error
from task_attempt as a;

CREATE VIEW attestation_state as
select
  n.run_id,
  n.attempt_id,
  n.evidence,
  n.follow,
  n.reason,
  n.actor,
  n.attested_at_ms
from attestation as n;

CREATE VIEW cancellation_blocked as
select
  v.run_id,
  v.step_key,
  v.attempt_id,
  case when v.status = 'claimed' then 'lease' else 'report' end as waits_for
from live_attempt as v
where v.cancel_reason is not null and (v.status <> 'claimed' or v.lease_status = 'leased')
union all
select
  s.run_id,
  s.step_key,
  cast(null as text) as attempt_id,
  'evidence' as waits_for
from step_run as s
where s.status = 'running'
  and (select r.cancel_reason from run as r where r.run_id = s.run_id) is not null
  and not exists (
    select 1
    from task_attempt as a
    where a.run_id = s.run_id
      and a.step_key = s.step_key
      and a.status in ('claimed', 'starting', 'running')
  );

CREATE VIEW cancellation_effect as
select
  e.run_id,
  row_number() over (partition by e.run_id order by e.part, e.entity_id) as ordinal,
  e.entity,
  e.entity_id,
  e.from_status,
  e.to_status,
  e.expected_version,
  case e.entity when 'attempt' then 'execution_' else 'workflow_' end || e.to_status as result_code,
  case e.entity
    when 'attempt' then 'workflow.task_attempt.'
    when 'step' then 'step.'
    else 'workflow.'
  end || e.to_status as event_type,
  cast(null as bigint) as due_at_ms,
  cast(null as text) as input_id
from (
  select
    v.run_id,
    1 as part,
    'attempt' as entity,
    v.attempt_id as entity_id,
    v.status as from_status,
    case when v.cancel_reason = 'timeout' then 'timed_out' else 'cancelled' end as to_status,
    v.version as expected_version
  from live_attempt as v
  where v.status = 'claimed' and v.lease_status is distinct from 'leased'
    and v.cancel_reason is not null
  union all
  select
    s.run_id,
    2 as part,
    'step' as entity,
    s.step_key as entity_id,
    s.status as from_status,
    case
      when s.status in ('pending', 'lost') then 'cancelled'
      when (select r.cancel_reason from run as r where r.run_id = s.run_id) = 'timeout'
        then 'timed_out'
      else 'cancelled'
    end as to_status,
    s.version as expected_version
  from step_run as s
  where s.status in ('pending', 'lost', 'ready', 'waiting_approval', 'retry_wait')
    and (select r.cancel_reason from run as r where r.run_id = s.run_id) is not null
    and not exists (
      select 1
      from task_attempt as a
      where a.run_id = s.run_id
        and a.step_key = s.step_key
        and (
          a.status in ('starting', 'running')
          or (
            a.status = 'claimed'
            and (select l.status from attempt_lease as l where l.attempt_id = a.attempt_id)
              is not distinct from 'leased'
          )
        )
    )
  union all
  select
    r.run_id,
    3 as part,
    'run' as entity,
    r.run_id as entity_id,
    'running' as from_status,
    case when r.cancel_reason = 'timeout' then 'timed_out' else 'cancelled' end as to_status,
    r.version as expected_version
  from run as r
  where r.cancel_reason is not null
    and (select count(*) from cancellation_blocked as b where b.run_id = r.run_id) = 0
) as e
where (
    select case when r.cancel_requested_at_ms is not null then r.status end
    from run as r
    where r.run_id = e.run_id
  ) = 'running';

CREATE VIEW completion_effect as
select
  e.run_id,
  row_number() over (partition by e.run_id order by e.attempt_id, e.part) as ordinal,
  case e.part when 2 then 'attempt' else 'step' end as entity,
  case e.part when 2 then e.attempt_id else e.step_key end as entity_id,
  e.from_status,
  e.to_status,
  case
    when e.part = 2 then e.version
    when e.part = 3 and e.from_status = 'running' and e.step_status = 'ready'
      then e.step_version + 1
    else e.step_version
  end as expected_version,
  case
    when e.part = 1 or e.to_status = 'ready' then null
    when e.part = 3 and e.from_status = 'ready' then 'claim_budget_exhausted'
    else e.code
  end as result_code,
  case e.part when 2 then 'workflow.task_attempt.' else 'step.' end || e.to_status as event_type,
  case when e.to_status = 'retry_wait' then e.retry_at_ms end as due_at_ms,
  e.attempt_id as input_id
from (
  select
    c.run_id,
    c.attempt_id,
    c.step_key,
    c.version,
    c.step_status,
    c.step_version,
    c.code,
    c.retry_at_ms,
    b.part,
    case
      when b.part = 2 then c.status
      when b.part = 1 or c.attempt_end = 'lost' then 'ready'
      else 'running'
    end as from_status,
    case
      when b.part = 1 then 'running'
      when b.part = 2 then c.attempt_end
      when c.attempt_end <> 'lost' and c.retry_at_ms is not null then 'retry_wait'
      when c.attempt_end <> 'lost' then c.attempt_end
      when c.claim_return_count < 63 then 'ready'
      else 'failed'
    end as to_status
  from completion_end as c
  cross join (select 1 as part union all select 2 as part union all select 3 as part) as b
  where b.part > 1 or (c.step_status = 'ready' and c.attempt_end <> 'lost')
) as e;

CREATE VIEW completion_end as
select
  x.run_id,
  x.attempt_id,
  x.step_key,
  x.status,
  x.version,
  x.step_status,
  x.step_version,
  x.claim_return_count,
  x.attempt_end,
  case x.attempt_end
    when 'lost' then 'not_started'
    when 'timed_out' then 'execution_timed_out'
    when 'cancelled' then 'execution_cancelled'
    when 'failed' then case x.how
      when 'bad_output' then 'bad_output'
      when 'start_failed' then 'executor_start_failed'
      when 'stop' then 'execution_stopped'
      else 'execution_failed'
    end
  end as code,
  case
    when x.cancel_reason is null
      and x.started_count < x.retry_attempts
      and (
        (x.attempt_end = 'failed' and x.retry_failed = 1)
        or (x.attempt_end = 'timed_out' and x.retry_timed_out = 1)
      )
      then x.reported_at_ms + x.delay_ms
  end as retry_at_ms
from (
  select
    v.run_id,
    v.attempt_id,
    v.step_key,
    v.status,
    v.version,
    v.step_status,
    v.step_version,
    v.started_count,
    v.claim_return_count,
    v.retry_attempts,
    v.retry_failed,
    v.retry_timed_out,
    v.delay_ms,
    v.cancel_reason,
    p.reported_at_ms,
    p.how,
    (
      select
        case
          when p.how = 'not_started' then 'lost'
          when r.cancel_reason = 'timeout' then 'timed_out'
          when r.cancel_reason is not null then 'cancelled'
          when p.how = 'deadline' or v.deadline_at_ms <= p.reported_at_ms then 'timed_out'
          when p.how = 'exit' and p.exit_code = 0 then 'succeeded'
          else 'failed'
        end
      from run as r
      where r.run_id = v.run_id
    ) as attempt_end,
    -- a fence: what is above is decided once, not wherever it is used
    row_number() over (partition by v.run_id order by v.attempt_id) as position
  from live_attempt as v
  join attempt_report as p
    on p.run_id = v.run_id
    and p.attempt_id = v.attempt_id
    and p.kind = 'ended'
  where p.fence = (
      select l.fence from attempt_lease as l
      where l.attempt_id = v.attempt_id and l.status = 'leased'
    )
    and (v.status in ('starting', 'running') or p.how = 'not_started')
    and (v.status <> 'running' or p.how <> 'not_started')
) as x;

CREATE VIEW dispatch_effect as
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
  cast(null as bigint) as due_at_ms,
  e.input_id
from (
  select
    w.run_id,
    row_number() over (partition by w.run_id order by w.attempt_id, b.part) as ordinal,
    b.entity,
    case b.entity when 'step' then w.step_key else w.attempt_id end as entity_id,
    case b.entity when 'lease' then w.lease_status else b.from_status end as from_status,
    w.turn as to_status,
    case
      when b.entity = 'attempt' then w.version
      when b.entity = 'step' then w.step_version
      when w.lease_status is null then 0
      else w.lease_version
    end as expected_version,
    case w.turn when 'released' then 'start_refused' end as result_code,
    b.event_type,
    case w.turn
      when 'leased' then (
        select o.offer_id
        from attempt_offer as o
        where o.run_id = w.run_id and o.attempt_id = w.attempt_id and o.fence = w.fence
      )
      else (
        select p.attempt_id
        from attempt_report as p
        where p.run_id = w.run_id
          and p.attempt_id = w.attempt_id
          and p.fence = w.fence
          and p.kind = case w.turn when 'running' then 'running' else 'starting' end
      )
    end as input_id
  from (
    select
      f.run_id,
      f.attempt_id,
      f.step_key,
      f.version,
      f.step_version,
      f.lease_status,
      f.lease_version,
      f.epoch_stands,
      case
        when f.lease_status is null or f.lease_status = 'released'
          then case when f.status = 'claimed' and f.cancel_reason is null then 'leased' end
        when f.lease_status <> 'leased' then null
        when f.status = 'starting' then 'running'
        when f.status <> 'claimed' then null
        when f.cancel_reason is null then 'starting'
        else 'released'
      end as turn,
      case f.lease_status when 'leased' then f.fence else coalesce(f.fence, 0) + 1 end as fence
    from (
      select
        v.run_id,
        v.attempt_id,
        v.step_key,
        v.status,
        v.version,
        v.step_version,
        v.lease_status,
        v.lease_version,
        v.fence,
        v.cancel_reason,
        case when v.step_status = 'ready' and v.step_version = v.epoch then 1 else 0 end
          as epoch_stands,
        -- a fence: what is above is looked up once, not wherever it is used
        row_number() over (partition by v.run_id order by v.attempt_id) as position
      from live_attempt as v
      -- most of a wide run waits for an offer: that is seen before it is decided about
      where v.lease_status = 'leased' or exists (
        select 1
        from attempt_offer as o
        where o.run_id = v.run_id
          and o.attempt_id = v.attempt_id
          and o.fence = coalesce(v.fence, 0) + 1
      )
    ) as f
  ) as w
  join (
    select
      'leased' as turn,
      1 as part,
      'lease' as entity,
      cast(null as text) as from_status,
      'workflow.task_dispatch_leased' as event_type
    union all
    select
      'released' as turn,
      1 as part,
      'lease' as entity,
      null as from_status,
      'workflow.task_dispatch_released' as event_type
    union all
    select
      'starting' as turn,
      1 as part,
      'attempt' as entity,
      'claimed' as from_status,
      'workflow.task_attempt.starting' as event_type
    union all
    select
      'running' as turn,
      1 as part,
      'attempt' as entity,
      'starting' as from_status,
      'workflow.task_attempt.running' as event_type
    union all
    select
      'running' as turn,
      2 as part,
      'step' as entity,
      'ready' as from_status,
      'step.running' as event_type
  ) as b on b.turn = w.turn
  where (w.epoch_stands = 1 or w.turn = 'released')
    and not (
      w.turn = 'running'
      and exists (
        select 1
        from attempt_report as q
        where q.run_id = w.run_id
          and q.attempt_id = w.attempt_id
          and q.fence = w.fence
          and q.kind = 'ended'
      )
    )
) as e
where e.input_id is not null;

CREATE VIEW event_log as
select
  e.run_id,
  e.sequence,
  e.type,
  e.entity,
  e.entity_id,
  e.from_status,
  e.to_status,
  e.entity_version,
  e.result_code,
  e.created_at_ms
from run_event as e;

CREATE VIEW explain as
select
  e.run_id,
  e.step_key,
  e.attempt_id,
  e.status,
  e.waits_for,
  e.waits_on,
  e.since_ms,
  e.due_at_ms,
  e.after_due,
  e.resolved_by
from (
  -- pending, without an intent
  select
    s.run_id,
    s.step_key,
    cast(null as text) as attempt_id,
    s.status,
    'need' as waits_for,
    f.waits_on,
    (select r.admitted_at_ms from run as r where r.run_id = s.run_id) as since_ms,
    cast(null as bigint) as due_at_ms,
    cast(null as text) as after_due,
    'the end of that step' as resolved_by,
    0 as under_intent
  from step_run as s
  join frontier_blocked as f on f.run_id = s.run_id and f.step_key = s.step_key
  union all
  select
    s.run_id,
    s.step_key,
    cast(null as text) as attempt_id,
    s.status,
    'need' as waits_for,
    'frontier' as waits_on,
    (select r.admitted_at_ms from run as r where r.run_id = s.run_id) as since_ms,
    cast(null as bigint) as due_at_ms,
    cast(null as text) as after_due,
    'the frontier stage, next cycle' as resolved_by,
    0 as under_intent
  from frontier_ready as s0
  join step_run as s on s.run_id = s0.run_id and s.step_key = s0.step_key
  union all
  -- ready, not yet admitted
  select
    t.run_id,
    t.entity_id as step_key,
    cast(null as text) as attempt_id,
    'ready' as status,
    'admission' as waits_for,
    'task_admission' as waits_on,
    (
      select s.ready_at_ms
      from step_run as s
      where s.run_id = t.run_id and s.step_key = t.entity_id
    ) as since_ms,
    cast(null as bigint) as due_at_ms,
    cast(null as text) as after_due,
    'the task admission stage, next cycle' as resolved_by,
    0 as under_intent
  from (
    select
      s.run_id,
      s.step_key as entity_id
    from step_run as s
    where s.status = 'ready'
      and not exists (
        select 1
        from task_attempt as a
        where a.run_id = s.run_id and a.step_key = s.step_key and a.epoch = s.version
      )
  ) as t
  union all
  -- admitted, held by nobody
  select
    a.run_id,
    a.step_key,
    a.attempt_id,
    a.status,
    case
      when exists (select 1 from worker_session as w where w.status = 'online') then 'queue'
      else 'worker'
    end as waits_for,
    a.queue as waits_on,
    a.admitted_at_ms as since_ms,
    cast(null as bigint) as due_at_ms,
    cast(null as text) as after_due,
    'a worker of this queue with a free slot' as resolved_by,
    0 as under_intent
  from task_attempt as a
  where a.status = 'claimed'
    and (select l.status from attempt_lease as l where l.attempt_id = a.attempt_id)
      is distinct from 'leased'
  union all
  -- leased, not started; or past the barrier
  select
    v.run_id,
    v.step_key,
    v.attempt_id,
    v.status,
    case when v.status = 'claimed' then 'lease' else 'report' end as waits_for,
    l.worker_id as waits_on,
    l.leased_at_ms as since_ms,
    l.expires_at_ms as due_at_ms,
    case
      when v.status = 'claimed' then null
      when v.on_lost = 'hold' then 'hold'
      when l.self_fencing = 0 then 'evidence'
    end as after_due,
    case
      when v.status = 'claimed' then 'the worker starts it, or recovery returns it after due_at_ms'
      when v.on_lost = 'hold' or l.self_fencing = 0
        then 'the worker reports; after due_at_ms: its worker comes back, or declare-stopped'
      when v.cancel_reason is not null
        then 'the worker stops it and reports, or recovery after due_at_ms'
      else 'the worker reports, or recovery after due_at_ms'
    end as resolved_by,
    1 as under_intent
  from live_attempt as v
  join attempt_lease as l on l.attempt_id = v.attempt_id
  where l.status = 'leased'
  union all
  select
    s.run_id,
    s.step_key,
    cast(null as text) as attempt_id,
    s.status,
    'retry' as waits_for,
    s.result_code as waits_on,
    s.started_at_ms as since_ms,
    s.due_at_ms,
    cast(null as text) as after_due,
    'the retry stage at due_at_ms' as resolved_by,
    0 as under_intent
  from step_run as s
  where s.status = 'retry_wait'
  union all
  -- under an intent, held by nobody
  select
    c.run_id,
    case c.entity when 'step' then c.entity_id end as step_key,
    case c.entity when 'attempt' then c.entity_id end as attempt_id,
    c.from_status as status,
    'intent' as waits_for,
    (select r.cancel_reason from run as r where r.run_id = c.run_id) as waits_on,
    (select r.cancel_requested_at_ms from run as r where r.run_id = c.run_id) as since_ms,
    cast(null as bigint) as due_at_ms,
    cast(null as text) as after_due,
    'convergence, next cycle' as resolved_by,
    1 as under_intent
  from cancellation_effect as c
  union all
  select
    f.run_id,
    cast(null as text) as step_key,
    cast(null as text) as attempt_id,
    'running' as status,
    'fault' as waits_for,
    f.stage as waits_on,
    f.first_at_ms as since_ms,
    f.next_try_at_ms as due_at_ms,
    cast(null as text) as after_due,
    f.error as resolved_by,
    1 as under_intent
  from run_fault as f
) as e
where (select r.status from run as r where r.run_id = e.run_id) = 'running'
  and (
    e.under_intent = 1
    or (select r.cancel_requested_at_ms from run as r where r.run_id = e.run_id) is null
  );

CREATE VIEW fault_state as
select
  f.run_id,
  f.stage,
  f.error,
  f.fault_count,
  f.first_at_ms,
  f.last_at_ms,
  f.next_try_at_ms
from run_fault as f;

CREATE VIEW frontier_blocked as
select
  s.run_id,
  s.step_key,
  w.ancestor_key as waits_on,
  (select n.status from step_run as n where n.run_id = s.run_id and n.step_key = w.ancestor_key)
    as need_status
from step_run as s
join workflow_ancestor as w
  on w.workflow_id = (select r.target_id from run as r where r.run_id = s.run_id)
  and w.step_key = s.step_key
  and w.distance = 1
where s.status = 'pending'
  and (select n.status from step_run as n where n.run_id = s.run_id and n.step_key = w.ancestor_key)
    is distinct from 'succeeded';

CREATE VIEW frontier_effect as
select
  e.run_id,
  row_number() over (partition by e.run_id order by e.part, e.entity_id) as ordinal,
  e.entity,
  e.entity_id,
  e.from_status,
  e.to_status,
  e.expected_version,
  e.result_code,
  e.event_type,
  cast(null as bigint) as due_at_ms,
  cast(null as text) as input_id
from (
  select
    f.run_id,
    1 as part,
    'step' as entity,
    f.step_key as entity_id,
    'pending' as from_status,
    'ready' as to_status,
    f.version as expected_version,
    cast(null as text) as result_code,
    'step.ready' as event_type
  from frontier_ready as f
  union all
  select
    f.run_id,
    1 as part,
    'step' as entity,
    f.step_key as entity_id,
    'pending' as from_status,
    'skipped' as to_status,
    f.version as expected_version,
    'dependency_not_succeeded' as result_code,
    'step.skipped' as event_type
  from frontier_skip as f
  union all
  select
    d.run_id,
    2 as part,
    'run' as entity,
    d.run_id as entity_id,
    'running' as from_status,
    d.to_status,
    d.version as expected_version,
    case when d.to_status <> 'succeeded' then 'workflow_step_' || d.to_status end as result_code,
    'workflow.' || d.to_status as event_type
  from (
    select
      r.run_id,
      r.version,
      (
        select
          case min(
              case t.status
                when 'failed' then 1
                when 'timed_out' then 2
                when 'cancelled' then 3
                else 4
              end
            )
            when 1 then 'failed'
            when 2 then 'timed_out'
            when 3 then 'cancelled'
            else 'succeeded'
          end
        from step_run as t
        where t.run_id = r.run_id
      ) as to_status
    from run as r
    where not exists (
        select 1
        from step_run as a
        where a.run_id = r.run_id
          and a.status in ('ready', 'waiting_approval', 'running', 'retry_wait', 'lost')
      )
      -- a pending step that does not open here has an ancestor that ended otherwise: it is skipped
      and not exists (select 1 from frontier_ready as f where f.run_id = r.run_id)
  ) as d
) as e
where (
    select case when r.cancel_requested_at_ms is null then r.status end
    from run as r
    where r.run_id = e.run_id
  ) = 'running';

CREATE VIEW frontier_ready as
select
  s.run_id,
  s.step_key,
  s.version
from step_run as s
where s.status = 'pending'
  and not exists (
    select 1
    from workflow_ancestor as w
    where w.workflow_id = (select r.target_id from run as r where r.run_id = s.run_id)
      and w.step_key = s.step_key
      and w.distance = 1
      and not exists (
        select 1
        from step_run as n
        where n.run_id = s.run_id and n.step_key = w.ancestor_key and n.status = 'succeeded'
      )
  );

CREATE VIEW frontier_skip as
select distinct
  b.run_id,
  s.step_key,
  s.version
from (
  select distinct
    n.run_id,
    n.step_key
  from step_run as n
  where n.status in ('failed', 'skipped', 'cancelled', 'timed_out')
) as b
join workflow_ancestor as w
  on w.workflow_id = (select r.target_id from run as r where r.run_id = b.run_id)
  and w.ancestor_key = b.step_key
join step_run as s on s.run_id = b.run_id and s.step_key = w.step_key
where s.status = 'pending';

CREATE VIEW input_state as
select
  i.run_id,
  i.input
from run_input as i;

CREATE VIEW intent_effect as
select
  r.run_id,
  cast(1 as bigint) as ordinal,
  'run' as entity,
  r.run_id as entity_id,
  'running' as from_status,
  'running' as to_status,
  r.version as expected_version,
  cast(null as text) as result_code,
  'run.cancel_requested' as event_type,
  cast(null as bigint) as due_at_ms,
  r.run_id as input_id
from run as r
where r.status = 'running'
  and r.cancel_requested_at_ms is null
  and exists (select 1 from cancel_intent as i where i.run_id = r.run_id);

CREATE VIEW intent_state as
select
  i.run_id,
  i.reason,
  i.actor,
  i.requested_at_ms
from cancel_intent as i;

CREATE VIEW live_attempt as
select
  a.run_id,
  a.attempt_id,
  a.step_key,
  a.status,
  a.version,
  a.epoch,
  a.deadline_at_ms,
  a.jitter,
  l.status as lease_status,
  l.version as lease_version,
  l.fence,
  (select r.cancel_reason from run as r where r.run_id = a.run_id) as cancel_reason,
  s.status as step_status,
  s.version as step_version,
  s.attempt_count + case when s.status = 'ready' then 1 else 0 end as started_count,
  s.claim_return_count,
  t.retry_attempts,
  t.retry_failed,
  t.retry_timed_out,
  t.on_lost,
  (
    select d.delay_ms + d.delay_ms * a.jitter / 8192
    from (
      select
        case
          when t.max_backoff_ms >> cast(
              s.attempt_count + case when s.status = 'ready' then 0 else -1 end as int
            ) < t.backoff_ms
            then t.max_backoff_ms
          else t.backoff_ms << cast(
            s.attempt_count + case when s.status = 'ready' then 0 else -1 end as int
          )
        end as delay_ms
    ) as d
  ) as delay_ms
from task_attempt as a
join step_run as s on s.run_id = a.run_id and s.step_key = a.step_key
left join attempt_lease as l on l.attempt_id = a.attempt_id
left join task_revision as t on t.task_id = a.task_id
where a.status in ('claimed', 'starting', 'running');

CREATE VIEW open_run as
select
  r.run_id,
  r.package_key,
  r.generation,
  r.kind,
  r.target_key,
  r.target_id,
  r.run_key,
  r.input_digest,
  r.retry_of_run_id,
  r.trigger_key,
  r.scheduled_at_ms,
  r.step_count,
  r.status,
  r.version,
  r.attempt_count,
  r.admitted_at_ms,
  r.deadline_at_ms,
  r.cancel_requested_at_ms,
  r.cancel_reason,
  r.result_code,
  r.finished_at_ms,
  r.updated_at_ms
from run as r
where r.finished_at_ms is null;

CREATE VIEW package_state as
select
  g.package_key,
  g.generation,
  g.state,
  g.digest,
  g.published_at_ms,
  g.ended_at_ms,
  (select p.base_dir from package as p where p.package_key = g.package_key) as base_dir
from package_generation as g;

CREATE VIEW queue_state as
select
  a.queue,
  count(*) as waiting_count,
  min(a.offer_at_ms) as oldest_at_ms
from task_attempt as a
where a.offer_at_ms is not null
group by a.queue;

CREATE VIEW recovery_blocked as
select
  v.run_id,
  v.attempt_id,
  v.step_key,
  case when v.on_lost = 'hold' then 'hold' else 'evidence' end as waits_for,
  l.worker_id as waits_on,
  l.expires_at_ms as due_at_ms
from live_attempt as v
join attempt_lease as l on l.attempt_id = v.attempt_id
where l.status = 'leased'
  and v.status in ('starting', 'running')
  and (l.self_fencing = 0 or v.on_lost = 'hold');

CREATE VIEW recovery_due as
select
  v.run_id,
  v.attempt_id,
  case when v.status = 'claimed' then 'expired' else 'fenced' end as evidence,
  l.expires_at_ms + case when v.status = 'claimed' then 0 else l.grace_ms end as due_at_ms
from live_attempt as v
join attempt_lease as l on l.attempt_id = v.attempt_id
where l.status = 'leased'
  and (v.status = 'claimed' or (l.self_fencing = 1 and v.on_lost <> 'hold'));

CREATE VIEW recovery_effect as
select
  e.run_id,
  row_number() over (partition by e.run_id order by e.attempt_id, e.part) as ordinal,
  e.entity,
  e.entity_id,
  e.from_status,
  e.to_status,
  e.expected_version,
  e.result_code,
  e.event_type,
  e.due_at_ms,
  e.attempt_id as input_id
from (
  select
    c.run_id,
    c.attempt_id,
    1 as part,
    'attempt' as entity,
    c.attempt_id as entity_id,
    c.status as from_status,
    c.attempt_end as to_status,
    c.version as expected_version,
    c.code as result_code,
    'workflow.task_attempt.' || c.attempt_end as event_type,
    cast(null as bigint) as due_at_ms
  from recovery_end as c
  union all
  select
    c.run_id,
    c.attempt_id,
    2 as part,
    'step' as entity,
    c.step_key as entity_id,
    'ready' as from_status,
    case when c.claim_return_count < 63 then 'ready' else 'failed' end as to_status,
    c.step_version as expected_version,
    case when c.claim_return_count < 63 then null else 'claim_budget_exhausted' end as result_code,
    case when c.claim_return_count < 63 then 'step.ready' else 'step.failed' end as event_type,
    cast(null as bigint) as due_at_ms
  from recovery_end as c
  where c.status = 'claimed'
  union all
  select
    c.run_id,
    c.attempt_id,
    2 as part,
    'step' as entity,
    c.step_key as entity_id,
    c.step_status as from_status,
    'retry_wait' as to_status,
    c.step_version as expected_version,
    c.code as result_code,
    'step.retry_wait' as event_type,
    c.retry_at_ms as due_at_ms
  from recovery_end as c
  where c.status <> 'claimed' and c.retry_at_ms is not null
  union all
  select
    c.run_id,
    c.attempt_id,
    2 as part,
    'step' as entity,
    c.step_key as entity_id,
    c.step_status as from_status,
    'timed_out' as to_status,
    c.step_version as expected_version,
    c.code as result_code,
    'step.timed_out' as event_type,
    cast(null as bigint) as due_at_ms
  from recovery_end as c
  where c.status <> 'claimed' and c.retry_at_ms is null and c.attempt_end = 'timed_out'
  union all
  select
    c.run_id,
    c.attempt_id,
    2 as part,
    'step' as entity,
    c.step_key as entity_id,
    'running' as from_status,
    'lost' as to_status,
    c.step_version as expected_version,
    c.code as result_code,
    'step.lost' as event_type,
    cast(null as bigint) as due_at_ms
  from recovery_end as c
  where c.status <> 'claimed'
    and c.retry_at_ms is null
    and c.attempt_end = 'lost'
    and c.step_status = 'running'
  union all
  select
    c.run_id,
    c.attempt_id,
    3 as part,
    'step' as entity,
    c.step_key as entity_id,
    case when c.step_status = 'running' then 'lost' else 'ready' end as from_status,
    'failed' as to_status,
    c.step_version + case when c.step_status = 'running' then 1 else 0 end as expected_version,
    c.code as result_code,
    'step.failed' as event_type,
    cast(null as bigint) as due_at_ms
  from recovery_end as c
  where c.status <> 'claimed'
    and c.retry_at_ms is null
    and c.attempt_end = 'lost'
    and c.cancel_reason is null
) as e;

CREATE VIEW recovery_end as
select
  x.run_id,
  x.attempt_id,
  x.step_key,
  x.status,
  x.version,
  x.step_status,
  x.step_version,
  x.claim_return_count,
  x.cancel_reason,
  x.attempt_end,
  x.code,
  case
    when x.cancel_reason is not null or x.started_count >= 64 then null
    when x.follow = 'retry' then x.attested_at_ms + x.delay_ms
    when x.follow = 'fail' or x.started_count >= x.retry_attempts then null
    when x.attempt_end = 'timed_out' and x.retry_timed_out = 1
      then x.attested_at_ms + x.delay_ms + 5 * x.jitter
    when x.attempt_end = 'lost' and x.on_lost = 'retry'
      then x.attested_at_ms + x.delay_ms + 5 * x.jitter
  end as retry_at_ms
from (
  select
    v.run_id,
    v.attempt_id,
    v.step_key,
    v.status,
    v.version,
    v.step_status,
    v.step_version,
    v.started_count,
    v.claim_return_count,
    v.cancel_reason,
    v.retry_attempts,
    v.retry_timed_out,
    v.on_lost,
    v.delay_ms,
    v.jitter,
    n.follow,
    n.attested_at_ms,
    case
      when v.status <> 'claimed'
        and v.cancel_reason is null
        and v.deadline_at_ms <= n.attested_at_ms
        then 'timed_out'
      else 'lost'
    end as attempt_end,
    case
      when v.status = 'claimed' then 'claim_expired'
      when v.cancel_reason is null and v.deadline_at_ms <= n.attested_at_ms
        then 'execution_timed_out'
      else 'execution_lost'
    end as code
  from live_attempt as v
  join attestation as n on n.run_id = v.run_id and n.attempt_id = v.attempt_id
  where (n.evidence <> 'expired' or v.status = 'claimed')
    and (n.evidence <> 'fenced' or v.on_lost <> 'hold')
) as x;

CREATE VIEW refused_state as
select
  f.run_id,
  f.attempt_id,
  f.ordinal,
  f.code,
  f.kind,
  f.how,
  f.exit_code,
  f.fence,
  f.refused_at_ms
from refused_report as f;

CREATE VIEW retention_due as
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

CREATE VIEW retry_effect as
select
  s.run_id,
  row_number() over (partition by s.run_id order by s.step_key) as ordinal,
  'step' as entity,
  s.step_key as entity_id,
  'retry_wait' as from_status,
  'ready' as to_status,
  s.version as expected_version,
  cast(null as text) as result_code,
  'step.ready' as event_type,
  s.due_at_ms,
  cast(null as text) as input_id
from step_run as s
where s.status = 'retry_wait'
  and (
    select case when r.cancel_requested_at_ms is null then r.status end
    from run as r
    where r.run_id = s.run_id
  ) = 'running';

CREATE VIEW retry_longest as
select
  s.run_id,
  s.step_key,
  s.due_at_ms,
  t.max_backoff_ms + t.max_backoff_ms / 8 + 5 * 1023 as longest_ms
from step_run as s
join task_revision as t on t.task_id = s.task_id
where s.status = 'retry_wait';

CREATE VIEW run_admission as
select
  r.run_id,
  r.package_key,
  r.generation,
  r.kind,
  r.target_key,
  r.target_id,
  r.run_key,
  r.input_digest,
  r.step_count,
  r.deadline_at_ms,
  r.retry_of_run_id,
  r.trigger_key,
  r.scheduled_at_ms,
  r.admitted_at_ms
from run as r;

CREATE VIEW run_state as
select
  r.run_id,
  r.package_key,
  r.generation,
  r.kind,
  r.target_key,
  r.target_id,
  r.run_key,
  r.input_digest,
  r.retry_of_run_id,
  r.trigger_key,
  r.scheduled_at_ms,
  r.step_count,
  r.status,
  r.version,
  r.attempt_count,
  r.admitted_at_ms,
  r.deadline_at_ms,
  r.cancel_requested_at_ms,
  r.cancel_reason,
  r.result_code,
  r.finished_at_ms,
  r.updated_at_ms
from run as r;

CREATE VIEW schedule_blocked as
select
  t.package_key,
  t.trigger_key,
  'resume' as waits_for,
  t.state as waits_on,
  t.updated_at_ms as since_ms,
  cast(null as bigint) as due_at_ms,
  'an operator resumes it' as resolved_by
from trigger as t
where t.state = 'paused'
union all
select
  f.package_key,
  f.trigger_key,
  'fault' as waits_for,
  f.error as waits_on,
  f.first_at_ms as since_ms,
  f.next_try_at_ms as due_at_ms,
  'the next try at due_at_ms, a new generation, or an operator resumes it' as resolved_by
from trigger_fault as f
union all
select
  m.package_key,
  m.trigger_key,
  'overlap' as waits_for,
  m.run_id as waits_on,
  m.open_at_ms as since_ms,
  cast(null as bigint) as due_at_ms,
  'the end of that run' as resolved_by
from trigger_run as m
where m.open_at_ms is not null
  and (select r.status from run as r where r.run_id = m.run_id) = 'running'
  and (
    select t.overlap
    from trigger as t
    where t.package_key = m.package_key and t.trigger_key = m.trigger_key and t.state = 'active'
  ) = 'skip';

CREATE VIEW schedule_decision as
with arrival (word) as (
  values ('early'), ('on_time'), ('late')
)
select
  t.package_key,
  t.trigger_key,
  a.word as arrival,
  case
    when a.word = 'early' then 'initialize'
    when a.word = 'late' and t.misfire = 'skip' then 'skip'
    when t.overlap = 'skip'
      and exists (
        select 1
        from trigger_run as m
        where m.package_key = t.package_key
          and m.trigger_key = t.trigger_key
          and m.open_at_ms is not null
          and (select r.status from run as r where r.run_id = m.run_id) = 'running'
      )
      then 'skip'
    else 'admit'
  end as disposition,
  case
    when a.word = 'early' then null
    when a.word = 'late' and t.misfire = 'skip' then 'misfire'
    when t.overlap = 'skip'
      and exists (
        select 1
        from trigger_run as m
        where m.package_key = t.package_key
          and m.trigger_key = t.trigger_key
          and m.open_at_ms is not null
          and (select r.status from run as r where r.run_id = m.run_id) = 'running'
      )
      then 'overlap'
  end as cause
from trigger as t
cross join arrival as a
where t.state = 'active'
  and exists (
    select 1
    from package_generation as g
    where g.package_key = t.package_key
      and g.generation = t.generation
      and g.state = 'active'
  );

CREATE VIEW schedule_due as
select
  t.package_key,
  t.trigger_key,
  case
    when t.state <> 'active' then null
    when s.claim_token is not null then s.claim_expires_at_ms
    else coalesce(
      (
        select f.next_try_at_ms
        from trigger_fault as f
        where f.package_key = t.package_key and f.trigger_key = t.trigger_key
      ),
      s.next_fire_at_ms,
      0
    )
  end as due_at_ms
from trigger as t
join trigger_schedule as s on s.package_key = t.package_key and s.trigger_key = t.trigger_key;

CREATE VIEW state_transition as
with legal (entity, from_status, to_status) as (
  values
    ('run', 'running', 'running'),  -- the intent
    ('run', 'running', 'succeeded'),
    ('run', 'running', 'failed'),
    ('run', 'running', 'cancelled'),
    ('run', 'running', 'timed_out'),
    ('step', 'pending', 'ready'),
    ('step', 'pending', 'skipped'),
    ('step', 'pending', 'cancelled'),
    ('step', 'ready', 'ready'),  -- a new epoch after a claim came back
    ('step', 'ready', 'waiting_approval'),
    ('step', 'ready', 'running'),
    ('step', 'ready', 'retry_wait'),
    ('step', 'ready', 'failed'),
    ('step', 'ready', 'skipped'),
    ('step', 'ready', 'cancelled'),
    ('step', 'ready', 'timed_out'),
    ('step', 'waiting_approval', 'ready'),
    ('step', 'waiting_approval', 'running'),
    ('step', 'waiting_approval', 'cancelled'),
    ('step', 'waiting_approval', 'timed_out'),
    ('step', 'running', 'retry_wait'),
    ('step', 'running', 'lost'),
    ('step', 'running', 'succeeded'),
    ('step', 'running', 'failed'),
    ('step', 'running', 'cancelled'),
    ('step', 'running', 'timed_out'),
    ('step', 'retry_wait', 'ready'),
    ('step', 'retry_wait', 'cancelled'),
    ('step', 'retry_wait', 'timed_out'),
    ('step', 'lost', 'ready'),
    ('step', 'lost', 'failed'),
    ('step', 'lost', 'cancelled'),
    ('attempt', 'claimed', 'starting'),
    ('attempt', 'claimed', 'cancelled'),
    ('attempt', 'claimed', 'timed_out'),
    ('attempt', 'claimed', 'lost'),
    ('attempt', 'starting', 'running'),
    ('attempt', 'starting', 'succeeded'),
    ('attempt', 'starting', 'failed'),
    ('attempt', 'starting', 'cancelled'),
    ('attempt', 'starting', 'timed_out'),
    ('attempt', 'starting', 'lost'),
    ('attempt', 'running', 'succeeded'),
    ('attempt', 'running', 'failed'),
    ('attempt', 'running', 'cancelled'),
    ('attempt', 'running', 'timed_out'),
    ('attempt', 'running', 'lost'),
    ('lease', 'released', 'leased'),
    ('lease', 'leased', 'released'),
    ('lease', 'leased', 'completed')
)
select
  l.entity,
  l.from_status,
  l.to_status
from legal as l;

CREATE VIEW step_need as
select
  s.run_id,
  s.step_key,
  w.ancestor_key as need_key
from step_run as s
join workflow_ancestor as w
  on w.workflow_id = (select r.target_id from run as r where r.run_id = s.run_id)
  and w.step_key = s.step_key
  and w.distance = 1;

CREATE VIEW step_run_mutation as
select
  e.run_id,
  e.run_id || '.' || cast(e.sequence as text) as mutation_id,
  e.sequence,
  e.entity_id as step_key,
  e.from_status,
  e.to_status,
  e.entity_version as step_version,
  e.result_code,
  e.created_at_ms
from run_event as e
where e.entity = 'step';

CREATE VIEW step_state as
select
  s.run_id,
  s.step_key,
  s.status,
  s.version,
  s.attempt_count,
  s.claim_return_count,
  s.ready_at_ms,
  s.started_at_ms,
  s.finished_at_ms,
  s.due_at_ms,
  s.result_code,
  t.task_key,
  t.queue,
  t.on_lost,
  (select o.output from step_output as o where o.run_id = s.run_id and o.step_key = s.step_key)
    as output
from step_run as s
join task_revision as t on t.task_id = s.task_id;

CREATE VIEW takeover as
select
  e.run_id,
  e.retried_run_id,
  e.target_id,
  e.step_key,
  e.task_id,
  e.need_count,
  e.status,
  case
    when e.cause is not null then e.cause
    when e.below = 1 then 'need_runs_again'
  end as cause
from (
  select
    u.run_id,
    u.retried_run_id,
    u.target_id,
    u.step_key,
    u.task_id,
    u.need_count,
    u.status,
    u.cause,
    u.part,
    max(u.part) over (partition by u.run_id, u.retried_run_id, u.target_id, u.step_key) as below
  from (
    select
      a.run_id,
      a.retried_run_id,
      a.target_id,
      a.step_key,
      a.task_id,
      a.need_count,
      a.status,
      a.cause,
      0 as part
    from takeover_alone as a
    union all
    select
      a.run_id,
      a.retried_run_id,
      a.target_id,
      w.step_key,
      cast(null as text) as task_id,
      cast(null as bigint) as need_count,
      cast(null as text) as status,
      cast(null as text) as cause,
      1 as part
    from takeover_alone as a
    join workflow_ancestor as w on w.workflow_id = a.target_id and w.ancestor_key = a.step_key
    where a.cause is not null
  ) as u
) as e
where e.part = 0;

CREATE VIEW takeover_alone as
select
  s.run_id,
  s.retried_run_id,
  s.target_id,
  s.step_key,
  s.task_id,
  s.need_count,
  s.status,
  case
    when s.status is null then 'not_there'
    when s.status <> 'succeeded' then 'not_succeeded'
    when s.digest <> (
      select t.digest
      from step_run as o
      join task_revision as t on t.task_id = o.task_id
      where o.run_id = s.retried_run_id and o.step_key = s.step_key
    )
      then 'task_changed'
    when s.need_count <> (
        select count(*)
        from workflow_ancestor as o
        where o.workflow_id = s.old_target_id and o.step_key = s.step_key and o.distance = 1
      )
      or s.need_count <> (
        select count(*)
        from workflow_ancestor as n
        join workflow_ancestor as o
          on o.workflow_id = s.old_target_id
          and o.ancestor_key = n.ancestor_key
          and o.step_key = s.step_key
        where n.workflow_id = s.target_id
          and n.step_key = s.step_key
          and n.distance = 1
          and o.distance = 1
      )
      then 'needs_changed'
  end as cause
from (
  select
    n.run_id,
    n.retried_run_id,
    n.target_id,
    n.step_key,
    n.task_id,
    n.need_count,
    (select t.digest from task_revision as t where t.task_id = n.task_id) as digest,
    (select r.target_id from run as r where r.run_id = n.retried_run_id) as old_target_id,
    (
      select o.status
      from step_run as o
      where o.run_id = n.retried_run_id and o.step_key = n.step_key
    ) as status
  from takeover_node as n
) as s;

CREATE VIEW takeover_node as
select
  r.run_id,
  r.retry_of_run_id as retried_run_id,
  r.target_id,
  w.step_key,
  w.task_id,
  w.need_count
from run as r
join workflow_step as w on w.workflow_id = r.target_id
where r.retry_of_run_id is not null and r.kind = 'workflow'
union all
select
  r.run_id,
  r.retry_of_run_id as retried_run_id,
  r.target_id,
  'main' as step_key,
  r.target_id as task_id,
  cast(0 as bigint) as need_count
from run as r
where r.retry_of_run_id is not null and r.kind = 'task'
union all
select
  r.run_id,
  r.run_id as retried_run_id,
  w.workflow_id as target_id,
  w.step_key,
  w.task_id,
  w.need_count
from run as r
join workflow_revision as v on v.package_key = r.package_key and v.workflow_key = r.target_key
join workflow_step as w on w.workflow_id = v.workflow_id
where r.kind = 'workflow'
union all
select
  r.run_id,
  r.run_id as retried_run_id,
  k.task_id as target_id,
  'main' as step_key,
  k.task_id,
  cast(0 as bigint) as need_count
from run as r
join task_revision as k on k.package_key = r.package_key and k.task_key = r.target_key
where r.kind = 'task';

CREATE VIEW target_state as
select
  w.package_key,
  w.generation,
  'workflow' as kind,
  w.workflow_key as target_key,
  w.workflow_id as target_id,
  w.timeout_ms,
  w.step_count
from workflow_revision as w
union all
select
  t.package_key,
  t.generation,
  'task' as kind,
  t.task_key as target_key,
  t.task_id as target_id,
  t.timeout_ms,
  cast(1 as bigint) as step_count
from task_revision as t;

CREATE VIEW task_admission_effect as
select
  e.run_id,
  row_number() over (partition by e.run_id order by e.step_key) as ordinal,
  case when e.number <= 8192 then 'attempt' else 'step' end as entity,
  case when e.number <= 8192 then e.run_id || '-' || cast(e.number as text) else e.step_key end
    as entity_id,
  case when e.number > 8192 then 'ready' end as from_status,
  case when e.number <= 8192 then 'claimed' else 'failed' end as to_status,
  case when e.number <= 8192 then 0 else e.version end as expected_version,
  case when e.number > 8192 then 'attempt_budget_exhausted' end as result_code,
  case when e.number <= 8192 then 'workflow.task_attempt_admitted' else 'step.failed' end
    as event_type,
  cast(null as bigint) as due_at_ms,
  case when e.number <= 8192 then e.step_key end as input_id
from (
  select
    s.run_id,
    s.step_key,
    s.version,
    (select r.attempt_count from run as r where r.run_id = s.run_id)
      + row_number() over (partition by s.run_id order by s.step_key) as number
  from step_run as s
  where s.status = 'ready'
    and not exists (
      select 1
      from task_attempt as a
      where a.run_id = s.run_id and a.step_key = s.step_key and a.epoch = s.version
    )
    and (
      select case when r.cancel_requested_at_ms is null then r.status end
      from run as r
      where r.run_id = s.run_id
    ) = 'running'
) as e;

CREATE VIEW task_attempt_admission as
select
  a.attempt_id,
  a.run_id,
  a.number,
  a.step_key,
  a.epoch,
  a.task_id,
  a.queue,
  a.jitter,
  a.admitted_at_ms
from task_attempt as a;

CREATE VIEW trigger_state as
select
  t.package_key,
  t.trigger_key,
  t.generation,
  t.state,
  t.cron,
  t.tz,
  t.kind,
  t.target_key,
  t.misfire,
  t.overlap,
  s.next_fire_at_ms,
  s.due_at_ms,
  s.updated_at_ms as since_ms,
  s.last_scheduled_at_ms,
  s.last_outcome,
  s.last_run_id,
  (select r.status from run as r where r.run_id = s.last_run_id) as last_run_status,
  f.error as fault_error,
  f.fault_count,
  f.next_try_at_ms as fault_next_try_at_ms
from trigger as t
join trigger_schedule as s on s.package_key = t.package_key and s.trigger_key = t.trigger_key
left join trigger_fault as f on f.package_key = t.package_key and f.trigger_key = t.trigger_key;

CREATE VIEW violation as
select
  a.run_id,
  'due_work_is_on_the_agenda' as rule,
  a.stage as entity_id
from agenda_missing as a
union all
select
  r.run_id,
  'run_version_is_its_event_count' as rule,
  r.run_id as entity_id
from run as r
where 1 = (
    select case when count(*) <> r.version or coalesce(max(e.sequence), 0) <> r.version then 1 end
    from run_event as e
    where e.run_id = r.run_id
  )
union all
select
  e.run_id,
  'event_times_never_step_back' as rule,
  cast(e.sequence as text) as entity_id
from run_event as e
join run_event as b on b.run_id = e.run_id and b.sequence = e.sequence - 1
where b.created_at_ms > e.created_at_ms
union all
select
  e.run_id,
  'events_follow_the_state_machine' as rule,
  cast(e.sequence as text) as entity_id
from run_event as e
where e.from_status is not null
  and (e.entity, e.from_status, e.to_status) not in (
    select t.entity, t.from_status, t.to_status from state_transition as t
  )
union all
-- A step stands behind its last event, so that one window counts them and looks back: a look for
-- each of them would cost the square of a run's length.
select
  c.run_id,
  'step_is_what_its_events_say' as rule,
  c.entity_id
from (
  select
    f.run_id, f.entity_id, f.version, f.status,
    row_number() over (partition by f.run_id, f.entity_id order by f.sequence) - 1 as event_count,
    lag(f.status) over (partition by f.run_id, f.entity_id order by f.sequence) as last_status
  from (
    select s.run_id, s.step_key as entity_id, s.version, s.status, 9223372036854775807 as sequence
    from step_run as s
    union all
    select e.run_id, e.entity_id, cast(null as bigint) as version, e.to_status, e.sequence
    from run_event as e
    where e.entity = 'step'
  ) as f
) as c
where c.version <> c.event_count
  or (c.version is not null and c.status is distinct from c.last_status)
union all
select
  c.run_id,
  'attempt_is_what_its_events_say' as rule,
  c.entity_id
from (
  select
    f.run_id, f.entity_id, f.version, f.status,
    row_number() over (partition by f.run_id, f.entity_id order by f.sequence) - 1 as event_count,
    lag(f.status) over (partition by f.run_id, f.entity_id order by f.sequence) as last_status
  from (
    select a.run_id, a.attempt_id as entity_id, a.version, a.status, 9223372036854775807 as sequence
    from task_attempt as a
    union all
    select e.run_id, e.entity_id, cast(null as bigint) as version, e.to_status, e.sequence
    from run_event as e
    where e.entity = 'attempt'
  ) as f
) as c
where c.version <> c.event_count
  or (c.version is not null and c.status is distinct from c.last_status)
union all
select
  r.run_id,
  'attempts_are_counted' as rule,
  r.run_id as entity_id
from run as r
where r.attempt_count <> (select count(*) from task_attempt as a where a.run_id = r.run_id)
  or r.attempt_count
    <> (select coalesce(max(a.number), 0) from task_attempt as a where a.run_id = r.run_id)
union all
select
  r.run_id,
  'a_run_has_all_its_steps' as rule,
  r.run_id as entity_id
from run as r
where r.step_count <> (select count(*) from step_run as s where s.run_id = r.run_id)
  or r.version = 0
union all
select
  s.run_id,
  'a_terminal_run_has_only_terminal_steps' as rule,
  s.step_key as entity_id
from step_run as s
where s.finished_at_ms is null
  and (select r.status from run as r where r.run_id = s.run_id) <> 'running'
union all
select
  a.run_id,
  'a_terminal_run_has_no_live_attempt' as rule,
  a.attempt_id as entity_id
from task_attempt as a
where a.status in ('claimed', 'starting', 'running')
  and (select r.status from run as r where r.run_id = a.run_id) <> 'running'
union all
select
  a.run_id,
  'a_terminal_run_has_no_agenda' as rule,
  a.stage as entity_id
from agenda as a
where (select r.status from run as r where r.run_id = a.run_id) is distinct from 'running'
union all
select
  s.run_id,
  'a_running_step_has_one_live_attempt' as rule,
  s.step_key as entity_id
from step_run as s
where (s.status = 'running') <> (
    (
      select count(*)
      from task_attempt as a
      where a.run_id = s.run_id
        and a.step_key = s.step_key
        and a.status = 'running'
        and a.epoch + 1 = s.version
    ) = 1
  )
union all
select
  a.run_id,
  'a_live_attempt_sits_on_its_epoch' as rule,
  a.attempt_id as entity_id
from task_attempt as a
where (
    a.status in ('claimed', 'starting')
    and not exists (
      select 1
      from step_run as s
      where s.run_id = a.run_id
        and s.step_key = a.step_key
        and s.status = 'ready'
        and s.version = a.epoch
    )
  )
  or (
    a.status = 'running'
    and not exists (
      select 1
      from step_run as s
      where s.run_id = a.run_id
        and s.step_key = a.step_key
        and s.status = 'running'
        and s.version = a.epoch + 1
    )
  )
union all
select
  a.run_id,
  'work_past_the_barrier_has_a_lease' as rule,
  a.attempt_id as entity_id
from task_attempt as a
where a.status in ('starting', 'running')
  and (select l.status from attempt_lease as l where l.attempt_id = a.attempt_id)
    is distinct from 'leased'
union all
select
  a.run_id,
  'a_held_lease_belongs_to_a_live_attempt' as rule,
  a.attempt_id as entity_id
from task_attempt as a
where a.finished_at_ms is not null
  and (select l.status from attempt_lease as l where l.attempt_id = a.attempt_id) = 'leased'
union all
select
  e.run_id,
  'a_lease_belongs_to_an_attempt_of_its_run' as rule,
  e.entity_id
from run_event as e
where e.entity = 'lease'
  and (
    (select a.run_id from task_attempt as a where a.attempt_id = e.entity_id)
      is distinct from e.run_id
    or (select l.run_id from attempt_lease as l where l.attempt_id = e.entity_id)
      is distinct from e.run_id
  )
union all
select
  o.run_id,
  'only_a_succeeded_step_has_output' as rule,
  o.step_key as entity_id
from step_output as o
where (
    select s.status from step_run as s where s.run_id = o.run_id and s.step_key = o.step_key
  ) is distinct from 'succeeded'
union all
select
  s.run_id,
  'a_succeeded_step_has_its_attempt' as rule,
  s.step_key as entity_id
from step_run as s
where s.status = 'succeeded'
  and s.result_code is null
  and not exists (
    select 1
    from task_attempt as a
    where a.run_id = s.run_id and a.step_key = s.step_key and a.status = 'succeeded'
  )
union all
select
  s.run_id,
  'only_a_retry_takes_over_what_never_ran_in_it' as rule,
  s.step_key as entity_id
from step_run as s
where s.result_code = 'taken_over'
  and (
    (select r.retry_of_run_id from run as r where r.run_id = s.run_id) is null
    or exists (
      select 1 from task_attempt as a where a.run_id = s.run_id and a.step_key = s.step_key
    )
  )
union all
select
  i.run_id,
  'an_intent_is_on_its_run' as rule,
  i.run_id as entity_id
from cancel_intent as i
where (select r.cancel_reason from run as r where r.run_id = i.run_id) is distinct from i.reason
union all
select
  r.run_id,
  'a_run_has_its_intent' as rule,
  r.run_id as entity_id
from run as r
where r.cancel_reason is not null
  and not exists (select 1 from cancel_intent as i where i.run_id = r.run_id)
union all
select
  o.run_id,
  'every_row_belongs_to_a_run' as rule,
  o.entity_id
from (
  select e.run_id, cast(e.sequence as text) as entity_id from run_event as e
  union all
  select n.run_id, n.run_id as entity_id from run_input as n
  union all
  select s.run_id, s.step_key as entity_id from step_run as s
  union all
  select t.run_id, t.step_key as entity_id from step_output as t
  union all
  select a.run_id, a.attempt_id as entity_id from task_attempt as a
  union all
  select l.run_id, l.attempt_id as entity_id from attempt_lease as l
  union all
  select p.run_id, p.attempt_id as entity_id from attempt_report as p
  union all
  select f.run_id, f.attempt_id as entity_id from attempt_offer as f
  union all
  select x.run_id, x.attempt_id as entity_id from refused_report as x
  union all
  select w.run_id, w.attempt_id as entity_id from attestation as w
  union all
  select i.run_id, i.run_id as entity_id from cancel_intent as i
  union all
  select g.run_id, g.stage as entity_id from agenda as g
  union all
  select u.run_id, u.stage as entity_id from run_fault as u
  union all
  select y.run_id, y.trigger_key as entity_id from trigger_run as y
) as o
where not exists (select 1 from run as r where r.run_id = o.run_id)
union all
select
  cast(null as text) as run_id,
  'a_trigger_is_due_when_its_cursor_says' as rule,
  t.package_key || '/' || t.trigger_key as entity_id
from trigger as t
left join trigger_schedule as s
  on s.package_key = t.package_key and s.trigger_key = t.trigger_key
left join schedule_due as d on d.package_key = t.package_key and d.trigger_key = t.trigger_key
where s.state_version is null or s.due_at_ms is distinct from d.due_at_ms
union all
select
  r.run_id,
  'an_open_run_is_known_to_its_trigger' as rule,
  coalesce(r.trigger_key, o.trigger_key) as entity_id
from run as r
left join trigger_run as o on o.run_id = r.retry_of_run_id
where r.finished_at_ms is null
  and coalesce(r.trigger_key, o.trigger_key) is not null
  and coalesce(r.trigger_key, o.trigger_key) is distinct from (
    select m.trigger_key
    from trigger_run as m
    where m.run_id = r.run_id and m.package_key = r.package_key and m.open_at_ms is not null
  );

CREATE VIEW worker_audit_log as
select
  u.minute_ms,
  u.worker_id,
  u.route,
  u.certificate,
  u.first_at_ms
from worker_audit as u;

CREATE VIEW worker_hold as
select
  l.worker_id,
  l.run_id,
  l.attempt_id,
  a.step_key,
  a.number,
  a.status,
  l.fence,
  l.expires_at_ms,
  l.leased_at_ms
from run as r
cross join task_attempt as a
cross join attempt_lease as l
where r.finished_at_ms is null
  and a.run_id = r.run_id
  and a.finished_at_ms is null
  and l.attempt_id = a.attempt_id
  and l.status = 'leased';

CREATE VIEW worker_state as
select
  w.worker_id,
  w.session_id,
  w.generation,
  w.status,
  w.queues,
  w.slots,
  w.self_fencing,
  w.registered_at_ms,
  w.seen_at_ms,
  w.expires_at_ms,
  w.drain_requested_at_ms
from worker_session as w;
