"""alembic's environment: both engines, online and offline, in one transaction.

What is not obvious here is in DESIGN §10: offline needs the named paramstyle, or every `%` of a
function's body is doubled; SQLite gets `begin immediate` from us, since its driver begins late.
"""

import sqlite3
from pathlib import Path
from typing import Any

from alembic import context
from sqlalchemy import DDL, Connection, create_engine, event
from sqlalchemy.pool import NullPool

from qinglong_sql.limits import SQLITE_PAGE_BYTES
from qinglong_sql.migrate import SQLITE, VERSION_SCHEMA, open_sqlite, stands_at

attributes = context.config.attributes
ENGINE: str = attributes["engine"]
# Everything is made as ql_migrator, whoever runs this; two migrators at once go one by one.
PRELUDE = (
    """do $$
begin
  if to_regrole('ql_migrator') is null then
    raise exception 'role ql_migrator is missing'
      using errcode = 'QL503', hint = 'a DBA runs sql/postgres/role.sql with psql';
  elsif not has_database_privilege('ql_migrator', current_database(), 'create') then
    raise exception 'ql_migrator may not create schemas in this database'
      using errcode = 'QL503', hint = 'a DBA runs sql/postgres/role.sql in it with psql';
  end if;
end;
$$""",
    "set local role ql_migrator",
    "select pg_advisory_xact_lock(71070001)",
    f"create schema if not exists {VERSION_SCHEMA}",
)


def follow(ctx: Any, step: Any, heads: set[str], **_: Any) -> None:
    """SQLite's other version number moves in the same transaction."""
    if ENGINE == "sqlite":
        number = int(max(heads, default="0"))
        ctx.execute(DDL(f"pragma user_version = {number}"))


def run(**where: Any) -> None:
    context.configure(
        transactional_ddl=True,
        version_table_schema=VERSION_SCHEMA if ENGINE == "postgres" else None,
        on_version_apply=follow,
        **where,
    )
    if ENGINE == "sqlite" and context.is_offline_mode():
        context.execute(DDL(f"pragma page_size = {SQLITE_PAGE_BYTES}"))
    with context.begin_transaction():
        if ENGINE == "postgres":
            for statement in PRELUDE:
                context.execute(DDL(statement))
        context.run_migrations()


def offline() -> None:
    run(
        dialect_name="postgresql" if ENGINE == "postgres" else "sqlite",
        dialect_opts={"paramstyle": "named"},
        output_buffer=attributes["sink"],
    )


def online() -> None:
    dsn: str = attributes["dsn"]
    with postgres(dsn) if ENGINE == "postgres" else sqlite(dsn) as connection:
        run(connection=connection)
        connection.commit()


def postgres(dsn: str) -> Connection:
    from qinglong_sql.store.link import connect

    return create_engine(
        "postgresql+psycopg://", creator=lambda: connect(dsn), poolclass=NullPool
    ).connect()


def sqlite(dsn: str) -> Connection:
    path = Path(dsn.removeprefix(SQLITE))

    def connect() -> sqlite3.Connection:
        connection = open_sqlite(path)
        stands_at(connection)  # refuses a file whose two stamps disagree
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)
    event.listen(engine, "begin", lambda c: c.exec_driver_sql("begin immediate"))
    return engine.connect()


if context.is_offline_mode():
    offline()
else:
    online()
