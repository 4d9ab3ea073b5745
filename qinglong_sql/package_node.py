"""What a package file's text is read into: nodes with their places, every scalar as written."""

from collections.abc import Iterator
from dataclasses import dataclass

from qinglong_sql.package_fault import Faults, Placed, path, shown
from qinglong_sql.package_source import FIELD_WORD, FIELDS, PLAIN_NAME, Hidden

MERGE_KEY = "<<"


@dataclass(frozen=True, slots=True)
class Place:
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Text:
    """A scalar; `plain` when it was written without quotes, so that `key:` can be told apart.

    Line and column are where the text stands; `via` is the alias that brought it here, if one did.
    """

    text: str
    plain: bool
    line: int
    column: int
    via: Place | None = None
    span: Hidden | None = None

    @property
    def absent(self) -> bool:
        return self.plain and not self.text


@dataclass(slots=True, eq=False)
class List:
    """Items; `height` counts the levels of lists and maps."""

    items: "list[Node]"
    line: int
    column: int
    via: Place | None = None
    height: int = 1


@dataclass(slots=True, eq=False)
class Map:
    """Pairs in the order of the file, duplicates kept, merge keys (`<<`) written out.

    `covered` are the keys that stand here and in what is merged, where the ones here win.
    """

    pairs: "list[tuple[Node, Node]]"
    line: int
    column: int
    via: Place | None = None
    height: int = 1
    covered: frozenset[str] = frozenset()


Node = Text | List | Map
START = Place(1, 1)


def height(node: Node) -> int:
    """Levels of lists and maps; the parts of a map or list know theirs already."""
    if isinstance(node, Text):
        return 0
    parts = node.items if isinstance(node, List) else [one for pair in node.pairs for one in pair]
    return 1 + max((0 if isinstance(one, Text) else one.height for one in parts), default=0)


def brought(node: Node, via: Place) -> Node:
    """The node as an alias at `via` brings it, all its parts knowing that."""
    if isinstance(node, Text):
        return Text(node.text, node.plain, node.line, node.column, via, node.span)
    if isinstance(node, List):
        items = [brought(item, via) for item in node.items]
        return List(items, node.line, node.column, via, node.height)
    pairs = [(brought(key, via), brought(one, via)) for key, one in node.pairs]
    return Map(pairs, node.line, node.column, via, node.height, node.covered)


def texts_of(node: Node) -> Iterator[tuple[Text, bool]]:
    """Every scalar in a node, and whether it is a key."""
    if isinstance(node, Text):
        yield node, False
    elif isinstance(node, List):
        for item in node.items:
            yield from texts_of(item)
    else:
        for key, one in node.pairs:
            if isinstance(key, Text):
                yield key, True
            else:
                yield from texts_of(key)
            yield from texts_of(one)


def hide(node: Node, faults: Faults, key: str = "") -> None:
    """No line that is shown says what this node holds, but for known keys and their values.

    `key` is the one that holds it. Names of other keys are shown when they do hold something, so
    that a fault's line can be understood; all of an environment is hidden by who reads it.
    """
    if isinstance(node, Text):
        if node.span and key not in FIELDS:
            faults.hidden.append(node.span)
    elif isinstance(node, List):
        for item in node.items:
            hide(item, faults, key)
    else:
        for name, one in node.pairs:
            if not isinstance(name, Text):
                hide(name, faults)
                hide(one, faults)
                continue
            empty = isinstance(one, Text) and one.absent
            known = FIELD_WORD.match(name.text) and "=" not in name.text
            if not known and (empty or not PLAIN_NAME.fullmatch(name.text)):
                hide(name, faults)
            hide(one, faults, name.text)


def write_merges_out(node: Map, where: str, faults: Faults) -> None:
    """Put what `<<` brings behind the map's own pairs; an own key wins, then the first of a list.

    The rule is YAML 1.1's merge type. A fault of it is told, and that part left out.
    """
    if not any(_is_merge(key) for key, _ in node.pairs):
        return
    merges = [(key, value) for key, value in node.pairs if _is_merge(key)]
    node.pairs[:] = [(key, value) for key, value in node.pairs if not _is_merge(key)]
    where = path(where, MERGE_KEY)
    if len(merges) > 1:
        hide(merges[1][1], faults)
        again, first = merges[1][0], merges[0][0]
        message = f'"<<" is already there on line {first.line}'
        faults.add("duplicate_key", where, again, message, "merge several at once: <<: [*a, *b]")
    value = merges[0][1]
    known = {key.text for key, _ in node.pairs if isinstance(key, Text)}
    covered = set()
    for source in value.items if isinstance(value, List) else [value]:
        if not isinstance(source, Map):
            _refuse_merge(source, where, faults)
            continue
        names = {key.text for key, _ in source.pairs if isinstance(key, Text)}
        node.pairs += [
            (key, one)
            for key, one in source.pairs
            if not (isinstance(key, Text) and key.text in known)
        ]
        covered |= names & known
        known |= names
    node.covered = frozenset(covered)


def _is_merge(key: Node) -> bool:
    return isinstance(key, Text) and key.plain and key.text == MERGE_KEY


def _refuse_merge(source: Text | List, where: str, faults: Faults) -> None:
    kind = "a list" if isinstance(source, List) else "nothing" if source.absent else "text"
    at: Placed = source
    if source.via is not None:
        at = source.via
        kind += f" (its anchor is on line {source.line})"
    hide(source, faults)
    message = f"{shown(MERGE_KEY)} merges a mapping or a list of mappings, and here is {kind}"
    faults.add("wrong_type", where, at, message, "name an anchor of a mapping: <<: *name")
