"""Ctrl-C and TERM: what runs is gone before the run is cancelled, and meanwhile is named.

Three executions: `plain` ends at TERM, `stubborn` ignores it, `deep` leaves a daemon that forked
twice and has a session of its own. Each writes to its own file as long as it lives, so the file's
time is the last sign of its life.
"""

import json
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qinglong_sql.store import Store, open_store
from tests.engines import Engine
from tests.shell import Shell, ended, until
from tests.site import alive, kill_all_of, wait

PACKAGE = """\
package: interrupted
workflows:
  w:
    steps:
      plain: {run: [./beat.sh, plain]}
      stubborn: {run: "trap '' TERM; . ./beat.sh stubborn"}
      deep: {run: "( ( setsid ./beat.sh deep >/dev/null 2>&1 ) & ); while :; do sleep 1; done"}
      after: {run: touch after, needs: [plain, stubborn, deep]}
"""
BEAT = """\
#!/bin/sh
name=${1:-stubborn}
echo $$ > pid.$name
while :; do echo beat >> life.$name; sleep 0.02; done
"""
STEPS = ("deep", "plain", "stubborn")
GRACE_MS = 1500


@pytest.fixture
def shell(engine: Engine, tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path, engine.dsn)
    shell.write("flow.yaml", PACKAGE)
    shell.write("beat.sh", BEAT, mode=0o755)
    try:
        yield shell
        shell.nothing_is_left()
    finally:
        kill_all_of(tmp_path)


@pytest.fixture
def store(shell: Shell) -> Iterator[Store]:
    store = open_store(shell.dsn)
    yield store
    assert store.read("violation") == []
    store.close()


def begun(shell: Shell, *more: str) -> subprocess.Popen[bytes]:
    """`run` with all three executions alive."""
    words = ("run", "flow.yaml", "--grace-ms", str(GRACE_MS), *more)
    process = shell.begin(*words, output=shell.folder / "output")
    until(lambda: all(beats(shell, step) for step in STEPS), process, "all three live")
    return process


def beats(shell: Shell, step: str) -> int:
    path = shell.folder / f"life.{step}"
    return path.stat().st_size if path.exists() else 0


def pids(shell: Shell) -> dict[str, int]:
    return {step: int((shell.folder / f"pid.{step}").read_text()) for step in STEPS}


def the_run(store: Store) -> str:
    return str(store.read("run_state")[0]["run_id"])


def assert_gone_before(shell: Shell, store: Store, run_id: str) -> None:
    """No execution gave a sign of life after the run was cancelled, and none gives one now."""
    end = [
        row
        for row in store.read("event_log", run_id=run_id)
        if row["entity"] == "run" and row["to_status"] == "cancelled"
    ]
    assert len(end) == 1
    for step in STEPS:
        last_ms = (shell.folder / f"life.{step}").stat().st_mtime_ns // 1_000_000
        assert last_ms <= end[0]["created_at_ms"], f"{step} lived on"
    before = {step: beats(shell, step) for step in STEPS}
    time.sleep(0.2)
    assert {step: beats(shell, step) for step in STEPS} == before
    assert not any(alive(pid) for pid in pids(shell).values())
    assert not (shell.folder / "after").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_cancels_and_waits_until_all_are_gone(
    shell: Shell, store: Store, number: signal.Signals
) -> None:
    process = begun(shell)
    run_id, running = the_run(store), pids(shell)
    process.send_signal(number)
    named: set[str] = set()
    asked = False
    while process.poll() is None:
        before = {step for step, pid in running.items() if alive(pid)}
        status = store.read("run_state", run_id=run_id)[0]["status"]
        waits = store.read("explain", run_id=run_id)
        after = {step for step, pid in running.items() if alive(pid)}
        assert status == "running" or not after, f"{status} while {after} live"
        reports = {row["step_key"] for row in waits if row["waits_for"] == "report"}
        assert before & after <= reports or not waits, f"{after} live, {reports} are named"
        named |= reports
        run = store.read("run_state", run_id=run_id)[0]
        if not asked and run["cancel_requested_at_ms"] and "stubborn" in before & after:
            asked = True
            said = shell("explain", run_id, "--json")
            told = {row["step_key"]: row for row in json.loads(said.stdout)}
            assert told["stubborn"]["waits_for"] == "report"
            assert "stops it and reports" in told["stubborn"]["resolved_by"]
            assert "after" not in told or told["after"]["waits_for"] == "intent"
        time.sleep(0.005)
    assert ended(process) == 3
    assert asked and named == set(STEPS)
    assert_gone_before(shell, store, run_id)
    output = (shell.folder / "output").read_text()
    assert "cancelling; waiting for: deep, plain, stubborn (again: kill at once)" in output
    assert "Traceback" not in output
    steps = {row["step_key"]: row["status"] for row in store.read("step_state", run_id=run_id)}
    assert steps == dict.fromkeys((*STEPS, "after"), "cancelled")


