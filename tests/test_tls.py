"""Mutual TLS 1.3: who is let in, who is not, over real sockets; and revocations while it runs."""

import os
import re
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from qinglong_sql import ca, ca_folder
from qinglong_sql.ca_sign import Wish, certificate_pem, certified, key_pem, new_key
from qinglong_sql.tls import (
    NotAWorker,
    Revoked,
    TlsFault,
    client_context,
    holder_of,
    load_pair,
    server_context,
    subject_of,
)
from tests.authorities import CLIENT, SERVER, odd, talk

DAY_MS = 24 * 3600 * 1000
NOW = int(time.time() * 1000)
UNTRUSTED = (
    "unable to get local issuer certificate",
    "self-signed certificate in certificate chain",
)


class House:
    """An authority that is a year old, an ingress of it, and workers by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = folder / "ca"
        ca.init(self.ca, now_ms=NOW - 365 * DAY_MS)
        self.door = ca.issue(
            self.ca, "door", server=True, hosts=["localhost", "127.0.0.1"], out=folder / "door"
        )

    def worker(self, name: str, now_ms: int = NOW, length: int = DAY_MS) -> ca.Made:
        out = self.folder / name
        return ca.issue(self.ca, name, out=out, now_ms=now_ms, validity_ms=length)

    def server(self) -> ssl.SSLContext:
        door = self.door
        assert door.key is not None
        return server_context(door.certificate, door.key, door.ca)

    def client(self, made: ca.Made) -> ssl.SSLContext:
        assert made.key is not None
        return client_context(made.certificate, made.key, made.ca)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    return House(tmp_path_factory.mktemp("house"))


@pytest.fixture(scope="module")
def good(house: House) -> ca.Made:
    return house.worker("w.1_a-b")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> House:
    return House(tmp_path_factory.mktemp("other"))


def mixed(certificate: ca.Made, trusted: ca.Made) -> ssl.SSLContext:
    """A client that shows one certificate, and trusts the authority of another."""
    assert certificate.key is not None
    return client_context(certificate.certificate, certificate.key, trusted.ca)


# --- who is let in


def test_a_worker_is_who_its_certificate_says(house: House, good: ca.Made) -> None:
    told = talk(house.server(), house.client(good))
    assert (told.server, told.client, told.version) == ("w.1_a-b", "w.1_a-b", "TLSv1.3")
    by_address = talk(house.server(), house.client(good), name="127.0.0.1")
    assert by_address.client == "w.1_a-b"


def test_without_a_certificate_nobody_gets_in(house: House) -> None:
    bare = ssl.create_default_context(cafile=house.ca / "ca.crt")
    told = talk(house.server(), bare)
    assert told.server == "PEER_DID_NOT_RETURN_A_CERTIFICATE"
    assert "CERTIFICATE_REQUIRED" in told.client


@pytest.mark.parametrize(
    ("name", "days", "words"),
    [("expired", -3, "certificate has expired"), ("early", 1, "certificate is not yet valid")],
)
def test_a_certificate_counts_in_its_time_alone(
    house: House, name: str, days: int, words: str
) -> None:
    made = house.worker(name, NOW + days * DAY_MS)
    told = talk(house.server(), house.client(made))
    assert told.server == words and "w.1" not in told.client
    skewed = house.worker(f"{name}-by-4-minutes", NOW + 4 * 60_000)
    assert talk(house.server(), house.client(skewed)).server == f"{name}-by-4-minutes"


def test_another_authority_s_word_counts_on_neither_side(
    house: House, other: House, good: ca.Made
) -> None:
    stranger = other.worker("w.1_a-b")
    told = talk(house.server(), mixed(stranger, house.door))
    assert told.server in UNTRUSTED
    told = talk(other.server(), house.client(good))
    assert told.client in UNTRUSTED
    assert told.server == "TLSV1_ALERT_UNKNOWN_CA"


def test_a_server_s_certificate_is_no_worker(house: House, good: ca.Made) -> None:
    door = house.door
    assert door.key is not None
    with pytest.raises(TlsFault, match="not a certificate for clients; `ca issue` makes one"):
        client_context(door.certificate, door.key, door.ca)
    client = house.client(good)
    client.load_cert_chain(door.certificate, door.key)
    told = talk(house.server(), client)
    assert told.server.startswith("un") and "purpose" in told.server


def test_a_worker_s_certificate_is_no_server(house: House, good: ca.Made) -> None:
    assert good.key is not None
    with pytest.raises(TlsFault, match="not a certificate for servers; `ca issue --server`"):
        server_context(good.certificate, good.key, good.ca)
    server = house.server()
    server.load_cert_chain(good.certificate, good.key)
    told = talk(server, house.client(good))
    assert told.client.startswith("un") and "purpose" in told.client


def test_tls_1_2_is_spoken_by_neither_side(house: House, good: ca.Made) -> None:
    old = house.client(good)
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    told = talk(house.server(), old)
    assert (told.server, told.client) == ("UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION")
    server = house.server()
    server.minimum_version = ssl.TLSVersion.TLSv1_2
    server.maximum_version = ssl.TLSVersion.TLSv1_2
    assert talk(server, house.client(good)).client == "TLSV1_ALERT_PROTOCOL_VERSION"


def test_the_door_has_the_name_that_is_called(house: House, good: ca.Made) -> None:
    told = talk(house.server(), house.client(good), name="door.example.com")
    assert told.client.startswith("Hostname mismatch")
    told = talk(house.server(), house.client(good), name="door")
    assert told.client.startswith("Hostname mismatch"), "a common name is no host name"
    told = talk(house.server(), house.client(good), name="127.0.0.2")
    assert told.client.startswith("IP address mismatch")


def test_a_door_without_host_names_is_called_by_none(house: House, good: ca.Made) -> None:
    """A certificate's common name is the name of a person or a worker, never of a host."""
    key = new_key()
    with ca_folder.held(house.ca, NOW) as authority:
        wish = Wish("localhost", "server", (), key.public_key(), NOW, NOW + DAY_MS)
        made = certified(wish, authority.key, authority.certificate)
    crt, pem = house.folder / "nameless.crt", house.folder / "nameless.key"
    crt.write_bytes(certificate_pem(made))
    pem.write_bytes(key_pem(key))
    told = talk(server_context(crt, pem, house.door.ca), house.client(good))
    assert told.client.startswith("Hostname mismatch")


