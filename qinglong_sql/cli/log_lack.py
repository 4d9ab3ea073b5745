"""Words for logs that hold nothing or are not here."""

from collections.abc import Sequence

from qinglong_sql.cli.reasons import short
from qinglong_sql.cli.steps import CODES, shortened
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


def not_here(lacking: Sequence[Row], there: int) -> str:
    """For attempts whose logs are not on this machine, when so many others' are."""
    if not there and len(lacking) > 1:
        return (
            f"no logs of this run on this machine ({len(lacking)} attempts): purged, ran"
            " elsewhere, or not part of a backup"
        )
    rest = len(lacking) - NAMED
    names = "; ".join([*map(named, lacking[:NAMED]), *([f"{rest} more"] if rest > 0 else [])])
    return f"no log on this machine: {names}"
