"""A worker's session: registered, kept alive by heartbeats, drained, replaced, ended (DESIGN §8).

One process at a time is a worker. Who registers last is, and the one before hears of it with its
next heartbeat; leases that it holds stay its own.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from qinglong_sql.canonical import canonical
from qinglong_sql.errors import Unknown
from qinglong_sql.limits import LEASE_MARGIN_MIN_MS
from qinglong_sql.port import Port

# How long after a lease's end recovery waits: at least the launcher's margin.
GRACE_MS = 2 * LEASE_MARGIN_MIN_MS
DRAINED_MS = 10_000  # how soon a worker without heartbeats looks whether it is drained still

Standing = Literal["online", "draining", "replaced"]


@dataclass(slots=True)
class Session:
    """The session of one process; `id` is empty while none is registered. `clock`: milliseconds.

    `steady`: somebody calls `heartbeat`. What its methods raise is what the port does.
    """

    port: Port
    slots: int
    steady: bool
    clock: Callable[[], int]
    worker_id: str = ""
    id: str = ""
    _asked_id: str = ""
    _status: str = ""
    _status_ms: int = 0

    def begin(self, queues: Sequence[str]) -> None:
        """Register, unless there is one."""
        if self.id:
            return
        # The same one until it is answered: what comes late must not end what came after it.
        self._asked_id = self._asked_id or os.urandom(16).hex()
        (row,) = self.port.call(
            "register_worker",
            p_worker_id=self.worker_id,
            p_session_id=self._asked_id,
            p_queues=canonical(sorted(queues)),
            p_slots=self.slots,
            p_self_fencing=1,
            p_grace_ms=GRACE_MS,
        )
        self.id, self._asked_id = self._asked_id, ""
        self._status, self._status_ms = str(row["status"]), self.clock()

    def heartbeat(self, queues: Sequence[str]) -> Standing:
        """Say that this worker is there, and hear what is wanted of it.

        A session that is over, or that nobody knows, is followed by another one. `replaced`:
        another process has registered as this worker since.
        """
        self.begin(queues)
        try:
            (row,) = self.port.call(
                "heartbeat_worker", p_worker_id=self.worker_id, p_session_id=self.id
            )
        except Unknown:
            row = {"session_id": self.id, "status": "offline"}
        if row["session_id"] != self.id:
            return "replaced"
        self._status = str(row["status"])
        if self._status == "offline":
            self.id = ""
            self.begin(queues)
        return "draining" if self._status == "draining" else "online"

    def forget(self) -> None:
        """Register anew with the next call: what was registered is no longer what we are."""
        self.id = self._asked_id = ""

    def over(self) -> None:
        """A lease was refused: register anew with the next one, unless heartbeats find out why."""
        if not self.steady:
            self.id = ""

    def drained(self, queues: Sequence[str]) -> bool:
        """Whether an operator wants nothing to be leased. Without heartbeats, ask now and then."""
        late = self.clock() >= self._status_ms + DRAINED_MS
        if self._status == "draining" and late and not self.steady:
            self.id = ""
            self.begin(queues)
        return self._status == "draining"

    def end(self) -> None:
        """Go offline, once."""
        session_id, self.id = self.id, ""
        if session_id:
            self.port.call("end_session", p_worker_id=self.worker_id, p_session_id=session_id)
