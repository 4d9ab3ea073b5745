"""`status`: what it finds stuck, what it shows, and what that costs."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qinglong_sql.cli import standing
from qinglong_sql.cli.reasons import OVERDUE_MS, Screen, reason_of, screen_of, waits
from qinglong_sql.cli.status import headlines, last_words
from qinglong_sql.store import Store
from qinglong_sql.store.sqlite import SqliteStore
from tests import acting
from tests.engines import Engine
from tests.screens import Facts, prepared, standing_still
from tests.shell import Shell
from tests.stores import FakeClock


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return prepared(tmp_path_factory.mktemp("status"))


def found_by(
    store: Store, clock: FakeClock, dsn: str, *, driven: bool = True, later_ms: int = 0
) -> dict[str, Any]:
    """The document, as if somebody worked on the database or nobody."""
    now = clock.now_ms + later_ms
    with standing_still(now), pytest.MonkeyPatch.context() as patch:
        patch.setattr(standing, "undriven", lambda store, dsn: not driven)
        return standing.standing(store, Screen(now, True, store.engine), dsn)


def kinds(found: dict[str, Any]) -> list[str]:
    return sorted(row["waits_for"] for row in found["stuck"])


def test_all_is_well_stands_in_the_first_line(sqlite_dsn: str, tmp_path: Path) -> None:
    shell = Shell(tmp_path, sqlite_dsn)
    done = shell("status", "--check", env={"LANG": "C.UTF-8"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "✔ all is well: nothing is stuck, 0 open runs"
    assert "none; `qinglong-sql edge` starts one" in done.stdout


def test_the_last_run_of_a_target_is_told_when_it_failed(
    store: Store, engine: Engine, clock: FakeClock, tmp_path: Path
) -> None:
    run_id = acting.begun(store, {"a": []})
    acting.finish(store, run_id, a=1)
    acting.advance(store, run_id)
    shell = Shell(tmp_path, engine.dsn, {"COLUMNS": "80"})
    minute = ("status", "--check", "--failed-since", "1m")
    with standing_still(clock.now_ms):
        done = shell("status", "--check", "--utc")
        first = done.stdout.splitlines()[0]
        words = "! nothing is stuck, but the last run of nightly/flow failed at"
        assert first == f"{words} 22:13:20"
        assert (done.returncode, shell(*minute).returncode) == (0, 1)
    with standing_still(clock.now_ms + 60_000):
        assert shell(*minute).returncode == 0, "longer ago"
        assert shell("status").stdout.startswith("! nothing is stuck, but the last run")
    assert shell("status", "--failed-since", "1m").returncode == 2
    clock.advance(5)
    acting.cancel(store, acting.start(store, key="three"))
    again = acting.start(store, key="two")
    with standing_still(clock.now_ms):
        assert shell("status", "--json").stdout.count('"last_failed": [{') == 1, "one is open"
    acting.admit(store, again)
    acting.finish(store, again, a=0)
    acting.advance(store, again)
    found = found_by(store, clock, engine.dsn)
    assert not found["last_failed"] and len(found["ended"]) == 2
    for number in range(standing.ENDED):  # others, so that it is not among the last that ended
        clock.advance(5)
        task = acting.start(store, "task", key=str(number))
        acting.admit(store, task)
        acting.finish(store, task, main=1 if number == 4 else 0)
        acting.advance(store, task)
    found = found_by(store, clock, engine.dsn)
    assert [row["target_key"] for row in found["last_failed"]] == ["work"]
    screen, (row,) = Screen(clock.now_ms, True, store.engine), found["last_failed"]
    assert last_words([row] * 2, screen).endswith(", and the last run of 1 more failed as well")
    assert last_words([row] * 9, screen).endswith(", and the last runs of 8 more failed as well")


def test_what_nobody_works_on_is_told_at_once(
    store: Store, engine: Engine, clock: FakeClock, tmp_path: Path
) -> None:
    run_id = acting.begun(store, {"a": [], "b": []})
    acting.run(store, *acting.lease(store, "o1").values())
    found = found_by(store, clock, engine.dsn, driven=False)
    assert (found["ok"], found["driven"]) == (True, False), "whoever starts it may be on the way"
    with standing_still(clock.now_ms):
        lines = headlines(found, Screen(clock.now_ms, True, store.engine))
    words = "! nobody works on this database; 1 run waits: qinglong-sql edge"
    if store.engine == "postgres":
        words = (
            "! nobody executes for this database; 1 run waits: `qinglong-sql worker` does, beside a"
            f" control process, or `qinglong-sql resume {run_id[:12]}` on this machine"
        )
    assert lines == [(words, "yellow")]
    late = standing.HANDOVER_MS + 1
    assert found_by(store, clock, engine.dsn, driven=False, later_ms=late - 1)["ok"]
    assert not found_by(store, clock, engine.dsn, driven=False, later_ms=late)["ok"]
    assert found_by(store, clock, engine.dsn, later_ms=late)["ok"]
    long_after = found_by(store, clock, engine.dsn, driven=False, later_ms=3_600_000)
    assert not long_after["stuck"], "one cause is told once"
    assert found_by(store, clock, engine.dsn, later_ms=3_600_000)["stuck"]
    (row,) = found["open"]
    assert row["run_id"] == run_id
    assert row["waits_for"] in ("a runs; b: in queue default for 0.0s",
                                "b runs; a: in queue default for 0.0s")  # fmt: skip


def test_open_runs_without_a_running_attempt_are_listed(
    store: Store, engine: Engine, clock: FakeClock
) -> None:
    tasks = {"work": acting.task(retry={"attempts": 2, "backoff_ms": 20_000})}
    acting.publish_model(
        store, acting.model(tasks, {"flow": acting.workflow({"a": [], "b": ["a"]})})
    )
    waiting = acting.start(store, key="1")
    acting.admit(store, waiting)
    acting.finish(store, waiting, a=1)
    acting.advance(store, waiting)
    clock.advance(5)
    runs = [waiting, *(acting.start(store, key=str(number)) for number in range(2, 14))]
    found = found_by(store, clock, engine.dsn)
    assert {row["run_id"] for row in found["open"]} == set(runs) and not found["running"]
    assert found["open"][0]["run_id"] == waiting, "the oldest first"
    assert found["open"][0]["waits_for"].startswith("a: ")
    assert "again at" in found["open"][0]["waits_for"]
    assert {row["waits_for"] for row in found["open"][1:]} == {"a: could go on"}


def test_the_table_of_open_runs_is_bounded(store: Store, engine: Engine, tmp_path: Path) -> None:
    acting.publish(store, {"a": []})
    for number in range(12):
        acting.start(store, key=str(number))
    told = Shell(tmp_path, engine.dsn)("status").stdout
    assert told.count("a: could go on") + told.count("nobody does it") == 10
    assert "\nand 2 more\n" in told


def test_a_fault_is_stuck_however_many_older_runs_are_open(
    store: Store, engine: Engine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qinglong_sql.cli.standing.LOOKED_AT", 3)
    acting.publish(store, {"a": []})
    runs = [acting.start(store, key=str(number)) for number in range(5)]
    store.call("record_fault", p_run_id=runs[4], p_stage="frontier", p_error="QL500 broken")
    found = found_by(store, clock, engine.dsn)
    assert [row["run_id"] for row in found["stuck"] if row["waits_for"] == "fault"] == runs[4:]
    assert not found["ok"] and found["looked_at_count"] == 4


def test_check_tells_monitoring_what_is_stuck(facts: Facts) -> None:
    with standing_still(facts.now_ms):
        plain, checked = facts.shell("status"), facts.shell("status", "--check", "--json")
    assert (plain.returncode, checked.returncode) == (0, 1)
    first, second = plain.stdout.splitlines()[:2]
    assert first == "! nobody works on this database; 4 runs wait: qinglong-sql edge"
    assert second == "✘ stuck: 2 things need you, 4 open runs"
    assert "nobody looks at the clock" not in plain.stdout  # one cause is told once
    told = json.loads(checked.stdout)
    assert not told["ok"] and kinds(told) == ["fault", "hold"]
    for row in told["stuck"]:
        assert row["command"].startswith("qinglong-sql ") and row["words"] and row["then"]
        assert row["command"] in plain.stdout
    assert told["database"]["file"] == "qinglong.db" and told["database"]["size_bytes"] > 10_000
    assert told["edge"] is None
    assert {row["step_key"] for row in told["running"]} == {"main", "check", "extract"}
    assert [row["trigger_key"] for row in told["packages"][0]["triggers"]] == ["night"]
    assert [row["status"] for row in told["ended"]] == ["cancelled", "failed", "succeeded"]


def test_what_is_long_due_and_not_done_is_stuck(
    store: Store, engine: Engine, clock: FakeClock
) -> None:
    acting.publish(store, {"a": []})
    for number in range(3):
        acting.start(store, key=str(number))
    clock.advance(OVERDUE_MS)
    found = found_by(store, clock, engine.dsn)
    assert found["ok"] and found["open_count"] == 3
    assert [(row["stage"], row["due_count"]) for row in found["due"]] == [("task_admission", 3)]
    clock.advance(1)
    found = found_by(store, clock, engine.dsn)
    assert kinds(found) == ["scheduler"] and not found["ok"]
    oldest = found["due"][0]["oldest_run_id"][:12]
    wanted = "qinglong-sql edge" if store.engine == "sqlite" else f"qinglong-sql resume {oldest}"
    assert found["stuck"][0]["command"] == wanted


def test_a_queue_without_a_worker_is_stuck_and_a_busy_one_is_not(
    store: Store, engine: Engine, clock: FakeClock
) -> None:
    run_id = acting.begun(store, {"a": [], "b": []})
    clock.advance(OVERDUE_MS + 1)
    found = found_by(store, clock, engine.dsn)
    assert kinds(found) == ["worker"] and found["stuck"][0]["count"] == 2
    acting.run(store, *acting.lease(store, "o1").values())
    found = found_by(store, clock, engine.dsn)
    assert found["ok"] and len(found["running"]) == 1
    with standing_still(clock.now_ms):
        screen = screen_of(store, engine.dsn, True, "")
    assert not any(reason_of(row, screen).stuck for row in waits(store, run_id))


def test_a_worker_that_lives_serves_all_of_its_queues(
    store: Store, engine: Engine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slots may all be taken by another queue: that is no trouble."""
    acting.begun(store, {"a": []})
    tasks = {"work": acting.task(), "other": acting.task(queue="other")}
    flow = {"steps": {"b": {"needs": [], "task": "other"}}, "timeout_ms": None}
    acting.publish_model(store, acting.model(tasks, {"flow": flow}))
    acting.admit(store, acting.start(store, key="two"))
    store.call("register_worker", p_worker_id="w1", p_session_id="s1", p_slots=1,
               p_queues='["default","other"]', p_self_fencing=1, p_grace_ms=0)  # fmt: skip
    acting.run(store, *acting.lease(store, "o1", worker="w1", lease_ms=300_000).values())
    clock.advance(OVERDUE_MS + 1)
    assert found_by(store, clock, engine.dsn)["ok"]
    clock.advance(240_000)
    assert kinds(found_by(store, clock, engine.dsn)) == ["queue"], "its lease is over"
    monkeypatch.setattr(standing, "edge_of", lambda dsn: {"queues": ["other"]})
    assert found_by(store, clock, engine.dsn)["ok"]
    clock.advance(OVERDUE_MS)
    monkeypatch.undo()
    assert kinds(found_by(store, clock, engine.dsn)) == ["scheduler"], "one cause is told once"


