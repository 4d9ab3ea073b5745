-- COMPLETION — a worker tells how an execution ended. Mirror of sql/postgres/completion.sql.

-- STEP     report_attempts — the end of executions
-- LOCKS    the database (begin immediate, by the caller)
-- READS    completion_effect
-- WRITES   attempt_report, refused_report; through apply_effects
-- RETURNS  applied, with the attempt's status | blocked (QL400, QL404, QL410)
-- REPLAY   exact: the report of this fence is found; another content for it is QL410
-- CALL     read_commands

update temp.command as c
set code = 'QL400'
where c.code is distinct from 'QL400'
  and (
    c.how is null
    or c.how not in (
      'exit', 'signal', 'stop', 'deadline', 'start_failed', 'bad_output', 'not_started'
    )
    or (c.how = 'exit' and c.exit_code is null)
    or length(cast(c.output as blob)) > 16384
    or (c.output is not null and not is_object(c.output))
    or length(cast(c.error as blob)) > 2048
  );

insert into attempt_report (
  run_id, attempt_id, fence, kind, how, exit_code, output, error, reported_at_ms
)
select
  c.run_id,
  c.attempt_id,
  c.fence,
  'ended',
  c.how,
  c.exit_code,
  c.output,
  c.error,
  :now_ms
from temp.command as c
cross join attempt_lease as l on l.attempt_id = c.attempt_id
cross join task_attempt as a on a.attempt_id = c.attempt_id
where c.code is null
  and l.status = 'leased'
  and l.fence = c.fence
  and l.token_digest = c.token_digest
  and case
    when c.how = 'not_started' then a.status in ('claimed', 'starting')
    else a.status in ('starting', 'running')
  end
  and not exists (
    select 1
    from attempt_report as p
    where p.run_id = c.run_id
      and p.attempt_id = c.attempt_id
      and p.fence = c.fence
      and p.kind = 'ended'
  );

-- CALL     choose_commands
-- EACH     decide_completion
-- CALL     apply_effects

update temp.command as c
set code = 'QL410'
where c.code is null
  and not exists (
    select 1
    from attempt_report as p
    cross join attempt_offer as o
      on o.run_id = p.run_id and o.attempt_id = p.attempt_id and o.fence = p.fence
    where p.run_id = c.run_id
      and p.attempt_id = c.attempt_id
      and p.fence = c.fence
      and p.kind = 'ended'
      and p.how = c.how
      and p.exit_code is not distinct from c.exit_code
      and p.output is not distinct from c.output
      and o.token_digest = c.token_digest
  );

-- CALL     keep_refused

select
  c.attempt_id,
  case when c.code is null then 'applied' else 'blocked' end as outcome,
  c.code,
  a.status
from temp.command as c
left join task_attempt as a on a.attempt_id = c.attempt_id and c.code is null
order by c.ordinal;

-- STEP     attest_attempts — a worker knows that an execution is gone, but not how it ended
-- LOCKS    the database (begin immediate, by the caller)
-- READS    recovery_effect
-- WRITES   attestation; through apply_effects
-- RETURNS  applied, with the attempt's status | blocked (QL400, QL404, QL410)
-- REPLAY   exact: the attestation is found; another reason for it is QL410
-- CALL     read_commands

update temp.command as c
set code = 'QL400'
where c.code is distinct from 'QL400' and c.reason is null;

insert into attestation (run_id, attempt_id, evidence, reason, actor, attested_at_ms)
select
  c.run_id,
  c.attempt_id,
  'attested',
  c.reason,
  l.worker_id,
  :now_ms
from temp.command as c
cross join attempt_lease as l on l.attempt_id = c.attempt_id
where c.code is null
  and l.status = 'leased'
  and l.fence = c.fence
  and l.token_digest = c.token_digest
  and not exists (
    select 1
    from attestation as n
    where n.run_id = c.run_id and n.attempt_id = c.attempt_id
  );

-- CALL     choose_commands
-- EACH     decide_recovery
-- CALL     apply_effects

update temp.command as c
set code = 'QL410'
where c.code is null
  and not exists (
    select 1
    from attestation as n
    cross join attempt_offer as o
      on o.run_id = n.run_id and o.attempt_id = n.attempt_id and o.fence = c.fence
    where n.run_id = c.run_id
      and n.attempt_id = c.attempt_id
      and n.evidence = 'attested'
      and n.reason = c.reason
      and o.token_digest = c.token_digest
  );

select
  c.attempt_id,
  case when c.code is null then 'applied' else 'blocked' end as outcome,
  c.code,
  a.status
from temp.command as c
left join task_attempt as a on a.attempt_id = c.attempt_id and c.code is null
order by c.ordinal;

-- HELPER   keep_refused — what the former holder of a fence said too late changes nothing, but is
--          kept: each content once, at most eight an attempt
insert into refused_report (
  run_id, attempt_id, ordinal, code, kind, how, exit_code, fence, refused_at_ms
)
select
  c.run_id,
  c.attempt_id,
  1 + (
    select count(*)
    from refused_report as f
    where f.run_id = c.run_id and f.attempt_id = c.attempt_id
  ),
  c.code,
  'ended',
  c.how,
  c.exit_code,
  c.fence,
  :now_ms
from temp.command as c
cross join attempt_offer as o
  on o.run_id = c.run_id and o.attempt_id = c.attempt_id and o.fence = c.fence
where c.code = 'QL410'
  and o.token_digest = c.token_digest
  and (
    select count(*)
    from refused_report as f
    where f.run_id = c.run_id and f.attempt_id = c.attempt_id
  ) < 8
  and not exists (
    select 1
    from refused_report as f
    where f.run_id = c.run_id
      and f.attempt_id = c.attempt_id
      and f.fence = c.fence
      and f.how = c.how
      and f.exit_code is not distinct from c.exit_code
  );

-- HELPER   decide_completion — run by run: a view with a window takes a run_id as a parameter
insert into temp.effect (
  run_id, ordinal, entity, entity_id, from_status, to_status, expected_version, result_code,
  event_type, due_at_ms, input_id
)
select
  e.run_id,
  e.ordinal,
  e.entity,
  e.entity_id,
  e.from_status,
  e.to_status,
  e.expected_version,
  e.result_code,
  e.event_type,
  e.due_at_ms,
  e.input_id
from completion_effect as e
where e.run_id = :each_run_id;
