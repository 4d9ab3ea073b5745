-- 0004_retry, postgres: written by scripts/freeze.py, but for what stands between the marks.
set local lock_timeout = '5s';
set local statement_timeout = '60s';
set local search_path = pg_catalog, pg_temp;

set local search_path = ql, pg_catalog, pg_temp;
drop view queue_state;
drop view worker_audit_log;
drop view worker_hold;
drop view worker_state;
drop view fault_state;
drop view agenda_state;
drop view refused_state;
drop view attestation_state;
drop view event_log;
drop view attempt_state;
drop view step_need;
drop view step_state;
drop view input_state;
drop view intent_state;
drop view open_run;
drop view run_state;
drop view trigger_state;
drop view target_state;
drop view package_state;
drop view violation;
drop view agenda_ahead;
drop view agenda_missing;
drop view explain;
drop view retention_due;
drop view cancellation_effect;
drop view cancellation_blocked;
drop view intent_effect;
drop view retry_effect;
drop view retry_longest;
drop view recovery_effect;
drop view recovery_end;
drop view recovery_blocked;
drop view recovery_due;
drop view completion_effect;
drop view completion_end;
drop view dispatch_effect;
drop view task_admission_effect;
drop view frontier_blocked;
drop view frontier_effect;
drop view frontier_skip;
drop view frontier_ready;
drop view schedule_due;
drop view schedule_blocked;
drop view schedule_decision;
drop view admission_effect;
drop view takeover;
drop view takeover_alone;
drop view takeover_node;
drop view live_attempt;
drop view step_run_mutation;
drop view task_attempt_admission;
drop view run_admission;
drop view state_transition;
set local search_path = pg_catalog, pg_temp;

-- by hand: tables, and what else must come first
-- squawk-ignore-file ban-drop-view
-- LOCKS    no table; views and functions are made anew. Open runs are read, and rows of trigger_run
--          written for those of them that are retries.

-- Retries that are open now belong to their trigger from now on. Of a chain only what the trigger
-- itself started has a row, so there is one at the most for each.
with recursive chain (run_id, since_ms, ancestor_id) as (
  select
    r.run_id,
    r.admitted_at_ms,
    r.retry_of_run_id
  from ql.run as r
  where r.finished_at_ms is null and r.retry_of_run_id is not null
  union all
  select
    c.run_id,
    c.since_ms,
    r.retry_of_run_id
  from chain as c
  join ql.run as r on r.run_id = c.ancestor_id
  where r.retry_of_run_id is not null
)
insert into ql.trigger_run (run_id, package_key, trigger_key, open_at_ms)
select
  c.run_id,
  m.package_key,
  m.trigger_key,
  c.since_ms
from chain as c
join ql.trigger_run as m on m.run_id = c.ancestor_id;
-- end of what is by hand

set local search_path = ql, pg_catalog, pg_temp;
-- from sql/decision/state.sql sha256 6a0c5f310593de7b4ddfd7c732ba40300618c4ec2038f5051b3d7a6252b42cdd
-- STATE — the machines of DESIGN §5 and DOMAIN §3 as relations, and the admissions as views.
-- Every decision below reads facts of one run; callers filter by run_id and by nothing else.

create view state_transition as
with legal (entity, from_status, to_status) as (
  values
    ('run', 'running', 'running'),  -- the intent
    ('run', 'running', 'succeeded'),
    ('run', 'running', 'failed'),
    ('run', 'running', 'cancelled'),
    ('run', 'running', 'timed_out'),
    ('step', 'pending', 'ready'),
    ('step', 'pending', 'skipped'),
    ('step', 'pending', 'cancelled'),
    ('step', 'ready', 'ready'),  -- a new epoch after a claim came back
    ('step', 'ready', 'waiting_approval'),
    ('step', 'ready', 'running'),
    ('step', 'ready', 'retry_wait'),
    ('step', 'ready', 'failed'),
    ('step', 'ready', 'skipped'),
    ('step', 'ready', 'cancelled'),
    ('step', 'ready', 'timed_out'),
    ('step', 'waiting_approval', 'ready'),
    ('step', 'waiting_approval', 'running'),
    ('step', 'waiting_approval', 'cancelled'),
    ('step', 'waiting_approval', 'timed_out'),
    ('step', 'running', 'retry_wait'),
    ('step', 'running', 'lost'),
    ('step', 'running', 'succeeded'),
    ('step', 'running', 'failed'),
    ('step', 'running', 'cancelled'),
    ('step', 'running', 'timed_out'),
    ('step', 'retry_wait', 'ready'),
    ('step', 'retry_wait', 'cancelled'),
    ('step', 'retry_wait', 'timed_out'),
    ('step', 'lost', 'ready'),
    ('step', 'lost', 'failed'),
    ('step', 'lost', 'cancelled'),
    ('attempt', 'claimed', 'starting'),
    ('attempt', 'claimed', 'cancelled'),
    ('attempt', 'claimed', 'timed_out'),
    ('attempt', 'claimed', 'lost'),
    ('attempt', 'starting', 'running'),
    ('attempt', 'starting', 'succeeded'),
    ('attempt', 'starting', 'failed'),
    ('attempt', 'starting', 'cancelled'),
    ('attempt', 'starting', 'timed_out'),
    ('attempt', 'starting', 'lost'),
    ('attempt', 'running', 'succeeded'),
    ('attempt', 'running', 'failed'),
    ('attempt', 'running', 'cancelled'),
    ('attempt', 'running', 'timed_out'),
    ('attempt', 'running', 'lost'),
    ('lease', 'released', 'leased'),
    ('lease', 'leased', 'released'),
    ('lease', 'leased', 'completed')
)
select
  l.entity,
  l.from_status,
  l.to_status
from legal as l;

create view run_admission as
select
  r.run_id,
  r.package_key,
  r.generation,
  r.kind,
  r.target_key,
  r.target_id,
  r.run_key,
  r.input_digest,
  r.step_count,
  r.deadline_at_ms,
  r.retry_of_run_id,
  r.trigger_key,
  r.scheduled_at_ms,
  r.admitted_at_ms
from run as r;

create view task_attempt_admission as
select
  a.attempt_id,
  a.run_id,
  a.number,
  a.step_key,
  a.epoch,
  a.task_id,
  a.queue,
  a.jitter,
  a.admitted_at_ms
from task_attempt as a;

-- One mutation a step row and event; its id is the event's (DESIGN §4, derived ids).
create view step_run_mutation as
select
  e.run_id,
  e.run_id || '.' || cast(e.sequence as text) as mutation_id,
  e.sequence,
  e.entity_id as step_key,
  e.from_status,
  e.to_status,
  e.entity_version as step_version,
  e.result_code,
  e.created_at_ms
from run_event as e
where e.entity = 'step';

-- An attempt that may still act, with all that decides about it; no row for ended ones. It may have
-- no lease yet. It always has a revision; by `left join` only who names its columns reads it.
-- `started_count` counts this one as past the start barrier. The back-off doubles from `backoff` to
-- `max_backoff`; the jitter is a digest that admission stored, up to an eighth more (DESIGN §5).
create view live_attempt as
select
  a.run_id,
  a.attempt_id,
  a.step_key,
  a.status,
  a.version,
  a.epoch,
  a.deadline_at_ms,
  a.jitter,
  l.status as lease_status,
  l.version as lease_version,
  l.fence,
  (select r.cancel_reason from run as r where r.run_id = a.run_id) as cancel_reason,
  s.status as step_status,
  s.version as step_version,
  s.attempt_count + case when s.status = 'ready' then 1 else 0 end as started_count,
  s.claim_return_count,
  t.retry_attempts,
  t.retry_failed,
  t.retry_timed_out,
  t.on_lost,
  (
    select d.delay_ms + d.delay_ms * a.jitter / 8192
    from (
      select
        case
          when t.max_backoff_ms >> cast(
              s.attempt_count + case when s.status = 'ready' then 0 else -1 end as int
            ) < t.backoff_ms
            then t.max_backoff_ms
          else t.backoff_ms << cast(
            s.attempt_count + case when s.status = 'ready' then 0 else -1 end as int
          )
        end as delay_ms
    ) as d
  ) as delay_ms
from task_attempt as a
join step_run as s on s.run_id = a.run_id and s.step_key = a.step_key
left join attempt_lease as l on l.attempt_id = a.attempt_id
left join task_revision as t on t.task_id = a.task_id
where a.status in ('claimed', 'starting', 'running');

-- from sql/decision/admission.sql sha256 332c2f124e7f7d61175f3d45d50d67730b937ce4939a1416a7e4db1898437ebb
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

-- from sql/decision/schedule.sql sha256 ca02311c762f12a1cd0ca1da3768d73726aebf68ba0f23d07817317f3363db82
-- SCHEDULE — what becomes of a trigger's occurrence (DOMAIN §3.10). A view has no clock, so each
-- way in which a step may find an occurrence is a row: `early` (not due yet), `on_time` (due for at
-- most the grace), `late`. Many missed ones are one, the oldest: the cursor goes on from what was
-- observed.
--
--   initialize   the cursor is set, nothing starts
--   skip         the occurrence is over without a run; `cause` says why
--   admit        exactly one run
--
-- In the way of `overlap: skip` is each open run that trigger_run knows: what the trigger started,
-- by the clock or by hand, and a retry of it, of whatever length the chain.

