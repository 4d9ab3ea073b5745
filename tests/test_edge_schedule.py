"""An edge fires triggers: through a kill, each second once; and it needs the calendar only then."""

import json
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qinglong_sql.door import ask
from tests.shell import Shell, ended
from tests.site import wait

SECONDS = """\
package: p
tasks:
  hello: {run: "true"}
  slow: {run: "sleep 2.5"}
triggers:
  tick: {cron: "* * * * * *", tz: UTC, task: hello}
  night: {cron: "30 2 * * *", tz: Europe/Berlin, task: hello}
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    one = Shell(tmp_path, "sqlite:///q.db")
    yield one
    one.nothing_is_left()


def scheduled(shell: Shell) -> list[int]:
    with closing(sqlite3.connect(shell.folder / "q.db", timeout=10)) as connection:
        text = "select scheduled_at_ms from run order by 1"
        try:
            return [at_ms for (at_ms,) in connection.execute(text)]
        except sqlite3.OperationalError:
            return []


def test_each_second_fires_once_through_a_kill(shell: Shell) -> None:
    shell.write("packages/p.yaml", SECONDS)
    words = ("edge", "--packages", "packages")
    first = shell.begin(*words, output=shell.folder / "log1")
    wait(lambda: len(scheduled(shell)) >= 3, "it fires")
    first.kill()
    ended(first)
    before = scheduled(shell)
    time.sleep(2.5)  # what is missed is one run
    second = shell.begin(*words, output=shell.folder / "log2")
    try:
        wait(lambda: len(scheduled(shell)) >= len(before) + 3, "it fires again")
        modules = set((ask(shell.folder / "q.db.worker", "modules") or {})["modules"])
        told = shell("schedules", "p").stdout
        assert shell("trigger", "pause", "p", "tick").returncode == 0
        stopped = len(scheduled(shell))
        time.sleep(1.5)
        assert len(scheduled(shell)) <= stopped + 1  # one may have been under way
    finally:
        second.terminate()
        code = ended(second)
    assert code == 0, (shell.folder / "log2").read_text()
    found = scheduled(shell)
    assert len(found) == len(set(found)) and all(at_ms % 1000 == 0 for at_ms in found)
    assert set(before) < set(found) and "cronsim" in modules
    assert re.search(r"^p/tick .* ru\w+ (succeeded|running)$", told, re.MULTILINE), told
    with closing(sqlite3.connect(shell.folder / "q.db")) as connection:
        assert connection.execute("select * from violation").fetchall() == []


def test_run_fires_nothing(shell: Shell) -> None:
    shell.write("p.yaml", SECONDS)
    assert shell("run", "p.yaml", "slow").returncode == 0
    assert scheduled(shell) == [None]
    assert "p/tick" in shell("schedules", "p").stdout


def test_what_raises_is_told_and_keeps_nobody_from_going_on(shell: Shell) -> None:
    shell.write("packages/p.yaml", SECONDS)
    words = ("edge", "--packages", "packages", "--status-file", "status.json")
    log = shell.folder / "log"
    edge = shell.begin(*words, output=log)
    try:
        wait(lambda: scheduled(shell), "it fires")
        with closing(sqlite3.connect(shell.folder / "q.db", timeout=10)) as connection:
            connection.executescript("""
              create trigger poison before insert on task_attempt
              when (select r.target_key from run as r where r.run_id = new.run_id) = 'slow'
              begin select raise(abort, 'poisoned'); end;
            """)
        begun = shell("start", "p", "slow", "--json")
        run_id = json.loads(begun.stdout)["run_id"]
        before = len(scheduled(shell))
        wait(lambda: f"run {run_id}, task_admission: " in log.read_text(), "it is told")
        wait(lambda: len(scheduled(shell)) > before + 1, "the others go on")
        said = ask(shell.folder / "q.db.worker", "status") or {}
    finally:
        edge.terminate()
        ended(edge)
    assert f"qinglong-sql explain {run_id}" in log.read_text()
    assert said["faults_met"] >= 1 and said["last_error"] is None
