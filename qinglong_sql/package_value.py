"""Readers of single values in a package file: each tells its faults and reads on.

A reader that found a fault returns a harmless stand-in, since a file with a fault has no model.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from qinglong_sql.canonical import refuse_text
from qinglong_sql.duration import DurationFault, read_duration
from qinglong_sql.limits import ARGUMENT_BYTES, KEY_CHARS, KEY_PATTERN, NAME_CHARS
from qinglong_sql.package_fault import Faults, Placed, path, shown
from qinglong_sql.package_hint import for_list
from qinglong_sql.package_node import List, Map, Node, Text, hide
from qinglong_sql.package_source import ENV_KEY

T = TypeVar("T")
Fields = dict[str, tuple[Text, Node]]
NO_NOTES: Mapping[str, str] = {}
KEY = re.compile(KEY_PATTERN)
INTEGER = re.compile(r"0|[1-9][0-9]{0,17}")
NULLS = ("null", "Null", "NULL", "~")  # nothing to YAML, but all scalars here are text
FLAGS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
# What people write who come from other systems.
OTHER_WORDS = {
    "after": "needs", "command": "run", "cmd": "run", "depends": "needs", "depends_on": "needs",
    "dependson": "needs", "dir": "cwd", "environment": "env", "exec": "run", "jobs": "workflows",
    "retries": "retry", "schedule": "cron", "schedules": "triggers", "script": "run",
    "timezone": "tz", "working_dir": "cwd", "workdir": "cwd",
}  # fmt: skip


Name = Callable[[str], str]


def pairs(
    node: Node, where: str, faults: Faults, secret: Name | None = None, hint: str = ""
) -> Iterator[tuple[Text, Node]]:
    """The pairs of a mapping, duplicates included but told; nothing written counts as empty.

    What a place for a mapping holds instead is not shown; `secret` is what may be shown of a key.
    """
    if isinstance(node, Text) and node.absent:
        return
    if not isinstance(node, Map):
        hide(node, faults, "" if secret else where.rpartition(".")[2])
        kind = "text" if isinstance(node, Text) else "a list"
        faults.add("wrong_type", where, node, f"expected a mapping, found {kind}", hint)
        return
    seen: dict[str, Text] = {}
    for key, value in node.pairs:
        if not isinstance(key, Text):
            hide(key, faults)
            hide(value, faults)
            faults.add("bad_key", where, key, f"a key must be text, not {_kind(key)}")
            continue
        if first := seen.get(key.text):
            name = secret(key.text) if secret else key.text
            message = f"{shown(name)} is already there on line {first.line}"
            faults.add("duplicate_key", path(where, name), key, message)
        seen.setdefault(key.text, key)
        yield key, value


def fields(
    node: Node,
    where: str,
    allowed: Sequence[str],
    faults: Faults,
    also: str = "",
    notes: Mapping[str, str] = NO_NOTES,
    hint: str = "",
) -> Fields:
    """The known fields of a mapping, the first of duplicates.

    Keys that begin with `also` are left alone; `notes` say why a key is not to be had here, `hint`
    what would help when this is no mapping.
    """
    found: Fields = {}
    for key, value in pairs(node, where, faults, hint=hint):
        if key.text in allowed:
            found.setdefault(key.text, (key, value))
            continue
        if also and key.text.startswith(also):
            continue
        hide(value, faults, "" if ENV_KEY.fullmatch(key.text) else key.text)
        other = OTHER_WORDS.get(key.text.lower(), "env" if ENV_KEY.fullmatch(key.text) else "")
        help_ = notes.get(key.text, "") or (f"did you mean {other}?" if other in allowed else "")
        help_ = help_ or faults.near(key.text, allowed) or "known here: " + ", ".join(allowed)
        message = f"{shown(key.text)} is not known here"
        faults.add("unknown_field", path(where, key.text), key, message, help_)
    return found


def keyed(node: Node, where: str, faults: Faults) -> Iterator[tuple[Text, Node, str]]:
    """The entries of a mapping whose keys the author chose, each with its path."""
    by_lower: dict[str, Text] = {}
    for key, value in pairs(node, where, faults, hint=for_list(node)):
        inner = path(where, key.text)
        check_key(key, inner, faults)
        first = by_lower.setdefault(key.text.lower(), key)
        if first.text != key.text:
            message = (
                f"{shown(key.text)} on line {key.line} and {shown(first.text)} on line "
                f"{first.line} differ only by case"
            )
            faults.add("duplicate_key", inner, key, message)
        yield key, value, inner


def section(
    found: Fields, field: str, where: str, faults: Faults
) -> Iterator[tuple[Text, Node, str]]:
    """The entries of `tasks`, `workflows`, `triggers` or `steps`, none when it is not there."""
    if field in found:
        yield from keyed(found[field][1], path(where, field), faults)


def broken(node: Node) -> bool:
    """Whether a mapping was expected and something else was written, which is told already."""
    return not isinstance(node, Map) and not (isinstance(node, Text) and node.absent)


def broken_field(found: Fields, field: str) -> bool:
    return field in found and broken(found[field][1])


def check_key(key: Text, where: str, faults: Faults) -> str:
    """Tell a key that is outside DESIGN §12's rule, and how to call the thing as one likes."""
    if KEY.fullmatch(key.text):
        return key.text
    message = (
        f"{shown(key.text)} cannot be a key: up to {KEY_CHARS} of A-Z a-z 0-9 _ . - "
        "and a letter, digit or _ first"
    )
    faults.add("bad_key", where, key, message, "give it a plain key and put these words in `name`")
    return key.text


