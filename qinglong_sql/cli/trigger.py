"""`trigger`: what an operator does with one trigger: pause, resume, fire."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from qinglong_sql.cli.exits import repeatable, reported
from qinglong_sql.cli.options import opened, poke, with_dsn, with_json
from qinglong_sql.cli.words import print_json, say

F = TypeVar("F", bound=Callable[..., Any])


@click.group("trigger")
def trigger_command() -> None:
    """Pause, resume or fire a trigger; `schedules` lists them."""


def of_one(command: F) -> F:
    """The arguments that all of them take."""
    named = click.argument("trigger", metavar="KEY")(command)
    return click.argument("package", metavar="PACKAGE")(named)


@trigger_command.command("pause")
@of_one
@with_dsn
@with_json
@reported
def trigger_pause(package: str, trigger: str, dsn: str, as_json: bool) -> None:
    """Let a trigger fire no more until it is resumed; what it has started goes on."""
    switch("pause_trigger", package, trigger, dsn, as_json=as_json)


@trigger_command.command("resume")
@of_one
@with_dsn
@with_json
@reported
def trigger_resume(package: str, trigger: str, dsn: str, as_json: bool) -> None:
    """Let a paused trigger fire again, and try one at once that raised.

    What it missed meanwhile goes by its `misfire`: one run for all of it, or none.
    """
    switch("resume_trigger", package, trigger, dsn, as_json=as_json)


@trigger_command.command("fire")
@of_one
@click.option("--key", metavar="K", help="Fires once a key, however often it is repeated.")
@with_dsn
@with_json
@reported
def trigger_fire(package: str, trigger: str, key: str | None, dsn: str, as_json: bool) -> None:
    """Start now, once, what a trigger starts, paused or not; its next time stays."""
    with opened(dsn, writes=True) as store:
        with repeatable(key or None) as said:
            row = store.call(
                "fire_trigger", p_package_key=package, p_trigger_key=trigger, p_run_key=said
            )[0]
    poke(dsn)
    if as_json:
        print_json(row)
    else:
        already = " (there already)" * (row["outcome"] == "existing")
        say(f"{row['run_id']} {row['status']}{already}")


def switch(step: str, package: str, trigger: str, dsn: str, *, as_json: bool) -> None:
    with opened(dsn, writes=True) as store:
        row = store.call(step, p_package_key=package, p_trigger_key=trigger)[0]
    poke(dsn)
    if as_json:
        print_json({"package_key": package, **row})
    else:
        say(f"{package}/{trigger} is {row['state']}")
