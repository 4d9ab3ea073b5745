"""What is said about keys and commands is what the code knows."""

import difflib
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from qinglong_sql import cli, package_check, package_task
from qinglong_sql.cli import COMMANDS
from qinglong_sql.package_check import FILE_FIELDS, STEP_FIELDS, TRIGGER_FIELDS, WORKFLOW_FIELDS
from qinglong_sql.package_keys import THINGS
from qinglong_sql.package_source import FIELD_IN_LINE
from scripts import reference

FIELDS = {
    "file": FILE_FIELDS,
    "defaults": package_task.DEFAULT_FIELDS,
    "task": package_task.TASK_FIELDS,
    "retry": package_task.RETRY_FIELDS,
    "workflow": WORKFLOW_FIELDS,
    "step": STEP_FIELDS,
    "trigger": TRIGGER_FIELDS,
}


def test_the_references_and_the_schema_are_up_to_date() -> None:
    for path, text in reference.wanted().items():
        found = path.read_text(encoding="utf-8").splitlines()
        differ = list(difflib.unified_diff(found, text.splitlines(), n=0))
        assert not differ, "python -m scripts.reference"


def test_every_key_that_is_checked_is_told_and_no_other() -> None:
    told = {thing.name: sorted(key.name for key in thing.keys) for thing in THINGS}
    assert told == {name: sorted(fields) for name, fields in FIELDS.items()}
    assert package_check.FREE == "x-"


def test_the_keys_that_a_shown_line_may_have_are_the_known_ones() -> None:
    """Of an unreadable file; `env` is the one whose line is never shown."""
    known = {name for fields in FIELDS.values() for name in fields} - {"env"}
    assert {name for name in known if FIELD_IN_LINE.match(f"{name}: x")} == known
    assert not FIELD_IN_LINE.match("env: x")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_told_with_its_words_and_options(name: str) -> None:
    page = reference.PAGE.read_text()
    command = cli.main.get_command(click.Context(cli.main), name)
    assert command is not None
    summary = reference.words(command).split("\n\n")[0]
    assert re.search(rf"#### `qinglong-sql {name}\b.*`\n\n{re.escape(summary)}", page)
    assert summary.endswith("."), f"{name}: the first line is a sentence"
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            assert option.help, f"{name} {option.opts}: no help"
            assert all(f"`{one}" in page or f", {one}" in page for one in option.opts)


def test_every_command_of_a_group_is_there() -> None:
    """A group may name commands that are still to come, but none twice."""
    grouped = [name for names in reference.GROUPS.values() for name in names]
    assert len(grouped) == len(set(grouped))
    assert set(COMMANDS) <= set(grouped), "say in scripts/reference.py where the command belongs"


def test_the_gate_says_what_to_type_when_a_page_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "README.md"
    page.write_text(reference.PAGE.read_text().replace("Print the JSON Schema", "Print something"))
    monkeypatch.setattr(reference, "PAGE", page)
    monkeypatch.setattr(reference, "ROOT", tmp_path)
    monkeypatch.setattr(reference, "SCHEMA", tmp_path / "none.json")
    monkeypatch.setattr(sys, "argv", ["reference", "--check"])
    assert reference.main() == 1
    said = capsys.readouterr().out
    assert "+Print the JSON Schema" in said and "python -m scripts.reference" in said
    assert "none.json is not up to date" in said
    monkeypatch.setattr(sys, "argv", ["reference"])
    assert reference.main() == 0
    monkeypatch.setattr(sys, "argv", ["reference", "--check"])
    assert reference.main() == 0
    page.write_text("no markers")
    with pytest.raises(SystemExit, match="has no lines"):
        reference.main()


def test_the_reference_is_the_same_whatever_the_environment_says() -> None:
    env = {"QINGLONG_DSN": "sqlite:///elsewhere.db", "COLUMNS": "40", "PATH": "/bin", "LANG": "C"}
    done = subprocess.run(
        [sys.executable, "-m", "scripts.reference", "--check"],
        cwd=reference.ROOT, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
