"""The control process: orders of boot and stop, as recorded traces of parts of the test's own.

DESIGN §7, DOMAIN §7. `test_control_cycle` has the lifecycles, `test_control_process` all of it.
"""

import io
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from qinglong_sql.control import Control, Ending, Parts
from qinglong_sql.control_boot import BootFailed
from qinglong_sql.control_log import Log
from qinglong_sql.errors import NotReady
from qinglong_sql.health import Health
from qinglong_sql.scheduler import Cycle
from qinglong_sql.settings import ControlSettings, load
from qinglong_sql.store.link import NotPrimary
from tests.controls import page
from tests.test_cadence import in_thread, wait_until

BOOT = ["listener", "pool", "readiness", "recovery", "door", "scheduler", "cancellation"]
STOP = ["cancellation", "scheduler", "door", "pool", "listener"]
SETTINGS = {"dsn": "postgresql://ql@db/ql", "boot_timeout": "300ms", "recovery_timeout": "300ms",
            "drain_timeout": "200ms", "stop_timeout": "100ms"}  # fmt: skip


class Traced:
    """Parts that write down when they begin and end; `fails` and `hangs` name some of them."""

    def __init__(self, *, fails: str = "", hangs: str = "", late: str = "") -> None:
        self.trace: list[str] = []
        self.fails, self.hangs, self.late = fails, hangs, late
        self.free = threading.Event()
        self.reasons: dict[str, str | None] = {}
        self.control: Control | None = None

    def begin(self, name: str) -> None:
        if self.control:
            self.reasons[name] = self.control.fence.refusal()
        if name == self.hangs:
            self.free.wait(10)
        if name == self.fails:
            raise NotReady(f"{name} is broken")
        self.trace.append(name)

    def end(self, name: str, within_s: float) -> bool:
        if self.control:
            self.reasons[f"-{name}"] = self.control.fence.refusal()
        self.trace.append(f"-{name}")
        if name == self.fails:
            raise ValueError("it does not want to")
        if name == self.late:
            return self.free.wait(within_s)
        return True

    def part(self, name: str) -> Any:
        traced = self

        class Part:
            port = 8271

            def __init__(self, *_: Any, **said: Any) -> None:
                self.name = said.get("name", name)

            def start(self) -> str:
                traced.begin(self.name)
                return "there"

            def stop(self, within_s: float) -> bool:
                return traced.end(self.name, within_s)

            def close(self, timeout: float) -> None:
                traced.end(self.name, timeout)

            def get_stats(self) -> dict[str, int]:
                return {}

        return Part

    def pool(self) -> Any:
        self.begin("pool")
        return self.part("pool")()

    def readiness(self, pool: Any) -> str:
        self.begin("readiness")
        return "as shipped"

    def store(self, pool: Any) -> "Idle":
        self.begin("recovery")
        return Idle()

    def parts(self) -> Parts:
        return Parts(
            listener=self.part("listener"),
            pool=self.pool,
            readiness=self.readiness,
            store=self.store,
            meter=Counted(),
            applications=(self.part("door")(),),
            lifecycle=self.part("lifecycle"),
        )


class Idle:
    """A store with nothing to do."""

    def page(self, *_: Any) -> list[Any]:
        return []

    def call(self, *_: Any, **__: Any) -> list[Any]:
        return []

    def close(self) -> None:
        pass


