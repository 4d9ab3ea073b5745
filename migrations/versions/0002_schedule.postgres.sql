-- 0002_schedule, postgres: written by scripts/freeze.py, but for what stands between the marks.
set local lock_timeout = '5s';
set local statement_timeout = '60s';
set local search_path = pg_catalog, pg_temp;

set local search_path = ql, pg_catalog, pg_temp;
drop view queue_state;
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
-- squawk-ignore-file ban-drop-view, ban-drop-function
-- squawk-ignore-file require-concurrent-index-creation, constraint-missing-not-valid
-- LOCKS    trigger_schedule (access exclusive), for as long as the number of triggers says: columns are
--          added without a rewrite, the checks and the indexes read it once. No table of runs is touched.
-- Nothing was claimed or fired before; triggers begin with the time of this revision, so that nothing
-- is late by it.
alter table ql.trigger_schedule
  add column due_at_ms bigint,
  add column claimed_at_ms bigint,
  add column seen_at_ms bigint,
  add column last_outcome text collate "C",
  add column last_run_id text collate "C",
  add constraint last_outcome_is_known check (last_outcome in ('admitted', 'misfire', 'overlap')),
  add constraint an_admitted_occurrence_has_a_run
      check (last_outcome <> 'admitted' or last_run_id is not null),
  add constraint a_claim_says_what_it_observed check (
      (claim_owner is null) = (claimed_at_ms is null)
      and (claim_owner is null) = (seen_at_ms is null)
    );

update ql.trigger_schedule as s
set
  next_fire_at_ms = null,
  state_version = s.state_version + 1,
  claim_owner = null,
  claim_token = null,
  claim_expires_at_ms = null,
  updated_at_ms = ql.now_ms(),
  due_at_ms = case when t.state = 'active' then 0 end
from ql.trigger as t
where t.package_key = s.package_key and t.trigger_key = s.trigger_key;

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

-- they take the trigger of a run as well, under the same names
drop function ql.admit_run(text, text, text, text, text, text, text);
drop function ql.insert_run(text, text, text, text, text, text, text);
-- end of what is by hand

-- as in sql/postgres/table.sql sha256 017cef14590ebc3a35c8e5058568441a3818e63744121a8469d2e3c90c85a218

set local search_path = ql, pg_catalog, pg_temp;
-- from sql/decision/state.sql sha256 fae8436ca80becdfcd2ba2f88ccd6d0cf5e6a6000499ae66d2f585fe4c808649
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

-- from sql/decision/schedule.sql sha256 be2d823505c8f7a5fb6aa75cb7a6d4784b8983d6c26f311cccff62cea853a711
-- SCHEDULE — what becomes of a trigger's occurrence (DOMAIN §3.10). A view has no clock, so each
-- way in which a step may find an occurrence is a row: `early` (not due yet), `on_time` (due for at
-- most the grace), `late`. Many missed ones are one, the oldest: the cursor goes on from what was
-- observed.
--
--   initialize   the cursor is set, nothing starts
--   skip         the occurrence is over without a run; `cause` says why
--   admit        exactly one run

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

-- from sql/decision/dispatch.sql sha256 5d808487099b9660d1062a9d534c02ef78149b648de6facf814b5c84136064bd
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
    select 'released', 1, 'lease', null, 'workflow.task_dispatch_released'
    union all
    select 'starting', 1, 'attempt', 'claimed', 'workflow.task_attempt.starting'
    union all
    select 'running', 1, 'attempt', 'starting', 'workflow.task_attempt.running'
    union all
    select 'running', 2, 'step', 'ready', 'step.running'
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

-- from sql/decision/recovery.sql sha256 047e3d83243b1d84ef400237e0025f2b924e3407815b738fdd4a85db9b5f88a3
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
    when x.attempt_end = 'timed_out' and x.retry_timed_out = 1 then x.attested_at_ms + x.delay_ms
    when x.attempt_end = 'lost' and x.on_lost = 'retry' then x.attested_at_ms + x.delay_ms
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

-- The longest that a step may wait, jitter included. A back-off that ends further ahead was written
-- by a clock that was ahead: nobody knows how much of it is left, and it is over.
create view retry_longest as
select
  s.run_id,
  s.step_key,
  s.due_at_ms,
  t.max_backoff_ms + t.max_backoff_ms / 8 as longest_ms
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

