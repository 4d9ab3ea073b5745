"""`workers`: who takes work from this database, and what each of them holds."""

import click

from qinglong_sql.cli import cells
from qinglong_sql.cli.exits import Refused, reported
from qinglong_sql.cli.options import opened, same_dsn, with_dsn, with_json
from qinglong_sql.cli.reasons import Screen, short
from qinglong_sql.cli.sections import counted
from qinglong_sql.cli.sessions import STANDINGS, sessions
from qinglong_sql.cli.spelling import no_worker
from qinglong_sql.cli.words import (
    Row,
    now_ms,
    print_json,
    say,
    say_wrapped,
    with_color,
    with_utc,
    zone,
)
from qinglong_sql.graph import middle_cut

SHOWN = 50  # workers
HELD = 5  # of each, unless it is the only one that was asked for
NAME_CELLS = 36
QUEUES = 20
COLOURS = {"draining": "yellow", "silent": "red", "offline": "bright_black"}
SIGNS = {"lease": "by its lease", "lock": "runs here"}
GAP = "  "
LEAST_CELLS = 16  # of queues
# What goes when a screen is narrow: the first first.
COLUMNS = ("QUEUES", "SEEN", "BUSY")
HOLD_COLUMNS = ("FOR", "LEASE")


@click.command()
@click.argument("name", required=False)
@with_utc
@with_color
@with_dsn
@with_json
@reported
def workers(name: str | None, utc: bool, dsn: str, as_json: bool) -> None:
    """List workers: whether they are there, how busy they are, and what each holds.

    A worker is online, draining (it takes nothing new, `worker drain`), offline (it has left), or
    silent: not heard of for a minute, and no lease of it stands. With a NAME, that one alone and
    all that it holds. What a silent one held comes back by itself, but for `on_lost: hold`:
    `explain RUN` says which, and what to type.
    """
    with opened(dsn) as store:
        screen = Screen(now_ms(), utc, store.engine, same_dsn(dsn))
        holds = store.read("worker_hold", order="leased_at_ms, attempt_id")
        found = sessions(store, dsn, screen.now, holds)
    if name is not None and name not in found:
        raise Refused(no_worker(name, list(found), screen.more))
    rows = [row for row in found.values() if name in (None, row["worker_id"])]
    by_worker: dict[str, list[Row]] = {}
    for one in holds:
        by_worker.setdefault(one["worker_id"], []).append(one)
    if as_json:
        told = [{**row, "holds": by_worker.get(row["worker_id"], [])} for row in rows]
        print_json(told[0] if name is not None else told)
        return
    if not rows:
        say("no worker has registered yet")
        return
    wide = cells.room()
    if name is None:
        say_wrapped(headline(rows, screen), wide, 2)
    shown = rows[:SHOWN]
    held = {row["worker_id"]: by_worker.get(row["worker_id"], []) for row in shown}
    most = HELD if name is None else len(holds)
    print_workers(shown, held, screen, wide, most)
    if len(rows) > SHOWN:
        say(f"and {counted(len(rows) - SHOWN, False, 'worker')} more; --json has all of them")


def headline(rows: list[Row], screen: Screen) -> str:
    """How many there are of each standing, and how many slots of those that are there are busy."""
    counts = {one: sum(row["standing"] == one for row in rows) for one in STANDINGS}
    words = ", ".join(f"{count} {one}" for one, count in counts.items() if count)
    there = [row for row in rows if row["standing"] in ("online", "draining")]
    slots, busy = (sum(row[name] for row in there) for name in ("slots", "busy_count"))
    taken = f"; {busy} of {counted(slots, False, 'slot')} busy" if there else ""
    at = zone(screen.now, utc=screen.utc)
    return f"{counted(len(rows), False, 'worker')}: {words}{taken} ({at})"


def print_workers(
    rows: list[Row], held: dict[str, list[Row]], screen: Screen, wide: int, most: int
) -> None:
    """A line for each worker, and below it what it holds; as many columns as the screen has."""
    head = ["WORKER", "STANDING", "BUSY", "SEEN", "QUEUES"]
    lines = [line_of(row, screen) for row in rows]
    title, *above = fitted(head, lines, COLUMNS, wide, LEAST_CELLS)
    some = {key: ones[:most] for key, ones in held.items()}
    every = [one for row in rows for one in some[row["worker_id"]]]
    head = ["", "", "", *HOLD_COLUMNS]
    below = fitted(head, [hold_of(one, screen, wide) for one in every], HOLD_COLUMNS, wide - 2)[1:]
    say(title)
    for row, line in zip(rows, above, strict=True):
        say(click.style(line, fg=COLOURS.get(row["standing"])))
        mine = len(some[row["worker_id"]])
        for one in below[:mine]:
            say(f"  {one}")
        below = below[mine:]
        rest = len(held[row["worker_id"]]) - mine
        if rest:
            more = screen.command(f"workers {row['worker_id']}")
            say_wrapped(f"  and {rest} more: {more}", wide, 4)


def line_of(row: Row, screen: Screen) -> list[str]:
    since = f" since {screen.at(row['seen_at_ms'])}" if row["standing"] == "silent" else ""
    return [
        middle_cut(row["worker_id"], NAME_CELLS, cells.cells, ".."),
        row["standing"] + since,
        f"{row['busy_count']}/{row['slots']}",
        SIGNS.get(row["seen_by"]) or f"{screen.since(row['seen_at_ms'])} ago",
        ", ".join(row["queues"][:QUEUES]),
    ]


def hold_of(one: Row, screen: Screen, wide: int) -> list[str]:
    ended = one["expires_at_ms"] < screen.now
    lease = f"lease {'ended' if ended else 'until'} {screen.at(one['expires_at_ms'])}"
    step = middle_cut(one["step_key"], max(8, wide // 3), cells.cells, "..")
    return [
        short(one["run_id"]),
        f"{step}#{one['number']}",
        one["status"],
        f"for {screen.since(one['leased_at_ms'])}",
        lease,
    ]


def fitted(
    head: list[str], rows: list[list[str]], drop: tuple[str, ...], wide: int, least: int = 0
) -> list[str]:
    """One line a row and a title, without the columns of `drop` for which there is no room.

    The last column may be cut to `least` columns. Each line stays one: others stand between them.
    """
    lines, kept = [head, *rows], list(range(len(head)))
    for name in (None, *drop):
        kept = [i for i in kept if head[i] != name]
        wides = [max(cells.cells(line[i]) for line in lines) for i in kept]
        tail = wides[-1] if kept[-1] < len(head) - 1 or not least else min(wides[-1], least)
        left = wide - sum(wides[:-1]) - len(GAP) * (len(kept) - 1)
        if tail <= left:
            break
    told = []
    for line in lines:
        words = [cells.padded(line[i], wides[n]) for n, i in enumerate(kept[:-1])]
        last = line[kept[-1]]
        told.append(GAP.join([*words, cells.cut(last, left, "..") if left >= tail else last]))
    return [line.rstrip() for line in told]
