"""A control process whose cycles do not come through is not ready, whatever its connections say."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qinglong_sql.control import Control, Parts
from qinglong_sql.control_cycle import STALLED_S, Rounds
from qinglong_sql.control_log import Log
from qinglong_sql.fence import Fence
from qinglong_sql.scheduler import CLUSTER, Cycle, StageFailed, Turn
from qinglong_sql.settings import load
from tests.test_control import Counted

DSN = "postgresql://somebody@127.0.0.1/nowhere"


@pytest.fixture
def now() -> list[float]:
    return [1000.0]


def rounds_of(coordinator: Callable[..., Cycle], now: list[float]) -> Rounds:
    log = Log("text", "error", io.StringIO())
    store: Any = object()
    meter: Any = Counted()
    return Rounds(
        "scheduler", coordinator, store, CLUSTER, Fence(), log, meter, str, clock=lambda: now[0]
    )


def test_a_cycle_that_hangs_or_fails_for_a_minute_is_a_stall(now: list[float]) -> None:
    failing = [False]

    def coordinator(*_: object) -> Cycle:
        if failing[0]:
            raise StageFailed("frontier", Cycle({}, Turn()))
        return Cycle({}, Turn())

    rounds = rounds_of(coordinator, now)
    now[0] += STALLED_S
    assert rounds.stalled(0.25) is None, "an idle one waits as well"
    now[0] += 1
    assert rounds.stalled(0.25) == "no cycle of scheduler came through for 61s"
    rounds()
    assert rounds.stalled(0.25) is None
    failing[0] = True
    now[0] += STALLED_S + 1
    with pytest.raises(StageFailed):
        rounds()
    assert rounds.stalled(0.25) is not None, "one that fails did not come through"
    failing[0] = False
    rounds()
    assert rounds.stalled(0.25) is None


def test_a_process_says_so_until_a_cycle_comes_through(now: list[float]) -> None:
    settings = replace(load(None, {"dsn": DSN}, {})[0], password_file=Path("none"))
    never: Any = None
    meter: Any = Counted()
    parts = Parts(listener=never, pool=never, readiness=never, store=never, meter=meter)
    one = Control(settings, parts, Log("text", "error", io.StringIO()), str)
    rounds = rounds_of(lambda *_: Cycle({}, Turn()), now)
    one._rounds.append(rounds)
    one.fence.ready()
    assert one.refusal() is None
    now[0] += STALLED_S + 1
    assert one.refusal() == "no cycle of scheduler came through for 61s"
    rounds()
    assert one.refusal() is None
    one.ask("asked to stop")
    now[0] += 2 * STALLED_S
    assert one.refusal() == "asked to stop", "why it closed comes first"
