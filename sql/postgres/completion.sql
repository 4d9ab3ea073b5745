-- COMPLETION — how executions ended, as workers say it (DOMAIN §3.5, DESIGN §9).
-- The lease row is the authority: a report may come after its expiry while the fence stands.

-- HELPER   keep_refused — what the former holder of a fence said too late: it changes nothing, but
--          is kept
-- LOCKS    none (the caller holds 1 and 2)
-- READS    attempt_offer (a stranger's report is not kept), refused_report
-- WRITES   refused_report (at most 8 an attempt, each content once)
create or replace function ql.keep_refused (p_commands ql.command[], p_now_ms bigint)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
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

-- STEP     report_attempts — end executions: attempt, step and lease together
-- LOCKS    1 attempt advisory (by attempt_id, try) · 2 run (by run_id, waits, then skips)
-- READS    attempt_lease, task_attempt, attempt_offer, refused_report, completion_effect
-- WRITES   attempt_report, refused_report; task_attempt, attempt_lease, step_run, step_output, run,
--          run_event, agenda (through ql.apply_effects)
-- RETURNS  applied, with the attempt's status | blocked (QL400, QL404, QL410) | contended
-- RAISES   QL400 (not a batch), QL409, QL503
-- REPLAY   exact: the report of this fence is found; another content for it is QL410
create or replace function ql_worker.report_attempts (p_commands text)
returns table (attempt_id text, outcome text, code text, status text)
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

-- STEP     attest_attempts — the worker knows that an execution is gone, but not how it ended
-- LOCKS    1 attempt advisory (by attempt_id, try) · 2 run (by run_id, waits, then skips)
-- READS    attempt_lease, attempt_offer, recovery_effect
-- WRITES   attestation; task_attempt, attempt_lease, step_run, run, run_event, agenda
--          (through ql.apply_effects)
-- RETURNS  applied, with the attempt's status | blocked (QL400, QL404, QL410) | contended
-- RAISES   QL400 (not a batch), QL409, QL503
-- REPLAY   exact: the attestation is found; another reason for it is QL410
create or replace function ql_worker.attest_attempts (p_commands text)
returns table (attempt_id text, outcome text, code text, status text)
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
