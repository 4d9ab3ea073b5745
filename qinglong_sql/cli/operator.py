"""What only a person can say: attempt declare-stopped."""

import re
from typing import Any

import click

from qinglong_sql.cli.alone import worker_lives
from qinglong_sql.cli.exits import Refused, reported
from qinglong_sql.cli.options import opened, poke, resolve_run, same_dsn, with_dsn, with_json
from qinglong_sql.cli.reread import steps_of, the_run
from qinglong_sql.cli.runs import user_name
from qinglong_sql.cli.words import Row, moment, now_ms, print_json, say
from qinglong_sql.store import Span, Store


@click.command(name="declare-stopped")
@click.argument("attempt")
@click.option("--reason", required=True, help="How you know; it is kept, with your name.")
@click.option(
    "--then",
    "follow",
    type=click.Choice(["retry", "fail"]),
    help="What follows; by the task's on_lost when left out (hold: it fails).",
)
@click.option(
    "--force", is_flag=True, help="Although its worker lives here, or spoke within its lease."
)
@with_dsn
@with_json
@reported
def declare_stopped(
    attempt: str, reason: str, follow: str | None, force: bool, dsn: str, as_json: bool
) -> None:
    """Vouch that an ATTEMPT has no process any more.

    For what its worker cannot say: `on_lost: hold`, or a machine that is gone. `explain` shows the
    attempts of a run. Look first: what still runs goes on running, and with --then retry beside
    its repetition.
    """
    with opened(dsn, writes=True) as store:
        found = resolve_attempt(store, attempt)
        if not force:
            refuse_living(found, dsn)
        row = store.call(
            "declare_stopped",
            p_attempt_id=found["attempt_id"],
            p_reason=reason,
            p_actor=user_name(),
            p_follow=follow,
        )[0]
        poke(dsn)
        run = the_run(store, found["run_id"])
        steps = {one["step_key"]: one for one in steps_of(store, found["run_id"])}
        step = steps[found["step_key"]]
    if row["outcome"] == "contended":
        raise Refused(f"{found['attempt_id']} is held by somebody else; try again")
    if row["outcome"] != "applied":
        raise Refused(
            f"{found['attempt_id']} is {found['status']}; only what has started and not ended can"
            " be declared stopped, once"
        )
    if as_json:
        print_json({**row, "step_key": step["step_key"], "step_status": step["status"]})
        return
    say(f"{row['attempt_id']} declared stopped: it is {row['status']}")
    follows = "an edge, or `run` with the same file, goes on"
    if run["status"] != "running":
        follows = f"the run has ended, {run['status']}"
    say(f"step {step['step_key']} is {step['status']}; {follows}")


def refuse_living(attempt: Row, dsn: str) -> None:
    """Raise Refused for an attempt with a lease that stands, unless its worker is known to be gone.

    A worker renews its leases for as long as it lives: one of another machine is believed.
    """
    now, until = now_ms(), attempt["lease_expires_at_ms"]
    if attempt["lease_status"] != "leased" or until <= now:
        return
    lives = worker_lives(dsn, attempt["worker_id"])
    if lives is False or attempt["status"] not in ("starting", "running"):
        return
    where = "lives on this machine" if lives else "may live on another machine"
    raise Refused(
        f"{attempt['attempt_id']}: its worker {attempt['worker_id']} {where}, and its lease runs"
        f" until {moment(until, now)}: `qinglong-sql cancel {attempt['run_id'][:12]}"
        f"{same_dsn(dsn)}` stops it; when the worker is gone, wait until then,"
        " or --force if you know better"
    )


def resolve_attempt(store: Store, text: str) -> dict[str, Any]:
    """The one attempt whose id begins with this text; RUN-NUMBER does with the beginning of a run.

    Raises Refused for none or several.
    """
    run, dash, number = text.rpartition("-")
    if dash and number.isdigit():
        text = f"{resolve_run(store, run)['run_id']}-{number}"
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,36}", text):
        raise Refused(f"{text!r} is not the id of an attempt or the beginning of one")
    found = store.read("attempt_state", order="attempt_id", limit=6, attempt_id=Span.prefix(text))
    exact = [row for row in found if row["attempt_id"] == text]
    if exact or len(found) == 1:
        return (exact or found)[0]
    if not found:
        raise Refused(f"no attempt begins with {text!r}; `qinglong-sql explain RUN` names them")
    some = ", ".join([row["attempt_id"] for row in found[:5]] + ["and more"] * (len(found) > 5))
    raise Refused(f"{text!r} is the beginning of several attempts: {some}; give more of it")