create view schedule_decision as
with arrival (word) as (
  values ('early'), ('on_time'), ('late')
)
select
  t.package_key,
  t.trigger_key,
  a.word as arrival,
  case
    when a.word = 'early' then 'initialize'
    when a.word = 'late' and t.misfire = 'skip' then 'skip'
    when t.overlap = 'skip'
      and exists (
        select 1
        from trigger_run as m
        where m.package_key = t.package_key
          and m.trigger_key = t.trigger_key
          and m.open_at_ms is not null
          and (select r.status from run as r where r.run_id = m.run_id) = 'running'
      )
      then 'skip'
    else 'admit'
  end as disposition,
  case
    when a.word = 'early' then null
    when a.word = 'late' and t.misfire = 'skip' then 'misfire'
    when t.overlap = 'skip'
      and exists (
        select 1
        from trigger_run as m
        where m.package_key = t.package_key
          and m.trigger_key = t.trigger_key
          and m.open_at_ms is not null
          and (select r.status from run as r where r.run_id = m.run_id) = 'running'
      )
      then 'overlap'
  end as cause
from trigger as t
cross join arrival as a
where t.state = 'active'
  and exists (
    select 1
    from package_generation as g
    where g.package_key = t.package_key
      and g.generation = t.generation
      and g.state = 'active'
  );

-- What stands between a trigger and its next run, if anything does but the time.
create view schedule_blocked as
select
  t.package_key,
  t.trigger_key,
  'resume' as waits_for,
  t.state as waits_on,
  t.updated_at_ms as since_ms,
  cast(null as bigint) as due_at_ms,
  'an operator resumes it' as resolved_by
from trigger as t
where t.state = 'paused'
union all
select
  f.package_key,
  f.trigger_key,
  'fault' as waits_for,
  f.error as waits_on,
  f.first_at_ms as since_ms,
  f.next_try_at_ms as due_at_ms,
  'the next try at due_at_ms, a new generation, or an operator resumes it' as resolved_by
from trigger_fault as f
union all
select
  m.package_key,
  m.trigger_key,
  'overlap' as waits_for,
  m.run_id as waits_on,
  m.open_at_ms as since_ms,
  cast(null as bigint) as due_at_ms,
  'the end of that run' as resolved_by
from trigger_run as m
where m.open_at_ms is not null
  and (select r.status from run as r where r.run_id = m.run_id) = 'running'
  and (
    select t.overlap
    from trigger as t
    where t.package_key = m.package_key and t.trigger_key = m.trigger_key and t.state = 'active'
  ) = 'skip';

-- When a trigger is looked at again: what trigger_schedule.due_at_ms is to say.
create view schedule_due as
select
  t.package_key,
  t.trigger_key,
  case
    when t.state <> 'active' then null
    when s.claim_token is not null then s.claim_expires_at_ms
    else coalesce(
      (
        select f.next_try_at_ms
        from trigger_fault as f
        where f.package_key = t.package_key and f.trigger_key = t.trigger_key
      ),
      s.next_fire_at_ms,
      0
    )
  end as due_at_ms
from trigger as t
join trigger_schedule as s on s.package_key = t.package_key and s.trigger_key = t.trigger_key;

-- from sql/decision/frontier.sql sha256 dd4c95a15b531123420b959b1ea9a1b4e870203a1f874a9b475c12ab3b641601
-- FRONTIER — which pending steps open, which can never run, and when a run ends (DOMAIN §3.3).
-- All needs must succeed. A step with any ancestor that ended otherwise is skipped in the same
-- pass, because every ancestor is stored: a join, no walk. Runs with an intent are cancellation's.

create view frontier_ready as
select
  s.run_id,
  s.step_key,
  s.version
from step_run as s
where s.status = 'pending'
  and not exists (
    select 1
    from workflow_ancestor as w
    where w.workflow_id = (select r.target_id from run as r where r.run_id = s.run_id)
      and w.step_key = s.step_key
      and w.distance = 1
      and not exists (
        select 1
        from step_run as n
        where n.run_id = s.run_id and n.step_key = w.ancestor_key and n.status = 'succeeded'
      )
  );

-- The steps that ended otherwise are read first and once (distinct keeps them apart from the join):
-- a run without any costs one look at its steps.
create view frontier_skip as
select distinct
  b.run_id,
  s.step_key,
  s.version
from (
  select distinct
    n.run_id,
    n.step_key
  from step_run as n
  where n.status in ('failed', 'skipped', 'cancelled', 'timed_out')
) as b
join workflow_ancestor as w
  on w.workflow_id = (select r.target_id from run as r where r.run_id = b.run_id)
  and w.ancestor_key = b.step_key
join step_run as s on s.run_id = b.run_id and s.step_key = w.step_key
where s.status = 'pending';

create view frontier_effect as
select
  e.run_id,
  row_number() over (partition by e.run_id order by e.part, e.entity_id) as ordinal,
  e.entity,
  e.entity_id,
  e.from_status,
  e.to_status,
  e.expected_version,
  e.result_code,
  e.event_type,
  cast(null as bigint) as due_at_ms,
  cast(null as text) as input_id
from (
  select
    f.run_id,
    1 as part,
    'step' as entity,
    f.step_key as entity_id,
    'pending' as from_status,
    'ready' as to_status,
    f.version as expected_version,
    cast(null as text) as result_code,
    'step.ready' as event_type
  from frontier_ready as f
  union all
  select
    f.run_id,
    1 as part,
    'step' as entity,
    f.step_key as entity_id,
    'pending' as from_status,
    'skipped' as to_status,
    f.version as expected_version,
    'dependency_not_succeeded' as result_code,
    'step.skipped' as event_type
  from frontier_skip as f
  union all
  select
    d.run_id,
    2 as part,
    'run' as entity,
    d.run_id as entity_id,
    'running' as from_status,
    d.to_status,
    d.version as expected_version,
    case when d.to_status <> 'succeeded' then 'workflow_step_' || d.to_status end as result_code,
    'workflow.' || d.to_status as event_type
  from (
    select
      r.run_id,
      r.version,
      (
        select
          case min(
              case t.status
                when 'failed' then 1
                when 'timed_out' then 2
                when 'cancelled' then 3
                else 4
              end
            )
            when 1 then 'failed'
            when 2 then 'timed_out'
            when 3 then 'cancelled'
            else 'succeeded'
          end
        from step_run as t
        where t.run_id = r.run_id
      ) as to_status
    from run as r
    where not exists (
        select 1
        from step_run as a
        where a.run_id = r.run_id
          and a.status in ('ready', 'waiting_approval', 'running', 'retry_wait', 'lost')
      )
      -- a pending step that does not open here has an ancestor that ended otherwise: it is skipped
      and not exists (select 1 from frontier_ready as f where f.run_id = r.run_id)
  ) as d
) as e
where (
    select case when r.cancel_requested_at_ms is null then r.status end
    from run as r
    where r.run_id = e.run_id
  ) = 'running';

create view frontier_blocked as
select
  s.run_id,
  s.step_key,
  w.ancestor_key as waits_on,
  (select n.status from step_run as n where n.run_id = s.run_id and n.step_key = w.ancestor_key)
    as need_status
from step_run as s
join workflow_ancestor as w
  on w.workflow_id = (select r.target_id from run as r where r.run_id = s.run_id)
  and w.step_key = s.step_key
  and w.distance = 1
where s.status = 'pending'
  and (select n.status from step_run as n where n.run_id = s.run_id and n.step_key = w.ancestor_key)
    is distinct from 'succeeded';

-- from sql/decision/task_admission.sql sha256 f7aadc722af21f3c609c1dc4b8eceaa8e4a0e654765441db07f66925224b18e7
-- TASK ADMISSION — one attempt for each ready step and epoch; the step stays ready (DOMAIN §3.4).
-- The attempt's number comes from the run's counter; past 8192 the step fails instead.

create view task_admission_effect as
select
  e.run_id,
  row_number() over (partition by e.run_id order by e.step_key) as ordinal,
  case when e.number <= 8192 then 'attempt' else 'step' end as entity,
  case when e.number <= 8192 then e.run_id || '-' || cast(e.number as text) else e.step_key end
    as entity_id,
  case when e.number > 8192 then 'ready' end as from_status,
  case when e.number <= 8192 then 'claimed' else 'failed' end as to_status,
  case when e.number <= 8192 then 0 else e.version end as expected_version,
  case when e.number > 8192 then 'attempt_budget_exhausted' end as result_code,
  case when e.number <= 8192 then 'workflow.task_attempt_admitted' else 'step.failed' end
    as event_type,
  cast(null as bigint) as due_at_ms,
  case when e.number <= 8192 then e.step_key end as input_id
from (
  select
    s.run_id,
    s.step_key,
    s.version,
    (select r.attempt_count from run as r where r.run_id = s.run_id)
      + row_number() over (partition by s.run_id order by s.step_key) as number
  from step_run as s
  where s.status = 'ready'
    and not exists (
      select 1
      from task_attempt as a
      where a.run_id = s.run_id and a.step_key = s.step_key and a.epoch = s.version
    )
    and (
      select case when r.cancel_requested_at_ms is null then r.status end
      from run as r
      where r.run_id = s.run_id
    ) = 'running'
) as e;

-- from sql/decision/dispatch.sql sha256 cdcf79ba840a88f97680d4a08f369493c2457a9179bd28d79b8dcc0156af03f1
-- DISPATCH — what an offer, a starting ACK and a running ACK do (DOMAIN §3.5, DESIGN §5).
-- An offer takes the lease of a claimed attempt. The starting ACK is the start barrier; under an
-- intent it is refused, and the lease goes back because nothing has started. The running ACK counts
-- even under an intent: it tells the truth about something that runs.

create view dispatch_effect as
select
  e.run_id,
  e.ordinal,
  e.entity,
  e.entity_id,
  e.from_status,
  e.to_status,
  e.expected_version,
  e.result_code,
  e.event_type,
  cast(null as bigint) as due_at_ms,
  e.input_id
