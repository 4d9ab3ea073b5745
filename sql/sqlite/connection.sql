-- CONNECTION — what a connection needs before its first step: pragmas, and the tables that a step
-- works in. They are temporary, so a rollback empties them with everything else.
-- In place of PostgreSQL's role and grant: whoever may open the file may do everything in it.

-- STEP     connect — for every profile; before any transaction, because SQLite ignores some there
pragma busy_timeout = 5000;
pragma page_size = 1024;
pragma foreign_keys = on;
pragma recursive_triggers = on;
pragma trusted_schema = off;
pragma cell_size_check = on;
pragma temp_store = memory;

-- STEP     standalone — a work station: readers beside the writer
pragma journal_mode = wal;
pragma synchronous = full;
pragma wal_autocheckpoint = 1000;
pragma cache_size = -16384;

-- STEP     edge — a small device; DELETE loses the last acknowledged commit at power loss
pragma journal_mode = truncate;
pragma synchronous = full;
pragma mmap_size = 0;
pragma cache_size = -4096;

-- STEP     workspace — the tables and checks of one connection

-- the runs that this call is about
create temp table chosen (
  run_id text primary key,
  due_at_ms integer
) strict, without rowid;

-- what a decision asks for (DESIGN §4); filled by a step, applied by apply_effects
create temp table effect (
  run_id text not null,
  ordinal integer not null,
  entity text not null,
  entity_id text not null,
  from_status text,
  to_status text not null,
  expected_version integer not null,
  result_code text,
  event_type text not null,
  due_at_ms integer,
  input_id text,
  primary key (run_id, ordinal)
) strict, without rowid;

-- effects by entity: each is updated once
create temp table change (
  run_id text not null,
  entity text not null,
  entity_id text not null,
  from_status text,
  expected_version integer not null,
  to_status text not null,
  result_code text,
  due_at_ms integer,
  input_id text,
  effect_count integer not null,
  start_count integer not null,  -- effects that take a step out of `ready` by a started attempt
  return_count integer not null,  -- effects that bring a claim back
  ran integer not null,  -- 1 when one of them says `running`
  primary key (entity, run_id, entity_id)
) strict, without rowid;

-- effects by run
create temp table touched (
  run_id text primary key,
  version integer not null,  -- what compare-and-swap expects
  at_ms integer not null,
  deadline_at_ms integer,
  effect_count integer not null,
  admitted_count integer not null,
  to_status text,
  result_code text,
  intent integer not null,  -- 1 when this call writes the intent
  under_intent integer not null,
  ended integer not null
) strict, without rowid;

-- the commands of a worker's batch, and what became of them
create temp table command (
  ordinal integer primary key,
  attempt_id text,
  run_id text,
  fence integer,
  token_digest text,
  identity text,
  how text,
  exit_code integer,
  output text,
  error text,
  reason text,
  worker_id text,
  code text  -- null: accepted so far
) strict;

-- the offers of a lease call, paired with attempts
create temp table offer (
  ordinal integer primary key,
  offer_id text not null,
  token_digest text not null,
  attempt_id text,
  run_id text
) strict;

create temp table candidate (
  ordinal integer primary key,
  attempt_id text not null,
  run_id text not null
) strict;

-- one row that a command answers from
create temp table answer (
  entity_id text,
  outcome text not null,
  number integer
) strict;

-- the run that a command wants, and whether it is there already
create temp table admission (
  run_id text not null,
  package_key text,
  kind text,
  target_key text,
  run_key text,
  input text,
  retry_of_run_id text,
  trigger_key text,
  scheduled_at_ms integer,
  outcome text not null
) strict;

-- what becomes of the occurrence that a commit is about
create temp table occurrence (
  package_key text not null,
  trigger_key text not null,
  outcome text not null,
  disposition text,
  cause text,
  run_id text,
  next_fire_at_ms integer
) strict;

create temp table publication (
  manifest text not null,
  digest text not null,
  generation integer not null,
  outcome text not null
) strict;

-- ancestors found so far while a package is published
create temp table ancestor (
  workflow_id text not null,
  step_key text not null,
  ancestor_key text not null,
  distance integer not null,
  primary key (workflow_id, step_key, ancestor_key)
) strict, without rowid;

create index temp.ancestor_distance on ancestor (distance, workflow_id, step_key);

-- a command that is refused: the store raises it and rolls back
create temp table refusal (
  code text not null,
  message text not null
) strict;

-- rows that a statement should have hit, and rows that it hit, when those differ: always empty
create temp table moved (
  entity text not null,
  wanted integer not null,
  changed integer not null
) strict;

create temp trigger every_run_moved before insert on moved
when new.entity = 'run' and new.wanted <> new.changed
begin
  select raise(abort, 'QL409 a run is not as the decision read it');
end;

create temp trigger every_step_moved before insert on moved
when new.entity = 'step' and new.wanted <> new.changed
begin
  select raise(abort, 'QL409 a step is not as the decision read it');
end;

create temp trigger every_attempt_moved before insert on moved
when new.entity = 'attempt' and new.wanted <> new.changed
begin
  select raise(abort, 'QL409 an attempt is not as the decision read it');
end;

create temp trigger every_lease_moved before insert on moved
when new.entity = 'lease' and new.wanted <> new.changed
begin
  select raise(abort, 'QL409 a lease is not as the decision read it');
end;
