"""`cancel`: of runs by their ids, or of all open runs of a package after a look at them."""

import time
from typing import Any

import click

from qinglong_sql.cli.alone import nobody_drives
from qinglong_sql.cli.exits import Exit, Refused, leave, reported, told_as
from qinglong_sql.cli.longwork import consent, count_text, meter
from qinglong_sql.cli.options import Duration, opened, poke, resolve_run, with_dsn, with_json
from qinglong_sql.cli.runs import request_cancel
from qinglong_sql.cli.spelling import MOST as MOST_KEYS
from qinglong_sql.cli.spelling import did_you_mean
from qinglong_sql.cli.words import Row, clock, complain, print_json, say, table
from qinglong_sql.errors import QinglongError
from qinglong_sql.limits import LOCAL_PAUSE_MS
from qinglong_sql.store import Span, Store

MOST = 10_000  # runs that one call cancels; a repetition takes the next
SHOWN = 20
FOREVER_MS = 2**62


@click.command()
@click.argument("run", metavar="[RUN]...", nargs=-1)
@click.option("--package", metavar="P", help="All open runs of this package.")
@click.option("--workflow", metavar="W", help="With --package: only of this workflow or task.")
@click.option(
    "--status",
    type=click.Choice(["running"]),
    help="With --package: running is what can be cancelled, and what is meant without it.",
)
@click.option(
    "--older-than",
    "age_ms",
    type=Duration(),
    metavar="D",
    help="With --package: only those started longer ago than this: 30m, 2d.",
)
@click.option("--yes", is_flag=True, help="With --package: do it without a question.")
@with_dsn
@with_json
@reported
def cancel(
    run: tuple[str, ...],
    package: str | None,
    workflow: str | None,
    status: str | None,
    age_ms: int | None,
    yes: bool,
    dsn: str,
    as_json: bool,
) -> None:
    """Request that a RUN is cancelled, or several, or all open ones of a package.

    Nothing new starts; what runs is stopped, and the run is cancelled when all of it is gone.
    With --package, the runs are listed first, and without --yes somebody has to agree.
    """
    if bool(run) == (package is not None):
        raise click.UsageError("name a RUN or several, or say which with --package")
    if run and (workflow or status or age_ms or yes):
        raise click.UsageError("--workflow, --status, --older-than and --yes go with --package")
    with opened(dsn, writes=True) as store:
        if package is None:
            chosen = {resolve_run(store, one)["run_id"]: None for one in run}
        else:
            check_named(store, package, workflow)
            found = open_runs(store, package, workflow, age_ms)
            if not found:
                print_json([]) if as_json else tell_none(store, package, workflow, age_ms)
                return
            preview(found)
            consent(yes, f"cancels {count_text(len(found[:MOST]), 'run')}")
            chosen = {row["run_id"]: None for row in found[:MOST]}
        rows = [*requested(store, list(chosen))]
        poke(dsn)
        only = store.read("explain", run_id=rows[0]["run_id"]) if len(run) == 1 else None
        still = [row["run_id"] for row in rows if is_open(row)]
        alone = nobody_drives(store, dsn, still[0]) if still else ""
    if as_json:
        print_json(rows if only is None else {**rows[0], "waits": only})
    else:
        for row in rows:
            say(f"{row['run_id']} {words_of(row)}")
        tell_held(only or [], "and nobody is there to stop it" if alone else "being stopped")
    if alone:
        complain(alone)
    leave(max((row.get("exit", Exit.OK) for row in rows), default=Exit.OK))


def check_named(store: Store, package: str, target: str | None) -> None:
    """Raise Refused for a package or target that never was, with the nearest that is."""
    rows = store.read("package_state", order="package_key", limit=MOST_KEYS, state="active")
    if not store.read("package_state", limit=1, package_key=package):
        near = did_you_mean(package, (row["package_key"] for row in rows))
        raise Refused(f"no package {package!r}{near}")
    if target is None or store.read(
        "target_state", limit=1, package_key=package, target_key=target
    ):
        return
    known = store.read("target_state", order="target_key", package_key=package, limit=MOST_KEYS)
    near = did_you_mean(target, sorted({row["target_key"] for row in known}))
    raise Refused(f"package {package!r} has no workflow or task {target!r}{near}")


def tell_none(store: Store, package: str, target: str | None, age_ms: int | None) -> None:
    """Which runs are on their way to their end, when there is none to cancel any more."""
    ending = open_runs(store, package, target, age_ms, asked=True)
    for row in ending[:SHOWN]:
        say(f"already being cancelled: {row['run_id']}")
    if len(ending) > SHOWN:
        say(f"and {count_text(len(ending) - SHOWN, 'more run', MOST - SHOWN)}")
    if not ending:
        say("no open run of that kind; nothing to cancel")


def open_runs(
    store: Store, package: str, target: str | None, age_ms: int | None, *, asked: bool = False
) -> list[Row]:
    """Open runs, the oldest first, at most MOST and one: those that nobody has asked to cancel
    yet, or those for which somebody has."""
    which: dict[str, Any] = {"package_key": package}
    which["cancel_requested_at_ms"] = Span(0, FOREVER_MS) if asked else None
    if target is not None:
        which["target_key"] = target
    if age_ms is not None:
        which["admitted_at_ms"] = Span(0, int(time.time() * 1000) - age_ms)
    return store.read("open_run", order="admitted_at_ms, run_id", limit=MOST + 1, **which)


def preview(found: list[Row]) -> None:
    """On standard error: what would be cancelled, the oldest first."""
    names = ("run_id", "target_key", "status")
    rows = [[*(row[name] for name in names), clock(row["admitted_at_ms"])] for row in found]
    complain(table(["RUN", "TARGET", "STATUS", "STARTED"], rows[:SHOWN]))
    if len(found) > SHOWN:
        complain(f"and {count_text(len(found) - SHOWN, 'more run', MOST - SHOWN)}")
    if len(found) > MOST:
        complain(f"the oldest {MOST} are cancelled; repeat it for the others")


def requested(store: Store, run_ids: list[str]) -> list[Row]:
    """Ask for each, in a transaction of its own; what one raises is its outcome `refused`."""
    rows = []
    with meter("cancel") as shown:
        for number, run_id in enumerate(run_ids, start=1):
            try:
                rows.append(request_cancel(store, run_id))
            except QinglongError as error:
                told = told_as(error)
                if told is None or len(run_ids) == 1:
                    raise
                rows.append(
                    {"run_id": run_id, "outcome": "refused", "words": told[1], "exit": told[0]}
                )
            shown.part(number, len(run_ids))
            if number < len(run_ids):
                time.sleep(LOCAL_PAUSE_MS / 1000)
    return rows


def words_of(row: Row) -> str:
    if row["outcome"] == "refused":
        return str(row["words"])
    if row["status"] != "running":
        return f"has ended: {row['status']}"
    if row["outcome"] == "already_requested":
        return f"cancellation was already requested ({row['cancel_reason']})"
    return "cancellation requested"


def is_open(row: Row) -> bool:
    return row.get("status") == "running"


def tell_held(waits: list[Row], words: str) -> None:
    held = sorted({row["step_key"] for row in waits if row["waits_for"] in ("report", "lease")})
    if held:
        say(f"still running, {words}: {', '.join(held)}")
