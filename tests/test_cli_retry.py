"""`retry` as its users have it: five steps, one fails, the file is mended, the rest goes on."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from qinglong_sql.canonical import derived_id
from qinglong_sql.store import Store
from tests import acting
from tests.engines import Engine
from tests.shell import Shell
from tests.site import kill_all_of
from tests.stores import FakeClock

PACKAGE = """\
package: jobs
workflows:
  w:
    steps:
      fetch: {run: "echo fetch >> ran; echo '{\\"rows\\":3}' > $QL_OUTPUT"}
      check: {needs: [fetch], run: "echo check >> ran"}
      clean: {needs: [fetch], run: "echo clean >> ran"}
      load: {needs: [fetch, clean], run: "echo load >> ran; cat $QL_INPUT > seen; exit 1"}
      report: {needs: [load, check], run: "echo report >> ran"}
"""
MENDED = PACKAGE.replace("exit 1", "true")
TABLE = """\
STEP    WHAT        WHY
check   taken over
clean   taken over
fetch   taken over
load    runs        failed before
report  runs        never ran
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


def newest(shell: Shell) -> str:
    return str(json.loads(shell("runs", "--json").stdout)[0]["run_id"])


def told(shell: Shell, *words: object, code: int = 0) -> str:
    """What a command says, with run ids as NEW, and the one that is retried as OLD."""
    done = shell(*words)
    assert done.returncode == code, done.stdout + done.stderr
    text = (done.stdout + done.stderr).replace(str(words[1]), "OLD")
    return re.sub(r"ru[0-9a-f]{24}", "NEW", text)


