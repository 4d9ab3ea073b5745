"""Runs and triggers that raised, in an edge's log: each time that one is tried in vain.

Their back-off doubles up to five minutes, so the log does not fill with them.
"""

from qinglong_sql.edge_log import Log
from qinglong_sql.store import Row, Store

TOLD = 20  # of each kind, at a time


class Faults:
    """`look` tells what is new; `count` is how often that was so since the edge began."""

    def __init__(self, store: Store, log: Log) -> None:
        self.count = 0
        self._store = store
        self._log = log
        self._told: dict[tuple[str, str], int] = {}  # by entity and stage, its count of faults

    def look(self) -> None:
        """Called after a cycle in which something raised; reads nothing otherwise."""
        told = dict[tuple[str, str], int]()
        for row in self._store.read("fault_state", order="last_at_ms desc, run_id", limit=TOLD):
            key = row["run_id"], row["stage"]
            words = f"run {row['run_id']}, {row['stage']}"
            self._tell(key, words, row["error"], f"explain {row['run_id']}", row, told)
        for row in [one for one in self._store.read("trigger_state") if one["fault_error"]][:TOLD]:
            key = f"{row['package_key']} {row['trigger_key']}", "schedule"
            self._tell(
                key, f"trigger {key[0]}", row["fault_error"], f"schedules {key[0]}", row, told
            )
        self._told = told

    def _tell(
        self, key: tuple[str, str], words: str, error: str, command: str, row: Row,
        told: dict[tuple[str, str], int],
    ) -> None:  # fmt: skip
        told[key] = row["fault_count"]
        if self._told.get(key) == row["fault_count"]:
            return
        self.count += 1
        times = (
            f"tried {row['fault_count']} times" if row["fault_count"] > 1 else "tried again soon"
        )
        self._log.say("fault", f"{words}: {error} ({times}; qinglong-sql {command})")
