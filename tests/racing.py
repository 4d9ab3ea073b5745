"""Four schedulers, four workers and two cancellers on one PostgreSQL, watched while they race.

Executions do nothing: what races is the bookkeeping. A register in memory, apart from the database,
says who executes what, so that a step that two attempts execute at once is seen whatever the
tables say.
"""

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from qinglong_sql.stage import STAGES, run_stage
from qinglong_sql.store.postgres import PostgresStore, open_postgres_store
from qinglong_sql.store.steps import Contended
from tests import acting
from tests.acting import Held
from tests.waits import Waits

LEASE_MS = 5_000
DRAIN_S = 60
NEEDS = {  # twenty steps: four layers of five, each step with two needs
    f"s{layer}{place}": [f"s{layer - 1}{place}", f"s{layer - 1}{(place + 1) % 5}"] if layer else []
    for layer in range(4)
    for place in range(5)
}
# What must have no row afterwards, beside `violation` (primary keys rule out the rest).
NEVER = {
    "an event is missing or is there twice": """
      select r.run_id from ql.run as r
      where (r.version, r.version) is distinct from (
        select (count(*), max(e.sequence)) from ql.run_event as e where e.run_id = r.run_id)""",
    "an attempt passed the start barrier twice": """
      select e.entity_id from ql.run_event as e
      where e.type like '%.task_attempt.starting' group by e.entity_id having count(*) > 1""",
    "two attempts of a step overlap": """
      select a.attempt_id from ql.task_attempt as a
      join ql.task_attempt as b on b.run_id = a.run_id and b.step_key = a.step_key
        and b.number > a.number
      where b.starting_at_ms < coalesce(a.finished_at_ms, b.starting_at_ms + 1)
        and a.starting_at_ms is not null""",
    "an attempt was admitted after the intent": """
      select a.attempt_id from ql.task_attempt as a
      join ql.run_event as m on m.run_id = a.run_id and m.entity_id = a.attempt_id
        and m.type = 'workflow.task_attempt_admitted'
      join ql.run_event as c on c.run_id = a.run_id and c.type = 'run.cancel_requested'
      where m.sequence > c.sequence""",
    "a fault was recorded": "select f.error from ql.run_fault as f",
}


