"""How a database stands, as one document: what `status` shows (DESIGN §7, §9).

Everything is read by an index and bounded: it costs what is open or due, never what has ended.
"""

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from qinglong_sql.cli.alone import edge_here, is_stopped, silent_words, undriven
from qinglong_sql.cli.clockwork import faulty, overdue
from qinglong_sql.cli.options import PLACE
from qinglong_sql.cli.outlook import last_failed, open_of
from qinglong_sql.cli.reasons import OVERDUE_MS, Reason, Screen, reason_of, waits
from qinglong_sql.cli.sessions import heard, kept_waiting, sessions
from qinglong_sql.cli.words import Row
from qinglong_sql.store import SQLITE, Span, Store

STAGES = ("cancellation", "deadline", "expiry", "retry", "frontier", "task_admission")
COUNTED = 1000
LOOKED_AT = 100  # open runs, the oldest first
FAULTS = 20
ENDED = 5
HANDOVER_MS = 10_000  # from a `start` to the `edge` that somebody types next
OTHERWISE = (
    "hold",
    "evidence",
    "fault",
    "package",
    "edge",
    "trigger_fault",
)  # troubles that no driver ends
LIVE = ("claimed", "starting", "running")


def standing(store: Store, screen: Screen, dsn: str) -> dict[str, Any]:
    """The whole document. `ok` says that nothing needs a person.

    `driven` is false at once when runs are open and nobody works on the database; `ok` is then
    false when the oldest of them is open for longer than HANDOVER_MS.
    """
    counted = store.read("open_run", order="admitted_at_ms, run_id", limit=COUNTED + 1)
    faults = store.read("fault_state", order="run_id, stage", limit=FAULTS)
    runs = looked_at(store, counted, faults)
    held = {run["run_id"]: attempts_of(store, run["run_id"]) for run in runs}
    due = [row for stage in STAGES if (row := due_of(store, stage, screen.now))]
    edge = edge_of(dsn)
    workers = sessions(store, dsn, screen.now)
    waiting = store.read("queue_state", order="queue", limit=COUNTED)
    busy = served_by(workers, waiting, held, edge, screen.now)
    screen = replace(screen, busy=busy, workers=workers)
    why = {run["run_id"]: waits(store, run["run_id"]) for run in runs}
    packages = packages_of(store)
    stuck = silent(edge) + stuck_of(runs, why, screen, due) + unpublished(edge, screen)
    stuck += late_triggers(packages, screen)
    alone = bool(runs) and undriven(store, dsn)
    if alone or silent(edge):  # one cause is told once
        stuck = [row for row in stuck if row["waits_for"] in OTHERWISE]
    ended = ended_of(store, len(counted))
    late = alone and abs(screen.now - runs[0]["admitted_at_ms"]) > HANDOVER_MS  # or set back
    return {
        "ok": not stuck and not late,
        "driven": not alone,
        "now_ms": screen.now,
        "database": database_of(dsn),
        "edge": edge,
        "open_count": min(len(counted), COUNTED),
        "open_more": len(counted) > COUNTED,
        "looked_at_count": len(runs),
        "open": [open_of(run, why[run["run_id"]], screen) for run in runs],
        "running": [row for run in runs for row in running_of(run, held[run["run_id"]])],
        "workers": kept_waiting(workers, waiting),
        "due": due,
        "stuck": stuck,
        "faults": faults,
        "packages": packages,
        "ended": ended,
        "last_failed": last_failed(store, packages, ended),
    }


def looked_at(store: Store, counted: list[Row], faults: list[Row]) -> list[Row]:
    """The oldest open runs, and behind them those that raised, which need a person as well."""
    runs = counted[:LOOKED_AT]
    known = {run["run_id"] for run in runs}
    later = dict.fromkeys(row["run_id"] for row in faults if row["run_id"] not in known)
    return runs + [run for run_id in later for run in store.read("open_run", run_id=run_id)]


