-- DISPATCH — offers that take leases (DOMAIN §3.5, DESIGN §5, §6). Sessions are in
-- dispatch_session.sql; what a holder of a lease may do with it is in dispatch_start.sql, what it
-- may ask in dispatch_read.sql.
-- What runs for each step of a workflow has `plan_cache_mode = force_generic_plan`: decisions are
-- read run by run, so one plan fits any batch, and planning at each call cost more than it all.

-- HELPER   check_offers — ids of at most 36 characters, once each, with a digest of their token
-- RAISES   QL400
create or replace function ql.check_offers (p_offers jsonb, p_lease_ms bigint)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
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

-- HELPER   pick_attempts — candidates of a queue (of one run, when it is given), oldest first, and
--          authority over at most as many as were asked for
-- LOCKS    1 attempt advisory (try, one by one until the batch is full)
-- READS    task_attempt, attempt_lease, run (without row locks; read again under the run's lock)
create or replace function ql.pick_attempts (
  p_queue text,
  p_run_id text,
  p_count bigint,
  out attempt_ids text[],
  out run_ids text[]
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_sort = off  -- a queue is read in the order of its index, no further than needed
set enable_bitmapscan = off
as $$
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

-- HELPER   make_offers — give new offers to the attempts that may still be leased, oldest first
-- LOCKS    none (the caller holds 1 and 2)
-- READS    task_attempt, attempt_lease, step_run, run
-- WRITES   attempt_offer
-- RETURNS  the offers that found an attempt
create or replace function ql.make_offers (
  p_session ql.worker_session,
  p_held text[],
  p_offer_ids text[],
  p_digests text[],
  p_now_ms bigint,
  p_lease_ms bigint
)
returns text[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
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

-- STEP     lease_attempts — give a worker's offers to the oldest admitted attempts of a queue, or
--          of one run in it
-- LOCKS    apart: worker_session · 1 attempt advisory (try) · 2 run (by run_id, waits, then skips);
--          none when nothing waits in the queue
-- READS    task_attempt, attempt_lease, attempt_offer, dispatch_effect
-- WRITES   attempt_offer; attempt_lease, run, run_event, agenda (through ql.apply_effects)
-- RETURNS  one row an offer that holds a lease, in the order of the offers; try_number counts this
--          attempt, and those of its step that came past the start barrier before it
-- RAISES   QL400, QL409, QL410 (session), QL500, QL503
-- REPLAY   exact while the lease is held; an offer that was spent gives no row
create or replace function ql_worker.lease_attempts (
  p_worker_id text,
  p_session_id text,
  p_queue text,
  p_offers text,
  p_lease_ms bigint,
  p_run_id text
)
returns table (
  attempt_id text, run_id text, step_key text, number bigint, offer_id text, fence bigint,
  expires_at_ms bigint, lease_ms bigint, timeout_ms bigint, package_key text, base_dir text,
  spec text, task_key text, try_number bigint
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
