"""`status`: one screen about a whole database."""

from typing import Any

import click

from qinglong_sql.cli import cells
from qinglong_sql.cli.alone import LATE_MS, executors, silent_words
from qinglong_sql.cli.exits import Exit, leave, reported
from qinglong_sql.cli.options import Duration, opened, same_dsn, with_dsn, with_json
from qinglong_sql.cli.reasons import Screen, short
from qinglong_sql.cli.sections import counted, missed, moving, past, stored, trouble
from qinglong_sql.cli.service import revision_of, server_of
from qinglong_sql.cli.standing import HANDOVER_MS, standing
from qinglong_sql.cli.words import (
    Row,
    clock,
    now_ms,
    print_json,
    say_wrapped,
    sign_of,
    with_color,
    with_utc,
    zone,
)


@click.command()
@click.option(
    "--check",
    is_flag=True,
    help="Exit 1, for a monitor, when something is stuck, or when a run has been open for more"
    f" than {HANDOVER_MS // 1000} s ({LATE_MS // 1000} s on PostgreSQL) and nobody works on the"
    " database.",
)
@click.option(
    "--failed-since",
    "failed_within",
    type=Duration(),
    metavar="D",
    help="With --check: exit 1 as well when the last run of a workflow or task has failed or timed"
    " out within this time (24h). A later run of it that succeeds ends that.",
)
@with_utc
@with_color
@with_dsn
@with_json
@reported
def status(check: bool, failed_within: int | None, utc: bool, dsn: str, as_json: bool) -> None:
    """Show what runs, what is due and what is stuck.

    The first line says whether all is well. What is stuck stands below it, with what to type.
    """
    if failed_within is not None and not check:
        raise click.UsageError("--failed-since needs --check")
    with opened(dsn) as store:
        screen = Screen(now_ms(), utc, store.engine, same_dsn(dsn))
        server, place_words, lack = server_of(store, dsn)
        found = standing(store, screen, dsn)
    found["database"] |= server
    found["database"]["revision"], stands_at = revision_of(dsn)
    if as_json:
        print_json(found)
    else:
        told(found, screen, cells.room(), [*place_words, stands_at], lack)
    since = screen.now if failed_within is None else screen.now - failed_within
    failed = any(row["finished_at_ms"] > since for row in found["last_failed"])
    if check and (not found["ok"] or (failed and failed_within is not None)):
        leave(Exit.FAILED)


def told(
    found: dict[str, Any], screen: Screen, wide: int, words: list[str], lack: str = ""
) -> None:
    """The document for people: trouble first, then what moves, then what has ended."""
    for line, colour in headlines(found, screen, lack):
        say_wrapped(line, wide, 2, fg=colour, bold=True)
    if found["looked_at_count"] < found["open_count"]:
        say_wrapped(f"only the oldest {found['looked_at_count']} open runs were looked at", wide)
    place(found, screen, wide, words)
    trouble(found["stuck"], screen, wide)
    missed(found["workers"], screen, wide)
    moving(found, screen, wide)
    stored(found["packages"], screen, wide)
    past(found["ended"], screen, wide)


def headlines(found: dict[str, Any], screen: Screen, lack: str = "") -> list[tuple[str, str]]:
    """(words, colour) of whether all is well; what everything else waits for stands first."""
    open_runs = counted(found["open_count"], found["open_more"], "open run")
    lines, failed = [], last_words(found["last_failed"], screen)
    if not found["driven"]:
        many = counted(found["open_count"], found["open_more"], "run")
        waits = "waits" if many == "1 run" else "wait"
        words = f"! nobody {undone_words(found, screen, f'{many} {waits}')}"
        lines.append((words, "yellow" if found["ok"] else "red"))
    if found["stuck"]:
        many = counted(len(found["stuck"]), False, "thing")
        needs = "needs" if len(found["stuck"]) == 1 else "need"
        lines.append((f"{sign_of('failed')} stuck: {many} {needs} you, {open_runs}", "red"))
    elif failed and lines:
        lines.append((f"! {failed}", "yellow"))
    elif failed or found["workers"]:
        still = f"; {open_runs}" * (found["open_count"] > 0)
        but = "; ".join(words for words in (away_words(found["workers"]), failed) if words)
        lines.append((f"! nothing is stuck, but {but}{still}", "yellow"))
    elif lack and not lines:
        return [(f"! {lack}; nothing is stuck, {open_runs}", "yellow")]
    elif not lines:
        words = f"all is well: nothing is stuck, {open_runs}"
        lines.append((f"{sign_of('succeeded')} {words}", "green"))
    return [(f"! {lack}", "yellow"), *lines] if lack else lines


