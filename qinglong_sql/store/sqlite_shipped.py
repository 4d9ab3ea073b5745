"""Whether a SQLite file still has the schema that its revision made (DESIGN §10)."""

import sqlite3
from contextlib import closing
from pathlib import Path

from qinglong_sql.errors import NotReady
from qinglong_sql.migrate import migrations_folder, open_sqlite, statements

Objects = dict[tuple[str, str], str]
_OBJECTS = """
  select s.type, s.name, s.sql
  from sqlite_schema as s
  where s.sql is not null
    and s.name not like 'sqlite\\_%' escape '\\'
    and s.name <> 'alembic_version'
"""


def newest_revision() -> str:
    """The number of the newest frozen revision, such as "0001"."""
    return max(
        (one.name[:4] for one in (migrations_folder() / "versions").glob("[0-9]*.sqlite.sql")),
        default="0000",
    )


def assert_shipped(path: Path) -> int:
    """Compare the text of every table, index, view and trigger with the frozen SQL; their number.

    The file stands at the newest revision. Raises NotReady when one is missing or changed, or when
    there is a trigger of someone else, which would act behind the steps.
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        for frozen in sorted((migrations_folder() / "versions").glob("[0-9]*.sqlite.sql")):
            for statement in statements(frozen.read_text(encoding="utf-8")):
                fresh.execute(statement)
        wanted = _objects(fresh)
    with closing(open_sqlite(path)) as connection:
        found = _objects(connection)
    wrong = [
        f"{kind} {name} is {'changed' if (kind, name) in found else 'missing'}"
        for (kind, name), text in sorted(wanted.items())
        if found.get((kind, name)) != text
    ]
    strange = [one for one in sorted(found.keys() - wanted.keys()) if one[0] == "trigger"]
    wrong += [f"trigger {name} is not ours" for _, name in strange]
    if wrong:
        some = ", ".join([*wrong[:3], *([f"and {len(wrong) - 3} more"] if len(wrong) > 3 else [])])
        raise NotReady(f"{path} is not as its revision made it: {some}; restore a copy of the file")
    return len(wanted)


def _objects(connection: sqlite3.Connection) -> Objects:
    return {(kind, name): text for kind, name, text in connection.execute(_OBJECTS)}
