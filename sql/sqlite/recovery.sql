-- RECOVERY — silent workers, back-offs that are over, and what people declare. Mirror of
-- sql/postgres/recovery.sql.

-- STEP     recover_run — write down the evidence that the clock gives, then act on it
-- LOCKS    the database (begin immediate, by the caller)
-- READS    recovery_due, recovery_effect
-- WRITES   attestation; through apply_effects; agenda, run_fault
-- RETURNS  applied | settled
-- RAISES   QL404, QL409
-- REPLAY   exact: an attempt is attested once
-- STAGE    expiry
-- CALL     choose_run

insert into attestation (run_id, attempt_id, evidence, reason, actor, attested_at_ms)
select
  d.run_id,
  d.attempt_id,
  d.evidence,
  '',
  'scheduler',
  :now_ms
from recovery_due as d
where d.run_id = :p_run_id
  and d.due_at_ms <= :now_ms
  and not exists (
    select 1
    from attestation as n
    where n.run_id = d.run_id and n.attempt_id = d.attempt_id
  );

-- EACH     decide_recovery
-- CALL     apply_effects
-- CALL     clear_stage

-- a renewal does not touch the agenda: the row moves to the real expiry here
insert into agenda (run_id, stage, due_at_ms)
select
  d.run_id,
  'expiry',
  min(d.due_at_ms)
from recovery_due as d
where d.run_id = :p_run_id
group by d.run_id;

-- CALL     answer_run

-- HELPER   decide_recovery — run by run: a view with a window takes a run_id only as a parameter
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
from recovery_effect as e
where e.run_id = :each_run_id;

-- STEP     declare_stopped — an operator vouches that an execution is gone
-- LOCKS    the database (begin immediate, by the caller)
-- READS    recovery_effect
-- WRITES   attestation; through apply_effects
-- RETURNS  applied | blocked (QL410: not past the barrier, or ended otherwise)
-- RAISES   QL400, QL404, QL409
-- REPLAY   exact: the declaration is found
-- STAGE    expiry
insert into temp.refusal (code, message)
select 'QL400', 'a declaration has a reason, an actor, and follow is retry, fail or nothing'
where coalesce(length(cast(:p_reason as blob)), 0) not between 1 and 2048
  or coalesce(length(cast(:p_actor as blob)), 0) not between 1 and 256
  or (:p_follow is not null and :p_follow not in ('retry', 'fail'));

insert into temp.refusal (code, message)
select 'QL404', 'no attempt ' || :p_attempt_id
where not exists (select 1 from task_attempt as a where a.attempt_id = :p_attempt_id);

delete from temp.effect;

delete from temp.chosen;

insert into temp.chosen (run_id)
select a.run_id
from task_attempt as a
where a.attempt_id = :p_attempt_id and a.status in ('starting', 'running');

insert into attestation (run_id, attempt_id, evidence, follow, reason, actor, attested_at_ms)
select
  c.run_id,
  :p_attempt_id,
  'declared',
  :p_follow,
  :p_reason,
  :p_actor,
  :now_ms
from temp.chosen as c
where not exists (
  select 1
  from attestation as n
  where n.run_id = c.run_id and n.attempt_id = :p_attempt_id
);

-- EACH     decide_recovery
-- CALL     apply_effects

select
  m.attempt_id,
  case when m.code is null then 'applied' else 'blocked' end as outcome,
  m.code,
  case when m.code is null then m.status end as status
from (
  select
    a.attempt_id,
    a.status,
    case
      when not exists (
        select 1
        from attestation as n
        where n.run_id = a.run_id
          and n.attempt_id = a.attempt_id
          and n.evidence = 'declared'
          and n.reason = :p_reason
          and n.actor = :p_actor
          and n.follow is not distinct from :p_follow
      ) then 'QL410'
    end as code
  from task_attempt as a
  where a.attempt_id = :p_attempt_id
) as m;

-- STEP     retry_run — back-offs that are over open a new epoch
-- LOCKS    the database (begin immediate, by the caller)
-- READS    retry_effect
-- WRITES   through apply_effects; agenda, run_fault
-- RETURNS  applied | settled
-- RAISES   QL404, QL409
-- REPLAY   exact: a second call finds no effects
-- STAGE    retry
-- CALL     choose_run
-- CALL     retry_chosen
-- CALL     answer_run

-- STEP     retry_page — a page of runs in one transaction
-- STAGE    retry
-- CALL     choose_due
-- CALL     retry_chosen
-- CALL     answer_page

-- HELPER   retry_chosen — decide run by run, apply at once, move the row to the next due time
-- EACH     decide_retry
-- CALL     apply_effects
-- CALL     clear_stage
-- EACH     rearm_retry

-- HELPER   decide_retry — those whose time has come
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
from retry_effect as e
where e.run_id = :each_run_id
  and (
    e.due_at_ms <= :now_ms
    or e.due_at_ms > :now_ms + (
      select w.longest_ms
      from retry_longest as w
      where w.run_id = e.run_id and w.step_key = e.entity_id
    )
  );

-- HELPER   rearm_retry — those whose time has not come
insert into agenda (run_id, stage, due_at_ms)
select
  e.run_id,
  'retry',
  min(e.due_at_ms)
from retry_effect as e
where e.run_id = :each_run_id
group by e.run_id;
