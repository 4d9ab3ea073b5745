"""Copy the living sql/ tree into the frozen text of a revision, in the manifest's order.

    python -m scripts.freeze               write the newest revision anew, unless it is released
    python -m scripts.freeze --check       exit 1 when it is stale, or a released one was changed
    python -m scripts.freeze --next NAME   begin the next revision: only what changed since
    python -m scripts.freeze --release     from now on the newest revision is never written again

The sums of what is released stand in migrations/versions/released.sha256 (`sha256sum -c` reads it).
A later revision holds what was written by hand between two marks (tables change there), the views
anew when one of them or a table changed, and every other file that changed, whole.
"""

import argparse
import difflib
import hashlib
import re
import sys
from pathlib import Path

from scripts.frozen import (
    FIRST,
    MANIFEST,
    ROOT,
    SQL_ROOT,
    Engine,
    frozen_files,
    frozen_text,
    known_sums,
    manifest,
    next_text,
    sum_of,
)

VERSIONS = ROOT / "migrations" / "versions"
RELEASED = "released.sha256"
REVISION_PY = '''"""{title}."""

from alembic import op

from qinglong_sql.migrate import run_frozen

revision = "{number}"
down_revision = "{before}"


def upgrade() -> None:
    run_frozen(op, __file__)


def downgrade() -> None:
    raise NotImplementedError("say here why there is no way back, or how to go it")
'''


def newest(versions: Path) -> str:
    """The name of the newest revision, such as 0001_core."""
    return max(
        (path.name.split(".")[0] for path in frozen_files("sqlite", versions)), default=FIRST
    )


def released(versions: Path) -> dict[str, str]:
    """The sum of each file that is released."""
    path = versions / RELEASED
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="compare only; exit 1 when stale")
    what.add_argument("--next", metavar="NAME", help="begin the next revision, such as 'schedule'")
    what.add_argument("--release", action="store_true", help="never write the newest one again")
    parser.add_argument("--sql-root", type=Path, default=SQL_ROOT)
    parser.add_argument("--versions", type=Path, default=VERSIONS)
    wish = parser.parse_args(words)
    if wish.check:
        return check(wish.versions, wish.sql_root)
    revision = newest(wish.versions)
    is_released = f"{revision}.py" in released(wish.versions)
    if wish.release:
        return release(wish.versions, revision)
    if wish.next:
        if not is_released:
            return _refuse(f"{revision} is not released yet: what changed belongs into it")
        if not re.fullmatch(r"[a-z][a-z_]{0,40}", wish.next):
            return _refuse(f"{wish.next}: a name in lower case with underscores")
        number = f"{int(revision[:4]) + 1:04d}"
        (wish.versions / f"{number}_{wish.next}.py").write_text(
            REVISION_PY.format(
                title=f"{number} {wish.next.replace('_', ' ')}", number=number, before=revision[:4]
            ),
            encoding="utf-8",
        )
        revision = f"{number}_{wish.next}"
    elif is_released:
        return _refuse(f"{revision} is released: begin the next one with --next NAME")
    for engine in MANIFEST:
        path = wish.versions / f"{revision}.{engine}.sql"
        path.write_text(_made(engine, revision, wish.versions, wish.sql_root), encoding="utf-8")
    return 0


def _refuse(why: str) -> int:
    print(why, file=sys.stderr)
    return 2


def _made(engine: Engine, revision: str, versions: Path, sql_root: Path) -> str:
    if revision == FIRST:
        return frozen_text(engine, sql_root=sql_root)
    return next_text(engine, revision, versions, sql_root)


def release(versions: Path, revision: str) -> int:
    """Note the sums of a revision's files."""
    sums = released(versions)
    for path in sorted(versions.glob(f"{revision}.*")):
        sums.setdefault(path.name, hashlib.sha256(path.read_bytes()).hexdigest())
    lines = [f"{digest}  {name}\n" for name, digest in sorted(sums.items())]
    (versions / RELEASED).write_text("".join(lines), encoding="utf-8")
    return 0


def check(versions: Path, sql_root: Path) -> int:
    """Print what is stale or was changed after its release; 1 when there is something."""
    wrong, sums, revision = 0, released(versions), newest(versions)
    for name, digest in sums.items():
        path = versions / name
        if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            print(f"{name} is released and was changed: put it back, and begin a new revision")
            wrong += 1
    for engine in MANIFEST:
        path = versions / f"{revision}.{engine}.sql"
        if path.name in sums:
            wrong += _changed_since(engine, versions, sql_root)
            continue
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = diff(before, _made(engine, revision, versions, sql_root), path.name)
        sys.stdout.writelines(lines)
        if lines:
            print(f"{path.name} is stale: run python -m scripts.freeze")
        wrong += bool(lines)
    return 1 if wrong else 0


def _changed_since(engine: Engine, versions: Path, sql_root: Path) -> int:
    known = known_sums(engine, versions, before="9999")
    names = [name for _, name in manifest(engine, sql_root) if name]
    changed = [name for name in names if known.get(name) != sum_of(sql_root, name)]
    for name in changed:
        print(f"sql/{name} changed after the release: python -m scripts.freeze --next NAME")
    return len(changed)


def diff(before: str, after: str, name: str) -> list[str]:
    """Lines of a unified diff from what is stored to what is made now; empty when equal."""
    sides = (text.splitlines(keepends=True) for text in (before, after))
    return list(difflib.unified_diff(*sides, fromfile=name, tofile=f"{name} (made now)"))


if __name__ == "__main__":
    sys.exit(main())