-- from sql/decision/violation.sql sha256 dddcf09bcfeb0b0d29dd00a404915f06f10fd24ba3810fd54238c9437e93c583
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
  r.trigger_key as entity_id
from run as r
where r.trigger_key is not null
  and r.finished_at_ms is null
  and not exists (
    select 1
    from trigger_run as m
    where m.run_id = r.run_id
      and m.package_key = r.package_key
      and m.trigger_key = r.trigger_key
      and m.open_at_ms is not null
  );

-- from sql/decision/reading.sql sha256 73cff772a8ba30c1a0f86d942f279917bf5f6c18f08ba2e765def97033b3c72c
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
  w.registered_at_ms
from worker_session as w;

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

-- from sql/postgres/publication_manifest.sql sha256 625a830256a68ed2bbe716ed13674a9e9cb83eb4bd06e918f2882db30cf4da73
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

-- from sql/postgres/publication.sql sha256 2e9ca347919d1b8faec4ba2194cb0ea6fd7246449c2bc6f50683979e59db7b73
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

-- from sql/postgres/admission.sql sha256 57a80182fb03713a5f8e7a45fcde3c81a9ab56deb0ad6517a040b18a85a76f58
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

-- from sql/postgres/admission_retry.sql sha256 801b57cb808a1ce3f4497753d5747af359db031056a61e131a42f0d15345dc84
-- RETRY OF A RUN — a run of its own that takes over what would come out the same; what that is, is
-- decision/admission.sql's matter. Without a key its id is derived from the retried run alone, by
-- other parts than any key's, so that no key can be in its way.

-- STEP     start_retry — admit a run that takes over what succeeded in a run that did not
-- LOCKS    2 run (the retried one; waits) · package_generation (for share: the start guard)
-- READS    run, run_input, step_output of the retried run; admission_effect
-- WRITES   run, run_input, step_output; through ql.apply_effects
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

-- from sql/postgres/schedule.sql sha256 f8f24364ea9e3a0067e0c835f7c47a08c813237e81fc2a7baedd8c84df94e255
-- SCHEDULE — a due trigger fires once (DOMAIN §3.10). A scheduler claims what is due, computes the
-- next times outside, by the pinned time zone database, and commits; whatever dies in between, the
-- claim runs out, and the run's id is derived from trigger and time. Commit never waits for a row.

