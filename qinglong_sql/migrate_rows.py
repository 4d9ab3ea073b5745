"""Rows that a migration looks at before it changes anything (DESIGN §10).

Those that a revision's new constraint would refuse are named with their repair, since the server
only says that there are some. Those that the way back would drop are counted, and dropped only by
somebody who said so.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from qinglong_sql.errors import Malformed, NotReady

SHOWN: Final = 5
WAY_BACK_WAITS: Final = "5s"
Rows = list[tuple[Any, ...]]
Ask = Callable[[str], Rows]


@dataclass(frozen=True, slots=True)
class Breaking:
    """A rule of a revision that rows of the one before could break, on PostgreSQL."""

    rule: str
    keys: str
    where: str  # "table where …"
    repair: str


BREAKING: Final = {
    "0002": (
        Breaking(
            "a_claim_says_what_it_observed",
            "package_key, trigger_key, claim_owner",
            "ql.trigger_schedule where claim_owner is not null",
            "update ql.trigger_schedule set claim_owner = null, claim_token = null,"
            " claim_expires_at_ms = null where claim_owner is not null",
        ),
    ),
}


def assert_fits(dsn: str, before: str | None, to: str) -> None:
    """See that no row would break a revision after `before` up to `to` ("head", "0002").

    On PostgreSQL: a file's revision leaves behind what it cannot take. Raises NotReady that names
    the rows, up to five of a rule, and their repair.
    """
    from qinglong_sql.store.link import connect

    with connect(dsn, autocommit=True) as connection:
        wrong = breaking(lambda text: connection.execute(text).fetchall(), before, to)
    if wrong:
        raise NotReady(f"nothing was changed: {'; '.join(wrong)}")


def breaking(ask: Ask, before: str | None, to: str) -> list[str]:
    """What rows would break, in words."""
    wrong = []
    for revision, rules in BREAKING.items():
        if before is None or revision <= before or (to != "head" and revision > to):
            continue
        for one in rules:
            rows = ask(f"select {one.keys} from {one.where} order by {one.keys}")
            if rows:
                shown = ", ".join(f"({', '.join(map(str, row))})" for row in rows[:SHOWN])
                more = f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
                wrong.append(
                    f"revision {revision} wants {one.rule}, which these rows of ({one.keys})"
                    f" would break: {shown}{more}; put them right, such as by: {one.repair}"
                )
    return wrong


def assert_may_drop(operations: Any, drop_rows: bool) -> None:
    """Before everything is dropped: refuse while there are rows, unless that was said.

    On PostgreSQL nobody is kept waiting longer than five seconds, and rows that come meanwhile
    count too: what is empty is locked and looked at again. Raises Malformed (QL400) that says how
    many rows of which tables would go.
    """
    connection = operations.get_bind()

    def ask(text: str) -> Rows:
        return [tuple(row) for row in connection.exec_driver_sql(text).fetchall()]

    postgres = operations.get_context().dialect.name == "postgresql"
    if postgres:
        ask(f"select set_config('lock_timeout', '{WAY_BACK_WAITS}', true)")
    if drop_rows:
        return
    tables = tables_of(ask, postgres)
    refuse_rows(ask, tables)
    if postgres and tables:
        connection.exec_driver_sql(f"lock table {', '.join(tables)} in access exclusive mode")
        refuse_rows(ask, tables)


def tables_of(ask: Ask, postgres: bool) -> list[str]:
    """Our tables, quoted."""
    if postgres:
        listed = "select tablename from pg_catalog.pg_tables where schemaname = 'ql' order by 1"
        return [f'ql."{name}"' for (name,) in ask(listed)]
    listed = "select name from sqlite_schema where type = 'table' order by 1"
    return [
        f'"{name}"'
        for (name,) in ask(listed)
        if name != "alembic_version" and not name.startswith("sqlite_")
    ]


def refuse_rows(ask: Ask, tables: list[str]) -> None:
    """Raise Malformed when one of the tables has rows."""
    if not tables:
        return
    counts = ask(" union all ".join(f"select '{one}', count(*) from {one}" for one in tables))
    there = sorted(((int(count), name) for name, count in counts if count), reverse=True)
    if there:
        told = ", ".join(
            f"{name.removeprefix('ql.').strip(chr(34))} {count:,}" for count, name in there
        )
        raise Malformed(
            f"the way back to nothing drops {sum(count for count, _ in there):,} rows for good"
            f" ({told}); nothing was changed: make a backup, and say --drop-rows (drop_rows=True)"
        )
