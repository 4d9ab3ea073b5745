"""A worker's certificate and key: who it is by them, and how they are renewed before the end.

The ingress renews where it has the authority's folder; else it is said once a day that somebody has
to. Files that others put in their place are noticed without a restart (DOMAIN §6).
"""

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from qinglong_sql.certificate import TlsFault, certificates_of, ms_of, read_small
from qinglong_sql.control_log import Log
from qinglong_sql.duration import write_duration
from qinglong_sql.execution import boottime_ms
from qinglong_sql.remote import Papers
from qinglong_sql.tls import client_context
from qinglong_sql.whole_file import write_whole

LOOK_MS: Final = 60_000
AGAIN_MS: Final = 5 * 60_000
DAY_MS: Final = 24 * 3600 * 1000
LEFT_OF: Final = 3  # renewed when a third of its life is left
MINUTE_MS: Final = 60_000


class Renewal:
    """Renews the papers of one worker when it is time; `look` often, it does little.

    `ask` takes a request in PEM and gives a certificate, or None where nobody makes any; what it
    raises is tried again. `wall` is the time of day and `clock` CLOCK_BOOTTIME, in milliseconds.
    """

    def __init__(
        self,
        papers: Papers,
        name: str,
        ask: Callable[[str], str | None],
        log: Log,
        *,
        wall: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        clock: Callable[[], int] = boottime_ms,
    ) -> None:
        self._papers, self._name, self._ask, self._log = papers, name, ask, log
        self._wall, self._clock = wall, clock
        self._look_at_ms = 0
        self._doubted = False

    def look(self) -> None:
        """Renew, if it is time. Raises TlsFault, and what `ask` raises."""
        now_ms = self._clock()
        if now_ms < self._look_at_ms:
            return
        self._look_at_ms = now_ms + LOOK_MS
        begins_ms, ends_ms = life_of(self._papers.certificate)
        if not self._due(begins_ms, ends_ms):
            return
        self._look_at_ms = now_ms + AGAIN_MS
        from qinglong_sql.ca_sign import new_request

        key, request = new_request(self._name)
        pem = self._ask(request.decode())
        if pem is None:
            self._warn(ends_ms, "the ingress makes no new one")
            return
        try:
            put(self._papers, key, pem.encode())
        except OSError as error:
            self._warn(ends_ms, f"a new one cannot be written: {error.strerror}")
            return
        begins_ms, ends_ms = life_of(self._papers.certificate)
        words = f"certificate renewed, good until {_day(ends_ms)}"
        self._log.say("info", "certificate", words)
        if self._due(begins_ms, ends_ms):
            self._doubt(begins_ms, ends_ms)

    def _due(self, begins_ms: int, ends_ms: int) -> bool:
        return ends_ms - self._wall() <= (ends_ms - begins_ms) // LEFT_OF

    def _doubt(self, begins_ms: int, ends_ms: int) -> None:
        """Ask less often: by a clock that is right a new one is never due at once."""
        self._look_at_ms = self._clock() + min(DAY_MS, (ends_ms - begins_ms) // LEFT_OF)
        if not self._doubted:
            self._doubted = True
            words = (
                f"this machine's clock seems wrong: it is {_day(self._wall())} by it, and the"
                f" certificate that was made just now is from {_day(begins_ms)} to {_day(ends_ms)}"
            )
            self._log.say("warning", "clock", words)

    def _warn(self, ends_ms: int, why: str) -> None:
        """Say it, and not again today."""
        self._look_at_ms = self._clock() + DAY_MS
        left_ms = ends_ms - self._wall()
        span = write_duration(max(MINUTE_MS, abs(left_ms) // MINUTE_MS * MINUTE_MS))
        ends = f"ends in {span}, {_day(ends_ms)}" if left_ms > 0 else f"ended {span} ago"
        words = f"{self._papers.certificate} {ends}, and {why}: `qinglong-sql ca renew DIR"
        self._log.say("warning", "certificate", f"{words} {self._name}`, and put its files there")


def life_of(certificate: Path) -> tuple[int, int]:
    """From when and until when it is good, in epoch milliseconds. Raises TlsFault."""
    found = certificates_of(certificate)
    if not found:
        raise TlsFault(certificate, "it holds no certificate in PEM")
    return ms_of(found[0].not_valid_before_utc), ms_of(found[0].not_valid_after_utc)


def put(papers: Papers, key: bytes, pem: bytes) -> None:
    """Put another pair in the place of this one, 0600 and whole. Raises TlsFault, OSError.

    Who is killed between the two files leaves a certificate beside them that `mended` finds.
    """
    beside, its_key = _new(papers.certificate), _new(papers.key)
    try:
        write_whole(its_key, key, replace=True, mode=0o600)
        write_whole(beside, pem, replace=True, mode=0o600)
        client_context(beside, its_key, papers.ca)
        write_whole(papers.key, key, replace=True, mode=0o600)
        write_whole(papers.certificate, pem, replace=True, mode=0o600)
    finally:
        for path in (beside, its_key):
            with suppress(OSError):
                path.unlink(missing_ok=True)


def mended(papers: Papers) -> bool:
    """Finish what `put` had begun when its process was killed; whether there was something."""
    beside = _new(papers.certificate)
    try:
        client_context(papers.certificate, papers.key, papers.ca)
        return False
    except TlsFault:
        pass
    try:
        client_context(beside, papers.key, papers.ca)
        write_whole(papers.certificate, read_small(beside), replace=True, mode=0o600)
    except (TlsFault, OSError):
        return False
    for path in (beside, _new(papers.key)):
        path.unlink(missing_ok=True)
    return True


def _new(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def _day(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M}Z"
