"""How `run` comes to its run: it publishes, and joins the open one of its content or starts it."""

import time
from collections.abc import Callable
from typing import TypeVar

from qinglong_sql.canonical import derived_id, digest
from qinglong_sql.cli.exits import is_lost, told_as
from qinglong_sql.cli.package import still_open
from qinglong_sql.cli.progress import View
from qinglong_sql.cli.runs import start_run
from qinglong_sql.cli.words import Row
from qinglong_sql.drive import GIVE_UP_MS
from qinglong_sql.package import Package
from qinglong_sql.publishing import publish_package
from qinglong_sql.store import Store

AGAIN_S = 0.5
T = TypeVar("T")


def patiently(ask: Callable[[], T], view: View, enough: Callable[[], object] | None = None) -> T:
    """What `ask` answers; a connection that is lost is waited for, as while the run is driven.

    Raises what time cannot mend, the loss itself after a minute, and KeyboardInterrupt when it is
    lost and somebody has `enough` of it.
    """
    end: float | None = None
    while True:
        try:
            return ask()
        except Exception as error:
            if not is_lost(error) or (end is not None and time.monotonic() >= end):
                raise
            if enough and enough():
                raise KeyboardInterrupt from error
            found = told_as(error)
            if end is None:
                end = time.monotonic() + GIVE_UP_MS / 1000
                view.note(f"trying again: {found[1] if found else error}")
            time.sleep(AGAIN_S)


def admit(
    store: Store,
    package: Package,
    kind: str,
    target: str,
    text: str,
    key: str | None,
    view: View,
    more: str,
) -> Row:
    """Publish, then find the open run of the same content and input, or admit one.

    With a key it is that run. It can be called again when nobody knows what became of it.
    """
    published, moved = publish_package(store, package)
    generation = published["generation"]
    if moved:
        view.note(moved)
    for words in still_open(store, package.key, generation, more, kind=kind, target_key=target):
        view.note(words)
    found = store.read(
        "target_state",
        package_key=package.key,
        generation=generation,
        kind=kind,
        target_key=target,
    )
    if key is None:
        row = joined(store, found[0], text)
    else:
        row = start_run(store, package.key, kind, target, key, text)
    if row.get("outcome", "existing") == "existing":
        view.note(f"going on with run {row['run_id']} (--new starts another)")
    else:
        view.note(f"run {row['run_id']}")
    return row


def joined(store: Store, target: Row, text: str) -> Row:
    """The open run of a target with this input; one is admitted when there is none.

    Two who find none at the same moment start one: its key follows from the last such run.
    """
    which = {"target_id": target["target_id"], "input_digest": digest(text)}
    last = store.read("run_state", order="admitted_at_ms desc, run_id", limit=1, **which)
    same = store.read("open_run", order="admitted_at_ms desc, run_id", limit=1, **which)
    if same:
        return same[0]
    after = last[0]["run_id"] if last else ""
    while True:
        row = start_run(
            store,
            target["package_key"],
            target["kind"],
            target["target_key"],
            derived_id("ru", "run", which["target_id"], which["input_digest"], after),
            text,
        )
        if row["outcome"] == "created" or row["status"] == "running":
            return row
        after = row["run_id"]  # it ended since we looked; or was admitted by a clock set back
