"""`run` killed again and again: what was started is neither repeated nor lost (DESIGN §9).

Variant "ours": KILL for the process of `run`, every other time for its fork server as well; its
launchers and what they run go on. Variant "everything": KILL for all of it at once, so that steps
are lost and their runs fail. QINGLONG_LONG=1 kills as often as the release asks for.
"""

import os
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import psycopg

from qinglong_sql.store import Store, open_store
from tests.engines import Engine
from tests.server import Server, dsn
from tests.shell import WITHIN_S, Shell, ended, until
from tests.site import alive, kill_all_of, processes_of

CUT = "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s"
LONG = os.environ.get("QINGLONG_LONG") == "1"
STEPS = 30
IDEMPOTENT = 6  # every sixth step may run twice
LONGEST_S = 1.6  # between a start and its kill
ARGUMENTS = ("run", "flow.yaml", "--lease-ms", "5000", "--slots", "6", "--input", "who=you")

FLOW_OF_ONE = """\
package: alone
workflows:
  flow:
    steps:
      a: {run: ./alone.sh}
"""
ALONE = """\
#!/bin/sh
case $(cat "$QL_INPUT") in *one*) touch one.begun;; *two*) touch two.begun;; esac
sleep 4
"""
STEP = """\
#!/bin/sh
echo "$QL_RUN_ID $QL_STEP $QL_ATTEMPT begin" >> witness
sleep $1
echo "$QL_RUN_ID $QL_STEP $QL_ATTEMPT end" >> witness
"""


def flow(random: Random) -> str:
    """Thirty steps in six layers of two to eight, each needing up to three of the layer above."""
    lines = ["package: killed", "workflows:", "  flow:", "    steps:"]
    above: list[str] = []
    number = 0
    for width in (7, 5, 8, 2, 6, 2):
        layer = [f"s{number + i:02}" for i in range(width)]
        for key in layer:
            needs = ", ".join(sorted(random.sample(above, min(len(above), random.randint(1, 3)))))
            more = ", idempotent: true, on_lost: retry" if int(key[1:]) % IDEMPOTENT == 5 else ""
            length = random.choice((0, 0.05, 0.2, 0.5, 0.9))
            lines.append(f"      {key}: {{run: [./step.sh, '{length}'], needs: [{needs}]{more}}}")
        above, number = layer, number + width
    assert number == STEPS
    return "\n".join(lines) + "\n"


def live_executions(folder: Path) -> int:
    return sum(name_of(pid) == "ql-launcher" for pid in processes_of(folder))


def name_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def kill_ours(folder: Path, run: int, *, forkserver: bool) -> None:
    """KILL `run`, and fork servers if wanted; those of earlier starts may live on."""
    os.kill(run, signal.SIGKILL)
    for pid in processes_of(folder) if forkserver else []:
        if name_of(pid) == "ql-forkserver":
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def killed_often(
    shell: Shell, random: Random, kills: int, everything: bool
) -> tuple[list[int], int]:
    """Start it with the same arguments until it was killed so often.

    Exit codes of those that ended by themselves, and how many executions lived at the kills.
    """
    codes, done, lived = [], 0, 0
    while True:
        output = shell.folder / f"output.{done}"
        output.unlink(missing_ok=True)
        open_runs = running(shell.dsn)
        process = shell.begin(*ARGUMENTS, output=output)
        if done < kills:
            wait_a_moment(shell.folder / "witness", process, random)
        if done == kills or process.poll() is not None:
            codes.append(ended(process))
            assert_told(output, open_runs)
            if done == kills:
                return codes, lived
            continue
        lived += live_executions(shell.folder)
        if everything:
            kill_all_of(shell.folder)
        else:
            kill_ours(shell.folder, process.pid, forkserver=done % 2 == 1)
        process.wait()
        assert not alive(process.pid)
        done += 1
        assert_told(output, open_runs)


def wait_a_moment(witness: Path, process: subprocess.Popen[bytes], random: Random) -> None:
    """Wait for a random time from the start, or from the next step that begins or ends."""
    at_work, longest_s = random.random() < 0.6, random.uniform(0.02, LONGEST_S)
    until_s = time.monotonic() + (WITHIN_S if at_work else longest_s)
    before = size(witness)
    while time.monotonic() < until_s and process.poll() is None:
        if at_work and size(witness) > before:
            at_work, until_s = False, time.monotonic() + longest_s / 4
        time.sleep(0.002)


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def running(dsn: str) -> list[str]:
    store = open_store(dsn)
    try:
        assert store.read("violation") == []
        return [row["run_id"] for row in store.read("run_state", status="running")]
    finally:
        store.close()


def assert_told(output: Path, open_runs: list[str]) -> None:
    """A start that got far enough said whether it goes on with the one open run."""
    said = output.read_text()
    assert len(open_runs) <= 1 and "Traceback" not in said, said
    if said and open_runs:
        assert said.startswith(f"going on with run {open_runs[0]} "), said
    elif said:
        assert said.startswith("run ru"), said


Begun = Counter[tuple[str, str, int]]


def witnessed(folder: Path) -> tuple[Begun, Begun]:
    """How often each (run, step, attempt) began and ended."""
    began: Begun = Counter()
    finished: Begun = Counter()
    for line in (folder / "witness").read_text().splitlines():
        run_id, step, number, what = line.split(" ")
        (began if what == "begin" else finished)[run_id, step, int(number)] += 1
    return began, finished


