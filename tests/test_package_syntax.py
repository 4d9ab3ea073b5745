"""Slips in YAML are told in plain words, with what would help, and with the line to be seen."""

import pytest

from qinglong_sql.package import PackageFaults, parse_package
from qinglong_sql.package_fault import WHY_HIDDEN

TASKS = "package: p\ntasks:\n"
STEPS = "package: p\nworkflows:\n  w:\n    steps:\n"
JARGON = ("block", "flow", "scalar", "mapping values", "token", "node", "scanning", "simple key")
LIST = "found a list; write NAME: ... and not - NAME: ..."

# A file, the place of its fault, what is said of it, and how the line is shown.
SLIPS = {
    "a key too far right": (
        STEPS + "      a:\n        run: x\n         needs: [b]\n",
        "7:15", "this line is indented by 9, the line before it by 8", "needs: [b]",
    ),
    "a step too far right": (
        STEPS + "      a: {run: x}\n       b: {run: y}\n",
        "6:8", "this line is indented by 7, the lines before it by 6", "b: {run: y}",
    ),
    "a step too far left": (
        STEPS + "       a: {run: x}\n      b: {run: y}\n",
        "6:7", "this line is indented by 6, the lines before it by 7 or 4", "b: {run: y}",
    ),
    "a tab": (TASKS + "\ta: {run: x}\n", "3:1", "begins with a tab; indent with blanks", "a:"),
    "no colon before a mapping": (
        TASKS + "  a\n    run: x\n", "4:8", "a colon is missing at the end of line 3?", "run: x",
    ),
    "no colon in a pair": (
        TASKS + "  a:\n    run x\n    timeout: 1s\n", "5:12",
        "no key can stand behind line 4: it has no colon", "timeout: 1s",
    ),
    "no colon in a later pair": (
        TASKS + "  a:\n    timeout: 1s\n    run x\n    cwd: x\n", "6:5",
        "line 5 is no KEY: VALUE; a colon and a blank are missing in it", "cwd: x",
    ),
    "no blank behind a colon": (
        TASKS + "  a:\n    run:x\n    timeout: 1s\n", "5:12",
        "no key can stand behind line 4: there is no blank behind its colon", "timeout: 1s",
    ),
    "no colon between braces": (
        STEPS + '      parse: {run "echo", needs [fetch]}\n', "5:33",
        "a colon and a blank are missing before it?", 'parse: {run "echo", needs [fetch]}',
    ),
    "no comma": (
        STEPS + '      a: {run: "echo" needs: [b]}\n', "5:23",
        "text stands where } or a comma is expected", 'a: {run: "echo" needs: [b]}',
    ),
    "no closing brace": (
        STEPS + "      a: {run: x\n      b: {run: y}\n", "6:8",
        "there is a second", "b: {run: y}",
    ),
    "the other bracket": (
        TASKS + "  a: {run: [x}\n", "3:14", "] is expected, for the [ of column 12", "[x}",
    ),
    "a colon in a command": (
        TASKS + "  a:\n    run: echo a: b\n", "4:16", 'a second ": " in this line', "echo a: b",
    ),
    "a quote in front": (
        TASKS + '  a:\n    run: "x" y\n', "4:14",
        "text stands behind the end of a value", '"x" y',
    ),
    "a quote without end": (
        TASKS + '  a:\n    run: "x\n', "4:10", "begins here and does not end", 'run: "x',
    ),
    "the end within brackets": (TASKS + "  a: {run: [\n", "4:1", "ends within brackets", ""),
    "an unknown escape": (TASKS + '  a: {run: "\\d"}\n', "3:14", "no escape 'd'", '"\\d"'),
    "a tag of nobody": (TASKS + "  a: {run: !x!hunter2 y}\n", "3:12", "a tag is not", "a: {run"),
    "a list among keys": (
        TASKS + "  a: {run: x}\n  - b: {run: x}\n", "4:3", "a list item stands among keys", "- b",
    ),
}  # fmt: skip


