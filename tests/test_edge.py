"""The edge as people have it: it serves, is idle, is stopped and killed, and comes back."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qinglong_sql.door import ask
from tests.shell import Shell, ended
from tests.site import alive, wait

PACKAGE = """
package: p
tasks:
  quick: {{run: "echo $$ > quick.pid; true"}}
  slow: {{run: "echo $$ > slow.pid; exec sleep {slow}"}}
  other: {{run: "true", queue: far}}
workflows:
  w: {{steps: {{a: {{task: quick}}, b: {{task: other, needs: [a]}}}}}}
"""


class Site:
    """A folder with packages, an edge beside them, and commands that speak to it."""

    def __init__(self, folder: Path, profile: str) -> None:
        self.shell = Shell(folder, "sqlite:///q.db")
        self.folder = folder
        self.state = folder / "q.db.worker"
        self.profile = profile
        self.log = folder / "log"
        self.edges: list[subprocess.Popen[bytes]] = []
        self.write(slow=60)

    def write(self, slow: float) -> None:
        path = self.shell.write("packages/p.yaml", PACKAGE.format(slow=slow))
        os.utime(path, (1, 1))

    def begin(self, *more: str) -> subprocess.Popen[bytes]:
        one = self.shell.begin(
            "edge", "--packages", "packages", "--profile", self.profile, "--lease-ms", "5000",
            *more, output=self.log,
        )  # fmt: skip
        self.edges.append(one)
        wait(lambda: one.poll() is not None or self.status().get("pid") == one.pid, "it answers")
        assert one.poll() is None, self.log.read_text()
        wait(self.publish_seen, "its files are looked at")
        return one

    def publish_seen(self) -> bool:
        packages = self.status()["packages"]
        return packages is None or bool(packages["files"])

    def status(self) -> dict[str, Any]:
        return ask(self.state, "status", 2.0) or {}

    def wake_until(self, true: Callable[[dict[str, Any]], object]) -> None:
        """Until this is so of the one package file."""

        def looked() -> object:
            ask(self.state, "wake")
            return true(self.status()["packages"]["files"][0])

        wait(looked, "the file is looked at")

    def start(self, target: str) -> str:
        done = self.shell("start", "p", target, "--json")
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["run_id"])

    def run(self, run_id: str) -> dict[str, Any]:
        done = self.shell("show", run_id, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def ends(self, run_id: str) -> str:
        wait(lambda: self.run(run_id)["status"] != "running", f"{run_id} ends")
        return str(self.run(run_id)["status"])

    def pid(self, name: str) -> int:
        path = self.folder / "packages" / f"{name}.pid"
        wait(lambda: path.exists() and path.read_text().strip(), f"{name} runs")
        return int(path.read_text())

    def close(self) -> None:
        for one in self.edges:
            if one.poll() is None:
                one.kill()
                one.wait()


@pytest.fixture(params=["edge", "standalone"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    yield from opened(tmp_path, request.param)


@pytest.fixture
def one_site(tmp_path: Path) -> Iterator[Site]:
    """For what the profile does not change."""
    yield from opened(tmp_path, "standalone")


def opened(folder: Path, profile: str) -> Iterator[Site]:
    one = Site(folder, profile)
    try:
        yield one
    finally:
        one.close()
        one.shell.nothing_is_left()
    assert not list(one.state.glob("edge/exec/*")), "execution folders are left"
    assert not (one.state / "edge.sock").exists() or one.edges[-1].returncode < 0


def stopped(process: subprocess.Popen[bytes], within_s: float) -> int:
    """TERM, and its exit code, which comes in time."""
    begun = time.monotonic()
    process.terminate()
    code = ended(process)
    took = time.monotonic() - begun
    assert took < within_s, f"it took {took:.1f}s"
    return code


# -- serving


def test_it_publishes_a_folder_drives_runs_and_is_stopped(site: Site) -> None:
    process = site.begin("--status-file", "status.json")
    run_id = site.start("w")
    assert site.ends(run_id) == "succeeded"
    status = site.status()
    wait(lambda: site.status()["runs_ended"] == 1, "the end is told")
    assert (status["pid"], status["profile"], status["state"]) == (
        process.pid, site.profile, "serving",
    )  # fmt: skip
    assert status["queues"] == ["default", "far"]
    assert [one["generation"] for one in status["packages"]["files"]] == [1]
    with closing(sqlite3.connect(site.folder / "q.db")) as file:
        wal = file.execute("pragma journal_mode").fetchone() == ("wal",)
    assert wal is (site.profile == "standalone"), "commands leave the journal as it is"
    assert stopped(process, 1.5) == 0
    words = [line.partition(" ")[2].partition(" ")[2] for line in site.log.read_text().splitlines()]
    assert words[0].startswith("edge ")
    assert words[1:4] == [
        "published p generation 1 (p.yaml)",
        f"run {run_id} p/w started",
        words[3],
    ]
    assert words[3].startswith(f"run {run_id} p/w succeeded after ")
    assert words[4:] == ["stopped"]
    kept = json.loads((site.folder / "status.json").read_text())
    assert (kept["state"], kept["runs_ended"]) == ("stopped", 1)
    assert site.status() == {}


def test_only_one_and_a_run_beside_it(one_site: Site) -> None:
    process = one_site.begin()
    second = one_site.shell.process("edge")
    assert second.returncode == 6
    assert second.stderr.strip() == (
        f"not ready: QL503 an edge already runs on this database as pid {process.pid}"
    )
    done = one_site.shell("run", "packages/p.yaml", "w")
    assert done.returncode == 0, done.stderr
    assert stopped(process, 2) == 0


def test_an_edge_that_is_stopped_is_told_and_fails_a_check(one_site: Site) -> None:
    process = one_site.begin()
    process.send_signal(signal.SIGSTOP)
    try:
        done = one_site.shell("status", "--check")
        assert done.returncode == 1 and "all is well" not in done.stdout
        words = f"an edge (pid {process.pid}) that does not answer (it is stopped)"
        assert f"edge      {words}" in done.stdout
        assert f"type:  kill -CONT {process.pid}" in done.stdout
        told = one_site.shell("start", "p", "w")
        assert told.returncode == 0 and told.stderr.strip() == f"this database has {words}"
    finally:
        process.send_signal(signal.SIGCONT)
    assert one_site.ends(told.stdout.split()[0]) == "succeeded"
    done = one_site.shell("status", "--check")
    assert done.returncode == 0 and f"serving, pid {process.pid}" in done.stdout
    assert stopped(process, 2) == 0


def test_what_others_published_is_served_whatever_its_queue(one_site: Site) -> None:
    process = one_site.begin("--log-format", "json")
    path = one_site.shell.write("x.yaml", "package: x\ntasks: {t: {run: 'true', queue: rare}}\n")
    assert one_site.shell("publish", str(path)).returncode == 0
    done = one_site.shell("start", "x", "t", "--json")
    assert one_site.ends(json.loads(done.stdout)["run_id"]) == "succeeded"
    assert "rare" in one_site.status()["queues"]
    assert stopped(process, 2) == 0
    events = [json.loads(line) for line in one_site.log.read_text().splitlines()]
    assert [one["event"] for one in events] == ["begin", "published", "started", "ended", "end"]
    assert events[3]["status"] == "succeeded"


def test_a_changed_file_is_published_and_a_bad_one_is_not(one_site: Site) -> None:
    process = one_site.begin("--quiet")
    path = one_site.folder / "packages" / "p.yaml"
    path.write_text(path.read_text().replace("task: other", "task: nothing"))
    os.utime(path, (2, 2))
    one_site.wake_until(lambda file: file["faults"])
    assert one_site.ends(one_site.start("w")) == "succeeded", "the old generation stays"
    one_site.write(slow=61)
    one_site.wake_until(lambda file: file["generation"] == 2)
    assert stopped(process, 2) == 0
    log = one_site.log.read_text().splitlines()
    assert log and all("p.yaml:8:" in line for line in log), "quiet tells faults alone"


# -- stopping


def test_term_waits_for_what_ends_in_time(one_site: Site) -> None:
    one_site.write(slow=0.5)
    process = one_site.begin("--drain", "5s")
    run_id = one_site.start("slow")
    one_site.pid("slow")
    assert stopped(process, 3) == 0
    assert one_site.run(run_id)["status"] == "succeeded"
    assert "1 execution may take 5s to end" in one_site.log.read_text()


@pytest.mark.parametrize("how", ["term", "kill"])
def test_what_outlives_an_edge_is_taken_over(one_site: Site, how: str) -> None:
    one_site.write(slow=2)
    first = one_site.begin("--drain", "200ms")
    run_id = one_site.start("slow")
    pid = one_site.pid("slow")
    if how == "term":
        assert stopped(first, 2) == 0
        assert "1 execution may go on for 5s" in one_site.log.read_text()
    else:
        first.kill()
        first.wait()
    assert alive(pid), "it goes on"
    second = one_site.begin()
    assert one_site.ends(run_id) == "succeeded"
    assert [one["status"] for one in one_site.run(run_id)["attempts"]] == ["succeeded"]
    assert stopped(second, 2) == 0


def test_what_a_killed_run_left_is_taken_over_where_it_is(one_site: Site) -> None:
    one_site.write(slow=2)
    words = ("run", "packages/p.yaml", "slow", "--lease-ms", "5000")
    first = one_site.shell.begin(*words, output=one_site.folder / "told")
    pid = one_site.pid("slow")
    first.kill()
    first.wait()
    assert alive(pid), "it goes on"
    edge = one_site.begin()
    (run,) = json.loads(one_site.shell("runs", "--json").stdout)
    assert one_site.ends(run["run_id"]) == "succeeded"
    assert [one["status"] for one in one_site.run(run["run_id"])["attempts"]] == ["succeeded"]
    wait(lambda: not list(one_site.state.glob("0/exec/*")), "its folder is empty")

    (one_site.folder / "packages" / "slow.pid").unlink()
    one_site.write(slow=60)
    second = one_site.shell.begin(*words, output=one_site.folder / "told")
    pid = one_site.pid("slow")
    second.kill()
    second.wait()
    (run, _) = json.loads(one_site.shell("runs", "--json").stdout)
    assert one_site.shell("cancel", run["run_id"]).returncode == 0
    assert one_site.ends(run["run_id"]) == "cancelled"
    assert not alive(pid), "it was stopped"
    assert stopped(edge, 2) == 0


def test_a_second_term_kills_what_runs(one_site: Site) -> None:
    process = one_site.begin("--drain", "1h")
    run_id = one_site.start("slow")
    pid = one_site.pid("slow")
    process.terminate()
    wait(lambda: one_site.status()["state"] == "draining", "it drains")
    assert alive(pid)
    assert stopped(process, 3) == 130
    assert not alive(pid)
    run = one_site.run(run_id)
    assert (run["status"], run["attempts"][0]["result_code"]) == ("failed", "execution_stopped")


def test_a_database_that_was_replaced_is_left(one_site: Site) -> None:
    process = one_site.begin()
    (one_site.folder / "q.db").rename(one_site.folder / "old.db")
    ask(one_site.state, "wake")
    assert ended(process) == 6
    assert "No such file or directory; it was there before" in one_site.log.read_text()


def test_a_folder_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    shell = Shell(tmp_path, "sqlite:///e.db")
    done = shell("edge", "--packages", "nofolder")
    assert (done.returncode, done.stderr) == (2, "nofolder: no such folder\n")
    assert list(tmp_path.iterdir()) == [], "no database is made"


def test_postgresql_is_refused_with_words(one_site: Site) -> None:
    done = one_site.shell.process("edge", "--dsn", "postgresql://u:secret@h/d")
    assert done.returncode == 5
    assert "on PostgreSQL `qinglong-sql run FILE` drives runs" in done.stderr
    assert "secret" not in done.stderr


# -- idle

IDLE_PROGRAM = """
import sys
from dataclasses import replace
from pathlib import Path
from qinglong_sql import edge_setting
edge_setting.SETTINGS = {k: replace(one, idle_ms=100) for k, one in edge_setting.SETTINGS.items()}
from qinglong_sql.cli.edge import edge as command
sys.argv[0] = "qinglong-sql edge"
command(sys.argv[1:])
"""


def test_an_idle_edge_wakes_once_a_cadence_and_writes_nothing(site: Site) -> None:
    argv = [sys.executable, "-c", IDLE_PROGRAM, "--packages", "packages", "--profile", site.profile,
            "--status-file", "status.json"]  # fmt: skip
    with site.log.open("wb") as log:
        process = subprocess.Popen(
            argv, cwd=site.folder, env=site.shell.environment(), stdout=log, stderr=log
        )
    site.edges.append(process)
    wait(lambda: site.status().get("pid") == process.pid, "it answers")
    wait(site.publish_seen, "it publishes")
    assert site.ends(site.start("w")) == "succeeded"
    wait(lambda: not list(site.state.glob("edge/exec/*")), "its folders are gone")
    wait(lambda: wakes(process.pid, 0.5) <= 6, "it has backed off")
    before, files = counts(process.pid), stamps(site.folder)
    time.sleep(1)
    after = counts(process.pid)
    assert after["voluntary_ctxt_switches"] - before["voluntary_ctxt_switches"] <= 1 / 0.1 + 1
    assert {name: after[name] - before[name] for name in ("wchar", "syscw", "write_bytes")} == {
        "wchar": 0, "syscw": 0, "write_bytes": 0,
    }  # fmt: skip
    assert stamps(site.folder) == files
    assert stopped(process, 1) == 0


def wakes(pid: int, within_s: float) -> int:
    before = counts(pid)
    time.sleep(within_s)
    return counts(pid)["voluntary_ctxt_switches"] - before["voluntary_ctxt_switches"]


def counts(pid: int) -> dict[str, int]:
    lines = [*Path(f"/proc/{pid}/status").read_text().splitlines(),
             *Path(f"/proc/{pid}/io").read_text().splitlines()]  # fmt: skip
    pairs = (line.split(":", 1) for line in lines)
    return {name: int(text) for name, text in pairs if text.strip().isdigit()}


def stamps(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
