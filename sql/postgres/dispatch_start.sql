-- DISPATCH, START — what the holder of a lease does with it: cross the start barrier, say that the
-- execution runs, renew (DOMAIN §3.5, DESIGN §5, §6). What it asks is in dispatch_read.sql.

-- STEP     start_attempts — the start barrier: after this commit a side effect must be presumed
-- LOCKS    1 attempt advisory (by attempt_id, try) · 2 run (by run_id, waits, then skips)
-- READS    attempt_lease, task_attempt, dispatch_effect
-- WRITES   attempt_report; task_attempt, attempt_lease, run, run_event, agenda (ql.apply_effects)
-- RETURNS  applied, with deadline and lease end | blocked (QL400, QL404, QL410) | contended
-- RAISES   QL400 (not a batch), QL409, QL503
-- REPLAY   exact while the lease is held: the report of this fence is found. After that QL410, for
--          nobody may go past the barrier on an answer that is no longer true. Under an intent the
--          lease goes back: QL410
create or replace function ql_worker.start_attempts (p_commands text)
returns table (
  attempt_id text, outcome text, code text, deadline_at_ms bigint, expires_at_ms bigint
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
set lock_timeout = '100ms'
as $$
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

-- STEP     running_attempts — the execution runs; true even under an intent
-- LOCKS    1 attempt advisory (by attempt_id, try) · 2 run (by run_id, waits, then skips)
-- READS    attempt_lease, task_attempt, dispatch_effect
-- WRITES   attempt_report; task_attempt, step_run, run, run_event, agenda (ql.apply_effects)
-- RETURNS  applied | blocked (QL400, QL404, QL410) | contended
-- RAISES   QL400 (not a batch), QL409, QL503
-- REPLAY   exact: the report of this fence is found
create or replace function ql_worker.running_attempts (p_commands text)
returns table (attempt_id text, outcome text, code text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '100ms'
as $$
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

-- STEP     renew_attempts — keep leases alive, and hear whether to stop
-- LOCKS    1 attempt advisory (by attempt_id, try) · 4 attempt_lease (by attempt_id); never 2, so
--          that the live steps of a wide run renew without queueing on it
-- READS    attempt_lease, attempt_offer, task_attempt, run
-- WRITES   attempt_lease (the expiry alone: no effect, no event)
-- RETURNS  applied, with lease end and stop_reason | blocked (QL400, QL404, QL410) | contended
-- RAISES   QL400 (not a batch, or the length of a lease), QL503
-- REPLAY   renews again; past deadline and grace the expiry stands still
create or replace function ql_worker.renew_attempts (p_commands text, p_lease_ms bigint)
returns table (
  attempt_id text, outcome text, code text, expires_at_ms bigint, stop_reason text
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
set lock_timeout = '100ms'
as $$
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
