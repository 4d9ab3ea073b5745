"""Power fails while SQLite writes: what was answered is there again (`tests.power` says how).

The long proof (tests.prove.power) has more moments, and real file systems.
"""

import random
from pathlib import Path

import pytest

from qinglong_sql.store.sqlite import Profile
from tests import power, powered
from tests.power import MAIN

MOMENTS = 100


@pytest.mark.parametrize("profile", ["edge", "standalone"])
def test_nothing_acknowledged_is_lost_and_the_rest_goes_on(
    profile: Profile, tmp_path: Path
) -> None:
    record = powered.recorded(tmp_path, profile)
    assert powered.settings(record) == []
    wrong = [
        line
        for number in range(MOMENTS)
        for line in powered.failed(record, tmp_path / "work.db", random.Random(number))
    ]
    assert wrong == []


@pytest.mark.parametrize(("profile", "text"), powered.CONTROLS)
def test_a_setting_that_is_too_weak_loses_something(
    profile: Profile, text: str, tmp_path: Path
) -> None:
    record = powered.recorded(tmp_path, profile, powered.setting(text))
    draws = map(random.Random, range(MOMENTS))
    assert any(powered.failed(record, tmp_path / "work.db", draw) for draw in draws)


def test_the_disk_keeps_what_was_synced_and_tears_the_rest() -> None:
    disk = power.Disk()
    disk.create(MAIN, b"a" * 2048)
    disk.sync_folder()
    disk.write(0, b"b" * 1024, 0)
    disk.sync(0)
    disk.write(0, b"c" * 2048, 512)
    found = {power.after(disk.log, random.Random(seed))[MAIN] for seed in range(200)}
    assert all(one[:512] == b"b" * 512 for one in found)
    sectors = [[one[at : at + 512] for at in range(0, len(one), 512)] for one in found]
    assert any(b"b" * 512 in one[1:] and b"c" * 512 in one for one in sectors)
    assert {len(one) for one in found} == {2048, 2560}
