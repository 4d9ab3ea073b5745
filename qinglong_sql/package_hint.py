"""What would help with slips that people make in a package file: indentation, words of others."""

from collections.abc import Mapping, Sequence

from qinglong_sql.package_node import List, Map, Node, Text

AS_LIST = "write NAME: ... and not - NAME: ..."


def misplaced(key: Text, node: Node, before: str, thing: str, allowed: Sequence[str]) -> str:
    """Why something stands where a step, task, workflow or trigger is expected, or nothing.

    `before` is the key of the thing before it, `allowed` are the keys that such a thing has.
    """
    if isinstance(node, Map) or key.text not in allowed or not before:
        return ""
    return f'{key.text} is a key of a {thing}: indent it under "{before}"?'


def notes_at_top(root: Map) -> Mapping[str, str]:
    """What to do with keys that are not known at the top of a file."""
    steps = "put it under workflows: NAME:"
    notes = _bare(root, ("tasks", "workflows"), "a task? put it under tasks:")
    return {**notes, "steps": steps, "step": steps}


def notes_of_workflow(node: Node) -> Mapping[str, str]:
    """What to do with keys that are not known in a workflow."""
    bare = _bare(node, ("steps",), "a step? put it under steps:") if isinstance(node, Map) else {}
    return {**bare, "tasks": "did you mean steps?", "jobs": "did you mean steps?"}


def _bare(node: Map, sections: Sequence[str], hint: str) -> dict[str, str]:
    """The hint for every mapping that says what to execute, where its section was left out."""
    names = {key.text for key, _ in node.pairs if isinstance(key, Text)}
    if not names.isdisjoint(sections):
        return {}
    return {
        key.text: hint
        for key, value in node.pairs
        if isinstance(key, Text) and isinstance(value, Map) and _executes(value)
    }


def _executes(node: Map) -> bool:
    return any(isinstance(key, Text) and key.text in ("run", "task") for key, _ in node.pairs)


def for_list(node: Node) -> str:
    """What to write where a mapping is expected and a list is written."""
    return AS_LIST if isinstance(node, List) else ""
