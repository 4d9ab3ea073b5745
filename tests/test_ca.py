"""The small certificate authority: what it makes, certifies, refuses, and when a file is harmed."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from qinglong_sql import ca, ca_folder
from qinglong_sql.ca import CaFault, CaRefused
from qinglong_sql.tls import holder_of
from tests.authorities import DAY_MS, MINUTE_MS, NOW, at, mode, on_list, read


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ca.init(tmp_path / "ca")
    return tmp_path / "ca"


# --- the folder


def test_a_new_authority(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "ca"
    until = ca.init(folder, now_ms=NOW)
    assert until == (NOW + 10 * 365 * DAY_MS) // 1000 * 1000
    assert mode(folder) == mode(folder / "issued") == 0o700
    assert mode(folder / "ca.key") == mode(folder / "issued.json") == 0o600
    made = read(folder / "ca.crt")
    assert isinstance(made.public_key(), ec.EllipticCurvePublicKey)
    basic = made.extensions.get_extension_for_class(x509.BasicConstraints)
    assert basic.critical and basic.value.ca and basic.value.path_length == 0
    assert made.not_valid_before_utc == at(NOW - 5 * MINUTE_MS)
    assert on_list(folder) == (1, set()) and ca.listed(folder) == (until, [])
    ca.init(tmp_path / "other")
    assert read(tmp_path / "other" / "ca.crt").subject != made.subject


def test_nothing_that_is_there_is_written_over(folder: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(CaRefused, match="is there already"):
        ca.init(folder)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "empty").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    for name in ("used", "link", "dangling"):
        with pytest.raises(CaRefused, match="is there already"):
            ca.init(tmp_path / name)
    ca.init(tmp_path / "empty")
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert [*(tmp_path / "used").iterdir()] == [tmp_path / "used" / "mine"]


def test_an_authority_is_made_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def broken(*args: Any, **kwargs: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise OSError(28, "No space left on device")
        whole(*args, **kwargs)

    whole = ca_folder.write_whole
    monkeypatch.setattr(ca_folder, "write_whole", broken)
    for fails_at in range(1, 6):
        calls = 0
        with pytest.raises(OSError, match="No space"):
            ca.init(tmp_path / "ca")
        assert [*tmp_path.iterdir()] == [], f"after write {fails_at}"
    calls, fails_at = 0, 6
    ca.init(tmp_path / "ca")
    assert calls == 5, "each of its writes failed once"


def test_of_two_that_make_it_at_once_one_does(tmp_path: Path) -> None:
    def make(_: int) -> bool:
        try:
            ca.init(tmp_path / "ca")
        except CaRefused:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(make, range(8))) == [False] * 7 + [True]
    assert [path.name for path in tmp_path.iterdir()] == ["ca"]
    ca.issue(tmp_path / "ca", "w", out=tmp_path / "w")


# --- certificates


def test_a_certificate_for_a_worker(folder: Path, tmp_path: Path) -> None:
    made = ca.issue(folder, "w1", out=tmp_path / "w1", now_ms=NOW)
    assert made.key is not None and mode(made.key) == 0o600 and mode(tmp_path / "w1") == 0o700
    assert made.ca.read_bytes() == (folder / "ca.crt").read_bytes()
    said = read(made.certificate)
    assert said.not_valid_before_utc == at(NOW - 5 * MINUTE_MS)
    assert said.not_valid_after_utc == at(NOW + 90 * DAY_MS)
    usage = said.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert [*usage] == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not said.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    curve = said.public_key()
    assert isinstance(curve, ec.EllipticCurvePublicKey) and curve.curve.name == "secp256r1"
    assert holder_of(made.certificate).worker_id == "w1"
    assert ca.listed(folder)[1] == [made.issued]
    copy = folder / "issued" / f"{made.issued.serial}.crt"
    assert copy.read_bytes() == made.certificate.read_bytes()


def test_a_certificate_for_an_ingress(folder: Path, tmp_path: Path) -> None:
    hosts = ["Ingress.Example.COM.", "localhost", "127.0.0.1", "2001:DB8::0:7", "localhost"]
    made = ca.issue(folder, "door", server=True, hosts=hosts, out=tmp_path / "door", now_ms=NOW)
    said = read(made.certificate)
    assert said.not_valid_after_utc == at(NOW + 365 * DAY_MS)
    usage = said.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert [*usage] == [ExtendedKeyUsageOID.SERVER_AUTH]
    names = said.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["ingress.example.com", "localhost"]
    assert [*map(str, names.get_values_for_type(x509.IPAddress))] == ["127.0.0.1", "2001:db8::7"]


@pytest.mark.parametrize(
    "name", ["", ".w", "-w", "../w", "w/v", "x" * 37, "wörker", "w v", "w\n", "w\0"], ids=repr
)
def test_a_name_is_a_worker_id(folder: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(CaRefused, match="is no name"):
        ca.issue(folder, name, out=tmp_path / "w")
    assert ca.listed(folder)[1] == [] and not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    "host",
    ["", "*.example.com", "a b", "-a.com", "a-.com", "a..b", "1.2.3", "256.1.1.1", "ü.com",
     "a_b.com", "fe80::1%eth0", "10.0.0.0/8", "https://a", "a:443", "a" * 64, "a." * 127 + "aa"],
    ids=repr,
)  # fmt: skip
def test_a_host_is_a_name_or_an_address(folder: Path, tmp_path: Path, host: str) -> None:
    with pytest.raises(CaRefused, match="is no host name or address"):
        ca.issue(folder, "door", server=True, hosts=[host], out=tmp_path / "door")


def test_hosts_are_for_servers_and_servers_have_some(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CaRefused, match="--host"):
        ca.issue(folder, "door", server=True, out=tmp_path / "door")
    with pytest.raises(CaRefused, match="--server"):
        ca.issue(folder, "w", hosts=["localhost"], out=tmp_path / "w")


def test_a_name_that_is_live_is_issued_again_by_wish_alone(folder: Path, tmp_path: Path) -> None:
    first = ca.issue(folder, "w", out=tmp_path / "1", now_ms=NOW)
    with pytest.raises(CaRefused, match=r"`ca renew .*` or `ca revoke .*` first, or --again"):
        ca.issue(folder, "w", out=tmp_path / "2")
    second = ca.issue(folder, "w", out=tmp_path / "2", again=True)
    assert first.issued.serial != second.issued.serial
    later = NOW + 91 * DAY_MS
    ca.issue(folder, "w", out=tmp_path / "3", now_ms=later)
    ca.revoke(folder, "w", now_ms=later)
    ca.issue(folder, "w", out=tmp_path / "4", now_ms=later)
    with pytest.raises(CaRefused, match=r"4/w\.crt is there already"):
        ca.issue(folder, "w", out=tmp_path / "4", now_ms=later, again=True)
    assert len(ca.listed(folder)[1]) == 4


def test_no_certificate_outlives_its_authority(tmp_path: Path) -> None:
    folder = tmp_path / "ca"
    until = ca.init(folder, validity_ms=10 * DAY_MS, now_ms=NOW)
    assert ca.issue(folder, "w", out=tmp_path / "w", now_ms=NOW).issued.not_after_ms == until
    with pytest.raises(CaRefused, match=r"ended .*`ca init`"):
        ca.issue(folder, "v", out=tmp_path / "v", now_ms=NOW + 11 * DAY_MS)
    assert not (tmp_path / "v" / "v.key").exists()


def test_a_renewal_keeps_key_kind_and_hosts(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "door"
    first = ca.issue(folder, "door", server=True, hosts=["localhost"], out=out, now_ms=NOW)
    assert first.key is not None
    key = first.key.read_bytes()
    second = ca.renew(folder, "door", out=out, now_ms=NOW + DAY_MS)
    assert first.key.read_bytes() == key and second.issued.key == first.issued.key
    assert (second.issued.kind, second.issued.hosts) == ("server", ("localhost",))
    assert second.issued.not_after_ms == first.issued.not_after_ms + DAY_MS
    assert read(out / "door.crt").serial_number == int(second.issued.serial, 16)
    elsewhere = ca.renew(folder, "door", out=tmp_path / "elsewhere")
    assert elsewhere.key is not None and elsewhere.issued.key != first.issued.key
    with pytest.raises(CaRefused, match="has no certificate"):
        ca.renew(folder, "w", out=tmp_path / "w")
    first.key.unlink()
    with pytest.raises(CaRefused, match=r"door\.key is not there"):
        ca.renew(folder, "door", out=out)
    ca.revoke(folder, "door")
    with pytest.raises(CaRefused, match=r"was revoked .* `ca issue"):
        ca.renew(folder, "door", out=tmp_path / "new")


def test_a_request_is_certified_and_its_key_stays_away(folder: Path, tmp_path: Path) -> None:
    key, request = ca.new_request("w")
    made = ca.issue(folder, "w", out=tmp_path / "w", request=request)
    assert made.key is None and {path.name for path in (tmp_path / "w").iterdir()} == {
        "w.crt",
        "ca.crt",
    }
    with pytest.raises(CaRefused, match="is for w, not for v"):
        ca.issue(folder, "v", out=tmp_path / "v", request=request)
    assert ca.new_request("w", key)[0] == key
    renewed = ca.renew(folder, "w", out=tmp_path / "w", request=ca.new_request("w", key)[1])
    assert renewed.issued.key == made.issued.key


def request_of(name: str, key: Any) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else [])
    made = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def torn(pem: bytes) -> bytes:
    """A request whose signature is another's."""
    one, two = (x509.load_pem_x509_csr(raw) for raw in (pem, ca.new_request("w")[1]))
    der = one.public_bytes(Encoding.DER)
    wrong = bytearray(der.replace(one.signature[8:20], two.signature[8:20]))
    assert len(wrong) == len(der)
    return x509.load_der_x509_csr(bytes(wrong)).public_bytes(Encoding.PEM)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: b"", "no request"),
        (lambda: b"x" * 20_000, "at most 16384 bytes"),
        (lambda: torn(ca.new_request("w")[1]), "does not have its key"),
        (lambda: request_of("w", rsa.generate_private_key(65537, 2048)), "ECDSA"),
        (lambda: request_of("w", ec.generate_private_key(ec.SECP521R1())), "ECDSA"),
        (lambda: request_of("", ec.generate_private_key(ec.SECP256R1())), "its subject"),
        (lambda: request_of("../w", ec.generate_private_key(ec.SECP256R1())), "its subject"),
    ],
    ids=["empty", "long", "torn", "rsa", "p521", "nobody", "path"],
)
def test_a_bad_request_is_refused(
    folder: Path, tmp_path: Path, make: Callable[[], bytes], words: str
) -> None:
    with pytest.raises(CaRefused, match=words):
        ca.issue(folder, "w", out=tmp_path / "w", request=make())
    made = ca.issue(folder, "w", out=tmp_path / "w")
    with pytest.raises(CaRefused, match=words):
        ca.sign_renewal(folder, make(), holder_of(made.certificate))
    assert len(ca.listed(folder)[1]) == 1


