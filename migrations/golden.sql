--
-- PostgreSQL database dump
--

--
-- Name: ql; Type: SCHEMA; Schema: -; Owner: ql_migrator
--

CREATE SCHEMA ql;

ALTER SCHEMA ql OWNER TO ql_migrator;

--
-- Name: SCHEMA ql; Type: COMMENT; Schema: -; Owner: ql_migrator
--

COMMENT ON SCHEMA ql IS 'qinglong: tables, decision views and internals';

--
-- Name: ql_admission; Type: SCHEMA; Schema: -; Owner: ql_authority
--

CREATE SCHEMA ql_admission;

ALTER SCHEMA ql_admission OWNER TO ql_authority;

--
-- Name: SCHEMA ql_admission; Type: COMMENT; Schema: -; Owner: ql_authority
--

COMMENT ON SCHEMA ql_admission IS 'qinglong: publish, withdraw, start, request cancellation';

--
-- Name: ql_operator; Type: SCHEMA; Schema: -; Owner: ql_authority
--

CREATE SCHEMA ql_operator;

ALTER SCHEMA ql_operator OWNER TO ql_authority;

--
-- Name: SCHEMA ql_operator; Type: COMMENT; Schema: -; Owner: ql_authority
--

COMMENT ON SCHEMA ql_operator IS 'qinglong: declare stopped, pause, release faults';

--
-- Name: ql_retention; Type: SCHEMA; Schema: -; Owner: ql_retention
--

CREATE SCHEMA ql_retention;

ALTER SCHEMA ql_retention OWNER TO ql_retention;

--
-- Name: SCHEMA ql_retention; Type: COMMENT; Schema: -; Owner: ql_retention
--

COMMENT ON SCHEMA ql_retention IS 'qinglong: purge';

--
-- Name: ql_scheduler; Type: SCHEMA; Schema: -; Owner: ql_authority
--

CREATE SCHEMA ql_scheduler;

ALTER SCHEMA ql_scheduler OWNER TO ql_authority;

--
-- Name: SCHEMA ql_scheduler; Type: COMMENT; Schema: -; Owner: ql_authority
--

COMMENT ON SCHEMA ql_scheduler IS 'qinglong: the stages';

--
-- Name: ql_worker; Type: SCHEMA; Schema: -; Owner: ql_authority
--

CREATE SCHEMA ql_worker;

ALTER SCHEMA ql_worker OWNER TO ql_authority;

--
-- Name: SCHEMA ql_worker; Type: COMMENT; Schema: -; Owner: ql_authority
--

COMMENT ON SCHEMA ql_worker IS 'qinglong: lease, start, renew, report';

--
-- Name: command; Type: TYPE; Schema: ql; Owner: ql_migrator
--

CREATE TYPE ql.command AS (
	"position" bigint,
	attempt_id text,
	run_id text,
	fence bigint,
	token_digest text,
	identity text,
	how text,
	exit_code bigint,
	output text,
	error text,
	reason text,
	code text,
	worker_id text
);

ALTER TYPE ql.command OWNER TO ql_migrator;

--
-- Name: effect; Type: TYPE; Schema: ql; Owner: ql_migrator
--

CREATE TYPE ql.effect AS (
	run_id text COLLATE pg_catalog."C",
	ordinal bigint,
	entity text COLLATE pg_catalog."C",
	entity_id text COLLATE pg_catalog."C",
	from_status text COLLATE pg_catalog."C",
	to_status text COLLATE pg_catalog."C",
	expected_version bigint,
	result_code text COLLATE pg_catalog."C",
	event_type text COLLATE pg_catalog."C",
	due_at_ms bigint,
	input_id text COLLATE pg_catalog."C"
);

ALTER TYPE ql.effect OWNER TO ql_migrator;

--
-- Name: accept_reports(ql.command[], text, bigint); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.accept_reports(p_commands ql.command[], p_kind text, p_now_ms bigint) RETURNS text[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_new text[];
begin
  with fresh as (
    insert into ql.attempt_report as p (
      run_id, attempt_id, fence, kind, how, exit_code, identity, output, error, reported_at_ms
    )
    select
      c.run_id, c.attempt_id, c.fence, p_kind, c.how, c.exit_code, c.identity, c.output, c.error,
      p_now_ms
    from unnest(p_commands) as c
    join ql.attempt_lease as l on l.attempt_id = c.attempt_id
    join ql.task_attempt as a on a.attempt_id = c.attempt_id
    where c.code is null
      and l.status = 'leased'
      and l.fence = c.fence
      and l.token_digest = c.token_digest
      and case
        when p_kind = 'starting' then a.status = 'claimed' and l.expires_at_ms > p_now_ms
        when p_kind = 'running' then a.status = 'starting'
        when c.how = 'not_started' then a.status in ('claimed', 'starting')
        else a.status in ('starting', 'running')
      end
    on conflict do nothing
    returning p.attempt_id
  )
  select coalesce(array_agg(f.attempt_id), '{}')
  into v_new
  from fresh as f;
  return v_new;
end;
$$;

ALTER FUNCTION ql.accept_reports(p_commands ql.command[], p_kind text, p_now_ms bigint) OWNER TO ql_migrator;

--
-- Name: add_attempts(ql.effect[], bigint, bigint); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.add_attempts(p_effects ql.effect[], p_wanted bigint, p_at_ms bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_hit bigint;
begin
  insert into ql.task_attempt (
    attempt_id, run_id, number, step_key, epoch, task_id, queue, jitter, admitted_at_ms, status,
    version, offer_at_ms
  )
  select
    e.entity_id,
    e.run_id,
    n.number,
    s.step_key,
    s.version,
    s.task_id,
    t.queue,
    ql.jitter(e.run_id, s.step_key, n.number),
    w.at_ms,
    e.to_status,
    1,
    w.at_ms
  from unnest(p_effects) as e
  cross join lateral (select substr(e.entity_id, length(e.run_id) + 2)::bigint as number) as n
  cross join lateral (
    select
      coalesce(p_at_ms, (select r.updated_at_ms from ql.run as r where r.run_id = e.run_id))
        as at_ms
  ) as w
  join ql.step_run as s on s.run_id = e.run_id and s.step_key = e.input_id
  join ql.task_revision as t on t.task_id = s.task_id
  where e.entity = 'attempt' and e.from_status is null
  on conflict do nothing;
  get diagnostics v_hit = row_count;
  perform ql.assert_all_hit('new attempt', p_wanted, v_hit);
end;
$$;

ALTER FUNCTION ql.add_attempts(p_effects ql.effect[], p_wanted bigint, p_at_ms bigint) OWNER TO ql_migrator;

--
-- Name: add_revisions(text, bigint, jsonb); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.add_revisions(p_package_key text, p_generation bigint, p_model jsonb) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_generation text := p_generation::text;
begin
  insert into ql.task_revision (
    task_id, package_key, generation, task_key, digest, spec, timeout_ms, retry_attempts,
    backoff_ms, max_backoff_ms, retry_failed, retry_timed_out, idempotent, on_lost, queue
  )
  select
    ql.derived_id('ta', p_package_key, v_generation, t.key),
    p_package_key,
    p_generation,
    t.key,
    ql.sha256_hex(c.spec),
    c.spec,
    (t.value ->> 'timeout_ms')::bigint,
    (t.value -> 'retry' ->> 'attempts')::bigint,
    (t.value -> 'retry' ->> 'backoff_ms')::bigint,
    (t.value -> 'retry' ->> 'max_backoff_ms')::bigint,
    (t.value -> 'retry' -> 'on' ? 'failed')::int,
    (t.value -> 'retry' -> 'on' ? 'timed_out')::int,
    (t.value ->> 'idempotent')::boolean::int,
    t.value ->> 'on_lost',
    t.value ->> 'queue'
  from jsonb_each(p_model -> 'tasks') as t
  cross join lateral (select ql.canonical(t.value) as spec) as c;

  insert into ql.workflow_revision (
    workflow_id, package_key, generation, workflow_key, timeout_ms, step_count
  )
  select
    ql.derived_id('wf', p_package_key, v_generation, w.key),
    p_package_key,
    p_generation,
    w.key,
    (w.value ->> 'timeout_ms')::bigint,
    (select count(*) from jsonb_each(w.value -> 'steps'))
  from jsonb_each(p_model -> 'workflows') as w;

  insert into ql.workflow_step (workflow_id, step_key, task_id, need_count)
  select
    ql.derived_id('wf', p_package_key, v_generation, w.key),
    s.key,
    ql.derived_id('ta', p_package_key, v_generation, s.value ->> 'task'),
    (select count(distinct n.need) from jsonb_array_elements_text(s.value -> 'needs') as n (need))
  from jsonb_each(p_model -> 'workflows') as w
  cross join lateral jsonb_each(w.value -> 'steps') as s;

  insert into ql.workflow_ancestor (workflow_id, ancestor_key, step_key, distance)
  select distinct
    ql.derived_id('wf', p_package_key, v_generation, w.key),
    n.need,
    s.key,
    1
  from jsonb_each(p_model -> 'workflows') as w
  cross join lateral jsonb_each(w.value -> 'steps') as s
  cross join lateral jsonb_array_elements_text(s.value -> 'needs') as n (need);
end;
$$;

ALTER FUNCTION ql.add_revisions(p_package_key text, p_generation bigint, p_model jsonb) OWNER TO ql_migrator;

--
-- Name: add_steps(ql.effect[], bigint); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.add_steps(p_effects ql.effect[], p_wanted bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_hit bigint;
begin
  insert into ql.step_run (
    run_id, step_key, task_id, status, version, attempt_count, claim_return_count, ready_at_ms,
    finished_at_ms, result_code
  )
  select
    e.run_id,
    e.entity_id,
    e.input_id,
    e.to_status,
    1,
    0,
    0,
    case when e.to_status = 'ready' then r.updated_at_ms end,
    case when e.to_status = 'succeeded' then r.updated_at_ms end,  -- taken over
    e.result_code
  from unnest(p_effects) as e
  join ql.run as r on r.run_id = e.run_id
  where e.entity = 'step' and e.from_status is null
  on conflict do nothing;
  get diagnostics v_hit = row_count;
  perform ql.assert_all_hit('new step', p_wanted, v_hit);
end;
$$;

ALTER FUNCTION ql.add_steps(p_effects ql.effect[], p_wanted bigint) OWNER TO ql_migrator;

--
-- Name: admit_occurrence(text, text, text, bigint); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.admit_occurrence(p_run_id text, p_package_key text, p_trigger_key text, p_scheduled_at_ms bigint) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_kind text;
  v_target_key text;
begin
  update ql.trigger_run as m
  set open_at_ms = null
  where m.package_key = p_package_key
    and m.trigger_key = p_trigger_key
    and m.open_at_ms is not null
    and (select r.status from ql.run as r where r.run_id = m.run_id) is distinct from 'running';
  select t.kind, t.target_key
  into v_kind, v_target_key
  from ql.trigger as t
  where t.package_key = p_package_key and t.trigger_key = p_trigger_key;
  if not ql.admit_run(
    p_run_id,
    p_package_key,
    v_kind,
    v_target_key,
    coalesce(p_trigger_key || ' ' || p_scheduled_at_ms, p_trigger_key),
    '{}',
    null,
    p_trigger_key,
    p_scheduled_at_ms
  ) then
    return false;
  end if;
  insert into ql.trigger_run (run_id, package_key, trigger_key, open_at_ms)
  values (p_run_id, p_package_key, p_trigger_key, ql.now_ms());
  return true;
end;
$$;

ALTER FUNCTION ql.admit_occurrence(p_run_id text, p_package_key text, p_trigger_key text, p_scheduled_at_ms bigint) OWNER TO ql_migrator;

--
-- Name: admit_ready_steps(text[]); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.admit_ready_steps(p_run_ids text[]) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_effects ql.effect[];
  v_run_ids text[] := p_run_ids;
  v_wanted bigint[];
begin
  select coalesce(array_agg(row(e.*)::ql.effect), '{}')
  into v_effects
  from unnest(p_run_ids) as i (run_id)
  cross join lateral (
    select * from ql.task_admission_effect as v where v.run_id = i.run_id offset 0
  ) as e;

  v_wanted := ql.effect_counts(p_run_ids, v_effects);
  if cardinality(v_effects) > 512 then
    -- whole runs only; the first has at most 128 steps, so a call always gets on
    select array_agg(c.run_id order by c.position)
    into v_run_ids
    from (
      select
        w.run_id,
        w.position,
        sum(w.wanted) over (order by w.position) as admitted
      from rows from (unnest(p_run_ids), unnest(v_wanted))
        with ordinality as w (run_id, wanted, position)
    ) as c
    where c.admitted <= 512;
    v_effects := array(select e from unnest(v_effects) as e where e.run_id = any(v_run_ids));
  end if;

  perform ql.apply_effects(v_effects, 'task_admission');
  perform ql.clear_agenda('task_admission', v_run_ids);
  return v_wanted[1:cardinality(v_run_ids)];
end;
$$;

ALTER FUNCTION ql.admit_ready_steps(p_run_ids text[]) OWNER TO ql_migrator;

--
-- Name: admit_run(text, text, text, text, text, text, text, text, bigint); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.admit_run(p_run_id text, p_package_key text, p_kind text, p_target_key text, p_run_key text, p_input text, p_retry_of_run_id text, p_trigger_key text, p_scheduled_at_ms bigint) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_effects ql.effect[];
begin
  if not ql.insert_run(
    p_run_id, p_package_key, p_kind, p_target_key, p_run_key, ql.sha256_hex(p_input),
    p_retry_of_run_id, p_trigger_key, p_scheduled_at_ms
  ) then
    return false;
  end if;
  insert into ql.run_input (run_id, input)
  values (p_run_id, p_input);

  select array_agg(
    row(
      e.run_id, e.ordinal, e.entity, e.entity_id, e.from_status, e.to_status, e.expected_version,
      e.result_code, e.event_type, e.due_at_ms, e.input_id
    )::ql.effect
  )
  into v_effects
  from ql.admission_effect as e
  where e.run_id = p_run_id;
  perform ql.apply_effects(v_effects, 'admission');
  return true;
end;
$$;

ALTER FUNCTION ql.admit_run(p_run_id text, p_package_key text, p_kind text, p_target_key text, p_run_key text, p_input text, p_retry_of_run_id text, p_trigger_key text, p_scheduled_at_ms bigint) OWNER TO ql_migrator;

--
-- Name: advance_frontiers(text[]); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.advance_frontiers(p_run_ids text[]) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_effects ql.effect[];
begin
  select coalesce(array_agg(row(e.*)::ql.effect), '{}')
  into v_effects
  from unnest(p_run_ids) as i (run_id)
  cross join lateral (
    select * from ql.frontier_effect as v where v.run_id = i.run_id offset 0
  ) as e;

  perform ql.apply_effects(v_effects, 'frontier');
  perform ql.clear_agenda('frontier', p_run_ids);
  return ql.effect_counts(p_run_ids, v_effects);
end;
$$;

ALTER FUNCTION ql.advance_frontiers(p_run_ids text[]) OWNER TO ql_migrator;

--
-- Name: announce(ql.effect[], text); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.announce(p_effects ql.effect[], p_stage text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_now_ms bigint := ql.now_ms();  -- the effect time may lie ahead of a clock that stepped back
  v_ended text[];
  v_intended text[];
begin
  select
    array_agg(e.run_id) filter (where e.to_status <> 'running'),
    array_agg(e.run_id) filter (where e.event_type = 'run.cancel_requested')
  into v_ended, v_intended
  from unnest(p_effects) as e
  where e.entity = 'run';

  if v_ended is not null then
    delete from ql.agenda as a
    where a.run_id = any (v_ended);
    delete from ql.run_fault as f
    where f.run_id = any (v_ended);
  end if;
  if v_intended is not null then
    delete from ql.agenda as a
    where a.run_id = any (v_intended)
      and a.stage in ('frontier', 'task_admission', 'retry', 'deadline');
  end if;

  insert into ql.agenda as a (run_id, stage, due_at_ms)
  select
    g.run_id,
    d.stage,
    d.due_at_ms
  from (
    select
      e.run_id,
      count(*) filter (where e.entity = 'run') as run_count,
      count(*) filter (where e.entity = 'step' and e.to_status = 'ready') as ready_count,
      count(*) filter (
        where e.entity = 'step'
          and e.to_status in ('succeeded', 'failed', 'skipped', 'cancelled', 'timed_out')
      ) as end_count,
      min(e.due_at_ms) filter (where e.entity = 'step' and e.to_status = 'retry_wait')
        as retry_at_ms
    from unnest(p_effects) as e
    group by e.run_id
  ) as g
  join ql.run as r on r.run_id = g.run_id
  cross join lateral (
    values
      -- convergence clears its own row by its outcome, the frontier after its decision
      (
        'cancellation',
        case
          when r.cancel_requested_at_ms is not null
            and (p_stage <> 'cancellation' or g.run_count > 0)
            then least(r.updated_at_ms, v_now_ms)
        end
      ),
      ('deadline', case when g.run_count > 0 then r.deadline_at_ms end),
      ('task_admission', case when g.ready_count > 0 then least(r.updated_at_ms, v_now_ms) end),
      ('retry', g.retry_at_ms),
      (
        'frontier',
        case
          when g.end_count > 0 and p_stage <> 'frontier' then least(r.updated_at_ms, v_now_ms)
        end
      )
  ) as d (stage, due_at_ms)
  where r.status = 'running'
    and d.due_at_ms is not null
    and (d.stage = 'cancellation' or r.cancel_requested_at_ms is null)
  union all
  select
    e.run_id,
    'expiry',
    min(o.expires_at_ms)
  from unnest(p_effects) as e
  join ql.attempt_offer as o on o.offer_id = e.input_id and o.attempt_id = e.entity_id
  where e.entity = 'lease' and e.to_status = 'leased'
  group by e.run_id
  on conflict (run_id, stage) do update
  set due_at_ms = excluded.due_at_ms
  where excluded.due_at_ms < a.due_at_ms;
end;
$$;

ALTER FUNCTION ql.announce(p_effects ql.effect[], p_stage text) OWNER TO ql_migrator;

--
-- Name: answers(ql.command[]); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.answers(p_commands ql.command[]) RETURNS TABLE(attempt_id text, outcome text, code text)
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  return query
  select
    c.attempt_id,
    case
      when c.code is null then 'applied'
      when c.code = 'contended' then 'contended'
      else 'blocked'
    end,
    nullif(c.code, 'contended')
  from unnest(p_commands) as c
  order by c.position;
end;
$$;

ALTER FUNCTION ql.answers(p_commands ql.command[]) OWNER TO ql_migrator;

--
-- Name: apply_attested(text[]); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.apply_attested(p_attempt_ids text[]) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_run_ids text[];
  v_effects ql.effect[];
begin
  v_run_ids := array(
    select distinct a.run_id
    from ql.task_attempt as a
    where a.attempt_id = any(p_attempt_ids)
      and a.finished_at_ms is null
      and exists (
        select from ql.attestation as n where n.run_id = a.run_id and n.attempt_id = a.attempt_id
      )
  );
  select array_agg(row(e.*)::ql.effect)
  into v_effects
  from unnest(v_run_ids) as i (run_id)
  cross join lateral (
    select * from ql.recovery_effect as v where v.run_id = i.run_id offset 0
  ) as e
  where e.input_id = any(p_attempt_ids);
  return ql.apply_effects(v_effects, 'recovery');
end;
$$;

ALTER FUNCTION ql.apply_attested(p_attempt_ids text[]) OWNER TO ql_migrator;

--
-- Name: apply_effects(ql.effect[], text); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.apply_effects(p_effects ql.effect[], p_stage text) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_count bigint := coalesce(cardinality(p_effects), 0)::bigint;
  v_step_new bigint;
  v_step bigint;
  v_attempt_new bigint;
  v_attempt bigint;
  v_lease bigint;
  v_moved record;
begin
  if v_count = 0 then
    return v_count;
  end if;
  select
    count(*) filter (where e.entity = 'step' and e.from_status is null),
    count(*) filter (where e.entity = 'step' and e.from_status is not null),
    count(*) filter (where e.entity = 'attempt' and e.from_status is null),
    count(*) filter (where e.entity = 'attempt' and e.from_status is not null),
    count(*) filter (where e.entity = 'lease')
  into v_step_new, v_step, v_attempt_new, v_attempt, v_lease
  from unnest(p_effects) as e;

  v_moved := ql.move_runs(p_effects, v_count);
  perform ql.write_events(p_effects, v_moved.versions, v_moved.at_ms);
  if v_step_new > 0 then
    perform ql.add_steps(p_effects, v_step_new);
  end if;
  if v_step > 0 then
    perform ql.move_steps(p_effects, v_step, v_moved.at_ms);
  end if;
  if v_attempt_new > 0 then
    perform ql.add_attempts(p_effects, v_attempt_new, v_moved.at_ms);
  end if;
  if v_attempt > 0 then
    perform ql.move_attempts(p_effects, v_attempt, v_moved.at_ms);
    perform ql.keep_outputs(p_effects);  -- finds the report by the fence, so before leases close
    perform ql.close_leases(p_effects, v_moved.at_ms);
  end if;
  if v_lease > 0 then
    perform ql.move_leases(p_effects, v_lease, v_moved.at_ms);
  end if;
  perform ql.announce(p_effects, p_stage);
  return v_count;
end;
$$;

ALTER FUNCTION ql.apply_effects(p_effects ql.effect[], p_stage text) OWNER TO ql_migrator;

--
-- Name: assert_all_hit(text, bigint, bigint); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.assert_all_hit(p_entity text, p_wanted bigint, p_hit bigint) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  if p_wanted <> p_hit then
    raise exception 'compare-and-swap lost: % of % % effects found what the decision saw',
      p_hit, p_wanted, p_entity
      using errcode = 'QL409';
  end if;
end;
$$;

ALTER FUNCTION ql.assert_all_hit(p_entity text, p_wanted bigint, p_hit bigint) OWNER TO ql_migrator;

--
-- Name: assert_read_committed(); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.assert_read_committed() RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'isolation is %, not read committed', current_setting('transaction_isolation')
      using errcode = 'QL503';
  end if;
end;
$$;

ALTER FUNCTION ql.assert_read_committed() OWNER TO ql_migrator;

--
-- Name: attempt_key(text); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.attempt_key(p_attempt_id text) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  return hashtextextended('ql-attempt:' || p_attempt_id, 0);
end;
$$;

ALTER FUNCTION ql.attempt_key(p_attempt_id text) OWNER TO ql_migrator;

--
-- Name: canonical(jsonb); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.canonical(p_value jsonb) RETURNS text
    LANGUAGE plpgsql IMMUTABLE STRICT
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  return case jsonb_typeof(p_value)
    when 'object' then (
      select
        '{'
        || coalesce(
          string_agg(to_jsonb(e.key)::text || ':' || ql.canonical(e.value), ','
            order by e.key collate "C"), ''
        )
        || '}'
      from jsonb_each(p_value) as e
    )
    when 'array' then (
      select
        '['
        || coalesce(string_agg(ql.canonical(i.value), ',' order by i.ordinality), '')
        || ']'
      from jsonb_array_elements(p_value) with ordinality as i
    )
    else p_value::text
  end;
end;
$$;

ALTER FUNCTION ql.canonical(p_value jsonb) OWNER TO ql_migrator;

--
-- Name: canonical_object(jsonb); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.canonical_object(p_value jsonb) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  return case when jsonb_typeof(p_value) = 'object' then ql.canonical(p_value) end;
exception
  when program_limit_exceeded or statement_too_complex then
    return null;
end;
$$;

ALTER FUNCTION ql.canonical_object(p_value jsonb) OWNER TO ql_migrator;

--
-- Name: check_claim(text, text); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.check_claim(p_owner text, p_token text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  if coalesce(length(p_owner), 0) not between 1 and 200
    or coalesce(length(p_token), 0) not between 1 and 64
  then
    raise exception 'a claim has an owner and a token' using errcode = 'QL400';
  end if;
end;
$$;

ALTER FUNCTION ql.check_claim(p_owner text, p_token text) OWNER TO ql_migrator;

--
-- Name: check_commit(bigint, bigint, bigint, bigint, bigint); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.check_commit(p_cursor_ms bigint, p_due_at_ms bigint, p_observed_at_ms bigint, p_next_at_ms bigint, p_grace_ms bigint) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  if not coalesce(
    p_due_at_ms >= 0
    and p_next_at_ms > p_observed_at_ms
    and p_next_at_ms >= p_due_at_ms
    and p_due_at_ms = coalesce(p_cursor_ms, p_due_at_ms)
    and p_grace_ms between 0 and 300000,
    false
  ) then
    raise exception 'the due time is the cursor, the next one is later than what was observed'
      using errcode = 'QL400';
  end if;
end;
$$;

ALTER FUNCTION ql.check_commit(p_cursor_ms bigint, p_due_at_ms bigint, p_observed_at_ms bigint, p_next_at_ms bigint, p_grace_ms bigint) OWNER TO ql_migrator;

--
-- Name: check_manifest(text, jsonb); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.check_manifest(p_package_key text, p_model jsonb) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_fault text;
begin
  select f.fault
  into v_fault
  from (
    select 'the manifest is of package ' || coalesce(p_model ->> 'package', 'null') as fault
    where p_model ->> 'package' is distinct from p_package_key
    union all
    select format('workflow %s has %s steps, not 1 to 128', w.key, c.step_count)
    from jsonb_each(p_model -> 'workflows') as w
    cross join lateral (
      select count(*) as step_count
      from jsonb_each(w.value -> 'steps')
    ) as c
    where c.step_count not between 1 and 128
    union all
    select format('step %s of workflow %s: unknown task %s', s.key, w.key, s.value ->> 'task')
    from jsonb_each(p_model -> 'workflows') as w
    cross join lateral jsonb_each(w.value -> 'steps') as s
    where p_model -> 'tasks' -> (s.value ->> 'task') is null
    union all
    select format('step %s of workflow %s: unknown need %s', s.key, w.key, n.need)
    from jsonb_each(p_model -> 'workflows') as w
    cross join lateral jsonb_each(w.value -> 'steps') as s
    cross join lateral jsonb_array_elements_text(s.value -> 'needs') as n (need)
    where w.value -> 'steps' -> n.need is null
    union all
    select format('trigger %s: unknown %s %s', t.key, t.value ->> 'kind', t.value ->> 'target')
    from jsonb_each(p_model -> 'triggers') as t
    where p_model -> ((t.value ->> 'kind') || 's') -> (t.value ->> 'target') is null
  ) as f
  limit 1;
  if v_fault is not null then
    raise exception '%', v_fault using errcode = 'QL400';
  end if;
end;
$$;

ALTER FUNCTION ql.check_manifest(p_package_key text, p_model jsonb) OWNER TO ql_migrator;

--
-- Name: check_offers(jsonb, bigint); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.check_offers(p_offers jsonb, p_lease_ms bigint) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_odd bigint;
  v_twice bigint;
begin
  if p_lease_ms is null or p_lease_ms not between 5000 and 300000 then
    raise exception 'a lease lasts 5 s to 5 min, not % ms', p_lease_ms using errcode = 'QL400';
  end if;

  select
    count(*) filter (
      where coalesce(length(o.offer_id), 0) not between 1 and 36
        or coalesce(length(o.token_digest), 0) <> 64
        or translate(o.token_digest, '0123456789abcdef', '') <> ''
    ),
    count(*) - count(distinct o.offer_id)
  into v_odd, v_twice
  from jsonb_to_recordset(p_offers) as o (offer_id text, token_digest text);
  if v_odd > 0 then
    raise exception 'an offer has an offer_id and a token_digest' using errcode = 'QL400';
  elsif v_twice > 0 then
    raise exception 'an offer is made once' using errcode = 'QL400';
  end if;
end;
$$;

ALTER FUNCTION ql.check_offers(p_offers jsonb, p_lease_ms bigint) OWNER TO ql_migrator;

--
-- Name: check_start(text, text, text, text, text); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.check_start(p_package_key text, p_kind text, p_target_key text, p_run_key text, p_input text) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_fault text;
begin
  v_fault := case
    when p_kind is null or p_kind not in ('workflow', 'task') then 'kind is workflow or task'
    when p_package_key is null or p_target_key is null then 'package and target are needed'
    when p_run_key is null or length(p_run_key) not between 1 and 200
      then 'a run key has 1 to 200 characters'
    when octet_length(p_input) > 16384 then 'the input is larger than 16 KiB'
    when not coalesce(ql.is_object(p_input), false) then 'the input is a JSON object'
  end;
  if v_fault is not null then
    raise exception '%', v_fault using errcode = 'QL400';
  end if;
end;
$$;

ALTER FUNCTION ql.check_start(p_package_key text, p_kind text, p_target_key text, p_run_key text, p_input text) OWNER TO ql_migrator;

--
-- Name: clear_agenda(text, text[]); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.clear_agenda(p_stage text, p_run_ids text[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  delete from ql.agenda as a
  where a.run_id = any(p_run_ids) and a.stage = p_stage;

  delete from ql.run_fault as f
  where f.run_id = any(p_run_ids) and f.stage = p_stage;
end;
$$;

ALTER FUNCTION ql.clear_agenda(p_stage text, p_run_ids text[]) OWNER TO ql_migrator;

--
-- Name: close_leases(ql.effect[], bigint); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.close_leases(p_effects ql.effect[], p_at_ms bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  update ql.attempt_lease as l
  set
    status = case
      when e.to_status = 'lost' or e.from_status = 'claimed' then 'released'
      else 'completed'
    end,
    version = l.version + 1,
    fence = l.fence + 1,
    closed_at_ms = w.at_ms
  from unnest(p_effects) as e
  cross join lateral (
    select
      coalesce(p_at_ms, (select r.updated_at_ms from ql.run as r where r.run_id = e.run_id))
        as at_ms
  ) as w
  where l.attempt_id = e.entity_id
    and l.status = 'leased'
    and e.entity = 'attempt'
    and e.to_status in ('succeeded', 'failed', 'cancelled', 'timed_out', 'lost');
end;
$$;

ALTER FUNCTION ql.close_leases(p_effects ql.effect[], p_at_ms bigint) OWNER TO ql_migrator;

--
-- Name: command_list(text); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.command_list(p_commands text) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_list jsonb;
begin
  begin
    v_list := p_commands::jsonb;
  exception
    when data_exception or program_limit_exceeded or statement_too_complex then
      v_list := null;
  end;
  if jsonb_typeof(v_list) is distinct from 'array' or jsonb_array_length(v_list) > 128 then
    raise exception 'a batch is a JSON array of at most 128 commands' using errcode = 'QL400';
  end if;
  return v_list;
end;
$$;

ALTER FUNCTION ql.command_list(p_commands text) OWNER TO ql_migrator;

--
-- Name: deepen_ancestors(text[]); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.deepen_ancestors(p_workflow_ids text[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_distance int := 1;
begin
  loop
    insert into ql.workflow_ancestor (workflow_id, ancestor_key, step_key, distance)
    select distinct
      a.workflow_id,
      n.ancestor_key,
      a.step_key,
      v_distance + 1
    from ql.workflow_ancestor as a
    join ql.workflow_ancestor as n
      on n.workflow_id = a.workflow_id and n.step_key = a.ancestor_key and n.distance = 1
    where a.workflow_id = any (p_workflow_ids) and a.distance = v_distance
    on conflict do nothing;
    exit when not found;
    v_distance := v_distance + 1;
  end loop;
end;
$$;

ALTER FUNCTION ql.deepen_ancestors(p_workflow_ids text[]) OWNER TO ql_migrator;

--
-- Name: derived_id(text, text[]); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.derived_id(p_prefix text, VARIADIC p_parts text[]) RETURNS text
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_framed text := '';
  v_part text;
begin
  foreach v_part in array p_parts loop
    v_framed := v_framed || octet_length(v_part) || ':' || v_part;
  end loop;
  return p_prefix || left(encode(sha256(convert_to(v_framed, 'UTF8')), 'hex'), 24);
end;
$$;

ALTER FUNCTION ql.derived_id(p_prefix text, VARIADIC p_parts text[]) OWNER TO ql_migrator;

--
-- Name: drain_session(text, integer); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.drain_session(p_worker_id text, p_drains integer) RETURNS TABLE(worker_id text, status text, outcome text)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_requested_at_ms bigint;
  v_outcome text := 'existing';
begin
  select w.drain_requested_at_ms
  into v_requested_at_ms
  from ql.worker_session as w
  where w.worker_id = p_worker_id
  for no key update;
  if not found then
    raise exception 'no worker %', p_worker_id using errcode = 'QL404';
  end if;

  if (v_requested_at_ms is null) = (p_drains = 1) then
    v_outcome := 'applied';
    update ql.worker_session as w
    set
      drain_requested_at_ms = case p_drains when 1 then ql.now_ms() end,
      status = case
        when w.status = 'offline' then 'offline'
        when p_drains = 1 then 'draining'
        else 'online'
      end
    where w.worker_id = p_worker_id;
  end if;
  return query
  select
    w.worker_id,
    w.status,
    v_outcome
  from ql.worker_session as w
  where w.worker_id = p_worker_id;
end;
$$;

ALTER FUNCTION ql.drain_session(p_worker_id text, p_drains integer) OWNER TO ql_migrator;

--
-- Name: effect_counts(text[], ql.effect[]); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.effect_counts(p_run_ids text[], p_effects ql.effect[]) RETURNS bigint[]
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  return array(
    select count(e.run_id)
    from unnest(p_run_ids) with ordinality as r (run_id, position)
    left join unnest(p_effects) as e on e.run_id = r.run_id
    group by r.position
    order by r.position
  );
end;
$$;

ALTER FUNCTION ql.effect_counts(p_run_ids text[], p_effects ql.effect[]) OWNER TO ql_migrator;

--
-- Name: expand_commands(text, text); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.expand_commands(p_commands text, p_kind text) RETURNS ql.command[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $_$
declare
  v_list jsonb := ql.command_list(p_commands);
begin
  return array(
    select
      row(
        c.position, c.attempt_id, c.run_id, c.fence, ql.sha256_hex(c.token), c.identity, c.how,
        c.exit_code, c.output, c.error, c.reason,
        case
          when c.attempt_id is null or c.fence is null or c.token is null or c.times > 1
            or octet_length(c.identity) > 512 or octet_length(c.reason) > 2048
            then 'QL400'
          when p_kind = 'attested' and c.reason is null then 'QL400'
          when p_kind = 'ended' and (
            c.how is null
            or c.how not in (
              'exit', 'signal', 'stop', 'deadline', 'start_failed', 'bad_output', 'not_started'
            )
            or (c.how = 'exit' and c.exit_code is null)
            or (c.exit_code is null) <> (c.exit_text is null)
            or octet_length(c.output) > 16384
            or not ql.is_object(c.output)
            or octet_length(c.error) > 2048
          )
            then 'QL400'
          when c.run_id is null then 'QL404'
        end,
        c.worker_id
      )::ql.command
    from (
      select
        e.position,
        e.value ->> 'attempt_id' as attempt_id,
        (
          select a.run_id from ql.task_attempt as a where a.attempt_id = e.value ->> 'attempt_id'
        ) as run_id,
        case when e.value ->> 'fence' ~ '^[0-9]{1,18}$' then (e.value ->> 'fence')::bigint end
          as fence,
        e.value ->> 'token' as token,
        e.value ->> 'worker_id' as worker_id,
        case when p_kind = 'starting' then e.value ->> 'identity' end as identity,
        case when p_kind = 'ended' then e.value ->> 'how' end as how,
        case when p_kind = 'ended' then e.value ->> 'exit_code' end as exit_text,
        case
          when p_kind = 'ended'
            and jsonb_typeof(e.value -> 'exit_code') = 'number'
            and e.value ->> 'exit_code' ~ '^-?[0-9]{1,9}$'
            then (e.value ->> 'exit_code')::bigint
        end as exit_code,
        case
          when p_kind <> 'ended' then null
          when jsonb_typeof(e.value -> 'output') = 'object'
            then coalesce(ql.canonical_object(e.value -> 'output'), '')
          else e.value ->> 'output'
        end as output,
        case when p_kind = 'ended' then e.value ->> 'error' end as error,
        case when p_kind = 'attested' then e.value ->> 'reason' end as reason,
        row_number() over (partition by e.value ->> 'attempt_id' order by e.position) as times
      from jsonb_array_elements(v_list) with ordinality as e (value, position)
    ) as c
    order by c.attempt_id collate "C", c.position
  );
end;
$_$;

ALTER FUNCTION ql.expand_commands(p_commands text, p_kind text) OWNER TO ql_migrator;

--
-- Name: expire_runs(text[]); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.expire_runs(p_run_ids text[]) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_now bigint := ql.now_ms();
  v_effects ql.effect[];
begin
  v_effects := ql.intend(
    array(
      select r.run_id
      from ql.run as r
      where r.run_id = any(p_run_ids)
        and r.cancel_requested_at_ms is null
        and r.deadline_at_ms <= v_now
    ),
    'timeout',
    'scheduler'
  );
  perform
    ql.rearm_agenda(
      'deadline',
      r.run_id,
      case
        when r.status = 'running' and r.cancel_requested_at_ms is null then r.deadline_at_ms
      end
    )
  from ql.run as r
  where r.run_id = any(p_run_ids);
  return ql.effect_counts(p_run_ids, v_effects);
end;
$$;

ALTER FUNCTION ql.expire_runs(p_run_ids text[]) OWNER TO ql_migrator;

--
-- Name: find_trigger(text, text); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.find_trigger(p_package_key text, p_trigger_key text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  perform
  from ql.trigger as t
  where t.package_key = p_package_key and t.trigger_key = p_trigger_key and t.state <> 'withdrawn';
  if not found then
    raise exception 'no trigger % in package %', p_trigger_key, p_package_key
      using errcode = 'QL404';
  end if;
end;
$$;

ALTER FUNCTION ql.find_trigger(p_package_key text, p_trigger_key text) OWNER TO ql_migrator;

--
-- Name: hold_run(text); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.hold_run(p_run_id text) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  perform
  from ql.run as r
  where r.run_id = p_run_id
  for no key update skip locked;
  if found then
    return true;
  end if;
  if not exists (select from ql.run as r where r.run_id = p_run_id) then
    raise exception 'no run %', p_run_id using errcode = 'QL404';
  end if;
  return false;
end;
$$;

ALTER FUNCTION ql.hold_run(p_run_id text) OWNER TO ql_migrator;

--
-- Name: worker_session; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.worker_session (
    worker_id text NOT NULL COLLATE pg_catalog."C",
    session_id text NOT NULL COLLATE pg_catalog."C",
    generation bigint NOT NULL,
    status text NOT NULL COLLATE pg_catalog."C",
    queues text NOT NULL,
    slots bigint NOT NULL,
    self_fencing bigint NOT NULL,
    grace_ms bigint NOT NULL,
    registered_at_ms bigint NOT NULL,
    expires_at_ms bigint NOT NULL,
    seen_at_ms bigint,
    drain_requested_at_ms bigint,
    CONSTRAINT session_status_is_known CHECK ((status = ANY (ARRAY['online'::text, 'draining'::text, 'offline'::text]))),
    CONSTRAINT slots_within_bounds CHECK (((slots >= 1) AND (slots <= 1024)))
);

ALTER TABLE ql.worker_session OWNER TO ql_migrator;

--
-- Name: hold_session(text, text, boolean); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.hold_session(p_worker_id text, p_session_id text, p_lock boolean) RETURNS ql.worker_session
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_session ql.worker_session;
begin
  if p_lock then
    select w.*
    into v_session
    from ql.worker_session as w
    where w.worker_id = p_worker_id and w.session_id = p_session_id and w.status = 'online'
    for no key update;
  else
    select w.*
    into v_session
    from ql.worker_session as w
    where w.worker_id = p_worker_id and w.session_id = p_session_id and w.status = 'online';
  end if;
  if v_session.worker_id is null then
    raise exception 'session % of worker % is not online', p_session_id, p_worker_id
      using errcode = 'QL410';
  end if;
  return v_session;
end;
$$;

ALTER FUNCTION ql.hold_session(p_worker_id text, p_session_id text, p_lock boolean) OWNER TO ql_migrator;

--
-- Name: hold_triggers(text, text); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.hold_triggers(p_package_key text, p_trigger_key text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  perform
  from ql.trigger as t
  where t.package_key = p_package_key and t.trigger_key = coalesce(p_trigger_key, t.trigger_key)
  order by t.trigger_key
  for no key update;
  perform
  from ql.trigger_schedule as s
  where s.package_key = p_package_key and s.trigger_key = coalesce(p_trigger_key, s.trigger_key)
  order by s.trigger_key
  for no key update;
end;
$$;

ALTER FUNCTION ql.hold_triggers(p_package_key text, p_trigger_key text) OWNER TO ql_migrator;

--
-- Name: input_octets(text); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.input_octets(p_attempt_id text) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
begin
  return (
    select
      octet_length(i.input) + coalesce(
        (
          select sum(octet_length(o.output))
          from ql.workflow_ancestor as w
          join ql.step_output as o on o.run_id = a.run_id and o.step_key = w.ancestor_key
          where w.workflow_id = r.target_id and w.step_key = a.step_key and w.distance = 1
        ),
        0
      )
    from ql.task_attempt as a
    join ql.run as r on r.run_id = a.run_id
    join ql.run_input as i on i.run_id = a.run_id
    where a.attempt_id = p_attempt_id
  );
end;
$$;

ALTER FUNCTION ql.input_octets(p_attempt_id text) OWNER TO ql_migrator;

--
-- Name: input_text(text); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.input_text(p_attempt_id text) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
begin
  return (
    select
      '{"input":' || i.input || ',"needs":{' || coalesce(
        (
          select string_agg(
            to_jsonb(w.ancestor_key)::text || ':' || coalesce(o.output, 'null'),
            ',' order by w.ancestor_key
          )
          from ql.workflow_ancestor as w
          left join ql.step_output as o on o.run_id = a.run_id and o.step_key = w.ancestor_key
          where w.workflow_id = r.target_id and w.step_key = a.step_key and w.distance = 1
        ),
        ''
      ) || '}}'
    from ql.task_attempt as a
    join ql.run as r on r.run_id = a.run_id
    join ql.run_input as i on i.run_id = a.run_id
    where a.attempt_id = p_attempt_id
  );
end;
$$;

ALTER FUNCTION ql.input_text(p_attempt_id text) OWNER TO ql_migrator;

--
-- Name: insert_run(text, text, text, text, text, text, text, text, bigint); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.insert_run(p_run_id text, p_package_key text, p_kind text, p_target_key text, p_run_key text, p_input_digest text, p_retry_of_run_id text, p_trigger_key text, p_scheduled_at_ms bigint) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_now_ms bigint;
  v_generation bigint;
  v_target_id text;
  v_step_count bigint;
  v_timeout_ms bigint;
begin
  loop
    select g.generation
    into v_generation
    from ql.package_generation as g
    where g.package_key = p_package_key and g.state = 'active'
    for share;
    exit when found;
    -- a publication that we waited for has replaced the row that we saw: look once more
    if not exists (
      select from ql.package_generation as g
      where g.package_key = p_package_key and g.state = 'active'
    ) then
      raise exception 'no active package %', p_package_key using errcode = 'QL404';
    end if;
  end loop;
  v_now_ms := ql.now_ms();

  select t.target_id, t.step_count, t.timeout_ms
  into v_target_id, v_step_count, v_timeout_ms
  from (
    select
      w.workflow_id as target_id,
      w.step_count,
      w.timeout_ms
    from ql.workflow_revision as w
    where p_kind = 'workflow'
      and w.package_key = p_package_key
      and w.generation = v_generation
      and w.workflow_key = p_target_key
    union all
    -- a task run has one step, and no deadline but its attempt's (DESIGN §5)
    select
      k.task_id as target_id,
      1 as step_count,
      null as timeout_ms
    from ql.task_revision as k
    where p_kind = 'task'
      and k.package_key = p_package_key
      and k.generation = v_generation
      and k.task_key = p_target_key
  ) as t;

  insert into ql.run (
    run_id, package_key, generation, kind, target_key, target_id, run_key, input_digest, step_count,
    deadline_at_ms, retry_of_run_id, trigger_key, scheduled_at_ms, admitted_at_ms, status, version,
    attempt_count, updated_at_ms
  )
  select
    p_run_id,
    p_package_key,
    v_generation,
    p_kind,
    p_target_key,
    v_target_id,
    p_run_key,
    p_input_digest,
    v_step_count,
    v_now_ms + v_timeout_ms,
    p_retry_of_run_id,
    p_trigger_key,
    p_scheduled_at_ms,
    v_now_ms,
    'running',
    0,
    0,
    v_now_ms
  where v_target_id is not null
  on conflict do nothing;
  if found then
    return true;
  end if;
  if v_target_id is null and not exists (select from ql.run as r where r.run_id = p_run_id) then
    raise exception 'no % % in package %', p_kind, p_target_key, p_package_key
      using errcode = 'QL404';
  end if;
  return false;
end;
$$;

ALTER FUNCTION ql.insert_run(p_run_id text, p_package_key text, p_kind text, p_target_key text, p_run_key text, p_input_digest text, p_retry_of_run_id text, p_trigger_key text, p_scheduled_at_ms bigint) OWNER TO ql_migrator;

--
-- Name: intend(text[], text, text); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.intend(p_run_ids text[], p_reason text, p_actor text) RETURNS ql.effect[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_effects ql.effect[];
begin
  insert into ql.cancel_intent (run_id, reason, actor, requested_at_ms)
  select r.run_id, p_reason, p_actor, ql.now_ms()
  from ql.run as r
  where r.run_id = any(p_run_ids) and r.status = 'running'
  order by r.run_id
  on conflict do nothing;

  select array_agg(row(e.*)::ql.effect)
  into v_effects
  from unnest(p_run_ids) as i (run_id)
  cross join lateral (
    select * from ql.intent_effect as v where v.run_id = i.run_id offset 0
  ) as e;
  perform ql.apply_effects(v_effects, 'intent');
  return v_effects;
end;
$$;

ALTER FUNCTION ql.intend(p_run_ids text[], p_reason text, p_actor text) OWNER TO ql_migrator;

--
-- Name: is_object(text); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.is_object(p_text text) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  return jsonb_typeof(p_text::jsonb) = 'object' and ql.is_storable(p_text::json, 0);
exception
  when data_exception or program_limit_exceeded or statement_too_complex then
    return false;
end;
$$;

ALTER FUNCTION ql.is_object(p_text text) OWNER TO ql_migrator;

--
-- Name: is_storable(json, integer); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.is_storable(p_value json, p_depth integer) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE STRICT
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_text text;
begin
  if p_depth > 64 then
    return false;
  end if;
  case json_typeof(p_value)
    when 'object' then
      return (
        select
          count(*) = count(distinct e.key collate "C")
          and coalesce(bool_and(ql.is_storable(e.value, p_depth + 1)), true)
        from json_each(p_value) as e
      );
    when 'array' then
      return (
        select coalesce(bool_and(ql.is_storable(i.value, p_depth + 1)), true)
        from json_array_elements(p_value) as i
      );
    when 'number' then
      v_text := p_value #>> '{}';
      if v_text ~ '[.eE]' then
        -- from here on a double is infinite
        return abs(v_text::numeric) < 1.797693134862315807937289714053034150e308;
      end if;
      return v_text::numeric between -9223372036854775808 and 9223372036854775807;
    else
      return true;
  end case;
end;
$$;

ALTER FUNCTION ql.is_storable(p_value json, p_depth integer) OWNER TO ql_migrator;

--
-- Name: jitter(text, text, bigint); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.jitter(p_run_id text, p_step_key text, p_number bigint) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_digits text := substr(ql.derived_id('ji', p_run_id, p_step_key, p_number::text), 3, 3);
begin
  return ('x' || v_digits)::bit(12)::bigint % 1024;
end;
$$;

ALTER FUNCTION ql.jitter(p_run_id text, p_step_key text, p_number bigint) OWNER TO ql_migrator;

--
-- Name: keep_outputs(ql.effect[]); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.keep_outputs(p_effects ql.effect[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  insert into ql.step_output (run_id, step_key, attempt_id, output)
  select
    e.run_id,
    e.entity_id,
    e.input_id,
    p.output
  from unnest(p_effects) as e
  -- by itself, by the whole key: most have no output, and no plan may look it up by less
  cross join lateral (
    select
      r.fence,
      r.output
    from ql.attempt_report as r
    where r.run_id = e.run_id
      and r.attempt_id = e.input_id
      and r.kind = 'ended'
      and r.output is not null
    offset 0
  ) as p
  where e.entity = 'step'
    and e.to_status = 'succeeded'
    and p.fence = (select l.fence from ql.attempt_lease as l where l.attempt_id = e.input_id);
end;
$$;

ALTER FUNCTION ql.keep_outputs(p_effects ql.effect[]) OWNER TO ql_migrator;

--
-- Name: keep_refused(ql.command[], bigint); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.keep_refused(p_commands ql.command[], p_now_ms bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  insert into ql.refused_report (
    run_id, attempt_id, ordinal, code, kind, how, exit_code, fence, refused_at_ms
  )
  select
    c.run_id, c.attempt_id, 1 + f.refused, 'QL410', 'ended', c.how, c.exit_code, c.fence, p_now_ms
  from unnest(p_commands) as c
  join ql.attempt_offer as o
    on o.run_id = c.run_id and o.attempt_id = c.attempt_id and o.fence = c.fence
  cross join lateral (
    select
      count(*) as refused,
      count(*) filter (
        where k.fence = c.fence and k.how = c.how and k.exit_code is not distinct from c.exit_code
      ) as known
    from ql.refused_report as k
    where k.run_id = c.run_id and k.attempt_id = c.attempt_id
  ) as f
  where c.code = 'QL410'
    and o.token_digest = c.token_digest
    and f.refused < 8
    and f.known = 0;
end;
$$;

ALTER FUNCTION ql.keep_refused(p_commands ql.command[], p_now_ms bigint) OWNER TO ql_migrator;

--
-- Name: known_reports(ql.command[], text[], text); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.known_reports(p_commands ql.command[], p_new text[], p_kind text) RETURNS text[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  if cardinality(p_new)
    = (select count(*) from unnest(p_commands) as c where c.code is null)
  then
    return array[]::text[];  -- as nearly always
  end if;
  return array(
    select c.attempt_id
    from unnest(p_commands) as c
    join ql.attempt_report as p
      on p.run_id = c.run_id
      and p.attempt_id = c.attempt_id
      and p.fence = c.fence
      and p.kind = p_kind
    join ql.attempt_offer as o
      on o.run_id = c.run_id and o.attempt_id = c.attempt_id and o.fence = c.fence
    where c.code is null
      and not c.attempt_id = any(p_new)
      and o.token_digest = c.token_digest
      and p.how is not distinct from c.how
      and p.exit_code is not distinct from c.exit_code
      and p.identity is not distinct from c.identity
      and p.output is not distinct from c.output
  );
end;
$$;

ALTER FUNCTION ql.known_reports(p_commands ql.command[], p_new text[], p_kind text) OWNER TO ql_migrator;

--
-- Name: lock_attempts(text[], text[]); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.lock_attempts(p_attempt_ids text[], p_run_ids text[]) RETURNS text[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_mine boolean[];
  v_held text[];
begin
  v_mine := array(
    select pg_try_advisory_xact_lock(ql.attempt_key(i.attempt_id))
    from unnest(p_attempt_ids) with ordinality as i (attempt_id, position)
    order by i.position
  );
  v_held := ql.lock_runs(array(
    select distinct i.run_id from unnest(p_run_ids, v_mine) as i (run_id, mine) where i.mine
  ));
  return array(
    select i.attempt_id
    from unnest(p_attempt_ids, p_run_ids, v_mine) as i (attempt_id, run_id, mine)
    where i.mine and i.run_id = any(v_held)
  );
end;
$$;

ALTER FUNCTION ql.lock_attempts(p_attempt_ids text[], p_run_ids text[]) OWNER TO ql_migrator;

--
-- Name: lock_commands(ql.command[]); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.lock_commands(p_commands ql.command[]) RETURNS ql.command[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_attempt_ids text[];
  v_run_ids text[];
begin
  select
    coalesce(array_agg(c.attempt_id), '{}'),
    coalesce(array_agg(c.run_id), '{}')
  into v_attempt_ids, v_run_ids
  from unnest(p_commands) as c  -- sorted by attempt
  where c.code is null;
  return ql.refuse_strangers(
    ql.refuse_others(p_commands, ql.lock_attempts(v_attempt_ids, v_run_ids), 'contended')
  );
end;
$$;

ALTER FUNCTION ql.lock_commands(p_commands ql.command[]) OWNER TO ql_migrator;

--
-- Name: lock_run(text); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.lock_run(p_run_id text) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_held text[];
  v_all_held boolean;
  v_version bigint;
begin
  select array_agg(x.attempt_id), bool_and(x.held)
  into v_held, v_all_held
  from (
    select a.attempt_id, pg_try_advisory_xact_lock(ql.attempt_key(a.attempt_id)) as held
    from (
      select t.attempt_id
      from ql.task_attempt as t
      where t.run_id = p_run_id and t.finished_at_ms is null
      order by t.attempt_id
      offset 0  -- a fence: nothing is locked that this list does not hold
    ) as a
  ) as x;
  if not v_all_held then
    return null;
  end if;

  select r.version
  into v_version
  from ql.run as r
  where r.run_id = p_run_id
  for no key update skip locked;
  if not found then
    if not exists (select from ql.run as r where r.run_id = p_run_id) then
      raise exception 'no run %', p_run_id using errcode = 'QL404';
    end if;
    return null;
  end if;

  -- one that was admitted between the locks 1 and 2 is not ours to move
  if exists (
    select from ql.task_attempt as a
    where a.run_id = p_run_id
      and a.finished_at_ms is null
      and a.attempt_id <> all (coalesce(v_held, '{}'))
  ) then
    return null;
  end if;
  perform from ql.task_attempt as a
  where a.run_id = p_run_id and a.finished_at_ms is null
  order by a.attempt_id
  for no key update;
  perform from ql.attempt_lease as l
  where l.attempt_id = any (v_held)
  order by l.attempt_id
  for no key update;
  perform from ql.step_run as s
  where s.run_id = p_run_id
  order by s.step_key
  for no key update;
  return v_version;
end;
$$;

ALTER FUNCTION ql.lock_run(p_run_id text) OWNER TO ql_migrator;

--
-- Name: lock_runs(text[]); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.lock_runs(p_run_ids text[]) RETURNS text[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_run_id text;
  v_held text[] := array[]::text[];
begin
  begin
    for v_run_id in
      select r.run_id
      from ql.run as r
      where r.run_id = any(p_run_ids)
      order by r.run_id
      for no key update
    loop
      v_held := v_held || v_run_id;
    end loop;
    return v_held;
  exception
    when lock_not_available then
      v_held := array[]::text[];  -- the locks of the block are gone, variables are not
  end;

  for v_run_id in
    select r.run_id
    from ql.run as r
    where r.run_id = any(p_run_ids)
    order by r.run_id
    for no key update skip locked
  loop
    v_held := v_held || v_run_id;
  end loop;
  return v_held;
end;
$$;

ALTER FUNCTION ql.lock_runs(p_run_ids text[]) OWNER TO ql_migrator;

--
-- Name: make_offers(ql.worker_session, text[], text[], text[], bigint, bigint); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.make_offers(p_session ql.worker_session, p_held text[], p_offer_ids text[], p_digests text[], p_now_ms bigint, p_lease_ms bigint) RETURNS text[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_made text[];
begin
  with made as (
    insert into ql.attempt_offer as m (
      run_id, attempt_id, fence, offer_id, worker_id, token_digest, self_fencing, grace_ms,
      offered_at_ms, expires_at_ms
    )
    select
      f.run_id, f.attempt_id, f.fence, p_offer_ids[f.position], p_session.worker_id,
      p_digests[f.position], p_session.self_fencing, p_session.grace_ms, p_now_ms,
      p_now_ms + p_lease_ms
    from (
      select
        a.run_id,
        a.attempt_id,
        row_number() over (order by a.offer_at_ms, a.attempt_id) as position,
        1 + coalesce(l.fence, 0) as fence
      from ql.task_attempt as a
      left join lateral (
        select
          l.status,
          l.fence
        from ql.attempt_lease as l
        where l.attempt_id = a.attempt_id
        offset 0
      ) as l on true
      where a.attempt_id = any(p_held)
        and a.status = 'claimed'
        and l.status is distinct from 'leased'
        and (
          select case when r.cancel_requested_at_ms is null then r.status end
          from ql.run as r
          where r.run_id = a.run_id
        ) = 'running'
        and (
          select case when s.status = 'ready' then s.version end
          from ql.step_run as s
          where s.run_id = a.run_id and s.step_key = a.step_key
        ) = a.epoch
    ) as f
    where f.position <= cardinality(p_offer_ids)
    order by f.attempt_id
    on conflict do nothing  -- another worker has made an offer of this id meanwhile
    returning m.offer_id
  )
  select coalesce(array_agg(m.offer_id), '{}')
  into v_made
  from made as m;
  return v_made;
end;
$$;

ALTER FUNCTION ql.make_offers(p_session ql.worker_session, p_held text[], p_offer_ids text[], p_digests text[], p_now_ms bigint, p_lease_ms bigint) OWNER TO ql_migrator;

--
-- Name: move_attempts(ql.effect[], bigint, bigint); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.move_attempts(p_effects ql.effect[], p_wanted bigint, p_at_ms bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_hit bigint;
begin
  with moved as (
    update ql.task_attempt as a
    set
      status = m.to_status,
      version = a.version + m.effect_count,
      offer_at_ms = null,
      deadline_at_ms = case
        when m.starting_count = 0 then a.deadline_at_ms
        else m.time_ms
          + (select t.timeout_ms from ql.task_revision as t where t.task_id = a.task_id)
      end,
      identity = case
        when m.starting_count = 0 then a.identity
        else (
          select p.identity
          from ql.attempt_lease as l
          join ql.attempt_report as p
            on p.run_id = l.run_id and p.attempt_id = l.attempt_id and p.fence = l.fence
          where l.attempt_id = a.attempt_id and p.run_id = a.run_id and p.kind = 'starting'
        )
      end,
      starting_at_ms = case when m.starting_count > 0 then m.time_ms else a.starting_at_ms end,
      started_at_ms = case when m.running_count > 0 then m.time_ms else a.started_at_ms end,
      finished_at_ms = case when m.to_status not in ('starting', 'running') then m.time_ms end,
      exit_code = case
        when m.to_status not in ('starting', 'running') then (
          select p.exit_code
          from ql.attempt_lease as l
          join ql.attempt_report as p
            on p.run_id = l.run_id and p.attempt_id = l.attempt_id and p.fence = l.fence
          where l.attempt_id = a.attempt_id and p.run_id = a.run_id and p.kind = 'ended'
        )
      end,
      result_code = m.result_code
    from (
      select
        e.run_id,
        e.entity_id,
        count(*) as effect_count,
        min(e.expected_version) as expected_version,
        (array_agg(e.from_status order by e.ordinal))[1] as from_status,
        (array_agg(e.to_status order by e.ordinal desc))[1] as to_status,
        (array_agg(e.result_code order by e.ordinal desc))[1] as result_code,
        count(*) filter (where e.to_status = 'starting') as starting_count,
        count(*) filter (where e.to_status = 'running') as running_count,
        coalesce(p_at_ms, (select r.updated_at_ms from ql.run as r where r.run_id = e.run_id))
          as time_ms
      from unnest(p_effects) as e
      where e.entity = 'attempt' and e.from_status is not null
      group by e.run_id, e.entity_id
    ) as m
    where a.attempt_id = m.entity_id
      and a.run_id = m.run_id
      and a.status = m.from_status
      and a.version = m.expected_version
    returning m.effect_count
  )
  select coalesce(sum(w.effect_count), 0)::bigint
  into v_hit
  from moved as w;
  perform ql.assert_all_hit('attempt', p_wanted, v_hit);
end;
$$;

ALTER FUNCTION ql.move_attempts(p_effects ql.effect[], p_wanted bigint, p_at_ms bigint) OWNER TO ql_migrator;

--
-- Name: move_leases(ql.effect[], bigint, bigint); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.move_leases(p_effects ql.effect[], p_wanted bigint, p_at_ms bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_new bigint;
  v_hit bigint;
begin
  insert into ql.attempt_lease (
    attempt_id, run_id, status, version, fence, offer_id, worker_id, token_digest, self_fencing,
    grace_ms, leased_at_ms, expires_at_ms
  )
  select
    e.entity_id,
    e.run_id,
    e.to_status,
    1,
    1,
    o.offer_id,
    o.worker_id,
    o.token_digest,
    o.self_fencing,
    o.grace_ms,
    w.at_ms,
    o.expires_at_ms
  from unnest(p_effects) as e
  cross join lateral (
    select
      coalesce(p_at_ms, (select r.updated_at_ms from ql.run as r where r.run_id = e.run_id))
        as at_ms
  ) as w
  join ql.attempt_offer as o on o.offer_id = e.input_id and o.attempt_id = e.entity_id
  where e.entity = 'lease' and e.from_status is null
  on conflict do nothing;
  get diagnostics v_new = row_count;

  update ql.attempt_lease as l
  set
    status = e.to_status,
    version = l.version + 1,
    fence = l.fence + 1,
    offer_id = coalesce(o.offer_id, l.offer_id),
    worker_id = coalesce(o.worker_id, l.worker_id),
    token_digest = coalesce(o.token_digest, l.token_digest),
    self_fencing = coalesce(o.self_fencing, l.self_fencing),
    grace_ms = coalesce(o.grace_ms, l.grace_ms),
    expires_at_ms = coalesce(o.expires_at_ms, l.expires_at_ms),
    leased_at_ms = case when e.to_status = 'leased' then w.at_ms else l.leased_at_ms end,
    closed_at_ms = case when e.to_status <> 'leased' then w.at_ms end
  from unnest(p_effects) as e
  cross join lateral (
    select
      coalesce(p_at_ms, (select r.updated_at_ms from ql.run as r where r.run_id = e.run_id))
        as at_ms
  ) as w
  left join ql.attempt_offer as o
    on o.offer_id = e.input_id and o.attempt_id = e.entity_id and e.to_status = 'leased'
  where l.attempt_id = e.entity_id
    and l.status = e.from_status
    and l.version = e.expected_version
    and e.entity = 'lease'
    and e.from_status is not null
    and (e.to_status <> 'leased' or o.offer_id is not null);
  get diagnostics v_hit = row_count;
  perform ql.assert_all_hit('lease', p_wanted, v_new + v_hit);
end;
$$;

ALTER FUNCTION ql.move_leases(p_effects ql.effect[], p_wanted bigint, p_at_ms bigint) OWNER TO ql_migrator;

--
-- Name: move_runs(ql.effect[], bigint); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.move_runs(p_effects ql.effect[], p_wanted bigint, OUT versions bigint[], OUT at_ms bigint) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_now_ms bigint := ql.now_ms();
  v_hit bigint;
begin
  -- every effect of a run starts from `running`; at admission the run has been inserted before
  with moved as (
    update ql.run as r
    set
      status = coalesce(m.to_status, r.status),
      version = r.version + m.effect_count,
      attempt_count = r.attempt_count + m.admitted_count,
      cancel_requested_at_ms = case
        when m.intent_count = 0 then r.cancel_requested_at_ms
        else (select i.requested_at_ms from ql.cancel_intent as i where i.run_id = r.run_id)
      end,
      cancel_reason = case
        when m.intent_count = 0 then r.cancel_reason
        else (select i.reason from ql.cancel_intent as i where i.run_id = r.run_id)
      end,
      result_code = case when m.to_status <> 'running' then m.result_code end,
      finished_at_ms = case
        when m.to_status <> 'running' then greatest(v_now_ms, r.updated_at_ms)
      end,
      updated_at_ms = greatest(v_now_ms, r.updated_at_ms)
    from (
      select
        e.run_id,
        count(*) as effect_count,
        count(*) filter (where e.entity = 'attempt' and e.from_status is null) as admitted_count,
        count(*) filter (where e.event_type = 'run.cancel_requested') as intent_count,
        min(e.expected_version) filter (where e.entity = 'run') as expected_version,
        (array_agg(e.to_status order by e.ordinal desc) filter (where e.entity = 'run'))[1]
          as to_status,
        (array_agg(e.result_code order by e.ordinal desc) filter (where e.entity = 'run'))[1]
          as result_code
      from unnest(p_effects) as e
      group by e.run_id
    ) as m
    where r.run_id = m.run_id
      and r.status = 'running'
      and r.version = coalesce(m.expected_version, r.version)
    returning r.run_id, m.effect_count, r.version - m.effect_count as version, r.updated_at_ms
  )
  select
    coalesce(sum(w.effect_count), 0)::bigint,
    array_agg(w.version order by w.run_id),
    case when min(w.updated_at_ms) = max(w.updated_at_ms) then min(w.updated_at_ms) end
  into v_hit, versions, at_ms
  from moved as w;
  perform ql.assert_all_hit('run', p_wanted, v_hit);
end;
$$;

ALTER FUNCTION ql.move_runs(p_effects ql.effect[], p_wanted bigint, OUT versions bigint[], OUT at_ms bigint) OWNER TO ql_migrator;

--
-- Name: move_steps(ql.effect[], bigint, bigint); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.move_steps(p_effects ql.effect[], p_wanted bigint, p_at_ms bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_hit bigint;
begin
  -- attempt_count: past the start barrier; claim_return_count: an epoch that ended before it
  with moved as (
    update ql.step_run as s
    set
      status = m.to_status,
      version = s.version + m.effect_count,
      attempt_count = s.attempt_count + m.start_count,
      claim_return_count = s.claim_return_count + m.return_count,
      ready_at_ms = case
        when m.to_status = 'ready' then coalesce(s.ready_at_ms, m.time_ms)
        else s.ready_at_ms
      end,
      started_at_ms = case
        when m.to_status = 'ready' then null
        when m.running_count > 0 then m.time_ms
        else s.started_at_ms
      end,
      finished_at_ms = case
        when m.to_status in ('succeeded', 'failed', 'skipped', 'cancelled', 'timed_out')
          then m.time_ms
      end,
      due_at_ms = case when m.to_status = 'retry_wait' then m.due_at_ms end,
      result_code = m.result_code
    from (
      select
        e.run_id,
        e.entity_id,
        count(*) as effect_count,
        min(e.expected_version) as expected_version,
        (array_agg(e.from_status order by e.ordinal))[1] as from_status,
        (array_agg(e.to_status order by e.ordinal desc))[1] as to_status,
        (array_agg(e.result_code order by e.ordinal desc))[1] as result_code,
        (array_agg(e.due_at_ms order by e.ordinal desc))[1] as due_at_ms,
        count(*) filter (where e.to_status = 'running') as running_count,
        count(*) filter (
          where e.from_status = 'ready'
            and e.to_status <> 'ready'
            and e.input_id is not null
            and e.result_code is distinct from 'claim_budget_exhausted'
        ) as start_count,
        count(*) filter (
          where e.from_status = 'ready'
            and (e.to_status = 'ready' or e.result_code = 'claim_budget_exhausted')
        ) as return_count,
        coalesce(p_at_ms, (select r.updated_at_ms from ql.run as r where r.run_id = e.run_id))
          as time_ms
      from unnest(p_effects) as e
      where e.entity = 'step' and e.from_status is not null
      group by e.run_id, e.entity_id
    ) as m
    where s.run_id = m.run_id
      and s.step_key = m.entity_id
      and s.status = m.from_status
      and s.version = m.expected_version
    returning m.effect_count
  )
  select coalesce(sum(w.effect_count), 0)::bigint
  into v_hit
  from moved as w;
  perform ql.assert_all_hit('step', p_wanted, v_hit);
end;
$$;

ALTER FUNCTION ql.move_steps(p_effects ql.effect[], p_wanted bigint, p_at_ms bigint) OWNER TO ql_migrator;

--
-- Name: now_ms(); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.now_ms() RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  return floor(extract(epoch from clock_timestamp()) * 1000)::bigint;
end;
$$;

ALTER FUNCTION ql.now_ms() OWNER TO ql_migrator;

--
-- Name: pick_attempts(text, text, bigint); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.pick_attempts(p_queue text, p_run_id text, p_count bigint, OUT attempt_ids text[], OUT run_ids text[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_sort TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
begin
  select
    coalesce(array_agg(w.attempt_id), '{}'),
    coalesce(array_agg(w.run_id), '{}')
  into attempt_ids, run_ids
  from (
    select
      f.attempt_id,
      f.run_id
    from (
      -- two branches, of which one runs: each has an index of its own. They are not sorted again,
      -- so that no more is read, and locked, than fills the batch
      (
        select a.attempt_id, a.run_id
        from ql.task_attempt as a
        where p_run_id is null
          and a.queue = p_queue
          and a.offer_at_ms is not null
          and (select l.status from ql.attempt_lease as l where l.attempt_id = a.attempt_id)
            is distinct from 'leased'
          and (select r.cancel_requested_at_ms from ql.run as r where r.run_id = a.run_id) is null
        order by a.offer_at_ms, a.attempt_id
        limit 4 * p_count
      )
      union all
      (
        select a.attempt_id, a.run_id
        from ql.task_attempt as a
        where a.run_id = p_run_id
          and a.queue = p_queue
          and a.offer_at_ms is not null
          and (select l.status from ql.attempt_lease as l where l.attempt_id = a.attempt_id)
            is distinct from 'leased'
          and (select r.cancel_requested_at_ms from ql.run as r where r.run_id = a.run_id) is null
        order by a.offer_at_ms, a.attempt_id
        limit 4 * p_count
      )
    ) as f
    where pg_try_advisory_xact_lock(ql.attempt_key(f.attempt_id))
    limit p_count
  ) as w;
end;
$$;

ALTER FUNCTION ql.pick_attempts(p_queue text, p_run_id text, p_count bigint, OUT attempt_ids text[], OUT run_ids text[]) OWNER TO ql_migrator;

--
-- Name: pick_runs(text, bigint, text, integer); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.pick_runs(p_stage text, p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) RETURNS TABLE(run_id text, due_at_ms bigint)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_sort TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
  v_now bigint := ql.now_ms();
  v_run_ids text[];
begin
  if p_limit is null or p_limit not between 1 and 32 then
    raise exception 'a page has 1 to 32 candidates, not %', p_limit using errcode = 'QL400';
  end if;

  v_run_ids := array(
    select a.run_id
    from ql.agenda as a
    cross join lateral (
      select 1
      from ql.run as r
      where r.run_id = a.run_id
      for no key update skip locked
    ) as held
    where a.stage = p_stage
      and a.due_at_ms <= v_now
      and (a.due_at_ms, a.run_id) > (p_after_due_at_ms, p_after_run_id)
    order by a.due_at_ms, a.run_id
    limit p_limit
  );

  return query
  select
    a.run_id,
    a.due_at_ms
  from ql.agenda as a
  where a.run_id = any(v_run_ids)
    and a.stage = p_stage
    and a.due_at_ms <= v_now
    and (a.due_at_ms, a.run_id) > (p_after_due_at_ms, p_after_run_id)
  order by a.due_at_ms, a.run_id;
end;
$$;

ALTER FUNCTION ql.pick_runs(p_stage text, p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) OWNER TO ql_migrator;

--
-- Name: pick_unstarted(bigint, text, integer); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.pick_unstarted(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) RETURNS TABLE(run_id text, due_at_ms bigint)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_sort TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
  v_now bigint := ql.now_ms();
  v_run_ids text[];
begin
  if p_limit is null or p_limit not between 1 and 32 then
    raise exception 'a page has 1 to 32 candidates, not %', p_limit using errcode = 'QL400';
  end if;

  v_run_ids := array(
    select a.run_id
    from ql.agenda as a
    cross join lateral (
      select 1
      from ql.run as r
      where r.run_id = a.run_id
        and r.kind = 'task'
        and not exists (
          select
          from ql.task_attempt as t
          where t.run_id = r.run_id
            and t.finished_at_ms is null
            and (
              t.status <> 'claimed'
              or (select l.status from ql.attempt_lease as l where l.attempt_id = t.attempt_id)
                is not distinct from 'leased'
            )
        )
      for no key update skip locked
    ) as held
    where a.stage = 'cancellation'
      and a.due_at_ms <= v_now
      and (a.due_at_ms, a.run_id) > (p_after_due_at_ms, p_after_run_id)
    order by a.due_at_ms, a.run_id
    limit p_limit
  );

  return query
  select
    a.run_id,
    a.due_at_ms
  from ql.agenda as a
  where a.run_id = any(v_run_ids)
    and a.stage = 'cancellation'
    and a.run_id <> all (array(
      select b.run_id from ql.cancellation_blocked as b where b.run_id = any(v_run_ids)
    ))
  order by a.due_at_ms, a.run_id;
end;
$$;

ALTER FUNCTION ql.pick_unstarted(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) OWNER TO ql_migrator;

--
-- Name: rearm_agenda(text, text, bigint); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.rearm_agenda(p_stage text, p_run_id text, p_due_at_ms bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  if p_due_at_ms is null then
    perform ql.clear_agenda(p_stage, array[p_run_id]);
    return;
  end if;

  insert into ql.agenda as a (run_id, stage, due_at_ms)
  values (p_run_id, p_stage, p_due_at_ms)
  on conflict on constraint agenda_pkey do update
  set due_at_ms = excluded.due_at_ms
  where a.due_at_ms <> excluded.due_at_ms;

  delete from ql.run_fault as f
  where f.run_id = p_run_id and f.stage = p_stage;
end;
$$;

ALTER FUNCTION ql.rearm_agenda(p_stage text, p_run_id text, p_due_at_ms bigint) OWNER TO ql_migrator;

--
-- Name: refuse_others(ql.command[], text[], text); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.refuse_others(p_commands ql.command[], p_attempt_ids text[], p_code text) RETURNS ql.command[]
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  if cardinality(p_attempt_ids)
    = (select count(*) from unnest(p_commands) as c where c.code is null)
  then
    return p_commands;  -- as nearly always
  end if;
  return array(
    select
      row(
        c.position, c.attempt_id, c.run_id, c.fence, c.token_digest, c.identity, c.how,
        c.exit_code, c.output, c.error, c.reason,
        coalesce(c.code, case when not c.attempt_id = any(p_attempt_ids) then p_code end),
        c.worker_id
      )::ql.command
    from unnest(p_commands) as c
    order by c.attempt_id collate "C", c.position
  );
end;
$$;

ALTER FUNCTION ql.refuse_others(p_commands ql.command[], p_attempt_ids text[], p_code text) OWNER TO ql_migrator;

--
-- Name: refuse_strangers(ql.command[]); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.refuse_strangers(p_commands ql.command[]) RETURNS ql.command[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
begin
  if not exists (select from unnest(p_commands) as c where c.worker_id is not null) then
    return p_commands;  -- it came by no ingress
  end if;
  return ql.refuse_others(p_commands, array(
    select c.attempt_id
    from unnest(p_commands) as c
    where c.code is null
      and (
        c.worker_id is null
        or c.worker_id = (
          select o.worker_id
          from ql.attempt_offer as o
          where o.run_id = c.run_id and o.attempt_id = c.attempt_id and o.fence = c.fence
        )
      )
  ), 'QL410');
end;
$$;

ALTER FUNCTION ql.refuse_strangers(p_commands ql.command[]) OWNER TO ql_migrator;

--
-- Name: retry_runs(text[]); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.retry_runs(p_run_ids text[]) RETURNS bigint[]
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_now bigint := ql.now_ms();
  v_effects ql.effect[];
  v_later ql.effect[];
begin
  select
    coalesce(array_agg(row(e.*)::ql.effect) filter (where b.is_over is true), '{}'),
    coalesce(array_agg(row(e.*)::ql.effect) filter (where b.is_over is not true), '{}')
  into v_effects, v_later
  from unnest(p_run_ids) as i (run_id)
  cross join lateral (
    select * from ql.retry_effect as v where v.run_id = i.run_id offset 0
  ) as e
  cross join lateral (
    select
      e.due_at_ms <= v_now
      or e.due_at_ms > v_now + (
        select w.longest_ms
        from ql.retry_longest as w
        where w.run_id = e.run_id and w.step_key = e.entity_id
      ) as is_over
  ) as b;

  perform ql.apply_effects(v_effects, 'retry');
  perform
    ql.rearm_agenda(
      'retry',
      r.run_id,
      (select min(e.due_at_ms) from unnest(v_later) as e where e.run_id = r.run_id)
    )
  from unnest(p_run_ids) as r (run_id);
  return ql.effect_counts(p_run_ids, v_effects);
end;
$$;

ALTER FUNCTION ql.retry_runs(p_run_ids text[]) OWNER TO ql_migrator;

--
-- Name: return_claim(text, text); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.return_claim(p_package_key text, p_trigger_key text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  update ql.trigger_schedule as s
  set
    state_version = s.state_version + 1,
    claim_owner = null,
    claim_token = null,
    claim_expires_at_ms = null,
    claimed_at_ms = null,
    seen_at_ms = null
  where s.package_key = p_package_key and s.trigger_key = p_trigger_key;
  perform ql.set_due(p_package_key, p_trigger_key);
end;
$$;

ALTER FUNCTION ql.return_claim(p_package_key text, p_trigger_key text) OWNER TO ql_migrator;

--
-- Name: runs_of(ql.command[]); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.runs_of(p_commands ql.command[]) RETURNS text[]
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  return array(select distinct c.run_id from unnest(p_commands) as c where c.code is null);
end;
$$;

ALTER FUNCTION ql.runs_of(p_commands ql.command[]) OWNER TO ql_migrator;

--
-- Name: set_due(text, text); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.set_due(p_package_key text, p_trigger_key text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  update ql.trigger_schedule as s
  set
    state_version = s.state_version + 1,
    claim_owner = null,
    claim_token = null,
    claim_expires_at_ms = null,
    claimed_at_ms = null,
    seen_at_ms = null
  from ql.trigger as t
  where s.package_key = p_package_key
    and s.trigger_key = coalesce(p_trigger_key, s.trigger_key)
    and s.claim_token is not null
    and t.package_key = s.package_key
    and t.trigger_key = s.trigger_key
    and t.state <> 'active';

  update ql.trigger_schedule as s
  set due_at_ms = d.due_at_ms
  from ql.schedule_due as d
  where s.package_key = p_package_key
    and s.trigger_key = coalesce(p_trigger_key, s.trigger_key)
    and d.package_key = s.package_key
    and d.trigger_key = s.trigger_key
    and d.due_at_ms is distinct from s.due_at_ms;
end;
$$;

ALTER FUNCTION ql.set_due(p_package_key text, p_trigger_key text) OWNER TO ql_migrator;

--
-- Name: set_trigger(text, text, text); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.set_trigger(p_package_key text, p_trigger_key text, p_state text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  perform ql.hold_triggers(p_package_key, p_trigger_key);
  perform ql.find_trigger(p_package_key, p_trigger_key);

  update ql.trigger as t
  set state = p_state, updated_at_ms = ql.now_ms()
  where t.package_key = p_package_key and t.trigger_key = p_trigger_key and t.state <> p_state;
end;
$$;

ALTER FUNCTION ql.set_trigger(p_package_key text, p_trigger_key text, p_state text) OWNER TO ql_migrator;

--
-- Name: set_triggers(text, bigint, jsonb); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.set_triggers(p_package_key text, p_generation bigint, p_triggers jsonb) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
  v_now_ms bigint := ql.now_ms();
begin
  perform ql.hold_triggers(p_package_key, null);
  delete from ql.trigger_fault as f
  where f.package_key = p_package_key;

  update ql.trigger_schedule as s
  set
    next_fire_at_ms = null,
    state_version = s.state_version + 1,
    claim_owner = null,
    claim_token = null,
    claim_expires_at_ms = null,
    claimed_at_ms = null,
    seen_at_ms = null,
    updated_at_ms = v_now_ms
  from ql.trigger as t
  where s.package_key = p_package_key
    and t.package_key = p_package_key
    and t.trigger_key = s.trigger_key
    and p_triggers -> t.trigger_key is not null
    and (
      t.state = 'withdrawn'
      or t.cron <> p_triggers -> t.trigger_key ->> 'cron'
      or t.tz <> p_triggers -> t.trigger_key ->> 'tz'
    );

  insert into ql.trigger as t (
    package_key, trigger_key, generation, state, cron, tz, kind, target_key, misfire, overlap,
    updated_at_ms
  )
  select
    p_package_key,
    j.key,
    p_generation,
    'active',
    j.value ->> 'cron',
    j.value ->> 'tz',
    j.value ->> 'kind',
    j.value ->> 'target',
    j.value ->> 'misfire',
    j.value ->> 'overlap',
    v_now_ms
  from jsonb_each(p_triggers) as j
  on conflict on constraint trigger_pkey do update
  set
    generation = excluded.generation,
    state = case t.state when 'paused' then 'paused' else 'active' end,
    cron = excluded.cron,
    tz = excluded.tz,
    kind = excluded.kind,
    target_key = excluded.target_key,
    misfire = excluded.misfire,
    overlap = excluded.overlap,
    updated_at_ms = excluded.updated_at_ms;

  insert into ql.trigger_schedule (
    package_key, trigger_key, state_version, claim_version, updated_at_ms
  )
  select
    p_package_key,
    j.key,
    1,
    0,
    v_now_ms
  from jsonb_each(p_triggers) as j
  on conflict do nothing;

  update ql.trigger as t
  set
    state = 'withdrawn',
    updated_at_ms = v_now_ms
  where t.package_key = p_package_key
    and t.state <> 'withdrawn'
    and p_triggers -> t.trigger_key is null;
  perform ql.set_due(p_package_key, null);
end;
$$;

ALTER FUNCTION ql.set_triggers(p_package_key text, p_generation bigint, p_triggers jsonb) OWNER TO ql_migrator;

--
-- Name: sha256_hex(text); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.sha256_hex(p_text text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  return encode(sha256(convert_to(p_text, 'UTF8')), 'hex');
end;
$$;

ALTER FUNCTION ql.sha256_hex(p_text text) OWNER TO ql_migrator;

--
-- Name: take_over_outputs(text); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.take_over_outputs(p_run_id text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  insert into ql.step_output (run_id, step_key, attempt_id, output)
  select
    s.run_id,
    s.step_key,
    o.attempt_id,
    o.output
  from ql.run as r
  join ql.step_run as s on s.run_id = r.run_id and s.result_code = 'taken_over'
  join ql.step_output as o on o.run_id = r.retry_of_run_id and o.step_key = s.step_key
  where r.run_id = p_run_id;
end;
$$;

ALTER FUNCTION ql.take_over_outputs(p_run_id text) OWNER TO ql_migrator;

--
-- Name: wait_run(text); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.wait_run(p_run_id text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
  perform
  from ql.run as r
  where r.run_id = p_run_id
  for no key update;
  if not found then
    raise exception 'no run %', p_run_id using errcode = 'QL404';
  end if;
end;
$$;

ALTER FUNCTION ql.wait_run(p_run_id text) OWNER TO ql_migrator;

--
-- Name: work_waits(text, text, jsonb); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.work_waits(p_queue text, p_run_id text, p_offers jsonb) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
begin
  return exists (
    select
    from jsonb_array_elements(p_offers) as o (value)
    where exists (
      select from ql.attempt_offer as m where m.offer_id = o.value ->> 'offer_id'
    )
  )
  or case
    when p_run_id is null then exists (
      select
      from ql.task_attempt as a
      where a.queue = p_queue and a.offer_at_ms is not null
    )
    else exists (
      select
      from ql.task_attempt as a
      where a.run_id = p_run_id and a.queue = p_queue and a.offer_at_ms is not null
    )
  end;
end;
$$;

ALTER FUNCTION ql.work_waits(p_queue text, p_run_id text, p_offers jsonb) OWNER TO ql_migrator;

--
-- Name: write_events(ql.effect[], bigint[], bigint); Type: FUNCTION; Schema: ql; Owner: ql_migrator
--

CREATE FUNCTION ql.write_events(p_effects ql.effect[], p_versions bigint[], p_at_ms bigint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
begin
  insert into ql.run_event (
    run_id, sequence, type, entity, entity_id, from_status, to_status, entity_version, result_code,
    input_id, created_at_ms
  )
  select
    x.run_id,
    x.sequence,
    x.event_type,
    x.entity,
    x.entity_id,
    x.from_status,
    x.to_status,
    case x.entity when 'run' then x.sequence else x.expected_version + 1 end,
    x.result_code,
    x.input_id,
    coalesce(p_at_ms, (select r.updated_at_ms from ql.run as r where r.run_id = x.run_id))
  from (
    select
      e.*,
      p_versions[dense_rank() over (order by e.run_id)]
        + row_number() over (partition by e.run_id order by e.ordinal) as sequence
    from unnest(p_effects) as e
  ) as x;
end;
$$;

ALTER FUNCTION ql.write_events(p_effects ql.effect[], p_versions bigint[], p_at_ms bigint) OWNER TO ql_migrator;

--
-- Name: publish_package(text, text, text); Type: FUNCTION; Schema: ql_admission; Owner: ql_authority
--

CREATE FUNCTION ql_admission.publish_package(p_package_key text, p_manifest text, p_base_dir text) RETURNS TABLE(package_key text, generation bigint, digest text, outcome text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET lock_timeout TO '1s'
    AS $$
#variable_conflict use_column
declare
  v_now_ms bigint;
  v_model jsonb;
  v_manifest text;
  v_digest text;
  v_generation bigint;
  v_constraint text;
begin
  perform ql.assert_read_committed();
  if coalesce(length(p_package_key), 0) not between 1 and 63
    or p_base_dir is null
    or not coalesce(ql.is_object(p_manifest), false)
  then
    raise exception 'a package has a key, a manifest (a JSON object) and a folder'
      using errcode = 'QL400';
  end if;
  v_model := p_manifest::jsonb;
  v_manifest := ql.canonical(v_model);
  v_digest := ql.sha256_hex(v_manifest);

  insert into ql.package (package_key, generation, base_dir, updated_at_ms)
  values (p_package_key, 0, p_base_dir, ql.now_ms())
  on conflict do nothing;
  perform from ql.package as p where p.package_key = p_package_key for no key update;
  perform from ql.package_generation as g
  where g.package_key = p_package_key and g.state = 'active'
  for update;
  v_now_ms := ql.now_ms();

  select g.generation
  into v_generation
  from ql.package_generation as g
  where g.package_key = p_package_key and g.state = 'active' and g.digest = v_digest;
  if found then
    update ql.package as p
    set
      base_dir = p_base_dir,
      updated_at_ms = v_now_ms
    where p.package_key = p_package_key and p.base_dir <> p_base_dir;
    return query select p_package_key, v_generation, v_digest, 'existing';
    return;
  end if;

  update ql.package as p
  set
    generation = p.generation + 1,
    base_dir = p_base_dir,
    updated_at_ms = v_now_ms
  where p.package_key = p_package_key
  returning p.generation into v_generation;
  update ql.package_generation as g
  set
    state = 'superseded',
    ended_at_ms = v_now_ms
  where g.package_key = p_package_key and g.state = 'active';
  begin
    perform ql.check_manifest(p_package_key, v_model);
    insert into ql.package_generation (
      package_key, generation, digest, manifest, published_at_ms, state
    )
    values (p_package_key, v_generation, v_digest, v_manifest, v_now_ms, 'active');
    perform ql.add_revisions(p_package_key, v_generation, v_model);
    perform ql.deepen_ancestors(
      array(
        select w.workflow_id
        from ql.workflow_revision as w
        where w.package_key = p_package_key and w.generation = v_generation
      )
    );
    perform ql.set_triggers(
      p_package_key, v_generation, coalesce(v_model -> 'triggers', '{}')
    );
  exception
    when data_exception or not_null_violation or check_violation then
      get stacked diagnostics v_constraint = constraint_name;
      raise exception 'the manifest is refused: %', coalesce(nullif(v_constraint, ''), sqlerrm)
        using errcode = 'QL400';
  end;
  return query select p_package_key, v_generation, v_digest, 'published';
end;
$$;

ALTER FUNCTION ql_admission.publish_package(p_package_key text, p_manifest text, p_base_dir text) OWNER TO ql_authority;

--
-- Name: request_cancel(text, text, text); Type: FUNCTION; Schema: ql_admission; Owner: ql_authority
--

CREATE FUNCTION ql_admission.request_cancel(p_run_id text, p_reason text, p_actor text) RETURNS TABLE(run_id text, outcome text, status text, cancel_reason text, cancel_requested_at_ms bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '1s'
    AS $$
begin
  perform ql.assert_read_committed();
  -- the timeout is the deadline stage's own reason
  if coalesce(p_reason, '') not in ('user', 'policy', 'shutdown', 'reconcile')
    or coalesce(octet_length(p_actor), 0) not between 1 and 256
  then
    raise exception 'a reason is user, policy, shutdown or reconcile, and an actor has a name'
      using errcode = 'QL400';
  end if;
  perform ql.wait_run(p_run_id);
  perform ql.intend(array[p_run_id], p_reason, p_actor);

  return query
  select
    r.run_id,
    case
      when i.run_id is null then 'already_terminal'
      when i.reason = p_reason and i.actor = p_actor then 'accepted'
      else 'already_requested'
    end,
    r.status,
    r.cancel_reason,
    r.cancel_requested_at_ms
  from ql.run as r
  left join ql.cancel_intent as i on i.run_id = r.run_id
  where r.run_id = p_run_id;
end;
$$;

ALTER FUNCTION ql_admission.request_cancel(p_run_id text, p_reason text, p_actor text) OWNER TO ql_authority;

--
-- Name: start_retry(text, text); Type: FUNCTION; Schema: ql_admission; Owner: ql_authority
--

CREATE FUNCTION ql_admission.start_retry(p_run_id text, p_run_key text) RETURNS TABLE(run_id text, outcome text, status text, generation bigint, taken_over_count bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '1s'
    AS $$
#variable_conflict use_column
declare
  v_run_id text := ql.derived_id('ru', 'retry', p_run_id);
  v_outcome text := 'existing';
  v_old record;
begin
  perform ql.assert_read_committed();
  if length(p_run_key) not between 1 and 200 then
    raise exception 'a run key has 1 to 200 characters' using errcode = 'QL400';
  end if;

  loop
    -- without a key the answer needs nothing of the retried run, which may be purged by now
    if p_run_key is not null or not exists (select from ql.run as r where r.run_id = v_run_id) then
      perform ql.wait_run(p_run_id);  -- what is copied cannot be purged meanwhile
      select
        r.package_key,
        r.kind,
        r.target_key,
        case r.status
          when 'running' then 'is still open: cancel it first'
          when 'succeeded' then 'has succeeded: there is nothing to retry'
        end as fault,
        i.input
      into v_old
      from ql.run as r
      join ql.run_input as i on i.run_id = r.run_id
      where r.run_id = p_run_id;
      if v_old.fault is not null then
        raise exception 'run % %', p_run_id, v_old.fault using errcode = 'QL400';
      end if;
      if p_run_key is not null then
        v_run_id := ql.derived_id(
          'ru', v_old.package_key, v_old.kind, v_old.target_key, p_run_key
        );
      end if;
      if not exists (select from ql.run as r where r.run_id = v_run_id)
        and ql.admit_run(
          v_run_id,
          v_old.package_key,
          v_old.kind,
          v_old.target_key,
          coalesce(p_run_key, ''),
          v_old.input,
          p_run_id,
          null,
          null
        )
      then
        v_outcome := 'created';
        perform ql.take_over_outputs(v_run_id);
        -- marked or not: the retried one has ended; its own row is what a retry of this one finds
        insert into ql.trigger_run (run_id, package_key, trigger_key, open_at_ms)
        select
          v_run_id,
          m.package_key,
          m.trigger_key,
          ql.now_ms()
        from ql.trigger_run as m
        where m.run_id = p_run_id;
      end if;
    end if;

    return query
    select
      r.run_id,
      case when r.retry_of_run_id = p_run_id then v_outcome else 'conflict' end,
      r.status,
      r.generation,
      (
        select count(*)
        from ql.step_run as s
        where s.run_id = r.run_id and s.result_code = 'taken_over'
      )
    from ql.run as r
    where r.run_id = v_run_id;
    exit when found;  -- else it was purged before we looked
  end loop;
end;
$$;

ALTER FUNCTION ql_admission.start_retry(p_run_id text, p_run_key text) OWNER TO ql_authority;

--
-- Name: start_run(text, text, text, text, text); Type: FUNCTION; Schema: ql_admission; Owner: ql_authority
--

CREATE FUNCTION ql_admission.start_run(p_package_key text, p_kind text, p_target_key text, p_run_key text, p_input text) RETURNS TABLE(run_id text, outcome text, status text, generation bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '1s'
    AS $$
#variable_conflict use_column
declare
  v_run_id text;
  v_digest text;
  v_outcome text := 'existing';
begin
  perform ql.assert_read_committed();
  perform ql.check_start(p_package_key, p_kind, p_target_key, p_run_key, p_input);
  v_run_id := ql.derived_id('ru', p_package_key, p_kind, p_target_key, p_run_key);
  v_digest := ql.sha256_hex(p_input);

  loop
    return query
    select
      r.run_id,
      case
        when r.input_digest = v_digest and r.retry_of_run_id is null then v_outcome
        else 'conflict'
      end,
      r.status,
      r.generation
    from ql.run as r
    where r.run_id = v_run_id;
    exit when found;
    -- false: someone else has just started it, and may purge it before we look
    if ql.admit_run(
      v_run_id, p_package_key, p_kind, p_target_key, p_run_key, p_input, null, null, null
    ) then
      v_outcome := 'created';
    end if;
  end loop;
end;
$$;

ALTER FUNCTION ql_admission.start_run(p_package_key text, p_kind text, p_target_key text, p_run_key text, p_input text) OWNER TO ql_authority;

--
-- Name: withdraw_package(text); Type: FUNCTION; Schema: ql_admission; Owner: ql_authority
--

CREATE FUNCTION ql_admission.withdraw_package(p_package_key text) RETURNS TABLE(package_key text, generation bigint, outcome text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET lock_timeout TO '1s'
    AS $$
#variable_conflict use_column
declare
  v_now_ms bigint;
  v_newest bigint;
  v_generation bigint;
begin
  perform ql.assert_read_committed();
  select p.generation
  into v_newest
  from ql.package as p
  where p.package_key = p_package_key
  for no key update;
  if not found then
    raise exception 'no package %', p_package_key using errcode = 'QL404';
  end if;
  perform from ql.package_generation as g
  where g.package_key = p_package_key and g.state = 'active'
  for update;
  v_now_ms := ql.now_ms();

  update ql.package_generation as g
  set
    state = 'withdrawn',
    ended_at_ms = v_now_ms
  where g.package_key = p_package_key and g.state = 'active'
  returning g.generation into v_generation;
  if not found then
    return query select p_package_key, v_newest, 'existing';
    return;
  end if;
  perform ql.hold_triggers(p_package_key, null);
  update ql.trigger as t
  set
    state = 'withdrawn',
    updated_at_ms = v_now_ms
  where t.package_key = p_package_key and t.state <> 'withdrawn';
  delete from ql.trigger_fault as f
  where f.package_key = p_package_key;
  perform ql.set_due(p_package_key, null);
  return query select p_package_key, v_generation, 'withdrawn';
end;
$$;

ALTER FUNCTION ql_admission.withdraw_package(p_package_key text) OWNER TO ql_authority;

--
-- Name: declare_stopped(text, text, text, text); Type: FUNCTION; Schema: ql_operator; Owner: ql_authority
--

CREATE FUNCTION ql_operator.declare_stopped(p_attempt_id text, p_reason text, p_actor text, p_follow text) RETURNS TABLE(attempt_id text, outcome text, code text, status text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '1s'
    AS $$
declare
  v_run_id text;
  v_outcome text := 'contended';
begin
  perform ql.assert_read_committed();
  if coalesce(octet_length(p_reason), 0) not between 1 and 2048
    or coalesce(octet_length(p_actor), 0) not between 1 and 256
    or p_follow not in ('retry', 'fail')
  then
    raise exception 'a declaration has a reason, an actor, and is followed by retry, fail or null'
      using errcode = 'QL400';
  end if;
  v_run_id := (select a.run_id from ql.task_attempt as a where a.attempt_id = p_attempt_id);
  if v_run_id is null then
    raise exception 'no attempt %', p_attempt_id using errcode = 'QL404';
  end if;

  if cardinality(ql.lock_attempts(array[p_attempt_id], array[v_run_id])) = 1 then
    insert into ql.attestation (
      run_id, attempt_id, evidence, follow, reason, actor, attested_at_ms
    )
    select a.run_id, a.attempt_id, 'declared', p_follow, p_reason, p_actor, ql.now_ms()
    from ql.task_attempt as a
    where a.attempt_id = p_attempt_id and a.status in ('starting', 'running')
    on conflict do nothing;
    perform ql.apply_attested(array[p_attempt_id]);

    v_outcome := case
      when exists (
        select
        from ql.attestation as n
        where n.run_id = (
            select a.run_id from ql.task_attempt as a where a.attempt_id = p_attempt_id
          )
          and n.attempt_id = p_attempt_id
          and n.evidence = 'declared'
          and n.reason = p_reason
          and n.actor = p_actor
          and n.follow is not distinct from p_follow
      ) then 'applied'
      else 'blocked'
    end;
  end if;

  return query
  select
    a.attempt_id,
    v_outcome,
    case when v_outcome = 'blocked' then 'QL410' end,
    case when v_outcome = 'applied' then a.status end
  from ql.task_attempt as a
  where a.attempt_id = p_attempt_id;
end;
$$;

ALTER FUNCTION ql_operator.declare_stopped(p_attempt_id text, p_reason text, p_actor text, p_follow text) OWNER TO ql_authority;

--
-- Name: drain_worker(text); Type: FUNCTION; Schema: ql_operator; Owner: ql_authority
--

CREATE FUNCTION ql_operator.drain_worker(p_worker_id text) RETURNS TABLE(worker_id text, status text, outcome text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET lock_timeout TO '1s'
    AS $$
begin
  perform ql.assert_read_committed();
  return query select * from ql.drain_session(p_worker_id, 1);
end;
$$;

ALTER FUNCTION ql_operator.drain_worker(p_worker_id text) OWNER TO ql_authority;

--
-- Name: fire_trigger(text, text, text); Type: FUNCTION; Schema: ql_operator; Owner: ql_authority
--

CREATE FUNCTION ql_operator.fire_trigger(p_package_key text, p_trigger_key text, p_run_key text) RETURNS TABLE(run_id text, outcome text, status text, generation bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET lock_timeout TO '1s'
    AS $$
#variable_conflict use_column
declare
  v_run_id text := ql.derived_id(
    'ru', p_package_key, 'trigger', p_trigger_key, 'fire', p_run_key
  );
  v_outcome text := 'existing';
begin
  perform ql.assert_read_committed();
  if p_package_key is null
    or p_trigger_key is null
    or coalesce(length(p_run_key), 0) not between 1 and 200
  then
    raise exception 'package, trigger and a run key of 1 to 200 characters are needed'
      using errcode = 'QL400';
  end if;

  if not exists (select from ql.run as r where r.run_id = v_run_id) then
    perform
    from ql.package_generation as g
    where g.package_key = p_package_key and g.state = 'active'
    for share;
    perform
    from ql.trigger_schedule as s
    where s.package_key = p_package_key and s.trigger_key = p_trigger_key
    for no key update;
    perform ql.find_trigger(p_package_key, p_trigger_key);
    if ql.admit_occurrence(v_run_id, p_package_key, p_trigger_key, null) then
      v_outcome := 'created';
    end if;
  end if;
  return query
  select
    r.run_id,
    v_outcome,
    r.status,
    r.generation
  from ql.run as r
  where r.run_id = v_run_id;
end;
$$;

ALTER FUNCTION ql_operator.fire_trigger(p_package_key text, p_trigger_key text, p_run_key text) OWNER TO ql_authority;

--
-- Name: pause_trigger(text, text); Type: FUNCTION; Schema: ql_operator; Owner: ql_authority
--

CREATE FUNCTION ql_operator.pause_trigger(p_package_key text, p_trigger_key text) RETURNS TABLE(trigger_key text, state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET lock_timeout TO '1s'
    AS $$
begin
  perform ql.assert_read_committed();
  perform ql.set_trigger(p_package_key, p_trigger_key, 'paused');
  perform ql.set_due(p_package_key, p_trigger_key);
  return query select p_trigger_key, 'paused';
end;
$$;

ALTER FUNCTION ql_operator.pause_trigger(p_package_key text, p_trigger_key text) OWNER TO ql_authority;

--
-- Name: release_fault(text, text); Type: FUNCTION; Schema: ql_operator; Owner: ql_authority
--

CREATE FUNCTION ql_operator.release_fault(p_run_id text, p_stage text) RETURNS TABLE(run_id text, outcome text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET lock_timeout TO '1s'
    AS $$
declare
  v_outcome text := 'settled';
begin
  perform ql.assert_read_committed();
  perform ql.wait_run(p_run_id);

  delete from ql.run_fault as f
  where f.run_id = p_run_id and f.stage = p_stage;
  if found then
    v_outcome := 'applied';
    update ql.agenda as a
    set due_at_ms = least(a.due_at_ms, ql.now_ms())
    where a.run_id = p_run_id and a.stage = p_stage;
  end if;
  -- only a fault excuses a row that stands later than its work was due
  if found and p_stage in ('deadline', 'retry', 'expiry') then
    update ql.agenda as a set due_at_ms = m.due_at_ms
    from ql.agenda_missing as m
    where (a.run_id, a.stage) = (p_run_id, p_stage) and (m.run_id, m.stage) = (p_run_id, p_stage);
  end if;
  return query select p_run_id, v_outcome;
end;
$$;

ALTER FUNCTION ql_operator.release_fault(p_run_id text, p_stage text) OWNER TO ql_authority;

--
-- Name: resume_trigger(text, text); Type: FUNCTION; Schema: ql_operator; Owner: ql_authority
--

CREATE FUNCTION ql_operator.resume_trigger(p_package_key text, p_trigger_key text) RETURNS TABLE(trigger_key text, state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET lock_timeout TO '1s'
    AS $$
begin
  perform ql.assert_read_committed();
  perform ql.set_trigger(p_package_key, p_trigger_key, 'active');
  delete from ql.trigger_fault as f
  where f.package_key = p_package_key and f.trigger_key = p_trigger_key;
  perform ql.set_due(p_package_key, p_trigger_key);
  return query select p_trigger_key, 'active';
end;
$$;

ALTER FUNCTION ql_operator.resume_trigger(p_package_key text, p_trigger_key text) OWNER TO ql_authority;

--
-- Name: undrain_worker(text); Type: FUNCTION; Schema: ql_operator; Owner: ql_authority
--

CREATE FUNCTION ql_operator.undrain_worker(p_worker_id text) RETURNS TABLE(worker_id text, status text, outcome text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET lock_timeout TO '1s'
    AS $$
begin
  perform ql.assert_read_committed();
  return query select * from ql.drain_session(p_worker_id, 0);
end;
$$;

ALTER FUNCTION ql_operator.undrain_worker(p_worker_id text) OWNER TO ql_authority;

--
-- Name: purge_audit(bigint, integer); Type: FUNCTION; Schema: ql_retention; Owner: ql_retention
--

CREATE FUNCTION ql_retention.purge_audit(p_before_ms bigint, p_limit integer) RETURNS TABLE(purged bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET lock_timeout TO '1s'
    AS $$
begin
  perform ql.assert_read_committed();
  if p_before_ms is null then
    raise exception 'a time is needed' using errcode = 'QL400';
  end if;
  if p_limit is null or p_limit not between 1 and 4096 then
    raise exception 'a page has 1 to 4096 rows, not %', p_limit using errcode = 'QL400';
  end if;
  return query
  with gone as (
    delete from ql.worker_audit as u
    where (u.minute_ms, u.worker_id, u.route, u.certificate) in (
      select
        o.minute_ms,
        o.worker_id,
        o.route,
        o.certificate
      from ql.worker_audit as o
      where o.minute_ms < p_before_ms
        and exists (select from ql.worker_audit as n where n.minute_ms > o.minute_ms)
      order by o.minute_ms, o.worker_id, o.route, o.certificate
      limit p_limit
    )
    returning u.minute_ms
  )
  select count(*)
  from gone;
end;
$$;

ALTER FUNCTION ql_retention.purge_audit(p_before_ms bigint, p_limit integer) OWNER TO ql_retention;

--
-- Name: purge_runs(bigint, integer); Type: FUNCTION; Schema: ql_retention; Owner: ql_retention
--

CREATE FUNCTION ql_retention.purge_runs(p_before_ms bigint, p_limit integer) RETURNS TABLE(run_id text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_sort TO 'off'
    SET lock_timeout TO '1s'
    AS $$
declare
  v_held text[];
  v_run_ids text[];
begin
  perform ql.assert_read_committed();
  if p_before_ms is null then
    raise exception 'a time is needed' using errcode = 'QL400';
  end if;
  if p_limit is null or p_limit not between 1 and 32 then
    raise exception 'a page has 1 to 32 runs, not %', p_limit using errcode = 'QL400';
  end if;

  v_held := array(
    select r.run_id
    from ql.run as r
    where r.finished_at_ms < p_before_ms
    order by r.finished_at_ms, r.run_id
    limit p_limit
    for update skip locked
  );
  v_run_ids := array(
    select u.run_id
    from unnest(v_held) with ordinality as u (run_id, place)
    cross join lateral (
      select 1
      from ql.retention_due as d
      where d.run_id = u.run_id and d.finished_at_ms < p_before_ms
      offset 0
    ) as due
    order by u.place
  );
  if cardinality(v_run_ids) = 0 then
    return;  -- a plan for no run at all may walk through an index
  end if;

  delete from ql.run_event as e where e.run_id = any(v_run_ids);
  delete from ql.refused_report as f where f.run_id = any(v_run_ids);
  delete from ql.attestation as n where n.run_id = any(v_run_ids);
  delete from ql.attempt_report as p where p.run_id = any(v_run_ids);
  delete from ql.attempt_offer as o where o.run_id = any(v_run_ids);
  delete from ql.cancel_intent as i where i.run_id = any(v_run_ids);
  delete from ql.attempt_lease as l
  where l.attempt_id = any(array(
    select a.attempt_id from ql.task_attempt as a where a.run_id = any(v_run_ids)
  ));
  delete from ql.task_attempt as a where a.run_id = any(v_run_ids);
  delete from ql.step_output as o where o.run_id = any(v_run_ids);
  delete from ql.step_run as s where s.run_id = any(v_run_ids);
  delete from ql.run_input as i where i.run_id = any(v_run_ids);
  delete from ql.agenda as g where g.run_id = any(v_run_ids);
  delete from ql.run_fault as f where f.run_id = any(v_run_ids);
  delete from ql.trigger_run as m where m.run_id = any(v_run_ids);
  delete from ql.run as r where r.run_id = any(v_run_ids);

  return query
  select u.run_id
  from unnest(v_run_ids) with ordinality as u (run_id, place)
  order by u.place;
end;
$$;

ALTER FUNCTION ql_retention.purge_runs(p_before_ms bigint, p_limit integer) OWNER TO ql_retention;

--
-- Name: admit_tasks(text); Type: FUNCTION; Schema: ql_scheduler; Owner: ql_authority
--

CREATE FUNCTION ql_scheduler.admit_tasks(p_run_id text) RETURNS TABLE(run_id text, outcome text, effects bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '1s'
    AS $$
declare
  v_counts bigint[];
begin
  perform ql.assert_read_committed();
  if not ql.hold_run(p_run_id) then
    return query select p_run_id, 'contended', 0::bigint;
    return;
  end if;

  v_counts := ql.admit_ready_steps(array[p_run_id]);
  return query
  select p_run_id, case when v_counts[1] > 0 then 'applied' else 'settled' end, v_counts[1];
end;
$$;

ALTER FUNCTION ql_scheduler.admit_tasks(p_run_id text) OWNER TO ql_authority;

--
-- Name: advance_frontier(text); Type: FUNCTION; Schema: ql_scheduler; Owner: ql_authority
--

CREATE FUNCTION ql_scheduler.advance_frontier(p_run_id text) RETURNS TABLE(run_id text, outcome text, effects bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '1s'
    AS $$
declare
  v_counts bigint[];
begin
  perform ql.assert_read_committed();
  if not ql.hold_run(p_run_id) then
    return query select p_run_id, 'contended', 0::bigint;
    return;
  end if;

  v_counts := ql.advance_frontiers(array[p_run_id]);
  return query
  select p_run_id, case when v_counts[1] > 0 then 'applied' else 'settled' end, v_counts[1];
end;
$$;

ALTER FUNCTION ql_scheduler.advance_frontier(p_run_id text) OWNER TO ql_authority;

--
-- Name: claim_schedule(text, text, integer); Type: FUNCTION; Schema: ql_scheduler; Owner: ql_authority
--

CREATE FUNCTION ql_scheduler.claim_schedule(p_owner text, p_token text, p_limit integer) RETURNS TABLE(package_key text, trigger_key text, cron text, tz text, next_fire_at_ms bigint, since_ms bigint, state_version bigint, claim_version bigint, observed_at_ms bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '1s'
    AS $$
#variable_conflict use_column
declare
  v_now bigint;
begin
  perform ql.assert_read_committed();
  perform ql.check_claim(p_owner, p_token);
  if p_limit is null or p_limit not between 1 and 32 then
    raise exception 'a page has 1 to 32 candidates, not %', p_limit using errcode = 'QL400';
  end if;

  return query
  select
    s.package_key,
    s.trigger_key,
    t.cron,
    t.tz,
    s.next_fire_at_ms,
    s.updated_at_ms,
    s.state_version,
    s.claim_version,
    s.claimed_at_ms
  from ql.trigger_schedule as s
  join ql.trigger as t on t.package_key = s.package_key and t.trigger_key = s.trigger_key
  where s.claim_token = p_token and s.claim_owner = p_owner
  order by coalesce(s.next_fire_at_ms, 0), s.package_key, s.trigger_key;
  if found then
    return;
  end if;

  v_now := ql.now_ms();
  return query
  with picked as materialized (
    select
      d.package_key,
      d.trigger_key,
      d.due_at_ms
    from ql.trigger_schedule as d
    where d.due_at_ms <= v_now
    order by d.due_at_ms, d.package_key, d.trigger_key
    limit p_limit
    for no key update skip locked
  ),
  claimed as (
    update ql.trigger_schedule as s
    set
      state_version = s.state_version + 1,
      claim_owner = p_owner,
      claim_token = p_token,
      claim_version = s.claim_version + 1,
      claim_expires_at_ms = v_now + 30000,
      claimed_at_ms = v_now,
      -- who was in time and died does not make it late: another takes over as soon as it may
      seen_at_ms = case
        when s.claim_expires_at_ms >= v_now - 30000 then s.seen_at_ms
        else v_now
      end,
      due_at_ms = v_now + 30000
    from picked as p
    where s.package_key = p.package_key
      and s.trigger_key = p.trigger_key
      -- a scalar subquery, which no planner makes a join with all triggers of
      and (
        select g.state
        from ql.trigger as t
        join ql.package_generation as g
          on g.package_key = t.package_key and g.generation = t.generation
        where t.package_key = p.package_key
          and t.trigger_key = p.trigger_key
          and t.state = 'active'
      ) = 'active'
    returning
      s.package_key,
      s.trigger_key,
      (
        select t.cron
        from ql.trigger as t
        where t.package_key = s.package_key and t.trigger_key = s.trigger_key
      ) as cron,
      (
        select t.tz
        from ql.trigger as t
        where t.package_key = s.package_key and t.trigger_key = s.trigger_key
      ) as tz,
      s.next_fire_at_ms,
      s.updated_at_ms,
      s.state_version,
      s.claim_version
  )
  select
    c.package_key,
    c.trigger_key,
    c.cron,
    c.tz,
    c.next_fire_at_ms,
    c.updated_at_ms,
    c.state_version,
    c.claim_version,
    v_now
  from claimed as c
  order by coalesce(c.next_fire_at_ms, 0), c.package_key, c.trigger_key;
end;
$$;

ALTER FUNCTION ql_scheduler.claim_schedule(p_owner text, p_token text, p_limit integer) OWNER TO ql_authority;

--
-- Name: commit_schedule(text, text, text, text, bigint, bigint, bigint, bigint, bigint, bigint, bigint); Type: FUNCTION; Schema: ql_scheduler; Owner: ql_authority
--

CREATE FUNCTION ql_scheduler.commit_schedule(p_package_key text, p_trigger_key text, p_owner text, p_token text, p_claim_version bigint, p_state_version bigint, p_cursor_ms bigint, p_due_at_ms bigint, p_observed_at_ms bigint, p_next_at_ms bigint, p_grace_ms bigint) RETURNS TABLE(outcome text, disposition text, cause text, run_id text, next_fire_at_ms bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '1s'
    AS $$
#variable_conflict use_column
declare
  v_schedule ql.trigger_schedule;
  v_now bigint;
  v_cursor bigint := case
    when p_due_at_ms > p_observed_at_ms then p_due_at_ms
    else p_next_at_ms
  end;
  v_disposition text;
  v_cause text;
  v_run_id text;
begin
  perform ql.assert_read_committed();
  perform ql.check_claim(p_owner, p_token);
  perform ql.check_commit(p_cursor_ms, p_due_at_ms, p_observed_at_ms, p_next_at_ms, p_grace_ms);
  select s.*
  into v_schedule
  from ql.trigger_schedule as s
  where s.package_key = p_package_key and s.trigger_key = p_trigger_key
  for no key update skip locked;
  if not found then
    perform ql.find_trigger(p_package_key, p_trigger_key);
    return query select 'contended', null, null, null, null::bigint;
    return;
  end if;

  v_now := ql.now_ms();
  if v_schedule.claim_token is null
    and v_schedule.state_version = p_state_version + 1
    and v_schedule.claim_version = p_claim_version
    and v_schedule.next_fire_at_ms = v_cursor
  then
    return query select 'settled', null, null, v_schedule.last_run_id, v_cursor;
    return;
  end if;
  -- a clock that has gone back since the claim proves nothing: it is not decided by
  if v_schedule.state_version is distinct from p_state_version
    or v_schedule.next_fire_at_ms is distinct from p_cursor_ms
    or v_schedule.claim_owner is distinct from p_owner
    or v_schedule.claim_token is distinct from p_token
    or v_schedule.claim_version is distinct from p_claim_version
    or v_schedule.claimed_at_ms is distinct from p_observed_at_ms
    or v_now not between v_schedule.claimed_at_ms and v_schedule.claim_expires_at_ms - 1
  then
    return query select 'contended', null, null, null, null::bigint;
    return;
  end if;

  perform
  from ql.package_generation as g
  where g.package_key = p_package_key and g.state = 'active'
  for share skip locked;
  if not found then
    perform ql.return_claim(p_package_key, p_trigger_key);
    return query select 'contended', null, null, null, null::bigint;
    return;
  end if;
  select d.disposition, d.cause
  into v_disposition, v_cause
  from ql.schedule_decision as d
  where d.package_key = p_package_key
    and d.trigger_key = p_trigger_key
    and d.arrival = case
      when p_due_at_ms > p_observed_at_ms then 'early'
      when v_schedule.seen_at_ms - p_due_at_ms > p_grace_ms then 'late'
      else 'on_time'
    end;
  if not found then
    perform ql.return_claim(p_package_key, p_trigger_key);
    return query select 'blocked', null, null, null, null::bigint;
    return;
  end if;

  if v_disposition = 'admit' then
    v_run_id := ql.derived_id('ru', p_package_key, p_trigger_key, p_due_at_ms::text);
    perform ql.admit_occurrence(v_run_id, p_package_key, p_trigger_key, p_due_at_ms);
  end if;
  delete from ql.trigger_fault as f
  where f.package_key = p_package_key and f.trigger_key = p_trigger_key;
  update ql.trigger_schedule as s
  set
    next_fire_at_ms = v_cursor,
    last_scheduled_at_ms = case
      when v_disposition = 'initialize' then s.last_scheduled_at_ms
      else p_due_at_ms
    end,
    last_outcome = case v_disposition
      when 'admit' then 'admitted'
      when 'skip' then v_cause
      else s.last_outcome
    end,
    last_run_id = coalesce(v_run_id, s.last_run_id),
    state_version = s.state_version + 1,
    claim_owner = null,
    claim_token = null,
    claim_expires_at_ms = null,
    claimed_at_ms = null,
    seen_at_ms = null,
    due_at_ms = v_cursor,
    updated_at_ms = v_now
  where s.package_key = p_package_key and s.trigger_key = p_trigger_key;
  return query select 'applied', v_disposition, v_cause, v_run_id, v_cursor;
end;
$$;

ALTER FUNCTION ql_scheduler.commit_schedule(p_package_key text, p_trigger_key text, p_owner text, p_token text, p_claim_version bigint, p_state_version bigint, p_cursor_ms bigint, p_due_at_ms bigint, p_observed_at_ms bigint, p_next_at_ms bigint, p_grace_ms bigint) OWNER TO ql_authority;

--
-- Name: converge_cancellation(text); Type: FUNCTION; Schema: ql_scheduler; Owner: ql_authority
--

CREATE FUNCTION ql_scheduler.converge_cancellation(p_run_id text) RETURNS TABLE(run_id text, outcome text, settled_attempts bigint, blocked_count bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '1s'
    AS $$
declare
  v_effects ql.effect[];
  v_settled bigint;
  v_blocked bigint;
begin
  perform ql.assert_read_committed();
  if ql.lock_run(p_run_id) is null then
    return query select p_run_id, 'contended', 0::bigint, 0::bigint;
    return;
  end if;

  select
    array_agg(row(e.*)::ql.effect),
    count(*) filter (where e.entity = 'attempt')
  into v_effects, v_settled
  from ql.cancellation_effect as e
  where e.run_id = p_run_id;
  select count(*)
  into v_blocked
  from ql.cancellation_blocked as b
  where b.run_id = p_run_id;

  perform ql.apply_effects(v_effects, 'cancellation');
  perform ql.clear_agenda('cancellation', array[p_run_id]);
  return query
  select
    r.run_id,
    case
      when r.status <> 'running' then 'settled'
      when v_blocked > 0 then 'blocked'
      else 'applied'
    end,
    v_settled,
    v_blocked
  from ql.run as r
  where r.run_id = p_run_id;
end;
$$;

ALTER FUNCTION ql_scheduler.converge_cancellation(p_run_id text) OWNER TO ql_authority;

--
-- Name: deadline_page(bigint, text, integer); Type: FUNCTION; Schema: ql_scheduler; Owner: ql_authority
--

CREATE FUNCTION ql_scheduler.deadline_page(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) RETURNS TABLE(run_id text, due_at_ms bigint, outcome text, effects bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '1s'
    AS $$
declare
  v_run_ids text[];
  v_due bigint[];
  v_counts bigint[];
begin
  perform ql.assert_read_committed();
  select
    coalesce(array_agg(p.run_id), '{}'),
    coalesce(array_agg(p.due_at_ms), '{}')
  into v_run_ids, v_due
  from ql.pick_runs('deadline', p_after_due_at_ms, p_after_run_id, p_limit) as p;
  if cardinality(v_run_ids) = 0 then
    return;
  end if;

  v_counts := ql.expire_runs(v_run_ids);
  return query
  select
    c.run_id,
    c.due_at_ms,
    case when c.effects > 0 then 'applied' else 'settled' end,
    c.effects
  from rows from (unnest(v_run_ids), unnest(v_due), unnest(v_counts))
    with ordinality as c (run_id, due_at_ms, effects, position)
  order by c.position;
end;
$$;

ALTER FUNCTION ql_scheduler.deadline_page(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) OWNER TO ql_authority;

--
-- Name: deadline_run(text); Type: FUNCTION; Schema: ql_scheduler; Owner: ql_authority
--

CREATE FUNCTION ql_scheduler.deadline_run(p_run_id text) RETURNS TABLE(run_id text, outcome text, effects bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '1s'
    AS $$
declare
  v_counts bigint[];
begin
  perform ql.assert_read_committed();
  if not ql.hold_run(p_run_id) then
    return query select p_run_id, 'contended', 0::bigint;
    return;
  end if;

  v_counts := ql.expire_runs(array[p_run_id]);
  return query
  select p_run_id, case when v_counts[1] > 0 then 'applied' else 'settled' end, v_counts[1];
end;
$$;

ALTER FUNCTION ql_scheduler.deadline_run(p_run_id text) OWNER TO ql_authority;

--
-- Name: due_page(text, bigint, text, integer); Type: FUNCTION; Schema: ql_scheduler; Owner: ql_authority
--

CREATE FUNCTION ql_scheduler.due_page(p_stage text, p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) RETURNS TABLE(run_id text, due_at_ms bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '1s'
    AS $$
declare
  v_now bigint;
begin
  perform ql.assert_read_committed();
  if p_limit is null or p_limit not between 1 and 32 then
    raise exception 'a page has 1 to 32 candidates, not %', p_limit using errcode = 'QL400';
  end if;

  v_now := ql.now_ms();
  return query
  select
    a.run_id,
    a.due_at_ms
  from ql.agenda as a
  where a.stage = p_stage
    and a.due_at_ms <= v_now
    and (a.due_at_ms, a.run_id) > (p_after_due_at_ms, p_after_run_id)
  order by a.due_at_ms, a.run_id
  limit p_limit;
end;
$$;

ALTER FUNCTION ql_scheduler.due_page(p_stage text, p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) OWNER TO ql_authority;

--
-- Name: frontier_page(bigint, text, integer); Type: FUNCTION; Schema: ql_scheduler; Owner: ql_authority
--

CREATE FUNCTION ql_scheduler.frontier_page(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) RETURNS TABLE(run_id text, due_at_ms bigint, outcome text, effects bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '1s'
    AS $$
declare
  v_run_ids text[];
  v_due bigint[];
  v_counts bigint[];
begin
  perform ql.assert_read_committed();
  select
    coalesce(array_agg(p.run_id), '{}'),
    coalesce(array_agg(p.due_at_ms), '{}')
  into v_run_ids, v_due
  from ql.pick_runs('frontier', p_after_due_at_ms, p_after_run_id, p_limit) as p;
  if cardinality(v_run_ids) = 0 then
    return;
  end if;

  v_counts := ql.advance_frontiers(v_run_ids);
  return query
  select
    c.run_id,
    c.due_at_ms,
    case when c.effects > 0 then 'applied' else 'settled' end,
    c.effects
  from rows from (unnest(v_run_ids), unnest(v_due), unnest(v_counts))
    with ordinality as c (run_id, due_at_ms, effects, position)
  order by c.position;
end;
$$;

ALTER FUNCTION ql_scheduler.frontier_page(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) OWNER TO ql_authority;

--
-- Name: record_fault(text, text, text); Type: FUNCTION; Schema: ql_scheduler; Owner: ql_authority
--

CREATE FUNCTION ql_scheduler.record_fault(p_run_id text, p_stage text, p_error text) RETURNS TABLE(run_id text, fault_count bigint, next_try_at_ms bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET lock_timeout TO '1s'
    AS $$
declare
  v_now bigint;
  v_count bigint;
  v_next bigint;
begin
  perform ql.assert_read_committed();
  if p_error is null or p_stage is null or p_stage not in (
    'frontier', 'task_admission', 'cancellation', 'deadline', 'retry', 'expiry'
  ) then
    raise exception 'a fault has an error and a stage of the agenda' using errcode = 'QL400';
  end if;
  if not ql.hold_run(p_run_id) then
    return;
  end if;

  v_now := ql.now_ms();
  select 1 + coalesce(max(f.fault_count), 0)
  into v_count
  from ql.run_fault as f
  where f.run_id = p_run_id and f.stage = p_stage;
  v_next := v_now + least(300000, 1000 * (1 << least(v_count - 1, 9)::int));

  insert into ql.run_fault (
    run_id, stage, error, fault_count, first_at_ms, last_at_ms, next_try_at_ms
  )
  values (
    p_run_id,
    p_stage,
    -- a character has at most four bytes, so 512 of them fit whatever they are
    case when octet_length(p_error) <= 2048 then p_error else left(p_error, 512) end,
    v_count,
    v_now,
    v_now,
    v_next
  )
  on conflict on constraint run_fault_pkey do update
  set
    error = excluded.error,
    fault_count = excluded.fault_count,
    last_at_ms = excluded.last_at_ms,
    next_try_at_ms = excluded.next_try_at_ms;

  update ql.agenda as a
  set due_at_ms = v_next
  where a.run_id = p_run_id and a.stage = p_stage;

  return query select p_run_id, v_count, v_next;
end;
$$;

ALTER FUNCTION ql_scheduler.record_fault(p_run_id text, p_stage text, p_error text) OWNER TO ql_authority;

--
-- Name: record_trigger_fault(text, text, bigint, text); Type: FUNCTION; Schema: ql_scheduler; Owner: ql_authority
--

CREATE FUNCTION ql_scheduler.record_trigger_fault(p_package_key text, p_trigger_key text, p_state_version bigint, p_error text) RETURNS TABLE(fault_count bigint, next_try_at_ms bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET lock_timeout TO '1s'
    AS $$
declare
  v_now bigint;
  v_count bigint;
  v_next bigint;
begin
  perform ql.assert_read_committed();
  if p_error is null then
    raise exception 'a fault has an error' using errcode = 'QL400';
  end if;
  perform
  from ql.trigger_schedule as s
  where s.package_key = p_package_key
    and s.trigger_key = p_trigger_key
    and s.state_version = p_state_version
    and s.due_at_ms is not null
  for no key update skip locked;
  if not found then
    return;
  end if;

  v_now := ql.now_ms();
  select 1 + coalesce(max(f.fault_count), 0)
  into v_count
  from ql.trigger_fault as f
  where f.package_key = p_package_key and f.trigger_key = p_trigger_key;
  v_next := v_now + least(300000, 1000 * (1 << least(v_count - 1, 9)::int));

  insert into ql.trigger_fault (
    package_key, trigger_key, error, fault_count, first_at_ms, last_at_ms, next_try_at_ms
  )
  values (
    p_package_key,
    p_trigger_key,
    -- a character has at most four bytes, so 512 of them fit whatever they are
    case when octet_length(p_error) <= 2048 then p_error else left(p_error, 512) end,
    v_count,
    v_now,
    v_now,
    v_next
  )
  on conflict on constraint trigger_fault_pkey do update
  set
    error = excluded.error,
    fault_count = excluded.fault_count,
    last_at_ms = excluded.last_at_ms,
    next_try_at_ms = excluded.next_try_at_ms;
  perform ql.return_claim(p_package_key, p_trigger_key);
  return query select v_count, v_next;
end;
$$;

ALTER FUNCTION ql_scheduler.record_trigger_fault(p_package_key text, p_trigger_key text, p_state_version bigint, p_error text) OWNER TO ql_authority;

--
-- Name: recover_run(text); Type: FUNCTION; Schema: ql_scheduler; Owner: ql_authority
--

CREATE FUNCTION ql_scheduler.recover_run(p_run_id text) RETURNS TABLE(run_id text, outcome text, effects bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '1s'
    AS $$
declare
  v_now bigint;
  v_attempt_ids text[];
  v_effects bigint;
begin
  perform ql.assert_read_committed();
  if ql.lock_run(p_run_id) is null then
    return query select p_run_id, 'contended', 0::bigint;
    return;
  end if;

  v_now := ql.now_ms();
  with proved as (
    insert into ql.attestation as n (
      run_id, attempt_id, evidence, follow, reason, actor, attested_at_ms
    )
    select d.run_id, d.attempt_id, d.evidence, null, '', 'scheduler', v_now
    from ql.recovery_due as d
    where d.run_id = p_run_id and d.due_at_ms <= v_now
    order by d.attempt_id
    returning n.attempt_id
  )
  select array_agg(p.attempt_id)
  into v_attempt_ids
  from proved as p;

  v_effects := ql.apply_attested(v_attempt_ids);
  perform ql.rearm_agenda(
    'expiry',
    p_run_id,
    (select min(d.due_at_ms) from ql.recovery_due as d where d.run_id = p_run_id)
  );
  return query
  select p_run_id, case when v_effects > 0 then 'applied' else 'settled' end, v_effects;
end;
$$;

ALTER FUNCTION ql_scheduler.recover_run(p_run_id text) OWNER TO ql_authority;

--
-- Name: retry_page(bigint, text, integer); Type: FUNCTION; Schema: ql_scheduler; Owner: ql_authority
--

CREATE FUNCTION ql_scheduler.retry_page(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) RETURNS TABLE(run_id text, due_at_ms bigint, outcome text, effects bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '1s'
    AS $$
declare
  v_run_ids text[];
  v_due bigint[];
  v_counts bigint[];
begin
  perform ql.assert_read_committed();
  select
    coalesce(array_agg(p.run_id), '{}'),
    coalesce(array_agg(p.due_at_ms), '{}')
  into v_run_ids, v_due
  from ql.pick_runs('retry', p_after_due_at_ms, p_after_run_id, p_limit) as p;
  if cardinality(v_run_ids) = 0 then
    return;
  end if;

  v_counts := ql.retry_runs(v_run_ids);
  return query
  select
    c.run_id,
    c.due_at_ms,
    case when c.effects > 0 then 'applied' else 'settled' end,
    c.effects
  from rows from (unnest(v_run_ids), unnest(v_due), unnest(v_counts))
    with ordinality as c (run_id, due_at_ms, effects, position)
  order by c.position;
end;
$$;

ALTER FUNCTION ql_scheduler.retry_page(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) OWNER TO ql_authority;

--
-- Name: retry_run(text); Type: FUNCTION; Schema: ql_scheduler; Owner: ql_authority
--

CREATE FUNCTION ql_scheduler.retry_run(p_run_id text) RETURNS TABLE(run_id text, outcome text, effects bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '1s'
    AS $$
declare
  v_counts bigint[];
begin
  perform ql.assert_read_committed();
  if not ql.hold_run(p_run_id) then
    return query select p_run_id, 'contended', 0::bigint;
    return;
  end if;

  v_counts := ql.retry_runs(array[p_run_id]);
  return query
  select p_run_id, case when v_counts[1] > 0 then 'applied' else 'settled' end, v_counts[1];
end;
$$;

ALTER FUNCTION ql_scheduler.retry_run(p_run_id text) OWNER TO ql_authority;

--
-- Name: settle_task_cancellations(bigint, text, integer); Type: FUNCTION; Schema: ql_scheduler; Owner: ql_authority
--

CREATE FUNCTION ql_scheduler.settle_task_cancellations(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) RETURNS TABLE(run_id text, due_at_ms bigint, outcome text, effects bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '1s'
    AS $$
declare
  v_run_ids text[];
  v_due bigint[];
  v_effects ql.effect[];
begin
  perform ql.assert_read_committed();
  select
    coalesce(array_agg(p.run_id), '{}'),
    coalesce(array_agg(p.due_at_ms), '{}')
  into v_run_ids, v_due
  from ql.pick_unstarted(p_after_due_at_ms, p_after_run_id, p_limit) as p;
  if cardinality(v_run_ids) = 0 then
    return;
  end if;

  select array_agg(row(e.*)::ql.effect)
  into v_effects
  from unnest(v_run_ids) as i (run_id)
  cross join lateral (
    select * from ql.cancellation_effect as v where v.run_id = i.run_id offset 0
  ) as e;
  perform ql.apply_effects(v_effects, 'cancellation');

  return query
  select
    c.run_id,
    c.due_at_ms,
    'settled',
    c.effects
  from rows from (
    unnest(v_run_ids), unnest(v_due), unnest(ql.effect_counts(v_run_ids, v_effects))
  ) with ordinality as c (run_id, due_at_ms, effects, position)
  order by c.position;
end;
$$;

ALTER FUNCTION ql_scheduler.settle_task_cancellations(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) OWNER TO ql_authority;

--
-- Name: sweep_agenda(text, integer); Type: FUNCTION; Schema: ql_scheduler; Owner: ql_authority
--

CREATE FUNCTION ql_scheduler.sweep_agenda(p_after_run_id text, p_limit integer) RETURNS TABLE(run_id text, stages bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '1s'
    AS $$
declare
  v_now bigint;
  v_slice text[];
  v_held text[];
  v_back text[];
begin
  perform ql.assert_read_committed();
  if p_limit is null or p_limit not between 1 and 1024 then
    raise exception 'a sweep takes 1 to 1024 runs, not %', p_limit using errcode = 'QL400';
  end if;

  v_slice := array(
    select r.run_id from ql.run as r where r.run_id > p_after_run_id order by r.run_id limit p_limit
  );
  v_held := array(
    select r.run_id
    from ql.run as r
    where r.run_id = any(v_slice) and r.status = 'running'
    order by r.run_id
    for no key update skip locked
  );
  v_now := ql.now_ms();

  with put_back as (
    insert into ql.agenda as a (run_id, stage, due_at_ms)
    select
      m.run_id,
      m.stage,
      min(m.due_at_ms)
    from (
      select
        l.run_id,
        l.stage,
        case when l.due_at_ms = 0 then v_now else l.due_at_ms end as due_at_ms
      from ql.agenda_missing as l
      where l.run_id = any(v_held)
      union all
      select
        h.run_id,
        h.stage,
        v_now + h.wait_ms
      from ql.agenda_ahead as h
      where h.run_id = any(v_held)
        and h.since_ms > v_now
        and h.due_at_ms > v_now + h.wait_ms
    ) as m
    group by m.run_id, m.stage
    on conflict on constraint agenda_pkey do update
    set due_at_ms = least(a.due_at_ms, excluded.due_at_ms)
    returning a.run_id
  )
  select coalesce(array_agg(p.run_id), '{}')
  into v_back
  from put_back as p;

  update ql.run_fault as f
  set next_try_at_ms = v_now + 300000
  where f.run_id = any(v_back) and f.next_try_at_ms > v_now + 300000;

  return query
  select
    s.run_id,
    (select count(*) from unnest(v_back) as b (run_id) where b.run_id = s.run_id)
  from unnest(v_slice) with ordinality as s (run_id, position)
  order by s.position;
end;
$$;

ALTER FUNCTION ql_scheduler.sweep_agenda(p_after_run_id text, p_limit integer) OWNER TO ql_authority;

--
-- Name: sweep_schedule(integer); Type: FUNCTION; Schema: ql_scheduler; Owner: ql_authority
--

CREATE FUNCTION ql_scheduler.sweep_schedule(p_limit integer) RETURNS TABLE(package_key text, trigger_key text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET lock_timeout TO '1s'
    AS $$
#variable_conflict use_column
declare
  v_now bigint;
begin
  perform ql.assert_read_committed();
  if p_limit is null or p_limit not between 1 and 32 then
    raise exception 'a page has 1 to 32 candidates, not %', p_limit using errcode = 'QL400';
  end if;

  v_now := ql.now_ms();
  for package_key, trigger_key in
    select
      s.package_key,
      s.trigger_key
    from ql.trigger_schedule as s
    where s.updated_at_ms > v_now + 60000 and s.due_at_ms is not null
    order by s.updated_at_ms
    limit p_limit
    for no key update skip locked
  loop
    delete from ql.trigger_fault as f
    where f.package_key = sweep_schedule.package_key
      and f.trigger_key = sweep_schedule.trigger_key;
    update ql.trigger_schedule as s
    set
      next_fire_at_ms = null,
      updated_at_ms = v_now
    where s.package_key = sweep_schedule.package_key
      and s.trigger_key = sweep_schedule.trigger_key;
    perform ql.return_claim(sweep_schedule.package_key, sweep_schedule.trigger_key);
    return next;
  end loop;

  for package_key, trigger_key in
    select
      s.package_key,
      s.trigger_key
    from ql.trigger_fault as f
    join ql.trigger_schedule as s
      on s.package_key = f.package_key and s.trigger_key = f.trigger_key
    where f.next_try_at_ms > v_now + 300000 and s.due_at_ms is not null
    limit p_limit
    for no key update skip locked
  loop
    update ql.trigger_fault as f
    set next_try_at_ms = v_now + 300000
    where f.package_key = sweep_schedule.package_key
      and f.trigger_key = sweep_schedule.trigger_key;
    perform ql.set_due(sweep_schedule.package_key, sweep_schedule.trigger_key);
    return next;
  end loop;
end;
$$;

ALTER FUNCTION ql_scheduler.sweep_schedule(p_limit integer) OWNER TO ql_authority;

--
-- Name: task_admission_page(bigint, text, integer); Type: FUNCTION; Schema: ql_scheduler; Owner: ql_authority
--

CREATE FUNCTION ql_scheduler.task_admission_page(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) RETURNS TABLE(run_id text, due_at_ms bigint, outcome text, effects bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '1s'
    AS $$
declare
  v_run_ids text[];
  v_due bigint[];
  v_counts bigint[];
begin
  perform ql.assert_read_committed();
  select
    coalesce(array_agg(p.run_id), '{}'),
    coalesce(array_agg(p.due_at_ms), '{}')
  into v_run_ids, v_due
  from ql.pick_runs('task_admission', p_after_due_at_ms, p_after_run_id, p_limit) as p;
  if cardinality(v_run_ids) = 0 then
    return;
  end if;

  v_counts := ql.admit_ready_steps(v_run_ids);
  return query
  select
    c.run_id,
    c.due_at_ms,
    case when c.effects > 0 then 'applied' else 'settled' end,
    c.effects
  from rows from (unnest(v_run_ids), unnest(v_due), unnest(v_counts))
    with ordinality as c (run_id, due_at_ms, effects, position)
  where c.effects is not null
  order by c.position;
end;
$$;

ALTER FUNCTION ql_scheduler.task_admission_page(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) OWNER TO ql_authority;

--
-- Name: attempt_input(text, text); Type: FUNCTION; Schema: ql_worker; Owner: ql_authority
--

CREATE FUNCTION ql_worker.attempt_input(p_attempt_id text, p_token text) RETURNS TABLE(attempt_id text, input text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '1s'
    AS $$
begin
  perform ql.assert_read_committed();
  return query
  select
    l.attempt_id,
    ql.input_text(l.attempt_id)
  from ql.attempt_lease as l
  where l.attempt_id = p_attempt_id
    and l.status = 'leased'
    and l.token_digest = ql.sha256_hex(p_token);
end;
$$;

ALTER FUNCTION ql_worker.attempt_input(p_attempt_id text, p_token text) OWNER TO ql_authority;

--
-- Name: attempt_inputs(text); Type: FUNCTION; Schema: ql_worker; Owner: ql_authority
--

CREATE FUNCTION ql_worker.attempt_inputs(p_commands text) RETURNS TABLE(attempt_id text, outcome text, code text, input text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '1s'
    AS $$
declare
  v_commands ql.command[] := ql.refuse_strangers(ql.expand_commands(p_commands, 'inputs'));
begin
  perform ql.assert_read_committed();
  v_commands := ql.refuse_others(v_commands, array(
    select c.attempt_id
    from unnest(v_commands) as c
    join ql.attempt_lease as l on l.attempt_id = c.attempt_id
    where c.code is null
      and l.status = 'leased'
      and l.fence = c.fence
      and l.token_digest = c.token_digest
  ), 'QL410');
  v_commands := ql.refuse_others(v_commands, array(
    select s.attempt_id
    from (
      select
        c.attempt_id,
        c.position,
        sum(ql.input_octets(c.attempt_id)) over (
          order by c.position rows between unbounded preceding and 1 preceding
        ) as octets_before
      from unnest(v_commands) as c
      where c.code is null
    ) as s
    where coalesce(s.octets_before, 0) < 2097152
  ), 'contended');
  return query
  select
    w.attempt_id,
    w.outcome,
    w.code,
    case when w.outcome = 'applied' then ql.input_text(w.attempt_id) end
  from ql.answers(v_commands) with ordinality as w (attempt_id, outcome, code, position)
  order by w.position;
end;
$$;

ALTER FUNCTION ql_worker.attempt_inputs(p_commands text) OWNER TO ql_authority;

--
-- Name: attempt_standing(text); Type: FUNCTION; Schema: ql_worker; Owner: ql_authority
--

CREATE FUNCTION ql_worker.attempt_standing(p_commands text) RETURNS TABLE(attempt_id text, outcome text, code text, status text, lease_status text, expires_at_ms bigint, run_id text, step_key text, number bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '1s'
    AS $$
declare
  v_commands ql.command[] := ql.refuse_strangers(ql.expand_commands(p_commands, 'standing'));
begin
  perform ql.assert_read_committed();
  v_commands := ql.refuse_others(v_commands, array(
    select c.attempt_id
    from unnest(v_commands) as c
    join ql.attempt_offer as o
      on o.run_id = c.run_id and o.attempt_id = c.attempt_id and o.fence = c.fence
    where c.code is null and o.token_digest = c.token_digest
  ), 'QL410');
  return query
  select
    w.attempt_id,
    w.outcome,
    w.code,
    a.status,
    -- a lease that somebody else has now is one that this fence gave back
    case when l.status = 'leased' and l.fence <> c.fence then 'released' else l.status end,
    case when l.status = 'leased' and l.fence = c.fence then l.expires_at_ms end,
    a.run_id,
    a.step_key,
    a.number
  from ql.answers(v_commands) with ordinality as w (attempt_id, outcome, code, position)
  left join unnest(v_commands) as c
    on c.attempt_id = w.attempt_id and c.code is null and w.outcome = 'applied'
  left join ql.task_attempt as a on a.attempt_id = c.attempt_id
  left join ql.attempt_lease as l on l.attempt_id = c.attempt_id
  order by w.position;
end;
$$;

ALTER FUNCTION ql_worker.attempt_standing(p_commands text) OWNER TO ql_authority;

--
-- Name: attest_attempts(text); Type: FUNCTION; Schema: ql_worker; Owner: ql_authority
--

CREATE FUNCTION ql_worker.attest_attempts(p_commands text) RETURNS TABLE(attempt_id text, outcome text, code text, status text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '100ms'
    AS $$
declare
  v_commands ql.command[] := ql.expand_commands(p_commands, 'attested');
  v_now bigint;
begin
  perform ql.assert_read_committed();
  v_commands := ql.lock_commands(v_commands);
  v_now := ql.now_ms();

  insert into ql.attestation (
    run_id, attempt_id, evidence, follow, reason, actor, attested_at_ms
  )
  select c.run_id, c.attempt_id, 'attested', null, c.reason, l.worker_id, v_now
  from unnest(v_commands) as c
  join ql.attempt_lease as l on l.attempt_id = c.attempt_id
  where c.code is null
    and l.status = 'leased'
    and l.fence = c.fence
    and l.token_digest = c.token_digest
  on conflict do nothing;
  perform ql.apply_attested(
    array(select c.attempt_id from unnest(v_commands) as c where c.code is null)
  );

  v_commands := ql.refuse_others(v_commands, array(
    select c.attempt_id
    from unnest(v_commands) as c
    join ql.attestation as n on n.run_id = c.run_id and n.attempt_id = c.attempt_id
    join ql.attempt_offer as o
      on o.run_id = c.run_id and o.attempt_id = c.attempt_id and o.fence = c.fence
    where c.code is null
      and o.token_digest = c.token_digest
      and n.evidence = 'attested'
      and n.reason = c.reason
  ), 'QL410');
  return query
  select
    w.attempt_id,
    w.outcome,
    w.code,
    (
      select a.status
      from ql.task_attempt as a
      where a.attempt_id = w.attempt_id and w.outcome = 'applied'
    )
  from ql.answers(v_commands) as w;
end;
$$;

ALTER FUNCTION ql_worker.attest_attempts(p_commands text) OWNER TO ql_authority;

--
-- Name: audit_worker(text, text, text); Type: FUNCTION; Schema: ql_worker; Owner: ql_authority
--

CREATE FUNCTION ql_worker.audit_worker(p_worker_id text, p_route text, p_certificate text) RETURNS TABLE(minute_ms bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET lock_timeout TO '1s'
    AS $$
declare
  v_now bigint := ql.now_ms();
  v_minute bigint := v_now - v_now % 60000;
begin
  perform ql.assert_read_committed();
  if coalesce(length(p_worker_id), 0) not between 1 and 36
    or coalesce(length(p_route), 0) not between 1 and 64
    or coalesce(length(p_certificate), 0) not between 1 and 64
  then
    raise exception 'an audit row has a worker, a route and a certificate'
      using errcode = 'QL400';
  end if;
  insert into ql.worker_audit (minute_ms, worker_id, route, certificate, first_at_ms)
  values (v_minute, p_worker_id, p_route, p_certificate, v_now)
  on conflict do nothing;
  return query select v_minute;
end;
$$;

ALTER FUNCTION ql_worker.audit_worker(p_worker_id text, p_route text, p_certificate text) OWNER TO ql_authority;

--
-- Name: end_session(text, text); Type: FUNCTION; Schema: ql_worker; Owner: ql_authority
--

CREATE FUNCTION ql_worker.end_session(p_worker_id text, p_session_id text) RETURNS TABLE(worker_id text, status text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET lock_timeout TO '1s'
    AS $$
declare
  v_session_id text;
begin
  perform ql.assert_read_committed();
  select w.session_id
  into v_session_id
  from ql.worker_session as w
  where w.worker_id = p_worker_id
  for no key update;
  if not found then
    raise exception 'no worker %', p_worker_id using errcode = 'QL404';
  elsif v_session_id is distinct from p_session_id then
    raise exception 'worker % has a newer session', p_worker_id using errcode = 'QL410';
  end if;

  update ql.worker_session as w
  set status = 'offline'
  where w.worker_id = p_worker_id and w.status <> 'offline';
  return query select p_worker_id, 'offline';
end;
$$;

ALTER FUNCTION ql_worker.end_session(p_worker_id text, p_session_id text) OWNER TO ql_authority;

--
-- Name: heartbeat_worker(text, text); Type: FUNCTION; Schema: ql_worker; Owner: ql_authority
--

CREATE FUNCTION ql_worker.heartbeat_worker(p_worker_id text, p_session_id text) RETURNS TABLE(worker_id text, session_id text, generation bigint, status text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET lock_timeout TO '1s'
    AS $$
declare
  v_now bigint := ql.now_ms();
begin
  perform ql.assert_read_committed();
  update ql.worker_session as w
  set
    seen_at_ms = v_now,
    expires_at_ms = v_now + 60000
  where w.worker_id = p_worker_id
    and w.session_id = p_session_id
    and w.status <> 'offline';

  return query
  select
    w.worker_id,
    w.session_id,
    w.generation,
    w.status
  from ql.worker_session as w
  where w.worker_id = p_worker_id;
  if not found then
    raise exception 'no worker %', p_worker_id using errcode = 'QL404';
  end if;
end;
$$;

ALTER FUNCTION ql_worker.heartbeat_worker(p_worker_id text, p_session_id text) OWNER TO ql_authority;

--
-- Name: lease_attempts(text, text, text, text, bigint, text); Type: FUNCTION; Schema: ql_worker; Owner: ql_authority
--

CREATE FUNCTION ql_worker.lease_attempts(p_worker_id text, p_session_id text, p_queue text, p_offers text, p_lease_ms bigint, p_run_id text) RETURNS TABLE(attempt_id text, run_id text, step_key text, number bigint, offer_id text, fence bigint, expires_at_ms bigint, lease_ms bigint, timeout_ms bigint, package_key text, base_dir text, spec text, task_key text, try_number bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '100ms'
    AS $$
declare
  v_session ql.worker_session;
  v_waits boolean;
  v_offers jsonb := ql.command_list(p_offers);
  v_offer_ids text[];
  v_digests text[];
  v_picked record;
  v_made text[];
  v_effects ql.effect[];
begin
  perform ql.assert_read_committed();
  perform ql.check_offers(v_offers, p_lease_ms);
  -- who asks and nothing waits is only looked at: idle workers write nothing
  v_waits := ql.work_waits(p_queue, p_run_id, v_offers);
  v_session := ql.hold_session(p_worker_id, p_session_id, v_waits);
  if not v_waits then
    return;
  end if;

  -- an offer that was made before is a replay, whatever became of it
  select
    coalesce(array_agg(o.value ->> 'offer_id' order by o.position), '{}'),
    coalesce(array_agg(o.value ->> 'token_digest' order by o.position), '{}')
  into v_offer_ids, v_digests
  from jsonb_array_elements(v_offers) with ordinality as o (value, position)
  where not exists (
    select from ql.attempt_offer as m where m.offer_id = o.value ->> 'offer_id'
  );

  if cardinality(v_offer_ids) > 0 then
    v_picked := ql.pick_attempts(p_queue, p_run_id, cardinality(v_offer_ids));
    v_made := ql.make_offers(
      v_session,
      ql.lock_attempts(v_picked.attempt_ids, v_picked.run_ids),
      v_offer_ids,
      v_digests,
      ql.now_ms(),
      p_lease_ms
    );
    select coalesce(array_agg(row(e.*)::ql.effect), '{}')
    into v_effects
    from (
      select distinct p.run_id from unnest(v_picked.run_ids) as p (run_id)
    ) as i
    cross join lateral (
      select * from ql.dispatch_effect as v where v.run_id = i.run_id offset 0
    ) as e
    where e.input_id = any(v_made);
    if cardinality(v_effects) <> cardinality(v_made) then
      raise exception 'an offer was made that leases nothing' using errcode = 'QL500';
    end if;
    perform ql.apply_effects(v_effects, 'dispatch');
  end if;

  return query
  select
    a.attempt_id, a.run_id, a.step_key, a.number, l.offer_id, l.fence,
    l.expires_at_ms, p_lease_ms, t.timeout_ms, t.package_key, p.base_dir, t.spec, t.task_key,
    s.attempt_count + case s.status when 'ready' then 1 else 0 end
  from jsonb_array_elements(v_offers) with ordinality as o (value, position)
  -- each by itself: a plan that joins them may walk through all leases, or all tasks, there are
  cross join lateral (
    select m.attempt_id
    from ql.attempt_offer as m
    where m.offer_id = o.value ->> 'offer_id'
    offset 0
  ) as m
  cross join lateral (
    select l.*
    from ql.attempt_lease as l
    where l.attempt_id = m.attempt_id
    offset 0
  ) as l
  join ql.task_attempt as a on a.attempt_id = m.attempt_id
  join ql.step_run as s on s.run_id = a.run_id and s.step_key = a.step_key
  cross join lateral (
    select t.* from ql.task_revision as t where t.task_id = a.task_id offset 0
  ) as t
  join ql.package as p on p.package_key = t.package_key
  where l.status = 'leased'
    and l.offer_id = o.value ->> 'offer_id'
    and l.worker_id = p_worker_id
    and l.token_digest = o.value ->> 'token_digest'
  order by o.position;
end;
$$;

ALTER FUNCTION ql_worker.lease_attempts(p_worker_id text, p_session_id text, p_queue text, p_offers text, p_lease_ms bigint, p_run_id text) OWNER TO ql_authority;

--
-- Name: register_worker(text, text, text, integer, integer, bigint); Type: FUNCTION; Schema: ql_worker; Owner: ql_authority
--

CREATE FUNCTION ql_worker.register_worker(p_worker_id text, p_session_id text, p_queues text, p_slots integer, p_self_fencing integer, p_grace_ms bigint) RETURNS TABLE(worker_id text, generation bigint, status text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET lock_timeout TO '1s'
    AS $$
declare
  v_now bigint := ql.now_ms();
begin
  perform ql.assert_read_committed();
  if coalesce(length(p_worker_id), 0) not between 1 and 36
    or coalesce(length(p_session_id), 0) not between 1 and 36
    or octet_length(p_queues) > 131072 or jsonb_array_length(ql.command_list(p_queues)) = 0
    or exists (
      select from jsonb_array_elements(ql.command_list(p_queues)) as q (value)
      where jsonb_typeof(q.value) <> 'string' or length(q.value #>> '{}') not between 1 and 200
    )
    or coalesce(p_slots, 0) not between 1 and 1024
    or coalesce(p_self_fencing, -1) not in (0, 1)
    or coalesce(p_grace_ms, -1) not between 0 and 3600000
  then
    raise exception 'a worker has an id, a session, queues, 1 to 1024 slots and a grace up to 1 h'
      using errcode = 'QL400';
  end if;

  insert into ql.worker_session as w (
    worker_id, session_id, generation, status, queues, slots, self_fencing, grace_ms,
    registered_at_ms, expires_at_ms, seen_at_ms
  )
  values (
    p_worker_id, p_session_id, 1, 'online', p_queues, p_slots, p_self_fencing, p_grace_ms,
    v_now, v_now + 300000, v_now
  )
  on conflict on constraint worker_session_pkey do update
  set
    session_id = excluded.session_id,
    generation = w.generation + 1,
    status = case when w.drain_requested_at_ms is null then 'online' else 'draining' end,
    queues = excluded.queues,
    slots = excluded.slots,
    self_fencing = excluded.self_fencing,
    grace_ms = excluded.grace_ms,
    registered_at_ms = excluded.registered_at_ms,
    expires_at_ms = excluded.expires_at_ms,
    seen_at_ms = excluded.seen_at_ms
  where w.session_id <> excluded.session_id;

  return query
  select
    w.worker_id,
    w.generation,
    w.status
  from ql.worker_session as w
  where w.worker_id = p_worker_id;
end;
$$;

ALTER FUNCTION ql_worker.register_worker(p_worker_id text, p_session_id text, p_queues text, p_slots integer, p_self_fencing integer, p_grace_ms bigint) OWNER TO ql_authority;

--
-- Name: renew_attempts(text, bigint); Type: FUNCTION; Schema: ql_worker; Owner: ql_authority
--

CREATE FUNCTION ql_worker.renew_attempts(p_commands text, p_lease_ms bigint) RETURNS TABLE(attempt_id text, outcome text, code text, expires_at_ms bigint, stop_reason text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '100ms'
    AS $$
declare
  v_commands ql.command[] := ql.expand_commands(p_commands, 'renewal');
  v_now bigint;
begin
  perform ql.assert_read_committed();
  perform ql.check_offers('[]', p_lease_ms);
  v_commands := ql.refuse_strangers(v_commands);
  v_commands := ql.refuse_others(v_commands, array(
    select c.attempt_id
    from unnest(v_commands) as c
    where c.code is null and pg_try_advisory_xact_lock(ql.attempt_key(c.attempt_id))
  ), 'contended');
  perform
  from ql.attempt_lease as l
  where l.attempt_id = any(array(
      select c.attempt_id from unnest(v_commands) as c where c.code is null
    ))
  order by l.attempt_id
  for no key update;
  v_now := ql.now_ms();

  v_commands := ql.refuse_others(v_commands, array(
    select c.attempt_id
    from unnest(v_commands) as c
    join ql.attempt_lease as l on l.attempt_id = c.attempt_id
    where c.code is null
      and l.status = 'leased'
      and l.fence = c.fence
      and l.token_digest = c.token_digest
      and l.expires_at_ms > v_now
  ), 'QL410');
  update ql.attempt_lease as l
  set expires_at_ms = v_now + p_lease_ms
  from ql.task_attempt as a
  where l.attempt_id = any(array(
      select c.attempt_id from unnest(v_commands) as c where c.code is null
    ))
    and l.expires_at_ms < v_now + p_lease_ms
    and a.attempt_id = l.attempt_id
    and coalesce(a.deadline_at_ms + l.grace_ms > v_now, true);

  return query
  select
    w.attempt_id,
    w.outcome,
    w.code,
    l.expires_at_ms,
    coalesce(
      (select r.cancel_reason from ql.run as r where r.run_id = l.run_id),
      case when a.deadline_at_ms + l.grace_ms <= v_now then 'deadline' end
    )
  from ql.answers(v_commands)
    with ordinality as w (attempt_id, outcome, code, position)
  left join ql.attempt_lease as l on l.attempt_id = w.attempt_id and w.outcome = 'applied'
  left join ql.task_attempt as a on a.attempt_id = l.attempt_id
  order by w.position;
end;
$$;

ALTER FUNCTION ql_worker.renew_attempts(p_commands text, p_lease_ms bigint) OWNER TO ql_authority;

--
-- Name: report_attempts(text); Type: FUNCTION; Schema: ql_worker; Owner: ql_authority
--

CREATE FUNCTION ql_worker.report_attempts(p_commands text) RETURNS TABLE(attempt_id text, outcome text, code text, status text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '100ms'
    AS $$
declare
  v_commands ql.command[] := ql.expand_commands(p_commands, 'ended');
  v_now bigint;
  v_new text[];
  v_effects ql.effect[];
begin
  perform ql.assert_read_committed();
  v_commands := ql.lock_commands(v_commands);
  v_now := ql.now_ms();
  v_new := ql.accept_reports(v_commands, 'ended', v_now);

  select array_agg(row(e.*)::ql.effect)
  into v_effects
  from unnest(ql.runs_of(v_commands)) as i (run_id)
  cross join lateral (
    select * from ql.completion_effect as v where v.run_id = i.run_id offset 0
  ) as e
  where e.input_id = any(v_new);
  perform ql.apply_effects(v_effects, 'completion');

  v_commands := ql.refuse_others(
    v_commands, v_new || ql.known_reports(v_commands, v_new, 'ended'), 'QL410'
  );
  perform ql.keep_refused(v_commands, v_now);
  return query
  select
    w.attempt_id,
    w.outcome,
    w.code,
    (
      select a.status
      from ql.task_attempt as a
      where a.attempt_id = w.attempt_id and w.outcome = 'applied'
    )
  from ql.answers(v_commands) as w;
end;
$$;

ALTER FUNCTION ql_worker.report_attempts(p_commands text) OWNER TO ql_authority;

--
-- Name: running_attempts(text); Type: FUNCTION; Schema: ql_worker; Owner: ql_authority
--

CREATE FUNCTION ql_worker.running_attempts(p_commands text) RETURNS TABLE(attempt_id text, outcome text, code text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '100ms'
    AS $$
declare
  v_commands ql.command[] := ql.expand_commands(p_commands, 'running');
  v_new text[];
  v_effects ql.effect[];
begin
  perform ql.assert_read_committed();
  v_commands := ql.lock_commands(v_commands);
  v_new := ql.accept_reports(v_commands, 'running', ql.now_ms());

  select array_agg(row(e.*)::ql.effect)
  into v_effects
  from unnest(ql.runs_of(v_commands)) as i (run_id)
  cross join lateral (
    select * from ql.dispatch_effect as v where v.run_id = i.run_id offset 0
  ) as e
  where e.input_id = any(v_new);
  perform ql.apply_effects(v_effects, 'dispatch');

  return query
  select
    w.attempt_id,
    w.outcome,
    w.code
  from ql.answers(
    ql.refuse_others(
      v_commands, v_new || ql.known_reports(v_commands, v_new, 'running'), 'QL410'
    )
  ) as w;
end;
$$;

ALTER FUNCTION ql_worker.running_attempts(p_commands text) OWNER TO ql_authority;

--
-- Name: start_attempts(text); Type: FUNCTION; Schema: ql_worker; Owner: ql_authority
--

CREATE FUNCTION ql_worker.start_attempts(p_commands text) RETURNS TABLE(attempt_id text, outcome text, code text, deadline_at_ms bigint, expires_at_ms bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET lock_timeout TO '100ms'
    AS $$
declare
  v_commands ql.command[] := ql.expand_commands(p_commands, 'starting');
  v_new text[];
  v_started text[];
  v_effects ql.effect[];
begin
  perform ql.assert_read_committed();
  v_commands := ql.lock_commands(v_commands);
  v_new := ql.accept_reports(v_commands, 'starting', ql.now_ms());

  select array_agg(row(e.*)::ql.effect)
  into v_effects
  from unnest(ql.runs_of(v_commands)) as i (run_id)
  cross join lateral (
    select * from ql.dispatch_effect as v where v.run_id = i.run_id offset 0
  ) as e
  where e.input_id = any(v_new);
  perform ql.apply_effects(v_effects, 'dispatch');

  -- what is new crossed the barrier by its effect; what is not is looked up
  v_started := array(select e.entity_id from unnest(v_effects) as e where e.to_status = 'starting')
    || array(
      select a.attempt_id
      from unnest(ql.known_reports(v_commands, v_new, 'starting')) as k (attempt_id)
      join ql.task_attempt as a on a.attempt_id = k.attempt_id
      where a.starting_at_ms is not null
        and (
          select l.status from ql.attempt_lease as l where l.attempt_id = a.attempt_id
        ) = 'leased'
    );
  v_commands := ql.refuse_others(v_commands, v_started, 'QL410');
  return query
  select
    w.attempt_id,
    w.outcome,
    w.code,
    a.deadline_at_ms,
    l.expires_at_ms
  from ql.answers(v_commands)
    with ordinality as w (attempt_id, outcome, code, position)
  left join ql.task_attempt as a on a.attempt_id = w.attempt_id and w.outcome = 'applied'
  left join ql.attempt_lease as l on l.attempt_id = w.attempt_id and w.outcome = 'applied'
  order by w.position;
end;
$$;

ALTER FUNCTION ql_worker.start_attempts(p_commands text) OWNER TO ql_authority;

--
-- Name: run; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.run (
    run_id text NOT NULL COLLATE pg_catalog."C",
    package_key text NOT NULL COLLATE pg_catalog."C",
    generation bigint NOT NULL,
    kind text NOT NULL COLLATE pg_catalog."C",
    target_key text NOT NULL COLLATE pg_catalog."C",
    target_id text NOT NULL COLLATE pg_catalog."C",
    run_key text NOT NULL COLLATE pg_catalog."C",
    input_digest text NOT NULL COLLATE pg_catalog."C",
    step_count bigint NOT NULL,
    deadline_at_ms bigint,
    retry_of_run_id text COLLATE pg_catalog."C",
    trigger_key text COLLATE pg_catalog."C",
    scheduled_at_ms bigint,
    admitted_at_ms bigint NOT NULL,
    status text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    attempt_count bigint NOT NULL,
    cancel_requested_at_ms bigint,
    cancel_reason text COLLATE pg_catalog."C",
    result_code text COLLATE pg_catalog."C",
    finished_at_ms bigint,
    updated_at_ms bigint NOT NULL,
    CONSTRAINT a_run_that_did_not_succeed_says_why CHECK (((status = ANY (ARRAY['running'::text, 'succeeded'::text])) = (result_code IS NULL))),
    CONSTRAINT an_intent_has_a_reason CHECK (((cancel_requested_at_ms IS NULL) = (cancel_reason IS NULL))),
    CONSTRAINT cancel_reason_is_known CHECK ((cancel_reason = ANY (ARRAY['user'::text, 'policy'::text, 'shutdown'::text, 'reconcile'::text, 'timeout'::text]))),
    CONSTRAINT only_a_terminal_run_has_an_end CHECK (((status = 'running'::text) = (finished_at_ms IS NULL))),
    CONSTRAINT run_attempts_within_bounds CHECK (((attempt_count >= 0) AND (attempt_count <= 8192))),
    CONSTRAINT run_id_fits CHECK (((length(run_id) >= 1) AND (length(run_id) <= 36))),
    CONSTRAINT run_kind_is_known CHECK ((kind = ANY (ARRAY['workflow'::text, 'task'::text]))),
    CONSTRAINT run_status_is_known CHECK ((status = ANY (ARRAY['running'::text, 'succeeded'::text, 'failed'::text, 'cancelled'::text, 'timed_out'::text]))),
    CONSTRAINT run_version_is_not_negative CHECK ((version >= 0))
)
WITH (fillfactor='70');

ALTER TABLE ql.run OWNER TO ql_migrator;

--
-- Name: step_run; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.step_run (
    run_id text NOT NULL COLLATE pg_catalog."C",
    step_key text NOT NULL COLLATE pg_catalog."C",
    task_id text NOT NULL COLLATE pg_catalog."C",
    status text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    attempt_count bigint NOT NULL,
    claim_return_count bigint NOT NULL,
    ready_at_ms bigint,
    started_at_ms bigint,
    finished_at_ms bigint,
    due_at_ms bigint,
    result_code text COLLATE pg_catalog."C",
    CONSTRAINT a_pending_step_has_no_times CHECK (((status <> 'pending'::text) OR ((ready_at_ms IS NULL) AND (started_at_ms IS NULL)))),
    CONSTRAINT a_ready_step_has_a_ready_time_only CHECK (((status <> ALL (ARRAY['ready'::text, 'waiting_approval'::text])) OR ((ready_at_ms IS NOT NULL) AND (started_at_ms IS NULL)))),
    CONSTRAINT a_running_step_has_started CHECK (((status <> ALL (ARRAY['running'::text, 'lost'::text])) OR ((ready_at_ms IS NOT NULL) AND (started_at_ms IS NOT NULL)))),
    CONSTRAINT a_step_that_did_not_succeed_says_why CHECK (((status = ANY (ARRAY['retry_wait'::text, 'lost'::text, 'failed'::text, 'skipped'::text, 'cancelled'::text, 'timed_out'::text])) = ((result_code IS NOT NULL) AND (result_code <> 'taken_over'::text)))),
    CONSTRAINT claim_returns_within_bounds CHECK (((claim_return_count >= 0) AND (claim_return_count <= 64))),
    CONSTRAINT only_a_succeeded_step_is_taken_over CHECK (((result_code <> 'taken_over'::text) OR (status = 'succeeded'::text))),
    CONSTRAINT only_a_terminal_step_has_an_end CHECK (((status = ANY (ARRAY['succeeded'::text, 'failed'::text, 'skipped'::text, 'cancelled'::text, 'timed_out'::text])) = (finished_at_ms IS NOT NULL))),
    CONSTRAINT only_a_waiting_retry_is_due CHECK (((status = 'retry_wait'::text) = (due_at_ms IS NOT NULL))),
    CONSTRAINT step_attempts_within_bounds CHECK (((attempt_count >= 0) AND (attempt_count <= 64))),
    CONSTRAINT step_status_is_known CHECK ((status = ANY (ARRAY['pending'::text, 'ready'::text, 'waiting_approval'::text, 'running'::text, 'retry_wait'::text, 'lost'::text, 'succeeded'::text, 'failed'::text, 'skipped'::text, 'cancelled'::text, 'timed_out'::text]))),
    CONSTRAINT step_times_grow CHECK (((ready_at_ms <= started_at_ms) AND (started_at_ms <= finished_at_ms))),
    CONSTRAINT step_version_starts_at_one CHECK ((version >= 1))
)
WITH (fillfactor='60');

ALTER TABLE ql.step_run OWNER TO ql_migrator;

--
-- Name: task_revision; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.task_revision (
    task_id text NOT NULL COLLATE pg_catalog."C",
    package_key text NOT NULL COLLATE pg_catalog."C",
    generation bigint NOT NULL,
    task_key text NOT NULL COLLATE pg_catalog."C",
    digest text NOT NULL COLLATE pg_catalog."C",
    spec text NOT NULL,
    timeout_ms bigint,
    retry_attempts bigint NOT NULL,
    backoff_ms bigint NOT NULL,
    max_backoff_ms bigint NOT NULL,
    retry_failed bigint NOT NULL,
    retry_timed_out bigint NOT NULL,
    idempotent bigint NOT NULL,
    on_lost text NOT NULL COLLATE pg_catalog."C",
    queue text NOT NULL COLLATE pg_catalog."C",
    CONSTRAINT attempts_within_bounds CHECK (((retry_attempts >= 1) AND (retry_attempts <= 64))),
    CONSTRAINT backoff_within_bounds CHECK (((backoff_ms >= 0) AND (backoff_ms <= 86400000))),
    CONSTRAINT max_backoff_within_bounds CHECK (((max_backoff_ms >= 0) AND (max_backoff_ms <= 86400000))),
    CONSTRAINT on_lost_is_known CHECK ((on_lost = ANY (ARRAY['retry'::text, 'fail'::text, 'hold'::text]))),
    CONSTRAINT only_idempotent_work_is_retried_when_lost CHECK (((on_lost <> 'retry'::text) OR (idempotent = 1))),
    CONSTRAINT queue_fits CHECK (((length(queue) >= 1) AND (length(queue) <= 200))),
    CONSTRAINT task_key_fits CHECK (((length(task_key) >= 1) AND (length(task_key) <= 127))),
    CONSTRAINT task_timeout_within_bounds CHECK (((timeout_ms >= 1) AND (timeout_ms <= '2592000000'::bigint)))
);

ALTER TABLE ql.task_revision OWNER TO ql_migrator;

--
-- Name: workflow_revision; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.workflow_revision (
    workflow_id text NOT NULL COLLATE pg_catalog."C",
    package_key text NOT NULL COLLATE pg_catalog."C",
    generation bigint NOT NULL,
    workflow_key text NOT NULL COLLATE pg_catalog."C",
    timeout_ms bigint,
    step_count bigint NOT NULL,
    CONSTRAINT steps_within_bounds CHECK (((step_count >= 1) AND (step_count <= 128))),
    CONSTRAINT workflow_key_fits CHECK (((length(workflow_key) >= 1) AND (length(workflow_key) <= 63))),
    CONSTRAINT workflow_timeout_within_bounds CHECK (((timeout_ms >= 1) AND (timeout_ms <= '2592000000'::bigint)))
);

ALTER TABLE ql.workflow_revision OWNER TO ql_migrator;

--
-- Name: workflow_step; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.workflow_step (
    workflow_id text NOT NULL COLLATE pg_catalog."C",
    step_key text NOT NULL COLLATE pg_catalog."C",
    task_id text NOT NULL COLLATE pg_catalog."C",
    need_count bigint NOT NULL,
    CONSTRAINT needs_within_bounds CHECK (((need_count >= 0) AND (need_count <= 127))),
    CONSTRAINT step_key_fits CHECK (((length(step_key) >= 1) AND (length(step_key) <= 63)))
);

ALTER TABLE ql.workflow_step OWNER TO ql_migrator;

--
-- Name: takeover_node; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.takeover_node AS
 SELECT r.run_id,
    r.retry_of_run_id AS retried_run_id,
    r.target_id,
    w.step_key,
    w.task_id,
    w.need_count
   FROM (ql.run r
     JOIN ql.workflow_step w ON ((w.workflow_id = r.target_id)))
  WHERE ((r.retry_of_run_id IS NOT NULL) AND (r.kind = 'workflow'::text))
UNION ALL
 SELECT r.run_id,
    r.retry_of_run_id AS retried_run_id,
    r.target_id,
    'main'::text AS step_key,
    r.target_id AS task_id,
    (0)::bigint AS need_count
   FROM ql.run r
  WHERE ((r.retry_of_run_id IS NOT NULL) AND (r.kind = 'task'::text))
UNION ALL
 SELECT r.run_id,
    r.run_id AS retried_run_id,
    w.workflow_id AS target_id,
    w.step_key,
    w.task_id,
    w.need_count
   FROM ((ql.run r
     JOIN ql.workflow_revision v ON (((v.package_key = r.package_key) AND (v.workflow_key = r.target_key))))
     JOIN ql.workflow_step w ON ((w.workflow_id = v.workflow_id)))
  WHERE (r.kind = 'workflow'::text)
UNION ALL
 SELECT r.run_id,
    r.run_id AS retried_run_id,
    k.task_id AS target_id,
    'main'::text AS step_key,
    k.task_id,
    (0)::bigint AS need_count
   FROM (ql.run r
     JOIN ql.task_revision k ON (((k.package_key = r.package_key) AND (k.task_key = r.target_key))))
  WHERE (r.kind = 'task'::text);

ALTER VIEW ql.takeover_node OWNER TO ql_migrator;

--
-- Name: workflow_ancestor; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.workflow_ancestor (
    workflow_id text NOT NULL COLLATE pg_catalog."C",
    ancestor_key text NOT NULL COLLATE pg_catalog."C",
    step_key text NOT NULL COLLATE pg_catalog."C",
    distance bigint NOT NULL,
    CONSTRAINT distance_within_bounds CHECK (((distance >= 1) AND (distance <= 127))),
    CONSTRAINT no_step_is_its_own_ancestor CHECK ((ancestor_key <> step_key))
);

ALTER TABLE ql.workflow_ancestor OWNER TO ql_migrator;

--
-- Name: takeover_alone; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.takeover_alone AS
 SELECT run_id,
    retried_run_id,
    target_id,
    step_key,
    task_id,
    need_count,
    status,
        CASE
            WHEN (status IS NULL) THEN 'not_there'::text
            WHEN (status <> 'succeeded'::text) THEN 'not_succeeded'::text
            WHEN (digest <> ( SELECT t.digest
               FROM (ql.step_run o
                 JOIN ql.task_revision t ON ((t.task_id = o.task_id)))
              WHERE ((o.run_id = s.retried_run_id) AND (o.step_key = s.step_key)))) THEN 'task_changed'::text
            WHEN ((need_count <> ( SELECT count(*) AS count
               FROM ql.workflow_ancestor o
              WHERE ((o.workflow_id = s.old_target_id) AND (o.step_key = s.step_key) AND (o.distance = 1)))) OR (need_count <> ( SELECT count(*) AS count
               FROM (ql.workflow_ancestor n
                 JOIN ql.workflow_ancestor o ON (((o.workflow_id = s.old_target_id) AND (o.ancestor_key = n.ancestor_key) AND (o.step_key = s.step_key))))
              WHERE ((n.workflow_id = s.target_id) AND (n.step_key = s.step_key) AND (n.distance = 1) AND (o.distance = 1))))) THEN 'needs_changed'::text
            ELSE NULL::text
        END AS cause
   FROM ( SELECT n.run_id,
            n.retried_run_id,
            n.target_id,
            n.step_key,
            n.task_id,
            n.need_count,
            ( SELECT t.digest
                   FROM ql.task_revision t
                  WHERE (t.task_id = n.task_id)) AS digest,
            ( SELECT r.target_id
                   FROM ql.run r
                  WHERE (r.run_id = n.retried_run_id)) AS old_target_id,
            ( SELECT o.status
                   FROM ql.step_run o
                  WHERE ((o.run_id = n.retried_run_id) AND (o.step_key = n.step_key))) AS status
           FROM ql.takeover_node n) s;

ALTER VIEW ql.takeover_alone OWNER TO ql_migrator;

--
-- Name: takeover; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.takeover AS
 SELECT run_id,
    retried_run_id,
    target_id,
    step_key,
    task_id,
    need_count,
    status,
        CASE
            WHEN (cause IS NOT NULL) THEN cause
            WHEN (below = 1) THEN 'need_runs_again'::text
            ELSE NULL::text
        END AS cause
   FROM ( SELECT u.run_id,
            u.retried_run_id,
            u.target_id,
            u.step_key,
            u.task_id,
            u.need_count,
            u.status,
            u.cause,
            u.part,
            max(u.part) OVER (PARTITION BY u.run_id, u.retried_run_id, u.target_id, u.step_key) AS below
           FROM ( SELECT a.run_id,
                    a.retried_run_id,
                    a.target_id,
                    a.step_key,
                    a.task_id,
                    a.need_count,
                    a.status,
                    a.cause,
                    0 AS part
                   FROM ql.takeover_alone a
                UNION ALL
                 SELECT a.run_id,
                    a.retried_run_id,
                    a.target_id,
                    w.step_key,
                    NULL::text AS task_id,
                    NULL::bigint AS need_count,
                    NULL::text AS status,
                    NULL::text AS cause,
                    1 AS part
                   FROM (ql.takeover_alone a
                     JOIN ql.workflow_ancestor w ON (((w.workflow_id = a.target_id) AND (w.ancestor_key = a.step_key))))
                  WHERE (a.cause IS NOT NULL)) u) e
  WHERE (part = 0);

ALTER VIEW ql.takeover OWNER TO ql_migrator;

--
-- Name: admission_effect; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.admission_effect AS
 SELECT run_id,
    row_number() OVER (PARTITION BY run_id ORDER BY part, entity_id) AS ordinal,
    entity,
    entity_id,
    NULL::text AS from_status,
    to_status,
    (0)::bigint AS expected_version,
        CASE
            WHEN (to_status = 'succeeded'::text) THEN 'taken_over'::text
            ELSE NULL::text
        END AS result_code,
        CASE
            WHEN (entity = 'run'::text) THEN 'workflow.admitted'::text
            WHEN (to_status = 'succeeded'::text) THEN 'step.taken_over'::text
            ELSE 'step.created'::text
        END AS event_type,
    NULL::bigint AS due_at_ms,
    input_id
   FROM ( SELECT r.run_id,
            1 AS part,
            'run'::text AS entity,
            r.run_id AS entity_id,
            'running'::text AS to_status,
            NULL::text AS input_id
           FROM ql.run r
          WHERE (r.version = 0)
        UNION ALL
         SELECT r.run_id,
            2 AS part,
            'step'::text AS entity,
            w.step_key AS entity_id,
                CASE
                    WHEN (w.need_count = 0) THEN 'ready'::text
                    ELSE 'pending'::text
                END AS to_status,
            w.task_id AS input_id
           FROM (ql.run r
             JOIN ql.workflow_step w ON ((w.workflow_id = r.target_id)))
          WHERE ((r.version = 0) AND (r.kind = 'workflow'::text) AND (r.retry_of_run_id IS NULL))
        UNION ALL
         SELECT r.run_id,
            2 AS part,
            'step'::text AS entity,
            'main'::text AS entity_id,
            'ready'::text AS to_status,
            r.target_id AS input_id
           FROM ql.run r
          WHERE ((r.version = 0) AND (r.kind = 'task'::text) AND (r.retry_of_run_id IS NULL))
        UNION ALL
         SELECT k.run_id,
            2 AS part,
            'step'::text AS entity,
            k.step_key AS entity_id,
                CASE
                    WHEN (k.cause IS NULL) THEN 'succeeded'::text
                    WHEN (k.need_count = 0) THEN 'ready'::text
                    ELSE 'pending'::text
                END AS to_status,
            k.task_id AS input_id
           FROM ql.takeover k
          WHERE ((k.retried_run_id <> k.run_id) AND (( SELECT r.version
                   FROM ql.run r
                  WHERE (r.run_id = k.run_id)) = 0))) e;

ALTER VIEW ql.admission_effect OWNER TO ql_migrator;

--
-- Name: agenda; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.agenda (
    run_id text NOT NULL COLLATE pg_catalog."C",
    stage text NOT NULL COLLATE pg_catalog."C",
    due_at_ms bigint NOT NULL,
    CONSTRAINT stage_is_known CHECK ((stage = ANY (ARRAY['frontier'::text, 'task_admission'::text, 'cancellation'::text, 'deadline'::text, 'retry'::text, 'expiry'::text])))
)
WITH (fillfactor='50');

ALTER TABLE ql.agenda OWNER TO ql_migrator;

--
-- Name: retry_longest; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.retry_longest AS
 SELECT s.run_id,
    s.step_key,
    s.due_at_ms,
    ((t.max_backoff_ms + (t.max_backoff_ms / 8)) + (5 * 1023)) AS longest_ms
   FROM (ql.step_run s
     JOIN ql.task_revision t ON ((t.task_id = s.task_id)))
  WHERE (s.status = 'retry_wait'::text);

ALTER VIEW ql.retry_longest OWNER TO ql_migrator;

--
-- Name: run_fault; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.run_fault (
    run_id text NOT NULL COLLATE pg_catalog."C",
    stage text NOT NULL COLLATE pg_catalog."C",
    error text NOT NULL,
    fault_count bigint NOT NULL,
    first_at_ms bigint NOT NULL,
    last_at_ms bigint NOT NULL,
    next_try_at_ms bigint NOT NULL,
    CONSTRAINT fault_error_fits CHECK ((octet_length(error) <= 2048))
);

ALTER TABLE ql.run_fault OWNER TO ql_migrator;

--
-- Name: agenda_ahead; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.agenda_ahead AS
 SELECT run_id,
    stage,
    due_at_ms,
        CASE
            WHEN (faults > 0) THEN (due_at_ms - 300000)
            WHEN (stage = 'retry'::text) THEN ( SELECT max((w.due_at_ms - w.longest_ms)) AS max
               FROM ql.retry_longest w
              WHERE (w.run_id = a.run_id))
            ELSE due_at_ms
        END AS since_ms,
        CASE
            WHEN (faults > 0) THEN 300000
            ELSE 0
        END AS wait_ms
   FROM ( SELECT g.run_id,
            g.stage,
            g.due_at_ms,
            ( SELECT count(*) AS count
                   FROM ql.run_fault f
                  WHERE ((f.run_id = g.run_id) AND (f.stage = g.stage))) AS faults
           FROM ql.agenda g) a
  WHERE ((faults > 0) OR (stage = ANY (ARRAY['frontier'::text, 'task_admission'::text, 'cancellation'::text, 'retry'::text])));

ALTER VIEW ql.agenda_ahead OWNER TO ql_migrator;

--
-- Name: attempt_lease; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.attempt_lease (
    attempt_id text NOT NULL COLLATE pg_catalog."C",
    run_id text NOT NULL COLLATE pg_catalog."C",
    status text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    fence bigint NOT NULL,
    offer_id text NOT NULL COLLATE pg_catalog."C",
    worker_id text NOT NULL COLLATE pg_catalog."C",
    token_digest text NOT NULL COLLATE pg_catalog."C",
    self_fencing bigint NOT NULL,
    grace_ms bigint NOT NULL,
    leased_at_ms bigint NOT NULL,
    expires_at_ms bigint NOT NULL,
    closed_at_ms bigint,
    CONSTRAINT fence_starts_at_one CHECK ((fence >= 1)),
    CONSTRAINT lease_status_is_known CHECK ((status = ANY (ARRAY['leased'::text, 'released'::text, 'completed'::text]))),
    CONSTRAINT lease_version_starts_at_one CHECK ((version >= 1)),
    CONSTRAINT only_a_closed_lease_has_an_end CHECK (((status = 'leased'::text) = (closed_at_ms IS NULL)))
)
WITH (fillfactor='50');

ALTER TABLE ql.attempt_lease OWNER TO ql_migrator;

--
-- Name: task_attempt; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.task_attempt (
    attempt_id text NOT NULL COLLATE pg_catalog."C",
    run_id text NOT NULL COLLATE pg_catalog."C",
    number bigint NOT NULL,
    step_key text NOT NULL COLLATE pg_catalog."C",
    epoch bigint NOT NULL,
    task_id text NOT NULL COLLATE pg_catalog."C",
    queue text NOT NULL COLLATE pg_catalog."C",
    jitter bigint NOT NULL,
    admitted_at_ms bigint NOT NULL,
    status text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    offer_at_ms bigint,
    deadline_at_ms bigint,
    identity text,
    starting_at_ms bigint,
    started_at_ms bigint,
    finished_at_ms bigint,
    exit_code bigint,
    result_code text COLLATE pg_catalog."C",
    CONSTRAINT a_claimed_attempt_has_not_crossed_the_barrier CHECK (((status <> 'claimed'::text) OR ((starting_at_ms IS NULL) AND (started_at_ms IS NULL)))),
    CONSTRAINT a_started_attempt_crossed_the_barrier CHECK (((status <> ALL (ARRAY['starting'::text, 'running'::text])) OR (starting_at_ms IS NOT NULL))),
    CONSTRAINT an_attempt_that_did_not_succeed_says_why CHECK (((status = ANY (ARRAY['failed'::text, 'cancelled'::text, 'timed_out'::text, 'lost'::text])) = (result_code IS NOT NULL))),
    CONSTRAINT attempt_number_within_bounds CHECK (((number >= 1) AND (number <= 8192))),
    CONSTRAINT attempt_status_is_known CHECK ((status = ANY (ARRAY['claimed'::text, 'starting'::text, 'running'::text, 'succeeded'::text, 'failed'::text, 'cancelled'::text, 'timed_out'::text, 'lost'::text]))),
    CONSTRAINT attempt_version_starts_at_one CHECK ((version >= 1)),
    CONSTRAINT identity_fits CHECK ((octet_length(identity) <= 512)),
    CONSTRAINT jitter_within_bounds CHECK (((jitter >= 0) AND (jitter <= 1023))),
    CONSTRAINT only_a_claimed_attempt_is_offered CHECK (((status = 'claimed'::text) = (offer_at_ms IS NOT NULL))),
    CONSTRAINT only_a_terminal_attempt_has_an_end CHECK (((status = ANY (ARRAY['claimed'::text, 'starting'::text, 'running'::text])) = (finished_at_ms IS NULL)))
)
WITH (fillfactor='50');

ALTER TABLE ql.task_attempt OWNER TO ql_migrator;

--
-- Name: live_attempt; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.live_attempt AS
 SELECT a.run_id,
    a.attempt_id,
    a.step_key,
    a.status,
    a.version,
    a.epoch,
    a.deadline_at_ms,
    a.jitter,
    l.status AS lease_status,
    l.version AS lease_version,
    l.fence,
    ( SELECT r.cancel_reason
           FROM ql.run r
          WHERE (r.run_id = a.run_id)) AS cancel_reason,
    s.status AS step_status,
    s.version AS step_version,
    (s.attempt_count +
        CASE
            WHEN (s.status = 'ready'::text) THEN 1
            ELSE 0
        END) AS started_count,
    s.claim_return_count,
    t.retry_attempts,
    t.retry_failed,
    t.retry_timed_out,
    t.on_lost,
    ( SELECT (d.delay_ms + ((d.delay_ms * a.jitter) / 8192))
           FROM ( SELECT
                        CASE
                            WHEN ((t.max_backoff_ms >> ((s.attempt_count +
                            CASE
                                WHEN (s.status = 'ready'::text) THEN 0
                                ELSE '-1'::integer
                            END))::integer) < t.backoff_ms) THEN t.max_backoff_ms
                            ELSE (t.backoff_ms << ((s.attempt_count +
                            CASE
                                WHEN (s.status = 'ready'::text) THEN 0
                                ELSE '-1'::integer
                            END))::integer)
                        END AS delay_ms) d) AS delay_ms
   FROM (((ql.task_attempt a
     JOIN ql.step_run s ON (((s.run_id = a.run_id) AND (s.step_key = a.step_key))))
     LEFT JOIN ql.attempt_lease l ON ((l.attempt_id = a.attempt_id)))
     LEFT JOIN ql.task_revision t ON ((t.task_id = a.task_id)))
  WHERE (a.status = ANY (ARRAY['claimed'::text, 'starting'::text, 'running'::text]));

ALTER VIEW ql.live_attempt OWNER TO ql_migrator;

--
-- Name: cancellation_blocked; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.cancellation_blocked AS
 SELECT v.run_id,
    v.step_key,
    v.attempt_id,
        CASE
            WHEN (v.status = 'claimed'::text) THEN 'lease'::text
            ELSE 'report'::text
        END AS waits_for
   FROM ql.live_attempt v
  WHERE ((v.cancel_reason IS NOT NULL) AND ((v.status <> 'claimed'::text) OR (v.lease_status = 'leased'::text)))
UNION ALL
 SELECT s.run_id,
    s.step_key,
    NULL::text AS attempt_id,
    'evidence'::text AS waits_for
   FROM ql.step_run s
  WHERE ((s.status = 'running'::text) AND (( SELECT r.cancel_reason
           FROM ql.run r
          WHERE (r.run_id = s.run_id)) IS NOT NULL) AND (NOT (EXISTS ( SELECT 1
           FROM ql.task_attempt a
          WHERE ((a.run_id = s.run_id) AND (a.step_key = s.step_key) AND (a.status = ANY (ARRAY['claimed'::text, 'starting'::text, 'running'::text])))))));

ALTER VIEW ql.cancellation_blocked OWNER TO ql_migrator;

--
-- Name: cancellation_effect; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.cancellation_effect AS
 SELECT run_id,
    row_number() OVER (PARTITION BY run_id ORDER BY part, entity_id) AS ordinal,
    entity,
    entity_id,
    from_status,
    to_status,
    expected_version,
    (
        CASE entity
            WHEN 'attempt'::text THEN 'execution_'::text
            ELSE 'workflow_'::text
        END || to_status) AS result_code,
    (
        CASE entity
            WHEN 'attempt'::text THEN 'workflow.task_attempt.'::text
            WHEN 'step'::text THEN 'step.'::text
            ELSE 'workflow.'::text
        END || to_status) AS event_type,
    NULL::bigint AS due_at_ms,
    NULL::text AS input_id
   FROM ( SELECT v.run_id,
            1 AS part,
            'attempt'::text AS entity,
            v.attempt_id AS entity_id,
            v.status AS from_status,
                CASE
                    WHEN (v.cancel_reason = 'timeout'::text) THEN 'timed_out'::text
                    ELSE 'cancelled'::text
                END AS to_status,
            v.version AS expected_version
           FROM ql.live_attempt v
          WHERE ((v.status = 'claimed'::text) AND (v.lease_status IS DISTINCT FROM 'leased'::text) AND (v.cancel_reason IS NOT NULL))
        UNION ALL
         SELECT s.run_id,
            2 AS part,
            'step'::text AS entity,
            s.step_key AS entity_id,
            s.status AS from_status,
                CASE
                    WHEN (s.status = ANY (ARRAY['pending'::text, 'lost'::text])) THEN 'cancelled'::text
                    WHEN (( SELECT r.cancel_reason
                       FROM ql.run r
                      WHERE (r.run_id = s.run_id)) = 'timeout'::text) THEN 'timed_out'::text
                    ELSE 'cancelled'::text
                END AS to_status,
            s.version AS expected_version
           FROM ql.step_run s
          WHERE ((s.status = ANY (ARRAY['pending'::text, 'lost'::text, 'ready'::text, 'waiting_approval'::text, 'retry_wait'::text])) AND (( SELECT r.cancel_reason
                   FROM ql.run r
                  WHERE (r.run_id = s.run_id)) IS NOT NULL) AND (NOT (EXISTS ( SELECT 1
                   FROM ql.task_attempt a
                  WHERE ((a.run_id = s.run_id) AND (a.step_key = s.step_key) AND ((a.status = ANY (ARRAY['starting'::text, 'running'::text])) OR ((a.status = 'claimed'::text) AND (NOT (( SELECT l.status
                           FROM ql.attempt_lease l
                          WHERE (l.attempt_id = a.attempt_id)) IS DISTINCT FROM 'leased'::text)))))))))
        UNION ALL
         SELECT r.run_id,
            3 AS part,
            'run'::text AS entity,
            r.run_id AS entity_id,
            'running'::text AS from_status,
                CASE
                    WHEN (r.cancel_reason = 'timeout'::text) THEN 'timed_out'::text
                    ELSE 'cancelled'::text
                END AS to_status,
            r.version AS expected_version
           FROM ql.run r
          WHERE ((r.cancel_reason IS NOT NULL) AND (( SELECT count(*) AS count
                   FROM ql.cancellation_blocked b
                  WHERE (b.run_id = r.run_id)) = 0))) e
  WHERE (( SELECT
                CASE
                    WHEN (r.cancel_requested_at_ms IS NOT NULL) THEN r.status
                    ELSE NULL::text
                END AS "case"
           FROM ql.run r
          WHERE (r.run_id = e.run_id)) = 'running'::text);

ALTER VIEW ql.cancellation_effect OWNER TO ql_migrator;

--
-- Name: frontier_ready; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.frontier_ready AS
 SELECT run_id,
    step_key,
    version
   FROM ql.step_run s
  WHERE ((status = 'pending'::text) AND (NOT (EXISTS ( SELECT 1
           FROM ql.workflow_ancestor w
          WHERE ((w.workflow_id = ( SELECT r.target_id
                   FROM ql.run r
                  WHERE (r.run_id = s.run_id))) AND (w.step_key = s.step_key) AND (w.distance = 1) AND (NOT (EXISTS ( SELECT 1
                   FROM ql.step_run n
                  WHERE ((n.run_id = s.run_id) AND (n.step_key = w.ancestor_key) AND (n.status = 'succeeded'::text))))))))));

ALTER VIEW ql.frontier_ready OWNER TO ql_migrator;

--
-- Name: frontier_skip; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.frontier_skip AS
 SELECT DISTINCT b.run_id,
    s.step_key,
    s.version
   FROM ((( SELECT DISTINCT n.run_id,
            n.step_key
           FROM ql.step_run n
          WHERE (n.status = ANY (ARRAY['failed'::text, 'skipped'::text, 'cancelled'::text, 'timed_out'::text]))) b
     JOIN ql.workflow_ancestor w ON (((w.workflow_id = ( SELECT r.target_id
           FROM ql.run r
          WHERE (r.run_id = b.run_id))) AND (w.ancestor_key = b.step_key))))
     JOIN ql.step_run s ON (((s.run_id = b.run_id) AND (s.step_key = w.step_key))))
  WHERE (s.status = 'pending'::text);

ALTER VIEW ql.frontier_skip OWNER TO ql_migrator;

--
-- Name: frontier_effect; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.frontier_effect AS
 SELECT run_id,
    row_number() OVER (PARTITION BY run_id ORDER BY part, entity_id) AS ordinal,
    entity,
    entity_id,
    from_status,
    to_status,
    expected_version,
    result_code,
    event_type,
    NULL::bigint AS due_at_ms,
    NULL::text AS input_id
   FROM ( SELECT f.run_id,
            1 AS part,
            'step'::text AS entity,
            f.step_key AS entity_id,
            'pending'::text AS from_status,
            'ready'::text AS to_status,
            f.version AS expected_version,
            NULL::text AS result_code,
            'step.ready'::text AS event_type
           FROM ql.frontier_ready f
        UNION ALL
         SELECT f.run_id,
            1 AS part,
            'step'::text AS entity,
            f.step_key AS entity_id,
            'pending'::text AS from_status,
            'skipped'::text AS to_status,
            f.version AS expected_version,
            'dependency_not_succeeded'::text AS result_code,
            'step.skipped'::text AS event_type
           FROM ql.frontier_skip f
        UNION ALL
         SELECT d.run_id,
            2 AS part,
            'run'::text AS entity,
            d.run_id AS entity_id,
            'running'::text AS from_status,
            d.to_status,
            d.version AS expected_version,
                CASE
                    WHEN (d.to_status <> 'succeeded'::text) THEN ('workflow_step_'::text || d.to_status)
                    ELSE NULL::text
                END AS result_code,
            ('workflow.'::text || d.to_status) AS event_type
           FROM ( SELECT r.run_id,
                    r.version,
                    ( SELECT
                                CASE min(
                                    CASE t.status
WHEN 'failed'::text THEN 1
WHEN 'timed_out'::text THEN 2
WHEN 'cancelled'::text THEN 3
ELSE 4
                                    END)
                                    WHEN 1 THEN 'failed'::text
                                    WHEN 2 THEN 'timed_out'::text
                                    WHEN 3 THEN 'cancelled'::text
                                    ELSE 'succeeded'::text
                                END AS "case"
                           FROM ql.step_run t
                          WHERE (t.run_id = r.run_id)) AS to_status
                   FROM ql.run r
                  WHERE ((NOT (EXISTS ( SELECT 1
                           FROM ql.step_run a
                          WHERE ((a.run_id = r.run_id) AND (a.status = ANY (ARRAY['ready'::text, 'waiting_approval'::text, 'running'::text, 'retry_wait'::text, 'lost'::text])))))) AND (NOT (EXISTS ( SELECT 1
                           FROM ql.frontier_ready f
                          WHERE (f.run_id = r.run_id)))))) d) e
  WHERE (( SELECT
                CASE
                    WHEN (r.cancel_requested_at_ms IS NULL) THEN r.status
                    ELSE NULL::text
                END AS "case"
           FROM ql.run r
          WHERE (r.run_id = e.run_id)) = 'running'::text);

ALTER VIEW ql.frontier_effect OWNER TO ql_migrator;

--
-- Name: recovery_due; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.recovery_due AS
 SELECT v.run_id,
    v.attempt_id,
        CASE
            WHEN (v.status = 'claimed'::text) THEN 'expired'::text
            ELSE 'fenced'::text
        END AS evidence,
    (l.expires_at_ms +
        CASE
            WHEN (v.status = 'claimed'::text) THEN (0)::bigint
            ELSE l.grace_ms
        END) AS due_at_ms
   FROM (ql.live_attempt v
     JOIN ql.attempt_lease l ON ((l.attempt_id = v.attempt_id)))
  WHERE ((l.status = 'leased'::text) AND ((v.status = 'claimed'::text) OR ((l.self_fencing = 1) AND (v.on_lost <> 'hold'::text))));

ALTER VIEW ql.recovery_due OWNER TO ql_migrator;

--
-- Name: task_admission_effect; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.task_admission_effect AS
 SELECT run_id,
    row_number() OVER (PARTITION BY run_id ORDER BY step_key) AS ordinal,
        CASE
            WHEN (number <= 8192) THEN 'attempt'::text
            ELSE 'step'::text
        END AS entity,
        CASE
            WHEN (number <= 8192) THEN ((run_id || '-'::text) || (number)::text)
            ELSE step_key
        END AS entity_id,
        CASE
            WHEN (number > 8192) THEN 'ready'::text
            ELSE NULL::text
        END AS from_status,
        CASE
            WHEN (number <= 8192) THEN 'claimed'::text
            ELSE 'failed'::text
        END AS to_status,
        CASE
            WHEN (number <= 8192) THEN (0)::bigint
            ELSE version
        END AS expected_version,
        CASE
            WHEN (number > 8192) THEN 'attempt_budget_exhausted'::text
            ELSE NULL::text
        END AS result_code,
        CASE
            WHEN (number <= 8192) THEN 'workflow.task_attempt_admitted'::text
            ELSE 'step.failed'::text
        END AS event_type,
    NULL::bigint AS due_at_ms,
        CASE
            WHEN (number <= 8192) THEN step_key
            ELSE NULL::text
        END AS input_id
   FROM ( SELECT s.run_id,
            s.step_key,
            s.version,
            (( SELECT r.attempt_count
                   FROM ql.run r
                  WHERE (r.run_id = s.run_id)) + row_number() OVER (PARTITION BY s.run_id ORDER BY s.step_key)) AS number
           FROM ql.step_run s
          WHERE ((s.status = 'ready'::text) AND (NOT (EXISTS ( SELECT 1
                   FROM ql.task_attempt a
                  WHERE ((a.run_id = s.run_id) AND (a.step_key = s.step_key) AND (a.epoch = s.version))))) AND (( SELECT
                        CASE
                            WHEN (r.cancel_requested_at_ms IS NULL) THEN r.status
                            ELSE NULL::text
                        END AS "case"
                   FROM ql.run r
                  WHERE (r.run_id = s.run_id)) = 'running'::text))) e;

ALTER VIEW ql.task_admission_effect OWNER TO ql_migrator;

--
-- Name: agenda_missing; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.agenda_missing AS
 SELECT run_id,
    stage,
    due_at_ms
   FROM ( SELECT DISTINCT f.run_id,
            'frontier'::text AS stage,
            (0)::bigint AS due_at_ms
           FROM ql.frontier_effect f
        UNION ALL
         SELECT DISTINCT t.run_id,
            'task_admission'::text AS stage,
            (0)::bigint AS due_at_ms
           FROM ql.task_admission_effect t
        UNION ALL
         SELECT DISTINCT c.run_id,
            'cancellation'::text AS stage,
            (0)::bigint AS due_at_ms
           FROM ql.cancellation_effect c
        UNION ALL
         SELECT r.run_id,
            'deadline'::text AS stage,
            r.deadline_at_ms AS due_at_ms
           FROM ql.run r
          WHERE ((r.status = 'running'::text) AND (r.cancel_requested_at_ms IS NULL) AND (r.deadline_at_ms IS NOT NULL))
        UNION ALL
         SELECT s.run_id,
            'retry'::text AS stage,
            min(s.due_at_ms) AS due_at_ms
           FROM ql.step_run s
          WHERE ((s.status = 'retry_wait'::text) AND (( SELECT
                        CASE
                            WHEN (r.cancel_requested_at_ms IS NULL) THEN r.status
                            ELSE NULL::text
                        END AS "case"
                   FROM ql.run r
                  WHERE (r.run_id = s.run_id)) = 'running'::text))
          GROUP BY s.run_id
        UNION ALL
         SELECT d.run_id,
            'expiry'::text AS stage,
            min(d.due_at_ms) AS due_at_ms
           FROM ql.recovery_due d
          GROUP BY d.run_id) m
  WHERE (NOT (EXISTS ( SELECT 1
           FROM ql.agenda a
          WHERE ((a.run_id = m.run_id) AND (a.stage = m.stage) AND ((a.due_at_ms <= m.due_at_ms) OR (m.due_at_ms = 0) OR (EXISTS ( SELECT 1
                   FROM ql.run_fault f
                  WHERE ((f.run_id = m.run_id) AND (f.stage = m.stage)))))))));

ALTER VIEW ql.agenda_missing OWNER TO ql_migrator;

--
-- Name: agenda_state; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.agenda_state AS
 SELECT run_id,
    stage,
    due_at_ms
   FROM ql.agenda a;

ALTER VIEW ql.agenda_state OWNER TO ql_migrator;

--
-- Name: attempt_offer; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.attempt_offer (
    run_id text NOT NULL COLLATE pg_catalog."C",
    attempt_id text NOT NULL COLLATE pg_catalog."C",
    fence bigint NOT NULL,
    offer_id text NOT NULL COLLATE pg_catalog."C",
    worker_id text NOT NULL COLLATE pg_catalog."C",
    token_digest text NOT NULL COLLATE pg_catalog."C",
    self_fencing bigint NOT NULL,
    grace_ms bigint NOT NULL,
    offered_at_ms bigint NOT NULL,
    expires_at_ms bigint NOT NULL,
    CONSTRAINT token_is_a_digest CHECK ((length(token_digest) = 64))
);

ALTER TABLE ql.attempt_offer OWNER TO ql_migrator;

--
-- Name: attempt_report; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.attempt_report (
    run_id text NOT NULL COLLATE pg_catalog."C",
    attempt_id text NOT NULL COLLATE pg_catalog."C",
    fence bigint NOT NULL,
    kind text NOT NULL COLLATE pg_catalog."C",
    how text COLLATE pg_catalog."C",
    exit_code bigint,
    identity text,
    output text,
    error text,
    reported_at_ms bigint NOT NULL,
    CONSTRAINT an_end_says_how CHECK (((kind = 'ended'::text) = (how IS NOT NULL))),
    CONSTRAINT how_is_known CHECK ((how = ANY (ARRAY['exit'::text, 'signal'::text, 'stop'::text, 'deadline'::text, 'start_failed'::text, 'bad_output'::text, 'not_started'::text]))),
    CONSTRAINT report_error_fits CHECK ((octet_length(error) <= 2048)),
    CONSTRAINT report_kind_is_known CHECK ((kind = ANY (ARRAY['starting'::text, 'running'::text, 'ended'::text]))),
    CONSTRAINT report_output_fits CHECK ((octet_length(output) <= 16384))
);

ALTER TABLE ql.attempt_report OWNER TO ql_migrator;

--
-- Name: attempt_state; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.attempt_state AS
 SELECT run_id,
    attempt_id,
    number,
    step_key,
    epoch,
    queue,
    status,
    admitted_at_ms,
    starting_at_ms,
    started_at_ms,
    finished_at_ms,
    deadline_at_ms,
    exit_code,
    result_code,
    ( SELECT l.status
           FROM ql.attempt_lease l
          WHERE (l.attempt_id = a.attempt_id)) AS lease_status,
    ( SELECT l.worker_id
           FROM ql.attempt_lease l
          WHERE (l.attempt_id = a.attempt_id)) AS worker_id,
    ( SELECT l.offer_id
           FROM ql.attempt_lease l
          WHERE (l.attempt_id = a.attempt_id)) AS offer_id,
    ( SELECT l.fence
           FROM ql.attempt_lease l
          WHERE (l.attempt_id = a.attempt_id)) AS fence,
    ( SELECT l.expires_at_ms
           FROM ql.attempt_lease l
          WHERE (l.attempt_id = a.attempt_id)) AS lease_expires_at_ms,
    ( SELECT p.error
           FROM ql.attempt_report p
          WHERE ((p.run_id = a.run_id) AND (p.attempt_id = a.attempt_id) AND (p.kind = 'ended'::text))
          ORDER BY p.fence DESC
         LIMIT 1) AS error
   FROM ql.task_attempt a;

ALTER VIEW ql.attempt_state OWNER TO ql_migrator;

--
-- Name: attestation; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.attestation (
    run_id text NOT NULL COLLATE pg_catalog."C",
    attempt_id text NOT NULL COLLATE pg_catalog."C",
    evidence text NOT NULL COLLATE pg_catalog."C",
    follow text COLLATE pg_catalog."C",
    reason text NOT NULL,
    actor text NOT NULL,
    attested_at_ms bigint NOT NULL,
    CONSTRAINT evidence_is_known CHECK ((evidence = ANY (ARRAY['expired'::text, 'fenced'::text, 'attested'::text, 'declared'::text]))),
    CONSTRAINT follow_is_known CHECK ((follow = ANY (ARRAY['retry'::text, 'fail'::text]))),
    CONSTRAINT only_a_declaration_says_what_follows CHECK (((follow IS NULL) OR (evidence = 'declared'::text)))
);

ALTER TABLE ql.attestation OWNER TO ql_migrator;

--
-- Name: attestation_state; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.attestation_state AS
 SELECT run_id,
    attempt_id,
    evidence,
    follow,
    reason,
    actor,
    attested_at_ms
   FROM ql.attestation n;

ALTER VIEW ql.attestation_state OWNER TO ql_migrator;

--
-- Name: cancel_intent; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.cancel_intent (
    run_id text NOT NULL COLLATE pg_catalog."C",
    reason text NOT NULL COLLATE pg_catalog."C",
    actor text NOT NULL,
    requested_at_ms bigint NOT NULL,
    CONSTRAINT intent_reason_is_known CHECK ((reason = ANY (ARRAY['user'::text, 'policy'::text, 'shutdown'::text, 'reconcile'::text, 'timeout'::text])))
);

ALTER TABLE ql.cancel_intent OWNER TO ql_migrator;

--
-- Name: completion_end; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.completion_end AS
 SELECT run_id,
    attempt_id,
    step_key,
    status,
    version,
    step_status,
    step_version,
    claim_return_count,
    attempt_end,
        CASE attempt_end
            WHEN 'lost'::text THEN 'not_started'::text
            WHEN 'timed_out'::text THEN 'execution_timed_out'::text
            WHEN 'cancelled'::text THEN 'execution_cancelled'::text
            WHEN 'failed'::text THEN
            CASE how
                WHEN 'bad_output'::text THEN 'bad_output'::text
                WHEN 'start_failed'::text THEN 'executor_start_failed'::text
                WHEN 'stop'::text THEN 'execution_stopped'::text
                ELSE 'execution_failed'::text
            END
            ELSE NULL::text
        END AS code,
        CASE
            WHEN ((cancel_reason IS NULL) AND (started_count < retry_attempts) AND (((attempt_end = 'failed'::text) AND (retry_failed = 1)) OR ((attempt_end = 'timed_out'::text) AND (retry_timed_out = 1)))) THEN (reported_at_ms + delay_ms)
            ELSE NULL::bigint
        END AS retry_at_ms
   FROM ( SELECT v.run_id,
            v.attempt_id,
            v.step_key,
            v.status,
            v.version,
            v.step_status,
            v.step_version,
            v.started_count,
            v.claim_return_count,
            v.retry_attempts,
            v.retry_failed,
            v.retry_timed_out,
            v.delay_ms,
            v.cancel_reason,
            p.reported_at_ms,
            p.how,
            ( SELECT
                        CASE
                            WHEN (p.how = 'not_started'::text) THEN 'lost'::text
                            WHEN (r.cancel_reason = 'timeout'::text) THEN 'timed_out'::text
                            WHEN (r.cancel_reason IS NOT NULL) THEN 'cancelled'::text
                            WHEN ((p.how = 'deadline'::text) OR (v.deadline_at_ms <= p.reported_at_ms)) THEN 'timed_out'::text
                            WHEN ((p.how = 'exit'::text) AND (p.exit_code = 0)) THEN 'succeeded'::text
                            ELSE 'failed'::text
                        END AS "case"
                   FROM ql.run r
                  WHERE (r.run_id = v.run_id)) AS attempt_end,
            row_number() OVER (PARTITION BY v.run_id ORDER BY v.attempt_id) AS "position"
           FROM (ql.live_attempt v
             JOIN ql.attempt_report p ON (((p.run_id = v.run_id) AND (p.attempt_id = v.attempt_id) AND (p.kind = 'ended'::text))))
          WHERE ((p.fence = ( SELECT l.fence
                   FROM ql.attempt_lease l
                  WHERE ((l.attempt_id = v.attempt_id) AND (l.status = 'leased'::text)))) AND ((v.status = ANY (ARRAY['starting'::text, 'running'::text])) OR (p.how = 'not_started'::text)) AND ((v.status <> 'running'::text) OR (p.how <> 'not_started'::text)))) x;

ALTER VIEW ql.completion_end OWNER TO ql_migrator;

--
-- Name: completion_effect; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.completion_effect AS
 SELECT run_id,
    row_number() OVER (PARTITION BY run_id ORDER BY attempt_id, part) AS ordinal,
        CASE part
            WHEN 2 THEN 'attempt'::text
            ELSE 'step'::text
        END AS entity,
        CASE part
            WHEN 2 THEN attempt_id
            ELSE step_key
        END AS entity_id,
    from_status,
    to_status,
        CASE
            WHEN (part = 2) THEN version
            WHEN ((part = 3) AND (from_status = 'running'::text) AND (step_status = 'ready'::text)) THEN (step_version + 1)
            ELSE step_version
        END AS expected_version,
        CASE
            WHEN ((part = 1) OR (to_status = 'ready'::text)) THEN NULL::text
            WHEN ((part = 3) AND (from_status = 'ready'::text)) THEN 'claim_budget_exhausted'::text
            ELSE code
        END AS result_code,
    (
        CASE part
            WHEN 2 THEN 'workflow.task_attempt.'::text
            ELSE 'step.'::text
        END || to_status) AS event_type,
        CASE
            WHEN (to_status = 'retry_wait'::text) THEN retry_at_ms
            ELSE NULL::bigint
        END AS due_at_ms,
    attempt_id AS input_id
   FROM ( SELECT c.run_id,
            c.attempt_id,
            c.step_key,
            c.version,
            c.step_status,
            c.step_version,
            c.code,
            c.retry_at_ms,
            b.part,
                CASE
                    WHEN (b.part = 2) THEN c.status
                    WHEN ((b.part = 1) OR (c.attempt_end = 'lost'::text)) THEN 'ready'::text
                    ELSE 'running'::text
                END AS from_status,
                CASE
                    WHEN (b.part = 1) THEN 'running'::text
                    WHEN (b.part = 2) THEN c.attempt_end
                    WHEN ((c.attempt_end <> 'lost'::text) AND (c.retry_at_ms IS NOT NULL)) THEN 'retry_wait'::text
                    WHEN (c.attempt_end <> 'lost'::text) THEN c.attempt_end
                    WHEN (c.claim_return_count < 63) THEN 'ready'::text
                    ELSE 'failed'::text
                END AS to_status
           FROM (ql.completion_end c
             CROSS JOIN ( SELECT 1 AS part
                UNION ALL
                 SELECT 2 AS part
                UNION ALL
                 SELECT 3 AS part) b)
          WHERE ((b.part > 1) OR ((c.step_status = 'ready'::text) AND (c.attempt_end <> 'lost'::text)))) e;

ALTER VIEW ql.completion_effect OWNER TO ql_migrator;

--
-- Name: dispatch_effect; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.dispatch_effect AS
 SELECT run_id,
    ordinal,
    entity,
    entity_id,
    from_status,
    to_status,
    expected_version,
    result_code,
    event_type,
    NULL::bigint AS due_at_ms,
    input_id
   FROM ( SELECT w.run_id,
            row_number() OVER (PARTITION BY w.run_id ORDER BY w.attempt_id, b.part) AS ordinal,
            b.entity,
                CASE b.entity
                    WHEN 'step'::text THEN w.step_key
                    ELSE w.attempt_id
                END AS entity_id,
                CASE b.entity
                    WHEN 'lease'::text THEN w.lease_status
                    ELSE b.from_status
                END AS from_status,
            w.turn AS to_status,
                CASE
                    WHEN (b.entity = 'attempt'::text) THEN w.version
                    WHEN (b.entity = 'step'::text) THEN w.step_version
                    WHEN (w.lease_status IS NULL) THEN (0)::bigint
                    ELSE w.lease_version
                END AS expected_version,
                CASE w.turn
                    WHEN 'released'::text THEN 'start_refused'::text
                    ELSE NULL::text
                END AS result_code,
            b.event_type,
                CASE w.turn
                    WHEN 'leased'::text THEN ( SELECT o.offer_id
                       FROM ql.attempt_offer o
                      WHERE ((o.run_id = w.run_id) AND (o.attempt_id = w.attempt_id) AND (o.fence = w.fence)))
                    ELSE ( SELECT p.attempt_id
                       FROM ql.attempt_report p
                      WHERE ((p.run_id = w.run_id) AND (p.attempt_id = w.attempt_id) AND (p.fence = w.fence) AND (p.kind =
                            CASE w.turn
                                WHEN 'running'::text THEN 'running'::text
                                ELSE 'starting'::text
                            END)))
                END AS input_id
           FROM (( SELECT f.run_id,
                    f.attempt_id,
                    f.step_key,
                    f.version,
                    f.step_version,
                    f.lease_status,
                    f.lease_version,
                    f.epoch_stands,
                        CASE
                            WHEN ((f.lease_status IS NULL) OR (f.lease_status = 'released'::text)) THEN
                            CASE
                                WHEN ((f.status = 'claimed'::text) AND (f.cancel_reason IS NULL)) THEN 'leased'::text
                                ELSE NULL::text
                            END
                            WHEN (f.lease_status <> 'leased'::text) THEN NULL::text
                            WHEN (f.status = 'starting'::text) THEN 'running'::text
                            WHEN (f.status <> 'claimed'::text) THEN NULL::text
                            WHEN (f.cancel_reason IS NULL) THEN 'starting'::text
                            ELSE 'released'::text
                        END AS turn,
                        CASE f.lease_status
                            WHEN 'leased'::text THEN f.fence
                            ELSE (COALESCE(f.fence, (0)::bigint) + 1)
                        END AS fence
                   FROM ( SELECT v.run_id,
                            v.attempt_id,
                            v.step_key,
                            v.status,
                            v.version,
                            v.step_version,
                            v.lease_status,
                            v.lease_version,
                            v.fence,
                            v.cancel_reason,
                                CASE
                                    WHEN ((v.step_status = 'ready'::text) AND (v.step_version = v.epoch)) THEN 1
                                    ELSE 0
                                END AS epoch_stands,
                            row_number() OVER (PARTITION BY v.run_id ORDER BY v.attempt_id) AS "position"
                           FROM ql.live_attempt v
                          WHERE ((v.lease_status = 'leased'::text) OR (EXISTS ( SELECT 1
                                   FROM ql.attempt_offer o
                                  WHERE ((o.run_id = v.run_id) AND (o.attempt_id = v.attempt_id) AND (o.fence = (COALESCE(v.fence, (0)::bigint) + 1))))))) f) w
             JOIN ( SELECT 'leased'::text AS turn,
                    1 AS part,
                    'lease'::text AS entity,
                    NULL::text AS from_status,
                    'workflow.task_dispatch_leased'::text AS event_type
                UNION ALL
                 SELECT 'released'::text AS turn,
                    1 AS part,
                    'lease'::text AS entity,
                    NULL::text AS from_status,
                    'workflow.task_dispatch_released'::text AS event_type
                UNION ALL
                 SELECT 'starting'::text AS turn,
                    1 AS part,
                    'attempt'::text AS entity,
                    'claimed'::text AS from_status,
                    'workflow.task_attempt.starting'::text AS event_type
                UNION ALL
                 SELECT 'running'::text AS turn,
                    1 AS part,
                    'attempt'::text AS entity,
                    'starting'::text AS from_status,
                    'workflow.task_attempt.running'::text AS event_type
                UNION ALL
                 SELECT 'running'::text AS turn,
                    2 AS part,
                    'step'::text AS entity,
                    'ready'::text AS from_status,
                    'step.running'::text AS event_type) b ON ((b.turn = w.turn)))
          WHERE (((w.epoch_stands = 1) OR (w.turn = 'released'::text)) AND (NOT ((w.turn = 'running'::text) AND (EXISTS ( SELECT 1
                   FROM ql.attempt_report q
                  WHERE ((q.run_id = w.run_id) AND (q.attempt_id = w.attempt_id) AND (q.fence = w.fence) AND (q.kind = 'ended'::text)))))))) e
  WHERE (input_id IS NOT NULL);

ALTER VIEW ql.dispatch_effect OWNER TO ql_migrator;

--
-- Name: run_event; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.run_event (
    run_id text NOT NULL COLLATE pg_catalog."C",
    sequence bigint NOT NULL,
    type text NOT NULL COLLATE pg_catalog."C",
    entity text NOT NULL COLLATE pg_catalog."C",
    entity_id text NOT NULL COLLATE pg_catalog."C",
    from_status text COLLATE pg_catalog."C",
    to_status text NOT NULL COLLATE pg_catalog."C",
    entity_version bigint NOT NULL,
    result_code text COLLATE pg_catalog."C",
    input_id text COLLATE pg_catalog."C",
    created_at_ms bigint NOT NULL,
    CONSTRAINT event_entity_is_known CHECK ((entity = ANY (ARRAY['run'::text, 'step'::text, 'attempt'::text, 'lease'::text])))
);

ALTER TABLE ql.run_event OWNER TO ql_migrator;

--
-- Name: event_log; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.event_log AS
 SELECT run_id,
    sequence,
    type,
    entity,
    entity_id,
    from_status,
    to_status,
    entity_version,
    result_code,
    created_at_ms
   FROM ql.run_event e;

ALTER VIEW ql.event_log OWNER TO ql_migrator;

--
-- Name: frontier_blocked; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.frontier_blocked AS
 SELECT s.run_id,
    s.step_key,
    w.ancestor_key AS waits_on,
    ( SELECT n.status
           FROM ql.step_run n
          WHERE ((n.run_id = s.run_id) AND (n.step_key = w.ancestor_key))) AS need_status
   FROM (ql.step_run s
     JOIN ql.workflow_ancestor w ON (((w.workflow_id = ( SELECT r.target_id
           FROM ql.run r
          WHERE (r.run_id = s.run_id))) AND (w.step_key = s.step_key) AND (w.distance = 1))))
  WHERE ((s.status = 'pending'::text) AND (( SELECT n.status
           FROM ql.step_run n
          WHERE ((n.run_id = s.run_id) AND (n.step_key = w.ancestor_key))) IS DISTINCT FROM 'succeeded'::text));

ALTER VIEW ql.frontier_blocked OWNER TO ql_migrator;

--
-- Name: explain; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.explain AS
 SELECT run_id,
    step_key,
    attempt_id,
    status,
    waits_for,
    waits_on,
    since_ms,
    due_at_ms,
    after_due,
    resolved_by
   FROM ( SELECT s.run_id,
            s.step_key,
            NULL::text AS attempt_id,
            s.status,
            'need'::text AS waits_for,
            f.waits_on,
            ( SELECT r.admitted_at_ms
                   FROM ql.run r
                  WHERE (r.run_id = s.run_id)) AS since_ms,
            NULL::bigint AS due_at_ms,
            NULL::text AS after_due,
            'the end of that step'::text AS resolved_by,
            0 AS under_intent
           FROM (ql.step_run s
             JOIN ql.frontier_blocked f ON (((f.run_id = s.run_id) AND (f.step_key = s.step_key))))
        UNION ALL
         SELECT s.run_id,
            s.step_key,
            NULL::text AS attempt_id,
            s.status,
            'need'::text AS waits_for,
            'frontier'::text AS waits_on,
            ( SELECT r.admitted_at_ms
                   FROM ql.run r
                  WHERE (r.run_id = s.run_id)) AS since_ms,
            NULL::bigint AS due_at_ms,
            NULL::text AS after_due,
            'the frontier stage, next cycle'::text AS resolved_by,
            0 AS under_intent
           FROM (ql.frontier_ready s0
             JOIN ql.step_run s ON (((s.run_id = s0.run_id) AND (s.step_key = s0.step_key))))
        UNION ALL
         SELECT t.run_id,
            t.entity_id AS step_key,
            NULL::text AS attempt_id,
            'ready'::text AS status,
            'admission'::text AS waits_for,
            'task_admission'::text AS waits_on,
            ( SELECT s.ready_at_ms
                   FROM ql.step_run s
                  WHERE ((s.run_id = t.run_id) AND (s.step_key = t.entity_id))) AS since_ms,
            NULL::bigint AS due_at_ms,
            NULL::text AS after_due,
            'the task admission stage, next cycle'::text AS resolved_by,
            0 AS under_intent
           FROM ( SELECT s.run_id,
                    s.step_key AS entity_id
                   FROM ql.step_run s
                  WHERE ((s.status = 'ready'::text) AND (NOT (EXISTS ( SELECT 1
                           FROM ql.task_attempt a
                          WHERE ((a.run_id = s.run_id) AND (a.step_key = s.step_key) AND (a.epoch = s.version))))))) t
        UNION ALL
         SELECT a.run_id,
            a.step_key,
            a.attempt_id,
            a.status,
                CASE
                    WHEN (EXISTS ( SELECT 1
                       FROM ql.worker_session w
                      WHERE (w.status = 'online'::text))) THEN 'queue'::text
                    ELSE 'worker'::text
                END AS waits_for,
            a.queue AS waits_on,
            a.admitted_at_ms AS since_ms,
            NULL::bigint AS due_at_ms,
            NULL::text AS after_due,
            'a worker of this queue with a free slot'::text AS resolved_by,
            0 AS under_intent
           FROM ql.task_attempt a
          WHERE ((a.status = 'claimed'::text) AND (( SELECT l.status
                   FROM ql.attempt_lease l
                  WHERE (l.attempt_id = a.attempt_id)) IS DISTINCT FROM 'leased'::text))
        UNION ALL
         SELECT v.run_id,
            v.step_key,
            v.attempt_id,
            v.status,
                CASE
                    WHEN (v.status = 'claimed'::text) THEN 'lease'::text
                    ELSE 'report'::text
                END AS waits_for,
            l.worker_id AS waits_on,
            l.leased_at_ms AS since_ms,
            l.expires_at_ms AS due_at_ms,
                CASE
                    WHEN (v.status = 'claimed'::text) THEN NULL::text
                    WHEN (v.on_lost = 'hold'::text) THEN 'hold'::text
                    WHEN (l.self_fencing = 0) THEN 'evidence'::text
                    ELSE NULL::text
                END AS after_due,
                CASE
                    WHEN (v.status = 'claimed'::text) THEN 'the worker starts it, or recovery returns it after due_at_ms'::text
                    WHEN ((v.on_lost = 'hold'::text) OR (l.self_fencing = 0)) THEN 'the worker reports; after due_at_ms: its worker comes back, or declare-stopped'::text
                    WHEN (v.cancel_reason IS NOT NULL) THEN 'the worker stops it and reports, or recovery after due_at_ms'::text
                    ELSE 'the worker reports, or recovery after due_at_ms'::text
                END AS resolved_by,
            1 AS under_intent
           FROM (ql.live_attempt v
             JOIN ql.attempt_lease l ON ((l.attempt_id = v.attempt_id)))
          WHERE (l.status = 'leased'::text)
        UNION ALL
         SELECT s.run_id,
            s.step_key,
            NULL::text AS attempt_id,
            s.status,
            'retry'::text AS waits_for,
            s.result_code AS waits_on,
            s.started_at_ms AS since_ms,
            s.due_at_ms,
            NULL::text AS after_due,
            'the retry stage at due_at_ms'::text AS resolved_by,
            0 AS under_intent
           FROM ql.step_run s
          WHERE (s.status = 'retry_wait'::text)
        UNION ALL
         SELECT c.run_id,
                CASE c.entity
                    WHEN 'step'::text THEN c.entity_id
                    ELSE NULL::text
                END AS step_key,
                CASE c.entity
                    WHEN 'attempt'::text THEN c.entity_id
                    ELSE NULL::text
                END AS attempt_id,
            c.from_status AS status,
            'intent'::text AS waits_for,
            ( SELECT r.cancel_reason
                   FROM ql.run r
                  WHERE (r.run_id = c.run_id)) AS waits_on,
            ( SELECT r.cancel_requested_at_ms
                   FROM ql.run r
                  WHERE (r.run_id = c.run_id)) AS since_ms,
            NULL::bigint AS due_at_ms,
            NULL::text AS after_due,
            'convergence, next cycle'::text AS resolved_by,
            1 AS under_intent
           FROM ql.cancellation_effect c
        UNION ALL
         SELECT f.run_id,
            NULL::text AS step_key,
            NULL::text AS attempt_id,
            'running'::text AS status,
            'fault'::text AS waits_for,
            f.stage AS waits_on,
            f.first_at_ms AS since_ms,
            f.next_try_at_ms AS due_at_ms,
            NULL::text AS after_due,
            f.error AS resolved_by,
            1 AS under_intent
           FROM ql.run_fault f) e
  WHERE ((( SELECT r.status
           FROM ql.run r
          WHERE (r.run_id = e.run_id)) = 'running'::text) AND ((under_intent = 1) OR (( SELECT r.cancel_requested_at_ms
           FROM ql.run r
          WHERE (r.run_id = e.run_id)) IS NULL)));

ALTER VIEW ql.explain OWNER TO ql_migrator;

--
-- Name: fault_state; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.fault_state AS
 SELECT run_id,
    stage,
    error,
    fault_count,
    first_at_ms,
    last_at_ms,
    next_try_at_ms
   FROM ql.run_fault f;

ALTER VIEW ql.fault_state OWNER TO ql_migrator;

--
-- Name: run_input; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.run_input (
    run_id text NOT NULL COLLATE pg_catalog."C",
    input text NOT NULL,
    CONSTRAINT input_fits CHECK ((octet_length(input) <= 16384))
);

ALTER TABLE ql.run_input OWNER TO ql_migrator;

--
-- Name: input_state; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.input_state AS
 SELECT run_id,
    input
   FROM ql.run_input i;

ALTER VIEW ql.input_state OWNER TO ql_migrator;

--
-- Name: intent_effect; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.intent_effect AS
 SELECT run_id,
    (1)::bigint AS ordinal,
    'run'::text AS entity,
    run_id AS entity_id,
    'running'::text AS from_status,
    'running'::text AS to_status,
    version AS expected_version,
    NULL::text AS result_code,
    'run.cancel_requested'::text AS event_type,
    NULL::bigint AS due_at_ms,
    run_id AS input_id
   FROM ql.run r
  WHERE ((status = 'running'::text) AND (cancel_requested_at_ms IS NULL) AND (EXISTS ( SELECT 1
           FROM ql.cancel_intent i
          WHERE (i.run_id = r.run_id))));

ALTER VIEW ql.intent_effect OWNER TO ql_migrator;

--
-- Name: intent_state; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.intent_state AS
 SELECT run_id,
    reason,
    actor,
    requested_at_ms
   FROM ql.cancel_intent i;

ALTER VIEW ql.intent_state OWNER TO ql_migrator;

--
-- Name: open_run; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.open_run AS
 SELECT run_id,
    package_key,
    generation,
    kind,
    target_key,
    target_id,
    run_key,
    input_digest,
    retry_of_run_id,
    trigger_key,
    scheduled_at_ms,
    step_count,
    status,
    version,
    attempt_count,
    admitted_at_ms,
    deadline_at_ms,
    cancel_requested_at_ms,
    cancel_reason,
    result_code,
    finished_at_ms,
    updated_at_ms
   FROM ql.run r
  WHERE (finished_at_ms IS NULL);

ALTER VIEW ql.open_run OWNER TO ql_migrator;

--
-- Name: package; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.package (
    package_key text NOT NULL COLLATE pg_catalog."C",
    generation bigint NOT NULL,
    base_dir text NOT NULL,
    updated_at_ms bigint NOT NULL
);

ALTER TABLE ql.package OWNER TO ql_migrator;

--
-- Name: package_generation; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.package_generation (
    package_key text NOT NULL COLLATE pg_catalog."C",
    generation bigint NOT NULL,
    digest text NOT NULL COLLATE pg_catalog."C",
    manifest text NOT NULL,
    published_at_ms bigint NOT NULL,
    state text NOT NULL COLLATE pg_catalog."C",
    ended_at_ms bigint,
    CONSTRAINT generation_starts_at_one CHECK ((generation >= 1)),
    CONSTRAINT generation_state_is_known CHECK ((state = ANY (ARRAY['active'::text, 'superseded'::text, 'withdrawn'::text]))),
    CONSTRAINT manifest_fits CHECK ((octet_length(manifest) <= 262144)),
    CONSTRAINT only_an_active_generation_has_no_end CHECK (((state = 'active'::text) = (ended_at_ms IS NULL)))
);

ALTER TABLE ql.package_generation OWNER TO ql_migrator;

--
-- Name: package_state; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.package_state AS
 SELECT package_key,
    generation,
    state,
    digest,
    published_at_ms,
    ended_at_ms,
    ( SELECT p.base_dir
           FROM ql.package p
          WHERE (p.package_key = g.package_key)) AS base_dir
   FROM ql.package_generation g;

ALTER VIEW ql.package_state OWNER TO ql_migrator;

--
-- Name: queue_state; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.queue_state AS
 SELECT queue,
    count(*) AS waiting_count,
    min(offer_at_ms) AS oldest_at_ms
   FROM ql.task_attempt a
  WHERE (offer_at_ms IS NOT NULL)
  GROUP BY queue;

ALTER VIEW ql.queue_state OWNER TO ql_migrator;

--
-- Name: recovery_blocked; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.recovery_blocked AS
 SELECT v.run_id,
    v.attempt_id,
    v.step_key,
        CASE
            WHEN (v.on_lost = 'hold'::text) THEN 'hold'::text
            ELSE 'evidence'::text
        END AS waits_for,
    l.worker_id AS waits_on,
    l.expires_at_ms AS due_at_ms
   FROM (ql.live_attempt v
     JOIN ql.attempt_lease l ON ((l.attempt_id = v.attempt_id)))
  WHERE ((l.status = 'leased'::text) AND (v.status = ANY (ARRAY['starting'::text, 'running'::text])) AND ((l.self_fencing = 0) OR (v.on_lost = 'hold'::text)));

ALTER VIEW ql.recovery_blocked OWNER TO ql_migrator;

--
-- Name: recovery_end; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.recovery_end AS
 SELECT run_id,
    attempt_id,
    step_key,
    status,
    version,
    step_status,
    step_version,
    claim_return_count,
    cancel_reason,
    attempt_end,
    code,
        CASE
            WHEN ((cancel_reason IS NOT NULL) OR (started_count >= 64)) THEN NULL::bigint
            WHEN (follow = 'retry'::text) THEN (attested_at_ms + delay_ms)
            WHEN ((follow = 'fail'::text) OR (started_count >= retry_attempts)) THEN NULL::bigint
            WHEN ((attempt_end = 'timed_out'::text) AND (retry_timed_out = 1)) THEN ((attested_at_ms + delay_ms) + (5 * jitter))
            WHEN ((attempt_end = 'lost'::text) AND (on_lost = 'retry'::text)) THEN ((attested_at_ms + delay_ms) + (5 * jitter))
            ELSE NULL::bigint
        END AS retry_at_ms
   FROM ( SELECT v.run_id,
            v.attempt_id,
            v.step_key,
            v.status,
            v.version,
            v.step_status,
            v.step_version,
            v.started_count,
            v.claim_return_count,
            v.cancel_reason,
            v.retry_attempts,
            v.retry_timed_out,
            v.on_lost,
            v.delay_ms,
            v.jitter,
            n.follow,
            n.attested_at_ms,
                CASE
                    WHEN ((v.status <> 'claimed'::text) AND (v.cancel_reason IS NULL) AND (v.deadline_at_ms <= n.attested_at_ms)) THEN 'timed_out'::text
                    ELSE 'lost'::text
                END AS attempt_end,
                CASE
                    WHEN (v.status = 'claimed'::text) THEN 'claim_expired'::text
                    WHEN ((v.cancel_reason IS NULL) AND (v.deadline_at_ms <= n.attested_at_ms)) THEN 'execution_timed_out'::text
                    ELSE 'execution_lost'::text
                END AS code
           FROM (ql.live_attempt v
             JOIN ql.attestation n ON (((n.run_id = v.run_id) AND (n.attempt_id = v.attempt_id))))
          WHERE (((n.evidence <> 'expired'::text) OR (v.status = 'claimed'::text)) AND ((n.evidence <> 'fenced'::text) OR (v.on_lost <> 'hold'::text)))) x;

ALTER VIEW ql.recovery_end OWNER TO ql_migrator;

--
-- Name: recovery_effect; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.recovery_effect AS
 SELECT run_id,
    row_number() OVER (PARTITION BY run_id ORDER BY attempt_id, part) AS ordinal,
    entity,
    entity_id,
    from_status,
    to_status,
    expected_version,
    result_code,
    event_type,
    due_at_ms,
    attempt_id AS input_id
   FROM ( SELECT c.run_id,
            c.attempt_id,
            1 AS part,
            'attempt'::text AS entity,
            c.attempt_id AS entity_id,
            c.status AS from_status,
            c.attempt_end AS to_status,
            c.version AS expected_version,
            c.code AS result_code,
            ('workflow.task_attempt.'::text || c.attempt_end) AS event_type,
            NULL::bigint AS due_at_ms
           FROM ql.recovery_end c
        UNION ALL
         SELECT c.run_id,
            c.attempt_id,
            2 AS part,
            'step'::text AS entity,
            c.step_key AS entity_id,
            'ready'::text AS from_status,
                CASE
                    WHEN (c.claim_return_count < 63) THEN 'ready'::text
                    ELSE 'failed'::text
                END AS to_status,
            c.step_version AS expected_version,
                CASE
                    WHEN (c.claim_return_count < 63) THEN NULL::text
                    ELSE 'claim_budget_exhausted'::text
                END AS result_code,
                CASE
                    WHEN (c.claim_return_count < 63) THEN 'step.ready'::text
                    ELSE 'step.failed'::text
                END AS event_type,
            NULL::bigint AS due_at_ms
           FROM ql.recovery_end c
          WHERE (c.status = 'claimed'::text)
        UNION ALL
         SELECT c.run_id,
            c.attempt_id,
            2 AS part,
            'step'::text AS entity,
            c.step_key AS entity_id,
            c.step_status AS from_status,
            'retry_wait'::text AS to_status,
            c.step_version AS expected_version,
            c.code AS result_code,
            'step.retry_wait'::text AS event_type,
            c.retry_at_ms AS due_at_ms
           FROM ql.recovery_end c
          WHERE ((c.status <> 'claimed'::text) AND (c.retry_at_ms IS NOT NULL))
        UNION ALL
         SELECT c.run_id,
            c.attempt_id,
            2 AS part,
            'step'::text AS entity,
            c.step_key AS entity_id,
            c.step_status AS from_status,
            'timed_out'::text AS to_status,
            c.step_version AS expected_version,
            c.code AS result_code,
            'step.timed_out'::text AS event_type,
            NULL::bigint AS due_at_ms
           FROM ql.recovery_end c
          WHERE ((c.status <> 'claimed'::text) AND (c.retry_at_ms IS NULL) AND (c.attempt_end = 'timed_out'::text))
        UNION ALL
         SELECT c.run_id,
            c.attempt_id,
            2 AS part,
            'step'::text AS entity,
            c.step_key AS entity_id,
            'running'::text AS from_status,
            'lost'::text AS to_status,
            c.step_version AS expected_version,
            c.code AS result_code,
            'step.lost'::text AS event_type,
            NULL::bigint AS due_at_ms
           FROM ql.recovery_end c
          WHERE ((c.status <> 'claimed'::text) AND (c.retry_at_ms IS NULL) AND (c.attempt_end = 'lost'::text) AND (c.step_status = 'running'::text))
        UNION ALL
         SELECT c.run_id,
            c.attempt_id,
            3 AS part,
            'step'::text AS entity,
            c.step_key AS entity_id,
                CASE
                    WHEN (c.step_status = 'running'::text) THEN 'lost'::text
                    ELSE 'ready'::text
                END AS from_status,
            'failed'::text AS to_status,
            (c.step_version +
                CASE
                    WHEN (c.step_status = 'running'::text) THEN 1
                    ELSE 0
                END) AS expected_version,
            c.code AS result_code,
            'step.failed'::text AS event_type,
            NULL::bigint AS due_at_ms
           FROM ql.recovery_end c
          WHERE ((c.status <> 'claimed'::text) AND (c.retry_at_ms IS NULL) AND (c.attempt_end = 'lost'::text) AND (c.cancel_reason IS NULL))) e;

ALTER VIEW ql.recovery_effect OWNER TO ql_migrator;

--
-- Name: refused_report; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.refused_report (
    run_id text NOT NULL COLLATE pg_catalog."C",
    attempt_id text NOT NULL COLLATE pg_catalog."C",
    ordinal bigint NOT NULL,
    code text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL COLLATE pg_catalog."C",
    how text COLLATE pg_catalog."C",
    exit_code bigint,
    fence bigint,
    refused_at_ms bigint NOT NULL,
    CONSTRAINT refusals_within_bounds CHECK (((ordinal >= 1) AND (ordinal <= 8)))
);

ALTER TABLE ql.refused_report OWNER TO ql_migrator;

--
-- Name: refused_state; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.refused_state AS
 SELECT run_id,
    attempt_id,
    ordinal,
    code,
    kind,
    how,
    exit_code,
    fence,
    refused_at_ms
   FROM ql.refused_report f;

ALTER VIEW ql.refused_state OWNER TO ql_migrator;

--
-- Name: retention_due; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.retention_due AS
 SELECT run_id,
    finished_at_ms
   FROM ql.run r
  WHERE ((finished_at_ms IS NOT NULL) AND (status <> 'running'::text) AND (NOT (EXISTS ( SELECT 1
           FROM ql.task_attempt a
          WHERE ((a.run_id = r.run_id) AND (a.finished_at_ms IS NULL))))));

ALTER VIEW ql.retention_due OWNER TO ql_migrator;

--
-- Name: retry_effect; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.retry_effect AS
 SELECT run_id,
    row_number() OVER (PARTITION BY run_id ORDER BY step_key) AS ordinal,
    'step'::text AS entity,
    step_key AS entity_id,
    'retry_wait'::text AS from_status,
    'ready'::text AS to_status,
    version AS expected_version,
    NULL::text AS result_code,
    'step.ready'::text AS event_type,
    due_at_ms,
    NULL::text AS input_id
   FROM ql.step_run s
  WHERE ((status = 'retry_wait'::text) AND (( SELECT
                CASE
                    WHEN (r.cancel_requested_at_ms IS NULL) THEN r.status
                    ELSE NULL::text
                END AS "case"
           FROM ql.run r
          WHERE (r.run_id = s.run_id)) = 'running'::text));

ALTER VIEW ql.retry_effect OWNER TO ql_migrator;

--
-- Name: run_admission; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.run_admission AS
 SELECT run_id,
    package_key,
    generation,
    kind,
    target_key,
    target_id,
    run_key,
    input_digest,
    step_count,
    deadline_at_ms,
    retry_of_run_id,
    trigger_key,
    scheduled_at_ms,
    admitted_at_ms
   FROM ql.run r;

ALTER VIEW ql.run_admission OWNER TO ql_migrator;

--
-- Name: run_state; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.run_state AS
 SELECT run_id,
    package_key,
    generation,
    kind,
    target_key,
    target_id,
    run_key,
    input_digest,
    retry_of_run_id,
    trigger_key,
    scheduled_at_ms,
    step_count,
    status,
    version,
    attempt_count,
    admitted_at_ms,
    deadline_at_ms,
    cancel_requested_at_ms,
    cancel_reason,
    result_code,
    finished_at_ms,
    updated_at_ms
   FROM ql.run r;

ALTER VIEW ql.run_state OWNER TO ql_migrator;

--
-- Name: trigger; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.trigger (
    package_key text NOT NULL COLLATE pg_catalog."C",
    trigger_key text NOT NULL COLLATE pg_catalog."C",
    generation bigint NOT NULL,
    state text NOT NULL COLLATE pg_catalog."C",
    cron text NOT NULL,
    tz text NOT NULL,
    kind text NOT NULL COLLATE pg_catalog."C",
    target_key text NOT NULL COLLATE pg_catalog."C",
    misfire text NOT NULL COLLATE pg_catalog."C",
    overlap text NOT NULL COLLATE pg_catalog."C",
    updated_at_ms bigint NOT NULL,
    CONSTRAINT misfire_is_known CHECK ((misfire = ANY (ARRAY['fire_once'::text, 'skip'::text]))),
    CONSTRAINT overlap_is_known CHECK ((overlap = ANY (ARRAY['allow'::text, 'skip'::text]))),
    CONSTRAINT trigger_key_fits CHECK (((length(trigger_key) >= 1) AND (length(trigger_key) <= 63))),
    CONSTRAINT trigger_kind_is_known CHECK ((kind = ANY (ARRAY['workflow'::text, 'task'::text]))),
    CONSTRAINT trigger_state_is_known CHECK ((state = ANY (ARRAY['active'::text, 'paused'::text, 'withdrawn'::text])))
);

ALTER TABLE ql.trigger OWNER TO ql_migrator;

--
-- Name: trigger_fault; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.trigger_fault (
    package_key text NOT NULL COLLATE pg_catalog."C",
    trigger_key text NOT NULL COLLATE pg_catalog."C",
    error text NOT NULL,
    fault_count bigint NOT NULL,
    first_at_ms bigint NOT NULL,
    last_at_ms bigint NOT NULL,
    next_try_at_ms bigint NOT NULL,
    CONSTRAINT trigger_fault_error_fits CHECK ((octet_length(error) <= 2048))
);

ALTER TABLE ql.trigger_fault OWNER TO ql_migrator;

--
-- Name: trigger_run; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.trigger_run (
    run_id text NOT NULL COLLATE pg_catalog."C",
    package_key text NOT NULL COLLATE pg_catalog."C",
    trigger_key text NOT NULL COLLATE pg_catalog."C",
    open_at_ms bigint
);

ALTER TABLE ql.trigger_run OWNER TO ql_migrator;

--
-- Name: schedule_blocked; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.schedule_blocked AS
 SELECT t.package_key,
    t.trigger_key,
    'resume'::text AS waits_for,
    t.state AS waits_on,
    t.updated_at_ms AS since_ms,
    NULL::bigint AS due_at_ms,
    'an operator resumes it'::text AS resolved_by
   FROM ql.trigger t
  WHERE (t.state = 'paused'::text)
UNION ALL
 SELECT f.package_key,
    f.trigger_key,
    'fault'::text AS waits_for,
    f.error AS waits_on,
    f.first_at_ms AS since_ms,
    f.next_try_at_ms AS due_at_ms,
    'the next try at due_at_ms, a new generation, or an operator resumes it'::text AS resolved_by
   FROM ql.trigger_fault f
UNION ALL
 SELECT m.package_key,
    m.trigger_key,
    'overlap'::text AS waits_for,
    m.run_id AS waits_on,
    m.open_at_ms AS since_ms,
    NULL::bigint AS due_at_ms,
    'the end of that run'::text AS resolved_by
   FROM ql.trigger_run m
  WHERE ((m.open_at_ms IS NOT NULL) AND (( SELECT r.status
           FROM ql.run r
          WHERE (r.run_id = m.run_id)) = 'running'::text) AND (( SELECT t.overlap
           FROM ql.trigger t
          WHERE ((t.package_key = m.package_key) AND (t.trigger_key = m.trigger_key) AND (t.state = 'active'::text))) = 'skip'::text));

ALTER VIEW ql.schedule_blocked OWNER TO ql_migrator;

--
-- Name: schedule_decision; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.schedule_decision AS
 WITH arrival(word) AS (
         VALUES ('early'::text), ('on_time'::text), ('late'::text)
        )
 SELECT t.package_key,
    t.trigger_key,
    a.word AS arrival,
        CASE
            WHEN (a.word = 'early'::text) THEN 'initialize'::text
            WHEN ((a.word = 'late'::text) AND (t.misfire = 'skip'::text)) THEN 'skip'::text
            WHEN ((t.overlap = 'skip'::text) AND (EXISTS ( SELECT 1
               FROM ql.trigger_run m
              WHERE ((m.package_key = t.package_key) AND (m.trigger_key = t.trigger_key) AND (m.open_at_ms IS NOT NULL) AND (( SELECT r.status
                       FROM ql.run r
                      WHERE (r.run_id = m.run_id)) = 'running'::text))))) THEN 'skip'::text
            ELSE 'admit'::text
        END AS disposition,
        CASE
            WHEN (a.word = 'early'::text) THEN NULL::text
            WHEN ((a.word = 'late'::text) AND (t.misfire = 'skip'::text)) THEN 'misfire'::text
            WHEN ((t.overlap = 'skip'::text) AND (EXISTS ( SELECT 1
               FROM ql.trigger_run m
              WHERE ((m.package_key = t.package_key) AND (m.trigger_key = t.trigger_key) AND (m.open_at_ms IS NOT NULL) AND (( SELECT r.status
                       FROM ql.run r
                      WHERE (r.run_id = m.run_id)) = 'running'::text))))) THEN 'overlap'::text
            ELSE NULL::text
        END AS cause
   FROM (ql.trigger t
     CROSS JOIN arrival a)
  WHERE ((t.state = 'active'::text) AND (EXISTS ( SELECT 1
           FROM ql.package_generation g
          WHERE ((g.package_key = t.package_key) AND (g.generation = t.generation) AND (g.state = 'active'::text)))));

ALTER VIEW ql.schedule_decision OWNER TO ql_migrator;

--
-- Name: trigger_schedule; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.trigger_schedule (
    package_key text NOT NULL COLLATE pg_catalog."C",
    trigger_key text NOT NULL COLLATE pg_catalog."C",
    next_fire_at_ms bigint,
    last_scheduled_at_ms bigint,
    state_version bigint NOT NULL,
    claim_owner text COLLATE pg_catalog."C",
    claim_token text COLLATE pg_catalog."C",
    claim_version bigint NOT NULL,
    claim_expires_at_ms bigint,
    updated_at_ms bigint NOT NULL,
    due_at_ms bigint,
    claimed_at_ms bigint,
    seen_at_ms bigint,
    last_outcome text COLLATE pg_catalog."C",
    last_run_id text COLLATE pg_catalog."C",
    CONSTRAINT a_claim_is_whole_or_absent CHECK ((((claim_owner IS NULL) = (claim_token IS NULL)) AND ((claim_owner IS NULL) = (claim_expires_at_ms IS NULL)))),
    CONSTRAINT a_claim_says_what_it_observed CHECK ((((claim_owner IS NULL) = (claimed_at_ms IS NULL)) AND ((claim_owner IS NULL) = (seen_at_ms IS NULL)))),
    CONSTRAINT an_admitted_occurrence_has_a_run CHECK (((last_outcome <> 'admitted'::text) OR (last_run_id IS NOT NULL))),
    CONSTRAINT last_outcome_is_known CHECK ((last_outcome = ANY (ARRAY['admitted'::text, 'misfire'::text, 'overlap'::text])))
);

ALTER TABLE ql.trigger_schedule OWNER TO ql_migrator;

--
-- Name: schedule_due; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.schedule_due AS
 SELECT t.package_key,
    t.trigger_key,
        CASE
            WHEN (t.state <> 'active'::text) THEN NULL::bigint
            WHEN (s.claim_token IS NOT NULL) THEN s.claim_expires_at_ms
            ELSE COALESCE(( SELECT f.next_try_at_ms
               FROM ql.trigger_fault f
              WHERE ((f.package_key = t.package_key) AND (f.trigger_key = t.trigger_key))), s.next_fire_at_ms, (0)::bigint)
        END AS due_at_ms
   FROM (ql.trigger t
     JOIN ql.trigger_schedule s ON (((s.package_key = t.package_key) AND (s.trigger_key = t.trigger_key))));

ALTER VIEW ql.schedule_due OWNER TO ql_migrator;

--
-- Name: state_transition; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.state_transition AS
 WITH legal(entity, from_status, to_status) AS (
         VALUES ('run'::text,'running'::text,'running'::text), ('run'::text,'running'::text,'succeeded'::text), ('run'::text,'running'::text,'failed'::text), ('run'::text,'running'::text,'cancelled'::text), ('run'::text,'running'::text,'timed_out'::text), ('step'::text,'pending'::text,'ready'::text), ('step'::text,'pending'::text,'skipped'::text), ('step'::text,'pending'::text,'cancelled'::text), ('step'::text,'ready'::text,'ready'::text), ('step'::text,'ready'::text,'waiting_approval'::text), ('step'::text,'ready'::text,'running'::text), ('step'::text,'ready'::text,'retry_wait'::text), ('step'::text,'ready'::text,'failed'::text), ('step'::text,'ready'::text,'skipped'::text), ('step'::text,'ready'::text,'cancelled'::text), ('step'::text,'ready'::text,'timed_out'::text), ('step'::text,'waiting_approval'::text,'ready'::text), ('step'::text,'waiting_approval'::text,'running'::text), ('step'::text,'waiting_approval'::text,'cancelled'::text), ('step'::text,'waiting_approval'::text,'timed_out'::text), ('step'::text,'running'::text,'retry_wait'::text), ('step'::text,'running'::text,'lost'::text), ('step'::text,'running'::text,'succeeded'::text), ('step'::text,'running'::text,'failed'::text), ('step'::text,'running'::text,'cancelled'::text), ('step'::text,'running'::text,'timed_out'::text), ('step'::text,'retry_wait'::text,'ready'::text), ('step'::text,'retry_wait'::text,'cancelled'::text), ('step'::text,'retry_wait'::text,'timed_out'::text), ('step'::text,'lost'::text,'ready'::text), ('step'::text,'lost'::text,'failed'::text), ('step'::text,'lost'::text,'cancelled'::text), ('attempt'::text,'claimed'::text,'starting'::text), ('attempt'::text,'claimed'::text,'cancelled'::text), ('attempt'::text,'claimed'::text,'timed_out'::text), ('attempt'::text,'claimed'::text,'lost'::text), ('attempt'::text,'starting'::text,'running'::text), ('attempt'::text,'starting'::text,'succeeded'::text), ('attempt'::text,'starting'::text,'failed'::text), ('attempt'::text,'starting'::text,'cancelled'::text), ('attempt'::text,'starting'::text,'timed_out'::text), ('attempt'::text,'starting'::text,'lost'::text), ('attempt'::text,'running'::text,'succeeded'::text), ('attempt'::text,'running'::text,'failed'::text), ('attempt'::text,'running'::text,'cancelled'::text), ('attempt'::text,'running'::text,'timed_out'::text), ('attempt'::text,'running'::text,'lost'::text), ('lease'::text,'released'::text,'leased'::text), ('lease'::text,'leased'::text,'released'::text), ('lease'::text,'leased'::text,'completed'::text)
        )
 SELECT entity,
    from_status,
    to_status
   FROM legal l;

ALTER VIEW ql.state_transition OWNER TO ql_migrator;

--
-- Name: step_need; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.step_need AS
 SELECT s.run_id,
    s.step_key,
    w.ancestor_key AS need_key
   FROM (ql.step_run s
     JOIN ql.workflow_ancestor w ON (((w.workflow_id = ( SELECT r.target_id
           FROM ql.run r
          WHERE (r.run_id = s.run_id))) AND (w.step_key = s.step_key) AND (w.distance = 1))));

ALTER VIEW ql.step_need OWNER TO ql_migrator;

--
-- Name: step_output; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.step_output (
    run_id text NOT NULL COLLATE pg_catalog."C",
    step_key text NOT NULL COLLATE pg_catalog."C",
    attempt_id text NOT NULL COLLATE pg_catalog."C",
    output text NOT NULL,
    CONSTRAINT output_fits CHECK ((octet_length(output) <= 16384))
);

ALTER TABLE ql.step_output OWNER TO ql_migrator;

--
-- Name: step_run_mutation; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.step_run_mutation AS
 SELECT run_id,
    ((run_id || '.'::text) || (sequence)::text) AS mutation_id,
    sequence,
    entity_id AS step_key,
    from_status,
    to_status,
    entity_version AS step_version,
    result_code,
    created_at_ms
   FROM ql.run_event e
  WHERE (entity = 'step'::text);

ALTER VIEW ql.step_run_mutation OWNER TO ql_migrator;

--
-- Name: step_state; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.step_state AS
 SELECT s.run_id,
    s.step_key,
    s.status,
    s.version,
    s.attempt_count,
    s.claim_return_count,
    s.ready_at_ms,
    s.started_at_ms,
    s.finished_at_ms,
    s.due_at_ms,
    s.result_code,
    t.task_key,
    t.queue,
    t.on_lost,
    ( SELECT o.output
           FROM ql.step_output o
          WHERE ((o.run_id = s.run_id) AND (o.step_key = s.step_key))) AS output
   FROM (ql.step_run s
     JOIN ql.task_revision t ON ((t.task_id = s.task_id)));

ALTER VIEW ql.step_state OWNER TO ql_migrator;

--
-- Name: target_state; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.target_state AS
 SELECT w.package_key,
    w.generation,
    'workflow'::text AS kind,
    w.workflow_key AS target_key,
    w.workflow_id AS target_id,
    w.timeout_ms,
    w.step_count
   FROM ql.workflow_revision w
UNION ALL
 SELECT t.package_key,
    t.generation,
    'task'::text AS kind,
    t.task_key AS target_key,
    t.task_id AS target_id,
    t.timeout_ms,
    (1)::bigint AS step_count
   FROM ql.task_revision t;

ALTER VIEW ql.target_state OWNER TO ql_migrator;

--
-- Name: task_attempt_admission; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.task_attempt_admission AS
 SELECT attempt_id,
    run_id,
    number,
    step_key,
    epoch,
    task_id,
    queue,
    jitter,
    admitted_at_ms
   FROM ql.task_attempt a;

ALTER VIEW ql.task_attempt_admission OWNER TO ql_migrator;

--
-- Name: trigger_state; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.trigger_state AS
 SELECT t.package_key,
    t.trigger_key,
    t.generation,
    t.state,
    t.cron,
    t.tz,
    t.kind,
    t.target_key,
    t.misfire,
    t.overlap,
    s.next_fire_at_ms,
    s.due_at_ms,
    s.updated_at_ms AS since_ms,
    s.last_scheduled_at_ms,
    s.last_outcome,
    s.last_run_id,
    ( SELECT r.status
           FROM ql.run r
          WHERE (r.run_id = s.last_run_id)) AS last_run_status,
    f.error AS fault_error,
    f.fault_count,
    f.next_try_at_ms AS fault_next_try_at_ms
   FROM ((ql.trigger t
     JOIN ql.trigger_schedule s ON (((s.package_key = t.package_key) AND (s.trigger_key = t.trigger_key))))
     LEFT JOIN ql.trigger_fault f ON (((f.package_key = t.package_key) AND (f.trigger_key = t.trigger_key))));

ALTER VIEW ql.trigger_state OWNER TO ql_migrator;

--
-- Name: violation; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.violation AS
 SELECT a.run_id,
    'due_work_is_on_the_agenda'::text AS rule,
    a.stage AS entity_id
   FROM ql.agenda_missing a
UNION ALL
 SELECT r.run_id,
    'run_version_is_its_event_count'::text AS rule,
    r.run_id AS entity_id
   FROM ql.run r
  WHERE (1 = ( SELECT
                CASE
                    WHEN ((count(*) <> r.version) OR (COALESCE(max(e.sequence), (0)::bigint) <> r.version)) THEN 1
                    ELSE NULL::integer
                END AS "case"
           FROM ql.run_event e
          WHERE (e.run_id = r.run_id)))
UNION ALL
 SELECT e.run_id,
    'event_times_never_step_back'::text AS rule,
    (e.sequence)::text AS entity_id
   FROM (ql.run_event e
     JOIN ql.run_event b ON (((b.run_id = e.run_id) AND (b.sequence = (e.sequence - 1)))))
  WHERE (b.created_at_ms > e.created_at_ms)
UNION ALL
 SELECT e.run_id,
    'events_follow_the_state_machine'::text AS rule,
    (e.sequence)::text AS entity_id
   FROM ql.run_event e
  WHERE ((e.from_status IS NOT NULL) AND (NOT ((e.entity, e.from_status, e.to_status) IN ( SELECT t.entity,
            t.from_status,
            t.to_status
           FROM ql.state_transition t))))
UNION ALL
 SELECT c.run_id,
    'step_is_what_its_events_say'::text AS rule,
    c.entity_id
   FROM ( SELECT f.run_id,
            f.entity_id,
            f.version,
            f.status,
            (row_number() OVER (PARTITION BY f.run_id, f.entity_id ORDER BY f.sequence) - 1) AS event_count,
            lag(f.status) OVER (PARTITION BY f.run_id, f.entity_id ORDER BY f.sequence) AS last_status
           FROM ( SELECT s.run_id,
                    s.step_key AS entity_id,
                    s.version,
                    s.status,
                    '9223372036854775807'::bigint AS sequence
                   FROM ql.step_run s
                UNION ALL
                 SELECT e.run_id,
                    e.entity_id,
                    NULL::bigint AS version,
                    e.to_status,
                    e.sequence
                   FROM ql.run_event e
                  WHERE (e.entity = 'step'::text)) f) c
  WHERE ((c.version <> c.event_count) OR ((c.version IS NOT NULL) AND (c.status IS DISTINCT FROM c.last_status)))
UNION ALL
 SELECT c.run_id,
    'attempt_is_what_its_events_say'::text AS rule,
    c.entity_id
   FROM ( SELECT f.run_id,
            f.entity_id,
            f.version,
            f.status,
            (row_number() OVER (PARTITION BY f.run_id, f.entity_id ORDER BY f.sequence) - 1) AS event_count,
            lag(f.status) OVER (PARTITION BY f.run_id, f.entity_id ORDER BY f.sequence) AS last_status
           FROM ( SELECT a.run_id,
                    a.attempt_id AS entity_id,
                    a.version,
                    a.status,
                    '9223372036854775807'::bigint AS sequence
                   FROM ql.task_attempt a
                UNION ALL
                 SELECT e.run_id,
                    e.entity_id,
                    NULL::bigint AS version,
                    e.to_status,
                    e.sequence
                   FROM ql.run_event e
                  WHERE (e.entity = 'attempt'::text)) f) c
  WHERE ((c.version <> c.event_count) OR ((c.version IS NOT NULL) AND (c.status IS DISTINCT FROM c.last_status)))
UNION ALL
 SELECT r.run_id,
    'attempts_are_counted'::text AS rule,
    r.run_id AS entity_id
   FROM ql.run r
  WHERE ((r.attempt_count <> ( SELECT count(*) AS count
           FROM ql.task_attempt a
          WHERE (a.run_id = r.run_id))) OR (r.attempt_count <> ( SELECT COALESCE(max(a.number), (0)::bigint) AS "coalesce"
           FROM ql.task_attempt a
          WHERE (a.run_id = r.run_id))))
UNION ALL
 SELECT r.run_id,
    'a_run_has_all_its_steps'::text AS rule,
    r.run_id AS entity_id
   FROM ql.run r
  WHERE ((r.step_count <> ( SELECT count(*) AS count
           FROM ql.step_run s
          WHERE (s.run_id = r.run_id))) OR (r.version = 0))
UNION ALL
 SELECT s.run_id,
    'a_terminal_run_has_only_terminal_steps'::text AS rule,
    s.step_key AS entity_id
   FROM ql.step_run s
  WHERE ((s.finished_at_ms IS NULL) AND (( SELECT r.status
           FROM ql.run r
          WHERE (r.run_id = s.run_id)) <> 'running'::text))
UNION ALL
 SELECT a.run_id,
    'a_terminal_run_has_no_live_attempt'::text AS rule,
    a.attempt_id AS entity_id
   FROM ql.task_attempt a
  WHERE ((a.status = ANY (ARRAY['claimed'::text, 'starting'::text, 'running'::text])) AND (( SELECT r.status
           FROM ql.run r
          WHERE (r.run_id = a.run_id)) <> 'running'::text))
UNION ALL
 SELECT a.run_id,
    'a_terminal_run_has_no_agenda'::text AS rule,
    a.stage AS entity_id
   FROM ql.agenda a
  WHERE (( SELECT r.status
           FROM ql.run r
          WHERE (r.run_id = a.run_id)) IS DISTINCT FROM 'running'::text)
UNION ALL
 SELECT s.run_id,
    'a_running_step_has_one_live_attempt'::text AS rule,
    s.step_key AS entity_id
   FROM ql.step_run s
  WHERE ((s.status = 'running'::text) <> (( SELECT count(*) AS count
           FROM ql.task_attempt a
          WHERE ((a.run_id = s.run_id) AND (a.step_key = s.step_key) AND (a.status = 'running'::text) AND ((a.epoch + 1) = s.version))) = 1))
UNION ALL
 SELECT a.run_id,
    'a_live_attempt_sits_on_its_epoch'::text AS rule,
    a.attempt_id AS entity_id
   FROM ql.task_attempt a
  WHERE (((a.status = ANY (ARRAY['claimed'::text, 'starting'::text])) AND (NOT (EXISTS ( SELECT 1
           FROM ql.step_run s
          WHERE ((s.run_id = a.run_id) AND (s.step_key = a.step_key) AND (s.status = 'ready'::text) AND (s.version = a.epoch)))))) OR ((a.status = 'running'::text) AND (NOT (EXISTS ( SELECT 1
           FROM ql.step_run s
          WHERE ((s.run_id = a.run_id) AND (s.step_key = a.step_key) AND (s.status = 'running'::text) AND (s.version = (a.epoch + 1))))))))
UNION ALL
 SELECT a.run_id,
    'work_past_the_barrier_has_a_lease'::text AS rule,
    a.attempt_id AS entity_id
   FROM ql.task_attempt a
  WHERE ((a.status = ANY (ARRAY['starting'::text, 'running'::text])) AND (( SELECT l.status
           FROM ql.attempt_lease l
          WHERE (l.attempt_id = a.attempt_id)) IS DISTINCT FROM 'leased'::text))
UNION ALL
 SELECT a.run_id,
    'a_held_lease_belongs_to_a_live_attempt'::text AS rule,
    a.attempt_id AS entity_id
   FROM ql.task_attempt a
  WHERE ((a.finished_at_ms IS NOT NULL) AND (( SELECT l.status
           FROM ql.attempt_lease l
          WHERE (l.attempt_id = a.attempt_id)) = 'leased'::text))
UNION ALL
 SELECT e.run_id,
    'a_lease_belongs_to_an_attempt_of_its_run'::text AS rule,
    e.entity_id
   FROM ql.run_event e
  WHERE ((e.entity = 'lease'::text) AND ((( SELECT a.run_id
           FROM ql.task_attempt a
          WHERE (a.attempt_id = e.entity_id)) IS DISTINCT FROM e.run_id) OR (( SELECT l.run_id
           FROM ql.attempt_lease l
          WHERE (l.attempt_id = e.entity_id)) IS DISTINCT FROM e.run_id)))
UNION ALL
 SELECT o.run_id,
    'only_a_succeeded_step_has_output'::text AS rule,
    o.step_key AS entity_id
   FROM ql.step_output o
  WHERE (( SELECT s.status
           FROM ql.step_run s
          WHERE ((s.run_id = o.run_id) AND (s.step_key = o.step_key))) IS DISTINCT FROM 'succeeded'::text)
UNION ALL
 SELECT s.run_id,
    'a_succeeded_step_has_its_attempt'::text AS rule,
    s.step_key AS entity_id
   FROM ql.step_run s
  WHERE ((s.status = 'succeeded'::text) AND (s.result_code IS NULL) AND (NOT (EXISTS ( SELECT 1
           FROM ql.task_attempt a
          WHERE ((a.run_id = s.run_id) AND (a.step_key = s.step_key) AND (a.status = 'succeeded'::text))))))
UNION ALL
 SELECT s.run_id,
    'only_a_retry_takes_over_what_never_ran_in_it'::text AS rule,
    s.step_key AS entity_id
   FROM ql.step_run s
  WHERE ((s.result_code = 'taken_over'::text) AND ((( SELECT r.retry_of_run_id
           FROM ql.run r
          WHERE (r.run_id = s.run_id)) IS NULL) OR (EXISTS ( SELECT 1
           FROM ql.task_attempt a
          WHERE ((a.run_id = s.run_id) AND (a.step_key = s.step_key))))))
UNION ALL
 SELECT i.run_id,
    'an_intent_is_on_its_run'::text AS rule,
    i.run_id AS entity_id
   FROM ql.cancel_intent i
  WHERE (( SELECT r.cancel_reason
           FROM ql.run r
          WHERE (r.run_id = i.run_id)) IS DISTINCT FROM i.reason)
UNION ALL
 SELECT r.run_id,
    'a_run_has_its_intent'::text AS rule,
    r.run_id AS entity_id
   FROM ql.run r
  WHERE ((r.cancel_reason IS NOT NULL) AND (NOT (EXISTS ( SELECT 1
           FROM ql.cancel_intent i
          WHERE (i.run_id = r.run_id)))))
UNION ALL
 SELECT o.run_id,
    'every_row_belongs_to_a_run'::text AS rule,
    o.entity_id
   FROM ( SELECT e.run_id,
            (e.sequence)::text AS entity_id
           FROM ql.run_event e
        UNION ALL
         SELECT n.run_id,
            n.run_id AS entity_id
           FROM ql.run_input n
        UNION ALL
         SELECT s.run_id,
            s.step_key AS entity_id
           FROM ql.step_run s
        UNION ALL
         SELECT t.run_id,
            t.step_key AS entity_id
           FROM ql.step_output t
        UNION ALL
         SELECT a.run_id,
            a.attempt_id AS entity_id
           FROM ql.task_attempt a
        UNION ALL
         SELECT l.run_id,
            l.attempt_id AS entity_id
           FROM ql.attempt_lease l
        UNION ALL
         SELECT p.run_id,
            p.attempt_id AS entity_id
           FROM ql.attempt_report p
        UNION ALL
         SELECT f.run_id,
            f.attempt_id AS entity_id
           FROM ql.attempt_offer f
        UNION ALL
         SELECT x.run_id,
            x.attempt_id AS entity_id
           FROM ql.refused_report x
        UNION ALL
         SELECT w.run_id,
            w.attempt_id AS entity_id
           FROM ql.attestation w
        UNION ALL
         SELECT i.run_id,
            i.run_id AS entity_id
           FROM ql.cancel_intent i
        UNION ALL
         SELECT g.run_id,
            g.stage AS entity_id
           FROM ql.agenda g
        UNION ALL
         SELECT u.run_id,
            u.stage AS entity_id
           FROM ql.run_fault u
        UNION ALL
         SELECT y.run_id,
            y.trigger_key AS entity_id
           FROM ql.trigger_run y) o
  WHERE (NOT (EXISTS ( SELECT 1
           FROM ql.run r
          WHERE (r.run_id = o.run_id))))
UNION ALL
 SELECT NULL::text AS run_id,
    'a_trigger_is_due_when_its_cursor_says'::text AS rule,
    ((t.package_key || '/'::text) || t.trigger_key) AS entity_id
   FROM ((ql.trigger t
     LEFT JOIN ql.trigger_schedule s ON (((s.package_key = t.package_key) AND (s.trigger_key = t.trigger_key))))
     LEFT JOIN ql.schedule_due d ON (((d.package_key = t.package_key) AND (d.trigger_key = t.trigger_key))))
  WHERE ((s.state_version IS NULL) OR (s.due_at_ms IS DISTINCT FROM d.due_at_ms))
UNION ALL
 SELECT r.run_id,
    'an_open_run_is_known_to_its_trigger'::text AS rule,
    COALESCE(r.trigger_key, o.trigger_key) AS entity_id
   FROM (ql.run r
     LEFT JOIN ql.trigger_run o ON ((o.run_id = r.retry_of_run_id)))
  WHERE ((r.finished_at_ms IS NULL) AND (COALESCE(r.trigger_key, o.trigger_key) IS NOT NULL) AND (COALESCE(r.trigger_key, o.trigger_key) IS DISTINCT FROM ( SELECT m.trigger_key
           FROM ql.trigger_run m
          WHERE ((m.run_id = r.run_id) AND (m.package_key = r.package_key) AND (m.open_at_ms IS NOT NULL)))));

ALTER VIEW ql.violation OWNER TO ql_migrator;

--
-- Name: worker_audit; Type: TABLE; Schema: ql; Owner: ql_migrator
--

CREATE TABLE ql.worker_audit (
    minute_ms bigint NOT NULL,
    worker_id text NOT NULL COLLATE pg_catalog."C",
    route text NOT NULL COLLATE pg_catalog."C",
    certificate text NOT NULL COLLATE pg_catalog."C",
    first_at_ms bigint NOT NULL
);

ALTER TABLE ql.worker_audit OWNER TO ql_migrator;

--
-- Name: worker_audit_log; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.worker_audit_log AS
 SELECT minute_ms,
    worker_id,
    route,
    certificate,
    first_at_ms
   FROM ql.worker_audit u;

ALTER VIEW ql.worker_audit_log OWNER TO ql_migrator;

--
-- Name: worker_hold; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.worker_hold AS
 SELECT l.worker_id,
    l.run_id,
    l.attempt_id,
    a.step_key,
    a.number,
    a.status,
    l.fence,
    l.expires_at_ms,
    l.leased_at_ms
   FROM ((ql.run r
     CROSS JOIN ql.task_attempt a)
     CROSS JOIN ql.attempt_lease l)
  WHERE ((r.finished_at_ms IS NULL) AND (a.run_id = r.run_id) AND (a.finished_at_ms IS NULL) AND (l.attempt_id = a.attempt_id) AND (l.status = 'leased'::text));

ALTER VIEW ql.worker_hold OWNER TO ql_migrator;

--
-- Name: worker_state; Type: VIEW; Schema: ql; Owner: ql_migrator
--

CREATE VIEW ql.worker_state AS
 SELECT worker_id,
    session_id,
    generation,
    status,
    queues,
    slots,
    self_fencing,
    registered_at_ms,
    seen_at_ms,
    expires_at_ms,
    drain_requested_at_ms
   FROM ql.worker_session w;

ALTER VIEW ql.worker_state OWNER TO ql_migrator;

--
-- Name: agenda agenda_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.agenda
    ADD CONSTRAINT agenda_pkey PRIMARY KEY (run_id, stage);

--
-- Name: attempt_offer an_offer_is_made_once; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.attempt_offer
    ADD CONSTRAINT an_offer_is_made_once UNIQUE (offer_id);

--
-- Name: attempt_lease attempt_lease_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.attempt_lease
    ADD CONSTRAINT attempt_lease_pkey PRIMARY KEY (attempt_id);

--
-- Name: attempt_offer attempt_offer_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.attempt_offer
    ADD CONSTRAINT attempt_offer_pkey PRIMARY KEY (run_id, attempt_id, fence);

--
-- Name: attempt_report attempt_report_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.attempt_report
    ADD CONSTRAINT attempt_report_pkey PRIMARY KEY (run_id, attempt_id, fence, kind);

--
-- Name: attestation attestation_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.attestation
    ADD CONSTRAINT attestation_pkey PRIMARY KEY (run_id, attempt_id);

--
-- Name: cancel_intent cancel_intent_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.cancel_intent
    ADD CONSTRAINT cancel_intent_pkey PRIMARY KEY (run_id);

--
-- Name: task_attempt one_admission_an_epoch; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.task_attempt
    ADD CONSTRAINT one_admission_an_epoch UNIQUE (run_id, step_key, epoch);

--
-- Name: task_revision one_revision_a_task_and_generation; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.task_revision
    ADD CONSTRAINT one_revision_a_task_and_generation UNIQUE (package_key, generation, task_key);

--
-- Name: workflow_revision one_revision_a_workflow_and_generation; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.workflow_revision
    ADD CONSTRAINT one_revision_a_workflow_and_generation UNIQUE (package_key, generation, workflow_key);

--
-- Name: package_generation package_generation_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.package_generation
    ADD CONSTRAINT package_generation_pkey PRIMARY KEY (package_key, generation);

--
-- Name: package package_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.package
    ADD CONSTRAINT package_pkey PRIMARY KEY (package_key);

--
-- Name: refused_report refused_report_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.refused_report
    ADD CONSTRAINT refused_report_pkey PRIMARY KEY (run_id, attempt_id, ordinal);

--
-- Name: run_event run_event_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.run_event
    ADD CONSTRAINT run_event_pkey PRIMARY KEY (run_id, sequence);

--
-- Name: run_fault run_fault_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.run_fault
    ADD CONSTRAINT run_fault_pkey PRIMARY KEY (run_id, stage);

--
-- Name: run_input run_input_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.run_input
    ADD CONSTRAINT run_input_pkey PRIMARY KEY (run_id);

--
-- Name: run run_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.run
    ADD CONSTRAINT run_pkey PRIMARY KEY (run_id);

--
-- Name: step_output step_output_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.step_output
    ADD CONSTRAINT step_output_pkey PRIMARY KEY (run_id, step_key);

--
-- Name: step_run step_run_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.step_run
    ADD CONSTRAINT step_run_pkey PRIMARY KEY (run_id, step_key);

--
-- Name: task_attempt task_attempt_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.task_attempt
    ADD CONSTRAINT task_attempt_pkey PRIMARY KEY (attempt_id);

--
-- Name: task_revision task_revision_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.task_revision
    ADD CONSTRAINT task_revision_pkey PRIMARY KEY (task_id);

--
-- Name: trigger_fault trigger_fault_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.trigger_fault
    ADD CONSTRAINT trigger_fault_pkey PRIMARY KEY (package_key, trigger_key);

--
-- Name: trigger trigger_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.trigger
    ADD CONSTRAINT trigger_pkey PRIMARY KEY (package_key, trigger_key);

--
-- Name: trigger_run trigger_run_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.trigger_run
    ADD CONSTRAINT trigger_run_pkey PRIMARY KEY (run_id);

--
-- Name: trigger_schedule trigger_schedule_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.trigger_schedule
    ADD CONSTRAINT trigger_schedule_pkey PRIMARY KEY (package_key, trigger_key);

--
-- Name: worker_audit worker_audit_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.worker_audit
    ADD CONSTRAINT worker_audit_pkey PRIMARY KEY (minute_ms, worker_id, route, certificate);

--
-- Name: worker_session worker_session_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.worker_session
    ADD CONSTRAINT worker_session_pkey PRIMARY KEY (worker_id);

--
-- Name: workflow_ancestor workflow_ancestor_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.workflow_ancestor
    ADD CONSTRAINT workflow_ancestor_pkey PRIMARY KEY (workflow_id, ancestor_key, step_key);

--
-- Name: workflow_revision workflow_revision_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.workflow_revision
    ADD CONSTRAINT workflow_revision_pkey PRIMARY KEY (workflow_id);

--
-- Name: workflow_step workflow_step_pkey; Type: CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.workflow_step
    ADD CONSTRAINT workflow_step_pkey PRIMARY KEY (workflow_id, step_key);

--
-- Name: agenda_due; Type: INDEX; Schema: ql; Owner: ql_migrator
--

CREATE INDEX agenda_due ON ql.agenda USING btree (stage, due_at_ms, run_id);

--
-- Name: attempt_offered; Type: INDEX; Schema: ql; Owner: ql_migrator
--

CREATE INDEX attempt_offered ON ql.task_attempt USING btree (queue, offer_at_ms, attempt_id) WHERE (offer_at_ms IS NOT NULL);

--
-- Name: one_active_generation; Type: INDEX; Schema: ql; Owner: ql_migrator
--

CREATE UNIQUE INDEX one_active_generation ON ql.package_generation USING btree (package_key) WHERE (state = 'active'::text);

--
-- Name: run_ended; Type: INDEX; Schema: ql; Owner: ql_migrator
--

CREATE INDEX run_ended ON ql.run USING btree (finished_at_ms, run_id) WHERE (finished_at_ms IS NOT NULL);

--
-- Name: run_open; Type: INDEX; Schema: ql; Owner: ql_migrator
--

CREATE INDEX run_open ON ql.run USING btree (admitted_at_ms, run_id) WHERE (finished_at_ms IS NULL);

--
-- Name: run_recent; Type: INDEX; Schema: ql; Owner: ql_migrator
--

CREATE INDEX run_recent ON ql.run USING btree (admitted_at_ms, run_id);

--
-- Name: run_target; Type: INDEX; Schema: ql; Owner: ql_migrator
--

CREATE INDEX run_target ON ql.run USING btree (target_id, admitted_at_ms, run_id);

--
-- Name: trigger_claimed; Type: INDEX; Schema: ql; Owner: ql_migrator
--

CREATE INDEX trigger_claimed ON ql.trigger_schedule USING btree (claim_token) WHERE (claim_token IS NOT NULL);

--
-- Name: trigger_due; Type: INDEX; Schema: ql; Owner: ql_migrator
--

CREATE INDEX trigger_due ON ql.trigger_schedule USING btree (due_at_ms, package_key, trigger_key) WHERE (due_at_ms IS NOT NULL);

--
-- Name: trigger_run_open; Type: INDEX; Schema: ql; Owner: ql_migrator
--

CREATE INDEX trigger_run_open ON ql.trigger_run USING btree (package_key, trigger_key, run_id) WHERE (open_at_ms IS NOT NULL);

--
-- Name: trigger_settled; Type: INDEX; Schema: ql; Owner: ql_migrator
--

CREATE INDEX trigger_settled ON ql.trigger_schedule USING btree (updated_at_ms) WHERE (due_at_ms IS NOT NULL);

--
-- Name: workflow_need; Type: INDEX; Schema: ql; Owner: ql_migrator
--

CREATE INDEX workflow_need ON ql.workflow_ancestor USING btree (workflow_id, step_key, ancestor_key) WHERE (distance = 1);

--
-- Name: package_generation package_generation_package_key_fkey; Type: FK CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.package_generation
    ADD CONSTRAINT package_generation_package_key_fkey FOREIGN KEY (package_key) REFERENCES ql.package(package_key);

--
-- Name: run_input run_input_run_id_fkey; Type: FK CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.run_input
    ADD CONSTRAINT run_input_run_id_fkey FOREIGN KEY (run_id) REFERENCES ql.run(run_id);

--
-- Name: run run_package_key_generation_fkey; Type: FK CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.run
    ADD CONSTRAINT run_package_key_generation_fkey FOREIGN KEY (package_key, generation) REFERENCES ql.package_generation(package_key, generation);

--
-- Name: step_run step_run_run_id_fkey; Type: FK CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.step_run
    ADD CONSTRAINT step_run_run_id_fkey FOREIGN KEY (run_id) REFERENCES ql.run(run_id);

--
-- Name: task_revision task_revision_package_key_generation_fkey; Type: FK CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.task_revision
    ADD CONSTRAINT task_revision_package_key_generation_fkey FOREIGN KEY (package_key, generation) REFERENCES ql.package_generation(package_key, generation);

--
-- Name: trigger trigger_package_key_fkey; Type: FK CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.trigger
    ADD CONSTRAINT trigger_package_key_fkey FOREIGN KEY (package_key) REFERENCES ql.package(package_key);

--
-- Name: trigger_schedule trigger_schedule_package_key_trigger_key_fkey; Type: FK CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.trigger_schedule
    ADD CONSTRAINT trigger_schedule_package_key_trigger_key_fkey FOREIGN KEY (package_key, trigger_key) REFERENCES ql.trigger(package_key, trigger_key);

--
-- Name: workflow_ancestor workflow_ancestor_workflow_id_ancestor_key_fkey; Type: FK CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.workflow_ancestor
    ADD CONSTRAINT workflow_ancestor_workflow_id_ancestor_key_fkey FOREIGN KEY (workflow_id, ancestor_key) REFERENCES ql.workflow_step(workflow_id, step_key);

--
-- Name: workflow_ancestor workflow_ancestor_workflow_id_step_key_fkey; Type: FK CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.workflow_ancestor
    ADD CONSTRAINT workflow_ancestor_workflow_id_step_key_fkey FOREIGN KEY (workflow_id, step_key) REFERENCES ql.workflow_step(workflow_id, step_key);

--
-- Name: workflow_revision workflow_revision_package_key_generation_fkey; Type: FK CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.workflow_revision
    ADD CONSTRAINT workflow_revision_package_key_generation_fkey FOREIGN KEY (package_key, generation) REFERENCES ql.package_generation(package_key, generation);

--
-- Name: workflow_step workflow_step_task_id_fkey; Type: FK CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.workflow_step
    ADD CONSTRAINT workflow_step_task_id_fkey FOREIGN KEY (task_id) REFERENCES ql.task_revision(task_id);

--
-- Name: workflow_step workflow_step_workflow_id_fkey; Type: FK CONSTRAINT; Schema: ql; Owner: ql_migrator
--

ALTER TABLE ONLY ql.workflow_step
    ADD CONSTRAINT workflow_step_workflow_id_fkey FOREIGN KEY (workflow_id) REFERENCES ql.workflow_revision(workflow_id);

--
-- Name: SCHEMA ql; Type: ACL; Schema: -; Owner: ql_migrator
--

GRANT USAGE ON SCHEMA ql TO ql_authority;
GRANT USAGE ON SCHEMA ql TO ql_reader;
GRANT USAGE ON SCHEMA ql TO ql_retention;

--
-- Name: SCHEMA ql_admission; Type: ACL; Schema: -; Owner: ql_authority
--

GRANT USAGE ON SCHEMA ql_admission TO ql_admission;

--
-- Name: SCHEMA ql_operator; Type: ACL; Schema: -; Owner: ql_authority
--

GRANT USAGE ON SCHEMA ql_operator TO ql_operator;

--
-- Name: SCHEMA ql_retention; Type: ACL; Schema: -; Owner: ql_retention
--

GRANT USAGE ON SCHEMA ql_retention TO ql_operator;

--
-- Name: SCHEMA ql_scheduler; Type: ACL; Schema: -; Owner: ql_authority
--

GRANT USAGE ON SCHEMA ql_scheduler TO ql_scheduler;

--
-- Name: SCHEMA ql_worker; Type: ACL; Schema: -; Owner: ql_authority
--

GRANT USAGE ON SCHEMA ql_worker TO ql_worker;

--
-- Name: TYPE command; Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON TYPE ql.command FROM PUBLIC;
GRANT ALL ON TYPE ql.command TO ql_authority;

--
-- Name: TYPE effect; Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON TYPE ql.effect FROM PUBLIC;
GRANT ALL ON TYPE ql.effect TO ql_authority;

--
-- Name: FUNCTION accept_reports(p_commands ql.command[], p_kind text, p_now_ms bigint); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.accept_reports(p_commands ql.command[], p_kind text, p_now_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.accept_reports(p_commands ql.command[], p_kind text, p_now_ms bigint) TO ql_authority;

--
-- Name: FUNCTION add_attempts(p_effects ql.effect[], p_wanted bigint, p_at_ms bigint); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.add_attempts(p_effects ql.effect[], p_wanted bigint, p_at_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.add_attempts(p_effects ql.effect[], p_wanted bigint, p_at_ms bigint) TO ql_authority;

--
-- Name: FUNCTION add_revisions(p_package_key text, p_generation bigint, p_model jsonb); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.add_revisions(p_package_key text, p_generation bigint, p_model jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.add_revisions(p_package_key text, p_generation bigint, p_model jsonb) TO ql_authority;

--
-- Name: FUNCTION add_steps(p_effects ql.effect[], p_wanted bigint); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.add_steps(p_effects ql.effect[], p_wanted bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.add_steps(p_effects ql.effect[], p_wanted bigint) TO ql_authority;

--
-- Name: FUNCTION admit_occurrence(p_run_id text, p_package_key text, p_trigger_key text, p_scheduled_at_ms bigint); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.admit_occurrence(p_run_id text, p_package_key text, p_trigger_key text, p_scheduled_at_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.admit_occurrence(p_run_id text, p_package_key text, p_trigger_key text, p_scheduled_at_ms bigint) TO ql_authority;

--
-- Name: FUNCTION admit_ready_steps(p_run_ids text[]); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.admit_ready_steps(p_run_ids text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.admit_ready_steps(p_run_ids text[]) TO ql_authority;

--
-- Name: FUNCTION admit_run(p_run_id text, p_package_key text, p_kind text, p_target_key text, p_run_key text, p_input text, p_retry_of_run_id text, p_trigger_key text, p_scheduled_at_ms bigint); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.admit_run(p_run_id text, p_package_key text, p_kind text, p_target_key text, p_run_key text, p_input text, p_retry_of_run_id text, p_trigger_key text, p_scheduled_at_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.admit_run(p_run_id text, p_package_key text, p_kind text, p_target_key text, p_run_key text, p_input text, p_retry_of_run_id text, p_trigger_key text, p_scheduled_at_ms bigint) TO ql_authority;

--
-- Name: FUNCTION advance_frontiers(p_run_ids text[]); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.advance_frontiers(p_run_ids text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.advance_frontiers(p_run_ids text[]) TO ql_authority;

--
-- Name: FUNCTION announce(p_effects ql.effect[], p_stage text); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.announce(p_effects ql.effect[], p_stage text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.announce(p_effects ql.effect[], p_stage text) TO ql_authority;

--
-- Name: FUNCTION answers(p_commands ql.command[]); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.answers(p_commands ql.command[]) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.answers(p_commands ql.command[]) TO ql_authority;

--
-- Name: FUNCTION apply_attested(p_attempt_ids text[]); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.apply_attested(p_attempt_ids text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.apply_attested(p_attempt_ids text[]) TO ql_authority;

--
-- Name: FUNCTION apply_effects(p_effects ql.effect[], p_stage text); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.apply_effects(p_effects ql.effect[], p_stage text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.apply_effects(p_effects ql.effect[], p_stage text) TO ql_authority;

--
-- Name: FUNCTION assert_all_hit(p_entity text, p_wanted bigint, p_hit bigint); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.assert_all_hit(p_entity text, p_wanted bigint, p_hit bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.assert_all_hit(p_entity text, p_wanted bigint, p_hit bigint) TO ql_authority;

--
-- Name: FUNCTION assert_read_committed(); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.assert_read_committed() FROM PUBLIC;
GRANT ALL ON FUNCTION ql.assert_read_committed() TO ql_authority;
GRANT ALL ON FUNCTION ql.assert_read_committed() TO ql_retention;

--
-- Name: FUNCTION attempt_key(p_attempt_id text); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.attempt_key(p_attempt_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.attempt_key(p_attempt_id text) TO ql_authority;

--
-- Name: FUNCTION canonical(p_value jsonb); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.canonical(p_value jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.canonical(p_value jsonb) TO ql_authority;

--
-- Name: FUNCTION canonical_object(p_value jsonb); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.canonical_object(p_value jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.canonical_object(p_value jsonb) TO ql_authority;

--
-- Name: FUNCTION check_claim(p_owner text, p_token text); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.check_claim(p_owner text, p_token text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.check_claim(p_owner text, p_token text) TO ql_authority;

--
-- Name: FUNCTION check_commit(p_cursor_ms bigint, p_due_at_ms bigint, p_observed_at_ms bigint, p_next_at_ms bigint, p_grace_ms bigint); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.check_commit(p_cursor_ms bigint, p_due_at_ms bigint, p_observed_at_ms bigint, p_next_at_ms bigint, p_grace_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.check_commit(p_cursor_ms bigint, p_due_at_ms bigint, p_observed_at_ms bigint, p_next_at_ms bigint, p_grace_ms bigint) TO ql_authority;

--
-- Name: FUNCTION check_manifest(p_package_key text, p_model jsonb); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.check_manifest(p_package_key text, p_model jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.check_manifest(p_package_key text, p_model jsonb) TO ql_authority;

--
-- Name: FUNCTION check_offers(p_offers jsonb, p_lease_ms bigint); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.check_offers(p_offers jsonb, p_lease_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.check_offers(p_offers jsonb, p_lease_ms bigint) TO ql_authority;

--
-- Name: FUNCTION check_start(p_package_key text, p_kind text, p_target_key text, p_run_key text, p_input text); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.check_start(p_package_key text, p_kind text, p_target_key text, p_run_key text, p_input text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.check_start(p_package_key text, p_kind text, p_target_key text, p_run_key text, p_input text) TO ql_authority;

--
-- Name: FUNCTION clear_agenda(p_stage text, p_run_ids text[]); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.clear_agenda(p_stage text, p_run_ids text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.clear_agenda(p_stage text, p_run_ids text[]) TO ql_authority;

--
-- Name: FUNCTION close_leases(p_effects ql.effect[], p_at_ms bigint); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.close_leases(p_effects ql.effect[], p_at_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.close_leases(p_effects ql.effect[], p_at_ms bigint) TO ql_authority;

--
-- Name: FUNCTION command_list(p_commands text); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.command_list(p_commands text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.command_list(p_commands text) TO ql_authority;

--
-- Name: FUNCTION deepen_ancestors(p_workflow_ids text[]); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.deepen_ancestors(p_workflow_ids text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.deepen_ancestors(p_workflow_ids text[]) TO ql_authority;

--
-- Name: FUNCTION derived_id(p_prefix text, VARIADIC p_parts text[]); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.derived_id(p_prefix text, VARIADIC p_parts text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.derived_id(p_prefix text, VARIADIC p_parts text[]) TO ql_authority;

--
-- Name: FUNCTION drain_session(p_worker_id text, p_drains integer); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.drain_session(p_worker_id text, p_drains integer) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.drain_session(p_worker_id text, p_drains integer) TO ql_authority;

--
-- Name: FUNCTION effect_counts(p_run_ids text[], p_effects ql.effect[]); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.effect_counts(p_run_ids text[], p_effects ql.effect[]) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.effect_counts(p_run_ids text[], p_effects ql.effect[]) TO ql_authority;

--
-- Name: FUNCTION expand_commands(p_commands text, p_kind text); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.expand_commands(p_commands text, p_kind text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.expand_commands(p_commands text, p_kind text) TO ql_authority;

--
-- Name: FUNCTION expire_runs(p_run_ids text[]); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.expire_runs(p_run_ids text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.expire_runs(p_run_ids text[]) TO ql_authority;

--
-- Name: FUNCTION find_trigger(p_package_key text, p_trigger_key text); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.find_trigger(p_package_key text, p_trigger_key text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.find_trigger(p_package_key text, p_trigger_key text) TO ql_authority;

--
-- Name: FUNCTION hold_run(p_run_id text); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.hold_run(p_run_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.hold_run(p_run_id text) TO ql_authority;

--
-- Name: TABLE worker_session; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT ON TABLE ql.worker_session TO ql_authority;

--
-- Name: COLUMN worker_session.session_id; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(session_id) ON TABLE ql.worker_session TO ql_authority;

--
-- Name: COLUMN worker_session.generation; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(generation) ON TABLE ql.worker_session TO ql_authority;

--
-- Name: COLUMN worker_session.status; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(status) ON TABLE ql.worker_session TO ql_authority;

--
-- Name: COLUMN worker_session.queues; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(queues) ON TABLE ql.worker_session TO ql_authority;

--
-- Name: COLUMN worker_session.slots; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(slots) ON TABLE ql.worker_session TO ql_authority;

--
-- Name: COLUMN worker_session.self_fencing; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(self_fencing) ON TABLE ql.worker_session TO ql_authority;

--
-- Name: COLUMN worker_session.grace_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(grace_ms) ON TABLE ql.worker_session TO ql_authority;

--
-- Name: COLUMN worker_session.registered_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(registered_at_ms) ON TABLE ql.worker_session TO ql_authority;

--
-- Name: COLUMN worker_session.expires_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(expires_at_ms) ON TABLE ql.worker_session TO ql_authority;

--
-- Name: COLUMN worker_session.seen_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(seen_at_ms) ON TABLE ql.worker_session TO ql_authority;

--
-- Name: COLUMN worker_session.drain_requested_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(drain_requested_at_ms) ON TABLE ql.worker_session TO ql_authority;

--
-- Name: FUNCTION hold_session(p_worker_id text, p_session_id text, p_lock boolean); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.hold_session(p_worker_id text, p_session_id text, p_lock boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.hold_session(p_worker_id text, p_session_id text, p_lock boolean) TO ql_authority;

--
-- Name: FUNCTION hold_triggers(p_package_key text, p_trigger_key text); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.hold_triggers(p_package_key text, p_trigger_key text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.hold_triggers(p_package_key text, p_trigger_key text) TO ql_authority;

--
-- Name: FUNCTION input_octets(p_attempt_id text); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.input_octets(p_attempt_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.input_octets(p_attempt_id text) TO ql_authority;

--
-- Name: FUNCTION input_text(p_attempt_id text); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.input_text(p_attempt_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.input_text(p_attempt_id text) TO ql_authority;

--
-- Name: FUNCTION insert_run(p_run_id text, p_package_key text, p_kind text, p_target_key text, p_run_key text, p_input_digest text, p_retry_of_run_id text, p_trigger_key text, p_scheduled_at_ms bigint); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.insert_run(p_run_id text, p_package_key text, p_kind text, p_target_key text, p_run_key text, p_input_digest text, p_retry_of_run_id text, p_trigger_key text, p_scheduled_at_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.insert_run(p_run_id text, p_package_key text, p_kind text, p_target_key text, p_run_key text, p_input_digest text, p_retry_of_run_id text, p_trigger_key text, p_scheduled_at_ms bigint) TO ql_authority;

--
-- Name: FUNCTION intend(p_run_ids text[], p_reason text, p_actor text); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.intend(p_run_ids text[], p_reason text, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.intend(p_run_ids text[], p_reason text, p_actor text) TO ql_authority;

--
-- Name: FUNCTION is_object(p_text text); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.is_object(p_text text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.is_object(p_text text) TO ql_authority;

--
-- Name: FUNCTION is_storable(p_value json, p_depth integer); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.is_storable(p_value json, p_depth integer) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.is_storable(p_value json, p_depth integer) TO ql_authority;

--
-- Name: FUNCTION jitter(p_run_id text, p_step_key text, p_number bigint); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.jitter(p_run_id text, p_step_key text, p_number bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.jitter(p_run_id text, p_step_key text, p_number bigint) TO ql_authority;

--
-- Name: FUNCTION keep_outputs(p_effects ql.effect[]); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.keep_outputs(p_effects ql.effect[]) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.keep_outputs(p_effects ql.effect[]) TO ql_authority;

--
-- Name: FUNCTION keep_refused(p_commands ql.command[], p_now_ms bigint); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.keep_refused(p_commands ql.command[], p_now_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.keep_refused(p_commands ql.command[], p_now_ms bigint) TO ql_authority;

--
-- Name: FUNCTION known_reports(p_commands ql.command[], p_new text[], p_kind text); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.known_reports(p_commands ql.command[], p_new text[], p_kind text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.known_reports(p_commands ql.command[], p_new text[], p_kind text) TO ql_authority;

--
-- Name: FUNCTION lock_attempts(p_attempt_ids text[], p_run_ids text[]); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.lock_attempts(p_attempt_ids text[], p_run_ids text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.lock_attempts(p_attempt_ids text[], p_run_ids text[]) TO ql_authority;

--
-- Name: FUNCTION lock_commands(p_commands ql.command[]); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.lock_commands(p_commands ql.command[]) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.lock_commands(p_commands ql.command[]) TO ql_authority;

--
-- Name: FUNCTION lock_run(p_run_id text); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.lock_run(p_run_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.lock_run(p_run_id text) TO ql_authority;

--
-- Name: FUNCTION lock_runs(p_run_ids text[]); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.lock_runs(p_run_ids text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.lock_runs(p_run_ids text[]) TO ql_authority;

--
-- Name: FUNCTION make_offers(p_session ql.worker_session, p_held text[], p_offer_ids text[], p_digests text[], p_now_ms bigint, p_lease_ms bigint); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.make_offers(p_session ql.worker_session, p_held text[], p_offer_ids text[], p_digests text[], p_now_ms bigint, p_lease_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.make_offers(p_session ql.worker_session, p_held text[], p_offer_ids text[], p_digests text[], p_now_ms bigint, p_lease_ms bigint) TO ql_authority;

--
-- Name: FUNCTION move_attempts(p_effects ql.effect[], p_wanted bigint, p_at_ms bigint); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.move_attempts(p_effects ql.effect[], p_wanted bigint, p_at_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.move_attempts(p_effects ql.effect[], p_wanted bigint, p_at_ms bigint) TO ql_authority;

--
-- Name: FUNCTION move_leases(p_effects ql.effect[], p_wanted bigint, p_at_ms bigint); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.move_leases(p_effects ql.effect[], p_wanted bigint, p_at_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.move_leases(p_effects ql.effect[], p_wanted bigint, p_at_ms bigint) TO ql_authority;

--
-- Name: FUNCTION move_runs(p_effects ql.effect[], p_wanted bigint, OUT versions bigint[], OUT at_ms bigint); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.move_runs(p_effects ql.effect[], p_wanted bigint, OUT versions bigint[], OUT at_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.move_runs(p_effects ql.effect[], p_wanted bigint, OUT versions bigint[], OUT at_ms bigint) TO ql_authority;

--
-- Name: FUNCTION move_steps(p_effects ql.effect[], p_wanted bigint, p_at_ms bigint); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.move_steps(p_effects ql.effect[], p_wanted bigint, p_at_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.move_steps(p_effects ql.effect[], p_wanted bigint, p_at_ms bigint) TO ql_authority;

--
-- Name: FUNCTION now_ms(); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.now_ms() FROM PUBLIC;
GRANT ALL ON FUNCTION ql.now_ms() TO ql_authority;

--
-- Name: FUNCTION pick_attempts(p_queue text, p_run_id text, p_count bigint, OUT attempt_ids text[], OUT run_ids text[]); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.pick_attempts(p_queue text, p_run_id text, p_count bigint, OUT attempt_ids text[], OUT run_ids text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.pick_attempts(p_queue text, p_run_id text, p_count bigint, OUT attempt_ids text[], OUT run_ids text[]) TO ql_authority;

--
-- Name: FUNCTION pick_runs(p_stage text, p_after_due_at_ms bigint, p_after_run_id text, p_limit integer); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.pick_runs(p_stage text, p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.pick_runs(p_stage text, p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) TO ql_authority;

--
-- Name: FUNCTION pick_unstarted(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.pick_unstarted(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.pick_unstarted(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) TO ql_authority;

--
-- Name: FUNCTION rearm_agenda(p_stage text, p_run_id text, p_due_at_ms bigint); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.rearm_agenda(p_stage text, p_run_id text, p_due_at_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.rearm_agenda(p_stage text, p_run_id text, p_due_at_ms bigint) TO ql_authority;

--
-- Name: FUNCTION refuse_others(p_commands ql.command[], p_attempt_ids text[], p_code text); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.refuse_others(p_commands ql.command[], p_attempt_ids text[], p_code text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.refuse_others(p_commands ql.command[], p_attempt_ids text[], p_code text) TO ql_authority;

--
-- Name: FUNCTION refuse_strangers(p_commands ql.command[]); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.refuse_strangers(p_commands ql.command[]) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.refuse_strangers(p_commands ql.command[]) TO ql_authority;

--
-- Name: FUNCTION retry_runs(p_run_ids text[]); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.retry_runs(p_run_ids text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.retry_runs(p_run_ids text[]) TO ql_authority;

--
-- Name: FUNCTION return_claim(p_package_key text, p_trigger_key text); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.return_claim(p_package_key text, p_trigger_key text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.return_claim(p_package_key text, p_trigger_key text) TO ql_authority;

--
-- Name: FUNCTION runs_of(p_commands ql.command[]); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.runs_of(p_commands ql.command[]) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.runs_of(p_commands ql.command[]) TO ql_authority;

--
-- Name: FUNCTION set_due(p_package_key text, p_trigger_key text); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.set_due(p_package_key text, p_trigger_key text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.set_due(p_package_key text, p_trigger_key text) TO ql_authority;

--
-- Name: FUNCTION set_trigger(p_package_key text, p_trigger_key text, p_state text); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.set_trigger(p_package_key text, p_trigger_key text, p_state text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.set_trigger(p_package_key text, p_trigger_key text, p_state text) TO ql_authority;

--
-- Name: FUNCTION set_triggers(p_package_key text, p_generation bigint, p_triggers jsonb); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.set_triggers(p_package_key text, p_generation bigint, p_triggers jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.set_triggers(p_package_key text, p_generation bigint, p_triggers jsonb) TO ql_authority;

--
-- Name: FUNCTION sha256_hex(p_text text); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.sha256_hex(p_text text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.sha256_hex(p_text text) TO ql_authority;

--
-- Name: FUNCTION take_over_outputs(p_run_id text); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.take_over_outputs(p_run_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.take_over_outputs(p_run_id text) TO ql_authority;

--
-- Name: FUNCTION wait_run(p_run_id text); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.wait_run(p_run_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.wait_run(p_run_id text) TO ql_authority;

--
-- Name: FUNCTION work_waits(p_queue text, p_run_id text, p_offers jsonb); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.work_waits(p_queue text, p_run_id text, p_offers jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.work_waits(p_queue text, p_run_id text, p_offers jsonb) TO ql_authority;

--
-- Name: FUNCTION write_events(p_effects ql.effect[], p_versions bigint[], p_at_ms bigint); Type: ACL; Schema: ql; Owner: ql_migrator
--

REVOKE ALL ON FUNCTION ql.write_events(p_effects ql.effect[], p_versions bigint[], p_at_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION ql.write_events(p_effects ql.effect[], p_versions bigint[], p_at_ms bigint) TO ql_authority;

--
-- Name: FUNCTION publish_package(p_package_key text, p_manifest text, p_base_dir text); Type: ACL; Schema: ql_admission; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_admission.publish_package(p_package_key text, p_manifest text, p_base_dir text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_admission.publish_package(p_package_key text, p_manifest text, p_base_dir text) TO ql_admission;

--
-- Name: FUNCTION request_cancel(p_run_id text, p_reason text, p_actor text); Type: ACL; Schema: ql_admission; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_admission.request_cancel(p_run_id text, p_reason text, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_admission.request_cancel(p_run_id text, p_reason text, p_actor text) TO ql_admission;

--
-- Name: FUNCTION start_retry(p_run_id text, p_run_key text); Type: ACL; Schema: ql_admission; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_admission.start_retry(p_run_id text, p_run_key text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_admission.start_retry(p_run_id text, p_run_key text) TO ql_admission;

--
-- Name: FUNCTION start_run(p_package_key text, p_kind text, p_target_key text, p_run_key text, p_input text); Type: ACL; Schema: ql_admission; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_admission.start_run(p_package_key text, p_kind text, p_target_key text, p_run_key text, p_input text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_admission.start_run(p_package_key text, p_kind text, p_target_key text, p_run_key text, p_input text) TO ql_admission;

--
-- Name: FUNCTION withdraw_package(p_package_key text); Type: ACL; Schema: ql_admission; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_admission.withdraw_package(p_package_key text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_admission.withdraw_package(p_package_key text) TO ql_admission;

--
-- Name: FUNCTION declare_stopped(p_attempt_id text, p_reason text, p_actor text, p_follow text); Type: ACL; Schema: ql_operator; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_operator.declare_stopped(p_attempt_id text, p_reason text, p_actor text, p_follow text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_operator.declare_stopped(p_attempt_id text, p_reason text, p_actor text, p_follow text) TO ql_operator;

--
-- Name: FUNCTION drain_worker(p_worker_id text); Type: ACL; Schema: ql_operator; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_operator.drain_worker(p_worker_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_operator.drain_worker(p_worker_id text) TO ql_operator;

--
-- Name: FUNCTION fire_trigger(p_package_key text, p_trigger_key text, p_run_key text); Type: ACL; Schema: ql_operator; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_operator.fire_trigger(p_package_key text, p_trigger_key text, p_run_key text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_operator.fire_trigger(p_package_key text, p_trigger_key text, p_run_key text) TO ql_operator;

--
-- Name: FUNCTION pause_trigger(p_package_key text, p_trigger_key text); Type: ACL; Schema: ql_operator; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_operator.pause_trigger(p_package_key text, p_trigger_key text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_operator.pause_trigger(p_package_key text, p_trigger_key text) TO ql_operator;

--
-- Name: FUNCTION release_fault(p_run_id text, p_stage text); Type: ACL; Schema: ql_operator; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_operator.release_fault(p_run_id text, p_stage text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_operator.release_fault(p_run_id text, p_stage text) TO ql_operator;

--
-- Name: FUNCTION resume_trigger(p_package_key text, p_trigger_key text); Type: ACL; Schema: ql_operator; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_operator.resume_trigger(p_package_key text, p_trigger_key text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_operator.resume_trigger(p_package_key text, p_trigger_key text) TO ql_operator;

--
-- Name: FUNCTION undrain_worker(p_worker_id text); Type: ACL; Schema: ql_operator; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_operator.undrain_worker(p_worker_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_operator.undrain_worker(p_worker_id text) TO ql_operator;

--
-- Name: FUNCTION purge_audit(p_before_ms bigint, p_limit integer); Type: ACL; Schema: ql_retention; Owner: ql_retention
--

REVOKE ALL ON FUNCTION ql_retention.purge_audit(p_before_ms bigint, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_retention.purge_audit(p_before_ms bigint, p_limit integer) TO ql_operator;

--
-- Name: FUNCTION purge_runs(p_before_ms bigint, p_limit integer); Type: ACL; Schema: ql_retention; Owner: ql_retention
--

REVOKE ALL ON FUNCTION ql_retention.purge_runs(p_before_ms bigint, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_retention.purge_runs(p_before_ms bigint, p_limit integer) TO ql_operator;

--
-- Name: FUNCTION admit_tasks(p_run_id text); Type: ACL; Schema: ql_scheduler; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_scheduler.admit_tasks(p_run_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_scheduler.admit_tasks(p_run_id text) TO ql_scheduler;

--
-- Name: FUNCTION advance_frontier(p_run_id text); Type: ACL; Schema: ql_scheduler; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_scheduler.advance_frontier(p_run_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_scheduler.advance_frontier(p_run_id text) TO ql_scheduler;

--
-- Name: FUNCTION claim_schedule(p_owner text, p_token text, p_limit integer); Type: ACL; Schema: ql_scheduler; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_scheduler.claim_schedule(p_owner text, p_token text, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_scheduler.claim_schedule(p_owner text, p_token text, p_limit integer) TO ql_scheduler;

--
-- Name: FUNCTION commit_schedule(p_package_key text, p_trigger_key text, p_owner text, p_token text, p_claim_version bigint, p_state_version bigint, p_cursor_ms bigint, p_due_at_ms bigint, p_observed_at_ms bigint, p_next_at_ms bigint, p_grace_ms bigint); Type: ACL; Schema: ql_scheduler; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_scheduler.commit_schedule(p_package_key text, p_trigger_key text, p_owner text, p_token text, p_claim_version bigint, p_state_version bigint, p_cursor_ms bigint, p_due_at_ms bigint, p_observed_at_ms bigint, p_next_at_ms bigint, p_grace_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_scheduler.commit_schedule(p_package_key text, p_trigger_key text, p_owner text, p_token text, p_claim_version bigint, p_state_version bigint, p_cursor_ms bigint, p_due_at_ms bigint, p_observed_at_ms bigint, p_next_at_ms bigint, p_grace_ms bigint) TO ql_scheduler;

--
-- Name: FUNCTION converge_cancellation(p_run_id text); Type: ACL; Schema: ql_scheduler; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_scheduler.converge_cancellation(p_run_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_scheduler.converge_cancellation(p_run_id text) TO ql_scheduler;

--
-- Name: FUNCTION deadline_page(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer); Type: ACL; Schema: ql_scheduler; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_scheduler.deadline_page(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_scheduler.deadline_page(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) TO ql_scheduler;

--
-- Name: FUNCTION deadline_run(p_run_id text); Type: ACL; Schema: ql_scheduler; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_scheduler.deadline_run(p_run_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_scheduler.deadline_run(p_run_id text) TO ql_scheduler;

--
-- Name: FUNCTION due_page(p_stage text, p_after_due_at_ms bigint, p_after_run_id text, p_limit integer); Type: ACL; Schema: ql_scheduler; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_scheduler.due_page(p_stage text, p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_scheduler.due_page(p_stage text, p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) TO ql_scheduler;

--
-- Name: FUNCTION frontier_page(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer); Type: ACL; Schema: ql_scheduler; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_scheduler.frontier_page(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_scheduler.frontier_page(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) TO ql_scheduler;

--
-- Name: FUNCTION record_fault(p_run_id text, p_stage text, p_error text); Type: ACL; Schema: ql_scheduler; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_scheduler.record_fault(p_run_id text, p_stage text, p_error text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_scheduler.record_fault(p_run_id text, p_stage text, p_error text) TO ql_scheduler;

--
-- Name: FUNCTION record_trigger_fault(p_package_key text, p_trigger_key text, p_state_version bigint, p_error text); Type: ACL; Schema: ql_scheduler; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_scheduler.record_trigger_fault(p_package_key text, p_trigger_key text, p_state_version bigint, p_error text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_scheduler.record_trigger_fault(p_package_key text, p_trigger_key text, p_state_version bigint, p_error text) TO ql_scheduler;

--
-- Name: FUNCTION recover_run(p_run_id text); Type: ACL; Schema: ql_scheduler; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_scheduler.recover_run(p_run_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_scheduler.recover_run(p_run_id text) TO ql_scheduler;

--
-- Name: FUNCTION retry_page(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer); Type: ACL; Schema: ql_scheduler; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_scheduler.retry_page(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_scheduler.retry_page(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) TO ql_scheduler;

--
-- Name: FUNCTION retry_run(p_run_id text); Type: ACL; Schema: ql_scheduler; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_scheduler.retry_run(p_run_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_scheduler.retry_run(p_run_id text) TO ql_scheduler;

--
-- Name: FUNCTION settle_task_cancellations(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer); Type: ACL; Schema: ql_scheduler; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_scheduler.settle_task_cancellations(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_scheduler.settle_task_cancellations(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) TO ql_scheduler;

--
-- Name: FUNCTION sweep_agenda(p_after_run_id text, p_limit integer); Type: ACL; Schema: ql_scheduler; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_scheduler.sweep_agenda(p_after_run_id text, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_scheduler.sweep_agenda(p_after_run_id text, p_limit integer) TO ql_scheduler;

--
-- Name: FUNCTION sweep_schedule(p_limit integer); Type: ACL; Schema: ql_scheduler; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_scheduler.sweep_schedule(p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_scheduler.sweep_schedule(p_limit integer) TO ql_scheduler;

--
-- Name: FUNCTION task_admission_page(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer); Type: ACL; Schema: ql_scheduler; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_scheduler.task_admission_page(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_scheduler.task_admission_page(p_after_due_at_ms bigint, p_after_run_id text, p_limit integer) TO ql_scheduler;

--
-- Name: FUNCTION attempt_input(p_attempt_id text, p_token text); Type: ACL; Schema: ql_worker; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_worker.attempt_input(p_attempt_id text, p_token text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_worker.attempt_input(p_attempt_id text, p_token text) TO ql_worker;

--
-- Name: FUNCTION attempt_inputs(p_commands text); Type: ACL; Schema: ql_worker; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_worker.attempt_inputs(p_commands text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_worker.attempt_inputs(p_commands text) TO ql_worker;

--
-- Name: FUNCTION attempt_standing(p_commands text); Type: ACL; Schema: ql_worker; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_worker.attempt_standing(p_commands text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_worker.attempt_standing(p_commands text) TO ql_worker;

--
-- Name: FUNCTION attest_attempts(p_commands text); Type: ACL; Schema: ql_worker; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_worker.attest_attempts(p_commands text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_worker.attest_attempts(p_commands text) TO ql_worker;

--
-- Name: FUNCTION audit_worker(p_worker_id text, p_route text, p_certificate text); Type: ACL; Schema: ql_worker; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_worker.audit_worker(p_worker_id text, p_route text, p_certificate text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_worker.audit_worker(p_worker_id text, p_route text, p_certificate text) TO ql_worker;

--
-- Name: FUNCTION end_session(p_worker_id text, p_session_id text); Type: ACL; Schema: ql_worker; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_worker.end_session(p_worker_id text, p_session_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_worker.end_session(p_worker_id text, p_session_id text) TO ql_worker;

--
-- Name: FUNCTION heartbeat_worker(p_worker_id text, p_session_id text); Type: ACL; Schema: ql_worker; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_worker.heartbeat_worker(p_worker_id text, p_session_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_worker.heartbeat_worker(p_worker_id text, p_session_id text) TO ql_worker;

--
-- Name: FUNCTION lease_attempts(p_worker_id text, p_session_id text, p_queue text, p_offers text, p_lease_ms bigint, p_run_id text); Type: ACL; Schema: ql_worker; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_worker.lease_attempts(p_worker_id text, p_session_id text, p_queue text, p_offers text, p_lease_ms bigint, p_run_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_worker.lease_attempts(p_worker_id text, p_session_id text, p_queue text, p_offers text, p_lease_ms bigint, p_run_id text) TO ql_worker;

--
-- Name: FUNCTION register_worker(p_worker_id text, p_session_id text, p_queues text, p_slots integer, p_self_fencing integer, p_grace_ms bigint); Type: ACL; Schema: ql_worker; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_worker.register_worker(p_worker_id text, p_session_id text, p_queues text, p_slots integer, p_self_fencing integer, p_grace_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_worker.register_worker(p_worker_id text, p_session_id text, p_queues text, p_slots integer, p_self_fencing integer, p_grace_ms bigint) TO ql_worker;

--
-- Name: FUNCTION renew_attempts(p_commands text, p_lease_ms bigint); Type: ACL; Schema: ql_worker; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_worker.renew_attempts(p_commands text, p_lease_ms bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_worker.renew_attempts(p_commands text, p_lease_ms bigint) TO ql_worker;

--
-- Name: FUNCTION report_attempts(p_commands text); Type: ACL; Schema: ql_worker; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_worker.report_attempts(p_commands text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_worker.report_attempts(p_commands text) TO ql_worker;

--
-- Name: FUNCTION running_attempts(p_commands text); Type: ACL; Schema: ql_worker; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_worker.running_attempts(p_commands text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_worker.running_attempts(p_commands text) TO ql_worker;

--
-- Name: FUNCTION start_attempts(p_commands text); Type: ACL; Schema: ql_worker; Owner: ql_authority
--

REVOKE ALL ON FUNCTION ql_worker.start_attempts(p_commands text) FROM PUBLIC;
GRANT ALL ON FUNCTION ql_worker.start_attempts(p_commands text) TO ql_worker;

--
-- Name: TABLE run; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT ON TABLE ql.run TO ql_authority;
GRANT SELECT,DELETE ON TABLE ql.run TO ql_retention;

--
-- Name: COLUMN run.status; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(status) ON TABLE ql.run TO ql_authority;

--
-- Name: COLUMN run.version; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(version) ON TABLE ql.run TO ql_authority;

--
-- Name: COLUMN run.attempt_count; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(attempt_count) ON TABLE ql.run TO ql_authority;

--
-- Name: COLUMN run.cancel_requested_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(cancel_requested_at_ms) ON TABLE ql.run TO ql_authority;

--
-- Name: COLUMN run.cancel_reason; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(cancel_reason) ON TABLE ql.run TO ql_authority;

--
-- Name: COLUMN run.result_code; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(result_code) ON TABLE ql.run TO ql_authority;

--
-- Name: COLUMN run.finished_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(finished_at_ms) ON TABLE ql.run TO ql_authority;

--
-- Name: COLUMN run.updated_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(updated_at_ms) ON TABLE ql.run TO ql_authority;
GRANT UPDATE(updated_at_ms) ON TABLE ql.run TO ql_retention;

--
-- Name: TABLE step_run; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT ON TABLE ql.step_run TO ql_authority;
GRANT SELECT,DELETE ON TABLE ql.step_run TO ql_retention;

--
-- Name: COLUMN step_run.status; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(status) ON TABLE ql.step_run TO ql_authority;

--
-- Name: COLUMN step_run.version; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(version) ON TABLE ql.step_run TO ql_authority;

--
-- Name: COLUMN step_run.attempt_count; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(attempt_count) ON TABLE ql.step_run TO ql_authority;

--
-- Name: COLUMN step_run.claim_return_count; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(claim_return_count) ON TABLE ql.step_run TO ql_authority;

--
-- Name: COLUMN step_run.ready_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(ready_at_ms) ON TABLE ql.step_run TO ql_authority;

--
-- Name: COLUMN step_run.started_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(started_at_ms) ON TABLE ql.step_run TO ql_authority;

--
-- Name: COLUMN step_run.finished_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(finished_at_ms) ON TABLE ql.step_run TO ql_authority;

--
-- Name: COLUMN step_run.due_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(due_at_ms) ON TABLE ql.step_run TO ql_authority;

--
-- Name: COLUMN step_run.result_code; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(result_code) ON TABLE ql.step_run TO ql_authority;

--
-- Name: TABLE task_revision; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT ON TABLE ql.task_revision TO ql_authority;

--
-- Name: TABLE workflow_revision; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT ON TABLE ql.workflow_revision TO ql_authority;

--
-- Name: TABLE workflow_step; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT ON TABLE ql.workflow_step TO ql_authority;

--
-- Name: TABLE takeover_node; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.takeover_node TO ql_authority;
GRANT SELECT ON TABLE ql.takeover_node TO ql_reader;

--
-- Name: TABLE workflow_ancestor; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT ON TABLE ql.workflow_ancestor TO ql_authority;

--
-- Name: TABLE takeover_alone; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.takeover_alone TO ql_authority;
GRANT SELECT ON TABLE ql.takeover_alone TO ql_reader;

--
-- Name: TABLE takeover; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.takeover TO ql_authority;
GRANT SELECT ON TABLE ql.takeover TO ql_reader;

--
-- Name: TABLE admission_effect; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.admission_effect TO ql_authority;
GRANT SELECT ON TABLE ql.admission_effect TO ql_reader;

--
-- Name: TABLE agenda; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT,DELETE ON TABLE ql.agenda TO ql_authority;
GRANT SELECT,DELETE ON TABLE ql.agenda TO ql_retention;

--
-- Name: COLUMN agenda.due_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(due_at_ms) ON TABLE ql.agenda TO ql_authority;

--
-- Name: TABLE retry_longest; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.retry_longest TO ql_authority;
GRANT SELECT ON TABLE ql.retry_longest TO ql_reader;

--
-- Name: TABLE run_fault; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT,DELETE ON TABLE ql.run_fault TO ql_authority;
GRANT SELECT,DELETE ON TABLE ql.run_fault TO ql_retention;

--
-- Name: COLUMN run_fault.error; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(error) ON TABLE ql.run_fault TO ql_authority;

--
-- Name: COLUMN run_fault.fault_count; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(fault_count) ON TABLE ql.run_fault TO ql_authority;

--
-- Name: COLUMN run_fault.first_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(first_at_ms) ON TABLE ql.run_fault TO ql_authority;

--
-- Name: COLUMN run_fault.last_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(last_at_ms) ON TABLE ql.run_fault TO ql_authority;

--
-- Name: COLUMN run_fault.next_try_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(next_try_at_ms) ON TABLE ql.run_fault TO ql_authority;

--
-- Name: TABLE agenda_ahead; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.agenda_ahead TO ql_authority;
GRANT SELECT ON TABLE ql.agenda_ahead TO ql_reader;

--
-- Name: TABLE attempt_lease; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT ON TABLE ql.attempt_lease TO ql_authority;
GRANT SELECT,DELETE ON TABLE ql.attempt_lease TO ql_retention;

--
-- Name: COLUMN attempt_lease.status; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(status) ON TABLE ql.attempt_lease TO ql_authority;

--
-- Name: COLUMN attempt_lease.version; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(version) ON TABLE ql.attempt_lease TO ql_authority;

--
-- Name: COLUMN attempt_lease.fence; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(fence) ON TABLE ql.attempt_lease TO ql_authority;

--
-- Name: COLUMN attempt_lease.offer_id; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(offer_id) ON TABLE ql.attempt_lease TO ql_authority;

--
-- Name: COLUMN attempt_lease.worker_id; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(worker_id) ON TABLE ql.attempt_lease TO ql_authority;

--
-- Name: COLUMN attempt_lease.token_digest; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(token_digest) ON TABLE ql.attempt_lease TO ql_authority;

--
-- Name: COLUMN attempt_lease.self_fencing; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(self_fencing) ON TABLE ql.attempt_lease TO ql_authority;

--
-- Name: COLUMN attempt_lease.grace_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(grace_ms) ON TABLE ql.attempt_lease TO ql_authority;

--
-- Name: COLUMN attempt_lease.leased_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(leased_at_ms) ON TABLE ql.attempt_lease TO ql_authority;

--
-- Name: COLUMN attempt_lease.expires_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(expires_at_ms) ON TABLE ql.attempt_lease TO ql_authority;

--
-- Name: COLUMN attempt_lease.closed_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(closed_at_ms) ON TABLE ql.attempt_lease TO ql_authority;

--
-- Name: TABLE task_attempt; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT ON TABLE ql.task_attempt TO ql_authority;
GRANT SELECT,DELETE ON TABLE ql.task_attempt TO ql_retention;

--
-- Name: COLUMN task_attempt.status; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(status) ON TABLE ql.task_attempt TO ql_authority;

--
-- Name: COLUMN task_attempt.version; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(version) ON TABLE ql.task_attempt TO ql_authority;

--
-- Name: COLUMN task_attempt.offer_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(offer_at_ms) ON TABLE ql.task_attempt TO ql_authority;

--
-- Name: COLUMN task_attempt.deadline_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(deadline_at_ms) ON TABLE ql.task_attempt TO ql_authority;

--
-- Name: COLUMN task_attempt.identity; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(identity) ON TABLE ql.task_attempt TO ql_authority;

--
-- Name: COLUMN task_attempt.starting_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(starting_at_ms) ON TABLE ql.task_attempt TO ql_authority;

--
-- Name: COLUMN task_attempt.started_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(started_at_ms) ON TABLE ql.task_attempt TO ql_authority;

--
-- Name: COLUMN task_attempt.finished_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(finished_at_ms) ON TABLE ql.task_attempt TO ql_authority;

--
-- Name: COLUMN task_attempt.exit_code; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(exit_code) ON TABLE ql.task_attempt TO ql_authority;

--
-- Name: COLUMN task_attempt.result_code; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(result_code) ON TABLE ql.task_attempt TO ql_authority;

--
-- Name: TABLE live_attempt; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.live_attempt TO ql_authority;
GRANT SELECT ON TABLE ql.live_attempt TO ql_reader;

--
-- Name: TABLE cancellation_blocked; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.cancellation_blocked TO ql_authority;
GRANT SELECT ON TABLE ql.cancellation_blocked TO ql_reader;

--
-- Name: TABLE cancellation_effect; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.cancellation_effect TO ql_authority;
GRANT SELECT ON TABLE ql.cancellation_effect TO ql_reader;

--
-- Name: TABLE frontier_ready; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.frontier_ready TO ql_authority;
GRANT SELECT ON TABLE ql.frontier_ready TO ql_reader;

--
-- Name: TABLE frontier_skip; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.frontier_skip TO ql_authority;
GRANT SELECT ON TABLE ql.frontier_skip TO ql_reader;

--
-- Name: TABLE frontier_effect; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.frontier_effect TO ql_authority;
GRANT SELECT ON TABLE ql.frontier_effect TO ql_reader;

--
-- Name: TABLE recovery_due; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.recovery_due TO ql_authority;
GRANT SELECT ON TABLE ql.recovery_due TO ql_reader;

--
-- Name: TABLE task_admission_effect; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.task_admission_effect TO ql_authority;
GRANT SELECT ON TABLE ql.task_admission_effect TO ql_reader;

--
-- Name: TABLE agenda_missing; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.agenda_missing TO ql_authority;
GRANT SELECT ON TABLE ql.agenda_missing TO ql_reader;

--
-- Name: TABLE agenda_state; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.agenda_state TO ql_authority;
GRANT SELECT ON TABLE ql.agenda_state TO ql_reader;

--
-- Name: TABLE attempt_offer; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT ON TABLE ql.attempt_offer TO ql_authority;
GRANT SELECT,DELETE ON TABLE ql.attempt_offer TO ql_retention;

--
-- Name: TABLE attempt_report; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT ON TABLE ql.attempt_report TO ql_authority;
GRANT SELECT,DELETE ON TABLE ql.attempt_report TO ql_retention;

--
-- Name: TABLE attempt_state; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.attempt_state TO ql_authority;
GRANT SELECT ON TABLE ql.attempt_state TO ql_reader;

--
-- Name: TABLE attestation; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT ON TABLE ql.attestation TO ql_authority;
GRANT SELECT,DELETE ON TABLE ql.attestation TO ql_retention;

--
-- Name: TABLE attestation_state; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.attestation_state TO ql_authority;
GRANT SELECT ON TABLE ql.attestation_state TO ql_reader;

--
-- Name: TABLE cancel_intent; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT ON TABLE ql.cancel_intent TO ql_authority;
GRANT SELECT,DELETE ON TABLE ql.cancel_intent TO ql_retention;

--
-- Name: TABLE completion_end; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.completion_end TO ql_authority;
GRANT SELECT ON TABLE ql.completion_end TO ql_reader;

--
-- Name: TABLE completion_effect; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.completion_effect TO ql_authority;
GRANT SELECT ON TABLE ql.completion_effect TO ql_reader;

--
-- Name: TABLE dispatch_effect; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.dispatch_effect TO ql_authority;
GRANT SELECT ON TABLE ql.dispatch_effect TO ql_reader;

--
-- Name: TABLE run_event; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT ON TABLE ql.run_event TO ql_authority;
GRANT SELECT,DELETE ON TABLE ql.run_event TO ql_retention;

--
-- Name: TABLE event_log; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.event_log TO ql_authority;
GRANT SELECT ON TABLE ql.event_log TO ql_reader;

--
-- Name: TABLE frontier_blocked; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.frontier_blocked TO ql_authority;
GRANT SELECT ON TABLE ql.frontier_blocked TO ql_reader;

--
-- Name: TABLE explain; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.explain TO ql_authority;
GRANT SELECT ON TABLE ql.explain TO ql_reader;

--
-- Name: TABLE fault_state; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.fault_state TO ql_authority;
GRANT SELECT ON TABLE ql.fault_state TO ql_reader;

--
-- Name: TABLE run_input; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT ON TABLE ql.run_input TO ql_authority;
GRANT SELECT,DELETE ON TABLE ql.run_input TO ql_retention;

--
-- Name: TABLE input_state; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.input_state TO ql_authority;
GRANT SELECT ON TABLE ql.input_state TO ql_reader;

--
-- Name: TABLE intent_effect; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.intent_effect TO ql_authority;
GRANT SELECT ON TABLE ql.intent_effect TO ql_reader;

--
-- Name: TABLE intent_state; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.intent_state TO ql_authority;
GRANT SELECT ON TABLE ql.intent_state TO ql_reader;

--
-- Name: TABLE open_run; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.open_run TO ql_authority;
GRANT SELECT ON TABLE ql.open_run TO ql_reader;

--
-- Name: TABLE package; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT ON TABLE ql.package TO ql_authority;

--
-- Name: COLUMN package.generation; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(generation) ON TABLE ql.package TO ql_authority;

--
-- Name: COLUMN package.base_dir; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(base_dir) ON TABLE ql.package TO ql_authority;

--
-- Name: COLUMN package.updated_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(updated_at_ms) ON TABLE ql.package TO ql_authority;

--
-- Name: TABLE package_generation; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT ON TABLE ql.package_generation TO ql_authority;

--
-- Name: COLUMN package_generation.state; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(state) ON TABLE ql.package_generation TO ql_authority;

--
-- Name: COLUMN package_generation.ended_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(ended_at_ms) ON TABLE ql.package_generation TO ql_authority;

--
-- Name: TABLE package_state; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.package_state TO ql_authority;
GRANT SELECT ON TABLE ql.package_state TO ql_reader;

--
-- Name: TABLE queue_state; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.queue_state TO ql_authority;
GRANT SELECT ON TABLE ql.queue_state TO ql_reader;

--
-- Name: TABLE recovery_blocked; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.recovery_blocked TO ql_authority;
GRANT SELECT ON TABLE ql.recovery_blocked TO ql_reader;

--
-- Name: TABLE recovery_end; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.recovery_end TO ql_authority;
GRANT SELECT ON TABLE ql.recovery_end TO ql_reader;

--
-- Name: TABLE recovery_effect; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.recovery_effect TO ql_authority;
GRANT SELECT ON TABLE ql.recovery_effect TO ql_reader;

--
-- Name: TABLE refused_report; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT ON TABLE ql.refused_report TO ql_authority;
GRANT SELECT,DELETE ON TABLE ql.refused_report TO ql_retention;

--
-- Name: TABLE refused_state; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.refused_state TO ql_authority;
GRANT SELECT ON TABLE ql.refused_state TO ql_reader;

--
-- Name: TABLE retention_due; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.retention_due TO ql_authority;
GRANT SELECT ON TABLE ql.retention_due TO ql_reader;
GRANT SELECT ON TABLE ql.retention_due TO ql_retention;

--
-- Name: TABLE retry_effect; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.retry_effect TO ql_authority;
GRANT SELECT ON TABLE ql.retry_effect TO ql_reader;

--
-- Name: TABLE run_admission; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.run_admission TO ql_authority;
GRANT SELECT ON TABLE ql.run_admission TO ql_reader;

--
-- Name: TABLE run_state; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.run_state TO ql_authority;
GRANT SELECT ON TABLE ql.run_state TO ql_reader;

--
-- Name: TABLE trigger; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT ON TABLE ql.trigger TO ql_authority;

--
-- Name: COLUMN trigger.generation; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(generation) ON TABLE ql.trigger TO ql_authority;

--
-- Name: COLUMN trigger.state; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(state) ON TABLE ql.trigger TO ql_authority;

--
-- Name: COLUMN trigger.cron; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(cron) ON TABLE ql.trigger TO ql_authority;

--
-- Name: COLUMN trigger.tz; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(tz) ON TABLE ql.trigger TO ql_authority;

--
-- Name: COLUMN trigger.kind; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(kind) ON TABLE ql.trigger TO ql_authority;

--
-- Name: COLUMN trigger.target_key; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(target_key) ON TABLE ql.trigger TO ql_authority;

--
-- Name: COLUMN trigger.misfire; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(misfire) ON TABLE ql.trigger TO ql_authority;

--
-- Name: COLUMN trigger.overlap; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(overlap) ON TABLE ql.trigger TO ql_authority;

--
-- Name: COLUMN trigger.updated_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(updated_at_ms) ON TABLE ql.trigger TO ql_authority;

--
-- Name: TABLE trigger_fault; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT,DELETE ON TABLE ql.trigger_fault TO ql_authority;

--
-- Name: COLUMN trigger_fault.error; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(error) ON TABLE ql.trigger_fault TO ql_authority;

--
-- Name: COLUMN trigger_fault.fault_count; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(fault_count) ON TABLE ql.trigger_fault TO ql_authority;

--
-- Name: COLUMN trigger_fault.first_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(first_at_ms) ON TABLE ql.trigger_fault TO ql_authority;

--
-- Name: COLUMN trigger_fault.last_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(last_at_ms) ON TABLE ql.trigger_fault TO ql_authority;

--
-- Name: COLUMN trigger_fault.next_try_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(next_try_at_ms) ON TABLE ql.trigger_fault TO ql_authority;

--
-- Name: TABLE trigger_run; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT ON TABLE ql.trigger_run TO ql_authority;
GRANT SELECT,DELETE ON TABLE ql.trigger_run TO ql_retention;

--
-- Name: COLUMN trigger_run.open_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(open_at_ms) ON TABLE ql.trigger_run TO ql_authority;

--
-- Name: TABLE schedule_blocked; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.schedule_blocked TO ql_authority;
GRANT SELECT ON TABLE ql.schedule_blocked TO ql_reader;

--
-- Name: TABLE schedule_decision; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.schedule_decision TO ql_authority;
GRANT SELECT ON TABLE ql.schedule_decision TO ql_reader;

--
-- Name: TABLE trigger_schedule; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT ON TABLE ql.trigger_schedule TO ql_authority;

--
-- Name: COLUMN trigger_schedule.next_fire_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(next_fire_at_ms) ON TABLE ql.trigger_schedule TO ql_authority;

--
-- Name: COLUMN trigger_schedule.last_scheduled_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(last_scheduled_at_ms) ON TABLE ql.trigger_schedule TO ql_authority;

--
-- Name: COLUMN trigger_schedule.state_version; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(state_version) ON TABLE ql.trigger_schedule TO ql_authority;

--
-- Name: COLUMN trigger_schedule.claim_owner; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(claim_owner) ON TABLE ql.trigger_schedule TO ql_authority;

--
-- Name: COLUMN trigger_schedule.claim_token; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(claim_token) ON TABLE ql.trigger_schedule TO ql_authority;

--
-- Name: COLUMN trigger_schedule.claim_version; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(claim_version) ON TABLE ql.trigger_schedule TO ql_authority;

--
-- Name: COLUMN trigger_schedule.claim_expires_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(claim_expires_at_ms) ON TABLE ql.trigger_schedule TO ql_authority;

--
-- Name: COLUMN trigger_schedule.updated_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(updated_at_ms) ON TABLE ql.trigger_schedule TO ql_authority;

--
-- Name: COLUMN trigger_schedule.due_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(due_at_ms) ON TABLE ql.trigger_schedule TO ql_authority;

--
-- Name: COLUMN trigger_schedule.claimed_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(claimed_at_ms) ON TABLE ql.trigger_schedule TO ql_authority;

--
-- Name: COLUMN trigger_schedule.seen_at_ms; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(seen_at_ms) ON TABLE ql.trigger_schedule TO ql_authority;

--
-- Name: COLUMN trigger_schedule.last_outcome; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(last_outcome) ON TABLE ql.trigger_schedule TO ql_authority;

--
-- Name: COLUMN trigger_schedule.last_run_id; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT UPDATE(last_run_id) ON TABLE ql.trigger_schedule TO ql_authority;

--
-- Name: TABLE schedule_due; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.schedule_due TO ql_authority;
GRANT SELECT ON TABLE ql.schedule_due TO ql_reader;

--
-- Name: TABLE state_transition; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.state_transition TO ql_authority;
GRANT SELECT ON TABLE ql.state_transition TO ql_reader;

--
-- Name: TABLE step_need; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.step_need TO ql_authority;
GRANT SELECT ON TABLE ql.step_need TO ql_reader;

--
-- Name: TABLE step_output; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT ON TABLE ql.step_output TO ql_authority;
GRANT SELECT,DELETE ON TABLE ql.step_output TO ql_retention;

--
-- Name: TABLE step_run_mutation; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.step_run_mutation TO ql_authority;
GRANT SELECT ON TABLE ql.step_run_mutation TO ql_reader;

--
-- Name: TABLE step_state; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.step_state TO ql_authority;
GRANT SELECT ON TABLE ql.step_state TO ql_reader;

--
-- Name: TABLE target_state; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.target_state TO ql_authority;
GRANT SELECT ON TABLE ql.target_state TO ql_reader;

--
-- Name: TABLE task_attempt_admission; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.task_attempt_admission TO ql_authority;
GRANT SELECT ON TABLE ql.task_attempt_admission TO ql_reader;

--
-- Name: TABLE trigger_state; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.trigger_state TO ql_authority;
GRANT SELECT ON TABLE ql.trigger_state TO ql_reader;

--
-- Name: TABLE violation; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.violation TO ql_authority;
GRANT SELECT ON TABLE ql.violation TO ql_reader;

--
-- Name: TABLE worker_audit; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT,INSERT ON TABLE ql.worker_audit TO ql_authority;
GRANT SELECT,DELETE ON TABLE ql.worker_audit TO ql_retention;

--
-- Name: TABLE worker_audit_log; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.worker_audit_log TO ql_authority;
GRANT SELECT ON TABLE ql.worker_audit_log TO ql_reader;

--
-- Name: TABLE worker_hold; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.worker_hold TO ql_authority;
GRANT SELECT ON TABLE ql.worker_hold TO ql_reader;

--
-- Name: TABLE worker_state; Type: ACL; Schema: ql; Owner: ql_migrator
--

GRANT SELECT ON TABLE ql.worker_state TO ql_authority;
GRANT SELECT ON TABLE ql.worker_state TO ql_reader;

--
-- PostgreSQL database dump complete
--