@dataclass(slots=True)
class Race:
    """What happened: counts, what went wrong in words, waits."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    waits: Waits = field(default_factory=Waits)
    seconds: float = 0.0


@dataclass(slots=True)
class Track:
    """What the hands share. `executing` is {(run, step): attempt}; `over`: nothing new begins."""

    dsn: str
    race: Race = field(default_factory=Race)
    over: threading.Event = field(default_factory=threading.Event)
    stop: threading.Event = field(default_factory=threading.Event)
    turn: threading.Lock = field(default_factory=threading.Lock)
    runs: list[str] = field(default_factory=list)
    executing: dict[tuple[str, str], str] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)

    def fail(self, words: str) -> None:
        with self.turn:
            if len(self.race.failures) < 20:
                self.race.failures.append(words)

    def count(self, name: str, by: int = 1) -> None:
        with self.turn:
            self.race.counts[name] += by

    def failed(self) -> bool:
        return bool(self.race.failures or self.race.waits.crossed)

    def begin(self, held: Held) -> None:
        """An execution begins. Notes a failure when its step is being executed already."""
        place = (held.row["run_id"], held.row["step_key"])
        with self.turn:
            other, again = self.executing.get(place), held.attempt_id in self.started
            self.executing[place] = held.attempt_id
            self.started.add(held.attempt_id)
        if other:
            self.fail(f"{place} is executed by {other} and {held.attempt_id} at once")
        if again:
            self.fail(f"{held.attempt_id} was started twice")

    def end(self, held: Held) -> None:
        with self.turn:
            self.executing.pop((held.row["run_id"], held.row["step_key"]), None)


@dataclass(slots=True)
class Hand:
    """One of them: a connection and dice of its own, and what it holds."""

    track: Track
    name: str
    store: PostgresStore
    dice: random.Random
    rounds: int = 0
    held: list[Held] = field(default_factory=list)


def race(
    dsn: str,
    *,
    runs: int,
    seconds: float,
    seed: int,
    hands: Sequence[Callable[[Hand], None]] | None = None,
    triggers: dict[str, Any] | None = None,
    beside: Sequence[Callable[[Track], object]] = (),
) -> Race:
    """Keep up to `runs` runs open for so many seconds, then let all end, and look at everything.

    `hands` are four schedulers, four workers and two cancellers if not said otherwise; `beside`
    goes on in threads of its own until `stop` is set.
    """
    track = Track(dsn)
    store = open_postgres_store(dsn)
    work = acting.task(retry={"attempts": 2, "backoff_ms": 20}, on_lost="retry")
    made = acting.model({"work": work}, {"flow": acting.workflow(NEEDS)})
    acting.publish_model(store, made | {"triggers": triggers or {}})
    threads = [
        threading.Thread(target=_repeat, args=(track, once, f"h{number}", seed))
        for number, once in enumerate(HANDS if hands is None else hands)
    ]
    threads += [
        threading.Thread(target=_alone, args=(track, once)) for once in (_watch, _look, *beside)
    ]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    try:
        _feed(track, store, runs, began + seconds)
        track.over.set()
        _drain(track, store)
    finally:
        track.over.set()
        track.stop.set()
        for thread in threads:
            thread.join()
        track.race.seconds = time.monotonic() - began
        store.close()
    _look_back(track)
    return track.race


def _feed(track: Track, store: PostgresStore, runs: int, until: float) -> None:
    while time.monotonic() < until and not track.failed():
        room = runs - len(store.read("run_state", status="running"))
        for _ in range(room):
            with contextlib.suppress(Contended):
                track.runs.append(acting.start(store, key=f"k{len(track.runs)}"))
        track.stop.wait(0.2)


def _drain(track: Track, store: PostgresStore) -> None:
    limit = time.monotonic() + DRAIN_S
    while left := store.read("run_state", status="running", limit=1):
        if time.monotonic() > limit or track.failed():
            if not track.failed():
                track.fail(f"does not end: {store.read('explain', run_id=left[0]['run_id'])}")
            return
        track.stop.wait(0.2)


def _repeat(track: Track, once: Callable[[Hand], None], name: str, seed: int) -> None:
    with (
        _telling(track, once.__name__),
        contextlib.closing(open_postgres_store(track.dsn)) as store,
    ):
        hand = Hand(track, name, store, random.Random(f"{seed}:{name}"))
        while not track.stop.is_set():
            with contextlib.suppress(Contended):
                once(hand)
            hand.rounds += 1


def scheduler(hand: Hand) -> None:
    """A cycle: pages of every stage in an order of its own, and a slice of the sweep."""
    stages = list(STAGES.values())
    hand.dice.shuffle(stages)
    for stage in stages:
        run_stage(hand.store, stage)
    if hand.rounds % 20 == 0:
        hand.store.call("sweep_agenda", p_after_run_id="", p_limit=1024)
    hand.track.stop.wait(0.01)


def worker(hand: Hand) -> None:
    """Lease a batch, bring it past the barrier, renew, report; a few go back, a few are silent."""
    acting.register(hand.store, hand.name, hand.name)
    names = [f"{hand.name}.{hand.rounds}.{number}" for number in range(hand.dice.randint(1, 16))]
    rows = acting.offer_rows(
        hand.store, names, worker=hand.name, session=hand.name, lease_ms=LEASE_MS
    )
    if not rows:
        hand.track.stop.wait(0.01)
        return
    leased = [Held(r["attempt_id"], r["fence"], acting.token(r["offer_id"]), r) for r in rows]
    back, going, failing, ending, silent = _dealt(hand, leased)
    _answered(hand, back, lambda held: acting.report(
        hand.store, *held, how="not_started", exit_code=None))  # fmt: skip
    started = _answered(hand, going, lambda held: acting.cross(hand.store, *held))
    for one in started:
        hand.track.begin(one)
    _answered(hand, started, lambda held: acting.renew(hand.store, *held, lease_ms=LEASE_MS))
    ack = "running_attempts"
    _answered(hand, started, lambda held: hand.store.call(ack, p_commands=acting.commands(*held)))
    for one in started:  # an execution is over before its end is told
        hand.track.end(one)
        hand.track.count("silent" if one in silent else "executions")
    _end(hand, [one for one in ending if one in started], 0)
    _end(hand, [one for one in failing if one in started], 1)


def _end(hand: Hand, held: list[Held], code: int) -> None:
    told = _answered(hand, held, lambda left: acting.report(hand.store, *left, exit_code=code))
    if len(told) < len(held):
        hand.track.fail("a report by the holder of the lease was refused")


def _dealt(hand: Hand, leased: list[Held]) -> tuple[list[Held], ...]:
    """Some go back unstarted; all others, and of them those that fail, succeed, or fall silent."""
    silence = 0 if hand.track.over.is_set() else 0.5  # each is a wait for its lease's expiry
    dealt = hand.dice.choices("bfes", [2, 8, 90, silence], k=len(leased))
    by_word = {
        word: [one for one, w in zip(leased, dealt, strict=True) if w == word] for word in "bfes"
    }
    going = [one for one, word in zip(leased, dealt, strict=True) if word != "b"]
    return by_word["b"], going, by_word["f"], by_word["e"], by_word["s"]


def _answered(
    hand: Hand, held: list[Held], command: Callable[[list[Held]], list[acting.Row]]
) -> list[Held]:
    """Send a command until nothing of it is contended; those for which it was applied."""
    applied: set[str] = set()
    left = held
    while left:
        try:
            rows = command(left)
        except Contended:
            continue
        hand.track.count("commands", len(left))
        applied |= {row["attempt_id"] for row in rows if row["outcome"] == "applied"}
        again = {row["attempt_id"] for row in rows if row["outcome"] == "contended"}
        left = [one for one in left if one.attempt_id in again]
    return [one for one in held if one.attempt_id in applied]


def canceller(hand: Hand) -> None:
    """An intent for a run at random, once in a while."""
    hand.track.stop.wait(hand.dice.expovariate(8))
    if hand.track.runs and not hand.track.over.is_set():
        run_id = hand.dice.choice(hand.track.runs[-100:])
        hand.track.count(acting.cancel(hand.store, run_id, actor=hand.name)["outcome"])


HANDS = (*[scheduler] * 4, *[worker] * 4, *[canceller] * 2)


def _alone(track: Track, once: Callable[[Track], object]) -> None:
    with _telling(track, getattr(once, "__name__", "beside")):
        once(track)


def _watch(track: Track) -> None:
    """Sample the locks all the time."""
    with psycopg.connect(track.dsn, autocommit=True) as connection:
        while not track.stop.wait(0.005):
            track.race.waits.sample(connection)


def _look(track: Track) -> None:
    """Read what must be empty, now and then: it takes longer than a sample may."""
    with contextlib.closing(open_postgres_store(track.dsn)) as store:
        while not track.stop.wait(2):
            for name in ("violation", "fault_state"):
                if rows := store.read(name):
                    track.fail(f"{name} while they race: {rows[:3]}")
            track.count("looks")


@contextlib.contextmanager
def _telling(track: Track, name: str) -> Iterator[None]:
    """An error of a thread is a failure of the race, never a watcher that is gone in silence."""
    try:
        yield
    except Exception as error:
        track.fail(f"{name}: {error!r}")


def _look_back(track: Track) -> None:
    """What the tables say when all is over."""
    race = track.race
    with psycopg.connect(track.dsn, autocommit=True) as connection:
        for words, query in NEVER.items():
            if rows := connection.execute(query.encode()).fetchall():
                track.fail(f"{words}: {rows[:5]}")
        if rows := connection.execute(b"select * from ql.violation").fetchall():
            track.fail(f"violated: {rows[:3]}")
        ends = connection.execute(b"select status, count(*) from ql.run group by 1").fetchall()
        race.counts.update({f"runs {status}": count for status, count in ends})
        (race.counts["steps"],) = connection.execute(
            b"select count(*) from ql.step_run where finished_at_ms is not null"
        ).fetchone() or (0,)
        race.counts["deadlocks"] = _deadlocks(connection)
    if race.counts["deadlocks"]:
        track.fail(f"{race.counts['deadlocks']} deadlocks")
    for words, times in race.waits.crossed.items():
        track.fail(f"{words} ({times} times): against the lock table of DESIGN §6")


def _deadlocks(connection: psycopg.Connection) -> int:
    """The server's own count; a session tells it when it ends, a second later at most."""
    time.sleep(1.1)
    ask = b"select deadlocks from pg_stat_database where datname = current_database()"
    row = connection.execute(ask).fetchone()
    return int(row[0]) if row else 0
