"""`logs`: a whole run or one step, as it is or as it grows, whatever happens to the files."""

import json
import os
import random
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qinglong_sql.cli.log_lack import barred
from qinglong_sql.cli.tail import Tail, for_terminal, open_log
from qinglong_sql.evidence import LOG_CAP_BYTES
from qinglong_sql.workplace import dropped_file
from tests import acting
from tests.following import Scene, staged
from tests.shell import command

RAW = b"caf\xe9 \xff\x1b[31mred\x1b[0m 10%\r20%\n"


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = staged(tmp_path, retry={"attempts": 2, "backoff_ms": 0})
    yield scene
    scene.store.close()


def through(scene: Scene) -> None:
    """The whole flow: `build` needs two attempts."""
    scene.begin("a", 2)
    scene.end("build", b"one\ntwo\n", code=1)
    scene.end("test", RAW + b"no end")
    scene.advance()
    scene.clock.advance(400_000)
    scene.store.call("retry_run", p_run_id=scene.run_id)
    acting.admit(scene.store, scene.run_id)
    scene.begin("b")
    scene.end("build", b"three\n")
    scene.advance()
    scene.begin("c")
    scene.end("ship", b"")
    scene.advance()
    assert acting.ended(scene.store, scene.run_id)[0] == "succeeded"


def test_a_whole_run_is_told_as_its_attempts_started(scene: Scene) -> None:
    through(scene)
    assert told(scene, "logs", scene.run_id) == (
        b"build | one\nbuild | two\ntest  | " + RAW + b"test  | no end\nbuild#3 | three\n"
    )
    rows = json.loads(scene.shell("logs", scene.run_id, "--json").stdout)
    assert [(one["step_key"], one["number"], one["missing"]) for one in rows] == [
        ("build", 1, None), ("test", 2, None), ("build", 3, None), ("ship", 4, None),
    ]  # fmt: skip
    assert rows[0]["text"] == "one\ntwo\n" and Path(rows[0]["path"]).is_file()


def told(scene: Scene, *words: object) -> bytes:
    """What a command writes, byte by byte."""
    folder, environment = scene.shell.folder, scene.shell.environment()
    done = subprocess.run(
        command(*words), cwd=folder, env=environment, capture_output=True, timeout=60, check=True
    )
    assert not done.stderr
    return done.stdout


def test_one_step_is_told_byte_by_byte_by_its_last_attempt_or_by_number(scene: Scene) -> None:
    through(scene)
    assert told(scene, "logs", scene.run_id, "test") == RAW + b"no end"
    assert scene.shell("logs", scene.run_id, "build").stdout == "three\n"
    assert scene.shell("logs", scene.run_id, "--attempt", "1").stdout == "one\ntwo\n"
    assert scene.shell("logs", scene.run_id, "build", "--tail", "0").stdout == ""
    assert scene.shell("logs", scene.run_id, "build", "--attempt", "1", "--tail", "1").stdout == (
        "two\n"
    )
    done = scene.shell("logs", scene.run_id, "--attempt", "9")
    assert done.returncode == 5 and "this run has no attempt 9; it has: 1, 2, 3, 4" in done.stderr


def test_what_is_not_here_is_named(scene: Scene) -> None:
    done = scene.shell("logs", scene.run_id)
    assert (done.returncode, done.stderr) == (5, "refused: no step has started\n")
    through(scene)
    scene.kept(scene.held["test"]).unlink()
    done = scene.shell("logs", scene.run_id)
    assert done.returncode == 0 and "test" not in done.stdout
    assert done.stderr == "no log on this machine: test, attempt 2\n"


def test_an_attempt_that_was_never_leased_never_started(scene: Scene) -> None:
    logs = ("logs", scene.run_id, "build")
    done = scene.shell(*logs)
    assert done.stderr == "refused: build, attempt 1 has not started yet: it is claimed\n"
    acting.cancel(scene.store, scene.run_id)
    acting.converge(scene.store, scene.run_id)
    done = scene.shell(*logs)
    wanted = "refused: build, attempt 1 never started: the run was cancelled before\n"
    assert (done.returncode, done.stderr) == (5, wanted)