from (
  select
    w.run_id,
    row_number() over (partition by w.run_id order by w.attempt_id, b.part) as ordinal,
    b.entity,
    case b.entity when 'step' then w.step_key else w.attempt_id end as entity_id,
    case b.entity when 'lease' then w.lease_status else b.from_status end as from_status,
    w.turn as to_status,
    case
      when b.entity = 'attempt' then w.version
      when b.entity = 'step' then w.step_version
      when w.lease_status is null then 0
      else w.lease_version
    end as expected_version,
    case w.turn when 'released' then 'start_refused' end as result_code,
    b.event_type,
    case w.turn
      when 'leased' then (
        select o.offer_id
        from attempt_offer as o
        where o.run_id = w.run_id and o.attempt_id = w.attempt_id and o.fence = w.fence
      )
      else (
        select p.attempt_id
        from attempt_report as p
        where p.run_id = w.run_id
          and p.attempt_id = w.attempt_id
          and p.fence = w.fence
          and p.kind = case w.turn when 'running' then 'running' else 'starting' end
      )
    end as input_id
  from (
    select
      f.run_id,
      f.attempt_id,
      f.step_key,
      f.version,
      f.step_version,
      f.lease_status,
      f.lease_version,
      f.epoch_stands,
      case
        when f.lease_status is null or f.lease_status = 'released'
          then case when f.status = 'claimed' and f.cancel_reason is null then 'leased' end
        when f.lease_status <> 'leased' then null
        when f.status = 'starting' then 'running'
        when f.status <> 'claimed' then null
        when f.cancel_reason is null then 'starting'
        else 'released'
      end as turn,
      case f.lease_status when 'leased' then f.fence else coalesce(f.fence, 0) + 1 end as fence
    from (
      select
        v.run_id,
        v.attempt_id,
        v.step_key,
        v.status,
        v.version,
        v.step_version,
        v.lease_status,
        v.lease_version,
        v.fence,
        v.cancel_reason,
        case when v.step_status = 'ready' and v.step_version = v.epoch then 1 else 0 end
          as epoch_stands,
        -- a fence: what is above is looked up once, not wherever it is used
        row_number() over (partition by v.run_id order by v.attempt_id) as position
      from live_attempt as v
      -- most of a wide run waits for an offer: that is seen before it is decided about
      where v.lease_status = 'leased' or exists (
        select 1
        from attempt_offer as o
        where o.run_id = v.run_id
          and o.attempt_id = v.attempt_id
          and o.fence = coalesce(v.fence, 0) + 1
      )
    ) as f
  ) as w
  join (
    select
      'leased' as turn,
      1 as part,
      'lease' as entity,
      cast(null as text) as from_status,
      'workflow.task_dispatch_leased' as event_type
    union all
    select
      'released' as turn,
      1 as part,
      'lease' as entity,
      null as from_status,
      'workflow.task_dispatch_released' as event_type
    union all
    select
      'starting' as turn,
      1 as part,
      'attempt' as entity,
      'claimed' as from_status,
      'workflow.task_attempt.starting' as event_type
    union all
    select
      'running' as turn,
      1 as part,
      'attempt' as entity,
      'starting' as from_status,
      'workflow.task_attempt.running' as event_type
    union all
    select
      'running' as turn,
      2 as part,
      'step' as entity,
      'ready' as from_status,
      'step.running' as event_type
  ) as b on b.turn = w.turn
  where (w.epoch_stands = 1 or w.turn = 'released')
    and not (
      w.turn = 'running'
      and exists (
        select 1
        from attempt_report as q
        where q.run_id = w.run_id
          and q.attempt_id = w.attempt_id
          and q.fence = w.fence
          and q.kind = 'ended'
      )
    )
) as e
where e.input_id is not null;

-- from sql/decision/completion.sql sha256 61e2af7e2807d2becd04b7b66c78f7835bb30634f498e26c357b15b7c99652a2
-- COMPLETION — what a worker's report of an end does (DOMAIN §3.5; retry: DESIGN §5).
-- Priority: not started, intent, deadline, exit 0, failure. With an intent the reason decides, so a
-- clean exit after a stop request is recorded as cancelled. A report from `starting` writes
-- ready → running → end. `not_started` returns the claim and costs no retry.

create view completion_end as
select
  x.run_id,
  x.attempt_id,
  x.step_key,
  x.status,
  x.version,
  x.step_status,
  x.step_version,
  x.claim_return_count,
  x.attempt_end,
  case x.attempt_end
    when 'lost' then 'not_started'
    when 'timed_out' then 'execution_timed_out'
    when 'cancelled' then 'execution_cancelled'
    when 'failed' then case x.how
      when 'bad_output' then 'bad_output'
      when 'start_failed' then 'executor_start_failed'
      when 'stop' then 'execution_stopped'
      else 'execution_failed'
    end
  end as code,
  case
    when x.cancel_reason is null
      and x.started_count < x.retry_attempts
      and (
        (x.attempt_end = 'failed' and x.retry_failed = 1)
        or (x.attempt_end = 'timed_out' and x.retry_timed_out = 1)
      )
      then x.reported_at_ms + x.delay_ms
  end as retry_at_ms
from (
  select
    v.run_id,
    v.attempt_id,
    v.step_key,
    v.status,
    v.version,
    v.step_status,
    v.step_version,
    v.started_count,
    v.claim_return_count,
    v.retry_attempts,
    v.retry_failed,
    v.retry_timed_out,
    v.delay_ms,
    v.cancel_reason,
    p.reported_at_ms,
    p.how,
    (
      select
        case
          when p.how = 'not_started' then 'lost'
          when r.cancel_reason = 'timeout' then 'timed_out'
          when r.cancel_reason is not null then 'cancelled'
          when p.how = 'deadline' or v.deadline_at_ms <= p.reported_at_ms then 'timed_out'
          when p.how = 'exit' and p.exit_code = 0 then 'succeeded'
          else 'failed'
        end
      from run as r
      where r.run_id = v.run_id
    ) as attempt_end,
    -- a fence: what is above is decided once, not wherever it is used
    row_number() over (partition by v.run_id order by v.attempt_id) as position
  from live_attempt as v
  join attempt_report as p
    on p.run_id = v.run_id
    and p.attempt_id = v.attempt_id
    and p.kind = 'ended'
  where p.fence = (
      select l.fence from attempt_lease as l
      where l.attempt_id = v.attempt_id and l.status = 'leased'
    )
    and (v.status in ('starting', 'running') or p.how = 'not_started')
    and (v.status <> 'running' or p.how <> 'not_started')
) as x;

-- Told in parts: 1 the step that starts with its end (from `ready`), 2 the attempt, 3 the step.
create view completion_effect as
select
  e.run_id,
  row_number() over (partition by e.run_id order by e.attempt_id, e.part) as ordinal,
  case e.part when 2 then 'attempt' else 'step' end as entity,
  case e.part when 2 then e.attempt_id else e.step_key end as entity_id,
  e.from_status,
  e.to_status,
  case
    when e.part = 2 then e.version
    when e.part = 3 and e.from_status = 'running' and e.step_status = 'ready'
      then e.step_version + 1
    else e.step_version
  end as expected_version,
  case
    when e.part = 1 or e.to_status = 'ready' then null
    when e.part = 3 and e.from_status = 'ready' then 'claim_budget_exhausted'
    else e.code
  end as result_code,
  case e.part when 2 then 'workflow.task_attempt.' else 'step.' end || e.to_status as event_type,
  case when e.to_status = 'retry_wait' then e.retry_at_ms end as due_at_ms,
  e.attempt_id as input_id
from (
  select
    c.run_id,
    c.attempt_id,
    c.step_key,
    c.version,
    c.step_status,
    c.step_version,
    c.code,
    c.retry_at_ms,
    b.part,
    case
      when b.part = 2 then c.status
      when b.part = 1 or c.attempt_end = 'lost' then 'ready'
      else 'running'
    end as from_status,
    case
      when b.part = 1 then 'running'
      when b.part = 2 then c.attempt_end
      when c.attempt_end <> 'lost' and c.retry_at_ms is not null then 'retry_wait'
      when c.attempt_end <> 'lost' then c.attempt_end
      when c.claim_return_count < 63 then 'ready'
      else 'failed'
    end as to_status
  from completion_end as c
  cross join (select 1 as part union all select 2 as part union all select 3 as part) as b
  where b.part > 1 or (c.step_status = 'ready' and c.attempt_end <> 'lost')
) as e;

-- from sql/decision/recovery.sql sha256 f92f43167529e382baa09b8996bfcff734e04192f177ba9a92d0e5a93c60d2f1
-- RECOVERY — what may be done about an attempt whose worker is silent (DESIGN §9).
-- A lease that expires proves nothing by itself. `recovery_due` says which evidence the clock gives
-- and when; the step writes it as an attestation, and `recovery_effect` decides from attestations.

create view recovery_due as
select
  v.run_id,
  v.attempt_id,
  case when v.status = 'claimed' then 'expired' else 'fenced' end as evidence,
  l.expires_at_ms + case when v.status = 'claimed' then 0 else l.grace_ms end as due_at_ms
from live_attempt as v
join attempt_lease as l on l.attempt_id = v.attempt_id
where l.status = 'leased'
  and (v.status = 'claimed' or (l.self_fencing = 1 and v.on_lost <> 'hold'));

-- Work past the barrier that no clock resolves: it waits for its worker, or for a declaration.
create view recovery_blocked as
select
  v.run_id,
  v.attempt_id,
  v.step_key,
  case when v.on_lost = 'hold' then 'hold' else 'evidence' end as waits_for,
  l.worker_id as waits_on,
  l.expires_at_ms as due_at_ms
from live_attempt as v
join attempt_lease as l on l.attempt_id = v.attempt_id
where l.status = 'leased'
  and v.status in ('starting', 'running')
  and (l.self_fencing = 0 or v.on_lost = 'hold');

