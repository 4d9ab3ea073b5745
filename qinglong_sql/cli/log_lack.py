"""Words for logs that hold nothing or are not here."""

import os
import pwd
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from qinglong_sql.cli.reasons import short
from qinglong_sql.cli.sessions import is_of_a_run
from qinglong_sql.cli.steps import CODES, shortened
from qinglong_sql.cli.tail import Places
from qinglong_sql.cli.words import Row

NAMED = 3


def named(attempt: Row) -> str:
    return f"{attempt['step_key']}, attempt {attempt['number']}"


def nothing_written(attempts: Sequence[Row], more: str) -> str:
    """For attempts with empty logs only; `more` is put behind the shown command."""
    attempt = attempts[0]
    if len(attempts) > 1:
        look = f"qinglong-sql show {short(attempt['run_id'])}{more}"
        return f"no step wrote anything, in {len(attempts)} attempts (look: {look})"
    if attempt["finished_at_ms"] is None:
        return f"{attempt['step_key']} has written nothing yet; it is {attempt['status']}"
    look = f"qinglong-sql show {short(attempt['run_id'])}{more}"
    return f"{attempt['step_key']} wrote nothing; {end_of(attempt)} (look: {look})"


def end_of(attempt: Row) -> str:
    """How an attempt ended, in words; where it stands, while it has not."""
    if attempt["finished_at_ms"] is None:
        return f"it is {attempt['status']}"
    code = attempt["result_code"]
    words = CODES.get(code, str(code)) if code else f"it {attempt['status']}"
    if attempt["exit_code"] is not None and code in (None, "execution_failed"):
        words = f"it ended with exit code {attempt['exit_code']}"
    said = shortened(str(attempt["error"] or ""), 400)
    return f"{words}: {said}" if said else words


def not_begun(attempt: Row) -> str:
    """Words for an attempt that has never started, and so can have no log; nothing for others."""
    if attempt["starting_at_ms"] is not None:
        return ""
    if attempt["finished_at_ms"] is None:
        return f"{named(attempt)} has not started yet: {end_of(attempt)}"
    if attempt["result_code"] == "execution_cancelled":
        return f"{named(attempt)} never started: the run was cancelled before"
    return f"{named(attempt)} never started: {end_of(attempt)}"


def barred(where: Path | Places) -> str:
    """Words for a folder of logs here that this user may not look into; nothing without one."""
    where = Places(where) if isinstance(where, Path) else where
    folders = [where.state]
    with suppress(OSError):
        folders += sorted(where.state.iterdir())
    with suppress(OSError):
        folders += sorted(where.base.glob("remote-*")) if where.base else []
    for folder in [*folders, *where.stores]:
        try:
            os.scandir(folder).close()
        except PermissionError:
            return f"permission denied: {folder} is {owner_of(folder)}'s, and no other user's"
        except OSError:  # a file, or it is not there
            continue
    return ""


def owner_of(path: Path) -> str:
    """The login of the owner of a path, or of the nearest folder above it that can be seen."""
    for one in (path, *path.parents):
        with suppress(PermissionError):
            number = one.stat().st_uid
            try:
                return pwd.getpwuid(number).pw_name
            except KeyError:
                return f"user {number}"
    return "another user"


def whereabouts(attempt: Row, where: Places) -> str:
    """Where the log of an attempt is, if it ran on a worker that has a name; else nothing.

    Where an ingress of this machine keeps logs, it will be once it is shipped.
    """
    worker = attempt["worker_id"]
    if where.base is None or not worker or is_of_a_run(worker):
        return ""
    if where.kept():
        return (
            f"worker {worker} has not shipped it yet, or the ingress' log folder does not take it"
        )
    looked = " or ".join(str(store) for store in where.stores)
    return (
        f"it is on worker {worker}, or where its ingress keeps logs"
        f" (not in {looked}; QINGLONG_STATE_DIR or --log-dir)"
    )


def not_here(lacking: Sequence[Row], there: int, denied: str, where: Places) -> str:
    """For attempts whose logs are not on this machine, when so many others' are.

    `denied`: the words of `barred`, as they may be in a folder that is closed to us.
    """
    if denied and not there:
        return f"the logs of this run, if there are any here, cannot be read: {denied}"
    said = {one["attempt_id"]: whereabouts(one, where) for one in lacking}
    if not there and len(lacking) > 1:
        ways = dict.fromkeys(words for words in said.values() if words)
        rest = len(ways) - NAMED
        some = [*list(ways)[:NAMED], *([f"{rest} more places"] if rest > 0 else [])]
        why = "; ".join(some) or "purged, ran elsewhere, or not part of a backup"
        return f"no logs of this run on this machine ({len(lacking)} attempts): {why}"
    rest = len(lacking) - NAMED
    some = [
        named(one) + f" ({said[one['attempt_id']]})" * bool(said[one["attempt_id"]])
        for one in lacking[:NAMED]
    ]
    names = "; ".join([*some, *([f"{rest} more"] if rest > 0 else [])])
    return f"no log on this machine: {names}" + f"; {denied}" * bool(denied)
