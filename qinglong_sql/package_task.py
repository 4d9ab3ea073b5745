"""What to execute: a task under `tasks`, or written inline in a step."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
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
from qinglong_sql.package_node import START, List, Map, Node, Text
from qinglong_sql.package_source import file_shown, name_shown

Model = dict[str, Any]
EXECUTION_FIELDS = ("run", "env", "cwd", "timeout", "retry", "idempotent", "on_lost", "queue")
TASK_FIELDS = ("name", *EXECUTION_FIELDS)
RETRY_FIELDS = ("attempts", "backoff", "max_backoff", "on")
DEFAULT_FIELDS = tuple(one for one in EXECUTION_FIELDS if one != "run")
RETRY_ON = ("failed", "timed_out")
ON_LOST = ("retry", "fail", "hold")
LOST_ATTEMPTS = 3
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PROGRAM = re.compile(r"[\w./+-]{0,64}")
RESERVED_ENV = "QL_"


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry rule as it was written; None for what was left out."""

    attempts: int | None
    backoff_ms: int
    max_backoff_ms: int
    on: list[str] | None
    at: Placed


@dataclass(frozen=True, slots=True)
class Defaults:
    """What `defaults` says, read once; `unfit` tasks may not retry lost work as it says."""

    found: value.Fields = field(default_factory=dict)
    said: Model = field(default_factory=dict)
    unfit: list[str] = field(default_factory=list)


def task_model(
    node: Node, where: str, at: Placed, faults: Faults, defaults: Defaults, hint: str = ""
) -> Model:
    """A task of its own, under `tasks`; `hint` is for what is no mapping."""
    found = value.fields(node, where, TASK_FIELDS, faults, hint=hint)
    if not value.broken(node):
        value.required(found, "run", where, at, faults)
    model = execution(found, where, faults, defaults)
    model["name"] = value.take(found, "name", where, None, lambda n, w: value.name(n, w, faults))
    return model


def execution(found: value.Fields, where: str, faults: Faults, defaults: Defaults) -> Model:
    """The canonical task out of its fields, defaults filled in and `name` left empty.

    What the task says wins; an environment is put together key by key, a retry rule is one thing.
    """
    own = {
        key: READ[key](found[key][1], path(where, key), faults)
        for key in EXECUTION_FIELDS
        if key in found
    }
    said = {**defaults.said, **own}
    env: Model = {**defaults.said.get("env", {}), **own.get("env", {})}
    _warn_of_nothing(found, where, own.get("env", {}), defaults, faults)
    on_lost = said.get("on_lost", "fail")
    retry = said.get("retry")
    if on_lost == "retry":
        _check_lost(found, where, said.get("idempotent", False), retry, faults, defaults)
    return {
        "cwd": said.get("cwd", "."),
        "env": {key: one for key, one in env.items() if one is not None},
        "idempotent": said.get("idempotent", False),
        "name": None,
        "on_lost": on_lost,
        "queue": said.get("queue", "default"),
        "retry": _retry_model(retry, on_lost == "retry"),
        "run": said.get("run", ""),
        "timeout_ms": said.get("timeout"),
    }


def _run(node: Node, where: str, faults: Faults) -> str | list[str]:
    _hide_words(node, faults)
    if not isinstance(node, List):
        return value.full_text(node, where, faults)
    if not node.items:
        faults.add("bad_value", where, node, "the command is empty")
    words = []
    for number, item in enumerate(node.items):
        read = value.text if number else value.full_text
        words.append(read(item, f"{where}[{number}]", faults))
    return words


def _hide_words(node: Node, faults: Faults) -> None:
    """Of a command only the program is shown, where the fault is another: a word may be a token."""
    words = node.items if isinstance(node, List) else (node,)
    for number, word in enumerate(words):
        if isinstance(word, Text) and word.span and (number or not PROGRAM.fullmatch(word.text)):
            faults.hidden.append(word.span)


def _env(node: Node, where: str, faults: Faults) -> Model:
    """Variables by name; None for one that is written as null, which takes a default away.

    No message says a value, nor what stands in the place of one: it may be a password.
    """
    env: Model = {}
    for key, item in value.pairs(node, where, faults, secret=name_shown):
        name = name_shown(key.text)
        inner = path(where, name)
        if not ENV_NAME.fullmatch(key.text):
            message = f"{shown(name)} is no name for an environment variable"
            hint = "write NAME: value" if "=" in key.text else "use letters, digits and _"
            faults.add("bad_key", inner, key, message, hint)
        elif key.text.startswith(RESERVED_ENV):
            message = f"{name}: names that begin with {RESERVED_ENV} are set for each execution"
            faults.add("bad_key", inner, key, message, "choose another name")
        if isinstance(item, Map):
            env.setdefault(key.text, _file(item, inner, key, faults))
        elif isinstance(item, Text) and item.plain and item.text in value.NULLS:
            env.setdefault(key.text, None)
        else:
            env.setdefault(key.text, value.text(item, inner, faults))
    return env


