"""What `status` says of runs as a whole: what open ones wait for, how each target ended last."""

from qinglong_sql.cli.reasons import ORDER, Screen, reason_of
from qinglong_sql.cli.steps import BAD, NAMED
from qinglong_sql.cli.words import Row
from qinglong_sql.store import Store

TARGETS = 64
NEWEST = 3  # of each target; open ones are among them


def open_of(run: Row, rows: list[Row], screen: Screen) -> Row:
    """An open run, and in words what it waits for: what runs, then what is most in its way."""
    reasons = [(row, reason_of(row, screen)) for row in rows]
    plain = [
        row["step_key"]
        for row, why in reasons
        if row["waits_for"] == "report" and not (why.silent or why.stuck)
    ]
    rest = [pair for pair in reasons if pair[0]["waits_for"] not in ("report", "need")
            or pair[1].silent or pair[1].stuck]  # fmt: skip
    rest.sort(key=lambda pair: (not pair[1].stuck, ORDER.index(pair[0]["waits_for"])))
    said = [f"{named(plain)} {'runs' if len(plain) == 1 else 'run'}"] if plain else []
    if rest:
        words = rest[0][1].words
        same = [row["step_key"] or "the run" for row, why in rest if why.words == words]
        said.append(f"{named(same)}: {words}")
    names = ("run_id", "package_key", "target_key", "admitted_at_ms")
    return {
        **{name: run[name] for name in names},
        "waits_for": "; ".join(said) or "the next cycle",
    }


def named(keys: list[str]) -> str:
    keys = list(dict.fromkeys(keys))
    return ", ".join(keys[:NAMED]) + f" and {len(keys) - NAMED} more" * (len(keys) > NAMED)


def last_failed(store: Store, packages: list[Row], ended: list[Row]) -> list[Row]:
    """Runs that failed or timed out, and after which none of their target has ended.

    Of the last runs, and of the targets of active packages; the newest end first.
    """
    newest: dict[tuple[str, str], Row] = {}
    for row in [*ended, *(row for id_ in targets_of(store, packages) for row in ran(store, id_))]:
        key = (row["package_key"], row["target_key"])
        if key not in newest or newest[key]["admitted_at_ms"] < row["admitted_at_ms"]:
            newest[key] = row
    found = [row for row in newest.values() if row["status"] in BAD]
    return sorted(found, key=lambda row: -row["finished_at_ms"])


def targets_of(store: Store, packages: list[Row]) -> list[str]:
    """Ids of what can be started in active packages, workflows first, up to TARGETS."""
    found: list[str] = []
    for one in packages:
        rows = store.read(
            "target_state", order="kind desc, target_key", limit=TARGETS,
            package_key=one["package_key"], generation=one["generation"],
        )  # fmt: skip
        found += [row["target_id"] for row in rows if "/" not in row["target_key"]]
        if len(found) >= TARGETS:
            break
    return found[:TARGETS]


def ran(store: Store, target_id: str) -> list[Row]:
    rows = store.read(
        "run_state", order="admitted_at_ms desc, run_id desc", limit=NEWEST, target_id=target_id
    )
    return [row for row in rows if row["finished_at_ms"] is not None]
