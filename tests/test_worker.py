"""The local worker on a real database with real launchers: what it runs, stops and renews."""

import json
import os
import time

import pytest

from qinglong_sql.execution import Execution, boottime_ms
from qinglong_sql.limits import OUTPUT_BYTES
from tests.site import Site, alive, running, wait
from tests.wrapped import Before

# --- what an execution is given, and what it gives back


def test_a_chain_of_three_runs_to_its_end_and_hands_its_outputs_on(place: Site) -> None:
    place.publish(
        """
        one: {run: 'echo first >> witness; echo "{\\"n\\": 1}" > $QL_OUTPUT'}
        two: {run: [/bin/sh, -c, "cp $QL_INPUT seen.two; echo second >> witness"], needs: [one]}
        three: {run: "cp $QL_INPUT seen.three; echo third >> witness; echo done", needs: [one, two]}
        """
    )
    run_id = place.start(text='{"who":"you"}')
    assert place.finish(run_id)["status"] == "succeeded"
    assert place.lines("witness") == ["first", "second", "third"]
    assert place.step(run_id, "one")["output"] == '{"n":1}'
    assert place.path("seen.two").read_text() == '{"input":{"who":"you"},"needs":{"one":{"n":1}}}'
    seen = json.loads(place.path("seen.three").read_text())
    assert seen["needs"] == {"one": {"n": 1}, "two": None}
    assert [one["status"] for one in place.attempts(run_id)] == ["succeeded"] * 3
    assert place.log(run_id, "three.3") == "done\n"
    assert place.store.read("violation") == []


def test_an_execution_knows_who_it_is_and_none_of_our_settings(site: Site) -> None:
    (site.work / "inner").mkdir()
    site.publish("one: {run: 'pwd; env', cwd: inner, env: {MODE: full, KEPT: own}}")
    inherited = {
        "PATH": os.environ["PATH"], "KEPT": "theirs", "QINGLONG_DSN": "postgresql://:secret@db",
        "QL_STEP": "outer", "ODD": "\udcff",
    }  # fmt: skip
    run_id = site.start()
    site.finish(run_id, site.worker(inherited=inherited))
    cwd, *lines = site.log(run_id, "one.1").splitlines()
    env = dict(line.split("=", 1) for line in lines)
    assert cwd == str(site.work / "inner")
    assert (env["QL_RUN_ID"], env["QL_STEP"], env["QL_ATTEMPT"]) == (run_id, "one", "1")
    assert env["QL_TRY"] == "1"
    assert (env["MODE"], env["KEPT"]) == ("full", "own")
    assert not any("secret" in line for line in lines) and "ODD" not in env


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("echo '[1]'", "not a JSON object"),
        ("echo 'no json'", "not the JSON"),
        ('echo "{\\"n\\": NaN}"', "not finite"),
        ("true", "QL_OUTPUT is empty"),
        (f'printf \'{{"n":"%{OUTPUT_BYTES}s"}}\' x', "larger"),
        ("head -c 300000 /dev/zero", "larger"),
    ],
)
def test_an_output_that_cannot_be_stored_fails_the_step(
    site: Site, written: str, told: str
) -> None:
    site.path("step.sh").write_text(f"{written} > $QL_OUTPUT\n")
    site.publish("one: {run: [sh, step.sh]}")
    run_id = site.start()
    assert site.finish(run_id)["status"] == "failed"
    (attempt,) = site.attempts(run_id)
    assert (attempt["status"], attempt["result_code"]) == ("failed", "bad_output")
    assert told in attempt["error"]


def test_an_output_may_be_neither_a_link_nor_a_pipe(site: Site) -> None:
    site.publish(
        """
        link: {run: "echo {} > other; ln -s $PWD/other $QL_OUTPUT"}
        pipe: {run: "mkfifo $QL_OUTPUT"}
        """
    )
    run_id = site.start()
    site.finish(run_id)
    assert {one["result_code"] for one in site.attempts(run_id)} == {"bad_output"}


