"""What a worker makes of a receipt, of an output, and of its own environment."""

from pathlib import Path
from typing import Any

import pytest

from qinglong_sql.execution import Receipt
from qinglong_sql.limits import ERROR_BYTES
from qinglong_sql.workplace import End, Gone, end_of, environment, read_output


def receipt(**change: Any) -> Receipt:
    fields: dict[str, Any] = dict.fromkeys(Receipt.__slots__)
    fields |= {"kind": "ended", "why": "exit", "exit": "exit:0", "tree": "empty"} | change
    return Receipt(**fields)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, End("exit", 0)),
        ({"exit": "exit:3"}, End("exit", 3)),
        ({"exit": "signal:9"}, End("signal", error="ended by signal 9")),
        ({"why": "stop", "exit": "exit:0", "reason": "user"}, End("stop", 0)),
        ({"why": "stop", "exit": "signal:15", "reason": "user"}, End("stop")),
        ({"why": "stop", "exit": "signal:15", "reason": "deadline"}, End("deadline")),
        ({"why": "stop", "exit": "signal:9", "reason": "lease"}, Gone("lease")),
        ({"why": "deadline", "exit": "signal:15"}, End("deadline")),
        ({"why": "lease", "exit": "signal:9"}, Gone("lease")),
        ({"why": "start_failed", "exit": None, "error": "no"}, End("start_failed", error="no")),
        ({"kind": "not_started", "why": "eof", "exit": None}, End("not_started")),
        ({"kind": "not_started", "why": "stop", "exit": None}, End("not_started")),
        ({"kind": "launcher_lost", "why": "launcher_died", "exit": None}, Gone("launcher_lost")),
    ],
)
def test_a_receipt_becomes_a_report(change: Any, says: End | Gone, tmp_path: Path) -> None:
    assert end_of(receipt(**change), tmp_path) == says


def test_errors_are_cut_to_what_is_stored(tmp_path: Path) -> None:
    end = end_of(receipt(why="start_failed", exit=None, error="ä\0" * ERROR_BYTES), tmp_path)
    assert isinstance(end, End) and end.error
    assert len(end.error.encode()) <= ERROR_BYTES and "\0" not in end.error


def test_an_output_is_stored_as_canonical_text(tmp_path: Path) -> None:
    assert read_output(tmp_path) is None
    (tmp_path / "output.json").write_text('{"b": [1, 2.50],\n "a": "ä"}')
    assert read_output(tmp_path) == '{"a":"ä","b":[1,2.5]}'
    for nothing in ("", " \n"):
        (tmp_path / "output.json").write_text(nothing)
        with pytest.raises(ValueError, match="QL_OUTPUT is empty: write a JSON object to it, or"):
            read_output(tmp_path)


def test_the_environment_of_a_task_goes_on_top() -> None:
    assert environment({"A": "1", "B": "2", "QL_X": "3"}, {"B": {"file": "/f"}}) == {
        "A": "1", "B": {"file": "/f"},
    }  # fmt: skip
