"""What to execute: a task under `tasks`, or written inline in a step."""

import re
from typing import Any

from qinglong_sql import package_value as value
from qinglong_sql.limits import (
    BACKOFF_MAX_MS,
    BACKOFF_MS,
    MAX_ATTEMPTS,
    MAX_BACKOFF_MS,
    TIMEOUT_MAX_MS,
)
from qinglong_sql.package_fault import Faults, Placed, path, shown
from qinglong_sql.package_yaml import List, Map, Node, Text

Model = dict[str, Any]
EXECUTION_FIELDS = ("run", "env", "cwd", "timeout", "retry", "idempotent", "on_lost", "queue")
TASK_FIELDS = ("name", *EXECUTION_FIELDS)
RETRY_FIELDS = ("attempts", "backoff", "max_backoff", "on")
RETRY_ON = ("failed", "timed_out")
ON_LOST = ("retry", "fail", "hold")
LOST_ATTEMPTS = 3
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RESERVED_ENV = "QL_"
NO_ENV: Model = {}
NULLS = ("null", "Null", "NULL", "~")  # nothing to YAML, but all scalars here are text
NO_RUN: str | list[str] = ""


def task_model(node: Node, where: str, at: Placed, faults: Faults) -> Model:
    """A task of its own, under `tasks`."""
    found = value.fields(node, where, TASK_FIELDS, faults)
    if not value.broken(node):
        value.required(found, "run", where, at, faults)
    model = execution(found, where, faults)
    model["name"] = value.take(found, "name", where, None, lambda n, w: value.name(n, w, faults))
    return model


def execution(found: value.Fields, where: str, faults: Faults) -> Model:
    """The canonical task out of its fields, defaults filled in and `name` left empty."""
    idempotent = value.take(
        found, "idempotent", where, False, lambda n, w: value.flag(n, w, faults)
    )
    on_lost = value.take(
        found, "on_lost", where, "fail", lambda n, w: value.choice(n, w, ON_LOST, faults)
    )
    if on_lost == "retry" and not idempotent:
        message = "retry after lost work is for tasks that may run twice"
        hint = "add `idempotent: true`, or choose fail or hold"
        faults.add("bad_value", path(where, "on_lost"), found["on_lost"][1], message, hint)
    return {
        "cwd": value.take(found, "cwd", where, ".", lambda n, w: value.full_text(n, w, faults)),
        "env": value.take(found, "env", where, NO_ENV, lambda n, w: _env(n, w, faults)),
        "idempotent": idempotent,
        "name": None,
        "on_lost": on_lost,
        "queue": value.take(found, "queue", where, "default", lambda n, w: _queue(n, w, faults)),
        "retry": _retry(found, where, on_lost, faults),
        "run": value.take(found, "run", where, NO_RUN, lambda n, w: _run(n, w, faults)),
        "timeout_ms": value.take(
            found, "timeout", where, None, lambda n, w: value.duration(n, w, TIMEOUT_MAX_MS, faults)
        ),
    }


def _run(node: Node, where: str, faults: Faults) -> str | list[str]:
    if not isinstance(node, List):
        if isinstance(node, Text) and node.plain and node.text in NULLS:
            message = f"{node.text} would be the name of a program, not nothing"
            faults.add("bad_value", where, node, message, "write what to execute, or quote it")
        return value.full_text(node, where, faults)
    if not node.items:
        faults.add("bad_value", where, node, "the command is empty")
    words = []
    for number, item in enumerate(node.items):
        read = value.text if number else value.full_text
        words.append(read(item, f"{where}[{number}]", faults))
    return words


def _env(node: Node, where: str, faults: Faults) -> Model:
    env: Model = {}
    for key, item in value.pairs(node, where, faults):
        inner = path(where, key.text)
        if not ENV_NAME.fullmatch(key.text):
            message = f"{shown(key.text)} is no name for an environment variable"
            faults.add("bad_key", inner, key, message, "use letters, digits and _")
        elif key.text.startswith(RESERVED_ENV):
            message = f"{key.text}: names that begin with {RESERVED_ENV} are set for each execution"
            faults.add("bad_key", inner, key, message, "choose another name")
        if isinstance(item, Map):
            found = value.fields(item, inner, ("file",), faults)
            file = value.required(found, "file", inner, key, faults)
            here = path(inner, "file")
            env.setdefault(key.text, {"file": value.full_text(file, here, faults) if file else ""})
        else:
            env.setdefault(key.text, value.text(item, inner, faults))
    return env


def _retry(task: value.Fields, task_where: str, on_lost: str, faults: Faults) -> Model:
    """The retry rule. `on_lost: retry` alone retries lost work, and only that, up to thrice in all.

    A lost attempt counts like any other one past the start barrier (DESIGN §5, §9), so a task that
    asks for it needs more than one.
    """
    where = path(task_where, "retry")
    lost = on_lost == "retry"
    attempts = LOST_ATTEMPTS if lost else 1
    on = [] if lost and "retry" not in task else list(RETRY_ON)
    found = value.fields(task["retry"][1], where, RETRY_FIELDS, faults) if "retry" in task else {}

    def span(node: Node, inner: str) -> int:
        return value.duration(node, inner, BACKOFF_MAX_MS, faults)

    told = len(faults.found)
    backoff = value.take(found, "backoff", where, BACKOFF_MS, span)
    most = value.take(found, "max_backoff", where, max(MAX_BACKOFF_MS, backoff), span)
    if most < backoff and len(faults.found) == told:
        message = "max_backoff is shorter than backoff"
        faults.add("bad_value", path(where, "max_backoff"), found["max_backoff"][1], message)
    attempts = value.take(
        found,
        "attempts",
        where,
        attempts,
        lambda n, w: value.integer(n, w, 1, MAX_ATTEMPTS, faults),
    )
    if lost and attempts == 1:
        message = "one attempt leaves none for lost work"
        hint = "allow at least 2 attempts, or choose on_lost fail or hold"
        faults.add("bad_value", path(where, "attempts"), found["attempts"][1], message, hint)
    return {
        "attempts": attempts,
        "backoff_ms": backoff,
        "max_backoff_ms": most,
        "on": value.take(found, "on", where, on, lambda n, w: _on(n, w, faults)),
    }


def _on(node: Node, where: str, faults: Faults) -> list[str]:
    read = value.texts(node, where, faults)
    if not read and not (isinstance(node, Map) or (isinstance(node, List) and node.items)):
        faults.add("bad_value", where, node, f"name at least one of {', '.join(RETRY_ON)}")
    return sorted({value.choice(item, inner, RETRY_ON, faults) for item, inner in read})


def _queue(node: Node, where: str, faults: Faults) -> str:
    queue = value.full_text(node, where, faults)
    if isinstance(node, Text) and queue.strip():
        value.check_key(node, where, faults)
    return queue
