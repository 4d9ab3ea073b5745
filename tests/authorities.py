"""Authorities and odd certificates for tests, and one conversation over a real socket."""

import socket
import ssl
import stat
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from qinglong_sql.tls import NotAWorker, Revoked, subject_of

CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
WITHIN_S = 10.0
DAY_MS = 24 * 3600 * 1000
HOUR_MS = 3600 * 1000
MINUTE_MS = 60_000
NOW = int(time.time() * 1000)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms // 1000, UTC)


def on_list(folder: Path) -> tuple[int, set[str]]:
    """Number and serials of the list of revocations, whose signature holds."""
    found = x509.load_pem_x509_crl((folder / "revoked.pem").read_bytes())
    assert found.is_signature_valid(read(folder / "ca.crt").public_key())  # type: ignore[arg-type]
    number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    assert found.next_update_utc is not None and found.next_update_utc > datetime.now(UTC)
    return number, {f"{one.serial_number:x}" for one in found}


def odd(names: Sequence[str], usage: Sequence[x509.ObjectIdentifier] | None = (CLIENT,)) -> bytes:
    """A certificate (DER) of any common names and usages, signed by its own key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(0x0A1B)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
    )
    if usage is not None:
        made = made.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
    return made.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


@dataclass(slots=True)
class Talk:
    """What each side of a conversation came to: a word, or the reason that it was refused."""

    server: str = ""
    client: str = ""
    version: str | None = None


def talk(
    server: ssl.SSLContext,
    client: ssl.SSLContext,
    *,
    name: str = "localhost",
    revoked: Revoked | None = None,
    session: list[ssl.SSLSession] | None = None,
) -> Talk:
    """Let a client call a server over TCP; the server answers with the worker's id.

    With `session`, the one in it is offered, and the one of this conversation is left there.
    """
    told = Talk()
    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=_serve, args=(door, server, revoked, told))
        thread.start()
        try:
            with socket.create_connection(door.getsockname(), WITHIN_S) as plain:
                offered = session[-1] if session else None
                with client.wrap_socket(plain, server_hostname=name, session=offered) as line:
                    told.client = line.recv(100).decode() or "the line was closed"
                    told.version = line.version()
                    if session is not None and line.session is not None:
                        session.append(line.session)
        except OSError as error:
            told.client = reason(error)
        thread.join(WITHIN_S)
        assert not thread.is_alive()
    return told


def _serve(
    door: socket.socket, context: ssl.SSLContext, revoked: Revoked | None, told: Talk
) -> None:
    try:
        plain, _ = door.accept()
        plain.settimeout(WITHIN_S)
        with plain, context.wrap_socket(plain, server_side=True) as line:
            shown = line.getpeercert(binary_form=True)
            assert shown is not None
            who = subject_of(shown)
            if revoked is not None and revoked.refuses(who.serial):
                told.server = "revoked"
                return
            told.server = who.worker_id
            line.sendall(who.worker_id.encode())
    except (OSError, NotAWorker) as error:
        told.server = reason(error)


def reason(error: Exception) -> str:
    """OpenSSL's words for it, without where in its source they are."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return getattr(error, "reason", None) or type(error).__name__
