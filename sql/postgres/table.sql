-- TABLES — what exists. Immutable columns come first in each table; ql_authority may update only
-- the columns after the line "moves". Ids compare by byte: every text key is collate "C".
-- Facts: DESIGN §5; shapes: DOMAIN §2.4.

create table ql.package (
  package_key text collate "C" primary key,
  -- moves
  generation bigint not null,  -- the newest number given
  base_dir text not null,  -- where relative paths start; not part of the digest
  updated_at_ms bigint not null
);

create table ql.package_generation (
  package_key text collate "C" not null references ql.package (package_key),
  generation bigint not null,
  digest text collate "C" not null,
  manifest text not null,
  published_at_ms bigint not null,
  -- moves
  state text collate "C" not null,
  ended_at_ms bigint,
  primary key (package_key, generation),
  constraint generation_starts_at_one check (generation >= 1),
  constraint manifest_fits check (octet_length(manifest) <= 262144),
  constraint generation_state_is_known check (state in ('active', 'superseded', 'withdrawn')),
  constraint only_an_active_generation_has_no_end check ((state = 'active') = (ended_at_ms is null))
);

create unique index one_active_generation on ql.package_generation (package_key)
where state = 'active';

create table ql.task_revision (
  task_id text collate "C" primary key,
  package_key text collate "C" not null,
  generation bigint not null,
  task_key text collate "C" not null,
  digest text collate "C" not null,
  spec text not null,  -- canonical JSON: run, env, cwd and the rest as published
  timeout_ms bigint,
  retry_attempts bigint not null,
  backoff_ms bigint not null,
  max_backoff_ms bigint not null,
  retry_failed bigint not null,
  retry_timed_out bigint not null,
  idempotent bigint not null,
  on_lost text collate "C" not null,
  queue text collate "C" not null,
  foreign key (package_key, generation)
    references ql.package_generation (package_key, generation),
  constraint one_revision_a_task_and_generation unique (package_key, generation, task_key),
  constraint attempts_within_bounds check (retry_attempts between 1 and 64),
  constraint task_key_fits check (length(task_key) between 1 and 127),
  constraint task_timeout_within_bounds check (timeout_ms between 1 and 2592000000),
  constraint backoff_within_bounds check (backoff_ms between 0 and 86400000),
  constraint max_backoff_within_bounds check (max_backoff_ms between 0 and 86400000),
  constraint queue_fits check (length(queue) between 1 and 200),
  constraint on_lost_is_known check (on_lost in ('retry', 'fail', 'hold')),
  constraint only_idempotent_work_is_retried_when_lost check (on_lost <> 'retry' or idempotent = 1)
);

create table ql.workflow_revision (
  workflow_id text collate "C" primary key,
  package_key text collate "C" not null,
  generation bigint not null,
  workflow_key text collate "C" not null,
  timeout_ms bigint,
  step_count bigint not null,
  foreign key (package_key, generation)
    references ql.package_generation (package_key, generation),
  constraint one_revision_a_workflow_and_generation unique (package_key, generation, workflow_key),
  constraint workflow_key_fits check (length(workflow_key) between 1 and 63),
  constraint workflow_timeout_within_bounds check (timeout_ms between 1 and 2592000000),
  constraint steps_within_bounds check (step_count between 1 and 128)
);

create table ql.workflow_step (
  workflow_id text collate "C" not null references ql.workflow_revision (workflow_id),
  step_key text collate "C" not null,
  task_id text collate "C" not null references ql.task_revision (task_id),
  need_count bigint not null,
  primary key (workflow_id, step_key),
  constraint step_key_fits check (length(step_key) between 1 and 63),
  constraint needs_within_bounds check (need_count between 0 and 127)
);

-- every (ancestor, step) pair of a workflow; distance 1 is a direct need
create table ql.workflow_ancestor (
  workflow_id text collate "C" not null,
  ancestor_key text collate "C" not null,
  step_key text collate "C" not null,
  distance bigint not null,
  primary key (workflow_id, ancestor_key, step_key),
  foreign key (workflow_id, ancestor_key) references ql.workflow_step (workflow_id, step_key),
  foreign key (workflow_id, step_key) references ql.workflow_step (workflow_id, step_key),
  constraint no_step_is_its_own_ancestor check (ancestor_key <> step_key),
  constraint distance_within_bounds check (distance between 1 and 127)
);

