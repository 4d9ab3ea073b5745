"""What lives on when those who guard it were killed or stopped together: it is killed, then lost.

`pkill -f qinglong-sql` does exactly this: worker, fork server and launcher have the word in their
command lines, and what a step started has not.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from qinglong_sql import orphans
from qinglong_sql.evidence import Guard, guard
from qinglong_sql.linux import is_stopped
from qinglong_sql.worker import Worker
from tests.engines import Engine
from tests.site import Site, alive, opened, processes_of, wait

PROGRAM = """
import os, sys
from pathlib import Path
from qinglong_sql.drive import drive
from qinglong_sql.store import open_store
from qinglong_sql.linux import is_stopped
from qinglong_sql.worker import Worker

dsn, state, run_id = sys.argv[1:]
store = open_store(dsn)
worker = Worker(store, Path(state), lease_ms=5000, run_id=run_id)
drive(store, worker, lambda: os.getppid() == 1)
"""

# One that stays as it is, one of a session of its own, one without environment, and one without
# anything but its parent.
MANY = """\
sleep 351 & echo $! > $1.plain
setsid sleep 352 & echo $! > $1.session
env -i sleep 353 & echo $! > $1.bare
env -i setsid sh -c 'echo $$ > $0.apart; exec sleep 354' $1 &
wait
"""
AGAIN = """\
if [ -e $1.first ]; then
  kill -0 $(cat $1.first) && echo both > $1.both
  exit 0
