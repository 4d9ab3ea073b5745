"""The golden table of the rules: for each word its interesting shapes, facts → effects.

    python -m tests.golden_decision --write      writes tests/golden/decision.md anew

Only this option writes it, from the oracle; test_decision compares it with oracle and views.
"""

import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.cases import AT, EVIDENCE, SHAPES, Shape, build, ended, run_id
from tests.single_cases import single
from tests.state import (
    Attestation,
    Graph,
    Intent,
    Node,
    Offer,
    Policy,
    Report,
    Run,
    State,
    Step,
)
from tests.telling import facts_of, rows_of, told

PATH = Path(__file__).parent / "golden" / "decision.md"
TRY = Policy(3, 1_000, 60_000, on_failed=True, on_timed_out=True, on_lost="retry")
HOLD = Policy(3, 1_000, 60_000, on_timed_out=True, on_lost="hold")
SALT = 710  # chooses nothing unusual: numbers from 1, self-fencing, no deadlines
HEAD = """# What the decision views say

Written by `python -m tests.golden_decision --write` from tests/oracle.py; the views of both
engines are compared with it. `ready@2` is a status and the version that is expected, `#1` an
attempt; times are milliseconds. An en dash says that nothing follows.
"""


def flow(text: str, *, reason: str | None = None, count: int = 0) -> State:
    """A run from words such as `a succeeded, b pending needs a`; shapes are those of cases."""
    nodes, shapes = [], []
    for part in text.split(", "):
        key, name, *needs = part.split()
        nodes.append(Node(key, tuple(needs[1:])))
        shapes.append(replace(SHAPES[name], inputs=((),)))
    state = build(0, tuple(shapes), Graph(tuple(nodes)), reason=reason, salt=SALT)
    attempts = tuple(replace(one, deadline_at_ms=None) for one in state.attempts)
    run = replace(state.run, attempt_count=count or state.run.attempt_count)
    return replace(state, attempts=attempts, run=run)


def says(name: str, *said: Offer | Report | Attestation, reason: str | None = None) -> State:
    """One step in a shape of cases, and what is said about its attempt."""
    shape = replace(SHAPES[name], inputs=(said,)) if said else SHAPES[name]
    return build(0, (shape,), Graph((Node("main"),)), reason=reason, salt=SALT)


def admissions() -> Iterator[State]:
    yield State("", Run(version=0), Graph((Node("b", ("a",)), Node("a"))))
    yield State("", Run(version=0), Graph((Node("a"), Node("b"), Node("c", ("a", "b")))))
    yield State("", Run(version=0, kind="task"), Graph((Node("main"),)))
    yield flow("a ready, b pending needs a")
    chain = "a, b needs a, c needs b"
    for was, ends, now in (
        (chain, "succeeded succeeded failed", chain),
        (chain, "succeeded succeeded succeeded", chain),
        (chain, "succeeded failed skipped", chain),
        (chain, "succeeded succeeded failed", "a!, b needs a, c needs b"),
        (chain, "succeeded succeeded failed", "a, b! needs a, c needs b"),
        (chain, "succeeded succeeded failed", "a, n needs a, b needs n, c needs b"),
        ("a, b, c needs b", "succeeded succeeded failed", "a, b needs a, c needs b"),
        ("a, b needs a, c", "succeeded succeeded failed", "a, b, c"),
        ("a, b, c needs a b", "succeeded succeeded succeeded", "a, c needs a"),
    ):
        yield again(was, ends, now)
    for ends, now in (("failed", "main"), ("succeeded", "main"), ("succeeded", "main!")):
        yield again("main", ends, now, kind="task")


def again(was: str, ends: str, now: str, kind: str = "workflow") -> State:
    """A retry: the old flow and how its steps ended, the new flow; `!` marks another text."""
    old, new = nodes_of(was), nodes_of(now)
    steps = tuple(Step(node.key, to) for node, to in zip(old, ends.split(), strict=True))
    before = State(run_id(0), Run("failed", kind=kind), Graph(old), steps)
    return State("", Run(version=0, kind=kind), Graph(new), before=before)


