"""`completion`: what a shell completes, also ids and keys that only the database knows."""

import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from qinglong_sql.cli import COMPLETING
from qinglong_sql.cli.exits import reported
from qinglong_sql.cli.options import DEFAULT_DSN
from qinglong_sql.cli.words import age, now_ms, say
from qinglong_sql.store import Row, Span
from qinglong_sql.store.glance import glance

SHOWN = 50
OF_WORKERS = ("workers", "drain", "undrain")
OPEN_ALONE = ("resume", "cancel", "watch", "explain")
WHERE = {
    "bash": '~/.bashrc:  eval "$(qinglong-sql completion bash)"',
    "zsh": '~/.zshrc, after compinit:  eval "$(qinglong-sql completion zsh)"',
    "fish": "~/.config/fish/completions/qinglong-sql.fish, as a file",
}
Found = list[CompletionItem]


@click.command()
@click.argument("shell", type=click.Choice(list(WHERE)))
@reported
def completion(shell: str) -> None:
    """Print the completion script of a SHELL.

    Commands and options complete, and so do runs, packages, workflows and steps as the database
    knows them. For bash, put this line into ~/.bashrc: eval "$(qinglong-sql completion bash)"
    """
    made = get_completion_class(shell)
    if made is None:
        raise click.UsageError(f"no completion for {shell}")
    from qinglong_sql.cli import main

    say(f"# to keep it, in {WHERE[shell]}")
    # the text alone: click's own way would start bash to ask for its version
    script = made(main, {}, "qinglong-sql", COMPLETING)
    say(made.source_template % script.source_vars())


def teach(command: click.Command) -> None:
    """Let the parameters of a command complete from the database, by their names."""
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        teach(inner)
    for param in command.params:
        for name, complete in KNOWN.items():
            plain = not isinstance(param.type, click.Choice | click.Path | click.File)
            if param.name == name and plain:
                setattr(param, "shell_complete", _quietly(complete))  # noqa: B010


def _quietly(complete: Callable[[click.Context, str], Found]) -> Callable[..., Found]:
    """What is found; nothing, without a word, when the database cannot be asked."""

    def found(ctx: click.Context, incomplete: str) -> Found:
        with suppress(Exception):
            return complete(ctx, incomplete)
        return []

    return found


def _read(ctx: click.Context, view: str, **asked: Any) -> list[Row]:
    dsn = ctx.params.get("dsn") or os.environ.get("QINGLONG_DSN") or DEFAULT_DSN
    return glance(str(dsn), view, **asked)


def _runs(ctx: click.Context, incomplete: str) -> Found:
    """The newest runs, or those that begin so; what they are stands beside them."""
    if incomplete and not re.fullmatch(r"[A-Za-z0-9]+", incomplete):
        return []
    begun: dict[str, Any] = {"run_id": Span.prefix(incomplete)} if len(incomplete) > 2 else {}
    order = "run_id" if begun else "admitted_at_ms desc, run_id desc"
    view = "open_run" if ctx.info_name in OPEN_ALONE else "run_state"
    rows = _read(ctx, view, order=order, limit=SHOWN, **begun)
    if ctx.info_name == "retry":
        rows = [row for row in rows if row["status"] not in ("running", "succeeded")]
    given = ctx.params.get("run")  # `cancel` takes several, and none twice
    return [
        CompletionItem(row["run_id"], help=_about(row))
        for row in rows
        if row["run_id"].startswith(incomplete)
        and not (isinstance(given, tuple) and row["run_id"] in given)
    ]


def _subjects(ctx: click.Context, incomplete: str) -> Found:
    """A run, or a file."""
    return [*_quietly(_runs)(ctx, incomplete), CompletionItem(incomplete, type="file")]


def _about(row: Row) -> str:
    since = age(now_ms() - row["admitted_at_ms"])
    return f"{row['package_key']}/{row['target_key']} {row['status']}, {since} ago"


def _attempts(ctx: click.Context, incomplete: str) -> Found:
    """What has not ended in the open runs: only that can be declared stopped."""
    found = []
    for run in _read(ctx, "open_run", order="admitted_at_ms", limit=SHOWN):
        for row in _read(ctx, "live_attempt", order="attempt_id", run_id=run["run_id"]):
            if row["attempt_id"].startswith(incomplete) and row["status"] != "claimed":
                found.append(CompletionItem(row["attempt_id"], help=row["step_key"]))
    return found


def _workers(ctx: click.Context, incomplete: str) -> Found:
    """Workers that are registered; other commands have names of other things."""
    if ctx.info_name not in OF_WORKERS:
        return []
    rows = _read(ctx, "worker_state", order="worker_id", limit=SHOWN)
    return [
        CompletionItem(row["worker_id"], help=row["status"])
        for row in rows
        if row["worker_id"].startswith(incomplete)
    ]


def _packages(ctx: click.Context, incomplete: str) -> Found:
    rows = _read(ctx, "package_state", order="package_key", state="active")
    return _items((row["package_key"] for row in rows), incomplete)


def _targets(ctx: click.Context, incomplete: str) -> Found:
    """Workflows, and tasks with a key of their own: of the file or package that was named."""
    file = ctx.params.get("file") or ctx.params.get("subject")
    if file is not None:
        from qinglong_sql.package import load_package

        model = load_package(Path(file)).model
        own = [key for key in model["tasks"] if "/" not in key]
        return _items([*model["workflows"], *own], incomplete)
    named = ctx.params.get("package")
    chosen = {"package_key": named} if named else {}
    keys = []
    for package in _read(ctx, "package_state", order="package_key", state="active", **chosen):
        pinned = {name: package[name] for name in ("package_key", "generation")}
        rows = _read(ctx, "target_state", order="kind desc, target_key", **pinned)
        keys += [row["target_key"] for row in rows if "/" not in row["target_key"]]
    return _items(dict.fromkeys(keys), incomplete)


def _triggers(ctx: click.Context, incomplete: str) -> Found:
    """The triggers of the package that was named."""
    named = ctx.params.get("package")
    if not named:
        return []
    rows = _read(ctx, "trigger_state", order="trigger_key", package_key=named)
    return _items((row["trigger_key"] for row in rows if row["state"] != "withdrawn"), incomplete)


def _steps(ctx: click.Context, incomplete: str) -> Found:
    run = str(ctx.params.get("run") or "")
    if not re.fullmatch(r"[A-Za-z0-9]{2,36}", run):
        return []
    runs = _read(ctx, "run_state", order="run_id", limit=2, run_id=Span.prefix(run))
    if len(runs) != 1:
        return []
    rows = _read(ctx, "step_state", order="step_key", run_id=runs[0]["run_id"])
    return [
        CompletionItem(row["step_key"], help=row["status"])
        for row in rows
        if row["step_key"].startswith(incomplete)
    ]


def _zones(ctx: click.Context, incomplete: str) -> Found:
    from qinglong_sql.zones import zone_names

    return _items(sorted(zone_names()), incomplete)


def _items(keys: Iterable[str], incomplete: str) -> Found:
    return [CompletionItem(key) for key in keys if key.startswith(incomplete)]


KNOWN: dict[str, Callable[[click.Context, str], Found]] = {
    "run": _runs,
    "after": _runs,
    "attempt": _attempts,
    "name": _workers,
    "package": _packages,
    "target": _targets,
    "trigger": _triggers,
    "workflow": _targets,
    "step": _steps,
    "subject": _subjects,
    "tz": _zones,
}
