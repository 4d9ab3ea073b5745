"""The command line. Commands are imported when they are called: a start stays light."""

import importlib
import os
from typing import Any

import click

import qinglong_sql
from qinglong_sql.cli.words import LINE_CHARS, complain, hush, settle_colour
from qinglong_sql.start import KILLED

COMPLETING = "_QINGLONG_SQL_COMPLETE"
SENTENCE = 200
NOT_READY = 6  # exits.Exit, which help need not import

COMMANDS = {
    "init": "init",
    "check": "package",
    "schema": "schema",
    "import-crontab": "crontab",
    "cron": "cron",
    "run": "run",
    "resume": "resume",
    "edge": "edge",
    "control": "control",
    "ingress": "ingress",
    "worker": "worker",
    "ca": "ca",
    "publish": "package",
    "withdraw": "withdraw",
    "start": "runs",
    "cancel": "cancel",
    "retry": "retry",
    "attempt": "attempt",
    "schedules": "schedules",
    "trigger": "trigger",
    "status": "status",
    "runs": "listing",
    "show": "looking",
    "watch": "watch",
    "events": "events",
    "explain": "looking",
    "logs": "logs",
    "workers": "workers",
    "graph": "graph",
    "migrate": "service",
    "doctor": "service",
    "purge": "purge",
    "backup": "backup",
    "restore": "backup",
    "completion": "completion",
}
HIDDEN = {"declare-stopped": "operator"}  # as it was called in 0.1


class Lazy(click.Group):
    """A group that knows its commands by name and imports only the one that is called."""

    misused = False

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name) or HIDDEN.get(cmd_name)
        if module is None:
            return None
        found: Any = importlib.import_module(f"qinglong_sql.cli.{module}")
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(found, f"{name}_command", None) or getattr(found, name)
        if COMPLETING in os.environ:
            from qinglong_sql.cli.completion import teach

            teach(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is called; one that is mistyped is told with the nearest."""
        name = args[0]
        if not (name in COMMANDS or name in HIDDEN or ctx.resilient_parsing or name[:1] == "-"):
            from qinglong_sql.cli.spelling import did_you_mean

            ctx.fail(f"no command {name!r}{did_you_mean(name, COMMANDS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Call the command; what click says of a wrong argument does not repeat all of it."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            self.misused = True
            if len(error.message) > LINE_CHARS:
                error.message = f"{error.message[:LINE_CHARS]} …"  # type: ignore[misc]
            raise
        except KeyboardInterrupt:  # between a command and the end
            complain("interrupted")
            raise SystemExit(KILLED) from None

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the group's own options."""
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError:
            self.misused = True
            raise

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Be the command line; help and usage as well may go where nothing can be written."""
        hold_streams()
        try:
            return super().main(*args, **kwargs)
        except OSError as error:  # commands tell of their own
            hush()
            complain(f"standard output: {error.strerror}")
            raise SystemExit(2 if self.misused else NOT_READY) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Every command with its whole first sentence: one that is cut off says nothing."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, one.get_short_help_str(SENTENCE)) for name, one in commands if one]
            )


def hold_streams() -> None:
    """Where a standard stream is closed, put /dev/null: else a file of ours would be one."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free


@click.command(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(qinglong_sql.__version__, prog_name="qinglong-sql")
@click.option("--no-color", is_flag=True, help="No colours; also NO_COLOR in the environment.")
@click.pass_context
def main(ctx: click.Context, no_color: bool) -> None:
    """Run workflows from a YAML file, on SQLite or PostgreSQL.

    Start with `qinglong-sql init`, `qinglong-sql check FILE`, then `qinglong-sql run FILE`.

    Exit codes: 0 succeeded, 1 failed, 2 bad file or usage, 3 cancelled, 4 timed out, 5 refused or
    unknown, 6 not ready, 130 killed by a second interrupt.
    """
    settle_colour(ctx, no_color)
