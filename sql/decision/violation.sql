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
