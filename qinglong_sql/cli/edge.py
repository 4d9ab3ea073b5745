"""`edge`: the long-running process of one machine, on SQLite."""

import os
from dataclasses import replace
from pathlib import Path

import click

from qinglong_sql.cli.exits import BadFile, Exit, Refused, leave, reported, told_as
from qinglong_sql.cli.interrupts import Interrupts
from qinglong_sql.cli.options import Duration, state_folder, with_dsn, with_grace, with_lease
from qinglong_sql.edge import Edge
from qinglong_sql.edge_log import Log
from qinglong_sql.edge_setting import SETTINGS, only_one
from qinglong_sql.edge_status import may_keep
from qinglong_sql.store import SQLITE
from qinglong_sql.store.sqlite import open_sqlite

DRAIN_MAX_MS = 60 * 60 * 1000
LEAVE_WITHIN_S = 8.0


@click.command()
@click.option(
    "--packages",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="A folder of package files (*.yaml, *.yml): published now and whenever one changes.",
)
@click.option(
    "--profile",
    type=click.Choice(list(SETTINGS)),
    default="edge",
    show_default=True,
    help="edge: little memory, no write-ahead log, looks every 5 s;"
    " standalone: a write-ahead log, looks every second.",
)
@click.option(
    "--slots",
    type=click.IntRange(1, 1024),
    help="Steps at once; default: 4, with standalone one a processor and at least 4.",
)
@with_lease("How long a step goes on when this process is gone, until another one takes it over.")
@with_grace
@click.option(
    "--drain",
    "drain_ms",
    type=Duration(DRAIN_MAX_MS, none=True),
    help="How long steps that run may take to end after TERM; default: 5s, with standalone 10s.",
)
@click.option(
    "--status-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep what `status` is told of this process in a JSON file as well.",
)
@click.option(
    "--keep",
    "keep_ms",
    type=Duration(),
    help="Purge runs that ended longer ago than this, such as 30d; looks once an hour.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How the lines on standard error look.",
)
@click.option("--quiet", is_flag=True, help="Say nothing but faults.")
@with_dsn
@reported
def edge(
    packages: Path | None,
    profile: str,
    slots: int | None,
    lease_ms: int,
    grace_ms: int,
    drain_ms: int | None,
    status_file: Path | None,
    keep_ms: int | None,
    log_format: str,
    quiet: bool,
    dsn: str,
) -> None:
    """Serve one SQLite database until stopped: publish, drive runs, execute steps.

    One process for a router, a NAS, a server; one a database. `start`, `retry` and `cancel` wake
    it. When nothing is due it wakes once in 5 s (standalone: 1 s) and writes nothing.

    A package file is published when it is new or changed, has been left alone for a second, and
    checks. One that does not is reported, once a change, and what was active stays active. So does
    the package of a file that goes, and one that two files define: neither of them is published.
    DIR has to be there at the start (exit 2); when it goes later, that is told, and looked for.

    TERM or Ctrl-C: nothing new is started, and what runs has --drain to end. What still runs then
    goes on: an edge that is started again within --lease-ms takes it over as if nothing had been.
    If none comes, it is killed at the end of its lease, and the next one records it as lost. A
    second TERM or Ctrl-C kills what runs at once; those steps fail.
    """
    if not dsn.startswith(SQLITE):
        raise Refused(
            "an edge keeps its database in a SQLite file of this machine; on PostgreSQL"
            " `qinglong-sql run FILE` drives runs, as many of them at once as you like"
        )
    if packages is not None and not packages.is_dir():  # it may go later, and come again
        raise BadFile(f"{packages}: no such folder")
    path, folder = Path(dsn.removeprefix(SQLITE)), state_folder(dsn)
    if status_file and not may_keep(status_file, path):
        raise Refused(f"{status_file} is there already, and is no status of an edge")
    known = SETTINGS[profile]
    setting = replace(
        known, slots=slots or known.slots, drain_ms=known.drain_ms if drain_ms is None else drain_ms
    )
    log = Log("json" if log_format == "json" else "text", quiet)
    # Whatever is heard from here on ends it in order: what is made below is never left half way.
    with Interrupts(None, None, LEAVE_WITHIN_S) as signals, only_one(folder):
        store = open_sqlite(path, create=True, profile=setting.profile)
        try:
            if store.profile == "standalone" != profile:
                log.say("note", "others use the database: it keeps its write-ahead log for now")
            served = Edge(
                store,
                folder,
                setting,
                log,
                words_of,
                lease_ms=lease_ms,
                grace_ms=grace_ms,
                packages=packages and packages.absolute(),
                status_file=status_file and status_file.absolute(),
                keep_ms=keep_ms,
            )
            killed = serve(served, signals)
        finally:
            store.close()
        signals.over()
    leave(Exit.KILLED if killed else Exit.OK)


def serve(served: Edge, signals: Interrupts) -> bool:
    """Serve until interrupts end it, also those from before; whether executions were killed."""

    def out() -> None:
        try:
            served.leave()
        finally:
            os._exit(Exit.KILLED)

    served.interrupts = lambda: signals.count
    signals.tell(served.wake, out)
    try:
        served.serve()
    finally:
        signals.tell()
        served.close()
    return served.killed


def words_of(error: BaseException) -> str:
    """An error in words for a log that says already that it is tried again."""
    found = told_as(error)
    if found is None:
        return f"{type(error).__name__}: {error}"
    return found[1].removeprefix("not ready: ").removesuffix("; try again")