-- One dead worker loses much at one moment, so what it left does not come back at one: each waits
-- 5 ms more a point of its jitter (0 to 1023), so up to 5.1 s, however short its back-off. That an
-- operator wants it tried again is about one attempt, and is not put off.
create view recovery_end as
select
  x.run_id,
  x.attempt_id,
  x.step_key,
  x.status,
  x.version,
  x.step_status,
  x.step_version,
  x.claim_return_count,
  x.cancel_reason,
  x.attempt_end,
  x.code,
  case
    when x.cancel_reason is not null or x.started_count >= 64 then null
    when x.follow = 'retry' then x.attested_at_ms + x.delay_ms
    when x.follow = 'fail' or x.started_count >= x.retry_attempts then null
    when x.attempt_end = 'timed_out' and x.retry_timed_out = 1
      then x.attested_at_ms + x.delay_ms + 5 * x.jitter
    when x.attempt_end = 'lost' and x.on_lost = 'retry'
      then x.attested_at_ms + x.delay_ms + 5 * x.jitter
  end as retry_at_ms
from (
  select
    v.run_id,
    v.attempt_id,
    v.step_key,
    v.status,
    v.version,
    v.step_status,
    v.step_version,
    v.started_count,
    v.claim_return_count,
    v.cancel_reason,
    v.retry_attempts,
    v.retry_timed_out,
    v.on_lost,
    v.delay_ms,
    v.jitter,
    n.follow,
    n.attested_at_ms,
    case
      when v.status <> 'claimed'
        and v.cancel_reason is null
        and v.deadline_at_ms <= n.attested_at_ms
        then 'timed_out'
      else 'lost'
    end as attempt_end,
    case
      when v.status = 'claimed' then 'claim_expired'
      when v.cancel_reason is null and v.deadline_at_ms <= n.attested_at_ms
        then 'execution_timed_out'
      else 'execution_lost'
    end as code
  from live_attempt as v
  join attestation as n on n.run_id = v.run_id and n.attempt_id = v.attempt_id
  where (n.evidence <> 'expired' or v.status = 'claimed')
    and (n.evidence <> 'fenced' or v.on_lost <> 'hold')
) as x;

-- Past the barrier, without an intent: retry_wait, timed_out, or failed (running by way of lost).
-- With an intent on_lost is not asked: a running step becomes lost, and convergence ends it.
create view recovery_effect as
select
  e.run_id,
  row_number() over (partition by e.run_id order by e.attempt_id, e.part) as ordinal,
  e.entity,
  e.entity_id,
  e.from_status,
  e.to_status,
  e.expected_version,
  e.result_code,
  e.event_type,
  e.due_at_ms,
  e.attempt_id as input_id
from (
  select
    c.run_id,
    c.attempt_id,
    1 as part,
    'attempt' as entity,
    c.attempt_id as entity_id,
    c.status as from_status,
    c.attempt_end as to_status,
    c.version as expected_version,
    c.code as result_code,
    'workflow.task_attempt.' || c.attempt_end as event_type,
    cast(null as bigint) as due_at_ms
  from recovery_end as c
  union all
  select
    c.run_id,
    c.attempt_id,
    2 as part,
    'step' as entity,
    c.step_key as entity_id,
    'ready' as from_status,
    case when c.claim_return_count < 63 then 'ready' else 'failed' end as to_status,
    c.step_version as expected_version,
    case when c.claim_return_count < 63 then null else 'claim_budget_exhausted' end as result_code,
    case when c.claim_return_count < 63 then 'step.ready' else 'step.failed' end as event_type,
    cast(null as bigint) as due_at_ms
  from recovery_end as c
  where c.status = 'claimed'
  union all
  select
    c.run_id,
    c.attempt_id,
    2 as part,
    'step' as entity,
    c.step_key as entity_id,
    c.step_status as from_status,
    'retry_wait' as to_status,
    c.step_version as expected_version,
    c.code as result_code,
    'step.retry_wait' as event_type,
    c.retry_at_ms as due_at_ms
  from recovery_end as c
  where c.status <> 'claimed' and c.retry_at_ms is not null
  union all
  select
    c.run_id,
    c.attempt_id,
    2 as part,
    'step' as entity,
    c.step_key as entity_id,
    c.step_status as from_status,
    'timed_out' as to_status,
    c.step_version as expected_version,
    c.code as result_code,
    'step.timed_out' as event_type,
    cast(null as bigint) as due_at_ms
  from recovery_end as c
  where c.status <> 'claimed' and c.retry_at_ms is null and c.attempt_end = 'timed_out'
  union all
  select
    c.run_id,
    c.attempt_id,
    2 as part,
    'step' as entity,
    c.step_key as entity_id,
    'running' as from_status,
    'lost' as to_status,
    c.step_version as expected_version,
    c.code as result_code,
    'step.lost' as event_type,
    cast(null as bigint) as due_at_ms
  from recovery_end as c
  where c.status <> 'claimed'
    and c.retry_at_ms is null
    and c.attempt_end = 'lost'
    and c.step_status = 'running'
  union all
  select
    c.run_id,
    c.attempt_id,
    3 as part,
    'step' as entity,
    c.step_key as entity_id,
    case when c.step_status = 'running' then 'lost' else 'ready' end as from_status,
    'failed' as to_status,
    c.step_version + case when c.step_status = 'running' then 1 else 0 end as expected_version,
    c.code as result_code,
    'step.failed' as event_type,
    cast(null as bigint) as due_at_ms
  from recovery_end as c
  where c.status <> 'claimed'
    and c.retry_at_ms is null
    and c.attempt_end = 'lost'
    and c.cancel_reason is null
) as e;

-- The longest that a step may wait, jitter included, as after a loss. A back-off that ends further
-- ahead was written by a clock that was ahead: nobody knows how much of it is left, and it is over.
create view retry_longest as
select
  s.run_id,
  s.step_key,
  s.due_at_ms,
  t.max_backoff_ms + t.max_backoff_ms / 8 + 5 * 1023 as longest_ms
from step_run as s
join task_revision as t on t.task_id = s.task_id
where s.status = 'retry_wait';

-- A back-off that is over opens a new epoch. The step takes effects whose `due_at_ms` has come, or
-- is further ahead than `retry_longest` says.
create view retry_effect as
select
  s.run_id,
  row_number() over (partition by s.run_id order by s.step_key) as ordinal,
  'step' as entity,
  s.step_key as entity_id,
  'retry_wait' as from_status,
  'ready' as to_status,
  s.version as expected_version,
  cast(null as text) as result_code,
  'step.ready' as event_type,
  s.due_at_ms,
  cast(null as text) as input_id
from step_run as s
where s.status = 'retry_wait'
  and (
    select case when r.cancel_requested_at_ms is null then r.status end
    from run as r
    where r.run_id = s.run_id
  ) = 'running';

-- from sql/decision/cancellation.sql sha256 2172616e6147a561e58eb6b9461bd9a48fbadfa4185b73501e49437def846d49
-- CANCELLATION — an intent first, convergence after it (DOMAIN §3.9, DESIGN §5).
-- The first intent wins. Convergence ends what nobody holds: attempts without a live lease, steps
-- without such an attempt, and the run once nothing stands in the way. A lease with status `leased`
-- blocks even after its expiry; recovery releases it. The reason decides between the two ends.

create view intent_effect as
select
  r.run_id,
  cast(1 as bigint) as ordinal,
  'run' as entity,
  r.run_id as entity_id,
  'running' as from_status,
  'running' as to_status,
  r.version as expected_version,
  cast(null as text) as result_code,
  'run.cancel_requested' as event_type,
  cast(null as bigint) as due_at_ms,
  r.run_id as input_id
from run as r
where r.status = 'running'
  and r.cancel_requested_at_ms is null
  and exists (select 1 from cancel_intent as i where i.run_id = r.run_id);

create view cancellation_blocked as
select
  v.run_id,
  v.step_key,
  v.attempt_id,
  case when v.status = 'claimed' then 'lease' else 'report' end as waits_for
from live_attempt as v
where v.cancel_reason is not null and (v.status <> 'claimed' or v.lease_status = 'leased')
union all
select
  s.run_id,
  s.step_key,
  cast(null as text) as attempt_id,
  'evidence' as waits_for
from step_run as s
where s.status = 'running'
  and (select r.cancel_reason from run as r where r.run_id = s.run_id) is not null
  and not exists (
    select 1
    from task_attempt as a
    where a.run_id = s.run_id
      and a.step_key = s.step_key
      and a.status in ('claimed', 'starting', 'running')
  );

create view cancellation_effect as
select
  e.run_id,
  row_number() over (partition by e.run_id order by e.part, e.entity_id) as ordinal,
  e.entity,
  e.entity_id,
  e.from_status,
  e.to_status,
  e.expected_version,
  case e.entity when 'attempt' then 'execution_' else 'workflow_' end || e.to_status as result_code,
  case e.entity
    when 'attempt' then 'workflow.task_attempt.'
    when 'step' then 'step.'
    else 'workflow.'
  end || e.to_status as event_type,
  cast(null as bigint) as due_at_ms,
  cast(null as text) as input_id
