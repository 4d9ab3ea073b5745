"""`status`: one screen about a whole database."""

from typing import Any

import click

from qinglong_sql.cli import cells
from qinglong_sql.cli.exits import Exit, leave, reported
from qinglong_sql.cli.options import opened, same_dsn, with_dsn, with_json
from qinglong_sql.cli.reasons import Screen
from qinglong_sql.cli.sections import counted, moving, past, stored, trouble
from qinglong_sql.cli.service import revision_of
from qinglong_sql.cli.standing import standing
from qinglong_sql.cli.steps import BAD
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

DAY_MS = 86_400_000


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
        words, colour = f"all is well: nothing is stuck, {open_runs}", "green"
        if bad := failed_lately(found["ended"], screen.now):
            said = f"{bad} of the last {len(found['ended'])} runs failed"
            words, colour = f"nothing is stuck, {open_runs}; {said}", "yellow"
        say_wrapped(f"{sign_of('succeeded')} {words}", wide, fg=colour, bold=True)
    else:
        many = counted(len(found["stuck"]), False, "thing")
        needs = "needs" if len(found["stuck"]) == 1 else "need"
        words = f"{sign_of('failed')} stuck: {many} {needs} you, {open_runs}"
        say_wrapped(words, wide, fg="red", bold=True)
    if found["looked_at_count"] < found["open_count"]:
        say_wrapped(f"only the oldest {found['looked_at_count']} open runs were looked at", wide)
    place(found, screen, wide)
    trouble(found["stuck"], screen, wide)
    moving(found, screen, wide)
    stored(found["packages"], screen, wide)
    past(found["ended"], screen, wide)


def failed_lately(ended: list[Row], now: int) -> int:
    """How many of the last runs have failed within a day: not stuck, and not well either."""
    return sum(row["status"] in BAD and now - row["finished_at_ms"] < DAY_MS for row in ended)


def place(found: dict[str, Any], screen: Screen, wide: int) -> None:
    """Which database this is, and which edge works on it."""
    base = dict(found["database"])
    stands_at = base.pop("revision", None)
    revision = f"revision {stands_at}" if stands_at else "installed without a revision"
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
    say_wrapped(f"edge      {edge_words(edge, screen)}", wide, 10)
    error = edge.get("last_error")
    if isinstance(error, dict) and error.get("words"):
        at = screen.at(error.get("at_ms"))
        say_wrapped(f"          last error at {at}: {error['words']}", wide, 10)


def edge_words(edge: Row, screen: Screen) -> str:
    """What an edge says of itself; keys that it leaves out are left out."""
    if edge.get("error"):
        return f"does not answer: {edge['error']}"
    words = [f"{edge.get('state') or 'there'}, pid {edge.get('pid', '?')}"]
    if isinstance(edge.get("since_ms"), int):
        words.append(f"since {screen.at(edge['since_ms'])}")
    if isinstance(edge.get("slots"), int):
        words.append(f"{edge.get('busy', '?')} of {edge['slots']} slots busy")
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
