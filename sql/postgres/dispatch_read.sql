-- DISPATCH, READ — what the holder of a lease may ask: its input, and how its attempt stands.
-- Workers read no views (DESIGN §8).

-- HELPER   work_waits — whether a lease may find an attempt: one waits, or an offer was made before
-- LOCKS    none
-- READS    attempt_offer, task_attempt
create or replace function ql.work_waits (p_queue text, p_run_id text, p_offers jsonb)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
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

-- HELPER   input_text — the run's input and what the attempt's direct needs gave, as canonical JSON
-- LOCKS    none
-- READS    task_attempt, run, run_input, workflow_ancestor, step_output
create or replace function ql.input_text (p_attempt_id text)
returns text
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
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

-- HELPER   input_octets — how long that is, but for keys: outputs are measured, not put together
-- LOCKS    none
-- READS    task_attempt, run, run_input, workflow_ancestor, step_output
create or replace function ql.input_octets (p_attempt_id text)
returns bigint
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
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

-- STEP     attempt_input — the run's input and what the attempt's direct needs gave
-- LOCKS    none
-- READS    attempt_lease; through ql.input_text
-- WRITES   nothing
-- RETURNS  attempt_id and canonical JSON; no row without a live token for this attempt
-- RAISES   QL503
-- REPLAY   reads only
create or replace function ql_worker.attempt_input (p_attempt_id text, p_token text)
returns table (attempt_id text, input text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'
as $$
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

-- STEP     attempt_inputs — attempt_input for a batch, as much as an answer should hold
-- LOCKS    none
-- READS    attempt_lease, attempt_offer; through ql.input_text
-- WRITES   nothing
-- RETURNS  applied, with canonical JSON | blocked (QL400, QL404, QL410: token not live)
--          | contended: what came before it has 2 MiB, so it is asked for again
-- RAISES   QL400 (not a batch), QL503
-- REPLAY   reads only
create or replace function ql_worker.attempt_inputs (p_commands text)
returns table (attempt_id text, outcome text, code text, input text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'
as $$
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

-- STEP     attempt_standing — how attempts stand, for whoever holds or once held them: an offer of
--          this fence with this token, at any time, also long after the end
-- LOCKS    none
-- READS    attempt_offer, attempt_lease, task_attempt
-- WRITES   nothing
-- RETURNS  applied, with the attempt's status and what became of the command's own lease (its end
--          while it is held) | blocked (QL400, QL404, QL410), and nothing is told
-- RAISES   QL400 (not a batch), QL503
-- REPLAY   reads only
create or replace function ql_worker.attempt_standing (p_commands text)
returns table (
  attempt_id text, outcome text, code text, status text, lease_status text, expires_at_ms bigint,
  run_id text, step_key text, number bigint
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'
as $$
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
