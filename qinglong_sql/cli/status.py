"""`status`: one screen about a whole database."""

from typing import Any

import click

from qinglong_sql.cli import cells
from qinglong_sql.cli.exits import Exit, leave, reported
from qinglong_sql.cli.options import opened, same_dsn, with_dsn, with_json
from qinglong_sql.cli.reasons import Screen, short
from qinglong_sql.cli.service import revision_of
from qinglong_sql.cli.standing import standing
from qinglong_sql.cli.words import (
    Row,
    clock,
    now_ms,
    plain_signs,
    print_json,
    say,
    say_wrapped,
    sign_of,
    span,
    table,
    with_color,
    with_utc,
    zone,
)

SHOWN = 10


@click.command()
@click.option("--check", is_flag=True, help="Exit 1 when something is stuck, for monitoring.")
@with_utc
@with_color
@with_dsn
@with_json
@reported
def status(check: bool, utc: bool, dsn: str, as_json: bool) -> None:
    """Show what runs, what is due and what is stuck.

    The first line says whether all is well. What is stuck stands below it, with what to type.
    """
    with opened(dsn) as store:
        screen = Screen(now_ms(), utc, store.engine, same_dsn(dsn))
        found = standing(store, screen, dsn)
    found["database"]["revision"] = revision_of(dsn)[0]
    if as_json:
        print_json(found)
    else:
        told(found, screen, cells.room())
    if check and not found["ok"]:
        leave(Exit.FAILED)


def told(found: dict[str, Any], screen: Screen, wide: int) -> None:
    """The document for people: trouble first, then what moves, then what has ended."""
    open_runs = counted(found["open_count"], found["open_more"], "open run")
    if found["ok"]:
        verdict = click.style(f"{sign('succeeded')} all is well", fg="green", bold=True)
        say_wrapped(f"{verdict}: nothing is stuck, {open_runs}", wide)
    else:
        many = counted(len(found["stuck"]), False, "thing")
        needs = "needs" if len(found["stuck"]) == 1 else "need"
        verdict = click.style(f"{sign('failed')} stuck: {many} {needs} you", fg="red", bold=True)
        say_wrapped(f"{verdict}, {open_runs}", wide)
    if found["looked_at_count"] < found["open_count"]:
        say_wrapped(f"only the oldest {found['looked_at_count']} open runs were looked at", wide)
    place(found, screen, wide)
    trouble(found["stuck"], screen, wide)
    moving(found, screen, wide)
    stored(found["packages"], screen, wide)
    past(found["ended"], screen, wide)


def place(found: dict[str, Any], screen: Screen, wide: int) -> None:
    """Which database this is, and which edge works on it."""
    base = dict(found["database"])
    revision = f"revision {base.pop('revision')}" if base.get("revision") else "no revision"
    if base.pop("engine") == "sqlite":
        where = f"{base['file']}, {size(base['size_bytes'])}, {revision}"
    else:
        where = f"PostgreSQL, {', '.join(f'{k} {v}' for k, v in base.items())}, {revision}"
    edge = found["edge"]
    say_wrapped(
        f"time      {clock(screen.now, utc=screen.utc)[:19]}, {zone(screen.now, utc=screen.utc)}",
        wide,
    )
    say_wrapped(f"database  {where}", wide, 10)
    if screen.engine != "sqlite":
        return
    if edge is None:
        say_wrapped(f"edge      none; `{screen.command('edge')}` starts one", wide, 10)
        return
    words = [f"pid {edge['pid']}"] if "pid" in edge else []
    since = edge.get("since_ms", edge.get("started_at_ms"))
    words += [f"since {screen.at(since)}"] if isinstance(since, int) else []
    for name in ("profile", "slots", "packages"):
        if isinstance(edge.get(name), str | int):
            words.append(f"{name} {edge[name]}")
    words += [f"error: {edge['error']}"] if edge.get("error") else []
    say_wrapped(f"edge      {', '.join(words) or 'answers'}", wide, 10)


def trouble(stuck: list[Row], screen: Screen, wide: int) -> None:
    """What needs a person, each with what to type."""
    for row in stuck[:SHOWN]:
        head = title("STUCK") if row is stuck[0] else ""
        if head:
            say("")
            say(head)
        say_wrapped(f"{sign('lost')} {named(row)}", wide, 2)
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
    step = f", step {row['step_key']}" if row["step_key"] else ""
    return f"{short(row['run_id'])} {row['package_key']}/{row['target_key']}{step}"


def moving(found: dict[str, Any], screen: Screen, wide: int) -> None:
    """What workers have, what is due, and what failed in the scheduler."""
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
        ["STAGE", "RUNS", "OLDEST"],
        [
            [
                row["stage"],
                f"{row['due_count']}{'+' * row['more']}",
                f"{screen.since(row['oldest_due_at_ms'])} ({short(row['oldest_run_id'])})",
            ]
            for row in found["due"]
        ],
        wide,
    )
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
        ],
        wide,
        ("TIMES", "AGAIN"),
    )


def stored(packages: list[Row], screen: Screen, wide: int) -> None:
    """Active packages, and the triggers that wait in them for the stage that fires them."""
    section(
        "PACKAGES",
        ["PACKAGE", "GEN", "PUBLISHED", "TRIGGERS"],
        [
            [
                row["package_key"],
                str(row["generation"]),
                screen.at(row["published_at_ms"]),
                "; ".join(trigger(one) for one in row["triggers"][:3])
                + (f"; {len(row['triggers']) - 3} more" if len(row["triggers"]) > 3 else ""),
            ]
            for row in packages[:SHOWN]
        ],
        wide,
        ("PUBLISHED",),
    )
    left_over(len(packages))
    if any(row["triggers"] for row in packages):
        say_wrapped("Triggers are stored and checked; this version does not fire them yet.", wide)


def trigger(row: Row) -> str:
    paused = " (paused)" if row["state"] == "paused" else ""
    return f"{row['trigger_key']}: {row['cron']} {row['tz']} starts {row['target_key']}{paused}"


def past(ended: list[Row], screen: Screen, wide: int) -> None:
    """The last runs that have ended."""
    section(
        "ENDED LAST",
        ["RUN", "OF", "STATUS", "AT", "TOOK"],
        [
            [
                short(row["run_id"]),
                f"{row['package_key']}/{row['target_key']}",
                f"{sign(row['status'])} {row['status']}",
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


def left_over(count: int) -> None:
    if count > SHOWN:
        say(f"and {count - SHOWN} more")


def title(words: str) -> str:
    return click.style(words, bold=True)


def sign(state: str) -> str:
    """The sign of a state, as graphs have it."""
    return sign_of(state, plain=plain_signs())


def counted(count: int, more: bool, thing: str) -> str:
    return f"{count}{'+' * more} {thing}{'' if count == 1 and not more else 's'}"


def size(count: int) -> str:
    """Bytes in the unit that a person reads."""
    if count < 1024:
        return f"{count} B"
    for unit in ("KiB", "MiB", "GiB"):
        count_of = count / 1024
        if count_of < 1024 or unit == "GiB":
            return f"{count_of:.1f} {unit}"
        count //= 1024
    raise AssertionError("unreachable")
