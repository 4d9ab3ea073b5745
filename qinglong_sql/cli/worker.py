"""`worker`: the process of a machine that executes steps of a cluster; `drain` and `undrain`."""

import importlib.util
import os
from pathlib import Path

import click

from qinglong_sql.cli.exits import BadFile, Exit, Refused, leave, reported, told_as
from qinglong_sql.cli.interrupts import Interrupts
from qinglong_sql.cli.options import opened, same_dsn, with_dsn, with_json
from qinglong_sql.cli.serving import Words, place_of, secret_of, words_without
from qinglong_sql.cli.sessions import SESSIONS
from qinglong_sql.cli.setting_options import (
    Option,
    with_config,
    with_print_settings,
    with_settings,
)
from qinglong_sql.cli.spelling import no_worker
from qinglong_sql.cli.words import print_json, say
from qinglong_sql.control_log import Log
from qinglong_sql.errors import NotReady, Unknown
from qinglong_sql.port import Port, Shut
from qinglong_sql.setting_file import SettingFault
from qinglong_sql.tending import Ending, Taken, Tending
from qinglong_sql.worker_parts import through_ingress, with_login
from qinglong_sql.worker_settings import PREFIX, WorkerSettings, load, shown

LEAVE_WITHIN_S = 8.0

OPTIONS: tuple[Option, ...] = (
    ("ingress", "URL", f"The workers' door: https://host:port; also from {PREFIX}INGRESS."),
    ("certificate", "FILE", "This worker's certificate, in PEM; its subject is its name."),
    ("key", "FILE", "Its key, in PEM, without a passphrase."),
    ("ca", "FILE", "Whose certificate the ingress has to show, in PEM."),
    ("dsn", "DSN", "Without an ingress: the database, for a login of ql_worker; also from"
     f" {PREFIX}DSN or QINGLONG_DSN."),
    ("password-file", "FILE", "A file that holds the login's password and nothing else."),
    ("name", "NAME", "Without an ingress: who this worker is; one process a name."),
    ("slots", "N", "Steps at once. Default: one a processor, at least 4."),
    ("lease", "TIME", "How long a step goes on without a word of this process, 5s to 5m; what is"
     " cancelled is heard of within a third. Default: 30s."),
    ("grace", "TIME", "Between TERM and KILL of a step that is to stop. Default: 10s."),
    ("drain-timeout", "TIME", "For steps that run, after TERM. Default: 30s."),
    ("state", "DIR", "The folder of what it runs. Default: remote-NAME in QINGLONG_STATE_DIR or"
     " .qinglong."),
    ("base-dir", "DIR", "Where steps run, in place of the folders of their packages."),
)  # fmt: skip