-- STEP     claim_schedule — take due triggers for 30 s, in the order in which they became due
-- LOCKS    trigger_schedule (skip locked)
-- READS    trigger, package_generation
-- WRITES   trigger_schedule
-- RETURNS  what a scheduler needs to compute the next times; claim_version is the fence
-- RAISES   QL400, QL503
-- REPLAY   exact while anything of it is held: the same owner and token get the same
create or replace function ql_scheduler.claim_schedule (p_owner text, p_token text, p_limit int)
returns table (
  package_key text, trigger_key text, cron text, tz text, next_fire_at_ms bigint,
  since_ms bigint, state_version bigint, claim_version bigint, observed_at_ms bigint
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
  v_now bigint;
begin
  perform ql.assert_read_committed();
  perform ql.check_claim(p_owner, p_token);
  if p_limit is null or p_limit not between 1 and 32 then
    raise exception 'a page has 1 to 32 candidates, not %', p_limit using errcode = 'QL400';
  end if;

  return query
  select
    s.package_key,
    s.trigger_key,
    t.cron,
    t.tz,
    s.next_fire_at_ms,
    s.updated_at_ms,
    s.state_version,
    s.claim_version,
    s.claimed_at_ms
  from ql.trigger_schedule as s
  join ql.trigger as t on t.package_key = s.package_key and t.trigger_key = s.trigger_key
  where s.claim_token = p_token and s.claim_owner = p_owner
  order by coalesce(s.next_fire_at_ms, 0), s.package_key, s.trigger_key;
  if found then
    return;
  end if;

  v_now := ql.now_ms();
  return query
  with picked as materialized (
    select
      d.package_key,
      d.trigger_key,
      d.due_at_ms
    from ql.trigger_schedule as d
    where d.due_at_ms <= v_now
    order by d.due_at_ms, d.package_key, d.trigger_key
    limit p_limit
    for no key update skip locked
  ),
  claimed as (
    update ql.trigger_schedule as s
    set
      state_version = s.state_version + 1,
      claim_owner = p_owner,
      claim_token = p_token,
      claim_version = s.claim_version + 1,
      claim_expires_at_ms = v_now + 30000,
      claimed_at_ms = v_now,
      -- who was in time and died does not make it late: another takes over as soon as it may
      seen_at_ms = case
        when s.claim_expires_at_ms >= v_now - 30000 then s.seen_at_ms
        else v_now
      end,
      due_at_ms = v_now + 30000
    from picked as p
    where s.package_key = p.package_key
      and s.trigger_key = p.trigger_key
      -- a scalar subquery, which no planner makes a join with all triggers of
      and (
        select g.state
        from ql.trigger as t
        join ql.package_generation as g
          on g.package_key = t.package_key and g.generation = t.generation
        where t.package_key = p.package_key
          and t.trigger_key = p.trigger_key
          and t.state = 'active'
      ) = 'active'
    returning
      s.package_key,
      s.trigger_key,
      (
        select t.cron
        from ql.trigger as t
        where t.package_key = s.package_key and t.trigger_key = s.trigger_key
      ) as cron,
      (
        select t.tz
        from ql.trigger as t
        where t.package_key = s.package_key and t.trigger_key = s.trigger_key
      ) as tz,
      s.next_fire_at_ms,
      s.updated_at_ms,
      s.state_version,
      s.claim_version
  )
  select
    c.package_key,
    c.trigger_key,
    c.cron,
    c.tz,
    c.next_fire_at_ms,
    c.updated_at_ms,
    c.state_version,
    c.claim_version,
    v_now
  from claimed as c
  order by coalesce(c.next_fire_at_ms, 0), c.package_key, c.trigger_key;
end;
$$;

-- STEP     commit_schedule — what becomes of a claimed occurrence, and where the cursor goes
-- LOCKS    trigger_schedule (skip locked) · package_generation (for share, skip locked)
-- READS    schedule_decision; the time once more, after the locks
-- WRITES   trigger_schedule, trigger_run, trigger_fault, run, run_input; through ql.apply_effects
-- RETURNS  applied | settled (done before) | blocked (it may not fire) | contended (no longer ours)
-- RAISES   QL400, QL404, QL503
-- REPLAY   settled, until the trigger is claimed again
create or replace function ql_scheduler.commit_schedule (
  p_package_key text,
  p_trigger_key text,
  p_owner text,
  p_token text,
  p_claim_version bigint,
  p_state_version bigint,
  p_cursor_ms bigint,
  p_due_at_ms bigint,
  p_observed_at_ms bigint,
  p_next_at_ms bigint,
  p_grace_ms bigint
)
returns table (outcome text, disposition text, cause text, run_id text, next_fire_at_ms bigint)
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
  v_schedule ql.trigger_schedule;
  v_now bigint;
  v_cursor bigint := case
    when p_due_at_ms > p_observed_at_ms then p_due_at_ms
    else p_next_at_ms
  end;
  v_disposition text;
  v_cause text;
  v_run_id text;
begin
  perform ql.assert_read_committed();
  perform ql.check_claim(p_owner, p_token);
  perform ql.check_commit(p_cursor_ms, p_due_at_ms, p_observed_at_ms, p_next_at_ms, p_grace_ms);
  select s.*
  into v_schedule
  from ql.trigger_schedule as s
  where s.package_key = p_package_key and s.trigger_key = p_trigger_key
  for no key update skip locked;
  if not found then
    perform ql.find_trigger(p_package_key, p_trigger_key);
    return query select 'contended', null, null, null, null::bigint;
    return;
  end if;

  v_now := ql.now_ms();
  if v_schedule.claim_token is null
    and v_schedule.state_version = p_state_version + 1
    and v_schedule.claim_version = p_claim_version
    and v_schedule.next_fire_at_ms = v_cursor
  then
    return query select 'settled', null, null, v_schedule.last_run_id, v_cursor;
    return;
  end if;
  -- a clock that has gone back since the claim proves nothing: it is not decided by
  if v_schedule.state_version is distinct from p_state_version
    or v_schedule.next_fire_at_ms is distinct from p_cursor_ms
    or v_schedule.claim_owner is distinct from p_owner
    or v_schedule.claim_token is distinct from p_token
    or v_schedule.claim_version is distinct from p_claim_version
    or v_schedule.claimed_at_ms is distinct from p_observed_at_ms
    or v_now not between v_schedule.claimed_at_ms and v_schedule.claim_expires_at_ms - 1
  then
    return query select 'contended', null, null, null, null::bigint;
    return;
  end if;

  perform
  from ql.package_generation as g
  where g.package_key = p_package_key and g.state = 'active'
  for share skip locked;
  if not found then
    perform ql.return_claim(p_package_key, p_trigger_key);
    return query select 'contended', null, null, null, null::bigint;
    return;
  end if;
  select d.disposition, d.cause
  into v_disposition, v_cause
  from ql.schedule_decision as d
  where d.package_key = p_package_key
    and d.trigger_key = p_trigger_key
    and d.arrival = case
      when p_due_at_ms > p_observed_at_ms then 'early'
      when v_schedule.seen_at_ms - p_due_at_ms > p_grace_ms then 'late'
      else 'on_time'
    end;
  if not found then
    perform ql.return_claim(p_package_key, p_trigger_key);
    return query select 'blocked', null, null, null, null::bigint;
    return;
  end if;

  if v_disposition = 'admit' then
    v_run_id := ql.derived_id('ru', p_package_key, p_trigger_key, p_due_at_ms::text);
    perform ql.admit_occurrence(v_run_id, p_package_key, p_trigger_key, p_due_at_ms);
  end if;
  delete from ql.trigger_fault as f
  where f.package_key = p_package_key and f.trigger_key = p_trigger_key;
  update ql.trigger_schedule as s
  set
    next_fire_at_ms = v_cursor,
    last_scheduled_at_ms = case
      when v_disposition = 'initialize' then s.last_scheduled_at_ms
      else p_due_at_ms
    end,
    last_outcome = case v_disposition
      when 'admit' then 'admitted'
      when 'skip' then v_cause
      else s.last_outcome
    end,
    last_run_id = coalesce(v_run_id, s.last_run_id),
    state_version = s.state_version + 1,
    claim_owner = null,
    claim_token = null,
    claim_expires_at_ms = null,
    claimed_at_ms = null,
    seen_at_ms = null,
    due_at_ms = v_cursor,
    updated_at_ms = v_now
  where s.package_key = p_package_key and s.trigger_key = p_trigger_key;
  return query select 'applied', v_disposition, v_cause, v_run_id, v_cursor;
end;
$$;

-- HELPER   check_commit — the times that a scheduler has computed
-- RAISES   QL400
create or replace function ql.check_commit (
  p_cursor_ms bigint,
  p_due_at_ms bigint,
  p_observed_at_ms bigint,
  p_next_at_ms bigint,
  p_grace_ms bigint
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if not coalesce(
    p_due_at_ms >= 0
    and p_next_at_ms > p_observed_at_ms
    and p_next_at_ms >= p_due_at_ms
    and p_due_at_ms = coalesce(p_cursor_ms, p_due_at_ms)
    and p_grace_ms between 0 and 300000,
    false
  ) then
    raise exception 'the due time is the cursor, the next one is later than what was observed'
      using errcode = 'QL400';
  end if;
end;
$$;

-- from sql/postgres/schedule_trigger.sql sha256 11557837a625e9a91561e87b1a8ad6101f5f573c8a7a7e361907d7ffbc7e2197
-- TRIGGERS — what an operator does with one: pause, resume, fire now. A withdrawn one is unknown
-- (DESIGN §5, generations).

-- STEP     pause_trigger — a paused trigger does not fire; its cursor stays where it is
-- LOCKS    trigger, trigger_schedule (waits)
-- READS    trigger
-- WRITES   trigger, trigger_schedule
-- RETURNS  trigger_key, state
-- RAISES   QL404, QL503
-- REPLAY   exact
create or replace function ql_operator.pause_trigger (p_package_key text, p_trigger_key text)
returns table (trigger_key text, state text)
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
begin
  perform ql.assert_read_committed();
  perform ql.set_trigger(p_package_key, p_trigger_key, 'paused');
  perform ql.set_due(p_package_key, p_trigger_key);
  return query select p_trigger_key, 'paused';
end;
$$;

-- STEP     resume_trigger — a paused trigger fires again, by its misfire rule if it is late; one
--          that raised is tried at once
-- LOCKS    trigger, trigger_schedule (waits)
-- READS    trigger
-- WRITES   trigger, trigger_schedule, trigger_fault
-- RETURNS  trigger_key, state
-- RAISES   QL404, QL503
-- REPLAY   exact
create or replace function ql_operator.resume_trigger (p_package_key text, p_trigger_key text)
returns table (trigger_key text, state text)
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
begin
  perform ql.assert_read_committed();
  perform ql.set_trigger(p_package_key, p_trigger_key, 'active');
  delete from ql.trigger_fault as f
  where f.package_key = p_package_key and f.trigger_key = p_trigger_key;
  perform ql.set_due(p_package_key, p_trigger_key);
  return query select p_trigger_key, 'active';
end;
$$;

-- STEP     fire_trigger — what a trigger starts, now and once; whether it is paused or what it
--          started before is still open does not matter, and its cursor stays
-- LOCKS    package_generation (for share: the start guard), trigger_schedule (waits)
-- READS    trigger, run
-- WRITES   trigger_run, run, run_input; through ql.apply_effects
-- RETURNS  created | existing
-- RAISES   QL400, QL404, QL503
-- REPLAY   exact: one run a key
create or replace function ql_operator.fire_trigger (
  p_package_key text,
  p_trigger_key text,
  p_run_key text
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
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
  v_run_id text := ql.derived_id(
    'ru', p_package_key, 'trigger', p_trigger_key, 'fire', p_run_key
  );
  v_outcome text := 'existing';
begin
  perform ql.assert_read_committed();
  if p_package_key is null
    or p_trigger_key is null
    or coalesce(length(p_run_key), 0) not between 1 and 200
  then
    raise exception 'package, trigger and a run key of 1 to 200 characters are needed'
      using errcode = 'QL400';
  end if;

  if not exists (select from ql.run as r where r.run_id = v_run_id) then
    perform
    from ql.package_generation as g
    where g.package_key = p_package_key and g.state = 'active'
    for share;
    perform
    from ql.trigger_schedule as s
    where s.package_key = p_package_key and s.trigger_key = p_trigger_key
    for no key update;
    perform ql.find_trigger(p_package_key, p_trigger_key);
    if ql.admit_occurrence(v_run_id, p_package_key, p_trigger_key, null) then
      v_outcome := 'created';
    end if;
  end if;
  return query
  select
    r.run_id,
    v_outcome,
    r.status,
    r.generation
  from ql.run as r
  where r.run_id = v_run_id;
end;
$$;

-- HELPER   admit_occurrence — the run of a trigger, false when it is there already; runs of it that
--          have ended are marked
-- LOCKS    package_generation (for share; the caller holds trigger_schedule)
-- READS    trigger
-- WRITES   trigger_run, run, run_input; through ql.apply_effects
-- RAISES   QL404
create or replace function ql.admit_occurrence (
  p_run_id text,
  p_package_key text,
  p_trigger_key text,
  p_scheduled_at_ms bigint
)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  v_kind text;
  v_target_key text;
begin
  update ql.trigger_run as m
  set open_at_ms = null
  where m.package_key = p_package_key
    and m.trigger_key = p_trigger_key
    and m.open_at_ms is not null
    and (select r.status from ql.run as r where r.run_id = m.run_id) is distinct from 'running';
  select t.kind, t.target_key
  into v_kind, v_target_key
  from ql.trigger as t
  where t.package_key = p_package_key and t.trigger_key = p_trigger_key;
  if not ql.admit_run(
    p_run_id,
    p_package_key,
    v_kind,
    v_target_key,
    coalesce(p_trigger_key || ' ' || p_scheduled_at_ms, p_trigger_key),
    '{}',
    null,
    p_trigger_key,
    p_scheduled_at_ms
  ) then
    return false;
  end if;
  insert into ql.trigger_run (run_id, package_key, trigger_key, open_at_ms)
  values (p_run_id, p_package_key, p_trigger_key, ql.now_ms());
  return true;
end;
$$;

-- HELPER   set_trigger — move a trigger between active and paused
-- LOCKS    trigger, trigger_schedule (waits)
-- WRITES   trigger
-- RAISES   QL404
create or replace function ql.set_trigger (
  p_package_key text,
  p_trigger_key text,
  p_state text
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform ql.hold_triggers(p_package_key, p_trigger_key);
  perform ql.find_trigger(p_package_key, p_trigger_key);

  update ql.trigger as t
  set state = p_state, updated_at_ms = ql.now_ms()
  where t.package_key = p_package_key and t.trigger_key = p_trigger_key and t.state <> p_state;
end;
$$;

-- HELPER   find_trigger — a trigger that its package still has
-- READS    trigger
-- RAISES   QL404
create or replace function ql.find_trigger (p_package_key text, p_trigger_key text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform
  from ql.trigger as t
  where t.package_key = p_package_key and t.trigger_key = p_trigger_key and t.state <> 'withdrawn';
  if not found then
    raise exception 'no trigger % in package %', p_trigger_key, p_package_key
      using errcode = 'QL404';
  end if;
end;
$$;

-- HELPER   hold_triggers — lock triggers of a package with their schedules; null is all of them
-- LOCKS    trigger, trigger_schedule, each by key (waits)
create or replace function ql.hold_triggers (p_package_key text, p_trigger_key text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform
  from ql.trigger as t
  where t.package_key = p_package_key and t.trigger_key = coalesce(p_trigger_key, t.trigger_key)
  order by t.trigger_key
  for no key update;
  perform
  from ql.trigger_schedule as s
  where s.package_key = p_package_key and s.trigger_key = coalesce(p_trigger_key, s.trigger_key)
  order by s.trigger_key
  for no key update;
end;
$$;

-- HELPER   check_claim — whose it is
-- RAISES   QL400
create or replace function ql.check_claim (p_owner text, p_token text)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if coalesce(length(p_owner), 0) not between 1 and 200
    or coalesce(length(p_token), 0) not between 1 and 64
  then
    raise exception 'a claim has an owner and a token' using errcode = 'QL400';
  end if;
end;
$$;

-- from sql/postgres/schedule_fault.sql sha256 b8e9b2a1ff47f338f6ddd0dc07e35cd880d6a5071f26c5fa0d25a05a193bb742
-- FAULTS OF TRIGGERS — what a scheduler does with one that raised, and when any of them is looked
-- at again.

-- STEP     record_trigger_fault — a trigger raised: keep the error, try again later (1 s, then
--          twice as long each time, up to 5 min), and let the others pass
-- LOCKS    trigger_schedule (skip locked)
-- READS    trigger_fault
-- WRITES   trigger_fault, trigger_schedule
-- RETURNS  fault_count, next_try_at_ms; no row when it is not as the caller saw it
-- RAISES   QL400, QL503
-- REPLAY   no row: the state has moved
create or replace function ql_scheduler.record_trigger_fault (
  p_package_key text,
  p_trigger_key text,
  p_state_version bigint,
  p_error text
)
returns table (fault_count bigint, next_try_at_ms bigint)
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
declare
  v_now bigint;
  v_count bigint;
  v_next bigint;
begin
  perform ql.assert_read_committed();
  if p_error is null then
    raise exception 'a fault has an error' using errcode = 'QL400';
  end if;
  perform
  from ql.trigger_schedule as s
  where s.package_key = p_package_key
    and s.trigger_key = p_trigger_key
    and s.state_version = p_state_version
    and s.due_at_ms is not null
  for no key update skip locked;
  if not found then
    return;
  end if;

  v_now := ql.now_ms();
  select 1 + coalesce(max(f.fault_count), 0)
  into v_count
  from ql.trigger_fault as f
  where f.package_key = p_package_key and f.trigger_key = p_trigger_key;
  v_next := v_now + least(300000, 1000 * (1 << least(v_count - 1, 9)::int));

  insert into ql.trigger_fault (
    package_key, trigger_key, error, fault_count, first_at_ms, last_at_ms, next_try_at_ms
  )
  values (
    p_package_key,
    p_trigger_key,
    -- a character has at most four bytes, so 512 of them fit whatever they are
    case when octet_length(p_error) <= 2048 then p_error else left(p_error, 512) end,
    v_count,
    v_now,
    v_now,
    v_next
  )
  on conflict on constraint trigger_fault_pkey do update
  set
    error = excluded.error,
    fault_count = excluded.fault_count,
    last_at_ms = excluded.last_at_ms,
    next_try_at_ms = excluded.next_try_at_ms;
  perform ql.return_claim(p_package_key, p_trigger_key);
  return query select v_count, v_next;
end;
$$;

-- STEP     sweep_schedule — bring near what a clock wrote that was ahead: a cursor that was set
--          more than a minute later than now begins anew, a back-off is at most its longest
-- LOCKS    trigger_schedule, trigger_fault (skip locked)
-- READS    trigger_schedule, trigger_fault
-- WRITES   trigger_schedule, trigger_fault
-- RETURNS  package_key, trigger_key of those that were brought near
-- RAISES   QL400, QL503
-- REPLAY   exact: the second call finds none of them
create or replace function ql_scheduler.sweep_schedule (p_limit int)
returns table (package_key text, trigger_key text)
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
  v_now bigint;
begin
  perform ql.assert_read_committed();
  if p_limit is null or p_limit not between 1 and 32 then
    raise exception 'a page has 1 to 32 candidates, not %', p_limit using errcode = 'QL400';
  end if;

  v_now := ql.now_ms();
  for package_key, trigger_key in
    select
      s.package_key,
      s.trigger_key
    from ql.trigger_schedule as s
    where s.updated_at_ms > v_now + 60000 and s.due_at_ms is not null
    order by s.updated_at_ms
    limit p_limit
    for no key update skip locked
  loop
    delete from ql.trigger_fault as f
    where f.package_key = sweep_schedule.package_key
      and f.trigger_key = sweep_schedule.trigger_key;
    update ql.trigger_schedule as s
    set
      next_fire_at_ms = null,
      updated_at_ms = v_now
    where s.package_key = sweep_schedule.package_key
      and s.trigger_key = sweep_schedule.trigger_key;
    perform ql.return_claim(sweep_schedule.package_key, sweep_schedule.trigger_key);
    return next;
  end loop;

  for package_key, trigger_key in
    select
      s.package_key,
      s.trigger_key
    from ql.trigger_fault as f
    join ql.trigger_schedule as s
      on s.package_key = f.package_key and s.trigger_key = f.trigger_key
    where f.next_try_at_ms > v_now + 300000 and s.due_at_ms is not null
    limit p_limit
    for no key update skip locked
  loop
    update ql.trigger_fault as f
    set next_try_at_ms = v_now + 300000
    where f.package_key = sweep_schedule.package_key
      and f.trigger_key = sweep_schedule.trigger_key;
    perform ql.set_due(sweep_schedule.package_key, sweep_schedule.trigger_key);
    return next;
  end loop;
end;
$$;

-- HELPER   return_claim — nobody has it any more; it is due as it was
-- LOCKS    none (the caller holds trigger_schedule)
-- WRITES   trigger_schedule
create or replace function ql.return_claim (p_package_key text, p_trigger_key text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  update ql.trigger_schedule as s
  set
    state_version = s.state_version + 1,
    claim_owner = null,
    claim_token = null,
    claim_expires_at_ms = null,
    claimed_at_ms = null,
    seen_at_ms = null
  where s.package_key = p_package_key and s.trigger_key = p_trigger_key;
  perform ql.set_due(p_package_key, p_trigger_key);
end;
$$;

-- HELPER   set_due — when the triggers of a package are looked at again; null is all of them. One
--          that is not active loses its claim
-- LOCKS    none (the caller holds trigger and trigger_schedule)
-- READS    schedule_due
-- WRITES   trigger_schedule
create or replace function ql.set_due (p_package_key text, p_trigger_key text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  update ql.trigger_schedule as s
  set
    state_version = s.state_version + 1,
    claim_owner = null,
    claim_token = null,
    claim_expires_at_ms = null,
    claimed_at_ms = null,
    seen_at_ms = null
  from ql.trigger as t
  where s.package_key = p_package_key
    and s.trigger_key = coalesce(p_trigger_key, s.trigger_key)
    and s.claim_token is not null
    and t.package_key = s.package_key
    and t.trigger_key = s.trigger_key
    and t.state <> 'active';

  update ql.trigger_schedule as s
  set due_at_ms = d.due_at_ms
  from ql.schedule_due as d
  where s.package_key = p_package_key
    and s.trigger_key = coalesce(p_trigger_key, s.trigger_key)
    and d.package_key = s.package_key
    and d.trigger_key = s.trigger_key
    and d.due_at_ms is distinct from s.due_at_ms;
end;
$$;

-- from sql/postgres/retention.sql sha256 3dc105368b6aadd6de99b3cb9bca8e7ee0a6e53cde54c2b931b7ebe99abf595d
-- RETENTION — runs that ended long ago go, with everything that belongs to them. ql_retention owns
-- the step and is the only role that may delete history (grant.sql).

-- STEP     purge_runs — delete the runs that ended first, if that was before a time
-- LOCKS    2 run (skip locked); a run that has ended has no live attempt, so there is no 1, and
--          whoever waits for the run finds that it is gone
-- READS    run; retention_due (only after the locks are held)
-- WRITES   run_event, refused_report, attestation, attempt_report, attempt_offer, cancel_intent,
--          attempt_lease, task_attempt, step_output, step_run, run_input, agenda, run_fault,
--          trigger_run, run
-- RETURNS  the runs that are gone, those that ended first at the top
-- RAISES   QL400, QL503
-- REPLAY   exact: what is gone is not found again
create or replace function ql_retention.purge_runs (p_before_ms bigint, p_limit int)
returns table (run_id text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off  -- a sort below the limit would lock every run that is due
set lock_timeout = '1s'
as $$
declare
  v_held text[];
  v_run_ids text[];
begin
  perform ql.assert_read_committed();
  if p_before_ms is null then
    raise exception 'a time is needed' using errcode = 'QL400';
  end if;
  if p_limit is null or p_limit not between 1 and 32 then
    raise exception 'a page has 1 to 32 runs, not %', p_limit using errcode = 'QL400';
  end if;

  v_held := array(
    select r.run_id
    from ql.run as r
    where r.finished_at_ms < p_before_ms
    order by r.finished_at_ms, r.run_id
    limit p_limit
    for update skip locked
  );
  v_run_ids := array(
    select u.run_id
    from unnest(v_held) with ordinality as u (run_id, place)
    cross join lateral (
      select 1
      from ql.retention_due as d
      where d.run_id = u.run_id and d.finished_at_ms < p_before_ms
      offset 0
    ) as due
    order by u.place
  );
  if cardinality(v_run_ids) = 0 then
    return;  -- a plan for no run at all may walk through an index
  end if;

  delete from ql.run_event as e where e.run_id = any(v_run_ids);
  delete from ql.refused_report as f where f.run_id = any(v_run_ids);
  delete from ql.attestation as n where n.run_id = any(v_run_ids);
  delete from ql.attempt_report as p where p.run_id = any(v_run_ids);
  delete from ql.attempt_offer as o where o.run_id = any(v_run_ids);
  delete from ql.cancel_intent as i where i.run_id = any(v_run_ids);
  delete from ql.attempt_lease as l
  where l.attempt_id = any(array(
    select a.attempt_id from ql.task_attempt as a where a.run_id = any(v_run_ids)
  ));
  delete from ql.task_attempt as a where a.run_id = any(v_run_ids);
  delete from ql.step_output as o where o.run_id = any(v_run_ids);
  delete from ql.step_run as s where s.run_id = any(v_run_ids);
  delete from ql.run_input as i where i.run_id = any(v_run_ids);
  delete from ql.agenda as g where g.run_id = any(v_run_ids);
  delete from ql.run_fault as f where f.run_id = any(v_run_ids);
  delete from ql.trigger_run as m where m.run_id = any(v_run_ids);
  delete from ql.run as r where r.run_id = any(v_run_ids);

  return query
  select u.run_id
  from unnest(v_run_ids) with ordinality as u (run_id, place)
  order by u.place;
end;
$$;

-- from sql/postgres/grant.sql sha256 55b99d16e6b7f185948318c9b11d520a6dae84a9d4a526d1de90b2d5e6c6fe22
-- GRANTS — who may do what (DESIGN §8). PUBLIC may do nothing; the groups may only execute the
-- functions in the schema of their name, and ql_reader may select from the views.
-- ql_authority, as whom those functions run, may change the columns below the line "moves" in
-- table.sql; history and inputs it may only add to; only what is due, open or failed may it delete.
-- ql_retention, as whom purge_runs runs, may delete runs with all that is theirs, and add nothing.
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
  ql.fault_state, ql.worker_state, ql.queue_state
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
  expires_at_ms
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
  ql.run_event
to ql_authority;

-- what has ended long ago; a row lock asks for the right to update some column
grant usage on schema ql to ql_retention;
grant execute on function ql.assert_read_committed() to ql_retention;
grant select on ql.retention_due to ql_retention;
grant select, delete on
  ql.run, ql.run_input, ql.step_run, ql.step_output, ql.task_attempt, ql.attempt_lease,
  ql.cancel_intent, ql.attempt_offer, ql.attempt_report, ql.attestation, ql.refused_report,
  ql.run_event, ql.agenda, ql.run_fault, ql.trigger_run
to ql_retention;
grant update (updated_at_ms) on ql.run to ql_retention;
