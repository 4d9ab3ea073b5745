"""Screens at 80 and 40 columns and with ASCII signs alone, as golden text (golden/screens)."""

import io
from contextlib import closing

import click
import pytest
from rich.console import Console

from qinglong_sql.cli import progress
from qinglong_sql.cli.cells import cells
from qinglong_sql.cli.steps import step_table
from qinglong_sql.store import open_store
from tests.screens import SIZES, Facts, prepared, same_as_golden


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return prepared(tmp_path_factory.mktemp("screens"))


RUNS = ("good", "bad", "stopped", "held", "queued", "moving", "faulty")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("command", ["status", "runs"])
def test_a_database(facts: Facts, command: str, size: str) -> None:
    seen(f"{command}.{size}", facts.screen(command, size=size), size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("command", ["show", "explain"])
def test_a_run(facts: Facts, command: str, size: str) -> None:
    told = [f"-- {name}\n{facts.screen(command, name, size=size)}" for name in RUNS]
    seen(f"{command}.{size}", "\n".join(told), size)


def seen(name: str, text: str, size: str) -> None:
    """It is the golden text, has no sign that the terminal lacks, and no table is too wide."""
    same_as_golden(name, text)
    wide = int(SIZES[size]["COLUMNS"])
    for line in text.splitlines():
        command = "qinglong-sql" in line or "declare-stopped" in line
        assert command or cells(line) <= wide, line
    if size == "ascii":
        assert text.isascii() or "磁盘" in text


@pytest.mark.parametrize("size", SIZES)
def test_a_run_while_it_runs_and_at_its_end(
    facts: Facts, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SIZES[size].items():
        monkeypatch.setenv(name, value)
    wide = int(SIZES[size]["COLUMNS"])
    told = []
    with closing(open_store(f"sqlite:///{facts.shell.folder}/qinglong.db")) as store:
        for name in ("moving", "bad", "queued"):
            watch = progress.Watch(store, facts.runs[name], progress.Silent())
            run = watch.look(facts.now_ms)
            view = progress.Table()
            paper = io.StringIO()
            view.console = Console(width=wide, height=24, file=paper, color_system=None)
            view.run, view.steps = run, watch.steps()
            view.console.print(view.table(facts.now_ms), end="")
            told.append(f"-- {name}, drawn\n{paper.getvalue()}")
            view.close()
        rows = store.read("step_state", order="step_key", run_id=facts.runs["bad"])
        attempts = store.read("attempt_state", order="number", run_id=facts.runs["bad"])
        told.append(f"-- bad, at its end\n{click.unstyle(step_table(rows, attempts))}\n")
    seen(f"run.{size}", "\n".join(told), size)
