"""The list of runs, newest first, page by page."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from qinglong_sql.cli import cells
from qinglong_sql.cli.exits import OF_STATUS, reported
from qinglong_sql.cli.options import opened, resolve_run, same_dsn, with_dsn, with_json
from qinglong_sql.cli.reasons import short
from qinglong_sql.cli.words import (
    Row,
    moment,
    now_ms,
    one_zone,
    plain_signs,
    print_json,
    say,
    sign_of,
    span,
    table,
    with_color,
    with_utc,
    zone,
)
from qinglong_sql.duration import DurationFault, read_duration
from qinglong_sql.store import Span, Store

ORDER = "admitted_at_ms desc, run_id desc"
PAGE = 500
AGES_MS = 400 * 366 * 86_400_000
DAYS = {"today": 0, "yesterday": 1}
FOREVER_MS = 1 << 62
RETRY = ("↻", "r")
TARGETS = 64  # more revisions than this are not asked one by one
WHEN = "A duration such as 2d or 1h30m, today, yesterday, or a date (and time), in your zone."


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which runs: times are epoch milliseconds, `past_ms` is not among them."""

    status: str | None
    package: str | None
    target: str | None
    first_ms: int
    past_ms: int

    def equals(self) -> dict[str, object]:
        chosen = {"package_key": self.package, "target_key": self.target}
        if self.status != "running":
            chosen["status"] = self.status
        return {name: value for name, value in chosen.items() if value is not None}

    def view(self) -> str:
        """Open runs have an index of their own."""
        return "open_run" if self.status == "running" else "run_state"


@click.command()
@click.option(
    "--status",
    type=click.Choice(["running", *OF_STATUS], case_sensitive=False),
    help="Only runs with this status.",
)
@click.option("--package", help="Only runs of this package.")
@click.option("--workflow", metavar="WORKFLOW|TASK", help="Only runs of this workflow or task.")
@click.option("--since", metavar="WHEN", help=f"Only runs started since then. {WHEN}")
@click.option("--until", metavar="WHEN", help="Only runs started before; a date means its end.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=20,
    show_default=True,
    help="How many, newest first.",
)
@click.option("--after", metavar="RUN", help="Go on behind this run, the last of the page before.")
@click.option("--all", "every", is_flag=True, help="All of them; with --json, one a line.")
@with_utc
@with_color
@with_dsn
@with_json
@reported
def runs(
    status: str | None,
    package: str | None,
    workflow: str | None,
    since: str | None,
    until: str | None,
    limit: int,
    after: str | None,
    every: bool,
    utc: bool,
    dsn: str,
    as_json: bool,
) -> None:
    """List runs, newest first.

    A page stays what it is while other runs start; the last line says how to see the next one.
    """
    now = now_ms()
    first = 0 if since is None else read_moment(since, now, utc=utc)
    past = FOREVER_MS if until is None else read_moment(until, now, utc=utc, to_end=True)
    wanted = Wanted(status, package, workflow, first, past)
    with opened(dsn) as store:
        behind = None if after is None else resolve_run(store, after)
        if every:
            everything(store, wanted, behind, utc, as_json)
            return
        rows = page(store, wanted, behind, limit + 1)
    more, rows = len(rows) > limit, rows[:limit]
    if as_json:
        print_json(rows)
        return
    if not rows:
        say("no runs" if behind is None else "no more runs")
        return
    say(run_table(rows, now, utc))
    if any(row["retry_of_run_id"] for row in rows):
        say(f"{RETRY[plain_signs()]} retries another run: `qinglong-sql show RUN` says which")
    if more:
        told = {"status": status, "package": package, "workflow": workflow, "since": since,
                "until": until, "limit": limit if limit != 20 else None}  # fmt: skip
        options = [f" --{name} {shlex.quote(str(v))}" for name, v in told.items() if v is not None]
        utc_too = " --utc" if utc else ""
        last = short(rows[-1]["run_id"])
        say(f"more: qinglong-sql runs{''.join(options)}{utc_too} --after {last}{same_dsn(dsn)}")


def everything(store: Store, wanted: Wanted, behind: Row | None, utc: bool, as_json: bool) -> None:
    """All pages one after the other, holding one at a time."""
    seen = False
    for rows in pages(store, wanted, behind):
        if as_json:
            for row in rows:
                print_json(row)
        else:
            lines = run_table(rows, now_ms(), utc).split("\n", 1)
            say(lines[1] if seen else "\n".join(lines))
        seen = True
    if not seen and not as_json:
        say("no runs")


def pages(store: Store, wanted: Wanted, behind: Row | None) -> Iterator[list[Row]]:
    while rows := page(store, wanted, behind, PAGE):
        yield rows
        behind = rows[-1]