def take(found: Fields, field: str, where: str, default: T, read: Callable[[Node, str], T]) -> T:
    """The field's value as `read` finds it, or the default when it is not there."""
    return read(found[field][1], path(where, field)) if field in found else default


def required(found: Fields, field: str, where: str, at: Placed, faults: Faults) -> Node | None:
    if field in found:
        return found[field][1]
    faults.add("missing_field", path(where, field), at, f"{field} is missing")
    return None


def text(node: Node, where: str, faults: Faults) -> str:
    """A scalar as it was written; one that a database or the kernel would refuse is told."""
    if not isinstance(node, Text):
        faults.add("wrong_type", where, node, f"expected text, found {_kind(node)}")
        return ""
    if reason := refuse_text(node.text):
        faults.add("bad_value", where, node, f"the text {reason}")
    elif len(node.text) > ARGUMENT_BYTES // 4 and len(node.text.encode()) > ARGUMENT_BYTES:
        faults.add("too_large", where, node, f"the text is longer than {ARGUMENT_BYTES} bytes")
    return node.text


def full_text(node: Node, where: str, faults: Faults) -> str:
    """Text that says something; empty when it does not, or is null."""
    if isinstance(node, Text) and not node.text.strip():
        code = "wrong_type" if node.absent else "bad_value"
        faults.add(code, where, node, "has no value", "leave the key out or give it one")
    elif isinstance(node, Text) and node.plain and node.text in NULLS:
        message = f"{node.text} would be a text, not nothing"
        faults.add("bad_value", where, node, message, "leave the key out, or quote it")
        return ""
    return text(node, where, faults)


def name(node: Node, where: str, faults: Faults) -> str:
    """Free text for people, in any language: one line of at most NAME_CHARS characters."""
    found = full_text(node, where, faults)
    if len(found) > NAME_CHARS:
        message = f"a name has at most {NAME_CHARS} characters, this one has {len(found)}"
        faults.add("bad_value", where, node, message)
    if any(unicodedata.category(c) in ("Cc", "Zl", "Zp") and c != "\0" for c in found):
        faults.add("bad_value", where, node, "a name is one line without control characters")
    return found


def duration(node: Node, where: str, most_ms: int, faults: Faults, hint: str = "") -> int:
    """Milliseconds."""
    found = full_text(node, where, faults)
    if found.strip():
        try:
            return read_duration(found, most_ms)
        except DurationFault as fault:
            faults.add("bad_duration", where, node, f"{shown(found)}: {fault}", hint)
    return 1


def integer(node: Node, where: str, low: int, high: int, faults: Faults) -> int:
    found = full_text(node, where, faults)
    if not found.strip():
        return low
    if not INTEGER.fullmatch(found):
        message = f"expected a whole number, found {shown(found)}"
        faults.add("wrong_type", where, node, message, "write decimal digits, no zero in front")
        return low
    if not low <= int(found) <= high:
        faults.add("bad_value", where, node, f"{found} is not between {low} and {high}")
    return int(found)


def flag(node: Node, where: str, faults: Faults) -> bool:
    found = full_text(node, where, faults)
    if found.strip() and found not in FLAGS:
        message = f"expected true or false, found {shown(found)}"
        faults.add("wrong_type", where, node, message)
    return FLAGS.get(found, False)


def choice(node: Node, where: str, options: Sequence[str], faults: Faults) -> str:
    found = full_text(node, where, faults)
    if found.strip() and found not in options:
        message = f"{shown(found)} is not one of {', '.join(options)}"
        faults.add("bad_value", where, node, message, faults.near(found, options))
    return found


def texts(node: Node, where: str, faults: Faults) -> list[tuple[Text, str]]:
    """A list of text, or one text alone, each with its path; nothing written is an empty list."""
    if isinstance(node, Text):
        return [] if node.absent else [(node, where)]
    if isinstance(node, Map):
        faults.add("wrong_type", where, node, "expected a list of text, found a mapping")
        return []
    found = []
    for number, item in enumerate(node.items):
        inner = f"{where}[{number}]"
        if isinstance(item, Text):
            found.append((item, inner))
        else:
            faults.add("wrong_type", inner, item, f"expected text, found {_kind(item)}")
    return found


def _kind(node: Node) -> str:
    if isinstance(node, List):
        return "a list"
    if isinstance(node, Map):
        return "a mapping"
    return "nothing" if node.absent else f"the text {shown(node.text)}"
