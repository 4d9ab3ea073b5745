"""`logs` of steps that ran on other machines: from the folder of an ingress, while they come."""

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from qinglong_sql.cli import follow
from qinglong_sql.holding import Held
from qinglong_sql.log_store import FileLogStore, ending, take
from qinglong_sql.shipping import Shipping
from qinglong_sql.shipping_log import Author
from qinglong_sql.store import Store, open_store
from qinglong_sql.workplace import keep_log
from tests import acting
from tests.shell import Shell, command
from tests.workers import HOST, Authority, ingress_here, worker_process

SOON_S = 2.0


@pytest.fixture
def shell(postgres_dsn: str, tmp_path: Path) -> Shell:
    return Shell(tmp_path, postgres_dsn, {"QINGLONG_STATE_DIR": str(tmp_path / "state")})


NOT_YET = "worker host-a has not shipped it yet, or the ingress' log folder does not take it"


@pytest.fixture
def store(postgres_dsn: str) -> Iterator[Store]:
    with closing(open_store(postgres_dsn)) as opened:
        yield opened


@pytest.fixture
def logs(tmp_path: Path) -> FileLogStore:
    """Where `ingress` keeps them when nothing else is said."""
    return FileLogStore(tmp_path / "state" / "ingress" / "log")


def begun(store: Store, **needs: list[str]) -> tuple[str, dict[str, acting.Held]]:
    """A run whose roots are executed by host-a."""
    run_id = acting.begun(store, needs)
    acting.register(store, "host-a")
    count = sum(not of for of in needs.values())
    held = acting.lease(store, *(f"o{n}" for n in range(count)), worker="host-a")
    acting.run(store, *held.values())
    return run_id, held


def test_what_was_shipped_is_told_like_any_log(
    store: Store, shell: Shell, logs: FileLogStore
) -> None:
    run_id, held = begun(store, a=[], b=[])
    take(logs, run_id, "a", 1, 0, b"one\ntwo\n", None)
    done = shell("logs", run_id, "a")
    assert (done.returncode, done.stdout, done.stderr) == (0, "one\ntwo\n", "")
    acting.report(store, held["a"])
    done = shell("logs", run_id, "a")
    assert done.stdout == "one\ntwo\n"
    assert done.stderr == (
        "this log is not whole yet: worker host-a has not shipped the rest, or the ingress' log"
        " folder does not take it\n"
    )
    take(logs, run_id, "a", 1, 8, b"three", 0)
    assert shell("logs", run_id, "a").stderr == ""
    (row,) = json.loads(shell("logs", run_id, "--json").stdout)
    assert (row["text"], row["missing"]) == ("one\ntwo\nthree", None)
    assert row["path"] == str(logs.path(run_id, "a", 1))
    acting.report(store, held["b"])
    take(logs, run_id, "b", 2, 0, b"part", 300)
    done = shell("logs", run_id)
    assert done.stdout == "a | one\na | two\na | three\nb | part\n"
    assert done.stderr == (
        "the log of b, attempt 2 is not whole: 300 bytes are not kept: the disk was full or failed"
        "\n"
    )


