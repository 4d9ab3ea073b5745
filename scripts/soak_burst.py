"""The last part of a soak: many short runs in one life of the edge, whose memory must stand still.

Until some 2,500 runs memory grows by the page cache of SQLite, 4 MiB with the profile edge; a life
of a soak at its own pace is too short to show what comes after that, and so is a burst whose second
half begins before it.
"""

import os
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from qinglong_sql.door import ask
from qinglong_sql.store import Store

OPEN = 12  # runs at a time
GROWTH_KIB = 256  # in the second half; a leak of 100 bytes a run would be more than that
WARM_RUNS = 2500
CACHE_KIB = 4096
POINTS = 16


def burst(store: Store, pid: int, state: Path, runs: int, within_s: float) -> dict[str, Any]:
    """Start `runs` runs of the task `quick` as fast as they end; memory on the way, in KiB.

    Raises TimeoutError when they do not end in time.
    """
    ids: list[str] = []
    course: list[int] = []
    end = time.monotonic() + within_s
    while (open_count := len(store.read("open_run", limit=OPEN))) or len(ids) < runs:
        if time.monotonic() >= end:
            raise TimeoutError(f"only {len(ids)} of {runs} runs came through in {within_s:.0f} s")
        ids += [start(store) for _ in range(min(OPEN - open_count, runs - len(ids)))]
        with suppress(OSError):
            ask(state, "wake", 0.2)
        if len(ids) * POINTS >= runs * len(course):
            course.append(memory_kib(pid))
        time.sleep(0.1)
    course.append(memory_kib(pid))
    return {"runs": ids, "rss_kib": course, "grows_kib": max(course) - course[len(course) // 2]}


def allowed_kib(runs: int) -> int:
    """How far memory may grow in the second half of a burst of so many runs."""
    return GROWTH_KIB if runs // 2 >= WARM_RUNS else GROWTH_KIB + CACHE_KIB


def start(store: Store) -> str:
    row = store.call(
        "start_run", p_package_key="soak", p_kind="task", p_target_key="quick",
        p_run_key=f"burst {uuid.uuid4()}", p_input="{}",
    )[0]  # fmt: skip
    return str(row["run_id"])


def memory_kib(pid: int) -> int:
    """Resident memory of a process, as the kernel says it."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024
