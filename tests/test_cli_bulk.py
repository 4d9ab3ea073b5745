"""`cancel` of several runs or of a package's, and `start --wait`; on both engines."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qinglong_sql.cli import cancel as cancelling
from qinglong_sql.store import Store, open_store
from tests import acting
from tests.engines import Engine
from tests.shell import Shell, ended, until


@pytest.fixture
def shell(engine: Engine, tmp_path: Path) -> Shell:
    return Shell(tmp_path, engine.dsn, {"LOGNAME": "ann"})


@pytest.fixture
def store(engine: Engine) -> Iterator[Store]:
    """By the real clock: the commands have no other."""
    with closing(open_store(engine.dsn)) as opened:
        acting.publish(opened, {"a": []})
        yield opened


def started(store: Store, count: int, kind: str = "workflow") -> list[str]:
    """So many open runs, as they are listed: those of one millisecond by their ids."""
    ids = {acting.start(store, kind, f"{kind} {number}") for number in range(count)}
    rows = [row for row in store.read("run_state") if row["run_id"] in ids]
    rows.sort(key=lambda row: (row["admitted_at_ms"], row["run_id"]))
    return [row["run_id"] for row in rows]


def asked(store: Store) -> set[str]:
    rows = store.read("run_state")
    return {row["run_id"] for row in rows if row["cancel_requested_at_ms"] is not None}


def test_several_runs_are_cancelled_each_with_its_own_answer(shell: Shell, store: Store) -> None:
    first, second, over, other = started(store, 4)
    acting.cancel(store, second, actor="bob")
    acting.cancel(store, over, actor="bob")
    acting.converge(store, over)
    done = shell("cancel", first, second, over, first)
    assert (done.returncode, done.stdout.splitlines()) == (0, [
        f"{first} cancellation requested",
        f"{second} cancellation was already requested (user)",
        f"{over} has ended: cancelled",
    ])  # fmt: skip
    none = shell("cancel", other, "nothing-like-it")
    assert none.returncode == 5 and other not in asked(store)
    rows = json.loads(shell("cancel", first, second, "--json").stdout)
    assert [row["outcome"] for row in rows] == ["accepted", "already_requested"]


def test_a_package_is_cancelled_after_a_look_at_it(shell: Shell, store: Store) -> None:
    flows, tasks = started(store, 3), started(store, 2, "task")
    refused = shell("cancel", "--package", "nightly", "--status", "running")
    assert refused.returncode == 2
    assert refused.stderr.endswith("\nnothing done: this cancels 5 runs; repeat with --yes\n")
    assert all(run_id in refused.stderr for run_id in (*flows, *tasks))
    assert asked(store) == set()
    for words, said in {
        ("nightl",): "no package 'nightl'; did you mean nightly?\n",
        ("nightly", "--workflow", "x"): "package 'nightly' has no workflow or task 'x'\n",
    }.items():
        for yes in ((), ("--yes",)):
            none = shell("cancel", *yes, "--package", *words)
            assert (none.returncode, none.stdout) == (5, "")
            assert none.stderr == f"refused: {said}"
    for words in (("nightly", "--older-than", "1h"),):
        none = shell("cancel", "--yes", "--package", *words)
        assert (none.returncode, none.stdout) == (
            0,
            "no open run of that kind; nothing to cancel\n",
        )
    done = shell("cancel", "--package", "nightly", "--workflow", "flow", "--yes")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [f"{run_id} cancellation requested" for run_id in flows]
    assert asked(store) == set(flows)
    rows = json.loads(shell("cancel", "--package", "nightly", "--yes", "--json").stdout)
    assert [row["run_id"] for row in rows] == tasks
    assert shell("cancel", "--package", "nightly", "--yes", "--json").stdout == "[]\n"
    again = shell("cancel", "--package", "nightly", "--workflow", "flow", "--yes")
    assert again.returncode == 0
    assert again.stdout.splitlines() == [f"already being cancelled: {run_id}" for run_id in flows]
    said = shell("explain", flows[0]).stdout
    assert said.startswith("cancellation requested (user) at "), said


def test_so_many_at_once_and_the_rest_next_time(
    shell: Shell, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancelling, "MOST", 4)
    monkeypatch.setattr(cancelling, "SHOWN", 2)
    runs = started(store, 6)
    done = shell("cancel", "--package", "nightly", "--yes")
    assert "and more than 2 more runs" in done.stderr
    assert "the oldest 4 are cancelled; repeat it for the others" in done.stderr
    assert len(asked(store)) == 4
    assert shell("cancel", "--package", "nightly", "--yes").returncode == 0
    assert asked(store) == set(runs)


@pytest.mark.parametrize(
    "words",
    [(), ("x", "--package", "p"), ("x", "--yes"), ("x", "--older-than", "1h"),
     ("--package", "p", "--status", "failed"), ("--package", "p", "--older-than", "soon")],
)  # fmt: skip
def test_what_is_meant_must_be_clear(sqlite_dsn: str, tmp_path: Path,
                                     words: tuple[str, ...]) -> None:  # fmt: skip
    assert Shell(tmp_path, sqlite_dsn)("cancel", *words).returncode == 2


# -- start --wait


@pytest.mark.parametrize(("code", "status", "leaves"), [(0, "succeeded", 0), (1, "failed", 1)])
def test_waiting_ends_with_the_run_and_its_exit_code(
    engine: Engine, shell: Shell, store: Store, code: int, status: str, leaves: int
) -> None:
    def drive() -> None:
        with closing(open_store(engine.dsn)) as other:
            while not (rows := other.read("run_state", status="running")):
                pass
            acting.admit(other, rows[0]["run_id"])
            acting.finish(other, rows[0]["run_id"], a=code)
            acting.advance(other, rows[0]["run_id"])

    driver = threading.Thread(target=drive)
    driver.start()
    done = shell("start", "nightly", "flow", "--wait")
    driver.join()
    assert done.returncode == leaves, done.stderr
    assert f"{status} after " in done.stdout and "run ru" in done.stderr
    key = store.read("run_state")[0]["run_key"]
    again = shell("start", "nightly", "flow", "--key", key, "--wait", "--json")
    assert (again.returncode, json.loads(again.stdout)["status"]) == (leaves, status)


def test_waiting_has_an_end_of_its_own(shell: Shell, store: Store, engine: Engine) -> None:
    done = shell("start", "nightly", "flow", "--wait", "--timeout", "1200ms")
    assert done.returncode == 6
    does = "drives this database" if engine.kind == "sqlite" else "executes for this database"
    assert f"is still running after 1s200ms; nobody {does} now" in done.stderr
    assert "it goes on" not in done.stderr
    (run,) = store.read("run_state")
    for short in ("r", "ru"):
        refused = shell("cancel", short)
        assert refused.returncode == 5 and f"'{short}' is too short" in refused.stderr
    assert asked(store) == set()
    acting.register(store)
    held = acting.admit(store, run["run_id"]) and acting.lease(store)
    acting.run(store, *held.values())
    if engine.kind == "postgres":
        done = shell(
            "start", "nightly", "flow", "--key", run["run_key"], "--wait", "--timeout", "1s"
        )
        assert "is still running after 1s; it goes on" in done.stderr
    assert store.read("run_state")[0]["status"] == "running" and asked(store) == set()
    assert shell("start", "nightly", "flow", "--timeout", "1s").returncode == 2


def test_ctrl_c_ends_the_waiting_alone(sqlite_dsn: str, tmp_path: Path) -> None:
    shell = Shell(tmp_path, sqlite_dsn)
    with closing(open_store(sqlite_dsn)) as store:
        acting.publish(store, {"a": []})
        output = tmp_path / "told"
        process = shell.begin("start", "nightly", "flow", "--wait", output=output)
        until(lambda: b"nobody drives" in output.read_bytes(), process, "it waits")
        os.kill(process.pid, signal.SIGINT)
        assert ended(process) == 130
        assert "no longer waiting; run ru" in output.read_text()
        assert store.read("run_state")[0]["status"] == "running" and asked(store) == set()