create index workflow_need on ql.workflow_ancestor (workflow_id, step_key, ancestor_key)
where distance = 1;

create table ql.trigger (
  package_key text collate "C" not null references ql.package (package_key),
  trigger_key text collate "C" not null,
  -- moves
  generation bigint not null,
  state text collate "C" not null,
  cron text not null,
  tz text not null,
  kind text collate "C" not null,
  target_key text collate "C" not null,
  misfire text collate "C" not null,
  overlap text collate "C" not null,
  updated_at_ms bigint not null,
  primary key (package_key, trigger_key),
  constraint trigger_key_fits check (length(trigger_key) between 1 and 63),
  constraint trigger_state_is_known check (state in ('active', 'paused', 'withdrawn')),
  constraint trigger_kind_is_known check (kind in ('workflow', 'task')),
  constraint misfire_is_known check (misfire in ('fire_once', 'skip')),
  constraint overlap_is_known check (overlap in ('allow', 'skip'))
);

create table ql.trigger_schedule (
  package_key text collate "C" not null,
  trigger_key text collate "C" not null,
  -- moves
  next_fire_at_ms bigint,
  last_scheduled_at_ms bigint,
  state_version bigint not null,
  claim_owner text collate "C",
  claim_token text collate "C",
  claim_version bigint not null,
  claim_expires_at_ms bigint,
  updated_at_ms bigint not null,
  due_at_ms bigint,  -- what a claim looks for; null while the trigger is not active
  claimed_at_ms bigint,  -- what the claim observed
  seen_at_ms bigint,  -- since when it has been claimed again and again without a pause
  last_outcome text collate "C",
  last_run_id text collate "C",
  primary key (package_key, trigger_key),
  foreign key (package_key, trigger_key) references ql.trigger (package_key, trigger_key),
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
);

create index trigger_due on ql.trigger_schedule (due_at_ms, package_key, trigger_key)
where due_at_ms is not null;
create index trigger_settled on ql.trigger_schedule (updated_at_ms) where due_at_ms is not null;
create index trigger_claimed on ql.trigger_schedule (claim_token) where claim_token is not null;

create table ql.trigger_run (
  run_id text collate "C" primary key,
  package_key text collate "C" not null,
  trigger_key text collate "C" not null,
  -- moves
  open_at_ms bigint  -- null once a decision has found that the run has ended
);

create index trigger_run_open on ql.trigger_run (package_key, trigger_key, run_id)
where open_at_ms is not null;

create table ql.trigger_fault (
  package_key text collate "C" not null,
  trigger_key text collate "C" not null,
  -- moves
  error text not null,
  fault_count bigint not null,
  first_at_ms bigint not null,
  last_at_ms bigint not null,
  next_try_at_ms bigint not null,
  primary key (package_key, trigger_key),
  constraint trigger_fault_error_fits check (octet_length(error) <= 2048)
);

create table ql.run (
  run_id text collate "C" primary key,
  package_key text collate "C" not null,
  generation bigint not null,
  kind text collate "C" not null,
  target_key text collate "C" not null,
  target_id text collate "C" not null,  -- the workflow_id or task_id of the pinned generation
  run_key text collate "C" not null,
  input_digest text collate "C" not null,
  step_count bigint not null,
  deadline_at_ms bigint,
  retry_of_run_id text collate "C",  -- the run whose results it took over; that one may be purged
  trigger_key text collate "C",
  scheduled_at_ms bigint,
  admitted_at_ms bigint not null,
  -- moves
  status text collate "C" not null,
  version bigint not null,
  attempt_count bigint not null,
  cancel_requested_at_ms bigint,
  cancel_reason text collate "C",
  result_code text collate "C",
  finished_at_ms bigint,
  updated_at_ms bigint not null,
  foreign key (package_key, generation)
    references ql.package_generation (package_key, generation),
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
) with (fillfactor = 70);