def undone_words(found: dict[str, Any], screen: Screen, waits: str) -> str:
    """What nobody does, and who would: with nothing long due, a control process may be there."""
    run = found["open"][0]["run_id"]
    late = any(row["oldest_due_at_ms"] <= screen.now - LATE_MS for row in found["due"])
    if screen.engine == "sqlite" or late:
        return f"works on this database; {waits}: {screen.driver(run)}"
    resume = f"resume {short(run)}{screen.more}"
    return f"executes for this database; {waits}: {executors(resume)}"


def away_words(workers: list[Row]) -> str:
    """Workers for which work waits; nothing without one."""
    if not workers:
        return ""
    if len(workers) > 1:
        return f"{len(workers)} workers are away, though work waits"
    return f"worker {workers[0]['worker_id']} is {workers[0]['standing']}, though work waits"


def last_words(failed: list[Row], screen: Screen) -> str:
    """Which targets failed when they last ran; nothing when none did."""
    if not failed:
        return ""
    row = failed[0]
    how = row["status"].replace("_", " ")
    rest = (
        "the last run of 1 more" if len(failed) == 2 else f"the last runs of {len(failed) - 1} more"
    )
    more = f", and {rest} failed as well" * (len(failed) > 1)
    at = screen.at(row["finished_at_ms"])
    return f"the last run of {row['package_key']}/{row['target_key']} {how} at {at}{more}"


def place(found: dict[str, Any], screen: Screen, wide: int, words: list[str]) -> None:
    """Which database this is, and which edge works on it."""
    base = dict(found["database"])
    for name in ("revision", "answered_by", "takes_writes"):
        base.pop(name, None)
    if base.pop("engine") == "sqlite":
        where = f"{base['file']}, {size(base['size_bytes'])}"
    else:
        where = f"PostgreSQL, {', '.join(f'{k} {v}' for k, v in base.items())}"
    edge = found["edge"]
    say_wrapped(
        f"time      {clock(screen.now, utc=screen.utc)[:19]}, {zone(screen.now, utc=screen.utc)}",
        wide,
    )
    say_wrapped(f"database  {', '.join([where, *words])}", wide, 10)
    if screen.engine != "sqlite":
        return
    if edge is None:
        say_wrapped(f"edge      none; `{screen.command('edge')}` starts one", wide, 10)
        return
    say_wrapped(f"edge      {edge_words(edge, screen)}", wide, 10)
    error = edge.get("last_error")
    if isinstance(error, dict) and error.get("words"):
        at = screen.at(error.get("at_ms"))
        say_wrapped(f"          last error at {at}: {error['words']}", wide, 10)


def edge_words(edge: Row, screen: Screen) -> str:
    """What an edge says of itself; keys that it leaves out are left out."""
    if edge.get("error"):
        return silent_words(edge)
    words = [f"{edge.get('state') or 'there'}, pid {edge.get('pid', '?')}"]
    if isinstance(edge.get("since_ms"), int):
        words.append(f"since {screen.at(edge['since_ms'])}")
    if isinstance(edge.get("slots"), int):
        words.append(f"{edge.get('busy', '?')} of {edge['slots']} slots busy")
    if isinstance(edge.get("queues_waiting"), int):
        served = len(edge.get("queues") or ())
        words.append(f"work waits in {edge['queues_waiting']} queues, {served} served at a time")
    packages = edge.get("packages")
    if isinstance(packages, dict) and packages.get("folder"):
        words.append(f"packages from {packages['folder']}")
    return ", ".join(words)


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
