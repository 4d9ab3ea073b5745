-- CANCELLATION — an intent first, convergence after it (DOMAIN §3.9, DESIGN §5).
-- The first intent wins. Two roads: task runs that never started settle by a set-based page, all
-- other runs one a transaction, by attempt authority. What is held elsewhere is passed over.

-- HELPER   intend — write the intents of runs that the caller has locked, and what follows at once
-- LOCKS    none (the caller holds 2); rows by ql.apply_effects
-- READS    run, intent_effect
-- WRITES   cancel_intent; run, run_event, agenda (through ql.apply_effects)
-- RETURNS  the effects that were applied
-- RAISES   QL409
create or replace function ql.intend (p_run_ids text[], p_reason text, p_actor text)
returns ql.effect[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
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

-- STEP     request_cancel — write the intent of someone who wants a run to end
-- LOCKS    2 run (waits)
-- READS    run, cancel_intent, intent_effect
-- WRITES   cancel_intent; run, run_event, agenda (through ql.apply_effects)
-- RETURNS  accepted | already_requested (another intent came first) | already_terminal
-- RAISES   QL400, QL404, QL409, QL503
-- REPLAY   exact: the same reason and actor are accepted again
create or replace function ql_admission.request_cancel (
  p_run_id text,
  p_reason text,
  p_actor text
)
returns table (
  run_id text, outcome text, status text, cancel_reason text, cancel_requested_at_ms bigint
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

-- HELPER   expire_runs — the intent `timeout` for runs past their deadline; the caller has locked
--          them
-- LOCKS    none (the caller holds 2)
-- READS    run, intent_effect
-- WRITES   as intend; then agenda, run_fault
-- RETURNS  the number of effects of each run
-- RAISES   QL409
create or replace function ql.expire_runs (p_run_ids text[])
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
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

-- STEP     deadline_page — the intent `timeout` for the first due runs that nobody holds
-- LOCKS    2 run (skip locked)
-- READS    agenda, run, intent_effect
-- WRITES   cancel_intent; run, run_event, agenda (through ql.apply_effects); run_fault
-- RETURNS  applied | settled (nothing to do any more), in key order
-- RAISES   QL400, QL409, QL503
-- REPLAY   exact: the first intent stands and the rows are cleared
create or replace function ql_scheduler.deadline_page (
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

-- STEP     deadline_run — the same for one run
-- LOCKS    2 run (skip locked)
-- READS    run, intent_effect
-- WRITES   cancel_intent; run, run_event, agenda (through ql.apply_effects); run_fault
-- RETURNS  applied | settled | contended
-- RAISES   QL404, QL409, QL503
-- REPLAY   settled: the first intent stands
create or replace function ql_scheduler.deadline_run (p_run_id text)
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

  v_counts := ql.expire_runs(array[p_run_id]);
  return query
  select p_run_id, case when v_counts[1] > 0 then 'applied' else 'settled' end, v_counts[1];
end;
$$;

-- STEP     converge_cancellation — end what nobody holds in one run with an intent, and the run
--          itself once nothing stands in the way
-- LOCKS    1 attempt advisory (try) · 2 run (skip locked) · 3 task_attempt · 4 attempt_lease ·
--          5 step_run
-- READS    cancellation_effect, cancellation_blocked (only after every lock is held)
-- WRITES   task_attempt, step_run, run, run_event (through ql.apply_effects); agenda, run_fault
-- RETURNS  settled (the run has ended) | blocked (something is held, whether or not something else
--          moved) | applied (no intent to converge, or moved and not blocked) | contended
-- RAISES   QL404, QL409, QL503
-- REPLAY   exact: a second call finds no effects
create or replace function ql_scheduler.converge_cancellation (p_run_id text)
returns table (run_id text, outcome text, settled_attempts bigint, blocked_count bigint)
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

-- HELPER   pick_unstarted — lock the first due task runs that never started, without attempt
--          authority: whoever could lease or report one has to come through its run
-- LOCKS    2 run (skip locked)
-- READS    agenda, run, task_attempt, attempt_lease
-- RAISES   QL400
create or replace function ql.pick_unstarted (
  p_after_due_at_ms bigint,
  p_after_run_id text,
  p_limit int
)
returns table (run_id text, due_at_ms bigint)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_sort = off  -- a sort above the lateral lock would lock every due run
set enable_bitmapscan = off
as $$
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

-- STEP     settle_task_cancellations — end task runs with an intent that never started, as a set
-- LOCKS    2 run (skip locked)
-- READS    agenda, cancellation_effect (only after the lock)
-- WRITES   task_attempt, step_run, run, run_event, agenda, run_fault (through ql.apply_effects)
-- RETURNS  settled, in key order; runs that are held or have started are left to the other road
-- RAISES   QL400, QL409, QL503
-- REPLAY   exact: the rows are gone
create or replace function ql_scheduler.settle_task_cancellations (
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
