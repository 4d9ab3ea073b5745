"""`workers`, and what `status` and `explain` say of workers that are away, on both engines."""

import json
from pathlib import Path
from typing import Any

import pytest

from qinglong_sql.cli import cells
from qinglong_sql.cli.reasons import OVERDUE_MS
from qinglong_sql.store import Store
from tests import acting
from tests.engines import Engine
from tests.screens import standing_still
from tests.shell import Shell
from tests.stores import FakeClock

BEAT_MS = 60_000


@pytest.fixture
def shell(engine: Engine, tmp_path: Path) -> Shell:
    return Shell(tmp_path, engine.dsn, {"COLUMNS": "80"})


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are of other machines: nothing is known of their folders."""
    monkeypatch.setattr("qinglong_sql.cli.sessions.worker_lives", lambda dsn, worker_id: None)
    monkeypatch.setattr("qinglong_sql.cli.standing.undriven", lambda store, dsn: False)


def beat(store: Store, worker: str, session: str = "s1") -> None:
    store.call("heartbeat_worker", p_worker_id=worker, p_session_id=session)


def registered(store: Store, worker: str, *queues: str, slots: int = 4) -> None:
    store.call("register_worker", p_worker_id=worker, p_session_id="s1", p_slots=slots,
               p_queues=json.dumps(queues or ("default",)), p_self_fencing=1,
               p_grace_ms=acting.GRACE_MS)  # fmt: skip
    beat(store, worker)


def told(shell: Shell, clock: FakeClock, *words: object, **env: str) -> str:
    with standing_still(clock.now_ms):
        done = shell(*words, "--utc", env=env or None)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def document(shell: Shell, clock: FakeClock, *words: object) -> Any:
    return json.loads(told(shell, clock, *words, "--json"))


def crew(store: Store, clock: FakeClock) -> str:
    """Four workers, one of each standing: the run of which two hold steps."""
    run_id = acting.begun(store, {"a": [], "b": [], "c": []}, on_lost="hold")
    for worker in ("host-a", "host-b", "host-c", "host-d"):
        registered(store, worker)
    acting.run(store, *acting.lease(store, "o1", "o2", worker="host-a", lease_ms=300_000).values())
    acting.run(store, *acting.lease(store, "o3", worker="host-b").values())
    store.call("drain_worker", p_worker_id="host-c")
    store.call("end_session", p_worker_id="host-d", p_session_id="s1")
    clock.advance(BEAT_MS + 30_000)
    beat(store, "host-a")
    beat(store, "host-c")
    clock.advance(4_000)
    return run_id


def test_every_worker_is_told_with_its_standing_and_what_it_holds(
    store: Store, clock: FakeClock, shell: Shell
) -> None:
    run = crew(store, clock)[:12]
    lines = told(shell, clock, "workers").splitlines()
    assert lines[0] == (
        "4 workers: 1 silent, 1 draining, 1 online, 1 offline; 2 of 8 slots busy (UTC)"
    )
    assert [line.split() for line in lines[1:] if not line.startswith("  ")] == [
        ["WORKER", "STANDING", "BUSY", "SEEN", "QUEUES"],
        ["host-b", "silent", "since", "22:13:20", "1/4", "1m34s", "ago", "default"],
        ["host-c", "draining", "0/4", "4.0s", "ago", "default"],
        ["host-a", "online", "2/4", "4.0s", "ago", "default"],
        ["host-d", "offline", "0/4", "1m34s", "ago", "default"],
    ]
    held = [line for line in lines if line.startswith("  ")]
    assert held == [
        f"  {run}  c#3  running  for 1m34s  lease ended 22:13:50",
        f"  {run}  a#1  running  for 1m34s  lease until 22:18:20",
        f"  {run}  b#2  running  for 1m34s  lease until 22:18:20",
    ]
    assert lines.index(held[0]) == 3 and lines.index(held[1]) == 6, "each below its worker"


def test_a_program_gets_all_of_it(store: Store, clock: FakeClock, shell: Shell) -> None:
    run_id = crew(store, clock)
    rows = {row["worker_id"]: row for row in document(shell, clock, "workers")}
    assert {name: row["standing"] for name, row in rows.items()} == {
        "host-a": "online", "host-b": "silent", "host-c": "draining", "host-d": "offline",
    }  # fmt: skip
    assert rows["host-a"]["queues"] == ["default"] and rows["host-a"]["busy_count"] == 2
    assert rows["host-c"]["drain_requested_at_ms"] and not rows["host-c"]["holds"]
    (held,) = rows["host-b"]["holds"]
    assert (held["run_id"], held["step_key"], held["number"]) == (run_id, "c", 3)
    assert held["attempt_id"] == f"{run_id}-3" and held["expires_at_ms"] < clock.now_ms
    assert document(shell, clock, "workers", "host-b") == rows["host-b"]


def test_a_standing_lease_is_a_sign_of_life_and_so_is_a_lock_on_this_machine(
    store: Store, clock: FakeClock, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    acting.begun(store, {"a": []})
    registered(store, "w1")
    registered(store, "w2")
    acting.run(store, *acting.lease(store, "o1", worker="w1", lease_ms=300_000).values())

    def standings() -> dict[str, str]:
        return {row["worker_id"]: row["standing"] for row in document(shell, clock, "workers")}

    clock.advance(BEAT_MS)
    assert standings() == {"w1": "online", "w2": "online"}
    clock.advance(1)
    assert standings() == {"w1": "online", "w2": "silent"}
    lives = "qinglong_sql.cli.sessions.worker_lives"
    monkeypatch.setattr(lives, lambda dsn, worker_id: worker_id == "w2")
    assert standings() == {"w1": "online", "w2": "online"}
    clock.advance(300_000)
    assert standings() == {"w1": "silent", "w2": "online"}


def test_lists_are_bounded_and_say_how_to_see_the_rest(
    store: Store, clock: FakeClock, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qinglong_sql.cli.workers.SHOWN", 2)
    acting.begun(store, {f"s{n}": [] for n in range(9)})
    for worker in ("w1", "w2", "w3"):
        registered(store, worker, slots=64)
    acting.run(store, *acting.lease(store, *map(str, range(9)), worker="w1").values())
    lines = told(shell, clock, "workers").splitlines()
    assert sum("running" in line for line in lines) == 5
    assert "  and 4 more: qinglong-sql workers w1" in lines
    assert lines[-1] == "and 1 worker more; --json has all of them"
    alone = told(shell, clock, "workers", "w1").splitlines()
    assert sum("running" in line for line in alone) == 9 and "w2" not in "".join(alone)
    done = shell("workers", "w11")
    assert (done.returncode, done.stderr) == (
        5, "refused: no worker 'w11'; did you mean w1? (`qinglong-sql workers` lists them)\n"
    )  # fmt: skip
    assert shell("worker", "drain", "w11").stderr == done.stderr


def test_without_a_worker_it_says_so(shell: Shell) -> None:
    assert shell("workers").stdout == "no worker has registered yet\n"
    assert json.loads(shell("workers", "--json").stdout) == []


@pytest.mark.parametrize("wide", [40, 60, 120])
def test_it_fits_the_screen(store: Store, clock: FakeClock, shell: Shell, wide: int) -> None:
    crew(store, clock)
    registered(store, "a-worker-with-a-name-of-36-characters"[:36], *(f"q{n}" for n in range(99)))
    lines = told(shell, clock, "workers", COLUMNS=str(wide)).splitlines()
    named = [line for line in lines[1:] if "36-char" not in line]
    assert max(map(cells.cells, named)) <= max(wide, 60), lines
    for name in ("host-a", "host-b", "silent since 22:13:20", "a#1  running"):
        assert any(name in line for line in lines), name
    assert ("lease until" in "".join(lines)) == (wide >= 60)


def test_colours_are_for_terminals_and_who_wants_them(
    store: Store, clock: FakeClock, shell: Shell
) -> None:
    crew(store, clock)
    assert "\x1b" not in told(shell, clock, "workers")
    painted = told(shell, clock, "workers", FORCE_COLOR="1")
    assert "\x1b[31mhost-b" in painted and "\x1b[33mhost-c" in painted
    assert "\x1b" not in told(shell, clock, "workers", FORCE_COLOR="1", NO_COLOR="1")


def test_status_names_workers_that_are_away_while_work_waits_for_them(
    store: Store, clock: FakeClock, shell: Shell
) -> None:
    run_id = acting.begun(store, {"a": [], "b": []})
    registered(store, "host-a", "default", "other")
    registered(store, "host-b", "idle")
    clock.advance(BEAT_MS + 1)
    assert [row["worker_id"] for row in document(shell, clock, "status")["workers"]] == ["host-a"]
    lines = told(shell, clock, "status").splitlines()
    at = lines.index("WORKERS AWAY, THOUGH WORK WAITS")
    assert lines[at + 2].split() == ["host-a", "silent", "1m", "ago", "2", "steps", "default"]
    (stuck,) = document(shell, clock, "status")["stuck"]
    assert stuck["words"].endswith("for 1m: host-a is silent")
    assert stuck["command"] == "qinglong-sql workers"
    beat(store, "host-a")
    store.call("drain_worker", p_worker_id="host-a")
    (stuck,) = document(shell, clock, "status")["stuck"]
    assert stuck["words"].endswith("for 1m: host-a is drained")
    assert stuck["command"] == "qinglong-sql worker undrain host-a"
    said = told(shell, clock, "explain", run_id)
    assert "host-a is drained" in said and "type: qinglong-sql worker undrain host-a" in said
    store.call("undrain_worker", p_worker_id="host-a")
    found = document(shell, clock, "status")
    assert found["ok"] and not found["workers"], "it says that it is there: all is well"
    assert not document(shell, clock, "explain", run_id)[0]["stuck"]


def test_a_queue_whose_worker_is_drained_is_stuck_at_once_and_stays_its_worker_s(
    store: Store, clock: FakeClock, shell: Shell
) -> None:
    registered(store, "worker-1", "default")
    registered(store, "worker-2", "other")
    store.call("drain_worker", p_worker_id="worker-1")
    run_id = acting.begun(store, {"a": []})
    (row,) = document(shell, clock, "explain", run_id)
    undrain = "qinglong-sql worker undrain worker-1"
    assert (row["stuck"], row["command"]) == (True, undrain)
    said = " ".join(told(shell, clock, "explain", run_id).split())
    assert "worker-1 is drained" in said and f"type: {undrain}" in said, said
    found = document(shell, clock, "status")
    (stuck,) = found["stuck"]
    assert (found["ok"], stuck["command"]) == (False, undrain), "both say the same"
    assert "stuck: 1 thing needs you" in told(shell, clock, "status").splitlines()[0]
    registered(store, "worker-3", "default")
    assert document(shell, clock, "status")["stuck"] == []
    assert not document(shell, clock, "explain", run_id)[0]["stuck"], "another one takes it"
    first = told(shell, clock, "status").splitlines()[0]
    assert "nothing is stuck, but worker worker-1 is draining, though work waits" in first


@pytest.mark.parametrize(
    ("away", "words"), [("silent", "host-a is silent"), ("offline", "host-a has left")]
)
def test_work_of_a_known_worker_is_not_for_this_machine(
    store: Store, clock: FakeClock, shell: Shell, away: str, words: str
) -> None:
    registered(store, "host-a")
    clock.advance(BEAT_MS + 1)
    if away == "offline":
        store.call("end_session", p_worker_id="host-a", p_session_id="s1")
    run_id = acting.begun(store, {"a": []})
    for late_ms in (0, OVERDUE_MS + 1):
        clock.advance(late_ms)
        (row,) = document(shell, clock, "explain", run_id)
        assert (row["command"], row["stuck"]) == ("qinglong-sql workers", late_ms > 0)
        said = " ".join(told(shell, clock, "explain", run_id).split())
        assert words in said and said.endswith(": qinglong-sql workers"), said


def test_what_a_silent_worker_held_is_not_taken_to_this_machine(
    store: Store, clock: FakeClock, shell: Shell
) -> None:
    run_id = acting.begun(store, {"a": []})
    registered(store, "host-b")
    acting.run(store, *acting.lease(store, "o1", worker="host-b").values())
    clock.advance(acting.LEASE_MS + acting.GRACE_MS + OVERDUE_MS)
    (row,) = document(shell, clock, "explain", run_id)
    does = "edge" if store.engine == "sqlite" else "control"
    assert row["command"] == f"qinglong-sql {does}"


def test_where_nobody_ever_served_a_queue_resume_says_what_it_does(
    store: Store, clock: FakeClock, shell: Shell
) -> None:
    registered(store, "host-a", "other")
    run_id = acting.begun(store, {"a": []})
    for late_ms in (0, OVERDUE_MS + 1):
        clock.advance(late_ms)
        (row,) = document(shell, clock, "explain", run_id)
        here = "edge" if store.engine == "sqlite" else f"resume {run_id[:12]}"
        assert row["command"] == f"qinglong-sql {here}"
        said = " ".join(told(shell, clock, "explain", run_id).split())
        assert ("executes on this machine" in said) == (store.engine == "postgres")


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ("", "worker host-b is silent since 22:13:50, and the task says on_lost: hold"),
        ("beats", "worker host-b is online (seen 0.0s ago), but lets the lease lie since 22:13:50"),
        ("drains", "worker host-b is draining (seen 0.0s ago), but lets the lease lie since"),
        ("ends", "worker host-b has left (offline), and the lease ended 22:13:50, and the task"),
    ],
)
def test_explain_names_the_worker_of_a_held_attempt_its_standing_and_the_way_out(
    store: Store, clock: FakeClock, shell: Shell, after: str, words: str
) -> None:
    run_id = acting.begun(store, {"a": []}, on_lost="hold")
    registered(store, "host-b")
    acting.run(store, *acting.lease(store, "o1", worker="host-b").values())
    clock.advance(acting.LEASE_MS + acting.GRACE_MS + OVERDUE_MS)
    acting.recover(store, run_id)
    if after:
        beat(store, "host-b")
    if after == "drains":
        store.call("drain_worker", p_worker_id="host-b")
    elif after == "ends":
        store.call("end_session", p_worker_id="host-b", p_session_id="s1")
    said = " ".join(told(shell, clock, "explain", run_id).split())
    assert words in said, said
    assert f"type: qinglong-sql attempt declare-stopped {run_id[:12]}-1 --reason" in said


def test_the_old_name_of_declare_stopped_still_works_and_is_not_listed(shell: Shell) -> None:
    said = shell("--help").stdout
    assert "declare-stopped" not in said and "  attempt " in said and "  workers " in said
    for words in (("attempt", "declare-stopped"), ("declare-stopped",)):
        assert "--then" in shell(*words, "--help").stdout
        done = shell(*words, "ru0-1", "--reason", "gone")
        assert done.returncode == 5 and "no run begins with" in done.stderr
    assert "did you mean attempt?" in shell("attemt").stderr
