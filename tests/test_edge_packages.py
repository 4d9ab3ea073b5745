"""A folder of package files: what is published, what is told, and what stays as it was."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qinglong_sql import edge_packages
from qinglong_sql.cli.reasons import Screen
from qinglong_sql.cli.standing import unpublished
from qinglong_sql.edge_packages import Packages
from qinglong_sql.errors import Malformed, NotReady
from qinglong_sql.limits import PACKAGE_BYTES
from qinglong_sql.package import Package

GOOD = "package: {key}\ntasks: {{t: {{run: {run}, queue: {queue}}}}}\n"
SECOND = 1_000_000_000


class Desk:
    """A folder, its Packages with a clock of their own, and what they publish and say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_ns = 2_000_000_000 * SECOND  # all files are old unless they say otherwise
        self.published: list[tuple[str, str]] = []
        self.said: list[str] = []
        self.refuse: Exception | None = None
        self.packages = Packages(folder, self.publish, self.say, lambda: self.now_ns)

    def publish(self, package: Package) -> dict[str, Any]:
        if self.refuse:
            raise self.refuse
        known = [one for one in self.published if one[0] == package.key]
        same = bool(known) and known[-1][1] == package.digest
        if not same:
            self.published.append((package.key, package.digest))
        return {
            "package_key": package.key,
            "generation": len(known) + (not same),
            "outcome": "existing" if same else "published",
        }

    def say(self, event: str, words: str, **more: object) -> None:
        self.said.append(f"{event}: {words}")

    def write(self, name: str, key: str, run: str = "date", queue: str = "default") -> Path:
        path = self.folder / name
        path.write_text(GOOD.format(key=key, run=run, queue=queue))
        return path

    def look(self) -> list[str]:
        """What a look says."""
        self.said.clear()
        self.packages.look()
        return list(self.said)

    def keys(self) -> list[str]:
        return [key for key, _ in self.published]

    def files(self) -> dict[str, dict[str, Any]]:
        return {one["file"]: one for one in self.packages.answer()["files"]}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_all_package_files_are_published_and_no_others(desk: Desk) -> None:
    desk.write("a.yaml", "a", queue="q")
    desk.write("b.yml", "b")
    for name in (".hidden.yaml", "c.yaml~", "#d.yaml", ".e.yaml.swp", "f.txt", "g.json"):
        desk.write(name, "no")
    assert desk.look() == [
        "published: published a generation 1 (a.yaml)",
        "published: published b generation 1 (b.yml)",
    ]
    assert desk.look() == []
    assert desk.packages.queues() == {"default", "q"}
    assert desk.files()["a.yaml"] == {
        "file": "a.yaml", "package": "a", "generation": 1, "faults": [], "fault_count": 0,
        "published_at_ms": desk.now_ns // 1_000_000,
    }  # fmt: skip


def test_a_file_that_changed_is_published_anew_and_one_that_was_touched_is_not(desk: Desk) -> None:
    path = desk.write("a.yaml", "a")
    desk.look()
    desk.write("a.yaml", "a", run="uptime")
    assert desk.look() == ["published: published a generation 2 (a.yaml)"]
    os.utime(path, (1, 1))
    assert desk.look() == []
    assert desk.files()["a.yaml"]["generation"] == 2


def test_a_bad_file_is_told_once_a_change_and_what_is_active_stays(desk: Desk) -> None:
    path = desk.write("a.yaml", "a")
    desk.look()
    path.write_text("package: a\ntasks: {t: {rum: date}}\n")
    said = desk.look()
    assert all(one.startswith("fault: a.yaml:2:") for one in said), said
    assert said[-1].endswith("; not published, generation 1 stays active")
    assert "published" not in "".join(said[:-1])
    assert desk.look() == []
    found = desk.files()["a.yaml"]
    assert (found["package"], found["generation"], len(found["faults"])) == ("a", 1, len(said))
    path.write_text("package: a\ntasks: {t: {rum: uptime}}\n")
    assert desk.look() != []
    desk.write("a.yaml", "a")
    assert desk.look() == ["active: a generation 1 is active (a.yaml)"]
    assert desk.keys() == ["a"]


def test_many_faults_are_told_shortly(desk: Desk) -> None:
    (desk.folder / "a.yaml").write_text("package: a\ntasks:\n" + "  t{0}: 3\n" * 50)
    assert len(desk.look()) <= edge_packages.SHOWN_FAULTS + 1
    found = desk.files()["a.yaml"]
    assert len(found["faults"]) <= edge_packages.SHOWN_FAULTS <= found["fault_count"]


def test_two_files_with_one_package_are_told_and_neither_is_published(desk: Desk) -> None:
    desk.write("b.yaml", "same", run="one")
    desk.look()
    desk.write("a.yaml", "same", run="two")
    desk.write("c.yaml", "other")
    assert desk.look() == [
        "fault: b.yaml: package same is also defined by a.yaml; not published,"
        " generation 1 stays active",
        "fault: a.yaml: package same is also defined by b.yaml; not published,"
        " what was active stays active",
        "published: published other generation 1 (c.yaml)",
    ]
    assert desk.look() == []
    desk.write("b.yaml", "same", run="three")
    desk.look()
    assert desk.keys() == ["same", "other"], "what is active stays"
    (desk.folder / "a.yaml").unlink()
    assert desk.look() == [
        "gone: a.yaml is gone",
        "published: published same generation 2 (b.yaml)",
    ]
    assert desk.files()["b.yaml"]["faults"] == []


