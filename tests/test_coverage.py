"""The gate that every statement of PL/pgSQL is run by a test (scripts/gates/coverage.py)."""

import json
from pathlib import Path

import pytest

from scripts.gates import coverage as gate
from scripts.gates.coverage import Function, Part, Statement
from tests import coverage

BODY = [
    Statement(0, None, None, 1, "statement block"),
    Statement(1, 0, "body", 2, "IF"),
    Statement(2, 1, "then body", 3, "RETURN"),
    Statement(3, 0, "body", 4, "CASE"),
    Statement(4, 3, "case when 1", 5, "assignment"),
    Statement(5, 3, "case when 1", 6, "assignment"),
    Statement(6, 3, "case else", 7, "assignment"),
    Statement(7, 0, "exception 1", 8, "RETURN"),
]
AT = {one.stmtid: f"line {one.lineno}" for one in BODY}


def ways(*ran: int) -> dict[str, int]:
    found = gate.branches(BODY, dict(enumerate(ran)), AT)
    return {f"{one.line}: {one.what}": one.count for one in found}


def test_a_branch_ran_when_its_first_statement_did() -> None:
    assert ways(9, 9, 2, 7, 3, 2, 4, 1) == {
        "line 1: exception 1": 1,
        "line 2: then body": 2,
        "line 2: no else": 7,
        "line 4: case when 1": 3,
        "line 4: case else": 4,
    }


def test_an_if_that_always_held_has_a_branch_that_never_ran() -> None:
    assert ways(9, 9, 9, 0, 0, 0, 0, 0)["line 2: no else"] == 0


def test_what_never_ran_fails_the_gate(capsys: pytest.CaptureFixture[str]) -> None:
    ran, never = Part("return 1;", "RETURN", 3), Part("return 2;", "RETURN", 0)
    assert gate.told([Function("ql.f(text)", (ran,), ())], []) == 0
    assert gate.told([Function("ql.f(text)", (ran, never), ())], []) == 1
    assert "never run: ql.f(text): RETURN of `return 2;`" in capsys.readouterr().out
    assert gate.told([], []) == 1


def test_what_is_argued_must_be_there_and_never_run(monkeypatch: pytest.MonkeyPatch) -> None:
    never, key = Part("return 2;", "RETURN", 0), ("ql.f", "return 2;", "RETURN")
    monkeypatch.setattr(gate, "ARGUED", {key: "nobody can"})
    assert gate.told([Function("ql.f(text)", (never,), ())], []) == 0
    assert gate.told([Function("ql.f(text)", (Part("return 2;", "RETURN", 1),), ())], []) == 1
    assert gate.told([Function("ql.g(text)", (), ())], []) == 1


def test_processes_are_added_up(tmp_path: Path) -> None:
    for name, count in (("1", 2), ("2", 3)):
        text = json.dumps([["ql.f(text)", "d1", 4, count], [f"ql.{name}()", "d2", 0, 1]])
        (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
    assert coverage.found(tmp_path) == {
        ("ql.f(text)", "d1", 4): 5, ("ql.1()", "d2", 0): 1, ("ql.2()", "d2", 0): 1,
    }  # fmt: skip
