"""`import-crontab`: a crontab becomes a package file."""

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from qinglong_sql.cli.exits import BadFile, Exit, Refused, leave, reported
from qinglong_sql.cli.options import with_json
from qinglong_sql.cli.words import complain, print_json, say_bytes
from qinglong_sql.cron import CronFault, check_timezone
from qinglong_sql.crontab import Crontab, Told, read_crontab
from qinglong_sql.crontab_file import TooLarge, package_text
from qinglong_sql.limits import KEY_CHARS, KEY_PATTERN
from qinglong_sql.whole_file import write_whole
from qinglong_sql.zones import zone_names

FIRED_BY = (
    "published triggers fire where an edge runs: publish it there, and take these lines out of the"
    " crontab, or they run twice"
)
READ_BYTES = 4 * 1024 * 1024
SYSTEM_FILES = re.compile(r"/etc/(crontab|anacrontab|cron\.d/.*)")


def known_zone(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    if name is not None:
        try:
            check_timezone(name)
        except CronFault as fault:
            raise click.BadParameter(str(fault)) from None
    return name


def valid_key(ctx: click.Context, param: click.Parameter, key: str) -> str:
    if not re.fullmatch(KEY_PATTERN, key):
        raise click.BadParameter(f"up to {KEY_CHARS} of A-Z a-z 0-9 _ . - and no . or - first")
    return key


@click.command("import-crontab")
@click.argument("file", type=click.Path(allow_dash=True, readable=False, path_type=Path))
@click.option(
    "--package",
    default="crontab",
    show_default=True,
    metavar="KEY",
    callback=valid_key,
    help="Key of the package.",
)
@click.option(
    "--tz",
    metavar="ZONE",
    callback=known_zone,
    help="Zone of the times, unless CRON_TZ says one; default: this machine's.",
)
@click.option(
    "--cwd",
    metavar="DIR",
    help="Folder where commands start, unless HOME says one; default: the file's.",
)
@click.option(
    "--system/--no-system",
    default=None,
    help="Lines name a user before the command, as in /etc/crontab; default: by their look.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the package there and not to standard output.",
)
@click.option("--force", is_flag=True, help="Let --output replace a file.")
@with_json
@reported
def import_crontab(
    file: Path,
    package: str,
    tz: str | None,
    cwd: str | None,
    system: bool | None,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Turn a crontab into a package file.

    Each line of times and a command becomes a task with a trigger: five fields, Qinglong's six with
    seconds first, or @hourly to @yearly. What cannot be carried over is told, with its line, on
    standard error and in the package file. FILE `-` is standard input:
    `crontab -l | qinglong-sql import-crontab -`.

    Exit codes: 0 all is carried over, 1 something is left out, 2 there is no package: FILE cannot
    be read, has no job, or is too large.
    """
    if cwd is not None and not cwd.strip():
        raise click.BadParameter("it is empty", param_hint="--cwd")
    if output and output.exists() and file.exists() and output.samefile(file):
        raise Refused(f"{output} is the crontab itself: choose another name")
    raw = read_file(file)
    if system is None and SYSTEM_FILES.fullmatch(os.path.abspath(file)):  # noqa: PTH100
        system = True
    zone, remark = (tz, "") if tz is not None else machine_zone()
    crontab = read_crontab(raw, tz=zone, system=system, cwd=cwd)
    first = [Told((), "", FIRED_BY)] if crontab.jobs else []
    if remark and any(job.tz == zone for job in crontab.jobs):
        first.append(Told((), "", remark))
    crontab = Crontab(crontab.jobs, crontab.left_out, (*first, *crontab.notes))
    text = ""
    if crontab.jobs:
        source = "standard input" if str(file) == "-" else file.name
        try:
            text = package_text(crontab, package=package, source=source)
        except TooLarge as error:
            raise BadFile(f"{file}: {error}") from None
        if output is not None:
            write_file(output, text, force=force)
    tell(crontab, text if output is None else "", as_json=as_json)
    if not crontab.jobs:
        raise BadFile(f"{file}: no line of it could become a job, so there is no package")
    if crontab.left_out:
        leave(Exit.FAILED)


def tell(crontab: Crontab, text: str, *, as_json: bool) -> None:
    """The package, and on standard error what is to be known about it."""
    if as_json:
        print_json({
            "package": text or None,
            "jobs": len(crontab.jobs),
            "left_out": list(map(_as_json, crontab.left_out)),
            "notes": list(map(_as_json, crontab.notes)),
        })  # fmt: skip
        return
    if text:
        say_bytes(text.encode())  # a package file is UTF-8, whatever the locale
    for told in crontab.left_out:
        complain(f"left out: {told.words()}")
    for told in crontab.notes:
        complain(f"note: {told.words()}")
    jobs = len(crontab.jobs)
    left = f"{len(crontab.left_out)} left out" if crontab.left_out else "nothing left out"
    complain(f"{jobs} job{'s' * (jobs != 1)} carried over, {left}")


def _as_json(told: Told) -> dict[str, Any]:
    return {"lines": list(told.lines), "shown": told.shown, "why": told.why}


def read_file(file: Path) -> bytes:
    """The crontab's bytes. Raises BadFile."""
    try:
        if str(file) == "-":
            raw = sys.stdin.buffer.read(READ_BYTES + 1) if sys.stdin is not None else b""
        else:
            with file.open("rb") as opened:
                raw = opened.read(READ_BYTES + 1)
    except OSError as error:
        raise BadFile(f"{file}: {error.strerror or error}") from error
    if len(raw) > READ_BYTES:
        raise BadFile(f"{file}: larger than {READ_BYTES >> 20} MiB: this is no crontab")
    return raw


def write_file(path: Path, text: str, *, force: bool) -> None:
    """Write a file that only its owner reads, since variables may be secrets; whole or not at all.

    A pipe or /dev/stdout is written through. Raises Refused when a file is there already, unless
    forced, and NoFile for anything else.
    """
    try:
        write_whole(path, text.encode(), replace=force, mode=0o600, streams=True)
    except FileExistsError:
        raise Refused(f"{path} is there already; --force replaces it") from None


def machine_zone() -> tuple[str, str]:
    """The zone of this machine, and words about where it comes from."""
    candidates = [os.environ.get("TZ", "").removeprefix(":")]
    with suppress(OSError):
        candidates.append(str(Path("/etc/localtime").readlink()).rpartition("zoneinfo/")[2])
    with suppress(OSError, ValueError):
        candidates.append(Path("/etc/timezone").read_text(encoding="ascii").strip())
    for name in candidates:
        if name in zone_names():
            return name, f"times are in {name}, the zone of this machine: --tz says another"
    return "UTC", "the zone of this machine is not known, times are taken as UTC: --tz says another"
