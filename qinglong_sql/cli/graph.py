"""`graph`: a picture of a workflow or of a run."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import click

from qinglong_sql.cli.cells import room
from qinglong_sql.cli.exits import BadFile, Refused, reported
from qinglong_sql.cli.options import opened, resolve_run, with_dsn, with_json
from qinglong_sql.cli.package import choose_target
from qinglong_sql.cli.reread import steps_of
from qinglong_sql.cli.words import Row, coloured, plain_signs, print_json, say, span, with_color
from qinglong_sql.graph import mermaid
from qinglong_sql.package import load_package
from qinglong_sql.whole_file import NoFile, write_whole

FORMATS = ("text", "mermaid", "dot", "svg")
OF_SUFFIX = {
    ".txt": "text", ".mmd": "mermaid", ".md": "mermaid", ".dot": "dot", ".gv": "dot", ".svg": "svg",
}  # fmt: skip
DOWN = {"auto": None, "down": True, "right": False}


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a picture is made of; `states` and `notes` are of runs."""

    title: str
    steps: list[str]
    needs: dict[str, list[str]]
    states: dict[str, str] | None = None
    notes: dict[str, str] = field(default_factory=dict)


@click.command()
@click.argument("subject", metavar="FILE|RUN")
@click.argument("workflow", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="text for terminals (the default), mermaid for documents, dot for Graphviz, svg as it is.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file; its ending (.svg .dot .mmd .txt) says the format.",
)
@click.option(
    "--direction",
    type=click.Choice(tuple(DOWN)),
    default="auto",
    show_default=True,
    help="Where a picture goes from its first steps; auto is what fits a page.",
)
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw text with ASCII signs only.")
@with_color
@with_dsn
@with_json
@reported
def graph(
    subject: str,
    workflow: str | None,
    form: str | None,
    output: Path | None,
    direction: str,
    ascii_only: bool,
    dsn: str,
    as_json: bool,
) -> None:
    """Draw the steps of a FILE or a RUN.

    A FILE's workflow is drawn as it is written, a RUN's with the states of its steps: as a colour,
    a sign, a word and a shape or stroke.
    """
    form = form or format_of(output)
    if output and output.exists() and is_file(subject) and output.samefile(subject):
        raise Refused(f"{output} is the file that is drawn: choose another name")
    if is_file(subject):
        drawn = of_file(Path(subject), workflow)
    elif workflow is not None:
        raise Refused("a run has one workflow; only a FILE may have several to choose from")
    else:
        drawn = of_run(dsn, subject)
    if as_json:
        print_json({"steps": drawn.steps, "needs": drawn.needs, "states": drawn.states})
        return
    wide = None if output else room()
    text = picture(
        drawn, form, DOWN[direction], ascii_only or (output is None and plain_signs()), wide
    )
    if output is None:
        say(text.rstrip("\n"))
        return
    try:
        write_whole(output, text.encode(), replace=True, streams=True)
    except NoFile:
        raise
    except OSError as error:
        raise BadFile(f"{output}: {error.strerror}") from error


def format_of(output: Path | None) -> str:
    """The format that a file's ending says; text when it has none, or there is no file.

    Raises BadParameter for an ending that says something else.
    """
    ending = output.suffix if output else ""
    if ending and ending.lower() not in OF_SUFFIX:
        raise click.BadParameter(
            f"{ending} says no format that is drawn here: name it {', '.join(OF_SUFFIX)},"
            " or give --format",
            param_hint="'-o' / '--output'",
        )
    return OF_SUFFIX.get(ending.lower(), "text")


def picture(drawn: Drawn, form: str, down: bool | None, ascii_only: bool, wide: int | None) -> str:
    """The picture in one of FORMATS; text is at most `wide` columns, and coloured with it."""
    steps, needs, states = drawn.steps, drawn.needs, drawn.states
    match form:
        case "svg":
            from qinglong_sql.graph_svg import svg

            return svg(steps, needs, states, notes=drawn.notes, title=drawn.title, down=down)
        case "dot":
            from qinglong_sql.graph_dot import dot

            return dot(steps, needs, states, title=drawn.title, down=down is not False)
        case "mermaid":
            return mermaid(steps, needs, states, down=down is not False)
    from qinglong_sql.graph_text import text_graph

    if wide is None:
        return text_graph(steps, needs, states, ascii=ascii_only)
    return text_graph(steps, needs, states, ascii=ascii_only, wide=wide, paint=coloured)


def is_file(subject: str) -> bool:
    """Whether FILE is meant and not RUN: no run's id looks like a path or a YAML file."""
    return (
        "/" in subject or subject.endswith((".yaml", ".yml")) or os.path.exists(subject)  # noqa: PTH110
    )


def of_file(file: Path, workflow: str | None) -> Drawn:
    """Steps and needs of the named workflow, or of the only one."""
    package = load_package(file)
    kind, target = choose_target(package, workflow)
    title = f"{package.key} / {target}"
    if kind == "task":
        return Drawn(title, ["main"], {"main": []})
    steps = package.model["workflows"][target]["steps"]
    return Drawn(title, list(steps), {key: list(step["needs"]) for key, step in steps.items()})


def of_run(dsn: str, text: str) -> Drawn:
    """Steps, needs and states of a run."""
    with opened(dsn) as store:
        run = resolve_run(store, text)
        rows = steps_of(store, run["run_id"])
        pairs = store.read("step_need", order="step_key, need_key", run_id=run["run_id"])
    needs: dict[str, list[str]] = {row["step_key"]: [] for row in rows}
    for pair in pairs:
        needs[pair["step_key"]].append(pair["need_key"])
    return Drawn(
        f"{run['package_key']} / {run['target_key']}: {run['run_id']}, {run['status']}",
        list(needs),
        needs,
        {row["step_key"]: row["status"] for row in rows},
        {row["step_key"]: note(row) for row in rows},
    )


def note(step: Row) -> str:
    """How long a step took and how often it was tried, where there is something to say."""
    said = []
    if step["started_at_ms"] is not None and step["finished_at_ms"] is not None:
        said.append(span(step["started_at_ms"], step["finished_at_ms"]))
    if step["attempt_count"] > 1:
        said.append(f"{step['attempt_count']} attempts")
    return ", ".join(said)
