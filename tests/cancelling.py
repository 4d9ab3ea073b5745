"""Moments at which a real run is cancelled, and an observer apart from the product.

Packages that resist run under a worker in a process of its own, with real launchers. The observer
knows a process by QL_RUN_ID and QL_ATTEMPT in its environment, and one that cleared it by a file
with its pid. It reads the end of the run *before* it looks at /proc: what is there then is alive
in an ended run. What it saw alive is also held against the time at which the run says it ended.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from qinglong_sql.package import parse_package
from tests.shell import HOME
from tests.site import Site, alive, kill_all_of, processes_of, wait

CYCLE_MS = 200
GRACE_MS = 300
# What a busy machine with two cores may take beside the two cycles.
SLACK_MS = 1_000
WITHIN_S = 30.0
LOOKS_AFTER_THE_END = 3

PROGRAM = """
import os, random, sys, time
from pathlib import Path
from qinglong_sql.drive import drive
from qinglong_sql.store import open_store
from qinglong_sql.worker import Worker
from tests.cancelling import CYCLE_MS, GRACE_MS, Late

dsn, state, seed, hasty = sys.argv[1:]
store = Late(open_store(dsn), random.Random(seed), hasty == "hasty")
worker = Worker(store, Path(state), lease_ms=5000, stop_grace_ms=GRACE_MS)
drive(store, worker, lambda: os.getppid() == 1, idle_ms=CYCLE_MS, give_up_ms=float("inf"))
"""

CLEARED = """env -i /bin/sh -c 'trap "" TERM; echo > "pids/$0.$$"; while :; do sleep 0.1; done'"""
SCRIPTS = {
    "ends": "sleep 0.1",
    "ignores": "trap '' TERM; while :; do sleep 0.2; done",
    "daemon": "(setsid /bin/sh -c 'trap \"\" TERM; sleep 60; sleep 60' &); exec sleep 60",
    "pipe": "trap '' TERM; sleep 60 & sleep 0.4",
    "bomb": "for i in 1 2 3 4 5; do (setsid /bin/sh -c 'sleep 60 & sleep 60 & wait' &); done;"
    " trap '' TERM; sleep 60; sleep 60",
    "cleared": f'{CLEARED} "$QL_RUN_ID" & wait',
    "hidden": f'(setsid {CLEARED} "$QL_RUN_ID" &); exec sleep 60',
    "again": "exit 1",
}
PHASES = ("admitted", "leased", "starting", "running", "retry_wait")
HOWS = ("call", "call", "twice", "command")


class Late:
    """A store whose answers come late at random, so that the windows between commands are wide.

    The hasty one has the fault that is to be caught: it reports an end as soon as it hears of the
    wish to stop, while the tree is still there.
    """

    def __init__(self, store, rng: random.Random, hasty: bool) -> None:  # type: ignore[no-untyped-def]
        self._store, self._rng, self._hasty = store, rng, hasty

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        return getattr(self._store, name)

    def fuse(self, calls):  # type: ignore[no-untyped-def]
        together = getattr(self._store, "fuse", None)
        self._wait()
        answers = together(calls) if together else None
        self._wait()
        return answers

    def call(self, step: str, /, **params):  # type: ignore[no-untyped-def]
        late = step.endswith("_attempts")
        if late:
            self._wait()
        rows = self._store.call(step, **params)
        if late:
            self._wait()
        if self._hasty and step == "renew_attempts":
            self._report_early(params["p_commands"], rows)
        return rows

    def _wait(self) -> None:
        time.sleep(self._rng.random() * 0.04)

    def _report_early(self, text, rows) -> None:  # type: ignore[no-untyped-def]
        asked = {one["attempt_id"]: one for one in json.loads(text)}
        said = [
            {**asked[row["attempt_id"]], "how": "stop", "exit_code": None, "output": None,
             "error": None}
            for row in rows if row.get("stop_reason")
        ]  # fmt: skip
        if said:
            self._store.call("report_attempts", p_commands=json.dumps(said))


@dataclass(slots=True)
class Moment:
    """One cancelled run: which kind, when and how; what was seen."""

    kind: str
    aim: str
    how: str
    run_id: str = ""
    hit: str = ""
    last_alive_ms: int = 0
    after_ms: int = 0  # from the last living process to the end
    most: int = 0


class Place:
    """A site with the resisting packages, driven by a process apart."""

    def __init__(self, site: Site, seed: object, *, hasty: bool = False) -> None:
        self.site = site
        self.hits: Counter[str] = Counter()
        (site.work / "pids").mkdir()
        publish(site)
        argv = [sys.executable, "-c", PROGRAM, site.dsn, str(site.state), str(seed)]
        argv.append("hasty" if hasty else "honest")
        env = {**os.environ, "PYTHONPATH": str(HOME)}
        site.processes.append(subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL))

    def live(self, run_id: str) -> list[int]:
        """Processes of the run: by their environment, and those that told their pid."""
        mark, found = f"QL_RUN_ID={run_id}\0".encode(), []
        for name in os.listdir("/proc"):  # noqa: PTH208 - in a tight loop
            if name.isdigit():
                with suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:  # noqa: PTH123
                    text = file.read()
                    if mark in text and b"QL_ATTEMPT=" in text:
                        found.append(int(name))
        told = (self.site.work / "pids").glob(f"{run_id}.*")
        return found + [pid for path in told if alive(pid := int(path.suffix[1:]))]

    def cancelled(self, moment: Moment, rng: random.Random) -> list[str]:
        """Let it happen. Every broken promise in words."""
        row = self.site.store.call(
            "start_run", p_package_key="p", p_kind="workflow", p_target_key=moment.kind,
            p_run_key=f"k{time.monotonic_ns()}", p_input="{}",
        )[0]  # fmt: skip
        run_id = moment.run_id = str(row["run_id"])
        self._reach(moment, rng)
        others = self._cancel(moment)
        broken = self._watch(moment)
        for other in others:
            if code := other.wait(WITHIN_S):
                broken.append(f"the command that cancels ended with {code}")
        broken += self._history(moment)
        self.hits[moment.hit] += 1
        return [f"{moment.kind}, {moment.how} at {moment.hit}: {one} ({run_id})" for one in broken]

    def _reach(self, moment: Moment, rng: random.Random) -> None:
        """Wait for a state, or for a random while."""
        if moment.aim == "any":
            time.sleep(rng.random() * 0.8)
            return
        wanted = {"admitted": "claimed", "leased": "claimed"}.get(moment.aim, moment.aim)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            if moment.aim in ("retry_wait", "succeeded"):  # of a step: the others are on their way
                steps = self.site.store.read("step_state", run_id=moment.run_id)
                there = any(step["status"] == moment.aim for step in steps)
            else:
                tries = self.site.store.read("attempt_state", run_id=moment.run_id)
                there = any(one["status"] == wanted for one in tries)
            if there:
                if moment.aim == "leased":
                    time.sleep(rng.random() * 0.04)
                return
            time.sleep(0.001)

    def _cancel(self, moment: Moment) -> list[subprocess.Popen[bytes]]:
        if moment.how == "command":
            argv = [sys.executable, "-m", "qinglong_sql", "cancel", moment.run_id]
            env = {**os.environ, "PYTHONPATH": str(HOME), "QINGLONG_DSN": self.site.dsn}
            null = subprocess.DEVNULL
            return [subprocess.Popen(argv, env=env, stdin=null, stdout=null, stderr=null)]
        for _ in range(2 if moment.how == "twice" else 1):
            self.site.cancel(moment.run_id)
        return []

    def _watch(self, moment: Moment) -> list[str]:
        """The tight loop: the end first, then /proc."""
        end = time.monotonic() + WITHIN_S
        ended_looks = 0
        while ended_looks < LOOKS_AFTER_THE_END:
            run = self.site.run(moment.run_id)
            over = run["status"] != "running"
            looked_ms = time.time_ns() // 1_000_000
            found = self.live(moment.run_id)
            moment.most = max(moment.most, len(found))
            if found:
                moment.last_alive_ms = looked_ms
                if over:
                    return [f"{run['status']} while {found} live"]
            ended_looks += over
            if time.monotonic() > end:
                return [f"not over after {WITHIN_S:g} s: {self.site.told()}"]
        finished_ms = int(run["finished_at_ms"])
        if moment.last_alive_ms > finished_ms:
            return [f"ended {moment.last_alive_ms - finished_ms} ms before its last process was"]
        return []

    def _history(self, moment: Moment) -> list[str]:
        """What the events and attempts say of the order; they were written under one lock."""
        store, run_id = self.site.store, moment.run_id
        run = self.site.run(run_id)
        events = store.read("event_log", order="sequence", run_id=run_id)
        at = [n for n, one in enumerate(events) if one["type"] == "run.cancel_requested"]
        if not at:
            moment.hit = "ended"
            return [] if run["status"] != "running" else ["the intent left no event"]
        before, after = events[: at[0]], events[at[0] :]
        moment.hit = phase_of(before)
        broken = [] if len(at) == 1 else ["two intents"]
        broken += [
            f"{one['type']} after the intent"
            for one in after
            if (one["entity"] in ("attempt", "step") and one["from_status"] is None)
            or (one["entity"] == "attempt" and one["to_status"] == "starting")
            or (one["entity"] == "lease" and one["to_status"] == "leased")
        ]
        asked_ms = int(run["cancel_requested_at_ms"])
        broken += [
            f"attempt {one['number']} admitted {one['admitted_at_ms'] - asked_ms} ms after it"
            for one in self.site.attempts(run_id)
            if one["admitted_at_ms"] > asked_ms
        ]
        moment.after_ms = int(run["finished_at_ms"]) - max(asked_ms, moment.last_alive_ms)
        if moment.after_ms > 2 * CYCLE_MS + SLACK_MS:
            broken.append(f"the end came {moment.after_ms} ms after the last process")
        if store.read("violation", run_id=run_id):
            broken.append(f"violation: {store.read('violation', run_id=run_id)}")
        return broken


def phase_of(before: list[dict[str, object]]) -> str:
    """Where the run was when the intent came: by the last thing that an attempt of it did."""
    told = [one for one in before if one["entity"] in ("attempt", "lease", "step")]
    last = next((one for one in reversed(told) if one["entity"] != "step"), None)
    if last is None:
        return "ready"
    if told[-1]["to_status"] == "retry_wait":
        return "retry_wait"
    word = str(last["to_status"])
    return {"claimed": "admitted"}.get(word, word if word in PHASES else "between")


def publish(site: Site) -> None:
    lines = ["package: p", "workflows:"]
    for kind, script in SCRIPTS.items():
        more = ", retry: {attempts: 5, backoff: 400ms}" if kind == "again" else ""
        quoted = script.replace("\\", "\\\\").replace('"', '\\"')
        lines += [f"  {kind}:", "    steps:", f'      a: {{run: "{quoted}"{more}}}']
        lines += ["      b: {run: sleep 0.1, needs: [a]}", "      c: {run: sleep 0.2}"]
    text = "\n".join(lines).encode()
    package = parse_package(text, str(site.work / "package.yaml"))
    site.store.call(
        "publish_package", p_package_key=package.key, p_manifest=package.manifest,
        p_base_dir=str(package.base_dir),
    )  # fmt: skip


def moments(rng: random.Random) -> Iterator[Moment]:
    """Without end: every kind, aims around every phase, every way to cancel."""
    aims = ("any", *PHASES, "any")
    number = rng.randrange(1000)
    while True:
        aim = aims[number % len(aims)]
        kind = "again" if aim == "retry_wait" else rng.choice([k for k in SCRIPTS if k != "again"])
        yield Moment(kind, aim, rng.choice(HOWS))
        number += 1


@contextmanager
def placed(dsn: str, root: Path, seed: object, *, hasty: bool = False) -> Iterator[Place]:
    """A place in an empty folder; at its end nothing of it runs."""
    site = Site(dsn, root)
    try:
        yield Place(site, seed, hasty=hasty)
    finally:
        site.close()
        with suppress(AssertionError):
            wait(lambda: not processes_of(root), "nothing runs", 5)
        kill_all_of(root)
