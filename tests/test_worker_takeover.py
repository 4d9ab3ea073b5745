"""What a worker left, killed or not: a later one takes it over, gives it back or finds it lost."""

import os
import signal
import time
from random import Random

import pytest

from qinglong_sql.execution import read_journal, write_journal
from tests.site import PATIENCE_S, Site, alive, kill_all_of, processes_of, running, wait
from tests.wrapped import Forgetful, Unsent

ONCE = 'extract: {run: "echo $QL_ATTEMPT >> witness; echo $$ > pid; exec sleep 60"}'


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
