-- What each execution wrote of itself, beside what the database says of its attempt: one file for all
-- drills that judge by witnesses (load/crew.sh puts it before theirs). A witness says `alive` every
-- 100 ms: what it was killed at is at most so much later. Milliseconds: `began_ms` and `last_ms` since
-- the machine's boot, `…_at_ms` since 1970 by the server's clock.

create temporary table life as
select
  s.attempt_id,
  s.pid,
  s.side,
  min(s.up_s * 1000)::bigint as began_ms,
  max(s.up_s * 1000)::bigint as last_ms,
  bool_or(s.word = 'end') as ended
from said as s
group by s.attempt_id, s.pid, s.side;

create temporary table try as
select
  a.run_id,
  a.step_key,
  a.attempt_id,
  a.status,
  a.result_code,
  a.starting_at_ms,
  a.finished_at_ms,
  t.on_lost,
  l.pid,
  l.side,
  l.began_ms,
  l.last_ms,
  l.ended
from ql.attempt_state as a
join ql.step_run as s on s.run_id = a.run_id and s.step_key = a.step_key
join ql.task_revision as t on t.task_id = s.task_id
left join life as l on l.attempt_id = a.attempt_id;

create temporary table follower as
select
  t.*,
  lead(t.attempt_id) over w as next_id,
  lead(t.began_ms) over w as next_ms
from try as t
where t.began_ms is not null
window w as (partition by t.run_id, t.step_key order by t.began_ms);