def nodes_of(text: str) -> tuple[Node, ...]:
    found = []
    for part in text.split(", "):
        key, *needs = part.split()
        policy = Policy(text="other") if key.endswith("!") else Policy()
        found.append(Node(key.rstrip("!"), tuple(needs[1:]), policy))
    return tuple(found)


def frontiers() -> Iterator[State]:
    for text in (
        "a succeeded, b pending needs a", "a failed, b pending needs a",
        "a failed, b pending needs a, c pending needs b", "a failed, b running, c pending needs b",
        "a failed, b pending needs a, c running", "a succeeded, b running, c pending needs a b",
        "a succeeded, b succeeded, c pending needs a b",
        "a succeeded, b failed, c pending needs a b", "a succeeded, b cancelled, c pending needs b",
        "a failed, b skipped needs a, c pending needs b",
        "a timed_out, b pending needs a", "a retry_wait, b pending needs a",
        "a lost, b pending needs a", "a succeeded, b succeeded", "a succeeded, b failed",
        "a timed_out, b succeeded", "a timed_out, b failed", "a cancelled, b succeeded",
        "a cancelled, b timed_out", "a cancelled, b failed", "a skipped, b succeeded",
    ):  # fmt: skip
        yield flow(text)
    yield flow("a succeeded, b pending needs a", reason="user")
    yield flow("a succeeded, b succeeded", reason="user")


def task_admissions() -> Iterator[State]:
    for text in ("a ready", "b ready, a ready", "a admitted, b ready", "a returned", "a starting"):
        yield flow(text)
    for count in (8_190, 8_191, 8_192):
        yield flow("a ready, b ready", count=count)
    yield flow("a ready", reason="user")


def dispatches() -> Iterator[State]:
    start, run = Report(0, 1, "starting"), Report(0, 1, "running")
    yield says("admitted", Offer(0, 1))
    yield says("admitted", Offer(0, 1), reason="user")
    yield says("released", Offer(0, 1), Offer(0, 3))
    yield says("released", Offer(0, 1))
    yield says("leased", start)
    yield says("leased", start, reason="user")
    yield says("leased", replace(start, fence=7))
    yield says("starting", start, run)
    yield says("starting", start, run, reason="timeout")
    for name, said in (("admitted", Offer(0, 1)), ("leased", start), ("starting", run)):
        shape: Shape = replace(SHAPES[name], version=3, inputs=((said,),))
        yield build(0, (shape,), Graph((Node("main"),)), salt=SALT)


def completions() -> Iterator[State]:
    hows = ("signal", "stop", "deadline", "start_failed", "bad_output")
    for said in (ended("exit", 0), ended("exit", 1), *(ended(how) for how in hows)):
        yield single(0, "running", said)
    yield single(0, "starting", ended("exit", 0))
    yield single(0, "starting", ended("start_failed"))
    for deadline in (AT, AT + 1):
        yield single(0, "running", ended("exit", 0), deadline=deadline)
    for reason in ("user", "timeout"):
        yield single(0, "running", ended("exit", 0), deadline=AT, reason=reason)
        yield single(0, "starting", ended("exit", 1), policy=TRY, reason=reason)
    for before in (0, 1, 2):
        yield single(0, "running", ended("exit", 1), policy=TRY, before=before)
    yield single(0, "starting", ended("start_failed"), policy=TRY, jitter=1_023)
    yield single(0, "running", ended("deadline"), policy=TRY)
    yield single(0, "running", ended("exit", 0), policy=TRY)
    for status in ("claimed", "starting", "running"):
        yield single(0, status, ended("not_started"))
    for returns in (62, 63):
        yield single(0, "claimed", ended("not_started"), returns=returns, reason="user")
    yield single(0, "claimed", ended("exit", 0))
    yield single(0, "running", ended("exit", 0, fence=7))


