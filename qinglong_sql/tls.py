"""Mutual TLS 1.3 between workers and the ingress, and who a certificate says its holder is.

The subject of a client certificate is the worker's id, whatever a body says (issue: remote
workers; DOMAIN §6). The standard library speaks TLS; `cryptography` reads certificates.
"""

import re
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, NoReturn

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from qinglong_sql.limits import ID_CHARS

WORKER_PATTERN: Final = f"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{ID_CHARS - 1}}}"
REVOKED_LOOK_S: Final = 1.0
LIST_BYTES: Final = 16 * 1024 * 1024
PROTOCOLS: Final = ["http/1.1"]
END_OF_LIST: Final = b"-----END X509 CRL-----"
WHY: Final = {  # what OpenSSL calls it, and what to do about it
    "KEY_VALUES_MISMATCH": "it is not the key of {certificate}",
    "NO_CERTIFICATE_OR_CRL_FOUND": "it holds no certificate in PEM",
    "NO_START_LINE": "it holds nothing in PEM that is wanted here",
    "PEM_LIB": "it is not PEM, or it holds not what is wanted here",
}


class TlsFault(Exception):
    """A file of certificates, keys or revocations cannot be used; the words name it and say why."""

    def __init__(self, path: Path | str, why: str) -> None:
        super().__init__(f"{path}: {why}")


class NotAWorker(Exception):
    """A certificate whose subject is no worker: to be refused, whoever signed it."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is at the other end. `serial` is hexadecimal, in lower case and without zeros before."""

    worker_id: str
    serial: str
    not_after_ms: int


def server_context(certificate: Path, key: Path, client_ca: Path) -> ssl.SSLContext:
    """TLS 1.3 for the ingress: every client shows a certificate for clients of `client_ca`.

    No session is resumed, since who resumes shows no certificate again: one that has ended or
    was revoked would still be let in. Raises TlsFault.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(PROTOCOLS)
    _trust(context, client_ca)
    _meant(certificate, ExtendedKeyUsageOID.SERVER_AUTH, "servers; `ca issue --server` makes one")
    load_pair(context, certificate, key)
    return context


def client_context(certificate: Path, key: Path, ca: Path) -> ssl.SSLContext:
    """TLS 1.3 for a worker: the ingress is of `ca`, for servers, and has the name that is called.

    Authorities that the system trusts do not count. Raises TlsFault.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.check_hostname = True
    context.hostname_checks_common_name = False
    context.set_alpn_protocols(PROTOCOLS)
    _trust(context, ca)
    _meant(certificate, ExtendedKeyUsageOID.CLIENT_AUTH, "clients; `ca issue` makes one")
    load_pair(context, certificate, key)
    return context


def load_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Show this certificate from the next connection on; a pair that does not fit changes nothing.

    Raises TlsFault, also for a key with a passphrase: nobody could be asked for it.
    """
    for path in (certificate, key):
        _readable(path)
    for one in (ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), context):
        try:
            one.load_cert_chain(certificate, key, password=_no_passphrase)
        except _Encrypted:
            raise TlsFault(key, "it has a passphrase; a key without one is needed") from None
        except ssl.SSLError as error:
            said = WHY.get(error.reason or "", error.reason or "it cannot be used")
            path = key if error.reason == "KEY_VALUES_MISMATCH" else certificate
            if error.reason == "PEM_LIB" and certificates_of(certificate):
                path = key
            raise TlsFault(path, said.format(certificate=certificate)) from None


def subject_of(der: bytes) -> Principal:
    """Who the holder of a client certificate is: its one common name is the worker's id.

    The chain was verified by TLS; this looks at the certificate alone. Raises NotAWorker for more
    or fewer common names, one that is no worker id, and what is not for clients alone.
    """
    try:
        certificate = x509.load_der_x509_certificate(der)
        name = common_name(certificate.subject)
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        raise NotAWorker("the certificate does not say that it is for clients") from None
    except (ValueError, TypeError, x509.DuplicateExtension, UnsupportedAlgorithm):
        raise NotAWorker("the certificate cannot be read") from None
    if ExtendedKeyUsageOID.CLIENT_AUTH not in usage or ExtendedKeyUsageOID.SERVER_AUTH in usage:
        raise NotAWorker("the certificate is not for clients alone")
    if name is None or not re.fullmatch(WORKER_PATTERN, name):
        raise NotAWorker("the certificate's subject is not one worker id")
    return Principal(
        name, serial_text(certificate.serial_number), ms_of(certificate.not_valid_after_utc)
    )


def holder_of(certificate: Path) -> Principal:
    """The same of a certificate's file: who this worker is, and until when. Raises TlsFault."""
    found = certificates_of(certificate)
    if not found:
        raise TlsFault(certificate, "it holds no certificate in PEM")
    try:
        return subject_of(found[0].public_bytes(Encoding.DER))
    except NotAWorker as error:
        raise TlsFault(certificate, f"{error}; a worker needs one of `ca issue`") from None