create index run_recent on ql.run (admitted_at_ms, run_id);
create index run_target on ql.run (target_id, admitted_at_ms, run_id);
-- what people look at first: its end is written once, so it costs a run two entries
create index run_open on ql.run (admitted_at_ms, run_id) where finished_at_ms is null;
-- retention follows what is due, not the runs that exist; written once a run
create index run_ended on ql.run (finished_at_ms, run_id) where finished_at_ms is not null;

create table ql.run_input (
  run_id text collate "C" primary key references ql.run (run_id),
  input text not null,
  constraint input_fits check (octet_length(input) <= 16384)
);

create table ql.step_run (
  run_id text collate "C" not null references ql.run (run_id),
  step_key text collate "C" not null,
  task_id text collate "C" not null,
  -- moves
  status text collate "C" not null,
  version bigint not null,
  attempt_count bigint not null,
  claim_return_count bigint not null,
  ready_at_ms bigint,
  started_at_ms bigint,
  finished_at_ms bigint,
  due_at_ms bigint,
  result_code text collate "C",
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
) with (fillfactor = 60);

create table ql.step_output (
  run_id text collate "C" not null,
  step_key text collate "C" not null,
  attempt_id text collate "C" not null,
  output text not null,
  primary key (run_id, step_key),
  constraint output_fits check (octet_length(output) <= 16384)
);

create table ql.task_attempt (
  attempt_id text collate "C" primary key,
  run_id text collate "C" not null,
  number bigint not null,
  step_key text collate "C" not null,
  epoch bigint not null,  -- the step's version while it was ready; good for exactly this one
  task_id text collate "C" not null,
  queue text collate "C" not null,
  jitter bigint not null,  -- 0 to 1023 parts of 8192 added to a back-off
  admitted_at_ms bigint not null,
  -- moves
  status text collate "C" not null,
  version bigint not null,
  offer_at_ms bigint,  -- what dispatch looks for; set by admission, nulled by the start
  deadline_at_ms bigint,
  identity text,
  starting_at_ms bigint,
  started_at_ms bigint,
  finished_at_ms bigint,
  exit_code bigint,
  result_code text collate "C",
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
  constraint identity_fits check (octet_length(identity) <= 512)
) with (fillfactor = 50);

create index attempt_offered on ql.task_attempt (queue, offer_at_ms, attempt_id)
where offer_at_ms is not null;

create table ql.attempt_lease (
  attempt_id text collate "C" primary key,
  run_id text collate "C" not null,
  -- moves
  status text collate "C" not null,
  version bigint not null,
  fence bigint not null,  -- grows by one whenever the lease is taken, released or completed
  offer_id text collate "C" not null,
  worker_id text collate "C" not null,
  token_digest text collate "C" not null,
  self_fencing bigint not null,
  grace_ms bigint not null,
  leased_at_ms bigint not null,
  expires_at_ms bigint not null,
  closed_at_ms bigint,
  constraint lease_status_is_known check (status in ('leased', 'released', 'completed')),
  constraint lease_version_starts_at_one check (version >= 1),
  constraint fence_starts_at_one check (fence >= 1),
  constraint only_a_closed_lease_has_an_end check ((status = 'leased') = (closed_at_ms is null))
) with (fillfactor = 50);

-- Inputs: one row a command, under its natural key; append-only.

create table ql.cancel_intent (
  run_id text collate "C" primary key,
  reason text collate "C" not null,
  actor text not null,
  requested_at_ms bigint not null,
  constraint intent_reason_is_known
    check (reason in ('user', 'policy', 'shutdown', 'reconcile', 'timeout'))
);

create table ql.attempt_offer (
  run_id text collate "C" not null,
  attempt_id text collate "C" not null,
  fence bigint not null,  -- the fence that the lease gets when it is taken
  offer_id text collate "C" not null,
  worker_id text collate "C" not null,
  token_digest text collate "C" not null,
  self_fencing bigint not null,
  grace_ms bigint not null,
  offered_at_ms bigint not null,
  expires_at_ms bigint not null,
  primary key (run_id, attempt_id, fence),
  constraint an_offer_is_made_once unique (offer_id),
  constraint token_is_a_digest check (length(token_digest) = 64)
);

