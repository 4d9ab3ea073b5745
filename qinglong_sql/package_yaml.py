"""YAML text becomes nodes that know their place and leave every scalar as it was written.

Built from PyYAML's events and not from its composer: that one recurses, folds duplicate keys and
has no bound on what aliases expand to.
"""

from dataclasses import dataclass, field
from typing import NoReturn

import yaml

from qinglong_sql.limits import PACKAGE_BYTES, YAML_ALIASES, YAML_DEPTH, YAML_NODES
from qinglong_sql.package_fault import Faults, Placed, path, shown
from qinglong_sql.package_node import (
    MERGE_KEY,
    START,
    List,
    Map,
    Node,
    Place,
    Text,
    brought,
    height,
    texts_of,
    write_merges_out,
)
from qinglong_sql.package_source import ENV_KEY, Hidden, file_shown, name_shown
from qinglong_sql.package_syntax import explained, quoted_sign

OTHER_ENCODINGS = ((b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"))
UTF8_MARK = b"\xef\xbb\xbf"


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
    reader = _Reader(faults)
    try:
        for event in yaml.parse(text, Loader=yaml.BaseLoader):
            reader.take(event)
    except yaml.MarkedYAMLError as error:
        _refuse(faults, "syntax", *explained(error, text))
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = Place(before.count("\n") + 1, error.position - before.rfind("\n"))
        number = ord(error.character) if isinstance(error.character, str) else error.character
        _refuse(faults, "syntax", place, f"character U+{number:04X} is not allowed")
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # PyYAML lets a few of Python's own errors through, such as chr() of "\UFFFFFFFF".
        _refuse(faults, "syntax", START, f"not YAML: {shown(str(error))}")
    finally:
        if not reader.done:
            faults.unread, faults.unread_env = reader.at_end, reader.in_env()
    return reader.root


@dataclass(slots=True)
class _Open:
    """A list or map that is being read; `env` when it is an environment or inside of one."""

    node: List | Map
    anchor: str | None
    size_before: int
    env: bool
    key: Node | None = None


@dataclass(frozen=True, slots=True)
class _Anchor:
    node: Node
    size: int
    line: int


@dataclass(slots=True)
class _Reader:
    """Reads a document event by event. Every event counts towards the limits of DESIGN §12."""

    faults: Faults
    root: Node | None = None
    done: bool = False
    at_end: tuple[int, int] = (1, 1)
    documents: int = 0
    aliases: int = 0
    size: int = 0
    opened: list[_Open] = field(default_factory=list)
    anchors: dict[str, _Anchor] = field(default_factory=dict)
    env_anchors: set[str] = field(default_factory=set)  # their names are not suggested

    def take(self, event: yaml.Event) -> None:
        at = Place(event.start_mark.line + 1, event.start_mark.column + 1)
        self.size += 1
        match event:
            case yaml.DocumentStartEvent():
                self.documents += 1
                if self.documents > 1:
                    message = "a second document begins: one package a file"
                    _refuse(self.faults, "syntax", at, message)
            case yaml.ScalarEvent():
                self._refuse_tag(event, at)
                span = Hidden(
                    at.line, at.column, event.end_mark.line + 1, event.end_mark.column + 1
                )
                scalar = Text(event.value, event.style is None, at.line, at.column, span=span)
                if event.anchor:
                    self.anchors[event.anchor] = _Anchor(scalar, 1, at.line)
                self._hide(scalar)
                self._hide_anchor(event, at)
                self._place(scalar)
            case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                self._open(event, at)
            case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                self._close()
            case yaml.AliasEvent():
                self._alias(event.anchor, at)
            case yaml.StreamEndEvent():
                self.done = True
        self.at_end = (event.end_mark.line + 1, event.end_mark.column + 1)
        if self.size > YAML_NODES:
            message = f"more than {YAML_NODES} values, aliases written out"
            _refuse(self.faults, "too_large", at, message)

    def in_env(self) -> bool:
        """Whether what comes next is part of an environment."""
        if not self.opened:
            return False
        top = self.opened[-1]
        return top.env or (isinstance(top.key, Text) and bool(ENV_KEY.fullmatch(top.key.text)))

    def _place(self, node: Node) -> None:
        if not self.opened:
            self.root = node
            return
        top = self.opened[-1]
        if isinstance(top.node, List):
            top.node.items.append(node)
        elif top.key is None:
            top.key = node
        else:
            top.node.pairs.append((top.key, node))
            top.key = None

    def _hide(self, node: Node) -> None:
        """Note what must not be shown of an environment: all but paths of files and plain names."""
        if not self.in_env() or self._is_path():
            return
        top = self.opened[-1]
        name = isinstance(top.node, Map) and top.key is None
        inner = len(self.opened) > 1 and self.opened[-2].env
        for text, is_key in texts_of(node):
            shown_key = text.text == "file" if inner else name_shown(text.text) == text.text
            if text.span and not ((name or is_key) and (shown_key or text.text == MERGE_KEY)):
                self.faults.hidden.append(text.span)

    def _hide_anchor(self, event: yaml.NodeEvent, at: Place) -> None:
        """What stands behind & inside of an environment may be a value that was not quoted."""
        if event.anchor and self.opened and self.opened[-1].env:
            self.env_anchors.add(event.anchor)
            end = Place(at.line, at.column + 1 + len(event.anchor))
            if event.tag is not None:
                end = Place(event.end_mark.line + 1, event.end_mark.column + 1)
            self.faults.hidden.append(Hidden(at.line, at.column, end.line, end.column))

    def _is_path(self) -> bool:
        """Whether a path comes next, as in `env: {NAME: {file: path}}`: no secret."""
        key = self.opened[-1].key
        return (
            len(self.opened) > 1
            and self.opened[-2].env
            and isinstance(key, Text)
            and key.text == "file"
        )

    def _open(self, event: yaml.SequenceStartEvent | yaml.MappingStartEvent, at: Place) -> None:
        self._refuse_tag(event, at)
        self._hide_anchor(event, at)
        if len(self.opened) == YAML_DEPTH:
            _refuse(self.faults, "too_large", at, f"nested deeper than {YAML_DEPTH} levels")
        kind = List if isinstance(event, yaml.SequenceStartEvent) else Map
        self.opened.append(
            _Open(kind([], at.line, at.column), event.anchor, self.size, self.in_env())
        )
        self.anchors.pop(event.anchor, None)

    def _close(self) -> None:
        closed = self.opened.pop()
        node = closed.node
        if isinstance(node, Map):
            write_merges_out(node, self._where(), self.faults)
        node.height = height(node)
        if closed.anchor:
            size = self.size - closed.size_before
            self.anchors[closed.anchor] = _Anchor(node, size, node.line)
        self._place(node)

    def _alias(self, name: str, at: Place) -> None:
        self.aliases += 1
        if self.aliases > YAML_ALIASES:
            _refuse(self.faults, "too_large", at, f"more than {YAML_ALIASES} aliases")
        anchor = self.anchors.get(name)
        if anchor is None:
            self._refuse_alias(name, at)
        self.size += anchor.size
        if self.size > YAML_NODES:
            return
        if len(self.opened) + height_of(anchor.node) > YAML_DEPTH + self._merging():
            message = f"nested deeper than {YAML_DEPTH} levels, aliases written out"
            _refuse(self.faults, "too_large", at, message)
        self._hide(anchor.node)
        self._place(brought(anchor.node, at))

    def _merging(self) -> int:
        """How many levels vanish when what comes next is merged."""
        for levels, one in enumerate(reversed(self.opened[-2:])):
            if isinstance(one.key, Text) and one.key.plain and one.key.text == MERGE_KEY:
                return levels + 1
        return 0

    def _refuse_alias(self, name: str, at: Place) -> NoReturn:
        shown_name = "this alias" if self.in_env() else f"alias *{name}"
        open_now = next((one for one in self.opened if one.anchor == name), None)
        if open_now is not None:
            message = f"{shown_name} stands inside of its own anchor, on line {open_now.node.line}"
            _refuse(self.faults, "syntax", at, message, "a thing cannot hold itself")
        hint = (
            "" if self.in_env() else self.faults.near(name, self.anchors.keys() - self.env_anchors)
        )
        hint = hint or quoted_sign("an alias")
        _refuse(self.faults, "syntax", at, f"{shown_name} has no anchor before it", hint)

    def _refuse_tag(self, event: yaml.NodeEvent, at: Placed) -> None:
        if event.tag is not None:
            what = "a tag" if self.in_env() else f"tag {shown(event.tag)}"
            hint = "leave it out, or quote text that begins with !"
            self.faults.add("syntax", self._where(), at, f"{what} is not supported", hint)

    def _where(self) -> str:
        """The path of keys to what comes next."""
        where, within = "", False
        for one in self.opened:
            if isinstance(one.node, List):
                where += f"[{len(one.node.items)}]"
            elif isinstance(one.key, Text):
                name = file_shown if within else name_shown if one.env else str
                where = path(where, name(one.key.text))
            within = one.env
        return where


def height_of(node: Node) -> int:
    return 0 if isinstance(node, Text) else node.height


def _refuse(faults: Faults, code: str, at: Placed, message: str, hint: str = "") -> NoReturn:
    faults.add(code, "", at, message, hint)
    raise Unreadable