def assert_true(store: Store, folder: Path) -> dict[str, int]:
    """The database and the witness agree; some numbers about what happened."""
    assert store.read("violation") == []
    runs = store.read("run_state")
    assert runs and all(run["status"] != "running" for run in runs)
    began, finished = witnessed(folder)
    attempts = {
        (one["run_id"], one["step_key"], one["number"]): one for one in store.read("attempt_state")
    }
    assert set(began.values()) == {1}, "an attempt ran twice"
    for (_, step), times in Counter((run_id, step) for run_id, step, _ in began).items():
        assert times == 1 or int(step[1:]) % IDEMPOTENT == 5, f"{step} ran {times} times"
    for one in began:
        assert attempts[one]["starting_at_ms"] is not None, f"{one} ran without a start"
    for key, one in attempts.items():
        if one["status"] == "succeeded":
            assert began[key] == finished[key] == 1, f"{key} is said to have succeeded"
        assert one["status"] in ("succeeded", "lost", "not_started", "released"), one
    return {
        "runs": len(runs),
        "began": began.total(),
        "attempts": len(attempts),
        **Counter(one["status"] for one in attempts.values()),
    }


def set_up(dsn: str, folder: Path, seed: int) -> tuple[Shell, Random]:
    random = Random(seed)
    shell = Shell(folder, dsn)
    shell.write("flow.yaml", flow(random))
    shell.write("step.sh", STEP, mode=0o755)
    return shell, random


def test_what_was_started_goes_on_when_ours_is_killed(engine: Engine, tmp_path: Path) -> None:
    kills = 20 if LONG else 6
    shell, random = set_up(engine.dsn, tmp_path, 20)
    try:
        codes, lived = killed_often(shell, random, kills, everything=False)
        shell.nothing_is_left()
    finally:
        kill_all_of(tmp_path)
    store = open_store(engine.dsn)
    told = assert_true(store, tmp_path)
    print(f"{engine.kind}, ours killed {kills} times, {lived} live: exits {codes}, {told}")
    assert lived > 0
    assert set(codes) == {0}
    for run in store.read("run_state"):
        steps = store.read("step_state", run_id=run["run_id"])
        assert len(steps) == STEPS and {step["status"] for step in steps} == {"succeeded"}
    store.close()


def test_what_was_lost_fails_its_run_when_everything_is_killed(
    sqlite_dsn: str, tmp_path: Path
) -> None:
    kills = 20 if LONG else 3
    shell, random = set_up(sqlite_dsn, tmp_path, 21)
    try:
        codes, lived = killed_often(shell, random, kills, everything=True)
        shell.nothing_is_left()
    finally:
        kill_all_of(tmp_path)
    store = open_store(sqlite_dsn)
    told = assert_true(store, tmp_path)
    print(f"sqlite, everything killed {kills} times, {lived} live: exits {codes}, {told}")
    assert lived > 0
    assert set(codes) <= {0, 1}
    store.close()


def test_of_two_killed_runs_the_one_that_is_started_again_goes_on(
    sqlite_dsn: str, tmp_path: Path
) -> None:
    """The second one works in the second folder; started again alone, it looks there first.

    The other is left until its lease has ended: its launcher ended what ran, and its run fails.
    """
    shell = Shell(tmp_path, sqlite_dsn)
    shell.write("flow.yaml", FLOW_OF_ONE)
    shell.write("alone.sh", ALONE, mode=0o755)
    words = {
        name: ("run", "flow.yaml", "--lease-ms", "5000", "--input", f"name={name}")
        for name in ("one", "two")
    }
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for name in words:
            process = shell.begin(*words[name], output=tmp_path / f"{name}.out")
            until((tmp_path / f"{name}.begun").exists, process, f"{name} runs")
            processes.append(process)
        for process in processes:
            process.kill()
            process.wait()
        assert shell.process(*words["two"]).returncode == 0
        assert shell.process(*words["one"]).returncode == 1  # nobody came in time
        shell.nothing_is_left()
    finally:
        kill_all_of(tmp_path)
    store = open_store(sqlite_dsn)
    assert (tmp_path / "two.begun").exists()
    assert not store.read("violation")
    store.close()


def test_a_run_outlives_the_loss_of_its_connections(
    postgres_server: Server, postgres_dsn: str, tmp_path: Path
) -> None:
    shell, random = set_up(postgres_dsn, tmp_path, 22)
    try:
        process = shell.begin(*ARGUMENTS, output=tmp_path / "output")
        cut = 0
        with psycopg.connect(dsn(postgres_server), autocommit=True) as admin:
            until(lambda: size(tmp_path / "witness"), process, "a step begins")
            while process.poll() is None:
                time.sleep(random.uniform(0.1, 0.4))
                cut += admin.execute(CUT, [postgres_dsn.rpartition("/")[2]]).rowcount
        assert ended(process) == 0, (tmp_path / "output").read_text()
        shell.nothing_is_left()
    finally:
        kill_all_of(tmp_path)
    store = open_store(postgres_dsn)
    told = assert_true(store, tmp_path)
    output = (tmp_path / "output").read_text()
    print(f"postgres, connections cut {cut} times: {told}")
    assert cut > 3 and told["runs"] == 1
    # a pgbouncer takes another session for one that was cut between two statements
    assert "trying again: not ready: PostgreSQL" in output or postgres_server.entry
    store.close()
