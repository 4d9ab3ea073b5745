"""`attempt declare-stopped`: the end of what no worker can vouch for, on both engines."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import Engine
from tests.shell import Shell, until
from tests.site import kill_all_of

PACKAGE = """\
package: held
workflows:
  w:
    steps:
      h: {run: "echo x >> begun; test $QL_TRY = 2 || sleep 60", on_lost: hold}
"""


@pytest.fixture
def shell(engine: Engine, tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path, engine.dsn)
    shell.write("jobs.yaml", PACKAGE)
    try:
        yield shell
        shell.nothing_is_left()
    finally:
        kill_all_of(tmp_path)


def held(shell: Shell) -> str:
    """The one attempt of a run whose processes are all gone, the step's with them."""
    process = shell.begin("run", "jobs.yaml", "--lease-ms", "5000", output=shell.folder / "output")
    until((shell.folder / "begun").exists, process, "it runs")
    os.kill(process.pid, signal.SIGSTOP)  # nobody reports what is killed next
    kill_all_of(shell.folder)
    process.wait()
    (run,) = json.loads(shell("runs", "--json").stdout)
    (attempt,) = json.loads(shell("show", run["run_id"], "--json").stdout)["attempts"]
    return str(attempt["attempt_id"])


@pytest.mark.parametrize(
    ("more", "step", "code"),
    [((), "failed", 1), (("--then", "fail"), "failed", 1), (("--then", "retry"), "retry_wait", 0)],
)
def test_a_held_step_goes_on_when_it_is_declared_stopped(
    shell: Shell, more: tuple[str, ...], step: str, code: int
) -> None:
    attempt_id = held(shell)
    run_id = attempt_id.rpartition("-")[0]
    short = f"{run_id[:12]}-{attempt_id.rpartition('-')[2]}"
    assert f"declare-stopped {short}" in shell("explain", run_id).stdout
    words = ("attempt", "declare-stopped", f"{run_id[:9]}-1", "--reason", "power cut", *more)
    done = shell(*words, env={"LOGNAME": "ann"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{attempt_id} declared stopped: it is lost",
        f"step h is {step}; an edge, or `run` with the same file, goes on",
    ]
    told = json.loads(shell(*words, "--json", env={"LOGNAME": "ann"}).stdout)
    assert (told["outcome"], told["status"], told["step_status"]) == ("applied", "lost", step)
    said = "declared stopped by ann: power cut"
    events = shell("events", run_id, env={"COLUMNS": "140"}).stdout
    assert f"workflow.task_attempt.lost          h #1                      {said}" in events
    assert "declared h #1 stopped by ann: power cut" in (show := shell("show", run_id)).stdout
    assert said in show.stdout and "fell silent" not in show.stdout
    assert said in (why := shell("explain", run_id)).stdout or step == "failed", why.stdout
    assert "fell silent" not in why.stdout
    (one,) = json.loads(shell("show", run_id, "--json").stdout)["attempts"]
    assert (one["declared"]["actor"], one["declared"]["reason"]) == ("ann", "power cut")
    done = shell("declare-stopped", attempt_id, "--reason", "other")
    assert done.returncode == 5 and "is lost; only what has started" in done.stderr
    done = shell("run", "jobs.yaml")
    assert done.returncode == code and f"going on with run {run_id}" in done.stdout, done.stdout
    assert said in done.stdout or not code
    assert (shell.folder / "begun").read_text() == "x\n" * (2 - code)
    assert json.loads(shell("doctor", "--json").stdout)["violations"] == []


def test_what_cannot_be_declared_stopped_is_refused(shell: Shell) -> None:
    shell.write("quick.yaml", PACKAGE.replace("sleep 60", "true"))
    assert shell("run", "quick.yaml").returncode == 0
    (run,) = json.loads(shell("runs", "--json").stdout)
    for attempt, said in (
        (f"{run['run_id']}-1", "-1 is succeeded; only what has started and not ended"),
        (run["run_id"][:9], "-1 is succeeded"),
        (f"{run['run_id']}-2", "no attempt begins with"),
        ("ruffff-1", "no run begins with 'ruffff'"),
        ("no thing", "'no thing' is not the id of an attempt"),
    ):
        done = shell("attempt", "declare-stopped", attempt, "--reason", "gone")
        assert done.returncode == 5 and said in done.stderr, done.stderr
    done = shell("declare-stopped", run["run_id"], "--reason", "")
    assert done.returncode == 5 and "a reason" in done.stderr
    assert shell("declare-stopped", run["run_id"]).returncode == 2


def test_what_a_worker_of_this_machine_holds_is_not_declared_stopped(shell: Shell) -> None:
    process = shell.begin("run", "jobs.yaml", output=shell.folder / "output")
    until((shell.folder / "begun").exists, process, "it runs")
    (run,) = json.loads(shell("runs", "--json").stdout)
    attempt = f"{run['run_id'][:12]}-1"
    words = ("attempt", "declare-stopped", attempt, "--reason", "no idea", "--then", "fail")
    done = shell(*words)
    assert done.returncode == 5 and "lives on this machine, and its lease runs until" in done.stderr
    assert f"`qinglong-sql cancel {run['run_id'][:12]}` stops it" in done.stderr
    assert shell("runs", "--json").stdout.count('"running"') == 1 and process.poll() is None
    assert shell(*words, "--force", env={"LOGNAME": "ann"}).returncode == 0
    assert process.wait(60) == 1
    assert "declared stopped by ann: no idea" in (shell.folder / "output").read_text()
