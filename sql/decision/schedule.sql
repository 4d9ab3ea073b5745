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