def served_by(
    workers: dict[str, Row], waiting: list[Row], held: dict[str, list[Row]],
    edge: dict[str, Any] | None, now: int,
) -> set[str]:  # fmt: skip
    """Queues of those who are known to live: the edge, workers that say so, and workers with a
    lease that stands."""
    live = {
        one["worker_id"]
        for rows in held.values()
        for one in rows
        if one["lease_status"] == "leased" and one["lease_expires_at_ms"] > now
    }
    said = (edge or {}).get("queues")
    queues = {str(queue) for queue in said} if isinstance(said, list) else set()
    if (edge or {}).get("queues_waiting"):  # all of them get their turn
        queues |= {row["queue"] for row in waiting}
    for worker_id, row in workers.items():
        if heard(row) or (worker_id in live and row["standing"] != "draining"):
            queues |= set(row["queues"])
    return queues


def attempts_of(store: Store, run_id: str) -> list[Row]:
    """What has not ended in a run and is held by a worker, or waits for one."""
    return [
        row
        for status in LIVE
        for row in store.read("attempt_state", order="number", run_id=run_id, status=status)
    ]


def running_of(run: Row, attempts: list[Row]) -> list[Row]:
    """A row for each step of a run that a worker has."""
    return [
        {
            **{name: run[name] for name in ("run_id", "package_key", "target_key")},
            **{name: one[name] for name in ("step_key", "attempt_id", "status", "worker_id")},
            "since_ms": one["starting_at_ms"] or one["admitted_at_ms"],
            "cancel_reason": run["cancel_reason"],
        }
        for one in attempts
        if one["status"] != "claimed"
    ]


def due_of(store: Store, stage: str, now: int) -> Row | None:
    """How much of a stage is due, and since when; None when nothing is."""
    rows = store.read(
        "agenda_state", order="due_at_ms, run_id", limit=COUNTED + 1,
        stage=stage, due_at_ms=Span(0, now + 1),
    )  # fmt: skip
    if not rows:
        return None
    return {
        "stage": stage,
        "due_count": min(len(rows), COUNTED),
        "more": len(rows) > COUNTED,
        "oldest_run_id": rows[0]["run_id"],
        "oldest_due_at_ms": rows[0]["due_at_ms"],
    }


def stuck_of(
    runs: list[Row], why: dict[str, list[Row]], screen: Screen, due: list[Row]
) -> list[Row]:
    """What needs a person, the oldest first; the same trouble of many steps is told once."""
    found: dict[tuple[str, str], Row] = {}
    for row in due:
        if screen.now - row["oldest_due_at_ms"] > OVERDUE_MS:
            told = {"waits_for": "scheduler", "waits_on": row["stage"], "step_key": None,
                    "run_id": row["oldest_run_id"], "attempt_id": None,
                    "since_ms": row["oldest_due_at_ms"]}  # fmt: skip
            since = screen.since(row["oldest_due_at_ms"])
            words = f"nothing has worked on this database for {since}: work is due and stays"
            then = "a process that drives the runs"
            driver = screen.driver(row["oldest_run_id"])
            _add(found, ("scheduler", ""), told, Reason(words, then, driver, True))
            found["scheduler", ""]["count"] += row["due_count"] - 1
    for run in runs:
        for row in why[run["run_id"]]:
            reason = reason_of(row, screen)
            if not reason.stuck:
                continue
            key = (str(row["attempt_id"] or row["run_id"]), row["waits_for"])
            if row["waits_for"] in ("worker", "queue"):
                key = ("queue", row["waits_on"])
            elif row["waits_for"] not in ("hold", "evidence", "fault"):
                key = ("scheduler", "")
            named = {name: run[name] for name in ("package_key", "target_key")}
            _add(found, key, {**row, **named}, reason)
    if ("scheduler", "") in found:  # whoever drives the runs takes from the queues as well
        found = {key: row for key, row in found.items() if key[0] != "queue"}
    return sorted(found.values(), key=lambda row: row["since_ms"] or 0)


def _add(found: dict[tuple[str, str], Row], key: tuple[str, str], row: Row, reason: Reason) -> None:
    if key in found:
        found[key]["count"] += 1
        return
    names = ("run_id", "step_key", "attempt_id", "waits_for", "waits_on", "since_ms")
    found[key] = {
        **{name: row[name] for name in names},
        "package_key": row.get("package_key"),
        "target_key": row.get("target_key"),
        "count": 1,
        "words": reason.words,
        "then": reason.then,
        "command": reason.command,
    }


