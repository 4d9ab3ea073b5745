"""Logs on their way to an ingress: while they grow, after the end, a restart, when it is away.

The other side is a real FileLogStore; what is between may lose messages and answers.
"""

import itertools
import json
import os
import random
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from qinglong_sql import shipping_log
from qinglong_sql.errors import Fenced, Unknown
from qinglong_sql.evidence import LOG_MAX_BYTES
from qinglong_sql.holding import Held
from qinglong_sql.log_file import read_dropped
from qinglong_sql.log_store import FileLogStore, ending, take
from qinglong_sql.shipping import (
    LOOK_MS,
    MESSAGES_A_TICK,
    QUIET_MOST_MS,
    REFUSALS,
    TICK_MS,
    Shipping,
)
from qinglong_sql.shipping_log import CHUNK_BYTES, Author
from qinglong_sql.wire import ROUTES
from qinglong_sql.workplace import keep_log

RUN = "ru0123456789abcdef01234567"


@dataclass
class Quay:
    """A worker's folder, an ingress' folder, and the way between them."""

    folder: Path
    now_ms: int = 1_000_000
    sent: list[tuple[str, int, int, int | None]] = field(default_factory=list)
    held: dict[str, Held] = field(default_factory=dict)
    trouble: Callable[[Author], None] = lambda author: None  # before it arrives
    lost: Callable[[Author], None] = lambda author: None  # the answer, after it did
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state, self.store = self.folder / "state", FileLogStore(self.folder / "ingress")
        self.shipping = self.again()

    def again(self, **limits: int) -> Shipping:
        """Another process of this folder."""
        return Shipping(self.send, self.state, clock=lambda: self.now_ms, note=self.told.append,
                        **limits)  # fmt: skip

    def send(self, author: Author, offset: int, chunk: bytes, dropped: int | None) -> int:
        self.trouble(author)
        assert author.token == f"token of {author.attempt_id}" and author.fence == 3
        assert len(chunk) <= CHUNK_BYTES
        self.sent.append((author.attempt_id, offset, len(chunk), dropped))
        size = take(self.store, RUN, author.step_key, author.number, offset, chunk, dropped)
        self.lost(author)
        return size

    def begin(self, number: int, text: bytes = b"") -> Held:
        name = f"{RUN}-{number}"
        at = self.state / "exec" / f"o{number}"
        at.mkdir(parents=True)
        (at / "log").write_bytes(text)
        one = Held(name, RUN, "a", number, f"o{number}", 3, f"token of {name}", at, "live")
        self.held[name] = one
        return one

    def write(self, one: Held, text: bytes) -> None:
        with (one.folder / "log").open("ab") as log:
            log.write(text)

    def end(self, *ones: Held) -> None:
        """As Leftovers.finish does it."""
        for one in ones:
            self.shipping.keep(one)
            keep_log(one.folder, self.state, one.run_id, one.step_key, one.number)
            self.held.pop(one.attempt_id, None)

    def tick(self, ms: int = LOOK_MS) -> int:
        self.now_ms += ms
        return self.shipping.tick(self.held.values())

    def drain(self, times: int = 400) -> None:
        """Until nothing waits."""
        for _ in range(times):
            self.tick()
            if not self.shipping.waiting():
                return
        raise AssertionError(f"{self.shipping.waiting()} still wait")

    def there(self, number: int) -> bytes | None:
        path = self.store.path(RUN, "a", number)
        return path.read_bytes() if path.exists() else None

    def dropped(self, number: int) -> int | None:
        return read_dropped(ending(self.store.path(RUN, "a", number)))

    def here(self) -> list[str]:
        return sorted(path.name for path in (self.state / "log").glob("*/*"))


def away(author: Author) -> None:
    raise TimeoutError("away")


@pytest.fixture
def quay(tmp_path: Path) -> Quay:
    return Quay(tmp_path)


