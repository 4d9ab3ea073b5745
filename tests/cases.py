"""The states that test_decision enumerates: shapes of a step, put together in every way.

A shape is step status × attempt status × lease status; what workers and clocks say about it (its
inputs) goes round with the case's number, and the single steps take all of it in full product.
"""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from tests.state import (
    TERMINAL,
    Attempt,
    Attestation,
    Graph,
    Intent,
    Lease,
    Node,
    Offer,
    Policy,
    Report,
    Run,
    State,
    Step,
    distances,
)

REASONS = (None, "user", "timeout")
HOWS = ("exit", "signal", "stop", "deadline", "start_failed", "bad_output", "not_started")
KEYS = ("Ab", "_c", "ab")  # by bytes, whatever the locale says
AT = 4_000  # when reports and attestations are written
DEADLINES = (None, AT - 1, AT, AT + 1)
Input = Offer | Report | Attestation


@dataclass(frozen=True, slots=True)
class Shape:
    """One step with its attempts (status, epoch, version) and their leases (status, fence)."""

    step: str
    version: int = 1
    attempts: tuple[tuple[str, int, int], ...] = ()
    leases: tuple[tuple[str, int] | None, ...] = ()
    started: int = 0
    returns: int = 0
    inputs: tuple[tuple[Input, ...], ...] = ((),)


STARTING = Report(0, 1, "starting", reported_at_ms=1_500)
RUNNING = Report(0, 1, "running", reported_at_ms=2_000)


def ended(how: str, exit_code: int | None = None, fence: int = 1) -> Report:
    return Report(0, fence, "ended", how, exit_code, AT)


EVIDENCE = (
    Attestation(0, "fenced"),
    Attestation(0, "attested"),
    *(Attestation(0, "declared", follow) for follow in (None, "retry", "fail")),
)
ENDS = (ended("exit", 0), ended("exit", 1), *(ended(how) for how in HOWS[1:]))
OLD = (ended("exit", 0, 7), Report(0, 7, "running"))
HELD = (
    (), (STARTING,), (ended("not_started"),), (ended("exit", 0),), (RUNNING,), (*OLD,),
    (Attestation(0, "expired"),), (Report(0, 7, "starting"),),
)  # fmt: skip
BOTH = (STARTING, RUNNING, ended("exit", 1))
PAST = ((), (STARTING, RUNNING), BOTH, OLD, *((STARTING, one) for one in (*ENDS, *EVIDENCE)))
SHAPES = {
    "pending": Shape("pending"),
    "ready": Shape("ready", 2),
    "admitted": Shape(
        "ready", 2, (("claimed", 2, 1),), (None,), inputs=((), (Offer(0, 1),), (Offer(0, 2),))
    ),
    "leased": Shape("ready", 2, (("claimed", 2, 1),), (("leased", 1),), inputs=HELD),
    "released": Shape(
        "ready", 2, (("claimed", 2, 1),), (("released", 2),),
        inputs=((), (Offer(0, 1), STARTING), (Offer(0, 1), Offer(0, 3)), (ended("exit", 0),)),
    ),
    "starting": Shape("ready", 2, (("starting", 2, 2),), (("leased", 1),), inputs=PAST),
    "running": Shape("running", 3, (("running", 2, 3),), (("leased", 1),), 1, inputs=PAST),
    "retry_wait": Shape("retry_wait", 4, (("failed", 2, 4),), (("completed", 2),), 1),
    "lost": Shape("lost", 4, (("lost", 2, 4),), (("completed", 2),), 1),
    "waiting_approval": Shape("waiting_approval", 3),
    "succeeded": Shape("succeeded", 4, (("succeeded", 2, 4),), (("completed", 2),), 1),
    "failed": Shape("failed", 4, (("failed", 2, 4),), (("completed", 2),), 1),
    "skipped": Shape("skipped", 2),
    "cancelled": Shape("cancelled", 3, (("cancelled", 2, 2),), (("released", 2),)),
    "timed_out": Shape("timed_out", 4, (("timed_out", 2, 4),), (("completed", 2),), 1),
    "returned": Shape("ready", 3, (("lost", 2, 2),), (("released", 2),), returns=1),
    "admitted_again": Shape(
        "ready", 3, (("lost", 2, 2), ("claimed", 3, 1)), (("released", 2), None), returns=1,
        inputs=((), (Offer(0, 1),)),
    ),
}  # fmt: skip
POLICIES = (
    Policy(),
    Policy(3, 1_000, 60_000, on_failed=True, on_lost="retry"),
    Policy(2, 500, 500, on_timed_out=True, on_lost="hold"),
    Policy(64, 10, 86_400_000, on_failed=True, on_timed_out=True),
)
ONE = Graph((Node("main"),))
GRAPHS = {  # acyclic, up to renaming: the needs of each place
    1: (((),),),
    2: (((), ()), ((), (0,))),
    3: (
        ((), (), ()),  # nothing
        ((), (0,), ()),  # one need
        ((), (0,), (1,)),  # a chain
        ((), (0,), (0,)),  # a fork
        ((), (), (0, 1)),  # a join
        ((), (0,), (0, 1)),  # a chain with a shortcut
    ),
}


def run_id(number: int) -> str:
    return f"ru{number:024x}"


