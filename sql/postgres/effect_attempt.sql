-- EFFECTS ON ATTEMPTS AND LEASES — called by apply_effects (effect.sql) and by nothing else. The
-- effect time is the run's `updated_at_ms`.

-- HELPER   add_attempts — admit attempts for the present epoch of their steps
-- WRITES   task_attempt
-- RAISES   QL409
create or replace function ql.add_attempts (
  p_effects ql.effect[],
  p_wanted bigint,
  p_at_ms bigint
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
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

-- HELPER   move_attempts — move attempts over the start barrier and to their ends
-- READS    attempt_report at the lease's fence: what the worker said under this very lease
-- WRITES   task_attempt
-- RAISES   QL409
create or replace function ql.move_attempts (
  p_effects ql.effect[],
  p_wanted bigint,
  p_at_ms bigint
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
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

-- HELPER   close_leases — the end of an attempt ends its lease; no effect or event of its own
-- WRITES   attempt_lease
create or replace function ql.close_leases (p_effects ql.effect[], p_at_ms bigint)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
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

-- HELPER   move_leases — take leases for the first time, take them again, or release them
-- READS    attempt_offer: who takes it, under which token, until when
-- WRITES   attempt_lease
-- RAISES   QL409
create or replace function ql.move_leases (
  p_effects ql.effect[],
  p_wanted bigint,
  p_at_ms bigint
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
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
