"""`schema`: the JSON Schema of a package file, for editors."""

from pathlib import Path

import click

import qinglong_sql
from qinglong_sql.cli.exits import reported
from qinglong_sql.cli.words import say

FILE = Path(qinglong_sql.__file__).with_name("package.schema.json")


@click.command()
@reported
def schema() -> None:
    """Print the JSON Schema of a package file.

    Editors with a YAML language server complete and explain keys by it. Save it beside the package
    file, and make this the first line there:

    # yaml-language-server: $schema=package.schema.json
    """
    say(FILE.read_text(encoding="utf-8").rstrip("\n"))