def test_a_revoked_certificate_is_refused_and_openssl_agrees(house: House) -> None:
    lost, kept = house.worker("lost"), house.worker("kept")
    revoked = Revoked(house.ca / "revoked.pem", house.ca / "ca.crt")
    assert talk(house.server(), house.client(lost), revoked=revoked).server == "lost"
    ca.revoke(house.ca, "lost")
    fresh = Revoked(house.ca / "revoked.pem", house.ca / "ca.crt")
    assert talk(house.server(), house.client(lost), revoked=fresh).server == "revoked"
    assert talk(house.server(), house.client(kept), revoked=fresh).server == "kept"
    strict = house.server()
    strict.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_CRL_CHECK_LEAF
    strict.load_verify_locations(house.ca / "revoked.pem")
    assert talk(strict, house.client(lost)).server == "certificate revoked"
    assert talk(strict, house.client(kept)).server == "kept"


def test_no_session_is_resumed(house: House, good: ca.Made) -> None:
    """Who resumes shows no certificate again, so one that ended meanwhile would still count."""
    server, client = house.server(), house.client(good)
    kept: list[ssl.SSLSession] = []
    assert talk(server, client, session=kept).client == "w.1_a-b"
    assert not any(one.has_ticket for one in kept)
    server.num_tickets = 2
    assert talk(server, client, session=kept).client == "w.1_a-b"
    assert any(one.has_ticket for one in kept), "else this test could not see one"


# --- files that cannot be used


