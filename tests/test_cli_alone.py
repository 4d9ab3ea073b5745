"""What people are told while nobody drives a database: at once, and in the same words."""

import fcntl
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qinglong_sql.cli import alone
from qinglong_sql.cli.options import state_folder
from qinglong_sql.store import Store
from tests import acting
from tests.engines import Engine
from tests.following import Scene, staged
from tests.screens import standing_still
from tests.shell import Shell
from tests.stores import FakeClock

NOBODY = "nobody drives this database now: "


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = staged(tmp_path)
    yield scene
    scene.store.close()


def test_a_key_that_a_run_has_says_how_it_stands(
    store: Store, engine: Engine, tmp_path: Path
) -> None:
    acting.publish(store, {"a": []})
    shell = Shell(tmp_path, engine.dsn)
    again = ("start", "nightly", "flow", "--key", "k")
    run_id = shell(*again).stdout.split()[0]
    assert re.fullmatch(rf"{run_id} existing: running since .+\n", shell(*again).stdout)
    assert "\nkey      k\n" in shell("show", run_id).stdout
    acting.admit(store, run_id)
    acting.finish(store, run_id, a=1)
    acting.advance(store, run_id)
    done = shell(*again)
    wanted = rf"{run_id} existing: failed at .*; again: qinglong-sql retry {run_id[:12]}\n"
    assert re.fullmatch(wanted, done.stdout) and (done.returncode, done.stderr) == (0, "")
    assert f"again, without what succeeded: qinglong-sql retry {run_id[:12]}" in (
        shell("show", run_id).stdout
    )
    new = json.loads(shell("retry", run_id, "--json").stdout)["run_id"]
    told = f"retried as {new[:12]}: running"
    assert shell(*again).stdout.endswith(f"; {told}\n")
    old = shell("show", run_id).stdout
    assert old.endswith(f"{told}\n") and "qinglong-sql retry" not in old
    assert "\nkey " not in shell("show", new).stdout, "nobody chose one"
    marked = [line for line in shell("runs").stdout.splitlines() if line.endswith(" ↻")]
    assert len(marked) == 1 and marked[0].startswith(new[:12])
    assert "nightly/flow r\n" in shell("runs", env={"LC_ALL": "C"}).stdout
    assert shell("show", new[2:10]).stdout.startswith(f"run      {new}\n"), "without its ru"


@contextmanager
def held(lock: Path) -> Iterator[None]:
    """What an edge or a run holds while it works."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_a_start_that_nobody_will_drive_says_so(
    store: Store, engine: Engine, tmp_path: Path
) -> None:
    acting.publish(store, {"a": []})
    shell = Shell(tmp_path, engine.dsn)
    done = shell("start", "nightly", "flow", "--key", "k")
    assert (done.returncode, done.stdout.split()[1]) == (0, "created")
    assert done.stderr.startswith(NOBODY)
    told = shell("start", "nightly", "flow", "--key", "k", "--json")
    assert json.loads(told.stdout)["outcome"] == "existing" and told.stderr.startswith(NOBODY)
    assert f"! {NOBODY}" in shell("show", done.stdout.split()[0]).stdout


def test_without_workers_a_control_process_may_drive_until_work_is_long_due(
    store: Store, engine: Engine, clock: FakeClock, tmp_path: Path
) -> None:
    run_id = acting.begun(store, {"a": []})
    shell = Shell(tmp_path, engine.dsn, {"COLUMNS": "200"})
    resume = f"`qinglong-sql resume {run_id[:12]}`"

    def told() -> tuple[str, str]:
        first = shell("status").stdout.splitlines()[0]
        said = shell("show", run_id).stdout.splitlines()
        return next(line[2:] for line in said if line.startswith("! ")), first

    if engine.kind == "postgres":
        with standing_still(clock.now_ms + 3_600_000):
            words, first = told()
        way = f"`qinglong-sql worker` does, beside a control process, or {resume} on this machine"
        assert words == f"nobody executes for this database now: {way}"
        assert first == f"! nobody executes for this database; 1 run waits: {way}"
    acting.start(store, key="nobody admits it")
    with standing_still(clock.now_ms + alone.LATE_MS + 2):
        words, first = told()
    assert words.startswith(NOBODY) and resume in words
    assert first.startswith("! nobody works on this database; 2 runs wait: qinglong-sql ")


def test_a_worker_of_this_machine_drives(store: Store, engine: Engine, tmp_path: Path) -> None:
    acting.publish(store, {"a": []})
    shell = Shell(tmp_path, engine.dsn, {"QINGLONG_STATE_DIR": str(tmp_path / "state")})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QINGLONG_STATE_DIR", str(tmp_path / "state"))
        lock = state_folder(engine.dsn) / "0" / alone.WORKER
    with held(lock):
        done = shell("start", "nightly", "flow")
        assert (done.returncode, done.stderr) == (0, "")
        assert NOBODY not in shell("show", done.stdout.split()[0]).stdout
    assert shell("start", "nightly", "flow").stderr.startswith(NOBODY), "it has ended"


def test_workers_elsewhere_are_known_by_what_is_done(
    store: Store, engine: Engine, clock: FakeClock
) -> None:
    """PostgreSQL: a registered worker is believed until work is long due and no lease stands."""
    acting.publish(store, {"a": [], "b": []})
    assert alone.undriven(store, engine.dsn)
    if engine.kind == "sqlite":
        acting.register(store)
        assert alone.undriven(store, engine.dsn), "all workers of a file are on this machine"
        return
    acting.register(store)
    run_id = acting.start(store)
    with standing_still(clock.now_ms + alone.LATE_MS - 1):
        assert not alone.undriven(store, engine.dsn)
    with standing_still(clock.now_ms + alone.LATE_MS + 2):
        assert alone.undriven(store, engine.dsn)
    acting.admit(store, run_id)
    acting.lease(store, "o1")
    other = acting.start(store, key="other")
    with standing_still(clock.now_ms + alone.LATE_MS + 2):
        assert not alone.undriven(store, engine.dsn), f"a lease stands while {other} is due"


@pytest.mark.parametrize("words", [("watch",), ("logs", "-f")])
def test_who_waits_for_nobody_is_told_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(alone, "FIRST_S", 0.0)
    monkeypatch.setattr(alone, "AGAIN_S", 0.0)

    def over() -> None:
        acting.cancel(scene.store, scene.run_id)
        acting.converge(scene.store, scene.run_id)

    done = scene.look(monkeypatch, [*[lambda: None] * 5, over], *words, scene.run_id)
    assert (done.stdout + done.stderr).count(NOBODY) == 1
    assert (NOBODY in done.stdout) == (words == ("watch",))


def test_another_user_s_folder_says_nothing(
    sqlite_dsn: str, store: Store, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    acting.publish(store, {"a": []})
    state_folder(engine.dsn).mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr("qinglong_sql.cli.alone.os.access", lambda path, mode: False)
    assert not alone.undriven(store, engine.dsn)
