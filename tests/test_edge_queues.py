"""Which queues an edge serves when there are more than a worker may have."""

import io
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qinglong_sql import edge_queues
from qinglong_sql.cli import sessions
from qinglong_sql.cli.reasons import Screen
from qinglong_sql.cli.standing import served_by
from qinglong_sql.cli.status import edge_words
from qinglong_sql.edge import Edge
from qinglong_sql.edge_log import Log
from qinglong_sql.edge_packages import publisher
from qinglong_sql.edge_queues import LINGER_MS, Queues
from qinglong_sql.edge_setting import LOCK, SETTINGS
from qinglong_sql.intake import Intake, Terms
from qinglong_sql.limits import WORKER_QUEUES
from qinglong_sql.package import parse_package
from qinglong_sql.store.sqlite import open_sqlite

MANY = 300


class Desk:
    """Queues with a clock of their own, and a store that says what waits, the oldest first."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.waiting: list[str] = []
        self.out = io.StringIO()
        store: Any = self
        self.queues = Queues(store, Log("text", False, self.out), lambda: self.now_ms)

    def read(self, view: str, **asked: Any) -> list[dict[str, Any]]:
        assert (view, asked["order"]) == ("queue_state", "oldest_at_ms, queue")
        return [{"queue": name} for name in self.waiting]

    def said(self) -> list[str]:
        return [line.partition(" ")[2].partition(" ")[2] for line in
                self.out.getvalue().splitlines()]  # fmt: skip


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_work_that_waits_comes_before_names_that_only_stand_somewhere(desk: Desk) -> None:
    known = [f"a{number:03}" for number in range(MANY)]
    assert len(desk.queues.look(known)) == WORKER_QUEUES
    desk.waiting = ["z", "y"]
    served = desk.queues.look(known)
    assert served[:4] == ["z", "y", "default", "a000"] and len(served) == WORKER_QUEUES
    assert not desk.queues.waiting and desk.said() == []


def test_what_nobody_uses_any_more_is_dropped(desk: Desk) -> None:
    desk.waiting = ["rare"]
    assert desk.queues.look({"p"}) == ["rare", "default", "p"]
    desk.waiting = []
    desk.now_ms += LINGER_MS - 1
    assert desk.queues.look({"q"}) == ["default", "q", "rare"]
    desk.now_ms += 1
    assert desk.queues.look({"q"}) == ["default", "q"]


def test_when_too_many_wait_they_take_turns_and_it_is_told_once(desk: Desk) -> None:
    desk.waiting = [f"q{number:03}" for number in range(MANY)]
    seen: set[str] = set()
    for _ in range(MANY // WORKER_QUEUES + 1):
        served = desk.queues.look(())
        assert len(served) == WORKER_QUEUES
        seen |= set(served)
        desk.waiting = [*desk.waiting[WORKER_QUEUES:], *desk.waiting[:WORKER_QUEUES]]
    assert seen == set(desk.waiting) and desk.queues.waiting == MANY
    del desk.waiting[WORKER_QUEUES:]
    desk.queues.look(())
    assert not desk.queues.waiting
    assert desk.said() == [
        "work waits in 300 queues: 128 at a time are served, those that have waited longest first",
        "all queues with work are served again",
    ]


def test_a_queue_whose_answer_was_lost_is_asked_once_more(tmp_path: Path) -> None:
    """It may have leased something that nobody would look after until the lease ends."""
    lost = [True]

    class Silent:
        def call(self, step: str, **params: Any) -> list[dict[str, Any]]:
            if step == "lease_attempts" and lost[0]:
                raise TimeoutError
            return [{"status": "online"}] if step == "register_worker" else []

    store: Any = Silent()
    terms = Terms(["a"], None, slots=1, lease_ms=5_000, offers=1, stop_grace_ms=0, inherited={})
    intake = Intake(store, tmp_path, {}, terms, lambda: 0)
    with pytest.raises(TimeoutError):
        intake.lease(1)
    offered = [one.offer_id for one in intake._pool["a"]]
    intake.serve(["b"])
    assert intake._queues == ["a", "b"]
    lost[0] = False
    assert [one.offer_id for one in intake._pool["a"]] == offered
    intake.lease(1)
    intake.serve(["b"])
    assert intake._queues == ["b"] and set(intake._pool) == {"b"}


def test_explain_knows_that_all_of_them_get_their_turn() -> None:
    waiting = [{"queue": "later"}]

    def of(*queues: str) -> dict[str, dict[str, Any]]:
        return {"w": {"worker_id": "w", "standing": "online", "queues": list(queues)}}

    full = [f"q{number}" for number in range(WORKER_QUEUES)]
    assert sessions.serving(of(*full), waiting) == {"later", *full}
    assert sessions.serving(of("a"), waiting) == {"a"}


@pytest.fixture
def served(tmp_path: Path, sqlite_dsn: str) -> Iterator[Edge]:
    path = Path(sqlite_dsn.removeprefix("sqlite:///"))
    (tmp_path / LOCK).touch()  # who makes an edge holds it
    with closing(open_sqlite(path, profile="edge")) as store, (tmp_path / "log").open("w") as out:
        one = Edge(
            store, tmp_path, SETTINGS["edge"], Log("text", False, out), str,
            lease_ms=5_000, grace_ms=100,
        )  # fmt: skip
        try:
            yield one
        finally:
            one.close()


def test_work_in_a_queue_beyond_the_last_is_done(
    served: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of four queues does what waits in ten, and status calls none of it stuck."""
    monkeypatch.setattr(edge_queues, "WORKER_QUEUES", 4)
    served.setting = replace(served.setting, idle_ms=50)
    store, names = served._store, [f"q{number}" for number in range(10)]
    steps = ", ".join(f"{name}: {{run: 'true', queue: {name}}}" for name in names)
    text = f"package: p\nworkflows: {{w: {{steps: {{{steps}}}}}}}\n"
    publisher(store)(parse_package(text.encode(), "p.yaml"))
    (run,) = store.call(
        "start_run", p_package_key="p", p_kind="workflow", p_target_key="w", p_run_key="k",
        p_input="{}",
    )  # fmt: skip
    end = time.monotonic() + 20
    document: dict[str, Any] = {}

    def seen() -> int:
        if served.status()["queues_waiting"] and not document:
            document.update(served.status())
            document["all"] = served_by({}, store.read("queue_state"), {}, document, 0)
        return int(not store.read("open_run", limit=1) or time.monotonic() > end)

    served.interrupts = seen
    served.serve()
    (state,) = store.read("run_state", run_id=run["run_id"])
    assert state["status"] == "succeeded"
    assert document["queues_waiting"] == 10 and document["all"] >= set(names)
    words = edge_words(document, Screen(0, True, "sqlite", ""))
    assert f"work waits in {document['queues_waiting']} queues, 4 served at a time" in words
    served._look()
    assert served.status()["queues_waiting"] is None
