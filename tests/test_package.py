"""A package file becomes a digested model, or all of its faults with their places."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qinglong_sql.canonical import canonical, digest, read_json
from qinglong_sql.limits import PACKAGE_BYTES
from qinglong_sql.package import Package, PackageFaults, load_package, parse_package

GOLDEN = Path(__file__).parent / "golden"
FAULTS = GOLDEN / "package" / "faults.txt"
MARK = re.compile(r"#! (.+)$")
HEAD = "package: p\n"
TASK = HEAD + "tasks:\n"
FLOW = HEAD + "workflows:\n  w:\n    steps:\n"
TRIGGER = HEAD + "tasks: {t: {run: x}}\ntriggers:\n"

# Files whose lines with a fault end in `#! code …`; the short ones are in a file for people.
BAD = {
    title: text
    for title, _, text in (
        part.partition("\n")
        for part in (GOLDEN / "package" / "faults.txt")
        .read_text(encoding="utf-8")
        .split("=== ")[1:]
    )
} | {
    "an empty file": "#! missing_field",
    "a key that is too long": TASK + f"  {'k' * 64}: {{run: x}}  #! bad_key",
    "a command that is null": TASK + "  a: {run: null}  #! bad_value",
    "a command that is a tilde": TASK + "  a: {run: ~}  #! bad_value",
    "a name that is too long": TASK + f"  a: {{run: x, name: {'字' * 201}}}  #! bad_value",
    "129 steps": HEAD
    + "workflows:\n  w:\n    steps:  #! too_many_steps\n"
    + "".join(f"      s{n}: {{run: x}}\n" for n in range(129)),
    "brackets beyond reason": "a: " + "[" * 5000 + "  #! too_large",
    "a command that no kernel takes": TASK + f"  a: {{run: {'x' * (128 * 1024)}}}  #! too_large",
}
BYTES = {
    "a file beyond 256 KiB": (b"#" * (PACKAGE_BYTES + 1), "too_large", 1, 1),
    "UTF-16": ("package: p".encode("utf-16"), "syntax", 1, 1),
    "Latin-1": ("package: p\nname: é".encode("latin-1"), "syntax", 2, 7),
    "NUL": (b"package: p\nname: a\0b", "syntax", 2, 8),
    "an escape beyond Unicode": (b'package: "\\UFFFFFFFF"', "syntax", 1, 1),
}
ISSUE = (GOLDEN / "package" / "nightly.yaml").read_bytes()


def faults_of(text: str | bytes) -> PackageFaults:
    with pytest.raises(PackageFaults) as caught:
        parse_package(text if isinstance(text, bytes) else text.encode("utf-8"), "jobs.yaml")
    return caught.value


def package_of(text: str) -> Package:
    return parse_package(text.encode("utf-8"), "jobs.yaml")


def marked(text: str) -> list[tuple[int, str]]:
    return sorted(
        (number, code)
        for number, line in enumerate(text.splitlines(), 1)
        if (mark := MARK.search(line))
        for code in mark[1].split()
    )


@pytest.mark.parametrize("case", BAD)
def test_a_fault_is_told_once_and_on_its_line(case: str) -> None:
    faults = faults_of(BAD[case]).faults
    assert sorted((f.line, f.code) for f in faults) == marked(BAD[case])


@pytest.mark.parametrize("case", BYTES)
def test_bytes_that_are_no_package_are_told_with_their_place(case: str) -> None:
    raw, code, line, column = BYTES[case]
    assert [(f.code, f.line, f.column) for f in faults_of(raw).faults] == [(code, line, column)]


def test_all_faults_of_a_file_are_told_together() -> None:
    text = (
        "package: no way  #! bad_key\n"
        "tusks: {}  #! unknown_field\n"
        "tasks:\n"
        "  a: {runs: x, timeout: 15}  #! unknown_field missing_field bad_duration\n"
        "  A: {run: [], on_lost: retry}  #! duplicate_key bad_value bad_value\n"
        "workflows:\n"
        "  w: {steps: {}}  #! no_steps\n"
        "  v:\n"
        "    steps:\n"
        "      s: {task: b, needs: [t, nope, s]}  #! unknown_task cycle unknown_need self_need\n"
        "      t: {needs: s, run: x}\n"
        "      t: {run: x, needs: [gone]}  #! duplicate_key unknown_need\n"
        "triggers:\n"
        "  x: {cron: 61 * * * *, workflow: ww}  #! bad_cron unknown_workflow missing_field\n"
    )
    faults = faults_of(text).faults
    assert sorted((f.line, f.code) for f in faults) == marked(text)
    assert list(faults) == sorted(faults, key=lambda f: (f.line, f.column))


def test_a_fault_says_where_it_is_and_what_would_help() -> None:
    text = (
        FLOW + "      load: {run: x}\n      clean:\n        run: x\n        needs: [load, laod]\n"
    )
    error = faults_of(text)
    assert [f.as_json() for f in error.faults] == [
        {
            "code": "unknown_need",
            "key": "workflows.w.steps.clean.needs[1]",
            "line": 8,
            "column": 23,
            "message": 'there is no step "laod"',
            "hint": "did you mean load?",
        }
    ]
    assert str(error) == (
        "jobs.yaml:8:23: workflows.w.steps.clean.needs[1]: "
        'there is no step "laod"; did you mean load? (unknown_need)\n'
        "            needs: [load, laod]\n"
        "                          ^"
    )


def test_the_words_of_faults_that_need_more_than_a_code() -> None:
    def words(text: str) -> str:
        return " ".join(f.words() for f in faults_of(text).faults)

    assert "`name`" in words(BAD["a key in Chinese"])
    assert "line 4" in words(BAD["tasks that differ by case"])
    assert "line 3" in words(BAD["tasks that differ by case"])
    assert "129 steps, and the limit is 128" in words(BAD["129 steps"])
    assert "a -> b -> a" in words(BAD["two steps in a cycle"])
    assert "did you mean timeout?" in words(BAD["a field that is misspelt"])
    assert "did you mean needs?" in words(FLOW + "      a: {run: x, depends_on: b}\n")
    assert "quoted" in words(BAD["an unquoted star"])
    assert "never with tabs" in words(BAD["a tab"])


def test_the_caret_stands_below_the_fault_in_wide_text() -> None:
    shown = str(faults_of(TASK + '  a: {name: 抽取, run: "", cwd: x}\n')).splitlines()
    assert shown[1].index('"') + len("抽取") == shown[2].index("^")


def test_what_does_not_print_in_a_file_does_not_reach_the_terminal() -> None:
    shown = str(faults_of(TASK + '  "a\u202eb\\e[31m": {run: x}\n'))
    assert shown.replace("\n", "").isprintable()


def test_every_knot_of_a_workflow_is_told_with_one_whole_cycle() -> None:
    needs = {"a": "b", "b": "c", "c": "[a, b]", "d": "c", "x": "y", "y": "x"}
    text = FLOW + "".join(f"      {k}: {{run: x, needs: {n}}}\n" for k, n in needs.items())
    assert [f.message for f in faults_of(text).faults] == [
        "steps wait for each other: b -> c -> b (in other cycles with them: a)",
        "steps wait for each other: x -> y -> x",
    ]


def test_needs_may_be_one_text_and_a_need_named_twice_counts_once() -> None:
    package = package_of(
        FLOW
        + "      a: {run: x}\n      b: {run: x, needs: a}\n      c: {run: x, needs: [b, a, b]}\n"
    )
    steps = package.model["workflows"]["w"]["steps"]
    assert (steps["b"]["needs"], steps["c"]["needs"]) == (["a"], ["a", "b"])
    assert [(f.code, f.line) for f in package.warnings] == [("duplicate_need", 7)]


def test_scalars_mean_what_was_written() -> None:
    package = package_of(TASK + "  no: {run: [echo, 010, 1e3, no, 2024-01-01, ~, 0x1F, '']}\n")
    run = ["echo", "010", "1e3", "no", "2024-01-01", "~", "0x1F", ""]
    assert package.model["tasks"]["no"]["run"] == run


def test_an_environment_keeps_its_case_and_its_empty_text() -> None:
    package = package_of(TASK + "  t: {run: x, env: {path: a, PATH: b, E: , F: {file: k}}}\n")
    env = {"path": "a", "PATH": "b", "E": "", "F": {"file": "k"}}
    assert package.model["tasks"]["t"]["env"] == env


def test_anchors_may_be_used_where_they_stay_small() -> None:
    package = package_of(TASK + "  a: {run: x, env: &e {A: b}}\n  b: {run: y, env: *e}\n")
    assert package.model["tasks"]["b"]["env"] == {"A": "b"}
    bomb = "a: &a0 [x]\n" + "".join(f"b{n}: &a{n} [{f'*a{n - 1}, ' * 9}]\n" for n in range(1, 9))
    assert [f.code for f in faults_of(bomb).faults] == ["too_large"]


def test_a_manifest_beyond_the_limit_is_refused() -> None:
    flow = FLOW + "      a: {run: &r " + "x" * 100_000 + "}\n"
    text = flow + "      b: {run: *r}\n      c: {run: *r}\n"
    assert [f.code for f in faults_of(text).faults] == ["too_large"]


def test_a_byte_order_mark_and_windows_lines_are_accepted() -> None:
    text = TASK + "  a: {run: x}\n"
    windows = b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()
    assert parse_package(windows, "x").digest == package_of(text).digest


GOOD = sorted((GOLDEN / "package").glob("*.yaml"))


@pytest.mark.parametrize("file", GOOD, ids=lambda file: file.stem)
def test_a_good_file_gives_the_model_that_people_reviewed(file: Path) -> None:
    package = load_package(file)
    assert package.model == json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
    assert package.manifest == canonical(package.model)
    assert package.digest == digest(package.manifest)
    assert package.base_dir == file.parent
    assert package.key == package.model["package"]


def test_there_are_good_files() -> None:
    assert len(GOOD) >= 4


def test_the_digest_depends_on_neither_order_nor_comments_nor_folder(tmp_path: Path) -> None:
    one = "package: p\ntasks:\n  a: {run: x, env: {A: b, C: d}}\n  b: {run: [y]}\n"
    two = (
        "# another order\ntasks:\n  b: {run: ['y']}\n  a:\n    env: {C: d, \"A\": b}\n"
        "    run: x  # the same\n    on_lost: fail\npackage: p\n"
    )
    (tmp_path / "jobs.yaml").write_text(two)
    loaded = load_package(tmp_path / "jobs.yaml")
    assert loaded.digest == package_of(one).digest
    assert (loaded.base_dir, package_of(one).base_dir) == (tmp_path, Path.cwd())
    assert loaded.digest != package_of(one.replace("[y]", "y")).digest


def test_a_file_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(PackageFaults) as caught:
            load_package(path)
        assert [f.code for f in caught.value.faults] == ["unreadable"]
        assert str(path) in str(caught.value)


def test_reading_a_package_needs_no_heavy_library() -> None:
    code = (
        "import sys, qinglong_sql.package, qinglong_sql.graph; heavy = "
        "{'click', 'rich', 'sqlalchemy', 'psycopg', 'msgspec', 'alembic'} & set(sys.modules); "
        "sys.exit(' '.join(heavy) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=GOLDEN.parent.parent)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_a_package_or_told_faults(raw: bytes) -> None:
    _package_or_faults(raw)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_mutated_file_is_a_package_or_told_faults(draw: st.DataObject) -> None:
    text = draw.draw(st.sampled_from([ISSUE.decode(), *BAD.values()]))[:3000]
    for _ in range(draw.draw(st.integers(1, 4))):
        start = draw.draw(st.integers(0, len(text)))
        end = min(len(text), start + draw.draw(st.integers(0, 30)))
        pieces = st.sampled_from(
            ["*a", "&a ", "<<: ", "!x ", "- ", "? ", "\t", "{", "]", '"\\U', "|"]
        )
        patch = draw.draw(pieces | st.text(max_size=5) | st.just(text[end : end + 20]))
        text = text[:start] + patch + text[end:]
    _package_or_faults(text.encode("utf-8", "surrogatepass"))


def _package_or_faults(raw: bytes) -> None:
    try:
        package = parse_package(raw, "fuzz.yaml")
    except PackageFaults as error:
        assert error.faults
        str(error).encode("utf-8")
        lines = len(error.source.lines)
        assert all(f.line >= 1 and f.column >= 1 and f.line <= lines + 1 for f in error.faults)
        canonical([f.as_json() for f in error.faults])
    else:
        assert read_json(package.manifest) == package.model


def test_lost_work_alone_is_retried_when_nothing_else_is_said() -> None:
    text = b"package: p\ntasks:\n  a: {run: x, idempotent: true, on_lost: retry}\n"
    retry = parse_package(text, "p.yaml").model["tasks"]["a"]["retry"]
    assert (retry["attempts"], retry["on"]) == (3, [])


def test_a_folder_whose_name_is_not_utf8_is_told_as_such(tmp_path: Path) -> None:
    (folder := tmp_path / os.fsdecode(b"h\xe9")).mkdir()
    (file := folder / "p.yaml").write_text(TASK + "  t: {run: x}\n")
    with pytest.raises(PackageFaults) as raised:
        load_package(file)
    (fault,) = raised.value.faults
    assert fault.code == "unreadable" and "folder is not UTF-8" in fault.message and fault.hint
