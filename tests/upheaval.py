"""A cluster of real processes on one PostgreSQL, and hands that do harm to it at random moments.

Two controls, an ingress and three workers, each with a folder of its own; one of the workers comes
to the database with a login, the others through the ingress. They and the launchers of what runs
are killed, stopped for longer than a lease, ended as a supervisor does it, and started again. Only
processes that were started here are harmed, by their ids.
"""

import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from qinglong_sql.cli.exits import Exit
from qinglong_sql.errors import Unknown
from qinglong_sql.store.postgres import PostgresStore
from tests import controls, workers
from tests.controls import login_of
from tests.guards import Guard, guards_in
from tests.workers import Authority, Served

CONTROLS, WORKERS = 2, 3
SOON = ("--drain-timeout", "3s")
LONG_S = (workers.LEASE_MS / 1000 + 1, workers.LEASE_MS / 1000 + 4)  # a stop that outlasts a lease
ENDS_ALL = b"""
  select pg_terminate_backend(pid) from pg_stat_activity
  where datname = current_database() and usename <> current_user
"""
AWAY_S = (0.0, 7.0)  # how long something that was killed is not there


@dataclass(slots=True)
class Place:
    """Somewhere a process of one kind lives: how another one is made, and the one that lives."""

    name: str
    make: Callable[[], controls.Process]
    lives: controls.Process | None = None

    def begin(self) -> controls.Process:
        self.lives = self.make()
        return self.lives

    def end(self, number: signal.Signals) -> int:
        """Send the signal that ends it, and wait; its exit code."""
        assert self.lives is not None
        return self.lives.stop(number)


@dataclass(slots=True)
class Cluster:
    """All of it."""

    dsn: str
    folder: Path
    authority: Authority
    ingress: Place
    controls: list[Place]
    workers: list[Place]
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def places(self) -> list[Place]:
        return [*self.controls, self.ingress, *self.workers]

    def state(self, worker: Place) -> Path:
        return self.folder / worker.name / "state"

    def guards(self) -> list[Guard]:
        """Launchers and fork servers that live now."""
        return guards_in(*map(self.state, self.workers))

    def count(self, words: str) -> None:
        with self._turn:
            self.counts[words] += 1

    def tell(self, words: str) -> None:
        with self._turn:
            self.wrong.append(words)

    def texts(self) -> dict[str, str]:
        """All that was said, by file."""
        return {str(file.relative_to(self.folder)): file.read_text(encoding="utf-8")
                for file in sorted(self.folder.glob("*/*.log"))}  # fmt: skip


@contextmanager
def cluster(dsn: str, folder: Path, *, slots: int = 4) -> Iterator[Cluster]:
    """All of them, started; whatever lives at the end is killed."""
    with ExitStack() as stack:
        login = stack.enter_context(login_of(dsn))
        door = stack.enter_context(login_of(dsn, workers.INGRESS_LOGIN, "ql_worker"))
        authority, port = Authority(folder), workers.free_port()
        url = f"https://{workers.HOST}:{port}"

        def control(name: str) -> Place:
            at = folder / name
            at.mkdir()
            return Place(name, lambda: controls.Process(login, at))

        def worker(name: str) -> Place:
            papers = authority.worker(name)
            return Place(name, lambda: workers.worker_process(
                name, papers, folder / name, url, *SOON, slots=slots
            ))  # fmt: skip

        def near(name: str) -> Place:
            mine = stack.enter_context(login_of(dsn, f"{name}_login", "ql_worker"))
            return Place(name, lambda: workers.worker_with_login(
                name, mine, folder / name, *SOON, slots=slots
            ))  # fmt: skip

        made = Cluster(
            dsn,
            folder,
            authority,
            Place("ingress", lambda: workers.ingress_process(
                door, authority, folder / "ingress", port
            )),
            [control(f"control{number}") for number in range(CONTROLS)],
            [near("w0"), *(worker(f"w{number}") for number in range(1, WORKERS))],
        )  # fmt: skip
        try:
            for place in made.places():
                place.begin()
            for place in made.places():
                assert place.lives
                place.lives.ready()
            yield made
        finally:
            for place in made.places():
                if place.lives:
                    with suppress(ProcessLookupError):
                        place.lives.child.send_signal(signal.SIGCONT)
                    place.lives.close()
            for guard in made.guards():
                guard.send(signal.SIGCONT, signal.SIGKILL)


# -- hands


def harm(
    cluster: Cluster, over: threading.Event, seed: int, pause_s: float
) -> list[threading.Thread]:
    """A hand for each kind of process, until it is over; then each of them is whole again."""
    hands: list[Callable[[random.Random], None]] = [
        lambda dice: served(cluster, dice.choice(cluster.workers), dice, over),
        lambda dice: guarded(cluster, dice, over),
        lambda dice: (
            served(cluster, dice.choice([*cluster.controls, cluster.ingress]), dice, over)
            if dice.random() < 0.8
            else disconnected(cluster, over)
        ),
    ]

    def hand(number: int, once: Callable[[random.Random], None]) -> None:
        dice = random.Random(f"{seed}:{number}")
        try:
            while not over.wait(dice.uniform(0.1, 2 * pause_s)):
                once(dice)
        except Exception as error:
            cluster.tell(f"hand {number}: {error!r}")

    threads = [
        threading.Thread(target=hand, args=[number, once], name=f"hand{number}")
        for number, once in enumerate(hands)
    ]
    for thread in threads:
        thread.start()
    return threads


