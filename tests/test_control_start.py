"""A stop that comes while `control` or `edge` starts, at each thing that it opens, makes or says.

Before the first of them nothing is to be ended, and TERM is the end by the signal; from there on it
is the stop that is written: exit 0, `stopped`, and nothing left half way.
"""

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from qinglong_sql.store import open_store
from tests.controls import HOME, login_of

# Tells each moment on a descriptor, and sends the signal at the one whose number AT gives.
CHILD = """\
import os, sys
from qinglong_sql import control_log, edge_log
from qinglong_sql.start import main
at, number, told = (int(os.environ[name]) for name in ("AT", "NUMBER", "TOLD"))
OPENED = ("socket.bind", "sqlite3.connect", "os.mkdir", "fcntl.flock")
count = 0
def met(name):
    global count
    os.write(told, f"{name}\\n".encode())
    count += 1
    if count == at:
        os.kill(os.getpid(), number)
def heard(event, words):
    if event in OPENED:
        met(event)
    elif event == "import" and words[0] in ("qinglong_sql.control_parts", "qinglong_sql.edge"):
        met(event)
sys.addaudithook(heard)
for log in (control_log.Log, edge_log.Log):
    def say(self, *words, say=log.say, **more):
        say(self, *words, **more)
        met("said " + (more.get("part") or words[-1].split()[0]))
    log.say = say
main()
"""
WITHIN_S = 60


class Starts:
    """Starts the same command again and again, each time in an empty folder."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder, self.words, self.count = folder, words, 0

    def until(self, at: int, number: int) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        """Start it, with the signal at that moment; how it ended, and its moments until then."""
        self.count += 1
        self.home = self.folder / str(self.count)
        self.home.mkdir()
        read, write = os.pipe()
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("QINGLONG_", "PG"))}
        told = {"AT": str(at), "NUMBER": str(number), "TOLD": str(write), "PYTHONPATH": str(HOME)}
        try:
            done = subprocess.run(
                [sys.executable, "-c", CHILD, *self.words], env=kept | told, cwd=self.home,
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WITHIN_S,
                pass_fds=[write], check=False,
            )  # fmt: skip
        finally:
            os.close(write)
        with os.fdopen(read) as source:
            return done, source.read().split("\n")[:-1]

    def each(self, last: str, number: int) -> list[str]:
        """The signal at each moment in turn, up to that one; the moments."""
        at, moments = 0, [""]
        while moments[-1] != last:
            at += 1
            done, seen = self.until(at, number)
            moments = seen[:at]
            assert len(moments) == at, f"it never came to {last}: {seen}"
            if moments == ["import"]:
                dies = (-number, "") if number == signal.SIGTERM else (130, "interrupted\n")
                assert (done.returncode, done.stderr) == dies, done
                assert not list(self.home.iterdir()), "nothing was made"
            else:
                assert done.returncode == 0, (moments, done)
                assert done.stderr.endswith(" stopped\n"), (moments, done)
                assert "Traceback" not in done.stderr and "Exception" not in done.stderr, done
        return moments


def test_control_on_postgres_is_stopped_at_each_moment_of_its_start(
    postgres_dsn: str, tmp_path: Path
) -> None:
    with login_of(postgres_dsn) as login:
        starts = Starts(tmp_path, "control", "--dsn", login, "--listen", "127.0.0.1:0")
        moments = starts.each("said ready", signal.SIGTERM)
    parts = ["listener", "pool", "readiness", "recovery", "scheduler", "cancellation", "ready"]
    assert moments == ["import", "said control", "socket.bind", *(f"said {one}" for one in parts)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda one: one.name)
def test_edge_is_stopped_at_each_moment_of_its_start(number: int, tmp_path: Path) -> None:
    starts = Starts(tmp_path, "edge", "--dsn", "sqlite:///own/ql.db")
    moments = starts.each("said edge", number)
    assert moments[0] == "import" and "sqlite3.connect" in moments and "os.mkdir" in moments
    for home in sorted(tmp_path.iterdir(), key=lambda path: int(path.name))[1:]:
        with closing(open_store(f"sqlite:///{home}/own/ql.db")) as store:
            assert store.read("run_state") == [], "a whole database of the newest revision"
