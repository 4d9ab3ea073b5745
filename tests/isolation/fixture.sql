-- Words for the specs: every one calls the real step and says its outcome in one line.
-- Loaded into each database after the schema; time stands still until `t.pass` moves it.
create schema t;
grant usage on schema t to public;

create table t.clock (now_ms bigint not null);
insert into t.clock values (1700000000000);
grant select on t.clock to public;

create or replace function ql.now_ms () returns bigint language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$ begin return (select c.now_ms from t.clock as c); end; $$;

-- A batch waits a tenth of a second in earnest (tests/test_locks.py); here the wait has to outlast
-- the tester, which lets the other session go on once it has seen it.
do $$
declare
  v_step regprocedure;
begin
  for v_step in
    select p.oid
    from pg_proc as p
    join pg_namespace as n on n.oid = p.pronamespace
    where n.nspname ~ '^ql_'
  loop
    execute format('alter function %s set lock_timeout = ''20s''', v_step);
  end loop;
end;
$$;

create function t.pass (ms bigint) returns void language sql as
'update t.clock set now_ms = now_ms + ms';

-- a row of the agenda is lost
create function t.lose (word text) returns void language sql as
'delete from ql.agenda where stage = word';

-- everything goes, for the next permutation
create function t.forget () returns void language plpgsql
set session_replication_role = replica  -- in any order, whatever refers to it
as $$
declare
  v_table regclass;
begin
  for v_table in
    select c.oid from pg_class as c
    where c.relnamespace = 'ql'::regnamespace and c.relkind = 'r'
      and c.relname <> 'alembic_version'
      and exists (
        select from pg_attribute as a where a.attrelid = c.oid
          and a.attname in ('package_key', 'run_id', 'workflow_id', 'attempt_id', 'worker_id')
      )
  loop
    execute 'delete from ' || v_table;
  end loop;
  update t.clock set now_ms = 1700000000000;
end;
$$;

create function t.id (run_key text default 'one') returns text language sql as
$$ select ql.derived_id('ru', 'nightly', 'workflow', 'flow', run_key) $$;

-- the newest attempt of a step of the first run
create function t.attempt (step text) returns text language sql as $$
  select a.attempt_id from ql.task_attempt as a
  where a.run_id = t.id() and a.step_key = step order by a.number desc limit 1
$$;

-- steps such as 'a, b, c after a b', since a spec cannot contain braces
create function t.publish (steps text, word text default 'true', timeout_ms bigint default null)
returns text language plpgsql as $$
declare
  v_answer text;
begin
  select p.outcome || ' ' || p.generation into v_answer
  from ql_admission.publish_package('nightly', jsonb_build_object(
    'package', 'nightly',
    'triggers', '{}'::jsonb,
    'tasks', jsonb_build_object('work', jsonb_build_object(
      'cwd', '.', 'env', '{}'::jsonb, 'idempotent', true, 'on_lost', 'retry',
      'queue', 'default', 'run', jsonb_build_array(word), 'timeout_ms', null,
      'retry', '{"attempts": 2, "backoff_ms": 1000, "max_backoff_ms": 300000,
        "on": ["failed"]}'::jsonb
    )),
    'workflows', jsonb_build_object('flow', jsonb_build_object(
      'timeout_ms', timeout_ms,
      'steps', (
        select jsonb_object_agg(split_part(n.step, ' after ', 1), jsonb_build_object(
          'needs', to_jsonb(string_to_array(split_part(n.step, ' after ', 2), ' ')),
          'task', 'work'
        ))
        from (select unnest(string_to_array(steps, ', ')) as step) as n
      )
    ))
  )::text, '/srv/nightly') as p;
  return v_answer;
end;
$$;

create function t.begin (run_key text default 'one') returns text language plpgsql as $$
begin
  return (
    select s.outcome || ' of generation ' || s.generation
    from ql_admission.start_run('nightly', 'workflow', 'flow', run_key, '{}') as s
  );
exception
  when sqlstate 'QL404' then return 'QL404';
end;
$$;

create function t.withdraw () returns text language sql as
$$ select w.outcome from ql_admission.withdraw_package('nightly') as w $$;

create function t.cancel () returns text language sql as
$$ select c.outcome from ql_admission.request_cancel(t.id(), 'user', 'ann') as c $$;

create function t.again () returns text language plpgsql as $$
begin
  return (
    select r.outcome || ', taken over ' || r.taken_over_count
    from ql_admission.start_retry(t.id(), 'two') as r
  );
exception
  when sqlstate 'QL404' then return 'QL404';
end;
$$;

-- stages of the scheduler, for the first run
create function t.frontier () returns text language sql as
$$ select outcome from ql_scheduler.advance_frontier(t.id()) $$;
create function t.frontier_page () returns bigint language sql as
$$ select count(*) from ql_scheduler.frontier_page(-1, '', 32) $$;
create function t.admit () returns text language sql as
$$ select outcome from ql_scheduler.admit_tasks(t.id()) $$;
create function t.retry () returns text language sql as
$$ select outcome from ql_scheduler.retry_run(t.id()) $$;
create function t.deadline () returns text language sql as
$$ select outcome from ql_scheduler.deadline_run(t.id()) $$;
create function t.recover () returns text language sql as
$$ select outcome from ql_scheduler.recover_run(t.id()) $$;
create function t.converge () returns text language sql as
$$ select outcome from ql_scheduler.converge_cancellation(t.id()) $$;
create function t.sweep () returns text language sql as
$$ select 'put back ' || sum(stages) from ql_scheduler.sweep_agenda('', 1024) $$;
create function t.purge () returns text language sql as
$$ select 'purged ' || count(*) from ql_retention.purge_runs((select now_ms + 1 from t.clock), 32) $$;

