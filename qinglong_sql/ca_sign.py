"""Keys, certificates and lists of revocations, made in memory: X.509 by `cryptography`.

ECDSA on P-256 throughout. A certificate is for clients or for servers, never for both.
"""

import hashlib
import ipaddress
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from qinglong_sql.certificate import WORKER_PATTERN, common_name

Kind = Literal["client", "server"]
Key = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey

SKEW_MS: Final = 5 * 60 * 1000
SERIAL_BITS: Final = 126  # at most 32 hexadecimal digits, and never a leading bit that is a sign
REQUEST_BYTES: Final = 16 * 1024
LABEL: Final = r"(?!-)[a-z0-9-]{1,63}(?<!-)"
HOST: Final = re.compile(rf"(?:{LABEL}\.)*(?!\d+$){LABEL}")
HOST_CHARS: Final = 253
CURVES: Final = ("secp256r1", "secp384r1")
USAGE: Final = {
    "client": ExtendedKeyUsageOID.CLIENT_AUTH,
    "server": ExtendedKeyUsageOID.SERVER_AUTH,
}


class BadRequest(Exception):
    """A request for a certificate that cannot be signed, in words."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a certificate is to say. Times are epoch milliseconds; it begins five minutes before."""

    name: str
    kind: Kind
    hosts: tuple[str, ...]
    public_key: PublicKey
    now_ms: int
    until_ms: int


def new_key() -> Key:
    """A fresh private key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: Key) -> bytes:
    """A private key as it is written, without a passphrase."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """A certificate as it is written."""
    return certificate.public_bytes(Encoding.PEM)


def fingerprint(key: PublicKey) -> str:
    """What a public key is recognized by: SHA-256 of it, in hexadecimal."""
    raw = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(raw).hexdigest()


def new_authority(name: str, now_ms: int, until_ms: int) -> tuple[Key, x509.Certificate]:
    """A key and its own certificate, which may sign certificates that sign nothing themselves.

    The name gets a random end: authorities are told apart by it.
    """
    key = new_key()
    subject = _named(f"{name} {secrets.token_hex(4)}")
    return key, (
        _begun(subject, subject, key.public_key(), now_ms, until_ms)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), False)
        .sign(key, hashes.SHA256())
    )


def certified(wish: Wish, key: Key, authority: x509.Certificate) -> x509.Certificate:
    """A certificate for a worker or an ingress."""
    subject = _named(wish.name)
    made = (
        _begun(subject, authority.subject, wish.public_key, wish.now_ms, wish.until_ms)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([USAGE[wish.kind]]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), False)
    )
    if wish.hosts:
        names = x509.SubjectAlternativeName(map(_general, wish.hosts))
        made = made.add_extension(names, critical=False)
    return made.sign(key, hashes.SHA256())


def revocation_list(
    revoked: Iterable[tuple[str, int]],
    number: int,
    now_ms: int,
    key: Key,
    authority: x509.Certificate,
) -> bytes:
    """The list of (serial, revoked at) as PEM.

    It is made again at each revocation and not in between, so the next one is due at the end of
    the authority.
    """
    made = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.subject)
        .last_update(_at(now_ms - SKEW_MS))
        .next_update(max(authority.not_valid_after_utc, _at(now_ms + 1000)))
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), False)
    )
    for serial, at_ms in revoked:
        one = x509.RevokedCertificateBuilder().serial_number(int(serial, 16))
        made = made.add_revoked_certificate(one.revocation_date(_at(at_ms)).build())
    return made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def new_request(name: str, key: bytes | None = None) -> tuple[bytes, bytes]:
    """A key (the given one in PEM, else a new one) and a request for a certificate of that name.

    Raises BadRequest when the given key is none that can be used.
    """
    private = new_key() if key is None else private_key(key)
    request = x509.CertificateSigningRequestBuilder().subject_name(_named(name))
    return key_pem(private), request.sign(private, hashes.SHA256()).public_bytes(Encoding.PEM)


def private_key(pem: bytes) -> Key:
    """A private key from PEM. Raises BadRequest."""
    try:
        found = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise BadRequest("it is no private key in PEM without a passphrase") from None
    if not isinstance(found, ec.EllipticCurvePrivateKey) or found.curve.name not in CURVES:
        raise BadRequest("the key is not ECDSA on P-256 or P-384")
    return found


def requested(pem: bytes) -> tuple[str, PublicKey]:
    """The name and the key that a request asks a certificate for; its holder has that key.

    What else it asks for is not looked at. Raises BadRequest.
    """
    if len(pem) > REQUEST_BYTES:
        raise BadRequest(f"a request has at most {REQUEST_BYTES} bytes")
    try:
        found = x509.load_pem_x509_csr(pem)
        signed, name, key = found.is_signature_valid, common_name(found.subject), found.public_key()
    except Exception:  # bytes from outside: whatever a parser says of them
        raise BadRequest("it is no request for a certificate in PEM") from None
    if not signed:
        raise BadRequest("whoever made the request does not have its key")
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in CURVES:
        raise BadRequest("its key is not ECDSA on P-256 or P-384")
    if name is None or not re.fullmatch(WORKER_PATTERN, name):
        raise BadRequest("its subject is not one name of letters, digits, _ . - (36 at most)")
    return name, key


def host_of(text: str) -> str:
    """A host name or address as a certificate has it. Raises ValueError."""
    with suppress(ValueError):
        address = ipaddress.ip_address(text)
        if "%" not in text:  # a zone is of one machine alone
            return str(address)
    name = text.lower().removesuffix(".")
    if len(name) > HOST_CHARS or not HOST.fullmatch(name):
        raise ValueError(text)
    return name


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _begun(
    subject: x509.Name, issuer: x509.Name, key: PublicKey, now_ms: int, until_ms: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(secrets.randbits(SERIAL_BITS) | 1 << SERIAL_BITS)
        .not_valid_before(_at(now_ms - SKEW_MS))
        .not_valid_after(_at(until_ms))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms // 1000, UTC)