def test_a_full_log_of_which_nothing_is_missing_is_whole(
    store: Store, shell: Shell, logs: FileLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qinglong_sql.cli.tail.LOG_CAP_BYTES", 4)
    run_id, held = begun(store, a=[])
    acting.report(store, held["a"])
    take(logs, run_id, "a", 1, 0, b"full", 0)
    assert shell("logs", run_id).stderr == ""
    ending(logs.path(run_id, "a", 1)).write_text("7\n")
    assert "is not whole: 7 bytes in it are not kept: it was full" in shell("logs", run_id).stderr


def test_without_a_log_here_it_says_where_it_is(
    store: Store, shell: Shell, logs: FileLogStore, tmp_path: Path
) -> None:
    run_id, held = begun(store, a=[], b=[])
    done = shell("logs", run_id, "a")
    way = f"(not in {logs.root}; QINGLONG_STATE_DIR or --log-dir)"
    away = f"it is on worker host-a, or where its ingress keeps logs {way}"
    assert done.returncode == 5
    assert done.stderr == (
        f"refused: no log of a, attempt 1 on this machine: {away}; it is running\n"
    )
    done = shell("logs", run_id)
    assert done.stderr == f"refused: no logs of this run on this machine (2 attempts): {away}\n"
    logs.root.mkdir(parents=True)
    done = shell("logs", run_id, "a")
    assert f"machine: {NOT_YET}; it is running" in done.stderr
    take(logs, run_id, "b", 2, 0, b"here\n", None)
    done = shell("logs", run_id)
    assert (done.returncode, done.stdout) == (0, "b | here\n")
    assert done.stderr == (f"no log on this machine: a, attempt 1 ({NOT_YET})\n")
    acting.report(store, *held.values())
    elsewhere = FileLogStore(tmp_path / "elsewhere")
    take(elsewhere, run_id, "a", 1, 0, b"there\n", 0)
    assert shell("logs", run_id, "a", "--log-dir", "elsewhere").stdout == "there\n"
    env = {"QINGLONG_LOG_DIR": str(elsewhere.root)}
    assert shell("logs", run_id, env=env).stdout == "a | there\nb | here\n"


def test_a_worker_of_this_machine_has_its_logs_in_a_folder_by_its_name(
    store: Store, shell: Shell, tmp_path: Path
) -> None:
    run_id, _ = begun(store, a=[], b=[])
    state = tmp_path / "state" / "remote-host-a"
    live = state / "exec" / "o0" / "log"
    live.parent.mkdir(parents=True)
    live.write_text("it runs\n")
    kept = state / "log" / run_id / "b.2.log"
    kept.parent.mkdir(parents=True)
    kept.write_text("it ran\n")
    done = shell("logs", run_id)
    assert (done.stdout, done.stderr) == ("a | it runs\nb | it ran\n", "")


class Elsewhere:
    """A worker of another machine: a thread that ships what is written there."""

    def __init__(self, folder: Path, logs: FileLogStore) -> None:
        self.state, self.logs = folder / "elsewhere", logs
        self.held: dict[str, Held] = {}
        self.shipping = Shipping(self.send, self.state)
        self.over = threading.Event()
        self.hold = threading.Lock()

    def send(self, author: Author, offset: int, chunk: bytes, dropped: int | None) -> int:
        named = (author.run_id, author.step_key, author.number)
        return take(self.logs, *named, offset, chunk, dropped)

    def begin(self, run_id: str, one: acting.Held) -> None:
        folder = self.state / "exec" / str(one.row["offer_id"])
        folder.mkdir(parents=True)
        (folder / "log").touch()
        key, number = str(one.row["step_key"]), int(one.row["number"])
        with self.hold:
            self.held[key] = Held(one.attempt_id, run_id, key, number, folder.name, one.fence,
                                  one.token, folder, "live")  # fmt: skip

    def write(self, key: str, text: str) -> None:
        with (self.held[key].folder / "log").open("a") as log:
            log.write(text)

    def end(self, key: str) -> None:
        with self.hold:
            one = self.held.pop(key)
            self.shipping.keep(one)
            keep_log(one.folder, self.state, one.run_id, one.step_key, one.number)

    @contextmanager
    def working(self) -> Iterator[None]:
        def work() -> None:
            while not self.over.wait(0.05):
                with self.hold:
                    self.shipping.tick(self.held.values())

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            self.over.set()
            thread.join()
            self.shipping.close()


class Reader:
    """`logs -f` in a process of its own, and when it printed each line."""

    def __init__(self, shell: Shell, *words: object) -> None:
        self.process = subprocess.Popen(
            command(*words), cwd=shell.folder, env=shell.environment(), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.lines: dict[str, float] = {}
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines[line.rstrip("\n")] = time.monotonic()

    def wait(self, line: str, since: float) -> float:
        """How long it took until this line was printed."""
        while line not in self.lines:
            assert time.monotonic() < since + 20, (line, self.lines)
            time.sleep(0.01)
        return self.lines[line] - since

    def ended(self) -> tuple[int, str]:
        code = self.process.wait(20)
        self.thread.join()
        assert self.process.stderr is not None
        return code, self.process.stderr.read()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.thread.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def test_lines_of_a_remote_step_are_followed_within_two_seconds(
    store: Store, shell: Shell, logs: FileLogStore, tmp_path: Path
) -> None:
    run_id, held = begun(store, a=[], b=[])
    away = Elsewhere(tmp_path, logs)
    for one in held.values():
        away.begin(run_id, one)
    with away.working():
        reader = Reader(shell, "logs", "-f", run_id)
        away.write("a", "warm\n")
        reader.wait("a | warm", time.monotonic())
        took = []
        for number in range(3):
            away.write("ab"[number % 2], f"line {number}\n")
            took.append(reader.wait(f"{'ab'[number % 2]} | line {number}", time.monotonic()))
        assert sorted(took)[1] < SOON_S, took  # a busy machine may keep one of them longer
        away.write("a", "last words")
        acting.report(store, *held.values())
        acting.advance(store, run_id)
        time.sleep(0.5)  # the end is known before the last bytes are here
        away.end("a")
        away.end("b")
        assert reader.wait("a | last words", time.monotonic()) < SOON_S
        assert reader.ended() == (0, "")
        reader.close()


def test_a_worker_that_never_ships_the_rest_is_not_waited_for_for_ever(
    store: Store, shell: Shell, logs: FileLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = []
    monkeypatch.setattr(follow, "pause", lambda seconds=0.0: waits.append(seconds))
    run_id, held = begun(store, a=[], b=[])
    take(logs, run_id, "a", 1, 0, b"part\nhalf", None)
    acting.report(store, *held.values())
    acting.advance(store, run_id)
    done = shell("logs", "-f", run_id)
    assert (done.returncode, done.stdout) == (0, "a | part\na | half\n")
    told = done.stderr.splitlines()
    assert told == [
        "the log of a, attempt 1 is not whole yet: worker host-a has not shipped the rest, or"
        " the ingress' log folder does not take it",
        f"no log on this machine: b, attempt 2 ({NOT_YET})",
    ]
    assert follow.LOOKS_FOR_THE_REST <= 2 * len(waits) <= follow.LOOKS_FOR_THE_REST + 4


def test_a_line_that_comes_in_two_parts_after_the_end_stays_one(
    store: Store, shell: Shell, logs: FileLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, held = begun(store, a=[], b=[])
    take(logs, run_id, "a", 1, 0, b"part\nhalf", None)
    acting.report(store, *held.values())
    acting.advance(store, run_id)
    things = [
        lambda: take(logs, run_id, "b", 2, 0, b"late", 0),
        lambda: take(logs, run_id, "a", 1, 9, b" and half", 0),
    ]
    monkeypatch.setattr(follow, "pause", lambda seconds=0.0: things.pop(0)())
    done = shell("logs", "-f", run_id)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "a | part\nb | late\na | half and half\n"


SPEAKS = (
    "for n in 1 2 3; do echo line $n; sleep 0.3; done; head -c 300000 /dev/zero; echo; echo end"
)


def test_a_worker_behind_an_ingress_ships_what_its_steps_write_and_keeps_nothing(
    postgres_dsn: str, store: Store, shell: Shell, tmp_path: Path
) -> None:
    authority, away = Authority(tmp_path), tmp_path / "away"
    away.mkdir()
    run_id = acting.begun(store, {"a": []}, run=SPEAKS)
    with ingress_here(postgres_dsn, authority, tmp_path) as ingress:
        url = f"https://{HOST}:{ingress.port}"
        words = ("--base-dir", str(away))
        worker = worker_process("host-a", authority.worker("host-a"), away, url, *words)
        reader = Reader(shell, "logs", "-f", run_id, "--log-dir", str(tmp_path / "log"))
        try:
            reader.wait("line 1", time.monotonic())
            reader.wait("end", time.monotonic())
            worker.until(lambda: acting.advance(store, run_id)["outcome"] == "applied", "it ended")
            code, said = reader.ended()
            assert code == 0 and said in ("", "a, attempt 1:\n")  # it began before the step, or not
            worker.until(lambda: not list((away / "state" / "log").glob("*")), "nothing is here")
            assert worker.stop() == 0
        finally:
            worker.close()
            reader.close()
    logs = FileLogStore(tmp_path / "log")
    assert logs.path(run_id, "a", 1).stat().st_size == len("line 1\n") * 3 + 300_000 + 1 + 4
    assert ending(logs.path(run_id, "a", 1)).read_text() == "0\n"
