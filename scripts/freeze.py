"""Copy the living sql/ tree into the frozen text of a revision, in the manifest's order.

    python scripts/freeze.py            write migrations/versions/0001_core.{postgres,sqlite}.sql
    python scripts/freeze.py --check    exit 1 with a diff when they are stale

A revision that is released is never frozen again; REVISION is the one that may be rewritten.
"""

import argparse
import difflib
import hashlib
import re
import sys
from pathlib import Path
from typing import Literal

Engine = Literal["postgres", "sqlite"]

ROOT = Path(__file__).resolve().parent.parent
SQL_ROOT = ROOT / "sql"
VERSIONS = ROOT / "migrations" / "versions"
REVISION = "0001_core"  # rewritten until the first release
MANIFEST: dict[Engine, str] = {"postgres": "postgres.psql", "sqlite": "sqlite.sql"}
INCLUDE = re.compile(r"(?:\\ir|\.read)\s+(\S+)\s*")
# The DBA runs role.sql once a cluster; the migration sets the role and the transaction itself.
APART = ("postgres/role.sql",)
OMIT = re.compile(r"--|\\|\.|(begin|commit|pragma|set( local)? role|reset role)\b|$")
# In a transaction of others, a path goes no further than the transaction and never back to theirs.
PATH = "set local search_path = pg_catalog, pg_temp;"
WITHIN = {"reset search_path;": PATH}
HEADER: dict[Engine, str] = {
    "postgres": (f"set local lock_timeout = '5s';\nset local statement_timeout = '60s';\n{PATH}\n"),
    "sqlite": "",
}


def frozen_text(engine: Engine, revision: str = REVISION, sql_root: Path = SQL_ROOT) -> str:
    """The frozen text of a revision that installs the whole manifest.

    Raises ValueError when the manifest names a missing file or a file holds a tab (offline output
    would turn it into spaces, and the checksums would differ).
    """
    parts = [
        f"-- {revision}, {engine}: written by scripts/freeze.py, never by hand.\n"
        "-- LOCKS    only what it makes itself\n" + HEADER[engine]
    ]
    manifest = sql_root / MANIFEST[engine]
    for number, line in enumerate(manifest.read_text(encoding="utf-8").splitlines(), start=1):
        include = INCLUDE.fullmatch(line)
        if include is None:
            if not OMIT.match(line):
                parts.append(WITHIN.get(line) or line.replace("set search", "set local search"))
                parts[-1] += "\n"
        elif include[1] not in APART:
            parts.append(_copy(sql_root, include[1], f"{manifest.name}:{number}"))
    return "\n".join(parts)


def _copy(sql_root: Path, name: str, where: str) -> str:
    path = sql_root / name
    if not path.is_file():
        raise ValueError(f"{where}: no file sql/{name}")
    text = path.read_text(encoding="utf-8")
    if "\t" in text:
        raise ValueError(f"sql/{name}: holds a tab")
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"-- from sql/{name} sha256 {digest}\n{text.rstrip()}\n"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when stale")
    parser.add_argument("--sql-root", type=Path, default=SQL_ROOT)
    parser.add_argument("--versions", type=Path, default=VERSIONS)
    wish = parser.parse_args(words)
    stale = 0
    for engine in MANIFEST:
        path = wish.versions / f"{REVISION}.{engine}.sql"
        text = frozen_text(engine, sql_root=wish.sql_root)
        if not wish.check:
            path.write_text(text, encoding="utf-8")
            continue
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = diff(before, text, path.name)
        stale += bool(lines)
        sys.stdout.writelines(lines)
    if stale:
        print(f"{stale} frozen files are stale: run scripts/freeze.py")
    return 1 if stale else 0


def diff(before: str, after: str, name: str) -> list[str]:
    """Lines of a unified diff from what is stored to what is made now; empty when equal."""
    sides = (text.splitlines(keepends=True) for text in (before, after))
    return list(difflib.unified_diff(*sides, fromfile=name, tofile=f"{name} (made now)"))


if __name__ == "__main__":
    sys.exit(main())
