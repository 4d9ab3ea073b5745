"""`graph`: a picture of a workflow or of a run."""

import os
from pathlib import Path

import click

from qinglong_sql.cli.exits import Refused, reported
from qinglong_sql.cli.options import opened, resolve_run, with_dsn, with_json
from qinglong_sql.cli.package import choose_target
from qinglong_sql.cli.words import plain_signs, print_json, say
from qinglong_sql.graph import mermaid, text_graph
from qinglong_sql.package import load_package


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