def test_a_failure_tells_its_exit_code_and_outputs_of_failures_are_not_read(site: Site) -> None:
    site.publish("one: {run: 'echo no > $QL_OUTPUT; exit 7'}")
    run_id = site.start()
    assert site.finish(run_id)["status"] == "failed"
    (attempt,) = site.attempts(run_id)
    assert (attempt["exit_code"], attempt["result_code"]) == (7, "execution_failed")


def test_a_command_that_cannot_start_says_why(site: Site) -> None:
    site.publish("one: {run: [./missing.sh]}\ntwo: {run: 'true', cwd: nowhere}")
    run_id = site.start()
    site.finish(run_id)
    for attempt in site.attempts(run_id):
        assert attempt["result_code"] == "executor_start_failed"
        assert "missing.sh" in attempt["error"] or "nowhere" in attempt["error"]


def test_a_failed_step_is_tried_again_with_a_new_number(place: Site) -> None:
    place.publish(
        "first: {run: 'true'}\n"
        "one: {run: 'echo $QL_ATTEMPT $QL_TRY >> witness; [ $QL_TRY = 3 ]', needs: [first],"
        " retry: {attempts: 3, backoff: 50ms}}"
    )
    run_id = place.start()
    assert place.finish(run_id)["status"] == "succeeded"
    assert place.lines("witness") == ["2 1", "3 2", "4 3"]
    ends = [one["status"] for one in place.attempts(run_id)]
    assert ends == ["succeeded", "failed", "failed", "succeeded"]


def test_a_step_past_its_timeout_is_stopped_and_timed_out(place: Site) -> None:
    place.publish("one: {run: 'echo $$ > pid; exec sleep 60', timeout: 300ms}")
    run_id = place.start()
    began = time.monotonic()
    assert place.finish(run_id)["status"] == "timed_out"
    assert time.monotonic() - began < 6  # by its launcher, not at the next renewal
    assert not alive(place.pid("pid"))
    assert place.attempts(run_id)[0]["result_code"] == "execution_timed_out"


def test_no_more_run_at_once_than_there_are_slots(site: Site) -> None:
    site.publish(
        "\n".join(
            f"s{n}: {{run: 'ls running | wc -l >> most; touch running/{n}; sleep 0.1;"
            f" rm running/{n}'}}"
            for n in range(6)
        )
    )
    (site.work / "running").mkdir()
    assert site.finish(site.start(), site.worker(slots=2))["status"] == "succeeded"
    assert max(int(line) for line in site.lines("most")) <= 1


def test_only_its_queues_are_served(site: Site) -> None:
    site.publish("one: {run: 'true', queue: other}\ntwo: {run: 'true'}")
    run_id = site.start()
    worker = site.worker()
    site.drive(worker, lambda: site.step(run_id, "two")["status"] == "succeeded")
    assert site.step(run_id, "one")["status"] == "ready"
    worker.close()
    assert site.finish(run_id, site.worker(queues=["other"]))["status"] == "succeeded"


# --- cancellation


def test_a_cancelled_run_ends_after_its_executions_are_gone(place: Site) -> None:
    worker = place.worker()
    steps = """
        deaf: {run: "trap '' TERM; echo $$ > deaf; while :; do sleep 0.1; done"}
        twice: {run: "(setsid sleep 61 & echo $! > twice); sleep 60"}
        polite: {run: "trap 'echo bye; exit 0' TERM; echo $$ > pid; while :; do sleep 0.05; done"}
        """
    run_id = running(place, steps, worker)
    pids = [place.pid(name) for name in ("deaf", "twice", "pid")]
    assert all(alive(pid) for pid in pids)
    place.cancel(run_id)
    began = time.monotonic()
    seen: list[bool] = []

    def cancelled() -> bool:
        ended = place.run(run_id)["status"] == "cancelled"
        seen.append(ended or any(alive(pid) for pid in pids))
        if ended:
            assert not any(alive(pid) for pid in pids)
        return ended

    place.drive(worker, cancelled)
    assert time.monotonic() - began < 5  # not at the next renewal
    assert {one["status"] for one in place.attempts(run_id)} == {"cancelled"}
    assert "bye" in "".join(
        place.log(run_id, f"polite.{n}")
        for n in (1, 2, 3)
        if (place.state / "log" / run_id / f"polite.{n}.log").exists()
    )
    assert place.finish(run_id, worker)["result_code"] == "workflow_cancelled"


