"""What `status` says of triggers: which raise, and which were due long ago."""

from qinglong_sql.cli.reasons import OVERDUE_MS, Reason, Screen
from qinglong_sql.cli.words import Row


def faulty(triggers: list[Row], screen: Screen) -> list[tuple[Row, Reason]]:
    """A row and its reason for each trigger that raised when it was looked at."""
    return [
        (
            row_of(one, "trigger_fault", one["since_ms"]),
            Reason(
                f"does not fire, {one['fault_count']} times tried: {one['fault_error']}",
                "a generation in which it is mended, or that the cause is gone",
                screen.command(f"trigger resume {one['package_key']} {one['trigger_key']}"),
                True,
            ),
        )
        for one in triggers
        if one["fault_error"] is not None
    ]


def overdue(triggers: list[Row], screen: Screen) -> list[tuple[Row, Reason]]:
    """The same for the active ones that nobody has looked at for long after they were due."""
    found = []
    for one in triggers:
        due_ms = one["due_at_ms"]
        if one["state"] != "active" or due_ms is None or one["fault_error"] is not None:
            continue
        since_ms = max(due_ms, one["since_ms"])
        if screen.now - since_ms <= OVERDUE_MS:
            continue
        fire = f"trigger fire {one['package_key']} {one['trigger_key']}"
        reason = Reason(
            f"nothing has fired it for {screen.since(since_ms)}: nobody looks at the clock",
            "a process that fires triggers",
            screen.command("edge" if screen.engine == "sqlite" else fire),
            True,
        )
        found.append((row_of(one, "trigger", since_ms), reason))
    return sorted(found, key=lambda pair: pair[0]["since_ms"])


def row_of(one: Row, waits_for: str, since_ms: int) -> Row:
    return {
        "run_id": None, "step_key": None, "attempt_id": None, "waits_for": waits_for,
        "waits_on": f"{one['package_key']}/{one['trigger_key']}", "since_ms": since_ms,
        "package_key": one["package_key"], "target_key": one["target_key"],
    }  # fmt: skip
