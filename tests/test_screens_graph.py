"""Pictures and histories of runs at 80 and 40 columns and with ASCII signs, as golden text."""

import pytest

from qinglong_sql.cli.cells import cells
from tests.screens import SIZES, Facts, prepared, same_as_golden


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    facts = prepared(tmp_path_factory.mktemp("screens"))
    facts.shell.write("long.yaml", LONG)
    return facts


LONG = """\
package: warehouse
workflows:
  nightly:
    steps:
      import_transactions_from_the_old_system_north: {run: "true"}
      import_transactions_from_the_old_system_south: {run: "true"}
      import_transactions_from_the_new_system: {run: "true"}
      clean_transactions_of_all_systems:
        run: "true"
        needs:
          - import_transactions_from_the_old_system_north
          - import_transactions_from_the_old_system_south
          - import_transactions_from_the_new_system
      ledger: {run: "true", needs: [clean_transactions_of_all_systems]}
      details: {run: "true", needs: [clean_transactions_of_all_systems]}
      report: {run: "true", needs: [ledger, details, import_transactions_from_the_new_system]}
"""


@pytest.mark.parametrize("size", SIZES)
def test_graphs(facts: Facts, size: str) -> None:
    subjects = {name: facts.runs[name] for name in ("good", "bad", "stopped", "moving", "queued")}
    subjects["long.yaml"] = "long.yaml"
    told = []
    for name, subject in subjects.items():
        done = facts.shell("graph", subject, env={**SIZES[size], "TERM": "xterm"})
        assert not done.stderr
        told.append(f"-- {name}\n{done.stdout}")
    seen(f"graph.{size}", "\n".join(told), size)


@pytest.mark.parametrize("size", SIZES)
def test_events(facts: Facts, size: str) -> None:
    seen(f"events.{size}", facts.screen("events", "bad", "--step", "check", size=size), size)


def seen(name: str, text: str, size: str) -> None:
    same_as_golden(name, text)
    wide = int(SIZES[size]["COLUMNS"])
    assert all(cells(line) <= wide for line in text.splitlines())
    if size == "ascii":
        assert text.isascii()


def test_a_picture_is_written_to_a_file_in_the_format_of_its_name(facts: Facts) -> None:
    shell, run = facts.shell, facts.runs["bad"]
    for name, begins in (
        ("a.svg", '<svg xmlns="http://www.w3.org/2000/svg" '),
        ("a.dot", 'digraph "nightly / etl: ru'),
        ("a.gv", 'digraph "nightly / etl: ru'),
        ("a.mmd", "flowchart TD\n"),
        ("a.txt", "✔ extract "),
        ("a", "✔ extract "),
    ):
        done = shell("graph", run, "-o", name, env={"LC_ALL": "C", "COLUMNS": "40"})
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert (shell.folder / name).read_text(encoding="utf-8").startswith(begins)
    shell("graph", run, "--format", "dot", "-o", "a.svg", "--direction", "right")
    assert "rankdir=LR" in (shell.folder / "a.svg").read_text()
    assert shell("graph", run, "--format", "mermaid", "--direction", "right").stdout.startswith(
        "flowchart LR\n"
    )
    done = shell("graph", run, "-o", "a.png")
    assert (done.returncode, (shell.folder / "a.png").exists()) == (2, False)
    assert ".png says no format" in done.stderr and ".svg, or give --format" in done.stderr
    assert shell("graph", run, "-o", "a.png", "--format", "svg").returncode == 0
    assert shell("graph", run, "-o", "B.SVG").returncode == 0
    assert (shell.folder / "B.SVG").read_text() == (shell.folder / "a.png").read_text()
    done = shell("graph", run, "-o", "no/where.svg")
    assert (done.returncode, done.stderr) == (2, "no/where.svg: No such file or directory\n")
    drawn = shell("graph", run, "--format", "svg").stdout
    assert "failed · 7.0s, 2 attempts" in drawn and f"{run}, failed</title>" in drawn


def test_states_are_coloured_where_colours_are_wanted(facts: Facts) -> None:
    run = facts.runs["bad"]
    plain = facts.shell("graph", run).stdout
    coloured = facts.shell("graph", run, env={"FORCE_COLOR": "1"}).stdout
    assert "\x1b[31m✘ check\x1b[0m" in coloured and "\x1b[31mfailed\x1b[0m" in coloured
    assert "\x1b" not in plain
    for words, env in ((("--no-color",), {"FORCE_COLOR": "1"}), ((), {"NO_COLOR": "1"})):
        assert facts.shell("graph", run, *words, env=env).stdout == plain
