"""Graphviz' text of a graph: every key quoted, every state a shape, a style, a sign and a word."""

import re
import shutil
import subprocess

import pytest

from qinglong_sql.graph import LOOKS
from qinglong_sql.graph_dot import SHAPES, dot
from tests.test_graph import ETL, STATES

ODD = ["end", "node", 'a"b', "c\\d", "<b>", "x;y", "末尾", "a->b", "e\nf"]


def test_a_digraph_for_people() -> None:
    assert dot(["a", "b"], {"b": ["a", "a"]}, title="t").splitlines()[-4:] == [
        '  "a";', '  "b";', '  "a" -> "b";', "}",
    ]  # fmt: skip
    drawn = dot(list(ETL), ETL, STATES, title="demo / etl", down=False)
    assert drawn.startswith('digraph "demo / etl" {\n  rankdir=LR;\n')
    assert drawn.count(" -> ") == 7
    assert (
        '  "clean-a" [label="clean-a\\n✘ failed", shape=octagon, style="filled,bold",'
        ' fillcolor="#fbdada", color="#c1121f"];\n'
    ) in drawn
    assert '"mail" [label="mail\\n· pending"' in drawn


def test_every_state_has_a_look_of_its_own() -> None:
    assert SHAPES.keys() == LOOKS.keys()
    assert len(set(SHAPES.values())) == len(SHAPES)
    assert "● tomorrow" in dot(["a"], {}, {"a": "tomorrow"})


def test_signs_of_the_language_mean_nothing_in_a_key() -> None:
    drawn = dot(ODD, {"end": ["node"]}, {})
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', '""', drawn)
    assert outside.count('""') == drawn.count("[label=") * 5 + 1 + 2 + 6
    assert "<" not in outside and ";y" not in outside and "末" not in outside


@pytest.mark.skipif(shutil.which("dot") is None, reason="no dot here: apt-get install graphviz")
def test_graphviz_reads_it() -> None:
    needs = {key: [ODD[0]] for key in ODD[1:]}
    for states in (None, dict(zip(ODD, LOOKS, strict=False))):
        done = subprocess.run(
            ["dot", "-Tplain"], input=dot(ODD, needs, states), capture_output=True, text=True,
            timeout=30, check=True,
        )  # fmt: skip
        assert not done.stderr
        assert len(re.findall(r"^node ", done.stdout, re.M)) == len(ODD)
        assert len(re.findall(r"^edge ", done.stdout, re.M)) == len(ODD) - 1


def test_what_is_no_graph_is_refused() -> None:
    with pytest.raises(ValueError):
        dot(["a"], {"a": ["a"]})
