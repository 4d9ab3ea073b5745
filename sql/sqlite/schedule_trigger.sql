-- TRIGGERS — what an operator does with one: pause, resume, fire now. A withdrawn one is unknown
-- (DESIGN §5, generations). Mirror of
-- sql/postgres/schedule_trigger.sql.

-- STEP     pause_trigger — a paused trigger does not fire; its cursor stays where it is
-- WRITES   trigger, trigger_schedule
-- RAISES   QL404
-- REPLAY   exact
-- CALL     find_trigger

update trigger
set
  state = 'paused',
  updated_at_ms = :now_ms
where package_key = :p_package_key and trigger_key = :p_trigger_key and state <> 'paused';

-- CALL     set_due

select
  t.trigger_key,
  t.state
from trigger as t
where t.package_key = :p_package_key and t.trigger_key = :p_trigger_key;

-- STEP     resume_trigger — a paused trigger fires again, by its misfire rule if it is late; one
--          that raised is tried at once
-- WRITES   trigger, trigger_schedule, trigger_fault
-- RAISES   QL404
-- REPLAY   exact
-- CALL     find_trigger

delete from trigger_fault
where package_key = :p_package_key and trigger_key = :p_trigger_key;

update trigger
set
  state = 'active',
  updated_at_ms = :now_ms
where package_key = :p_package_key and trigger_key = :p_trigger_key and state <> 'active';

-- CALL     set_due

select
  t.trigger_key,
  t.state
from trigger as t
where t.package_key = :p_package_key and t.trigger_key = :p_trigger_key;

-- STEP     fire_trigger — what a trigger starts, now and once; whether it is paused or what it
--          started before is still open does not matter, and its cursor stays
-- WRITES   trigger_run, run, run_input; through apply_effects
-- RETURNS  created | existing
-- RAISES   QL400, QL404
-- REPLAY   exact: one run a key
insert into temp.refusal (code, message)
select 'QL400', 'package, trigger and a run key of 1 to 200 characters are needed'
where :p_package_key is null
  or :p_trigger_key is null
  or coalesce(length(:p_run_key), 0) not between 1 and 200;

delete from temp.admission;

insert into temp.admission (
  run_id, package_key, kind, target_key, run_key, input, trigger_key, outcome
)
select
  d.run_id,
  t.package_key,
  t.kind,
  t.target_key,
  t.trigger_key,
  '{}',
  t.trigger_key,
  case
    when exists (select 1 from run as r where r.run_id = d.run_id) then 'existing'
    else 'created'
  end
from (
  select derived_id('ru', :p_package_key, 'trigger', :p_trigger_key, 'fire', :p_run_key) as run_id
) as d
cross join trigger as t on t.package_key = :p_package_key and t.trigger_key = :p_trigger_key;

insert into temp.refusal (code, message)
select 'QL404', 'no trigger ' || :p_trigger_key || ' in package ' || :p_package_key
where not exists (select 1 from temp.admission as a where a.outcome = 'existing')
  and not exists (
    select 1
    from trigger as t
    where t.package_key = :p_package_key
      and t.trigger_key = :p_trigger_key
      and t.state <> 'withdrawn'
  );

-- CALL     admit_occurrence

select
  r.run_id,
  a.outcome,
  r.status,
  r.generation
from temp.admission as a
cross join run as r on r.run_id = a.run_id;

-- HELPER   admit_occurrence — the run of temp.admission, unless it is there already; runs of its
--          trigger that have ended are marked
update trigger_run
set open_at_ms = null
where (package_key, trigger_key) = (
    select
      a.package_key,
      a.trigger_key
    from temp.admission as a
  )
  and open_at_ms is not null
  and (select r.status from run as r where r.run_id = trigger_run.run_id)
    is distinct from 'running';

-- CALL     admit_run

insert into trigger_run (run_id, package_key, trigger_key, open_at_ms)
select
  a.run_id,
  a.package_key,
  a.trigger_key,
  :now_ms
from temp.admission as a
where a.outcome = 'created';

-- HELPER   find_trigger — a trigger that its package still has
insert into temp.refusal (code, message)
select 'QL404', 'no trigger ' || :p_trigger_key || ' in package ' || :p_package_key
where not exists (
  select 1
  from trigger as t
  where t.package_key = :p_package_key
    and t.trigger_key = :p_trigger_key
    and t.state <> 'withdrawn'
);
