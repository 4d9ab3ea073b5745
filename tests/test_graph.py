"""Cycles are found whole, and pictures show every step once, below all that it needs."""

import random
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qinglong_sql.cli.cells import cells
from qinglong_sql.cycle import knots
from qinglong_sql.graph import LOOKS, MERMAID_EDGES, depths, mermaid
from qinglong_sql.graph_text import text_graph

Needs = dict[str, list[str]]
ETL: Needs = {
    "extract": [],
    "clean-a": ["extract"],
    "clean-b": ["extract"],
    "load": ["clean-a", "clean-b"],
    "report": ["load"],
    "mail": ["report", "extract"],
    "audit": [],
}
STATES = {
    "extract": "succeeded",
    "clean-a": "failed",
    "clean-b": "running",
    "load": "pending",
    "report": "skipped",
    "audit": "retry_wait",
}


def random_graph(seed: int, count: int, most: int) -> Needs:
    chance = random.Random(seed)
    keys = [f"s{n:03}" for n in range(count)]
    needs = {
        key: chance.sample(keys[:n], min(n, chance.randint(0, most))) for n, key in enumerate(keys)
    }
    order = keys[:]
    chance.shuffle(order)
    return {key: needs[key] for key in order}


def test_a_picture_for_people() -> None:
    assert text_graph(list(ETL), ETL) == (
        "extract\n"
        "├─ clean-a\n"
        "└─ clean-b\n"
        "   ↓ load    ⇐ clean-a\n"
        "   ↓ report\n"
        "   ↓ mail    ⇐ extract\n"
        "audit\n"
    )
    assert text_graph(list(ETL), ETL, STATES) == (
        "✔ extract      succeeded\n"
        "├─ ✘ clean-a   failed\n"
        "└─ ▶ clean-b   running\n"
        "   ↓ · load    pending     ⇐ clean-a\n"
        "   ↓ ↷ report  skipped\n"
        "   ↓ · mail    pending     ⇐ extract\n"
        "↻ audit        retry_wait\n"
    )
    assert text_graph(list(ETL), ETL, STATES, ascii=True) == (
        "+ extract      succeeded\n"
        "|- x clean-a   failed\n"
        "`- > clean-b   running\n"
        "   v . load    pending     <= clean-a\n"
        "   v / report  skipped\n"
        "   v . mail    pending     <= extract\n"
        "~ audit        retry_wait\n"
    )


@pytest.mark.parametrize("seed", range(30))
def test_every_step_is_drawn_once_below_all_of_its_needs(seed: int) -> None:
    count = random.Random(seed).choice([1, 5, 20, 60, 128])
    needs = random_graph(seed, count, most=seed % 6)
    lines = text_graph(list(needs), needs).splitlines()
    drawn = [re.search(r"s\d{3}", line)[0] for line in lines]  # type: ignore[index]
    assert sorted(drawn) == sorted(needs)
    place = {key: number for number, key in enumerate(drawn)}
    assert all(place[need] < place[key] for key in needs for need in needs[key])
    assert max(len(line) for line in lines) <= 120


@pytest.mark.parametrize("seed", range(10))
def test_the_right_need_stands_above_and_the_others_are_named(seed: int) -> None:
    needs = random_graph(seed, 20, most=4)
    branches: list[tuple[int, str]] = []
    for line in text_graph(list(needs), needs).splitlines():
        found = re.search(r"(↓ |[├└]─ )?(s\d{3})(?:\s+⇐ (.*))?$", line)
        assert found
        indent, mark, key, note = found.start(), found[1] or "", found[2], found[3] or ""
        while branches and (
            branches[-1][0] > indent if mark == "↓ " else branches[-1][0] >= indent and mark
        ):
            branches.pop()
        others = set(re.findall(r"s\d{3}", note))
        more = re.search(r"and (\d+) more", note)
        above = {branches[-1][1]} if mark and branches else set()
        if mark == "":
            assert not needs[key]
            branches = []
        assert others <= set(needs[key])
        assert len(others) + (int(more[1]) if more else 0) + bool(mark) == len(set(needs[key]))
        if mark and above and not more:
            assert others | above == set(needs[key])
        branches.append((indent + (3 if mark.endswith("─ ") else 0), key))


