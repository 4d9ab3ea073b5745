"""`schedules`: when triggers fire next, what became of them last, and what a period would fire."""

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import click

from qinglong_sql.cli.cells import room
from qinglong_sql.cli.cron import instant_ms
from qinglong_sql.cli.exits import Refused, reported
from qinglong_sql.cli.options import opened, with_dsn, with_json
from qinglong_sql.cli.reasons import short
from qinglong_sql.cli.words import Row, complain, moment, now_ms, print_json, say, table, with_utc
from qinglong_sql.cron import CronFault
from qinglong_sql.limits import CRON_GRACE_MS
from qinglong_sql.store import Store

MOST = 10_000  # fires of a period
NEXT = 5
OUTCOMES = {
    "misfire": "skipped: too late",
    "overlap": "skipped: an earlier run was open",
}


@click.command()
@click.argument("package", required=False)
@click.argument("trigger", required=False)
@click.option(
    "--between", nargs=2, metavar="A B",
    help="What fires from A until before B instead, such as 2026-03-28 2026-03-30T06:00Z; without"
    " an offset they are UTC.",
)  # fmt: skip
@with_utc
@with_dsn
@with_json
@reported
def schedules(
    package: str | None,
    trigger: str | None,
    between: tuple[str, str] | None,
    utc: bool,
    dsn: str,
    as_json: bool,
) -> None:
    """Show when triggers fire next, what became of them last, and what is in their way.

    A trigger that nobody has fired is overdue: then the times are those from now on.

    With --between, what a period would fire: by the calendar alone, without pauses in it, misfires
    or overlaps.
    """
    with opened(dsn) as store:
        found = triggers_of(store, package, trigger)
        blocked = blocked_of(store)
    if between is not None:
        first, past = (instant_ms(text, "UTC", "--between") for text in between)
        if past <= first:
            raise click.BadParameter("B is not later than A", param_hint="--between")
        show_period(found, first, past, utc=utc, as_json=as_json)
        return
    now = now_ms()
    rows = [answer_of(row, blocked.get((row["package_key"], row["trigger_key"]), []), now)
            for row in found]  # fmt: skip
    if as_json:
        print_json({"schedules": rows})
        return
    show(found, rows, now, utc=utc)


def triggers_of(store: Store, package: str | None, trigger: str | None) -> list[Row]:
    """The triggers that their packages have, of one package or one alone. Raises Refused."""
    chosen: dict[str, Any] = {"package_key": package} if package else {}
    chosen |= {"trigger_key": trigger} if trigger else {}
    rows = store.read("trigger_state", order="package_key, trigger_key", **chosen)
    found = [row for row in rows if row["state"] != "withdrawn"]
    if chosen and not found:
        name = f"no trigger {trigger} in package {package}" if trigger else ""
        raise Refused(f"{name or f'package {package} has no triggers'}; `schedules` lists all")
    return found


