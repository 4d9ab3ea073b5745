"""Who waits for what while holding what, as pg_locks shows it, against the lock table (DESIGN §6).

Row locks are not in pg_locks, but their traces are: a statement that locks or writes rows of a
table keeps ROW SHARE or ROW EXCLUSIVE on it until its transaction ends, and whoever waits for a row
holds the row's tuple lock, or waits for it. So a backend that waits for a row of class k and has
such a lock on a table of a later class has broken the order, whether or not a deadlock followed.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import psycopg

# DESIGN §6; what stands apart comes before all others, and history after them.
RANK = {"worker_session": 0, "package": 0, "package_generation": 0, "advisory": 1, "run": 2}
RANK |= {"task_attempt": 3, "attempt_lease": 4, "step_run": 5}
HISTORY = 6
# The start guard of a retry comes under the run that it copies; publications take no run.
ALSO_HELD = {"package_generation": {"run"}}
# A wait for a transaction without the row's tuple lock: for a newer version of the row, which only
# runs get while someone waits for them, or for an equal key (starts, publications).
UNNAMED = "unnamed"
RANK[UNNAMED] = RANK["run"]

LOCKS = """
  select l.virtualtransaction, l.locktype, c.relname, l.mode, l.granted
  from pg_catalog.pg_locks as l
  left join pg_catalog.pg_class as c on c.oid = l.relation and c.relkind in ('r', 'p')
  where l.pid <> pg_backend_pid()
    and (l.database = (select d.oid from pg_catalog.pg_database as d
                       where d.datname = current_database())
      or l.database is null)
    and l.locktype in ('relation', 'tuple', 'transactionid', 'advisory')
"""
ROW_MODES = ("RowShareLock", "RowExclusiveLock")


@dataclass(slots=True)
class Waits:
    """What a sampler has seen: waits by class, and those that cross the lock table, in words."""

    samples: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    crossed: Counter[str] = field(default_factory=Counter)

    def sample(self, connection: psycopg.Connection) -> None:
        """Look once. The locks of one transaction are compared, never those of one backend: weak
        locks are read first and the waits a little later, when its next transaction may have begun.
        """
        self.samples += 1
        of_each: dict[str, list[tuple[str, str | None, str, bool]]] = defaultdict(list)
        for transaction, *lock in connection.execute(LOCKS).fetchall():
            of_each[transaction].append((lock[0], lock[1], lock[2], lock[3]))
        for locks in of_each.values():
            waits = [(kind, relation) for kind, relation, _, granted in locks if not granted]
            if not waits:
                continue
            wanted = _wanted(waits[0], locks)
            self.seen[wanted] += 1
            held = {
                relation
                for kind, relation, mode, granted in locks
                if granted and kind == "relation" and mode in ROW_MODES and relation
            }
            if any(kind == "advisory" and granted for kind, _, _, granted in locks):
                held.add("advisory")
            for later in sorted(_crossing(wanted, held)):
                self.crossed[f"waits for {wanted} and holds {later}"] += 1


def _wanted(wait: tuple[str, str | None], locks: list[tuple[str, str | None, str, bool]]) -> str:
    """The table whose row is waited for: named by the tuple lock, its own or the one before."""
    kind, relation = wait
    if kind == "transactionid":
        rows = [name for locktype, name, _, granted in locks if granted and locktype == "tuple"]
        return str(rows[0]) if rows else UNNAMED
    return str(relation) if kind == "tuple" else kind


def _crossing(wanted: str, held: set[str]) -> set[str]:
    """What is held that comes later in the table than what is waited for."""
    if wanted == "advisory":
        return held | {"an attempt, which is only ever tried"}
    rank = RANK.get(wanted, HISTORY)
    return {name for name in held - ALSO_HELD.get(wanted, set()) if RANK.get(name, HISTORY) > rank}
