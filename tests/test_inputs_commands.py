"""Bad arguments and bad surroundings of every command: refused in words, and nothing is stored."""

import os
import subprocess
from pathlib import Path
from random import Random

import pytest

from tests import acting, hostile_commands
from tests.hostile_commands import Desk
from tests.shell import command


@pytest.fixture
def desk(tmp_path: Path, sqlite_dsn: str) -> Desk:
    return hostile_commands.desk(tmp_path, sqlite_dsn)


def test_no_command_takes_a_bad_argument_badly(desk: Desk) -> None:
    """A sample of all commands; tests.prove.inputs asks all of them."""
    every = list(hostile_commands.bad_words())
    assert len(every) > 4_500
    assert {words[0] for words in every} == set(hostile_commands.COMMANDS) - {
        "schema"
    }  # takes none
    faults = [desk.ask(words) for words in Random(4).sample(every, 180)]
    assert not any(faults), "\n".join(filter(None, faults))


@pytest.mark.parametrize("file", ["/dev/zero", "/dev/full"])
def test_an_input_file_without_end_is_refused(desk: Desk, file: str) -> None:
    done = desk.shell("start", "nightly", "etl", "--input-file", file)
    assert (done.returncode, done.stderr) == (2, f"{file}: larger than 256 KiB\n")


def test_an_argument_is_not_repeated_in_full(desk: Desk) -> None:
    for words in (["check", "x" * 100_000], ["runs", "--limit", "x" * 100_000]):
        done = desk.shell(*words)
        assert done.returncode == 2 and len(done.stderr) < 3_000
        assert "x …" in done.stderr


def test_a_command_that_stores_and_then_refuses_is_found(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check has teeth."""
    monkeypatch.setattr(
        "qinglong_sql.cli.runs.nobody_drives", lambda *_: (_ for _ in ()).throw(OSError(5, "no"))
    )
    assert "rows have changed" in desk.ask(["start", "nightly", "etl"])


@pytest.mark.parametrize("env", list(hostile_commands.environments()), ids=str)
def test_any_surroundings_will_do(desk: Desk, env: dict[str, str]) -> None:
    done = desk.shell.process("show", desk.run_id, env=env)
    assert done.returncode == 0, done.stderr
    assert "nightly" in done.stdout


def test_without_any_environment(desk: Desk) -> None:
    home = desk.shell.environment()["PYTHONPATH"]
    done = subprocess.run(
        command("runs", "--dsn", desk.shell.dsn),
        cwd=desk.shell.folder, env={"PYTHONPATH": home}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and b"nightly" in done.stdout, done.stderr


@pytest.mark.parametrize("dsn", hostile_commands.environment_dsns())
def test_a_dsn_in_the_environment_that_is_none_is_refused(desk: Desk, dsn: str) -> None:
    before = acting.everything(desk.engine)
    done = desk.shell("start", "nightly", "etl", env={"QINGLONG_DSN": dsn})
    assert done.returncode in (2, 5, 6), done.stdout
    assert done.stderr and "Traceback" not in done.stderr
    assert acting.everything(desk.engine) == before


def test_bytes_that_are_no_text_are_an_argument_too(desk: Desk) -> None:
    done = desk.shell.process("start", os.fsdecode(b"\xff\xfe"), "etl")
    assert done.returncode in (2, 5) and done.stderr