from (
  select
    v.run_id,
    1 as part,
    'attempt' as entity,
    v.attempt_id as entity_id,
    v.status as from_status,
    case when v.cancel_reason = 'timeout' then 'timed_out' else 'cancelled' end as to_status,
    v.version as expected_version
  from live_attempt as v
  where v.status = 'claimed' and v.lease_status is distinct from 'leased'
    and v.cancel_reason is not null
  union all
  select
    s.run_id,
    2 as part,
    'step' as entity,
    s.step_key as entity_id,
    s.status as from_status,
    case
      when s.status in ('pending', 'lost') then 'cancelled'
      when (select r.cancel_reason from run as r where r.run_id = s.run_id) = 'timeout'
        then 'timed_out'
      else 'cancelled'
    end as to_status,
    s.version as expected_version
  from step_run as s
  where s.status in ('pending', 'lost', 'ready', 'waiting_approval', 'retry_wait')
    and (select r.cancel_reason from run as r where r.run_id = s.run_id) is not null
    and not exists (
      select 1
      from task_attempt as a
      where a.run_id = s.run_id
        and a.step_key = s.step_key
        and (
          a.status in ('starting', 'running')
          or (
            a.status = 'claimed'
            and (select l.status from attempt_lease as l where l.attempt_id = a.attempt_id)
              is not distinct from 'leased'
          )
        )
    )
  union all
  select
    r.run_id,
    3 as part,
    'run' as entity,
    r.run_id as entity_id,
    'running' as from_status,
    case when r.cancel_reason = 'timeout' then 'timed_out' else 'cancelled' end as to_status,
    r.version as expected_version
  from run as r
  where r.cancel_reason is not null
    and (select count(*) from cancellation_blocked as b where b.run_id = r.run_id) = 0
) as e
where (
    select case when r.cancel_requested_at_ms is not null then r.status end
    from run as r
    where r.run_id = e.run_id
  ) = 'running';

-- from sql/decision/retention.sql sha256 46e4a0a1c43ff7b099b1dfdeb0bd21e35c375ad8b40de5e7e6b89306819b5d5f
-- RETENTION — which runs may go (DESIGN §5). When is the caller's: the step compares
-- finished_at_ms with the time that it is given.

-- Ended, and nothing of it can still be executing. Whatever belongs to the run goes with it.
create view retention_due as
select
  r.run_id,
  r.finished_at_ms
from run as r
where r.finished_at_ms is not null
  and r.status <> 'running'
  and not exists (
    select 1
    from task_attempt as a
    where a.run_id = r.run_id and a.finished_at_ms is null
  );

-- from sql/decision/explain.sql sha256 ce946e245dd2fe36ac6c4f74e163fcb912ab43489e90474127aa0ff37ddcdb4b
-- EXPLAIN — why something does not move: one row for each thing that a live run waits for.
-- `after_due` is what it waits for once `due_at_ms` has passed without a word: views have no clock.
-- waits_for: need, retry, admission, lease, worker, report, evidence, hold, intent, fault, queue.

create view explain as
select
  e.run_id,
  e.step_key,
  e.attempt_id,
  e.status,
  e.waits_for,
  e.waits_on,
  e.since_ms,
  e.due_at_ms,
  e.after_due,
  e.resolved_by
from (
  -- pending, without an intent
  select
    s.run_id,
    s.step_key,
    cast(null as text) as attempt_id,
    s.status,
    'need' as waits_for,
    f.waits_on,
    (select r.admitted_at_ms from run as r where r.run_id = s.run_id) as since_ms,
    cast(null as bigint) as due_at_ms,
    cast(null as text) as after_due,
    'the end of that step' as resolved_by,
    0 as under_intent
  from step_run as s
  join frontier_blocked as f on f.run_id = s.run_id and f.step_key = s.step_key
  union all
  select
    s.run_id,
    s.step_key,
    cast(null as text) as attempt_id,
    s.status,
    'need' as waits_for,
    'frontier' as waits_on,
    (select r.admitted_at_ms from run as r where r.run_id = s.run_id) as since_ms,
    cast(null as bigint) as due_at_ms,
    cast(null as text) as after_due,
    'the frontier stage, next cycle' as resolved_by,
    0 as under_intent
  from frontier_ready as s0
  join step_run as s on s.run_id = s0.run_id and s.step_key = s0.step_key
  union all
  -- ready, not yet admitted
  select
    t.run_id,
    t.entity_id as step_key,
    cast(null as text) as attempt_id,
    'ready' as status,
    'admission' as waits_for,
    'task_admission' as waits_on,
    (
      select s.ready_at_ms
      from step_run as s
      where s.run_id = t.run_id and s.step_key = t.entity_id
    ) as since_ms,
    cast(null as bigint) as due_at_ms,
    cast(null as text) as after_due,
    'the task admission stage, next cycle' as resolved_by,
    0 as under_intent
  from (
    select
      s.run_id,
      s.step_key as entity_id
    from step_run as s
    where s.status = 'ready'
      and not exists (
        select 1
        from task_attempt as a
        where a.run_id = s.run_id and a.step_key = s.step_key and a.epoch = s.version
      )
  ) as t
  union all
  -- admitted, held by nobody
  select
    a.run_id,
    a.step_key,
    a.attempt_id,
    a.status,
    case
      when exists (select 1 from worker_session as w where w.status = 'online') then 'queue'
      else 'worker'
    end as waits_for,
    a.queue as waits_on,
    a.admitted_at_ms as since_ms,
    cast(null as bigint) as due_at_ms,
    cast(null as text) as after_due,
    'a worker of this queue with a free slot' as resolved_by,
    0 as under_intent
  from task_attempt as a
  where a.status = 'claimed'
    and (select l.status from attempt_lease as l where l.attempt_id = a.attempt_id)
      is distinct from 'leased'
  union all
  -- leased, not started; or past the barrier
  select
    v.run_id,
    v.step_key,
    v.attempt_id,
    v.status,
    case when v.status = 'claimed' then 'lease' else 'report' end as waits_for,
    l.worker_id as waits_on,
    l.leased_at_ms as since_ms,
    l.expires_at_ms as due_at_ms,
    case
      when v.status = 'claimed' then null
      when v.on_lost = 'hold' then 'hold'
      when l.self_fencing = 0 then 'evidence'
    end as after_due,
    case
      when v.status = 'claimed' then 'the worker starts it, or recovery returns it after due_at_ms'
      when v.on_lost = 'hold' or l.self_fencing = 0
        then 'the worker reports; after due_at_ms: its worker comes back, or declare-stopped'
      when v.cancel_reason is not null
        then 'the worker stops it and reports, or recovery after due_at_ms'
      else 'the worker reports, or recovery after due_at_ms'
    end as resolved_by,
    1 as under_intent
  from live_attempt as v
  join attempt_lease as l on l.attempt_id = v.attempt_id
  where l.status = 'leased'
  union all
  select
    s.run_id,
    s.step_key,
    cast(null as text) as attempt_id,
    s.status,
    'retry' as waits_for,
    s.result_code as waits_on,
    s.started_at_ms as since_ms,
    s.due_at_ms,
    cast(null as text) as after_due,
    'the retry stage at due_at_ms' as resolved_by,
    0 as under_intent
  from step_run as s
  where s.status = 'retry_wait'
  union all
  -- under an intent, held by nobody
  select
    c.run_id,
    case c.entity when 'step' then c.entity_id end as step_key,
    case c.entity when 'attempt' then c.entity_id end as attempt_id,
    c.from_status as status,
    'intent' as waits_for,
    (select r.cancel_reason from run as r where r.run_id = c.run_id) as waits_on,
    (select r.cancel_requested_at_ms from run as r where r.run_id = c.run_id) as since_ms,
    cast(null as bigint) as due_at_ms,
    cast(null as text) as after_due,
    'convergence, next cycle' as resolved_by,
    1 as under_intent
  from cancellation_effect as c
  union all
  select
    f.run_id,
    cast(null as text) as step_key,
    cast(null as text) as attempt_id,
    'running' as status,
    'fault' as waits_for,
    f.stage as waits_on,
    f.first_at_ms as since_ms,
    f.next_try_at_ms as due_at_ms,
    cast(null as text) as after_due,
    f.error as resolved_by,
    1 as under_intent
  from run_fault as f
) as e
where (select r.status from run as r where r.run_id = e.run_id) = 'running'
  and (
    e.under_intent = 1
    or (select r.cancel_requested_at_ms from run as r where r.run_id = e.run_id) is null
  );

-- from sql/decision/violation.sql sha256 47daaeef25732657d951f2e3e926e69d55692d347a6ded0460dc77ccb8b3479f
-- VIOLATION — what must never be true. Empty, always; `doctor` and every test read it.

-- Work that is due but not on the agenda: recovery sweeps for it slowly and puts it back.
create view agenda_missing as
select
  m.run_id,
  m.stage,
  m.due_at_ms
from (
  select distinct
    f.run_id,
    'frontier' as stage,
    cast(0 as bigint) as due_at_ms
  from frontier_effect as f
  union all
  select distinct
    t.run_id,
    'task_admission' as stage,
    cast(0 as bigint) as due_at_ms
  from task_admission_effect as t
  union all
  select distinct
    c.run_id,
    'cancellation' as stage,
    cast(0 as bigint) as due_at_ms
  from cancellation_effect as c
  union all
  select
    r.run_id,
    'deadline' as stage,
    r.deadline_at_ms as due_at_ms
  from run as r
  where r.status = 'running' and r.cancel_requested_at_ms is null and r.deadline_at_ms is not null
  union all
  select
    s.run_id,
    'retry' as stage,
    min(s.due_at_ms) as due_at_ms
  from step_run as s
  where s.status = 'retry_wait'
    and (
      select case when r.cancel_requested_at_ms is null then r.status end
      from run as r
      where r.run_id = s.run_id
    ) = 'running'
  group by s.run_id
  union all
  select
    d.run_id,
    'expiry' as stage,
    min(d.due_at_ms) as due_at_ms
  from recovery_due as d
  group by d.run_id
) as m
where not exists (
  select 1
  from agenda as a
  where a.run_id = m.run_id
    and a.stage = m.stage
    and (a.due_at_ms <= m.due_at_ms or m.due_at_ms = 0 or exists (
      select 1 from run_fault as f where f.run_id = m.run_id and f.stage = m.stage
    ))
);