def common_name(subject: x509.Name) -> str | None:
    """The one common name of a subject; None when it has none or several. Raises ValueError."""
    found = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(found) != 1 or not isinstance(found[0].value, str):
        return None
    return found[0].value


def certificates_of(path: Path) -> list[x509.Certificate]:
    """The certificates in a PEM file; none when there are none. Raises TlsFault."""
    try:
        return x509.load_pem_x509_certificates(_readable(path))
    except (ValueError, UnsupportedAlgorithm):
        return []


def serial_text(serial: int) -> str:
    """A serial number as it is told, stored and compared everywhere here."""
    return f"{serial:x}"


def ms_of(at: datetime) -> int:
    """Epoch milliseconds of a time with its zone."""
    return int(at.timestamp() * 1000)


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
        self._told = ""
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
        try:
            if self._mark != _mark_of(self.path):
                self._mark = self._read()
                self._told = ""
        except (TlsFault, OSError) as error:
            words = str(error) if isinstance(error, TlsFault) else f"{self.path}: {error.strerror}"
            if words != self._told:
                self._told = words
                self._tell(f"{words}; the list of revocations from before stays in force")

    def _read(self) -> tuple[int, int, int]:
        """Take the list over when all of it holds; the mark of the file. Raises TlsFault."""
        try:
            mark = _mark_of(self.path)
        except OSError as error:
            raise TlsFault(self.path, error.strerror or "it cannot be read") from None
        raw = _readable(self.path)
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
        except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature):
            raise TlsFault(self.path, "it is not a list of revocations in PEM") from None
        if not signed:
            raise TlsFault(self.path, f"no authority in {self.ca} signed it")
        return found.issuer.public_bytes(), number, serials


class _Encrypted(Exception):
    """A key has a passphrase."""


def _no_passphrase() -> NoReturn:
    raise _Encrypted


def _trust(context: ssl.SSLContext, ca: Path) -> None:
    if not certificates_of(ca):
        raise TlsFault(ca, "it holds no certificate of an authority in PEM")
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise TlsFault(ca, error.reason or "it cannot be used") from None


def _meant(certificate: Path, usage: x509.ObjectIdentifier, words: str) -> None:
    """Tell at the start what every handshake would refuse. Raises TlsFault."""
    try:
        found = certificates_of(certificate)
        meant = (
            not found
            or usage in found[0].extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        )
    except (x509.ExtensionNotFound, ValueError):
        meant = False
    if not meant:
        raise TlsFault(certificate, f"it is not a certificate for {words}")


def _readable(path: Path) -> bytes:
    """The whole of a small file, with words that name it when it cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(LIST_BYTES + 1)
    except OSError as error:
        raise TlsFault(path, error.strerror or "it cannot be read") from None
    if len(raw) > LIST_BYTES:
        raise TlsFault(path, f"it is longer than {LIST_BYTES} bytes")
    return raw


def _mark_of(path: Path) -> tuple[int, int, int]:
    seen = path.stat()
    return seen.st_mtime_ns, seen.st_size, seen.st_ino
