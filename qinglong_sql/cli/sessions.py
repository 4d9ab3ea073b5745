"""Which workers there are and whether they are there: what `workers` shows and others mention.

A worker with a process of its own says every ten seconds that it is there; one of a run or an edge
has its folder on this machine. Both are alive for as long as a lease of theirs stands.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from qinglong_sql.cli.alone import worker_lives
from qinglong_sql.cli.words import Row
from qinglong_sql.limits import WORKER_QUEUES
from qinglong_sql.store import Store

SESSIONS = 1000
OF_A_RUN = re.compile(r"wk[0-9a-f]{24}")
# In the order in which a person wants to see them.
STANDINGS = ("silent", "draining", "online", "offline")


def sessions(store: Store, dsn: str, now: int, holds: list[Row] | None = None) -> dict[str, Row]:
    """The rows of `worker_state` by worker, those that need a look first, with `standing` and more.

    `standing` is online, draining, offline, or silent for one that has not been heard of in time.
    `seen_by` says what tells that it is there: `itself`, its `lease`, its `lock` on this machine,
    or nothing. `queues` is a list; `busy_count` are the attempts that it holds, where `holds`
    (`worker_hold`) are given or had to be read.
    """
    rows = store.read("worker_state", order="registered_at_ms desc, worker_id", limit=SESSIONS)
    lives = {
        row["worker_id"]: worker_lives(dsn, row["worker_id"])
        for row in rows
        if row["status"] != "offline"
    }
    if holds is None and any(
        lives.get(row["worker_id"], True) is False or _expired(row, now) for row in rows
    ):
        holds = store.read("worker_hold")
    until: dict[str, int] = {}
    busy: dict[str, int] = {}
    for one in holds or []:
        key = one["worker_id"]
        until[key] = max(until.get(key, 0), one["expires_at_ms"])
        busy[key] = busy.get(key, 0) + 1
    for row in rows:
        key = row["worker_id"]
        row["queues"] = json.loads(row["queues"])
        row["seen_at_ms"] = row["seen_at_ms"] or row["registered_at_ms"]
        row["seen_by"] = _sign(row, now, until.get(key, 0), lives.get(key))
        there = row["status"] == "offline" or row["seen_by"]
        row["standing"] = row["status"] if there else "silent"
        row["busy_count"] = busy.get(key, 0)
    rows.sort(key=lambda row: (STANDINGS.index(row["standing"]), row["worker_id"]))
    return {row["worker_id"]: row for row in rows}


def serving(workers: Mapping[str, Row], waiting: list[Row]) -> set[str]:
    """Queues of the workers that are there; `waiting` are those with work (`queue_state`)."""
    found: set[str] = set()
    for row in workers.values():
        if row["standing"] == "online":
            found |= {str(queue) for queue in row["queues"]}
            if len(row["queues"]) >= WORKER_QUEUES:  # an edge: all that wait take turns
                found |= {one["queue"] for one in waiting}
    return found


def is_of_a_run(worker_id: str) -> bool:
    """Whether a worker is that of a run or an edge, which has no name of its own."""
    return OF_A_RUN.fullmatch(worker_id) is not None


def crew(workers: Mapping[str, Row], queue: str) -> list[Row]:
    """Whose work a queue is, drained ones first; those that have left only when no other is known.

    The worker of a run or an edge that is gone is not one of them: another one may come in its
    place at any time.
    """
    known = [
        row
        for row in workers.values()
        if queue in row["queues"] and (is_drained(row) or not is_of_a_run(row["worker_id"]))
    ]
    there = [row for row in known if row["standing"] != "offline"]
    return sorted(there or known, key=lambda row: not is_drained(row))


def is_drained(row: Row) -> bool:
    """Whether a worker is there, and takes nothing since somebody asked that of it."""
    return row["standing"] == "draining" and row["drain_requested_at_ms"] is not None


def kept_waiting(workers: Mapping[str, Row], waiting: list[Row]) -> list[dict[str, Any]]:
    """Workers that are silent or draining while work waits in their queues, and how much."""
    counts = {one["queue"]: one["waiting_count"] for one in waiting}
    found = []
    for row in workers.values():
        queues = [queue for queue in row["queues"] if queue in counts]
        if row["standing"] in ("silent", "draining") and queues:
            names = ("worker_id", "standing", "seen_at_ms", "drain_requested_at_ms", "busy_count")
            found.append({
                **{name: row[name] for name in names},
                "queues": queues,
                "waiting_count": sum(counts[queue] for queue in queues),
            })  # fmt: skip
    return found


def heard(row: Row) -> bool:
    """Whether a worker has said by itself, since it came, that it is there, and just now."""
    said = bool(row["seen_at_ms"] > row["registered_at_ms"])
    return said and row["standing"] == "online" and row["seen_by"] == "itself"


def _expired(row: Row, now: int) -> bool:
    return bool(row["status"] != "offline" and row["expires_at_ms"] < now)


def _sign(row: Row, now: int, lease_until_ms: int, lives: bool | None) -> str | None:
    """What tells that a worker is there."""
    if row["status"] == "offline":
        return None
    if lives:
        return "lock"
    if not _expired(row, now) and (lives is None or row["seen_at_ms"] > row["registered_at_ms"]):
        return "itself"
    return "lease" if lease_until_ms >= now else None
