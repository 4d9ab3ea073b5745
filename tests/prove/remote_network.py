"""A worker and its ingress on two networks, and a line between them that loses what it is told to.

Part of the check `remote`: answers and commands are lost in the middle of each command, the line is
cut for longer than a lease, loses a third of all packets, and forgets connections without a word.
"""

import time
from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

from qinglong_sql import ca
from qinglong_sql.port import Away
from qinglong_sql.remote import Remote
from qinglong_sql.shipping_log import Author
from tests import acting
from tests.acting import Held, Row
from tests.prove import Setting, Verdict
from tests.remote_room import Named
from tests.rooms import Site, ended, published, site, started, wait
from tests.server import Server

LOSS = 0.3
SHORT_MS, LONG_MS = 5_000, 30_000  # leases
BOUND_MS = 3_000  # as if: a sixth of it is what an answer may take
BOTH = frozenset({"there", "back"})


def prove(setting: Setting, verdict: Verdict, server: Server) -> None:
    """All of it; --quick: lost answers and one cut. Raises CannotRun where there are no rooms."""
    with site(setting, verdict, server) as made:
        each_command(made)
        cut_off(made)
        if not setting.quick:
            a_third_lost(made)
            half_open(made)
        made.check(acting.unbroken(made.store), f"{made.store.read('violation')[:3]}")


# -- in the middle of each command


class Losing:
    """A door through which each command is lost before it comes, and its answer after that."""

    def __init__(self, site: Site, remote: Remote, ways: tuple[str, ...]) -> None:
        self._site, self._remote, self._ways = site, remote, ways
        self.lost = 0

    def call(self, step: str, /, **params: Any) -> list[Row]:
        return cast(list[Row], self.through(lambda: self._remote.call(step, **params), step))

    def through(self, ask: Callable[[], object], words: str) -> object:
        site, line = self._site, self._site.line
        for way in self._ways:
            site.here.inside(lambda: self._remote.call("attempt_standing", p_commands="[]"))
            line.cut = frozenset({way})
            began = time.monotonic()
            try:
                site.here.inside(ask)
                site.check(False, f"{words}: an answer although {way} is cut")
            except Away:
                self.lost += 1
            took = time.monotonic() - began
            site.check(took < BOUND_MS / 1000 / 3, f"{words}: {took:.1f} s without an answer")
            line.cut = frozenset()
        return site.here.inside(ask)


def each_command(site: Site) -> None:
    """A worker's life in which everything is lost and said again, and one without a loss."""
    acting.publish(site.store, {"a": [], "b": [], "c": []}, queue="lossy", on_lost="retry")
    papers = site.authority.worker("lossy")
    ways = ("back",) if site.setting.quick else ("back", "there")
    with closing(Remote(site.url, papers, lease_ms=BOUND_MS)) as remote:
        door = Losing(site, remote, ways)
        one = life(site, door, "lossy", "one", remote)
        site.verdict.counts["commands_lost"] = door.lost
    other = life(site, Named(site.store, "plain"), "plain", "two", None)
    site.check(one == other, f"losses moved something: {one} instead of {other}")


def life(site: Site, door: Any, worker: str, key: str, remote: Remote | None) -> list[str]:
    """Every command once; the events of the run."""
    run_id = acting.start(site.store, key=key)
    wait(lambda: len(site.store.read("attempt_state", run_id=run_id)) == 3, "it is admitted")
    acting.register(door, worker)
    door.call("heartbeat_worker", p_worker_id=worker, p_session_id="s1")
    names = [f"{key}.{number}" for number in range(3)]
    rows = acting.offer_rows(
        door, names, worker=worker, queue="lossy", lease_ms=LONG_MS, run_id=run_id
    )
    a, b, c = (Held(r["attempt_id"], r["fence"], acting.token(r["offer_id"]), r) for r in rows)
    door.call("attempt_inputs", p_commands=acting.commands(a, b, c))
    acting.cross(door, a, b)
    door.call("running_attempts", p_commands=acting.commands(a))
    acting.renew(door, a, b, c, lease_ms=LONG_MS)
    if remote:
        said = SimpleNamespace(
            attempt_id=a.attempt_id, run_id=run_id, step_key="a", number=1, fence=a.fence,
            token=a.token,
        )  # fmt: skip
        author = cast(Author, said)
        size = door.through(lambda: remote.log(author, 0, b"said", None), "log")
        site.check(size == 4, f"the log has {size} bytes after a loss")
        request = ca.new_request(worker)[1].decode()
        pem = door.through(lambda: remote.certificate(request), "certificate")
        mine = [one for one in ca.listed(site.authority.folder)[1] if one.name == worker]
        site.check(pem and len(mine) == 2, f"{len(mine)} certificates after one was asked for")
    acting.report(door, a, output='{"n":1}')
    door.call("attest_attempts", p_commands=acting.commands(b, reason="it is gone"))
    acting.report(door, c, how="not_started", exit_code=None)
    door.call("attempt_standing", p_commands=acting.commands(a, b, c))
    door.call("end_session", p_worker_id=worker, p_session_id="s1")
    events = site.store.read("event_log", run_id=run_id, order="sequence")
    mine = {one.attempt_id for one in (a, b, c)}
    return [
        row["type"] for row in events if row["entity"] == "attempt" and row["entity_id"] in mine
    ]


