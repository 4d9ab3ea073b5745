"""Write what is said about keys and commands from the code that knows them.

python -m scripts.reference            write scripts/README.md's sections and the JSON Schema
python -m scripts.reference --check    exit 1 with a diff when they are not up to date
"""

import argparse
import inspect
import re
import sys
from pathlib import Path

import click

from qinglong_sql import cli, wire_document
from qinglong_sql.cli import COMMANDS
from qinglong_sql.package_keys import TASK, TASK_KEYS, THINGS, Key, Thing
from qinglong_sql.package_schema import schema_text
from scripts.freeze import ROOT, diff

PAGE = ROOT / "scripts" / "README.md"
SCHEMA = ROOT / "qinglong_sql" / "package.schema.json"
COMMAND = "python -m scripts.reference"
BEGIN, END = "<!-- generated: {} -->", "<!-- end of {} -->"
# The commands in the order in which one comes to need them; a new one that is nowhere comes last.
GROUPS = {
    "Write a package file": ("init", "check", "schema", "import-crontab", "cron"),
    "Run it": ("run", "edge", "publish", "start"),
    "Go on, or end it": ("resume", "cancel", "retry", "attempt", "withdraw"),
    "Serve a cluster": ("control", "ingress", "worker", "ca", "workers"),
    "Let the clock start it": ("schedules", "trigger"),
    "Look": ("status", "runs", "show", "watch", "events", "explain", "logs", "graph"),
    "Keep the database": ("migrate", "doctor", "purge", "backup", "restore"),
    "Be comfortable": ("completion",),
}
REST = "More"
# Options that mean the same wherever they are: told once.
SHARED = ("--dsn", "--json", "--no-color", "--utc", "--help")


def package_reference() -> str:
    """The keys of a package file, one table a mapping."""
    return "\n".join(thing_reference(thing) for thing in THINGS)


def thing_reference(thing: Thing) -> str:
    head = "| Key | Type | Default | Limits | Means | For example |\n|---|---|---|---|---|---|\n"
    rows = [key_row(key) for key in thing.keys if thing is TASK or key not in TASK_KEYS]
    if thing.name == "file":
        note = "Read by nobody: a place for anchors"
        rows.append(f"| `x-…` | anything | none | | {note} | `x-base: &base {{timeout: 1h}}` |")
    parts = [f"### {thing.title}\n\n{thing.meaning}\n"]
    if rows:
        parts.append(head + "\n".join(rows) + "\n")
    if thing is not TASK and TASK_KEYS[0] in thing.keys:
        names = ", ".join(f"`{key.name}`" for key in TASK_KEYS)
        parts.append(f"{'And as of' if rows else 'Keys are those of'} a task: {names}.\n")
    return "\n".join(parts)


def key_row(key: Key) -> str:
    cells = (f"`{key.name}`", key.kind, key.default, key.limit, key.meaning, f"`{key.example}`")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def command_reference() -> str:
    """Every command by its help, in the groups of GROUPS."""
    known = {name for names in GROUPS.values() for name in names}
    groups = {**GROUPS, REST: tuple(name for name in COMMANDS if name not in known)}
    top = click.Context(cli.main, info_name="qinglong-sql", **cli.main.context_settings)
    parts = [f"{words(cli.main)}\n", shared_options(top)]
    for title, names in groups.items():
        there = [name for name in names if name in COMMANDS]
        if there:
            parts.append(f"### {title}\n")
        for name in there:
            command = cli.main.get_command(top, name)
            if command is None:
                raise SystemExit(f"{COMMAND}: there is no command {name}")
            parts.append(one_command(command, name, top))
    return "\n".join(parts)


def one_command(command: click.Command, name: str, parent: click.Context) -> str:
    """Usage, words and options of a command; those of its own commands, if it is a group."""
    context = click.Context(command, info_name=name, parent=parent)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    lines = [f"#### `{usage}`", "", words(command), ""]
    shared = []
    for option in command.get_params(context):
        record = option.get_help_record(context)
        if record is None or not record[1]:  # an argument is in the usage, its words in the help
            continue
        long = next((one for one in option.opts if one in SHARED), "")
        if long:
            shared.append(f"`{long}`")
        else:
            lines.append(f"- `{record[0]}`: {oneline(record[1])}")
    shared = [one for one in shared if one != "`--help`"]
    if shared:
        lines.append(f"- and {', '.join(shared)}")
    if lines[-1]:
        lines.append("")
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            if found is not None and not found.hidden:
                lines.append(one_command(found, inner, context))
    return "\n".join(lines)


def shared_options(top: click.Context) -> str:
    """The options of SHARED, each as the first command says it that has it."""
    found: dict[str, str] = {}
    for name in COMMANDS:
        command = cli.main.get_command(top, name)
        if command is None:
            raise SystemExit(f"{COMMAND}: there is no command {name}")
        context = click.Context(command, info_name=name, parent=top)
        for option in command.get_params(context):
            record = option.get_help_record(context)
            for long in option.opts:
                if record is not None and long in SHARED:
                    found.setdefault(long, f"- `{record[0]}`: {oneline(record[1])}")
    rows = [found[long] for long in SHARED if long in found]
    return "Options that mean the same wherever they are:\n\n" + "\n".join(rows) + "\n"


def words(command: click.Command) -> str:
    """The help of a command as paragraphs; what click must not wrap is a block of its own."""
    parts = []
    for part in re.split(r"\n\s*\n", inspect.cleandoc(command.help or "").partition("\f")[0]):
        if part.startswith("\b"):
            parts.append("```text\n" + part.removeprefix("\b").strip("\n") + "\n```")
        elif part.startswith("#"):
            parts.append(f"`{oneline(part)}`")
        else:
            parts.append(oneline(part))
    return "\n\n".join(parts)


def oneline(text: str) -> str:
    return " ".join(text.split())


def with_section(page: str, name: str, text: str) -> str:
    """The page with what is between the markers of a section replaced."""
    begin, end = BEGIN.format(name), END.format(name)
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise SystemExit(f"{PAGE.relative_to(ROOT)} has no lines {begin} and {end}")
    return f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}"


def wanted() -> dict[Path, str]:
    """Each file that this script writes, as it should be."""
    page = with_section(PAGE.read_text(encoding="utf-8"), "package file", package_reference())
    return {
        PAGE: with_section(page, "commands", command_reference()),
        SCHEMA: schema_text(),
        wire_document.FILE: wire_document.text(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = 0
    for path, text in wanted().items():
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if old == text:
            continue
        stale += 1
        name = str(path.relative_to(ROOT))
        if check:
            print("".join(diff(old, text, name)), end="")
            print(f"{name} is not up to date: {COMMAND}")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
