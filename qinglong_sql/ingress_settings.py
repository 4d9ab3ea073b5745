"""Settings of the workers' door: the table [ingress] of a TOML file, QINGLONG_INGRESS_*, flags.

A control process with `--ingress` reads the same table of its own file; its login is another one.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Final

from qinglong_sql import setting_file
from qinglong_sql.control_log import LEVELS, Form, Level
from qinglong_sql.setting_file import (
    REQUIRED,
    Book,
    Key,
    dsn_of,
    duration,
    listen,
    one_of,
    password_in,
    path,
    write_dsn,
    write_listen,
    write_ms,
)

TABLE: Final = "ingress"
PREFIX: Final = "QINGLONG_INGRESS_"


@dataclass(frozen=True, slots=True)
class IngressSettings:
    """What one ingress is told. Times are milliseconds; `listen` is host and port.

    `health_listen`, the times and how it logs are for an ingress alone: with `control --ingress`
    the control's own count.
    """

    dsn: str
    password_file: Path | None
    listen: tuple[str, int]
    certificate: Path
    key: Path
    client_ca: Path
    crl: Path | None
    ca_dir: Path | None
    log_dir: Path | None
    health_listen: tuple[str, int]
    boot_timeout: int
    drain_timeout: int
    stop_timeout: int
    log_format: Form
    log_level: Level

    def password(self) -> str | None:
        """What the password file holds, without the end of its line. Raises SettingFault."""
        return password_in(self.password_file)

    def log_folder(self, environ: Mapping[str, str] = os.environ) -> Path:
        """Where logs of workers are kept."""
        state = Path(environ.get("QINGLONG_STATE_DIR") or ".qinglong")
        return (self.log_dir or state / "ingress" / "log").absolute()


_DSN: Final = dsn_of("workers of a cluster have PostgreSQL: postgresql://user@host/database")
KEYS: Final[dict[str, Key]] = {
    "dsn": Key(_DSN, REQUIRED, "the database, for a login of ql_worker alone:"
               " postgresql://user@host/database", write_dsn),
    "password_file": Key(path, None, "a file that holds the login's password and nothing else"),
    "listen": Key(partial(listen, port=8272), ("127.0.0.1", 8272), "where workers come",
                  write_listen),
    "certificate": Key(path, REQUIRED, "the certificate that workers are shown, in PEM"),
    "key": Key(path, REQUIRED, "its key, in PEM, without a passphrase"),
    "client_ca": Key(path, REQUIRED, "whose certificates for workers are taken, in PEM"),
    "crl": Key(path, None, "that authority's list of revocations, in PEM"),
    "ca_dir": Key(path, None, "the authority's folder, for workers to renew their certificates"),
    "log_dir": Key(path, None, "where logs of workers are kept, else"
                   " (QINGLONG_STATE_DIR or .qinglong)/ingress/log"),
    "health_listen": Key(partial(listen, port=8273), ("127.0.0.1", 8273),
                         "where /livez, /readyz and /metrics are", write_listen),
    "boot_timeout": Key(duration, 30_000, "for each step of the boot", write_ms),
    "drain_timeout": Key(duration, 10_000, "for what is being answered at a stop", write_ms),
    "stop_timeout": Key(duration, 3_000, "for each other step of the stop", write_ms),
    "log_format": Key(one_of("text", "json"), "text", "text or json"),
    "log_level": Key(one_of(*LEVELS), "info", "debug, info, warning or error"),
}  # fmt: skip
assert KEYS.keys() == {one.name for one in fields(IngressSettings)}

ALONE: Final = Book(KEYS, PREFIX, table=TABLE)
# The control's DSN and options are for another login, and mean something else.
BESIDE_CONTROL: Final = replace(ALONE, flags=False, shared_dsn=False)


def load(
    file: Path | None,
    flags: Mapping[str, object],
    environ: Mapping[str, str] = os.environ,
    *,
    book: Book = ALONE,
) -> tuple[IngressSettings, dict[str, str]]:
    """The settings, and of each key where its value comes from. Raises SettingFault."""
    values, origins = setting_file.gather(book, file, flags, environ)
    return IngressSettings(**values), origins


def shown(settings: IngressSettings, origins: Mapping[str, str]) -> str:
    """The settings as a table of a TOML file, secrets hidden, each with where it comes from."""
    values = {key: getattr(settings, key) for key in KEYS}
    return setting_file.written(ALONE, values, origins)
