-- RETRY OF A RUN — a run of its own that takes over what would come out the same; what that is, is
-- decision/admission.sql's matter. Without a key its id is derived from the retried run alone, by
-- other parts than any key's, so that no key can be in its way. What belongs to a trigger does so
-- again, for `overlap` alone (decision/schedule.sql): it has no trigger and no time of its own.

-- STEP     start_retry — admit a run that takes over what succeeded in a run that did not
-- LOCKS    2 run (the retried one; waits) · package_generation (for share: the start guard)
-- READS    run, run_input, step_output, trigger_run of the retried run; admission_effect
-- WRITES   run, run_input, step_output, trigger_run; through ql.apply_effects
-- RETURNS  created | existing | conflict (the key belongs to another run)
-- RAISES   QL400, QL404, QL503
-- REPLAY   exact: one retry a run without a key, and one a key
create or replace function ql_admission.start_retry (p_run_id text, p_run_key text)
returns table (
  run_id text, outcome text, status text, generation bigint, taken_over_count bigint
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
#variable_conflict use_column
declare
  v_run_id text := ql.derived_id('ru', 'retry', p_run_id);
  v_outcome text := 'existing';
  v_old record;
begin
  perform ql.assert_read_committed();
  if length(p_run_key) not between 1 and 200 then
    raise exception 'a run key has 1 to 200 characters' using errcode = 'QL400';
  end if;

  loop
    -- without a key the answer needs nothing of the retried run, which may be purged by now
    if p_run_key is not null or not exists (select from ql.run as r where r.run_id = v_run_id) then
      perform ql.wait_run(p_run_id);  -- what is copied cannot be purged meanwhile
      select
        r.package_key,
        r.kind,
        r.target_key,
        case r.status
          when 'running' then 'is still open: cancel it first'
          when 'succeeded' then 'has succeeded: there is nothing to retry'
        end as fault,
        i.input
      into v_old
      from ql.run as r
      join ql.run_input as i on i.run_id = r.run_id
      where r.run_id = p_run_id;
      if v_old.fault is not null then
        raise exception 'run % %', p_run_id, v_old.fault using errcode = 'QL400';
      end if;
      if p_run_key is not null then
        v_run_id := ql.derived_id(
          'ru', v_old.package_key, v_old.kind, v_old.target_key, p_run_key
        );
      end if;
      if not exists (select from ql.run as r where r.run_id = v_run_id)
        and ql.admit_run(
          v_run_id,
          v_old.package_key,
          v_old.kind,
          v_old.target_key,
          coalesce(p_run_key, ''),
          v_old.input,
          p_run_id,
          null,
          null
        )
      then
        v_outcome := 'created';
        perform ql.take_over_outputs(v_run_id);
        -- marked or not: the retried one has ended; its own row is what a retry of this one finds
        insert into ql.trigger_run (run_id, package_key, trigger_key, open_at_ms)
        select
          v_run_id,
          m.package_key,
          m.trigger_key,
          ql.now_ms()
        from ql.trigger_run as m
        where m.run_id = p_run_id;
      end if;
    end if;

    return query
    select
      r.run_id,
      case when r.retry_of_run_id = p_run_id then v_outcome else 'conflict' end,
      r.status,
      r.generation,
      (
        select count(*)
        from ql.step_run as s
        where s.run_id = r.run_id and s.result_code = 'taken_over'
      )
    from ql.run as r
    where r.run_id = v_run_id;
    exit when found;  -- else it was purged before we looked
  end loop;
end;
$$;

-- HELPER   take_over_outputs — what steps wrote that were taken over
-- READS    run, step_run; step_output of the retried run
-- WRITES   step_output
create or replace function ql.take_over_outputs (p_run_id text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  insert into ql.step_output (run_id, step_key, attempt_id, output)
  select
    s.run_id,
    s.step_key,
    o.attempt_id,
    o.output
  from ql.run as r
  join ql.step_run as s on s.run_id = r.run_id and s.result_code = 'taken_over'
  join ql.step_output as o on o.run_id = r.retry_of_run_id and o.step_key = s.step_key
  where r.run_id = p_run_id;
end;
$$;
