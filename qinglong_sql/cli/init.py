"""`init`: a commented first package file that runs as it is."""

import re
import shlex
from pathlib import Path

import click

from qinglong_sql.cli.exits import Refused, reported
from qinglong_sql.cli.options import with_json
from qinglong_sql.cli.words import print_json, say
from qinglong_sql.limits import KEY_CHARS, KEY_PATTERN
from qinglong_sql.package_value import NULLS
from qinglong_sql.whole_file import write_whole

FALLBACK = "jobs"
TEMPLATE = """\
# A package: tasks, workflows and triggers that are published together.
#   qinglong-sql check {file}   # ok, or every fault with its place
#   qinglong-sql run {file}     # publish it and run it now
# An editor completes and explains the keys when `qinglong-sql schema > package.schema.json` is
# beside this file and its first line is:  # yaml-language-server: $schema=package.schema.json
package: {package}

# What every task has that does not say it itself.
defaults:
  timeout: 10m  # of one attempt: 250ms, 30s, 15m, 1h30m, 1d
  env: {{GREETING: hello}}

# Tasks that several steps or triggers share; a step may also say what to run itself.
tasks:
  greet:
    name: Say hello  # words for people, in any language
    run: echo "$GREETING from $(uname -n)"  # text is for the shell, a list [ls, -l] is not
    # A secret is the path of a file, read when the step starts and never stored:
    # env: {{TOKEN: {{file: /run/secrets/token}}}}

workflows:
  main:
    timeout: 1h  # of the whole run
    steps:
      greet: {{task: greet}}
      count:
        # JSON that is written to $QL_OUTPUT is read from $QL_INPUT by the steps that need this one.
        run: |
          echo '{{"lines": 3}}' > "$QL_OUTPUT"
      flaky:
        run: '[ "$QL_TRY" -ge 2 ]'  # fails once, and is tried again
        retry: {{attempts: 3, backoff: 1s}}
      report:
        needs: [greet, count, flaky]  # the others start at once
        run: cat "$QL_INPUT"

# Triggers say when. They are checked and stored; nothing fires them yet.
# triggers:
#   every-night: {{cron: "30 2 * * *", tz: Europe/Berlin, workflow: main}}
"""


def valid_key(ctx: click.Context, param: click.Parameter, text: str | None) -> str | None:
    """Refuse what cannot be a package's key (DESIGN §12)."""
    if text is None or re.fullmatch(KEY_PATTERN, text):
        return text
    raise click.BadParameter(
        f"up to {KEY_CHARS} of A-Z a-z 0-9 _ . - and a letter, digit or _ first"
    )


@click.command()
@click.argument(
    "file", metavar="[FILE]", default="jobs.yaml",
    type=click.Path(dir_okay=False, readable=False, path_type=Path),
)  # fmt: skip
@click.option(
    "--package", metavar="KEY", callback=valid_key,
    help="The package's key; the folder's name without this.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@with_json
@reported
def init(file: Path, package: str | None, force: bool, as_json: bool) -> None:
    """Write a commented first package FILE.

    It is jobs.yaml when none is named, and runs as it is: steps side by side, one that is tried
    again, and one that needs them all.
    """
    folder = file.absolute().parent
    if not folder.is_dir():
        raise Refused(f"there is no folder {file.parent}")
    name = folder.resolve().name
    key = package or key_of(name)
    written = f'"{key}"' if key in NULLS else key
    # one that begins with a dash would be read as an option
    shown = shlex.quote(f"./{file}" if str(file).startswith("-") else str(file))
    # A name that would break out of its comment line is not repeated there.
    named = shown if shown.isprintable() else "FILE"
    try:
        write_whole(file, TEMPLATE.format(file=named, package=written).encode(), replace=force)
    except FileExistsError:
        raise Refused(f"{file} is there already; --force writes over it") from None
    if as_json:
        print_json({"file": str(file), "package": key})
        return
    made = package or key_of(name) != FALLBACK or name == FALLBACK
    why = "" if made else " (this folder's name makes no key; --package KEY names it otherwise)"
    say(f"wrote {file}, package {key}{why}")
    say(f"next: qinglong-sql check {shown}, then qinglong-sql run {shown}")


def key_of(name: str) -> str:
    """A folder's name as a key: what a key may not hold becomes a dash."""
    found = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).lstrip("-.")[:KEY_CHARS].rstrip("-.")
    return found or FALLBACK
