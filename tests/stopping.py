"""A backend of PostgreSQL that is terminated inside of a step, at every row that it writes.

Triggers count the rows that are about to be written, and once more for each of them what is due
at the commit; at the chosen number the backend terminates itself, as `pg_terminate_backend` from
another session does at the next statement. A sequence counts, since it forgets nothing by a
rollback.
"""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg

from qinglong_sql.store import Call, Row
from tests.lives import Lived, title
from tests.losing import Pair
from tests.server import Server

STOPS = """
create sequence public.stop_count;
create table public.stop_at (number bigint not null);
insert into public.stop_at values (0);

create function public.stop () returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if nextval('public.stop_count') = (select number from public.stop_at) then
    perform pg_terminate_backend(pg_backend_pid());
  end if;
  if tg_op = 'DELETE' then
    return old;
  end if;
  return new;
end
$$;

do $$
declare
  v_table regclass;
begin
  for v_table in
    select c.oid from pg_class as c where c.relnamespace = 'ql'::regnamespace and c.relkind = 'r'
  loop
    execute format(
      'create trigger stop_row before insert or update or delete on %s'
      ' for each row execute function public.stop()', v_table);
    execute format(
      'create constraint trigger stop_end after insert or update or delete on %s'
      ' deferrable initially deferred for each row execute function public.stop()', v_table);
  end loop;
end
$$;
"""


def stopped(
    server: Server, *, every: bool = False, step: int = 1
) -> Iterator[tuple[str, int, list[str]]]:
    """Act by act of a life: its name, how often it was stopped, and what was wrong.

    every: also acts of a kind that was there before. step: from one boundary to the next.
    """
    with ExitStack() as stack:
        pair = Pair(server, stack, None)
        control = stack.enter_context(psycopg.connect(pair.dsn, autocommit=True))
        control.execute(STOPS)
        life, seen = Lived(pair.clock), set[str]()
        for act, call in life.acts():
            name = title(act)
            gap = step if every or name not in seen else 0
            seen.add(name)
            first = pair.calm.call(call[0], **call[1])
            count, wrong = stop_everywhere(pair, control, [call], gap, first)
            yield name, count, [f"{name}: {line}" for line in wrong]
            life.learn(act, first)


def stop_everywhere(
    pair: Pair, control: psycopg.Connection, calls: list[Call], gap: int, wanted: list[Row]
) -> tuple[int, list[str]]:
    """Stop calls at each boundary until none is left, and they pass; 0 for a gap: let them pass.

    How often it was stopped, and what was wrong: rows of an unfinished call, another answer at
    last, other rows than without faults.
    """
    wrong = list[str]()
    before = pair.rows[0].all()
    for number in itertools.count(1):
        at = 1 + (number - 1) * gap if gap else 0
        control.execute("select setval('public.stop_count', 1, false)")
        control.execute("update public.stop_at set number = %s", [at])
        try:
            answer = [pair.direct.call(step, **params) for step, params in calls][-1]
        except psycopg.OperationalError as error:
            there = pair.rows[0].all()
            if there != before:
                wrong.append(f"at {at} ({error}): -{before - there} +{there - before}")
        else:
            break
    if answer != wanted:
        wrong.append(f"at last it answers {answer}, not {wanted}")
    if parted := pair.parted():
        wrong.append(f"at last: {parted}")
    return number - 1, wrong
