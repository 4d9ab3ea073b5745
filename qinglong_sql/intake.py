"""How a worker comes to its attempts: session, offers, and a launcher behind each (DESIGN §9)."""

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from qinglong_sql.canonical import canonical
from qinglong_sql.errors import Fenced
from qinglong_sql.execution import ForkServer, LaunchFailed, greet, prepare, start_forkserver
from qinglong_sql.holding import Held, Offer, held_of_lease, load_offers, new_offer, save_offers
from qinglong_sql.limits import WORKER_QUEUES
from qinglong_sql.port import LEASE_SHARE, Port
from qinglong_sql.room import full, room_in
from qinglong_sql.session import Session, Standing
from qinglong_sql.store import Call, Row
from qinglong_sql.workplace import End, spec_of, write_input

BACK_OFF_MS = 1_000
BACK_OFF_MAX_MS = 30_000
QUEUES_A_TICK = 8  # of one that shares its door with others; they take turns

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Terms:
    """What is leased and how; see Worker. With a `run_id` of that run alone."""

    queues: Sequence[str]
    run_id: str | None
    slots: int
    lease_ms: int
    offers: int
    stop_grace_ms: int
    inherited: Mapping[str, str]
    base_dir: Path | None = None
    steady: bool = False  # somebody looks after the session with `heartbeat`


