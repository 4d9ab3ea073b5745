"""Pictures of a workflow's graph: for a terminal, and for Mermaid."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

Needs = Mapping[str, Collection[str]]

# status: (sign, ASCII sign, Mermaid colours)
LOOKS = {
    "pending": ("·", ".", "fill:#f4f4f4,stroke:#999,color:#555"),
    "ready": ("○", "o", "fill:#fff,stroke:#1f6feb,color:#111"),
    "waiting_approval": ("‖", "=", "fill:#fff8e1,stroke:#b58900,color:#111"),
    "running": ("▶", ">", "fill:#dbeafe,stroke:#1f6feb,color:#111"),
    "retry_wait": ("↻", "~", "fill:#fff3cd,stroke:#b58900,color:#111"),
    "lost": ("?", "?", "fill:#fde2cf,stroke:#c4500a,color:#111"),
    "succeeded": ("✔", "+", "fill:#dcf5e3,stroke:#1a7f37,color:#111"),
    "failed": ("✘", "x", "fill:#fbdada,stroke:#c1121f,color:#111"),
    "skipped": ("↷", "/", "fill:#eee,stroke:#aaa,color:#777,stroke-dasharray:4 3"),
    "cancelled": ("⊘", "-", "fill:#e7e0f0,stroke:#6f42c1,color:#111"),
    "timed_out": ("◷", "t", "fill:#fde2cf,stroke:#c4500a,color:#111"),
}
OTHER_LOOK = ("●", "*", "")
INDENT_LEVELS = 10
NEEDS_SHOWN = 3
# Mermaid draws no more than 500 edges unless its host page says otherwise.
MERMAID_EDGES = 400
LABEL_CHARS = 56


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


def depths(steps: Sequence[str], needs: Needs) -> dict[str, int]:
    """The longest distance of each step from the roots, in an order in which all can run.

    Raises ValueError for an unknown need or a cycle.
    """
    waits, dependents = _both_ways(steps, needs)
    depth = {step: 0 for step in steps if not waits[step]}
    for step in (queue := list(depth)):
        for dependent in dependents[step]:
            waits[dependent] -= 1
            if not waits[dependent]:
                depth[dependent] = depth[step] + 1
                queue.append(dependent)
    if len(depth) < len(steps):
        raise ValueError("the steps wait for each other in a cycle")
    return depth


def text_graph(
    steps: Sequence[str],
    needs: Needs,
    states: Mapping[str, str] | None = None,
    ascii: bool = False,
) -> str:
    """A picture for a terminal, a line a step, every step below all of its needs.

    A step hangs from the need that is drawn last; a chain goes straight down, a fan-out branches,
    and what a fan-in waits for besides is named behind it. Raises ValueError as `depths` does.
    """
    depths(steps, needs)
    strokes = ASCII_LINES if ascii else LINES
    rows: list[tuple[str, str, str]] = []
    for step, lead, parent in _drawn(steps, needs, strokes):
        sign, word = "", ""
        if states is not None:
            word = states.get(step, "pending")
            sign = LOOKS.get(word, OTHER_LOOK)[1 if ascii else 0] + " "
        others = [need for need in dict.fromkeys(needs.get(step, ())) if need != parent]
        rows.append((f"{lead}{sign}{step}", word, _fan_in(others, strokes)))
    columns = [[row[n] for row in rows] for n in range(3)]
    kept = [column for column in columns if any(column)]
    widths = [max((len(t) for t in column if len(t) <= LABEL_CHARS), default=0) for column in kept]
    return "".join(
        "  ".join(f"{t:<{w}}" for t, w in zip(row, widths, strict=True)).rstrip() + "\n"
        for row in zip(*kept, strict=True)
    )


def mermaid(steps: Sequence[str], needs: Needs, states: Mapping[str, str] | None = None) -> str:
    """A Mermaid flowchart; edges that follow from others are left out when there are too many.

    Raises ValueError as `depths` does.
    """
    order = depths(steps, needs)
    names = {step: f"s{number}" for number, step in enumerate(steps)}
    edges = [(need, step) for step in steps for need in dict.fromkeys(needs.get(step, ()))]
    lines = ["flowchart TD"]
    if len(edges) > MERMAID_EDGES:
        count = len(edges)
        edges = _necessary(edges, order)
        lines.append(f"  %% {count - len(edges)} needs that follow from others are not drawn")
    used = []
    for step in steps:
        label, style = _escaped(step), ""
        if states is not None:
            word = states.get(step, "pending")
            look = LOOKS.get(word, OTHER_LOOK)
            label += f"<br/>{look[0]} {_escaped(word)}"
            style = f":::{word}" if word in LOOKS else ""
            used.append(word)
        lines.append(f'  {names[step]}["{label}"]{style}')
    lines.extend(f"  {names[need]} --> {names[step]}" for need, step in edges)
    lines.extend(f"  classDef {word} {LOOKS[word][2]}" for word in LOOKS if word in used)
    return "\n".join(lines) + "\n"


def _drawn(
    steps: Sequence[str], needs: Needs, strokes: Strokes
) -> Iterator[tuple[str, str, str | None]]:
    """Every step with what stands in front of it and the step right above it in its branch."""
    waits, dependents = _both_ways(steps, needs)
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
        elif level >= INDENT_LEVELS:
            # Deeper branches stay in this column and name their need instead.
            stack.extend((c, below + strokes.down, below, None, level) for c in children[::-1])
        else:
            tail = True
            for child in reversed(children):
                lead = below + (strokes.last if tail else strokes.branch)
                inner = below + ("   " if tail else strokes.rail)
                stack.append((child, lead, inner, step, level + 1))
                tail = False


def _both_ways(steps: Sequence[str], needs: Needs) -> tuple[dict[str, int], dict[str, list[str]]]:
    waits = dict.fromkeys(steps, 0)
    dependents: dict[str, list[str]] = {step: [] for step in steps}
    for step in steps:
        for need in dict.fromkeys(needs.get(step, ())):
            if need not in dependents:
                raise ValueError(f"{step} needs {need}, which is no step")
            waits[step] += 1
            dependents[need].append(step)
    return waits, dependents


def _fan_in(others: Sequence[str], strokes: Strokes) -> str:
    if not others:
        return ""
    more = len(others) - NEEDS_SHOWN
    shown = ", ".join(others[:NEEDS_SHOWN] if more > 1 else others)
    return f"{strokes.fan_in} {shown}" + (f" and {more} more" if more > 1 else "")


def _necessary(edges: list[tuple[str, str]], order: Mapping[str, int]) -> list[tuple[str, str]]:
    """The edges without those that a longer way makes superfluous (the transitive reduction)."""
    needs: dict[str, list[str]] = {step: [] for step in order}
    for need, step in edges:
        needs[step].append(need)
    ancestors: dict[str, frozenset[str]] = {}
    for step in order:
        ancestors[step] = frozenset(needs[step]).union(*(ancestors[n] for n in needs[step]))
    return [
        (need, step)
        for need, step in edges
        if not any(need in ancestors[other] for other in needs[step])
    ]


def _escaped(text: str) -> str:
    return "".join(c if c.isalnum() or c in "_.- " else f"#{ord(c)};" for c in text)