-- workers: the offer of `name` has the token of that name
create function t.lease (name text default 'o1', worker text default 'w1') returns text
language plpgsql as $$
declare
  v_steps text;
begin
  perform from ql_worker.register_worker(worker, worker, '["default"]', 64, 1, 0);
  select string_agg(l.step_key, ' ' order by l.step_key) into v_steps
  from ql_worker.lease_attempts(worker, worker, 'default', jsonb_build_array(jsonb_build_object(
    'offer_id', name, 'token_digest', ql.sha256_hex(repeat(name, 20))
  ))::text, 5000, null) as l;
  return coalesce('has ' || v_steps, 'has nothing');
exception
  when sqlstate 'QL410' then return 'QL410';
end;
$$;
create function t.register (session text) returns text language sql as $$
  select r.status || ', generation ' || r.generation
  from ql_worker.register_worker('w1', session, '["default"]', 64, 1, 0) as r
$$;
create function t.beat (session text) returns text language sql as $$
  select 'session ' || b.session_id || ' ' || b.status
  from ql_worker.heartbeat_worker('w1', session) as b
$$;
create function t.drain () returns text language sql as
$$ select d.outcome || ' ' || d.status from ql_operator.drain_worker('w1') as d $$;
create function t.undrain () returns text language sql as
$$ select d.outcome || ' ' || d.status from ql_operator.undrain_worker('w1') as d $$;
create function t.worker () returns text language sql as $$
  select concat_ws(' ', w.session_id, w.status, 'seen at', w.seen_at_ms - 1700000000000)
  from ql.worker_session as w
$$;

create function t.command (step text, more jsonb default '{}') returns text language sql as $$
  select jsonb_build_array(jsonb_build_object(
    'attempt_id', o.attempt_id, 'fence', o.fence, 'token', repeat(o.offer_id, 20)
  ) || more)::text
  from ql.attempt_offer as o
  where o.attempt_id = t.attempt(step) order by o.fence desc limit 1
$$;
create function t.start (step text) returns text language sql as $$
  select concat_ws(' ', outcome, code)
  from ql_worker.start_attempts(t.command(step, '{"identity": "pid 7"}'))
$$;
create function t.running (step text) returns text language sql as
$$ select concat_ws(' ', outcome, code) from ql_worker.running_attempts(t.command(step)) $$;
create function t.renew (step text) returns text language sql as
$$ select concat_ws(' ', outcome, code) from ql_worker.renew_attempts(t.command(step), 30000) $$;
create function t.report (step text, exit_code int default 0) returns text language sql as $$
  select concat_ws(' ', outcome, code)
  from ql_worker.report_attempts(
    t.command(step, jsonb_build_object('how', 'exit', 'exit_code', exit_code)))
$$;
create function t.declare (step text) returns text language sql as $$
  select concat_ws(' ', outcome, code)
  from ql_operator.declare_stopped(t.attempt(step), 'gone', 'ann', null)
$$;

-- bring steps along: claimed → leased → starting → running (→ ended by exit 0)
create function t.bring (far text, variadic steps text[]) returns void language plpgsql as $$
declare
  v_step text;
begin
  foreach v_step in array steps loop
    perform t.lease('o.' || v_step);
    continue when far = 'leased';
    perform t.start(v_step);
    continue when far = 'starting';
    perform t.running(v_step);
    continue when far = 'running';
    perform t.report(v_step);
  end loop;
end;
$$;

-- where the first run stands, in one line, with whatever rule is broken
create function t.state () returns text language sql as $$
  select coalesce((
    select concat_ws(' · ',
      'run ' || r.status,
      (select string_agg(s.step_key || ' ' || s.status, ', ' order by s.step_key)
        from ql.step_run as s where s.run_id = r.run_id),
      (select string_agg(
          a.number || ' ' || a.status || coalesce(' ' || a.result_code, '')
            || coalesce(' (' || l.status || ' ' || l.fence || ')', ''), ', ' order by a.number)
        from ql.task_attempt as a
        left join ql.attempt_lease as l on l.attempt_id = a.attempt_id
        where a.run_id = r.run_id),
      (select 'due ' || string_agg(g.stage, ' ' order by g.stage)
        from ql.agenda as g where g.run_id = r.run_id),
      (select 'VIOLATED ' || string_agg(v::text, ', ') from ql.violation as v)
    )
    from ql.run as r where r.run_id = t.id()
  ), 'no run')
$$;
create function t.runs () returns text language sql as $$
  select coalesce(string_agg(
    concat_ws(' ', nullif(r.run_key, ''), r.status, 'generation', r.generation), ', '
    order by r.run_key), 'no run')
  from ql.run as r
$$;
