"""What writes a file writes it whole, follows links, and puts nothing in the place of a pipe."""

import json
import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from qinglong_sql.edge_status import StatusFile, may_keep
from qinglong_sql.whole_file import NoFile, part_of, write_whole
from tests.shell import Shell

CRONTAB = "0 1 * * * date\n"
PACKAGE = "package: p\nworkflows: {w: {steps: {a: {run: 'true'}}}}\n"


def pipe(path: Path) -> None:
    os.mkfifo(path)


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


def device(path: Path) -> None:
    """The device that takes whatever it is given; only root may make one, another user a pipe."""
    if os.geteuid() == 0:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    else:
        os.mkfifo(path)


def to_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


KINDS = [pipe, bound, device, to_pipe, Path.mkdir]
NAMES = ["pipe", "socket", "device", "link to a pipe", "folder"]


@pytest.fixture
def shell(sqlite_dsn: str, tmp_path: Path) -> Shell:
    one = Shell(tmp_path, sqlite_dsn)
    one.write("crontab", CRONTAB)
    one.write("p.yaml", PACKAGE)
    return one


def parts(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.endswith(".part")]


# -- the function


@pytest.mark.parametrize("make", KINDS, ids=NAMES)
def test_nothing_takes_the_place_of_what_is_no_file(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    path = tmp_path / "n"
    make(path)
    before = path.lstat()
    for replace in (True, False):
        with pytest.raises(NoFile, match="not a file"):
            write_whole(path, b"x", replace=replace)
    assert path.lstat() == before and not parts(tmp_path)


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "far" / "file", tmp_path / "link"
    target.parent.mkdir()
    link.symlink_to("far/file")
    write_whole(link, b"one", replace=False)  # it leads to nothing yet
    assert link.is_symlink() and target.read_bytes() == b"one"
    target.chmod(0o640)
    write_whole(link, b"two", replace=True)
    assert link.is_symlink() and target.read_bytes() == b"two"
    assert target.stat().st_mode & 0o777 == 0o640
    with pytest.raises(FileExistsError):
        write_whole(link, b"three", replace=False)
    assert target.read_bytes() == b"two"
    circle = tmp_path / "circle"
    circle.symlink_to("circle")
    with pytest.raises(OSError, match="levels of symbolic links"):
        write_whole(circle, b"x", replace=True, streams=True)
    assert not parts(tmp_path) and not parts(target.parent)


def test_what_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new", replace=True)
    assert path.read_bytes() == b"old" and not parts(tmp_path)


def test_what_a_killed_process_left_is_removed_and_nobody_else_s(tmp_path: Path) -> None:
    gone = 1 << 30  # no pid is that large
    kept = [".file.1.part", "file.part", ".other.2000000000.part", f".file.{gone}.partly"]
    for name in (*kept, f".file.{gone}.part", f".file.{gone}.part-journal"):
        (tmp_path / name).touch()
    assert part_of(tmp_path / "file") == tmp_path / f".file.{os.getpid()}.part"
    assert {path.name for path in tmp_path.iterdir()} == set(kept)
    long = tmp_path / ("ö" * 127)
    write_whole(long, b"x", replace=False)
    assert long.read_bytes() == b"x"


def test_a_file_system_without_links_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*given: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", link)
    path = tmp_path / "file"
    write_whole(path, b"one", replace=False)
    with pytest.raises(FileExistsError):
        write_whole(path, b"two", replace=False)
    assert path.read_bytes() == b"one" and not parts(tmp_path)


# -- the commands


@pytest.mark.parametrize("make", KINDS, ids=NAMES)
@pytest.mark.parametrize(
    "words", ["backup n --force", "init n --force", "edge --status-file n", "restore copy.db --yes"]
)
def test_a_command_leaves_what_is_no_file(
    shell: Shell, words: str, make: Callable[[Path], object]
) -> None:
    path = shell.folder / "n"
    make(path)
    before = path.lstat().st_ino
    if words.startswith("restore"):
        shell("backup", "copy.db")
        shell.dsn = f"sqlite:///{path}"
    done = shell(*words.split())
    assert done.returncode in (2, 5), done.stderr
    assert "not a file" in done.stderr or "is a directory" in done.stderr
    assert path.lstat().st_ino == before and not parts(shell.folder)


@pytest.mark.parametrize("make", [pipe, to_pipe], ids=["pipe", "link"])
@pytest.mark.parametrize(
    "words", ["import-crontab crontab -o n", "import-crontab crontab -o n --force",
              "graph p.yaml -o n"],
)  # fmt: skip
def test_output_goes_through_a_pipe(
    shell: Shell, words: str, make: Callable[[Path], object]
) -> None:
    path = shell.folder / "n"
    make(path)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()), daemon=True)
    reader.start()
    done = shell(*words.split())
    reader.join(10)
    assert done.returncode == 0, done.stderr
    assert read and read[0] and stat.S_ISFIFO(path.stat().st_mode)
    assert not parts(shell.folder)


def test_output_goes_to_what_the_shell_redirected(shell: Shell) -> None:
    for name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
        done = shell.process("import-crontab", "crontab", "-o", name)
        assert done.returncode == 0 and "date" in done.stdout, done.stderr
    for words in ("init /dev/stdout --force", "backup /dev/stdout --force"):
        done = shell.process(*words.split())
        assert done.returncode == 5 and "not a file" in done.stderr and not done.stdout


def test_a_linked_output_is_replaced_where_it_is(shell: Shell) -> None:
    link, target = shell.folder / "n", shell.folder / "real"
    link.symlink_to("real")
    for words in (
        "init n --force", "import-crontab crontab -o n --force", "graph p.yaml --format svg -o n",
        "backup n --force",
    ):  # fmt: skip
        before = target.read_bytes() if target.exists() else b""
        done = shell(*words.split())
        assert done.returncode == 0, done.stderr
        assert link.is_symlink() and not target.is_symlink()
        assert target.read_bytes() not in (before, b"")
    assert not parts(shell.folder)


@pytest.mark.parametrize(
    "words", ["import-crontab crontab -o crontab --force", "graph p.yaml --format svg -o p.yaml"]
)
def test_nothing_is_written_over_what_was_read(shell: Shell, words: str) -> None:
    path = shell.folder / words.split()[1]
    before = path.read_bytes()
    done = shell(*words.split())
    assert done.returncode == 5 and "choose another name" in done.stderr
    assert path.read_bytes() == before


# -- the status of an edge


def test_a_status_takes_the_place_of_a_status_alone(shell: Shell, tmp_path: Path) -> None:
    database = Path(shell.dsn.removeprefix("sqlite:///"))
    link = tmp_path / "status"
    link.symlink_to("status.json")
    assert may_keep(link, database)
    now = [0]
    file = StatusFile(link, 1_000, lambda: now[0])
    file.keep(lambda: {"pid": 1, "state": "serving"})
    now[0] = 1_000
    file.keep(lambda: {"pid": 1, "state": "stopped"})
    assert link.is_symlink() and json.loads(link.read_text())["state"] == "stopped"
    assert may_keep(link, database) and not parts(tmp_path)
    for name in ("p.yaml", database, f"{database}-wal", f"{database}-journal"):
        done = shell("edge", "--status-file", name)
        assert done.returncode == 5 and "no status of an edge" in done.stderr
    assert (tmp_path / "p.yaml").read_text() == PACKAGE
