"""plpgsql_check with every warning over every PL/pgSQL function of ours; nothing is allowed.

Exit 77 when no PostgreSQL here has the extension.
"""

import sys

import psycopg

from tests import engines
from tests.binaries import find
from tests.server import running

NOT_RUN = 77
# (function, start of the message): why it stands
SNAPSHOT = "a stable function reads with its caller's snapshot, so none here is (DESIGN §4)"
VOLATILE = "routine is marked as VOLATILE, should be STABLE"
ACCEPTED: dict[tuple[str, str], str] = {
    ("ql.expand_commands(text,text)", VOLATILE): SNAPSHOT,
    ("ql.known_reports(ql.command[],text[],text)", VOLATILE): SNAPSHOT,
    ("ql.refuse_strangers(ql.command[])", VOLATILE): SNAPSHOT,
    ("ql.input_text(text)", VOLATILE): SNAPSHOT,
    ("ql.input_octets(text)", VOLATILE): SNAPSHOT,
    ("ql.work_waits(text,text,jsonb)", VOLATILE): SNAPSHOT,
}
FUNCTIONS = """
  select p.oid::regprocedure::text, p.oid, coalesce(t.tgrelid, 0)
  from pg_proc as p
  join pg_language as l on l.oid = p.prolang
  left join pg_trigger as t on t.tgfoid = p.oid
  where l.lanname = 'plpgsql' and p.pronamespace::regnamespace::text ~ '^ql(_|$)'
  order by 1, 3
"""
CHECK = """
  select c.level, c.lineno, c.message
  from plpgsql_check_function_tb(%s::oid, %s::oid, fatal_errors => false, other_warnings => true,
    performance_warnings => true, extra_warnings => true, security_warnings => true) as c
"""


def main() -> int:
    for binaries in find()[0]:
        with running(binaries) as server:
            engines.postgres_template(server)
            with psycopg.connect(engines.fresh_postgres(server), autocommit=True) as connection:
                there = connection.execute(
                    "select from pg_available_extensions where name = 'plpgsql_check'"
                ).fetchone()
                if there is not None:
                    print(f"plpgsql_check on PostgreSQL {binaries.version}")
                    return check(connection)
    print("no PostgreSQL here has plpgsql_check: apt-get install postgresql-15-plpgsql-check")
    return NOT_RUN


def check(connection: psycopg.Connection) -> int:
    """Print every complaint that is not accepted; 1 when there is one, or nothing to check."""
    connection.execute("create extension plpgsql_check")
    functions = connection.execute(FUNCTIONS).fetchall()
    complaints = 0
    used: set[tuple[str, str]] = set()
    for name, function, relation in functions:
        for level, line, message in connection.execute(CHECK, [function, relation]).fetchall():
            accepted = {key for key in ACCEPTED if key[0] == name and message.startswith(key[1])}
            used |= accepted
            if not accepted:
                complaints += 1
                print(f"{name}:{line}: {level}: {message}")
    for name, message in ACCEPTED.keys() - used:
        complaints += 1
        print(f"{name}: accepted and no longer said, take it out: {message}")
    print(f"{len(functions)} functions, {complaints} complaints, {len(used)} accepted")
    return 1 if complaints or not functions else 0


if __name__ == "__main__":
    sys.exit(main())
