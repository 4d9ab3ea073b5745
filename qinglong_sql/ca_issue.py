"""Certificates of a small authority: issued, renewed, and written where they are wanted.

Every certificate is recorded before it is handed out, so that each can be revoked.
"""

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qinglong_sql.ca_folder import (
    FOLDER,
    OPEN,
    SECRET,
    Authority,
    CaFault,
    CaRefused,
    Issued,
    held,
)
from qinglong_sql.ca_sign import (
    BadRequest,
    Kind,
    PublicKey,
    Wish,
    certificate_pem,
    certified,
    fingerprint,
    host_of,
    key_pem,
    new_key,
    private_key,
    requested,
)
from qinglong_sql.certificate import WORKER_PATTERN, Principal, ms_of, serial_text
from qinglong_sql.whole_file import write_whole

DAY_MS: Final = 24 * 3600 * 1000
CLIENT_MS: Final = 90 * DAY_MS
SERVER_MS: Final = 365 * DAY_MS
HOUR_MS: Final = 3600 * 1000
LIVE_OF_A_NAME: Final = 16


@dataclass(frozen=True, slots=True)
class Made:
    """A certificate and where its files are; `key` is None when it stays where it was made."""

    issued: Issued
    certificate: Path
    key: Path | None
    ca: Path


def issue(
    folder: Path,
    name: str,
    *,
    out: Path,
    server: bool = False,
    hosts: Iterable[str] = (),
    request: bytes | None = None,
    again: bool = False,
    validity_ms: int | None = None,
    now_ms: int | None = None,
) -> Made:
    """Sign a certificate of a name, and write NAME.crt, NAME.key and ca.crt into `out`.

    With a request (PEM) its key is certified, and there is no NAME.key. A key that is in `out`
    without a certificate is used. Raises CaRefused, CaFault, OSError.
    """
    now = now_or(now_ms)
    kind: Kind = "server" if server else "client"
    valid_name(name)
    told = hosts_of(hosts)
    if server and not told:
        raise CaRefused("a certificate for servers names its hosts: --host HOST, as workers say it")
    if told and not server:
        raise CaRefused("only a certificate for servers names hosts: --server")
    with held(folder, now) as authority:
        live = [one for one in authority.ledger.issued if one.name == name and one.live(now)]
        if live and not again:
            raise CaRefused(
                f"{name} has a certificate that is good until {day(live[-1].not_after_ms)}:"
                f" `ca renew {folder} {name}` or `ca revoke {folder} {name}` first,"
                " or --again for one more"
            )
        if (out / f"{name}.crt").exists():
            raise CaRefused(f"{out / name}.crt is there already: name another folder with --out")
        until = now + (validity_ms or (SERVER_MS if server else CLIENT_MS))
        return _made(authority, _Wanted(name, kind, told), out, request, now, until)


def renew(
    folder: Path,
    name: str,
    *,
    out: Path,
    request: bytes | None = None,
    validity_ms: int | None = None,
    now_ms: int | None = None,
) -> Made:
    """Sign a new certificate of a name that has one, for the key that is in `out`, or a new key.

    NAME.crt there is replaced as a whole; the one before stays good until its end. Raises
    CaRefused (also for a name whose last certificate was revoked), CaFault, OSError.
    """
    now = now_or(now_ms)
    with held(folder, now) as authority:
        found = [one for one in authority.ledger.issued if one.name == name]
        if not found:
            raise CaRefused(f"{name!r} has no certificate: `ca issue {folder} {name}` makes one")
        last = found[-1]
        if last.revoked_at_ms is not None:
            raise CaRefused(
                f"the certificate of {name} was revoked {day(last.revoked_at_ms)}:"
                f" `ca issue {folder} {name} --out FOLDER` makes a new one with a new key, in"
                " another folder"
            )
        if request is None and (out / f"{name}.crt").exists() and not _has_key(out, name):
            raise CaRefused(
                f"{out / name}.key is not there, the key of {name}.crt: renew with --csr, or name"
                " another folder with --out for a new key"
            )
        until = now + (validity_ms or (SERVER_MS if last.kind == "server" else CLIENT_MS))
        wanted = _Wanted(name, last.kind, last.hosts)
        return _made(authority, wanted, out, request, now, until)


def sign_renewal(
    ca_dir: Path, csr_pem: bytes, principal: Principal, now_ms: int | None = None
) -> bytes:
    """Sign a new client certificate for who shows one now: same subject, same length; PEM.

    The certificate shown must be recorded here, live and not revoked, whatever a list says that
    was read a second ago. An answer that was lost is given again: the same certificate for the
    same key, during a third of its length. A name is renewed once an hour, unless what is shown
    ends within one: a clock that is wrong asks for ever. Raises CaRefused, CaFault, OSError.
    """
    now = now_or(now_ms)
    try:
        name, key = requested(csr_pem)
    except BadRequest as error:
        raise CaRefused(str(error)) from None
    if name != principal.worker_id:
        raise CaRefused("the request's subject is not that of the certificate shown")
    with held(ca_dir, now) as authority:
        live = [one for one in authority.ledger.issued if one.name == name and one.live(now)]
        shown = next((one for one in live if one.serial == principal.serial), None)
        if shown is None or shown.kind != "client":
            raise CaRefused("the certificate shown is not a live one of this authority")
        length = shown.not_after_ms - shown.issued_at_ms
        for one in live:
            if (one.key, one.kind) == (fingerprint(key), "client") and one is not shown:
                kept = ca_dir / "issued" / f"{one.serial}.crt"
                if now - one.issued_at_ms < length // 3 and kept.exists():
                    return kept.read_bytes()
        if shown.not_after_ms - now > HOUR_MS and _renewed_lately(authority, name, now):
            raise CaRefused(
                f"{name} was renewed within the hour, and is once an hour: look at its clock"
            )
        if len(live) >= LIVE_OF_A_NAME:
            raise CaRefused(f"{name} has {len(live)} live certificates: revoke them, issue one")
        return _signed(authority, _Wanted(name, "client", ()), key, now, now + length)[1]