def silent(edge: dict[str, Any] | None) -> list[Row]:
    """An edge that lives and does not answer: nobody else can begin, and nothing may move."""
    pid, words = (edge or {}).get("pid"), silent_words(edge)
    if pid is None or not words:
        return []
    row = {"waits_for": "edge", "waits_on": str(pid), "run_id": None, "step_key": None,
           "attempt_id": None, "since_ms": None}  # fmt: skip
    goes_on = is_stopped(pid)
    then = "that it goes on" if goes_on else "that it answers again, or ends"
    command = f"kill -CONT {pid}" if goes_on else f"kill {pid}"
    told: dict[tuple[str, str], Row] = {}
    reason = Reason(f"this database has {words}", then, command, True)
    _add(told, ("edge", str(pid)), row, reason)
    return list(told.values())


def unpublished(edge: dict[str, Any] | None, screen: Screen) -> list[Row]:
    """Package files that the edge could not publish; what was active stays active."""
    packages = (edge or {}).get("packages")
    if not isinstance(packages, dict):
        return []
    folder, found = str(packages.get("folder") or "."), []
    if packages.get("fault"):
        found.append((folder, str(packages["fault"]), screen.command(f"edge --packages {folder}")))
    for file in packages.get("files") or []:
        if file.get("faults"):
            first = file["faults"][0]
            words = str(first.get("message") if isinstance(first, dict) else first)
            path = shlex.quote(str(Path(folder) / str(file.get("file"))))
            found.append((path, words, f"qinglong-sql check {path}"))
    told: dict[tuple[str, str], Row] = {}
    for path, words, command in found:
        row = {"waits_for": "package", "waits_on": path, "run_id": None, "step_key": None,
               "attempt_id": None, "since_ms": None}  # fmt: skip
        reason = Reason(f"not published: {words}", "a file that checks", command, True)
        _add(told, ("package", path), row, reason)
    return list(told.values())


def late_triggers(packages: list[Row], screen: Screen) -> list[Row]:
    """Triggers that raise, each of them, and those that nobody fires, as one."""
    triggers = [one for row in packages for one in row["triggers"]]
    told: dict[tuple[str, str], Row] = {}
    for row, reason in faulty(triggers, screen):
        _add(told, ("trigger", row["waits_on"]), row, reason)
    for row, reason in overdue(triggers, screen):
        _add(told, ("trigger", ""), row, reason)
    return list(told.values())


def packages_of(store: Store) -> list[Row]:
    """Active packages, each with the triggers that are stored for it."""
    found = store.read("package_state", order="package_key", state="active")
    triggers: dict[str, list[Row]] = {}
    for row in store.read("trigger_state", order="package_key, trigger_key"):
        if row["state"] != "withdrawn":
            triggers.setdefault(row["package_key"], []).append(row)
    return [{**one, "triggers": triggers.get(one["package_key"], [])} for one in found]


def ended_of(store: Store, open_count: int) -> list[Row]:
    """The last runs that have ended, among the newest."""
    limit = ENDED + min(open_count, LOOKED_AT)
    rows = store.read("run_state", order="admitted_at_ms desc, run_id desc", limit=limit)
    ended = [row for row in rows if row["finished_at_ms"] is not None]
    return sorted(ended, key=lambda row: row["finished_at_ms"], reverse=True)[:ENDED]


def database_of(dsn: str) -> dict[str, Any]:
    """Where the database is, without a password; for a file its size in bytes, journal included."""
    if dsn.startswith(SQLITE):
        path = Path(dsn.removeprefix(SQLITE))
        beside = [path, Path(f"{path}-wal")]
        size = sum(one.stat().st_size for one in beside if one.exists())
        return {"engine": "sqlite", "file": str(path), "size_bytes": size}
    from psycopg.conninfo import conninfo_to_dict

    said = conninfo_to_dict(dsn)
    place = {name: str(said.get(name) or os.environ.get(by, "")) for name, by in PLACE.items()}
    return {"engine": "postgres", **{name: text for name, text in place.items() if text}}


def edge_of(dsn: str) -> dict[str, Any] | None:
    """What the edge of this database says of itself, or that it says nothing; None without one."""
    return edge_here(dsn) if dsn.startswith(SQLITE) else None
