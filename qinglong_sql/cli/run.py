"""`run`: publish, start, drive and wait, in one process; `resume` drives what is open already."""

import itertools
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from qinglong_sql.cli.declared import attempts_with
from qinglong_sql.cli.exits import OF_STATUS, Exit, Refused, leave, reported, told_as
from qinglong_sql.cli.interrupts import Interrupts
from qinglong_sql.cli.joining import admit, patiently
from qinglong_sql.cli.options import (
    opened,
    package_file,
    same_dsn,
    state_folder,
    with_dsn,
    with_grace,
    with_json,
    with_lease,
)
from qinglong_sql.cli.package import choose_target, load_for_runs
from qinglong_sql.cli.progress import View, view_for
from qinglong_sql.cli.runs import run_input, with_input, with_input_file
from qinglong_sql.cli.session import LEAVE_WITHIN_S, Session
from qinglong_sql.cli.steps import by_run, step_table, why
from qinglong_sql.cli.words import Row, coloured, complain, hush, print_json, say, span
from qinglong_sql.evidence import RecordBroken, read_journal
from qinglong_sql.listing import listed
from qinglong_sql.store import Store
from qinglong_sql.worker import Worker

GROUPS = ("ql_reader", "ql_admission", "ql_scheduler", "ql_worker")
F = TypeVar("F", bound=Callable[..., Any])


def with_driving(command: F) -> F:
    """The options of a command that drives a run: slots, lease_ms, grace_ms, quiet."""
    command = click.option("--quiet", is_flag=True, help="Print nothing but errors.")(command)
    command = with_grace(command)
    command = with_lease("How long a step's lease lasts without a word of its worker.")(command)
    return click.option(
        "--slots",
        type=click.IntRange(1, 1024),
        help="Steps at once; default: one a processor, at least 4.",
    )(command)


@click.command()
@package_file
@click.argument("workflow", required=False)
@with_input
@with_input_file
@click.option("--new", is_flag=True, help="Start another run even if an equal one is still open.")
@with_driving
@with_dsn
@with_json
@reported
def run(
    file: Path,
    workflow: str | None,
    pairs: tuple[str, ...],
    input_file: Path | None,
    new: bool,
    slots: int | None,
    lease_ms: int,
    grace_ms: int,
    quiet: bool,
    dsn: str,
    as_json: bool,
) -> None:
    """Run a WORKFLOW (or task) of a package FILE to its end.

    A run that was killed goes on when it is started again with the same file, workflow and input.
    The first Ctrl-C (TERM, HUP) cancels the run and waits for what runs; a second one kills it.
    """
    package = load_for_runs(file)
    kind, target = choose_target(package, workflow)
    text = run_input(pairs, input_file)
    with opened(dsn, create=True) as store:
        view = view_for(as_json, quiet)
        try:
            patiently(lambda: refuse_without_rights(store, "run"), view)
            key, more = str(uuid.uuid4()) if new else None, same_dsn(dsn)
            queues = {task["queue"] for task in package.model["tasks"].values()}
            options = {"slots": slots, "lease_ms": lease_ms, "stop_grace_ms": grace_ms}
            # Whatever is heard from here on cancels the run, which may be stored already.
            with Interrupts(None, None, LEAVE_WITHIN_S) as signals:
                row = patiently(
                    lambda: admit(store, package, kind, target, text, key, view, more),
                    view,
                    lambda: signals.count,
                )
                ended, killed = to_the_end(
                    store, dsn, row["run_id"], queues, view, signals, **options
                )
        finally:
            view.close()
        show_end(store, ended, as_json, same_dsn(dsn), quiet)
    leave(Exit.KILLED if killed else OF_STATUS[ended["status"]])


def to_the_end(
    store: Store,
    dsn: str,
    run_id: str,
    queues: Iterable[str],
    view: View,
    signals: Interrupts,
    **options: Any,
) -> tuple[Row, bool]:
    """Drive one run with a worker of its own; the run as it is then, and whether it was killed.

    `signals` are those that were listened to before it; `options` are those of a Worker.
    """
    worker = own_worker(
        store, state_folder(dsn), run_id=run_id, queues=sorted(queues), note=view.note, **options
    )
    session = patiently(lambda: Session(store, worker, run_id, view, signals), view)
    return session.to_the_end(), session.killed


