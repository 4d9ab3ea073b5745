"""The files by which an ingress shows who it is, and knows who workers are (DOMAIN §6)."""

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from qinglong_sql.errors import NotReady
from qinglong_sql.ingress_line import Telling
from qinglong_sql.ingress_settings import IngressSettings
from qinglong_sql.revocations import Revoked
from qinglong_sql.tls import TlsFault, server_context, server_faults

LOOK_S: Final = 2.0  # how soon other files of the certificate are noticed


@dataclass(frozen=True, slots=True)
class Papers:
    """What was read; `revoked` is None when no list is set. Each looks for newer files itself."""

    shown: "Shown"
    revoked: Revoked | None

    @property
    def words(self) -> str:
        return "certificate, key and authority" + ", list of revocations" * bool(self.revoked)


def papers_of(settings: IngressSettings, tell: Callable[[str], None]) -> Papers:
    """Read all files; `tell` gets what is wrong with later ones.

    Raises NotReady with all that is wrong, each file once.
    """
    faults = server_faults(settings.certificate, settings.key, settings.client_ca)
    words = dict.fromkeys(map(str, faults))
    shown = revoked = None
    try:
        if settings.crl:
            revoked = Revoked(settings.crl, settings.client_ca, tell)
    except TlsFault as error:
        words[str(error)] = None
    try:
        shown = None if faults else Shown(settings, tell)
    except TlsFault as error:
        words[str(error)] = None
    if words or shown is None:
        raise NotReady("; ".join(words))
    return Papers(shown, revoked)


class Shown:
    """What new connections are shown; a certificate that was renewed is taken without a restart.

    Raises TlsFault at first; files that cannot be used later change nothing, and are told.
    """

    def __init__(
        self,
        settings: IngressSettings,
        tell: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = (settings.certificate, settings.key, settings.client_ca)
        self._tell, self._clock = tell, clock
        self._mark = self._marks()
        self._context = server_context(*self._paths, Telling)
        self._looked = clock()

    def context(self) -> ssl.SSLContext:
        """For the next connection."""
        now = self._clock()
        if now - self._looked >= LOOK_S:
            self._looked = now
            mark = self._marks()
            if mark != self._mark:
                self._mark = mark
                try:
                    self._context = server_context(*self._paths, Telling)
                except TlsFault as error:
                    self._tell(f"{error}; the one from before is shown on")
        return self._context

    def _marks(self) -> list[tuple[int, int, int]]:
        found = []
        for path in self._paths:
            try:
                seen = path.stat()
            except OSError:
                found.append((0, 0, 0))
            else:
                found.append((seen.st_mtime_ns, seen.st_size, seen.st_ino))
        return found
