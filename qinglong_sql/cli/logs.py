"""`logs`: what a step wrote, from the folders of this machine's workers."""

import sys
from pathlib import Path

import click

from qinglong_sql.cli.exits import Refused, reported
from qinglong_sql.cli.options import opened, resolve_run, state_folder, with_dsn, with_json
from qinglong_sql.cli.words import Row, complain, print_json
from qinglong_sql.evidence import LOG_CAP_BYTES
from qinglong_sql.store import Store

BLOCK_BYTES = 1 << 16


@click.command()
@click.argument("run")
@click.argument("step", required=False)
@click.option("--attempt", type=int, help="The attempt's number; the last one when left out.")
@with_dsn
@with_json
@reported
def logs(run: str, step: str | None, attempt: int | None, dsn: str, as_json: bool) -> None:
    """Print what a STEP of a RUN wrote.

    Its standard output and error, as one.
    Logs stay on the machine where the step ran, beside its worker.
    """
    with opened(dsn) as store:
        row = resolve_run(store, run)
        chosen = choose_attempt(store, row["run_id"], step, attempt)
    path = find_log(state_folder(dsn), chosen)
    if path is None:
        raise Refused(f"no log of {named(chosen)} on this machine; it is {chosen['status']}")
    size = path.stat().st_size
    if size >= LOG_CAP_BYTES:
        complain(f"this log is full at {size} bytes: what the step wrote after them is not kept")
    if as_json:
        wanted = ("run_id", "step_key", "number", "status")
        text = path.read_bytes().decode("utf-8", "replace")
        print_json({**{name: chosen[name] for name in wanted}, "path": str(path), "text": text})
        return
    if sys.stdout is None:
        return
    with path.open("rb") as log:
        while block := log.read(BLOCK_BYTES):
            sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()


def choose_attempt(store: Store, run_id: str, step: str | None, number: int | None) -> Row:
    """The wanted attempt, the last one of the step without a number. Raises Refused."""
    steps = store.read("step_state", order="step_key", run_id=run_id)
    attempts = store.read("attempt_state", order="number", run_id=run_id)
    keys = sorted({attempt["step_key"] for attempt in attempts})
    if step is None and len(keys) == 1:
        step = keys[0]
    if step is None:
        raise Refused(f"say which step, of: {', '.join(keys)}" if keys else "no step has started")
    state = next((one["status"] for one in steps if one["step_key"] == step), None)
    if state is None:
        raise Refused(f"no step {step!r} in this run; there are: {', '.join(map(key_of, steps))}")
    mine = [attempt for attempt in attempts if attempt["step_key"] == step]
    if not mine:
        raise Refused(f"step {step!r} has not run: it is {state}")
    chosen = [attempt for attempt in mine if number in (None, attempt["number"])]
    if not chosen:
        numbers = ", ".join(str(attempt["number"]) for attempt in mine)
        raise Refused(f"step {step!r} has no attempt {number}; it has: {numbers}")
    return chosen[-1]


def key_of(step: Row) -> str:
    return str(step["step_key"])


def named(attempt: Row) -> str:
    return f"{attempt['step_key']}, attempt {attempt['number']}"


def find_log(state: Path, attempt: Row) -> Path | None:
    """The log of an ended attempt, or of one that still runs."""
    ended = f"log/{attempt['run_id']}/{attempt['step_key']}.{attempt['number']}.log"
    live = f"exec/{attempt['offer_id']}/log"
    found = (path for name in (ended, live) for path in state.glob(f"*/{name}"))
    return next((path for path in found if path.is_file()), None)
