"""`retry`: a run that takes over what succeeded in one that did not."""

import re
import shlex
from pathlib import Path
from typing import Any

import click

from qinglong_sql.canonical import derived_id
from qinglong_sql.cli.alone import edge_here, silent_words
from qinglong_sql.cli.cells import room
from qinglong_sql.cli.exits import Refused, reported
from qinglong_sql.cli.options import opened, poke, resolve_run, same_dsn, with_dsn, with_json
from qinglong_sql.cli.package import load_for_runs
from qinglong_sql.cli.reread import the_run
from qinglong_sql.cli.runs import retry_of, same_run
from qinglong_sql.cli.waiting import check_wait, wait_and_leave, with_wait
from qinglong_sql.cli.words import Row, complain, print_json, say, table
from qinglong_sql.package import Package
from qinglong_sql.publishing import publish_package
from qinglong_sql.store import SQLITE, Store

SAME = (
    "nothing was published since that run: the same tasks run again"
    " (else: cancel this run, and retry it with --file)"
)
CAUSES = {
    "not_there": "new in the workflow",
    "task_changed": "its task changed",
    "needs_changed": "its needs changed",
    "need_runs_again": "a need runs again",
}


@click.command()
@click.argument("run")
@click.option(
    "--file",
    type=click.Path(dir_okay=False, readable=False, path_type=Path),
    help="Publish this package file first: the one that was mended.",
)
@click.option("--key", help="The new run's own key: the same key again is the same run.")
@click.option(
    "--preview", is_flag=True, help="Only say what would be taken over and what would run."
)
@with_wait
@with_dsn
@with_json
@reported
def retry(
    run: str,
    file: Path | None,
    key: str | None,
    preview: bool,
    wait: bool,
    timeout: int | None,
    dsn: str,
    as_json: bool,
) -> None:
    """Start a RUN that did not succeed again, without what succeeded in it.

    Mend the package file and name it (or publish it first): the new run has the active generation
    and the old input. Steps whose result would be the same are taken over with their output; a step
    runs again when it did not succeed, when its task or its needs changed, or when one of its needs
    runs again. Without --key a run is retried once; a retry that fails can be retried in turn.
    """
    check_wait(wait, timeout)
    if preview and (wait or file or key is not None):
        raise click.UsageError(
            "--preview publishes and starts nothing: leave --file (`publish` it first),"
            " --wait and --key out"
        )
    package = None if file is None else load_for_runs(file)
    published = None
    with opened(dsn, writes=True) as store:
        again = None if key is not None else retry_of_purged(store, run)
        if again is not None:
            if file is not None:
                complain(f"{file} is not published: that run was retried already, and is purged")
            if wait:
                complain(headline(store, None, again))
                wait_and_leave(store, again["run_id"], dsn=dsn, timeout_ms=timeout, as_json=as_json)
            tell_again(store, again, dsn, as_json)
            return
        old = resolve_run(store, run)
        check_ended(old, same_dsn(dsn))
        if preview:
            show_preview(store, old, as_json)
            return
        if package is not None:
            refuse_file(store, old, package, f"{file}", key)
            answer, moved = publish_package(store, package)
            published = answer["generation"]
            if moved:
                complain(moved)
        row = start_retry(store, old, key)
        poke(dsn)
        if wait:
            complain(headline(store, old, row))
            wait_and_leave(store, row["run_id"], dsn=dsn, timeout_ms=timeout, as_json=as_json)
        new = the_run(store, row["run_id"])
        steps = takeover(store, old, new["target_id"])
        if as_json:
            print_json({**row, "retry_of_run_id": old["run_id"], "steps": steps})
            return
        say(headline(store, old, row))
        if row["outcome"] == "existing":  # what was taken over was told the first time
            if published not in (None, new["generation"]) and new["status"] == "running":
                say(keeps(new, published, same_dsn(dsn)))
            else:
                say(next_words(store, new, dsn, file))
            return
        say_steps(steps)
        say("")
        if new["status"] == "running" and new["generation"] == old["generation"]:
            say(SAME)
        say(next_words(store, new, dsn, file))


def retry_of_purged(store: Store, text: str) -> Row | None:
    """What `start_retry` answers for the whole id of a run that is gone and has a retry, or None.

    A retry with a key of its own is not found by the run's id.
    """
    run_id = f"ru{text.removeprefix('ru')}"
    if not re.fullmatch(r"ru[0-9a-f]{24}", run_id) or store.read("run_state", run_id=run_id):
        return None
    if retry_of(store, run_id) is None:
        return None
    row = store.call("start_retry", p_run_id=run_id, p_run_key=None)[0]
    return {**row, "retry_of_run_id": run_id}


def tell_again(store: Store, row: Row, dsn: str, as_json: bool) -> None:
    """What `start_retry` answered for a run that is purged."""
    if as_json:
        print_json({**row, "steps": []})
        return
    say(headline(store, None, row))
    say(next_words(store, the_run(store, row["run_id"]), dsn, None))


def check_ended(old: Row, more: str) -> None:
    """Raise Refused, as the step itself would, for a run that cannot be retried (now)."""
    if old["status"] == "running":
        way = f"qinglong-sql cancel {old['run_id'][:12]}{more}"
        raise Refused(f"run {old['run_id']} is still open; cancel it first: {way}")
    if old["status"] == "succeeded":
        raise Refused(f"run {old['run_id']} has succeeded: there is nothing to retry")


