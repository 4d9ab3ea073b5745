"""What an ingress signs: a worker renews for itself alone, in time and not too often."""

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from qinglong_sql import ca
from qinglong_sql.ca import CaRefused
from qinglong_sql.tls import Principal, holder_of
from tests.authorities import DAY_MS, HOUR_MS, NOW, at


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ca.init(tmp_path / "ca")
    return tmp_path / "ca"


def test_a_worker_renews_for_itself_alone(folder: Path, tmp_path: Path) -> None:
    made = ca.issue(folder, "w", out=tmp_path / "w", now_ms=NOW, validity_ms=9 * DAY_MS)
    shown = holder_of(made.certificate)
    key, request = ca.new_request("w")
    pem = ca.sign_renewal(folder, request, shown, NOW + 6 * DAY_MS)
    said = x509.load_pem_x509_certificate(pem)
    assert said.not_valid_after_utc == at(NOW + 15 * DAY_MS), "as long as the one before"
    usage = said.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert [*usage] == [ExtendedKeyUsageOID.CLIENT_AUTH]
    first, second = ca.listed(folder)[1]
    assert (second.name, second.serial) == ("w", f"{said.serial_number:x}")
    with pytest.raises(CaRefused, match="subject is not that"):
        ca.sign_renewal(folder, ca.new_request("v", key)[1], shown, NOW)
    unknown = Principal("w", "abc", shown.not_after_ms)
    with pytest.raises(CaRefused, match="not a live one"):
        ca.sign_renewal(folder, request, unknown, NOW)
    with pytest.raises(CaRefused, match="not a live one"):
        ca.sign_renewal(folder, request, shown, NOW + 10 * DAY_MS)
    ca.revoke(folder, first.serial)
    with pytest.raises(CaRefused, match="not a live one"):
        ca.sign_renewal(folder, request, shown, NOW)
    assert len(ca.listed(folder)[1]) == 2


def test_a_server_s_certificate_and_another_s_serial_renew_nothing(
    folder: Path, tmp_path: Path
) -> None:
    door = ca.issue(folder, "door", server=True, hosts=["localhost"], out=tmp_path / "door")
    other = ca.issue(folder, "v", out=tmp_path / "v")
    for name, serial in (("door", door.issued.serial), ("w", other.issued.serial)):
        shown = Principal(name, serial, NOW + DAY_MS)
        with pytest.raises(CaRefused, match="not a live one"):
            ca.sign_renewal(folder, ca.new_request(name)[1], shown)


def test_a_renewal_whose_answer_was_lost_is_answered_again(folder: Path, tmp_path: Path) -> None:
    made = ca.issue(folder, "w", out=tmp_path / "w", now_ms=NOW)
    assert made.key is not None
    shown = holder_of(made.certificate)
    request = ca.new_request("w", made.key.read_bytes())[1]
    first = ca.sign_renewal(folder, request, shown, NOW + 60 * DAY_MS)
    assert first != made.certificate.read_bytes()
    assert ca.sign_renewal(folder, request, shown, NOW + 61 * DAY_MS) == first
    assert ca.sign_renewal(folder, ca.new_request("w")[1], shown, NOW + 61 * DAY_MS) != first
    assert len(ca.listed(folder)[1]) == 3


def test_a_renewal_right_away_is_another_certificate(folder: Path, tmp_path: Path) -> None:
    made = ca.issue(folder, "w", out=tmp_path / "w", now_ms=NOW)
    assert made.key is not None
    request = ca.new_request("w", made.key.read_bytes())[1]
    pem = ca.sign_renewal(folder, request, holder_of(made.certificate), NOW)
    assert pem != made.certificate.read_bytes() and len(ca.listed(folder)[1]) == 2


def test_one_name_has_so_many_live_certificates_and_no_more(folder: Path, tmp_path: Path) -> None:
    shown = holder_of(ca.issue(folder, "w", out=tmp_path / "w", now_ms=NOW).certificate)
    for n in range(15):
        ca.sign_renewal(folder, ca.new_request("w")[1], shown, NOW + n * HOUR_MS)
    with pytest.raises(CaRefused, match="16 live certificates"):
        ca.sign_renewal(folder, ca.new_request("w")[1], shown, NOW + 15 * HOUR_MS)


def test_a_name_is_renewed_once_an_hour_unless_its_end_is_near(
    folder: Path, tmp_path: Path
) -> None:
    at = NOW + 60 * DAY_MS
    shown = holder_of(ca.issue(folder, "w", out=tmp_path / "w", now_ms=NOW).certificate)
    request = ca.new_request("w")[1]
    first = ca.sign_renewal(folder, request, shown, at)
    renewed = tmp_path / "renewed.crt"
    renewed.write_bytes(first)
    for who in (shown, holder_of(renewed)):
        with pytest.raises(CaRefused, match="look at its clock"):
            ca.sign_renewal(folder, ca.new_request("w")[1], who, at + HOUR_MS - 1)
    assert ca.sign_renewal(folder, request, shown, at + 1) == first
    ca.sign_renewal(folder, ca.new_request("w")[1], holder_of(renewed), at + HOUR_MS)
    assert len(ca.listed(folder)[1]) == 3
    end = NOW + 90 * DAY_MS
    for before_ms in (30 * 60_000, 20 * 60_000):
        ca.sign_renewal(folder, ca.new_request("w")[1], shown, end - before_ms)
    assert len(ca.listed(folder)[1]) == 5
