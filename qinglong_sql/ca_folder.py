"""The folder of a small certificate authority: its files, and who may change them at a time.

| File | What |
|---|---|
| ca.key | the private key (0600), written once |
| ca.crt | its certificate, for everybody who is to trust it |
| revoked.pem | the list of revocations, made of issued.json and numbered like it |
| issued.json | every certificate that was signed, and when it was revoked: the truth |
| issued/SERIAL.crt | the certificates themselves |
| lock | held by whoever changes something |
"""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from cryptography import x509

from qinglong_sql.ca_sign import (
    BadRequest,
    Key,
    Kind,
    certificate_pem,
    key_pem,
    private_key,
    revocation_list,
)
from qinglong_sql.certificate import ms_of
from qinglong_sql.whole_file import synced, write_whole

FORMAT: Final = 1
LOCK_WAIT_S: Final = 10.0
LOCK_LOOK_S: Final = 0.02
SECRET: Final = 0o600
OPEN: Final = 0o644
FOLDER: Final = 0o700


class CaFault(Exception):
    """A file of the authority cannot be used: which one, why, and the way out."""


class CaRefused(Exception):
    """What was asked of the authority cannot be done, in words, with the way out."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate that was signed. `key` is the fingerprint of its public key."""

    name: str
    kind: Kind
    serial: str
    issued_at_ms: int
    not_after_ms: int
    key: str
    hosts: tuple[str, ...] = ()
    revoked_at_ms: int | None = None

    def live(self, now_ms: int) -> bool:
        """Whether it lets somebody in now."""
        return self.revoked_at_ms is None and self.not_after_ms > now_ms


@dataclass(slots=True)
class Ledger:
    """What issued.json says: the number of the list of revocations, and all certificates."""

    number: int
    issued: list[Issued]


@dataclass(slots=True)
class Authority:
    """An authority whose lock is held; what is changed counts once it is saved."""

    folder: Path
    key: Key
    certificate: x509.Certificate
    ledger: Ledger

    @property
    def until_ms(self) -> int:
        return ms_of(self.certificate.not_valid_after_utc)

    def record(self, certificate: x509.Certificate, one: Issued) -> None:
        """Remember a certificate before anybody gets it: what is out can be revoked."""
        self.ledger.issued.append(one)
        self.save()
        place = self.folder / "issued" / f"{one.serial}.crt"
        write_whole(place, certificate_pem(certificate), replace=True, mode=OPEN)

    def revoke(self, serials: set[str], now_ms: int) -> None:
        """Revoke certificates, and write the list again."""
        self.ledger.number += 1
        self.ledger.issued = [
            replace(one, revoked_at_ms=now_ms) if one.serial in serials else one
            for one in self.ledger.issued
        ]
        self.save()
        self.write_list(now_ms)

    def save(self) -> None:
        """Bring issued.json to the disk."""
        _put(self.folder / "issued.json", ledger_bytes(self.ledger), SECRET)

    def write_list(self, now_ms: int) -> None:
        """Write revoked.pem as issued.json has it."""
        revoked = [(one.serial, one.revoked_at_ms) for one in self.ledger.issued
                   if one.revoked_at_ms is not None]  # fmt: skip
        pem = revocation_list(revoked, self.ledger.number, now_ms, self.key, self.certificate)
        _put(self.folder / "revoked.pem", pem, OPEN)

    def listed(self) -> bool:
        """Whether revoked.pem is the list of this issued.json."""
        try:
            found = x509.load_pem_x509_crl((self.folder / "revoked.pem").read_bytes())
            said = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        except (OSError, ValueError, x509.ExtensionNotFound):
            return False
        return said == self.ledger.number and found.issuer == self.certificate.subject


