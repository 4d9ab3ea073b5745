"""`control`: the process that decides for a cluster, on PostgreSQL."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

import qinglong_sql
from qinglong_sql.cli.exits import BadFile, Exit, leave, reported, told_as, without_secrets
from qinglong_sql.cli.interrupts import Interrupts
from qinglong_sql.cli.words import say
from qinglong_sql.control_log import LEVELS, Log
from qinglong_sql.errors import NotReady
from qinglong_sql.settings import PREFIX, ControlSettings, SettingFault, load, shown

if TYPE_CHECKING:
    from qinglong_sql.control import Ending

NEEDED = ("psycopg", "psycopg_pool", "cheroot", "prometheus_client")
LEAVE_WITHIN_S = 1.0  # after a second interrupt


@click.command()
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar=f"{PREFIX}CONFIG",
    metavar="FILE",
    help=f"A TOML file with settings; also from {PREFIX}CONFIG.",
)
@click.option(
    "--dsn",
    metavar="DSN",
    help=f"The database: postgresql://user@host/db; also from {PREFIX}DSN or QINGLONG_DSN.",
)
@click.option(
    "--password-file",
    metavar="FILE",
    help="A file that holds the login's password and nothing else; it is read at the start.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Where /livez, /readyz and /metrics are; port 0: any. Default: 127.0.0.1:8271.",
)
@click.option("--pool-size", metavar="N", help="Connections to the database. Default: 4.")
@click.option(
    "--idle-ms",
    metavar="MS",
    help="Milliseconds between two looks when nothing is due. Default: 250.",
)
@click.option(
    "--grace-ms",
    metavar="MS",
    help="Milliseconds that a trigger may be late without being missed. Default: 30000.",
)
@click.option("--boot-timeout", metavar="TIME", help="For each step of the boot. Default: 30s.")
@click.option(
    "--recovery-timeout",
    metavar="TIME",
    help="For the recovery that comes before it is ready. Default: 1m.",
)
@click.option(
    "--drain-timeout",
    metavar="TIME",
    help="For the cycle that runs at a stop, of each lifecycle. Default: 10s.",
)
@click.option("--stop-timeout", metavar="TIME", help="For each other step of a stop. Default: 3s.")
@click.option(
    "--log-format",
    metavar="FORM",
    help="How the lines on standard error look: text or json. Default: text.",
)
@click.option(
    "--log-level", metavar="LEVEL", help=f"{', '.join(LEVELS[:-1])} or error. Default: info."
)
@click.option(
    "--print-settings",
    is_flag=True,
    help="Print the settings as a TOML file, secrets hidden, and where each comes from; then end.",
)
@reported
def control(config: Path | None, print_settings: bool, **flags: str | None) -> None:
    """Decide what is due for a whole PostgreSQL database, beside others of its kind.

    Start as many as you like, on as many machines: they have no leader and lose nothing when one
    dies. They fire triggers, advance and admit steps, retry, recover, time out and cancel; they
    execute nothing, which workers do. A login needs ql_scheduler and ql_reader, and nothing else.
    Install it with `pip install 'qinglong-sql[control]'`.

    Settings come from the file of --config, then from the environment (QINGLONG_CONTROL_POOL_SIZE
    for pool_size, and so on), then from the options here; the later one wins.

    /livez is 200 while the process stands; /readyz is 200 while it works and 503 with the reason
    before and after; /metrics is for Prometheus. They listen on loopback unless --listen says more.

    TERM or Ctrl-C: it is not ready any more, ends the cycles that run, and exits 0; exits 1 when a
    part of it did not end in its time. A second TERM or Ctrl-C: it leaves at once, exit 130, and
    nothing is lost either. When the database is gone it ends with exit 6, for its supervisor to
    start it again; so it does at the start when the database does not answer, is not the shipped
    one, or gives this login more or less than it should have.
    """
    try:
        settings, origins = load(config, flags)
    except SettingFault as error:
        raise BadFile(str(error)) from None
    if print_settings:
        say(shown(settings, origins))
        return
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            raise NotReady(f"{name} is not installed: pip install 'qinglong-sql[control]'")
    leave(serve(settings))


def serve(settings: ControlSettings) -> Exit:
    """Be a control process until it is over; how it ended."""
    from qinglong_sql.control import Control
    from qinglong_sql.control_boot import BootFailed
    from qinglong_sql.control_parts import place_of, real_parts

    log = Log(settings.log_format, settings.log_level)
    try:
        secret = f"password={settings.password()}" if settings.password_file else ""
        parts = real_parts(settings, log)
    except SettingFault as error:
        raise BadFile(str(error)) from None

    def words(error: BaseException) -> str:
        return without_secrets(without_secrets(words_of(error), settings.dsn), secret)

    served = Control(settings, parts, log, words)
    with Interrupts(lambda: served.ask("asked to stop"), leave_at_once, LEAVE_WITHIN_S) as signals:
        log.say(
            "info",
            "begin",
            f"control {qinglong_sql.__version__} as pid {os.getpid()}: {place_of(settings.dsn)}",
            pid=os.getpid(),
            version=qinglong_sql.__version__,
        )
        try:
            ending = served.run()
        except BootFailed as error:
            cause = error.__cause__ or error
            log.say("error", "boot", f"not ready: {error.step}: {words(cause)}", part=error.step)
            if told_as(cause) is None:  # a bug of ours: all of it
                raise cause from None
            return Exit.NOT_READY
        signals.over()
        return told(ending, log)


def told(ending: "Ending", log: Log) -> Exit:
    """The exit code of an ending, and the last line of its log."""
    if ending.late:
        late = ", ".join(ending.late)
        log.say("error", "end", f"stopped, although not in time: {late}", late=ending.late)
    else:
        log.say("info", "end", "stopped")
    code = Exit.NOT_READY if ending.tripped else Exit.FAILED if ending.late else Exit.OK
    if ending.late:  # what hangs must not keep the interpreter from its end
        sys.stderr.flush()
        os._exit(code)
    return code


def leave_at_once() -> None:
    """Nothing of this process is lost: what it began is committed, or is begun again."""
    os._exit(Exit.KILLED)


def words_of(error: BaseException) -> str:
    """An error in words for a line of the log."""
    if isinstance(error, OSError) and error.strerror is None and error.args:
        return str(error)  # one that was said in words already
    found = told_as(error)
    if found is None:
        return f"{type(error).__name__}: {error}"
    return found[1].removeprefix("not ready: ").removesuffix("; try again")
