-- TRIGGERS — what an operator does with one: pause, resume, fire now. A withdrawn trigger is unknown.
-- And what a scheduler does with one that raised. Mirror of sql/postgres/schedule_trigger.sql.

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

-- STEP     resume_trigger — a paused trigger fires again, by its misfire rule if it is late; one that
--          raised is tried at once
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

-- STEP     fire_trigger — what a trigger starts, now and once; whether it is paused or what it started
--          before is still open does not matter, and its cursor stays
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

-- STEP     record_trigger_fault — a trigger raised: try again later, and let the others pass
-- WRITES   trigger_fault, trigger_schedule
-- RAISES   QL400
-- REPLAY   no row: the state has moved; the back-off doubles from one second to five minutes
insert into temp.refusal (code, message)
select 'QL400', 'a fault has an error'
where :p_error is null;

delete from temp.answer;

insert into temp.answer (entity_id, outcome)
select s.trigger_key, 'faulted'
from trigger_schedule as s
where s.package_key = :p_package_key
  and s.trigger_key = :p_trigger_key
  and s.state_version = :p_state_version
  and s.due_at_ms is not null;

insert into trigger_fault (
  package_key, trigger_key, error, fault_count, first_at_ms, last_at_ms, next_try_at_ms
)
select
  :p_package_key,
  a.entity_id,
  case
    when length(cast(:p_error as blob)) <= 2048 then :p_error
    else substr(:p_error, 1, 512)  -- at most four bytes each
  end,
  1,
  :now_ms,
  :now_ms,
  :now_ms + 1000
from temp.answer as a
where true
on conflict (package_key, trigger_key) do update set
  error = excluded.error,
  fault_count = trigger_fault.fault_count + 1,
  last_at_ms = excluded.last_at_ms,
  next_try_at_ms = excluded.last_at_ms + min(300000, 1000 << min(trigger_fault.fault_count, 20));

update trigger_schedule
set state_version = state_version + 1
where package_key = :p_package_key
  and trigger_key in (select a.entity_id from temp.answer as a);

-- CALL     set_due

select
  f.fault_count,
  f.next_try_at_ms
from temp.answer as a
cross join trigger_fault as f
  on f.package_key = :p_package_key and f.trigger_key = a.entity_id;

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

-- HELPER   set_due — when the triggers of a package are looked at again
update trigger_schedule
set due_at_ms = d.due_at_ms
from schedule_due as d
where trigger_schedule.package_key = :p_package_key
  and d.package_key = :p_package_key
  and d.trigger_key = trigger_schedule.trigger_key
  and d.due_at_ms is distinct from trigger_schedule.due_at_ms;
