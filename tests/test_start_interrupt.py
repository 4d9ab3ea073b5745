"""Signals before the first step runs: while modules are imported, and once a run is stored."""

import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qinglong_sql.store import open_store
from tests.shell import HOME, Done, Shell, until
from tests.site import kill_all_of

# Sends the signal when the module is looked for, as if it had come at that moment.
HOOK = """\
import os, sys, _signal as signal
class Interrupting:
    def find_spec(name, path=None, target=None):
        if name == os.environ["INTERRUPTED_AT"]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting)
"""


@pytest.fixture
def shell(sqlite_dsn: str, tmp_path: Path) -> Shell:
    shell = Shell(tmp_path, sqlite_dsn)
    shell.write("hook/sitecustomize.py", HOOK)
    shell.write("one.yaml", "package: one\nworkflows: {w: {steps: {a: {run: 'touch ran'}}}}\n")
    return shell


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("enum", ("runs",)),
        ("click", ("runs",)),
        ("qinglong_sql.cli.edge", ("edge",)),
        ("qinglong_sql.cli.run", ("run", "one.yaml")),
        ("qinglong_sql.store.sqlite", ("runs",)),
        ("qinglong_sql.cli.control", ("--help",)),
    ],
)
def test_ctrl_c_while_it_starts_is_one_word(
    shell: Shell, module: str, words: tuple[str, ...]
) -> None:
    path = f"{shell.folder / 'hook'}:{HOME}"
    done = shell.process(*words, env={"PYTHONPATH": path, "INTERRUPTED_AT": module})
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
    assert not (shell.folder / "ran").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_right_when_the_run_is_stored_cancels_it(
    shell: Shell, number: signal.Signals
) -> None:
    """It comes with the answer that the run is there, before anything listens to its end."""
    done = interrupted(shell, int(number))
    assert done.returncode == 3, (done.stdout, done.stderr)
    assert done.stdout.splitlines()[1:2] == ["cancelling (again: kill at once)"]
    assert state(shell)["status"] == "cancelled"
    assert not (shell.folder / "ran").exists()


def test_two_interrupts_before_the_first_step_say_what_becomes_of_the_run(shell: Shell) -> None:
    done = interrupted(shell, signal.SIGINT, signal.SIGINT)
    assert done.returncode == 130, (done.stdout, done.stderr)
    words = "the run is being cancelled: this command or an edge, started again, ends it"
    run = state(shell)
    assert run["cancel_requested_at_ms"]
    assert (words in done.stdout) == (run["status"] == "running")
    assert "still open" not in done.stdout
    if run["status"] == "running":
        assert shell("run", "one.yaml").returncode == 3


def interrupted(shell: Shell, *numbers: int) -> Done:
    """`run` that gets these signals when it is told that its run is stored."""
    code = (
        "import os, time\n"
        "from qinglong_sql.cli import joining\n"
        "from qinglong_sql.start import main\n"
        "start = joining.start_run\n"
        "def started(*words):\n"
        "    row = start(*words)\n"
        f"    for number in {tuple(map(int, numbers))}:\n"
        "        os.kill(os.getpid(), number)\n"
        "        time.sleep(0.2)\n"
        "    return row\n"
        "joining.start_run = started\n"
        "main()\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, "run", "one.yaml"], cwd=shell.folder, env=shell.environment(),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def state(shell: Shell) -> dict[str, Any]:
    """The only run."""
    with closing(open_store(shell.dsn)) as store:
        (row,) = store.read("run_state")
    return row


def test_trouble_in_turns_is_told_once(shell: Shell) -> None:
    """The folder of a run is removed: database and executions fail, one after the other."""
    shell.write("two.yaml", "package: two\ntasks: {t: {run: 'touch began; sleep 60'}}\n")
    home = shell.folder / "home"
    home.mkdir()
    there = Shell(shell.folder, f"sqlite:///{home}/ql.db")
    process = there.begin("run", "two.yaml", output=shell.folder / "output")
    try:
        until((shell.folder / "began").exists, process, "it runs")
        shutil.rmtree(home)
        time.sleep(5)
        output = (shell.folder / "output").read_text()
        lines = [one for one in output.splitlines() if one.startswith("trying again")]
        assert lines and len(lines) == len(set(lines)) <= 4, output
    finally:
        kill_all_of(shell.folder)
        process.wait()