def test_the_package_of_a_file_that_goes_stays(desk: Desk) -> None:
    path = desk.write("a.yaml", "a")
    desk.look()
    path.unlink()
    assert desk.look() == [
        "gone: a.yaml is gone; package a stays active until `qinglong-sql withdraw a`"
    ]
    assert desk.look() == []
    desk.write("renamed.yaml", "a")
    assert desk.look() == ["active: a generation 1 is active (renamed.yaml)"]


def test_a_file_that_is_being_written_is_left_alone(desk: Desk) -> None:
    path = desk.folder / "a.yaml"
    text = GOOD.format(key="a", run="date", queue="default").encode()
    for end in range(30, len(text), 10):
        path.write_bytes(text[:end])
        desk.now_ns = path.stat().st_mtime_ns + SECOND // 2
        assert desk.look() == []
    path.write_bytes(text)
    desk.now_ns = path.stat().st_mtime_ns + SECOND // 2
    assert desk.packages.look() == 1_000, "milliseconds until it is worth another look"
    assert desk.said == []
    assert desk.look() == ["published: published a generation 1 (a.yaml)"], "the same twice"
    assert desk.packages.look() is None


def test_a_clock_that_was_set_back_only_delays(desk: Desk) -> None:
    path = desk.write("a.yaml", "a")
    desk.now_ns = path.stat().st_mtime_ns - 3600 * SECOND
    assert desk.look() == []
    assert desk.look() == ["published: published a generation 1 (a.yaml)"]


def pipe(path: Path) -> None:
    os.mkfifo(path)


def large(path: Path) -> None:
    path.write_bytes(b"# " + b"x" * PACKAGE_BYTES)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (pipe, None),
        (Path.mkdir, None),
        (lambda path: path.symlink_to("nowhere"), None),
        (large, "256 KiB"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "a.yaml:1:"),
        (lambda path: path.write_bytes(b""), "a.yaml:1:"),
    ],
    ids=["pipe", "folder", "dangling", "large", "bytes", "empty"],
)
def test_what_is_no_package_harms_nobody(
    desk: Desk, make: Callable[[Path], object], told: str | None
) -> None:
    make(desk.folder / "a.yaml")
    desk.write("b.yaml", "b")
    *faults, last = desk.look()
    assert last == "published: published b generation 1 (b.yaml)"
    assert bool(faults) == bool(told)
    assert (told or "") in "".join(faults)
    assert desk.look() == []


def test_a_link_is_followed(desk: Desk, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "x"
    elsewhere.write_text(GOOD.format(key="a", run="date", queue="q"))
    (desk.folder / "a.yaml").symlink_to(elsewhere)
    assert desk.look() == ["published: published a generation 1 (a.yaml)"]
    elsewhere.write_text(GOOD.format(key="a", run="uptime", queue="q"))
    assert desk.look() == ["published: published a generation 2 (a.yaml)"]


def test_a_folder_that_is_away_is_told_once_and_tried_again(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "later")
    told = f"{tmp_path}/later: No such file or directory"
    assert desk.look() == [f"folder: packages cannot be read: {told}"]
    assert desk.look() == []
    assert desk.packages.answer()["fault"] == told
    desk.folder.mkdir()
    desk.write("a.yaml", "a")
    assert desk.look() == [
        f"folder: packages can be read again: {desk.folder}",
        "published: published a generation 1 (a.yaml)",
    ]
    desk.folder.rename(tmp_path / "away")
    assert [one.partition(":")[0] for one in desk.look()] == ["folder"], "no file is called gone"
    assert desk.files()["a.yaml"]["generation"] == 1


def test_a_database_that_is_away_is_tried_again(desk: Desk) -> None:
    desk.write("a.yaml", "a")
    desk.refuse = NotReady("away")
    for _ in range(2):
        with pytest.raises(NotReady):
            desk.look()
    desk.refuse = None
    assert desk.look() == ["published: published a generation 1 (a.yaml)"]


def test_what_the_database_refuses_is_a_fault_of_the_file(desk: Desk) -> None:
    desk.write("a.yaml", "a")
    desk.write("b.yaml", "b")
    desk.refuse = Malformed("no such need")
    assert desk.look() == [
        f"fault: {name}.yaml: QL400 no such need; not published, what was active stays active"
        for name in "ab"
    ]  # fmt: skip
    assert desk.look() == []
    desk.refuse = None
    desk.write("a.yaml", "a", run="uptime")
    assert desk.look() == ["published: published a generation 1 (a.yaml)"]


def test_there_is_an_end_to_files_and_to_the_time_of_a_look(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_packages, "MAX_FILES", 3)
    monkeypatch.setattr(edge_packages, "AT_ONCE_S", 0.0)
    for name in "abcde":
        desk.write(f"{name}.yaml", name)
    assert desk.packages.look() == 0, "there is more to do at once"
    assert desk.said == [
        f"folder: 2 files of {desk.folder} are left out: only the first 3 are looked at"
    ]
    desk.look()
    desk.look()
    assert desk.keys() == ["a", "b", "c"]
    assert desk.packages.answer()["left_out"] == 2
    (stuck,) = unpublished({"packages": desk.packages.answer()}, Screen(0, True, "sqlite", ""))
    assert "2 files of" in stuck["words"] and "left out" in stuck["words"]
    (desk.folder / "a.yaml").unlink()
    assert "1 file of" in desk.look()[0]
    (desk.folder / "b.yaml").unlink()
    assert f"folder: all files of {desk.folder} are looked at again" in desk.look()
    assert desk.packages.answer()["fault"] is None
