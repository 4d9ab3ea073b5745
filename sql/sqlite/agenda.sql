-- AGENDA — what is due, for which run, when; and the runs that raised. Mirror of
-- sql/postgres/agenda.sql. Nothing here decides: the rows are written by apply_effects.

-- HELPER   choose_run — this call is about one run
-- RAISES   QL404
delete from temp.effect;

delete from temp.chosen;

insert into temp.chosen (run_id, due_at_ms)
select
  r.run_id,
  (select a.due_at_ms from agenda as a where a.run_id = r.run_id and a.stage = :p_stage)
from run as r
where r.run_id = :p_run_id;

insert into temp.refusal (code, message)
select 'QL404', 'no run ' || :p_run_id
where not exists (select 1 from temp.chosen);

-- HELPER   choose_due — this call is about a page of what is due in a stage
-- RAISES   QL400
-- CALL     check_limit

delete from temp.effect;

delete from temp.chosen;

insert into temp.chosen (run_id, due_at_ms)
select
  a.run_id,
  a.due_at_ms
from agenda as a
where a.stage = :p_stage
  and (a.due_at_ms, a.run_id) > (:p_after_due_at_ms, :p_after_run_id)
  and a.due_at_ms <= :now_ms
order by a.due_at_ms, a.run_id
limit :p_limit;

-- HELPER   clear_stage — the chosen runs have nothing left to do in this stage, and did not raise
delete from agenda
where run_id in (select c.run_id from temp.chosen as c) and stage = :p_stage;

delete from run_fault
where run_id in (select c.run_id from temp.chosen as c) and stage = :p_stage;

-- HELPER   answer_run — what became of the one run
select
  c.run_id,
  case when (select count(*) from temp.effect) > 0 then 'applied' else 'settled' end as outcome,
  (select count(*) from temp.effect) as effects
from temp.chosen as c;

-- HELPER   answer_page — one row for each chosen run, in the order of the agenda
select
  c.run_id,
  c.due_at_ms,
  case
    when exists (select 1 from temp.effect as e where e.run_id = c.run_id) then 'applied'
    else 'settled'
  end as outcome,
  (select count(*) from temp.effect as e where e.run_id = c.run_id) as effects
from temp.chosen as c
order by c.due_at_ms, c.run_id;

-- HELPER   check_limit — a page is short
insert into temp.refusal (code, message)
select 'QL400', 'a page has 1 to 32 candidates, not ' || coalesce(:p_limit, 'null')
where :p_limit is null or :p_limit not between 1 and 32;

-- STEP     due_page — candidates of a stage, oldest first
-- RAISES   QL400
-- CALL     check_limit

select
  a.run_id,
  a.due_at_ms
from agenda as a
where a.stage = :p_stage
  and (a.due_at_ms, a.run_id) > (:p_after_due_at_ms, :p_after_run_id)
  and a.due_at_ms <= :now_ms
order by a.due_at_ms, a.run_id
limit :p_limit;

-- STEP     sweep_agenda — a slice of the runs: work that is due but not announced is put back, and
--          what a clock wrote that was ahead is brought near
-- LOCKS    the database (begin immediate, by the caller)
-- WRITES   agenda, run_fault (its next try)
-- RAISES   QL400
-- REPLAY   exact: nothing is missing the second time
-- CALL     look_through

insert into agenda (run_id, stage, due_at_ms)
select
  a.entity_id,
  a.outcome,
  case when a.number = 0 then :now_ms else a.number end
from temp.answer as a
where true
on conflict (run_id, stage) do update set due_at_ms = min(agenda.due_at_ms, excluded.due_at_ms);

update run_fault
set next_try_at_ms = :now_ms + 300000
where run_id in (select a.entity_id from temp.answer as a)
  and next_try_at_ms > :now_ms + 300000;

-- CALL     answer_slice

-- STEP     missing_agenda — what sweep_agenda would answer; a cycle asks it first, because it asks
--          for no lock, and nearly always nothing is missing
-- RAISES   QL400
-- CALL     look_through
-- CALL     answer_slice

-- HELPER   look_through — a slice of the runs, and what they lack
-- RAISES   QL400
insert into temp.refusal (code, message)
select 'QL400', 'a sweep takes 1 to 1024 runs, not ' || coalesce(:p_limit, 'null')
where :p_limit is null or :p_limit not between 1 and 1024;

delete from temp.candidate;

