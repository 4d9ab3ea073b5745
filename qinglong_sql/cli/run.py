"""`run`: publish, start, drive and wait, in one process."""

import itertools
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from qinglong_sql.canonical import digest
from qinglong_sql.cli.exits import OF_STATUS, Exit, leave, reported, told_as
from qinglong_sql.cli.looking import step_table, waits
from qinglong_sql.cli.options import (
    opened,
    package_file,
    same_dsn,
    state_folder,
    with_dsn,
    with_json,
)
from qinglong_sql.cli.package import choose_target, publish_package
from qinglong_sql.cli.progress import View, Watch, view_for
from qinglong_sql.cli.runs import (
    request_cancel,
    run_input,
    start_run,
    with_input,
    with_input_file,
)
from qinglong_sql.cli.words import Row, coloured, hush, print_json, say, span
from qinglong_sql.drive import drain, drive
from qinglong_sql.execution import GRACE_MS
from qinglong_sql.limits import LEASE_MAX_MS, LEASE_MIN_MS, LEASE_MS
from qinglong_sql.package import Package, load_package
from qinglong_sql.scheduler import StageFailed
from qinglong_sql.store import Store
from qinglong_sql.worker import Worker

IDLE_MS = 250
KILL_WITHIN_MS = 5_000
GRACE_MAX_MS = 5 * 60 * 1000
TELL_AGAIN_MS = 10_000


