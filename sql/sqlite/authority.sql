-- AUTHORITY — what all batches of workers share. Mirror of sql/postgres/authority.sql.

-- HELPER   read_commands — the batch, checked for shape, with the run of each attempt
-- RAISES   QL400 for a batch that is none
insert into temp.refusal (code, message)
select 'QL400', 'a batch is a JSON array of at most 128 commands'
where case
  when json_valid(:p_commands) then json_type(:p_commands) <> 'array'
    or json_array_length(:p_commands) > 128
  else 1
end;

delete from temp.effect;

delete from temp.chosen;

delete from temp.command;

insert into temp.command (
  ordinal, attempt_id, run_id, fence, token_digest, identity, how, exit_code, output, error, reason,
  worker_id, code
)
select
  d.ordinal,
  d.attempt_id,
  a.run_id,
  d.fence,
  sha256_hex(d.token),
  d.identity,
  d.how,
  d.exit_code,
  d.output,
  d.error,
  d.reason,
  d.worker_id,
  case
    when d.attempt_id is null or d.fence is null or d.token is null or d.times > 1 then 'QL400'
    when length(cast(d.identity as blob)) > 512 or length(cast(d.reason as blob)) > 2048
      then 'QL400'
    when d.odd = 1 then 'QL400'
    when a.attempt_id is null then 'QL404'
  end
from (
  select
    c.key as ordinal,
    cast(c.value ->> '$.attempt_id' as text) as attempt_id,
    case
      when json_type(c.value, '$.fence') not in ('integer', 'text') then null
      when (c.value ->> '$.fence') glob '*[^0-9]*' then null
      when length(c.value ->> '$.fence') between 1 and 18
        then cast(c.value ->> '$.fence' as integer)
    end as fence,
    cast(c.value ->> '$.token' as text) as token,
    cast(c.value ->> '$.identity' as text) as identity,
    cast(c.value ->> '$.how' as text) as how,
    case
      when json_type(c.value, '$.exit_code') = 'integer'
        and c.value ->> '$.exit_code' between -999999999 and 999999999
        then c.value ->> '$.exit_code'
    end as exit_code,
    case json_type(c.value, '$.output')
      when 'object' then canonical(c.value -> '$.output')
      else cast(c.value ->> '$.output' as text)
    end as output,
    cast(c.value ->> '$.error' as text) as error,
    cast(c.value ->> '$.reason' as text) as reason,
    cast(c.value ->> '$.worker_id' as text) as worker_id,
    coalesce(
      json_type(c.value, '$.exit_code') not in ('integer', 'null')
      or c.value ->> '$.exit_code' not between -999999999 and 999999999,
      0
    ) as odd,
    row_number() over (partition by c.value ->> '$.attempt_id' order by c.key) as times
  from (
    select e.key, case when e.type = 'object' then e.value else '{}' end as value
    from json_each(:p_commands) as e
  ) as c
) as d
left join task_attempt as a on a.attempt_id = d.attempt_id;

-- one that says whose it is goes further only for the worker of the offer at its fence
update temp.command as c
set code = 'QL410'
where c.code is null
  and c.worker_id is not null
  and not exists (
    select 1
    from attempt_offer as o
    where o.run_id = c.run_id
      and o.attempt_id = c.attempt_id
      and o.fence = c.fence
      and o.worker_id = c.worker_id
  );

-- HELPER   choose_commands — the runs of a batch
insert or ignore into temp.chosen (run_id)
select c.run_id
from temp.command as c
where c.code is null;