-- A row is right only from `since_ms` on: before, it is of a clock that was ahead, and the sweep
-- brings it to `wait_ms` from now. Only a fault may put off what is done at once, for its longest
-- back-off; a deadline and a lease end when they say.
create view agenda_ahead as
select
  a.run_id,
  a.stage,
  a.due_at_ms,
  case
    when a.faults > 0 then a.due_at_ms - 300000
    when a.stage = 'retry' then (
      select max(w.due_at_ms - w.longest_ms)
      from retry_longest as w
      where w.run_id = a.run_id
    )
    else a.due_at_ms
  end as since_ms,
  case when a.faults > 0 then 300000 else 0 end as wait_ms
from (
  select
    g.run_id,
    g.stage,
    g.due_at_ms,
    (
      select count(*) from run_fault as f where f.run_id = g.run_id and f.stage = g.stage
    ) as faults
  from agenda as g
) as a
where a.faults > 0 or a.stage in ('frontier', 'task_admission', 'cancellation', 'retry');

create view violation as
select
  a.run_id,
  'due_work_is_on_the_agenda' as rule,
  a.stage as entity_id
from agenda_missing as a
union all
select
  r.run_id,
  'run_version_is_its_event_count' as rule,
  r.run_id as entity_id
from run as r
where 1 = (
    select case when count(*) <> r.version or coalesce(max(e.sequence), 0) <> r.version then 1 end
    from run_event as e
    where e.run_id = r.run_id
  )
union all
select
  e.run_id,
  'event_times_never_step_back' as rule,
  cast(e.sequence as text) as entity_id
from run_event as e
join run_event as b on b.run_id = e.run_id and b.sequence = e.sequence - 1
where b.created_at_ms > e.created_at_ms
union all
select
  e.run_id,
  'events_follow_the_state_machine' as rule,
  cast(e.sequence as text) as entity_id
from run_event as e
where e.from_status is not null
  and (e.entity, e.from_status, e.to_status) not in (
    select t.entity, t.from_status, t.to_status from state_transition as t
  )
union all
-- A step stands behind its last event, so that one window counts them and looks back: a look for
-- each of them would cost the square of a run's length.
select
  c.run_id,
  'step_is_what_its_events_say' as rule,
  c.entity_id
from (
  select
    f.run_id, f.entity_id, f.version, f.status,
    row_number() over (partition by f.run_id, f.entity_id order by f.sequence) - 1 as event_count,
    lag(f.status) over (partition by f.run_id, f.entity_id order by f.sequence) as last_status
  from (
    select s.run_id, s.step_key as entity_id, s.version, s.status, 9223372036854775807 as sequence
    from step_run as s
    union all
    select e.run_id, e.entity_id, cast(null as bigint) as version, e.to_status, e.sequence
    from run_event as e
    where e.entity = 'step'
  ) as f
) as c
where c.version <> c.event_count
  or (c.version is not null and c.status is distinct from c.last_status)
union all
select
  c.run_id,
  'attempt_is_what_its_events_say' as rule,
  c.entity_id
from (
  select
    f.run_id, f.entity_id, f.version, f.status,
    row_number() over (partition by f.run_id, f.entity_id order by f.sequence) - 1 as event_count,
    lag(f.status) over (partition by f.run_id, f.entity_id order by f.sequence) as last_status
  from (
    select a.run_id, a.attempt_id as entity_id, a.version, a.status, 9223372036854775807 as sequence
    from task_attempt as a
    union all
    select e.run_id, e.entity_id, cast(null as bigint) as version, e.to_status, e.sequence
    from run_event as e
    where e.entity = 'attempt'
  ) as f
) as c
where c.version <> c.event_count
  or (c.version is not null and c.status is distinct from c.last_status)
union all
select
  r.run_id,
  'attempts_are_counted' as rule,
  r.run_id as entity_id
from run as r
where r.attempt_count <> (select count(*) from task_attempt as a where a.run_id = r.run_id)
  or r.attempt_count
    <> (select coalesce(max(a.number), 0) from task_attempt as a where a.run_id = r.run_id)
union all
select
  r.run_id,
  'a_run_has_all_its_steps' as rule,
  r.run_id as entity_id
from run as r
where r.step_count <> (select count(*) from step_run as s where s.run_id = r.run_id)
  or r.version = 0
union all
select
  s.run_id,
  'a_terminal_run_has_only_terminal_steps' as rule,
  s.step_key as entity_id
from step_run as s
where s.finished_at_ms is null
  and (select r.status from run as r where r.run_id = s.run_id) <> 'running'
union all
select
  a.run_id,
  'a_terminal_run_has_no_live_attempt' as rule,
  a.attempt_id as entity_id
from task_attempt as a
where a.status in ('claimed', 'starting', 'running')
  and (select r.status from run as r where r.run_id = a.run_id) <> 'running'
union all
select
  a.run_id,
  'a_terminal_run_has_no_agenda' as rule,
  a.stage as entity_id
from agenda as a
where (select r.status from run as r where r.run_id = a.run_id) is distinct from 'running'
union all
select
  s.run_id,
  'a_running_step_has_one_live_attempt' as rule,
  s.step_key as entity_id
from step_run as s
where (s.status = 'running') <> (
    (
      select count(*)
      from task_attempt as a
      where a.run_id = s.run_id
        and a.step_key = s.step_key
        and a.status = 'running'
        and a.epoch + 1 = s.version
    ) = 1
  )
union all
select
  a.run_id,
  'a_live_attempt_sits_on_its_epoch' as rule,
  a.attempt_id as entity_id
from task_attempt as a
where (
    a.status in ('claimed', 'starting')
    and not exists (
      select 1
      from step_run as s
      where s.run_id = a.run_id
        and s.step_key = a.step_key
        and s.status = 'ready'
        and s.version = a.epoch
    )
  )
  or (
    a.status = 'running'
    and not exists (
      select 1
      from step_run as s
      where s.run_id = a.run_id
        and s.step_key = a.step_key
        and s.status = 'running'
        and s.version = a.epoch + 1
    )
  )
union all
select
  a.run_id,
  'work_past_the_barrier_has_a_lease' as rule,
  a.attempt_id as entity_id
from task_attempt as a
where a.status in ('starting', 'running')
  and (select l.status from attempt_lease as l where l.attempt_id = a.attempt_id)
    is distinct from 'leased'
union all
select
  a.run_id,
  'a_held_lease_belongs_to_a_live_attempt' as rule,
  a.attempt_id as entity_id
from task_attempt as a
where a.finished_at_ms is not null
  and (select l.status from attempt_lease as l where l.attempt_id = a.attempt_id) = 'leased'
union all
select
  e.run_id,
  'a_lease_belongs_to_an_attempt_of_its_run' as rule,
  e.entity_id
from run_event as e
where e.entity = 'lease'
  and (
    (select a.run_id from task_attempt as a where a.attempt_id = e.entity_id)
      is distinct from e.run_id
    or (select l.run_id from attempt_lease as l where l.attempt_id = e.entity_id)
      is distinct from e.run_id
  )
union all
select
  o.run_id,
  'only_a_succeeded_step_has_output' as rule,
  o.step_key as entity_id
from step_output as o
where (
    select s.status from step_run as s where s.run_id = o.run_id and s.step_key = o.step_key
  ) is distinct from 'succeeded'
union all
select
  s.run_id,
  'a_succeeded_step_has_its_attempt' as rule,
  s.step_key as entity_id
from step_run as s
where s.status = 'succeeded'
  and s.result_code is null
  and not exists (
    select 1
    from task_attempt as a
    where a.run_id = s.run_id and a.step_key = s.step_key and a.status = 'succeeded'
  )
union all
select
  s.run_id,
  'only_a_retry_takes_over_what_never_ran_in_it' as rule,
  s.step_key as entity_id
from step_run as s
where s.result_code = 'taken_over'
  and (
    (select r.retry_of_run_id from run as r where r.run_id = s.run_id) is null
    or exists (
      select 1 from task_attempt as a where a.run_id = s.run_id and a.step_key = s.step_key
    )
  )
union all
select
  i.run_id,
  'an_intent_is_on_its_run' as rule,
  i.run_id as entity_id
from cancel_intent as i
where (select r.cancel_reason from run as r where r.run_id = i.run_id) is distinct from i.reason
union all
select
  r.run_id,
  'a_run_has_its_intent' as rule,
  r.run_id as entity_id
from run as r
where r.cancel_reason is not null
  and not exists (select 1 from cancel_intent as i where i.run_id = r.run_id)
union all
select
  o.run_id,
  'every_row_belongs_to_a_run' as rule,
  o.entity_id
from (
  select e.run_id, cast(e.sequence as text) as entity_id from run_event as e
  union all
  select n.run_id, n.run_id as entity_id from run_input as n
  union all
  select s.run_id, s.step_key as entity_id from step_run as s
  union all
  select t.run_id, t.step_key as entity_id from step_output as t
  union all
  select a.run_id, a.attempt_id as entity_id from task_attempt as a
  union all
  select l.run_id, l.attempt_id as entity_id from attempt_lease as l
  union all
  select p.run_id, p.attempt_id as entity_id from attempt_report as p
  union all
  select f.run_id, f.attempt_id as entity_id from attempt_offer as f
  union all
  select x.run_id, x.attempt_id as entity_id from refused_report as x
  union all
  select w.run_id, w.attempt_id as entity_id from attestation as w
  union all
  select i.run_id, i.run_id as entity_id from cancel_intent as i
  union all
  select g.run_id, g.stage as entity_id from agenda as g
  union all
  select u.run_id, u.stage as entity_id from run_fault as u
  union all
  select y.run_id, y.trigger_key as entity_id from trigger_run as y
) as o
where not exists (select 1 from run as r where r.run_id = o.run_id)
union all
select
  cast(null as text) as run_id,
  'a_trigger_is_due_when_its_cursor_says' as rule,
  t.package_key || '/' || t.trigger_key as entity_id
from trigger as t
left join trigger_schedule as s
  on s.package_key = t.package_key and s.trigger_key = t.trigger_key
