"""`resume`: an open run that `run` no longer finds is driven to its end, by its id."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from qinglong_sql.edge_packages import Packages, publisher
from qinglong_sql.store import Store
from tests.engines import Engine
from tests.shell import Shell, ended, until
from tests.site import kill_all_of

OLD = "package: p\nworkflows: {w: {steps: {a: {run: 'echo old >> ran; exit $CODE'}}}}\n"
NEW = OLD.replace("old", "new")
LOST = """\
package: p
tasks:
  t:
    run: 'test -e first || { touch first; sleep 60; }; echo $QL_ATTEMPT >> ran'
    idempotent: true
    on_lost: retry
"""


@pytest.fixture
def shell(engine: Engine, tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path, engine.dsn, {"QINGLONG_STATE_DIR": str(tmp_path / "state")})
    try:
        yield shell
        shell.nothing_is_left()
    finally:
        kill_all_of(tmp_path)


def old_run(shell: Shell, code: int = 0) -> str:
    """An open run of a generation that is no longer the newest."""
    shell.write("p.yaml", OLD.replace("$CODE", str(code)))
    assert shell("publish", "p.yaml").returncode == 0
    run_id = str(json.loads(shell("start", "p", "w", "--json").stdout)["run_id"])
    shell.write("p.yaml", NEW.replace("$CODE", "0"))
    return run_id


def test_a_run_of_an_older_generation_is_driven_to_its_end(shell: Shell) -> None:
    run_id = old_run(shell)
    way = f"qinglong-sql resume {run_id[:12]}"
    assert way in shell("publish", "p.yaml").stderr
    assert way in shell("explain", run_id).stdout
    if not shell.dsn.startswith("sqlite"):
        assert way in " ".join(shell("status").stdout.split()), "wherever its lines end"
    done = shell("run", "p.yaml")
    assert done.returncode == 0 and way in done.stdout, "it has run its own generation alone"
    assert json.loads(shell("show", run_id, "--json").stdout)["status"] == "running"
    done = shell("resume", run_id[2:12])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"going on with run {run_id} of generation 1\n" in done.stdout
    assert "succeeded after " in done.stdout and f", run {run_id}\n" in done.stdout
    assert (shell.folder / "ran").read_text() == "new\nold\n"
    again = shell("resume", run_id)
    assert again.returncode == 0 and f"run {run_id} has ended before\n" in again.stdout
    assert (shell.folder / "ran").read_text() == "new\nold\n"


def test_the_exit_code_is_the_run_s_while_it_is_driven_and_ever_after(shell: Shell) -> None:
    run_id = old_run(shell, 7)
    for _ in range(2):
        done = shell("resume", run_id, "--json")
        assert done.returncode == 1, done.stdout + done.stderr
        told = json.loads(done.stdout)
        assert (told["status"], told["steps"][0]["status"]) == ("failed", "failed")
    assert shell("resume", run_id, "--quiet").stdout == ""
    done = shell("resume", "none")
    assert (done.returncode, done.stdout) == (5, "") and "no run begins with" in done.stderr


def test_a_killed_run_goes_on_when_its_file_was_edited(shell: Shell) -> None:
    shell.write("p.yaml", LOST)
    process = shell.begin("run", "p.yaml", "--lease-ms", "5000", output=shell.folder / "said")
    until((shell.folder / "first").exists, process, "its step runs")
    kill_all_of(shell.folder)
    process.wait()
    (run,) = json.loads(shell("runs", "--json").stdout)
    shell.write("p.yaml", LOST + "  u: {run: 'true'}\n")
    shell("publish", "p.yaml")
    done = shell("resume", run["run_id"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert (shell.folder / "ran").read_text() == "2\n"


def test_an_interrupt_cancels_it_as_it_does_with_run(shell: Shell) -> None:
    shell.write("p.yaml", LOST)
    shell("publish", "p.yaml")
    run_id = json.loads(shell("start", "p", "t", "--json").stdout)["run_id"]
    process = shell.begin("resume", run_id, output=shell.folder / "said")
    until((shell.folder / "first").exists, process, "its step runs")
    process.send_signal(signal.SIGINT)
    assert ended(process) == 3, (shell.folder / "said").read_text()
    assert shell("resume", run_id).returncode == 3


def test_a_folder_that_moves_under_open_runs_is_told(shell: Shell) -> None:
    run_id = old_run(shell)
    text = (shell.folder / "p.yaml").read_text()
    here = shell.folder / "here"
    for name in ("here", "there"):
        shell.write(f"{name}/p.yaml", text)
    words = "note: the folder of p is now {} (it was {}); runs that are open execute there too\n"
    assert words.format(here, shell.folder) in shell("publish", "here/p.yaml").stderr
    assert "folder" not in shell("publish", "here/p.yaml").stderr
    done = shell("run", "there/p.yaml")
    assert words.format(shell.folder / "there", here) in done.stdout
    assert shell("resume", run_id).returncode == 0
    assert (shell.folder / "there" / "ran").read_text() == "new\nold\n"


def test_the_edge_tells_it_as_well(store: Store, tmp_path: Path) -> None:
    said: list[str] = []
    for name in ("a", "b", "b"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "p.yaml").write_text(OLD)
        packages = Packages(
            tmp_path / name,
            publisher(store),
            lambda event, words, **more: said.append(words),
            lambda: 2**62,  # what is there has been left alone for long
        )
        packages.look()
    (words,) = [one for one in said if one.startswith("note: ")]
    assert f"is now {tmp_path / 'b'} (it was {tmp_path / 'a'});" in words
