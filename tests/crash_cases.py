"""Transactions to be killed in: of a whole life, of a local worker's fusion, and random ones."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

from qinglong_sql.store import Call
from qinglong_sql.store.sqlite import Profile
from tests import acting
from tests.crashing import NUMBER, Case, opened, prepared
from tests.lives import Lived, title
from tests.stores import FakeClock, sqlite_store
from tests.test_fusion import follows, lease_of, reported, started


def lived(folder: Path, profile: Profile, *, every: bool = False) -> Iterator[Case]:
    """The acts of a whole life as cases: each kind once, or `every` one."""
    clock = FakeClock()
    path, seen = folder / f"{profile}-{next(NUMBER)}.life", set[str]()
    sqlite_store(folder, clock, profile=profile, name=path.name).close()
    life = Lived(clock)
    for act, call in life.acts():
        if every or title(act) not in seen:
            seen.add(title(act))
            yield prepared(folder, title(act), profile, [call], clock.now_ms, path)
        store = opened(path, profile, clock.now_ms)
        life.learn(act, store.call(call[0], **call[1]))
        store.close()


def fused(folder: Path, profile: Profile) -> Case:
    """What a local worker says in one transaction: a start, a report, what follows, and a lease."""
    clock = FakeClock()
    path = folder / f"{profile}-{next(NUMBER)}.fused"
    store = sqlite_store(folder, clock, profile=profile, name=path.name)
    run_id = acting.begun(store, {"a": [], "b": [], "c": ["a"], "d": ["b"]})
    held = acting.lease(store, "o1", "o2")
    acting.run(store, held["a"])
    store.close()
    calls = [
        started(held["b"]), reported(held["a"]), *follows(run_id), lease_of("o3", "o4"),
    ]  # fmt: skip
    name = " + ".join(step for step, _ in calls)
    return prepared(folder, name, profile, calls, clock.now_ms, path)


def wandered(folder: Path, profile: Profile, drawn: Random, length: int) -> Iterator[Case]:
    """Random calls on random steps, each of them a case, also those that find nothing to do."""
    clock = FakeClock()
    path = folder / f"{profile}-{next(NUMBER)}.wandered"
    store = sqlite_store(folder, clock, profile=profile, name=path.name)
    keys = "abcd"[: drawn.randint(1, 4)]
    needs = {key: [one for one in keys[:at] if drawn.random() < 0.5] for at, key in enumerate(keys)}
    retry = {"attempts": drawn.randint(1, 3), "on": ["failed", "timed_out"]}
    run_id = acting.begun(store, needs, retry=retry, on_lost=drawn.choice(["fail", "retry"]))
    held = acting.lease(store)
    store.close()
    for number in range(length):
        clock.advance(drawn.choice([0, 1, 2_000, acting.LEASE_MS + acting.GRACE_MS]))
        calls = [drawn_call(drawn, run_id, list(held.values()), number)]
        calls += follows(run_id) if drawn.random() < 0.3 else []
        name = f"wandered {number}: {' + '.join(step for step, _ in calls)}"
        case = prepared(folder, name, profile, calls, clock.now_ms, path)
        yield case
        store = opened(path, profile, clock.now_ms)
        store.batch(calls)
        for row in case.answer[0] if calls[0][0] == "lease_attempts" else []:
            token = acting.token(row["offer_id"])
            held[row["step_key"]] = acting.Held(row["attempt_id"], row["fence"], token, row)
        store.close()


def drawn_call(drawn: Random, run_id: str, held: list[acting.Held], number: int) -> Call:
    one = drawn.choice(held)
    token = {"p_commands": acting.commands(one)}
    on_run = {"p_run_id": run_id}
    return drawn.choice(
        [
            lease_of(f"w{number}", f"x{number}"),
            started(one),
            ("running_attempts", token),
            ("renew_attempts", token | {"p_lease_ms": acting.LEASE_MS}),
            reported(one, drawn.choice([0, 0, 1])),
            ("advance_frontier", on_run),
            ("admit_tasks", on_run),
            ("recover_run", on_run),
            ("retry_run", on_run),
            ("converge_cancellation", on_run),
            ("request_cancel", on_run | {"p_reason": "user", "p_actor": "ann"})
            if drawn.random() < 0.2
            else started(one),
        ]
    )