left join schedule_due as d on d.package_key = t.package_key and d.trigger_key = t.trigger_key
where s.state_version is null or s.due_at_ms is distinct from d.due_at_ms
union all
select
  r.run_id,
  'an_open_run_is_known_to_its_trigger' as rule,
  coalesce(r.trigger_key, o.trigger_key) as entity_id
from run as r
left join trigger_run as o on o.run_id = r.retry_of_run_id
where r.finished_at_ms is null
  and coalesce(r.trigger_key, o.trigger_key) is not null
  and coalesce(r.trigger_key, o.trigger_key) is distinct from (
    select m.trigger_key
    from trigger_run as m
    where m.run_id = r.run_id and m.package_key = r.package_key and m.open_at_ms is not null
  );

-- from sql/decision/reading.sql sha256 e6a250ecffd27d8b012eb1c3f68775b0af871d8e7be8f4f19bdd8a93e7dfbf89
-- READING — what people and tools look at: the state of things, without the columns that only
-- machines need (no token digests, no identities). Filter by the leading columns.

create view package_state as
select
  g.package_key,
  g.generation,
  g.state,
  g.digest,
  g.published_at_ms,
  g.ended_at_ms,
  (select p.base_dir from package as p where p.package_key = g.package_key) as base_dir
from package_generation as g;

create view target_state as
select
  w.package_key,
  w.generation,
  'workflow' as kind,
  w.workflow_key as target_key,
  w.workflow_id as target_id,
  w.timeout_ms,
  w.step_count
from workflow_revision as w
union all
select
  t.package_key,
  t.generation,
  'task' as kind,
  t.task_key as target_key,
  t.task_id as target_id,
  t.timeout_ms,
  cast(1 as bigint) as step_count
from task_revision as t;

create view trigger_state as
select
  t.package_key,
  t.trigger_key,
  t.generation,
  t.state,
  t.cron,
  t.tz,
  t.kind,
  t.target_key,
  t.misfire,
  t.overlap,
  s.next_fire_at_ms,
  s.due_at_ms,
  s.updated_at_ms as since_ms,
  s.last_scheduled_at_ms,
  s.last_outcome,
  s.last_run_id,
  (select r.status from run as r where r.run_id = s.last_run_id) as last_run_status,
  f.error as fault_error,
  f.fault_count,
  f.next_try_at_ms as fault_next_try_at_ms
from trigger as t
join trigger_schedule as s on s.package_key = t.package_key and s.trigger_key = t.trigger_key
left join trigger_fault as f on f.package_key = t.package_key and f.trigger_key = t.trigger_key;

create view run_state as
select
  r.run_id,
  r.package_key,
  r.generation,
  r.kind,
  r.target_key,
  r.target_id,
  r.run_key,
  r.input_digest,
  r.retry_of_run_id,
  r.trigger_key,
  r.scheduled_at_ms,
  r.step_count,
  r.status,
  r.version,
  r.attempt_count,
  r.admitted_at_ms,
  r.deadline_at_ms,
  r.cancel_requested_at_ms,
  r.cancel_reason,
  r.result_code,
  r.finished_at_ms,
  r.updated_at_ms
from run as r;

-- The literal is what the index of open runs is found by.
create view open_run as
select
  r.run_id,
  r.package_key,
  r.generation,
  r.kind,
  r.target_key,
  r.target_id,
  r.run_key,
  r.input_digest,
  r.retry_of_run_id,
  r.trigger_key,
  r.scheduled_at_ms,
  r.step_count,
  r.status,
  r.version,
  r.attempt_count,
  r.admitted_at_ms,
  r.deadline_at_ms,
  r.cancel_requested_at_ms,
  r.cancel_reason,
  r.result_code,
  r.finished_at_ms,
  r.updated_at_ms
from run as r
where r.finished_at_ms is null;

create view intent_state as
select
  i.run_id,
  i.reason,
  i.actor,
  i.requested_at_ms
from cancel_intent as i;

create view input_state as
select
  i.run_id,
  i.input
from run_input as i;

create view step_state as
select
  s.run_id,
  s.step_key,
  s.status,
  s.version,
  s.attempt_count,
  s.claim_return_count,
  s.ready_at_ms,
  s.started_at_ms,
  s.finished_at_ms,
  s.due_at_ms,
  s.result_code,
  t.task_key,
  t.queue,
  t.on_lost,
  (select o.output from step_output as o where o.run_id = s.run_id and o.step_key = s.step_key)
    as output
from step_run as s
join task_revision as t on t.task_id = s.task_id;

create view step_need as
select
  s.run_id,
  s.step_key,
  w.ancestor_key as need_key
from step_run as s
join workflow_ancestor as w
  on w.workflow_id = (select r.target_id from run as r where r.run_id = s.run_id)
  and w.step_key = s.step_key
  and w.distance = 1;

create view attempt_state as
select
  a.run_id,
  a.attempt_id,
  a.number,
  a.step_key,
  a.epoch,
  a.queue,
  a.status,
  a.admitted_at_ms,
  a.starting_at_ms,
  a.started_at_ms,
  a.finished_at_ms,
  a.deadline_at_ms,
  a.exit_code,
  a.result_code,
  (select l.status from attempt_lease as l where l.attempt_id = a.attempt_id) as lease_status,
  (select l.worker_id from attempt_lease as l where l.attempt_id = a.attempt_id) as worker_id,
  (select l.offer_id from attempt_lease as l where l.attempt_id = a.attempt_id) as offer_id,
  (select l.fence from attempt_lease as l where l.attempt_id = a.attempt_id) as fence,
  (select l.expires_at_ms from attempt_lease as l where l.attempt_id = a.attempt_id)
    as lease_expires_at_ms,
  (
    select p.error
    from attempt_report as p
    where p.run_id = a.run_id and p.attempt_id = a.attempt_id and p.kind = 'ended'
    order by p.fence desc
    limit 1
  ) as error
from task_attempt as a;

create view event_log as
select
  e.run_id,
  e.sequence,
  e.type,
  e.entity,
  e.entity_id,
  e.from_status,
  e.to_status,
  e.entity_version,
  e.result_code,
  e.created_at_ms
from run_event as e;

create view attestation_state as
select
  n.run_id,
  n.attempt_id,
  n.evidence,
  n.follow,
  n.reason,
  n.actor,
  n.attested_at_ms
from attestation as n;

create view refused_state as
select
  f.run_id,
  f.attempt_id,
  f.ordinal,
  f.code,
  f.kind,
  f.how,
  f.exit_code,
  f.fence,
  f.refused_at_ms
from refused_report as f;

create view agenda_state as
select
  a.run_id,
  a.stage,
  a.due_at_ms
from agenda as a;

create view fault_state as
select
  f.run_id,
  f.stage,
  f.error,
  f.fault_count,
  f.first_at_ms,
  f.last_at_ms,
  f.next_try_at_ms
from run_fault as f;

create view worker_state as
select
  w.worker_id,
  w.session_id,
  w.generation,
  w.status,
  w.queues,
  w.slots,
  w.self_fencing,
  w.registered_at_ms,
  w.seen_at_ms,
  w.expires_at_ms,
  w.drain_requested_at_ms
from worker_session as w;

-- By way of the open runs, so that leases that are over are not read.
create view worker_hold as
select
  l.worker_id,
  l.run_id,
  l.attempt_id,
  a.step_key,
  a.number,
  a.status,
  l.fence,
  l.expires_at_ms,
  l.leased_at_ms
from run as r
cross join task_attempt as a
cross join attempt_lease as l
where r.finished_at_ms is null
  and a.run_id = r.run_id
  and a.finished_at_ms is null
  and l.attempt_id = a.attempt_id
  and l.status = 'leased';

create view worker_audit_log as
select
  u.minute_ms,
  u.worker_id,
  u.route,
  u.certificate,
  u.first_at_ms
from worker_audit as u;

-- What waits for a worker, by queue; only waiting work is read.
create view queue_state as
select
  a.queue,
  count(*) as waiting_count,
  min(a.offer_at_ms) as oldest_at_ms
from task_attempt as a
where a.offer_at_ms is not null
group by a.queue;
set local search_path = pg_catalog, pg_temp;

-- from sql/postgres/admission_retry.sql sha256 26d4413cef188544ac882b2e5ba8c9aacd7341f1428697e5800f18e6b1de9be5
-- RETRY OF A RUN — a run of its own that takes over what would come out the same; what that is, is
-- decision/admission.sql's matter. Without a key its id is derived from the retried run alone, by
-- other parts than any key's, so that no key can be in its way. What belongs to a trigger does so
-- again, for `overlap` alone (decision/schedule.sql): it has no trigger and no time of its own.

-- STEP     start_retry — admit a run that takes over what succeeded in a run that did not
-- LOCKS    2 run (the retried one; waits) · package_generation (for share: the start guard)
-- READS    run, run_input, step_output, trigger_run of the retried run; admission_effect
-- WRITES   run, run_input, step_output, trigger_run; through ql.apply_effects
-- RETURNS  created | existing | conflict (the key belongs to another run)
-- RAISES   QL400, QL404, QL503
-- REPLAY   exact: one retry a run without a key, and one a key
create or replace function ql_admission.start_retry (p_run_id text, p_run_key text)
returns table (
  run_id text, outcome text, status text, generation bigint, taken_over_count bigint
)
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
  v_run_id text := ql.derived_id('ru', 'retry', p_run_id);
  v_outcome text := 'existing';
  v_old record;
