"""A picture of a workflow's graph for a terminal: a line a step."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from qinglong_sql.cli.cells import cells, cut
from qinglong_sql.graph import LOOKS, OTHER_LOOK, Needs, both_ways, depths, middle_cut

INDENT_LEVELS = 10
NEEDS_SHOWN = 3
LABEL_CHARS = 56
LEAST_LABEL = 14
NARROW, SHORT_WORD = 60, 10


@dataclass(frozen=True, slots=True)
class Strokes:
    """The characters that a text picture is drawn with."""

    branch: str
    last: str
    rail: str
    down: str
    fan_in: str


LINES = Strokes("├─ ", "└─ ", "│  ", "↓ ", "⇐")
ASCII_LINES = Strokes("|- ", "`- ", "|  ", "v ", "<=")


def text_graph(
    steps: Sequence[str],
    needs: Needs,
    states: Mapping[str, str] | None = None,
    ascii: bool = False,
    wide: int | None = None,
    paint: Callable[[str, str], str] = lambda state, text: text,
) -> str:
    """A picture for a terminal, a line a step, every step below all of its needs.

    A step hangs from the need that is drawn last; a chain goes straight down, a fan-out branches,
    and what a fan-in waits for besides is named behind it. With `wide`, no line takes more columns:
    names are shortened in their middle, fan-ins counted. `paint(state, text)` may colour. Raises
    ValueError as `depths` does.
    """
    depths(steps, needs)
    strokes = ASCII_LINES if ascii else LINES
    levels = INDENT_LEVELS
    if wide is not None:
        levels = max(1, min(levels, (wide - 30) // 3))
    rows = []
    for step, lead, parent in _drawn(steps, needs, strokes, levels):
        state = None if states is None else states.get(step, "pending")
        look = LOOKS.get(state or "", OTHER_LOOK)
        sign = "" if state is None else look[1 if ascii else 0] + " "
        others = [need for need in dict.fromkeys(needs.get(step, ())) if need != parent]
        rows.append((lead, sign, step, state or "", others))
    notes = [_fan_in(others, strokes) for *_, others in rows]
    narrow = wide is not None and wide < NARROW
    mark = ".." if ascii else "…"
    words = [cut(state, SHORT_WORD, mark) if narrow else state for *_, state, _ in rows]
    word_wide = max(map(cells, words), default=0)
    most = LABEL_CHARS
    if wide is not None:
        behind = (word_wide + 2) * bool(word_wide) + (
            len("  ⇐ 9") if narrow else len("  ⇐ 99 needs")
        ) * any(notes)
        most = max(LEAST_LABEL, wide - behind)
    labels = [
        _within(lead, sign, step, most if wide else None, ascii) for lead, sign, step, *_ in rows
    ]
    label_wide = max((n for label in labels if (n := cells(label)) <= most), default=0)
    lines = []
    for (lead, _, _, state, others), label, word, note in zip(
        rows, labels, words, notes, strict=True
    ):
        name = label[len(lead) :]
        line = [lead + (paint(state, name) if state else name) + " " * (label_wide - cells(label))]
        used = max(label_wide, cells(label)) + 2
        if word_wide:
            line.append(paint(state, word) + " " * (word_wide - cells(word)))
            used += word_wide + 2
        if any(notes):
            line.append(note if wide is None else _note(others, strokes, wide - used))
        lines.append("  ".join(line).rstrip() + "\n")
    return "".join(lines)


def _within(lead: str, sign: str, step: str, wide: int | None, ascii: bool) -> str:
    """A step behind what stands in front of it, shortened to a width."""
    room = None if wide is None else max(3, wide - cells(lead + sign))
    return (
        lead
        + sign
        + (step if room is None else middle_cut(step, room, cells, ".." if ascii else "…"))
    )


def _drawn(
    steps: Sequence[str], needs: Needs, strokes: Strokes, levels: int
) -> Iterator[tuple[str, str, str | None]]:
    """Every step with what stands in front of it and the step right above it in its branch."""
    waits, dependents = both_ways(steps, needs)
    roots = [step for step in steps if not waits[step]]
    # step, text in front of it, text in front of what hangs from it, parent, level
    stack: list[tuple[str, str, str, str | None, int]]
    stack = [(root, "", "", None, 0) for root in reversed(roots)]
    while stack:
        step, lead, below, parent, level = stack.pop()
        yield step, lead, parent
        children = []
        for dependent in dependents[step]:
            waits[dependent] -= 1
            if not waits[dependent]:
                children.append(dependent)
        if len(children) == 1:
            stack.append((children[0], below + strokes.down, below, step, level))
        elif level >= levels:
            # Deeper branches stay in this column and name their need instead.
            stack.extend((c, below + strokes.down, below, None, level) for c in children[::-1])
        else:
            tail = True
            for child in reversed(children):
                lead = below + (strokes.last if tail else strokes.branch)
                inner = below + ("   " if tail else strokes.rail)
                stack.append((child, lead, inner, step, level + 1))
                tail = False


def _fan_in(others: Sequence[str], strokes: Strokes) -> str:
    if not others:
        return ""
    more = len(others) - NEEDS_SHOWN
    shown = ", ".join(others[:NEEDS_SHOWN] if more > 1 else others)
    return f"{strokes.fan_in} {shown}" + (f" and {more} more" if more > 1 else "")


def _note(others: Sequence[str], strokes: Strokes, wide: int) -> str:
    """The fullest words about a fan-in that fit."""
    if not others:
        return ""
    count = len(others)
    counted = f"{strokes.fan_in} {count} need{'s' * (count != 1)}"
    first = f"{strokes.fan_in} {others[0]} and {count - 1} more" if count > 1 else ""
    forms = (_fan_in(others, strokes), first, counted, f"{strokes.fan_in} {count}", "")
    return next((form for form in forms if cells(form) <= wide and form), "")