def told(text: str) -> list[str]:
    with pytest.raises(PackageFaults) as caught:
        parse_package(text.encode(), "jobs.yaml")
    return str(caught.value).splitlines()


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_told_in_plain_words_and_its_line_is_seen(slip: str) -> None:
    text, place, words, line = SLIPS[slip]
    head, *shown = told(text)
    assert head.startswith(f"jobs.yaml:{place}: ") and words in head, head
    assert not any(word in head for word in JARGON), head
    assert line in "".join(shown[:1]) and "hunter2" not in head
    if shown and "***" not in shown[0]:
        assert shown[1].index("^") == int(place.split(":")[1]) + 3, "the column that is said"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (STEPS + "      - parse: {run: x}\n", [LIST, "    - parse: {run: x}"]),
        (STEPS + "      - name: parse\n        run: x\n", [LIST, "    - name: parse"]),
        (
            STEPS + "      parse:\n      run: x\n      needs: [b]\n      b: {run: x}\n",
            ['run is a key of a step: indent it under "parse"?', "    run: x",
             'needs is a key of a step: indent it under "parse"?', "    needs: [b]"],
        ),
        (TASKS + "  a:\n  run: x\n", ['run is a key of a task: indent it under "a"?']),
        (STEPS + "      a: {run: x, retry: 3}\n", ["write retry: {attempts: 3}", "retry: 3}"]),
        ("package: p\nsteps: {a: {run: x}}\n", ["put it under workflows: NAME:", "{a: {run: x}}"]),
        ("package: p\na: {run: x}\n", ["a task? put it under tasks:"]),
        ("package: p\nworkflows: {w: {tasks: {a: {run: x}}}}\n", ["did you mean steps?"]),
        ("package: p\nworkflows: {w: {jobs: {a: {run: x}}}}\n", ["did you mean steps?"]),
        ("package: p\nworkflows: {w: {a: {run: x}}}\n", ["a step? put it under steps:"]),
        ("package: p\njobs: {a: {run: x}}\n", ["did you mean workflows?"]),
    ],
)  # fmt: skip
def test_a_key_in_the_wrong_place_is_told_with_the_right_one(text: str, words: list[str]) -> None:
    said = "\n".join(told(text))
    for word in words:
        assert word in said, said
    assert "***" not in said


def test_what_hides_is_explained_once_and_only_where_something_is_hidden() -> None:
    lines = told(TASKS + "  a: {run: x, timeot: hunter2}\n  b: {run: x, evn: {T: hunter2}}\n")
    assert lines.count(WHY_HIDDEN) == 1 and lines[-1] == WHY_HIDDEN
    assert "hunter2" not in "\n".join(lines)
    assert WHY_HIDDEN not in told(TASKS + "  a: {cwd: x}\n")


@pytest.mark.parametrize(
    "text",
    [
        "  a: {run: x, env: {t: hunter2}, needs [b]}\n",
        "  a: {run x, evn: {t: hunter2}, needs [b]}\n",
        "  a:\n    env:\n      t: a\n      u: hunter2: b\n",
        "  a:\n    env:\n    t: hunter2: b\n",
        "  a:\n    env:\n  t: hunter2: b\n",
        "  a: {run: x, env: {\n    t: a,\n    u: {hunter2: b: c}}}\n",
        "  a: {run 'X=hunter2', needs [b]}\n",
        "  a: {db_password: hunter2, run: x}\n",
        "  a: {run: x, secrets: {db: {pass: hunter2}}}\n",
        "  a: {run: x, secrets: {{hunter2}}}\n",
        "  a: {run: x, secrets: [hunter2, {a=hunter2}]}\n",
    ],
)
def test_what_may_be_a_variable_stays_hidden_whatever_its_name(text: str) -> None:
    said = "\n".join(told(TASKS + text))
    assert "hunter2" not in said and said.endswith(WHY_HIDDEN), said


def test_a_line_behind_an_environment_that_has_ended_is_shown() -> None:
    broken = "  b: {run x, needs [a]}\n"
    for before in ("  a: {run: x, env: {t: hunter2}}\n", "  a:\n    env:\n      t: hunter2\n"):
        said = told(TASKS + before + broken)
        assert said[1] == "      b: {run x, needs [a]}", said