def test_what_failed_is_mended_and_goes_on(shell: Shell) -> None:
    assert shell("run", "jobs.yaml", "--input", "day=1").returncode == 1
    old = newest(shell)
    shell.write("jobs.yaml", MENDED)
    assert (
        told(shell, "retry", old, "--preview").splitlines()[-1].startswith("nothing was published")
    )
    shell("publish", "jobs.yaml")
    assert told(shell, "retry", old, "--preview") == (
        f"a retry of OLD now: generation 2, 3 of 5 steps would be taken over\n{TABLE}"
    )
    assert newest(shell) == old, "a preview starts nothing"

    words = "generation 2, 3 of 5 steps taken over"
    edge = "an edge takes it, or " if shell.dsn.startswith("sqlite") else ""
    drive = f"to drive it: {edge}qinglong-sql run FILE w --input day=1\n"
    assert told(shell, "retry", old) == f"run NEW retries OLD: {words}\n{TABLE}\n{drive}"
    assert told(shell, "retry", old) == (f"run NEW retries OLD already: running; {words}\n{drive}")
    new = newest(shell)
    assert json.loads(shell("runs", "--json").stdout)[0]["retry_of_run_id"] == old

    done = shell("run", "jobs.yaml", "--input", "day=1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"going on with run {new}" in done.stderr + done.stdout
    ran = (shell.folder / "ran").read_text().split()
    assert sorted(ran[:4]) == ["check", "clean", "fetch", "load"]
    assert ran[4:] == ["load", "report"]
    seen = json.loads((shell.folder / "seen").read_text())
    assert seen == {"input": {"day": "1"}, "needs": {"clean": None, "fetch": {"rows": 3}}}
    assert told(shell, "retry", old).endswith("\nit has succeeded\n")
    assert "nothing to retry" in told(shell, "retry", new, code=5)


def test_a_mended_file_is_published_by_the_retry_itself(shell: Shell) -> None:
    assert shell("run", "jobs.yaml").returncode == 1
    old = newest(shell)
    shell.write("other.yaml", MENDED.replace("package: jobs", "package: others"))
    assert "is package others, that run is of jobs" in told(
        shell, "retry", old, "--file", "other.yaml", code=5
    )
    shell.write("jobs.yaml", MENDED + "    nonsense: 1\n")
    told(shell, "retry", old, "--file", "jobs.yaml", code=2)
    assert newest(shell) == old, "a bad file starts nothing"
    shell.write("jobs.yaml", MENDED)
    said = told(shell, "retry", old, "--file", "jobs.yaml")
    assert "generation 2, 3 of 5 steps taken over" in said
    assert "qinglong-sql run jobs.yaml w" in said
    assert shell("run", "jobs.yaml").returncode == 0
    runs = json.loads(shell("runs", "--json").stdout)
    assert [one["status"] for one in runs] == ["succeeded", "failed"]


def test_a_retry_that_is_refused_publishes_nothing(shell: Shell) -> None:
    assert shell("run", "jobs.yaml").returncode == 1
    old = newest(shell)
    shell.write("less.yaml", MENDED.replace("\n  w:", "\n  v:"))
    less = told(shell, "retry", old, "--file", "less.yaml", code=5)
    assert "less.yaml has no workflow w; not published" in less
    assert shell("start", "jobs", "--key", "taken").returncode == 0
    shell.write("jobs.yaml", MENDED)
    used = told(shell, "retry", old, "--file", "jobs.yaml", "--key", "taken", code=5)
    assert "key 'taken' was used before" in used and "nothing is published" in used
    assert json.loads(shell("publish", "jobs.yaml", "--json").stdout)["generation"] == 2
    assert told(shell, "retry", old, "--key", "taken", code=5).startswith("refused: key 'taken'")


def test_an_open_retry_of_an_older_file_is_told(shell: Shell) -> None:
    assert shell("run", "jobs.yaml").returncode == 1
    old = newest(shell)
    shell("retry", old)
    retry = newest(shell)
    note = (
        f"note: run {retry[:12]} of generation 1 is still open (a retry of {old[:12]}); it keeps"
        f" its generation: go on with it by qinglong-sql resume {retry[:12]} or end it by"
        f" qinglong-sql cancel {retry[:12]}\n"
    )
    assert "note" not in shell("publish", "jobs.yaml").stderr
    shell.write("jobs.yaml", MENDED + "  other: {steps: {a: {run: 'true'}}}\n")
    assert shell("publish", "jobs.yaml").stderr == note
    said = shell("retry", old, "--file", "jobs.yaml").stdout.splitlines()
    assert said[1:] == [
        "it keeps generation 1; for generation 2 cancel it, and retry it when it has ended:"
        f" qinglong-sql cancel {retry[:12]}"
    ]
    done = shell("run", "jobs.yaml", "other")
    assert done.returncode == 0 and note not in done.stderr, "it is of another workflow"
    done = shell("run", "jobs.yaml", "w")
    assert done.returncode == 0 and note in done.stdout + done.stderr
    for key in "abc":
        shell("start", "jobs", "w", "--key", key)
    shell.write("jobs.yaml", PACKAGE)
    assert len(shell("publish", "jobs.yaml").stderr.splitlines()) == 4
    assert shell("cancel", "--package", "jobs", "--yes").returncode == 0
    assert not shell("publish", "jobs.yaml").stderr, "what is being cancelled runs no more"


def test_a_retry_that_fails_is_retried_in_turn(shell: Shell) -> None:
    shell("run", "jobs.yaml")
    old = newest(shell)
    assert "the same tasks run again" in told(shell, "retry", old)
    assert shell("run", "jobs.yaml").returncode == 1
    again = told(shell, "retry", old)
    second = newest(shell)
    words = f"it can be retried in turn: qinglong-sql retry {second[:12]}"
    assert again.splitlines()[-1] == words
    told_json = json.loads(shell("retry", second, "--json").stdout)
    assert told_json["retry_of_run_id"] == second
    assert (told_json["outcome"], told_json["taken_over_count"]) == ("created", 3)
    causes = {one["step_key"]: one["cause"] for one in told_json["steps"]}
    assert causes == {
        "check": None, "clean": None, "fetch": None,
        "load": "not_succeeded", "report": "not_succeeded",
    }  # fmt: skip
    shell.write("jobs.yaml", MENDED.replace("echo clean", "echo cleaner"))
    shell("publish", "jobs.yaml")
    assert "clean   runs        its task changed\n" in told(shell, "retry", second, "--preview")


def test_what_cannot_be_retried_says_why(shell: Shell) -> None:
    shell("publish", "jobs.yaml")
    shell("start", "jobs", "--key", "k")
    open_run = newest(shell)
    for more in ((), ("--preview",)):
        words = told(shell, "retry", open_run, *more, code=5)
        way = f"qinglong-sql cancel {open_run[:12]}"
        assert words == f"refused: run OLD is still open; cancel it first: {way}\n"
    assert told(shell, "retry", "ru-no", code=5).startswith("refused: no run begins with")
    assert told(shell, "retry", open_run, "--preview", "--wait", code=2)
    shell("run", "jobs.yaml")
    assert told(shell, "retry", open_run, "--key", "k", code=5) == (
        "refused: key 'k' was used before, and not for a retry of this run: run OLD\n"
    )
    done = shell("retry", open_run, "--key", "other", "--wait", "--timeout", "1s")
    assert done.returncode == 6, done.stdout + done.stderr
    assert "retries" in done.stderr
    assert re.search(
        "is still running after 1s; nobody (drives|executes for) this database now", done.stderr
    )
    words = shell("start", "jobs", "--key", "other").stderr
    assert words.startswith("refused: key 'other' was used before for a retry: run ru")


def test_a_purged_run_is_still_retried_once(
    store: Store, engine: Engine, clock: FakeClock, tmp_path: Path
) -> None:
    old = acting.begun(store, {"a": [], "b": ["a"]})
    acting.finish(store, old, a=1)
    acting.advance(store, old)
    shell = Shell(tmp_path, engine.dsn)
    assert shell("retry", old).returncode == 0
    new = derived_id("ru", "retry", old)
    clock.advance(10)
    gone = store.call("purge_runs", p_before_ms=1 << 62, p_limit=9)
    assert [row["run_id"] for row in gone] == [old]
    before = acting.everything(engine)
    first = f"run {new} retries {old} already (that run is purged): running; generation 1, 0 of 2"
    for word in (old, old[2:]):
        done = shell("retry", word)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(first) and "to drive it: " in done.stdout
    row = json.loads(shell("retry", old, "--json").stdout)
    assert (row["run_id"], row["outcome"], row["retry_of_run_id"]) == (new, "existing", old)
    shell.write("p.yaml", PACKAGE)
    assert "p.yaml is not published" in shell("retry", old, "--file", "p.yaml").stderr
    assert shell("retry", old, "--wait", "--timeout", "1ms").returncode == 6
    assert acting.everything(engine) == before
    for words in ((old, "--key", "k"), (old[:-1],), (new.replace("ru", "", 1)[::-1],)):
        assert "no run begins with" in shell("retry", *words).stderr
