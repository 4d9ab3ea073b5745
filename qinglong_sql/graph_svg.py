"""An SVG of a workflow's graph that needs nothing else: no script, no font, no other file.

A state is a colour, a stroke pattern, a sign and a word, so none of them is needed alone. It is
drawn for light and dark pages: boxes bring their own ground, lines are of a middle grey.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from xml.sax.saxutils import escape

from qinglong_sql.graph import LOOKS, Needs, middle_cut
from qinglong_sql.graph_layout import Box, Line, Picture, placed

LABEL_WIDTH = 190
LABEL_PX, WORD_PX = 13.0, 11.0
INK, SOFT_INK, LINE = "#1f2328", "#4d555e", "#8b949e"
MARGIN = 10.0
PLAIN = ("#f6f8fa", "#57606a")
# status: sign as a path in a circle of radius 8 around 0,0; stroke pattern of the box; its width
SIGNS = {
    "pending": ("M-3 0h.01M0 0h.01M3 0h.01", "2 3", 1.2),
    "ready": ("M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0", "", 1.2),
    "waiting_approval": ("M-2 -3.5v7M2 -3.5v7", "7 3", 1.6),
    "running": ("M-2 -3.5L3.5 0L-2 3.5z", "", 2.2),
    "retry_wait": ("M3.2 -1.6A3.7 3.7 0 1 0 3.6 1M3.8 -4v2.6h-2.6", "7 3", 1.6),
    "lost": ("M-2 -2.2A2.1 2.1 0 1 1 0 .4V1M0 3.8h.01", "2 3", 2.2),
    "succeeded": ("M-3.6 .2L-1.2 2.8L3.6 -2.8", "", 1.2),
    "failed": ("M-3 -3L3 3M3 -3L-3 3", "", 2.8),
    "skipped": ("M-3.4 -3L0 0L-3.4 3M.6 -3L4 0L.6 3", "4 3", 1.2),
    "cancelled": ("M-3.6 0H3.6", "9 3 2 3", 1.6),
    "timed_out": ("M0 -3.8V0L2.8 1.8", "12 3", 2.2),
}


def svg(
    steps: Sequence[str],
    needs: Needs,
    states: Mapping[str, str] | None = None,
    *,
    notes: Mapping[str, str] | None = None,
    title: str = "Workflow",
    down: bool | None = None,
) -> str:
    """The picture as one SVG document; `notes` are a few words more behind a step's state.

    Raises ValueError for an unknown need or a cycle.
    """
    labels = {
        step: middle_cut(step, LABEL_WIDTH, lambda text: text_width(text, LABEL_PX))
        for step in steps
    }
    words: dict[str, str] = {}
    if states is not None:
        for step in steps:
            more = (notes or {}).get(step, "")
            word = states.get(step, "pending").replace("_", " ")
            words[step] = f"{word} · {more}" if more else word
    sizes = {}
    for step in steps:
        wide = max(text_width(labels[step], LABEL_PX), text_width(words.get(step, ""), WORD_PX))
        sizes[step] = (wide + (44.0 if words else 24.0), 42.0 if words else 30.0)
    picture = placed(steps, needs, sizes, down)
    return "\n".join([*_head(picture, title, steps, states), *(
        piece for step in steps for piece in _step(
            step, picture.boxes[step], labels[step],
            None if states is None else states.get(step, "pending"),
            words.get(step, ""), needs.get(step, ()),
        )
    ), "</svg>", ""])  # fmt: skip


def _head(
    picture: Picture, title: str, steps: Sequence[str], states: Mapping[str, str] | None
) -> Iterator[str]:
    wide, high = (f"{side + 2 * MARGIN:.0f}" for side in (picture.width, picture.height))
    left, top = f"{-MARGIN:.0f}", f"{-MARGIN:.0f}"
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}"'
        f' viewBox="{left} {top} {wide} {high}" role="img" aria-labelledby="title desc"'
        " font-family=\"system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif\""
        f' font-size="{LABEL_PX:.0f}">'
    )
    yield f'<title id="title">{_text(title)}</title>'
    yield f'<desc id="desc">{_text(_told(picture, steps, states))}</desc>'
    yield (
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7.4" refY="4" markerWidth="8"'
        ' markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">'
        f'<path d="M0 .6L7.6 4L0 7.4L1.6 4z" fill="{LINE}"/></marker></defs>'
    )
    yield f'<g fill="none" stroke="{LINE}" stroke-width="1.3" stroke-linecap="round">'
    passing = [_way(line, picture.down) for line in picture.lines if not line.arrow]
    if passing:
        yield f'<path d="{"".join(passing)}"/>'
    for line in picture.lines:
        if line.arrow:
            yield f'<path d="{_way(line, picture.down)}" marker-end="url(#arrow)"/>'
    yield "</g>"


def _told(picture: Picture, steps: Sequence[str], states: Mapping[str, str] | None) -> str:
    """The picture in words, for who cannot see it."""
    count = f"{len(steps)} step{'s' * (len(steps) != 1)}"
    said = []
    if states is not None:
        found = [states.get(step, "pending") for step in steps]
        for state in dict.fromkeys([*LOOKS, *found]):
            if state in found:
                said.append(f"{found.count(state)} {state.replace('_', ' ')}")
    way = "from top to bottom" if picture.down else "from left to right"
    left = ""
    if picture.left_out:
        left = f" {picture.left_out} needs that follow from others are not drawn."
    return f"{count}, {way}{': ' if said else ''}{', '.join(said)}.{left}"


def _way(line: Line, down: bool) -> str:
    (x, y), (to_x, to_y) = line.start, line.end
    if abs(x - to_x) < 0.5 or abs(y - to_y) < 0.5:
        return f"M{_n(x)} {_n(y)}L{_n(to_x)} {_n(to_y)}"
    if down:
        middle = _n((y + to_y) / 2)
        turns = f"{_n(x)} {middle} {_n(to_x)} {middle}"
    else:
        middle = _n((x + to_x) / 2)
        turns = f"{middle} {_n(y)} {middle} {_n(to_y)}"
    return f"M{_n(x)} {_n(y)}C{turns} {_n(to_x)} {_n(to_y)}"


def _step(
    step: str, box: Box, label: str, state: str | None, word: str, needs: Iterable[str]
) -> Iterator[str]:
    fill, stroke = colours(state)
    sign, pattern, thick = SIGNS.get(state or "", ("M0 0h.01", "", 1.2))
    dash = f' stroke-dasharray="{pattern}"' if pattern else ""
    told = step if state is None else f"{step}: {word}"
    others = list(dict.fromkeys(needs))
    if others:
        told += f"; needs {', '.join(others[:12])}"
        told += f" and {len(others) - 12} more" if len(others) > 12 else ""
    yield f'<g transform="translate({_n(box.x)} {_n(box.y)})"><title>{_text(told)}</title>'
    yield (
        f'<rect width="{_n(box.width)}" height="{_n(box.height)}" rx="8" fill="{fill}"'
        f' stroke="{stroke}" stroke-width="{thick}"{dash}/>'
    )
    if state is None:
        middle = _n(box.width / 2)
        at = f'x="{middle}" y="19.5" text-anchor="middle"'
        yield f'<text {at} fill="{INK}">{_text(label)}</text></g>'
        return
    yield (
        f'<g transform="translate(19 21)"><circle r="8.5" fill="{stroke}"/><path d="{sign}"'
        ' fill="none" stroke="#fff" stroke-width="1.8" stroke-linecap="round"'
        ' stroke-linejoin="round"/></g>'
    )
    yield f'<text x="35" y="18" font-weight="600" fill="{INK}">{_text(label)}</text>'
    at = f'x="35" y="33" font-size="{WORD_PX:.0f}"'
    yield f'<text {at} fill="{SOFT_INK}">{_text(word)}</text></g>'


def colours(state: str | None) -> tuple[str, str]:
    """Fill and stroke of a state, as Mermaid has them; grey without one."""
    if state not in LOOKS:
        return PLAIN
    pairs = (pair.partition(":") for pair in LOOKS[state][2].split(","))
    found = {name: value for name, _, value in pairs}
    return found["fill"], found["stroke"]


def text_width(text: str, px: float) -> float:
    """About how wide a text is, in pixels: on the safe side for the usual fonts."""
    return px * sum(map(_em, text))


def _em(char: str) -> float:
    if unicodedata.combining(char):
        return 0.0
    if unicodedata.east_asian_width(char) in "WF":
        return 1.0
    if char in "iljI.,:;'|!()[] ":
        return 0.38
    if char in "mwMW@%":
        return 0.98
    return 0.76 if char.isupper() else 0.65


def _text(text: str) -> str:
    return escape("".join(c if c.isprintable() else "�" for c in text))


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
