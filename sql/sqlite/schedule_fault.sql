-- FAULTS OF TRIGGERS — what a scheduler does with one that raised, and when any of them is looked
-- at again. Mirror of
-- sql/postgres/schedule_fault.sql.

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

-- STEP     sweep_schedule — bring near what a clock wrote that was ahead: a cursor that was set
--          more than a minute later than now begins anew, a back-off is at most its longest
-- WRITES   trigger_schedule, trigger_fault
-- RAISES   QL400
-- REPLAY   exact: the second call finds none of them
-- CALL     check_limit

delete from temp.occurrence;

insert into temp.occurrence (package_key, trigger_key, outcome)
select
  s.package_key,
  s.trigger_key,
  'cursor'
from trigger_schedule as s
where s.updated_at_ms > :now_ms + 60000 and s.due_at_ms is not null
order by s.updated_at_ms
limit :p_limit;

delete from trigger_fault
where (package_key, trigger_key) in (
  select
    o.package_key,
    o.trigger_key
  from temp.occurrence as o
);

insert into temp.occurrence (package_key, trigger_key, outcome)
select
  f.package_key,
  f.trigger_key,
  'fault'
from trigger_fault as f
cross join trigger_schedule as s
  on s.package_key = f.package_key and s.trigger_key = f.trigger_key
where f.next_try_at_ms > :now_ms + 300000 and s.due_at_ms is not null
limit :p_limit;

update trigger_fault
set next_try_at_ms = :now_ms + 300000
where (package_key, trigger_key) in (
  select
    o.package_key,
    o.trigger_key
  from temp.occurrence as o
  where o.outcome = 'fault'
);

update trigger_schedule
set
  next_fire_at_ms = case when o.outcome = 'fault' then trigger_schedule.next_fire_at_ms end,
  updated_at_ms = case
    when o.outcome = 'fault' then trigger_schedule.updated_at_ms
    else :now_ms
  end,
  state_version = trigger_schedule.state_version + (o.outcome = 'cursor'),
  due_at_ms = case when o.outcome = 'fault' then :now_ms + 300000 else 0 end
from temp.occurrence as o
where trigger_schedule.package_key = o.package_key
  and trigger_schedule.trigger_key = o.trigger_key;

select
  o.package_key,
  o.trigger_key
from temp.occurrence as o;

-- HELPER   set_due — when the triggers of a package are looked at again
update trigger_schedule
set due_at_ms = d.due_at_ms
from schedule_due as d
where trigger_schedule.package_key = :p_package_key
  and d.package_key = :p_package_key
  and d.trigger_key = trigger_schedule.trigger_key
  and d.due_at_ms is distinct from trigger_schedule.due_at_ms;