# --- files that were harmed


@pytest.mark.parametrize(
    ("name", "raw", "words"),
    [
        ("ca.key", b"", "no private key"),
        ("ca.key", None, "it is not there: put a backup of it back"),
        ("ca.crt", b"no", "no certificate in PEM"),
        ("issued.json", b"{", "not what was written there"),
        ("issued.json", b"[]", "not what was written there"),
        ("issued.json", b'{"format": 1, "list_number": 1, "certificates": [{"name": "w"}]}',
         "not what was written there"),
        ("issued.json", b'{"format": 9}', "format 9 is of another version"),
        ("issued.json", None, "it is not there: put a backup of it back"),
    ],
)  # fmt: skip
def test_a_file_that_was_harmed_is_named_and_nothing_is_signed(
    folder: Path, tmp_path: Path, name: str, raw: bytes | None, words: str
) -> None:
    path = folder / name
    path.unlink()
    if raw is not None:
        path.touch(0o600)
        path.write_bytes(raw)
    with pytest.raises(CaFault, match=words) as caught:
        ca.issue(folder, "w", out=tmp_path / "w")
    assert str(caught.value).startswith(f"{path}: ")
    assert not (tmp_path / "w").exists()


def test_a_key_that_others_may_read_or_that_is_another_s_signs_nothing(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "ca.key").chmod(0o640)
    with pytest.raises(CaFault, match="others may read it: chmod 600"):
        ca.issue(folder, "w", out=tmp_path / "w")
    (folder / "ca.key").write_bytes(ca.new_request("w")[0])
    (folder / "ca.key").chmod(0o600)
    with pytest.raises(CaFault, match=r"not the key of ca\.crt"):
        ca.issue(folder, "w", out=tmp_path / "w")
    with pytest.raises(CaRefused, match=r"there is no authority in .*: qinglong-sql ca init"):
        ca.issue(tmp_path, "w", out=tmp_path / "w")


def test_files_of_another_authority_stay(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "w"
    out.mkdir()
    (out / "ca.crt").write_text("another")
    with pytest.raises(CaRefused, match="is of another authority"):
        ca.issue(folder, "w", out=out)
    assert (out / "ca.crt").read_text() == "another" and ca.listed(folder)[1] == []
