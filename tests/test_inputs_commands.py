"""Bad arguments and bad surroundings of every command: refused in words, and nothing is stored."""

import json
import os
import shlex
import subprocess
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from qinglong_sql.limits import ACTOR_BYTES
from qinglong_sql.store import open_store
from tests import acting, hostile_commands, hostile_surroundings
from tests.engines import Engine
from tests.hostile_commands import Desk
from tests.shell import command


@pytest.fixture
def desk(tmp_path: Path, sqlite_dsn: str) -> Desk:
    return hostile_commands.desk(tmp_path, Engine("sqlite", sqlite_dsn, None))


def test_no_command_takes_a_bad_argument_badly(engine: Engine, tmp_path: Path) -> None:
    """A sample of all commands; tests.prove.inputs asks all of them."""
    desk = hostile_commands.desk(tmp_path, engine)
    every = list(hostile_commands.bad_words())
    assert len(every) > 4_500
    assert {words[0] for words in every} == set(hostile_commands.COMMANDS) - {
        "schema"
    }  # takes none
    count = 120 if engine.kind == "sqlite" else 50
    faults = [desk.ask(words) for words in Random(4).sample(every, count)]
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


def test_no_surroundings_make_a_command_lie(desk: Desk) -> None:
    """A sample of streams and variables; tests.prove.inputs has all of them for every command."""
    hostile_surroundings.made_ready(desk)
    every = list(hostile_surroundings.cases())
    assert len(every) > 500
    chosen = [one for one in every if one.name == "show" and one.env]
    full = [one for one in every if one.stream == "> /dev/full" and one.name in ("start", "logs")]
    chosen += [*full, *Random(4).sample(every, 8)]
    faults = [hostile_surroundings.fault_of(desk, one) for one in chosen]
    assert not any(faults), "\n".join(filter(None, faults))


@pytest.mark.parametrize(
    ("words", "code"),
    [("--help >/dev/full", 6), ("nocmd 2>/dev/full", 2), ("--nope >/dev/full 2>/dev/full", 2)],
)
def test_help_and_wrong_usage_where_nothing_can_be_written(
    desk: Desk, words: str, code: int
) -> None:
    line = f"{shlex.join(command())} {words}"
    done = subprocess.run(
        ["/bin/sh", "-c", line], env=desk.shell.environment(), capture_output=True, check=False
    )
    told = b"" if b"2>" in words.encode() else hostile_surroundings.FULL.encode() + b"\n"
    assert (done.returncode, done.stdout + done.stderr) == (code, told)


def test_a_user_name_of_any_kind_cancels(desk: Desk) -> None:
    """Whoever asks is for the history; what it cannot hold must not keep a run going."""
    for number, name in enumerate(
        (os.fsdecode(b"\xff"), "x" * 5_000, "\x1b[2J\n", "\U0001f600" * 99)
    ):
        start = desk.shell("start", "nightly", "etl", "--key", f"k{number}", "--json")
        run_id = json.loads(start.stdout)["run_id"]
        assert desk.shell("cancel", run_id, env={"LOGNAME": name}).returncode == 0
        with closing(open_store(desk.shell.dsn)) as store:
            (intent,) = store.read("intent_state", run_id=run_id)
        assert 1 <= len(intent["actor"].encode()) <= ACTOR_BYTES
        assert intent["actor"].isprintable()


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


@pytest.mark.parametrize("streams", ["<&- >&- 2>&-", "> /dev/full 2> /dev/full"])
def test_an_edge_that_has_nobody_to_tell_serves(desk: Desk, streams: str) -> None:
    line = f"exec {shlex.join(command('edge', '--packages', '.'))} {streams}"
    edge = subprocess.Popen(
        ["/bin/sh", "-c", line], cwd=desk.shell.folder, env=desk.shell.environment()
    )
    try:
        done = desk.shell("start", "nightly", "hello", "--wait", "--timeout", "60s")
        assert done.returncode == 0, done.stderr
        edge.terminate()
        assert edge.wait(60) == 0
    finally:
        edge.kill()
        edge.wait()
    desk.shell.nothing_is_left()
