-- DISPATCH, READ — what the holder of a lease may ask: its input, and how its attempt stands.
-- Mirror of sql/postgres/dispatch_read.sql.

-- STEP     attempt_input — what an execution reads: its run's input and the outputs of its needs
-- READS    run_input, step_output; no live token, no row
select
  a.attempt_id,
  '{"input":' || i.input || ',"needs":{' || coalesce(
    (
      select group_concat('"' || n.ancestor_key || '":' || coalesce(n.output, 'null'), ',')
      from (
        select
          w.ancestor_key,
          o.output
        from workflow_ancestor as w
        left join step_output as o on o.run_id = a.run_id and o.step_key = w.ancestor_key
        where w.workflow_id = r.target_id and w.step_key = a.step_key and w.distance = 1
        order by w.ancestor_key
      ) as n
    ),
    ''
  ) || '}}' as input
from attempt_lease as l
cross join task_attempt as a on a.attempt_id = l.attempt_id
cross join run as r on r.run_id = a.run_id
cross join run_input as i on i.run_id = a.run_id
where l.attempt_id = :p_attempt_id
  and l.status = 'leased'
  and l.token_digest = sha256_hex(:p_token);

-- STEP     attempt_inputs — attempt_input for a batch, as much as an answer should hold
-- READS    run_input, step_output; no live token at this fence, no input
-- RETURNS  applied, with the input | blocked (QL400, QL404, QL410) | contended: what came before it
--          has 2 MiB, so it is asked for again
-- REPLAY   reads only
-- CALL     read_commands

update temp.command as c
set code = 'QL410'
where c.code is null
  and not exists (
    select 1
    from attempt_lease as l
    where l.attempt_id = c.attempt_id
      and l.status = 'leased'
      and l.fence = c.fence
      and l.token_digest = c.token_digest
  );

update temp.command as c
set code = 'contended'
where c.ordinal in (
  select s.ordinal
  from (
    select
      d.ordinal,
      sum(
        length(cast(i.input as blob)) + coalesce(
          (
            select sum(length(cast(o.output as blob)))
            from workflow_ancestor as w
            cross join step_output as o on o.run_id = a.run_id and o.step_key = w.ancestor_key
            where w.workflow_id = r.target_id and w.step_key = a.step_key and w.distance = 1
          ),
          0
        )
      ) over (order by d.ordinal rows between unbounded preceding and 1 preceding)
        as octets_before
    from temp.command as d
    cross join task_attempt as a on a.attempt_id = d.attempt_id
    cross join run as r on r.run_id = a.run_id
    cross join run_input as i on i.run_id = a.run_id
    where d.code is null
  ) as s
  where s.octets_before >= 2097152
);

select
  c.attempt_id,
  case
    when c.code is null then 'applied'
    when c.code = 'contended' then 'contended'
    else 'blocked'
  end as outcome,
  nullif(c.code, 'contended') as code,
  '{"input":' || i.input || ',"needs":{' || coalesce(
    (
      select group_concat('"' || n.ancestor_key || '":' || coalesce(n.output, 'null'), ',')
      from (
        select
          w.ancestor_key,
          o.output
        from workflow_ancestor as w
        left join step_output as o on o.run_id = a.run_id and o.step_key = w.ancestor_key
        where w.workflow_id = r.target_id and w.step_key = a.step_key and w.distance = 1
        order by w.ancestor_key
      ) as n
    ),
    ''
  ) || '}}' as input
from temp.command as c
left join task_attempt as a on a.attempt_id = c.attempt_id and c.code is null
left join run as r on r.run_id = a.run_id
left join run_input as i on i.run_id = a.run_id
order by c.ordinal;

-- STEP     attempt_standing — how attempts stand, for whoever holds or once held them: an offer of
--          this fence with this token, at any time, also long after the end
-- READS    attempt_offer, attempt_lease, task_attempt
-- RETURNS  applied, with the attempt's status and what became of the command's own lease (its end
--          while it is held) | blocked (QL400, QL404, QL410), and nothing is told
-- REPLAY   reads only
-- CALL     read_commands

update temp.command as c
set code = 'QL410'
where c.code is null
  and not exists (
    select 1
    from attempt_offer as o
    where o.run_id = c.run_id
      and o.attempt_id = c.attempt_id
      and o.fence = c.fence
      and o.token_digest = c.token_digest
  );

select
  c.attempt_id,
  case when c.code is null then 'applied' else 'blocked' end as outcome,
  c.code,
  a.status,
  case when l.status = 'leased' and l.fence <> c.fence then 'released' else l.status end
    as lease_status,
  case when l.status = 'leased' and l.fence = c.fence then l.expires_at_ms end as expires_at_ms,
  a.run_id,
  a.step_key,
  a.number
from temp.command as c
left join task_attempt as a on a.attempt_id = c.attempt_id and c.code is null
left join attempt_lease as l on l.attempt_id = a.attempt_id
order by c.ordinal;
