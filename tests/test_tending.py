"""The loop of a worker process: what it does for whom first, and how it ends (DESIGN §7, §9)."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qinglong_sql import session as sessions
from qinglong_sql import tending
from qinglong_sql.port import Away, Shut
from qinglong_sql.tending import Taken
from qinglong_sql.worker import Worker
from tests.site import Site, alive, wait
from tests.tended import Near, Tended

Make = Callable[..., Tended]
LONG = 'one: {run: "echo $QL_ATTEMPT >> witness; echo $$ > pid; exec sleep 60"}'


@pytest.fixture
def tended(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(tending, "HEARTBEAT_MS", 100)
    made: list[Tended] = []

    def make(*words: Any, **options: Any) -> Tended:
        made.append(Tended(site, *words, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def session(site: Site) -> dict[str, Any]:
    return site.store.read("worker_state", worker_id="w1")[0]


def test_who_is_shut_out_says_at_once_that_a_lease_is_over(tended: Make, site: Site) -> None:
    port = Near(site.dsn)
    one = tended(port, lease_ms=5_000)
    run_id = running(one)
    port.shut = True
    wait(lambda: one.lines("lease"), "the end of the lease is seen")
    assert one.lines("lease") == [f"run {run_id}: one #1: its lease is over, ended"]
    assert not alive(site.pid("pid")) and one.lines("ended") == []
    assert one.lines("away") == [
        "this worker is not let in: revoked; it is asked again every second, and what runs ends"
        " with its lease"
    ]
    port.shut = False
    one.until(lambda: one.lines("back"))
    assert len(one.lines("lease")) == 1


def test_a_door_that_is_away_and_then_shut_is_told_of_as_both(tended: Make, site: Site) -> None:
    port = Near(site.dsn)
    one = tended(port)
    one.until(lambda: one.lines("ready"))
    port.away = True
    wait(lambda: len(one.lines("away")) == 1, "it is away")
    port.shut = True
    wait(lambda: len(one.lines("away")) == 2, "it is shut")
    assert one.lines("away")[1].startswith("this worker is not let in: ")


def test_who_is_not_let_in_at_the_start_does_not_say_that_it_goes_on(
    tended: Make, site: Site
) -> None:
    port = Near(site.dsn)
    port.shut = True
    one = tended(port)
    one.ended()
    assert isinstance(one.error, Shut) and one.lines("away") == []


def running(one: Tended, steps: str = LONG) -> str:
    """A run whose step runs, and is known to."""
    one.site.publish(steps)
    run_id = one.site.start()
    one.until(lambda: [row["status"] for row in one.site.attempts(run_id)] == ["running"])
    wait(lambda: one.site.lines("pid"), "it has written its pid")
    return run_id


def test_a_run_goes_to_its_end_and_a_stop_ends_the_session(tended: Make, site: Site) -> None:
    one = tended()
    site.publish("a: {run: 'echo a >> witness'}\nb: {run: 'echo b >> witness', needs: [a]}")
    run_id = site.start()
    assert one.finish(run_id) == "succeeded"
    assert site.lines("witness") == ["a", "b"]
    assert {row["worker_id"] for row in site.attempts(run_id)} == {"w1"}
    assert session(site)["status"] == "online"
    assert one.stop() == "stopped"
    assert session(site)["status"] == "offline"
    assert one.lines("ready") == ["ready: leases what waits"]
    assert one.lines("trouble") == [] and one.lines("away") == []


def test_it_runs_in_the_folder_that_it_is_told(tended: Make, site: Site, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    one = tended(base_dir=tmp_path / "here")
    site.publish("a: {run: 'pwd > seen'}")
    assert one.finish(site.start()) == "succeeded"
    assert (tmp_path / "here" / "seen").read_text().strip() == str(tmp_path / "here")


def test_one_that_is_drained_leases_nothing_until_it_is_undrained(tended: Make, site: Site) -> None:
    one = tended()
    first = running(one)
    site.store.call("drain_worker", p_worker_id="w1")
    one.until(lambda: one.lines("drained"))
    second = site.start(key="second")
    one.until(lambda: site.attempts(second) != [])
    before = len(one.port.asked)
    one.until(lambda: one.port.asked[before:].count("heartbeat_worker") > 3)
    assert [row["status"] for row in site.attempts(second)] == ["claimed"]
    assert "lease_attempts" not in one.port.asked[before:]
    assert site.attempts(first)[0]["status"] == "running" and alive(site.pid("pid"))
    site.store.call("undrain_worker", p_worker_id="w1")
    one.until(lambda: site.attempts(second)[0]["status"] == "running")
    assert one.lines("undrained")


def test_a_worker_without_heartbeats_that_is_drained_leases_nothing_as_well(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a `run`, or of an edge: nobody waits for it to ask again and again."""
    monkeypatch.setattr(sessions, "DRAINED_MS", 200)
    worker = site.worker()
    site.publish("a: {run: 'true'}")
    site.finish(site.start(), worker)
    (row,) = site.store.read("worker_state")
    site.store.call("drain_worker", p_worker_id=row["worker_id"])
    second = site.start(key="second")
    end = time.monotonic() + 0.5
    site.drive(worker, lambda: time.monotonic() > end)
    assert [one["status"] for one in site.attempts(second)] == ["claimed"]
    assert [type(error).__name__ for error in site.errors] == ["Fenced"]
    site.store.call("undrain_worker", p_worker_id=row["worker_id"])
    assert site.finish(second, worker)["status"] == "succeeded"


