"""A scheduler as a process: `python -m tests.ticking DSN` goes round until it is ended.

It says `ready` and its own wall clock in milliseconds, and then a line of JSON for each cycle in
which triggers were due. Its clock is nobody's: what is due, and what was set back, the database
says.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg

from qinglong_sql.clock_watch import ClockWatch
from qinglong_sql.scheduler import Turn, scheduler_cycle
from qinglong_sql.store.postgres import PostgresStore

HOME = Path(__file__).resolve().parent.parent
PAUSE_S = 0.05


def main(dsn: str) -> None:
    store = PostgresStore(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:

        def server_ms() -> int:
            text = "select floor(extract(epoch from clock_timestamp()) * 1000)::bigint"
            ((now_ms,),) = connection.execute(text).fetchall()
            return int(now_ms)

        watch = ClockWatch(server_ms)
        say({"ready": time.time_ns() // 1_000_000})
        turn = Turn(whole=True)
        while os.getppid() != 1:
            if watch.look() < 0:
                turn = replace(turn, swept="", whole=True)
            cycle = scheduler_cycle(store, turn)
            turn = cycle.next
            tally = cycle.tallies["schedule"]
            if tally.scanned:
                say({"effects": tally.effects, "lag_ms": tally.lag_ms, "faulted": tally.faulted})
            select.select([], [], [], PAUSE_S)  # libfaketime 0.9.10 breaks time.sleep


def say(line: Mapping[str, int]) -> None:
    print(json.dumps(line), flush=True)


@dataclass(slots=True)
class Ticking:
    """One such process, and what it has said."""

    child: "subprocess.Popen[bytes]"
    log: Path

    def told(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text("utf-8").splitlines()]

    def wall_ms(self) -> int | None:
        """What its clock said when it was ready; None as long as it is not."""
        lines = self.told()
        return int(lines[0]["ready"]) if lines else None


@contextmanager
def ticking(dsn: str, log: Path, **environment: str) -> Iterator[Ticking]:
    """Such a process, which is killed at the end."""
    with log.open("wb") as sink:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.ticking", dsn],
            cwd=HOME, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=sink,
        )  # fmt: skip
    try:
        yield Ticking(child, log)
    finally:
        child.kill()
        child.wait()


if __name__ == "__main__":
    main(sys.argv[1])
