"""The frozen text of a revision, made from the living sql/ tree (see scripts.freeze)."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

Engine = Literal["postgres", "sqlite"]

ROOT = Path(__file__).resolve().parent.parent
SQL_ROOT = ROOT / "sql"
FIRST = "0001_core"
MANIFEST: dict[Engine, str] = {"postgres": "postgres.psql", "sqlite": "sqlite.sql"}
INCLUDE = re.compile(r"(?:\\ir|\.read)\s+(\S+)\s*")
COPIED = re.compile(r"^-- (?:from|as in) sql/(\S+) sha256 ([0-9a-f]{64})$", re.MULTILINE)
# The DBA runs role.sql once a cluster; the migration sets the role and the transaction itself.
APART = ("postgres/role.sql",)
# Their objects stay, so what changes in them is written by hand; the views are all made anew.
BY_HAND = ("postgres/schema.sql", "postgres/table.sql", "sqlite/table.sql")
VIEW = re.compile(r"^create view (\w+)", re.MULTILINE)
TRIGGER = re.compile(r"^create trigger (\w+)", re.MULTILINE)
OMIT = re.compile(r"--|\\|\.|(begin|commit|pragma|set( local)? role|reset role)\b|$")
# In a transaction of others, a path goes no further than the transaction and never back to theirs.
PATH = "set local search_path = pg_catalog, pg_temp;"
VIEW_PATH = "set local search_path = ql, pg_catalog, pg_temp;"
WITHIN = {"reset search_path;": PATH}
HEADER: dict[Engine, str] = {
    "postgres": (f"set local lock_timeout = '5s';\nset local statement_timeout = '60s';\n{PATH}\n"),
    "sqlite": "",
}
HAND_WISH = "-- LOCKS    say which, and for how long\n"
HAND, HAND_END = "-- by hand: tables, and what else must come first", "-- end of what is by hand"


def frozen_text(engine: Engine, revision: str = FIRST, sql_root: Path = SQL_ROOT) -> str:
    """The frozen text of a revision that installs the whole manifest.

    Raises ValueError when the manifest names a missing file or a file holds a tab (offline output
    would turn it into spaces, and the checksums would differ).
    """
    parts = [_head(engine, revision)]
    for line, name in manifest(engine, sql_root):
        if name:
            parts.append(_copy(sql_root, name))
        elif not OMIT.match(line):
            parts.append(
                (WITHIN.get(line) or line.replace("set search", "set local search")) + "\n"
            )
    return "\n".join(parts)


def next_text(engine: Engine, revision: str, versions: Path, sql_root: Path = SQL_ROOT) -> str:
    """The frozen text of a later revision: what changed since the one before.

    Views go first and come back last, so that nothing stands in the way of what is by hand.
    """
    known = known_sums(engine, versions, before=revision)
    names = [name for _, name in manifest(engine, sql_root) if name]
    changed = [name for name in names if known.get(name) != sum_of(sql_root, name)]
    views = [name for name in names if name.startswith("decision/")]
    tables = [name for name in changed if name in BY_HAND]
    anew = bool(tables or set(changed) & set(views))
    parts = [_head(engine, revision)]
    if anew:
        installed = installed_text(engine, versions, views, revision)
        parts.append(_on_path(engine, _drop("view", VIEW, installed)))
        if engine == "sqlite":
            installed = installed_text(engine, versions, ["sqlite/trigger.sql"], revision)
            parts.append(_drop("trigger", TRIGGER, installed))
            changed += ["sqlite/trigger.sql"] if "sqlite/trigger.sql" not in changed else []
    parts.append(_by_hand(versions / f"{revision}.{engine}.sql"))
    parts += [f"-- as in sql/{name} sha256 {sum_of(sql_root, name)}\n" for name in tables]
    if anew:
        parts.append(_on_path(engine, "\n".join(_copy(sql_root, name) for name in views)))
    rest = [name for name in changed if name not in BY_HAND and name not in views]
    if engine == "postgres" and changed and "postgres/grant.sql" not in rest:
        rest.append("postgres/grant.sql")  # what was made anew has no grants yet
    return "\n".join(parts + [_copy(sql_root, name) for name in rest])


def _on_path(engine: Engine, text: str) -> str:
    return f"{VIEW_PATH}\n{text}{PATH}\n" if engine == "postgres" else text


def _head(engine: Engine, revision: str) -> str:
    first = revision == FIRST
    said = "never by hand" if first else "but for what stands between the marks"
    locks = "-- LOCKS    only what it makes itself\n" if first else ""
    return (
        f"-- {revision}, {engine}: written by scripts/freeze.py, {said}.\n{locks}{HEADER[engine]}"
    )


def manifest(engine: Engine, sql_root: Path) -> Iterator[tuple[str, str | None]]:
    """Each line of the manifest, and the file that it includes."""
    path = sql_root / MANIFEST[engine]
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        include = INCLUDE.fullmatch(line)
        if include is None:
            yield line, None
        elif include[1] not in APART:
            if not (sql_root / include[1]).is_file():
                raise ValueError(f"{path.name}:{number}: no file sql/{include[1]}")
            yield line, include[1]


def known_sums(engine: Engine, versions: Path, before: str) -> dict[str, str]:
    """The sum of each source file as the revisions before that one last took it."""
    earlier = [path for path in frozen_files(engine, versions) if path.name < before]
    return {
        name: digest
        for path in earlier
        for name, digest in COPIED.findall(path.read_text(encoding="utf-8"))
    }


def installed_text(engine: Engine, versions: Path, names: list[str], before: str) -> str:
    """The newest copies of these files, as they are installed now, in their order."""
    newest: dict[str, str] = {}
    for path in frozen_files(engine, versions):
        if path.name < before:
            pieces = COPIED.split(path.read_text(encoding="utf-8"))
            newest |= dict(zip(pieces[1::3], pieces[3::3], strict=True))
    return "\n".join(newest.get(name, "") for name in names)


def _drop(kind: str, made: re.Pattern[str], text: str) -> str:
    """Drop what this text made, last first; views stand on the path that is set before."""
    return "".join(f"drop {kind} {name};\n" for name in reversed(made.findall(text)))


def _by_hand(path: Path) -> str:
    """What stands between the marks, kept as it is."""
    text = path.read_text(encoding="utf-8") if path.exists() else f"{HAND}\n{HAND_WISH}{HAND_END}"
    kept = text.partition(f"{HAND}\n")[2].partition(HAND_END)[0]
    return f"{HAND}\n{kept}{HAND_END}\n"


def frozen_files(engine: Engine, versions: Path) -> list[Path]:
    return sorted(versions.glob(f"[0-9]*.{engine}.sql"))


def sum_of(sql_root: Path, name: str) -> str:
    return hashlib.sha256((sql_root / name).read_bytes()).hexdigest()


def _copy(sql_root: Path, name: str) -> str:
    text = (sql_root / name).read_text(encoding="utf-8")
    if "\t" in text:
        raise ValueError(f"sql/{name}: holds a tab")
    return f"-- from sql/{name} sha256 {sum_of(sql_root, name)}\n{text.rstrip()}\n"