def served(cluster: Cluster, place: Place, dice: random.Random, over: threading.Event) -> None:
    """Kill it, stop it for longer than a lease, or ask it to end; it is there again afterwards."""
    kind = place.name.rstrip("0123456789")
    kind = "worker" if kind == "w" else kind
    how = dice.choice(["kill", "kill", "pause", "end", *["drain"] * (kind == "worker")])
    cluster.count(f"{kind} {how}")
    if how == "drain":
        drained(cluster, place, dice, over)
        return
    assert place.lives
    child = place.lives.child
    if (code := child.poll()) is not None:
        if not fenced(cluster, place, code):
            cluster.tell(f"{place.name} ended by itself with {code}: {place.lives.text()[-2000:]}")
        place.begin()
        return
    if how == "pause":
        child.send_signal(signal.SIGSTOP)
        over.wait(dice.uniform(*LONG_S))
        child.send_signal(signal.SIGCONT)
        return
    if how == "end":  # before that, TERM ends an interpreter that does not know of it yet
        while child.poll() is None and not knows(place.lives) and not over.wait(0.02):
            pass
    code = place.end(signal.SIGTERM if how == "end" else signal.SIGKILL)
    well = code == (0 if how == "end" else -signal.SIGKILL) or fenced(cluster, place, code)
    if not well and not over.is_set():
        cluster.tell(f"{place.name} ended with {code} on {how}: {place.lives.text()[-2000:]}")
    over.wait(dice.choice([0.0, 0.0, dice.uniform(*AWAY_S)]))
    place.begin()


def disconnected(cluster: Cluster, over: threading.Event) -> None:
    """End every connection of ours; a control that stops by that is started by its supervisor."""
    cluster.count("connections end")
    with psycopg.connect(cluster.dsn, autocommit=True) as dba:
        dba.execute(ENDS_ALL)
    over.wait(2.0)
    for place in cluster.controls:
        assert place.lives
        if (code := place.lives.child.poll()) is not None:
            if not fenced(cluster, place, code):
                cluster.tell(f"{place.name} ended with {code}: {place.lives.text()[-1500:]}")
            place.begin()


def fenced(cluster: Cluster, place: Place, code: int) -> bool:
    """Whether a control has ended because its connections did, for its supervisor to see."""
    found = place in cluster.controls and code == Exit.NOT_READY
    if found and cluster.counts["connections end"]:
        cluster.count("control fenced")
        return True
    return False


def knows(one: controls.Process | None) -> bool:
    """Whether it has come so far that TERM is heard."""
    return one is not None and any(
        one.lines(event) for event in ("ready", "drained", "away", "boot")
    )


def drained(cluster: Cluster, place: Place, dice: random.Random, over: threading.Event) -> None:
    """An operator lets it lease nothing for a while, whether it is there or not."""
    with closing(PostgresStore(cluster.dsn)) as store, suppress(Unknown):
        store.call("drain_worker", p_worker_id=place.name)
        over.wait(dice.uniform(1.0, 4.0))
        store.call("undrain_worker", p_worker_id=place.name)


def guarded(cluster: Cluster, dice: random.Random, over: threading.Event) -> None:
    """The same to a launcher, now and then to a fork server: one at a time (DESIGN §9)."""
    found = cluster.guards()
    kind = dice.choice(["launcher", "launcher", "launcher", "forkserver"])
    if not (mine := [one for one in found if one.kind == kind]):
        return
    one = dice.choice(mine)
    how = dice.choice(["kill", "pause"])
    if how == "kill":
        if one.send(signal.SIGKILL):
            cluster.count(f"{kind} kill")
        return
    if one.send(signal.SIGSTOP):
        cluster.count(f"{kind} pause")
        over.wait(dice.uniform(*LONG_S))
        one.send(signal.SIGCONT)


def burnt(cluster: Cluster, worker: Place) -> None:
    """A machine that is gone for good, with all that ran there and all that it had written."""
    assert worker.lives
    mine = guards_in(cluster.state(worker))
    worker.lives.close()
    for guard in [*mine, *guards_in(cluster.state(worker))]:
        guard.send(signal.SIGCONT, signal.SIGKILL)
    cluster.state(worker).rename(cluster.folder / worker.name / "ashes")
    cluster.workers.remove(worker)
    cluster.count("worker burnt")


def serves(one: controls.Process) -> bool:
    """Whether it has come to its work; a worker may have begun while it was drained."""
    return any(one.lines(event) for event in ("ready", "undrained"))


def healed(cluster: Cluster, within_s: float = 30.0) -> None:
    """See that all of them are there, after the hands have left."""
    for place in cluster.places():
        if place.lives is None or place.lives.child.poll() is not None:
            place.begin()
    for place in cluster.places():
        assert isinstance(place.lives, Served | controls.Process)
        place.lives.until(lambda one=place.lives: serves(one), "it serves", within_s)
