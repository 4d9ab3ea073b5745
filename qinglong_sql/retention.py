"""What ended long ago goes: runs in pages, each one transaction, their logs, and what was audited.

The rule is `retention_due` in sql/decision; the step is purge_runs. A kill between two pages, or
between a page and its logs, leaves nothing half: the next purge finds what is left (DESIGN §8).
"""

import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from qinglong_sql.limits import LOCAL_PAUSE_MS, PAGE_SIZE
from qinglong_sql.store import Store

# A page that takes longer is followed by half of one: the writer of a small device is not kept.
LONG_PAGE_S = 0.1
# Of logs whose run is gone, one purge looks at so many, the oldest first.
MAX_ORPHANS = 1_024
AUDIT_PAGE = 1_024
OURS = re.compile(r"ru[0-9a-f]{24}")


@dataclass(frozen=True, slots=True)
class Purged:
    """Runs that are gone, log folders, and the bytes of the files in those."""

    runs: int = 0
    logs: int = 0
    log_bytes: int = 0


def purge(
    store: Store,
    before_ms: int,
    *,
    folder: Path | None,
    shared: Sequence[Path] = (),
    own: Sequence[Path] = (),
    limit: int | None = None,
    on_page: Callable[[Purged], object] | None = None,
) -> Purged:
    """Delete the runs that ended before a time, those that ended first at first, with their logs.

    `folder` is the state folder whose workers kept the logs, `limit` the most runs that go. Folders
    of runs are also in `shared`, where other databases may have theirs, and in `own`, which are of
    this one alone. Once nothing is due any more, logs that a killed purge left go as well, or one
    on another machine, but from `shared`. Raises what the store raises; what is gone by then stays
    gone.
    """
    done, size = Purged(), PAGE_SIZE
    while limit is None or done.runs < limit:
        page = size if limit is None else min(size, limit - done.runs)
        began = time.monotonic()
        rows = store.call("purge_runs", p_before_ms=before_ms, p_limit=page)
        took = time.monotonic() - began
        run_ids = [row["run_id"] for row in rows]
        done = _logs(done, len(rows), _folders([*_places(folder), *own, *shared], run_ids))
        if rows and on_page is not None:
            on_page(done)
        if len(rows) < page:
            return _logs(done, 0, _orphans(store, [*_places(folder), *own], before_ms))
        size = max(1, size // 2) if took > LONG_PAGE_S else min(PAGE_SIZE, size * 2)
        time.sleep(LOCAL_PAUSE_MS / 1000)
    return done


def _logs(done: Purged, runs: int, folders: Iterable[Path]) -> Purged:
    logs, log_bytes = done.logs, done.log_bytes
    for folder in folders:
        size = _size(folder)
        left: list[object] = []
        shutil.rmtree(folder, onerror=lambda _, path, __: left.append(path))  # noqa: B023
        if size is not None and folder not in left:  # else it stays, or another purge had it
            log_bytes += size
            logs += 1
    return Purged(done.runs + runs, logs, log_bytes)


def _size(folder: Path) -> int | None:
    """Bytes of the files in a folder; None when another purge had it first."""
    size = 0
    try:
        for path in folder.iterdir():
            with suppress(OSError):
                size += path.lstat().st_size
    except FileNotFoundError:
        return None
    except OSError:  # it may not be listed, and what is in it stays
        return 0
    return size


def purge_audit(store: Store, before_ms: int) -> int:
    """Delete what was audited before a time, in pages; how many rows went. Raises as the store."""
    gone = 0
    while True:
        (row,) = store.call("purge_audit", p_before_ms=before_ms, p_limit=AUDIT_PAGE)
        gone += int(row["purged"])
        if row["purged"] < AUDIT_PAGE:
            return gone
        time.sleep(LOCAL_PAUSE_MS / 1000)


def _places(state: Path | None) -> list[Path]:
    """Where workers of this machine keep logs: every one of them has such a folder."""
    return list(state.glob("*/log")) if state is not None else []


def _folders(places: Sequence[Path], run_ids: Iterable[str]) -> list[Path]:
    """The log folders of some runs. Every place may have one of each."""
    named = [place / run_id for run_id in run_ids for place in places]
    return [path for path in named if path.is_dir() and not path.is_symlink()]


def _listed(places: Sequence[Path]) -> Iterator[Path]:
    for place in places:
        with suppress(OSError):  # gone meanwhile, or not to be read
            yield from list(place.glob("ru*"))


def _orphans(store: Store, places: Sequence[Path], before_ms: int) -> list[Path]:
    """Log folders whose run is not there any more, untouched since then; a kill left them.

    Younger ones stay: a database that was restored has not heard of their run.
    """
    found: list[tuple[float, Path]] = []
    for path in _listed(places):
        with suppress(OSError):
            if OURS.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                found.append((path.stat().st_mtime, path))
    old = [path for at, path in sorted(found) if at * 1000 < before_ms]
    return [
        path
        for path in old[:MAX_ORPHANS]
        if not store.read("run_admission", run_id=path.name, limit=1)
    ]
