-- RECOVERY — back-offs that are over, and work whose worker is silent (DESIGN §5, §9).
-- A lease that expires proves nothing by itself: evidence becomes an attestation, and that decides.

-- HELPER   apply_attested — what follows from the attestations of attempts that are covered
-- LOCKS    none (the caller holds 1 and 2)
-- READS    recovery_effect (attested attempts that still live; ended ones have no effects)
-- WRITES   through ql.apply_effects
-- RETURNS  the number of effects
-- RAISES   QL409
create or replace function ql.apply_attested (p_attempt_ids text[])
returns bigint
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
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

-- STEP     recover_run — act on what the clock proves about one run's silent leases
-- LOCKS    1 attempt advisory (try) · 2 run (skip locked) · 3 task_attempt · 4 attempt_lease ·
--          5 step_run
-- READS    recovery_due, recovery_effect
-- WRITES   attestation; task_attempt, attempt_lease, step_run, run, run_event (through
--          ql.apply_effects); agenda (moved to the next real expiry), run_fault
-- RETURNS  applied | settled (nothing proved) | contended
-- RAISES   QL404, QL409, QL503
-- REPLAY   settled: a second call finds nothing due
create or replace function ql_scheduler.recover_run (p_run_id text)
returns table (run_id text, outcome text, effects bigint)
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

-- STEP     declare_stopped — an operator says that an execution is gone, and may say what follows
-- LOCKS    1 attempt advisory (try) · 2 run (waits)
-- READS    task_attempt, attestation, recovery_effect
-- WRITES   attestation; task_attempt, attempt_lease, step_run, run, run_event, agenda
--          (through ql.apply_effects)
-- RETURNS  applied, with the attempt's status | blocked (QL410: not past the barrier, or ended
--          otherwise) | contended
-- RAISES   QL400, QL404, QL409, QL503
-- REPLAY   exact: the declaration is found
create or replace function ql_operator.declare_stopped (
  p_attempt_id text,
  p_reason text,
  p_actor text,
  p_follow text
)
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
set lock_timeout = '1s'
as $$
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

-- HELPER   retry_runs — open the back-offs that are over, for runs that the caller has locked
-- LOCKS    none (the caller holds 2); rows by ql.apply_effects
-- READS    retry_effect
-- WRITES   through ql.apply_effects; then agenda (moved to the next back-off), run_fault
-- RETURNS  the number of effects of each run
-- RAISES   QL409
create or replace function ql.retry_runs (p_run_ids text[])
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
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

-- STEP     retry_page — open the back-offs that are over in the first due runs that nobody holds
-- LOCKS    2 run (skip locked)
-- READS    agenda, retry_effect
-- WRITES   step_run, run, run_event (through ql.apply_effects); agenda, run_fault
-- RETURNS  applied | settled (nothing to do any more), in key order
-- RAISES   QL400, QL409, QL503
-- REPLAY   exact: the rows are cleared or moved
create or replace function ql_scheduler.retry_page (
  p_after_due_at_ms bigint,
  p_after_run_id text,
  p_limit int
)
returns table (run_id text, due_at_ms bigint, outcome text, effects bigint)
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

-- STEP     retry_run — the same for one run
-- LOCKS    2 run (skip locked)
-- READS    retry_effect
-- WRITES   step_run, run, run_event (through ql.apply_effects); agenda, run_fault
-- RETURNS  applied | settled | contended
-- RAISES   QL404, QL409, QL503
-- REPLAY   settled: a second call finds nothing due
create or replace function ql_scheduler.retry_run (p_run_id text)
returns table (run_id text, outcome text, effects bigint)
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
