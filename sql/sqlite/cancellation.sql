-- CANCELLATION — an intent, then convergence. Mirror of sql/postgres/cancellation.sql.

-- STEP     request_cancel — write the intent; what runs is told by its next renewal
-- The reason `timeout` is the deadline stage's own.
-- LOCKS    the database (begin immediate, by the caller)
-- READS    intent_effect
-- WRITES   cancel_intent; through apply_effects
-- RETURNS  accepted | already_requested (another intent came first) | already_terminal
-- RAISES   QL400, QL404
-- REPLAY   the same reason and actor answer `accepted` again; the first intent stands
insert into temp.refusal (code, message)
select 'QL400', 'a reason is user, policy, shutdown or reconcile, and an actor has a name'
where coalesce(:p_reason, '') not in ('user', 'policy', 'shutdown', 'reconcile')
  or coalesce(length(cast(:p_actor as blob)), 0) not between 1 and 256;

-- CALL     choose_run

insert into cancel_intent (run_id, reason, actor, requested_at_ms)
select
  r.run_id,
  :p_reason,
  :p_actor,
  :now_ms
from run as r
where r.run_id = :p_run_id
  and r.status = 'running'
  and r.cancel_requested_at_ms is null;

-- CALL     decide_intent
-- CALL     apply_effects

select
  r.run_id,
  case
    when i.run_id is null then 'already_terminal'
    when i.reason = :p_reason and i.actor = :p_actor then 'accepted'
    else 'already_requested'
  end as outcome,
  r.status,
  r.cancel_reason,
  r.cancel_requested_at_ms
from run as r
left join cancel_intent as i on i.run_id = r.run_id
where r.run_id = :p_run_id;

-- HELPER   decide_intent — the event of an intent that was just written
insert into temp.effect (
  run_id, ordinal, entity, entity_id, from_status, to_status, expected_version, result_code,
  event_type, due_at_ms, input_id
)
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
  e.due_at_ms,
  e.input_id
from intent_effect as e
where e.run_id = :p_run_id;

-- STEP     deadline_run — a workflow's time is up: an intent with reason `timeout`
-- LOCKS    the database (begin immediate, by the caller)
-- READS    intent_effect
-- WRITES   cancel_intent; through apply_effects; agenda, run_fault
-- RETURNS  applied | settled
-- RAISES   QL404, QL409
-- REPLAY   exact
-- STAGE    deadline
-- CALL     choose_run
-- CALL     deadline_chosen
-- CALL     answer_run

-- STEP     deadline_page — a page of runs in one transaction
-- STAGE    deadline
-- CALL     choose_due
-- CALL     deadline_chosen
-- CALL     answer_page

-- HELPER   deadline_chosen — the intents, their effects, and the rows
insert into cancel_intent (run_id, reason, actor, requested_at_ms)
select
  r.run_id,
  'timeout',
  'scheduler',
  :now_ms
from temp.chosen as c
cross join run as r on r.run_id = c.run_id
where r.status = 'running' and r.cancel_requested_at_ms is null and r.deadline_at_ms <= :now_ms;

-- EACH     decide_deadline
-- CALL     apply_effects
-- CALL     clear_stage

insert into agenda (run_id, stage, due_at_ms)
select
  r.run_id,
  'deadline',
  r.deadline_at_ms
from temp.chosen as c
cross join run as r on r.run_id = c.run_id
where r.status = 'running' and r.cancel_requested_at_ms is null and r.deadline_at_ms is not null;

-- HELPER   decide_deadline — as decide_intent, for one of the chosen runs
insert into temp.effect (
  run_id, ordinal, entity, entity_id, from_status, to_status, expected_version, result_code,
  event_type, due_at_ms, input_id
)
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
  e.due_at_ms,
  e.input_id
from intent_effect as e
where e.run_id = :each_run_id;

-- STEP     converge_cancellation — end what nobody holds in one cancelled run
-- LOCKS    the database (begin immediate, by the caller)
-- READS    cancellation_effect, cancellation_blocked
-- WRITES   through apply_effects; agenda, run_fault
-- RETURNS  settled | blocked | applied
-- RAISES   QL404, QL409
-- REPLAY   exact: a second call finds no effects
-- STAGE    cancellation
-- CALL     choose_run
-- EACH     decide_cancellation
-- CALL     apply_effects
-- CALL     clear_stage

select
  m.run_id,
  case
    when m.status <> 'running' then 'settled'
    when m.blocked_count > 0 then 'blocked'
    else 'applied'
  end as outcome,
  m.settled_attempts,
  m.blocked_count
from (
  select
    r.run_id,
    r.status,
    (select count(*) from temp.change as c where c.entity = 'attempt') as settled_attempts,
    (select count(*) from cancellation_blocked as b where b.run_id = :p_run_id) as blocked_count
  from run as r
  where r.run_id = :p_run_id
) as m;

-- HELPER   decide_cancellation — run by run: a view with a window takes a run_id as a parameter
insert into temp.effect (
  run_id, ordinal, entity, entity_id, from_status, to_status, expected_version, result_code,
  event_type, due_at_ms, input_id
)
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
  e.due_at_ms,
  e.input_id
from cancellation_effect as e
where e.run_id = :each_run_id;

-- HELPER   choose_unstarted — cancelled task runs that nobody holds: no lease, nothing started
insert into temp.chosen (run_id, due_at_ms)
select
  a.run_id,
  a.due_at_ms
from agenda as a
cross join run as r on r.run_id = a.run_id
where a.stage = 'cancellation'
  and (a.due_at_ms, a.run_id) > (:p_after_due_at_ms, :p_after_run_id)
  and a.due_at_ms <= :now_ms
  and r.kind = 'task'
  and r.status = 'running'
  and r.cancel_requested_at_ms is not null
  and not exists (
    select 1
    from task_attempt as t
    left join attempt_lease as l on l.attempt_id = t.attempt_id
    where t.run_id = a.run_id
      and (t.status in ('starting', 'running') or (t.status = 'claimed' and l.status = 'leased'))
  )
order by a.due_at_ms, a.run_id
limit :p_limit;

-- STEP     due_task_cancellations — the candidates of settle_task_cancellations
-- RAISES   QL400
-- STAGE    cancellation
-- CALL     check_limit
delete from temp.chosen;

-- CALL     choose_unstarted

select
  c.run_id,
  c.due_at_ms
from temp.chosen as c
order by c.due_at_ms, c.run_id;

-- STEP     settle_task_cancellations — the set-based road: task runs that never started
-- LOCKS    the database (begin immediate, by the caller)
-- READS    cancellation_effect
-- WRITES   through apply_effects; agenda, run_fault
-- RETURNS  settled
-- RAISES   QL400, QL409
-- REPLAY   exact: a settled run is on no agenda
-- STAGE    cancellation
-- CALL     check_limit
delete from temp.effect;

delete from temp.chosen;

-- CALL     choose_unstarted
-- EACH     decide_cancellation
-- CALL     apply_effects
-- CALL     clear_stage

select
  c.run_id,
  c.due_at_ms,
  'settled' as outcome,
  (select count(*) from temp.effect as e where e.run_id = c.run_id) as effects
from temp.chosen as c
order by c.due_at_ms, c.run_id;
