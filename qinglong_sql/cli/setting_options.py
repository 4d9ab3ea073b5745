"""The options of a command that has settings: one for each, a file, and what shows them."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from qinglong_sql.control_log import LEVELS

F = TypeVar("F", bound=Callable[..., Any])
Option = tuple[str, str, str]  # name, metavar, words

PASSWORD_FILE: Option = (
    "password-file",
    "FILE",
    "A file that holds the login's password and nothing else; it is read at the start.",
)
BOOT_TIMEOUT: Option = ("boot-timeout", "TIME", "For each step of the boot. Default: 30s.")
STOP_TIMEOUT: Option = ("stop-timeout", "TIME", "For each other step of a stop. Default: 3s.")
LOG: tuple[Option, ...] = (
    ("log-format", "FORM", "How the lines on standard error look: text or json. Default: text."),
    ("log-level", "LEVEL", f"{', '.join(LEVELS[:-1])} or error. Default: info."),
)


def with_settings(options: Iterable[Option]) -> Callable[[F], F]:
    """An option for each of them and for the log; without one it is None."""

    def decorate(command: F) -> F:
        for name, metavar, words in reversed([*options, *LOG]):
            command = click.option(f"--{name}", metavar=metavar, help=words)(command)
        return command

    return decorate


def with_config(prefix: str, holds: str = "settings") -> Callable[[F], F]:
    """`--config`, also from the environment, and what such a file `holds`."""
    return click.option(
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar=f"{prefix}CONFIG",
        metavar="FILE",
        help=f"A TOML file with {holds}; also from {prefix}CONFIG.",
    )


with_print_settings = click.option(
    "--print-settings",
    is_flag=True,
    help="Print the settings as a TOML file, secrets hidden, and where each comes from; then end.",
)
