"""A workflow's graph: how states look, what stands below what, and Mermaid's picture of it."""

from collections.abc import Callable, Collection, Mapping, Sequence

Needs = Mapping[str, Collection[str]]
Measure = Callable[[str], float]

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
# Mermaid draws no more than 500 edges unless its host page says otherwise.
MERMAID_EDGES = 400


def depths(steps: Sequence[str], needs: Needs) -> dict[str, int]:
    """The longest distance of each step from the roots, in an order in which all can run.

    Raises ValueError for an unknown need or a cycle.
    """
    waits, dependents = both_ways(steps, needs)
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


def mermaid(
    steps: Sequence[str],
    needs: Needs,
    states: Mapping[str, str] | None = None,
    *,
    down: bool = True,
) -> str:
    """A Mermaid flowchart; edges that follow from others are left out when there are too many.

    Raises ValueError as `depths` does.
    """
    order = depths(steps, needs)
    names = {step: f"s{number}" for number, step in enumerate(steps)}
    edges = [(need, step) for step in steps for need in dict.fromkeys(needs.get(step, ()))]
    lines = [f"flowchart {'TD' if down else 'LR'}"]
    if len(edges) > MERMAID_EDGES:
        count = len(edges)
        edges = necessary(edges, order)
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


def middle_cut(text: str, wide: int, measure: Measure, mark: str = "…") -> str:
    """The text, or its beginning and end around a mark.

    Keys of one workflow often begin alike, so the end counts as much as the beginning.
    """
    if measure(text) <= wide:
        return text
    for kept in range(len(text) - 1, 1, -1):
        short = text[: (kept + 1) // 2] + mark + text[len(text) - kept // 2 :]
        if measure(short) <= wide:
            return short
    return text[:1] + mark


def both_ways(steps: Sequence[str], needs: Needs) -> tuple[dict[str, int], dict[str, list[str]]]:
    waits = dict.fromkeys(steps, 0)
    dependents: dict[str, list[str]] = {step: [] for step in steps}
    for step in steps:
        for need in dict.fromkeys(needs.get(step, ())):
            if need not in dependents:
                raise ValueError(f"{step} needs {need}, which is no step")
            waits[step] += 1
            dependents[need].append(step)
    return waits, dependents


def necessary(edges: list[tuple[str, str]], order: Mapping[str, int]) -> list[tuple[str, str]]:
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
