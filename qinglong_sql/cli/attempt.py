"""`attempt`: what an operator does about one attempt that its worker cannot speak for."""

import click

from qinglong_sql.cli.operator import declare_stopped


@click.group("attempt")
def attempt_command() -> None:
    """Vouch for an attempt whose worker says nothing; `explain` names it."""


attempt_command.add_command(declare_stopped)
