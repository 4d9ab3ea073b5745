"""The certificates that an authority revoked, honoured without a restart."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cryptography import x509

from qinglong_sql.certificate import TlsFault, certificates_of, read_small, serial_text

REVOKED_LOOK_S: Final = 1.0
Mark = tuple[int, int, int]
END_OF_LIST: Final = b"-----END X509 CRL-----"


class Revoked:
    """The serial numbers that an authority revoked, from its list (PEM, one or more CRLs).

    The file is looked at when somebody is judged, at most once a second, and read again when it
    has changed. A list that cannot be read, is of another authority, or is older than the one
    before, changes nothing: what was revoked stays so, and `tell` gets words, once a change.
    """

    def __init__(
        self,
        path: Path,
        ca: Path,
        tell: Callable[[str], None] = lambda words: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the list. Raises TlsFault: without one that holds, nobody is let in."""
        self.path, self.ca = path, ca
        self._tell, self._clock = tell, clock
        self._lock = threading.Lock()
        self._told: tuple[Mark | None, str] | None = None
        self._numbers: dict[bytes, int] = {}
        self._serials: frozenset[str] = frozenset()
        self._mark = self._read()
        self._looked = clock()

    def refuses(self, serial: str) -> bool:
        """Whether a certificate's serial number (as Principal has it) was revoked."""
        with self._lock:
            now = self._clock()
            if now - self._looked >= REVOKED_LOOK_S:
                self._looked = now
                self._look()
            return serial in self._serials

    def _look(self) -> None:
        mark = None
        try:
            mark = _mark_of(self.path)
            if mark != self._mark:
                self._mark = self._read()
                self._told = None
        except (TlsFault, OSError) as error:
            words = str(error) if isinstance(error, TlsFault) else f"{self.path}: {error.strerror}"
            if self._told != (mark, words):
                self._told = (mark, words)
                self._tell(f"{words}; the list of revocations from before stays in force")

    def _read(self) -> Mark:
        """Take the list over when all of it holds; the mark of the file. Raises TlsFault."""
        try:
            mark = _mark_of(self.path)
        except OSError as error:
            raise TlsFault(self.path, error.strerror or "it cannot be read") from None
        raw = read_small(self.path)
        lists = [one + END_OF_LIST for one in raw.split(END_OF_LIST)[:-1]]
        if not lists:
            raise TlsFault(self.path, "it holds no list of revocations in PEM")
        authorities = certificates_of(self.ca)
        numbers, serials = dict(self._numbers), set[str]()
        for pem in lists:
            issuer, number, revoked = self._checked(pem, authorities)
            if number < numbers.get(issuer, 0):
                raise TlsFault(self.path, f"list {number} is older than {numbers[issuer]}")
            numbers[issuer] = number
            serials |= revoked
        self._numbers, self._serials = numbers, frozenset(serials)
        return mark

    def _checked(
        self, pem: bytes, authorities: list[x509.Certificate]
    ) -> tuple[bytes, int, set[str]]:
        """Issuer, number and serials of a list that one of the authorities signed."""
        try:
            found = x509.load_pem_x509_crl(pem)
            signed = any(
                found.issuer == one.subject and found.is_signature_valid(one.public_key())  # type: ignore[arg-type]
                for one in authorities
            )
            number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
            serials = {serial_text(one.serial_number) for one in found}
        except x509.ExtensionNotFound:
            number, serials = 0, {serial_text(one.serial_number) for one in found}
        except Exception:  # whatever a parser says of what is no list
            raise TlsFault(self.path, "it is not a list of revocations in PEM") from None
        if not signed:
            raise TlsFault(self.path, f"no authority in {self.ca} signed it")
        return found.issuer.public_bytes(), number, serials


def _mark_of(path: Path) -> Mark:
    seen = path.stat()
    return seen.st_mtime_ns, seen.st_size, seen.st_ino
