"""How a worker comes to its attempts: session, offers, and a launcher behind each (DESIGN §9)."""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from qinglong_sql.canonical import canonical
from qinglong_sql.errors import Fenced
from qinglong_sql.execution import ForkServer, LaunchFailed, greet, prepare, start_forkserver
from qinglong_sql.holding import Held, Offer, held_of_lease, load_offers, new_offer, save_offers
from qinglong_sql.limits import LEASE_MARGIN_MIN_MS, WORKER_QUEUES
from qinglong_sql.room import full, room_in
from qinglong_sql.store import Call, Row, Store
from qinglong_sql.workplace import End, spec_of, write_input

# How long after a lease's end recovery waits: at least the launcher's margin.
GRACE_MS = 2 * LEASE_MARGIN_MIN_MS
BACK_OFF_MS = 1_000
BACK_OFF_MAX_MS = 30_000

A = TypeVar("A")
B = TypeVar("B")


class Intake:
    """Leases for one worker into `held`, and prepares what it leased until a start can be sent."""

    def __init__(
        self,
        store: Store,
        state_dir: Path,
        held: dict[str, Held],
        *,
        queues: Sequence[str],
        run_id: str | None,
        slots: int,
        lease_ms: int,
        offers: int,
        stop_grace_ms: int,
        inherited: Mapping[str, str],
        clock: Callable[[], int],
    ) -> None:
        self.forkserver: ForkServer | None = None
        self._store = store
        self._state_dir = state_dir
        self._held = held
        self._queues = list(queues)
        self._run_id = run_id
        self._slots = slots
        self._lease_ms = lease_ms
        self._offers = offers
        self._stop_grace_ms = stop_grace_ms
        self._inherited = dict(inherited)
        self._clock = clock
        self._worker_id = ""
        self._session_id = ""
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
        self._worker_id = worker_id
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
            self._session_id = ""
            self._pool = {queue: self._pool[queue] for queue in wanted if queue in self._pool}

    def end(self) -> None:
        """Let the fork server go, and end the session. Raises what the store raises."""
        if self.forkserver:
            self.forkserver.close()
            self.forkserver = None
        session_id, self._session_id = self._session_id, ""
        if session_id:
            self._store.call("end_session", p_worker_id=self._worker_id, p_session_id=session_id)

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
        if not self._session_id:
            self._register()
        got = 0
        for _ in self._queues:
            if got >= free:
                break
            step, params = self._offer(free - got)
            try:
                got += self.take(self._store.call(step, **params))
            except Fenced:  # the session is over: register anew with the next tick
                self._session_id = ""
                raise
        return got

    def offer(self, free: int) -> list[Call]:
        """The call that leases at most `free` attempts of one queue; `take` takes its answer.

        None without a session, which a lease by itself begins. Raises OSError.
        """
        free = self._wanted(free)
        return [self._offer(free)] if free and self._session_id else []

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
        free = max(0, min(self._offers, free))
        if not free or self._clock() < self._not_before_ms:
            return 0
        fit = min(free, room_in(self._state_dir).executions())
        if not fit:
            mine = {"run_id": self._run_id} if self._run_id else {}
            if self._store.read("attempt_state", limit=1, status="claimed", **mine):
                raise full(self._state_dir)
        return fit

    def _register(self) -> None:
        session_id = os.urandom(16).hex()
        self._store.call(
            "register_worker",
            p_worker_id=self._worker_id,
            p_session_id=session_id,
            p_queues=canonical(sorted(self._queues)),
            p_slots=self._slots,
            p_self_fencing=1,
            p_grace_ms=GRACE_MS,
        )
        self._session_id = session_id

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
            "p_worker_id": self._worker_id,
            "p_session_id": self._session_id,
            "p_queue": queue,
            "p_offers": canonical([offer.row() for offer in self._pool[queue]]),
            "p_lease_ms": self._lease_ms,
            "p_run_id": self._run_id,
        }

    def prepare(self, leased: Sequence[Held]) -> list[Held]:
        """Put a waiting launcher behind each; returns those whose lease is no longer ours.

        What fails on this machine is given back as not_started, and nothing is leased for a while,
        for longer each time: claim returns are counted.
        """
        self.failures = []
        inputs = [(held, self._input(held)) for held in leased]
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

    def _input(self, held: Held) -> str | None:
        rows = self._store.call("attempt_input", p_attempt_id=held.attempt_id, p_token=held.token)
        return str(rows[0]["input"]) if rows else None

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
        spec = spec_of(held.lease, held.folder, self._inherited)
        prepare(held.folder, replace(spec, grace_ms=self._stop_grace_ms))
        write_input(held.folder, text)
        self.reap()
        if not self.forkserver:
            self.forkserver = start_forkserver(self._state_dir)
        return self.forkserver.ask(held.folder)

    def _greet(self, held: Held, sock: socket.socket) -> None:
        held.execution = greet(held.folder, sock)
        held.journal(held.execution)
        held.lease, held.phase = None, "waiting"
