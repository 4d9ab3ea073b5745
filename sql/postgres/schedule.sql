-- SCHEDULE — triggers: pause and resume. A withdrawn trigger is unknown (DESIGN §5, generations).

-- HELPER   set_trigger — move a trigger between active and paused
-- LOCKS    trigger (waits)
-- WRITES   trigger
-- RAISES   QL404
create or replace function ql.set_trigger (
  p_package_key text,
  p_trigger_key text,
  p_state text
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform
  from ql.trigger as t
  where t.package_key = p_package_key and t.trigger_key = p_trigger_key and t.state <> 'withdrawn'
  for no key update;
  if not found then
    raise exception 'no trigger % in package %', p_trigger_key, p_package_key
      using errcode = 'QL404';
  end if;

  update ql.trigger as t
  set state = p_state, updated_at_ms = ql.now_ms()
  where t.package_key = p_package_key and t.trigger_key = p_trigger_key and t.state <> p_state;
end;
$$;

-- STEP     pause_trigger — a paused trigger does not fire; its cursor stays where it is
-- LOCKS    trigger (waits)
-- READS    trigger
-- WRITES   trigger
-- RETURNS  trigger_key, state
-- RAISES   QL404, QL503
-- REPLAY   exact
create or replace function ql_operator.pause_trigger (p_package_key text, p_trigger_key text)
returns table (trigger_key text, state text)
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
  perform ql.set_trigger(p_package_key, p_trigger_key, 'paused');
  return query select p_trigger_key, 'paused';
end;
$$;

-- STEP     resume_trigger — a paused trigger fires again, by its misfire rule if it is late
-- LOCKS    trigger (waits)
-- READS    trigger
-- WRITES   trigger
-- RETURNS  trigger_key, state
-- RAISES   QL404, QL503
-- REPLAY   exact
create or replace function ql_operator.resume_trigger (p_package_key text, p_trigger_key text)
returns table (trigger_key text, state text)
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
  perform ql.set_trigger(p_package_key, p_trigger_key, 'active');
  return query select p_trigger_key, 'active';
end;
$$;
