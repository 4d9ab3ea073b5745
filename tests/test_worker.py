"""The local worker on a real database with real launchers: what it runs, tells and cleans up."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from qinglong_sql.execution import Execution, Receipt, boottime_ms, read_journal, write_journal
from qinglong_sql.limits import ERROR_BYTES, OUTPUT_BYTES
from qinglong_sql.store import Store
from qinglong_sql.worker import Worker
from qinglong_sql.workplace import End, Gone, end_of, environment, read_output
from tests.engines import Engine
from tests.site import PATIENCE_S, Site, alive, kill_all_of, opened, processes_of, wait
from tests.wrapped import Wrapped

ONCE = 'extract: {run: "echo $QL_ATTEMPT >> witness; echo $$ > pid; exec sleep 60"}'


@pytest.fixture
def site(sqlite_dsn: str, tmp_path: Path) -> Iterator[Site]:
    with opened(sqlite_dsn, tmp_path) as site:
        yield site


@pytest.fixture
def place(engine: Engine, tmp_path: Path) -> Iterator[Site]:
    """A site on SQLite, and one on PostgreSQL."""
    with opened(engine.dsn, tmp_path) as site:
        yield site


def running(site: Site, steps: str, worker: Worker, pid: str = "pid", head: str = "") -> str:
    """Start a run and drive it until a step has written its pid."""
    site.publish(steps, head=head)
    run_id = site.start()
    site.drive(worker, lambda: site.lines(pid) != [])
    site.drive(worker, lambda: all(one.told_running for one in worker.held.values()))
    return run_id


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


# --- answers that are lost


class Before(Wrapped):
    """A store that does something before a step is called for the first time."""

    def __init__(self, store: Store, step: str, work: Any) -> None:
        super().__init__(store)
        self.step, self.work = step, work

    def before(self, step: str, params: Any) -> None:
        if step == self.step and self.work and '"attempt_id"' in str(params):
            work, self.work = self.work, None
            work()


class Forgetful(Wrapped):
    """A store that commits and then loses the answer, the first `times` of each step."""

    def __init__(self, store: Store, *steps: str, times: int = 1) -> None:
        super().__init__(store)
        self.left = dict.fromkeys(steps, times)

    def after(self, step: str, rows: list[dict[str, Any]]) -> None:
        if self.left.get(step) and rows:
            self.left[step] -= 1
            raise ConnectionError(f"the answer of {step} was lost")


class Unsent(Wrapped):
    """A store that no start reaches."""

    def before(self, step: str, params: Any) -> None:
        if step == "start_attempts" and "identity" in params["p_commands"]:
            raise ConnectionError("not even sent")


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


# --- taking over


def test_one_process_at_a_time_is_the_worker_of_a_folder(site: Site) -> None:
    first, second = site.worker(), site.worker()
    run_id = running(site, ONCE, first)
    assert second.settle() == second.dispatch() == 0 and second.held == {}
    first.close()
    second.settle()
    assert [one.phase for one in second.held.values()] == ["live"]
    second.stop("shutdown", grace_ms=0)
    site.finish(run_id, second)


def test_a_new_worker_takes_over_what_a_killed_one_left_running(place: Site) -> None:
    place.publish(
        "one: {run: 'echo $QL_ATTEMPT >> witness; echo $$ > pid; while [ ! -e go ]; do sleep 0.05;"
        " done'}\ntwo: {run: 'echo two >> witness', needs: [one]}"
    )
    run_id = place.start()
    process = place.process()
    pid = place.pid("pid")
    wait(lambda: place.step(run_id, "one")["status"] == "running", "it is told")
    process.kill()
    process.wait()
    expires_at_ms = place.attempts(run_id)[0]["lease_expires_at_ms"]
    worker = place.worker()
    worker.settle()
    (held,) = worker.held.values()
    assert held.phase == "live" and alive(pid)
    assert place.attempts(run_id)[0]["lease_expires_at_ms"] > expires_at_ms
    place.path("go").touch()
    assert place.finish(run_id, worker)["status"] == "succeeded"
    assert place.lines("witness") == ["1", "two"]
    assert len(place.attempts(run_id)) == 2


def test_a_receipt_written_while_no_worker_was_there_is_reported(place: Site) -> None:
    place.publish("one: {run: 'echo $QL_ATTEMPT >> witness; echo $$ > pid; sleep 0.4; exit 3'}")
    run_id = place.start()
    process = place.process()
    pid = place.pid("pid")
    process.kill()
    process.wait()
    wait(lambda: not alive(pid) and not processes_of(place.root), "the fork server has gone")
    assert place.finish(run_id)["status"] == "failed"
    assert place.attempts(run_id)[0]["exit_code"] == 3
    assert place.lines("witness") == ["1"]


def test_a_launcher_that_never_got_its_go_is_given_back(place: Site) -> None:
    place.publish("one: {run: 'echo $QL_ATTEMPT >> witness'}")
    run_id = place.start()
    worker = place.worker(store=Unsent(place.store))
    place.drive(worker, lambda: len(place.errors) >= 1)
    worker.close()
    assert place.finish(run_id)["status"] == "succeeded"
    assert place.lines("witness") == ["2"]
    assert [one["status"] for one in place.attempts(run_id)] == ["lost", "succeeded"]
    assert place.step(run_id, "one")["claim_return_count"] == 1


def test_a_start_that_was_committed_without_a_go_is_given_back(place: Site) -> None:
    place.publish("one: {run: 'echo $QL_ATTEMPT >> witness'}")
    run_id = place.start()
    worker = place.worker(store=Forgetful(place.store, "start_attempts"))
    place.drive(worker, lambda: len(place.errors) >= 1)
    assert place.attempts(run_id)[0]["status"] == "starting"
    worker.close()
    assert place.finish(run_id)["status"] == "succeeded"
    assert place.lines("witness") == ["2"]
    assert [one["result_code"] for one in place.attempts(run_id)] == ["not_started", None]


def test_what_was_never_acknowledged_is_given_back_even_if_everything_was_killed(
    site: Site,
) -> None:
    site.publish("one: {run: 'echo $QL_ATTEMPT >> witness'}")
    run_id = site.start()
    worker = site.worker(store=Unsent(site.store))
    site.drive(worker, lambda: len(site.errors) >= 1)
    (folder,) = (site.state / "exec").iterdir()
    kill_all_of(site.root)
    assert read_journal(folder)
    (folder / "receipt.json").unlink(missing_ok=True)
    worker.close()
    began = time.monotonic()
    assert site.finish(run_id)["status"] == "succeeded"
    assert time.monotonic() - began < 10
    assert site.lines("witness") == ["2"]


@pytest.mark.parametrize("step", ["lease_attempts", "attempt_inputs"])
def test_a_lease_that_was_never_journaled_is_found_again(place: Site, step: str) -> None:
    place.publish("one: {run: 'echo $QL_ATTEMPT >> witness'}")
    run_id = place.start()
    worker = place.worker(store=Forgetful(place.store, step))
    place.drive(worker, lambda: len(place.errors) >= 1)
    assert place.attempts(run_id)[0]["lease_status"] == "leased"
    worker.close()
    if step == "attempt_inputs":  # killed while it prepared the folder
        (offer,) = [one["offer_id"] for one in place.attempts(run_id)]
        (place.state / "exec" / offer).mkdir()
    began = time.monotonic()
    assert place.finish(run_id)["status"] == "succeeded"
    assert time.monotonic() - began < 10  # not at the end of the lease
    assert place.lines("witness") == ["1"]


def test_a_folder_without_a_journal_was_never_started(site: Site) -> None:
    folder = site.state / "exec" / "of-left"
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text("{}")
    worker = site.worker()
    worker.settle()
    assert site.folders() == [] and worker.held == {}


def test_what_ran_before_the_machine_was_restarted_has_stopped(place: Site) -> None:
    worker = place.worker()
    run_id = running(place, ONCE, worker)
    worker.close()
    kill_all_of(place.root)
    (folder,) = (place.state / "exec").iterdir()
    journal = read_journal(folder)
    assert journal
    write_journal(folder, journal | {"boot_id": "another"})
    assert place.finish(run_id)["status"] == "failed"
    (attempt,) = place.attempts(run_id)
    assert attempt["result_code"] == "execution_lost"
    (attested,) = place.store.read("attestation_state", run_id=run_id)
    assert (attested["evidence"], attested["reason"]) == ("attested", "other_boot")


@pytest.mark.parametrize("on_lost", ["fail", "retry"])
def test_work_without_any_evidence_is_lost_by_its_fence(site: Site, on_lost: str) -> None:
    idempotent = "true" if on_lost == "retry" else "false"
    site.publish(
        "one: {run: 'echo $QL_ATTEMPT >> witness; echo $$ > pid; [ $QL_ATTEMPT = 2 ] || sleep 60',"
        f" on_lost: {on_lost}, idempotent: {idempotent}, retry: {{attempts: 2, backoff: 50ms}}}}"
    )
    run_id = site.start()
    worker = site.worker(lease_ms=5_000)
    site.drive(worker, lambda: site.lines("pid") != [])
    site.drive(worker, lambda: site.step(run_id, "one")["status"] == "running")
    worker.close()
    kill_all_of(site.root)
    began = time.monotonic()
    worker = site.worker(lease_ms=5_000)
    run = site.finish(run_id, worker)
    assert time.monotonic() - began > 5  # not before the lease and its grace were over
    first = site.attempts(run_id)[0]
    assert (first["status"], first["result_code"]) == ("lost", "execution_lost")
    assert run["status"] == {"fail": "failed", "retry": "succeeded"}[on_lost]
    assert site.lines("witness") == {"fail": ["1"], "retry": ["1", "2"]}[on_lost]
    (attested,) = site.store.read("attestation_state", run_id=run_id)
    assert attested["evidence"] == "fenced"


def test_a_launcher_that_is_killed_is_attested_by_its_fork_server(site: Site) -> None:
    worker = site.worker()
    run_id = running(site, ONCE, worker)
    (held,) = worker.held.values()
    assert held.execution
    os.kill(held.execution.identity["launcher_pid"], signal.SIGKILL)
    assert site.finish(run_id, worker)["status"] == "failed"
    assert not alive(site.pid("pid"))
    (attested,) = site.store.read("attestation_state", run_id=run_id)
    assert (attested["evidence"], attested["reason"]) == ("attested", "launcher_lost")


def test_a_fork_server_that_is_killed_is_replaced(site: Site) -> None:
    site.publish(
        "one: {run: 'echo $$ > pid; while [ ! -e go ]; do sleep 0.05; done'}\n"
        "two: {run: 'true', needs: [one]}"
    )
    run_id = site.start()
    worker = site.worker()
    site.drive(worker, lambda: site.lines("pid") != [])
    (held,) = worker.held.values()
    assert held.execution
    os.kill(held.execution.identity["forkserver_pid"], signal.SIGKILL)
    site.path("go").touch()
    assert site.finish(run_id, worker)["status"] == "succeeded"


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


# --- what a receipt says


def receipt(**change: Any) -> Receipt:
    fields: dict[str, Any] = dict.fromkeys(Receipt.__slots__)
    fields |= {"kind": "ended", "why": "exit", "exit": "exit:0", "tree": "empty"} | change
    return Receipt(**fields)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, End("exit", 0)),
        ({"exit": "exit:3"}, End("exit", 3)),
        ({"exit": "signal:9"}, End("signal", error="ended by signal 9")),
        ({"why": "stop", "exit": "exit:0", "reason": "user"}, End("stop", 0)),
        ({"why": "stop", "exit": "signal:15", "reason": "user"}, End("stop")),
        ({"why": "stop", "exit": "signal:15", "reason": "deadline"}, End("deadline")),
        ({"why": "stop", "exit": "signal:9", "reason": "lease"}, Gone("lease")),
        ({"why": "deadline", "exit": "signal:15"}, End("deadline")),
        ({"why": "lease", "exit": "signal:9"}, Gone("lease")),
        ({"why": "start_failed", "exit": None, "error": "no"}, End("start_failed", error="no")),
        ({"kind": "not_started", "why": "eof", "exit": None}, End("not_started")),
        ({"kind": "not_started", "why": "stop", "exit": None}, End("not_started")),
        ({"kind": "launcher_lost", "why": "launcher_died", "exit": None}, Gone("launcher_lost")),
    ],
)
def test_a_receipt_becomes_a_report(change: Any, says: End | Gone, tmp_path: Path) -> None:
    assert end_of(receipt(**change), tmp_path) == says


def test_errors_are_cut_to_what_is_stored(tmp_path: Path) -> None:
    end = end_of(receipt(why="start_failed", exit=None, error="ä\0" * ERROR_BYTES), tmp_path)
    assert isinstance(end, End) and end.error
    assert len(end.error.encode()) <= ERROR_BYTES and "\0" not in end.error


def test_an_output_is_stored_as_canonical_text(tmp_path: Path) -> None:
    assert read_output(tmp_path) is None
    (tmp_path / "output.json").write_text('{"b": [1, 2.50],\n "a": "ä"}')
    assert read_output(tmp_path) == '{"a":"ä","b":[1,2.5]}'
    for nothing in ("", " \n"):
        (tmp_path / "output.json").write_text(nothing)
        with pytest.raises(ValueError, match="QL_OUTPUT is empty: write a JSON object to it, or"):
            read_output(tmp_path)


def test_the_environment_of_a_task_goes_on_top() -> None:
    assert environment({"A": "1", "B": "2", "QL_X": "3"}, {"B": {"file": "/f"}}) == {
        "A": "1", "B": {"file": "/f"},
    }  # fmt: skip


def test_a_lease_must_be_within_its_bounds(site: Site) -> None:
    for lease_ms in (4_999, 300_001):
        with pytest.raises(ValueError, match="a lease lasts"):
            site.worker(lease_ms=lease_ms)


def test_a_worker_killed_again_and_again_runs_every_step_once(site: Site) -> None:
    """Each attempt that crossed the start barrier appends its step once; kills fall at random."""
    random = Random(7)
    site.publish(
        "\n".join(
            f"s{n}: {{run: 'echo {n} >> witness; sleep 0.{3 + n % 4}; echo \"{{}}\" > $QL_OUTPUT'"
            + (f", needs: [s{n - 3}]}}" if n >= 3 else "}")
            for n in range(18)
        )
    )
    run_id = site.start()
    kills = 0
    while site.run(run_id)["status"] == "running" and kills < 12:
        process = site.process()
        time.sleep(0.25 + random.random() * 0.5)
        process.kill()
        process.wait()
        kills += 1
    assert kills >= 3
    run = site.finish(run_id)
    assert run["status"] == "succeeded", site.told()
    assert sorted(site.lines("witness"), key=int) == [str(n) for n in range(18)]
    assert site.store.read("violation") == []


def test_what_a_worker_leaves_after_its_last_report_goes_with_the_next_one(site: Site) -> None:
    site.publish("one: {run: 'exit 0'}")
    run_id = site.start()
    dying = "import os, qinglong_sql.leftover as it; it.remove = lambda folder: os._exit(9)\n"
    assert site.process(first=dying).wait(PATIENCE_S) == 9
    assert site.run(run_id)["status"] == "succeeded" and len(site.folders()) == 1
    site.finish(run_id)
    assert site.folders() == []
