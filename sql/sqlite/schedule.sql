-- SCHEDULE — triggers: pause and resume. A withdrawn trigger is unknown. Mirror of
-- sql/postgres/schedule.sql.

-- STEP     pause_trigger — a paused trigger does not fire; its cursor stays where it is
-- WRITES   trigger
-- RAISES   QL404
-- REPLAY   exact
-- CALL     find_trigger

update trigger
set
  state = 'paused',
  updated_at_ms = :now_ms
where package_key = :p_package_key and trigger_key = :p_trigger_key and state <> 'paused';

select
  t.trigger_key,
  t.state
from trigger as t
where t.package_key = :p_package_key and t.trigger_key = :p_trigger_key;

-- STEP     resume_trigger — a paused trigger fires again, by its misfire rule if it is late
-- WRITES   trigger
-- RAISES   QL404
-- REPLAY   exact
-- CALL     find_trigger

update trigger
set
  state = 'active',
  updated_at_ms = :now_ms
where package_key = :p_package_key and trigger_key = :p_trigger_key and state <> 'active';

select
  t.trigger_key,
  t.state
from trigger as t
where t.package_key = :p_package_key and t.trigger_key = :p_trigger_key;

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
