"""Commands about a package file: check, publish."""

import sys
from collections.abc import Collection
from pathlib import Path

import click

from qinglong_sql.cli.exits import BadFile, Exit, Refused, leave, painted_fault, reported
from qinglong_sql.cli.options import opened, package_file, same_dsn, with_dsn, with_json
from qinglong_sql.cli.spelling import did_you_mean
from qinglong_sql.cli.words import complain, print_json, say
from qinglong_sql.limits import PACKAGE_BYTES
from qinglong_sql.package import Package, load_package, parse_package
from qinglong_sql.package_fault import WHY_HIDDEN, PackageFaults
from qinglong_sql.package_source import HIDDEN
from qinglong_sql.publishing import publish_package
from qinglong_sql.store import Span, Store

STDIN = "-"
OPEN_SHOWN = 3


@click.command()
@package_file
@with_json
@reported
def check(file: Path, as_json: bool) -> None:
    """Check a package FILE: `ok`, or all its faults (exit 2).

    `-` is standard input. Of a file that is no YAML only the first place that cannot be read is
    told: nothing is known of what is behind it.
    """
    try:
        package = read_package(file)
    except PackageFaults as faults:
        if not as_json:
            raise
        print_json({"ok": False, "errors": [fault.as_json() for fault in faults.faults]})
        leave(Exit.BAD_FILE)
    warnings = [fault.as_json() for fault in package.warnings]
    if as_json:
        print_json({"ok": True, "errors": [], "warnings": warnings, "digest": package.digest})
        return
    told = [one.render(str(file), package.source, painted_fault) for one in package.warnings]
    for words in told:
        complain(f"warning: {words}")
    if any(HIDDEN in words for words in told):
        complain(WHY_HIDDEN)
    say("ok")


@click.command()
@package_file
@with_dsn
@with_json
@reported
def publish(file: Path, dsn: str, as_json: bool) -> None:
    """Publish a package FILE for new runs.

    Runs that are open keep the definition that they started with.
    """
    package = load_for_runs(file)
    with opened(dsn, create=True, writes=True) as store:
        row, moved = publish_package(store, package)
        notes = still_open(store, package.key, row["generation"], same_dsn(dsn))
    for note in [moved, *notes] if moved else notes:
        complain(note)
    if as_json:
        print_json(row)
        return
    said = "published" if row["outcome"] == "published" else "already active"
    say(f"{row['package_key']} generation {row['generation']} {said}")


def load_for_runs(file: Path) -> Package:
    """The package of a file whose folder steps run in. Raises BadFile for `-`, PackageFaults."""
    if str(file) == STDIN:
        raise BadFile(
            "standard input has no folder for steps to run in: write it to a file first"
            " (`qinglong-sql check -` checks it)"
        )
    return load_package(file)


def read_package(file: Path) -> Package:
    """The package of a file, or of standard input for `-`. Raises PackageFaults."""
    if str(file) != STDIN:
        return load_package(file)
    return parse_package(sys.stdin.buffer.read(PACKAGE_BYTES + 1), STDIN)


def still_open(store: Store, package: str, generation: int, more: str, **target: str) -> list[str]:
    """Notes on open runs of generations before this one: a driver goes on with them as they are.

    `target` narrows them to a `kind` and `target_key`; `more` is put behind a shown command.
    """
    rows = store.read(
        "open_run",
        order="admitted_at_ms, run_id",
        limit=OPEN_SHOWN + 1,
        package_key=package,
        generation=Span(0, generation),
        cancel_requested_at_ms=None,
        **target,
    )
    notes = []
    for row in rows[:OPEN_SHOWN]:
        old = row["retry_of_run_id"]
        retry = f" (a retry of {old[:12]})" if old else ""
        notes.append(
            f"note: run {row['run_id'][:12]} of generation {row['generation']} is still open"
            f"{retry}; it keeps its generation: go on with it by"
            f" qinglong-sql resume {row['run_id'][:12]}{more}"
            f" or end it by qinglong-sql cancel {row['run_id'][:12]}{more}"
        )
    if len(rows) > OPEN_SHOWN:
        way = f"qinglong-sql runs --status running --package {package}{more}"
        notes.append(f"note: and more runs of old generations are open: {way}")
    return notes


def choose_target(package: Package, name: str | None) -> tuple[str, str]:
    """(kind, key) of what to run: the named one, or the only one there is.

    Raises BadParameter (exit 2) with the choices when the name is missing, Refused with them when
    it is unknown.
    """
    workflows = package.model["workflows"]
    tasks = {key: task for key, task in package.model["tasks"].items() if "/" not in key}
    if name is None:
        found = workflows or tasks
        if len(found) == 1:
            return ("workflow" if workflows else "task"), next(iter(found))
        raise click.BadParameter(
            f"say which one: {choices_of(workflows, tasks)}", param_hint="'WORKFLOW'"
        )
    if name in workflows:
        return "workflow", name
    if name in tasks:
        return "task", name
    near = did_you_mean(name, [*workflows, *tasks])
    there = choices_of(workflows, tasks)
    raise Refused(f"no workflow or task {name!r}; there are: {there}{near}")


def choices_of(workflows: Collection[str], tasks: Collection[str]) -> str:
    """What can be run, by kind; a name of both kinds means the workflow."""
    kinds = {"workflows": workflows, "tasks": tasks}
    told = [f"{kind} {', '.join(keys)}" for kind, keys in kinds.items() if keys]
    both = [name for name in workflows if name in tasks]
    if both:
        told.append(f"{', '.join(both)} is both, and means the workflow")
    return "; ".join(told)
