"""The load: graphs of ten steps; a scheduler and a worker without executions take them on."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from qinglong_sql.limits import PAGE_SIZE, PAGES
from qinglong_sql.store import Call, Row, Store
from tests import acting

WIDTH = 8
STEPS = WIDTH + 2
MIDDLE = [f"m{number}" for number in range(WIDTH)]
NEEDS = {"a": [], **{key: ["a"] for key in MIDDLE}, "z": MIDDLE}
STAGES = ("frontier_page", "task_admission_page")


@dataclass(slots=True)
class Clocked:
    """Calls of a store, and how long each took; `spent` is {step: [seconds]}."""

    store: Store
    spent: dict[str, list[float]] = field(default_factory=dict)

    def call(self, step: str, **params: object) -> list[Row]:
        begun = time.perf_counter()
        rows = self.store.call(step, **params)
        self.spent.setdefault(step, []).append(time.perf_counter() - begun)
        return rows

    def calls(self) -> int:
        """How many, each of which is a transaction."""
        return sum(map(len, self.spent.values()))


def prepare(store: Store, graphs: int) -> None:
    """Publish the graph, start it `graphs` times and register the worker."""
    acting.publish(store, NEEDS)
    for number in range(graphs):
        acting.start(store, key=f"graph {number}")
    acting.register(store)


def schedule(clocked: Clocked) -> int:
    """A scheduler's cycle: frontier, then task admission; how many runs it looked at."""
    seen = 0
    for stage in STAGES:
        after = acting.START
        for _ in range(PAGES):
            rows = clocked.call(
                stage, p_after_due_at_ms=after[0], p_after_run_id=after[1], p_limit=PAGE_SIZE
            )
            seen += len(rows)
            if len(rows) < PAGE_SIZE:
                break
            after = (rows[-1]["due_at_ms"], rows[-1]["run_id"])
    return seen


def work(clocked: Clocked, names: Iterator[str], batch: int) -> int:
    """Lease up to `batch` attempts, start and report them; how many that were."""
    (step, params) = leasing([next(names) for _ in range(batch)])
    held = held_of(clocked.call(step, **params))
    if not held:
        return 0
    for step, params in (starting(held), ending(held)):
        for row in clocked.call(step, **params):
            if row["outcome"] != "applied":
                raise RuntimeError(f"{step}: {row}")
    return len(held)


def names(prefix: str = "o") -> Iterator[str]:
    """Ids of offers, each once."""
    number = 0
    while True:
        yield f"{prefix}{number}"
        number += 1


def leasing(offers: list[str]) -> Call:
    return "lease_attempts", {
        "p_worker_id": "w1",
        "p_session_id": "s1",
        "p_queue": "default",
        "p_offers": acting.offers(offers),
        "p_lease_ms": acting.LEASE_MS,
        "p_run_id": None,
    }


def starting(held: list[acting.Held]) -> Call:
    return "start_attempts", {"p_commands": acting.commands(*held, identity="pid 7")}


def ending(held: list[acting.Held]) -> Call:
    words = {"how": "exit", "exit_code": 0, "output": None, "error": None}
    return "report_attempts", {"p_commands": acting.commands(*held, **words)}


def held_of(rows: list[Row]) -> list[acting.Held]:
    """What a lease answered, as its worker holds it."""
    return [
        acting.Held(row["attempt_id"], row["fence"], acting.token(row["offer_id"]), row)
        for row in rows
    ]


def finished(store: Store, graphs: int) -> None:
    """Raises RuntimeError unless all graphs ended well and nothing is violated."""
    ended = len(store.read("run_state", status="succeeded"))
    broken = store.read("violation", limit=1)
    if ended != graphs or broken:
        raise RuntimeError(f"{ended} of {graphs} graphs succeeded; violated: {broken}")
