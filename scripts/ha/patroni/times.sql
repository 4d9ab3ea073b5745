-- TIMES — milliseconds from the crash to the first admission that a client was told of, and to the
-- first completion, both decided by the new primary: nothing of the old one was left at :gone_ms.
select
  (
    select min(a.at_ms) - :crashed_ms
    from acked as a
    join ql.run_state as r on r.run_id = a.run_id
    where r.admitted_at_ms > :gone_ms
  ) as admission_ms,
  (
    select min(t.finished_at_ms) - :crashed_ms
    from ql.attempt_state as t
    where t.finished_at_ms > :gone_ms and t.status = 'succeeded'
  ) as completion_ms;