insert into temp.candidate (ordinal, attempt_id, run_id)
select
  row_number() over (order by r.run_id),
  '',
  r.run_id
from run as r
where r.run_id > :p_after_run_id
order by r.run_id
limit :p_limit;

delete from temp.chosen;

insert into temp.chosen (run_id)
select d.run_id
from temp.candidate as d
cross join run as r on r.run_id = d.run_id
where r.status = 'running';

delete from temp.answer;

-- EACH     find_missing

-- HELPER   answer_slice — every run of it, with the number of rows that it lacked
select
  d.run_id,
  (select count(*) from temp.answer as a where a.entity_id = d.run_id) as stages
from temp.candidate as d
order by d.ordinal;

-- HELPER   find_missing — what one run lacks on the agenda, or has there too late
insert into temp.answer (entity_id, outcome, number)
select
  m.run_id,
  m.stage,
  min(m.due_at_ms)
from (
  select
    l.run_id,
    l.stage,
    l.due_at_ms
  from agenda_missing as l
  where l.run_id = :each_run_id
  union all
  select
    h.run_id,
    h.stage,
    :now_ms + h.wait_ms as due_at_ms
  from agenda_ahead as h
  where h.run_id = :each_run_id
    and h.since_ms > :now_ms
    and h.due_at_ms > :now_ms + h.wait_ms
) as m
group by m.run_id, m.stage;

-- STEP     record_fault — a run raised in a stage: try again later, and let the others pass
-- WRITES   run_fault, agenda
-- RAISES   QL400, QL404
-- REPLAY   counts again; the back-off doubles from one second to five minutes
insert into temp.refusal (code, message)
select 'QL400', 'a fault has an error and a stage of the agenda'
where :p_error is null
  or :p_stage is null
  or :p_stage not in (
    'frontier', 'task_admission', 'cancellation', 'deadline', 'retry', 'expiry'
  );

insert into temp.refusal (code, message)
select 'QL404', 'no run ' || :p_run_id
where not exists (select 1 from run as r where r.run_id = :p_run_id);

insert into run_fault (
  run_id, stage, error, fault_count, first_at_ms, last_at_ms, next_try_at_ms
)
values (
  :p_run_id,
  :p_stage,
  case
    when length(cast(:p_error as blob)) <= 2048 then :p_error
    else substr(:p_error, 1, 512)  -- at most four bytes each
  end,
  1,
  :now_ms,
  :now_ms,
  :now_ms + 1000
)
on conflict (run_id, stage) do update set
  error = excluded.error,
  fault_count = run_fault.fault_count + 1,
  last_at_ms = excluded.last_at_ms,
  next_try_at_ms = excluded.last_at_ms + min(300000, 1000 << min(run_fault.fault_count, 20));

update agenda
set due_at_ms = (
  select f.next_try_at_ms
  from run_fault as f
  where f.run_id = agenda.run_id and f.stage = agenda.stage
)
where run_id = :p_run_id and stage = :p_stage;

select
  f.run_id,
  f.fault_count,
  f.next_try_at_ms
from run_fault as f
where f.run_id = :p_run_id and f.stage = :p_stage;

-- STEP     release_fault — an operator wants a run tried at once
-- WRITES   run_fault, agenda
-- RAISES   QL404
-- REPLAY   a second call finds no fault and says `settled`
-- CALL     choose_run

delete from temp.answer;

insert into temp.answer (entity_id, outcome)
select
  c.run_id,
  case
    when exists (
      select 1 from run_fault as f where f.run_id = c.run_id and f.stage = :p_stage
    ) then 'applied'
    else 'settled'
  end
from temp.chosen as c;

update agenda
set due_at_ms = min(due_at_ms, :now_ms)
where run_id = :p_run_id
  and stage = :p_stage
  and exists (select 1 from run_fault as f where f.run_id = :p_run_id and f.stage = :p_stage);

delete from run_fault
where run_id = :p_run_id and stage = :p_stage;

-- only a fault excuses a row that stands later than its work was due
update agenda
set due_at_ms = (
  select m.due_at_ms
  from agenda_missing as m
  where m.run_id = :p_run_id and m.stage = :p_stage
)
where run_id = :p_run_id
  and stage = :p_stage
  and exists (select 1 from temp.answer as a where a.outcome = 'applied')
  and exists (
    select 1
    from agenda_missing as m
    where m.run_id = :p_run_id and m.stage = :p_stage
  );

select
  a.entity_id as run_id,
  a.outcome
from temp.answer as a;
