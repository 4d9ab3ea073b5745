"""`ingress`: the door of remote workers, as a process of its own."""

import importlib.util
from pathlib import Path

import click

from qinglong_sql.cli.exits import BadFile, Exit, leave, reported
from qinglong_sql.cli.serving import secret_of, serve, words_without
from qinglong_sql.cli.words import say
from qinglong_sql.control_log import LEVELS, Log, speak_through
from qinglong_sql.errors import NotReady
from qinglong_sql.ingress_settings import PREFIX, IngressSettings, load, shown
from qinglong_sql.setting_file import SettingFault

NEEDED = ("psycopg", "psycopg_pool", "cheroot", "prometheus_client", "aiohttp", "cryptography")


@click.command()
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar=f"{PREFIX}CONFIG",
    metavar="FILE",
    help=f"A TOML file with the table [ingress]; also from {PREFIX}CONFIG.",
)
@click.option(
    "--dsn",
    metavar="DSN",
    help=f"The database, for a login of ql_worker alone; also from {PREFIX}DSN or QINGLONG_DSN.",
)
@click.option(
    "--password-file",
    metavar="FILE",
    help="A file that holds the login's password and nothing else; it is read at the start.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Where workers come; port 0: any. Default: 127.0.0.1:8272.",
)
@click.option(
    "--certificate", metavar="FILE", help="The certificate that workers are shown, in PEM."
)
@click.option("--key", metavar="FILE", help="Its key, in PEM, without a passphrase.")
@click.option(
    "--client-ca", metavar="FILE", help="Whose certificates for workers are taken, in PEM."
)
@click.option("--crl", metavar="FILE", help="That authority's list of revocations, in PEM.")
@click.option(
    "--ca-dir",
    metavar="DIR",
    help="The authority's folder (`ca init`), for workers to renew their certificates here.",
)
@click.option(
    "--log-dir",
    metavar="DIR",
    help="Where logs of workers are kept. Default: ingress/log in QINGLONG_STATE_DIR or .qinglong.",
)
@click.option(
    "--health-listen",
    metavar="HOST:PORT",
    help="Where /livez, /readyz and /metrics are; port 0: any. Default: 127.0.0.1:8273.",
)
@click.option("--boot-timeout", metavar="TIME", help="For each step of the boot. Default: 30s.")
@click.option(
    "--drain-timeout",
    metavar="TIME",
    help="For what is being answered when it stops. Default: 10s.",
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
def ingress(config: Path | None, print_settings: bool, **flags: str | None) -> None:
    """Let remote workers in: mutual TLS in front of what a worker may do in PostgreSQL.

    Every worker shows a certificate; its subject is the worker's name, whatever it says of itself.
    `qinglong-sql ca` makes certificates, and a worker comes with `qinglong-sql worker --ingress`.
    A control process with --ingress has this door as well, without a process of its own.

    Settings come from the table [ingress] of the file of --config, then from the environment
    (QINGLONG_INGRESS_LISTEN for listen, and so on), then from the options here; the later one wins.

    /livez is 200 while the process stands; /readyz is 200 while it lets workers in and the database
    answers; /metrics is for Prometheus. They listen on loopback unless --health-listen says more.

    TERM or Ctrl-C: it lets nobody in any more, ends what it is answering, and exits 0; exits 1 when
    a part of it did not end in its time. A second TERM or Ctrl-C: it leaves at once, exit 130, and
    nothing is lost either: workers repeat what was not answered. While the database is away workers
    are told 503. At the start it ends with exit 6 when the database does not answer, is not the
    shipped one, or gives this login more or less than it should have.
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
            raise NotReady(f"{name} is not installed: pip install 'qinglong-sql[ingress]'")
    leave(served(settings))


def served(settings: IngressSettings) -> Exit:
    """Be an ingress until it is over; how it ended."""
    from qinglong_sql.ingress_process import Alone

    log = Log(settings.log_format, settings.log_level)
    speak_through(log)
    try:
        words = words_without(settings.dsn, secret_of(settings.password()))
    except SettingFault as error:
        raise BadFile(str(error)) from None
    return serve("ingress", Alone(settings, log, words), settings.dsn, log, words)
