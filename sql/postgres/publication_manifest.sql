-- MANIFEST — the parts of publication: a model becomes revisions, a graph, triggers.

-- HELPER   check_manifest — what no table catches: references, sizes
-- RAISES   QL400
create or replace function ql.check_manifest (p_package_key text, p_model jsonb)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  v_fault text;
begin
  select f.fault
  into v_fault
  from (
    select 'the manifest is of package ' || coalesce(p_model ->> 'package', 'null') as fault
    where p_model ->> 'package' is distinct from p_package_key
    union all
    select format('workflow %s has %s steps, not 1 to 128', w.key, c.step_count)
    from jsonb_each(p_model -> 'workflows') as w
    cross join lateral (
      select count(*) as step_count
      from jsonb_each(w.value -> 'steps')
    ) as c
    where c.step_count not between 1 and 128
    union all
    select format('step %s of workflow %s: unknown task %s', s.key, w.key, s.value ->> 'task')
    from jsonb_each(p_model -> 'workflows') as w
    cross join lateral jsonb_each(w.value -> 'steps') as s
    where p_model -> 'tasks' -> (s.value ->> 'task') is null
    union all
    select format('step %s of workflow %s: unknown need %s', s.key, w.key, n.need)
    from jsonb_each(p_model -> 'workflows') as w
    cross join lateral jsonb_each(w.value -> 'steps') as s
    cross join lateral jsonb_array_elements_text(s.value -> 'needs') as n (need)
    where w.value -> 'steps' -> n.need is null
    union all
    select format('trigger %s: unknown %s %s', t.key, t.value ->> 'kind', t.value ->> 'target')
    from jsonb_each(p_model -> 'triggers') as t
    where p_model -> ((t.value ->> 'kind') || 's') -> (t.value ->> 'target') is null
  ) as f
  limit 1;
  if v_fault is not null then
    raise exception '%', v_fault using errcode = 'QL400';
  end if;
end;
$$;

