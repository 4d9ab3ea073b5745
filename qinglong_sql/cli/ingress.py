"""`ingress`: the door of remote workers, as a process of its own."""

import importlib.util
from pathlib import Path

import click

from qinglong_sql.cli.exits import BadFile, Exit, leave, reported
from qinglong_sql.cli.serving import secret_of, serve, words_without
from qinglong_sql.cli.setting_options import (
    BOOT_TIMEOUT,
    PASSWORD_FILE,
    STOP_TIMEOUT,
    Option,
    with_config,
    with_print_settings,
    with_settings,
)
from qinglong_sql.cli.words import say
from qinglong_sql.control_log import Log, speak_through
from qinglong_sql.errors import NotReady
from qinglong_sql.ingress_settings import PREFIX, IngressSettings, load, shown
from qinglong_sql.setting_file import SettingFault

NEEDED = ("psycopg", "psycopg_pool", "cheroot", "prometheus_client", "aiohttp", "cryptography")
OPTIONS: tuple[Option, ...] = (
    ("dsn", "DSN", "The database, for a login of ql_worker alone; also from"
     f" {PREFIX}DSN or QINGLONG_DSN."),
    PASSWORD_FILE,
    ("listen", "HOST:PORT", "Where workers come; port 0: any. Default: 127.0.0.1:8272."),
    ("certificate", "FILE", "The certificate that workers are shown, in PEM."),
    ("key", "FILE", "Its key, in PEM, without a passphrase."),
    ("client-ca", "FILE", "Whose certificates for workers are taken, in PEM."),
    ("crl", "FILE", "That authority's list of revocations, in PEM."),
    ("ca-dir", "DIR", "The authority's folder (`ca init`), for workers to renew their certificates"
     " here."),
    ("log-dir", "DIR", "Where logs of workers are kept. Default: ingress/log in QINGLONG_STATE_DIR"
     " or .qinglong."),
    ("health-listen", "HOST:PORT", "Where /livez, /readyz and /metrics are; port 0: any. Default:"
     " 127.0.0.1:8273."),
    BOOT_TIMEOUT,
    ("drain-timeout", "TIME", "For what is being answered when it stops. Default: 10s."),
    STOP_TIMEOUT,
)  # fmt: skip


@click.command()
@with_config(PREFIX, "the table [ingress]")
@with_settings(OPTIONS)
@with_print_settings
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
