"""`defaults`: what every task and every step's own command has that does not say it itself.

They are merged when the file is read, so the model and its digest know nothing of them. A fault in
them is told once, at its place.
"""

from qinglong_sql import package_value as value
from qinglong_sql.limits import TIMEOUT_MAX_MS
from qinglong_sql.package_fault import Faults, path
from qinglong_sql.package_node import Map, Text
from qinglong_sql.package_task import DEFAULT_FIELDS, READ, Defaults, Model

WHERE = "defaults"
NO_WORKFLOW = "it is for one attempt of each task; a workflow says its own timeout"
TASKS_SHOWN = 5
# Keys of a task or a workflow that cannot be a default, and why.
NOT_HERE = {
    "run": "what to execute is said by each task",
    "name": "a name is one thing's own",
    "needs": "needs belong to a step",
    "tz": "a zone belongs to a trigger",
}


def read_defaults(file: value.Fields, faults: Faults) -> Defaults:
    """The defaults of a file, each of them checked like a task's own key."""
    if WHERE not in file:
        return Defaults()
    node = file[WHERE][1]
    found = value.fields(node, WHERE, DEFAULT_FIELDS, faults, notes=NOT_HERE)
    said: Model = {}
    for key in DEFAULT_FIELDS:
        if key == "timeout" and key in found:
            said[key] = value.duration(
                found[key][1], path(WHERE, key), TIMEOUT_MAX_MS, faults, NO_WORKFLOW
            )
        elif key in found:
            said[key] = READ[key](found[key][1], path(WHERE, key), faults)
    _refuse_nothing(found, said, faults)
    return Defaults(found, said)


def tell_unfit(defaults: Defaults, faults: Faults) -> None:
    """One fault for all tasks that have `on_lost: retry` by default and may not run twice."""
    if not defaults.unfit:
        return
    some = ", ".join(defaults.unfit[:TASKS_SHOWN])
    more = len(defaults.unfit) - TASKS_SHOWN
    some += f" and {more} more" if more > 0 else ""
    message = f"retry after lost work is for tasks that may run twice, which these are not: {some}"
    hint = "add `idempotent: true` here or there, or `on_lost: fail` there"
    at = defaults.found["on_lost"][1]
    faults.add("bad_value", path(WHERE, "on_lost"), at, message, hint)


def _refuse_nothing(found: value.Fields, said: Model, faults: Faults) -> None:
    node = found["env"][1] if "env" in found else None
    if not isinstance(node, Map):
        return
    for key, item in node.pairs:
        if isinstance(key, Text) and said["env"].get(key.text, "") is None:
            message = f"{key.text} is null, and a default of nothing takes nothing away"
            hint = "leave it out, or quote it to mean the text"
            faults.add("bad_value", path(path(WHERE, "env"), key.text), item, message, hint)