def test_a_run_is_followed_to_its_end_with_nothing_lost_or_told_twice(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def retried() -> None:
        scene.store.call("retry_run", p_run_id=scene.run_id)
        acting.admit(scene.store, scene.run_id)
        scene.begin("b")
        scene.write("build", b"third\n")

    first = [
        lambda: scene.begin("a", 2),
        lambda: scene.write("build", b"one\npar"),
        lambda: scene.write("test", b"hello\n"),
        lambda: scene.write("build", b"tial\n\xe4"),
        lambda: scene.write("build", b"\xb8\xad\n"),
        lambda: scene.end("build", b"last words", code=1, moved=False),
        lambda: scene.write("test", b"and on\n"),
        lambda: scene.move("build"),
        lambda: scene.end("test", b"bye\n"),
        lambda: scene.advance(),
        lambda: scene.clock.advance(400_000),
        retried,
        lambda: None,
        lambda: scene.end("build", b"good\n"),
        lambda: scene.advance(),
        lambda: scene.begin("c"),
        lambda: scene.end("ship", b"shipped\n"),
        lambda: scene.advance(),
    ]
    done = scene.look(monkeypatch, first, "logs", "-f", scene.run_id)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("build")] == [
        "build | one", "build | partial", "build | 中", "build | last words", "build#3 | third",
        "build#3 | good",
    ]  # fmt: skip
    assert [line for line in lines if not line.startswith("build")] == [
        "test  | hello", "test  | and on", "test  | bye", "ship  | shipped",
    ]  # fmt: skip
    assert lines.index("test  | hello") < lines.index("build | last words")
    again = scene.look(monkeypatch, [], "logs", "-f", scene.run_id, "--tail", "1", "--json")
    assert [json.loads(line)["line"] for line in again.stdout.splitlines()] == [
        "last words", "bye", "good", "shipped",
    ]  # fmt: skip