begin
  perform ql.assert_read_committed();
  if length(p_run_key) not between 1 and 200 then
    raise exception 'a run key has 1 to 200 characters' using errcode = 'QL400';
  end if;

  loop
    -- without a key the answer needs nothing of the retried run, which may be purged by now
    if p_run_key is not null or not exists (select from ql.run as r where r.run_id = v_run_id) then
      perform ql.wait_run(p_run_id);  -- what is copied cannot be purged meanwhile
      select
        r.package_key,
        r.kind,
        r.target_key,
        case r.status
          when 'running' then 'is still open: cancel it first'
          when 'succeeded' then 'has succeeded: there is nothing to retry'
        end as fault,
        i.input
      into v_old
      from ql.run as r
      join ql.run_input as i on i.run_id = r.run_id
      where r.run_id = p_run_id;
      if v_old.fault is not null then
        raise exception 'run % %', p_run_id, v_old.fault using errcode = 'QL400';
      end if;
      if p_run_key is not null then
        v_run_id := ql.derived_id(
          'ru', v_old.package_key, v_old.kind, v_old.target_key, p_run_key
        );
      end if;
      if not exists (select from ql.run as r where r.run_id = v_run_id)
        and ql.admit_run(
          v_run_id,
          v_old.package_key,
          v_old.kind,
          v_old.target_key,
          coalesce(p_run_key, ''),
          v_old.input,
          p_run_id,
          null,
          null
        )
      then
        v_outcome := 'created';
        perform ql.take_over_outputs(v_run_id);
        -- marked or not: the retried one has ended; its own row is what a retry of this one finds
        insert into ql.trigger_run (run_id, package_key, trigger_key, open_at_ms)
        select
          v_run_id,
          m.package_key,
          m.trigger_key,
          ql.now_ms()
        from ql.trigger_run as m
        where m.run_id = p_run_id;
      end if;
    end if;

    return query
    select
      r.run_id,
      case when r.retry_of_run_id = p_run_id then v_outcome else 'conflict' end,
      r.status,
      r.generation,
      (
        select count(*)
        from ql.step_run as s
        where s.run_id = r.run_id and s.result_code = 'taken_over'
      )
    from ql.run as r
    where r.run_id = v_run_id;
    exit when found;  -- else it was purged before we looked
  end loop;
end;
$$;

-- HELPER   take_over_outputs — what steps wrote that were taken over
-- READS    run, step_run; step_output of the retried run
-- WRITES   step_output
create or replace function ql.take_over_outputs (p_run_id text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  insert into ql.step_output (run_id, step_key, attempt_id, output)
  select
    s.run_id,
    s.step_key,
    o.attempt_id,
    o.output
  from ql.run as r
  join ql.step_run as s on s.run_id = r.run_id and s.result_code = 'taken_over'
  join ql.step_output as o on o.run_id = r.retry_of_run_id and o.step_key = s.step_key
  where r.run_id = p_run_id;
end;
$$;

-- from sql/postgres/grant.sql sha256 d3e4ca2eb8003b6a2d24b7069739ece6229ba2e8ed39bb36a520bd0b47800c37
-- GRANTS — who may do what (DESIGN §8). PUBLIC may do nothing; the groups may only execute the
-- functions in the schema of their name, and ql_reader may select from the views.
-- ql_authority, as whom those functions run, may change the columns below the line "moves" in
-- table.sql; history and inputs it may only add to; only what is due, open or failed may it delete.
-- ql_retention, as whom purge_runs and purge_audit run, may delete runs with all that is theirs and
-- what was audited, and add nothing.
-- Run again after every change of functions: it leaves everything as it says here.

-- A function in a capability schema belongs to its schema's owner and runs with that role's rights.
do $$
declare
  v_function regprocedure;
  v_owner regrole;
begin
  for v_function, v_owner in
    select p.oid::regprocedure, n.nspowner::regrole
    from pg_catalog.pg_proc as p
    join pg_catalog.pg_namespace as n on n.oid = p.pronamespace
    where n.nspname in (
        'ql_admission', 'ql_scheduler', 'ql_worker', 'ql_operator', 'ql_retention'
      )
      and p.proowner <> n.nspowner
  loop
    execute format('alter function %s owner to %s', v_function, v_owner);
  end loop;
end;
$$;

revoke all on schema ql, ql_admission, ql_scheduler, ql_worker, ql_operator, ql_retention
from public;
revoke all on all tables in schema ql from public;
revoke all on all functions
in schema ql, ql_admission, ql_scheduler, ql_worker, ql_operator, ql_retention
from public;
revoke all on type ql.effect, ql.command from public;

-- the groups
grant usage on schema ql_admission to ql_admission;
grant execute on all functions in schema ql_admission to ql_admission;
grant usage on schema ql_scheduler to ql_scheduler;
grant execute on all functions in schema ql_scheduler to ql_scheduler;
grant usage on schema ql_worker to ql_worker;
grant execute on all functions in schema ql_worker to ql_worker;
grant usage on schema ql_operator to ql_operator;
grant execute on all functions in schema ql_operator to ql_operator;
-- nobody is a member of ql_retention: whoever keeps the place running says when history goes
grant usage on schema ql_retention to ql_operator;
grant execute on all functions in schema ql_retention to ql_operator;

-- the views
grant usage on schema ql to ql_authority, ql_reader;
grant select on
  ql.state_transition, ql.run_admission, ql.task_attempt_admission, ql.step_run_mutation,
  ql.live_attempt,
  ql.takeover_node, ql.takeover_alone, ql.takeover, ql.admission_effect,
  ql.schedule_decision, ql.schedule_blocked, ql.schedule_due,
  ql.frontier_ready, ql.frontier_skip, ql.frontier_effect, ql.frontier_blocked,
  ql.task_admission_effect,
  ql.dispatch_effect,
  ql.completion_end, ql.completion_effect,
  ql.recovery_due, ql.recovery_blocked, ql.recovery_end, ql.recovery_effect,
  ql.retry_longest, ql.retry_effect,
  ql.intent_effect, ql.cancellation_blocked, ql.cancellation_effect,
  ql.retention_due,
  ql.explain,
  ql.agenda_missing, ql.agenda_ahead, ql.violation,
  ql.package_state, ql.target_state, ql.trigger_state, ql.run_state, ql.open_run, ql.intent_state,
  ql.input_state, ql.step_state, ql.step_need,
  ql.attempt_state, ql.event_log, ql.attestation_state, ql.refused_state, ql.agenda_state,
  ql.fault_state, ql.worker_state, ql.worker_hold, ql.worker_audit_log, ql.queue_state
to ql_authority, ql_reader;

-- internals and types
grant execute on all functions in schema ql to ql_authority;
grant usage on type ql.effect, ql.command to ql_authority;

-- what moves
grant select, insert on
  ql.package, ql.package_generation, ql.trigger, ql.trigger_schedule, ql.run, ql.step_run,
  ql.task_attempt, ql.attempt_lease, ql.worker_session, ql.trigger_run
to ql_authority;
grant update (open_at_ms) on ql.trigger_run to ql_authority;
grant update (generation, base_dir, updated_at_ms) on ql.package to ql_authority;
grant update (state, ended_at_ms) on ql.package_generation to ql_authority;
grant update (
  generation, state, cron, tz, kind, target_key, misfire, overlap, updated_at_ms
) on ql.trigger to ql_authority;
grant update (
  next_fire_at_ms, last_scheduled_at_ms, state_version, claim_owner, claim_token, claim_version,
  claim_expires_at_ms, updated_at_ms, due_at_ms, claimed_at_ms, seen_at_ms, last_outcome,
  last_run_id
) on ql.trigger_schedule to ql_authority;
grant update (
  status, version, attempt_count, cancel_requested_at_ms, cancel_reason, result_code,
  finished_at_ms, updated_at_ms
) on ql.run to ql_authority;
grant update (
  status, version, attempt_count, claim_return_count, ready_at_ms, started_at_ms, finished_at_ms,
  due_at_ms, result_code
) on ql.step_run to ql_authority;
grant update (
  status, version, offer_at_ms, deadline_at_ms, identity, starting_at_ms, started_at_ms,
  finished_at_ms, exit_code, result_code
) on ql.task_attempt to ql_authority;
grant update (
  status, version, fence, offer_id, worker_id, token_digest, self_fencing, grace_ms, leased_at_ms,
  expires_at_ms, closed_at_ms
) on ql.attempt_lease to ql_authority;
grant update (
  session_id, generation, status, queues, slots, self_fencing, grace_ms, registered_at_ms,
  expires_at_ms, seen_at_ms, drain_requested_at_ms
) on ql.worker_session to ql_authority;

-- what is due, and what failed: gone when it is done
grant select, insert, delete on ql.agenda, ql.run_fault, ql.trigger_fault to ql_authority;
grant update (due_at_ms) on ql.agenda to ql_authority;
grant update (error, fault_count, first_at_ms, last_at_ms, next_try_at_ms) on ql.run_fault
to ql_authority;
grant update (error, fault_count, first_at_ms, last_at_ms, next_try_at_ms) on ql.trigger_fault
to ql_authority;

-- what is written once
grant select, insert on
  ql.task_revision, ql.workflow_revision, ql.workflow_step, ql.workflow_ancestor,
  ql.run_input, ql.step_output,
  ql.cancel_intent, ql.attempt_offer, ql.attempt_report, ql.attestation, ql.refused_report,
  ql.run_event, ql.worker_audit
to ql_authority;

-- what has ended long ago; a row lock asks for the right to update some column
grant usage on schema ql to ql_retention;
grant execute on function ql.assert_read_committed() to ql_retention;
grant select on ql.retention_due to ql_retention;
grant select, delete on
  ql.run, ql.run_input, ql.step_run, ql.step_output, ql.task_attempt, ql.attempt_lease,
  ql.cancel_intent, ql.attempt_offer, ql.attempt_report, ql.attestation, ql.refused_report,
  ql.run_event, ql.agenda, ql.run_fault, ql.trigger_run, ql.worker_audit
to ql_retention;
grant update (updated_at_ms) on ql.run to ql_retention;
