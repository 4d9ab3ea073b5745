-- PUBLICATION — a manifest becomes a generation (DESIGN §5). The same content is a replay; an older
-- content again is a new number. Runs keep the generation that they were started with.

-- STEP     publish_package — a manifest becomes the active generation of its package
-- LOCKS    package, package_generation (for update: waits for starts that hold the start guard)
-- WRITES   package, package_generation, task_revision, workflow_revision, workflow_step,
--          workflow_ancestor, trigger, trigger_schedule, trigger_fault
-- RETURNS  published | existing
-- RAISES   QL400, QL503
-- REPLAY   exact while the generation is active: the same content changes nothing but base_dir
create or replace function ql_admission.publish_package (
  p_package_key text,
  p_manifest text,
  p_base_dir text
)
returns table (package_key text, generation bigint, digest text, outcome text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  v_now_ms bigint;
  v_model jsonb;
  v_manifest text;
  v_digest text;
  v_generation bigint;
  v_constraint text;
begin
  perform ql.assert_read_committed();
  if coalesce(length(p_package_key), 0) not between 1 and 63
    or p_base_dir is null
    or not coalesce(ql.is_object(p_manifest), false)
  then
    raise exception 'a package has a key, a manifest (a JSON object) and a folder'
      using errcode = 'QL400';
  end if;
  v_model := p_manifest::jsonb;
  v_manifest := ql.canonical(v_model);
  v_digest := ql.sha256_hex(v_manifest);

  insert into ql.package (package_key, generation, base_dir, updated_at_ms)
  values (p_package_key, 0, p_base_dir, ql.now_ms())
  on conflict do nothing;
  perform from ql.package as p where p.package_key = p_package_key for no key update;
  perform from ql.package_generation as g
  where g.package_key = p_package_key and g.state = 'active'
  for update;
  v_now_ms := ql.now_ms();

  select g.generation
  into v_generation
  from ql.package_generation as g
  where g.package_key = p_package_key and g.state = 'active' and g.digest = v_digest;
  if found then
    update ql.package as p
    set
      base_dir = p_base_dir,
      updated_at_ms = v_now_ms
    where p.package_key = p_package_key and p.base_dir <> p_base_dir;
    return query select p_package_key, v_generation, v_digest, 'existing';
    return;
  end if;

  update ql.package as p
  set
    generation = p.generation + 1,
    base_dir = p_base_dir,
    updated_at_ms = v_now_ms
  where p.package_key = p_package_key
  returning p.generation into v_generation;
  update ql.package_generation as g
  set
    state = 'superseded',
    ended_at_ms = v_now_ms
  where g.package_key = p_package_key and g.state = 'active';
  begin
    perform ql.check_manifest(p_package_key, v_model);
    insert into ql.package_generation (
      package_key, generation, digest, manifest, published_at_ms, state
    )
    values (p_package_key, v_generation, v_digest, v_manifest, v_now_ms, 'active');
    perform ql.add_revisions(p_package_key, v_generation, v_model);
    perform ql.deepen_ancestors(
      array(
        select w.workflow_id
        from ql.workflow_revision as w
        where w.package_key = p_package_key and w.generation = v_generation
      )
    );
    perform ql.set_triggers(
      p_package_key, v_generation, coalesce(v_model -> 'triggers', '{}')
    );
  exception
    when data_exception or not_null_violation or check_violation then
      get stacked diagnostics v_constraint = constraint_name;
      raise exception 'the manifest is refused: %', coalesce(nullif(v_constraint, ''), sqlerrm)
        using errcode = 'QL400';
  end;
  return query select p_package_key, v_generation, v_digest, 'published';
end;
$$;

-- STEP     withdraw_package — no new runs of it; existing ones go on, its triggers fire no more
-- LOCKS    package, package_generation (for update), trigger, trigger_schedule
-- WRITES   package_generation, trigger, trigger_schedule, trigger_fault
-- RETURNS  withdrawn | existing
-- RAISES   QL404, QL503
-- REPLAY   exact: a second call finds nothing active
create or replace function ql_admission.withdraw_package (p_package_key text)
returns table (package_key text, generation bigint, outcome text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  v_now_ms bigint;
  v_newest bigint;
  v_generation bigint;
begin
  perform ql.assert_read_committed();
  select p.generation
  into v_newest
  from ql.package as p
  where p.package_key = p_package_key
  for no key update;
  if not found then
    raise exception 'no package %', p_package_key using errcode = 'QL404';
  end if;
  perform from ql.package_generation as g
  where g.package_key = p_package_key and g.state = 'active'
  for update;
  v_now_ms := ql.now_ms();

  update ql.package_generation as g
  set
    state = 'withdrawn',
    ended_at_ms = v_now_ms
  where g.package_key = p_package_key and g.state = 'active'
  returning g.generation into v_generation;
  if not found then
    return query select p_package_key, v_newest, 'existing';
    return;
  end if;
  perform ql.hold_triggers(p_package_key, null);
  update ql.trigger as t
  set
    state = 'withdrawn',
    updated_at_ms = v_now_ms
  where t.package_key = p_package_key and t.state <> 'withdrawn';
  delete from ql.trigger_fault as f
  where f.package_key = p_package_key;
  perform ql.set_due(p_package_key, null);
  return query select p_package_key, v_generation, 'withdrawn';
end;
$$;
