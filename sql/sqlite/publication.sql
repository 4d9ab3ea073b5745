-- PUBLICATION — a checked package file becomes a generation.
-- Mirror of sql/postgres/publication.sql.

-- STEP     publish_package — store a manifest, unless it is the active one already
-- LOCKS    the database (begin immediate, by the caller)
-- WRITES   package, package_generation, task_revision, workflow_revision, workflow_step,
--          workflow_ancestor, trigger, trigger_schedule, trigger_fault
-- RETURNS  published | existing
-- RAISES   QL400
-- REPLAY   exact while the generation is active: the same content changes nothing but base_dir
-- CHECK    QL400
insert into temp.refusal (code, message)
select 'QL400', 'a package has a key, a manifest (a JSON object) and a folder'
where coalesce(length(:p_package_key), 0) not between 1 and 63
  or :p_base_dir is null
  or not is_object(:p_manifest);

delete from temp.publication;

insert into temp.publication (manifest, digest, generation, outcome)
select
  c.manifest,
  sha256_hex(c.manifest),
  case when g.digest = sha256_hex(c.manifest) then g.generation
    else coalesce(p.generation, 0) + 1
  end,
  case when g.digest = sha256_hex(c.manifest) then 'existing' else 'published' end
from (select canonical(:p_manifest) as manifest) as c
left join package as p on p.package_key = :p_package_key
left join package_generation as g on g.package_key = :p_package_key and g.state = 'active';

-- CALL     check_manifest

insert into package (package_key, generation, base_dir, updated_at_ms)
select
  :p_package_key,
  m.generation,
  :p_base_dir,
  :now_ms
from temp.publication as m
where true
on conflict (package_key) do update set
  generation = excluded.generation,
  base_dir = excluded.base_dir,
  updated_at_ms = excluded.updated_at_ms
where package.generation <> excluded.generation or package.base_dir <> excluded.base_dir;

update package_generation
set
  state = 'superseded',
  ended_at_ms = :now_ms
where package_key = :p_package_key
  and state = 'active'
  and (select m.outcome from temp.publication as m) = 'published';

insert into package_generation (
  package_key, generation, digest, manifest, published_at_ms, state
)
select
  :p_package_key,
  m.generation,
  m.digest,
  m.manifest,
  :now_ms,
  'active'
from temp.publication as m
where m.outcome = 'published';

-- CALL     publish_revisions
-- REPEAT   publish_deepen

insert into temp.refusal (code, message)
select distinct 'QL400', 'steps wait for each other in a cycle, ' || a.step_key || ' among them'
from temp.ancestor as a
where a.step_key = a.ancestor_key;

insert into workflow_ancestor (workflow_id, ancestor_key, step_key, distance)
select
  a.workflow_id,
  a.ancestor_key,
  a.step_key,
  a.distance
from temp.ancestor as a
where not exists (select 1 from temp.refusal)
order by a.workflow_id, a.ancestor_key, a.step_key;

-- CALL     publish_triggers

select
  :p_package_key as package_key,
  m.generation,
  m.digest,
  m.outcome
from temp.publication as m;

-- STEP     withdraw_package — no new runs; those that exist continue
-- LOCKS    the database (begin immediate, by the caller)
-- WRITES   package_generation, trigger, trigger_schedule, trigger_fault
-- RETURNS  withdrawn | existing
-- RAISES   QL404
-- REPLAY   exact
insert into temp.refusal (code, message)
select 'QL404', 'no package ' || coalesce(:p_package_key, 'null')
where not exists (select 1 from package as p where p.package_key = :p_package_key);

delete from temp.answer;

insert into temp.answer (outcome, number)
select
  case when g.generation is null then 'existing' else 'withdrawn' end,
  coalesce(g.generation, p.generation)
from package as p
left join package_generation as g on g.package_key = p.package_key and g.state = 'active'
where p.package_key = :p_package_key;

update package_generation
set
  state = 'withdrawn',
  ended_at_ms = :now_ms
where package_key = :p_package_key and state = 'active';

update trigger
set
  state = 'withdrawn',
  updated_at_ms = :now_ms
where package_key = :p_package_key and state <> 'withdrawn';

delete from trigger_fault
where package_key = :p_package_key;

-- CALL     set_due

select
  :p_package_key as package_key,
  a.number as generation,
  a.outcome
from temp.answer as a;