def test_a_step_is_followed_until_it_has_ended_through_its_attempts(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def retried() -> None:
        scene.store.call("retry_run", p_run_id=scene.run_id)
        acting.admit(scene.store, scene.run_id)
        scene.begin("b")
        scene.write("build", b"second\n")

    things = [
        lambda: None,
        lambda: scene.begin("a", 2),
        lambda: scene.write("build", b"first, no end"),
        lambda: scene.end("build", b"!\n", code=1),
        lambda: scene.clock.advance(400_000),
        retried,
        lambda: scene.end("build", b""),
    ]
    done = scene.look(monkeypatch, things, "logs", "-f", scene.run_id, "build")
    assert done.stdout == "first, no end!\nsecond\n"
    assert done.stderr == "build, attempt 1:\nbuild, attempt 3:\n"
    assert acting.ended(scene.store, scene.run_id)[0] == "running"


def test_a_log_that_was_cut_off_removed_or_replaced_ends_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        at = scene.live(scene.held["build"]).parent
        at.parent.parent.joinpath("aside").mkdir()
        at.rename(at.parent.parent / "aside" / at.name)

    def ended() -> None:
        for key in ("build", "test"):
            acting.report(scene.store, scene.held[key], exit_code=1)
        scene.store.call("request_cancel", p_run_id=scene.run_id, p_reason="user", p_actor="ann")
        acting.converge(scene.store, scene.run_id)

    scene.begin("a", 2)
    strange = scene.live(scene.held["test"])
    strange.unlink()
    os.mkfifo(strange)
    scene.write("build", b"one\ntwo\n")
    log = scene.live(scene.held["build"])
    things = [
        lambda: None,
        lambda: log.write_bytes(b"3\n"),
        away,
        lambda: None,
        ended,
    ]
    done = scene.look(monkeypatch, things, "logs", "-f", scene.run_id)
    assert done.stdout == "build | one\nbuild | two\nbuild | 3\n"
    assert done.stderr == "no log on this machine: test, attempt 2\n"
    assert done.returncode == 0
    link = scene.folder / "link"
    link.symlink_to("/etc/passwd")
    assert open_log(link) is None and open_log(strange) is None


def test_a_database_that_is_away_is_waited_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = scene.folder / "qinglong.db"
    original = type(scene.store).read
    away = [False]

    def read(self: object, view: str, /, **more: object) -> object:
        if away[0]:
            raise OSError(5, "Input/output error", str(file))
        return original(self, view, **more)  # type: ignore[arg-type]

    def gone(now: bool) -> None:
        away[0] = now

    def ended() -> None:
        scene.end("build", b"after\n")
        scene.end("test")
        acting.cancel(scene.store, scene.run_id)
        acting.converge(scene.store, scene.run_id)

    monkeypatch.setattr(type(scene.store), "read", read)
    scene.begin("a", 2)
    scene.write("build", b"before\n")
    things = [
        *[lambda: gone(True)] * 6,
        lambda: scene.write("build", b"meanwhile\n"),
        *[lambda: gone(True)] * 6,
        lambda: gone(False),
        ended,
    ]
    done = scene.look(monkeypatch, things, "logs", "-f", scene.run_id)
    assert done.stdout == "build | before\nbuild | meanwhile\nbuild | after\n", done.stderr
    assert done.stderr.count("trying again: not ready: ") == 1


@pytest.mark.parametrize("seed", range(12))
def test_the_last_lines_of_a_log(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    attempt = {"run_id": "ru1", "step_key": "a", "number": 1, "offer_id": "o"}
    log = tmp_path / "0" / "exec" / "o" / "log"
    log.parent.mkdir(parents=True)
    lines = [b"x" * chance.choice([0, 1, 70, 40_000]) for _ in range(chance.randint(0, 30))]
    text = b"\n".join(lines) + chance.choice([b"", b"\n"])
    log.write_bytes(text)
    wanted = text.removesuffix(b"\n").split(b"\n")
    wanted = wanted if text else []
    for keep in (0, 1, 2, 7, 40, None):
        tail = Tail(tmp_path, attempt)
        assert tail.found()
        tail.skip(keep)
        found = list(tail.lines(last=True))
        tail.close()
        assert found == (wanted if keep is None else wanted[max(0, len(wanted) - keep) :])


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m\x1b[0m"),
        (b"\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b", "ab"),
        (b"\x1b[2J\x1b[10;3Ha\x1b[K\x1b7b\x1bc", "ab"),
        (b"\x1bPq#0\x1b\\a\x9b31mb", "a\ufffd31mb"),
        (b"1%\r20%\r", "20%"),
        (b"a\tb\x08c\x07\x7f\x00", "a\tb^Hc^G^?^@"),
        (b"\xc2\x9b2J\xc2\x85", "\ufffd2J\ufffd"),
        (b"caf\xe9 \xe4\xb8\xad\r", "caf\ufffd 中"),
        (b"\x1b", "^["),
    ],
)
def test_on_a_terminal_a_line_keeps_its_place(line: bytes, shown: str) -> None:
    assert for_terminal(line, colours=True) == shown
    assert "\x1b" not in for_terminal(line, colours=False)


def test_a_full_log_says_what_it_does_not_hold(scene: Scene) -> None:
    scene.begin("a", 2)
    with scene.live(scene.held["build"]).open("wb") as log:
        log.truncate(LOG_CAP_BYTES)
    whose = "the log of build, attempt 1"
    done = scene.shell("logs", scene.run_id, "--tail", "0")
    assert done.stderr == (
        f"{whose} is full at {LOG_CAP_BYTES} bytes:"
        " of what follows the end is written when the step ends\n"
    )
    scene.end("build")
    dropped_file(scene.kept(scene.held["build"])).write_text("77\n")
    for words in ((), ("-f",)):
        if words:
            scene.end("test")
            acting.cancel(scene.store, scene.run_id)
            acting.converge(scene.store, scene.run_id)
        done = scene.shell("logs", scene.run_id, "--tail", "0", *words)
        assert done.stderr == f"{whose} is not whole: 77 bytes in it are not kept: it was full\n"


def test_a_log_with_a_hole_says_so_also_when_nothing_of_it_is_there(scene: Scene) -> None:
    """A disk that was full; one that had no room for the count keeps the receipt in its place."""
    scene.begin("a", 2)
    scene.end("build", b"some\n", code=1)
    scene.end("test", code=1)
    dropped_file(scene.kept(scene.held["build"])).write_text("77\n")
    dropped_file(scene.kept(scene.held["test"])).write_text('{"bytes_dropped":8}')
    words = [f"is not whole: {n} bytes are not kept: the disk was full or failed" for n in (77, 8)]
    done = scene.shell("logs", scene.run_id)
    assert done.stdout == "build | some\n"
    assert done.stderr.splitlines() == [
        f"the log of build, attempt 1 {words[0]}",
        f"the log of test, attempt 2 {words[1]}",
    ]
    rows = json.loads(scene.shell("logs", scene.run_id, "--json").stdout)
    assert [one["missing"] for one in rows] == words
    done = scene.shell("logs", scene.run_id, "test")
    assert (done.stdout, done.stderr) == ("", f"this log {words[1]}\n")


def test_a_real_run_is_followed_and_a_reader_that_leaves_ends_the_following(scene: Scene) -> None:
    shell = scene.shell
    run = "echo one; sleep 0.4; printf two; sleep 0.4; echo '; three'; [ $QL_TRY = 2 ]"
    retry = "retry: {attempts: 2, backoff: 100ms}"
    steps = f'      a: {{run: "{run}", {retry}}}\n      b: {{run: "sleep 2; echo b"}}\n'
    shell.write("a.yaml", f"package: a\nworkflows:\n  w:\n    steps:\n{steps}")
    driver = shell.begin("run", "a.yaml", output=shell.folder / "out")
    try:
        end = time.monotonic() + 30
        while not (found := json.loads(shell("runs", "--json", "--package", "a").stdout)):
            assert time.monotonic() < end
            time.sleep(0.05)
        rows = found if isinstance(found, list) else found["runs"]
        run_id = rows[0]["run_id"]
        leaving = subprocess.Popen(
            command("logs", "-f", run_id), cwd=shell.folder, env=shell.environment(),
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert leaving.stdout is not None and leaving.stdout.readline() == b"a | one\n"
        leaving.stdout.close()
        assert leaving.wait(5) == 0 and driver.poll() is None
        done = shell.process("logs", "-f", run_id)
        lines = done.stdout.splitlines()
        assert [line for line in lines if line[0] == "a"] == [
            "a | one", "a | two; three", "a#3 | one", "a#3 | two; three",
        ]  # fmt: skip
        assert "b | b" in lines and done.returncode == 0
        assert driver.wait(10) == 0
    finally:
        driver.kill()
        driver.wait()
    shell.nothing_is_left()


def on_terminal(scene: Scene, *words: object, **env: str) -> bytes:
    """What a terminal is sent by `logs`."""
    line = shlex.join(command("logs", scene.run_id, *words))
    done = subprocess.run(
        ["script", "-qec", line, "/dev/null"], cwd=scene.folder, stdin=subprocess.DEVNULL,
        env=scene.shell.environment(TERM="xterm", **env), capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_terminal_is_neither_cleared_nor_renamed_by_a_log(scene: Scene) -> None:
    wild = b"\x1b[2J\x1b]0;title\x07\x1b[31mred\x1b[0m\r\nno end"
    scene.begin("a", 2)
    scene.end("test", wild)
    for words in (("test",), ("--attempt", "2"), ("--attempt", "2", "-f")):
        shown = on_terminal(scene, *words)
        assert shown == b"\x1b[31mred\x1b[0m\x1b[0m\r\nno end\r\n"
        assert b"\x1b" not in on_terminal(scene, *words, NO_COLOR="1")
    assert on_terminal(scene, "test", "--raw") == wild.replace(b"\n", b"\r\n")
    assert told(scene, "logs", scene.run_id, "test") == wild


def test_a_step_that_wrote_nothing_says_how_it_ended(scene: Scene) -> None:
    scene.begin("a", 2)
    done = scene.shell("logs", scene.run_id, "build")
    assert (done.stdout, done.stderr) == ("", "build has written nothing yet; it is running\n")
    scene.end("build", code=1)
    done = scene.shell("logs", scene.run_id)
    look = f"(look: qinglong-sql show {scene.run_id[:12]})"
    assert done.stderr == f"no step wrote anything, in 2 attempts {look}\n"
    scene.end("test", b"x")
    done = scene.shell("logs", scene.run_id, "build")
    assert done.returncode == 0 and not done.stdout
    assert done.stderr == (
        "build wrote nothing; it ended with exit code 1"
        f" (look: qinglong-sql show {scene.run_id[:12]})\n"
    )
    assert not scene.shell("logs", scene.run_id, "test", "--tail", "0").stderr
    shell = scene.shell
    shell.write("b.yaml", "package: b\ntasks: {b: {run: [/none/such]}}\n")
    assert shell("run", "b.yaml").returncode == 1
    run_id = json.loads(shell("runs", "--json", "--package", "b").stdout)[0]["run_id"]
    done = shell("logs", run_id)
    assert done.stderr.startswith("main wrote nothing; it could not be started: "), done.stderr
    assert "/none/such" in done.stderr


def test_a_run_without_any_logs_here_is_one_line(scene: Scene) -> None:
    through(scene)
    shutil.rmtree(scene.folder / "worker")
    said = (
        "no logs of this run on this machine (4 attempts): purged, ran elsewhere, or not part of"
        " a backup\n"
    )
    done = scene.shell("logs", scene.run_id)
    assert (done.returncode, done.stdout, done.stderr) == (5, "", f"refused: {said}")


@contextmanager
def another_user() -> Iterator[None]:
    """As nobody, where the tests are root; who is not is kept out of a folder of mode 0 as well."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_folder_that_is_closed_to_us_is_told_with_its_owner(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    through(scene)
    with tempfile.TemporaryDirectory() as name:  # all may enter what is above it
        state = Path(name)
        state.chmod(0o755)
        (state / "0").mkdir(mode=0)
        with another_user():
            words = barred(state)
            assert barred(state / "none") == "" and barred(state / "0" / "in") != ""
        assert words == (
            f"permission denied: {state / '0'} is {state.owner()}'s, and no other user's"
        )
    for place in ("logs", "follow"):
        monkeypatch.setattr(f"qinglong_sql.cli.{place}.barred", lambda _: words)
    assert "permission" not in scene.shell("logs", scene.run_id).stderr
    shutil.rmtree(scene.folder / "worker")
    for more in ((), ("ship",), ("-f",)):
        done = scene.shell("logs", scene.run_id, *more)
        assert words in done.stderr and "no log" not in done.stderr, done.stderr
