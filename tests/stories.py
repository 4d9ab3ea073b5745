"""Runs with their whole history, and shapes of one step that must never be, for `violation`."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

from tests import oracle
from tests.cases import REASONS, SHAPES, Shape, build, run_id
from tests.state import (
    LIVE,
    TERMINAL,
    Attempt,
    Event,
    Graph,
    Intent,
    Lease,
    Node,
    Run,
    State,
    Step,
    attempt_id,
)

ONE = Graph((Node("main"),))
TWO = Graph((Node("a"), Node("b", ("a",))))
SALT = 710
STEP_ROADS = {  # from pending to where a shape of cases stands, one status a version
    "pending": (),
    "ready": ("ready",),
    "waiting_approval": ("ready", "waiting_approval"),
    "running": ("ready", "running"),
    "skipped": ("skipped",),
    "cancelled": ("ready", "cancelled"),
}
ATTEMPT_ROAD = ("claimed", "starting", "running")


def story(number: int, name: str, *, reason: str | None = None, status: str = "running") -> State:
    """A run of one step in a shape of cases, with the events that led there and its agenda."""
    shape = replace(SHAPES[name], inputs=((),))
    state = build(number, (shape,), ONE, reason=reason, salt=SALT)
    told = [("run", state.run_id, None, "running"), ("step", "main", None, "pending")]
    told += [("step", "main", *move) for move in _moves(("pending", *step_road(shape)))]
    for attempt in state.attempts:
        own_id, road = attempt_id(state, attempt.number), attempt_road(attempt)
        told.append(("attempt", own_id, None, road[0]))
        if any(lease.number == attempt.number for lease in state.leases):
            told.append(("lease", own_id, None, "leased"))
        told += [("attempt", own_id, *move) for move in _moves(road)]
    told += [("run", state.run_id, "running", "running")] if reason else []
    told += [("run", state.run_id, "running", status)] if status != "running" else []
    seen: dict[tuple[str, str], int] = {}
    events = []
    for at_ms, (entity, entity_id, was, to) in enumerate(told, start=1_000):
        version = seen.get((entity, entity_id), 0) + 1
        seen[entity, entity_id] = version
        events.append(Event(entity, entity_id, was, to, version, at_ms))
    run = replace(state.run, status=status, version=len(events))
    return on_agenda(replace(state, run=run, events=tuple(events)))


def step_road(shape: Shape) -> tuple[str, ...]:
    if shape.step == "ready" and shape.version == 3:
        return ("ready", "ready")
    return STEP_ROADS.get(shape.step, ("ready", "running", shape.step))


def attempt_road(attempt: Attempt) -> tuple[str, ...]:
    crossed = attempt.version - (attempt.status not in LIVE)
    ended = () if attempt.status in LIVE else (attempt.status,)
    return (*ATTEMPT_ROAD[:crossed], *ended)


def _moves(road: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    yield from itertools.pairwise(road)


def on_agenda(state: State) -> State:
    """The same run with all its due work on the agenda."""
    rows = tuple((stage, due or 0) for stage, due in oracle.agenda(state).items())
    return replace(state, agenda=rows)


def legal_stories(numbers: Iterator[int]) -> Iterator[State]:
    for name, reason in itertools.product(SHAPES, REASONS):
        yield story(next(numbers), name, reason=reason)
    for name, shape in SHAPES.items():
        if shape.step in TERMINAL:
            for status in ("succeeded", "failed", "cancelled", "timed_out"):
                yield story(next(numbers), name, status=status)


def broken_stories(numbers: Iterator[int]) -> Iterator[tuple[set[str], State]]:
    """Histories with one lie in them, and the names of the rules that find it."""

    def fresh() -> State:
        return story(next(numbers), "succeeded")

    one = fresh()
    yield {"run_version_is_its_event_count"}, replace(one, run=replace(one.run, version=99))
    one = fresh()
    yield (
        {"run_version_is_its_event_count", "a_run_has_all_its_steps"},
        replace(one, run=replace(one.run, version=0)),
    )
    one = fresh()
    late = replace(one.events[2], at_ms=5_000)
    yield (
        {"event_times_never_step_back"},
        replace(one, events=(*one.events[:2], late, *one.events[3:])),
    )
    one = fresh()
    wrong = replace(one.events[3], from_status="pending", to_status="running")
    yield (
        {"events_follow_the_state_machine"},
        replace(one, events=(*one.events[:3], wrong, *one.events[4:])),
    )
    for entity in ("step", "attempt"):
        one = fresh()
        last = max(place for place, event in enumerate(one.events) if event.entity == entity)
        events = (*one.events[:last], *one.events[last + 1 :])
        run = replace(one.run, version=len(events))
        yield {f"{entity}_is_what_its_events_say"}, replace(one, events=events, run=run)
    one = fresh()
    event = Event("lease", "ru-of-nobody-1", None, "leased", 1, 8_000)
    run = replace(one.run, version=one.run.version + 1)
    yield (
        {"a_lease_belongs_to_an_attempt_of_its_run"},
        replace(one, run=run, events=(*one.events, event)),
    )


def shapes(numbers: Iterator[int]) -> Iterator[State]:
    """Step status × version × attempt status × lease × run status × intent; most are illegal."""
    statuses = ("claimed", "starting", "running", "succeeded", "failed", "lost", None)
    steps = ("pending", "ready", "waiting_approval", "running", "retry_wait", "lost", "succeeded",
             "failed", "skipped", "cancelled", "timed_out")  # fmt: skip
    for step, version, status, lease, over, reason in itertools.product(
        steps, (2, 3), statuses, (None, "leased", "released", "completed"),
        ("running", "succeeded"), (None, "user"),
    ):  # fmt: skip
        if status is None and lease is not None:
            continue
        attempts = (Attempt(1, "main", status, 2),) if status else ()
        state = State(
            run_id(next(numbers)),
            Run(status=over, attempt_count=len(attempts), cancel_reason=reason),
            ONE,
            (Step("main", step, version, due_at_ms=7_000 if step == "retry_wait" else None),),
            attempts,
            (Lease(1, lease),) if lease else (),
            intent=Intent(reason) if reason else None,
        )
        yield on_agenda(state) if version == 2 else state


def other_shapes(numbers: Iterator[int]) -> Iterator[State]:
    """What else a run may say wrongly of itself."""
    for name, reason in itertools.product(SHAPES, (None, "user")):

        def one(name: str = name, reason: str | None = reason) -> State:
            return story(next(numbers), name, reason=reason)

        state = one()
        yield replace(state, steps=tuple(replace(step, has_output=True) for step in state.steps))
        state = one()
        yield replace(state, intent=Intent("policy"))
        yield replace(one(), intent=None)
        state = one()
        run = replace(state.run, attempt_count=state.run.attempt_count + 1)
        yield on_agenda(replace(state, run=run))
        yield replace(one(), graph=TWO, steps=(Step("a", "pending"),), attempts=(), leases=())
        state = one()
        yield replace(state, run=replace(state.run, deadline_at_ms=4_000))
        for due in (0, 4_999, 5_000, 5_001, 6_999, 7_000, 7_001):
            yield replace(one(), agenda=tuple((stage, due) for stage in STAGES))
        state = one()
        yield replace(state, run=replace(state.run, status="failed"), agenda=(("expiry", 0),))
        if SHAPES[name].step == "succeeded":
            for retried in ("ru-gone", None):
                state = one()
                run = replace(state.run, retry_of=retried)
                steps = tuple(replace(step, taken_over=True) for step in state.steps)
                yield replace(state, run=run, steps=steps)
                run, state = replace(run, attempt_count=0), one()
                yield replace(state, run=run, steps=steps, attempts=(), leases=())


STAGES = ("frontier", "task_admission", "cancellation", "deadline", "retry", "expiry")
