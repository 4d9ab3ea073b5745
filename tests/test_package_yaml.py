"""Anchors, aliases, merge keys and x- keys: what they mean, their limits, how they are told."""

import json

import pytest

from qinglong_sql.limits import YAML_ALIASES, YAML_DEPTH, YAML_NODES
from qinglong_sql.package import PackageFaults, parse_package
from qinglong_sql.package_fault import Fault

HEAD = "package: p\n"


def model(text: str) -> dict[str, object]:
    return parse_package(text.encode(), "jobs.yaml").model


def faults(text: str) -> tuple[Fault, ...]:
    with pytest.raises(PackageFaults) as caught:
        parse_package(text.encode(), "jobs.yaml")
    return caught.value.faults


def same(short: str, written_out: str) -> None:
    """Both files are one package: equal models, equal digests."""
    one = parse_package((HEAD + short).encode(), "jobs.yaml")
    two = parse_package((HEAD + written_out).encode(), "jobs.yaml")
    assert one.model == two.model and one.digest == two.digest


def test_an_alias_is_what_its_anchor_is() -> None:
    same(
        "tasks:\n  a: {run: &r [x, y], retry: &again {attempts: 3}}\n"
        "  b: {run: *r, retry: *again, timeout: &t 5m}\n  c: {run: x, timeout: *t}\n",
        "tasks:\n  a: {run: [x, y], retry: {attempts: 3}}\n"
        "  b: {run: [x, y], retry: {attempts: 3}, timeout: 5m}\n  c: {run: x, timeout: 5m}\n",
    )


def test_an_alias_may_be_a_key_or_a_need() -> None:
    same(
        "workflows: {w: {steps: {&k a: {run: x}, b: {run: x, needs: [*k]}}}}\n",
        "workflows: {w: {steps: {a: {run: x}, b: {run: x, needs: [a]}}}}\n",
    )


def test_the_last_anchor_of_a_name_counts() -> None:
    same(
        "tasks:\n  a: {run: &r x}\n  b: {run: &r y}\n  c: {run: *r}\n",
        "tasks:\n  a: {run: x}\n  b: {run: y}\n  c: {run: y}\n",
    )


def test_a_merge_brings_keys_and_an_own_key_wins_wherever_it_stands() -> None:
    same(
        "x-base: &base {run: x, timeout: 1h, queue: q}\n"
        "tasks:\n  a: {<<: *base, timeout: 2h}\n  b:\n    queue: r\n    <<: *base\n",
        "tasks:\n  a: {run: x, timeout: 2h, queue: q}\n  b: {run: x, timeout: 1h, queue: r}\n",
    )


def test_of_several_merges_the_first_wins() -> None:
    same(
        "x-a: &a {timeout: 1h}\nx-b: &b {timeout: 2h, cwd: b}\n"
        "tasks:\n  t: {<<: [*a, *b, {cwd: c, queue: q}], run: x}\n",
        "tasks:\n  t: {run: x, timeout: 1h, cwd: b, queue: q}\n",
    )


def test_a_merge_may_hold_a_merge() -> None:
    same(
        "x-a: &a {timeout: 1h, cwd: a}\nx-b: &b {<<: *a, cwd: b}\n"
        "tasks:\n  t: {<<: *b, run: x, env: {<<: {A: b}, C: d}}\n",
        "tasks:\n  t: {run: x, timeout: 1h, cwd: b, env: {A: b, C: d}}\n",
    )


def test_a_section_may_be_merged_too() -> None:
    same(
        "x-steps: &steps\n  a: {run: x}\n  b: {run: y, needs: [a]}\n"
        "workflows:\n  one: {steps: *steps}\n"
        "  two: {steps: {<<: *steps, c: {run: z, needs: [b]}}}\n",
        "workflows:\n  one: {steps: {a: {run: x}, b: {run: y, needs: [a]}}}\n"
        "  two: {steps: {a: {run: x}, b: {run: y, needs: [a]}, c: {run: z, needs: [b]}}}\n",
    )


def test_a_quoted_merge_key_is_a_key() -> None:
    (fault,) = faults(HEAD + 'tasks:\n  a: {run: x, "<<": {}}\n')
    assert (fault.code, fault.line, fault.column) == ("unknown_field", 3, 15)