def recoveries() -> Iterator[State]:
    for returns in (0, 62, 63):
        yield single(0, "claimed", Attestation(0, "expired"), returns=returns)
    yield single(0, "claimed", Attestation(0, "expired"), reason="user")
    fenced, attested, declared, again, never = EVIDENCE
    for status in ("starting", "running"):
        yield single(0, status, fenced)
        yield single(0, status, fenced, policy=TRY)
        yield single(0, status, fenced, policy=TRY, before=2)
        yield single(0, status, fenced, policy=TRY, reason="timeout")
        yield single(0, status, fenced, deadline=AT)
        yield single(0, status, fenced, deadline=AT, policy=TRY)
        yield single(0, status, attested, policy=HOLD)
        yield single(0, status, declared, policy=HOLD)
        yield single(0, status, again, policy=HOLD)
        yield single(0, status, never, policy=TRY)
    for said in (fenced, attested, declared, again):
        yield single(0, "running", said, policy=TRY, jitter=1_023)
    yield single(0, "running", fenced, deadline=AT, policy=TRY, jitter=1_023)
    yield single(0, "running", again, policy=TRY, before=62)
    yield single(0, "running", again, policy=TRY, before=63)


def clocks() -> Iterator[State]:
    yield single(0, "claimed")
    yield single(0, "claimed", reason="user", fencing=False)
    yield single(0, "claimed", lease="released")
    for status in ("starting", "running"):
        yield single(0, status)
        yield single(0, status, policy=HOLD)
        yield single(0, status, fencing=False)


def retries() -> Iterator[State]:
    yield flow("a retry_wait, b retry_wait, c lost")
    yield flow("a retry_wait", reason="user")


def waits() -> Iterator[State]:
    yield flow("a retry_wait, b running, c retry_wait")
    yield build(0, (SHAPES["retry_wait"],), Graph((Node("main", (), TRY),)), salt=SALT)


def intents() -> Iterator[State]:
    yield replace(flow("a running"), intent=Intent("user"))
    yield flow("a running", reason="user")


def blocks() -> Iterator[State]:
    for name in ("admitted", "leased", "released", "starting", "running", "ready", "lost"):
        yield flow(f"a {name}", reason="user")
    yield flow("a running")
    shape = replace(SHAPES["lost"], step="running", version=3)
    yield build(0, (shape,), Graph((Node("main"),)), reason="user", salt=SALT)


def cancellations() -> Iterator[State]:
    for reason, name in itertools.product(("user", "timeout"), SHAPES):
        yield flow(f"a {name}", reason=reason)
    yield flow("a ready")
    yield flow("a succeeded, b pending needs a, c running", reason="user")
    yield flow("a leased, b admitted, c lost", reason="timeout")
    yield flow("c admitted, b ready, a retry_wait", reason="timeout")


WORDS = {
    "admission_effect": admissions,
    "frontier_effect": frontiers,
    "task_admission_effect": task_admissions,
    "dispatch_effect": dispatches,
    "completion_effect": completions,
    "recovery_due": clocks,
    "recovery_effect": recoveries,
    "retry_effect": retries,
    "retry_longest": waits,
    "intent_effect": intents,
    "cancellation_blocked": blocks,
    "cancellation_effect": cancellations,
}


def golden_states(numbers: Iterator[int] | None = None) -> dict[str, list[State]]:
    """The table's states by view, each with a run id of its own."""
    numbers = itertools.count(1) if numbers is None else numbers
    return {
        view: [_numbered(state, numbers) for state in states()] for view, states in WORDS.items()
    }


def _numbered(state: State, numbers: Iterator[int]) -> State:
    before = state.before and replace(state.before, run_id=run_id(next(numbers)))
    return replace(state, run_id=run_id(next(numbers)), before=before)


def rendered() -> str:
    """The whole file, from the oracle."""
    parts = [HEAD]
    for view, states in golden_states().items():
        parts.append(f"\n## {view}\n\n| Facts | What follows |\n|---|---|\n")
        answers = told(states)[view]
        parts += [
            f"| {facts_of(one)} | {rows_of(answers.get(one.run_id, []))} |\n" for one in states
        ]
    return "".join(parts)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(rendered())