def test_what_has_not_begun_is_handed_back_and_what_runs_goes_on(
    tended: Make, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start was sent and the answer lost, when it is to stop: no "go" was ever said."""
    one = tended()
    site.publish("a: {run: 'touch ran'}")
    one.until(lambda: one.lines("ready"))
    monkeypatch.setattr(Near, "call", _losing_starts(Near.call))
    run_id = site.start()
    one.until(lambda: [row["status"] for row in site.attempts(run_id)] == ["starting"])
    assert one.stop() == "stopped"
    (attempt,) = site.attempts(run_id)[:1]
    assert (attempt["status"], attempt["result_code"]) == ("lost", "not_started")
    assert site.step(run_id, "a")["status"] == "ready" and not site.path("ran").exists()
    assert not one.worker.held


def _losing_starts(call: Any) -> Any:
    def losing(self: Near, step: str, /, **params: Any) -> Any:
        rows = call(self, step, **params)
        if step == "start_attempts" and rows:
            raise Away("the door: no answer in time")
        return rows

    return losing


def test_who_is_replaced_leases_no_more_and_ends_what_it_runs(tended: Make, site: Site) -> None:
    one = tended()
    first = running(one, 'one: {run: "echo $$ > pid; while [ ! -e go ]; do sleep 0.05; done"}')
    other = tended(folder="other")
    one.until(lambda: one.lines("replaced"))
    site.publish("two: {run: 'true'}")
    second = site.start(key="second")
    assert one.finish(second) == "succeeded"
    site.path("go").touch()
    assert one.ended() == "replaced"
    assert session(site)["status"] == "online"  # the other's
    assert other.ending is None and other.lines("replaced") == []
    assert one.finish(first) == "succeeded"


def test_a_door_that_is_away_is_told_once_and_so_is_its_return(tended: Make, site: Site) -> None:
    port = Near(site.dsn)
    port.away = True
    one = tended(port)
    wait(lambda: len(port.asked) > 3, "it asked some times")
    port.away = False
    run_id = running(one)
    port.away = True
    before = len(port.asked)
    wait(lambda: len(port.asked) > before + 3, "it asked some times")
    one.worker.renew_soon()  # due at once, and the door does not answer
    before = len(port.asked)
    time.sleep(0.7)
    assert 0 < len(port.asked) - before < 8
    assert alive(site.pid("pid"))
    assert len(one.lines("away")) == 2 and len(one.lines("back")) == 1
    port.away = False
    site.cancel(run_id)
    one.worker.renew_soon()
    assert one.finish(run_id) == "cancelled"
    assert len(one.lines("away")) == len(one.lines("back")) == 2
    assert one.lines("back")[0].startswith("the door answers again, after ")
    assert one.lines("trouble") == []


def test_a_stop_is_bounded_and_a_process_of_the_same_folder_takes_over(
    tended: Make, site: Site
) -> None:
    first = tended(drain_ms=100)
    run_id = running(first)
    assert first.stop() == "stopped"
    assert "1 execution may go on for 30s" in first.lines("left")[0]
    pid = site.pid("pid")
    assert alive(pid)
    second = tended()
    second.until(lambda: second.lines("found") and second.lines("ready"))
    second.worker.renew_soon()
    expiry = site.attempts(run_id)[0]["lease_expires_at_ms"]
    second.until(lambda: site.attempts(run_id)[0]["lease_expires_at_ms"] > expiry, "renewed")
    site.cancel(run_id)
    second.worker.renew_soon()
    assert second.finish(run_id) == "cancelled" and not alive(pid)
    assert site.lines("witness") == ["1"]


def test_a_second_interrupt_kills_what_runs(tended: Make, site: Site) -> None:
    one = tended()
    run_id = running(one)
    one.interrupt()
    one.until(lambda: one.lines("draining"))
    assert one.stop() == "killed"
    assert not alive(site.pid("pid"))
    assert one.finish(run_id) == "failed"


def test_what_has_not_begun_when_an_operator_drains_is_handed_back(
    tended: Make, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = tended()
    site.publish("a: {run: 'echo ran >> witness'}")
    one.until(lambda: one.lines("ready"))
    real = Near.call
    monkeypatch.setattr(Near, "call", _losing_starts(real))
    run_id = site.start()
    one.until(lambda: [row["status"] for row in site.attempts(run_id)] == ["starting"])
    site.store.call("drain_worker", p_worker_id="w1")
    one.until(lambda: site.attempts(run_id)[0]["result_code"] == "not_started")
    assert one.ending is None and not site.path("witness").exists()
    monkeypatch.setattr(Near, "call", real)
    site.store.call("undrain_worker", p_worker_id="w1")
    assert one.finish(run_id) == "succeeded" and site.lines("witness") == ["ran"]


def test_one_process_a_folder_and_one_folder_a_name(tended: Make, site: Site) -> None:
    one = tended()
    one.until(lambda: one.lines("ready"))
    second = tended(Near(site.dsn))
    second.ended()
    assert isinstance(second.error, Taken)
    assert one.stop() == "stopped"
    other = tended(name="w2")
    other.ended()
    assert isinstance(other.error, ValueError) and "the folder of worker w1" in str(other.error)


def test_what_no_waiting_helps_ends_it_at_the_start(tended: Make, site: Site) -> None:
    one = tended(name="x" * 37)
    one.ended()
    assert "QL400" in str(one.error)


# --- what comes first


class Counted(Near):
    """A port that says when something was asked, and may take its time."""

    slow_s = 0.0

    def call(self, step: str, /, **params: object) -> Any:
        time.sleep(self.slow_s)
        return super().call(step, **params)


def test_a_tick_ends_with_its_first_lost_answer_and_asks_renewals_first(
    site: Site, tended: Make
) -> None:
    """Else a door that takes its time to lose each would cost the leases."""
    first = tended(drain_ms=1)
    run_id = running(first)
    assert first.stop() == "stopped"
    port = Near(site.dsn)
    worker = Worker(port, site.root / "state", name="w1", lease_ms=5_000, stop_grace_ms=500)
    site.workers.append(worker)
    while "renew_attempts" not in port.asked:  # taken over by then
        worker.settle()
    port.away = True
    for _ in range(3):
        port.asked.clear()
        worker.renew_soon()
        with pytest.raises(Away):
            worker.settle()
        assert port.asked == ["renew_attempts"]
    worker.stop("user", grace_ms=0)
    wait(lambda: _lost(worker) and port.asked[-1] == "report_attempts", "its end is heard of")
    (ended,) = worker.held.values()
    worker.held["x"] = replace(ended, attempt_id="x", phase="unproven", end=None)
    port.asked.clear()
    assert _lost(worker) and port.asked == ["report_attempts"]
    worker.held["x"].phase = "live"
    worker.renew_soon()
    port.asked.clear()
    assert _lost(worker) and port.asked == ["renew_attempts"]
    del worker.held["x"]
    port.away = False
    first.until(lambda: worker.settle() is not None and not worker.held and not site.folders())
    assert site.attempts(run_id)[0]["result_code"] == "execution_stopped"
    worker.close()
    port.close()


def _lost(worker: Worker) -> bool:
    """A tick whose answer does not come; never true while nothing is asked."""
    try:
        worker.settle()
    except Away:
        return True
    return False


def test_leases_live_although_every_answer_takes_its_time(tended: Make, site: Site) -> None:
    """A sixth of the lease for each call: none is renewed too late for that."""
    port = Counted(site.dsn)
    one = tended(port, lease_ms=5_000)
    run_id = running(one, 'one: {run: "echo $$ > pid; exec sleep 6"}')
    port.slow_s = 0.8
    assert one.finish(run_id) == "succeeded"
    port.slow_s = 0.0
    assert len(site.attempts(run_id)) == 1


def test_a_registration_that_comes_late_ends_no_newer_one(tended: Make, site: Site) -> None:
    """The answer was lost: the same session is asked for, so a late first one changes nothing."""
    port = Near(site.dsn)
    port.lose = {"register_worker"}
    one = tended(port)
    one.until(lambda: one.lines("ready"))
    assert session(site)["generation"] == 1
    assert port.asked.count("register_worker") == 2
