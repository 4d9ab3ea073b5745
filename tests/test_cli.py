"""The commands by example, on both engines: what they print, what they answer, how they end.

The transcript in golden/cli.txt is what a user sees; `QINGLONG_GOLDEN=write` writes it anew.
"""

import json
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.engines import Engine
from tests.shell import Shell, ended, until
from tests.site import kill_all_of

GOLDEN = Path(__file__).parent / "golden" / "cli.txt"
WAY_OUT = "`qinglong-sql runs` lists them"
PACKAGE = """\
package: nightly
tasks:
  hello: {run: [echo, "hello you"]}
workflows:
  etl:
    timeout: 2h
    steps:
      extract: {run: "echo '{\\"rows\\": 3}' > $QL_OUTPUT; echo 3 rows"}
      clean: {run: "cat $QL_INPUT", needs: [extract]}
      check: {run: "echo wrong >&2; exit 3", needs: [clean]}
      load: {run: "echo never", needs: [check]}
  wait: {steps: {hold: {
    run: "echo waiting; while [ ! -e go ]; do sleep 0.05; done; echo $$ >> held"}}}
  late: {timeout: 400ms, steps: {slow: {run: sleep 60}}}
  slow: {steps: {slow: {run: sleep 60, timeout: 200ms}}}
  twice: {steps: {again: {run: "echo try $QL_ATTEMPT; test $QL_ATTEMPT = 2",
                          retry: {attempts: 2, backoff: 50ms}}}}
"""


@pytest.fixture
def shell(engine: Engine, tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path, engine.dsn)
    shell.write("jobs.yaml", PACKAGE)
    try:
        yield shell
        shell.nothing_is_left()
    finally:
        kill_all_of(tmp_path)


def answer(shell: Shell, *words: object, code: int = 0, env: dict[str, str] | None = None) -> Any:
    """What a command says with `--json`: one line, one document."""
    done = shell(*words, "--json", env=env)
    assert done.returncode == code, done.stderr
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


def started(shell: Shell, target: str = "etl", *more: str) -> str:
    assert shell("publish", "jobs.yaml").returncode == 0
    return str(answer(shell, "start", "nightly", target, *more)["run_id"])


# --- what a user sees


EXECUTES = (
    r"nobody executes for this database now: `qinglong-sql worker` does, beside a control process,"
    r" or (`qinglong-sql resume RU`) on this machine"
)


