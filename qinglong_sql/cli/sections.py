"""The parts of `status`: what is stuck, what moves, what is stored, what has ended."""

import click

from qinglong_sql.cli import cells
from qinglong_sql.cli.reasons import Screen, short
from qinglong_sql.cli.words import Row, say, say_wrapped, sign_of, span, table

SHOWN = 10
STAGE_WORDS = {
    "cancellation": "runs to be cancelled",
    "deadline": "runs past their timeout",
    "expiry": "leases to look after",
    "retry": "steps to try again",
    "frontier": "steps that ended, and what follows",
    "task_admission": "steps to hand out",
}


def trouble(stuck: list[Row], screen: Screen, wide: int) -> None:
    """What needs a person, each with what to type."""
    for row in stuck[:SHOWN]:
        head = title("STUCK") if row is stuck[0] else ""
        if head:
            say("")
            say(head)
        say_wrapped(f"{sign_of('lost')} {named(row)}", wide, 2)
        for line in cells.wrapped(row["words"], wide, "  "):
            say(click.style(line, fg="red"))
        say_wrapped(f"  needs: {row['then']}", wide, 2)
        say(f"  type:  {click.style(row['command'], bold=True)}")
    left_over(len(stuck))


def named(row: Row) -> str:
    """Which run and step it is about; the scheduler serves all of them."""
    if row["waits_for"] == "scheduler":
        return f"the scheduler, with work for {short(row['run_id'])} first"
    if row["waits_for"] in ("worker", "queue"):
        many = counted(row["count"], False, "step")
        return f"queue {row['waits_on']}, {many} waiting, {short(row['run_id'])} first"
    if row["waits_for"] == "trigger_fault":
        return f"trigger {row['waits_on']}"
    if row["waits_for"] == "trigger":
        return f"{counted(row['count'], False, 'trigger')}, {row['waits_on']} first"
    if row["waits_for"] == "edge":
        return f"the edge, pid {row['waits_on']}"
    if row["waits_for"] == "package":
        return f"package file {row['waits_on']}"
    step = f", step {row['step_key']}" if row["step_key"] else ""
    return f"{short(row['run_id'])} {row['package_key']}/{row['target_key']}{step}"


def moving(found: Row, screen: Screen, wide: int) -> None:
    """What is open, what workers have, what is due, and what failed in the scheduler."""
    section(
        "OPEN",
        ["RUN", "OF", "FOR", "WAITS FOR"],
        [
            [
                short(row["run_id"]),
                f"{row['package_key']}/{row['target_key']}",
                screen.since(row["admitted_at_ms"]),
                row["waits_for"],
            ]
            for row in found["open"][:SHOWN]
        ],
        wide,
        ("FOR", "OF"),
    )
    left_over(found["open_count"], found["open_more"])
    running = sorted(found["running"], key=lambda row: row["since_ms"])
    section(
        "RUNNING",
        ["RUN", "OF", "STEP", "SINCE", "FOR", "WORKER"],
        [
            [
                short(row["run_id"]),
                f"{row['package_key']}/{row['target_key']}",
                row["step_key"] + (" (being stopped)" if row["cancel_reason"] else ""),
                screen.at(row["since_ms"]),
                screen.since(row["since_ms"]),
                row["worker_id"],
            ]
            for row in running[:SHOWN]
        ],
        wide,
        ("WORKER", "SINCE", "OF"),
    )
    left_over(len(running))
    section(
        "DUE NOW",
        ["STAGE", "RUNS", "OLDEST", "WHAT"],
        [
            [
                row["stage"],
                f"{row['due_count']}{'+' * row['more']}",
                f"{screen.since(row['oldest_due_at_ms'])} ({short(row['oldest_run_id'])})",
                STAGE_WORDS.get(row["stage"], ""),
            ]
            for row in found["due"]
        ],
        wide,
        ("WHAT",),
    )
    told = {(row["run_id"], row["waits_on"]) for row in found["stuck"]}
    section(
        "FAULTS",
        ["RUN", "STAGE", "TIMES", "AGAIN", "ERROR"],
        [
            [
                short(row["run_id"]),
                row["stage"],
                str(row["fault_count"]),
                screen.at(row["next_try_at_ms"]),
                row["error"],
            ]
            for row in found["faults"][:SHOWN]
            if (row["run_id"], row["stage"]) not in told
        ],
        wide,
        ("TIMES", "AGAIN"),
    )


def missed(workers: list[Row], screen: Screen, wide: int) -> None:
    """Workers that are silent or draining while work waits in their queues."""
    section(
        "WORKERS AWAY, THOUGH WORK WAITS",
        ["WORKER", "STANDING", "SEEN", "WAITS", "QUEUES"],
        [
            [
                row["worker_id"],
                row["standing"],
                f"{screen.since(row['seen_at_ms'])} ago",
                counted(row["waiting_count"], False, "step"),
                ", ".join(row["queues"][:SHOWN]),
            ]
            for row in workers[:SHOWN]
        ],
        wide,
        ("SEEN",),
    )
    left_over(len(workers))
    if workers:
        say(f"look: {screen.command('workers')}")


def stored(packages: list[Row], screen: Screen, wide: int) -> None:
    """Active packages, and when their triggers fire next."""
    section(
        "PACKAGES",
        ["PACKAGE", "GEN", "PUBLISHED"],
        [
            [row["package_key"], str(row["generation"]), screen.at(row["published_at_ms"])]
            for row in packages[:SHOWN]
        ],
        wide,
        ("PUBLISHED",),
    )
    left_over(len(packages))
    triggers = [one for row in packages for one in row["triggers"]]
    section(
        "TRIGGERS",
        ["TRIGGER", "CRON", "ZONE", "NEXT", "STARTS"],
        [
            [
                f"{one['package_key']}/{one['trigger_key']}",
                one["cron"],
                one["tz"],
                "paused" if one["state"] == "paused" else screen.at(one["next_fire_at_ms"]),
                one["target_key"],
            ]
            for one in triggers[:SHOWN]
        ],
        wide,
        ("ZONE",),
    )
    left_over(len(triggers))


def past(ended: list[Row], screen: Screen, wide: int) -> None:
    """The last runs that have ended."""
    section(
        "ENDED LAST",
        ["RUN", "OF", "STATUS", "AT", "TOOK"],
        [
            [
                short(row["run_id"]),
                f"{row['package_key']}/{row['target_key']}",
                f"{sign_of(row['status'])} {row['status']}",
                screen.at(row["finished_at_ms"]),
                span(row["admitted_at_ms"], row["finished_at_ms"]),
            ]
            for row in ended
        ],
        wide,
        ("TOOK", "AT"),
    )
    bad = next((row for row in ended if row["status"] in ("failed", "timed_out")), None)
    if bad is not None:
        say(f"why: {screen.command('show ' + short(bad['run_id']))}")


def section(
    name: str, head: list[str], rows: list[list[str]], wide: int, drop: tuple[str, ...] = ()
) -> None:
    """A titled table; nothing at all when it has no rows."""
    if rows:
        say("")
        say(title(name))
        say(table(head, rows, wide=wide, drop=drop))


def left_over(count: int, more: bool = False) -> None:
    if count > SHOWN:
        say(f"and {count - SHOWN}{'+' * more} more")


def title(words: str) -> str:
    return click.style(words, bold=True)


def counted(count: int, more: bool, thing: str) -> str:
    return f"{count}{'+' * more} {thing}{'' if count == 1 and not more else 's'}"
