-- KEPT — how much of what was acknowledged is not there: admissions by the clients' ledger, starts
-- by the executions' own files, reports by the logs that a worker keeps once its report is answered.
-- The tables are the session's own, filled by the drill (patroni/load.sh).
with admission as (
  select count(*) as acknowledged, count(*) filter (where r.run_id is null) as lost
  from acked as a
  left join ql.run_state as r on r.run_id = a.run_id and r.run_key = a.run_key
),
start as (
  select count(*) as acknowledged, count(*) filter (where t.starting_at_ms is null) as lost
  from witness as w
  left join ql.attempt_state as t
    on t.run_id = w.run_id and t.step_key = w.step_key and t.number = w.number
  where w.word = 'begin'
),
report as (
  select
    count(*) as acknowledged,
    count(*) filter (
      where t.finished_at_ms is null
        or t.status <> 'succeeded' and not exists (
          select from ql.refused_state as f where f.attempt_id = t.attempt_id
        )
    ) as lost
  from reported as p
  left join ql.attempt_state as t
    on t.run_id = p.run_id and t.step_key = p.step_key and t.number = p.number
)
select 'admission', a.acknowledged, a.lost from admission as a
union all
select 'start', s.acknowledged, s.lost from start as s
union all
select 'report', p.acknowledged, p.lost from report as p;
