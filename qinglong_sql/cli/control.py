"""`control`: the process that decides for a cluster, on PostgreSQL."""

import importlib.util
from pathlib import Path

import click

from qinglong_sql import ingress_settings
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
from qinglong_sql.control_log import Log
from qinglong_sql.errors import NotReady
from qinglong_sql.ingress_settings import IngressSettings
from qinglong_sql.settings import PREFIX, ControlSettings, SettingFault, load, shown

NEEDED = ("psycopg", "psycopg_pool", "cheroot", "prometheus_client")
NEEDED_BY_DOOR = ("aiohttp", "cryptography")
OPTIONS: tuple[Option, ...] = (
    ("dsn", "DSN", "The database: postgresql://user@host/db; also from"
     f" {PREFIX}DSN or QINGLONG_DSN."),
    PASSWORD_FILE,
    ("listen", "HOST:PORT", "Where /livez, /readyz and /metrics are; port 0: any. Default:"
     " 127.0.0.1:8271."),
    ("pool-size", "N", "Connections to the database. Default: 4."),
    ("idle-ms", "MS", "Milliseconds between two looks when nothing is due. Default: 250."),
    ("grace-ms", "MS", "Milliseconds that a trigger may be late without being missed. Default:"
     " 30000."),
    BOOT_TIMEOUT,
    ("recovery-timeout", "TIME", "For the recovery that comes before it is ready. Default: 1m."),
    ("drain-timeout", "TIME", "For the cycle that runs at a stop, of each lifecycle. Default:"
     " 10s."),
    STOP_TIMEOUT,
)  # fmt: skip


@click.command()
@with_config(PREFIX)
@with_settings(OPTIONS)
@click.option(
    "--ingress",
    is_flag=True,
    help="Let remote workers in as well: settings in the table [ingress], QINGLONG_INGRESS_…",
)
@with_print_settings
@reported
def control(config: Path | None, ingress: bool, print_settings: bool, **flags: str | None) -> None:
    """Decide what is due for a whole PostgreSQL database, beside others of its kind.

    Start as many as you like, on as many machines: they have no leader and lose nothing when one
    dies. They fire triggers, advance and admit steps, retry, recover, time out and cancel; they
    execute nothing, which workers do. A login needs ql_scheduler and ql_reader, and nothing else.
    Install it with `pip install 'qinglong-sql[control]'`.

    Settings come from the file of --config, then from the environment (QINGLONG_CONTROL_POOL_SIZE
    for pool_size, and so on), then from the options here; the later one wins. With --ingress remote
    workers come in here, by a login of its own (ql_worker): `qinglong-sql ingress --help` says how.

    /livez is 200 while the process stands; /readyz is 200 while it works and 503 with the reason
    before and after; /metrics is for Prometheus. They listen on loopback unless --listen says more.

    TERM or Ctrl-C: it is not ready any more, ends the cycles that run, and exits 0; exits 1 when a
    part of it did not end in its time. A second TERM or Ctrl-C: it leaves at once, exit 130, and
    nothing is lost either. When the database is gone it ends with exit 6, for its supervisor to
    start it again; so it does at the start when the database does not answer, is not the shipped
    one, or gives this login more or less than it should have.
    """
    door: IngressSettings | None = None
    try:
        settings, origins = load(config, flags)
        text = shown(settings, origins)
        if ingress:
            beside = ingress_settings.BESIDE_CONTROL
            door, origins = ingress_settings.load(config, {}, book=beside)
            text += f"\n\n{ingress_settings.shown(door, origins)}"
    except SettingFault as error:
        raise BadFile(str(error)) from None
    if print_settings:
        say(text)
        return
    extra = "control" if door is None else "ingress"
    for name in NEEDED if door is None else (*NEEDED, *NEEDED_BY_DOOR):
        if importlib.util.find_spec(name) is None:
            raise NotReady(f"{name} is not installed: pip install 'qinglong-sql[{extra}]'")
    leave(served(settings, door))


def served(settings: ControlSettings, door: IngressSettings | None = None) -> Exit:
    """Be a control process until it is over; how it ended."""
    from qinglong_sql.control import Control
    from qinglong_sql.control_parts import real_parts

    log = Log(settings.log_format, settings.log_level)
    try:
        secrets = [settings.dsn, secret_of(settings.password())]
        if door is not None:
            secrets += [door.dsn, secret_of(door.password())]
        parts = real_parts(settings, log, door)
    except SettingFault as error:
        raise BadFile(str(error)) from None
    words = words_without(*secrets)
    return serve("control", Control(settings, parts, log, words), settings.dsn, log, words)