def test_keys_of_nobody_are_ignored_at_the_top_whatever_they_hold() -> None:
    same("x-note: [1, {a: ~}]\nx-: y\ntasks: {a: {run: x}}\n", "tasks: {a: {run: x}}\n")


def test_scalars_stay_text_in_whatever_an_alias_brings() -> None:
    tasks = model(HEAD + "x-a: &a [no, 010, 2024-01-01, 1e3]\ntasks: {a: {run: *a}}\n")["tasks"]
    assert json.loads(json.dumps(tasks))["a"]["run"] == ["no", "010", "2024-01-01", "1e3"]


# -- told with the place of the text and of the alias


def test_a_fault_behind_aliases_is_told_once_with_all_of_them() -> None:
    text = HEAD + (
        "x-retry: &retry\n  attempts: 65\ntasks:\n"
        + "".join(f"  t{n}: {{run: x, retry: *retry}}\n" for n in range(5))
    )
    (fault,) = faults(text)
    assert (fault.line, fault.column, fault.where) == (3, 13, "tasks.t0.retry.attempts")
    assert fault.aliases == tuple((line, 23) for line in range(5, 10))
    assert fault.words().endswith("(through the alias on line 5, 6, 7 and 2 more)")
    assert fault.as_json()["aliases"] == [{"line": n, "column": 23} for n in range(5, 10)]


def test_a_fault_at_its_own_place_is_not_told_again_through_aliases() -> None:
    (fault,) = faults(HEAD + "tasks:\n  a: {run: x, env: &e {A-B: c}}\n  b: {run: x, env: *e}\n")
    assert (fault.where, fault.aliases) == ("tasks.a.env.A-B", ())


def test_a_merge_of_something_else_names_the_alias_and_the_anchor() -> None:
    (fault,) = faults(HEAD + "x-a: &a text\ntasks:\n  t: {run: x, <<: *a}\n")
    assert (fault.code, fault.line, fault.column) == ("wrong_type", 4, 19)
    assert fault.where == 'tasks.t["<<"]'
    assert "its anchor is on line 2" in fault.message


def test_an_alias_within_its_own_anchor_is_told_as_that() -> None:
    (fault,) = faults(HEAD + "tasks:\n  a: &a\n    run: x\n    retry: *a\n")
    assert (fault.code, fault.line, fault.column) == ("syntax", 5, 12)
    assert "inside of its own anchor, on line 3" in fault.message


def test_an_unknown_anchor_has_a_suggestion() -> None:
    (fault,) = faults(HEAD + "x-b: &base {run: x}\ntasks:\n  a: {<<: *bsae}\n")
    assert (fault.code, fault.line, fault.column) == ("syntax", 4, 11)
    assert fault.hint == "did you mean base?"


# -- limits


def test_values_are_counted_with_all_aliases_written_out() -> None:
    laughs = "x-a: &a0 [x]\n" + "".join(
        f"x-{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)
    )
    merges = "x-a: &a0 {k: v}\n" + "".join(
        f"x-{n}: &a{n} {{" + ", ".join(f"k{i}: *a{n - 1}" for i in range(9)) + "}\n"
        for n in range(1, 9)
    )
    for bomb in (laughs, merges):
        (fault,) = faults(HEAD + bomb)
        assert fault.code == "too_large" and str(YAML_NODES) in fault.message


def test_aliases_are_counted() -> None:
    text = HEAD + "tasks: {a: {run: [&x x" + ", *x" * YAML_ALIASES + "{}]}}\n"
    assert model(text.replace("{}", ""))["package"] == "p"
    (fault,) = faults(text.replace("{}", ", *x"))
    assert fault.code == "too_large" and f"{YAML_ALIASES} aliases" in fault.message


def test_levels_are_counted_with_all_aliases_written_out() -> None:
    """Otherwise 256 aliases of 20 levels each could be as deep as Python's stack is not."""
    deep = "x-0: &a0 {k: v}\n" + "".join(f"x-{n}: &a{n} {{k: *a{n - 1}}}\n" for n in range(1, 200))
    (fault,) = faults(HEAD + deep)
    assert fault.code == "too_large" and f"{YAML_DEPTH} levels" in fault.message
    flat = deep.replace("k: *", "<<: *") + "tasks: {a: {run: x}}\n"
    assert model(HEAD + flat)["package"] == "p", "a merge adds no level"
