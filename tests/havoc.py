"""Two real control processes and one worker on one PostgreSQL, and a hand that does harm.

The controls are killed, stopped for longer than a claim of a trigger, and ended as a supervisor
does it, at random moments; each is started again. What must hold is what `racing` looks for.
"""

import itertools
import random
import signal
import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psycopg

from qinglong_sql.limits import SCHEDULE_CLAIM_MS
from qinglong_sql.store.postgres import open_postgres_store
from tests import controls, racing
from tests.racing import Race, Track

CONTROLS = 2
PAUSE_S = 3.0  # between two harms, on the average
LONG_S = SCHEDULE_CLAIM_MS / 1000 + 2
# Due each second, so that a control which is harmed may hold the claim.
TICK = {"cron": "* * * * * *", "kind": "task", "overlap": "allow", "misfire": "fire_once",
        "target": "work", "tz": "UTC"}  # fmt: skip
OCCURRED = """
  select r.scheduled_at_ms, count(*)
  from ql.run as r
  where r.trigger_key = 'tick'
  group by r.scheduled_at_ms
  order by r.scheduled_at_ms
"""


@dataclass(slots=True)
class Place:
    """Where the controls live."""

    login: str
    folder: Path
    living: list[controls.Process] = field(default_factory=list)

    def another(self) -> controls.Process:
        return controls.Process(self.login, self.folder)

    def begin(self) -> list[controls.Process]:
        self.living = [self.another() for _ in range(CONTROLS)]
        return self.living


def race(dsn: str, *, runs: int, seconds: float, seed: int, long_s: float = LONG_S) -> Race:
    """As racing.race, with controls in place of schedulers. long_s: the longest stop of one."""
    with controls.login_of(dsn) as login, tempfile.TemporaryDirectory(prefix="ql-") as name:
        place = Place(login, Path(name))
        place.folder.chmod(0o755)
        try:
            for one in place.begin():
                one.ready()
            found = racing.race(
                dsn, runs=runs, seconds=seconds, seed=seed, triggers={"tick": TICK},
                hands=[racing.worker, racing.canceller],
                beside=[partial(harm, place=place, seed=seed, long_s=long_s)],
            )  # fmt: skip
        finally:
            for one in place.living:
                one.close()
    occurrences(dsn, found)
    return found


def occurrences(dsn: str, found: Race) -> None:
    """Look at what the trigger did: each second at most once, and on until the end."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        rows = connection.execute(OCCURRED.encode()).fetchall()
    found.counts["occurrences"] = len(rows)
    times = [at for at, _ in rows]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    found.counts["longest gap ms"] = max(gaps, default=0)
    if twice := [at for at, number in rows if number > 1]:
        found.failures.append(f"fired more than once: {twice[:5]}")
    if not rows:
        found.failures.append("the trigger never fired")


def harm(track: Track, place: Place, seed: int, long_s: float) -> None:
    """Harm one of them again and again until nothing new begins; see both end well afterwards."""
    dice = random.Random(f"{seed}:harm")
    length_s = long_s
    while not track.over.wait(dice.uniform(0.2, 2 * PAUSE_S)):
        how = "pause" if length_s == long_s else dice.choice(["kill", "kill", "stop", "pause"])
        track.count(f"controls {how}")
        if trouble := harmed(place, dice.randrange(CONTROLS), how, length_s, track):
            track.fail(trouble)
        length_s = dice.uniform(0.1, 3)
    _pause(track.dsn)
    track.stop.wait()
    for one in place.living:
        one.ready()
        if (code := one.stop()) != 0:
            track.fail(f"a control that was asked to stop ended with {code}: {one.text()}")


def _pause(dsn: str) -> None:
    """What the clock starts again and again must come to an end as well."""
    with closing(open_postgres_store(dsn)) as store:
        store.call("pause_trigger", p_package_key="nightly", p_trigger_key="tick")


def harmed(place: Place, number: int, how: str, length_s: float, track: Track) -> str:
    """Do it to one of them; what was wrong with it, in words."""
    one = place.living[number]
    if how == "pause":
        one.child.send_signal(signal.SIGSTOP)
        track.over.wait(length_s)
        one.child.send_signal(signal.SIGCONT)
        return ""
    if how == "stop":  # before that, TERM ends an interpreter that does not know of it yet
        one.ready()
    code = one.stop(signal.SIGTERM if how == "stop" else signal.SIGKILL)
    place.living[number] = place.another()
    wanted = 0 if how == "stop" else -signal.SIGKILL
    return "" if code == wanted else f"a control ended with {code} on {how}: {one.text()}"
