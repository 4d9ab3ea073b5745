"""The facts of one run as plain values: what tests.oracle reads and tests.facts writes as rows.

Times are milliseconds. Values that no rule looks at (names, tokens, inputs) are left out; facts.py
fills them in.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

TERMINAL = frozenset({"succeeded", "failed", "skipped", "cancelled", "timed_out"})
LIVE = frozenset({"claimed", "starting", "running"})


@dataclass(frozen=True, slots=True)
class Policy:
    """What a task says about its attempts (the immutable task revision)."""

    attempts: int = 1
    backoff_ms: int = 0
    max_backoff_ms: int = 0
    on_failed: bool = False
    on_timed_out: bool = False
    on_lost: str = "fail"
    text: str = ""  # whatever else the task says
    generation: int = 1  # another one is another revision of the same text


@dataclass(frozen=True, slots=True)
class Node:
    """A step of a workflow, with the keys of its direct needs."""

    key: str
    needs: tuple[str, ...] = ()
    policy: Policy = Policy()


@dataclass(frozen=True, slots=True)
class Graph:
    """An acyclic workflow; a task's run has the one node `main`."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Run:
    status: str = "running"
    version: int = 9
    attempt_count: int = 0
    kind: str = "workflow"
    cancel_reason: str | None = None  # set once the intent has been applied
    deadline_at_ms: int | None = None
    retry_of: str | None = None  # State.before says more, unless that run is gone


@dataclass(frozen=True, slots=True)
class Step:
    key: str
    status: str
    version: int = 1
    attempt_count: int = 0  # attempts past the start barrier
    claim_return_count: int = 0
    due_at_ms: int | None = None
    has_output: bool = False
    taken_over: bool = False  # from the run that this one retries


@dataclass(frozen=True, slots=True)
class Attempt:
    number: int
    step_key: str
    status: str
    epoch: int
    version: int = 1
    deadline_at_ms: int | None = None
    jitter: int = 0


@dataclass(frozen=True, slots=True)
class Lease:
    number: int  # of its attempt
    status: str
    version: int = 1
    fence: int = 1
    expires_at_ms: int = 5_000
    self_fencing: bool = True
    grace_ms: int = 100


@dataclass(frozen=True, slots=True)
class Offer:
    number: int
    fence: int  # the one that the lease would get


@dataclass(frozen=True, slots=True)
class Report:
    number: int
    fence: int
    kind: str  # starting, running, ended
    how: str | None = None
    exit_code: int | None = None
    reported_at_ms: int = 4_000


@dataclass(frozen=True, slots=True)
class Attestation:
    number: int
    evidence: str
    follow: str | None = None
    attested_at_ms: int = 4_000


@dataclass(frozen=True, slots=True)
class Intent:
    """The row of a request to cancel; it rules once it is on the run (Run.cancel_reason)."""

    reason: str
    requested_at_ms: int = 3_000


@dataclass(frozen=True, slots=True)
class Event:
    entity: str
    entity_id: str
    from_status: str | None
    to_status: str
    version: int
    at_ms: int
    code: str | None = None


@dataclass(frozen=True, slots=True)
class State:
    """All facts of one run."""

    run_id: str
    run: Run
    graph: Graph
    steps: tuple[Step, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    leases: tuple[Lease, ...] = ()
    offers: tuple[Offer, ...] = ()
    reports: tuple[Report, ...] = ()
    attestations: tuple[Attestation, ...] = ()
    intent: Intent | None = None
    agenda: tuple[tuple[str, int], ...] = ()  # stage, due_at_ms
    events: tuple[Event, ...] = ()
    before: "State | None" = None  # the run that this one retries


def attempt_id(state: State, number: int) -> str:
    return f"{state.run_id}-{number}"


def offer_id(state: State, offer: Offer) -> str:
    return f"of-{state.run_id}-{offer.number}-{offer.fence}"


def task_id(policy: Policy) -> str:
    listed = "f" * policy.on_failed + "t" * policy.on_timed_out
    numbers = f"{policy.attempts}-{policy.backoff_ms}-{policy.max_backoff_ms}"
    own = f"ta-{numbers}-{listed}-{policy.on_lost}"
    return (
        own
        + f"-{policy.text}" * bool(policy.text)
        + f"-g{policy.generation}" * (policy.generation > 1)
    )


def text_of(policy: Policy) -> Policy:
    """What a task says, whatever generation it is said in."""
    return replace(policy, generation=1)


def is_open(state: State) -> bool:
    """Whether the run goes on and nobody wants it to stop."""
    return state.run.status == "running" and state.run.cancel_reason is None


@lru_cache(maxsize=4096)
def distances(graph: Graph) -> dict[str, dict[str, int]]:
    """For each step all that it waits for, directly (1) or not, with the shortest distance."""
    needs = {node.key: node.needs for node in graph.nodes}
    found: dict[str, dict[str, int]] = {}

    def walk(key: str) -> dict[str, int]:
        if key not in found:
            mine: dict[str, int] = {}
            for need in needs[key]:
                for above, far in walk(need).items():
                    mine[above] = min(far + 1, mine.get(above, far + 1))
            found[key] = mine | dict.fromkeys(needs[key], 1)
        return found[key]

    for key in needs:
        walk(key)
    return found


def live_attempts(state: State) -> list[Attempt]:
    """Attempts that may still act, in the byte order of their ids."""
    live = [one for one in state.attempts if one.status in LIVE]
    return sorted(live, key=lambda one: attempt_id(state, one.number))


def lease_of(state: State, number: int) -> Lease | None:
    return next((one for one in state.leases if one.number == number), None)


def held_lease(state: State, number: int) -> Lease | None:
    """A lease that gives authority; its expiry does not matter (DOMAIN §10, trap 8)."""
    lease = lease_of(state, number)
    return lease if lease and lease.status == "leased" else None


def report_of(state: State, lease: Lease, kind: str) -> Report | None:
    """What the lease's holder said; a report under an older fence says nothing."""
    for one in state.reports:
        if one.number == lease.number and one.fence == lease.fence and one.kind == kind:
            return one
    return None


def step_of(state: State, attempt: Attempt) -> Step:
    return next(one for one in state.steps if one.key == attempt.step_key)


def policy_of(state: State, key: str) -> Policy:
    return next(node.policy for node in state.graph.nodes if node.key == key)


def on_its_epoch(step: Step, attempt: Attempt) -> bool:
    """An admission is good for exactly one epoch (DOMAIN §3.4, §3.9)."""
    if attempt.status == "running":
        return (step.status, step.version) == ("running", attempt.epoch + 1)
    return (step.status, step.version) == ("ready", attempt.epoch)