def refuse_file(store: Store, old: Row, package: Package, file: str, key: str | None) -> None:
    """Raise Refused, before anything is published, for a file or a key that is of another run."""
    if package.key != old["package_key"]:
        raise Refused(f"{file} is package {package.key}, that run is of {old['package_key']}")
    if old["target_key"] not in package.model[f"{old['kind']}s"]:
        raise Refused(f"{file} has no {old['kind']} {old['target_key']}; not published")
    if key is None:
        return
    run_id = derived_id("ru", old["package_key"], old["kind"], old["target_key"], key)
    for row in store.read("run_state", run_id=run_id):
        if row["retry_of_run_id"] != old["run_id"]:
            raise Refused(f"key {key!r} was used before, and not for a retry of this run:"
                          f" run {run_id}; nothing is published")  # fmt: skip


def start_retry(store: Store, old: Row, key: str | None) -> Row:
    """Admit the retry, or find it again. Raises Refused when the key is another run's."""
    row = store.call("start_retry", p_run_id=old["run_id"], p_run_key=key)[0]
    if row["outcome"] == "conflict":
        raise Refused(f"key {key!r} was used before, and not for a retry of this run:"
                      f" run {row['run_id']}")  # fmt: skip
    return row


def headline(store: Store, old: Row | None, row: Row) -> str:
    """What became of the command, in one line; without the old run, which is then purged."""
    old_id = row["retry_of_run_id"] if old is None else old["run_id"]
    count = len(store.read("step_state", run_id=row["run_id"]))
    words = f"generation {row['generation']}, {row['taken_over_count']} of {count} steps taken over"
    if row["outcome"] == "existing":
        gone = " (that run is purged)" * (old is None)
        return f"run {row['run_id']} retries {old_id} already{gone}: {row['status']}; {words}"
    return f"run {row['run_id']} retries {old_id}: {words}"


def keeps(new: Row, published: int, more: str) -> str:
    """That an open retry does not take up what was published after it, and what would."""
    short = new["run_id"][:12]
    return (
        f"it keeps generation {new['generation']}; for generation {published} cancel it, and retry"
        f" it when it has ended: qinglong-sql cancel {short}{more}"
    )


def next_words(store: Store, new: Row, dsn: str, file: Path | None) -> str:
    """Who drives the retry, or what to type."""
    more = same_dsn(dsn)
    if new["status"] == "succeeded":
        return "it has succeeded"
    if new["status"] != "running":
        return f"it can be retried in turn: qinglong-sql retry {new['run_id'][:12]}{more}"
    here = edge_here(dsn) if dsn.startswith(SQLITE) else None
    if silent_words(here):
        return f"this database has {silent_words(here)}"
    if here is not None:
        return f"an edge drives it; to follow: qinglong-sql show {new['run_id'][:12]}{more}"
    edge = "an edge takes it, or " if dsn.startswith(SQLITE) else ""
    name = "FILE" if file is None else shlex.quote(str(file))
    return f"to drive it: {edge}{same_run(store, new, name, more)}"


def takeover(store: Store, old: Row, target_id: str) -> list[Row]:
    """What becomes of each step: step_key, its old status, and why it runs again (None: not)."""
    own_id = old["run_id"]
    rows = store.read(
        "takeover", order="step_key", run_id=own_id, retried_run_id=own_id, target_id=target_id
    )
    before = {one["step_key"]: one for one in store.read("step_state", run_id=old["run_id"])}
    return [
        {
            "step_key": row["step_key"],
            "status": row["status"],
            "cause": row["cause"],
            "ran": before.get(row["step_key"], {}).get("attempt_count", 0) > 0,
        }
        for row in rows
    ]


def say_steps(steps: list[Row]) -> None:
    """One line a step."""
    say(
        table(
            ["STEP", "WHAT", "WHY"],
            [
                [one["step_key"], "runs" if one["cause"] else "taken over", why(one)]
                for one in steps
            ],
            wide=room(),
        )
    )


def why(step: Row) -> str:
    """Why a step runs again, in words."""
    if step["cause"] is None:
        return ""
    if step["cause"] == "not_succeeded":
        return f"{step['status'].replace('_', ' ')} before" if step["ran"] else "never ran"
    return CAUSES[step["cause"]]


def show_preview(store: Store, old: Row, as_json: bool) -> None:
    """What a retry would do now. Raises Refused where it would be refused."""
    generation, target_id = active_target(store, old)
    steps = takeover(store, old, target_id)
    known = store.read("run_state", run_id=derived_id("ru", "retry", old["run_id"]))
    if as_json:
        told: dict[str, Any] = {"run_id": old["run_id"], "generation": generation, "steps": steps}
        print_json({**told, "retried_as": known[0]["run_id"] if known else None})
        return
    kept = sum(one["cause"] is None for one in steps)
    say(f"a retry of {old['run_id']} now: generation {generation}, {kept} of {len(steps)} steps"
        " would be taken over")  # fmt: skip
    say_steps(steps)
    gone = {one["step_key"] for one in store.read("step_state", run_id=old["run_id"])}
    gone -= {one["step_key"] for one in steps}
    if gone:
        say(f"no longer in the workflow: {', '.join(sorted(gone))}")
    if generation == old["generation"]:
        say("nothing was published since that run; what was mended is published by --file")
    if known:
        say(f"it was retried already, as {known[0]['run_id']}: {known[0]['status']}")


def active_target(store: Store, old: Row) -> tuple[int, str]:
    """Generation and target of a retry now. Raises Refused, as the step itself would."""
    package = old["package_key"]
    active = store.read("package_state", package_key=package, state="active")
    if not active:
        raise Refused(f"no active package {package}")
    generation = int(active[0]["generation"])
    found = store.read(
        "target_state",
        package_key=package,
        generation=generation,
        kind=old["kind"],
        target_key=old["target_key"],
    )
    if not found:
        raise Refused(f"no {old['kind']} {old['target_key']} in package {package}")
    return generation, str(found[0]["target_id"])