def test_deep_and_wide_graphs_stay_readable() -> None:
    keys = [f"s{n:03}" for n in range(128)]
    chain = {key: [keys[n - 1]] if n else [] for n, key in enumerate(keys)}
    wide = {key: keys[:-1] if key == keys[-1] else [] for key in keys}
    dense = {key: keys[:n] for n, key in enumerate(keys)}
    comb = {key: [keys[(n - 1) // 2 * 2]] if n else [] for n, key in enumerate(keys)}
    for needs in (chain, wide, dense, comb):
        lines = text_graph(keys, needs, dict.fromkeys(keys, "waiting_approval")).splitlines()
        assert len(lines) == 128
        assert max(map(len, lines)) <= 120
        assert text_graph(keys, needs, {}, ascii=True).isascii()
    assert "and 123 more" in text_graph(keys, wide)


@pytest.mark.parametrize("wide", [30, 40, 80])
def test_a_picture_is_no_wider_than_its_terminal(wide: int) -> None:
    for seed in range(8):
        drawn = random_graph(seed, 60, most=seed)
        long = {f"import_{key}_of_the_warehouse_north_{key}": key for key in drawn}
        names = {key: name for name, key in long.items()}
        needs = {names[key]: [names[need] for need in direct] for key, direct in drawn.items()}
        states = {name: list(LOOKS)[n % len(LOOKS)] for n, name in enumerate(needs)}
        for shown in (None, states):
            for ascii_only in (False, True):
                lines = text_graph(list(needs), needs, shown, ascii_only, wide).splitlines()
                assert max(map(cells, lines)) <= wide
                assert len(lines) == 60
                found = {key for line in lines for key in re.findall(r"s\d{3}(?=\s|$)", line)}
                assert wide < 80 or shown or found >= set(drawn), "the end of a key is kept"


def test_every_status_has_signs_of_its_own() -> None:
    for column in (0, 1):
        signs = [look[column] for look in LOOKS.values()]
        assert len(set(signs)) == len(signs)
    assert all(look[1].isascii() for look in LOOKS.values())
    assert "● a" in text_graph(["a"], {}, {"a": "a status of tomorrow"})


def test_mermaid_for_people() -> None:
    assert mermaid(["a", "b.c"], {"b.c": ["a", "a"]}) == (
        'flowchart TD\n  s0["a"]\n  s1["b.c"]\n  s0 --> s1\n'
    )
    assert mermaid(["a", "b"], {"b": ["a"]}, {"a": "succeeded"}) == (
        "flowchart TD\n"
        '  s0["a<br/>✔ succeeded"]:::succeeded\n'
        '  s1["b<br/>· pending"]:::pending\n'
        "  s0 --> s1\n"
        "  classDef pending fill:#f4f4f4,stroke:#999,color:#555\n"
        "  classDef succeeded fill:#dcf5e3,stroke:#1a7f37,color:#111\n"
    )


def test_mermaid_ids_are_safe_whatever_the_key() -> None:
    drawn = mermaid(["end", 'a"]<b', "x;y"], {})
    assert '  s0["end"]\n  s1["a#34;#93;#60;b"]\n  s2["x#59;y"]\n' in drawn


def test_mermaid_leaves_out_needs_that_follow_from_others_when_there_are_too_many() -> None:
    keys = [f"s{n:03}" for n in range(60)]
    drawn = mermaid(keys, {key: keys[:n] for n, key in enumerate(keys)})
    assert drawn.count("-->") == 59 < MERMAID_EDGES
    assert "1711 needs that follow from others are not drawn" in drawn
    assert all(f"s{n} --> s{n + 1}\n" in drawn for n in range(59))


def test_a_picture_of_what_is_no_graph_is_refused() -> None:
    for needs in ({"a": ["a"]}, {"a": ["b"]}, {"a": ["c"], "c": ["a"]}):
        for draw in (text_graph, mermaid, depths):
            with pytest.raises(ValueError):
                draw(["a", "c"], needs)


def test_depths_are_longest_distances_in_an_order_that_can_run() -> None:
    assert depths(list(ETL), ETL) == {
        "extract": 0, "audit": 0, "clean-a": 1, "clean-b": 1, "load": 2, "report": 3, "mail": 4,
    }  # fmt: skip


def reachable(needs: dict[str, set[str]]) -> dict[str, set[str]]:
    found = {key: set(direct) & set(needs) for key, direct in needs.items()}
    for middle in needs:
        for key in needs:
            if middle in found[key]:
                found[key] |= found[middle]
    return found


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.sets(st.sampled_from("abcdefghz")), max_size=8)
)
def test_every_knot_is_found_with_a_cycle_that_is_one(needs: dict[str, set[str]]) -> None:
    apart = {key: direct - {key} for key, direct in needs.items()}
    found = reachable(apart)
    expected = {
        frozenset(other for other in found if other in found[key] and key in found[other])
        for key in found
        if key in found[key]
    }
    told = knots({key: sorted(direct) for key, direct in needs.items()})
    assert sorted(map(sorted, expected)) == sorted(sorted(knot.steps) for knot in told)
    for knot in told:
        assert len(set(knot.cycle)) == len(knot.cycle) >= 2
        assert set(knot.cycle) <= set(knot.steps)
        assert all(need in needs[step] for step, need in pairwise((*knot.cycle, knot.cycle[0])))


def test_a_cycle_of_thousands_of_steps_needs_no_recursion() -> None:
    ring = {f"s{n}": [f"s{(n + 1) % 5000}"] for n in range(5000)}
    (knot,) = knots(ring)
    assert len(knot.cycle) == 5000
