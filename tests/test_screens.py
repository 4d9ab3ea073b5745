"""Screens at 80 and 40 columns and with ASCII signs alone, as golden text (golden/screens)."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from qinglong_sql.cli import progress
from qinglong_sql.cli.cells import cells
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
