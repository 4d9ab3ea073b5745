"""What a fault shows: the line, a caret below the place, and no value of an environment."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qinglong_sql.package import PackageFaults, parse_package
from qinglong_sql.package_source import WIDTH, Hidden, Source, columns

SECRET = "hunter2"
HEAD = "package: p\ntasks:\n"
# Slips near an environment, most of which people make; some hold the secret twice.
SLIPS = {
    "a fault beside it": "  a: {run: x, env: {T: hunter2}, timeot: 1s}\n",
    "text in place of the mapping": "  a: {run: x, env: T=hunter2}\n",
    "a shell's assignment": "  a: {run: x, env: {T=hunter2}}\n",
    "a list of assignments": "  a:\n    run: x\n    env:\n      - T=hunter2\n",
    "the same variable twice": "  a:\n    run: x\n    env:\n      T: hunter2\n      T: hunter2\n",
    "a colon in it": "  a:\n    run: x\n    env:\n      T: hunter2: x\n",
    "a quote that does not end": '  a:\n    run: x\n    env:\n      T: "hunter2\n',
    "text after the quote": "  a:\n    run: x\n    env:\n      T: 'hunter2'hunter2\n",
    "it begins like an alias": "  a:\n    run: x\n    env:\n      T: *hunter2\n",
    "it begins like a tag": "  a:\n    run: x\n    env:\n      T: !hunter2 x\n",
    "it begins like nothing else": "  a:\n    run: x\n    env:\n      T: @hunter2\n",
    "a template's braces": "  a: {run: x, env: {T: {{hunter2}}}}\n",
    "a NUL in it": '  a: {run: x, env: {T: "hunter2\\0"}}\n',
    "a control character behind it": "  a:\n    run: x\n    env:\n      T: hunter2\x01\n",
    "a tab before the next": "  a:\n    run: x\n    env:\n      T: hunter2\n\tU: hunter2\n",
    "a literal that ends too soon": "  a:\n    env:\n      T: |\n        hunter2\n       hunter2\n",
    "several lines": '  a: {run: x, env: {T: "hunter2\n    hunter2", QL_X: 1}}\n',
    "over several lines, and broken": "  a: {run: x, env: {\n T: hunter2,\n U: @hunter2}}\n",
    "broken before it": "  a: {run: [x, y}, env: {T: hunter2}}\n",
    "a name and its colon apart": "  a: {run: x, env: {T\n  : hunter2, B: 'hunter2'}, cwd: x}\n",
    "no colon": "  a: {run: x, env {T: hunter2}}\n",
    "misspelt": "  a: {run: x, enviroment: {T: hunter2}}\n",
    "misspelt otherwise": "  a: {run: x, evn: {T: hunter2}}\n",
    "not indented": "  a:\n    run: x\n    env:\n    T: hunter2\n",
    "not indented at all": "  a:\n    run: x\n    env:\n  T: hunter2\n",
    "merged from elsewhere": "  a: {run: x, env: {<<: hunter2}}\n",
    "commented out": "  a: {cwd: x}  # env: {T: hunter2}\n",
    "a key of a variable": "  a: {run: x, env: {T: {hunter2: 1, hunter2: 2}}}\n",
    "a key below one": "  a: {run: x, env: {T: {hunter2: {hunter2: !x 2}}}}\n",
    "an anchor": "  a: {run: x, env: {T: &hunter2 x}, timeot: 1}\n",
    "an anchor of a name": "  a: {run: x, env: {&hunter2 T: x}, timeot: 1}\n",
    "an anchor of a mapping": "  a: {run: x, env: {T: &hunter2 {file: x, fil: y}}}\n",
    "an anchor and a tag": "  a: {run: x, env: {T: !x &hunter2 {file: x}}}\n",
    "an anchor that is meant": "  a: {run: *huntr2, env: {U: z}}\n  b: {env: {T: *hunter2}}\n",
    "an anchor that is near": "  b: {env: {T: &hunter2 x}}\n  a: {run: *hunter3, env: {}}\n",
    "a default": "  a: {run: x}\ndefaults: {env: {T: hunter2}, timeout: 1}\n",
    "a default that is null": "  a: {run: x}\ndefaults: {env: {T: hunter2, U: null}}\n",
    "in a place for anchors": "  a: {run: x}\nx-e: &e\n  T: hunter2\n  U: @hunter2\n",
}


def told(text: str) -> str:
    with pytest.raises(PackageFaults) as caught:
        parse_package(text.encode(), "jobs.yaml")
    return str(caught.value) + repr([fault.as_json() for fault in caught.value.faults])


@pytest.mark.parametrize("slip", SLIPS)
def test_no_fault_shows_what_a_variable_holds(slip: str) -> None:
    said = told(HEAD + SLIPS[slip])
    assert SECRET not in said
    assert "***" in said, said


def test_an_environment_that_an_alias_brings_is_hidden_where_it_stands() -> None:
    said = told(
        "package: p\nx-a: {e: &e {T: hunter2}, r: &r {atempts: 2}}\n"
        "tasks: {a: {run: x, env: *e, retry: *r}}\n"
    )
    assert SECRET not in said and "x-a: {e: &e {T: ***}, r: &r {atempts: ***}}" in said


def test_the_path_of_a_secret_is_shown() -> None:
    said = told(HEAD + "  a: {run: x, env: {T: {file: /run/t}, U: x}, timeot: 1s}\n")
    assert "a: {run: x, env: {T: {file: /run/t}, U: ***}, timeot: ***}" in said


def test_a_warning_shows_no_more() -> None:
    package = parse_package((HEAD + "  a: {run: x, env: {T: hunter2, U: null}}\n").encode(), "j")
    (warning,) = package.warnings
    said = warning.render("j", package.source)
    assert SECRET not in said and "env: {T: ***, U: ***}" in said


FILE = """\
package: p
x-common: &common
  timeout: 1h
