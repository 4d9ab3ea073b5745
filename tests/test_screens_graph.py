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