create table ql.attempt_report (
  run_id text collate "C" not null,
  attempt_id text collate "C" not null,
  fence bigint not null,
  kind text collate "C" not null,
  how text collate "C",
  exit_code bigint,
  identity text,
  output text,
  error text,
  reported_at_ms bigint not null,
  primary key (run_id, attempt_id, fence, kind),
  constraint report_kind_is_known check (kind in ('starting', 'running', 'ended')),
  constraint an_end_says_how check ((kind = 'ended') = (how is not null)),
  constraint how_is_known check (
    how in ('exit', 'signal', 'stop', 'deadline', 'start_failed', 'bad_output', 'not_started')
  ),
  constraint report_output_fits check (octet_length(output) <= 16384),
  constraint report_error_fits check (octet_length(error) <= 2048)
);

create table ql.attestation (
  run_id text collate "C" not null,
  attempt_id text collate "C" not null,
  evidence text collate "C" not null,
  follow text collate "C",  -- what an operator wants to follow: retry, fail, or null for on_lost
  reason text not null,
  actor text not null,
  attested_at_ms bigint not null,
  primary key (run_id, attempt_id),
  constraint evidence_is_known check (evidence in ('expired', 'fenced', 'attested', 'declared')),
  constraint follow_is_known check (follow in ('retry', 'fail')),
  constraint only_a_declaration_says_what_follows check (follow is null or evidence = 'declared')
);

-- what was refused and is kept, at most eight an attempt
create table ql.refused_report (
  run_id text collate "C" not null,
  attempt_id text collate "C" not null,
  ordinal bigint not null,
  code text collate "C" not null,
  kind text collate "C" not null,
  how text collate "C",
  exit_code bigint,
  fence bigint,
  refused_at_ms bigint not null,
  primary key (run_id, attempt_id, ordinal),
  constraint refusals_within_bounds check (ordinal between 1 and 8)
);

create table ql.run_event (
  run_id text collate "C" not null,
  sequence bigint not null,
  type text collate "C" not null,
  entity text collate "C" not null,
  entity_id text collate "C" not null,
  from_status text collate "C",
  to_status text collate "C" not null,
  entity_version bigint not null,
  result_code text collate "C",
  input_id text collate "C",
  created_at_ms bigint not null,
  primary key (run_id, sequence),
  constraint event_entity_is_known check (entity in ('run', 'step', 'attempt', 'lease'))
);

create table ql.agenda (
  run_id text collate "C" not null,
  stage text collate "C" not null,
  -- moves
  due_at_ms bigint not null,
  primary key (run_id, stage),
  constraint stage_is_known check (
    stage in ('frontier', 'task_admission', 'cancellation', 'deadline', 'retry', 'expiry')
  )
) with (fillfactor = 50);

create index agenda_due on ql.agenda (stage, due_at_ms, run_id);

create table ql.worker_session (
  worker_id text collate "C" primary key,
  -- moves
  session_id text collate "C" not null,
  generation bigint not null,
  status text collate "C" not null,
  queues text not null,
  slots bigint not null,
  self_fencing bigint not null,
  grace_ms bigint not null,
  registered_at_ms bigint not null,
  expires_at_ms bigint not null,
  seen_at_ms bigint,
  drain_requested_at_ms bigint,  -- an operator wants it to lease nothing more
  constraint session_status_is_known check (status in ('online', 'draining', 'offline')),
  constraint slots_within_bounds check (slots between 1 and 1024)
);

-- who used the ingress with which certificate: one row a minute and route; append-only
create table ql.worker_audit (
  minute_ms bigint not null,
  worker_id text collate "C" not null,
  route text collate "C" not null,
  certificate text collate "C" not null,  -- its serial number
  first_at_ms bigint not null,
  primary key (minute_ms, worker_id, route, certificate)
);

create table ql.run_fault (
  run_id text collate "C" not null,
  stage text collate "C" not null,
  -- moves
  error text not null,
  fault_count bigint not null,
  first_at_ms bigint not null,
  last_at_ms bigint not null,
  next_try_at_ms bigint not null,
  primary key (run_id, stage),
  constraint fault_error_fits check (octet_length(error) <= 2048)
);