def test_a_log_is_shipped_while_it_grows_at_most_once_a_second(quay: Quay) -> None:
    one = quay.begin(1, b"first\n")
    quay.tick()
    assert quay.there(1) == b"first\n"
    quay.write(one, b"second\n")
    for _ in range(9):
        quay.tick(100)
    assert quay.there(1) == b"first\n"
    quay.tick(100)
    assert quay.there(1) == b"first\nsecond\n"
    for _ in range(5):
        quay.tick()
    assert len(quay.sent) == 2, "nothing new, nothing sent"
    assert quay.dropped(1) is None


def test_after_the_end_the_rest_is_shipped_and_the_local_copy_goes(quay: Quay) -> None:
    one = quay.begin(1, b"first\n")
    quay.tick()
    quay.write(one, b"last words")
    quay.end(one)
    assert quay.here() == ["a.1.log", "a.1.ship"]
    record = quay.state / "log" / RUN / "a.1.ship"
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    quay.tick(1)
    assert quay.there(1) == b"first\nlast words" and quay.dropped(1) == 0
    assert not quay.here() and not (quay.state / "log" / RUN).exists()
    assert quay.shipping.waiting() == 0 and quay.shipping.due_at_ms() is None


def test_what_began_and_ended_between_two_looks_is_one_message(quay: Quay) -> None:
    quay.end(quay.begin(1, b"quick"), quay.begin(2))
    quay.tick(1)
    assert quay.sent == [(f"{RUN}-1", 0, 5, 0), (f"{RUN}-2", 0, 0, 0)]
    assert (quay.there(1), quay.there(2), quay.dropped(2)) == (b"quick", b"", 0)


def test_a_log_that_grows_faster_than_it_ships_holds_nobody_up(quay: Quay) -> None:
    loud, calm = quay.begin(1, b"x" * (LOG_MAX_BYTES - 10)), quay.begin(2, b"calm\n")
    assert quay.tick() == 2
    assert quay.sent == [(f"{RUN}-1", 0, CHUNK_BYTES, None), (f"{RUN}-2", 0, 5, None)]
    quay.tick()
    assert len(quay.there(1) or b"") == 2 * CHUNK_BYTES, "a chunk a second"
    quay.end(loud, calm)
    assert quay.tick(1) == MESSAGES_A_TICK
    quay.drain()
    assert len(quay.there(1) or b"") == LOG_MAX_BYTES - 10 and not quay.here()


def test_a_tick_sends_a_bounded_number_and_all_get_their_turn(quay: Quay) -> None:
    for number in range(1, 31):
        quay.begin(number, b"line\n")
    assert [quay.tick(1) for _ in range(4)] == [8, 8, 8, 6]
    assert all(quay.there(number) == b"line\n" for number in range(1, 31))

    def slow(author: Author) -> None:
        quay.now_ms += TICK_MS // 2 + 1

    quay.trouble = slow
    for one in quay.held.values():
        quay.write(one, b"more\n")
    assert quay.tick() == 2, "renewals wait no longer"


def test_what_is_beyond_the_cap_is_counted(quay: Quay) -> None:
    one = quay.begin(1, b"x" * LOG_MAX_BYTES)
    quay.write(one, b"written by itself")
    (one.folder / "receipt.json").write_text(json.dumps(receipt(one) | {"bytes_dropped": 100}))
    quay.end(one)
    quay.drain()
    assert len(quay.there(1) or b"") == LOG_MAX_BYTES
    assert quay.dropped(1) == 100 + len("written by itself") and not quay.here()


def receipt(one: Held) -> dict[str, object]:
    return {"attempt": one.attempt_id, "launcher_pid": 1, "launcher_ticks": 1, "boot_id": "b",
            "kind": "ended", "why": "exit", "exit": "exit:0", "reason": None, "go_boot_ms": 1,
            "go_at_ms": 1, "end_boot_ms": 1, "end_at_ms": 1, "tree": "empty",
            "bytes_logged": LOG_MAX_BYTES, "bytes_dropped": 0, "error": None}  # fmt: skip


# --- the other side is away, or answers strangely