def test_what_is_wrong_with_a_file_is_told_with_its_name(
    house: House, other: House, good: ca.Made, tmp_path: Path
) -> None:
    assert good.key is not None and other.door.key is not None
    nothing, text = tmp_path / "nothing", tmp_path / "text"
    text.write_text("no PEM")
    sealed = tmp_path / "sealed.key"
    sealed.write_bytes(SEALED)
    for files, words in (
        ((nothing, good.key, good.ca), f"{nothing}: No such file or directory"),
        ((good.certificate, nothing, good.ca), f"{nothing}: No such file or directory"),
        ((good.certificate, good.key, nothing), f"{nothing}: No such file or directory"),
        ((text, good.key, good.ca), f"{text}: it holds no certificate in PEM"),
        ((good.certificate, text, good.ca), f"{text}: it holds no private key in PEM"),
        ((good.certificate, good.key, text), f"{text}: it holds no certificate of an authority"),
        ((good.certificate, other.door.key, good.ca), f"{other.door.key}: it is not the key of"),
        ((good.certificate, sealed, good.ca), f"{sealed}: it has a passphrase"),
    ):
        with pytest.raises(TlsFault) as caught:
            client_context(*files)
        assert str(caught.value).startswith(words), (files, str(caught.value))


def test_a_new_pair_is_shown_from_the_next_connection_on(
    house: House, other: House, good: ca.Made
) -> None:
    new = house.worker("renewed")
    assert new.key is not None and good.key is not None
    client, server = house.client(good), house.server()
    with pytest.raises(TlsFault):
        load_pair(client, new.certificate, good.key)
    assert talk(server, client).server == "w.1_a-b", "a pair that does not fit changes nothing"
    load_pair(client, new.certificate, new.key)
    assert talk(server, client).server == "renewed"


SEALED = b"""-----BEGIN EC PRIVATE KEY-----
Proc-Type: 4,ENCRYPTED
DEK-Info: AES-128-CBC,00000000000000000000000000000000

AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=
-----END EC PRIVATE KEY-----
"""

# --- what a subject may be


def test_a_subject_with_its_serial_and_end(house: House, good: ca.Made) -> None:
    who = holder_of(good.certificate)
    assert who.worker_id == "w.1_a-b"
    assert who.serial == good.issued.serial and len(who.serial) == 32
    assert who.not_after_ms == good.issued.not_after_ms
    assert subject_of(odd(["x" * 36])).worker_id == "x" * 36
    assert subject_of(odd(["w"])).serial == "a1b"
    with pytest.raises(TlsFault, match=r"door\.crt: the certificate is not for clients alone"):
        holder_of(house.door.certificate)


@pytest.mark.parametrize(
    "names",
    [[], ["w", "v"], ["w", "w"], ["x" * 37], [".w"], ["-w"], ["w/../v"], ["w v"], ["w\n"],
     ["w\0v"], ["wörker"], ["\uff57"], ["*"]],
    ids=repr,
)  # fmt: skip
def test_a_strange_subject_is_no_worker(names: list[str]) -> None:
    with pytest.raises(NotAWorker, match=r"not one worker id|cannot be read"):
        subject_of(odd(names))


@pytest.mark.parametrize(
    "usage", [None, (SERVER,), (CLIENT, SERVER), (ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE,)],
    ids=["none", "server", "both", "any"],
)  # fmt: skip
def test_what_is_not_for_clients_alone_is_no_worker(usage: object) -> None:
    with pytest.raises(NotAWorker, match="for clients"):
        subject_of(odd(["w"], usage))  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:Parsed a ")
def test_nothing_that_is_read_as_a_certificate_is_more_than_refused() -> None:
    der = odd(["w"])
    broken = [der[:size] for size in range(0, len(der), 7)]
    for at in range(len(der)):
        for bits in (0x01, 0x80, 0xFF):
            broken.append(der[:at] + bytes([der[at] ^ bits]) + der[at + 1 :])
    refused = 0
    for one in broken:
        try:
            subject_of(one)
        except NotAWorker:
            refused += 1
    assert refused > len(broken) // 4


# --- revocations while it runs


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def desk(tmp_path: Path) -> Iterator["Desk"]:
    yield Desk(tmp_path)


class Desk:
    """An authority with two workers, a list that is read, and what it told."""

    def __init__(self, folder: Path) -> None:
        self.ca = folder / "ca"
        ca.init(self.ca)
        self.serials = {
            name: ca.issue(self.ca, name, out=folder / name).issued.serial for name in ("a", "b")
        }
        self.list = folder / "copy.pem"
        self.take()
        self.told: list[str] = []
        self.clock = Clock()
        self.revoked = Revoked(self.list, self.ca / "ca.crt", self.told.append, self.clock)

    def take(self) -> None:
        self.put((self.ca / "revoked.pem").read_bytes())

    def put(self, raw: bytes) -> None:
        part = self.list.with_suffix(".part")
        part.write_bytes(raw)
        part.replace(self.list)

    def refused(self, after_s: float = 1.0) -> set[str]:
        self.clock.now += after_s
        return {name for name, serial in self.serials.items() if self.revoked.refuses(serial)}


