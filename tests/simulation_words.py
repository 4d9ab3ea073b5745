"""The commands that a simulation may say, each with arguments that are drawn (see simulation_draw).

Nothing here knows what a command should do.
"""

import json
from dataclasses import dataclass
from random import Random
from typing import Any

from qinglong_sql.canonical import canonical
from tests import acting
from tests.simulation_facts import Facts, Row

PACKAGES = ("nightly", "hourly")
QUEUES = ("default", "slow")
GRAPHS: tuple[dict[str, list[str]], ...] = (
    {"a": []},
    {"a": [], "b": ["a"]},
    {"a": [], "b": []},
    {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]},
    {"a": [], "b": [], "c": ["a"], "d": ["c", "b"]},
)
HOWS = ("exit",) * 9 + (
    "signal",
    "stop",
    "deadline",
    "start_failed",
    "bad_output",
    "not_started",
    "not_started",
    "not_started",
)
STAGES = {
    "frontier": ("advance_frontier", "frontier_page"),
    "task_admission": ("admit_tasks", "task_admission_page"),
    "retry": ("retry_run", "retry_page"),
    "deadline": ("deadline_run", "deadline_page"),
    "expiry": ("recover_run", ""),
    "cancellation": ("converge_cancellation", ""),
}
Drawn = tuple[str, dict[str, Any]]


