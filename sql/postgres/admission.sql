-- ADMISSION — a run begins (DESIGN §5). Its id is derived from its key, so a repeated command finds
-- the run, whatever generation is active by then; another command under the same key is a conflict.

-- STEP     start_run — admit one run of a workflow or of a single task
-- LOCKS    package_generation (for share: the start guard)
-- READS    admission_effect
-- WRITES   run, run_input; through ql.apply_effects
-- RETURNS  created | existing | conflict
-- RAISES   QL400, QL404, QL503
-- REPLAY   exact, and checked before the guard
create or replace function ql_admission.start_run (
  p_package_key text,
  p_kind text,
  p_target_key text,
  p_run_key text,
  p_input text
)
returns table (run_id text, outcome text, status text, generation bigint)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  v_run_id text;
  v_digest text;
  v_outcome text := 'existing';
begin
  perform ql.assert_read_committed();
  perform ql.check_start(p_package_key, p_kind, p_target_key, p_run_key, p_input);
  v_run_id := ql.derived_id('ru', p_package_key, p_kind, p_target_key, p_run_key);
  v_digest := ql.sha256_hex(p_input);

  loop
    return query
    select
      r.run_id,
      case
        when r.input_digest = v_digest and r.retry_of_run_id is null then v_outcome
        else 'conflict'
      end,
      r.status,
      r.generation
    from ql.run as r
    where r.run_id = v_run_id;
    exit when found;
    -- false: someone else has just started it, and may purge it before we look
    if ql.admit_run(
      v_run_id, p_package_key, p_kind, p_target_key, p_run_key, p_input, null, null, null
    ) then
      v_outcome := 'created';
    end if;
  end loop;
end;
$$;

-- HELPER   check_start — the arguments of start_run
-- RAISES   QL400
create or replace function ql.check_start (
  p_package_key text,
  p_kind text,
  p_target_key text,
  p_run_key text,
  p_input text
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_fault text;
begin
  v_fault := case
    when p_kind is null or p_kind not in ('workflow', 'task') then 'kind is workflow or task'
    when p_package_key is null or p_target_key is null then 'package and target are needed'
    when p_run_key is null or length(p_run_key) not between 1 and 200
      then 'a run key has 1 to 200 characters'
    when octet_length(p_input) > 16384 then 'the input is larger than 16 KiB'
    when not coalesce(ql.is_object(p_input), false) then 'the input is a JSON object'
  end;
  if v_fault is not null then
    raise exception '%', v_fault using errcode = 'QL400';
  end if;
end;
$$;

-- HELPER   admit_run — a run with its input, and what follows at once; false when someone else has
--          just inserted it
-- LOCKS    package_generation (for share)
-- READS    admission_effect
-- WRITES   run, run_input; through ql.apply_effects
-- RAISES   QL404
create or replace function ql.admit_run (
  p_run_id text,
  p_package_key text,
  p_kind text,
  p_target_key text,
  p_run_key text,
  p_input text,
  p_retry_of_run_id text,
  p_trigger_key text,
  p_scheduled_at_ms bigint
)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_effects ql.effect[];
begin
  if not ql.insert_run(
    p_run_id, p_package_key, p_kind, p_target_key, p_run_key, ql.sha256_hex(p_input),
    p_retry_of_run_id, p_trigger_key, p_scheduled_at_ms
  ) then
    return false;
  end if;
  insert into ql.run_input (run_id, input)
  values (p_run_id, p_input);

  select array_agg(
    row(
      e.run_id, e.ordinal, e.entity, e.entity_id, e.from_status, e.to_status, e.expected_version,
      e.result_code, e.event_type, e.due_at_ms, e.input_id
    )::ql.effect
  )
  into v_effects
  from ql.admission_effect as e
  where e.run_id = p_run_id;
  perform ql.apply_effects(v_effects, 'admission');
  return true;
end;
$$;

-- HELPER   insert_run — the run itself, at version 0; false when someone else has just inserted it
-- LOCKS    package_generation (for share)
-- WRITES   run
-- RAISES   QL404
create or replace function ql.insert_run (
  p_run_id text,
  p_package_key text,
  p_kind text,
  p_target_key text,
  p_run_key text,
  p_input_digest text,
  p_retry_of_run_id text,
  p_trigger_key text,
  p_scheduled_at_ms bigint
)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now_ms bigint;
  v_generation bigint;
  v_target_id text;
  v_step_count bigint;
  v_timeout_ms bigint;
begin
  loop
    select g.generation
    into v_generation
    from ql.package_generation as g
    where g.package_key = p_package_key and g.state = 'active'
    for share;
    exit when found;
    -- a publication that we waited for has replaced the row that we saw: look once more
    if not exists (
      select from ql.package_generation as g
      where g.package_key = p_package_key and g.state = 'active'
    ) then
      raise exception 'no active package %', p_package_key using errcode = 'QL404';
    end if;
  end loop;
  v_now_ms := ql.now_ms();

  select t.target_id, t.step_count, t.timeout_ms
  into v_target_id, v_step_count, v_timeout_ms
  from (
    select
      w.workflow_id as target_id,
      w.step_count,
      w.timeout_ms
    from ql.workflow_revision as w
    where p_kind = 'workflow'
      and w.package_key = p_package_key
      and w.generation = v_generation
      and w.workflow_key = p_target_key
    union all
    -- a task run has one step, and no deadline but its attempt's (DESIGN §5)
    select
      k.task_id as target_id,
      1 as step_count,
      null as timeout_ms
    from ql.task_revision as k
    where p_kind = 'task'
      and k.package_key = p_package_key
      and k.generation = v_generation
      and k.task_key = p_target_key
  ) as t;

  insert into ql.run (
    run_id, package_key, generation, kind, target_key, target_id, run_key, input_digest, step_count,
    deadline_at_ms, retry_of_run_id, trigger_key, scheduled_at_ms, admitted_at_ms, status, version,
    attempt_count, updated_at_ms
  )
  select
    p_run_id,
    p_package_key,
    v_generation,
    p_kind,
    p_target_key,
    v_target_id,
    p_run_key,
    p_input_digest,
    v_step_count,
    v_now_ms + v_timeout_ms,
    p_retry_of_run_id,
    p_trigger_key,
    p_scheduled_at_ms,
    v_now_ms,
    'running',
    0,
    0,
    v_now_ms
  where v_target_id is not null
  on conflict do nothing;
  if found then
    return true;
  end if;
  if v_target_id is null and not exists (select from ql.run as r where r.run_id = p_run_id) then
    raise exception 'no % % in package %', p_kind, p_target_key, p_package_key
      using errcode = 'QL404';
  end if;
  return false;
end;
$$;
