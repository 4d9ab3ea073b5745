"""Logs that an ingress keeps: offsets, repeats, gaps, caps, full disks, strange names."""

import errno
import io
import os
import random
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from qinglong_sql import log_store
from qinglong_sql.control_log import Log
from qinglong_sql.evidence import LOG_MAX_BYTES
from qinglong_sql.ingress_logs import CALM_S, LogFolder
from qinglong_sql.log_file import read_dropped
from qinglong_sql.log_store import FileLogStore, ending, take

RUN = "ru0123456789abcdef01234567"


@pytest.fixture
def store(tmp_path: Path) -> FileLogStore:
    return FileLogStore(tmp_path / "log", cap_bytes=100)


def held(store: FileLogStore, number: int = 1) -> bytes:
    return store.path(RUN, "a", number).read_bytes()


def test_chunks_become_one_log_whatever_is_repeated_or_comes_too_early(store: FileLogStore) -> None:
    assert store.append(RUN, "a", 1, 0, b"") == 0, "an empty chunk asks"
    assert store.append(RUN, "a", 1, 0, b"hello ") == 6
    assert store.append(RUN, "a", 1, 0, b"hello ") == 6, "its answer was lost"
    assert store.append(RUN, "a", 1, 7, b"gap") == 6, "nothing is written behind a gap"
    assert store.append(RUN, "a", 1, 3, b"XXX world") == 12, "only what is new is written"
    assert store.append(RUN, "a", 1, 12, b"") == 12
    assert held(store) == b"hello  world"
    assert store.append(RUN, "a", 2, 0, b"of another attempt") == 18
    assert held(store) == b"hello  world"


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_repeats_ends_in_the_same_log(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    text = bytes(chance.randrange(256) for _ in range(300))
    store = FileLogStore(tmp_path, cap_bytes=len(text))
    size = 0
    while size < len(text):
        offset = chance.randint(max(0, size - 40), min(len(text), size + 5))
        size = store.append(RUN, "a", 1, offset, text[offset : offset + chance.randint(0, 60)])
        assert size == len(held(store))
    assert held(store) == text


def test_a_log_is_capped_and_the_answer_says_so(store: FileLogStore) -> None:
    assert store.append(RUN, "a", 1, 0, b"x" * 90) == 90
    assert store.append(RUN, "a", 1, 90, b"y" * 90) == 100
    assert store.append(RUN, "a", 1, 100, b"z") == 100
    assert held(store) == b"x" * 90 + b"y" * 10
    assert FileLogStore(store.root)._cap == LOG_MAX_BYTES


def test_a_log_that_was_ended_stays_as_it_is(store: FileLogStore) -> None:
    assert take(store, RUN, "a", 1, 0, b"one", None) == 3
    assert read_dropped(ending(store.path(RUN, "a", 1))) is None
    assert take(store, RUN, "a", 1, 9, b"two", 0) == 3, "not all of it is here: not ended"
    assert not ending(store.path(RUN, "a", 1)).exists()
    assert take(store, RUN, "a", 1, 3, b"two", 7) == 6
    assert take(store, RUN, "a", 1, 3, b"two", 9) == 6, "the first word stands"
    assert read_dropped(ending(store.path(RUN, "a", 1))) == 7
    assert store.append(RUN, "a", 1, 6, b"three") == 6
    assert held(store) == b"onetwo"


def test_an_empty_log_is_a_log(store: FileLogStore) -> None:
    assert take(store, RUN, "a", 1, 0, b"", 0) == 0
    assert held(store) == b"" and read_dropped(ending(store.path(RUN, "a", 1))) == 0


@pytest.mark.parametrize(
    ("run_id", "step_key", "number"),
    [
        ("..", "a", 1), (".", "a", 1), ("", "a", 1), ("ru/..", "a", 1), ("ru1\n", "a", 1),
        ("r" * 37, "a", 1), ("ru1", "..", 1), ("ru1", "../x", 1), ("ru1", "", 1), ("ru1", "a/b", 1),
        ("ru1", "a" * 64, 1), ("ru1", "a\0", 1), ("ru1", "a", 0), ("ru1", "a", -1),
        ("ru1", "a", 2**31), ("/etc", "a", 1), ("rü1", "a", 1),
    ],
)  # fmt: skip
def test_nothing_but_a_log_can_be_named(
    store: FileLogStore, run_id: str, step_key: str, number: int
) -> None:
    with pytest.raises(ValueError, match="a log is named by"):
        store.append(run_id, step_key, number, 0, b"x")
    with pytest.raises(ValueError, match="a log is named by"):
        store.dropped(run_id, step_key, number, 0)
    assert not store.root.exists()


def test_only_its_user_may_read_it(store: FileLogStore) -> None:
    old = os.umask(0)
    try:
        take(store, RUN, "a", 1, 0, b"x", 0)
    finally:
        os.umask(old)
    log = store.path(RUN, "a", 1)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (log, ending(log))] == [0o600, 0o600]
    made = [folder for folder in log.parents if folder.is_relative_to(store.root.parent)]
    assert [folder.name for folder in made[:-1]] == [RUN, "log"]
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in made[:-1]} == {0o700}


