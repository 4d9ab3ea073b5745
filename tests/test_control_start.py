"""A stop that comes while `control` or `edge` starts, at each thing that it opens, makes or says.

Before the first of them nothing is to be ended, and TERM is the end by the signal; from there on it
is the stop that is written: exit 0, `stopped`, and nothing left half way. So it is to the very end.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from qinglong_sql.store import open_store
from tests.controls import HOME, Process, login_of
from tests.site import wait

# Tells each moment on a descriptor, and sends TERM at the one whose number AT gives.
CHILD = """\
import os, signal, sys
from qinglong_sql import control_log, edge_log
from qinglong_sql.start import main
at, told = int(os.environ["AT"]), int(os.environ["TOLD"])
OPENED = ("socket.bind", "sqlite3.connect", "os.mkdir", "fcntl.flock")
count = 0
def met(name):
    global count
    os.write(told, f"{name}\\n".encode())
    count += 1
    if count == at:
        os.kill(os.getpid(), signal.SIGTERM)
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

    def until(self, at: int) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        """Start it, with TERM at that moment; how it ended, and its moments until then."""
        self.count += 1
        self.home = self.folder / str(self.count)
        self.home.mkdir()
        read, write = os.pipe()
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("QINGLONG_", "PG"))}
        told = {"AT": str(at), "TOLD": str(write), "PYTHONPATH": str(HOME)}
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

    def each(self, last: str) -> list[str]:
        """TERM at each moment in turn, up to that one; the moments."""
        at, moments = 0, [""]
        while moments[-1] != last:
            at += 1
            done, seen = self.until(at)
            moments = seen[:at]
            assert len(moments) == at, f"it never came to {last}: {seen}"
            if moments == ["import"]:
                assert (done.returncode, done.stderr) == (-signal.SIGTERM, ""), done
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
        moments = starts.each("said ready")
    parts = ["listener", "pool", "readiness", "recovery", "scheduler", "cancellation", "ready"]
    assert moments == ["import", "said control", "socket.bind", *(f"said {one}" for one in parts)]


def test_edge_is_stopped_at_each_moment_of_its_start(tmp_path: Path) -> None:
    starts = Starts(tmp_path, "edge", "--dsn", "sqlite:///own/ql.db")
    moments = starts.each("said edge")
    assert moments[0] == "import" and "sqlite3.connect" in moments and "os.mkdir" in moments
    for home in sorted(tmp_path.iterdir(), key=lambda path: int(path.name))[1:]:
        with closing(open_store(f"sqlite:///{home}/own/ql.db")) as store:
            assert store.read("run_state") == [], "a whole database of the newest revision"


def test_who_asks_again_and_again_gets_an_exit_code_of_ours(
    postgres_dsn: str, tmp_path: Path
) -> None:
    """Also while the interpreter ends, after all has been stopped."""
    with login_of(postgres_dsn) as login, closing(Process(login, tmp_path)) as one:
        code, lines = impatient(one.ready().child), one.lines
        assert code == 130 or (code == 0 and lines()[-1]["message"] == "stopped"), one.text()
    log = tmp_path / "edge.log"
    with log.open("wb") as sink:
        child = subprocess.Popen(
            [sys.executable, "-m", "qinglong_sql", "edge", "--dsn", "sqlite:///own/ql.db"],
            env=os.environ | {"PYTHONPATH": str(HOME)}, cwd=tmp_path, stdin=subprocess.DEVNULL,
            stdout=sink, stderr=sink,
        )  # fmt: skip
    try:
        wait(lambda: log.stat().st_size > 0, "it serves")
        assert impatient(child) in (0, 130), log.read_text()
    finally:
        child.kill()
        child.wait()


def impatient(child: subprocess.Popen[bytes]) -> int:
    """Send TERM every 10 ms until it has ended; its exit code."""
    end = time.monotonic() + WITHIN_S
    while time.monotonic() < end and child.poll() is None:
        child.send_signal(signal.SIGTERM)
        time.sleep(0.01)
    return child.wait(1)
