"""Canonical JSON, digests, derived ids and durations: one text for one value."""

import json
from pathlib import Path

import pytest

from qinglong_sql.canonical import canonical, derived_id, digest, read_json
from qinglong_sql.duration import DurationFault, read_duration, write_duration

GOLDEN = Path(__file__).parent / "golden"


def test_a_digest_is_sha256_of_the_utf8_bytes() -> None:
    assert digest("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digest("é") == "4a99557e4033c3539de2eb65472017cad5f9557f7a0625a09f1c3f6e2ba69c4c"


@pytest.mark.parametrize(
    ("text", "ms"),
    [("250ms", 250), ("30s", 30_000), ("15m", 900_000), ("2h", 7_200_000), ("1d", 86_400_000),
     ("1h30m", 5_400_000), ("1d2h3m4s5ms", 93_784_005), ("05s", 5_000)],
)  # fmt: skip
def test_a_duration_is_whole_numbers_with_units(text: str, ms: int) -> None:
    assert read_duration(text, 10**12) == ms
    assert read_duration(write_duration(ms), 10**12) == ms


@pytest.mark.parametrize(
    "text",
    ["", "15", "1.5h", "-1s", "1 s", "1S", "1min", "s", "1s1s", "1m1h", "0s", "0h0m", "1s ", "１s",
     "9" * 400 + "s", "1h30", "+1s", "1e3s"],
)  # fmt: skip
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(DurationFault):
        read_duration(text, 10**12)


def test_derived_ids_equal_the_golden_vectors() -> None:
    for row in json.loads((GOLDEN / "derived_id.json").read_text(encoding="utf-8")):
        assert derived_id(row["prefix"], *row["parts"]) == row["id"]
        assert len(row["id"]) == 26


def test_a_derived_id_refuses_what_has_no_one_text() -> None:
    for parts in [(True,), (1.0,), (None,), ("\ud800",)]:
        with pytest.raises(ValueError):
            derived_id("rn", *parts)  # type: ignore[arg-type]
    for prefix in ("", "r", "RN", "r1", "run"):
        with pytest.raises(ValueError):
            derived_id(prefix, "a")


def test_canonical_text_is_sorted_tight_and_keeps_utf8() -> None:
    assert canonical({"b": [1, 2.5, None, True], "a": {"é": "✔"}}) == (
        '{"a":{"é":"✔"},"b":[1,2.5,null,true]}'
    )
    assert canonical({"\U0001f409": 1, "\uffff": 2, "Z": 3, "a": 4}) == (
        '{"Z":3,"a":4,"\uffff":2,"\U0001f409":1}'
    )
    assert canonical([2**63 - 1, -(2**63)]) == "[9223372036854775807,-9223372036854775808]"


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), 2**63, -(2**63) - 1, 10**5000, "a\0b", "\ud800", {"\0": 1}, {1: 2},
     {"a": {1}}, b"x", object()],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_canonical_refuses_what_a_database_would_change(value: object) -> None:
    for nested in (value, [value], {"a": [value]}):
        with pytest.raises(ValueError):
            canonical(nested)


@pytest.mark.parametrize(
    "text",
    ["NaN", "[Infinity]", "1e400", "9223372036854775808", '{"a":1,"a":1}', '"\\u0000"', '"\\ud800"',
     "[" * 100_000, "[" * 100 + "]" * 100, "", "{", b"\xff", "1" * 5000],
    ids=lambda text: repr(text[:16]),
)  # fmt: skip
def test_json_from_outside_is_refused_where_canonical_would(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        read_json(text)
