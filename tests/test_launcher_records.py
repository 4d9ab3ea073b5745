"""Journals and receipts as files, and how much a launcher needs: memory, time, a platform."""

import json
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qinglong_sql.execution import (
    NotSupported,
    RecordBroken,
    adopt,
    boottime_ms,
    prepare,
    read_journal,
    read_receipt,
    start_forkserver,
    write_journal,
)
from tests.launching import LEASE_MS, Bench, ended, opened


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with opened(tmp_path) as bench:
        yield bench


def test_a_journal_is_replaced_as_a_whole_and_is_private(tmp_path: Path) -> None:
    assert read_journal(tmp_path) is None
    write_journal(tmp_path, {"attempt": "a-1", "token": "t", "name": "抽取"})
    write_journal(tmp_path, {"attempt": "a-2"})
    assert read_journal(tmp_path) == {"attempt": "a-2"}
    assert stat.S_IMODE((tmp_path / "journal.json").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["journal.json"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"attempt": 1}'])
def test_a_broken_receipt_is_not_taken_for_one(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "receipt.json").write_bytes(body)
    with pytest.raises(RecordBroken, match=r"receipt\.json"):
        read_receipt(tmp_path)


@pytest.mark.parametrize(
    "body", [b"\x00\x00\xfe\xff\x00", b"[" * 60_000, b"\xff", b"{"],
    ids=["utf-32", "nested", "bytes", "half"],
)  # fmt: skip
def test_a_journal_of_garbage_is_told_of_in_plain_words(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "journal.json").write_bytes(body)
    with pytest.raises(RecordBroken) as broken:
        read_journal(tmp_path)
    assert str(broken.value) == f"{tmp_path}/journal.json: not JSON"


def test_a_receipt_stays_small_whatever_it_is_told(bench: Bench) -> None:
    name = "\u62bd" * 3_000 + "\x01\ud800"
    one = bench.start(name)
    receipt = ended(one)
    assert receipt.error and len(receipt.error.encode()) <= 512
    assert (one.folder / "receipt.json").stat().st_size <= 4_096
    assert len(json.dumps(one.identity)) <= 512


def test_64_start_and_end_at_once(bench: Bench, tmp_path: Path) -> None:
    specs = [bench.spec("sleep", "0.3") for _ in range(64)]
    for number, spec in enumerate(specs):
        prepare(tmp_path / f"execution-{number}", spec)
    before = time.monotonic()
    bench.live = [bench.server.spawn(tmp_path / f"execution-{n}") for n in range(64)]
    for one in bench.live:
        one.go(boottime_ms() + LEASE_MS)
    took_s = time.monotonic() - before
    private_kib = [
        int(line.split()[1])
        for line in Path(f"/proc/{bench.live[0].identity['launcher_pid']}/smaps_rollup")
        .read_text()
        .splitlines()
        if line.startswith("Private_Dirty")
    ]
    assert {ended(one).exit for one in bench.live} == {"exit:0"}
    assert took_s < 3.0  # 0.3 s on an idle machine
    assert private_kib[0] < 3_072  # 1.2 MiB measured


def test_a_folder_may_be_longer_than_the_path_of_a_socket(bench: Bench) -> None:
    one = bench.spawn(bench.spec("true"), "execution-" + "x" * 200)
    again = adopt(one.folder)
    assert again and again.go(boottime_ms() + LEASE_MS)
    assert ended(again).exit == "exit:0"


def test_elsewhere_than_on_linux_start_up_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(NotSupported, match="need Linux, this is darwin"):
        start_forkserver(tmp_path)