-- HELPER   add_revisions — the tasks, workflows, steps and direct needs of a generation
-- WRITES   task_revision, workflow_revision, workflow_step, workflow_ancestor
create or replace function ql.add_revisions (
  p_package_key text,
  p_generation bigint,
  p_model jsonb
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_generation text := p_generation::text;
begin
  insert into ql.task_revision (
    task_id, package_key, generation, task_key, digest, spec, timeout_ms, retry_attempts,
    backoff_ms, max_backoff_ms, retry_failed, retry_timed_out, idempotent, on_lost, queue
  )
  select
    ql.derived_id('ta', p_package_key, v_generation, t.key),
    p_package_key,
    p_generation,
    t.key,
    ql.sha256_hex(c.spec),
    c.spec,
    (t.value ->> 'timeout_ms')::bigint,
    (t.value -> 'retry' ->> 'attempts')::bigint,
    (t.value -> 'retry' ->> 'backoff_ms')::bigint,
    (t.value -> 'retry' ->> 'max_backoff_ms')::bigint,
    (t.value -> 'retry' -> 'on' ? 'failed')::int,
    (t.value -> 'retry' -> 'on' ? 'timed_out')::int,
    (t.value ->> 'idempotent')::boolean::int,
    t.value ->> 'on_lost',
    t.value ->> 'queue'
  from jsonb_each(p_model -> 'tasks') as t
  cross join lateral (select ql.canonical(t.value) as spec) as c;

  insert into ql.workflow_revision (
    workflow_id, package_key, generation, workflow_key, timeout_ms, step_count
  )
  select
    ql.derived_id('wf', p_package_key, v_generation, w.key),
    p_package_key,
    p_generation,
    w.key,
    (w.value ->> 'timeout_ms')::bigint,
    (select count(*) from jsonb_each(w.value -> 'steps'))
  from jsonb_each(p_model -> 'workflows') as w;

  insert into ql.workflow_step (workflow_id, step_key, task_id, need_count)
  select
    ql.derived_id('wf', p_package_key, v_generation, w.key),
    s.key,
    ql.derived_id('ta', p_package_key, v_generation, s.value ->> 'task'),
    (select count(distinct n.need) from jsonb_array_elements_text(s.value -> 'needs') as n (need))
  from jsonb_each(p_model -> 'workflows') as w
  cross join lateral jsonb_each(w.value -> 'steps') as s;

  insert into ql.workflow_ancestor (workflow_id, ancestor_key, step_key, distance)
  select distinct
    ql.derived_id('wf', p_package_key, v_generation, w.key),
    n.need,
    s.key,
    1
  from jsonb_each(p_model -> 'workflows') as w
  cross join lateral jsonb_each(w.value -> 'steps') as s
  cross join lateral jsonb_array_elements_text(s.value -> 'needs') as n (need);
end;
$$;

-- HELPER   deepen_ancestors — every ancestor with its shortest distance, level by level; a cycle
--          meets the constraint that no step is its own ancestor
-- WRITES   workflow_ancestor
create or replace function ql.deepen_ancestors (p_workflow_ids text[])
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_distance int := 1;
begin
  loop
    insert into ql.workflow_ancestor (workflow_id, ancestor_key, step_key, distance)
    select distinct
      a.workflow_id,
      n.ancestor_key,
      a.step_key,
      v_distance + 1
    from ql.workflow_ancestor as a
    join ql.workflow_ancestor as n
      on n.workflow_id = a.workflow_id and n.step_key = a.ancestor_key and n.distance = 1
    where a.workflow_id = any (p_workflow_ids) and a.distance = v_distance
    on conflict do nothing;
    exit when not found;
    v_distance := v_distance + 1;
  end loop;
end;
$$;

-- HELPER   set_triggers — triggers follow the newest generation; a cursor stays while the calendar
--          stays the same, a pause stays in any case, an absent trigger is withdrawn
-- LOCKS    trigger, trigger_schedule (waits)
-- WRITES   trigger, trigger_schedule, trigger_fault
create or replace function ql.set_triggers (
  p_package_key text,
  p_generation bigint,
  p_triggers jsonb
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now_ms bigint := ql.now_ms();
begin
  perform ql.hold_triggers(p_package_key, null);
  delete from ql.trigger_fault as f
  where f.package_key = p_package_key;

  update ql.trigger_schedule as s
  set
    next_fire_at_ms = null,
    state_version = s.state_version + 1,
    claim_owner = null,
    claim_token = null,
    claim_expires_at_ms = null,
    claimed_at_ms = null,
    seen_at_ms = null,
    updated_at_ms = v_now_ms
  from ql.trigger as t
  where s.package_key = p_package_key
    and t.package_key = p_package_key
    and t.trigger_key = s.trigger_key
    and p_triggers -> t.trigger_key is not null
    and (
      t.state = 'withdrawn'
      or t.cron <> p_triggers -> t.trigger_key ->> 'cron'
      or t.tz <> p_triggers -> t.trigger_key ->> 'tz'
    );

  insert into ql.trigger as t (
    package_key, trigger_key, generation, state, cron, tz, kind, target_key, misfire, overlap,
    updated_at_ms
  )
  select
    p_package_key,
    j.key,
    p_generation,
    'active',
    j.value ->> 'cron',
    j.value ->> 'tz',
    j.value ->> 'kind',
    j.value ->> 'target',
    j.value ->> 'misfire',
    j.value ->> 'overlap',
    v_now_ms
  from jsonb_each(p_triggers) as j
  on conflict on constraint trigger_pkey do update
  set
    generation = excluded.generation,
    state = case t.state when 'paused' then 'paused' else 'active' end,
    cron = excluded.cron,
    tz = excluded.tz,
    kind = excluded.kind,
    target_key = excluded.target_key,
    misfire = excluded.misfire,
    overlap = excluded.overlap,
    updated_at_ms = excluded.updated_at_ms;

  insert into ql.trigger_schedule (
    package_key, trigger_key, state_version, claim_version, updated_at_ms
  )
  select
    p_package_key,
    j.key,
    1,
    0,
    v_now_ms
  from jsonb_each(p_triggers) as j
  on conflict do nothing;

  update ql.trigger as t
  set
    state = 'withdrawn',
    updated_at_ms = v_now_ms
  where t.package_key = p_package_key
    and t.state <> 'withdrawn'
    and p_triggers -> t.trigger_key is null;
  perform ql.set_due(p_package_key, null);
end;
$$;
