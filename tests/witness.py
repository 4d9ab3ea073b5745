"""Tasks that say on their own, apart from the database, when each of their executions was alive.

An execution appends to a file named after its attempt: its process id, a word, and the time since
boot, at its begin, ten times a second, and at its end. What a database says afterwards is held
against that: nothing ran twice, and nothing was alive when its fence had grown.
"""

import itertools
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import acting
from tests.acting import Row

BEGIN, ALIVE, END = "begin", "alive", "end"
# /proc/uptime goes on while a machine sleeps, as the clock of leases does; in hundredths.
SCRIPT = r"""
say() { read -r up rest < /proc/uptime; echo "$$ $1 $up" >> "$file"; }
file="$WITNESS/$QL_RUN_ID-$QL_ATTEMPT"
say begin
n=0
while [ "$n" -lt "$TICKS" ]; do sleep 0.1; say alive; n=$((n + 1)); done
say end
"""
TICK_MS = 100
RESOLUTION_MS = 20
# on_lost, and how many of a hundred steps; the work of `retry` is idempotent
KINDS = {"retry": 60, "fail": 25, "hold": 15}
# ticks, and how many of a hundred steps: most are short, a few are longer than a lease
LENGTHS = {1: 68, 8: 28, 70: 4}


@dataclass(frozen=True, slots=True)
class Life:
    """One execution as it says itself, in milliseconds since boot; the last word of it."""

    attempt_id: str
    pid: int
    began_ms: int
    last_ms: int
    last: str


def tasks(folder: Path) -> dict[str, Any]:
    """A task of each kind and length, `retry-1` and so on."""
    return {
        f"{on_lost}-{ticks}": acting.task(
            run=SCRIPT,
            on_lost=on_lost,
            idempotent=on_lost == "retry",
            env={"WITNESS": str(folder), "TICKS": str(ticks)},
            retry={"attempts": 8 if on_lost == "retry" else 1, "backoff_ms": 200},
        )
        for on_lost in KINDS
        for ticks in LENGTHS
    }


def workflow(
    steps: Sequence[Mapping[str, Any]], dice: random.Random, task: str = ""
) -> dict[str, Any]:
    """A flow of these steps, each with this task, or else one that is drawn for it."""

    def drawn(shares: Mapping[Any, int]) -> Any:
        return dice.choices(list(shares), list(shares.values()))[0]

    return {
        "steps": {
            step["key"]: {"needs": sorted(set(step["needs"])),
                          "task": task or f"{drawn(KINDS)}-{drawn(LENGTHS)}"}
            for step in steps
        },
        "timeout_ms": None,
    }  # fmt: skip


def boot_offset_ms() -> int:
    """What the time of day is ahead of the time since boot."""
    return (time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) // 1_000_000


def lives(folder: Path) -> dict[str, list[Life]]:
    """All executions by attempt. A line that was cut by a death is no line."""
    found: dict[str, list[Life]] = {}
    for file in folder.iterdir():
        said: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for line in file.read_text().splitlines(keepends=True):
            words = line.split()
            if line.endswith("\n") and len(words) == 3:
                said[int(words[0])].append((words[1], round(float(words[2]) * 1000)))
        found[file.name] = [
            Life(file.name, pid, rows[0][1], rows[-1][1], rows[-1][0]) for pid, rows in said.items()
        ]
    return found


def judged(
    found: Mapping[str, list[Life]], attempts: Sequence[Row], on_lost: Mapping[tuple[str, str], str]
) -> Iterator[tuple[str, str]]:
    """Attempts, and what is wrong with them in words.

    on_lost: of each run and step; times of attempts are milliseconds since 1970.
    """
    offset_ms = boot_offset_ms()
    by_step: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in attempts:
        by_step[row["run_id"], row["step_key"]].append(row)
        mine = found.get(row["attempt_id"], [])
        for words in _of_attempt(row, mine, offset_ms):
            yield row["attempt_id"], words
    known = {row["attempt_id"] for row in attempts}
    for unknown in found.keys() - known:
        yield unknown, f"{unknown} was executed and is no attempt"
    for place, rows in by_step.items():
        began = [life for row in rows for life in found.get(row["attempt_id"], [])]
        if on_lost[place] != "retry" and len(began) > 1:
            names = [life.attempt_id for life in began]
            yield names[0], f"{place} is not idempotent and was begun by {names}"
        began.sort(key=lambda life: life.began_ms)
        for one, other in itertools.pairwise(began):
            if other.began_ms < one.last_ms - RESOLUTION_MS:
                yield one.attempt_id, f"{one} overlaps {other}"


def _of_attempt(row: Row, mine: Sequence[Life], offset_ms: int) -> Iterator[str]:
    name, status = row["attempt_id"], row["status"]
    if len(mine) > 1:
        yield f"{name} was begun twice: {mine}"
    if mine and row["starting_at_ms"] is None:
        yield f"{name} was begun before its start barrier: {mine}"
    if status == "succeeded" and [life.last for life in mine] != [END]:
        yield f"{name} succeeded, and says {mine}"
    if row["finished_at_ms"] is None:
        return
    for life in mine:
        late_ms = life.last_ms + offset_ms - row["finished_at_ms"]
        if late_ms > RESOLUTION_MS:
            yield f"{name} ({status}, {row['result_code']}) lived {late_ms} ms past its fence"