class Intake:
    """Leases for one worker into `held`, and prepares what it leased until a start can be sent."""

    def __init__(
        self,
        port: Port,
        state_dir: Path,
        held: dict[str, Held],
        terms: Terms,
        clock: Callable[[], int],
    ) -> None:
        self.forkserver: ForkServer | None = None
        self._port = port
        self._state_dir = state_dir
        self._held = held
        self._terms = terms
        self._queues = list(terms.queues)
        self._lease_ms = terms.lease_ms
        self._inherited = dict(terms.inherited)
        self._clock = clock
        self._session = Session(port, terms.slots, terms.steady, clock)
        self._pool: dict[str, list[Offer]] = {}  # by queue
        self._unsure: set[str] = set()  # queues whose last call was not answered
        self._repeated = False  # whether the last call repeats one that was not
        self._saved = ""
        self._not_before_ms = self._back_off_ms = 0
        self.failures: list[Exception] = []  # of the last `prepare`, that are this machine's

    def begin(self, worker_id: str) -> None:
        """Lease as this worker from now on; the session is registered with the first lease.

        What an earlier one offered last is repeated: it may hold leases that nobody journaled.
        """
        self._session.worker_id = worker_id
        self._pool = load_offers(self._state_dir)
        self._unsure = set(self._pool)
        with suppress(OSError):  # then the first launcher tells
            self.forkserver = start_forkserver(self._state_dir)

    def serve(self, queues: Sequence[str]) -> None:
        """Lease of these queues from now on; another session says so to the database.

        One whose last answer was lost is asked once more: somebody may wait for what it leased.
        """
        unsure = [queue for queue in sorted(self._unsure) if queue not in queues]
        wanted = [*unsure, *queues][: max(len(queues), WORKER_QUEUES)]
        if sorted(wanted) != sorted(self._queues):
            self._queues = wanted
            self._session.forget()
            self._pool = {queue: self._pool[queue] for queue in wanted if queue in self._pool}

    def end(self) -> None:
        """Let the fork server go, and end the session. Raises what the store raises."""
        if self.forkserver:
            self.forkserver.close()
            self.forkserver = None
        self._session.end()

    def reap(self) -> None:
        """Notice a fork server that died; its launchers go on without it."""
        if self.forkserver and not self.forkserver.alive():
            self.forkserver.close()
            self.forkserver = None

    def lease(self, free: int) -> int:
        """Lease at most `free` attempts, the queues taking turns; returns how many it got."""
        free = self._wanted(free)
        if not free:
            return 0
        self._session.begin(self._queues)
        if self._session.drained(self._queues):
            return 0
        got, until_ms = 0, self._clock() + self._lease_ms // (2 * LEASE_SHARE)
        for _ in self._queues[: QUEUES_A_TICK if self._terms.steady else None]:
            if got >= free or self._clock() > until_ms:  # others wait to be renewed
                break
            step, params = self._offer(free - got)
            try:
                got += self.take(self._port.call(step, **params))
            except Fenced:  # the session is over: register anew with the next tick
                self._session.over()
                raise
        return got

    def heartbeat(self) -> Standing:
        """Say that this worker is there, and hear what is wanted of it; see Session."""
        return self._session.heartbeat(self._queues)

    def offer(self, free: int) -> list[Call]:
        """The call that leases at most `free` attempts of one queue; `take` takes its answer.

        None without a session, which a lease by itself begins. Raises OSError.
        """
        free = self._wanted(free)
        ready = free and self._session.id and not self._session.drained(self._queues)
        return [self._offer(free)] if ready else []

    def covers_all(self) -> bool:
        """Whether one call asks every queue."""
        return len(self._queues) == 1

    def take(self, rows: Sequence[Row]) -> int:
        """Hold what the last offer got; how many that is."""
        queue, repeated = self._queues[-1], self._repeated
        self._unsure.discard(queue)
        offers = {offer.offer_id: offer for offer in self._pool[queue]}
        for row in rows:
            offer = offers.pop(row["offer_id"])
            if row["attempt_id"] not in self._held:  # else an earlier worker journaled it
                folder = self._state_dir / "exec" / offer.offer_id
                self._held[row["attempt_id"]] = held_of_lease(row, offer, folder, self._lease_ms)
        # Of repeated ones nobody knows which are used up.
        self._pool[queue] = [] if repeated else list(offers.values())
        return len(rows)

    def backs_off(self) -> bool:
        """Whether the last `prepare` that had something to do failed on this machine."""
        return self._back_off_ms > 0

    def _wanted(self, free: int) -> int:
        """How many to ask for. Raises OSError when somebody waits, and nothing could begin here.

        What is leased and given back would use up its claim returns on a full disk.
        """
        free = max(0, min(self._terms.offers, free))
        if not free or self._clock() < self._not_before_ms:
            return 0
        fit = min(free, room_in(self._state_dir).executions())
        if not fit and self._awaited():
            raise full(self._state_dir)
        return fit

    def _awaited(self) -> bool:
        """Whether somebody waits for us; from far away nobody can see that."""
        read = getattr(self._port, "read", None)
        mine = {"run_id": self._terms.run_id} if self._terms.run_id else {}
        return read is None or bool(read("attempt_state", limit=1, status="claimed", **mine))

    def _offer(self, free: int) -> Call:
        """Ask the next queue. Offers whose answer was lost are repeated as they were; others are
        good until taken.
        """
        queue = self._queues.pop(0)
        self._queues.append(queue)
        now_ms, self._repeated = self._clock(), queue in self._unsure
        if not self._repeated:
            kept = [replace(one, sent_ms=now_ms) for one in self._pool.get(queue, [])[:free]]
            self._pool[queue] = kept + [new_offer(now_ms) for _ in range(free - len(kept))]
        self._saved = save_offers(self._state_dir, self._pool, self._saved)
        self._unsure.add(queue)
        return "lease_attempts", {
            "p_worker_id": self._session.worker_id,
            "p_session_id": self._session.id,
            "p_queue": queue,
            "p_offers": canonical([offer.row() for offer in self._pool[queue]]),
            "p_lease_ms": self._lease_ms,
            "p_run_id": self._terms.run_id,
        }

    def prepare(self, leased: Sequence[Held]) -> list[Held]:
        """Put a waiting launcher behind each; returns those whose lease is no longer ours.

        What fails on this machine is given back as not_started, and nothing is leased for a while,
        for longer each time: claim returns are counted.
        """
        self.failures = []
        inputs = self._inputs(leased)
        asked = [(held, self._trying(held, self._ask, text)) for held, text in inputs if text]
        for held, sock in asked:
            if sock:
                self._trying(held, self._greet, sock)
        if self.failures:
            longer = min(2 * self._back_off_ms, BACK_OFF_MAX_MS)
            self._back_off_ms = max(longer, BACK_OFF_MS)
            self._not_before_ms = self._clock() + self._back_off_ms
        elif asked:
            self._back_off_ms = 0
        return [held for held, text in inputs if text is None]

    def _inputs(self, leased: Sequence[Held]) -> list[tuple[Held, str | None]]:
        """What each is given; None when its lease is no longer ours. Some may have to wait."""
        if not leased:
            return []
        commands = canonical([held.command() for held in leased])
        rows = self._port.call("attempt_inputs", p_commands=commands)
        found = {row["attempt_id"]: row for row in rows if row["outcome"] != "contended"}
        return [
            (held, found[held.attempt_id]["input"]) for held in leased if held.attempt_id in found
        ]

    def _trying(self, held: Held, work: Callable[[Held, A], B], given: A) -> B | None:
        try:
            return work(held, given)
        except (OSError, ValueError, LaunchFailed) as error:
            held.part()
            held.phase, held.end = "ended", End("not_started", error=str(error)[:200])
            if isinstance(error, ValueError):  # of its spec: the others can begin
                self._not_before_ms = self._clock() + BACK_OFF_MS
            else:
                self.failures.append(error)
            return None

    def _ask(self, held: Held, text: str) -> socket.socket:
        assert held.lease is not None
        at = self._terms.base_dir
        lease = held.lease if at is None else {**held.lease, "base_dir": str(at)}
        spec = spec_of(lease, held.folder, self._inherited)
        prepare(held.folder, replace(spec, grace_ms=self._terms.stop_grace_ms))
        write_input(held.folder, text)
        self.reap()
        if not self.forkserver:
            self.forkserver = start_forkserver(self._state_dir)
        return self.forkserver.ask(held.folder)

    def _greet(self, held: Held, sock: socket.socket) -> None:
        held.execution = greet(held.folder, sock)
        held.journal(held.execution)
        held.lease, held.phase = None, "waiting"