def make_folder(folder: Path, key: Key, certificate: x509.Certificate, now_ms: int) -> None:
    """Make the folder of a new authority, whole or not at all.

    Raises FileExistsError when there is something already, OSError.
    """
    if folder.is_symlink() or (folder.exists() and not _empty(folder)):
        raise FileExistsError(folder)
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    part = folder.absolute().with_name(f".{folder.absolute().name}.{secrets.token_hex(4)}.part")
    part.mkdir(FOLDER)
    try:
        (part / "issued").mkdir(FOLDER)
        write_whole(part / "ca.key", key_pem(key), replace=False, mode=SECRET)
        write_whole(part / "ca.crt", certificate_pem(certificate), replace=False, mode=OPEN)
        write_whole(part / "lock", b"", replace=False, mode=SECRET)
        new = Authority(part, key, certificate, Ledger(1, []))
        new.save()
        new.write_list(now_ms)
        part.rename(folder)  # an empty folder is replaced, any other is not
        synced(folder.absolute().parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextlib.contextmanager
def held(folder: Path, now_ms: int) -> Iterator[Authority]:
    """The authority of a folder, for one at a time; a list that lags behind is written again.

    Raises CaFault, CaRefused (it is another's for ten seconds already).
    """
    _there(folder)
    with _locked(folder / "lock"):
        key, certificate = _key_of(folder), certificate_of(folder)
        if key.public_key() != certificate.public_key():
            raise CaFault(f"{folder / 'ca.key'}: it is not the key of ca.crt: put that one back")
        found = Authority(folder, key, certificate, ledger_of(folder))
        if not found.listed():
            found.write_list(now_ms)
        yield found


def certificate_of(folder: Path) -> x509.Certificate:
    """The certificate of a folder's authority. Raises CaFault."""
    path = folder / "ca.crt"
    try:
        return x509.load_pem_x509_certificate(_read(path))
    except ValueError:
        raise CaFault(f"{path}: it is no certificate in PEM: put a backup of it back") from None


def ledger_of(folder: Path) -> Ledger:
    """What a folder's authority signed. Raises CaFault."""
    _there(folder)
    path = folder / "issued.json"
    try:
        said: Any = json.loads(_read(path))
        if said["format"] != FORMAT:
            raise CaFault(f"{path}: format {said['format']} is of another version of qinglong-sql")
        ones = [Issued(**one | {"hosts": tuple(one["hosts"])}) for one in said["certificates"]]
        if not all(isinstance(one.serial, str) and one.not_after_ms >= 0 for one in ones):
            raise TypeError
        return Ledger(int(said["list_number"]), ones)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise CaFault(
            f"{path}: it is not what was written there: put a backup of it back"
        ) from None


def ledger_bytes(ledger: Ledger) -> bytes:
    """issued.json, a certificate a line."""
    lines = ",\n".join(json.dumps(asdict(one)) for one in ledger.issued)
    return (
        f'{{"format": {FORMAT}, "list_number": {ledger.number}, "certificates": [\n{lines}\n]}}\n'
    ).encode()


def _put(path: Path, raw: bytes, mode: int) -> None:
    """Write it whole; mode and owner stay those that it has: root may act for an ingress."""
    write_whole(path, raw, replace=True, mode=None if path.exists() else mode)


def _there(folder: Path) -> None:
    if not (folder / "ca.crt").exists():
        _accessible(folder)
        if any((folder / name).exists() for name in ("ca.key", "issued.json")):
            raise CaFault(f"{folder / 'ca.crt'} is missing: put a backup of it back")
        raise CaRefused(f"there is no authority in {folder}: qinglong-sql ca init {folder}")


def _accessible(folder: Path) -> None:
    try:
        (folder / "ca.crt").stat()
    except PermissionError:
        raise CaFault(f"{folder}: this user may not look into it: be its owner") from None
    except OSError:
        return


def _key_of(folder: Path) -> Key:
    path = folder / "ca.key"
    pem = _read(path)
    if path.stat().st_mode & 0o077:
        raise CaFault(f"{path}: others may read it: chmod 600 {path}")
    try:
        return private_key(pem)
    except BadRequest as error:
        raise CaFault(f"{path}: {error}: put a backup of it back") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise CaFault(f"{path}: it is not there: put a backup of it back") from None
    except OSError as error:
        raise CaFault(f"{path}: {error.strerror}") from None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, SECRET)
    except OSError as error:
        raise CaFault(f"{path}: {error.strerror}") from None
    try:
        end = time.monotonic() + LOCK_WAIT_S
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > end:
                raise CaRefused(f"{path.parent} is in use by another command; try again")
            time.sleep(LOCK_LOOK_S)
        yield
    finally:
        os.close(lock)


def _empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())