@click.group("worker", invoke_without_command=True)
@with_config(PREFIX)
@click.option(
    "--queue", multiple=True, metavar="Q", help="What it takes work from; may be repeated."
)
@with_settings(OPTIONS)
@with_print_settings
@reported
def worker_command(
    config: Path | None,
    queue: tuple[str, ...],
    print_settings: bool,
    **flags: str | None,
) -> None:
    """Execute steps of a cluster on this machine, through an ingress or with a login.

    With --ingress it needs a certificate of `qinglong-sql ca issue` and an address, and nothing of
    the database; its name is the certificate's subject. With --dsn it needs a login of ql_worker.
    Control processes decide what is due; see `qinglong-sql control`.

    Settings come from the file of --config, then from the environment (QINGLONG_WORKER_SLOTS for
    slots, and so on), then from the options here; the later one wins. One process a name and a
    folder: who comes second on another machine takes the name over, and the first one leases no
    more, ends what it runs, and exits 5.

    TERM or Ctrl-C: it leases nothing more, hands back what has not begun, and gives what runs
    --drain-timeout to end; exit 0. What still runs then goes on: a worker of the same folder that
    is back within --lease takes it over; else it is killed at its lease's end. A second TERM or
    Ctrl-C kills what runs at once; exit 130. When the door is away it waits for it; what runs
    meanwhile goes on until its lease ends.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    try:
        settings, origins = load(config, {**flags, "queue": queue or None})
    except SettingFault as error:
        raise BadFile(str(error)) from None
    if print_settings:
        say(shown(settings, origins))
        return
    for name in ("cryptography",) if settings.ingress else ("psycopg",):
        if importlib.util.find_spec(name) is None:
            raise NotReady(f"{name} is not installed: pip install 'qinglong-sql[worker]'")
    leave(serve(settings))


def serve(settings: WorkerSettings) -> Exit:
    """Be a worker until it is over; how it ended."""
    if settings.base_dir and not settings.base_dir.is_dir():
        raise BadFile(f"{settings.base_dir}: no such folder")
    log = Log(settings.log_format, settings.log_level)
    # Whatever is heard from here on ends it in order.
    with Interrupts(None, None, LEAVE_WITHIN_S) as signals:
        try:
            words = words_without(settings.dsn or "", secret_of(settings.password()))
            tending = made(settings, log, words)
        except (SettingFault, ValueError) as error:
            raise BadFile(str(error)) from None
        ending = tend(tending, signals, log, words)
        signals.over()
    return {"stopped": Exit.OK, "replaced": Exit.REFUSED, "killed": Exit.KILLED}[ending]


def made(settings: WorkerSettings, log: Log, words: Words) -> Tending:
    """A worker that has begun nothing yet. Raises SettingFault, ValueError."""
    if settings.ingress:
        return through_ingress(settings, settings.ingress, log, words)
    return with_login(settings, login(settings), place_of(settings.dsn or ""), log, words)


def tend(tending: Tending, signals: Interrupts, log: Log, words: Words) -> Ending:
    """Work until interrupts end it, also those from before; how it ended.

    What ends it otherwise is the last line of its log.
    """

    def out() -> None:
        try:
            tending.leave()
        finally:
            os._exit(Exit.KILLED)

    tending.interrupts = lambda: signals.count
    signals.tell(tending.wake, out)
    try:
        return tending.run()
    except Exception as error:
        last(error, log, words)
        raise
    finally:
        tending.close()  # it may wait for the door, which a second interrupt ends


def last(error: Exception, log: Log, words: Words) -> None:
    """End with a line for an expected error, and its exit code; return for a bug of ours."""
    if isinstance(error, Taken | ValueError | Shut):
        error = Refused(error.message if isinstance(error, Shut) else str(error))
    found = told_as(error)
    if found is not None:
        begun = "not ready: " * (found[0] == Exit.NOT_READY)
        log.say("error", "end", begun + words(error))
        leave(found[0])


def login(settings: WorkerSettings) -> Port:
    """The way of a login. Raises SettingFault, and ValueError for a DSN that is none."""
    from qinglong_sql.port_postgres import PostgresPort

    return PostgresPort(
        settings.dsn or "",
        name=settings.name or "",
        lease_ms=settings.lease,
        password=settings.password(),
    )


@worker_command.command("drain")
@click.argument("name")
@with_dsn
@with_json
@reported
def worker_drain(name: str, dsn: str, as_json: bool) -> None:
    """Let a worker lease nothing more, until it is undrained; what it runs goes on to its end.

    It hands back what has not begun. `qinglong-sql workers` shows what it still holds; when that is
    nothing, its machine can be taken away.
    """
    switch("drain_worker", name, dsn, as_json=as_json)


@worker_command.command("undrain")
@click.argument("name")
@with_dsn
@with_json
@reported
def worker_undrain(name: str, dsn: str, as_json: bool) -> None:
    """Let a worker that was drained lease again; it hears of it within ten seconds."""
    switch("undrain_worker", name, dsn, as_json=as_json)


def switch(step: str, name: str, dsn: str, *, as_json: bool) -> None:
    """Call a step on one worker, and tell."""
    with opened(dsn, writes=True) as store:
        try:
            row = store.call(step, p_worker_id=name)[0]
        except Unknown:
            rows = store.read("worker_state", order="worker_id", limit=SESSIONS)
            names = [one["worker_id"] for one in rows]
            raise Refused(no_worker(name, names, same_dsn(dsn))) from None
    if as_json:
        print_json(row)
        return
    drained = step == "drain_worker"
    already = " (so it was already)" * (row["outcome"] == "existing")
    when = ", once it comes back" * (row["status"] == "offline")
    if drained:
        say(f"worker {name} is drained{already}: it leases nothing more{when}")
    else:
        say(f"worker {name} is not drained{already}: it leases what waits{when}")