def refuse_without_rights(store: Store, command: str) -> None:
    """Raise Refused, before anything is stored, when the login cannot drive a run to its end."""
    lacks = getattr(store, "lacks", None)  # an embedded database has no logins
    missing = lacks(GROUPS) if lacks else []
    if missing:
        raise Refused(
            f"this login lacks the rights of {', '.join(missing)}: `{command}` needs"
            f" `grant {', '.join(GROUPS)} to LOGIN`"
        )


def own_worker(store: Store, folder: Path, *, run_id: str, **options: Any) -> Worker:
    """A worker in a numbered folder that no other process works in.

    Folders that hold executions of this run come first: only their worker can take them over, and
    without one their leases would end. Else the lowest number, so that there are few.
    """
    for number in itertools.chain(numbers_of(folder, run_id), itertools.count()):
        known = (folder / str(number)).exists()
        worker = Worker(store, folder / str(number), run_id=run_id, **options)
        try:
            if worker.own():
                return worker
        except OSError as error:
            if not known:
                raise
            complain(f"{worker.state_dir} cannot be used and is left out: {error}")
        worker.close()
    raise AssertionError("unreachable")


def numbers_of(folder: Path, run_id: str) -> list[int]:
    """The folders in which executions of a run were journaled, by number."""
    found = set()
    for place in listed(folder):
        for execution in listed(place / "exec") if place.name.isdecimal() else ():
            with suppress(OSError, RecordBroken):  # one that goes meanwhile, or is broken
                record = read_journal(execution)
                if record is not None and record.get("run_id") == run_id:
                    found.add(int(place.name))
    return sorted(found)


def show_end(store: Store, run: Row, as_json: bool, more: str, quiet: bool = False) -> None:
    """Show the end. The exit code is the run's, whatever happens to the words.

    With `quiet` a run that has not succeeded is one line on standard error.
    """
    for last in (False, True):
        try:
            steps = store.read("step_state", order="step_key", run_id=run["run_id"])
            attempts = attempts_with(store, run["run_id"])
            shown = by_run(run, steps)
            if as_json:
                print_json({**run, "steps": steps})
            elif quiet and run["status"] != "succeeded":
                complain(in_short(run, shown, attempts, more))
            elif not quiet:
                told(run, shown, attempts, more)
        except OSError:  # nobody reads any more
            hush()
        except Exception as error:  # a lost connection comes back with the next call
            found = told_as(error)
            if found is None:
                raise
            if last:
                complain(found[1])
            continue
        return


def told(run: Row, steps: list[Row], attempts: list[Row], more: str) -> None:
    """The end for people: steps, and where to look further when it went wrong."""
    say(step_table(steps, attempts))
    took = f" after {span(run['admitted_at_ms'], run['finished_at_ms'])}"
    if run["finished_at_ms"] is None:  # killed, and a held step keeps it open
        took = " still"
    say(f"{coloured(run['status'])}{took}, run {run['run_id']}")
    last = {attempt["step_key"]: attempt for attempt in attempts}
    wrote = [one for one in failures(steps) if one["result_code"] != "executor_start_failed"]
    for step in wrote[:1]:  # what failed first is mostly why the others did
        if step["step_key"] in last:
            say(f"look: qinglong-sql logs {run['run_id'][:12]} {step['step_key']}{more}")


def in_short(run: Row, steps: list[Row], attempts: list[Row], more: str) -> str:
    """The end of a run that has not succeeded in one line: what failed first, what to type."""
    status = run["status"].replace("_", " ")
    words = f"run {run['run_id']} {'is still open' if status == 'running' else status}"
    look = f"show {run['run_id'][:12]}"
    last = {attempt["step_key"]: attempt for attempt in attempts}
    for step in failures(steps)[:1]:
        attempt = last.get(step["step_key"])
        words += f": {step['step_key']}: {why(step, attempt)}"
        if attempt and step["result_code"] != "executor_start_failed":
            look = f"logs {run['run_id'][:12]} {step['step_key']}"
    return f"{words}; look: qinglong-sql {look}{more}"


def failures(steps: list[Row]) -> list[Row]:
    """The steps that failed, as they did."""
    failed = [step for step in steps if step["status"] in ("failed", "timed_out")]
    return sorted(failed, key=lambda step: (step["finished_at_ms"] or 0, step["step_key"]))