def _renewed_lately(authority: Authority, name: str, now: int) -> bool:
    """Whether a name got one within the hour; its first is none that was renewed."""
    found = [one for one in authority.ledger.issued if (one.name, one.kind) == (name, "client")]
    return any(abs(now - one.issued_at_ms) < HOUR_MS for one in found[1:] if one.live(now))


def valid_name(name: str) -> str:
    """Refuse what is no worker id. Raises CaRefused."""
    if not re.fullmatch(WORKER_PATTERN, name):
        raise CaRefused(
            f"{name!r} is no name: up to 36 of A-Z a-z 0-9 _ . - and a letter, digit or _ first"
        )
    return name


def hosts_of(texts: Iterable[str]) -> tuple[str, ...]:
    """Host names and addresses as a certificate has them, each once. Raises CaRefused."""
    found = []
    for text in texts:
        try:
            found.append(host_of(text))
        except ValueError:
            raise CaRefused(
                f"{text!r} is no host name or address: names such as ingress.example.com (without"
                " *, letters beyond ASCII as xn--…), addresses such as 192.0.2.7 or 2001:db8::7"
            ) from None
    return tuple(dict.fromkeys(found))


def name_requested(request: bytes) -> str:
    """The name that a request (PEM) asks for. Raises CaRefused."""
    try:
        return requested(request)[0]
    except BadRequest as error:
        raise CaRefused(f"the request: {error}") from None


def day(ms: int) -> str:
    """A day in UTC, as people and certificates have it."""
    return time.strftime("%Y-%m-%d", time.gmtime(ms / 1000))


@dataclass(frozen=True, slots=True)
class _Wanted:
    name: str
    kind: Kind
    hosts: tuple[str, ...]


def _made(
    authority: Authority,
    wanted: _Wanted,
    out: Path,
    request: bytes | None,
    now: int,
    until: int,
) -> Made:
    """Sign, and put the files in their folder: the key first, since without it nothing is good."""
    name, key_path = wanted.name, out / f"{wanted.name}.key"
    if request is not None:
        if name_requested(request) != name:
            raise CaRefused(f"the request is for {name_requested(request)}, not for {name}")
        public = requested(request)[1]
    elif key_path.exists():
        try:
            public = private_key(key_path.read_bytes()).public_key()
        except BadRequest as error:
            raise CaFault(f"{key_path}: {error}: name another folder with --out") from None
    else:
        public = None
    ca_path = out / "ca.crt"
    ca_pem = certificate_pem(authority.certificate)
    if ca_path.exists() and ca_path.read_bytes() != ca_pem:
        raise CaRefused(f"{ca_path} is of another authority: name another folder with --out")
    out.mkdir(FOLDER, parents=True, exist_ok=True)
    if public is None:
        key = new_key()
        _may_sign(authority, key.public_key(), now)
        write_whole(key_path, key_pem(key), replace=False, mode=SECRET)
        public = key.public_key()
    one, pem = _signed(authority, wanted, public, now, until)
    write_whole(ca_path, ca_pem, replace=True, mode=OPEN)
    write_whole(out / f"{name}.crt", pem, replace=True, mode=OPEN)
    return Made(one, out / f"{name}.crt", key_path if request is None else None, ca_path)


def _may_sign(authority: Authority, key: PublicKey, now: int) -> None:
    """Raises CaRefused for an authority that is over, and for a key that was revoked."""
    if authority.until_ms <= now:
        raise CaRefused(
            f"the authority in {authority.folder} ended {day(authority.until_ms)}:"
            " make a new one with `ca init`"
        )
    print_of_key = fingerprint(key)
    if any(
        one.key == print_of_key and one.revoked_at_ms is not None for one in authority.ledger.issued
    ):
        raise CaRefused("a certificate of that key was revoked: make a new key")


def _signed(
    authority: Authority, wanted: _Wanted, key: PublicKey, now: int, until: int
) -> tuple[Issued, bytes]:
    """Sign and record; no certificate outlives its authority."""
    _may_sign(authority, key, now)
    wish = Wish(wanted.name, wanted.kind, wanted.hosts, key, now, min(until, authority.until_ms))
    certificate = certified(wish, authority.key, authority.certificate)
    one = Issued(
        name=wanted.name,
        kind=wanted.kind,
        serial=serial_text(certificate.serial_number),
        issued_at_ms=now,
        not_after_ms=ms_of(certificate.not_valid_after_utc),
        key=fingerprint(key),
        hosts=wanted.hosts,
    )
    authority.record(certificate, one)
    return one, certificate_pem(certificate)


def _has_key(out: Path, name: str) -> bool:
    return (out / f"{name}.key").exists()


def now_or(now_ms: int | None) -> int:
    """The time that a caller passed in, else the clock's, in epoch milliseconds."""
    return int(time.time() * 1000) if now_ms is None else now_ms
