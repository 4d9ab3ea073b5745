"""The loop of one process: it wakes by itself, tells errors, goes on, gives up, drains."""

import os
import threading
import time
from typing import Any

import pytest

from qinglong_sql.drive import drain, drive
from qinglong_sql.errors import Conflict, NotReady
from qinglong_sql.scheduler import EDGE, StageFailed
from qinglong_sql.store import Store
from tests.site import Site
from tests.wrapped import Wrapped


class Failing(Wrapped):
    """A store whose pages of one stage, or whose steps, raise while `left` lasts."""

    def __init__(self, store: Store, name: str, error: Exception, left: int = 10**9) -> None:
        super().__init__(store)
        self.name, self.error, self.left = name, error, left

    def before(self, step: str, params: Any) -> None:
        if step == self.name and self.left:
            self.left -= 1
            raise self.error

    def page(self, stage: Any, after: tuple[int, str], limit: int) -> list[dict[str, Any]]:
        self.before(stage.name, {})
        return self.store.page(stage, after, limit)


CHAIN = "s0: {run: 'true'}\n" + "\n".join(
    f"s{n}: {{run: 'true', needs: [s{n - 1}]}}" for n in range(1, 8)
)


def test_a_finished_execution_wakes_the_loop_directly(
    place: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def impatient(previous_ms: float, *, applied: bool, idle_ms: float) -> float:
        return 0.0 if applied else 60_000.0

    monkeypatch.setattr("qinglong_sql.drive.next_delay", impatient)
    place.publish("one: {run: 'sleep 1'}\ntwo: {run: 'true', needs: [one]}")
    began = time.monotonic()
    assert place.finish(place.start())["status"] == "succeeded"
    assert time.monotonic() - began < 5


def test_an_end_that_is_heard_during_a_cycle_is_told_at_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expiry asks the worker what it owes: what was heard then wakes nobody any more."""

    class Slow(Wrapped):
        def page(self, stage: Any, after: tuple[int, str], limit: int) -> list[dict[str, Any]]:
            if stage.name == "deadline" and self.read("attempt_state", status="starting"):
                time.sleep(0.5)  # after `settle` and before expiry it begins and ends
            return self.store.page(stage, after, limit)

    monkeypatch.setattr(
        "qinglong_sql.drive.next_delay",
        lambda previous_ms, *, applied, idle_ms: 0.0 if applied else 60_000.0,
    )
    site.publish("one: {run: 'true'}\ntwo: {run: 'true', needs: [one]}")
    began = time.monotonic()
    assert site.finish(site.start(), store=Slow(site.store))["status"] == "succeeded"
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("options", [{}, {"pages": EDGE}])
def test_a_chain_runs_without_waiting_for_the_cadence(site: Site, options: dict[str, Any]) -> None:
    site.publish(CHAIN)
    began = time.monotonic()
    assert site.finish(site.start(), idle_ms=60_000, **options)["status"] == "succeeded"
    assert time.monotonic() - began < 10
    assert site.errors == []


def test_it_does_nothing_when_there_is_nothing_to_wait_for(site: Site) -> None:
    drive(None, None, lambda: True)  # type: ignore[arg-type]


def test_changes_are_told_and_idle_ticks_are_not(site: Site) -> None:
    changes: list[str] = []
    site.publish("one: {run: 'true'}")
    run_id = site.start()
    worker = site.worker()
    site.finish(run_id, worker, on_change=lambda: changes.append(site.run(run_id)["status"]))
    assert changes and changes[-1] == "succeeded"
    told, end = len(changes), time.monotonic() + 0.3
    site.drive(worker, lambda: time.monotonic() > end, on_change=lambda: changes.append("idle"))
    assert len(changes) == told


def test_a_failing_stage_is_told_and_tried_again(place: Site) -> None:
    place.publish("one: {run: 'true'}")
    store = Failing(place.store, "frontier", ConnectionError("gone"), left=3)
    assert place.finish(place.start(), store=store)["status"] == "succeeded"
    assert len(place.errors) == 3
    assert all(isinstance(error, StageFailed) for error in place.errors)


def test_executions_are_reported_and_renewed_while_a_stage_fails(site: Site) -> None:
    site.publish("one: {run: 'echo $$ > pid; sleep 0.3'}")
    run_id = site.start()
    worker = site.worker()
    site.drive(worker, lambda: site.lines("pid") != [])
    store = Failing(site.store, "deadline", ConnectionError("gone"))
    site.drive(worker, lambda: site.step(run_id, "one")["status"] == "succeeded", store=store)
    assert site.errors
    assert site.finish(run_id, worker)["status"] == "succeeded"


def test_nothing_new_is_leased_after_a_failed_stage(site: Site) -> None:
    site.publish("one: {run: 'touch ran'}")
    run_id = site.start()
    worker = site.worker(queues=["another"])
    site.drive(worker, lambda: site.attempts(run_id) != [])
    worker.close()
    store = Failing(site.store, "retry", ConnectionError("gone"))
    worker = site.worker()
    site.drive(worker, lambda: len(site.errors) > 5, store=store)
    assert worker.held == {} and not site.path("ran").exists()


def test_what_time_cannot_heal_is_raised_at_once(site: Site) -> None:
    store = Failing(site.store, "expiry", NotReady("not the shipped schema"))
    with pytest.raises(StageFailed) as raised:
        drive(store, site.worker(), lambda: False)
    assert isinstance(raised.value.__cause__, NotReady)


def test_it_gives_up_when_every_tick_failed_for_long(site: Site) -> None:
    store = Failing(site.store, "expiry", ConnectionError("gone"))
    began = time.monotonic()
    with pytest.raises(StageFailed):
        drive(
            store, site.worker(), lambda: False, idle_ms=20, give_up_ms=300
        )  # fmt: skip
    assert 0.3 <= time.monotonic() - began < 5


def test_a_wait_ends_when_somebody_writes_to_wake(site: Site) -> None:
    read, write = os.pipe()
    woken: list[float] = []
    timer = threading.Timer(0.3, os.write, (write, b"x"))
    try:
        worker = site.worker()
        began = time.monotonic()
        timer.start()

        def until() -> bool:
            woken.append(time.monotonic() - began)
            return woken[-1] > 0.25

        drive(site.store, worker, until, idle_ms=60_000, wake=read)
        # From the back-off's long waits only the byte can have ended the last one.
        assert woken[-1] < 2
    finally:
        timer.join()
        os.close(read)
        os.close(write)


def test_a_drain_finishes_what_is_held_and_takes_nothing_new(site: Site) -> None:
    site.publish(
        "one: {run: 'echo $$ > pid; sleep 0.3; echo one >> witness'}\n"
        "two: {run: 'echo two >> witness', needs: [one]}"
    )
    run_id = site.start()
    worker = site.worker()
    site.drive(worker, lambda: site.lines("pid") != [])
    assert drain(site.store, worker, idle_ms=50)
    assert site.lines("witness") == ["one"] and site.run(run_id)["status"] == "running"
    site.finish(run_id, worker)


def test_a_drain_is_bounded(site: Site) -> None:
    site.publish("one: {run: 'echo $$ > pid; sleep 60'}")
    run_id = site.start()
    worker = site.worker()
    site.drive(worker, lambda: site.lines("pid") != [])
    began = time.monotonic()
    assert not drain(site.store, worker, within_ms=200, idle_ms=50)
    assert time.monotonic() - began < 2
    worker.stop("shutdown", grace_ms=0)
    site.finish(run_id, worker)


def test_what_ended_here_is_reported_before_it_is_declared_lost(place: Site) -> None:
    """The database answers nothing of the report until the lease and its grace are long over."""
    place.publish("one: {run: 'echo $$ > pid; sleep 0.5; echo one >> witness'}")
    run_id = place.start()
    worker = place.worker(lease_ms=5_000)
    place.drive(worker, lambda: all(one.told_running for one in worker.held.values()) and
                place.lines("pid") != [])  # fmt: skip
    stalled = Stalled(place.store)
    worker.store = stalled
    began = time.monotonic()
    place.drive(worker, lambda: time.monotonic() - began > 9)
    (attempt,) = place.attempts(run_id)
    assert (attempt["status"], place.lines("witness")) == ("running", ["one"])
    stalled.answers = True
    assert place.finish(run_id, worker)["status"] == "succeeded"


class Stalled(Wrapped):
    answers = False

    def before(self, step: str, params: Any) -> None:
        if not self.answers:
            raise TimeoutError("the database is held by somebody else")


def test_an_end_that_comes_while_the_stages_wait_is_reported_first(site: Site) -> None:
    site.publish("one: {run: 'echo $$ > pid; sleep 1'}")
    run_id = site.start()
    worker = site.worker(lease_ms=5_000)
    site.drive(worker, lambda: site.lines("pid") != [])
    site.drive(worker, lambda: all(one.told_running for one in worker.held.values()))

    class Slow(Wrapped):
        waited = False

        def page(self, stage: Any, after: tuple[int, str], limit: int) -> list[dict[str, Any]]:
            if stage.name == "deadline" and not self.waited:
                self.waited = True
                time.sleep(9)
            return self.store.page(stage, after, limit)

    assert site.finish(run_id, worker, store=Slow(site.store))["status"] == "succeeded"


def test_a_report_that_is_refused_does_not_hold_up_recovery(site: Site) -> None:
    class Refusing(Wrapped):
        def before(self, step: str, params: Any) -> None:
            if step == "report_attempts":
                raise Conflict("a foreign writer")

    site.publish("one: {run: 'true'}")
    run_id = site.start()
    worker = site.worker(store=Refusing(site.store), lease_ms=5_000)
    site.drive(worker, lambda: site.run(run_id)["status"] != "running")
    assert site.attempts(run_id)[0]["result_code"] == "execution_lost"
    worker.store = site.store
    site.drive(worker, lambda: not worker.held)