@dataclass(slots=True)
class Words:
    """A generator, and the names that it gave so far."""

    rng: Random
    names: int = 0

    def publish(self) -> Drawn:
        package = self.rng.choice(PACKAGES)
        tasks = {key: self.task() for key in ("work", "other")}
        tasks |= {"slow": self.task() | {"queue": "slow"}}
        steps = {
            key: {"needs": needs, "task": self.rng.choice(("work", "work", "other", "slow"))}
            for key, needs in self.rng.choice(GRAPHS).items()
        }
        timeout = self.rng.choice((None, None, 40_000, 120_000))
        flows = {"flow": {"steps": steps, "timeout_ms": timeout}}
        model = acting.model(tasks, flows) | {"package": package}
        text = canonical(model)
        return "publish_package", {
            "p_package_key": package, "p_manifest": text, "p_base_dir": f"/srv/{package}"
        }  # fmt: skip

    def task(self) -> dict[str, Any]:
        on_lost = self.rng.choice(("fail", "retry", "hold"))
        retry = {
            "attempts": self.rng.choice((1, 2, 3)),
            "backoff_ms": self.rng.choice((0, 1_000, 60_000)),
            "max_backoff_ms": self.rng.choice((40_000, 300_000)),
            "on": self.rng.choice(
                ([], ["failed"], ["failed", "timed_out"], ["failed", "timed_out"])
            ),
        }
        timeout = self.rng.choice((None, 10_000, 60_000))
        return acting.task(on_lost=on_lost, retry=retry, timeout_ms=timeout)

    def start(self, facts: Facts) -> Drawn:
        kinds = [("workflow", "flow")] * 3 + [("task", "work"), ("task", "slow")]
        kind, target = self.rng.choice(kinds)
        active = [
            k[0] for k, row in facts["package_generation"].items() if row["state"] == "active"
        ]
        package = self.rng.choice(active)
        key = self.name("k") if self.rng.random() < 0.9 else "k1"
        return "start_run", {
            "p_package_key": package, "p_kind": kind, "p_target_key": target, "p_run_key": key,
            "p_input": "{}",
        }  # fmt: skip

    def retry(self, runs: list[Row]) -> Drawn:
        ended = [row for row in runs if row["status"] in ("failed", "cancelled", "timed_out")]
        key = self.rng.choice((None, None, self.name("k")))
        return "start_retry", {"p_run_id": self.of(ended), "p_run_key": key}

    def cancel(self, runs: list[Row]) -> Drawn:
        reason = self.rng.choice(("user", "policy", "shutdown", "reconcile"))
        return "request_cancel", {"p_run_id": self.of(runs), "p_reason": reason, "p_actor": "ann"}

    def fault(self, row: Row) -> Drawn:
        return "record_fault", {
            "p_run_id": row["run_id"], "p_stage": row["stage"], "p_error": "disk on fire"
        }  # fmt: skip

    def release(self, run_id: str, stage: str) -> Drawn:
        return "release_fault", {"p_run_id": run_id, "p_stage": stage}

    def stage(self, row: Row) -> Drawn:
        one, page = STAGES[row["stage"]]
        if row["stage"] == "cancellation" and self.rng.random() < 0.2:
            return "settle_task_cancellations", self.keys()
        if page and self.rng.random() < 0.3:
            return page, self.keys()
        return one, {"p_run_id": row["run_id"]}

    def keys(self) -> dict[str, Any]:
        limit = self.rng.choice((1, 2, 32, 32))
        return {"p_after_due_at_ms": -1, "p_after_run_id": "", "p_limit": limit}

    def register(self) -> Drawn:
        worker = self.rng.choice(("w1", "w2"))
        return "register_worker", {
            "p_worker_id": worker, "p_session_id": self.rng.choice(("s1", "s2")),
            "p_queues": '["default","slow"]', "p_slots": 8,
            "p_self_fencing": self.rng.choice((1, 1, 0)),
            "p_grace_ms": self.rng.choice((0, 2_000)),
        }  # fmt: skip

    def lease(self, worker: Row, attempt: Row) -> Drawn:
        names = [self.name("o") for _ in range(self.rng.choice((1, 2, 3, 4)))]
        return "lease_attempts", {
            "p_worker_id": worker["worker_id"], "p_session_id": worker["session_id"],
            "p_queue": attempt["queue"], "p_offers": acting.offers(names),
            "p_lease_ms": self.rng.choice((5_000, 30_000, 120_000)),
            "p_run_id": self.rng.choice((None, None, attempt["run_id"])),
        }  # fmt: skip

    def on(self, step: str, held: list[tuple[Row, Row]]) -> Drawn:
        """A worker's batch about some of what it holds, or what an operator says of one."""
        if step == "declare_stopped":
            attempt, _ = self.rng.choice(held)
            follow = self.rng.choice((None, "retry", "fail"))
            return self.declare(attempt["attempt_id"], follow)
        count = self.rng.choice((len(held), self.rng.randrange(1, len(held) + 1)))
        several = self.rng.sample(held, count)
        rows = [self.command(lease, lease["fence"], step) for _, lease in several]
        return step, self.batch(step, rows)

    def declare(self, attempt_id: str, follow: str | None) -> Drawn:
        return "declare_stopped", {
            "p_attempt_id": attempt_id, "p_reason": "gone", "p_actor": "ann", "p_follow": follow
        }  # fmt: skip

    def batch(self, step: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
        params: dict[str, Any] = {"p_commands": json.dumps(rows)}
        if step == "renew_attempts":
            params["p_lease_ms"] = self.rng.choice((5_000, 30_000, 300_000))
        return params

    def command(self, lease: Row, fence: int, step: str) -> dict[str, Any]:
        row = {
            "attempt_id": lease["attempt_id"], "fence": fence,
            "token": acting.token(lease["offer_id"]),
        }  # fmt: skip
        if step == "start_attempts":
            return row | {"identity": "pid 7"}
        if step == "attest_attempts":
            return row | {"reason": "no receipt"}
        if step != "report_attempts":
            return row
        how = self.rng.choice(HOWS)
        code = self.rng.choice((0, 0, 1, None)) if how != "exit" else self.rng.choice((0, 0, 0, 1))
        output = self.rng.choice((None, '{"n":1}'))
        return row | {"how": how, "exit_code": code, "output": output, "error": None}

    def of(self, rows: list[Row]) -> str:
        return str(self.rng.choice(sorted(row["run_id"] for row in rows)))

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"
