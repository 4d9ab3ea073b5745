"""What a certificate says: whose it is, what for, and until when (DOMAIN §6).

The subject of a client certificate is the worker's id, whatever a body says.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from qinglong_sql.limits import ID_CHARS

WORKER_PATTERN: Final = f"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{ID_CHARS - 1}}}"
FILE_BYTES: Final = 16 * 1024 * 1024


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
    except Exception:  # bytes from outside: whatever a parser says of them, they are refused
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
        return x509.load_pem_x509_certificates(read_small(path))
    except (ValueError, UnsupportedAlgorithm):
        return []


def serial_text(serial: int) -> str:
    """A serial number as it is told, stored and compared everywhere here."""
    return f"{serial:x}"


def ms_of(at: datetime) -> int:
    """Epoch milliseconds of a time with its zone."""
    return int(at.timestamp() * 1000)


def read_small(path: Path) -> bytes:
    """The whole of a small file, with words that name it when it cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES + 1)
    except OSError as error:
        raise TlsFault(path, error.strerror or "it cannot be read") from None
    if len(raw) > FILE_BYTES:
        raise TlsFault(path, f"it is longer than {FILE_BYTES} bytes")
    return raw
