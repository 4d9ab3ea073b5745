"""Mutual TLS 1.3 between workers and the ingress, by the standard library (DOMAIN §6)."""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from qinglong_sql.certificate import (
    NotAWorker,
    Principal,
    TlsFault,
    certificates_of,
    holder_of,
    read_small,
    subject_of,
)
from qinglong_sql.revocations import Revoked

__all__ = (
    "NotAWorker",
    "Principal",
    "Revoked",
    "TlsFault",
    "client_context",
    "holder_of",
    "load_pair",
    "server_context",
    "server_faults",
    "subject_of",
)

PROTOCOLS: Final = ["http/1.1"]
SERVERS: Final = "servers; `ca issue --server` makes one"


def server_context(
    certificate: Path, key: Path, client_ca: Path, kind: type[ssl.SSLContext] = ssl.SSLContext
) -> ssl.SSLContext:
    """TLS 1.3 for the ingress: every client shows a certificate for clients of `client_ca`.

    No session is resumed, since who resumes shows no certificate again: one that has ended or
    was revoked would still be let in. `kind` is the class of the context. Raises TlsFault.
    """
    context = kind(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(PROTOCOLS)
    _trust(context, client_ca)
    _meant(certificate, ExtendedKeyUsageOID.SERVER_AUTH, SERVERS)
    load_pair(context, certificate, key)
    return context


def server_faults(certificate: Path, key: Path, client_ca: Path) -> list[TlsFault]:
    """All that is wrong with these files, where `server_context` raises the first; often none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    looks: list[Callable[[], object]] = [
        lambda: _meant(certificate, ExtendedKeyUsageOID.SERVER_AUTH, SERVERS),
        lambda: load_pair(context, certificate, key),
        lambda: _trust(context, client_ca),
    ]
    found: dict[str, TlsFault] = {}
    for look in looks:
        try:
            look()
        except TlsFault as error:
            found.setdefault(str(error), error)
    return list(found.values())


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
    read_small(key)
    if not certificates_of(certificate):
        raise TlsFault(certificate, "it holds no certificate in PEM")
    for one in (ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), context):
        try:
            one.load_cert_chain(certificate, key, password=_no_passphrase)
        except _Encrypted:
            raise TlsFault(key, "it has a passphrase; a key without one is needed") from None
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise TlsFault(key, f"it is not the key of {certificate}") from None
            raise TlsFault(key, "it holds no private key in PEM that can be used") from None


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