def test_a_second_interrupt_kills_at_once(shell: Shell, store: Store) -> None:
    process = begun(shell, "--grace-ms", "60000")
    run_id = the_run(store)
    process.send_signal(signal.SIGINT)
    until(lambda: "cancelling" in (shell.folder / "output").read_text(), process, "it cancels")
    time.sleep(0.3)
    assert process.poll() is None
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert ended(process) == 130
    assert time.monotonic() - began < 6
    assert not any(alive(pid) for pid in pids(shell).values())
    assert store.read("violation") == []
    if store.read("run_state", run_id=run_id)[0]["status"] == "running":
        assert shell("run", "flow.yaml").returncode == 3
    assert_gone_before(shell, store, run_id)
    assert "Traceback" not in (shell.folder / "output").read_text()


def test_two_interrupts_at_once_still_leave_the_intent(shell: Shell, store: Store) -> None:
    process = begun(shell, "--grace-ms", "60000")
    run_id = the_run(store)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert ended(process, 10) == 130
    assert store.read("run_state", run_id=run_id)[0]["cancel_reason"] == "user"
    if store.read("run_state", run_id=run_id)[0]["status"] == "running":
        assert shell("run", "flow.yaml").returncode == 3
    assert_gone_before(shell, store, run_id)


def test_a_cancellation_that_was_killed_converges_with_the_next_start(
    shell: Shell, store: Store
) -> None:
    process = begun(shell)
    run_id = the_run(store)
    process.send_signal(signal.SIGINT)
    until(
        lambda: store.read("run_state", run_id=run_id)[0]["cancel_requested_at_ms"],
        process,
        "it cancels",
    )
    process.kill()
    process.wait()
    assert store.read("run_state", run_id=run_id)[0]["status"] == "running"
    done = shell("run", "flow.yaml")
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith(f"going on with run {run_id} ")
    assert_gone_before(shell, store, run_id)


def test_cancel_from_elsewhere_ends_a_run_that_is_driven(shell: Shell, store: Store) -> None:
    process = begun(shell)
    run_id = the_run(store)
    done = shell("cancel", run_id)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        f"{run_id} cancellation requested",
        "still running, being stopped: deep, plain, stubborn",
    ]
    assert ended(process) == 3
    assert_gone_before(shell, store, run_id)


def test_ctrl_c_does_not_wait_for_what_another_run_left(sqlite_dsn: str, tmp_path: Path) -> None:
    """A worker takes over what a killed one left in its folder, and waits for it at its end."""
    shell = Shell(tmp_path, sqlite_dsn)
    lines = (
        "left: {steps: {a: {run: 'touch begun; sleep 60'}}}",
        "own: {steps: {b: {run: 'true'}}}",
    )
    shell.write("two.yaml", "package: two\nworkflows:\n  " + "\n  ".join(lines) + "\n")
    try:
        process = shell.begin("run", "two.yaml", "left", output=tmp_path / "left")
        until((tmp_path / "begun").exists, process, "it runs")
        process.kill()
        process.wait()
        process = shell.begin("run", "two.yaml", "own", output=tmp_path / "own")
        until(lambda: "still here: 1 execution" in (tmp_path / "own").read_text(), process, "a")
        process.send_signal(signal.SIGINT)
        assert ended(process, 10) == 0
    finally:
        kill_all_of(tmp_path)


def test_two_interrupts_end_it_while_the_database_answers_nothing(
    sqlite_dsn: str, tmp_path: Path
) -> None:
    """Both come while one call waits for the file, where Python would make one of them."""
    shell = Shell(tmp_path, sqlite_dsn)
    shell.write(
        "one.yaml", "package: one\nworkflows: {w: {steps: {a: {run: 'echo $$ > pid; sleep 60'}}}}\n"
    )
    process = shell.begin("run", "one.yaml", output=tmp_path / "output")
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), process, "it")
    time.sleep(0.5)
    holder = sqlite3.connect(sqlite_dsn.removeprefix("sqlite:///"), isolation_level=None)
    try:
        holder.execute("begin immediate")
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(1)
        assert ended(process, 15) == 130
        gone = int((tmp_path / "pid").read_text())
        wait(lambda: not alive(gone), "it was killed", 5)
    finally:
        holder.close()
        kill_all_of(tmp_path)


def test_a_state_folder_that_cannot_be_used_is_left_out(sqlite_dsn: str, tmp_path: Path) -> None:
    shell = Shell(tmp_path, sqlite_dsn)
    shell.write("one.yaml", "package: one\nworkflows: {w: {steps: {a: {run: 'true'}}}}\n")
    try:
        assert shell("run", "one.yaml").returncode == 0
        (lock,) = tmp_path.rglob("worker.lock")
        lock.unlink()
        lock.mkdir()
        done = shell("run", "one.yaml")
        assert done.returncode == 0 and "left out" in done.stderr
        assert [one.parent.name for one in tmp_path.rglob("worker.lock") if one.is_file()] == ["1"]
    finally:
        kill_all_of(tmp_path)
