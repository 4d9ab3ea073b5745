"""Commands about a package file: check, publish, graph."""

import os
from pathlib import Path
from typing import Any

import click

from qinglong_sql.cli.exits import Exit, Refused, leave, reported
from qinglong_sql.cli.options import opened, package_file, resolve_run, with_dsn, with_json
from qinglong_sql.cli.words import complain, plain_signs, print_json, say
from qinglong_sql.graph import mermaid, text_graph
from qinglong_sql.package import Package, load_package
from qinglong_sql.package_fault import PackageFaults
from qinglong_sql.store import Store


@click.command()
@package_file
@with_json
@reported
def check(file: Path, as_json: bool) -> None:
    """Check a package FILE: `ok`, or all its faults (exit 2)."""
    try:
        package = load_package(file)
    except PackageFaults as faults:
        if not as_json:
            raise
        print_json({"ok": False, "errors": [fault.as_json() for fault in faults.faults]})
        leave(Exit.BAD_FILE)
    warnings = [fault.as_json() for fault in package.warnings]
    if as_json:
        print_json({"ok": True, "errors": [], "warnings": warnings, "digest": package.digest})
        return
    for fault in package.warnings:
        complain(f"warning: {fault.render(str(file))}")
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
    package = load_package(file)
    with opened(dsn, create=True) as store:
        row = publish_package(store, package)
    if as_json:
        print_json(row)
        return
    said = "published" if row["outcome"] == "published" else "already active"
    say(f"{row['package_key']} generation {row['generation']} {said}")


def publish_package(store: Store, package: Package) -> dict[str, Any]:
    """Publish a checked package; the same content again is a replay (DESIGN §5)."""
    return store.call(
        "publish_package",
        p_package_key=package.key,
        p_manifest=package.manifest,
        p_base_dir=str(package.base_dir),
    )[0]


@click.command()
@click.argument("subject", metavar="FILE|RUN")
@click.argument("workflow", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "mermaid"]),
    default="text",
    show_default=True,
    help="text for terminals, mermaid for documents.",
)
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII signs only.")
@with_dsn
@with_json
@reported
def graph(
    subject: str, workflow: str | None, form: str, ascii_only: bool, dsn: str, as_json: bool
) -> None:
    """Draw the steps of a FILE or a RUN.

    A FILE's workflow is drawn as it is written, a RUN's with the states of its steps.
    """
    if is_file(subject):
        steps, needs, states = of_file(Path(subject), workflow)
    elif workflow is not None:
        raise Refused("a run has one workflow; only a FILE may have several to choose from")
    else:
        steps, needs, states = of_run(dsn, subject)
    if as_json:
        print_json({"steps": steps, "needs": needs, "states": states})
    elif form == "mermaid":
        say(mermaid(steps, needs, states).rstrip("\n"))
    else:
        drawn = text_graph(steps, needs, states, ascii=ascii_only or plain_signs())
        say(drawn.rstrip("\n"))


def is_file(subject: str) -> bool:
    """Whether FILE is meant and not RUN: no run's id looks like a path or a YAML file."""
    return (
        "/" in subject or subject.endswith((".yaml", ".yml")) or os.path.exists(subject)  # noqa: PTH110
    )


Drawn = tuple[list[str], dict[str, list[str]], dict[str, str] | None]


def of_file(file: Path, workflow: str | None) -> Drawn:
    """Steps and needs of the named workflow, or of the only one."""
    package = load_package(file)
    kind, target = choose_target(package, workflow)
    if kind == "task":
        return ["main"], {"main": []}, None
    steps = package.model["workflows"][target]["steps"]
    return list(steps), {key: list(step["needs"]) for key, step in steps.items()}, None


def of_run(dsn: str, text: str) -> Drawn:
    """Steps, needs and states of a run."""
    with opened(dsn) as store:
        run = resolve_run(store, text)
        rows = store.read("step_state", order="step_key", run_id=run["run_id"])
        pairs = store.read("step_need", order="step_key, need_key", run_id=run["run_id"])
    needs: dict[str, list[str]] = {row["step_key"]: [] for row in rows}
    for pair in pairs:
        needs[pair["step_key"]].append(pair["need_key"])
    return list(needs), needs, {row["step_key"]: row["status"] for row in rows}


def choose_target(package: Package, name: str | None) -> tuple[str, str]:
    """(kind, key) of what to run: the named one, or the only one there is.

    Raises Refused with the choices when the name is unknown or missing.
    """
    workflows = package.model["workflows"]
    tasks = {key: task for key, task in package.model["tasks"].items() if "/" not in key}
    if name is None:
        found = workflows or tasks
        if len(found) == 1:
            return ("workflow" if workflows else "task"), next(iter(found))
        raise Refused(f"say which one to run: {', '.join(found)}")
    if name in workflows:
        return "workflow", name
    if name in tasks:
        return "task", name
    raise Refused(f"no workflow or task {name!r}; there are: {', '.join([*workflows, *tasks])}")
