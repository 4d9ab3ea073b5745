"""The schedule stage: claim what is due, compute the next times outside, commit (DOMAIN §3.10).

Times come from one pinned time zone database, so every process computes the same ones; whether
they are used is the commit's decision, by the database's clock and under its locks.
"""

import os
import time
from contextlib import suppress
from dataclasses import replace
from typing import Final

from qinglong_sql.errors import NotReady
from qinglong_sql.limits import CRON_GRACE_MS, PAGE_SIZE, PAGES
from qinglong_sql.stage import StalledContinuation, Tally
from qinglong_sql.store import Contended, Row, Store

SCHEDULE: Final = "schedule"
OUTCOMES = frozenset({"applied", "settled", "blocked", "contended", "faulted"})
# A publication, or the claim of another scheduler that looks at the row, is over by then; what is
# left keeps its claim, and would wait for the end of it.
AGAIN_S: Final = (0.0, 0.002, 0.008, 0.032)
NEVER_MS: Final = 250_247_232_000_000  # the year 9900, where `next_fire` ends


def run_schedule(
    store: Store,
    *,
    size: int = PAGE_SIZE,
    pages: int = PAGES,
    grace_ms: int = CRON_GRACE_MS,
    whole: bool = False,
) -> Tally:
    """At most `pages` pages of `size` due triggers, in the order in which they became due.

    `whole`: the clock may have been set back, so cursors that it wrote before begin anew.

    A trigger that raises gets a fault and a back-off of its own. Raises StalledContinuation for a
    page that is none, and whatever of the store is no trigger's own trouble.
    """
    tally = Tally()
    while whole:
        whole = len(store.call("sweep_schedule", p_limit=PAGE_SIZE)) >= PAGE_SIZE
    for _ in range(pages):
        token = os.urandom(16).hex()
        page = store.call("claim_schedule", p_owner=_owner(), p_token=token, p_limit=size)
        keys = [(row["package_key"], row["trigger_key"]) for row in page]
        if len(page) > size or len(set(keys)) < len(keys):
            raise StalledContinuation(SCHEDULE, size, keys)
        found = [_decided(store, row, token, grace_ms) for row in page]
        for pause_s in AGAIN_S:
            places = [at for at, answer in enumerate(found) if answer["outcome"] == "contended"]
            if not places:
                break
            time.sleep(pause_s)
            for at in places:
                found[at] = _decided(store, page[at], token, grace_ms)
        tally = _added(tally, page, found, has_more=len(page) == size)
        if not tally.has_more or not any(one["outcome"] != "contended" for one in found):
            break
    return tally


def _decided(store: Store, claim: Row, token: str, grace_ms: int) -> Row:
    """What became of one claim: the commit's answer, or `contended`, or `faulted`."""
    try:
        due_ms, next_ms = _times(claim)
    except NotReady:
        raise
    except Exception as error:  # whatever it is, other triggers are not to wait for this one
        where = f"{claim['cron']!r} in {claim['tz']}"
        return _faulted(store, claim, f"{where}: {error or type(error).__name__}")
    try:
        return store.call(
            "commit_schedule",
            p_package_key=claim["package_key"],
            p_trigger_key=claim["trigger_key"],
            p_owner=_owner(),
            p_token=token,
            p_claim_version=claim["claim_version"],
            p_state_version=claim["state_version"],
            p_cursor_ms=claim["next_fire_at_ms"],
            p_due_at_ms=due_ms,
            p_observed_at_ms=claim["observed_at_ms"],
            p_next_at_ms=next_ms,
            p_grace_ms=grace_ms,
        )[0]
    except Exception as error:
        if store.ends_cycle(error):
            raise
        if isinstance(error, Contended):
            return {"outcome": "contended"}
        return _faulted(store, claim, str(error))


def _faulted(store: Store, claim: Row, words: str) -> Row:
    with suppress(Contended):
        store.call(
            "record_trigger_fault",
            p_package_key=claim["package_key"],
            p_trigger_key=claim["trigger_key"],
            p_state_version=claim["state_version"],
            p_error=words,
        )
    return {"outcome": "faulted"}


def _times(claim: Row) -> tuple[int, int]:
    """The due time of a claim, and where its cursor goes when that is over."""
    from qinglong_sql.cron_fire import next_fire

    cron, tz, observed_ms = claim["cron"], claim["tz"], claim["observed_at_ms"]
    due_ms = claim["next_fire_at_ms"]
    if due_ms is None:
        due_ms = next_fire(cron, tz, claim["since_ms"] - 1) or NEVER_MS
    if due_ms > observed_ms:
        return due_ms, due_ms
    return due_ms, next_fire(cron, tz, observed_ms) or NEVER_MS


def _added(tally: Tally, page: list[Row], found: list[Row], *, has_more: bool) -> Tally:
    words = [one["outcome"] for one in found]
    if not OUTCOMES.issuperset(words):
        raise StalledContinuation(SCHEDULE, page, words)
    late = [
        row["observed_at_ms"] - row["next_fire_at_ms"] for row in page if row["next_fire_at_ms"]
    ]
    return replace(
        tally,
        scanned=tally.scanned + len(page),
        applied=tally.applied + words.count("applied"),
        settled=tally.settled + words.count("settled"),
        blocked=tally.blocked + words.count("blocked"),
        contended=tally.contended + words.count("contended"),
        faulted=tally.faulted + words.count("faulted"),
        effects=tally.effects + sum(one.get("disposition") == "admit" for one in found),
        lag_ms=max([tally.lag_ms, *late]),
        has_more=has_more,
    )


def _owner() -> str:
    return f"{os.uname().nodename}.{os.getpid()}"[:200]
