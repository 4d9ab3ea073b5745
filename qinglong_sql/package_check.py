"""Nodes become the canonical model of a package, with every fault told (DESIGN §2, §12)."""

from collections.abc import Collection
from dataclasses import dataclass

from qinglong_sql import package_value as value
from qinglong_sql.cron import CronFault, check_cron, check_timezone, timezone_warning
from qinglong_sql.cycle import knots
from qinglong_sql.limits import MAX_NEEDS, MAX_STEPS, TIMEOUT_MAX_MS
from qinglong_sql.package_default import read_defaults, tell_unfit
from qinglong_sql.package_fault import Faults, Placed, path, shown
from qinglong_sql.package_hint import misplaced, notes_at_top, notes_of_workflow
from qinglong_sql.package_node import START, List, Map, Node, Text
from qinglong_sql.package_task import (
    EXECUTION_FIELDS,
    TASK_FIELDS,
    Defaults,
    Model,
    execution,
    task_model,
)

FILE_FIELDS = ("package", "name", "defaults", "tasks", "workflows", "triggers")
# Keys at the top that are nobody's: a place for anchors.
FREE = "x-"
WORKFLOW_FIELDS = ("name", "timeout", "steps")
STEP_FIELDS = ("name", "task", "needs", *EXECUTION_FIELDS)
TRIGGER_FIELDS = ("name", "cron", "tz", "workflow", "task", "misfire", "overlap")
MISFIRE = ("fire_once", "skip")
OVERLAP = ("allow", "skip")
KNOT_SHOWN = 20
NO_NEEDS: list[tuple[Text, str]] = []

# Names that may be referred to; None when their section is no mapping, which is told already.
Known = Collection[str] | None


@dataclass(frozen=True, slots=True)
class Needs:
    """The needs of one step as they were written."""

    key: Text
    where: str
    items: list[tuple[Text, str]]

    def names(self) -> list[str]:
        return list(dict.fromkeys(item.text for item, _ in self.items))


def package_model(root: Node | None, faults: Faults) -> Model:
    """The model of the whole file; worthless unless no fault was found."""
    if root is None or (isinstance(root, Text) and root.absent):
        message = "the file is empty: it says `package` and has `tasks` or `workflows`"
        faults.add("missing_field", "package", START, message)
        return {}
    if not isinstance(root, Map):
        kind = "a list" if isinstance(root, List) else "text"
        faults.add("wrong_type", "", root, f"a package file is a mapping, this one is {kind}")
        return {}
    found = value.fields(root, "", FILE_FIELDS, faults, also=FREE, notes=notes_at_top(root))
    value.required(found, "package", "", START, faults)
    defaults = read_defaults(found, faults)
    tasks: Model = {}
    for key, node, where in value.section(found, "tasks", "", faults):
        hint = misplaced(key, node, next(reversed(tasks), ""), "task", TASK_FIELDS)
        tasks.setdefault(key.text, task_model(node, where, key, faults, defaults, hint))
    known_tasks = None if value.broken_field(found, "tasks") else frozenset(tasks)
    workflows: Model = {}
    for key, node, where in value.section(found, "workflows", "", faults):
        model, inline = _workflow(node, where, key, known_tasks, faults, defaults)
        workflows.setdefault(key.text, model)
        for step, task in inline.items():
            tasks.setdefault(f"{key.text}/{step}", task)
    tell_unfit(defaults, faults)
    known_workflows = None if value.broken_field(found, "workflows") else frozenset(workflows)
    if not tasks and not workflows and known_tasks is not None and known_workflows is not None:
        message = "a package has at least one task or workflow"
        faults.add("missing_field", "tasks", found["tasks"][0] if "tasks" in found else START,
                   message)  # fmt: skip
    triggers: Model = {}
    for key, node, where in value.section(found, "triggers", "", faults):
        model = _trigger(node, where, key, known_tasks, known_workflows, faults)
        triggers.setdefault(key.text, model)
    return {
        "name": _name(found, "", faults),
        "package": value.take(found, "package", "", "", lambda n, w: _package(n, w, faults)),
        "tasks": tasks,
        "triggers": triggers,
        "workflows": workflows,
    }


def _package(node: Node, where: str, faults: Faults) -> str:
    key = value.full_text(node, where, faults)
    if isinstance(node, Text) and key.strip():
        value.check_key(node, where, faults)
    return key


def _name(found: value.Fields, where: str, faults: Faults) -> str | None:
    return value.take(found, "name", where, None, lambda n, w: value.name(n, w, faults))


def _workflow(
    node: Node, where: str, at: Text, known_tasks: Known, faults: Faults, defaults: Defaults
) -> tuple[Model, Model]:
    """A workflow, and its inline tasks by step."""
    found = value.fields(node, where, WORKFLOW_FIELDS, faults, notes=notes_of_workflow(node))
    needs: list[Needs] = []
    steps: Model = {}
    inline: Model = {}
    before = ""
    for key, step_node, inner in value.section(found, "steps", where, faults):
        hint = misplaced(key, step_node, before, "step", STEP_FIELDS)
        before = before if hint else key.text
        read = value.fields(step_node, inner, STEP_FIELDS, faults, hint=hint)
        items = value.take(read, "needs", inner, NO_NEEDS, lambda n, w: value.texts(n, w, faults))
        needs.append(Needs(key, inner, items))
        if not value.broken(step_node):
            _check_task_or_run(read, inner, key, faults)
        if "task" in read:
            task = _reference(read, "task", inner, known_tasks, faults)
        else:
            task = f"{at.text}/{key.text}"
            inline.setdefault(key.text, execution(read, inner, faults, defaults))
        steps.setdefault(
            key.text,
            {
                "name": _name(read, inner, faults),
                "needs": sorted(needs[-1].names()),
                "task": task,
            },
        )
    steps_where = path(where, "steps")
    place: Placed = found["steps"][0] if "steps" in found else at
    if not steps and not value.broken(node) and not value.broken_field(found, "steps"):
        faults.add("no_steps", steps_where, place, "a workflow has at least one step")
    if len(steps) > MAX_STEPS:
        message = f"{len(steps)} steps, and the limit is {MAX_STEPS}"
        faults.add("too_many_steps", steps_where, place, message)
    _check_graph(needs, faults)
    model = {
        "name": _name(found, where, faults),
        "steps": steps,
        "timeout_ms": value.take(
            found, "timeout", where, None, lambda n, w: value.duration(n, w, TIMEOUT_MAX_MS, faults)
        ),
    }
    return model, inline


