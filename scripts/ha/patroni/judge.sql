-- JUDGE — when all has ended: a row a gate, true or false, and what was found.
with doubled as (
  -- the same attempt twice, or a second one of what had crossed its barrier and was not given up
  select w.run_id, w.step_key, w.number
  from witness as w
  where w.word = 'begin'
  group by w.run_id, w.step_key, w.number
  having count(*) > 1
  union
  select w.run_id, w.step_key, w.number
  from witness as w
  join ql.run_state as r on r.run_id = w.run_id
  join ql.attempt_state as t
    on t.run_id = w.run_id and t.step_key = w.step_key and t.number = w.number
  join ql.task_revision as d on d.task_id = (
    select s.task_id from ql.step_run as s where s.run_id = w.run_id and s.step_key = w.step_key
  )
  where w.word = 'begin'
    and exists (
      select from witness as o
      where o.run_id = w.run_id and o.step_key = w.step_key and o.word = 'begin'
        and o.number > w.number
    )
    and not (d.idempotent = 1 and t.status = 'lost')
),
run as (
  select r.*
  from ql.run_state as r
  where r.package_key = 'load'
)
select
  'executionsNotDoubled',
  (select count(*) = 0 from doubled),
  (select count(*) from doubled) || ' doubled of '
    || (select count(*) from witness as w where w.word = 'begin') || ' executions'
union all
select
  'admittedExactlyOnce',
  (select count(*) = (select count(distinct a.run_key) from acked as a) from run)
    and (select count(distinct a.run_id) = count(distinct a.run_key) from acked as a),
  (select count(*) from run) || ' runs of '
    || (select count(distinct a.run_key) from acked as a) || ' keys, asked for '
    || (select count(*) from asked) || ' times'
union all
select
  'allRunsEndedRight',
  -- a run may fail only by the rule of a step that must not run twice and was lost
  not exists (
    select from run as r
    where r.status <> 'succeeded' and not (r.status = 'failed' and exists (
      select from ql.attempt_state as t
      join ql.step_run as s on s.run_id = t.run_id and s.step_key = t.step_key
      join ql.task_revision as d on d.task_id = s.task_id
      where t.run_id = r.run_id and t.status = 'lost' and d.idempotent = 0
    ))
  ),
  (select string_agg(c.status || ' ' || c.number, ', ' order by c.status)
    from (select r.status, count(*) as number from run as r group by r.status) as c)
    || '; attempts lost ' || (
      select count(*) from ql.attempt_state as t join run as r on r.run_id = t.run_id
      where t.status = 'lost'
    )
union all
select
  'successesWereLived',
  not exists (
    select from ql.attempt_state as t
    join run as r on r.run_id = t.run_id
    where t.status = 'succeeded' and not exists (
      select from witness as w
      where w.run_id = t.run_id and w.step_key = t.step_key and w.number = t.number
        and w.word = 'end'
    )
  ),
  'each has its execution''s own word that it came to its end'
union all
select
  'executionsOutlivedTheFailovers',
  not exists (
    select from crash as c
    where not exists (
      select from ql.attempt_state as t
      join run as r on r.run_id = t.run_id and r.target_key = 'long'
      join witness as b
        on b.run_id = t.run_id and b.number = t.number and b.word = 'begin'
      join witness as e
        on e.run_id = t.run_id and e.number = t.number and e.word = 'end'
      where t.status = 'succeeded' and t.number = 1
        and b.at_ms < c.crashed_ms and e.at_ms > c.heir_ms
    )
  ),
  (select count(*) from run as r where r.target_key = 'long' and r.status = 'succeeded')
    || ' long executions of ' || (select count(*) from crash) || ' crashes ended by themselves';
