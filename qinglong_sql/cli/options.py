"""Options that many commands share, and the way from a DSN to an open store."""

import os
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from qinglong_sql import migrate
from qinglong_sql.canonical import canonical, digest
from qinglong_sql.cli.exits import Refused
from qinglong_sql.door import ask
from qinglong_sql.duration import DurationFault, read_duration
from qinglong_sql.limits import (
    LEASE_MAX_MS,
    LEASE_MIN_MS,
    LEASE_MS,
    STOP_GRACE_MAX_MS,
    STOP_GRACE_MS,
)
from qinglong_sql.store import POSTGRES, SQLITE, Span, Store, open_store

DEFAULT_FILE = "qinglong.db"
DEFAULT_DSN = f"sqlite:///.qinglong/{DEFAULT_FILE}"
PLACE = {
    "host": "PGHOST",
    "hostaddr": "PGHOSTADDR",
    "port": "PGPORT",
    "dbname": "PGDATABASE",
    "service": "PGSERVICE",
}
CENTURY_MS = 100 * 365 * 24 * 3600 * 1000
F = TypeVar("F", bound=Callable[..., Any])


def known_kind(ctx: click.Context, param: click.Parameter, dsn: str) -> str:
    """Refuse a DSN that leads to no store of ours; it is not shown, it may hold a password."""
    if dsn.startswith(POSTGRES) or (len(dsn) > len(SQLITE) and dsn.startswith(SQLITE)):
        return dsn
    raise click.BadParameter(
        "it is sqlite:///path (four strokes for an absolute one) or postgresql://user@host/database"
    )


with_dsn = click.option(
    "--dsn",
    envvar="QINGLONG_DSN",
    default=DEFAULT_DSN,
    show_default=True,
    metavar="DSN",
    callback=known_kind,
    help="The database: sqlite:///path or postgresql://user@host/db; also from QINGLONG_DSN.",
)


class Duration(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """30s, 15m, 1d12h, as in a package file: milliseconds, at most `most_ms`; none only by `0s`."""

    name = "duration"

    def __init__(self, most_ms: int = CENTURY_MS, *, none: bool = False) -> None:
        self.most_ms = most_ms
        self.none = none

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if self.none and value == "0s":
            return 0
        try:
            return read_duration(str(value), self.most_ms)
        except DurationFault as error:
            self.fail(f"{value!r}: {error}", param, ctx)


def with_lease(words: str) -> Callable[[F], F]:
    """`--lease-ms`, with its help."""
    return click.option(
        "--lease-ms",
        type=click.IntRange(LEASE_MIN_MS, LEASE_MAX_MS),
        default=LEASE_MS,
        show_default=True,
        help=words,
    )


with_grace = click.option(
    "--grace-ms",
    type=click.IntRange(0, STOP_GRACE_MAX_MS),
    default=STOP_GRACE_MS,
    show_default=True,
    help="How long a step that is to stop has between TERM and KILL.",
)
with_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
package_file = click.argument(
    "file", metavar="FILE", type=click.Path(dir_okay=False, readable=False, path_type=Path)
)


@contextmanager
def opened(dsn: str, *, create: bool = False, writes: bool = False) -> Iterator[Store]:
    """An open store, closed at the end. Raises NotReady when the schema is not there.

    writes: the command calls steps, and says so when PostgreSQL lets it wait for one.
    """
    if dsn.startswith(SQLITE) and not create:
        migrate.current(dsn)  # a stranger's file is not even touched
    if writes and dsn.startswith(POSTGRES):
        from qinglong_sql.cli.telling import open_telling

        store: Store = open_telling(dsn)
    else:
        store = open_store(dsn, create=create)
    try:
        yield store
    finally:
        store.close()


def poke(dsn: str) -> None:
    """Wake the edge of a SQLite database, if one runs, so that it looks now. Never fails."""
    if dsn.startswith(SQLITE):
        with suppress(Exception):
            ask(state_folder(dsn), "wake", within_s=0.2)


def same_dsn(dsn: str) -> str:
    """` --dsn …` for a command that is shown, when this one was told it; never with a password."""
    said = click.get_current_context().get_parameter_source("dsn")
    if said is not click.core.ParameterSource.COMMANDLINE:
        return ""
    return f" --dsn {shlex.quote(dsn)}" if dsn.startswith(SQLITE) else " --dsn DSN"


def state_folder(dsn: str) -> Path:
    """Where workers of this machine keep their numbered folders, for one database alone.

    A worker ends what its folder holds and its database does not know, so no two may share one:
    beside a SQLite file and by its name, else in QINGLONG_STATE_DIR (or `.qinglong` here) by what
    the DSN says of the database, never of the login.
    """
    if dsn.startswith(SQLITE):
        file = Path(dsn.removeprefix(SQLITE)).resolve()  # by a link it is the same database
        return file.with_name("worker" if file.name == DEFAULT_FILE else f"{file.name}.worker")
    from psycopg.conninfo import conninfo_to_dict

    said = conninfo_to_dict(dsn)
    names = {name: str(said.get(name) or os.environ.get(by, "")) for name, by in PLACE.items()}
    folder = Path(os.environ.get("QINGLONG_STATE_DIR") or ".qinglong").absolute()
    return folder / f"worker-{digest(canonical(names))[:12]}"


def resolve_run(store: Store, text: str) -> dict[str, Any]:
    """The one run whose id begins with this text, with `ru` in front or without.

    Raises Refused when there is none or several.
    """
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,36}", text):
        raise Refused(f"{text!r} is not a run id or the beginning of one")
    if text in ("r", "ru"):
        raise Refused(f"{text!r} is too short: every run id begins with it; give more of it")
    found = store.read("run_state", order="run_id", limit=6, run_id=Span.prefix(text))
    if not found and re.fullmatch(r"[0-9a-f]{1,24}", text):
        found = store.read("run_state", order="run_id", limit=6, run_id=Span.prefix(f"ru{text}"))
    exact = [row for row in found if row["run_id"] == text]
    if exact or len(found) == 1:
        return (exact or found)[0]
    if not found:
        raise Refused(f"no run begins with {text!r}; `qinglong-sql runs` lists them")
    some = ", ".join([row["run_id"] for row in found[:5]] + ["and more"] * (len(found) > 5))
    raise Refused(f"{text!r} is the beginning of several runs: {some}; give more of it")
