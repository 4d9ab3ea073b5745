"""Runs that were just inserted to retry another: what ended there × what is the same here."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tests.state import Graph, Node, Policy, Run, State, Step, distances

KEYS = ("Ab", "_c", "ab")
NEEDS = {  # acyclic, up to renaming: the needs of each place
    1: (((),),),
    2: (((), ()), ((), (0,))),
    3: (((), (), ()), ((), (0,), (1,)), ((), (0,), (0,)), ((), (), (0, 1)), ((), (0,), (0, 1))),
}
OTHERWISE = ("failed", "skipped", "cancelled", "timed_out")
SAID = Policy(2, 1_000, 60_000, on_failed=True)
Needs = tuple[tuple[int, ...], ...]


def run_id(number: int) -> str:
    return f"ru{number:024x}"


def graph_of(
    needs: Needs, keys: tuple[str, ...], changed: frozenset[int], generation: int
) -> Graph:
    """Nodes by place; those in `changed` say something else."""
    return Graph(
        tuple(
            Node(
                keys[place],
                tuple(keys[one] for one in mine),
                replace(SAID, text="other" * (place in changed), generation=generation),
            )
            for place, mine in enumerate(needs)
        )
    )


def retried(numbers: Iterator[int], old: Graph, statuses: dict[str, str], new: Graph) -> State:
    """A run at version 0 that retries one of the other graph whose steps ended like that."""
    steps = tuple(Step(node.key, statuses[node.key]) for node in old.nodes)
    before = State(run_id(next(numbers)), Run("failed"), old, steps)
    return State(run_id(next(numbers)), Run(version=0), new, before=before)


def retries(numbers: Iterator[int]) -> Iterator[State]:
    yield from of_small_flows(numbers)
    yield from of_tasks(numbers)
    yield from of_random_flows(numbers, 150)


def of_small_flows(numbers: Iterator[int]) -> Iterator[State]:
    """Graph against graph, steps that succeeded or not, tasks that changed or not: every third."""
    every = [needs for found in NEEDS.values() for needs in found]
    turn = 0
    for was, now in product(every, every):
        for ended, changed in product(
            product((True, False), repeat=len(was)), product((True, False), repeat=len(now))
        ):
            turn += 1
            if turn % 3:
                continue
            old = graph_of(was, KEYS, frozenset(), 1)
            new = graph_of(now, KEYS, frozenset(itertools.compress(range(3), changed)), 2)
            statuses = {
                key: "succeeded" if well else OTHERWISE[turn // 3 % 4]
                for key, well in zip(KEYS, ended, strict=False)
            }
            yield retried(numbers, old, statuses, new)


def of_tasks(numbers: Iterator[int]) -> Iterator[State]:
    for status, text, generation in product(("succeeded", *OTHERWISE), ("", "other"), (1, 2)):
        policy = replace(SAID, text=text, generation=generation)
        before = State(
            run_id(next(numbers)), Run("failed", kind="task"), Graph((Node("main", (), SAID),)),
            (Step("main", status),),
        )  # fmt: skip
        graph = Graph((Node("main", (), policy),))
        yield State(run_id(next(numbers)), Run(version=0, kind="task"), graph, before=before)


def of_random_flows(numbers: Iterator[int], count: int, seed: int = 7) -> Iterator[State]:
    """Flows of up to twelve steps, of which a few say or need something else than before."""
    dice = random.Random(seed)
    for _ in range(count):
        size = dice.randint(4, 12)
        keys = tuple(dice.sample([f"{letter}{one}" for letter in "aB_" for one in range(5)], size))
        was = tuple(
            tuple(sorted(dice.sample(range(place), min(place, dice.choice((0, 1, 1, 2))))))
            for place in range(size)
        )
        now = list(was)
        for place in dice.sample(range(1, size), dice.choice((0, 0, 1, 2))):
            now[place] = tuple(sorted(dice.sample(range(place), dice.randint(0, min(place, 2)))))
        changed = frozenset(dice.sample(range(size), dice.choice((0, 0, 1))))
        old = graph_of(was, keys, frozenset(), 1)
        statuses: dict[str, str] = {}
        for key in keys:
            above = [statuses[one] for one in distances(old)[key]]
            ran = all(one == "succeeded" for one in above)
            well = ran and dice.random() < 0.85
            statuses[key] = "succeeded" if well else dice.choice(OTHERWISE) if ran else "skipped"
        yield retried(numbers, old, statuses, graph_of(tuple(now), keys, changed, 2))
