"""Which queues an edge serves: those with work that waits, of its packages, and of late.

A worker has at most WORKER_QUEUES of them. When work waits in more, the ones
that have waited longest are served, so that all of them get their turn.
"""

from collections.abc import Callable, Iterable

from qinglong_sql.edge_log import Log
from qinglong_sql.limits import WORKER_QUEUES
from qinglong_sql.store import Store

LINGER_MS = 10 * 60 * 1000  # for so long a queue of nobody's is served after its last work
MAX_COUNTED = 1_024
ALWAYS = "default"


class Queues:
    """The queues in `served`; `waiting` counts those with work, when not all of them can be.

    `clock` counts milliseconds.
    """

    def __init__(self, store: Store, log: Log, clock: Callable[[], int]) -> None:
        self.served: list[str] = [ALWAYS]
        self.waiting: int | None = None
        self._store = store
        self._log = log
        self._clock = clock
        self._used_ms: dict[str, int] = {}

    def look(self, known: Iterable[str]) -> list[str]:
        """Choose again; `known` are of active packages. Raises what the store raises."""
        rows = self._store.read("queue_state", order="oldest_at_ms, queue", limit=MAX_COUNTED)
        waiting = [row["queue"] for row in rows]
        now_ms = self._clock()
        self._used_ms |= dict.fromkeys(waiting, now_ms)
        late = {name: at for name, at in self._used_ms.items() if now_ms - at < LINGER_MS}
        unused = sorted(late, key=lambda name: (-late[name], name))
        self._used_ms = {name: late[name] for name in unused[:MAX_COUNTED]}
        wanted = dict.fromkeys([*waiting, ALWAYS, *sorted(known), *unused])
        self.served = list(wanted)[:WORKER_QUEUES]
        self._tell(len(waiting))
        return self.served

    def _tell(self, count: int) -> None:
        """Say once that queues take turns, and once that they need not any more."""
        before, self.waiting = self.waiting, count if count > WORKER_QUEUES else None
        if self.waiting and not before:
            more = "+" * (count == MAX_COUNTED)
            self._log.say(
                "note",
                f"work waits in {count}{more} queues: {WORKER_QUEUES} at a time are served,"
                " those that have waited longest first",
                queues=count,
            )
        elif before and not self.waiting:
            self._log.say("note", "all queues with work are served again")
