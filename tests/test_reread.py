"""A run, and the file it is in, that go while somebody looks at them: told, never waited for."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qinglong_sql.cli import waiting
from qinglong_sql.cli.alone import Lookout
from qinglong_sql.cli.exits import Refused
from qinglong_sql.cli.reread import steps_of, the_run
from qinglong_sql.errors import Displaced, NotReady
from qinglong_sql.store import Store, place, sqlite
from tests import acting
from tests.following import Scene, staged
from tests.shell import ended, until
from tests.stores import FakeClock, install

LOOKING = [("watch",), ("logs", "-f"), ("events", "-f")]
FAR_MS = 1 << 62


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = staged(tmp_path)
    yield scene
    scene.store.close()


def purge(scene: Scene) -> None:
    """End the run and let it go, between two looks of whoever waits for it."""
    acting.cancel(scene.store, scene.run_id)
    acting.converge(scene.store, scene.run_id)
    gone = scene.store.call("purge_runs", p_before_ms=FAR_MS, p_limit=9)
    assert [row["run_id"] for row in gone] == [scene.run_id]


def replace(scene: Scene) -> None:
    install(scene.folder / "other.db")
    (scene.folder / "other.db").rename(scene.folder / "qinglong.db")


def remove(scene: Scene) -> None:
    (scene.folder / "qinglong.db").unlink()


@pytest.mark.parametrize("words", LOOKING)
def test_a_run_that_is_purged_while_it_is_followed_is_gone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    things = [lambda: None, lambda: purge(scene)]
    done = scene.look(monkeypatch, things, words[0], scene.run_id, *words[1:])
    assert (done.returncode, scene.waits) == (5, 2)
    assert f"refused: run {scene.run_id} is gone: purged" in done.stderr


def test_what_is_read_again_may_be_gone(store: Store, clock: FakeClock) -> None:
    run_id = acting.begun(store, {"a": [], "b": []})
    assert the_run(store, run_id)["run_id"] == run_id
    assert [one["step_key"] for one in steps_of(store, run_id)] == ["a", "b"]
    acting.cancel(store, run_id)
    acting.converge(store, run_id)
    clock.advance(10)
    store.call("purge_runs", p_before_ms=FAR_MS, p_limit=9)
    for read in (the_run, steps_of):
        with pytest.raises(Refused, match="is gone"):
            read(store, run_id)


@pytest.mark.parametrize("words", [("show",), ("explain",), ("graph",), ("logs",), ("events",)])
def test_a_run_that_goes_right_after_it_was_found_is_no_bug(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """The purge stands between the first and the second read of the command."""
    read = sqlite.SqliteStore.read
    seen: list[str] = []

    def first(store: Store, view: str, /, **which: object) -> list[dict[str, object]]:
        found = read(store, view, **which)  # type: ignore[arg-type]
        if view == "run_state" and not seen:
            seen.append(view)
            purge(scene)
        return found

    monkeypatch.setattr(sqlite.SqliteStore, "read", first)
    done = scene.shell(words[0], scene.run_id, *words[1:])
    if words[0] == "events":
        assert (done.returncode, done.stdout) == (0, "no events\n")
        return
    assert done.returncode == 5 and "is gone: purged" in done.stderr, done


@pytest.mark.parametrize("words", LOOKING)
@pytest.mark.parametrize("go, told", [
    (replace, "qinglong.db has been replaced by another file; start again"),
    (remove, "it was there before, and for 0s it did not come back"),
])  # fmt: skip
def test_a_file_that_goes_while_a_run_is_followed_is_told(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...],
    go: Callable[[Scene], None], told: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(place, "AWAY_S", 0.0)
    things = [lambda: None, lambda: go(scene)]
    done = scene.look(monkeypatch, things, words[0], scene.run_id, *words[1:])
    assert (done.returncode, scene.waits) == (6, 2)
    assert done.stderr.startswith("not ready: ") and done.stderr.rstrip().endswith(told)


def test_a_file_that_comes_back_was_only_away(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, aside = scene.folder / "qinglong.db", scene.folder / "aside.db"

    def over() -> None:
        aside.rename(file)
        acting.cancel(scene.store, scene.run_id)
        acting.converge(scene.store, scene.run_id)

    things = [lambda: file.rename(aside), lambda: None, over]
    done = scene.look(monkeypatch, things, "watch", scene.run_id)
    assert done.returncode == 3
    told = [line for line in done.stdout.splitlines() if line.startswith("trying again: ")]
    assert len(told) == 1 and told[0].endswith("it was there before")


def test_the_minute_is_counted_from_when_it_went(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: at[0])
    file, aside = scene.folder / "qinglong.db", scene.folder / "aside.db"
    look = scene.store.still_there  # type: ignore[attr-defined]
    for _ in range(2):  # coming back begins it again
        look()
        file.rename(aside)
        for later in (0.0, place.AWAY_S - 1):
            at[0] += later
            with pytest.raises(NotReady, match=r"it was there before$") as raised:
                look()
            assert not isinstance(raised.value, Displaced)
        at[0] += 1
        with pytest.raises(Displaced, match="did not come back"):
            look()
        aside.rename(file)


def test_who_waits_for_a_run_is_told_as_well(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    store = scene.store
    dsn = f"sqlite:///{scene.folder}/qinglong.db"
    things: Iterator[Callable[[], None]] = iter([lambda: None, lambda: replace(scene)])
    monkeypatch.setattr("time.sleep", lambda _: next(things)())
    monkeypatch.setattr(Lookout, "look", lambda _: None)
    with pytest.raises(Displaced, match="replaced"):
        waiting.wait_for(store, scene.run_id, dsn=dsn)


def test_a_run_whose_file_is_replaced_ends(scene: Scene, tmp_path: Path) -> None:
    shell = scene.shell
    file = shell.write("p.yaml", "package: p\ntasks:\n  t: {run: 'touch here; sleep 1'}\n")
    process = shell.begin("run", file, output=tmp_path / "told")
    until((tmp_path / "here").exists, process, "its step runs")
    replace(scene)
    assert ended(process, 20) == 6
    told = (tmp_path / "told").read_text()
    assert "has been replaced by another file" in told and "Traceback" not in told
    shell.nothing_is_left()
