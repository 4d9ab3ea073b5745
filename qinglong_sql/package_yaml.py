"""YAML text becomes nodes that know their place and leave every scalar as it was written.

Built from PyYAML's events and not from its composer: that one recurses, folds duplicate keys and
has no bound on what aliases expand to.
"""

from dataclasses import dataclass
from typing import NoReturn

import yaml

from qinglong_sql.limits import PACKAGE_BYTES, YAML_ALIASES, YAML_DEPTH, YAML_NODES
from qinglong_sql.package_fault import Faults, Placed, shown

OTHER_ENCODINGS = ((b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"))
UTF8_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Place:
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Text:
    """A scalar; `plain` when it was written without quotes, so that `key:` can be told apart."""

    text: str
    plain: bool
    line: int
    column: int

    @property
    def absent(self) -> bool:
        return self.plain and not self.text


@dataclass(frozen=True, slots=True, eq=False)
class List:
    items: "list[Node]"
    line: int
    column: int


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """Pairs in the order of the file, duplicates kept."""

    pairs: "list[tuple[Node, Node]]"
    line: int
    column: int


Node = Text | List | Map
START = Place(1, 1)


class Unreadable(Exception):
    """Nothing more can be read; the fault is already told."""


def decode(raw: bytes, faults: Faults) -> str:
    """The file's text without a UTF-8 mark. Raises Unreadable when too large or not UTF-8."""
    if len(raw) > PACKAGE_BYTES:
        message = f"the file is larger than {PACKAGE_BYTES // 1024} KiB"
        _refuse(faults, "too_large", START, message)
    raw = raw.removeprefix(UTF8_MARK)
    for mark, name in OTHER_ENCODINGS:
        if raw.startswith(mark):
            _refuse(faults, "syntax", START, f"the file is {name}", "save it as UTF-8")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line_start = before.rfind(b"\n") + 1
        column = len(before[line_start:].decode("utf-8", "replace")) + 1
        place = Place(before.count(b"\n") + 1, column)
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        _refuse(faults, "syntax", place, message, "save the file as UTF-8")


def compose(text: str, faults: Faults) -> Node | None:
    """The only document in the text, None when it is empty. Raises Unreadable."""
    try:
        return _document(text, faults)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(mark.line + 1, mark.column + 1) if mark else START
        context = f" ({error.context})" if error.context else ""
        message = f"{error.problem or 'not YAML'}{context}"
        _refuse(faults, "syntax", place, message, _syntax_hint(message))
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = Place(before.count("\n") + 1, error.position - before.rfind("\n"))
        number = ord(error.character) if isinstance(error.character, str) else error.character
        _refuse(faults, "syntax", place, f"character U+{number:04X} is not allowed")
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # PyYAML lets a few of Python's own errors through, such as chr() of "\UFFFFFFFF".
        _refuse(faults, "syntax", START, f"not YAML: {shown(str(error))}")


@dataclass(slots=True)
class _Open:
    """A list or map that is being read."""

    node: List | Map
    anchor: str | None
    size_before: int
    key: Node | None = None


def _document(text: str, faults: Faults) -> Node | None:
    root: Node | None = None
    documents = aliases = size = 0
    opened: list[_Open] = []
    anchors: dict[str, tuple[Node, int]] = {}

    def place_node(node: Node) -> None:
        nonlocal root
        if not opened:
            root = node
            return
        top = opened[-1]
        if isinstance(top.node, List):
            top.node.items.append(node)
        elif top.key is None:
            top.key = node
        else:
            top.node.pairs.append((top.key, node))
            top.key = None

    for event in yaml.parse(text, Loader=yaml.BaseLoader):
        at = Place(event.start_mark.line + 1, event.start_mark.column + 1)
        size += 1
        match event:
            case yaml.DocumentStartEvent():
                documents += 1
                if documents > 1:
                    _refuse(faults, "syntax", at, "a second document begins: one package a file")
            case yaml.ScalarEvent():
                _refuse_tag(event, at, faults)
                scalar = Text(event.value, event.style is None, at.line, at.column)
                if event.anchor:
                    anchors[event.anchor] = (scalar, 1)
                place_node(scalar)
            case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                _refuse_tag(event, at, faults)
                if len(opened) == YAML_DEPTH:
                    _refuse(faults, "too_large", at, f"nested deeper than {YAML_DEPTH} levels")
                node = (List if isinstance(event, yaml.SequenceStartEvent) else Map)(
                    [], at.line, at.column
                )
                place_node(node)
                opened.append(_Open(node, event.anchor, size))
                anchors.pop(event.anchor, None)
            case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                closed = opened.pop()
                if closed.anchor:
                    anchors[closed.anchor] = (closed.node, size - closed.size_before)
            case yaml.AliasEvent():
                aliases += 1
                if aliases > YAML_ALIASES:
                    _refuse(faults, "too_large", at, f"more than {YAML_ALIASES} aliases")
                if event.anchor not in anchors:
                    message = f"alias *{event.anchor} has no finished anchor before it"
                    _refuse(faults, "syntax", at, message, _syntax_hint("scanning an alias"))
                target, target_size = anchors[event.anchor]
                size += target_size
                place_node(target)
        if size > YAML_NODES:
            _refuse(faults, "too_large", at, f"more than {YAML_NODES} values, aliases written out")
    return root


def _refuse(faults: Faults, code: str, at: Placed, message: str, hint: str = "") -> NoReturn:
    faults.add(code, "", at, message, hint)
    raise Unreadable


def _refuse_tag(event: yaml.NodeEvent, at: Placed, faults: Faults) -> None:
    if event.tag is not None:
        faults.add("syntax", "", at, f"tag {shown(event.tag)} is not supported", "leave it out")


def _syntax_hint(message: str) -> str:
    if r"'\t'" in message:
        return "indent with blanks, never with tabs"
    if "scanning an alias" in message:
        return 'text that begins with * is quoted: cron: "*/5 * * * *"'
    if "cannot start any token" in message:
        return "quote the text"
    if "mapping values are not allowed" in message:
        return 'quote text that holds ": ", and check the indentation'
    return ""