def test_a_revocation_counts_without_a_restart_and_once_a_second_is_looked(desk: Desk) -> None:
    assert desk.refused() == set()
    ca.revoke(desk.ca, "a")
    desk.take()
    assert desk.refused(0.9) == set()
    assert desk.refused(0.1) == {"a"}
    ca.revoke(desk.ca, desk.serials["b"])
    desk.take()
    assert desk.refused() == {"a", "b"} and desk.told == []


def test_what_is_no_good_list_changes_nothing_and_is_told_once(desk: Desk, tmp_path: Path) -> None:
    old = desk.list.read_bytes()
    ca.revoke(desk.ca, "a")
    desk.take()
    good = desk.list.read_bytes()
    assert desk.refused() == {"a"}
    ca.init(tmp_path / "another")
    another = (tmp_path / "another" / "revoked.pem").read_bytes()
    torn = bytearray(good)
    torn[len(torn) // 2] ^= 1
    for raw, words in (
        (b"", "holds no list of revocations"),
        (b"no list", "holds no list of revocations"),
        (bytes(torn), "not a list of revocations|signed it"),
        (good[:-40], "holds no list of revocations"),
        (another, "no authority in .* signed it"),
        (good + another, "no authority in .* signed it"),
        (old, "list 1 is older than 2"),
    ):
        desk.put(raw)
        desk.told.clear()
        assert desk.refused() == {"a"} and desk.refused() == {"a"}
        (told,) = desk.told
        assert re.search(words, told) and told.startswith(f"{desk.list}: "), told
        assert told.endswith("the list of revocations from before stays in force")
    desk.list.unlink()
    desk.told.clear()
    assert desk.refused() == {"a"} and desk.refused() == {"a"}
    assert desk.told == [
        f"{desk.list}: No such file or directory; the list of revocations from before stays in"
        " force"
    ]
    ca.revoke(desk.ca, "b")
    desk.take()
    assert desk.refused() == {"a", "b"}
    desk.list.unlink()
    assert desk.refused() == {"a", "b"} and len(desk.told) == 2, "told anew after a good one"


def test_a_list_that_is_written_in_place_is_read_again(desk: Desk) -> None:
    ca.revoke(desk.ca, "a")
    good = (desk.ca / "revoked.pem").read_bytes()
    desk.list.write_bytes(good[:100])
    assert desk.refused() == set() and len(desk.told) == 1
    desk.list.write_bytes(good)
    assert desk.refused() == {"a"}
    seen = desk.list.stat()
    ca.revoke(desk.ca, "b")
    new = (desk.ca / "revoked.pem").read_bytes()
    desk.put(new)
    os.utime(desk.list, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert desk.refused() == {"a", "b"}, "the same time, another file"


def test_without_a_list_that_holds_nobody_is_let_in(desk: Desk, tmp_path: Path) -> None:
    with pytest.raises(TlsFault, match="No such file"):
        Revoked(tmp_path / "none.pem", desk.ca / "ca.crt")
    ca.init(tmp_path / "another")
    with pytest.raises(TlsFault, match="signed it"):
        Revoked(desk.list, tmp_path / "another" / "ca.crt")


def test_lists_of_two_authorities_stand_in_one_file(desk: Desk, tmp_path: Path) -> None:
    second = tmp_path / "second"
    ca.init(second)
    other = ca.issue(second, "c", out=tmp_path / "c").issued.serial
    ca.revoke(second, "c")
    ca.revoke(desk.ca, "a")
    both, lists = tmp_path / "both.crt", tmp_path / "lists.pem"
    both.write_bytes(b"".join((one / "ca.crt").read_bytes() for one in (desk.ca, second)))
    lists.write_bytes(b"".join((one / "revoked.pem").read_bytes() for one in (desk.ca, second)))
    revoked = Revoked(lists, both)
    assert revoked.refuses(other) and revoked.refuses(desk.serials["a"])
    assert not revoked.refuses(desk.serials["b"])