fi
sleep 355 & echo $! > $1.first
wait
"""
STEPS = """
many: {run: [sh, many.sh, "KEY"]}
again: {run: [sh, again.sh, "KEY"], idempotent: true, on_lost: retry}
"""
# Found by the session alone, which the launcher has written down.
LONE = 'lone: {run: "env -i sleep 357 & echo $! > k.lone; wait"}'
SEEN = ("plain", "session", "bare", "first")


@pytest.fixture
def site(sqlite_dsn: str, tmp_path: Path) -> Iterator[Site]:
    with opened(sqlite_dsn, tmp_path) as site:
        yield written(site)


@pytest.fixture
def place(engine: Engine, tmp_path: Path) -> Iterator[Site]:
    with opened(engine.dsn, tmp_path) as site:
        yield written(site)


def written(site: Site) -> Site:
    site.path("many.sh").write_text(MANY)
    site.path("again.sh").write_text(AGAIN)
    return site


def begun(site: Site, key: str) -> tuple[str, Path, subprocess.Popen[bytes]]:
    """A run with a process of its own that drives it, both steps of it under way."""
    site.publish(STEPS.replace("KEY", key))
    run_id, state = site.start(key), site.root / "worker" / key
    home = str(Path(__file__).parent.parent)
    argv = [sys.executable, "-c", PROGRAM, site.dsn, str(state), run_id]
    one = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": home})
    site.processes.append(one)
    for name in (*SEEN, "apart"):
        site.pid(f"{key}.{name}")
    wait(lambda: {a["status"] for a in site.attempts(run_id)} == {"running"}, "both run")
    return run_id, state, one


def guards(state: Path) -> list[int]:
    """Fork server and launchers of a state folder."""
    return [pid for pid, line in processes_of(state).items() if "launchers of executions" in line]


def signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # a fork server that goes on ends its launchers first
            os.kill(pid, number)


def living(site: Site, key: str, names: tuple[str, ...] = SEEN) -> set[str]:
    return {name for name in names if alive(site.pid(f"{key}.{name}"))}


def test_nothing_is_lost_before_it_is_killed(place: Site) -> None:
    """All of one worker killed, all of another stopped; a third one declares nothing that lives."""
    killed, state, process = begun(place, "0")
    stopped, other, second = begun(place, "1")
    frozen = [second.pid, *guards(other)]
    assert len(guards(state)) == len(guards(other)) == 3
    signal_all([process.pid, *guards(state)], signal.SIGKILL)
    signal_all(frozen, signal.SIGSTOP)
    assert living(place, "0") == living(place, "1") == set(SEEN)
    place.cancel(stopped)
    # One takes the folder of what was killed over, one has another folder.
    mine = state if place.store.engine == "sqlite" else place.root / "worker" / "2"
    worker = Worker(place.store, mine, lease_ms=5_000)
    place.workers.append(worker)

    def over(run_id: str, key: str) -> Callable[[], bool]:
        def ended() -> bool:
            open_still = {
                a["step_key"]: a["finished_at_ms"] is None for a in place.attempts(run_id)
            }
            left = living(place, key)
            assert open_still["many"] or not left & {"plain", "session", "bare"}
            assert open_still["again"] or "first" not in left
            return place.run(run_id)["status"] != "running"

        return ended

    ends = over(killed, "0"), over(stopped, "1")
    place.drive(worker, lambda: sum(end() for end in ends) == len(ends))
    assert (place.run(killed)["status"], place.run(stopped)["status"]) == ("failed", "cancelled")
    assert place.step(killed, "again")["status"] == "succeeded"
    assert not place.path("0.both").exists(), "the second attempt met the first"
    assert {one["evidence"] for one in place.store.read("attestation_state")} == {"fenced"}
    assert not living(place, "1", ("apart",)), "its launcher was its last parent"

    signal_all(frozen, signal.SIGCONT)  # it says how they ended, too late
    wait(lambda: not list((other / "exec").iterdir()), "its worker has let go")
    assert place.run(stopped)["status"] == "cancelled"
    assert place.store.read("violation") == []
    os.kill(place.pid("0.apart"), signal.SIGKILL)  # what nobody can see


def test_what_fork_server_and_launcher_leave_is_killed_at_once(site: Site) -> None:
    bystander = subprocess.Popen(
        ["sleep", "356"], env={"QL_INPUT": f"/x/exec/of{'0' * 24}/input.json"}, cwd=site.work
    )
    site.processes.append(bystander)
    site.publish(STEPS.replace("KEY", "k") + LONE)
    run_id, worker = site.start(), site.worker()
    names = (*SEEN, "lone")
    site.drive(worker, lambda: all(site.lines(f"k.{name}") for name in (*names, "apart")))
    site.drive(worker, lambda: all(one.told_running for one in worker.held.values()))
    signal_all(guards(site.state), signal.SIGKILL)
    assert living(site, "k", names) == set(names)
    site.drive(worker, lambda: not living(site, "k", names), 5)
    assert alive(bystander.pid) and alive(os.getpid())
    assert {one["status"] for one in site.attempts(run_id)} == {"running"}, "that proves nothing"
    os.kill(site.pid("k.apart"), signal.SIGKILL)  # what nobody can see


def test_what_cannot_be_killed_stays_open(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.publish('again: {run: [sh, again.sh, "k"]}')
    told: list[str] = []
    run_id, worker = site.start(), site.worker(lease_ms=5_000, note=told.append)
    site.drive(worker, lambda: site.lines("k.first") != [])
    site.drive(worker, lambda: all(one.told_running for one in worker.held.values()))
    (held,) = worker.held.values()

    signal_all(guards(site.state), signal.SIGKILL)
    with monkeypatch.context() as patched:
        patched.setattr(orphans, "start_ticks", lambda pid: None)  # as if it did not feel KILL
        site.drive(worker, lambda: held.survived)
        assert worker.owes(), "recovery waits"
        before = held.expires_at_ms
        site.drive(worker, lambda: held.expires_at_ms > before, 5)
        assert held.renewable() and alive(site.pid("k.first"))
    site.drive(worker, lambda: not held.survived)
    assert not alive(site.pid("k.first")) and not worker.owes()
    assert len(told) == 1 and f"KILL does not end: {site.pid('k.first')}" in told[0]
    assert not held.renewable() and site.run(run_id)["status"] == "running"


def test_who_can_end_it_is_left_to_it(site: Site) -> None:
    """A launcher alone, or a fork server alone, is enough; only both together are not."""
    site.publish('again: {run: [sh, again.sh, "k"]}')
    worker = site.worker()
    site.start()
    site.drive(worker, lambda: site.lines("k.first") != [])
    (folder,) = (site.state / "exec").iterdir()
    server, launcher = sorted(guards(site.state))
    seen = [guard(folder).state]
    for pid, number in (
        (launcher, signal.SIGSTOP),
        (server, signal.SIGSTOP),
        (launcher, signal.SIGCONT),
    ):
        os.kill(pid, number)
        wait(lambda: is_stopped(pid) == (number == signal.SIGSTOP), "it is so")  # noqa: B023
        seen.append(guard(folder).state)
    assert seen == ["able", "able", "stopped", "able"]
    signal_all([server], signal.SIGCONT)
    found = orphans.remains({folder.name: Guard("gone")})
    assert site.pid("k.first") in {one.pid for one in found[folder.name]}
    assert not {server, launcher, os.getpid()} & {one.pid for one in found[folder.name]}
    signal_all([server, launcher], signal.SIGKILL)
    assert orphans.sweep({folder.name: Guard("gone")}, within_s=10) == {}
