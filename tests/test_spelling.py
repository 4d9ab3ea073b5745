"""A mistyped command, package or workflow is told with the nearest one."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from qinglong_sql.cli import main
from qinglong_sql.cli.spelling import did_you_mean
from tests.shell import Shell

REPORTS = (
    "package: report\nworkflows: {daily: {steps: {a: {run: x}}}, weekly: {steps: {a: {run: x}}}}"
)


def test_the_nearest_word_or_none() -> None:
    assert did_you_mean("chek", ["check", "cancel"]) == "; did you mean check?"
    assert did_you_mean("ETL", ["etl"]) == "; did you mean etl?"
    assert did_you_mean("zzz", ["check", "cancel"]) == ""
    assert did_you_mean("", []) == ""
    assert did_you_mean("a" * 10**6, ["a" * 10**6] * 9) != ""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("chek jobs.yaml", 2, "no command 'chek'; did you mean check?\n"),
        ("zzz", 2, "no command 'zzz'\n"),
        ("start reprt daily", 5, "no active package 'reprt'; did you mean report?\n"),
        ("start zzz", 5, "no active package 'zzz'; `qinglong-sql publish FILE` makes one\n"),
        ("start report dialy", 5, "there are: workflows daily, weekly; did you mean daily?\n"),
        ("run jobs.yaml weekyl", 5, "there are: workflows daily, weekly; did you mean weekly?\n"),
        ("run jobs.yaml zzz", 5, "there are: workflows daily, weekly\n"),
    ],
)
def test_a_mistyped_word_is_told_with_the_nearest(
    tmp_path: Path, words: str, code: int, said: str
) -> None:
    shell = Shell(tmp_path, f"sqlite:///{tmp_path}/qinglong.db")
    shell.write("jobs.yaml", REPORTS)
    assert shell("publish", "jobs.yaml").returncode == 0
    done = shell(*words.split())
    assert done.returncode == code and done.stderr.endswith(said), done.stderr


def test_check_reads_standard_input() -> None:
    done = CliRunner().invoke(main, ["check", "-"], input=REPORTS)
    assert (done.exit_code, done.output) == (0, "ok\n")
    done = CliRunner().invoke(main, ["check", "-"], input="package: p\ntusks: {}")
    assert done.exit_code == 2 and done.output.startswith("-:1:1: tasks: ")
