"""`cron next`: when an expression fires, as a trigger would, clock changes included."""

import itertools
from datetime import UTC, datetime, timedelta

import click

from qinglong_sql.cli.cells import room
from qinglong_sql.cli.exits import reported
from qinglong_sql.cli.options import with_json
from qinglong_sql.cli.words import complain, now_ms, print_json, say, table
from qinglong_sql.cron import CronFault, check_cron, check_timezone, plain_cron, timezone_warning
from qinglong_sql.zones import TZ_RELEASE, zone_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOST = 1_000
FORM = (
    "write minute hour day-of-month month day-of-week, such as '30 2 * * *',"
    " or six fields with seconds first, or @daily and the like"
)

OTHER_DAY = "name a day that one of them has"


@click.group("cron")
def cron_command() -> None:
    """Ask what a cron expression means; no database is needed."""


def good_expression(ctx: click.Context, param: click.Parameter, words: tuple[str, ...]) -> str:
    """The one word that is an expression. Raises UsageError for options nobody knows, and more."""
    for word in words:
        if word.startswith("--"):
            raise click.NoSuchOption(word.partition("=")[0], ctx=ctx)
    if len(words) > 1:
        raise click.BadParameter(f"it is {len(words)} words: put quotes around it, '30 2 * * *'")
    try:
        check_cron(words[0])
    except CronFault as fault:
        way = OTHER_DAY if "never fires" in str(fault) else FORM
        raise click.BadParameter(f"{fault}; {way}") from None
    return words[0]


def good_zone(ctx: click.Context, param: click.Parameter, name: str) -> str:
    try:
        check_timezone(name)
    except CronFault as fault:
        raise click.BadParameter(
            f"{fault}; `--tz` completes names, such as Europe/Berlin"
        ) from None
    return name


# an expression may begin with a stroke: it is to be refused as one, and not as an option
@cron_command.command("next", context_settings={"ignore_unknown_options": True})
@click.argument("expression", metavar="EXPR", nargs=-1, required=True, callback=good_expression)
@click.option(
    "--tz", metavar="ZONE", default="UTC", show_default=True, callback=good_zone,
    help="The IANA zone of the expression.",
)  # fmt: skip
@click.option(
    "--after", metavar="ISO",
    help="Fires later than this, such as 2026-03-28T12:00:00Z; without an offset it is a time in"
    " ZONE. Default: now.",
)  # fmt: skip
@click.option(
    "--count", type=click.IntRange(1, MOST), default=5, show_default=True, help="How many fires."
)
@with_json
@reported
def cron_next(expression: str, tz: str, after: str | None, count: int, as_json: bool) -> None:
    """Print when EXPR fires next.

    A fixed time that the clock jumps over fires once, at the first instant after the jump, and one
    in an hour that comes twice fires the first time only. Times with a star for the minute or the
    hour follow real time. Exit 2 when EXPR or ZONE is refused.
    """
    from qinglong_sql.cron_fire import fires

    after_ms = now_ms() if after is None else instant_ms(after, tz)
    found = list(itertools.islice(fires(expression, tz, after_ms), count))
    if warning := timezone_warning(tz):
        complain(f"note: {warning}")
    if as_json:
        print_json({"next": [f"{fire.at:%Y-%m-%dT%H:%M:%SZ}" for fire in found]})
        return
    rows = []
    for fire in found:
        local = fire.at.astimezone(zone_of(tz))
        told = note(expression, local, fire.missed)
        rows.append([f"{local:%a %Y-%m-%d %H:%M:%S %z}", f"{fire.at:%Y-%m-%d %H:%M:%S}", told])
    say(f"{plain_cron(expression)} in {tz}, by tzdata {TZ_RELEASE}")
    if rows:
        say(table(["LOCAL", "UTC", "NOTE"], rows, wide=room()))
    else:
        say("it does not fire after that")


def instant_ms(text: str, tz: str, option: str = "--after") -> int:
    """Epoch milliseconds of a time in ISO 8601. Raises BadParameter."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no time: write 2026-03-28T12:00:00Z, or 2026-03-28", param_hint=option
        ) from None
    at = at if at.tzinfo else at.replace(tzinfo=zone_of(tz))
    return (at - EPOCH) // timedelta(milliseconds=1)


def note(expression: str, local: datetime, missed: datetime | None) -> str:
    """What a clock change has to do with a fire; empty when nothing."""
    from qinglong_sql.cron_fire import is_fixed

    if missed is not None:
        time = f"{missed:%H:%M:%S}".removesuffix(":00")
        return f"moved: the clock jumps over {time}, this is the first instant after it"
    if local.utcoffset() == local.replace(fold=1 - local.fold).utcoffset():
        return ""
    if is_fixed(expression):
        return "this time comes twice: fires the first time only"
    return f"this time comes twice: the {'second' if local.fold else 'first'} time"
