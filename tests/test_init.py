"""`init` writes a first package file that checks, runs, and shows what there is."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from qinglong_sql.cli.init import TEMPLATE, key_of
from qinglong_sql.limits import KEY_PATTERN
from qinglong_sql.package import load_package
from tests.shell import Shell
from tests.site import kill_all_of


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    folder = tmp_path / "My jobs!"
    folder.mkdir()
    shell = Shell(folder, f"sqlite:///{tmp_path}/qinglong.db")
    try:
        yield shell
        shell.nothing_is_left()
    finally:
        kill_all_of(folder)


def test_the_file_checks_and_runs_at_once_and_says_what_is_next(shell: Shell) -> None:
    done = shell("init")
    assert done.returncode == 0
    assert done.stdout == (
        "wrote jobs.yaml, package My-jobs\n"
        "next: qinglong-sql check jobs.yaml, then qinglong-sql run jobs.yaml\n"
    )
    done = shell("check", "jobs.yaml")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
    done = shell("run", "jobs.yaml", "--json")
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(shell("runs", "--json").stdout)
    assert (run["status"], run["package_key"]) == ("succeeded", "My-jobs")
    said = shell("logs", run["run_id"], "greet").stdout
    assert said == f"hello from {os.uname().nodename}\n"
    assert '"count":{"lines":3}' in shell("logs", run["run_id"], "report").stdout


def test_the_file_is_short_and_shows_what_there_is(shell: Shell) -> None:
    shell("init")
    text = (shell.folder / "jobs.yaml").read_text()
    assert len(text.splitlines()) < 60
    assert max(map(len, text.splitlines())) <= 100
    for word in ("needs:", "retry:", "timeout:", "env:", "{file:", "triggers:", "defaults:", "# "):
        assert word in text
    uncommented = re.sub(r"(?m)^# (triggers:|  every-night:)", r"\1", text)
    uncommented = uncommented.replace("# env: {TOKEN", "env: {TOKEN")
    assert uncommented != text
    path = shell.write("all.yaml", uncommented)
    model = load_package(path).model
    assert model["triggers"]["every-night"]["target"] == "main"
    assert model["tasks"]["greet"]["env"]["TOKEN"] == {"file": "/run/secrets/token"}


def test_a_file_that_is_there_is_left_alone_unless_it_is_forced(shell: Shell) -> None:
    file = shell.write("jobs.yaml", "mine")
    done = shell("init")
    assert done.returncode == 5 and "--force" in done.stderr and not done.stdout
    assert file.read_text() == "mine"
    assert shell("init", "--force", "--package", "other").returncode == 0
    assert load_package(file).key == "other"


def test_the_folder_must_be_there_and_the_file_be_none(shell: Shell) -> None:
    done = shell("init", "gone/jobs.yaml")
    assert done.returncode == 5 and "there is no folder gone" in done.stderr
    assert shell("init", ".").returncode == 2
    (shell.folder / "sub").mkdir()
    done = shell("init", "sub/a b.yaml", "--json")
    assert json.loads(done.stdout) == {"file": "sub/a b.yaml", "package": "sub"}
    assert "qinglong-sql run 'sub/a b.yaml'" in (shell.folder / "sub/a b.yaml").read_text()
    assert not (shell.folder / "gone").exists()


@pytest.mark.parametrize("key", ["a b", "", "取数", "-x", "x" * 64])
def test_a_package_key_that_is_none_is_refused(shell: Shell, key: str) -> None:
    done = shell("init", "--package", key)
    assert done.returncode == 2 and "up to 63 of" in done.stderr
    assert not (shell.folder / "jobs.yaml").exists()


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("jobs", "jobs"), ("My jobs (2)", "My-jobs-2"), ("", "jobs"), ("任务", "jobs"),
        (".config", "config"), ("a" * 80, "a" * 63), ("Café", "Caf"), ("_x", "_x"), ("...", "jobs"),
    ],
)  # fmt: skip
def test_a_folder_s_name_becomes_a_key(name: str, key: str) -> None:
    assert key_of(name) == key
    assert re.fullmatch(KEY_PATTERN, key)


@pytest.mark.parametrize("key", ["null", "NULL", "no", "010", "true", "1e3", "2024-01-01"])
def test_a_key_that_yaml_takes_for_something_else_is_that_key(shell: Shell, key: str) -> None:
    assert shell("init", "--package", key).returncode == 0
    assert load_package(shell.folder / "jobs.yaml").key == key


def test_a_name_that_would_leave_its_comment_is_not_written_there(shell: Shell) -> None:
    name = "a\nb.yaml"
    assert shell("init", name).returncode == 0
    text = (shell.folder / name).read_text()
    assert text == TEMPLATE.format(file="FILE", package="My-jobs")


def test_a_folder_whose_name_makes_no_key_is_told_and_how_to_give_one(shell: Shell) -> None:
    (shell.folder / "取数").mkdir()
    words = "package jobs (this folder's name makes no key; --package KEY names it otherwise)\n"
    assert words in shell("init", "取数/jobs.yaml").stdout
    said = shell("init", "取数/other.yaml", "--package", "jobs").stdout
    assert said.startswith("wrote 取数/other.yaml, package jobs\n")


def test_a_file_that_begins_with_a_dash_is_named_so_that_it_is_no_option(shell: Shell) -> None:
    said = shell("init", "--", "-x.yaml").stdout
    assert said.endswith("next: qinglong-sql check ./-x.yaml, then qinglong-sql run ./-x.yaml\n")
    assert "qinglong-sql run ./-x.yaml" in (shell.folder / "-x.yaml").read_text()
    assert shell("check", "./-x.yaml").returncode == 0