def test_a_start_under_an_intent_is_refused_and_nothing_runs(place: Site) -> None:
    place.publish("one: {run: 'touch ran'}")
    run_id = place.start()
    worker = place.worker(store=Before(place.store, "start_attempts", lambda: place.cancel(run_id)))
    assert place.finish(run_id, worker)["status"] == "cancelled"
    wait(lambda: worker.settle() == 0 and place.folders() == [], "the folder is gone")
    assert not place.path("ran").exists()
    assert place.attempts(run_id)[0]["starting_at_ms"] is None


def test_what_runs_of_one_run_can_be_stopped_hard(site: Site) -> None:
    worker = site.worker(stop_grace_ms=60_000)
    run_id = running(site, "deaf: {run: \"trap '' TERM; echo $$ > pid; sleep 60\"}", worker)
    worker.stop("shutdown", grace_ms=0, run_id="another")
    time.sleep(0.1)
    assert alive(site.pid("pid"))
    worker.stop("shutdown", grace_ms=0, run_id=run_id)
    assert site.finish(run_id, worker)["status"] == "failed"
    assert site.attempts(run_id)[0]["result_code"] == "execution_stopped"


def test_an_execution_whose_lease_was_taken_away_is_killed(place: Site) -> None:
    worker = place.worker(stop_grace_ms=60_000)
    run_id = running(place, "deaf: {run: \"trap '' TERM; echo $$ > pid; sleep 60\"}", worker)
    place.store.call(
        "declare_stopped",
        p_attempt_id=place.attempts(run_id)[0]["attempt_id"],
        p_reason="I unplugged it",
        p_actor="test",
        p_follow=None,
    )
    worker.renew_soon()
    began = time.monotonic()
    run = place.finish(run_id, worker)
    assert time.monotonic() - began < 10  # not at the end of its lease
    assert run["status"] == "failed" and not alive(place.pid("pid"))
    assert place.attempts(run_id)[0]["result_code"] == "execution_lost"


# --- leases


def test_a_lease_is_renewed_for_as_long_as_its_execution_runs(site: Site) -> None:
    worker = site.worker(lease_ms=5_000)
    run_id = running(site, "one: {run: 'echo $$ > pid; sleep 6'}", worker)
    first = site.attempts(run_id)[0]["lease_expires_at_ms"]
    assert site.finish(run_id, worker)["status"] == "succeeded"
    assert site.attempts(run_id)[0]["lease_expires_at_ms"] > first + 3_000


def test_the_lease_of_a_launcher_ends_before_that_of_the_database(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[tuple[int, int]] = []
    go = Execution.go

    def spy(self: Execution, lease_end_ms: int, deadline_ms: int | None = None) -> bool:
        left = site.attempts(run_id)[0]["lease_expires_at_ms"] - time.time_ns() // 1_000_000
        ends.append((lease_end_ms - boottime_ms(), left))
        return go(self, lease_end_ms, deadline_ms)

    monkeypatch.setattr(Execution, "go", spy)
    site.publish("one: {run: 'true'}")
    run_id = site.start()
    site.finish(run_id)
    ((launcher_ms, database_ms),) = ends
    assert database_ms - 2_000 < launcher_ms <= database_ms + 2  # two clocks, cut to whole ms


def test_a_lease_must_be_within_its_bounds(site: Site) -> None:
    for lease_ms in (4_999, 300_001):
        with pytest.raises(ValueError, match="a lease lasts"):
            site.worker(lease_ms=lease_ms)
