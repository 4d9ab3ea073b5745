"""`withdraw`: nothing new begins, what is open goes on, on both engines."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import Engine
from tests.shell import Shell

PACKAGE = """\
package: nightly
tasks:
  t: {run: "true"}
triggers:
  each: {cron: "* * * * *", tz: UTC, task: t}
"""


@pytest.fixture
def shell(engine: Engine, tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path, engine.dsn)
    shell.write("jobs.yaml", PACKAGE)
    assert shell("publish", "jobs.yaml").returncode == 0
    yield shell
    shell.nothing_is_left()


def test_nothing_new_begins_and_what_is_open_goes_on(shell: Shell) -> None:
    run_id = json.loads(shell("start", "nightly", "t", "--json").stdout)["run_id"]
    done = shell("withdraw", "nightly")
    assert done.returncode == 0
    assert done.stdout == "nightly generation 1 withdrawn\n"
    assert "note: runs of it are still open" in done.stderr
    assert "qinglong-sql cancel --package nightly" in done.stderr
    assert shell("start", "nightly", "t").returncode == 5
    assert shell("trigger", "fire", "nightly", "each").returncode == 5
    assert json.loads(shell("schedules", "--json").stdout)["schedules"] == []
    assert shell("resume", run_id).returncode == 0, "what was open goes on to its end"


def test_it_may_be_repeated_and_publishing_takes_it_back(shell: Shell) -> None:
    shell("withdraw", "nightly")
    again = shell("withdraw", "nightly", "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout)["outcome"] == "existing"
    assert again.stderr == ""
    assert shell("publish", "jobs.yaml").returncode == 0
    assert shell("start", "nightly", "t").returncode == 0
    shell("cancel", "--package", "nightly", "--yes")
    (trigger,) = json.loads(shell("schedules", "--json").stdout)["schedules"]
    assert trigger["state"] == "active"


def test_an_unknown_package_is_refused(shell: Shell) -> None:
    done = shell("withdraw", "nighty")
    assert done.returncode == 5
    assert "no package nighty" in done.stderr