@click.command()
@package_file
@click.argument("workflow", required=False)
@with_input
@with_input_file
@click.option("--new", is_flag=True, help="Start another run even if an equal one is still open.")
@click.option("--slots", type=click.IntRange(1, 1024), help="Steps at once; default: 4 or more.")
@click.option(
    "--lease-ms",
    type=click.IntRange(LEASE_MIN_MS, LEASE_MAX_MS),
    default=LEASE_MS,
    show_default=True,
    help="How long a step's lease lasts without a word of its worker.",
)
@click.option(
    "--grace-ms",
    type=click.IntRange(0, GRACE_MAX_MS),
    default=GRACE_MS,
    show_default=True,
    help="How long a step that is to stop has between TERM and KILL.",
)
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
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
    The first Ctrl-C (or TERM) cancels the run and waits for what runs; a second one kills it.
    """
    package = load_package(file)
    kind, target = choose_target(package, workflow)
    text = run_input(pairs, input_file)
    with opened(dsn, create=True) as store:
        view = view_for(as_json, quiet)
        try:
            row = admit(store, package, kind, target, text, new, view)
            queues = sorted({task["queue"] for task in package.model["tasks"].values()})
            worker = own_worker(
                store,
                state_folder(dsn) / "worker",
                queues=queues,
                slots=slots,
                lease_ms=lease_ms,
                stop_grace_ms=grace_ms,
                run_id=row["run_id"],
            )
            session = Session(store, worker, row["run_id"], view)
            ended = session.to_the_end()
        finally:
            view.close()
        try:
            if as_json:
                print_json(summary(store, ended))
            elif not quiet:
                told(store, ended, same_dsn(dsn))
        except OSError:  # nobody reads any more; the run has ended all the same
            hush()
    leave(Exit.KILLED if session.killed else OF_STATUS[ended["status"]])


def admit(
    store: Store, package: Package, kind: str, target: str, text: str, new: bool, view: View
) -> Row:
    """Publish, then find the open run of the same content and input, or admit one."""
    generation = publish_package(store, package)["generation"]
    found = store.read(
        "target_state",
        package_key=package.key,
        generation=generation,
        kind=kind,
        target_key=target,
    )
    same = store.read(
        "run_state",
        order="admitted_at_ms desc",
        limit=1,
        target_id=found[0]["target_id"],
        input_digest=digest(text),
        status="running",
    )
    if same and not new:
        view.note(f"going on with run {same[0]['run_id']} (--new starts another)")
        return same[0]
    row = start_run(store, package.key, kind, target, None, text)
    view.note(f"run {row['run_id']}")
    return row


def own_worker(store: Store, folder: Path, **options: Any) -> Worker:
    """A worker in the first numbered folder that no other process works in.

    The lowest number is taken first, so that a `run` that is started again finds its executions.
    """
    for number in itertools.count():
        worker = Worker(store, folder / str(number), **options)
        if worker.own():
            return worker
        worker.close()
    raise AssertionError("unreachable")


class Session:
    """Drives one run until it has ended, and listens to interrupts meanwhile."""

    def __init__(self, store: Store, worker: Worker, run_id: str, view: View) -> None:
        self.store = store
        self.worker = worker
        self.run_id = run_id
        self.view = view
        self.watch = Watch(store, run_id, view)
        self.interrupts = 0
        self.asked = False
        self.killed = False
        self.told, self.told_ms = "", 0
        self.wake_read, self.wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def to_the_end(self) -> Row:
        """Drive; returns the run as it is then, terminal unless a second interrupt came."""
        before = {
            number: signal.signal(number, self.interrupted)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            drive(
                self.store,
                self.worker,
                self.ended,
                idle_ms=IDLE_MS,
                on_error=self.failed,
                wake=self.wake_read,
            )
            self.let_go()
        finally:
            for number, action in before.items():
                signal.signal(number, action)
            with suppress(Exception):  # an ended session is a courtesy; its lease ends anyway
                self.worker.close()
            os.close(self.wake_read)
            os.close(self.wake_write)
        return self.watch.run

    def interrupted(self, number: int, frame: object) -> None:
        """A signal: only count it, and end the wait; the loop does the rest."""
        self.interrupts += 1
        os.write(self.wake_write, b".")

    def ended(self) -> bool:
        """Whether to stop driving."""
        if self.interrupts and not self.asked:
            self.asked = True
            self.cancel()
        run = self.watch.look(now_ms())
        return self.interrupts > 1 or run["status"] != "running"

    def cancel(self) -> None:
        request_cancel(self.store, self.run_id)
        self.worker.renew_soon()
        held = [row for row in waits(self.store, self.run_id) if row["waits_for"] == "report"]
        names = ", ".join(row["step_key"] for row in held)
        words = f"cancelling; waiting for: {names}" if names else "cancelling"
        self.view.note(f"{words} (again: kill at once)")

    def failed(self, error: Exception) -> None:
        cause = error.__cause__ if isinstance(error, StageFailed) else error
        found = told_as(cause or error)
        words = found[1] if found else f"{type(cause).__name__}: {cause}"
        if words != self.told or now_ms() - self.told_ms >= TELL_AGAIN_MS:
            self.told, self.told_ms = words, now_ms()
            self.view.note(f"trying again: {words}")

    def let_go(self) -> None:
        """Kill what is left after a second interrupt; wait for executions of other runs."""
        if self.watch.run["status"] == "running":
            self.killed = True
            self.view.note("killing what runs")
            self.worker.stop("interrupt", grace_ms=0)
            drain(self.store, self.worker, within_ms=KILL_WITHIN_MS, idle_ms=IDLE_MS)
            if self.watch.look(now_ms())["status"] == "running":
                self.view.note("the run is still open: the same command goes on with it")
        elif self.worker.busy():
            self.view.note(f"waiting for {self.worker.busy()} executions of other runs")
            drain(
                self.store,
                self.worker,
                idle_ms=IDLE_MS,
                wake=self.wake_read,
                within_ms=24 * 3600 * 1000,
            )


def now_ms() -> int:
    return int(time.time() * 1000)


def summary(store: Store, run: Row) -> dict[str, Any]:
    """The run with its steps, for `--json`."""
    steps = store.read("step_state", order="step_key", run_id=run["run_id"])
    return {**run, "steps": steps}


def told(store: Store, run: Row, more: str) -> None:
    """The end for people: steps, and where to look further when it went wrong."""
    steps = store.read("step_state", order="step_key", run_id=run["run_id"])
    attempts = store.read("attempt_state", order="number", run_id=run["run_id"])
    say(step_table(steps, attempts))
    took = span(run["admitted_at_ms"], run["finished_at_ms"])
    say(f"{coloured(run['status'])} after {took}, run {run['run_id']}")
    failed = [step["step_key"] for step in steps if step["status"] in ("failed", "timed_out")]
    if failed:
        say(f"look: qinglong-sql logs {run['run_id'][:12]} {failed[0]}{more}")
