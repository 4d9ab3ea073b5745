-- SCHEDULE — a due trigger fires once (DOMAIN §3.10). There is one process: what is due is read,
-- and the decision is one `begin immediate` that compares everything again. Mirror of
-- sql/postgres/schedule.sql.

-- STEP     claim_schedule — due triggers, in the order in which they became due; nothing is
--          written, so owner and token are nobody's here
-- RAISES   QL400
-- CALL     check_limit

insert into temp.refusal (code, message)
select 'QL400', 'a claim has an owner and a token'
where coalesce(length(:p_owner), 0) not between 1 and 200
  or coalesce(length(:p_token), 0) not between 1 and 64;

select
  t.package_key,
  t.trigger_key,
  t.cron,
  t.tz,
  s.next_fire_at_ms,
  s.updated_at_ms as since_ms,
  s.state_version,
  s.claim_version,
  :now_ms as observed_at_ms
from trigger_schedule as s
cross join trigger as t on t.package_key = s.package_key and t.trigger_key = s.trigger_key
where s.due_at_ms <= :now_ms
  and t.state = 'active'
  and exists (
    select 1
    from package_generation as g
    where g.package_key = t.package_key
      and g.generation = t.generation
      and g.state = 'active'
  )
order by s.due_at_ms, s.package_key, s.trigger_key
limit :p_limit;

-- STEP     commit_schedule — what becomes of an occurrence, and where the cursor goes
-- LOCKS    the database (begin immediate, by the caller)
-- READS    schedule_decision
-- WRITES   trigger_schedule, trigger_run, trigger_fault, run, run_input; through apply_effects
-- RETURNS  applied | settled (done before) | blocked (it may not fire) | contended (it has moved)
-- RAISES   QL400, QL404
-- REPLAY   settled, until the trigger is due again
insert into temp.refusal (code, message)
select 'QL400', 'a claim has an owner and a token'
where coalesce(length(:p_owner), 0) not between 1 and 200
  or coalesce(length(:p_token), 0) not between 1 and 64;

insert into temp.refusal (code, message)
select 'QL400', 'the due time is the cursor, the next one is later than what was observed'
where not coalesce(
  :p_due_at_ms >= 0
  and :p_next_at_ms > :p_observed_at_ms
  and :p_next_at_ms >= :p_due_at_ms
  and :p_due_at_ms = coalesce(:p_cursor_ms, :p_due_at_ms)
  and :p_grace_ms between 0 and 300000,
  0
);

delete from temp.occurrence;

insert into temp.occurrence (
  package_key, trigger_key, outcome, disposition, cause, run_id, next_fire_at_ms
)
select
  s.package_key,
  s.trigger_key,
  case
    when s.state_version = :p_state_version + 1
      and s.claim_version = :p_claim_version
      and s.next_fire_at_ms = c.next_fire_at_ms
      then 'settled'
    when s.state_version <> :p_state_version
      or s.next_fire_at_ms is distinct from :p_cursor_ms
      or s.claim_version <> :p_claim_version
      -- as long as a claim, and a clock that has gone back proves nothing
      or :now_ms not between :p_observed_at_ms and :p_observed_at_ms + 29999
      then 'contended'
    when d.disposition is null then 'blocked'
    else 'applied'
  end,
  d.disposition,
  d.cause,
  case
    when d.disposition = 'admit'
      then derived_id('ru', s.package_key, s.trigger_key, cast(:p_due_at_ms as text))
  end,
  c.next_fire_at_ms
from trigger_schedule as s
cross join (
  select
    case when :p_due_at_ms > :p_observed_at_ms then :p_due_at_ms else :p_next_at_ms end
      as next_fire_at_ms
) as c
left join (
  select
    e.disposition,
    e.cause
  from schedule_decision as e
  where e.package_key = :p_package_key
    and e.trigger_key = :p_trigger_key
    and e.arrival = case
      when :p_due_at_ms > :p_observed_at_ms then 'early'
      when :p_observed_at_ms - :p_due_at_ms > :p_grace_ms then 'late'
      else 'on_time'
    end
) as d on true
where s.package_key = :p_package_key and s.trigger_key = :p_trigger_key;

update temp.occurrence
set
  disposition = null,
  cause = null,
  run_id = case
    when outcome = 'settled' then (
      select s.last_run_id
      from trigger_schedule as s
      where s.package_key = :p_package_key and s.trigger_key = :p_trigger_key
    )
  end,
  next_fire_at_ms = case when outcome = 'settled' then next_fire_at_ms end
where outcome <> 'applied';

insert into temp.refusal (code, message)
select 'QL404', 'no trigger ' || :p_trigger_key || ' in package ' || :p_package_key
where not exists (select 1 from temp.occurrence);

delete from temp.admission;

insert into temp.admission (
  run_id, package_key, kind, target_key, run_key, input, trigger_key, scheduled_at_ms, outcome
)
select
  o.run_id,
  t.package_key,
  t.kind,
  t.target_key,
  t.trigger_key || ' ' || :p_due_at_ms,
  '{}',
  t.trigger_key,
  :p_due_at_ms,
  case
    when exists (select 1 from run as r where r.run_id = o.run_id) then 'existing'
    else 'created'
  end
from temp.occurrence as o
cross join trigger as t on t.package_key = o.package_key and t.trigger_key = o.trigger_key
where o.outcome = 'applied' and o.run_id is not null;

-- CALL     admit_occurrence

delete from trigger_fault
where (package_key, trigger_key) in (
  select
    o.package_key,
    o.trigger_key
  from temp.occurrence as o
  where o.outcome = 'applied'
);

update trigger_schedule
set
  next_fire_at_ms = o.next_fire_at_ms,
  last_scheduled_at_ms = case
    when o.disposition = 'initialize' then trigger_schedule.last_scheduled_at_ms
    else :p_due_at_ms
  end,
  last_outcome = case o.disposition
    when 'admit' then 'admitted'
    when 'skip' then o.cause
    else trigger_schedule.last_outcome
  end,
  last_run_id = coalesce(o.run_id, trigger_schedule.last_run_id),
  state_version = trigger_schedule.state_version + 1,
  due_at_ms = o.next_fire_at_ms,
  updated_at_ms = :now_ms
from temp.occurrence as o
where trigger_schedule.package_key = o.package_key
  and trigger_schedule.trigger_key = o.trigger_key
  and o.outcome = 'applied';

select
  o.outcome,
  o.disposition,
  o.cause,
  o.run_id,
  o.next_fire_at_ms
from temp.occurrence as o;