def _check_task_or_run(read: value.Fields, where: str, at: Placed, faults: Faults) -> None:
    if "task" not in read and "run" not in read:
        message = "a step says what to execute"
        hint = "name a task with `task`, or give a command with `run`"
        faults.add("missing_field", path(where, "run"), at, message, hint)
    if "task" in read:
        for field in EXECUTION_FIELDS:
            if field in read:
                message = f"a step that names a task has no {field} of its own"
                hint = f"move {field} to the task, or leave `task` out"
                faults.add("bad_value", path(where, field), read[field][0], message, hint)


def _reference(found: value.Fields, kind: str, where: str, known: Known, faults: Faults) -> str:
    """The name of a task or workflow, told when there is none of that name."""
    node, inner = found[kind][1], path(where, kind)
    key = value.full_text(node, inner, faults)
    if known is not None and key.strip() and key not in known:
        message = f"there is no {kind} {shown(key)}"
        faults.add(f"unknown_{kind}", inner, node, message, faults.near(key, known))
    return key


def _check_graph(needs: list[Needs], faults: Faults) -> None:
    steps: dict[str, Needs] = {}
    for step in needs:
        steps.setdefault(step.key.text, step)
    for step in needs:
        seen: dict[str, Text] = {}
        for item, where in step.items:
            if item.text == step.key.text:
                message = f"{shown(item.text)} needs itself"
                faults.add("self_need", where, item, message)
            elif item.text not in steps:
                message = f"there is no step {shown(item.text)}"
                hint = "write a list: [a, b]" if "," in item.text else ""
                hint = hint or faults.near(item.text, steps)
                faults.add("unknown_need", where, item, message, hint)
            if item.text in seen:
                message = f"{shown(item.text)} is named twice and counts once"
                faults.warn("duplicate_need", where, item, message)
            seen.setdefault(item.text, item)
        if len(seen) > MAX_NEEDS:
            message = f"{len(seen)} needs, and the limit is {MAX_NEEDS}"
            faults.add("too_many_needs", path(step.where, "needs"), step.key, message)
    for knot in knots({key: step.names() for key, step in steps.items()}):
        first, second = knot.cycle[:2]
        item, where = next(i for i in steps[first].items if i[0].text == second)
        # A graph beyond the limit may have a cycle that nobody would read to its end.
        shown_cycle = knot.cycle if len(knot.cycle) <= MAX_STEPS else (first, second, "...")
        message = "steps wait for each other: " + " -> ".join((*shown_cycle, first))
        others = [step for step in knot.steps if step not in knot.cycle]
        if others:
            more = f" and {len(others) - KNOT_SHOWN} more" if len(others) > KNOT_SHOWN else ""
            message += f" (in other cycles with them: {', '.join(others[:KNOT_SHOWN])}{more})"
        faults.add("cycle", where, item, message)


def _trigger(
    node: Node, where: str, at: Text, tasks: Known, workflows: Known, faults: Faults
) -> Model:
    found = value.fields(node, where, TRIGGER_FIELDS, faults)
    kind = "task" if "task" in found and "workflow" not in found else "workflow"
    target = ""
    if not value.broken(node):
        for field in ("cron", "tz"):
            value.required(found, field, where, at, faults)
        if kind in found:
            target = _reference(found, kind, where, tasks if kind == "task" else workflows, faults)
        else:
            message = "a trigger says what it starts"
            hint = "name a `workflow` or a `task`"
            faults.add("missing_field", path(where, "workflow"), at, message, hint)
        if "task" in found and "workflow" in found:
            message = "a trigger starts a workflow or a task, not both"
            faults.add("bad_value", path(where, "task"), found["task"][0], message)
    return {
        "cron": value.take(found, "cron", where, "", lambda n, w: _cron(n, w, faults)),
        "kind": kind,
        "misfire": value.take(
            found, "misfire", where, MISFIRE[0], lambda n, w: value.choice(n, w, MISFIRE, faults)
        ),
        "name": _name(found, where, faults),
        "overlap": value.take(
            found, "overlap", where, OVERLAP[0], lambda n, w: value.choice(n, w, OVERLAP, faults)
        ),
        "target": target,
        "tz": value.take(found, "tz", where, "", lambda n, w: _timezone(n, w, faults)),
    }


def _cron(node: Node, where: str, faults: Faults) -> str:
    expr = value.text(node, where, faults)
    if isinstance(node, Text):
        try:
            check_cron(expr)
        except CronFault as fault:
            faults.add("bad_cron", where, node, f"{shown(expr)}: {fault}")
    return " ".join(expr.split())


def _timezone(node: Node, where: str, faults: Faults) -> str:
    zone = value.text(node, where, faults)
    if isinstance(node, Text):
        try:
            check_timezone(zone)
        except CronFault as fault:
            faults.add("bad_timezone", where, node, str(fault))
        if meaning := timezone_warning(zone):
            faults.warn("odd_timezone", where, node, meaning)
    return zone