def _file(node: Map, where: str, at: Placed, faults: Faults) -> Model:
    found: value.Fields = {}
    for key, item in value.pairs(node, where, faults, secret=file_shown):
        if key.text != "file":
            message = "only `file` is known here"
            faults.add("unknown_field", where, key, message, "write {file: path}")
        found.setdefault(key.text, (key, item))
    file = value.required(found, "file", where, at, faults)
    return {"file": value.full_text(file, path(where, "file"), faults) if file else ""}


def _warn_of_nothing(
    found: value.Fields, where: str, own: Model, defaults: Defaults, faults: Faults
) -> None:
    """A null that takes nothing away is most likely meant as text."""
    node = found["env"][1] if "env" in found else None
    if not isinstance(node, Map):
        return
    known = {*defaults.said.get("env", {}), *node.covered}
    for key, item in node.pairs:
        if isinstance(key, Text) and own.get(key.text, "") is None and key.text not in known:
            message = f"there is no default {key.text} that null could take away"
            hint = "leave it out, or quote it to mean the text"
            faults.warn("idle_null", path(path(where, "env"), key.text), item, f"{message}; {hint}")


def _check_lost(
    found: value.Fields,
    where: str,
    idempotent: bool,
    retry: Retry | None,
    faults: Faults,
    defaults: Defaults,
) -> None:
    """Lost work is retried by tasks that may run twice, and that have a second attempt.

    What a task says against a default is told at the task, what the defaults alone say at them.
    """
    message = "retry after lost work is for tasks that may run twice"
    hint = "add `idempotent: true`, or choose fail or hold"
    if not idempotent and "on_lost" in found:
        faults.add("bad_value", path(where, "on_lost"), found["on_lost"][1], message, hint)
    elif not idempotent and "idempotent" in found:
        hint = "add `on_lost: fail` or `on_lost: hold` here"
        line = defaults.found["on_lost"][1].line
        message += f", and on_lost is retry by the defaults (line {line})"
        faults.add("bad_value", path(where, "idempotent"), found["idempotent"][1], message, hint)
    elif not idempotent:
        defaults.unfit.append(where)
    if retry is not None and retry.attempts == 1:
        message = "one attempt leaves none for lost work"
        hint = "allow at least 2 attempts, or choose on_lost fail or hold"
        if "retry" in found:
            faults.add("bad_value", path(where, "retry.attempts"), retry.at, message, hint)
        elif "on_lost" in found:
            message = f"one attempt, by the defaults (line {retry.at.line}), leaves none for it"
            faults.add("bad_value", path(where, "on_lost"), found["on_lost"][1], message, hint)
        else:
            faults.add("bad_value", "defaults.retry.attempts", retry.at, message, hint)


def _retry(node: Node, where: str, faults: Faults) -> Retry:
    number = isinstance(node, Text) and bool(value.INTEGER.fullmatch(node.text))
    hint = "write retry: {attempts: 3}" if number else ""
    found = value.fields(node, where, RETRY_FIELDS, faults, hint=hint)

    def span(node: Node, inner: str) -> int:
        return value.duration(node, inner, BACKOFF_MAX_MS, faults)

    told = len(faults.found)
    backoff = value.take(found, "backoff", where, BACKOFF_MS, span)
    most = value.take(found, "max_backoff", where, max(MAX_BACKOFF_MS, backoff), span)
    if most < backoff and len(faults.found) == told:
        message = "max_backoff is shorter than backoff"
        faults.add("bad_value", path(where, "max_backoff"), found["max_backoff"][1], message)
    attempts = on = None
    if "attempts" in found:
        attempts = value.integer(
            found["attempts"][1], path(where, "attempts"), 1, MAX_ATTEMPTS, faults
        )
    if "on" in found:
        on = _on(found["on"][1], path(where, "on"), faults)
    return Retry(attempts, backoff, most, on, found["attempts"][1] if attempts else node)


def _retry_model(retry: Retry | None, lost: bool) -> Model:
    """The retry rule. `on_lost: retry` alone retries lost work, and only that, up to thrice in all.

    A lost attempt counts like any other one past the start barrier (DESIGN §5, §9), so a task that
    asks for it needs more than one.
    """
    on = list(RETRY_ON) if retry or not lost else []
    attempts = LOST_ATTEMPTS if lost else 1
    if retry is None:
        retry = Retry(None, BACKOFF_MS, MAX_BACKOFF_MS, None, START)
    return {
        "attempts": attempts if retry.attempts is None else retry.attempts,
        "backoff_ms": retry.backoff_ms,
        "max_backoff_ms": retry.max_backoff_ms,
        "on": on if retry.on is None else retry.on,
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


READ: dict[str, Callable[[Node, str, Faults], Any]] = {
    "run": _run,
    "env": _env,
    "cwd": value.full_text,
    "timeout": lambda node, where, faults: value.duration(node, where, TIMEOUT_MAX_MS, faults),
    "retry": _retry,
    "idempotent": value.flag,
    "on_lost": lambda node, where, faults: value.choice(node, where, ON_LOST, faults),
    "queue": _queue,
}