defaults:
  env:
    A: hunter2
    B: "hunter2"
tasks:
  a:
    <<: *common
    run: [x, y]
    env:
      TOKEN: hunter2
      FILE: {file: /run/x}
  b: {run: x, env: {TOKEN: hunter2, B: 'hunter2'}, cwd: x}
workflows:
  w:
    steps:
      s: {run: x, env: {
        T: hunter2,
        U: "hunter2"}, needs: []}
"""
SIGNS = [
    "*a",
    "&a ",
    "!x ",
    "- ",
    "\t",
    "{",
    "}",
    "]",
    "[",
    '"',
    "'",
    "|",
    ": ",
    "@",
    "%",
    ",",
    "\\",
]
WITHIN = {at + n for at in range(len(FILE)) if FILE.startswith(SECRET, at) for n in range(1, 7)}


@settings(max_examples=150, deadline=None)
@example(FILE.index("hunter2"), "*a")
@given(st.integers(0, len(FILE)).filter(lambda at: at not in WITHIN), st.sampled_from(SIGNS))
def test_a_sign_too_many_anywhere_shows_no_variable(at: int, sign: str) -> None:
    try:
        package = parse_package((FILE[:at] + sign + FILE[at:]).encode(), "jobs.yaml")
    except PackageFaults as faults:
        assert SECRET not in str(faults)
    else:
        said = [warning.render("jobs.yaml", package.source) for warning in package.warnings]
        assert SECRET not in "".join(said)


# -- the line and its caret


def test_the_caret_stands_below_its_place() -> None:
    for line, column in (("abc", 2), ("抽取x", 3), ("a\tb", 3), ("e\u0301x", 3), ("a\u202ex", 3)):
        shown, caret = Source(line).excerpt(1, column) or ("", "")
        assert shown[0] == line[0] and caret.endswith("^")
        before = shown[: len(shown) - len(line[column - 1 :])]
        assert columns(before) == len(caret) - 1


def test_the_caret_stands_below_its_place_behind_what_is_hidden() -> None:
    line = "a: {env: {T: hunter2, U: x}, b: 抽, c: d}"
    hidden = tuple(Hidden(1, at + 1, 1, at + 1 + n) for at, n in ((13, 7), (25, 1)))
    source = Source(line, hidden)
    for word, before in (("b:", "a: {env: {T: ***, U: ***}, "), ("c:", "U: ***}, b: 抽, ")):
        shown, caret = source.excerpt(1, line.index(word) + 1) or ("", "")
        assert shown == "a: {env: {T: ***, U: ***}, b: 抽, c: d}"
        assert columns(shown[: shown.index(before) + len(before)]) == len(caret) - 1
    for column in (14, 17, 20):
        assert (source.excerpt(1, column) or ("", ""))[1] == " " * 13 + "^", "at its beginning"


def test_a_long_line_is_shortened_around_the_caret() -> None:
    for line in ("a" * 500, "抽" * 500, "抽a" * 250):
        for column in (1, 2, 59, 61, 120, 250, 440, 499, 500, 501):
            for width in (WIDTH, 40, 36):
                shown, caret = Source(line).excerpt(1, column, width) or ("", "")
                assert columns(shown) <= width and len(caret) <= width + 1
                assert shown.startswith("...") or columns(shown[: len(caret)]) >= len(caret) - 1
                assert shown.startswith("...") or shown.endswith("...")
    assert Source("a" * WIDTH).excerpt(1, 5) == ("a" * WIDTH, "    ^")


def test_there_is_no_line_behind_the_end_or_of_blanks() -> None:
    assert Source("a\n  \n").excerpt(2, 1) is None
    assert Source("a\n").excerpt(2, 1) is None
    assert Source("a\n").excerpt(9, 1) is None
    assert Source("a").excerpt(1, 2) == ("a", " ^")


def test_a_command_is_hidden_where_the_fault_is_another() -> None:
    curl = '["curl", "-H", "Authorization: Bearer s3cr3t"]'
    for line in (
        f"a: {{run: {curl}, retry: 5}}",
        f"a: {{run: {curl}, tiemout: 5s}}",
        "a: {run: curl -u ann:s3cr3t http://x, tiemout: 5s}",
        f"a: {{run: {curl}",
        "a: {run: [curl, 'https://ann:s3cr3t@x/'}",
        '"v v": {run: ["x", "s3cr3t"]}',
    ):
        with pytest.raises(PackageFaults) as raised:
            parse_package(f"package: p\ntasks:\n  {line}\n".encode(), "jobs.yaml")
        said = str(raised.value)
        assert "s3cr3t" not in said and "jobs.yaml:3:" in said, said
