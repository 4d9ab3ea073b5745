"""PostgreSQL's own isolationtester on `tests/isolation/*.spec`: named orders of two sessions.

A spec is given a fresh database with the schema and the words of `fixture.sql`; its golden output
holds for every version of the server. `python -m tests.isolating 15 [SPEC…]` writes it anew.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
from psycopg import conninfo

from tests import engines
from tests.around import direct
from tests.binaries import find
from tests.server import ROOT, Server, running

FOLDER = ROOT / "tests" / "isolation"
LIBRARY = "lib/pgxs/src/test/isolation/isolationtester"
SPEC_S = 60
WAY = "no isolationtester: apt-get install postgresql-client-15, which brings it"


def tester() -> Path | None:
    """The newest isolationtester here; it speaks to every server version. None without any."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/{LIBRARY}"), key=lambda p: int(p.parts[4]))
    return found[-1] if found else None


def specs() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.spec"))


def told(program: Path, dsn: str, name: str) -> str:
    """What the tester prints for a spec. Raises RuntimeError with its words when it fails."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute((FOLDER / "fixture.sql").read_bytes())
    where = conninfo.make_conninfo(**conninfo.conninfo_to_dict(direct(dsn)))
    done = subprocess.run(
        [program, where],
        stdin=(FOLDER / f"{name}.spec").open("rb"),
        capture_output=True,
        text=True,
        timeout=SPEC_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{name}.spec: {done.stdout[-2000:]}{done.stderr}")
    return done.stdout


def golden(name: str) -> Path:
    return FOLDER / "expected" / f"{name}.out"


def told_on(server: Server, program: Path, name: str) -> str:
    """The same in a database of its own on that server."""
    dsn = engines.fresh_postgres(server)
    try:
        return told(program, dsn, name)
    finally:
        engines.drop_postgres(server, dsn)


def main(words: list[str]) -> int:
    program = tester()
    if program is None or shutil.which(program) is None:
        print(WAY, file=sys.stderr)
        return 1
    chosen = next(one for one in find()[0] if one.major == int(words[0]))
    with running(chosen) as server:
        engines.postgres_template(server)
        for name in words[1:] or specs():
            golden(name).write_text(told_on(server, program, name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
