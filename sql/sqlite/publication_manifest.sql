-- MANIFEST — the parts of publication: a model becomes revisions, a graph, triggers. Mirror of
-- sql/postgres/publication_manifest.sql.

-- HELPER   publish_revisions — the tasks, workflows, steps and direct needs of a generation
insert into task_revision (
  task_id, package_key, generation, task_key, digest, spec, timeout_ms, retry_attempts, backoff_ms,
  max_backoff_ms, retry_failed, retry_timed_out, idempotent, on_lost, queue
)
select
  derived_id('ta', :p_package_key, m.generation, t.key),
  :p_package_key,
  m.generation,
  t.key,
  sha256_hex(t.value),
  t.value,
  t.value ->> '$.timeout_ms',
  t.value ->> '$.retry.attempts',
  t.value ->> '$.retry.backoff_ms',
  t.value ->> '$.retry.max_backoff_ms',
  exists (select 1 from json_each(t.value, '$.retry.on') as o where o.value = 'failed'),
  exists (select 1 from json_each(t.value, '$.retry.on') as o where o.value = 'timed_out'),
  t.value ->> '$.idempotent',
  t.value ->> '$.on_lost',
  t.value ->> '$.queue'
from temp.publication as m
cross join json_each(m.manifest, '$.tasks') as t
where m.outcome = 'published';

insert into workflow_revision (
  workflow_id, package_key, generation, workflow_key, timeout_ms, step_count
)
select
  derived_id('wf', :p_package_key, m.generation, w.key),
  :p_package_key,
  m.generation,
  w.key,
  w.value ->> '$.timeout_ms',
  (select count(*) from json_each(w.value, '$.steps'))
from temp.publication as m
cross join json_each(m.manifest, '$.workflows') as w
where m.outcome = 'published';

insert into workflow_step (workflow_id, step_key, task_id, need_count)
select
  derived_id('wf', :p_package_key, m.generation, w.key),
  s.key,
  derived_id('ta', :p_package_key, m.generation, s.value ->> '$.task'),
  (select count(distinct n.value) from json_each(s.value, '$.needs') as n)
from temp.publication as m
cross join json_each(m.manifest, '$.workflows') as w
cross join json_each(w.value, '$.steps') as s
where m.outcome = 'published';

delete from temp.ancestor;

insert into temp.ancestor (workflow_id, step_key, ancestor_key, distance)
select distinct
  derived_id('wf', :p_package_key, m.generation, w.key),
  s.key,
  n.value,
  1
from temp.publication as m
cross join json_each(m.manifest, '$.workflows') as w
cross join json_each(w.value, '$.steps') as s
cross join json_each(s.value, '$.needs') as n
where m.outcome = 'published';

-- HELPER   publish_deepen — ancestors one step further than those of the turn before
insert into temp.ancestor (workflow_id, step_key, ancestor_key, distance)
select distinct
  d.workflow_id,
  d.step_key,
  n.ancestor_key,
  :turn + 1
from temp.ancestor as d
cross join temp.ancestor as n
  on n.workflow_id = d.workflow_id and n.step_key = d.ancestor_key and n.distance = 1
where d.distance = :turn
  and not exists (
    select 1
    from temp.ancestor as b
    where b.workflow_id = d.workflow_id
      and b.step_key = d.step_key
      and b.ancestor_key = n.ancestor_key
  );

-- HELPER   check_manifest — what no table catches: references, sizes. Lists are compared with
--          `not in`, which SQLite builds once; a join of json_each would read the text for each
--          need
-- RAISES   QL400
insert into temp.refusal (code, message)
select
  'QL400',
  'the manifest is of package ' || coalesce(m.manifest ->> '$.package', 'null')
from temp.publication as m
where (m.manifest ->> '$.package') is distinct from :p_package_key
union all
select
  'QL400',
  'workflow ' || w.key || ' has ' || w.step_count || ' steps, not 1 to 128'
from (
  select
    j.key,
    (select count(*) from json_each(j.value, '$.steps')) as step_count
  from temp.publication as m
  cross join json_each(m.manifest, '$.workflows') as j
) as w
where w.step_count not between 1 and 128
union all
select
  'QL400',
  'step ' || s.key || ' of workflow ' || w.key || ': unknown task '
    || coalesce(s.value ->> '$.task', 'null')
