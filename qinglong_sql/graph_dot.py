"""Graphviz text of a workflow's graph, for who wants its layout or has tools that read it."""

from collections.abc import Mapping, Sequence

from qinglong_sql.graph import LOOKS, OTHER_LOOK, Needs, depths
from qinglong_sql.graph_svg import colours

# status: shape, style; neither repeats for states that people must tell apart without colour
SHAPES = {
    "pending": ("box", "rounded,filled,dotted"),
    "ready": ("box", "rounded,filled"),
    "waiting_approval": ("hexagon", "filled,dashed"),
    "running": ("box", "filled,bold"),
    "retry_wait": ("ellipse", "filled,dashed"),
    "lost": ("diamond", "filled,dotted"),
    "succeeded": ("ellipse", "filled"),
    "failed": ("octagon", "filled,bold"),
    "skipped": ("box", "filled,dashed"),
    "cancelled": ("parallelogram", "filled"),
    "timed_out": ("doubleoctagon", "filled"),
}


def dot(
    steps: Sequence[str],
    needs: Needs,
    states: Mapping[str, str] | None = None,
    *,
    title: str = "Workflow",
    down: bool = True,
) -> str:
    """A digraph in Graphviz' language; a state is a colour, a shape, a sign and a word.

    Raises ValueError for an unknown need or a cycle.
    """
    depths(steps, needs)
    lines = [
        f"digraph {_quoted(title)} {{",
        f"  rankdir={'TB' if down else 'LR'};",
        '  node [fontname="sans-serif", fontsize=11, shape=box, style="rounded,filled",'
        ' fillcolor="#f6f8fa", color="#57606a", fontcolor="#1f2328"];',
        '  edge [color="#8b949e", arrowsize=0.7];',
    ]
    for step in steps:
        if states is None:
            lines.append(f"  {_quoted(step)};")
            continue
        word = states.get(step, "pending")
        fill, stroke = colours(word)
        shape, style = SHAPES.get(word, ("box", "filled"))
        label = f"{step}\n{LOOKS.get(word, OTHER_LOOK)[0]} {word}"
        lines.append(
            f"  {_quoted(step)} [label={_quoted(label)}, shape={shape},"
            f' style="{style}", fillcolor="{_long(fill)}", color="{_long(stroke)}"];'
        )
    lines.extend(
        f"  {_quoted(need)} -> {_quoted(step)};"
        for step in steps
        for need in dict.fromkeys(needs.get(step, ()))
    )
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    """A quoted string: in it only quotes, backslashes and line ends mean something."""
    shown = "".join(c if c.isprintable() or c == "\n" else "�" for c in text)
    return '"' + shown.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _long(colour: str) -> str:
    """#rgb as #rrggbb: Graphviz knows no short colours."""
    return f"#{''.join(c * 2 for c in colour[1:])}" if len(colour) == 4 else colour
