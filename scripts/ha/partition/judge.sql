-- What the surviving primary says, held against what clients were told and what the work says of
-- itself. Rows: gate, whether it holds, words. Before it stand, as temporary tables:
--   said (attempt_id, pid, word, up_s, side)     what each execution wrote of itself
--   asked (run_key, up_s), acked (run_key, run_id, outcome, server, up_s)     admissions
--   ended_there (attempt_id, status)    what could be read as ended on the old primary at its fence
--   life, try, follower          of load/lives.sql
-- and as variables, in milliseconds: offset_ms (the time of day less the time since boot), cut_ms,
-- promoted_ms and mended_ms (since boot); wrong (the network of the side that was cut off), old (its address).

-- an execution that was killed, and what came after it
create temporary view margin as
select
  f.attempt_id,
  f.side,
  f.next_ms - f.last_ms as before_next_ms,
  f.finished_at_ms - :offset_ms - f.last_ms as before_fence_ms
from follower as f
where not f.ended and f.status = 'lost';

select 'acknowledgedAdmissionsKept', count(*) filter (where r.run_id is null) = 0 and count(*) > 0,
  format('%s admissions were acknowledged, %s of them are gone', count(*),
    count(*) filter (where r.run_id is null))
from acked as k left join ql.run_state as r on r.run_id = k.run_id
union all
select 'nothingAcknowledgedOnTheWrongSide', count(*) filter (where k.wrongly) = 0
    and (select count(*) from asked as a where a.run_key like 'a-%'
      and a.up_s * 1000 between :cut_ms and :mended_ms) > 0,
  format('%s admissions were asked for on the side that was cut off, %s acknowledged there',
    (select count(*) from asked as a where a.run_key like 'a-%'
      and a.up_s * 1000 between :cut_ms and :mended_ms),
    count(*) filter (where k.wrongly))
from (
  select
    k.server = :'old' and (
      select max(a.up_s) from asked as a where a.run_key = k.run_key and a.up_s <= k.up_s
    ) * 1000 > :cut_ms as wrongly
  from acked as k
) as k
union all
select 'admittedExactlyOnce',
  count(*) = count(distinct r.run_key)
    and count(*) = (select count(distinct a.run_key) from asked as a),
  format('%s keys, asked for %s times, are %s runs',
    (select count(distinct a.run_key) from asked as a),
    (select count(*) from asked), count(*))
from ql.run_state as r where r.run_key similar to '[ab]-[0-9]+'
union all
select 'startsKept', count(*) filter (where t.starting_at_ms is null) = 0 and count(*) > 0,
  format('%s executions began, %s of them without a start that is known', count(*),
    count(*) filter (where t.starting_at_ms is null))
from life as l left join try as t on t.attempt_id = l.attempt_id
union all
select 'endsReadBeforeTheFenceKept', count(*) filter (where a.status is distinct from e.status) = 0
    and count(*) > 0,
  format('%s attempts could be read as ended there, %s of them differ', count(*),
    count(*) filter (where a.status is distinct from e.status))
from ended_there as e left join ql.attempt_state as a on a.attempt_id = e.attempt_id
union all
select 'killedBeforeAnyoneElseStarts',
  count(*) filter (where f.next_ms < f.last_ms) = 0
    and (select count(m.before_next_ms) from margin as m where m.side = :'wrong') > 0,
  format('%s overlapped; %s of the wrong side were started again, the least time between is %s ms',
    count(*) filter (where f.next_ms < f.last_ms),
    (select count(m.before_next_ms) from margin as m where m.side = :'wrong'),
    (select min(m.before_next_ms) from margin as m where m.side = :'wrong'))
from follower as f where f.next_id is not null
union all
select 'killedBeforeTheFence', count(*) filter (where m.before_fence_ms < 0) = 0 and count(*) > 0,
  format('%s executions were killed, the closest %s ms before it was recorded that they are lost',
    count(*), min(m.before_fence_ms))
from margin as m
union all
select 'wrongSideBeganNothing', count(*) filter (
      where l.began_ms between :cut_ms + 1000 and :mended_ms) = 0,
  format('%s executions began there later than a second after the cut', count(*) filter (
      where l.began_ms between :cut_ms + 1000 and :mended_ms))
from life as l where l.side = :'wrong'
union all
select 'lateReportsRefusedAndKept',
  count(*) filter (where f.run_id is null) = 0 and count(*) > 0,
  format('%s executions that were given up ended well on the wrong side, %s without QL410',
    count(*), count(*) filter (where f.run_id is null))
from try as t
left join lateral (
  select f.run_id from ql.refused_state as f
  where f.run_id = t.run_id and f.attempt_id = t.attempt_id and f.code = 'QL410' limit 1
) as f on true
where t.ended and t.side = :'wrong' and t.status = 'lost'
union all
select 'nothingTwicePastItsBarrier',
  not exists (select from life as l group by l.attempt_id having count(*) > 1)
    and (select count(*) from (
      select t.run_id, t.step_key from try as t
      where t.on_lost <> 'retry' and t.began_ms is not null
      group by 1, 2 having count(*) > 1) as d) = 0,
  format('%s executions of %s attempts; %s of work that may not run twice',
    (select count(*) from life),
    (select count(distinct l.attempt_id) from life as l),
    (select count(*) from try as t where t.on_lost <> 'retry' and t.began_ms is not null))
union all
select 'successesWereLived', count(*) filter (where t.ended is not true) = 0 and count(*) > 0,
  format('%s attempts succeeded, %s of them did not say so themselves', count(*),
    count(*) filter (where t.ended is not true))
from try as t where t.status = 'succeeded'
union all
select 'allRunsEnded', (select count(*) from ql.open_run) = 0,
  format('%s of %s runs are open', (select count(*) from ql.open_run),
    (select count(*) from ql.run_state))
union all
select 'violationEmpty', (select count(*) from ql.violation) = 0,
  format('%s rows', (select count(*) from ql.violation));

-- figures: name, number
select 'figure', n.name, coalesce(n.value, 0)
from (
  values
    ('runs', (select count(*) from ql.run_state)),
    ('executions', (select count(*) from life)),
    ('executionsKilled', (select count(*) from margin as m where m.side = :'wrong')),
    ('killBeforeNextStartMsLeast', (
      select min(m.before_next_ms) from margin as m where m.side = :'wrong')),
    ('killBeforeNextStartMsMedian', (
      select percentile_disc(0.5) within group (order by m.before_next_ms)
      from margin as m where m.side = :'wrong')),
    ('killBeforeFenceMsLeast', (select min(m.before_fence_ms) from margin as m)),
    ('refusedReports', (select count(*) from ql.refused_state as f where f.code = 'QL410')),
    ('admissionsAcknowledged', (select count(*) from acked)),
    ('admissionsAskedAgain', (select count(*) - count(distinct a.run_key) from asked as a)),
    ('msFromPromotionToFirstAdmission', (
      select min(k.up_s * 1000)::bigint - :promoted_ms from acked as k
      where k.up_s * 1000 > :promoted_ms)),
    ('msFromPromotionToFirstStart', (
      select min(l.began_ms) - :promoted_ms from life as l where l.began_ms > :promoted_ms)),
    ('msFromPromotionToFirstEnd', (
      select min(t.finished_at_ms - :offset_ms) - :promoted_ms from try as t
      where t.status = 'succeeded' and t.finished_at_ms - :offset_ms > :promoted_ms)),
    ('msFromHealingToLastEnd', (
      select max(r.finished_at_ms) - :offset_ms - :mended_ms from ql.run_state as r))
) as n (name, value);
