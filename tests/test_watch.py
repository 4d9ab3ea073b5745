"""`watch`: a run that somebody else drives, until it ends."""

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qinglong_sql.cli import watch
from qinglong_sql.cli.progress import Lines, said
from qinglong_sql.cli.words import Row
from tests import acting
from tests.following import Scene, staged
from tests.shell import command


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = staged(tmp_path)
    yield scene
    scene.store.close()


@pytest.mark.parametrize(("code", "exit_code", "status"), [(0, 0, "succeeded"), (7, 1, "failed")])
def test_a_run_is_watched_to_its_end_and_the_exit_code_is_the_run_s(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, code: int, exit_code: int, status: str
) -> None:
    things = [
        lambda: None,
        lambda: scene.begin("a", 2),
        lambda: scene.end("build", code=code),
        lambda: scene.end("test"),
        lambda: scene.advance(),
        *([lambda: scene.begin("b"), lambda: scene.end("ship")] if not code else []),
        lambda: scene.advance(),
    ]
    done = scene.look(monkeypatch, things, "watch", scene.run_id[:12])
    assert done.returncode == exit_code and not done.stderr
    lines = [re.sub(r"\d[\d.:dhms]*", "N", line) for line in done.stdout.splitlines()]
    assert "N  build  started" in lines and "N  test  succeeded after N" in lines
    assert lines.index("N  build  started") < lines.index("N  test  succeeded after N")
    assert re.search(rf"^{status} after .*, run {scene.run_id}$", done.stdout, re.M)
    assert ("look: qinglong-sql logs" in done.stdout) is bool(code)
    again = scene.shell("watch", scene.run_id, "--json")
    assert again.returncode == exit_code
    assert json.loads(again.stdout)["status"] == status
    assert {one["step_key"] for one in json.loads(again.stdout)["steps"]} == {
        "build", "test", "ship",
    }  # fmt: skip


def test_a_run_that_stands_still_is_explained_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "STILL_S", 0.0)

    def over() -> None:
        acting.cancel(scene.store, scene.run_id)
        acting.converge(scene.store, scene.run_id)

    things = [*[lambda: None] * 5, over]
    done = scene.look(monkeypatch, things, "watch", scene.run_id)
    assert done.returncode == 3
    assert len(re.findall(r"^build, test .*; it needs ", done.stdout, re.M)) == 1, done.stdout


def test_a_step_that_takes_its_time_is_not_explained(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "STILL_S", 0.0)

    def over() -> None:
        scene.end("build", code=1)
        scene.end("test", code=1)
        scene.advance()

    scene.begin("a", 2)
    done = scene.look(monkeypatch, [*[lambda: None] * 5, over], "watch", scene.run_id)
    assert done.returncode == 1 and "; it needs " not in done.stdout


@pytest.mark.parametrize("words", [("watch",), ("logs", "-f"), ("events", "-f")])
def test_an_interrupt_stops_the_looking_and_nothing_else(
    scene: Scene, words: tuple[str, ...]
) -> None:
    scene.begin("a", 2)
    scene.write("build", b"here\n")
    looking = subprocess.Popen(
        command(*words, scene.run_id), cwd=scene.folder, env=scene.shell.environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert looking.stdout is not None and looking.stdout.readline()
    looking.send_signal(signal.SIGINT)
    _, told = looking.communicate(timeout=10)
    assert looking.returncode == 130
    again = f"the run goes on; look again: qinglong-sql watch {scene.run_id[:12]}\n"
    assert told.decode() == (again if words == ("watch",) else "")
    assert acting.ended(scene.store, scene.run_id)[0] == "running"
    row = scene.store.read("run_state", run_id=scene.run_id)[0]
    assert row["cancel_requested_at_ms"] is None


def a_step(key: str, status: str, began: int | None = None, ended: int | None = None,
           tries: int = 1, **more: Any) -> Row:  # fmt: skip
    return {"step_key": key, "status": status, "version": more.get("version", tries), "needs": [],
            "started_at_ms": began, "finished_at_ms": ended, "ready_at_ms": 1, "due_at_ms": None,
            "result_code": None, "attempt_count": tries, **more}  # fmt: skip


def test_every_try_is_told_as_started_and_in_the_order_of_what_happened(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = Lines()

    def told(now_ms: int, *rows: Row) -> list[str]:
        view.changed({}, list(rows), now_ms)
        return [line[10:] for line in capsys.readouterr().out.splitlines()]

    before = [a_step("old", "succeeded", 100, 200), a_step("long", "running", 300)]
    assert told(60_000, *before) == ["old  succeeded after 0.1s", "long  running 59s"]
    quick = [a_step("b", "succeeded", 60_100, 60_150), a_step("a", "running", 60_200)]
    assert told(60_300, *before, *reversed(quick)) == [
        "b  started", "b  succeeded after 0.1s", "a  started",
    ]  # fmt: skip
    waits: dict[str, Any] = {"due_at_ms": 61_500, "result_code": "execution_failed", "version": 2}
    assert told(60_500, a_step("a", "retry_wait", 60_200, **waits)) == [
        "a  again in 1.0s: it ended with a failure"
    ]
    assert told(62_000, a_step("a", "timed_out", 61_900, 61_900, 2, version=4,
                               result_code="execution_timed_out")) == [
        "a  started, try 2", "a  timed out after 0.0s, try 2",
    ]  # fmt: skip
    over = a_step("c", "succeeded", tries=0, ended=62_000, result_code="taken_over")
    assert told(62_100, over) == ["c  succeeded: taken over from the run that this one retries"]


def test_a_step_waits_for_a_slot_only_after_a_while() -> None:
    assert said(a_step("a", "ready", tries=0), 1_000) == "ready"
    assert said(a_step("a", "ready", tries=0), 1_001) == "waits for a free slot"
    broken = a_step("a", "failed", 1, 2, result_code="executor_start_failed")
    assert said(broken, 9) == "failed after 0.0s: it could not be started"
