-- AUTHORITY — what all batches of workers share: expand, lock in order, keep what was said.
-- The order is the one of DESIGN §6; start, running, report and attest go through it, and nothing
-- else does.

-- HELPER   command_list — a batch as JSON: an array of at most 128
-- RAISES   QL400
create or replace function ql.command_list (p_commands text)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
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

-- HELPER   expand_commands — a batch as typed rows, sorted by attempt, each with its code so far
-- READS    task_attempt (run_id, which never changes)
-- RAISES   QL400
create or replace function ql.expand_commands (p_commands text, p_kind text)
returns ql.command[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan  -- else planned at each call, and no better
as $$
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
$$;

-- HELPER   lock_runs — lock runs for a batch: wait for each in order, and after a wait that took
--          too long once more without those that are still held
-- LOCKS    2 run (by run_id; waits up to lock_timeout, then skip locked)
-- RETURNS  the runs that are locked
create or replace function ql.lock_runs (p_run_ids text[])
returns text[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
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

-- HELPER   lock_attempts — authority over attempts and their runs, for a batch; p_run_ids names the
--          run of each
-- LOCKS    1 attempt advisory (by attempt_id, try) · 2 run (by run_id, as in lock_runs); 3, 4 and 5
--          are taken by the updates of ql.apply_effects, since no one writes them without 1 and 2
-- RETURNS  the attempts that are covered by both; all others are contended
create or replace function ql.lock_attempts (p_attempt_ids text[], p_run_ids text[])
returns text[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
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

-- HELPER   refuse_others — the commands that went this far and are not among those get a code
create or replace function ql.refuse_others (
  p_commands ql.command[],
  p_attempt_ids text[],
  p_code text
)
returns ql.command[]
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
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

-- HELPER   refuse_strangers — a command that says whose it is goes further only for the worker of
--          the offer at its fence
-- READS    attempt_offer
create or replace function ql.refuse_strangers (p_commands ql.command[])
returns ql.command[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
as $$
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

-- HELPER   lock_commands — lock_attempts for the commands that go further; the others are
--          contended, and those of another worker refused
-- LOCKS    1 · 2, as in lock_attempts
-- READS    attempt_offer
create or replace function ql.lock_commands (p_commands ql.command[])
returns ql.command[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
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

-- HELPER   runs_of — the runs of the commands that go further
create or replace function ql.runs_of (p_commands ql.command[])
returns text[]
language plpgsql  -- not sql, which would be planned anew at every call
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  return array(select distinct c.run_id from unnest(p_commands) as c where c.code is null);
end;
$$;

-- HELPER   accept_reports — insert the reports that have authority: leased, same fence, same token
-- LOCKS    none (the caller holds 1 and 2)
-- READS    attempt_lease, task_attempt
-- WRITES   attempt_report
-- RETURNS  the attempts whose report is new
create or replace function ql.accept_reports (
  p_commands ql.command[],
  p_kind text,
  p_now_ms bigint
)
returns text[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
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

-- HELPER   known_reports — the attempts, apart from new ones, whose report of a kind says what the
--          command says, made by the holder of that fence: replays
-- READS    attempt_report, attempt_offer
create or replace function ql.known_reports (
  p_commands ql.command[],
  p_new text[],
  p_kind text
)
returns text[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
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

-- HELPER   answers — what each command is told, in the order in which the batch came
create or replace function ql.answers (p_commands ql.command[])
returns table (attempt_id text, outcome text, code text)
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
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
