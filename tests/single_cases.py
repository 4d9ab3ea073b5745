"""One step, in full product of what completion, recovery and the clock look at."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tests.cases import (
    AT,
    DEADLINES,
    EVIDENCE,
    GRAPHS,
    HOWS,
    KEYS,
    REASONS,
    SHAPES,
    build,
    ended,
    graph_of,
    run_id,
)
from tests.retry_cases import retries
from tests.state import (
    TERMINAL,
    Attempt,
    Attestation,
    Graph,
    Intent,
    Lease,
    Node,
    Policy,
    Report,
    Run,
    State,
    Step,
)

ALL_REASONS = (None, "user", "policy", "shutdown", "reconcile", "timeout")
SAID = (
    ended("exit", 0), ended("exit", 1), ended("exit"), ended("bad_output", 0), ended("deadline", 0),
    ended("stop", 0), *(ended(how) for how in HOWS[1:]),
)  # fmt: skip
BOUNDS = ((0, 1), (0, 2), (1, 2), (61, 63), (62, 63), (62, 64), (63, 64))  # started before, allowed
NO_RETRY = Policy()
LISTED = tuple(product((False, True), repeat=2))
LIVE_STEP = {"claimed": ("ready", 2, 1), "starting": ("ready", 2, 2), "running": ("running", 3, 3)}


def single(
    number: int,
    status: str,
    said: Report | Attestation | None = None,
    *,
    policy: Policy = NO_RETRY,
    reason: str | None = None,
    before: int = 0,
    returns: int = 0,
    deadline: int | None = None,
    jitter: int = 0,
    fencing: bool = True,
    lease: str | None = "leased",
) -> State:
    """A run with one step and one live attempt; every second one is a task's run.

    before: attempts that crossed the start barrier before this one.
    """
    step_status, step_version, version = LIVE_STEP[status]
    started = before + (status == "running")
    own = before + returns + 1
    said = replace(said, number=own) if said else None
    return State(
        run_id(number),
        Run(attempt_count=own, cancel_reason=reason, kind=("workflow", "task")[number % 2]),
        Graph((Node("main", (), policy),)),
        (Step("main", step_status, step_version, started, returns),),
        (Attempt(own, "main", status, 2, version, deadline, jitter),),
        (Lease(own, lease, 3, 1, 5_000, fencing),) if lease else (),
        reports=(said,) if isinstance(said, Report) else (),
        attestations=(said,) if isinstance(said, Attestation) else (),
        intent=Intent(reason) if reason else None,
    )


def ends(numbers: Iterator[int]) -> Iterator[State]:
    """What was reported × intent × deadline × what is tried again × how often it was tried."""
    for status, said, reason, deadline, (failed, late), (before, allowed) in product(
        ("starting", "running"), SAID, REASONS, DEADLINES, LISTED, BOUNDS
    ):
        policy = Policy(allowed, 1_000, 60_000, failed, late)
        if reason is None or (before, deadline) == (0, None):
            yield single(
                next(numbers), status, said,
                policy=policy, reason=reason, before=before, deadline=deadline, jitter=512,
            )  # fmt: skip


def losses(numbers: Iterator[int]) -> Iterator[State]:
    """Evidence × on_lost × intent × deadline × how often it was tried."""
    for status, said, reason, on_lost, deadline, late, (before, allowed) in product(
        ("starting", "running"), EVIDENCE, REASONS, ("retry", "fail", "hold"), DEADLINES,
        (False, True), BOUNDS,
    ):  # fmt: skip
        policy = Policy(allowed, 1_000, 60_000, False, late, on_lost)
        if reason is None or (before, late) == (0, True):
            yield single(
                next(numbers), status, said,
                policy=policy, reason=reason, before=before, deadline=deadline, jitter=1_023,
            )  # fmt: skip


def claim_returns(numbers: Iterator[int]) -> Iterator[State]:
    """What never started, up to the bound of claim returns."""
    gone = (ended("not_started"), ended("exit", 0), Attestation(0, "expired"), *EVIDENCE[1:])
    for said, reason, returns in product(gone, ALL_REASONS, (0, 1, 62, 63)):
        yield single(next(numbers), "claimed", said, reason=reason, returns=returns)
    for status, reason, returns in product(("starting", "running"), ALL_REASONS, (0, 62, 63)):
        said = ended("not_started")
        yield single(next(numbers), status, said, reason=reason, returns=returns, deadline=AT)


def delays(numbers: Iterator[int]) -> Iterator[State]:
    """Back-off × maximum × how often × jitter, with products far beyond 64 bits."""
    for backoff, most, before, jitter, said in product(
        (0, 1, 999, 86_400_000), (0, 1_000, 86_400_000), (0, 1, 2, 9, 21, 25, 30, 62),
        (0, 1, 1_023), (ended("exit", 1), EVIDENCE[0]),
    ):  # fmt: skip
        policy = Policy(64, backoff, most, on_failed=True, on_lost="retry")
        yield single(next(numbers), "running", said, policy=policy, before=before, jitter=jitter)


def leases(numbers: Iterator[int]) -> Iterator[State]:
    """What the clock alone proves, by attempt, lease, session and task."""
    for status, lease, fencing, on_lost, reason in product(
        LIVE_STEP, ("leased", "released", None), (False, True), ("retry", "fail", "hold"),
        ALL_REASONS,
    ):  # fmt: skip
        if lease == "leased" or status == "claimed":
            yield single(
                next(numbers), status,
                policy=Policy(on_lost=on_lost), reason=reason, fencing=fencing, lease=lease,
            )  # fmt: skip


def intents(numbers: Iterator[int]) -> Iterator[State]:
    """Every shape under every reason, and with a wish that is not on its run yet."""
    for shape, reason, kind, salt in product(
        SHAPES.values(), ALL_REASONS, ("workflow", "task"), range(len(EVIDENCE) * 4)
    ):
        number = next(numbers)
        state = build(number, (shape,), Graph((Node("main"),)), reason=reason, salt=salt)
        run = replace(state.run, kind=kind)
        yield replace(state, run=run)
        if reason and salt < 2:
            run = replace(run, cancel_reason=None)
            yield replace(state, run_id=run_id(next(numbers)), run=run)


def stale_epochs(numbers: Iterator[int]) -> Iterator[State]:
    """Offers and acknowledgements for an epoch that is over: dispatch must refuse them.

    Such a live attempt is a violation in itself; the guard stands all the same.
    """
    names = ("admitted", "leased", "released", "starting")
    for name, reason, salt, version in product(names, REASONS, range(12), (1, 3)):
        shape = replace(SHAPES[name], version=version)
        yield build(next(numbers), (shape,), Graph((Node("main"),)), reason=reason, salt=salt)


def run_ends(numbers: Iterator[int]) -> Iterator[State]:
    """Runs that are over, whatever is still said about them."""
    names = [name for name, shape in SHAPES.items() if shape.step in TERMINAL]
    for status, name, reason in product(
        ("succeeded", "failed", "cancelled", "timed_out"), names, REASONS
    ):
        state = build(next(numbers), (SHAPES[name],), Graph((Node("main"),)), reason=reason)
        yield replace(state, run=replace(state.run, status=status))


def admissions(numbers: Iterator[int]) -> Iterator[State]:
    """Runs that were just inserted."""
    graphs = [graph_of(needs, KEYS[: len(needs)]) for found in GRAPHS.values() for needs in found]
    for graph in graphs:
        yield State(run_id(next(numbers)), Run(version=0), graph)
        yield State(run_id(next(numbers)), Run(version=0, deadline_at_ms=AT), graph)
    for policy in (Policy(), Policy(on_lost="hold")):
        graph = Graph((Node("main", (), policy),))
        yield State(run_id(next(numbers)), Run(version=0, kind="task"), graph)


def singles(numbers: Iterator[int]) -> Iterator[State]:
    """All of this file that is a legal shape or must be refused."""
    for family in (
        ends, losses, claim_returns, delays, leases, intents, run_ends, admissions, retries,
    ):  # fmt: skip
        yield from family(numbers)