def test_a_silent_worker_is_stuck_once_its_lease_is_over(
    store: Store, engine: Engine, clock: FakeClock
) -> None:
    run_id = acting.begun(store, {"a": []}, on_lost="hold")
    acting.run(store, *acting.lease(store).values())
    assert found_by(store, clock, engine.dsn)["ok"]
    clock.advance(acting.LEASE_MS + acting.GRACE_MS + 1)
    acting.recover(store, run_id)
    (row,) = found_by(store, clock, engine.dsn)["stuck"]
    assert row["waits_for"] == "hold"
    assert row["command"].startswith(f"qinglong-sql attempt declare-stopped {run_id[:12]}-1 ")


def test_counts_are_bounded(
    store: Store, engine: Engine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "COUNTED", 2)
    monkeypatch.setattr(standing, "LOOKED_AT", 1)
    acting.publish(store, {"a": []})
    for number in range(4):
        acting.start(store, key=str(number))
    found = found_by(store, clock, engine.dsn)
    assert (found["open_count"], found["open_more"], found["looked_at_count"]) == (2, True, 1)
    assert [(row["due_count"], row["more"]) for row in found["due"]] == [(2, True)]


def test_what_the_edge_says_is_shown_and_its_bad_files_need_somebody(
    facts: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [{"file": "good.yaml", "faults": []}, {"file": "b d.yaml", "faults": ["b d.yaml:3: x"]}]
    said: dict[str, Any] = {
        "pid": 77, "state": "running", "since_ms": facts.now_ms - 5_000, "slots": 4, "busy": 2,
        "packages": {"folder": "/srv/jobs", "fault": None, "files": files},
        "last_error": {"at_ms": facts.now_ms, "words": "disk full"},
    }  # fmt: skip
    monkeypatch.setattr("qinglong_sql.door.ask", lambda folder, word: said)
    told = facts.screen("status")
    assert "edge      running, pid 77, since 00:23:49, 2 of 4 slots busy" in told
    assert "last error at 00:23:54: disk full" in told
    assert "? package file '/srv/jobs/b d.yaml'\n  not published: b d.yaml:3: x" in told
    assert "type:  qinglong-sql check '/srv/jobs/b d.yaml'" in told
    said.clear()
    assert "edge      there, pid ?" in facts.screen("status"), "keys may be missing"


def test_a_password_is_never_shown() -> None:
    for dsn in (
        "postgresql://ann:se%20cret@db.example:6432/jobs",
        "postgresql:///jobs?host=db.example&user=ann&password=se%20cret&port=6432",
    ):
        place = standing.database_of(dsn)
        assert place == {"engine": "postgres", "host": "db.example", "port": "6432",
                         "dbname": "jobs"}  # fmt: skip


def effort(path: Path, now_ms: int) -> int:
    """Instructions of SQLite, in hundreds, that one look at the whole database takes."""
    count = 0

    def one_more() -> int:
        nonlocal count
        count += 1
        return 0

    with closing(SqliteStore(path)) as store:
        store._connection.set_progress_handler(one_more, 100)
        standing.standing(store, Screen(now_ms, True, "sqlite"), f"sqlite:///{path}")
    return count


def ended_once_more(path: Path, run_id: str, times: int) -> None:
    """Copies of an ended run, older than it, with its steps and attempts."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create temp table clone (n integer)")
        connection.executemany("insert into clone values (?)", ((n,) for n in range(times)))
        for table in ("run", "step_run", "task_attempt", "attempt_lease"):
            named = [row[1] for row in connection.execute(f"pragma table_info({table})")]
            new = {
                **dict.fromkeys(("run_id", "attempt_id"), "substr({}, 1, 20) || printf('%06d', n)"
                                                          " || substr({}, 27)"),
                "run_key": "{} || n", "admitted_at_ms": "{} - n",
            }  # fmt: skip
            values = ", ".join(new.get(name, "{}").format(*[f"t.{name}"] * 2) for name in named)
            connection.execute(
                f"insert into {table} ({', '.join(named)}) select {values} from clone"
                f" cross join {table} as t where t.run_id = ?", [run_id]
            )  # fmt: skip
        connection.commit()


def test_what_has_ended_costs_nothing(tmp_path: Path) -> None:
    facts = prepared(tmp_path)
    path = tmp_path / "qinglong.db"
    before = effort(path, facts.now_ms)
    ended_once_more(path, facts.runs["bad"], 3_000)
    after = effort(path, facts.now_ms)
    assert before > 20 and after < before * 1.2 + 20, (before, after)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("drop index run_open")
    assert effort(path, facts.now_ms) > 2 * after, "without its index it walks"
