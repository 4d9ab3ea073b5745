-- What the database says at the end, held against what clients were told and what the work says of
-- itself. Rows: gate, whether it holds, words. Before it stand, as temporary tables, said, asked,
-- acked (load/crew.sh), life, try, follower (load/lives.sql); variables: ahead_ms and back_ms, the server's time after the step ahead and
-- before the step back. Its times say nothing here about the order of things: those of work do.

-- attempts that the scheduler has given up, and what their workers said that counted
create temporary table given_up as
select
  n.attempt_id,
  (
    select count(*)
    from ql.attempt_report as p
    where p.run_id = n.run_id and p.attempt_id = n.attempt_id and p.kind = 'ended'
  ) as counted,
  (
    select count(*)
    from ql.refused_state as f
    where f.run_id = n.run_id and f.attempt_id = n.attempt_id and f.code = 'QL410'
  ) as refused
from ql.attestation_state as n
where n.evidence in ('fenced', 'expired');

select
  'noLeaseHonouredPastItsFence',
  sum(g.counted) = 0 and count(*) > 0
    and count(*) filter (where t.ended and g.refused = 0) = 0,
  format('%s attempts were given up; %s ends told later counted, %s got QL410', count(*),
    sum(g.counted), sum(g.refused))
from given_up as g
join try as t on t.attempt_id = g.attempt_id
union all
select
  'overlapEndsWithARenewal',
  count(*) filter (where f.last_ms - f.next_ms > :bound_ms) = 0
    and count(*) filter (where f.last_ms > f.next_ms and f.on_lost <> 'retry') = 0,
  format('%s of %s overlapped with their next attempt, for %s ms at most; %s may be',
    count(*) filter (where f.last_ms > f.next_ms), count(*),
    greatest(0, max(f.last_ms - f.next_ms)), :bound_ms)
from follower as f
where f.next_ms is not null
union all
select
  'nothingTwicePastItsBarrier',
  count(*) = count(distinct t.attempt_id)
    and count(*) filter (where t.starting_at_ms is null) = 0
    and count(*) filter (where t.on_lost <> 'retry')
      = count(distinct (t.run_id, t.step_key)) filter (where t.on_lost <> 'retry'),
  format('%s executions of %s attempts, %s of work that may not run twice', count(*),
    count(distinct t.attempt_id), count(*) filter (where t.on_lost <> 'retry'))
from try as t
where t.began_ms is not null
union all
select
  'successesWereLived',
  count(*) filter (where t.ended is not true) = 0 and count(*) > 0,
  format('%s attempts of witnesses succeeded, %s did not say so', count(*),
    count(*) filter (where t.ended is not true))
from try as t
where t.status = 'succeeded'
  and (select r.run_key from ql.run_state as r where r.run_id = t.run_id) similar to '[ab]-[0-9]+'
union all
select
  'occurrencesExactlyOnce',
  count(*) = count(distinct (r.trigger_key, r.scheduled_at_ms)) and count(*) > 0
    and count(*) filter (where r.admitted_at_ms < r.scheduled_at_ms) = 0,
  format('%s runs of %s times, %s before their time', count(*),
    count(distinct (r.trigger_key, r.scheduled_at_ms)),
    count(*) filter (where r.admitted_at_ms < r.scheduled_at_ms))
from ql.run_state as r
where r.trigger_key is not null
union all
select
  'missedHourFiredOnce',
  count(*) filter (where r.trigger_key = 'once') = 1
    and count(*) filter (where r.trigger_key = 'never') = 0,
  format('fire_once started %s runs, skip %s', count(*) filter (where r.trigger_key = 'once'),
    count(*) filter (where r.trigger_key = 'never'))
from ql.run_state as r
where r.trigger_key is not null
  and r.admitted_at_ms between :ahead_ms - 30000 and :back_ms
  and r.scheduled_at_ms < :ahead_ms - 60000
union all
select
  'nothingWaitsAnHour',
  max(e.took_ms) < :longest_ms,
  format('the longest run of a client took %s s by its clock', round(max(e.took_ms) / 1000.0, 1))
from (
  select max(t.last_ms) - min(k.up_s * 1000)::bigint as took_ms
  from acked as k
  join try as t on t.run_id = k.run_id
  group by k.run_id
) as e
union all
select
  'acknowledgedAdmissionsKept',
  count(*) filter (where r.run_id is null) = 0 and count(*) > 0,
  format('%s admissions were acknowledged, %s of them are gone', count(*),
    count(*) filter (where r.run_id is null))
from acked as k
left join ql.run_state as r on r.run_id = k.run_id
union all
select
  'admittedExactlyOnce',
  count(*) = count(distinct r.run_key)
    and count(*) = (select count(distinct a.run_key) from asked as a),
  format('%s keys are %s runs', (select count(distinct a.run_key) from asked as a), count(*))
from ql.run_state as r
where r.run_key similar to '[ab]-[0-9]+'
union all
select
  'allRunsEnded',
  (select count(*) from ql.open_run) = 0,
  format('%s of %s runs are open', (select count(*) from ql.open_run),
    (select count(*) from ql.run_state))
union all
select 'violationEmpty', count(*) = 0, format('%s rows', count(*)) from ql.violation;

select 'figure', n.name, coalesce(n.value, 0)
from (
  values
    ('runs', (select count(*) from ql.run_state)),
    ('occurrences', (select count(*) from ql.run_state as r where r.trigger_key is not null)),
    ('executions', (select count(*) from life)),
    ('givenUp', (select count(*) from given_up)),
    ('refusedReports', (select count(*) from ql.refused_state as f where f.code = 'QL410')),
    ('overlaps', (select count(*) from follower as f where f.last_ms > f.next_ms)),
    ('overlapMsMost', (select greatest(0, max(f.last_ms - f.next_ms)) from follower as f)),
    ('admissionsAcknowledged', (select count(*) from acked))
) as n (name, value);