def test_while_the_door_is_away_it_is_asked_less_and_less_and_nothing_is_lost(quay: Quay) -> None:
    tries: list[int] = []

    def counted(author: Author) -> None:
        tries.append(quay.now_ms)
        away(author)

    ones = [quay.begin(number, b"text") for number in range(1, 6)]
    quay.trouble = counted
    for _ in range(600):
        quay.tick(100)
    gaps = [after - before for before, after in itertools.pairwise(tries)]
    assert gaps[0] >= 1_000 and max(gaps) <= QUIET_MOST_MS + 100 and len(tries) < 15, gaps
    quay.end(*ones)
    quay.trouble = lambda author: None
    quay.drain()
    assert [quay.there(number) for number in range(1, 6)] == [b"text"] * 5 and not quay.here()
    assert not quay.told
    quay.trouble = counted
    quay.begin(9, b"text")
    quay.tick()
    quay.trouble = lambda author: None
    for _ in range(20):
        quay.tick(100)
    assert quay.there(9) == b"text", "away for a moment is soon over"


def test_one_log_that_always_raises_does_not_hold_up_the_others(quay: Quay) -> None:
    def poisoned(author: Author) -> None:
        if author.number == 1:
            raise RuntimeError("500")

    quay.trouble = poisoned
    quay.end(*[quay.begin(number, b"text") for number in range(1, 30)])
    for _ in range(60):
        quay.tick()
    assert [quay.there(number) for number in range(2, 30)] == [b"text"] * 28
    assert quay.here() == ["a.1.log", "a.1.ship"] and quay.shipping.waiting() == 1


