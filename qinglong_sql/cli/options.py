"""Options that many commands share, and the way from a DSN to an open store."""

import os
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from qinglong_sql import migrate
from qinglong_sql.cli.exits import Refused
from qinglong_sql.store import POSTGRES, SQLITE, Span, Store, open_store

DEFAULT_DSN = "sqlite:///.qinglong/qinglong.db"
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
with_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
package_file = click.argument(
    "file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path)
)


@contextmanager
def opened(dsn: str, *, create: bool = False) -> Iterator[Store]:
    """An open store, closed at the end. Raises NotReady when the schema is not there."""
    if dsn.startswith(SQLITE) and not create:
        migrate.current(dsn)  # a stranger's file is not even touched
    store = open_store(dsn, create=create)
    try:
        yield store
    finally:
        store.close()


def same_dsn(dsn: str) -> str:
    """` --dsn …` for a command that is shown, when this one was told it; never with a password."""
    said = click.get_current_context().get_parameter_source("dsn")
    if said is not click.core.ParameterSource.COMMANDLINE:
        return ""
    return f" --dsn {shlex.quote(dsn)}" if dsn.startswith(SQLITE) else " --dsn DSN"


def state_folder(dsn: str) -> Path:
    """Where workers of this machine keep their folders: beside the SQLite file, else here."""
    if dsn.startswith(SQLITE):
        return Path(dsn.removeprefix(SQLITE)).absolute().parent
    return Path(os.environ.get("QINGLONG_STATE_DIR", ".qinglong")).absolute()


def resolve_run(store: Store, text: str) -> dict[str, Any]:
    """The one run whose id begins with this text. Raises Refused when there is none or several."""
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,36}", text):
        raise Refused(f"{text!r} is not a run id or the beginning of one")
    found = store.read("run_state", order="run_id", limit=6, run_id=Span.prefix(text))
    exact = [row for row in found if row["run_id"] == text]
    if exact or len(found) == 1:
        return (exact or found)[0]
    if not found:
        raise Refused(f"no run begins with {text!r}; `qinglong-sql runs` lists them")
    some = ", ".join([row["run_id"] for row in found[:5]] + ["and more"] * (len(found) > 5))
    raise Refused(f"{text!r} is the beginning of several runs: {some}; give more of it")