def build(
    number: int,
    shapes: tuple[Shape, ...],
    graph: Graph,
    *,
    reason: str | None = None,
    salt: int | None = None,
) -> State:
    """Put shapes on the nodes of a graph. salt: what chooses inputs, numbers and deadlines."""
    dice = (number if salt is None else salt) * 2_654_435_761 % 2**40
    count = sum(len(shape.attempts) for shape in shapes)
    first = (1, 9, 99, 8_192 - count)[dice // 7 % 4]  # near the run's bound as well
    facts: dict[str, list[object]] = {name: [] for name in ("steps", "attempts", "leases")}
    said: dict[type, list[Input]] = {Offer: [], Report: [], Attestation: []}
    used = 0
    for place, (node, shape) in enumerate(zip(graph.nodes, shapes, strict=True)):
        due = 7_000 + place if shape.step == "retry_wait" else None
        facts["steps"].append(
            Step(node.key, shape.step, shape.version, shape.started, shape.returns, due)
        )
        for (status, epoch, version), lease in zip(shape.attempts, shape.leases, strict=True):
            own = first + used
            used += 1
            deadline = DEADLINES[(dice >> (3 + 5 * place)) % 4] if status != "claimed" else None
            facts["attempts"].append(
                Attempt(own, node.key, status, epoch, version, deadline, dice % 1_024)
            )
            if lease:
                fencing = (dice >> (4 + 3 * place)) % 3 > 0
                facts["leases"].append(Lease(own, lease[0], lease[1], lease[1], 5_000, fencing))
        for one in shape.inputs[(dice >> (6 * place)) % len(shape.inputs)]:
            said[type(one)].append(replace(one, number=first + used - 1))
    attempt_count = first - 1 + count + dice // 11 % 2
    return State(
        run_id(number),
        Run(attempt_count=attempt_count, cancel_reason=reason),
        graph,
        *(tuple(found) for found in facts.values()),
        *(tuple(found) for found in said.values()),
        intent=Intent(reason) if reason else None,
    )  # type: ignore[arg-type]


def graph_of(needs: tuple[tuple[int, ...], ...], keys: tuple[str, ...], salt: int = 0) -> Graph:
    return Graph(
        tuple(
            Node(key, tuple(keys[one] for one in mine), POLICIES[(place * 3 + salt) % 4])
            for place, (key, mine) in enumerate(zip(keys, needs, strict=True))
        )
    )


def combined(numbers: Iterator[int], every: int = 1) -> Iterator[State]:
    """Every way to put shapes on graphs of up to three nodes, times the classes of intent."""
    renamed = {size: tuple(itertools.permutations(KEYS[:size])) for size in GRAPHS}
    turn = 0
    for size, graphs in GRAPHS.items():
        for shapes, needs, reason in product(
            product(SHAPES.values(), repeat=size), graphs, REASONS
        ):
            turn += 1
            if turn % every:
                continue
            number = next(numbers)
            names = renamed[size][number // 3 % len(renamed[size])]
            state = build(number, shapes, graph_of(needs, names, number % 4), reason=reason)
            if not contradictory(state.graph, state.steps):
                yield state


def contradictory(graph: Graph, steps: tuple[Step, ...]) -> bool:
    """Whether a step has all its needs although one of their ancestors ended otherwise.

    Nothing can lead there: no step opens below one that did not succeed.
    """
    status = {one.key: one.status for one in steps}
    for key, above in distances(graph).items():
        needs = [status[one] for one, far in above.items() if far == 1]
        ended_otherwise = any(status[one] in TERMINAL - {"succeeded"} for one in above)
        if status[key] == "pending" and ended_otherwise and set(needs) == {"succeeded"}:
            return True
    return False


def random_flows(numbers: Iterator[int], count: int, seed: int = 20_240_601) -> Iterator[State]:
    """Larger graphs in states that a run can be in; keys in no order."""
    dice = random.Random(seed)
    for number in itertools.islice(numbers, count):
        size = dice.randint(4, 20)
        keys = tuple(dice.sample([f"{letter}{one}" for letter in "aB_" for one in range(9)], size))
        needs = tuple(
            tuple(sorted(dice.sample(range(place), min(place, dice.choice((0, 1, 1, 2, 3))))))
            for place in range(size)
        )
        graph = graph_of(needs, keys)
        success = dice.choice((0.5, 0.8, 0.95))
        names = random_shapes(dice, graph, success)
        shapes = tuple(SHAPES[name] for name in names)
        salt, reason = dice.randrange(2**30), dice.choice(REASONS)
        yield build(number, shapes, graph, reason=reason, salt=salt)


def random_shapes(dice: random.Random, graph: Graph, success: float) -> list[str]:
    """Names of shapes by node: a step has gone on only when all its needs have succeeded."""
    names: dict[str, str] = {}
    for node in graph.nodes:
        above = [names[key] for key in distances(graph)[node.key]]
        if all(names[key] == "succeeded" for key in node.needs):
            others = [name for name in SHAPES if name != "skipped"]
            names[node.key] = "succeeded" if dice.random() < success else dice.choice(others)
        elif TERMINAL.intersection(above) - {"succeeded"}:
            names[node.key] = dice.choice(("pending", "skipped"))
        else:
            names[node.key] = "pending"
    return list(names.values())
