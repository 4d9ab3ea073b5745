"""Where output goes: closed pipes, full disks, plain and live terminals."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shell import Shell, command
from tests.site import kill_all_of

PACKAGE = """\
package: nightly
workflows:
  etl:
    steps:
      one: {run: "pwd; echo one"}
      two: {run: "sleep 0.3; echo two", needs: [one]}
"""


@pytest.fixture
def shell(sqlite_dsn: str, tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path, sqlite_dsn)
    shell.write("jobs.yaml", PACKAGE)
    try:
        yield shell
        shell.nothing_is_left()
    finally:
        kill_all_of(tmp_path)


def into(sink: int, shell: Shell, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a command with its standard output going to a descriptor; it never has a traceback."""
    done = subprocess.run(
        command(*words),
        cwd=shell.folder, env=shell.environment(), stdout=sink, stderr=subprocess.PIPE,
        text=True, check=False, timeout=60,
    )  # fmt: skip
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr
    return done


def test_a_closed_pipe_is_no_error_and_the_run_goes_on(shell: Shell) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = into(write, shell, "run", "jobs.yaml")
        assert done.returncode == 0 and not done.stderr, done.stderr
        (run,) = json.loads(shell("runs", "--json").stdout)
        assert run["status"] == "succeeded"
        run_id = run["run_id"]
        for words in (
            ("events", run_id), ("events", run_id, "--json"), ("show", run_id),
            ("logs", run_id, "two"), ("graph", run_id), ("runs",), ("doctor",),
            ("migrate", "--sql"), ("run", "jobs.yaml", "--json"),
        ):  # fmt: skip
            done = into(write, shell, *words)
            assert done.returncode == 0 and not done.stderr, (words, done.stderr)
    finally:
        os.close(write)


def test_head_ends_the_output_and_not_the_run(shell: Shell) -> None:
    done = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$@" | head -n 1', "bash", *command("run", "jobs.yaml")],
        cwd=shell.folder, env=shell.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert done.stdout.startswith("run ru") and done.stdout.count("\n") == 1
    assert json.loads(shell("runs", "--json").stdout)[0]["status"] == "succeeded"


def test_a_full_disk_below_the_output_does_not_end_the_run(shell: Shell) -> None:
    with Path("/dev/full").open("w") as full:
        done = into(full.fileno(), shell, "run", "jobs.yaml")
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(shell("runs", "--json").stdout)
    assert run["status"] == "succeeded"


def test_without_a_standard_output_the_run_goes_on(shell: Shell) -> None:
    done = subprocess.run(
        ["bash", "-c", '"$@" >&-', "bash", *command("run", "jobs.yaml")],
        cwd=shell.folder, env=shell.environment(), stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    (run,) = json.loads(shell("runs", "--json").stdout)
    assert run["status"] == "succeeded"


@pytest.mark.parametrize(
    "env", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}]
)
def test_a_plain_terminal_gets_plain_signs(shell: Shell, env: dict[str, str]) -> None:
    shell.write("名.yaml", PACKAGE.replace("one:", "one: # 抽取\n       "))
    assert shell("run", "名.yaml").returncode == 0
    (run,) = json.loads(shell("runs", "--json").stdout)
    done = shell.process("graph", run["run_id"], env=env)
    assert done.stdout == "+ one    succeeded\nv + two  succeeded\n"
    assert shell("graph", run["run_id"]).stdout == "✔ one    succeeded\n↓ ✔ two  succeeded\n"
    done = shell.process("run", "名.yaml", env=env)
    assert done.returncode == 0 and done.stdout.isascii(), done.stderr
    done = shell.process("check", "没有.yaml", env=env)
    assert done.returncode == 2 and "No such file" in done.stderr
    if env.get("PYTHONIOENCODING") == "ascii":
        assert done.stderr.isascii()
        done = shell.process("graph", run["run_id"], "--format", "mermaid", env=env)
        assert done.returncode == 0 and done.stdout.isascii()


def test_on_a_terminal_the_table_is_live(shell: Shell) -> None:
    done = subprocess.run(
        ["script", "-qec", " ".join(command("run", "jobs.yaml")), "/dev/null"],
        cwd=shell.folder, env=shell.environment(TERM="xterm", COLUMNS="80", LINES="24"),
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "\x1b[" in done.stdout and "of 2 steps ended" in done.stdout
    assert "✔ one" in done.stdout and "▶ two" in done.stdout
    assert "waits for one" in done.stdout


def test_a_start_is_light(shell: Shell) -> None:
    """`runs` on SQLite imports neither the driver of PostgreSQL, nor rich, nor alembic."""
    code = (
        "import sys; from qinglong_sql.cli import main\n"
        "try: main(['runs'])\n"
        "except SystemExit: pass\n"
        "print(sorted({m.split('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run(
        [command()[0], "-c", code], cwd=shell.folder, env=shell.environment(),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("no runs\n")
    for heavy in ("psycopg", "alembic", "sqlalchemy", "yaml", "cronsim", "rich"):
        assert f"'{heavy}'" not in done.stdout, heavy


def test_the_end_points_to_what_failed_first_and_wrote_something(shell: Shell) -> None:
    steps = "z: {run: 'echo first; exit 1'}, a: {run: [no-such-program]}, c: {run: sleep 1; exit 2}"
    shell.write("bad.yaml", f"package: bad\nworkflows: {{w: {{steps: {{{steps}}}}}}}\n")
    done = shell("run", "bad.yaml")
    assert done.returncode == 1
    look = done.stdout.splitlines()[-1]
    assert look.startswith("look: qinglong-sql logs ru") and look.endswith(" z"), done.stdout
    assert shell(*look.split()[2:]).stdout == "first\n"
    shell.write("bad.yaml", "package: bad\ntasks: {a: {run: [no-such-program]}}\n")
    assert "look:" not in shell("run", "bad.yaml").stdout
