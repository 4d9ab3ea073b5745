"""A disk that is full, and a sync that fails: told in words, nothing lost, and work goes on."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import filling
from tests.prove import CannotRun
from tests.shell import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A folder on a file system of 8 MiB, with a database in which `disk` is published."""
    try:
        with filling.small(tmp_path) as place:
            shell = Shell(place, f"sqlite:///{place}/ql.db")
            shell.write("jobs.yaml", filling.FLOWS)
            assert shell("migrate").returncode == 0
            assert shell("publish", "jobs.yaml").returncode == 0
            yield shell
    except CannotRun as error:
        pytest.skip(str(error))


def runs(shell: Shell) -> list[str]:
    done = shell("runs", "--json")
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_every_command_says_that_the_disk_is_full_and_works_when_there_is_room(
    shell: Shell,
) -> None:
    assert shell("start", "disk", "calm", "--key", "one").returncode == 0
    before = runs(shell)
    filler = filling.fill(shell.folder)
    for words in (
        ("start", "disk", "calm", "--key", "two"),
        ("publish", "jobs.yaml"),
        ("run", "jobs.yaml", "calm"),
        ("backup", shell.folder / "copy.db"),
        ("purge", "--older-than", "1s"),
    ):
        done = shell.process(*words)
        assert done.returncode == 6, (words, done)
        assert "full" in done.stderr or "No space left" in done.stderr, (words, done.stderr)
        assert str(shell.folder) in done.stderr, (words, done.stderr)
    filler.unlink()
    assert runs(shell) == before
    assert shell("start", "disk", "calm", "--key", "two").returncode == 0
    done = shell.process("run", "jobs.yaml", "calm")
    assert done.returncode == 0, done.stderr


def test_a_run_that_fills_the_disk_ends_right_when_there_is_room(shell: Shell) -> None:
    def make_room() -> None:
        time.sleep(3)
        (shell.folder / "filler").unlink()

    other = threading.Thread(target=make_room)
    other.start()
    done = shell.process("run", "jobs.yaml", "loud")
    other.join()
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("trying again")]
    assert any("full" in line or "No space left" in line for line in told), done.stdout
    assert json.loads(shell("status", "--check", "--json").stdout)["ok"]


@pytest.mark.parametrize("number", [1, 2])
def test_a_sync_that_fails_is_told_and_loses_nothing(shell: Shell, number: int) -> None:
    assert shell("start", "disk", "calm", "--key", "one").returncode == 0
    try:
        done = filling.failing_sync(shell, number, "start", "disk", "calm", "--key", "two")
    except CannotRun as error:
        pytest.skip(str(error))
    assert done.returncode == 6, done
    assert "Traceback" not in done.stderr
    assert "disk I/O error" in done.stderr and "ql.db" in done.stderr, done.stderr
    assert len(json.loads(shell("runs", "--json").stdout)) >= 1
    assert shell("start", "disk", "calm", "--key", "two").returncode == 0
    assert shell("start", "disk", "calm", "--key", "two").returncode == 0