@pytest.mark.parametrize("seed", range(5))
def test_lost_messages_lost_answers_and_restarts_lose_and_double_nothing(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    quay = Quay(tmp_path)

    def maybe(author: Author) -> None:
        if chance.random() < 0.3:
            raise OSError("lost")

    quay.trouble = quay.lost = maybe
    wrote: dict[int, bytes] = {}
    for number in range(1, 9):
        quay.begin(number)
        wrote[number] = b""
    for _ in range(150):
        living = list(quay.held.values())
        if living and chance.random() < 0.5:
            one = chance.choice(living)
            more = chance.randbytes(chance.choice([1, 100, CHUNK_BYTES + 7]))
            if len(wrote[one.number]) + len(more) < LOG_MAX_BYTES:
                quay.write(one, more)
                wrote[one.number] += more
        if living and chance.random() < 0.05:
            quay.end(chance.choice(living))
        if chance.random() < 0.1:
            quay.shipping.close()
            quay.shipping = quay.again()
        quay.tick(chance.choice([10, 1_000, 5_000]))
    quay.end(*list(quay.held.values()))
    quay.drain(4_000)
    for number, text in wrote.items():
        assert quay.there(number) == text and quay.dropped(number) == 0, number
    assert not quay.here()


def test_after_a_restart_it_goes_on_where_the_store_is(quay: Quay) -> None:
    one, two = quay.begin(1, b"a" * 700_000), quay.begin(2, b"b")
    quay.tick()
    quay.tick()
    quay.end(one)
    quay.shipping.close()
    quay.sent.clear()
    quay.shipping = quay.again()
    quay.write(two, b"bb")
    quay.tick()
    assert quay.shipping.waiting() == 0 and quay.there(2) == b"bbb"
    at = [(offset, size) for key, offset, size, _ in quay.sent if key == one.attempt_id]
    assert at == [(0, CHUNK_BYTES), (2 * CHUNK_BYTES, 700_000 - 2 * CHUNK_BYTES)]


def test_another_ingress_with_a_folder_of_its_own_gets_all_of_it(quay: Quay) -> None:
    one = quay.begin(1, b"a" * 300_000)
    quay.tick()
    quay.store = FileLogStore(quay.folder / "other")
    quay.end(one)
    quay.drain()
    assert quay.there(1) == b"a" * 300_000 and quay.dropped(1) == 0


def test_a_store_with_a_full_disk_gets_the_rest_when_it_has_room(quay: Quay) -> None:
    quay.store = FileLogStore(quay.folder / "ingress", cap_bytes=10)
    quay.end(quay.begin(1, b"0123456789abc"))
    quay.tick(1)
    quay.tick(1)
    assert quay.there(1) == b"0123456789" and quay.dropped(1) is None
    before = len(quay.sent)
    for _ in range(50):
        quay.tick(100)
    assert len(quay.sent) - before < 5, "asked less and less"
    assert quay.here() == ["a.1.log", "a.1.ship"], "the local copy stays"
    quay.store = FileLogStore(quay.folder / "ingress")
    quay.drain()
    assert quay.there(1) == b"0123456789abc" and quay.dropped(1) == 0 and not quay.here()


def test_that_the_other_side_takes_no_more_is_said_once_until_it_does(quay: Quay) -> None:
    quay.store = FileLogStore(quay.folder / "ingress", cap_bytes=10)
    quay.begin(1, b"0123456789abc")
    quay.begin(2, b"0123456789abc")
    quay.tick(1)
    assert quay.there(1) == b"0123456789"
    quay.tick(3_000)
    assert not quay.told, "not at once"
    for _ in range(60):
        quay.tick(5_000)
    (said,) = quay.told
    assert said.startswith(f"the ingress takes no more of run {RUN}: a #")
    assert "it holds 10 bytes" in said
    quay.store = FileLogStore(quay.folder / "ingress", cap_bytes=20)
    for _ in range(30):
        quay.tick(5_000)
    assert quay.there(1) == quay.there(2) == b"0123456789abc" and len(quay.told) == 1
    quay.begin(3, b"0" * 21)
    for _ in range(60):
        quay.tick(5_000)
    assert len(quay.told) == 2 and "a #3, it holds 20 bytes" in quay.told[1]


def test_what_no_disk_has_room_for_is_dropped_the_oldest_first_and_counted(quay: Quay) -> None:
    quay.shipping = quay.again(kept_bytes=25)
    quay.store = FileLogStore(quay.folder / "ingress", cap_bytes=4)
    for number in (1, 2, 3):
        quay.end(quay.begin(number, b"0123456789"))
        quay.tick()
    for _ in range(3):
        quay.tick()
    assert (quay.there(1), quay.dropped(1)) == (b"0123", 6)
    assert quay.dropped(2) is None and quay.shipping.waiting() == 2
    assert "a.1.log" not in quay.here() and "a.2.log" in quay.here()
    assert len(quay.told) == 1 and "given up" in quay.told[0]
    restarted = quay.again(kept_bytes=5)  # it has to ask how much of them is there
    quay.shipping = restarted
    for _ in range(200):
        quay.tick()
    assert [quay.dropped(number) for number in (2, 3)] == [6, 6] and not quay.here()


def test_a_log_that_is_not_wanted_stays_and_is_told_once(quay: Quay) -> None:
    def refused(author: Author) -> None:
        if author.number < 3:
            raise [Fenced("no"), Unknown("no run")][author.number - 1]

    quay.trouble = refused
    live = quay.begin(2, b"two")
    quay.end(quay.begin(1, b"one"), quay.begin(3, b"three"))
    for _ in range(60 * REFUSALS):
        quay.tick()
    quay.end(live)
    for _ in range(60 * REFUSALS):
        quay.tick()
    assert quay.there(3) == b"three" and quay.shipping.waiting() == 0
    assert quay.here() == ["a.1.log", "a.2.log"] and len(quay.told) == 2
    assert not any("token" in words for words in quay.told)


# --- what a command makes of its log


def test_a_log_that_its_command_cuts_off_goes_on_behind_what_was_sent(quay: Quay) -> None:
    one = quay.begin(1, b"a long first part\n")
    quay.tick()
    os.truncate(one.folder / "log", 0)
    quay.write(one, b"new\n")
    quay.tick()
    quay.write(one, b"end\n")
    quay.end(one)
    quay.drain()
    assert quay.there(1) == b"a long first part\nnew\nend\n"


def test_a_log_that_its_command_rotates_is_told_by_what_is_in_its_place(quay: Quay) -> None:
    one = quay.begin(1, b"old\n")
    (one.folder / "log").rename(one.folder / "log.1")
    (one.folder / "log").write_bytes(b"in its place\n")
    quay.end(one)
    quay.drain()
    assert quay.there(1) == b"in its place\n"


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "folder by a link", "gone"])
def test_nothing_is_sent_that_is_not_its_own(quay: Quay, kind: str) -> None:
    secret = quay.folder / "secret"
    secret.write_bytes(b"secret")
    one, other = quay.begin(1), quay.begin(2, b"fine")
    log = one.folder / "log"
    log.unlink()
    if kind == "link":
        log.symlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(log)
    elif kind == "folder":
        log.mkdir()
    elif kind == "folder by a link":
        aside = quay.folder / "aside"
        one.folder.rename(aside)
        (aside / "log").write_bytes(b"secret")
        one.folder.symlink_to(aside)
    quay.tick()
    quay.tick()
    assert quay.there(1) is None and quay.there(2) == b"fine"
    quay.end(one, other)
    quay.drain()
    assert quay.there(1) in (b"", None) and quay.there(2) == b"fine"