class Counted:
    """A meter that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def cycle(self, lifecycle: str, cycle: Cycle, seconds: dict[str, float],
              failed: str | None) -> None:  # fmt: skip
        self.told.append((lifecycle, failed))

    def fault(self, lifecycle: str) -> None:
        self.told.append((lifecycle, "fault"))

    def ready(self, reason: str | None) -> None:
        self.told.append(("ready", reason))

    def sample(self, store: Any) -> Exception | None:
        self.told.append(("sample", store))
        return None

    def pool(self, stats: Any) -> None:
        self.told.append(("pool", stats))

    def text(self) -> bytes:
        return b"text"


def settings_of(**said: object) -> ControlSettings:
    return load(None, SETTINGS | said, {})[0]


def control_of(traced: Traced, log: Log | None = None, **said: object) -> Control:
    made = log or Log("text", "info", io.StringIO())
    one = Control(settings_of(**said), traced.parts(), made, str)
    traced.control = one
    MADE.append((one, traced))
    return one


MADE: list[tuple[Control, Traced]] = []


@pytest.fixture(autouse=True)
def all_of_them_end() -> Iterator[None]:
    """A test that fails leaves no thread that keeps everything from its end."""
    yield
    while MADE:
        one, traced = MADE.pop()
        traced.free.set()
        one.ask("the test is over")


def serving(one: Control) -> tuple[threading.Thread, list[Any]]:
    thread, results = in_thread(one.run)
    wait_until(lambda: one.fence.state != "starting")
    return thread, results


def test_boot_and_stop_keep_their_order_and_tell_why_it_is_not_ready() -> None:
    traced, out = Traced(), io.StringIO()
    one = control_of(traced, Log("json", "info", out))
    thread, results = serving(one)
    assert one.fence.refusal() is None
    one.ask("asked to stop")
    assert one.fence.refusal() == "asked to stop", "from the first moment of the stop"
    thread.join(5)
    assert results == [Ending("", ())]
    assert traced.trace == [*BOOT, *(f"-{name}" for name in STOP)]
    # listener and lifecycles begin when their step has begun; all of them say which it is
    assert [traced.reasons[name] for name in BOOT] == [f"starting: {name}" for name in BOOT]
    assert {traced.reasons[f"-{name}"] for name in STOP} == {"asked to stop"}
    assert one.fence.state == "stopped" and one.fence.refusal() == "stopped"
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["part"] for line in told if "part" in line] == [*BOOT, *STOP]
    assert [line["event"] for line in told] == ["boot"] * 7 + ["ready"] + ["stop"] * 6


@pytest.mark.parametrize("name", BOOT)
def test_a_step_of_the_boot_that_fails_stops_what_had_begun_and_nothing_else(name: str) -> None:
    traced = Traced(fails=name)
    one = control_of(traced)
    with pytest.raises(BootFailed) as raised:
        one.run()
    assert (raised.value.step, str(raised.value.__cause__)) == (name, f"QL503 {name} is broken")
    began = BOOT[: BOOT.index(name)]
    assert traced.trace == [*began, *(f"-{part}" for part in STOP if part in began)]
    assert one.fence.state == "stopped"


@pytest.mark.parametrize("name", BOOT)
def test_a_step_of_the_boot_that_hangs_ends_it_in_its_time(name: str) -> None:
    traced = Traced(hangs=name)
    one = control_of(traced)
    began = time.monotonic()
    with pytest.raises(BootFailed) as raised:
        one.run()
    assert time.monotonic() - began < 2
    setting = "recovery_timeout" if name == "recovery" else "boot_timeout"
    said = f"QL503 it took longer than 0.3s, see {setting} in the settings"
    assert (raised.value.step, str(raised.value.__cause__)) == (name, said)
    traced.free.set()


def test_a_stop_while_it_boots_ends_it_at_once() -> None:
    traced = Traced(hangs="readiness")
    one = control_of(traced, boot_timeout="1m")
    thread, results = in_thread(one.run)
    wait_until(lambda: one.fence.refusal() == "starting: readiness")
    one.ask("asked to stop")
    thread.join(2)
    assert results == [Ending("", ())]
    assert traced.trace == ["listener", "pool", "-pool", "-listener"]
    traced.free.set()


@pytest.mark.parametrize("name", STOP)
def test_a_part_that_does_not_end_is_told_and_the_rest_still_stops(name: str) -> None:
    traced, out = Traced(late=name), io.StringIO()
    one = control_of(traced, Log("text", "info", out))
    if name == "pool":  # it says nothing; a close that raises is as late
        traced.fails = name
        traced.begin = lambda name: traced.trace.append(name)  # type: ignore[method-assign]
    thread, results = serving(one)
    one.ask("asked to stop")
    thread.join(5)
    assert results == [Ending("", (name,))]
    assert traced.trace[len(BOOT) :] == [f"-{part}" for part in STOP]
    within = "0.2s" if name in ("scheduler", "cancellation") else "0.1s"
    trouble = "could not be stopped: it does not want to" if name == "pool" else (
        f"did not end within {within}"
    )  # fmt: skip
    assert f"error: stopping: {name} {trouble}; going on\n" in out.getvalue()


def test_stops_at_the_same_time_share_one() -> None:
    traced = Traced(late="scheduler")
    one = control_of(traced, drain_timeout="1m")
    thread, results = serving(one)
    others = [in_thread(one.stop) for _ in range(3)]
    wait_until(lambda: "-scheduler" in traced.trace)
    one.ask("asked to stop as well")
    time.sleep(0.05)
    assert traced.trace[len(BOOT) :] == ["-cancellation", "-scheduler"]
    assert not any(found for _, found in others)
    traced.free.set()
    for other, _ in [(thread, results), *others]:
        other.join(5)
    assert [found for _, found in [(thread, results), *others]] == [[Ending("", ())]] * 4
    assert traced.trace[len(BOOT) :] == [f"-{part}" for part in STOP], "each of them once"


def test_when_the_database_is_gone_it_is_not_ready_and_stops_by_itself() -> None:
    traced, out = Traced(), io.StringIO()
    one = control_of(traced, Log("text", "info", out))
    thread, results = serving(one)
    assert one.fence.trip("scheduler: no connection")
    assert not one.fence.trip("cancellation: no connection"), "once"
    assert one.fence.refusal() == "scheduler: no connection"
    thread.join(5)
    assert results == [Ending("scheduler: no connection", ())]
    assert traced.trace[len(BOOT) :] == [f"-{part}" for part in STOP]
    assert out.getvalue().count("the database is gone, stopping for the supervisor") == 1


def test_a_scrape_that_meets_a_demoted_node_is_the_end_as_well() -> None:
    """The store has left that node then, so that no cycle would hear of it any more."""
    one = control_of(Traced())
    thread, results = serving(one)
    one._parts.meter.sample = lambda store: OSError("a scrape may fail")  # type: ignore[method-assign]
    one.text()
    assert one.fence.refusal() is None
    one._parts.meter.sample = lambda store: NotPrimary("a standby")  # type: ignore[method-assign]
    one.text()
    thread.join(5)
    assert results == [Ending("metrics: a standby", ())]


def test_the_pages_say_why_it_is_not_ready_from_the_listener_to_the_end() -> None:
    traced, made = Traced(hangs="readiness", late="scheduler"), []

    def listener(ready: Any, text: Any) -> Health:
        made.append(Health(("127.0.0.1", 0), ready, text))
        return made[0]

    one = Control(
        settings_of(boot_timeout="1m", drain_timeout="1m", stop_timeout="5s"),
        replace(traced.parts(), listener=listener),
        Log("text", "info", io.StringIO()),
        str,
    )
    MADE.append((one, traced))
    thread, results = in_thread(one.run)
    wait_until(lambda: one.fence.refusal() == "starting: readiness")
    port = made[0].port
    assert page(port, "/livez")[0] == 200
    assert page(port, "/readyz") == (503, "starting: readiness\n")
    traced.free.set()
    wait_until(lambda: one.fence.state == "ready")
    assert page(port, "/readyz")[0] == 200 and page(port, "/metrics") == (200, "text")
    traced.free.clear()
    one.ask("asked to stop")
    wait_until(lambda: "-scheduler" in traced.trace)
    assert page(port, "/livez")[0] == 200
    assert page(port, "/readyz") == (503, "asked to stop\n")
    traced.free.set()
    thread.join(10)
    assert results == [Ending("", ())] and page(port, "/livez")[0] == 0
