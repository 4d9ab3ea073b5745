"""Every key of a package file for its readers: type, default, limits, meaning, an example.

The reference and the JSON Schema are made of this; a test holds it to what the checks know. Here
are words and shapes alone, the rules are in package_check.py and package_task.py.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from qinglong_sql import limits
from qinglong_sql.duration import write_duration
from qinglong_sql.package_check import MISFIRE, OVERLAP
from qinglong_sql.package_task import LOST_ATTEMPTS, ON_LOST, RETRY_ON
from qinglong_sql.package_value import FLAGS

Shape = dict[str, Any]
ONE_OF = ", ".join
KEY = f"^{limits.KEY_PATTERN}$"
ENV_NAME = "^(?!QL_)[A-Za-z_][A-Za-z0-9_]*$"
DURATION = (
    "^(?=.*[1-9])([0-9]{1,12}d)?([0-9]{1,12}h)?([0-9]{1,12}m(?!s))?([0-9]{1,12}s)?([0-9]{1,12}ms)?$"
)
CRON = r"^\s*(@[A-Za-z]+|\S+(\s+\S+){4,5})\s*$"
ZONE = r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$"
# A scalar is the text that was written, so an editor must not complain of a number or true.
SCALARS = ["string", "number", "boolean"]
TEXT: Shape = {"type": SCALARS, "pattern": r"\S"}
LINE: Shape = {
    "type": SCALARS,
    "pattern": r"^(?=.*\S)[^\u0000-\u001f\u007f-\u009f\u2028\u2029]*$",
    "maxLength": limits.NAME_CHARS,
}
WORD: Shape = {"type": SCALARS, "pattern": KEY}
SPAN: Shape = {"type": "string", "pattern": DURATION}
ANY: Shape = {"type": [*SCALARS, "null"]}
COMMAND: Shape = {
    "anyOf": [
        TEXT,
        {"type": "array", "minItems": 1, "prefixItems": [TEXT], "items": ANY},
    ]
}
# Quotes change nothing, so a quoted number is a number.
COUNT: Shape = {
    "anyOf": [
        {"type": "integer", "minimum": 1, "maximum": limits.MAX_ATTEMPTS},
        {"type": "string", "pattern": "^[1-9][0-9]?$"},
    ]
}
FLAG: Shape = {
    "anyOf": [{"type": "boolean"}, {"type": "string", "pattern": f"^({'|'.join(FLAGS)})$"}]
}
NEEDS: Shape = {"anyOf": [WORD, {"type": "array", "items": WORD}, {"type": "null"}]}
ENDS: Shape = {
    "anyOf": [
        {"enum": list(RETRY_ON)},
        {"type": "array", "minItems": 1, "items": {"enum": list(RETRY_ON)}},
    ]
}


def named(things: str, *, least: int = 0, most: int = 0) -> Shape:
    """A mapping from keys that the author chooses to things of one kind."""
    counts = ({"minProperties": least} if least else {}) | ({"maxProperties": most} if most else {})
    return {
        "type": "object" if least else ["object", "null"],
        "propertyNames": {"pattern": KEY},
        "additionalProperties": {"$ref": f"#/$defs/{things}"},
        **counts,
    }


@dataclass(frozen=True, slots=True)
class Key:
    """One key. `example` is YAML for it; `limit` and `default` are words, empty for none."""

    name: str
    kind: str
    meaning: str
    example: str
    shape: Shape
    default: str = ""
    limit: str = ""


@dataclass(frozen=True, slots=True)
class Thing:
    """A mapping of a package file: what it is, the keys of it, and those that are needed."""

    name: str
    title: str
    meaning: str
    keys: tuple[Key, ...]
    needed: tuple[str, ...] = ()
    more: Shape = field(default_factory=dict)


def _most(ms: int) -> str:
    return f"1ms to {write_duration(ms)}"


NAME = Key(
    "name", "text", "Words for people, in any language: kept with it; screens show keys.",
    "name: 每日报表", LINE, limit=f"one line, at most {limits.NAME_CHARS} characters",
)  # fmt: skip
RUN = Key(
    "run", "list or text", "What to execute: a list is a program and its arguments, as they are; "
    "text goes through `/bin/sh -c`.", "run: [./extract.sh, --full]", COMMAND, "needed",
    f"each argument at most {(limits.ARGUMENT_BYTES + 1) // 1024} KiB",
)  # fmt: skip
TASK_KEYS = (
    Key(
        "env", "mapping", "Environment variables: text, or `{file: path}` for a secret that is "
        "read when the step starts and never stored. `null` takes a default away.",
        "env: {MODE: full, TOKEN: {file: /run/secrets/token}}",
        {"$ref": "#/$defs/env"}, "none", "names of letters, digits and `_`; `QL_…` is taken",
    ),
    Key("cwd", "path", "The folder to run in; a relative one starts at the file's.", "cwd: jobs",
        TEXT, "the package file's folder"),
    Key(
        "timeout", "duration", "How long one attempt may take; then it is stopped and has "
        "`timed_out`.", "timeout: 15m", SPAN, "none", _most(limits.TIMEOUT_MAX_MS),
    ),
    Key("retry", "mapping", "When and how often to try again.",
        "retry: {attempts: 3, backoff: 10s}", {"$ref": "#/$defs/retry"}, "one attempt"),
    Key("idempotent", "true or false", "Whether it may run twice without harm.",
        "idempotent: true", FLAG, "`false`"),
    Key(
        "on_lost", ONE_OF(f"`{one}`" for one in ON_LOST), "What follows when its worker vanished "
        "after the start: `retry` tries again (needs `idempotent: true`), `fail` fails the step, "
        "`hold` waits for its worker, which says what it finds (then the step fails), or for "
        "`attempt declare-stopped`.", "on_lost: hold", {"enum": list(ON_LOST)}, "`fail`",
    ),
    Key("queue", "key", "Which workers take it; `run` serves all queues.", "queue: gpu", WORD,
        "`default`"),
)  # fmt: skip
RETRY = Thing(
    "retry", "Retry", "When and how often a step tries again. It replaces a default as a whole.",
    (
        Key("attempts", "whole number", "How many attempts in all, lost ones included.",
            "attempts: 5", COUNT,
            f"`1`; with `on_lost: retry` `{LOST_ATTEMPTS}`", f"1 to {limits.MAX_ATTEMPTS}"),
        Key("backoff", "duration", "The wait after the first attempt; it doubles each time.",
            "backoff: 10s", SPAN, f"`{write_duration(limits.BACKOFF_MS)}`",
            _most(limits.BACKOFF_MAX_MS)),
        Key("max_backoff", "duration",
            "The longest wait, before the jitter: every wait is up to an eighth longer, and up to "
            "5s more when the worker was lost, so that what it left comes back apart.",
            "max_backoff: 5m", SPAN,
            f"`{write_duration(limits.MAX_BACKOFF_MS)}`, or `backoff` when that is longer",
            f"`backoff` to {write_duration(limits.BACKOFF_MAX_MS)}"),
        Key("on", "list", "After which ends to try again.", "on: [failed]", ENDS,
            f"`[{', '.join(RETRY_ON)}]`", f"of {', '.join(RETRY_ON)}"),
    ),
)  # fmt: skip
TASK = Thing(
    "task", "A task", "Something to execute. Steps and triggers name it by its key.",
    (NAME, RUN, *TASK_KEYS), ("run",),
)  # fmt: skip
STEP = Thing(
    "step", "A step", "A node of a workflow: it names a task, or has the keys of a task in place.",
    (
        NAME,
        Key("task", "key", "The task to execute; then no `run` and no other key of a task here.",
            "task: extract", WORD, "needed, or `run`", "one of `tasks`"),
        Key("needs", "list", "Steps that must have succeeded before this one starts.",
            "needs: [extract, clean]", NEEDS, "none: it starts at once",
            f"steps of this workflow, no cycle, at most {limits.MAX_NEEDS}"),
        replace(RUN, default="needed, or `task`"), *TASK_KEYS,
    ),
    more={
        "anyOf": [{"required": ["task"]}, {"required": ["run"]}],
        "dependentSchemas": {
            "task": {"properties": {key.name: False for key in (RUN, *TASK_KEYS)}}
        },
    },
)  # fmt: skip
WORKFLOW = Thing(
    "workflow", "A workflow", "Steps that run in the order of their needs, in parallel otherwise.",
    (
        NAME,
        Key("timeout", "duration", "How long a whole run may take; `defaults` do not reach it.",
            "timeout: 2h", SPAN, "none", _most(limits.TIMEOUT_MAX_MS)),
        Key("steps", "mapping", "The steps by their keys.", "steps: {say: {run: [echo, hello]}}",
            named("step", least=1, most=limits.MAX_STEPS), "needed",
            f"1 to {limits.MAX_STEPS} steps"),
    ),
    ("steps",),
)  # fmt: skip
TRIGGER = Thing(
    "trigger", "A trigger", "A time at which a workflow or a task starts, where an edge or "
    "another scheduler runs.",
    (
        NAME,
        Key("cron", "cron expression", "Five fields, six with seconds first, or `@daily` and the "
            "like.", 'cron: "30 2 * * *"', {"type": "string", "pattern": CRON}, "needed"),
        Key("tz", "time zone", "The IANA zone of the expression.", "tz: Europe/Berlin",
            {"type": "string", "pattern": ZONE}, "needed", "a name of the tz database"),
        Key("workflow", "key", "The workflow to start.", "workflow: etl", WORD,
            "needed, or `task`", "one of `workflows`"),
        Key("task", "key", "The task to start.", "task: extract", WORD, "needed, or `workflow`",
            "one of `tasks`"),
        Key("misfire", ONE_OF(f"`{one}`" for one in MISFIRE), "When times were missed: start once "
            "for all of them, or not at all.", "misfire: skip", {"enum": list(MISFIRE)},
            f"`{MISFIRE[0]}`"),
        Key("overlap", ONE_OF(f"`{one}`" for one in OVERLAP), "When the last run, or a retry of "
            "it, is still open: start beside it, or not.", "overlap: skip", {"enum": list(OVERLAP)},
            f"`{OVERLAP[0]}`"),
    ),
    ("cron", "tz"),
    {"oneOf": [{"required": ["workflow"]}, {"required": ["task"]}]},
)  # fmt: skip
DEFAULTS = Thing(
    "defaults", "Defaults", "What every task has, and every step with a command of its own, unless "
    "it says it itself. `env` is put together variable by variable, `retry` is taken or replaced "
    "as a whole; `timeout` is an attempt's, never a workflow's.",
    TASK_KEYS,
)  # fmt: skip
FILE = Thing(
    "file", "The file", "One package: UTF-8, at most "
    f"{limits.PACKAGE_BYTES // 1024} KiB, with all defaults written out as well.",
    (
        Key("package", "key", "The package's key: publishing it again makes its next generation.",
            "package: nightly", WORD, "needed"),
        NAME,
        Key("defaults", "mapping", "What tasks have that do not say it themselves.",
            "defaults: {timeout: 1h}", {"$ref": "#/$defs/defaults"}, "none"),
        Key("tasks", "mapping", "Tasks by their keys, for several steps, triggers, or alone.",
            "tasks: {extract: {run: ./extract.sh}}", named("task"), "this or `workflows`"),
        Key("workflows", "mapping", "Workflows by their keys.",
            "workflows: {etl: {steps: {say: {run: [echo, hello]}}}}", named("workflow"),
            "this or `tasks`"),
        Key("triggers", "mapping", "Triggers by their keys.",
            "triggers: {night: {cron: \"@daily\", tz: UTC, task: extract}}", named("trigger"),
            "none"),
    ),
    ("package",),
    {
        "patternProperties": {
            "^x-": {"description": "Read by nobody: a place for anchors (&name), used by *name."}
        },
        "anyOf": [
            {"required": [one], "properties": {one: {"type": "object", "minProperties": 1}}}
            for one in ("tasks", "workflows")
        ],
    },
)  # fmt: skip
THINGS = (FILE, TASK, RETRY, DEFAULTS, WORKFLOW, STEP, TRIGGER)
