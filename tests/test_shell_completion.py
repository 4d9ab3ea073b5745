"""What a shell completes: commands, and what the database knows; silent, and without files."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from qinglong_sql.cli import COMPLETING, main
from qinglong_sql.store.glance import glance
from tests import acting
from tests.engines import Engine
from tests.screens import Facts, prepared
from tests.shell import Shell
from tests.stores import FakeClock, store_on

Complete = Callable[..., list[str]]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return prepared(tmp_path_factory.mktemp("completion"))


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch) -> Complete:
    """What is offered behind words of a command line, the last of which is incomplete."""

    def complete(*words: str, dsn: str) -> list[str]:
        monkeypatch.setenv(COMPLETING, "bash_complete")
        monkeypatch.setenv("QINGLONG_DSN", dsn)
        shell = BashComplete(main, {}, "qinglong-sql", COMPLETING)
        return [one.value for one in shell.get_completions(list(words[:-1]), words[-1])]

    return complete


def dsn_of(facts: Facts) -> str:
    return f"sqlite:///{facts.shell.folder}/qinglong.db"


def test_runs_packages_workflows_steps_and_attempts_complete(
    facts: Facts, complete: Complete
) -> None:
    dsn, runs = dsn_of(facts), facts.runs
    before = sorted(facts.shell.folder.iterdir())
    assert "status" in complete("sta", dsn=dsn) and "start" in complete("sta", dsn=dsn)
    assert set(complete("show", "", dsn=dsn)) == set(runs.values())
    assert complete("show", runs["bad"][:9], dsn=dsn) == [runs["bad"]]
    assert complete("show", runs["bad"][:2].upper(), dsn=dsn) == []
    assert complete("logs", runs["bad"][:9], "c", dsn=dsn) == ["check", "clean"]
    assert complete("logs", "ru", "", dsn=dsn) == [], "several runs begin so"
    assert complete("start", "", dsn=dsn) == ["nightly"]
    assert set(complete("start", "nightly", "", dsn=dsn)) == {
        "etl",
        "film",
        "pay",
        "render",
        "work",
    }
    assert complete("runs", "--package", "n", dsn=dsn) == ["nightly"]
    assert complete("runs", "--workflow", "fi", dsn=dsn) == ["film"]
    assert complete("runs", "--status", "ca", dsn=dsn) == ["cancelled"]
    ended = {runs[name] for name in ("good", "bad", "stopped")}
    assert set(complete("cancel", "", dsn=dsn)) == set(runs.values()) - ended
    assert runs["held"] not in complete("cancel", runs["held"], "", dsn=dsn), "not twice"
    assert set(complete("retry", "", dsn=dsn)) == ended - {runs["good"]}
    assert complete("graph", runs["bad"][:9], dsn=dsn) == [runs["bad"], runs["bad"][:9]]
    assert complete("workers", "", dsn=dsn) == ["w1"] and not complete("workers", "x", dsn=dsn)
    assert complete("worker", "drain", "w", dsn=dsn) == ["w1"]
    assert complete("attempt", "", dsn=dsn) == ["declare-stopped"]
    held = complete("attempt", "declare-stopped", "", dsn=dsn)
    assert f"{runs['held']}-1" in held and f"{runs['queued']}-1" not in held
    assert sorted(facts.shell.folder.iterdir()) == before, "completing makes no file"


def test_the_workflows_of_a_file_complete_from_the_file(tmp_path: Path, complete: Complete) -> None:
    file = tmp_path / "jobs.yaml"
    steps = "{steps: {a: {run: x}}}"
    file.write_text(f"package: p\nworkflows: {{day: {steps}, dusk: {steps}}}\n")
    dsn = f"sqlite:///{tmp_path}/none.db"
    assert complete("run", str(file), "d", dsn=dsn) == ["day", "dusk"]
    assert complete("graph", str(file), "du", dsn=dsn) == ["dusk"]
    assert complete("run", str(tmp_path / "gone.yaml"), "", dsn=dsn) == []


def test_without_a_database_nothing_is_said_and_nothing_is_made(
    tmp_path: Path, complete: Complete
) -> None:
    (tmp_path / "other.db").write_text("no database")
    for name in ("gone.db", "other.db"):
        assert complete("show", "", dsn=f"sqlite:///{tmp_path}/{name}") == []
    assert complete("show", "", dsn="postgresql://nobody@127.0.0.1:1/none") == []
    assert complete("show", "", dsn="mysql://x") == []
    assert [one.name for one in tmp_path.iterdir()] == ["other.db"]


def test_both_engines_are_asked(engine: Engine, complete: Complete) -> None:
    store = store_on(engine, FakeClock())
    run_id = acting.begun(store, {"a": [], "b": ["a"]})
    assert complete("show", "", dsn=engine.dsn) == [run_id], "while another process writes"
    assert complete("logs", run_id, "", dsn=engine.dsn) == ["a", "b"]
    store.close()
    assert glance(engine.dsn, "run_state", run_id=run_id)[0]["status"] == "running"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(tmp_path: Path, shell: str) -> None:
    done = Shell(tmp_path, "sqlite:///none.db")("completion", shell)
    assert done.returncode == 0 and not done.stderr
    assert COMPLETING in done.stdout and f"{shell}_complete" in done.stdout
    assert done.stdout.startswith("# to keep it, in ~/.")
    if shell == "bash":
        checked = subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=False)
        assert checked.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_bash_completes_a_run(facts: Facts) -> None:
    words = f"qinglong-sql show {facts.runs['held'][:8]}"
    env = {COMPLETING: "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "2"}
    done = facts.shell.process(env=env)
    assert done.stdout == f"plain,{facts.runs['held']}\n" and not done.stderr


def test_a_bash_session_completes_what_a_command_can_be_used_on(
    facts: Facts, tmp_path: Path
) -> None:
    """As in a shell of a user: the script is sourced, and its function is asked."""
    runs, script = facts.runs, facts.shell("completion", "bash").stdout
    program = tmp_path / "qinglong-sql"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m qinglong_sql "$@"\n')
    program.chmod(0o755)
    ask = f"COMPREPLY=(); _qinglong_sql_completion {program}; echo ${{COMPREPLY[@]}}"
    lines = [f"COMP_WORDS=(qinglong-sql {word} ru); {ask}" for word in ("cancel", "retry")]
    done = subprocess.run(
        ["bash", "-c", "\n".join([script, "COMP_CWORD=2", *lines])], cwd=facts.shell.folder,
        env=facts.shell.environment(), capture_output=True, encoding="utf-8", check=True,
    )  # fmt: skip
    offered = [set(line.split()) for line in done.stdout.splitlines()]
    ended = {runs[name] for name in ("good", "bad", "stopped")}
    assert offered == [set(runs.values()) - ended, ended - {runs["good"]}], done.stderr