def test_folders_above_are_made_for_its_user_alone_and_others_stay(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        (tmp_path / "there").mkdir(mode=0o755)
        store = FileLogStore(tmp_path / "there" / ".qinglong" / "ingress" / "log")
        assert take(store, RUN, "a", 1, 0, b"x", 0) == 1
    finally:
        os.umask(old)
    modes = [stat.S_IMODE(one.stat().st_mode) for one in store.path(RUN, "a", 1).parents[:5]]
    assert modes == [0o700, 0o700, 0o700, 0o700, 0o755]


def test_what_is_no_file_is_not_written_through(store: FileLogStore, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"dear")
    log = store.path(RUN, "a", 1)
    log.parent.mkdir(parents=True)
    log.symlink_to(other)
    ending(log).symlink_to(tmp_path / "made")
    assert take(store, RUN, "a", 1, 0, b"x", 0) == 0
    os.mkfifo(store.path(RUN, "a", 2))
    assert store.append(RUN, "a", 2, 0, b"x") == 0
    assert other.read_bytes() == b"dear" and not (tmp_path / "made").exists()


def full(monkeypatch: pytest.MonkeyPatch, room: list[int]) -> None:
    """Writes take bytes from `room`, and then the disk is full."""
    write = os.pwrite

    def pwrite(fd: int, chunk: bytes, at: int) -> int:
        taken = min(room[0], len(chunk))
        if not taken:
            raise OSError(28, "No space left on device")
        room[0] -= taken
        return write(fd, chunk[:taken], at)

    monkeypatch.setattr(log_store.os, "pwrite", pwrite)


def test_a_full_disk_takes_what_it_can_and_the_rest_when_it_has_room(
    store: FileLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = [4]
    full(monkeypatch, room)
    assert store.append(RUN, "a", 1, 0, b"hello world") == 4
    assert store.append(RUN, "a", 1, 4, b"o world") == 4
    room[0] = 100
    assert store.append(RUN, "a", 1, 4, b"o world") == 11
    assert held(store) == b"hello world"


def test_a_full_disk_keeps_how_much_was_dropped(
    store: FileLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    full(monkeypatch, [2])
    assert take(store, RUN, "a", 1, 0, b"hello", 0) == 2
    assert take(store, RUN, "a", 1, 2, b"", 3) == 2, "the worker gives the rest up"
    at = ending(store.path(RUN, "a", 1))
    assert at.stat().st_blocks == 0 and read_dropped(at) == 3


def test_a_folder_that_cannot_be_made_holds_nothing_and_raises_nothing(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a file")
    store = FileLogStore(tmp_path / "log")
    assert take(store, RUN, "a", 1, 0, b"x", 0) == 0


def test_each_error_is_told_and_that_it_works_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int | None] = []
    store = FileLogStore(tmp_path / "log", tell=lambda error: told.append(error and error.errno))
    room = [4]
    full(monkeypatch, room)
    assert store.append(RUN, "a", 1, 0, b"hello") == 4
    assert store.append(RUN, "a", 1, 0, b"hell") == 4, "nothing new"
    assert store.append(RUN, "a", 1, 4, b"") == 4, "an empty one asks"
    assert told == [errno.ENOSPC]
    room[0] = 100
    assert store.append(RUN, "a", 1, 4, b"o") == 5
    assert told == [errno.ENOSPC, None]
    store.dropped(RUN, "a", 1, 0)
    store.dropped(RUN, "a", 1, 0)
    assert told == [errno.ENOSPC, None], "a second end is no error"


def test_a_log_that_cannot_be_ended_is_told(tmp_path: Path) -> None:
    told: list[OSError | None] = []
    store = FileLogStore(tmp_path / "log", tell=told.append)
    store.dropped(RUN, "a", 1, 0)
    assert [error and error.errno for error in told] == [errno.ENOENT]


def test_a_folder_that_is_a_file_is_told_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a file")
    told: list[OSError | None] = []
    store = FileLogStore(tmp_path / "log", tell=told.append)
    assert take(store, RUN, "a", 1, 0, b"x", None) == 0
    (error,) = told
    assert error is not None and error.errno in (errno.EEXIST, errno.ENOTDIR)


FORBIDDEN = """
import os, sys
from pathlib import Path
from qinglong_sql.log_store import FileLogStore
os.setgroups([]) if os.geteuid() == 0 else None
os.setresuid(65534, 65534, 65534) if os.geteuid() == 0 else None
told = []
store = FileLogStore(Path(sys.argv[1]), tell=told.append)
size = store.append("ru1", "a", 1, 0, b"x")
print(size, [error and error.strerror for error in told])
"""
TOO_LARGE = """
import resource, signal, sys
from pathlib import Path
from qinglong_sql.log_store import FileLogStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4, 4))
told = []
store = FileLogStore(Path(sys.argv[1]), tell=told.append)
size = store.append("ru1", "a", 1, 0, b"hello")
print(size, [error and error.strerror for error in told])
"""


@pytest.mark.parametrize(
    ("program", "wanted"),
    [(FORBIDDEN, "0 ['Permission denied']"), (TOO_LARGE, "4 ['File too large']")],
)
def test_what_the_system_really_refuses_is_told(tmp_path: Path, program: str, wanted: str) -> None:
    """A user without a right, and a file that must not grow."""
    with tempfile.TemporaryDirectory() as name:  # where any user may come to
        Path(name).chmod(0o555 if program is FORBIDDEN else 0o755)
        words = [sys.executable, "-c", program, f"{name}/log"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        Path(name).chmod(0o755)
    assert (done.stdout.strip(), done.stderr) == (wanted, "")


# --- what an ingress says of it


def test_an_ingress_says_once_that_its_folder_is_full_and_once_that_it_is_well() -> None:
    now, out, failed = [100.0], io.StringIO(), []
    log = Log("text", "info", out, clock=lambda: now[0])
    folder = LogFolder(Path("/logs"), log, lambda: failed.append(1), clock=lambda: now[0])
    full, words = OSError(errno.ENOSPC, "No space left on device"), "logs: it works again"

    def said() -> list[str]:
        return [line.split(" ", 3)[3] for line in out.getvalue().splitlines()]

    folder(None)
    folder.look()
    assert said() == []
    for _ in range(5):  # a small piece is taken between
        folder(full)
        folder(None)
        now[0] += 1
    assert said() == ["logs: log folder /logs: No space left on device"] and len(failed) == 5
    now[0] += CALM_S
    folder(full)
    now[0] += CALM_S
    folder.look()
    assert words not in out.getvalue(), "nothing was written since"
    folder(None)
    folder(None)
    folder.look()
    assert out.getvalue().count(words) == 1
    folder(OSError(errno.EACCES, "Permission denied"))
    assert said()[-1] == "logs: log folder /logs: Permission denied"


def test_that_it_works_again_is_said_though_nothing_more_comes() -> None:
    now, out = [0.0], io.StringIO()
    folder = LogFolder(Path("/l"), Log("text", "info", out), lambda: 0, clock=lambda: now[0])
    folder(OSError(errno.ENOSPC, "No space left on device"))
    folder(None)
    folder.look()
    assert "it works again" not in out.getvalue()
    now[0] += CALM_S
    folder.look()
    assert out.getvalue().count("it works again") == 1


def test_several_ingresses_may_keep_logs_in_one_folder(tmp_path: Path) -> None:
    text = bytes(range(256)) * 200

    def ship() -> None:
        store, at = FileLogStore(tmp_path), 0
        while at < len(text):
            at = store.append(RUN, "a", 1, at, text[at : at + 700])

    threads = [threading.Thread(target=ship) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert FileLogStore(tmp_path).path(RUN, "a", 1).read_bytes() == text
