-- DISPATCH, SESSIONS — who a worker is and whether it is there, and what an operator asks of it
-- (DOMAIN §3.5, DESIGN §8).

-- STEP     register_worker — a worker's new session takes over from its older one; one that an
--          operator drains goes on being drained
-- LOCKS    apart: worker_session
-- READS    worker_session
-- WRITES   worker_session
-- RETURNS  worker_id, generation, status
-- RAISES   QL400, QL503
-- REPLAY   exact: the same session registers once
create or replace function ql_worker.register_worker (
  p_worker_id text,
  p_session_id text,
  p_queues text,
  p_slots int,
  p_self_fencing int,
  p_grace_ms bigint
)
returns table (worker_id text, generation bigint, status text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set lock_timeout = '1s'
as $$
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

-- STEP     heartbeat_worker — the worker is there; and which of its sessions is the current one
-- LOCKS    apart: worker_session
-- READS    worker_session
-- WRITES   worker_session (seen and expiry, of the current session that is not offline)
-- RETURNS  worker_id, session_id, generation, status of the session that is current now: a process
--          whose own is another has been replaced
-- RAISES   QL404, QL503
-- REPLAY   exact: seen again
create or replace function ql_worker.heartbeat_worker (p_worker_id text, p_session_id text)
returns table (worker_id text, session_id text, generation bigint, status text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set lock_timeout = '1s'
as $$
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

-- STEP     end_session — the worker leaves; what it holds stays its own until it ends or expires
-- LOCKS    apart: worker_session
-- READS    worker_session
-- WRITES   worker_session
-- RETURNS  worker_id, status
-- RAISES   QL404, QL410 (another session holds the worker), QL503
-- REPLAY   exact
create or replace function ql_worker.end_session (p_worker_id text, p_session_id text)
returns table (worker_id text, status text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set lock_timeout = '1s'
as $$
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

-- HELPER   hold_session — the worker's session, which must be the one that is online
-- LOCKS    apart: worker_session, if it is to lease: the calls of one worker do so one by one
-- RAISES   QL410
create or replace function ql.hold_session (
  p_worker_id text,
  p_session_id text,
  p_lock boolean
)
returns ql.worker_session
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
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

-- STEP     drain_worker — an operator wants a worker to lease nothing more; what it holds goes on,
--          and its later sessions are draining as well
-- LOCKS    apart: worker_session
-- READS    worker_session
-- WRITES   worker_session (through ql.drain_session)
-- RETURNS  worker_id, status, outcome applied | existing
-- RAISES   QL404, QL503
-- REPLAY   existing
create or replace function ql_operator.drain_worker (p_worker_id text)
returns table (worker_id text, status text, outcome text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set lock_timeout = '1s'
as $$
begin
  perform ql.assert_read_committed();
  return query select * from ql.drain_session(p_worker_id, 1);
end;
$$;

-- STEP     undrain_worker — it may lease again
-- LOCKS    apart: worker_session
-- READS    worker_session
-- WRITES   worker_session (through ql.drain_session)
-- RETURNS  worker_id, status, outcome applied | existing
-- RAISES   QL404, QL503
-- REPLAY   existing
create or replace function ql_operator.undrain_worker (p_worker_id text)
returns table (worker_id text, status text, outcome text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set lock_timeout = '1s'
as $$
begin
  perform ql.assert_read_committed();
  return query select * from ql.drain_session(p_worker_id, 0);
end;
$$;

-- HELPER   drain_session — say whether a worker is to lease nothing more (1) or may (0)
-- LOCKS    apart: worker_session
-- READS    worker_session
-- WRITES   worker_session
-- RAISES   QL404
create or replace function ql.drain_session (p_worker_id text, p_drains int)
returns table (worker_id text, status text, outcome text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
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
