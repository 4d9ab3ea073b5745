-- ADMISSION — what follows an inserted run: the first event, and a step for each node.
-- Roots are ready, all others pending (DOMAIN §3.2). A task run has one step, `main` (DESIGN §5).
-- The retry of a run takes over what would come out the same: its input is the old run's, so a step
-- is taken over when it succeeded there, its task's text and its needs are the same in both
-- generations, and so it is for every step above it. Read with a run and a target, never alone.

-- Results that are there, with the task revisions of the same text; what a task's run asks.
create view takeover_result as
select
  s.run_id,
  s.step_key,
  t.task_id
from step_run as s
join task_revision as o on o.task_id = s.task_id
join task_revision as t on t.package_key = o.package_key and t.digest = o.digest
where s.status = 'succeeded';

-- The steps of a workflow that have such a result and the same direct needs, whatever these do.
create view takeover_alone as
select
  k.run_id,
  w.workflow_id,
  w.step_key
from workflow_step as w
join takeover_result as k on k.step_key = w.step_key and k.task_id = w.task_id
where w.need_count = (
    select o.need_count
    from workflow_step as o
    where o.workflow_id = (select r.target_id from run as r where r.run_id = k.run_id)
      and o.step_key = w.step_key
  )
  and not exists (
    select 1
    from workflow_ancestor as n
    where n.workflow_id = w.workflow_id
      and n.step_key = w.step_key
      and n.distance = 1
      and not exists (
        select 1
        from workflow_ancestor as o
        where o.workflow_id = (select r.target_id from run as r where r.run_id = k.run_id)
          and o.ancestor_key = n.ancestor_key
          and o.step_key = n.step_key
          and o.distance = 1
      )
  );

-- What is taken over. Every ancestor is stored, so that no walk is needed.
create view takeover_step as
select
  k.run_id,
  k.workflow_id,
  k.step_key
from takeover_alone as k
where not exists (
  select 1
  from workflow_ancestor as w
  where w.workflow_id = k.workflow_id
    and w.step_key = k.step_key
    and not exists (
      select 1
      from takeover_alone as b
      where b.run_id = k.run_id
        and b.workflow_id = k.workflow_id
        and b.step_key = w.ancestor_key
    )
);

-- The same for people, before anything happens: each step of the run's target in any generation,
-- its status in the run, and why it runs again; `cause` null says that it is taken over.
create view takeover as
select
  t.run_id,
  t.target_id,
  t.step_key,
  t.status,
  case
    when exists (
      select 1
      from takeover_step as k
      where k.run_id = t.run_id and k.workflow_id = t.target_id and k.step_key = t.step_key
    )
      then null
    when t.status is null then 'not_there'
    when t.status <> 'succeeded' then 'not_succeeded'
    when not exists (
      select 1
      from takeover_result as k
      where k.run_id = t.run_id and k.step_key = t.step_key and k.task_id = t.task_id
    )
      then 'task_changed'
    when t.kind = 'task' then null
    when not exists (
      select 1
      from takeover_alone as k
      where k.run_id = t.run_id and k.workflow_id = t.target_id and k.step_key = t.step_key
    )
      then 'needs_changed'
    else 'need_runs_again'
  end as cause
from (
  select
    r.run_id,
    r.kind,
    w.workflow_id as target_id,
    w.step_key,
    w.task_id,
    (select s.status from step_run as s where s.run_id = r.run_id and s.step_key = w.step_key)
      as status
  from run as r
  join workflow_revision as v on v.package_key = r.package_key and v.workflow_key = r.target_key
  join workflow_step as w on w.workflow_id = v.workflow_id
  where r.kind = 'workflow'
  union all
  select
    r.run_id,
    r.kind,
    k.task_id as target_id,
    'main' as step_key,
    k.task_id,
    (select s.status from step_run as s where s.run_id = r.run_id and s.step_key = 'main')
      as status
  from run as r
  join task_revision as k on k.package_key = r.package_key and k.task_key = r.target_key
  where r.kind = 'task'
) as t;

create view admission_effect as
select
  e.run_id,
  e.ordinal,
  e.entity,
  e.entity_id,
  cast(null as text) as from_status,
  case
    when e.taken_over = 1 then 'succeeded'
    when e.entity = 'run' then 'running'
    when e.need_count = 0 then 'ready'
    else 'pending'
  end as to_status,
  cast(0 as bigint) as expected_version,
  case when e.taken_over = 1 then 'taken_over' end as result_code,
  case
    when e.taken_over = 1 then 'step.taken_over'
    when e.entity = 'run' then 'workflow.admitted'
    else 'step.created'
  end as event_type,
  cast(null as bigint) as due_at_ms,
  e.input_id
from (
  select
    p.run_id,
    -- a fence as well: what is below is decided once, not wherever it is used
    row_number() over (partition by p.run_id order by p.part, p.entity_id) as ordinal,
    p.entity,
    p.entity_id,
    p.need_count,
    p.taken_over,
    p.input_id
  from (
    select
      r.run_id,
      1 as part,
      'run' as entity,
      r.run_id as entity_id,
      cast(0 as bigint) as need_count,
      0 as taken_over,
      cast(null as text) as input_id
    from run as r
    where r.version = 0
    union all
    select
      r.run_id,
      2 as part,
      'step' as entity,
      w.step_key as entity_id,
      w.need_count,
      case
        when exists (
          select 1
          from takeover_step as k
          where k.run_id = r.retry_of_run_id
            and k.workflow_id = w.workflow_id
            and k.step_key = w.step_key
        )
          then 1
        else 0
      end as taken_over,
      w.task_id as input_id
    from run as r
    join workflow_step as w on w.workflow_id = r.target_id
    where r.version = 0 and r.kind = 'workflow'
    union all
    select
      r.run_id,
      2 as part,
      'step' as entity,
      'main' as entity_id,
      cast(0 as bigint) as need_count,
      case
        when exists (
          select 1
          from takeover_result as k
          where k.run_id = r.retry_of_run_id and k.step_key = 'main' and k.task_id = r.target_id
        )
          then 1
        else 0
      end as taken_over,
      r.target_id as input_id
    from run as r
    where r.version = 0 and r.kind = 'task'
  ) as p
) as e;
