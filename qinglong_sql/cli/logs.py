"""`logs`: what steps wrote, from the folders of this machine's workers and its ingress."""

from pathlib import Path

import click

from qinglong_sql.cli.alone import Lookout
from qinglong_sql.cli.exits import Refused, reported
from qinglong_sql.cli.follow import Follower
from qinglong_sql.cli.log_lack import (
    barred,
    end_of,
    named,
    not_begun,
    not_here,
    nothing_written,
    whereabouts,
)
from qinglong_sql.cli.log_lines import Show, show_for
from qinglong_sql.cli.options import opened, resolve_run, same_dsn, with_dsn, with_json
from qinglong_sql.cli.pause import Patience, until_interrupted
from qinglong_sql.cli.reasons import short
from qinglong_sql.cli.reread import steps_of, the_run
from qinglong_sql.cli.tail import Tail, live, places_of
from qinglong_sql.cli.words import Row, complain, print_json, with_color
from qinglong_sql.store import Store

SHOWN = ("run_id", "step_key", "number", "status")


@click.command()
@click.argument("run")
@click.argument("step", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on until the run, or the step, has ended.")
@click.option("--attempt", type=int, help="The attempt's number, as behind # in a prefix.")
@click.option(
    "--tail",
    "keep",
    type=click.IntRange(min=0),
    metavar="N",
    help="Begin with the last N lines of each log.",
)
@click.option("--raw", is_flag=True, help="On a terminal too: every byte as it is.")
@click.option(
    "--log-dir",
    envvar="QINGLONG_LOG_DIR",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where an ingress keeps the logs of its workers; also from QINGLONG_LOG_DIR.",
)
@with_color
@with_dsn
@with_json
@reported
def logs(
    run: str,
    step: str | None,
    follow: bool,
    attempt: int | None,
    keep: int | None,
    raw: bool,
    log_dir: Path | None,
    dsn: str,
    as_json: bool,
) -> None:
    """Print what a RUN wrote, or one STEP of it.

    Standard output and error of each step, as one. A whole run is told step by step with the name
    in front of each line, `step#7` for a second or later attempt; one STEP is told as it is, of its
    last attempt. With -f, lines come from all steps as they are written, and Ctrl-C ends only the
    looking. On a terminal what would move or erase is left away, and colours stay; in a pipe
    nothing is changed. Logs stay on the machine where the step ran, beside its worker; a remote
    worker ships them to its ingress within a second or two, and then they are there.
    """
    where = places_of(dsn, log_dir)
    with opened(dsn) as store:
        row = resolve_run(store, run)
        run_id = row["run_id"]
        steps = [one["step_key"] for one in steps_of(store, run_id)]
        if step is not None and step not in steps:
            raise Refused(f"no step {step!r} in this run; there are: {', '.join(steps)}")
        if len(steps) == 1:
            step = steps[0]
        whole = step is None and attempt is None
        show = show_for(steps if whole else None, as_json and follow, raw)
        if follow:
            follower = Follower(store, run_id, where, show, Patience(dsn),
                                Lookout(store, dsn, run_id, complain))  # fmt: skip
            with until_interrupted():
                follower.to_the_end(step, attempt, keep)
            return
        attempts = store.read("attempt_state", order="number", run_id=run_id)
        chosen = live(attempts) if whole else [choose_attempt(store, attempts, run_id, step,
                                                              attempt)]  # fmt: skip
    if not chosen:
        raise Refused("no step has started")
    tails = [Tail(where, one) for one in chosen]
    there = [tail for tail in tails if tail.found()]
    if not there and len(chosen) == 1 and (never := not_begun(chosen[0])):
        raise Refused(never)
    denied = "" if len(there) == len(tails) else barred(where)
    if not there and len(chosen) == 1 and not denied:
        at = whereabouts(chosen[0], where)
        words = f"no log of {named(chosen[0])} on this machine{f': {at}' * bool(at)}"
        raise Refused(f"{words}; {end_of(chosen[0])}")
    lacking = [tail.attempt for tail in tails if tail not in there]
    if not there:
        raise Refused(not_here(lacking, 0, denied, where))
    empty = [tail.attempt for tail in there if not tail.size() and not tail.missing()]
    if as_json:
        told = [as_row(tail, keep) for tail in there]
        print_json(told if whole else told[0])
    else:
        print_logs(there, show, keep, whole)
        if empty and len(empty) == len(there):
            complain(nothing_written(empty, same_dsn(dsn)))
    if lacking:
        complain(not_here(lacking, len(there), denied, where))


def print_logs(tails: list[Tail], show: Show, keep: int | None, whole: bool) -> None:
    """One log after the other."""
    for tail in tails:
        missing = tail.missing()
        if missing:
            of = f"the log of {named(tail.attempt)}" if whole else "this log"
            complain(f"{of} {missing}")
        tail.skip(keep)
        show.rest(tail, last=True)
        tail.close()


def as_row(tail: Tail, keep: int | None) -> Row:
    tail.skip(keep)
    text = b"".join(tail.blocks()).decode("utf-8", "replace")
    wanted = {name: tail.attempt[name] for name in SHOWN}
    return {**wanted, "path": str(tail.path), "text": text, "missing": tail.missing()}


def choose_attempt(
    store: Store, attempts: list[Row], run_id: str, step: str | None, number: int | None
) -> Row:
    """The wanted attempt, the last one of the step without a number. Raises Refused."""
    mine = [one for one in attempts if step in (None, one["step_key"])]
    if not mine:
        states = {one["step_key"]: one["status"] for one in steps_of(store, run_id)}
        run = the_run(store, run_id)
        if run["retry_of_run_id"] and states.get(step or "") == "succeeded":
            old = short(run["retry_of_run_id"])
            raise Refused(f"step {step!r} was taken over: qinglong-sql logs {old} {step}")
        raise Refused(
            f"step {step!r} has not run: it is {states[step]}"
            if step in states
            else "no step has started"
        )
    chosen = [one for one in mine if number in (None, one["number"])]
    if not chosen:
        numbers = ", ".join(str(one["number"]) for one in mine)
        of = f"step {step!r}" if step else "this run"
        raise Refused(f"{of} has no attempt {number}; it has: {numbers}")
    return chosen[-1]
