-- ADMISSION — what follows an inserted run: the first event, and a step for each node.
-- Roots are ready, all others pending (DOMAIN §3.2). A task run has one step, `main` (DESIGN §5).
-- The retry of a run takes over what would come out the same: its input is the old run's, so a step
-- is taken over when it succeeded there, its task's text and its needs are the same in both
-- generations, and so it is for every step above it.

-- The steps that retries have: those of a run that is one (`retried_run_id` is another run), and
-- those that a retry of the run itself would have in each generation of its target.
create view takeover_node as
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

-- Each of them by itself: its status in the retried run, and why its result cannot be kept.
create view takeover_alone as
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

-- What becomes of each of them: `cause` null says that it is taken over. What must run again is
-- read first and once; all below it runs again as well, and every ancestor is stored: no walk.
create view takeover as
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

create view admission_effect as
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