# -- with a real worker


def cut_off(site: Site) -> None:
    """For longer than a lease, while work of every kind runs: it ends itself before its fence."""
    worker = site.worker("cut", SHORT_MS)
    flow = {f"{on_lost}{number}": f"{on_lost}-{ticks}" for on_lost in ("retry", "fail", "hold")
            for number, ticks in enumerate((1, 70))}  # fmt: skip
    run_id = published(site, "cut", flow)
    wait(lambda: list(acting.statuses(site.store, run_id).values()).count("succeeded") == 3
         and started(site, run_id) == 6, "the short ones are over, the long ones run")  # fmt: skip
    site.line.cut = BOTH
    time.sleep(SHORT_MS / 1000 + 4)
    lost = {row["status"] for row in site.store.read("attempt_state", run_id=run_id)}
    site.check("lost" in lost, f"nothing was lost in a cut: {lost}")
    site.line.cut = frozenset()
    ended(site, [run_id])
    for event in ("away", "back"):
        site.check(len(worker.lines(event)) == 1, f"{event} was said {len(worker.lines(event))}×")
    statuses = acting.statuses(site.store, run_id)
    wanted = {"retry1": "succeeded", "fail1": "failed", "hold1": "failed"}  # attested at its return
    found = {step: statuses[step] for step in wanted}
    site.check(found == wanted, f"work that was cut off: {found}")
    site.check(worker.stop() == 0, f"it ended badly: {worker.text()[-1500:]}")


def a_third_lost(site: Site) -> None:
    """Packets go at random: it takes longer, and nothing else."""
    worker = site.worker("lossy2", LONG_MS)
    site.line.loss = LOSS
    carried, lost = site.line.carried, site.line.lost
    flow = {f"s{number}": f"fail-{ticks}" for number, ticks in enumerate((1, 1, 8, 8, 70))}
    runs = [published(site, "lossy2", flow, key=f"k{number}") for number in range(4)]
    began = time.monotonic()
    ended(site, runs)
    site.verdict.counts["seconds_of_loss"] = round(time.monotonic() - began)
    site.line.loss = 0.0
    share = (site.line.lost - lost) / max(1, site.line.carried + site.line.lost - carried - lost)
    site.check(0.2 < share < 0.4, f"{share:.2f} of packets were lost")
    bad = [one for one in runs if acting.ended(site.store, one)[0] != "succeeded"]
    site.check(not bad, f"{len(bad)} of {len(runs)} runs did not succeed under loss")
    site.check(worker.stop() == 0, f"it ended badly: {worker.text()[-1500:]}")


def half_open(site: Site) -> None:
    """Connections are forgotten without a word, more than one worker may have; an ingress dies."""
    worker = site.worker("half", SHORT_MS)
    flow = {f"s{number:02}": f"fail-{ticks}" for number, ticks in enumerate([70] * 8 + [8] * 16)}
    runs = [published(site, "half", flow, key="forgotten")]
    forgotten = 0
    while acting.run_row(site.store, runs[0])["status"] == "running" and forgotten < 24:
        forgotten += site.line.forget()
        time.sleep(1.2)
    site.verdict.counts["connections_forgotten"] = forgotten
    # a boot may take longer than a lease: what is lost by that is tried again
    again = {f"retry{number:02}": f"retry-{ticks}" for number, ticks in enumerate([70] * 8)}
    runs.append(published(site, "half", again, key="killed"))
    wait(lambda: started(site, runs[1]) >= 4, "four run")
    site.line.cut = BOTH
    site.again()
    site.line.cut = frozenset()
    ended(site, runs)
    bad = [acting.statuses(site.store, one) for one in runs
           if acting.ended(site.store, one)[0] != "succeeded"]  # fmt: skip
    site.check(forgotten >= 10 and not bad, f"after {forgotten} forgotten connections: {bad}")
    site.check(worker.stop() == 0, f"it ended badly: {worker.text()[-1500:]}")
