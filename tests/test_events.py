"""`events`: all of a run, a part of it, or as they come."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from qinglong_sql.cli.cells import cells
from tests import acting
from tests.following import Scene, staged


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = staged(tmp_path)
    yield scene
    scene.store.close()


def ended(scene: Scene) -> None:
    scene.begin("a", 2)
    scene.end("build", code=1)
    scene.end("test")
    scene.advance()


def test_a_part_is_chosen_by_number_and_by_step(scene: Scene) -> None:
    ended(scene)
    rows = json.loads(scene.shell("events", scene.run_id, "--json").stdout)
    assert [row["sequence"] for row in rows] == list(range(1, len(rows) + 1))
    assert rows[-1]["type"] == "workflow.failed" and "what" not in rows[0]
    since = json.loads(scene.shell("events", scene.run_id, "--json", "--since", "9").stdout)
    assert since == rows[9:]
    mine = json.loads(scene.shell("events", scene.run_id, "--json", "--step", "test").stdout)
    attempt = scene.held["test"].attempt_id
    assert mine == [row for row in rows if row["entity_id"] in ("test", attempt)] != []
    last = len(rows)
    assert scene.shell("events", scene.run_id, "--since", last).stdout == "no events\n"
    done = scene.shell("events", scene.run_id, "--step", "nope")
    assert done.returncode == 5 and "no step 'nope' in this run" in done.stderr


@pytest.mark.parametrize("wide", [40, 80, 120])
def test_a_line_an_event_fits_the_screen(scene: Scene, wide: int) -> None:
    ended(scene)
    done = scene.shell("events", scene.run_id, "--utc", env={"COLUMNS": str(wide)})
    head, *lines = done.stdout.splitlines()
    rows = acting.events(scene.store, scene.run_id)
    zone = [] if wide == 120 else ["+0000"]
    assert head.split()[: 3 + len(zone)] == ["#", "AT", *zone, "EVENT"]
    assert len(lines) == len(rows)
    assert all(line == line.rstrip() for line in lines)
    for line, kind in zip(lines, rows, strict=True):
        assert cells(line) <= wide or wide == 120
        assert kind.rpartition(".")[2].rpartition("_")[2] in line
    assert any("build #1" in line and "execution_failed" in line for line in lines) or wide == 40
    assert (rows[0] in lines[0]) is (wide > 60)


@pytest.mark.parametrize("more", [(), ("--json",), ("--json", "--step", "ship")])
def test_events_are_followed_until_the_run_has_ended(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    things = [
        lambda: None,
        lambda: scene.begin("a", 2),
        lambda: scene.end("build"),
        lambda: scene.end("test"),
        lambda: None,
        lambda: scene.advance(),
        lambda: scene.begin("b"),
        lambda: scene.end("ship"),
        lambda: scene.advance(),
    ]
    done = scene.look(monkeypatch, things, "events", "-f", scene.run_id, *more)
    assert done.returncode == 0 and scene.waits == len(things)
    every = json.loads(scene.shell("events", scene.run_id, "--json").stdout)
    if not more:
        numbers = [int(line.split()[0]) for line in done.stdout.splitlines()[1:]]
        assert numbers == [row["sequence"] for row in every]
        return
    told = [json.loads(line) for line in done.stdout.splitlines()]
    mine = (scene.held["ship"].attempt_id, "ship")
    assert told == [row for row in every if len(more) == 1 or row["entity_id"] in mine]
