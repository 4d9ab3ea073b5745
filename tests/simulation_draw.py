"""What a simulation does next: half of it sensible, half of it anything, some of it once more.

Sensible commands follow what is due, so that runs come to all their ends; the rest names runs,
attempts, fences, tokens and times as they come. Nothing here knows what a command should do.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests import acting
from tests.simulation import Command
from tests.simulation_facts import Facts, Row
from tests.simulation_words import PACKAGES, STAGES, Drawn, Words

Wish = tuple[int, Callable[[], Drawn]]  # how much it is wanted


@dataclass(slots=True)
class Draw(Words):
    """The source of one script. The same seed and the same facts give the same commands."""

    drawn: list[Command] = field(default_factory=list)

    def next(self, facts: Facts, now_ms: int) -> Command:
        """The next command, for a database that stands like this."""
        if self.drawn and self.rng.random() < 0.10:
            return self._noted(self._again())
        wait = self._wait(facts, now_ms)
        wishes = list(self._wishes(facts, now_ms + wait))
        if wishes and self.rng.random() < 0.86:
            chosen = self.rng.choices(wishes, [weight for weight, _ in wishes])[0]
            return self._noted(Command(wait, *chosen[1]()))
        return self._noted(Command(wait, *self._anything(facts, now_ms + wait)))

    def _noted(self, command: Command) -> Command:
        self.drawn.append(command)
        return command

    def _wait(self, facts: Facts, now_ms: int) -> int:
        """Mostly little; often up to what is due next; sometimes back."""
        future = sorted(
            row["due_at_ms"] - now_ms
            for row in facts["agenda"].values()
            if row["due_at_ms"] > now_ms
        )
        luck = self.rng.random()
        if luck < 0.05:
            return -self.rng.randrange(1, 60_000)
        waits = {
            row["run_id"] for row in facts["step_run"].values() if row["status"] == "retry_wait"
        }
        for (run_id, stage), row in facts["agenda"].items():
            if stage == "deadline" and run_id in waits and luck < 0.2:
                return max(0, row["due_at_ms"] - now_ms)
        if luck < (0.3 if waits else 0.12) and future:
            return self.rng.choice(future[: 1 + len(waits)]) + self.rng.choice((-1, 0, 0, 0, 1))
        if luck > 0.96:
            return self.rng.choice((*future, 5_000, 20_000, 40_000, 400_000))
        return self.rng.choice((0, 0, 1, 7, 250))

    def _again(self) -> Command:
        """An earlier command, or the last one; now and then with another argument."""
        last = self.rng.random() < 0.4
        old = self.drawn[-1] if last else self.rng.choice(self.drawn)
        params = dict(old.params)
        if self.rng.random() < 0.3:
            name = self.rng.choice(sorted(params))
            value = params[name]
            params[name] = "x" if value is None else self._other(name, value)
        return Command(0, old.step, params)

    def _other(self, name: str, value: Any) -> Any:
        if name in ("p_commands", "p_offers"):
            rows = json.loads(value)
            if not rows:
                return "{}"
            row = self.rng.choice(rows)
            key = self.rng.choice(sorted(row))
            row[key] = self._changed(row[key])
            return json.dumps(rows)
        return self._changed(value)

    def _changed(self, value: Any) -> Any:
        if value == "{}":
            return '{"n":2}'
        if isinstance(value, int):
            return value + self.rng.choice((-1, 1))
        if isinstance(value, str):
            return self.rng.choice(("", value + "x", value[:-1], "other"))
        return self.rng.choice((1, "x"))

    # What makes sense here.

    def _wishes(self, facts: Facts, now_ms: int) -> Iterator[Wish]:
        active = [
            key[0] for key, row in facts["package_generation"].items() if row["state"] == "active"
        ]
        runs = list(facts["run"].values())
        is_open = [row for row in runs if row["status"] == "running"]
        if not active:
            yield 50, self.publish
            return
        if len(is_open) < 3:
            yield (80, 6, 2)[len(is_open)], lambda: self.start(facts)
        if any(row["status"] in ("failed", "cancelled", "timed_out") for row in runs):
            yield 4, lambda: self.retry(runs)
        busy = {row["run_id"] for row in facts["step_run"].values()
                if row["status"] in ("running", "retry_wait")}  # fmt: skip
        busy |= {row["run_id"] for row in facts["task_attempt"].values()
                 if row["status"] == "starting"}  # fmt: skip
        if is_open:
            yield 1, lambda: self.cancel(is_open)
        if busy:
            yield 6, lambda: self.cancel([row for row in runs if row["run_id"] in busy])
        due = [row for row in facts["agenda"].values() if row["due_at_ms"] <= now_ms]
        ends = [row["finished_at_ms"] for row in runs if row["finished_at_ms"] is not None]
        if ends:
            limit, before = self.rng.choice((1, 32)), self.rng.choice(ends)
            yield 1, lambda: ("purge_runs", {"p_before_ms": before + 1, "p_limit": limit})
        if len(is_open) > 1:
            yield 1, lambda: ("withdraw_package", {"p_package_key": self.rng.choice(active)})
        faults = list(facts["run_fault"])
        if faults:
            yield 6, lambda: self.release(*self.rng.choice(faults))
        if due:
            yield 2, lambda: self.fault(self.rng.choice(due))
            yield 20 * min(len(due), 3), lambda: self.stage(self.rng.choice(due))
        yield from self._work(facts)

    def _work(self, facts: Facts) -> Iterator[Wish]:
        leases = facts["attempt_lease"]
        offered, held = [], []
        for key, row in facts["task_attempt"].items():
            lease = leases.get(key)
            if lease is not None and lease["status"] == "leased":
                held.append((row, lease))
            elif row["status"] == "claimed":
                offered.append(row)
        if offered:
            online = [w for w in facts["worker_session"].values() if w["status"] == "online"]
            if online:
                yield 25, lambda: self.lease(self.rng.choice(online), self.rng.choice(offered))
            else:
                yield 25, self.register
        if held:
            yield 6, lambda: self.on("renew_attempts", held)
        for status, steps in (
            ("claimed", ("start_attempts",) * 14 + ("report_attempts", "attest_attempts")),
            ("starting", ("running_attempts",) * 6
             + ("report_attempts",) * 3 + ("declare_stopped", "attest_attempts")),
            ("running", ("report_attempts",) * 10
             + ("renew_attempts", "declare_stopped", "attest_attempts")),
        ):  # fmt: skip
            here = [both for both in held if both[0]["status"] == status]
            if here:
                yield 25, lambda h=here, s=steps: self.on(self.rng.choice(s), h)

    # Anything.

    def _anything(self, facts: Facts, now_ms: int) -> Drawn:
        run_id = self._run(facts)
        leases = list(facts["attempt_lease"].values())
        one = self.rng.choice([steps[0] for steps in STAGES.values()])
        choices: list[Callable[[], Drawn]] = [
            *[lambda: (one, {"p_run_id": run_id})] * 3,
            lambda: self._page(facts),
            lambda: self._page(facts),
            lambda: self.rng.choice((self.publish, self.register))(),
            lambda: self._start_any(facts),
            lambda: ("start_retry", {"p_run_id": run_id, "p_run_key": None}),
            lambda: self._odd(facts, run_id, now_ms),
        ]
        if leases:
            choices += [lambda: self._wrong(self.rng.choice(leases), facts)] * 3
        return self.rng.choice(choices)()

    def _start_any(self, facts: Facts) -> Drawn:
        return "start_run", {
            "p_package_key": self.rng.choice((*PACKAGES, "nobody")),
            "p_kind": self.rng.choice(("workflow", "task", "task")),
            "p_target_key": self.rng.choice(("flow", "work", "slow")),
            "p_run_key": f"k{self.rng.randrange(1, 4)}",
            "p_input": self.rng.choice(("{}", '{"n":1}')),
        }

    def _page(self, facts: Facts) -> Drawn:
        keys = self.keys()
        rows = sorted(facts["agenda"].values(), key=lambda row: (row["due_at_ms"], row["run_id"]))
        if rows and self.rng.random() < 0.3:
            after = self.rng.choice(rows)
            keys |= {"p_after_due_at_ms": after["due_at_ms"], "p_after_run_id": after["run_id"]}
        pages = [page for _, page in STAGES.values() if page]
        step = self.rng.choice([*pages, "settle_task_cancellations", "due_page"])
        if step == "due_page":
            keys |= {"p_stage": self.rng.choice(sorted(STAGES))}
        return step, keys

    def _odd(self, facts: Facts, run_id: str, now_ms: int) -> Drawn:
        """What is rarely done."""
        stage = self.rng.choice(sorted(STAGES))
        package = {"p_package_key": self.rng.choice((*PACKAGES, "nobody"))}
        worker = self.rng.choice(("w1", "w2", "w9"))
        odd: list[Drawn] = [
            ("withdraw_package", package),
            ("withdraw_package", package),
            ("record_fault", {"p_run_id": run_id, "p_stage": stage, "p_error": "disk on fire"}),
            ("release_fault", {"p_run_id": run_id, "p_stage": stage}),
            ("sweep_agenda", {"p_after_run_id": "", "p_limit": 1024}),
            ("end_session", {"p_worker_id": worker, "p_session_id": "s1"}),
            ("purge_runs", {"p_before_ms": now_ms - 1_000, "p_limit": 2}),
            self.declare(f"{run_id}-1", self.rng.choice((None, "retry", "fail"))),
        ]
        return self.rng.choice(odd)

    def _wrong(self, lease: Row, facts: Facts) -> Drawn:
        """A worker's command with whatever lease, fence and token there ever was."""
        step = self.rng.choice(
            ("start_attempts", "running_attempts", "renew_attempts", "report_attempts",
             "attest_attempts", "attempt_input")
        )  # fmt: skip
        if step == "attempt_input":
            token = acting.token(lease["offer_id"])
            return step, {"p_attempt_id": lease["attempt_id"], "p_token": token}
        offers = sorted(
            (row for row in facts["attempt_offer"].values()
             if row["attempt_id"] == lease["attempt_id"]),
            key=lambda row: row["fence"],
        )  # fmt: skip
        offer = self.rng.choice(offers)
        fence = self.rng.choice((offer["fence"], lease["fence"], offer["fence"] + 1))
        row = self.command(offer, fence, step)
        return step, self.batch(step, [row])

    def _run(self, facts: Facts) -> str:
        return self.of([*facts["run"].values(), {"run_id": "ru-nobody"}])