from temp.publication as m
cross join json_each(m.manifest, '$.workflows') as w
cross join json_each(w.value, '$.steps') as s
where coalesce(s.value ->> '$.task', '') not in (
  select t.key
  from temp.publication as p
  cross join json_each(p.manifest, '$.tasks') as t
)
union all
select
  'QL400',
  'step ' || s.key || ' of workflow ' || w.key || ': unknown need ' || coalesce(n.value, 'null')
from temp.publication as m
cross join json_each(m.manifest, '$.workflows') as w
cross join json_each(w.value, '$.steps') as s
cross join json_each(s.value, '$.needs') as n
where (w.key, coalesce(n.value, '')) not in (
  select
    j.key,
    b.key
  from temp.publication as p
  cross join json_each(p.manifest, '$.workflows') as j
  cross join json_each(j.value, '$.steps') as b
)
union all
select
  'QL400',
  'trigger ' || g.key || ': unknown ' || coalesce(g.value ->> '$.kind', 'kind') || ' '
    || coalesce(g.value ->> '$.target', 'null')
from temp.publication as m
cross join json_each(m.manifest, '$.triggers') as g
where (coalesce(g.value ->> '$.kind', ''), coalesce(g.value ->> '$.target', '')) not in (
  select
    'workflow',
    w.key
  from temp.publication as p
  cross join json_each(p.manifest, '$.workflows') as w
  union all
  select
    'task',
    t.key
  from temp.publication as p
  cross join json_each(p.manifest, '$.tasks') as t
);

-- HELPER   publish_triggers — triggers follow the newest generation; a cursor stays while the
--          calendar stays the same, a pause stays in any case, an absent trigger is withdrawn
update trigger_schedule
set
  next_fire_at_ms = null,
  state_version = trigger_schedule.state_version + 1,
  claim_owner = null,
  claim_token = null,
  claim_expires_at_ms = null,
  claimed_at_ms = null,
  seen_at_ms = null,
  updated_at_ms = :now_ms
from temp.publication as m
cross join json_each(m.manifest, '$.triggers') as j
cross join trigger as t on t.package_key = :p_package_key and t.trigger_key = j.key
where m.outcome = 'published'
  and trigger_schedule.package_key = :p_package_key
  and trigger_schedule.trigger_key = j.key
  and (
    t.state = 'withdrawn'
    or t.cron <> (j.value ->> '$.cron')
    or t.tz <> (j.value ->> '$.tz')
  );

insert into trigger (
  package_key, trigger_key, generation, state, cron, tz, kind, target_key, misfire, overlap,
  updated_at_ms
)
select
  :p_package_key,
  j.key,
  m.generation,
  'active',
  j.value ->> '$.cron',
  j.value ->> '$.tz',
  j.value ->> '$.kind',
  j.value ->> '$.target',
  j.value ->> '$.misfire',
  j.value ->> '$.overlap',
  :now_ms
from temp.publication as m
cross join json_each(m.manifest, '$.triggers') as j
where m.outcome = 'published'
on conflict (package_key, trigger_key) do update set
  generation = excluded.generation,
  state = case trigger.state when 'paused' then 'paused' else 'active' end,
  cron = excluded.cron,
  tz = excluded.tz,
  kind = excluded.kind,
  target_key = excluded.target_key,
  misfire = excluded.misfire,
  overlap = excluded.overlap,
  updated_at_ms = excluded.updated_at_ms;

insert into trigger_schedule (
  package_key, trigger_key, state_version, claim_version, updated_at_ms
)
select
  :p_package_key,
  j.key,
  1,
  0,
  :now_ms
from temp.publication as m
cross join json_each(m.manifest, '$.triggers') as j
where m.outcome = 'published'
on conflict (package_key, trigger_key) do nothing;

update trigger
set
  state = 'withdrawn',
  updated_at_ms = :now_ms
where package_key = :p_package_key
  and state <> 'withdrawn'
  and (select m.outcome from temp.publication as m) = 'published'
  and trigger_key not in (
    select j.key
    from temp.publication as m
    cross join json_each(m.manifest, '$.triggers') as j
  );

delete from trigger_fault
where package_key = :p_package_key and (select m.outcome from temp.publication as m) = 'published';

-- CALL     set_due