def page(store: Store, wanted: Wanted, behind: Row | None, limit: int) -> list[Row]:
    """Up to `limit` runs right behind one, by (admitted_at_ms, run_id), newest first.

    By the index of the targets when a package or a workflow is named, else by that of all runs or
    of the open ones.
    """
    targets = targets_of(store, wanted)
    if targets is None:
        return by_index(store, wanted, behind, limit, wanted.equals())
    equals = {name: value for name, value in wanted.equals().items() if name == "status"}
    found = [
        row
        for target in targets
        for row in by_index(store, wanted, behind, limit, {**equals, "target_id": target})
    ]
    found.sort(key=lambda row: (row["admitted_at_ms"], row["run_id"]), reverse=True)
    return found[:limit]


def by_index(
    store: Store, wanted: Wanted, behind: Row | None, limit: int, equals: dict[str, Any]
) -> list[Row]:
    """A page of one index: what shares the instant of the last run, then what is older."""
    past, found = wanted.past_ms, []
    if behind is not None:
        at = behind["admitted_at_ms"]
        past = min(past, at)
        if wanted.first_ms <= at < wanted.past_ms:
            same = {"admitted_at_ms": at, "run_id": Span("", behind["run_id"])}
            found = store.read(wanted.view(), order=ORDER, limit=limit, **same, **equals)
    if len(found) < limit and wanted.first_ms < past:
        older = {"admitted_at_ms": Span(wanted.first_ms, past)}
        left = limit - len(found)
        found += store.read(wanted.view(), order=ORDER, limit=left, **older, **equals)
    return found


def targets_of(store: Store, wanted: Wanted) -> list[str] | None:
    """The ids of what was named, in every generation; None when runs are not looked up by them."""
    if wanted.status == "running" or not (wanted.package or wanted.target):
        return None
    named = {"package_key": wanted.package, "target_key": wanted.target}
    equals = {name: value for name, value in named.items() if value is not None}
    rows = store.read("target_state", order="target_id", limit=TARGETS * 8, **equals)
    ids = [row["target_id"] for row in rows if "/" not in row["target_key"]]
    return ids if len(ids) <= TARGETS and len(rows) < TARGETS * 8 else None


def run_table(rows: list[Row], now: int, utc: bool) -> str:
    """Runs as a table: whole ids where they fit, else enough of them to name a run.

    On a narrow screen the package goes into the title when it is one, and ids become shorter, so
    that how long a run took still fits.
    """
    same, wide = one_zone([now, *(row["admitted_at_ms"] for row in rows)], utc=utc), cells.room()
    started = f"STARTED ({zone(now, utc=utc)})" if same else "STARTED"
    packages = {row["package_key"] for row in rows}
    for id_cells, narrow in ((99, False), (12, False), (12, True), (8, True)):
        alone = narrow and len(packages) == 1
        head = ["RUN", "STATUS", started, "TOOK", f"OF {rows[0]['package_key']}" * alone or "OF"]
        lines = [
            [
                row["run_id"][:id_cells],
                f"{sign_of(row['status'])} {row['status']}",
                moment(row["admitted_at_ms"], now, utc=utc, offset=not same),
                span(row["admitted_at_ms"], row["finished_at_ms"]),
                f"{row['package_key']}/" * (not alone) + row["target_key"] + mark_of(row),
            ]
            for row in rows
        ]
        kept = [n for n in range(len(head)) if not (narrow and head[n] == started)]
        told = table([head[n] for n in kept], [[line[n] for n in kept] for line in lines])
        if max(map(cells.cells, told.split("\n"))) <= wide:
            return told
    lines = [[row["run_id"][:12], *line[1:]] for row, line in zip(rows, lines, strict=True)]
    return table(head, lines, wide=wide, drop=(started, "TOOK"))


def mark_of(row: Row) -> str:
    """What a run has behind its name when it is the retry of another one."""
    return f" {RETRY[plain_signs()]}" if row["retry_of_run_id"] else ""


def read_moment(text: str, now: int, *, utc: bool = False, to_end: bool = False) -> int:
    """Epoch milliseconds of a duration before now, or of an ISO date or time.

    Without an offset it is of the user's zone, or of UTC. `to_end`: a date alone, as today and
    yesterday are, means its end. Raises BadParameter for anything else.
    """
    if (days := DAYS.get(text.lower())) is not None:
        at = datetime.fromtimestamp(now / 1000, UTC)
        today = at if utc else at.astimezone()
        text = str(today.date() - timedelta(days=days))
    try:
        return now - read_duration(text, AGES_MS)
    except DurationFault as fault:
        if text[:1].isdigit() and text[-1:] in "smhd" and "-" not in text:
            raise click.BadParameter(f"{text!r}: {fault}") from None
    try:
        at = datetime.fromisoformat(text)
        if to_end and len(text) <= len("2026-01-31"):
            at += timedelta(days=1)
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC) if utc else at.astimezone()
        return int(at.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is no time: write 2d, 90m, yesterday, 2026-01-31 or '2026-01-31 18:00'"
        ) from None
