"""Waiting for a run that somebody else drives: `start --wait`, `retry --wait`."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from qinglong_sql.cli.alone import Lookout, nobody_drives
from qinglong_sql.cli.exits import OF_STATUS, Exit, Refused, leave, told_as
from qinglong_sql.cli.options import Duration, same_dsn
from qinglong_sql.cli.reread import the_run
from qinglong_sql.cli.words import Row, complain
from qinglong_sql.duration import write_duration
from qinglong_sql.errors import Displaced
from qinglong_sql.limits import IDLE_GROWTH, IDLE_STANDALONE_MS
from qinglong_sql.store import Store

FIRST_MS = 50
F = TypeVar("F", bound=Callable[..., Any])


def with_wait(command: F) -> F:
    """The options --wait and --timeout; the command gets `wait` and `timeout` (ms or None)."""
    command = click.option(
        "--timeout",
        type=Duration(),
        metavar="D",
        help="With --wait: wait no longer than this (90s, 2h); the run goes on, exit 6.",
    )(command)
    return click.option(
        "--wait", is_flag=True, help="Wait for the end; the exit code is then the run's."
    )(command)


def check_wait(wait: bool, timeout: int | None) -> None:
    """Refuse --timeout without --wait. Raises UsageError."""
    if timeout is not None and not wait:
        raise click.UsageError("--timeout needs --wait")


def wait_and_leave(
    store: Store, run_id: str, *, dsn: str, timeout_ms: int | None, as_json: bool
) -> None:
    """Wait, show the end as `run` does, and leave with the run's exit code. Never returns.

    Ctrl-C ends the waiting alone.
    """
    try:
        row = wait_for(store, run_id, dsn=dsn, timeout_ms=timeout_ms)
    except KeyboardInterrupt:
        complain(
            f"no longer waiting; run {run_id} goes on"
            f" (qinglong-sql cancel {run_id[:12]}{same_dsn(dsn)} would end it)"
        )
        leave(Exit.KILLED)
    except TimeoutError as error:
        complain(str(error))
        leave(Exit.NOT_READY)
    from qinglong_sql.cli.run import show_end  # the rest of `run` is not needed before

    show_end(store, row, as_json, same_dsn(dsn))
    leave(OF_STATUS[row["status"]])


def wait_for(store: Store, run_id: str, *, dsn: str, timeout_ms: int | None = None) -> Row:
    """The run's row once it has ended. A database that is away is waited for as well.

    Says once on standard error when nobody seems to drive the database. Raises TimeoutError when
    the time is over, what `the_run` does for what is gone, and what is no trouble of the database.
    """
    began, pause, told = time.monotonic(), FIRST_MS / 1000, ""
    lookout = Lookout(store, dsn, run_id, complain)
    while True:
        try:
            run = the_run(store, run_id)
            if run["status"] != "running":
                return run
            lookout.look()
            told = ""
        except (Refused, Displaced):
            raise
        except Exception as error:
            found = told_as(error)
            if found is None:
                raise
            if found[1] != told:
                told = found[1]
                complain(f"trying again: {told}")
        waited_ms = (time.monotonic() - began) * 1000
        if timeout_ms is not None and waited_ms >= timeout_ms:
            words = f"run {run_id} is still running after {write_duration(timeout_ms)}"
            alone = nobody_drives(store, dsn, run_id)
            raise TimeoutError(f"{words}; {alone or 'it goes on'}")
        left = pause if timeout_ms is None else min(pause, (timeout_ms - waited_ms) / 1000)
        time.sleep(max(left, 0.001))
        pause = min(pause * IDLE_GROWTH, IDLE_STANDALONE_MS / 1000)
