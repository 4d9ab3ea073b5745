"""The SVG of a graph: boxes apart, every need drawn forward, and one document that anyone reads."""

import itertools
import json
import random
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from qinglong_sql.graph import LOOKS
from qinglong_sql.graph_layout import Box, Picture, placed
from qinglong_sql.graph_svg import SIGNS, colours, svg, text_width
from tests.test_graph import ETL, STATES, Needs, random_graph

SVG = "{http://www.w3.org/2000/svg}"
FOLDER = Path(__file__).resolve().parent.parent.parent / "shared" / "cases" / "dags"
FILES = sorted(FOLDER.glob("*.json"))
README_SVG = Path(__file__).resolve().parent.parent / "scripts" / "examples" / "demo.svg"


def shapes() -> dict[str, Needs]:
    keys = [f"s{n:03}" for n in range(128)]
    fan = {key: [] if n == 0 else [keys[0]] for n, key in enumerate(keys[:-1])}
    comb = {key: [keys[(n - 1) // 2 * 2]] if n else [] for n, key in enumerate(keys)}
    return {
        "one": {"a": []},
        "alone": {key: [] for key in keys},
        "chain": {key: [keys[n - 1]] if n else [] for n, key in enumerate(keys)},
        "wide": fan | {keys[-1]: keys[1:-1]},
        "in": {key: keys[:-1] if key == keys[-1] else [] for key in keys},
        "dense": {key: keys[:n] for n, key in enumerate(keys)},
        "comb": comb,
        "etl": ETL,
        "two": {"a": [], "b": ["a"], "c": [], "d": ["c"], "e": []},
        **{f"random{n}": random_graph(n, 20 + 27 * n, n + 1) for n in range(5)},
    }


SHAPES = shapes()


def sizes(needs: Needs, seed: int = 0) -> dict[str, tuple[float, float]]:
    chance = random.Random(seed)
    return {key: (float(chance.randint(40, 230)), 42.0) for key in needs}


@pytest.mark.parametrize("down", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_boxes_are_apart_and_every_need_is_drawn_forward(name: str, down: bool) -> None:
    needs = SHAPES[name]
    picture = placed(list(needs), needs, sizes(needs), down)
    sound(picture, needs)


def sound(picture: Picture, needs: Needs) -> None:
    """Raise AssertionError for a box on another, a line on a box, a need that is not drawn."""
    apart(picture, needs)
    ways: dict[tuple[float, float], set[tuple[float, float]]] = {}
    for line in picture.lines:
        ways.setdefault(line.start, set()).add(line.end)
        if line.start[1 - picture.down] == line.end[1 - picture.down]:
            for box in picture.boxes.values():
                assert not through(line.start, line.end, box)
    drawn = sum(
        leads(ways, foot(picture.boxes[need], picture.down), head(picture.boxes[key], picture.down))
        for key in needs
        for need in set(needs[key])
    )
    assert drawn + picture.left_out >= sum(len(set(direct)) for direct in needs.values())


def apart(picture: Picture, needs: Needs) -> None:
    """The cheap part: all boxes, none on another, all lines forward."""
    assert set(picture.boxes) == set(needs)
    boxes = sorted(picture.boxes.values(), key=lambda box: box.y)
    for n, one in enumerate(boxes):
        for other in boxes[n + 1 :]:
            if other.y >= one.y + one.height:
                break
            assert not on(one, other)
    for box in boxes:
        assert box.x >= 0 and box.x + box.width <= picture.width + 0.01
        assert box.y >= 0 and box.y + box.height <= picture.height + 0.01
    assert all(line.start[picture.down] < line.end[picture.down] for line in picture.lines)


def on(one: Box, other: Box) -> bool:
    return (
        one.x < other.x + other.width
        and other.x < one.x + one.width
        and one.y < other.y + other.height
        and other.y < one.y + one.height
    )


def through(start: tuple[float, float], end: tuple[float, float], box: Box) -> bool:
    (x, y), (to_x, to_y) = start, end
    return (
        min(x, to_x) < box.x + box.width - 0.01
        and max(x, to_x) > box.x + 0.01
        and min(y, to_y) < box.y + box.height - 0.01
        and max(y, to_y) > box.y + 0.01
    )


def head(box: Box, down: bool) -> tuple[float, float]:
    return (box.x + box.width / 2, box.y) if down else (box.x, box.y + box.height / 2)


def foot(box: Box, down: bool) -> tuple[float, float]:
    if down:
        return box.x + box.width / 2, box.y + box.height
    return box.x + box.width, box.y + box.height / 2


def near(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return abs(one[0] - other[0]) < 0.01 and abs(one[1] - other[1]) < 0.01


def leads(
    ways: dict[tuple[float, float], set[tuple[float, float]]],
    start: tuple[float, float],
    end: tuple[float, float],
) -> bool:
    """Whether drawn lines lead from one point to another."""
    queue = [point for point in ways if near(point, start)]
    seen = set(queue)
    for point in queue:
        for other in ways.get(point, ()):
            if near(other, end):
                return True
            if other not in seen:
                seen.add(other)
                queue.append(other)
    return False


def test_a_big_graph_is_drawn_at_once() -> None:
    for name in ("dense", "random4"):
        needs = SHAPES[name]
        start = time.process_time()
        svg(list(needs), needs, dict.fromkeys(needs, "running"))
        assert time.process_time() - start < 0.5, name


def test_what_stands_alone_or_side_by_side_fits_a_page() -> None:
    for name, wide, high in (("alone", 1300, 1300), ("wide", 1400, 2300), ("in", 1400, 2000)):
        needs = SHAPES[name]
        picture = placed(list(needs), needs, dict.fromkeys(needs, (120.0, 42.0)))
        assert picture.width <= wide and picture.height <= high, name


def test_the_way_is_the_one_that_fits_a_page() -> None:
    chain = {key: [keys] if keys else [] for keys, key in itertools.pairwise(["", *"abcdef"])}
    assert not placed(list("abc"), chain, dict.fromkeys("abc", (120.0, 42.0))).down
    long = SHAPES["chain"]
    assert placed(list(long), long, sizes(long)).down


def test_needs_that_follow_from_others_are_left_out_when_there_are_too_many() -> None:
    picture = placed(list(SHAPES["dense"]), SHAPES["dense"], sizes(SHAPES["dense"]))
    assert picture.left_out == 128 * 127 // 2 - 127
    told = svg(list(SHAPES["dense"]), SHAPES["dense"])
    assert f"{picture.left_out} needs that follow from others are not drawn." in told


@pytest.mark.parametrize("states", [None, STATES])
def test_it_is_one_document_with_words_for_who_cannot_see_it(
    states: dict[str, str] | None,
) -> None:
    drawn = svg(list(ETL), ETL, states, title='a <b> & "c"', notes={"extract": "1.2s"})
    root = ET.fromstring(drawn)
    assert root.tag == f"{SVG}svg" and root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == 'a <b> & "c"'
    told = root.findtext(f"{SVG}desc") or ""
    assert told.startswith("7 steps, from ")
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert [text for text in texts if text in ETL] == list(ETL)
    assert ("1 failed" in told) is (states is not None)
    assert ("succeeded · 1.2s" in texts) is (states is not None)
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert any((title or "").endswith("needs clean-a, clean-b") for title in titles)
    for name in ("script", "image", "foreignObject", "style", "use"):
        assert not list(root.iter(f"{SVG}{name}"))
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "")


def test_a_state_is_never_told_by_colour_alone() -> None:
    assert SIGNS.keys() == LOOKS.keys()
    signs = [sign for sign, _, _ in SIGNS.values()]
    assert len(set(signs)) == len(signs)
    strokes = {(pattern, wide) for _, pattern, wide in SIGNS.values()}
    assert len(strokes) >= 8
    for state in LOOKS:
        drawn = svg(["a"], {}, {"a": state})
        assert f">{state.replace('_', ' ')}</text>" in drawn and SIGNS[state][0] in drawn
        assert colours(state)[1] in drawn
    assert "a status of tomorrow</text>" in svg(["a"], {}, {"a": "a status of tomorrow"})


def test_texts_of_any_signs_fit_their_boxes() -> None:
    keys = ["x" * 64, "末尾" * 32, "<&>\"'", "a\x00\x1b\ud800", "W" * 30, "import_" * 8 + "end"]
    drawn = svg(keys, {keys[1]: [keys[0]]})
    root = ET.fromstring(drawn)
    for group in root.findall(f"{SVG}g"):
        text, box = group.find(f"{SVG}text"), group.find(f"{SVG}rect")
        if text is None or box is None:
            continue
        assert text_width(text.text or "", 13) <= float(box.get("width", "0")) - 20
    assert "import_impo" in drawn and "end</text>" in drawn, "both ends of a long key are kept"
    assert f"<title>{'x' * 64}</title>" in drawn


def test_it_is_the_same_every_time() -> None:
    needs = SHAPES["random1"]
    assert svg(list(needs), needs) == svg(list(needs), {k: list(v) for k, v in needs.items()})


@pytest.mark.parametrize("needs", [{"a": ["a"]}, {"a": ["b"]}, {"a": ["c"], "c": ["a"]}])
def test_a_picture_of_what_is_no_graph_is_refused(needs: Needs) -> None:
    with pytest.raises(ValueError):
        svg(["a", "c"], needs)


def test_the_picture_of_the_readme_is_small_and_whole() -> None:
    text = README_SVG.read_text(encoding="utf-8")
    assert len(text) < 20_000
    assert len(list(ET.fromstring(text).iter(f"{SVG}rect"))) == 12


@pytest.mark.skipif(not FILES, reason=f"no shared cases at {FOLDER}")
def test_real_flows_are_drawn_soundly() -> None:
    for file in FILES:
        case = json.loads(file.read_text(encoding="utf-8"))
        if case["expect"] != "accept":
            continue
        needs = {step["key"]: step["needs"] for step in case["steps"]}
        ET.fromstring(svg(list(needs), needs, dict.fromkeys(needs, "failed")))
        for down in (True, False):
            apart(placed(list(needs), needs, sizes(needs), down), needs)
