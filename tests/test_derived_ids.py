"""Both engines derive the same ids from the same parts (DESIGN §4, golden vectors)."""

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from qinglong_sql.store.sqlite_functions import FUNCTIONS

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "golden" / "derived_id.json").read_text()
)


@pytest.fixture
def sqlite() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    for name, count, function in FUNCTIONS:  # as the store registers them
        connection.create_function(name, count, function, deterministic=True)
    yield connection
    connection.close()


def by_hand(prefix: str, parts: list[str | int]) -> str:
    """Prefix and 24 hex digits of SHA-256 over the parts, each behind its length in bytes."""
    texts = [str(part).encode() for part in parts]
    whole = b"".join(b"%d:%s" % (len(text), text) for text in texts)
    return prefix + hashlib.sha256(whole).hexdigest()[:24]


def test_golden_vectors_follow_the_definition() -> None:
    assert len(VECTORS) >= 10
    for row in VECTORS:
        assert by_hand(row["prefix"], row["parts"]) == row["id"]
        assert len(row["id"]) == 26


def test_sqlite_derives_the_golden_ids(sqlite: sqlite3.Connection) -> None:
    for row in VECTORS:
        marks = ", ".join("?" * (1 + len(row["parts"])))
        (found,) = sqlite.execute(
            f"select derived_id({marks})", (row["prefix"], *row["parts"])
        ).fetchone()
        assert found == row["id"], row


def test_postgres_derives_the_golden_ids(postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        for row in VECTORS:
            parts = [str(part) for part in row["parts"]]
            (found,) = connection.execute(
                "select ql.derived_id(%s, variadic %s::text[])", (row["prefix"], parts)
            ).fetchone() or (None,)
            assert found == row["id"], row


def test_both_engines_digest_text_by_its_bytes(
    postgres_dsn: str, sqlite: sqlite3.Connection
) -> None:
    with psycopg.connect(postgres_dsn) as postgres:
        for text in ("", "a", "抽取", "🐉", "x" * 300):
            wanted = hashlib.sha256(text.encode()).hexdigest()
            assert sqlite.execute("select sha256_hex(?)", (text,)).fetchone() == (wanted,)
            assert postgres.execute("select ql.sha256_hex(%s)", (text,)).fetchone() == (wanted,)