def blocked_of(store: Store) -> dict[tuple[str, str], list[Row]]:
    """What stands between a trigger and its next run, by package and trigger."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in store.read("schedule_blocked", order="package_key, trigger_key, since_ms"):
        found.setdefault((row["package_key"], row["trigger_key"]), []).append(row)
    return found


def answer_of(row: Row, blocked: list[Row], now: int) -> dict[str, Any]:
    """One trigger as `--json` has it."""
    names = ("package_key", "trigger_key", "state", "cron", "tz", "kind", "target_key", "misfire",
             "overlap")  # fmt: skip
    last = None
    if row["last_outcome"]:
        last = {
            "scheduled": iso(row["last_scheduled_at_ms"]),
            "outcome": row["last_outcome"],
            "run_id": row["last_run_id"],
            "run_status": row["last_run_status"],
        }
    overdue_ms = overdue_of(row, now)
    return {
        **{name: row[name] for name in names},
        "overdue": None if overdue_ms is None else iso(overdue_ms),
        "next": [iso(at_ms) for at_ms in itertools.islice(next_of(row, now), NEXT)],
        "last": last,
        "waits": [
            {name: one[name] for name in ("waits_for", "waits_on", "since_ms", "resolved_by")}
            for one in blocked
        ],
    }


def overdue_of(row: Row, now: int) -> int | None:
    """Since when an active trigger should have fired; None within the grace of what is on time."""
    first = row["next_fire_at_ms"]
    late = row["state"] == "active" and first is not None and first < now - CRON_GRACE_MS
    return first if late else None


def next_of(row: Row, now: int) -> Iterator[int]:
    """When an active trigger fires next; nothing when it cannot be told.

    From its cursor on, or from now on when that is long over: of what was missed `fire_once` makes
    one run, and `skip` none.
    """
    from qinglong_sql.cron_fire import fires

    if row["state"] != "active":
        return
    first = row["next_fire_at_ms"]
    if overdue_of(row, now) is not None:
        first = now
    elif first is not None:
        yield first
    try:
        after = row["since_ms"] - 1 if first is None else first
        yield from (fire.at_ms for fire in fires(row["cron"], row["tz"], after))
    except (CronFault, KeyError):
        return


def show(found: list[Row], rows: list[dict[str, Any]], now: int, *, utc: bool) -> None:
    if not found:
        say("no package has a trigger")
        return
    lines = []
    for row, told in zip(found, rows, strict=True):
        at_ms = next(next_of(row, now), None)
        waits = [waits_words(one) for one in told["waits"]]
        if (late_ms := overdue_of(row, now)) is not None and not waits:
            waits = [f"who fires it: overdue since {moment(late_ms, now, utc=utc)}"]
        lines.append([
            f"{row['package_key']}/{row['trigger_key']}",
            row["cron"],
            row["tz"],
            row["state"] if at_ms is None else moment(at_ms, now, utc=utc),
            last_words(row, now, utc=utc),
            "; ".join(waits),
        ])  # fmt: skip
    say(table(["TRIGGER", "CRON", "ZONE", "NEXT", "LAST", "WAITS FOR"], lines, wide=room(),
              drop=("ZONE",)))  # fmt: skip


def last_words(row: Row, now: int, *, utc: bool) -> str:
    """What became of the last occurrence."""
    if row["last_outcome"] is None:
        return "-"
    at = moment(row["last_scheduled_at_ms"], now, utc=utc)
    if row["last_outcome"] == "admitted":
        how = f"{short(row['last_run_id'])} {row['last_run_status'] or 'purged'}"
    else:
        how = OUTCOMES[row["last_outcome"]]
    return f"{at} {how}"


def waits_words(one: dict[str, Any]) -> str:
    match one["waits_for"]:
        case "resume":
            return "paused: trigger resume"
        case "fault":
            return f"raised: {one['waits_on']}"
        case _:
            return f"the end of {short(one['waits_on'])}"


def show_period(found: list[Row], first: int, past: int, *, utc: bool, as_json: bool) -> None:
    """What the active triggers would fire in [first, past), in order. Raises Refused."""
    from qinglong_sql.cron_fire import fires

    fired: list[tuple[int, str, str, str]] = []
    for row in found:
        if row["state"] != "active":
            continue
        key = (row["package_key"], row["trigger_key"], row["target_key"])
        try:
            for fire in fires(row["cron"], row["tz"], first - 1):
                if fire.at_ms >= past:
                    break
                fired.append((fire.at_ms, *key))
                if len(fired) > MOST:
                    raise Refused(f"more than {MOST} fires: name a package, or a shorter period")
        except (CronFault, KeyError) as fault:
            complain(f"left out: {key[0]}/{key[1]}: {fault}")
    fired.sort()
    if as_json:
        names = ("package_key", "trigger_key", "target_key")
        print_json({
            "fires": [
                {"at": iso(at_ms), **dict(zip(names, key, strict=True))} for at_ms, *key in fired
            ]
        })  # fmt: skip
        return
    if not fired:
        say("nothing fires then")
        return
    now = now_ms()
    say(table(
        ["AT", "TRIGGER", "STARTS"],
        [[moment(at_ms, now, utc=utc), f"{package}/{key}", target]
         for at_ms, package, key, target in fired],
        wide=room(),
    ))  # fmt: skip


def iso(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
