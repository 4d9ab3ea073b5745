"""Answers that a worker does not get: it asks again, and nothing runs twice or too early."""

from typing import Any

import pytest

from tests.site import Site
from tests.wrapped import Forgetful, Wrapped


@pytest.mark.parametrize(
    "step",
    ["register_worker", "lease_attempts", "attempt_inputs", "start_attempts", "running_attempts",
     "report_attempts"],
)  # fmt: skip
def test_a_lost_answer_is_asked_for_again_and_nothing_runs_twice(place: Site, step: str) -> None:
    place.publish(
        "one: {run: 'echo one >> witness; sleep 0.2'}\n"
        "two: {run: 'echo two >> witness', needs: [one]}"
    )
    run_id = place.start()
    forgetful = Forgetful(place.store, step, times=2)
    assert place.finish(run_id, place.worker(store=forgetful))["status"] == "succeeded"
    assert place.lines("witness") == ["one", "two"]
    assert len(place.attempts(run_id)) == 2
    assert forgetful.left[step] == 0
    assert [str(error) for error in place.errors] == [f"the answer of {step} was lost"] * 2


def test_no_command_starts_before_the_start_is_answered(site: Site) -> None:
    site.publish("one: {run: 'touch ran'}")
    run_id = site.start()
    worker = site.worker(store=Forgetful(site.store, "start_attempts", times=1000))
    site.drive(worker, lambda: len(site.errors) >= 5)
    assert site.attempts(run_id)[0]["status"] == "starting"
    assert not site.path("ran").exists()
    worker.store = site.store  # the answers come again
    assert site.finish(run_id, worker)["status"] == "succeeded"


def test_a_batch_that_breaks_a_promise_holds_up_only_what_broke_it(site: Site) -> None:
    from qinglong_sql.errors import Conflict

    class Poisoned(Wrapped):
        def before(self, step: str, params: Any) -> None:
            if step == "start_attempts" and bad in params["p_commands"]:
                raise Conflict("a foreign writer")

    site.publish("bad: {run: 'touch bad'}\ngood: {run: 'touch good'}")
    run_id = site.start()
    bad = f'"{run_id}-1"'
    worker = site.worker(store=Poisoned(site.store))
    site.drive(worker, lambda: site.step(run_id, "good")["status"] == "succeeded")
    assert not site.path("bad").exists()
    bad = '"nothing"'
    assert site.finish(run_id, worker)["status"] == "succeeded"