def test_a_record_that_is_not_ours_sends_nothing(quay: Quay) -> None:
    at = quay.state / "log" / RUN
    at.mkdir(parents=True)
    secret = quay.folder / "secret"
    secret.write_bytes(b"secret")
    whole = {"attempt_id": "x", "run_id": RUN, "step_key": "a", "number": 1, "fence": 3,
             "token": "t"}  # fmt: skip
    bad = [b"", b"[]", b"{", json.dumps(whole | {"more": 1}).encode(),
           json.dumps(whole | {"number": "1"}).encode(), json.dumps(whole | {"token": 1}).encode(),
           json.dumps(whole | {"run_id": "../.."}).encode(), b"[" * 4_000]  # fmt: skip
    for number, text in enumerate(bad, 1):
        (at / f"a.{number}.ship").write_bytes(text)
        (at / f"a.{number}.log").symlink_to(secret)
    (at / "a.99.ship").symlink_to(secret)
    os.mkfifo(at / "a.98.ship")
    for _ in range(5):
        quay.tick()
    assert not quay.sent and len(quay.told) == len(bad) + 2
    assert not any("secret" in words for words in quay.told)


def test_few_descriptors_are_held_whatever_waits(quay: Quay) -> None:
    quay.trouble = away
    quay.end(*[quay.begin(number, b"x") for number in range(1, 60)])
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(200):
        quay.tick()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


def test_a_full_disk_here_keeps_no_record_and_the_log_is_shipped_all_the_same(
    quay: Quay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(kept: object, log: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("qinglong_sql.shipping.write_kept", full)
    quay.end(quay.begin(1, b"text"))
    quay.drain()
    assert quay.there(1) == b"text" and not quay.here()


def test_an_execution_found_again_after_a_kill_between_record_and_log(quay: Quay) -> None:
    """It is held again, goes on being live for this process, and ends once more."""
    one = quay.begin(1, b"part ")
    quay.shipping.keep(one)  # and then the process was killed
    quay.shipping.close()
    quay.shipping = quay.again()
    quay.tick()
    assert quay.there(1) == b"part " and quay.dropped(1) is None, "no end of it was said"
    quay.write(one, b"and the rest")
    quay.end(one)
    quay.drain()
    assert quay.there(1) == b"part and the rest" and quay.dropped(1) == 0


def test_at_the_end_it_ships_what_it_can_in_its_time(quay: Quay) -> None:
    quay.end(*[quay.begin(number, b"x" * 600_000) for number in range(1, 8)])
    assert quay.shipping.rest(10_000) == 0 and not quay.here()
    quay.end(*[quay.begin(number, b"x") for number in (11, 12)])
    quay.trouble = away
    assert quay.shipping.rest(10_000) == 2, "and it does not wait for what is away"


def test_the_same_limits_hold_on_both_sides() -> None:
    assert ROUTES["log"].body_bytes == CHUNK_BYTES == 256 * 1024
    assert FileLogStore(Path("x"))._cap == shipping_log.LOG_MAX_BYTES
