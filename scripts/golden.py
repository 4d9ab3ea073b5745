"""Dump what the manifests install, to be read in a review and compared by the gate.

    python -m scripts.golden            write migrations/golden.sql, migrations/golden.sqlite.sql,
                                        and what readiness compares with (scripts/shipped.py)
    python -m scripts.golden --check    exit 1 with a diff when they differ

golden.sql is made with PostgreSQL 18.6: another pg_dump writes other text for the same catalog.
"""

import argparse
import re
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from qinglong_sql import migrate
from scripts import shipped
from scripts.freeze import ROOT, diff
from scripts.frozen import frozen_text
from tests import engines
from tests.binaries import NoServer, find
from tests.server import Server, running, tool

GOLDEN = ROOT / "migrations"
MADE_WITH = "18.6"
# pg_dump's one-time key, its versions, and the settings that it opens with
NOISE = re.compile(r"\\(un)?restrict |-- Dumped |SET |SELECT pg_catalog\.set_config")


def postgres_text(server: Server, dsn: str) -> str:
    """The schema of a database without alembic's own table, as pg_dump has it."""
    said = tool(server, "pg_dump", "--schema-only", "-N", migrate.VERSION_SCHEMA, "-d", dsn).stdout
    kept = [line for line in said.splitlines() if not NOISE.match(line)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip() + "\n"


def sqlite_text(path: Path) -> str:
    """The schema of a file without alembic's own table, in the order in which it was made."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(
            "select sql from sqlite_schema where sql is not null and name <> 'alembic_version'"
            " order by type, name"
        ).fetchall()
    return "".join(f"{sql};\n\n" for (sql,) in rows).rstrip() + "\n"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when different")
    check: bool = parser.parse_args(words).check
    different = 0
    for name, text in _texts():
        path = GOLDEN / name
        if not check:
            path.write_text(text, encoding="utf-8")
            continue
        lines = diff(path.read_text(encoding="utf-8") if path.exists() else "", text, name)
        different += bool(lines)
        sys.stdout.writelines(lines)
    different += shipped.main(["--check"] if check else [])
    return 1 if different else 0


def _texts() -> list[tuple[str, str]]:
    binaries = next((one for one in find()[0] if one.version == MADE_WITH), None)
    if binaries is None:
        raise NoServer(f"golden.sql is made with PostgreSQL {MADE_WITH}: set PG_BINDIR to it")
    with running(binaries) as server:
        engines.postgres_template(server)
        dsn = engines.fresh_postgres(server)
        postgres = postgres_text(server, dsn)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "golden.db"
        migrate.install_sqlite(path, frozen_text("sqlite"))
        sqlite = sqlite_text(path)
    return [("golden.sql", postgres), ("golden.sqlite.sql", sqlite)]


if __name__ == "__main__":
    sys.exit(main())
