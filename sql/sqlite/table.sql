-- TABLES — mirror of sql/postgres/table.sql. Immutable columns come first in each table;
-- trigger.sql refuses to change a column before the line "moves". Text compares by byte.
-- Facts: DESIGN §5; shapes: DOMAIN §2.4.

create table package (
  package_key text primary key,
  -- moves
  generation integer not null,  -- the newest number given
  base_dir text not null,  -- where relative paths start; not part of the digest
  updated_at_ms integer not null
) strict, without rowid;

create table package_generation (
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

create unique index one_active_generation on package_generation (package_key)
where state = 'active';

create table task_revision (
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

create table workflow_revision (
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

create table workflow_step (
  workflow_id text not null references workflow_revision (workflow_id),
  step_key text not null,
  task_id text not null references task_revision (task_id),
  need_count integer not null,
  primary key (workflow_id, step_key),
  constraint step_key_fits check (length(step_key) between 1 and 63),
  constraint needs_within_bounds check (need_count between 0 and 127)
) strict, without rowid;

-- every (ancestor, step) pair of a workflow; distance 1 is a direct need
create table workflow_ancestor (
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

-- `distance` makes it cover its queries; without that SQLite takes the primary key
create index workflow_need on workflow_ancestor (workflow_id, step_key, ancestor_key, distance)
where distance = 1;

create table trigger (
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

create table trigger_schedule (
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

create index trigger_due on trigger_schedule (due_at_ms, package_key, trigger_key)
where due_at_ms is not null;
create index trigger_settled on trigger_schedule (updated_at_ms) where due_at_ms is not null;

create table trigger_run (
  run_id text primary key,
  package_key text not null,
  trigger_key text not null,
  -- moves
  open_at_ms integer  -- null once a decision has found that the run has ended
) strict, without rowid;

create index trigger_run_open on trigger_run (package_key, trigger_key, run_id)
where open_at_ms is not null;

create table trigger_fault (
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

create table run (
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

create index run_recent on run (admitted_at_ms, run_id);
create index run_target on run (target_id, admitted_at_ms, run_id);
-- what people look at first: its end is written once, so it costs a run two entries
create index run_open on run (admitted_at_ms, run_id) where finished_at_ms is null;
-- retention follows what is due, not the runs that exist; written once a run
create index run_ended on run (finished_at_ms, run_id) where finished_at_ms is not null;

create table run_input (
  run_id text primary key references run (run_id),
  input text not null,
  constraint input_fits check (length(cast(input as blob)) <= 16384)
) strict, without rowid;

create table step_run (
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

create table step_output (
  run_id text not null,
  step_key text not null,
  attempt_id text not null,
  output text not null,
  primary key (run_id, step_key),
  constraint output_fits check (length(cast(output as blob)) <= 16384)
) strict, without rowid;

create table task_attempt (
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

create index attempt_offered on task_attempt (queue, offer_at_ms, attempt_id)
where offer_at_ms is not null;

create table attempt_lease (
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

-- Inputs: one row a command, under its natural key; append-only.

create table cancel_intent (
  run_id text primary key,
  reason text not null,
  actor text not null,
  requested_at_ms integer not null,
  constraint intent_reason_is_known
    check (reason in ('user', 'policy', 'shutdown', 'reconcile', 'timeout'))
) strict, without rowid;

create table attempt_offer (
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

create table attempt_report (
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

create table attestation (
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

-- what was refused and is kept, at most eight an attempt
create table refused_report (
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

create table run_event (
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

create table agenda (
  run_id text not null,
  stage text not null,
  -- moves
  due_at_ms integer not null,
  primary key (run_id, stage),
  constraint stage_is_known check (
    stage in ('frontier', 'task_admission', 'cancellation', 'deadline', 'retry', 'expiry')
  )
) strict, without rowid;

create index agenda_due on agenda (stage, due_at_ms, run_id);

create table worker_session (
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

-- who used the ingress with which certificate: one row a minute and route; append-only
create table worker_audit (
  minute_ms integer not null,
  worker_id text not null,
  route text not null,
  certificate text not null,  -- its serial number
  first_at_ms integer not null,
  primary key (minute_ms, worker_id, route, certificate)
) strict, without rowid;

create table run_fault (
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