def plain(text: str, folder: Path) -> str:
    """The text without what differs from run to run; lines that depend on timing are left out."""
    for pattern, name in (
        (re.escape(str(folder)), "FOLDER"),
        (r"ru[0-9a-f]{24}", "RUN"),
        (r"ru[0-9a-f]{10}\b", "RU"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{4}", "TIME"),
        (r"(\d{4}-\d\d-\d\d )?\b\d\d:\d\d:\d\d\b", "TIME"),
        (r"\bUTC([+-]\d\d:\d\d)?", "ZONE"),
        (r"\|[0·░█][^|\n]*\||\| [ ·░█]*\|", "|BAR|"),
        (r"\b\d+(\.\d+)?s\b", "SPAN"),
        (r"(?m)^ *\d+ +(?=TIME)", "# "),
        (r"(?m)^.*running( SPAN|  ).*\n", ""),
        (r"`qinglong-sql edge` or ", ""),  # SQLite alone
        (EXECUTES, r"nobody drives this database now: \1 does"),  # PostgreSQL has workers besides
        (r" {3,}", "  "),
    ):
        text = re.sub(pattern, name, text)
    return text


def test_a_run_as_a_user_sees_it(shell: Shell) -> None:
    told = []
    for line in (
        "check jobs.yaml",
        "run jobs.yaml etl --input who=you",
        "runs",
        "show RUN",
        "explain RUN",
        "events RUN --utc",
        "logs RUN clean",
        "logs RUN check",
        "logs RUN load",
        "graph RUN",
        "graph RUN --ascii",
        "graph RUN --format mermaid",
        "graph jobs.yaml etl",
        "run jobs.yaml hello",
        "run jobs.yaml hello --quiet",
        "publish jobs.yaml",
        "start nightly etl --key k",
        "start nightly etl --key k",
        "start nightly etl --key k --input a=b",
        "cancel RUN",
        "run jobs.yaml",
    ):
        words = line.split()
        if "RUN" in words:
            runs = answer(shell, "runs")
            run_id = next(one["run_id"] for one in runs if one["target_key"] == "etl")
            words[words.index("RUN")] = run_id[:12]
        done = shell(*words)
        told.append(f"$ qinglong-sql {line}\n{done.stdout}{done.stderr}")
        told[-1] = told[-1].rstrip("\n") + f"\n[{done.returncode}]\n"
    text = plain("\n".join(told), shell.folder)
    if os.environ.get("QINGLONG_GOLDEN") == "write":
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


@pytest.mark.parametrize(
    ("target", "code", "status"),
    [("hello", 0, "succeeded"), ("etl", 1, "failed"), ("late", 4, "timed_out"),
     ("slow", 4, "timed_out")],
)  # fmt: skip
def test_the_exit_code_tells_how_a_run_ended(
    shell: Shell, target: str, code: int, status: str
) -> None:
    run = answer(shell, "run", "jobs.yaml", target, code=code)
    assert run["status"] == status
    assert {step["status"] for step in run["steps"]} & {status, "cancelled"}


def test_json_of_every_command_that_looks(shell: Shell) -> None:
    assert answer(shell, "check", "jobs.yaml")["ok"] is True
    run = answer(shell, "run", "jobs.yaml", "etl", code=1)
    run_id = run["run_id"]
    assert [row["run_id"] for row in answer(shell, "runs", "--status", "failed")] == [run_id]
    assert answer(shell, "runs", "--package", "other") == []
    shown = answer(shell, "show", run_id)
    assert {step["step_key"]: step["status"] for step in shown["steps"]} == {
        "extract": "succeeded", "clean": "succeeded", "check": "failed", "load": "skipped",
    }  # fmt: skip
    assert [one["exit_code"] for one in shown["attempts"]] == [0, 0, 3]
    rows = answer(shell, "events", run_id)
    assert [row["sequence"] for row in rows] == list(range(1, shown["version"] + 1))
    assert (rows[0]["type"], rows[-1]["type"]) == ("workflow.admitted", "workflow.failed")
    assert answer(shell, "explain", run_id) == []
    assert answer(shell, "logs", run_id, "extract")["text"] == "3 rows\n"
    assert answer(shell, "graph", run_id)["needs"]["load"] == ["check"]
    assert answer(shell, "graph", "jobs.yaml", "etl")["states"] is None
    found = answer(shell, "doctor")
    assert (found["violations"], found["faults"], found["running"]) == ([], [], 0)


# --- input


def test_an_input_is_given_by_values_and_by_a_file(shell: Shell) -> None:
    shell.write("input.json", '{"who": "file", "n": {"deep": [1, 2.5, null]}}')
    words = ("--input-file", "input.json", "--input", "who=you", "--input", "eq=a=b")
    run = answer(shell, "run", "jobs.yaml", "etl", *words, code=1)
    told = json.loads(answer(shell, "logs", run["run_id"], "clean")["text"])
    assert told == {
        "input": {"who": "you", "n": {"deep": [1, 2.5, None]}, "eq": "a=b"},
        "needs": {"extract": {"rows": 3}},
    }


# --- one run and several


def test_new_starts_another_run_and_the_same_words_go_on_with_an_open_one(shell: Shell) -> None:
    first = shell.begin("run", "jobs.yaml", "wait", output=shell.folder / "first")
    until(lambda: "hold" in (shell.folder / "first").read_text(), first, "it runs")
    (live,) = answer(shell, "runs")
    assert shell("logs", live["run_id"]).stdout == "waiting\n"
    again = shell.begin("run", "jobs.yaml", "wait", output=shell.folder / "again")
    until(lambda: (shell.folder / "again").read_text(), again, "it goes on")
    other = shell.begin("run", "jobs.yaml", "wait", "--new", output=shell.folder / "other")
    until(lambda: (shell.folder / "other").read_text(), other, "it starts")
    assert len(answer(shell, "runs", "--status", "running")) == 2
    (shell.folder / "go").touch()
    assert [ended(process) for process in (first, again, other)] == [0, 0, 0]
    said = [(shell.folder / name).read_text() for name in ("first", "again", "other")]
    first_id = said[0].split()[1]
    assert said[1].startswith(f"going on with run {first_id} (--new starts another)")
    assert said[2].startswith("run ru") and first_id not in said[2]
    assert len((shell.folder / "held").read_text().splitlines()) == 2


def test_publish_and_start_answer_a_repeat_as_the_first_time(shell: Shell) -> None:
    first = answer(shell, "publish", "jobs.yaml")
    assert (first["outcome"], first["generation"]) == ("published", 1)
    assert answer(shell, "publish", "jobs.yaml")["outcome"] == "existing"
    one = answer(shell, "start", "nightly", "etl", "--key", "k", "--input", "a=1")
    two = answer(shell, "start", "nightly", "etl", "--key", "k", "--input", "a=1")
    assert (one["outcome"], two["outcome"], one["run_id"]) == ("created", "existing", two["run_id"])
    done = shell("start", "nightly", "etl", "--key", "k", "--input", "a=2")
    assert done.returncode == 5 and one["run_id"] in done.stderr
    shell.write("jobs.yaml", PACKAGE.replace("2h", "3h"))
    assert answer(shell, "publish", "jobs.yaml")["generation"] == 2
    assert answer(shell, "start", "nightly", "etl", "--key", "k", "--input", "a=1") == two
    assert answer(shell, "start", "nightly", "hello")["generation"] == 2
    assert len(answer(shell, "runs")) == 2


def test_cancel_tells_each_outcome(shell: Shell) -> None:
    run_id = started(shell)
    assert answer(shell, "cancel", run_id, env={"LOGNAME": "ann"})["outcome"] == "accepted"
    assert answer(shell, "cancel", run_id, env={"LOGNAME": "ann"})["outcome"] == "accepted"
    done = shell("cancel", run_id, env={"LOGNAME": "bob"})
    assert done.stdout == f"{run_id} cancellation was already requested (user)\n"
    assert done.returncode == 0
    assert "requested: user, by ann, at " in shell("show", run_id).stdout
    assert shell("run", "jobs.yaml", "etl").returncode == 3
    done = shell("cancel", run_id)
    assert (done.returncode, done.stdout) == (0, f"{run_id} has ended: cancelled\n")


# --- looking


def test_explain_names_what_a_run_waits_for(shell: Shell) -> None:
    run_id = started(shell)
    rows = answer(shell, "explain", run_id)
    assert {(row["step_key"], row["waits_for"], row["waits_on"]) for row in rows} == {
        ("extract", "admission", "task_admission"), ("clean", "need", "extract"),
        ("check", "need", "clean"), ("load", "need", "check"),
    }  # fmt: skip
    assert (
        "clean, pending (need): waits for the end of extract"
        in shell("explain", run_id[:10]).stdout
    )
    done = shell("run", "jobs.yaml", "etl", "--quiet")
    words = f"run {run_id} failed: check: it ended with exit code 3"
    look = f"look: qinglong-sql logs {run_id[:12]} check"
    assert (done.stdout, done.stderr) == ("", f"{words}; {look}\n")
    said = f"nothing: the run has ended, failed\n  look: qinglong-sql show {run_id[:12]}\n"
    assert shell("explain", run_id).stdout == said


def test_logs_are_of_the_wanted_attempt_and_otherwise_say_which_there_are(shell: Shell) -> None:
    run = answer(shell, "run", "jobs.yaml", "twice")
    assert shell("logs", run["run_id"]).stdout == "try 2\n"
    assert shell("logs", run["run_id"], "again", "--attempt", "1").stdout == "try 1\n"
    open_run = started(shell)
    for words, said in (
        ((run["run_id"], "again", "--attempt", "9"), "has no attempt 9; it has: 1, 2"),
        ((run["run_id"], "nope"), "no step 'nope' in this run; there are: again"),
        ((open_run,), "no step has started"),
        ((open_run, "load"), "step 'load' has not run: it is pending"),
    ):
        done = shell("logs", *words)
        assert done.returncode == 5 and said in done.stderr and not done.stdout
    for path in shell.folder.rglob("*.log"):
        path.unlink()
    done = shell("logs", run["run_id"])
    assert done.returncode == 5 and "no log of again, attempt 2 on this machine" in done.stderr


def test_a_run_that_is_unknown_or_not_the_only_one_is_refused(shell: Shell) -> None:
    known: dict[str, str] = {}  # by what two of them begin with, of which there are 16
    while (second := started(shell))[:3] not in known:
        known[second[:3]] = second
    first = known[second[:3]]
    every = ("show", "events", "explain", "logs", "graph", "cancel")
    for command in every if shell.dsn.startswith("sqlite") else ("show",):
        unknown = shell(command, "ruffff")
        assert unknown.returncode == 5
        assert unknown.stderr == f"refused: no run begins with 'ruffff'; {WAY_OUT}\n"
        several = shell(command, second[:3])
        assert several.returncode == 5
        assert first in several.stderr and second in several.stderr
        odd = shell(command, "no run!")
        assert odd.returncode == 5 and "is not a run id" in odd.stderr


def test_doctor_finds_what_was_done_by_hand(shell: Shell) -> None:
    run = answer(shell, "run", "jobs.yaml", "hello")
    row = f"(run_id, stage, due_at_ms) values ('{run['run_id']}', 'frontier', 0)"
    if shell.dsn.startswith("sqlite"):
        with closing(sqlite3.connect(shell.dsn.removeprefix("sqlite:///"))) as connection:
            connection.execute(f"insert into agenda {row}")
            connection.commit()
    else:
        with psycopg.connect(shell.dsn) as other:
            other.execute(f"insert into ql.agenda {row}".encode())
    done = shell("doctor")
    assert done.returncode == 1
    assert f"violation: a_terminal_run_has_no_agenda: run {run['run_id']}, " in done.stdout
    assert "due work: oldest " in done.stdout
    assert len(answer(shell, "doctor", code=1)["violations"]) == 1
