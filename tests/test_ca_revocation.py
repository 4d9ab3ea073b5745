"""What a certificate authority revokes is on its list for ever, through crashes and at once."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from qinglong_sql import ca, ca_folder
from qinglong_sql.ca import CaRefused
from tests.authorities import DAY_MS, NOW, mode, on_list


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ca.init(tmp_path / "ca")
    return tmp_path / "ca"


def test_what_is_revoked_is_on_the_list_for_ever(folder: Path, tmp_path: Path) -> None:
    a, b, c = (ca.issue(folder, name, out=tmp_path / name).issued.serial for name in "abc")
    a2 = ca.renew(folder, "a", out=tmp_path / "a").issued.serial
    found, changed = ca.revoke(folder, "a", now_ms=NOW)
    assert changed and {one.serial for one in found} == {a, a2}
    assert on_list(folder) == (2, {a, a2})
    colons = ":".join(b[at : at + 2] for at in range(0, 32, 2)).upper()
    found, changed = ca.revoke(folder, f"00:{colons}")
    assert changed and on_list(folder) == (3, {a, a2, b})
    again, changed = ca.revoke(folder, "a", now_ms=NOW + DAY_MS)
    assert not changed and {one.revoked_at_ms for one in again} == {NOW}
    assert on_list(folder) == (3, {a, a2, b})
    with pytest.raises(CaRefused, match="no certificate has the name or serial number 'd'"):
        ca.revoke(folder, "d")
    assert c not in on_list(folder)[1]


def test_a_key_whose_certificate_was_revoked_is_certified_never_again(
    folder: Path, tmp_path: Path
) -> None:
    key, request = ca.new_request("w")
    ca.issue(folder, "w", out=tmp_path / "w", request=request)
    ca.revoke(folder, "w")
    with pytest.raises(CaRefused, match="a certificate of that key was revoked"):
        ca.issue(folder, "w", out=tmp_path / "2", request=ca.new_request("w", key)[1])
    with pytest.raises(CaRefused, match="a certificate of that key was revoked"):
        ca.issue(folder, "v", out=tmp_path / "3", request=ca.new_request("v", key)[1])


def test_a_crash_between_the_record_and_the_list_is_made_good_by_the_next(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serial = ca.issue(folder, "w", out=tmp_path / "w").issued.serial
    with monkeypatch.context() as broken, pytest.raises(OSError, match="died"):
        broken.setattr(ca_folder.Authority, "write_list", dies)
        ca.revoke(folder, "w")
    assert on_list(folder) == (1, set())
    ca.issue(folder, "v", out=tmp_path / "v")
    assert on_list(folder) == (2, {serial})
    (folder / "revoked.pem").unlink()
    assert not ca.revoke(folder, "w")[1]
    assert on_list(folder) == (2, {serial})


def test_a_certificate_is_recorded_before_it_is_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qinglong_sql import ca_issue

    def all_but_the_key(path: Path, *args: Any, **kwargs: Any) -> None:
        if path.name == "w.crt":
            assert [one.name for one in ca.listed(folder)[1]] == ["w"]
            raise OSError("died")
        whole(path, *args, **kwargs)

    whole = ca_issue.write_whole
    with monkeypatch.context() as broken, pytest.raises(OSError, match="died"):
        broken.setattr(ca_issue, "write_whole", all_but_the_key)
        ca.issue(folder, "w", out=tmp_path / "w")
    key = (tmp_path / "w" / "w.key").read_bytes()
    made = ca.renew(folder, "w", out=tmp_path / "w")
    assert made.key is not None and made.key.read_bytes() == key, "and the way out is a renewal"


def test_root_acts_in_the_folder_of_a_service_without_taking_it(
    folder: Path, tmp_path: Path
) -> None:
    """An ingress that signs renewals is not root, and must read what root's `ca` wrote."""
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 4711, 4712)
    (folder / "revoked.pem").chmod(0o640)
    ca.issue(folder, "w", out=tmp_path / "w")
    ca.revoke(folder, "w")
    for name, wanted in (("issued.json", 0o600), ("revoked.pem", 0o640)):
        seen = (folder / name).stat()
        assert (seen.st_uid, seen.st_gid, mode(folder / name)) == (4711, 4712, wanted), name
    assert mode(tmp_path / "w" / "w.key") == 0o600


def dies(*_: Any) -> None:
    raise OSError("died")


def test_commands_at_once_lose_nothing(folder: Path, tmp_path: Path) -> None:
    names = [f"w{n}" for n in range(12)]
    with ThreadPoolExecutor(6) as pool:
        made = [*pool.map(lambda name: ca.issue(folder, name, out=tmp_path / name), names)]
        gone = names[::2]
        [*pool.map(lambda name: ca.revoke(folder, name), gone)]
    serials = {one.issued.name: one.issued.serial for one in made}
    assert {one.name: one.serial for one in ca.listed(folder)[1]} == serials
    assert on_list(folder) == (1 + len(gone), {serials[name] for name in gone})


def test_who_waits_too_long_for_the_folder_is_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ca_folder, "LOCK_WAIT_S", 0.1)
    with ca_folder.held(folder, NOW), pytest.raises(CaRefused, match="in use by another"):
        ca.issue(folder, "w", out=tmp_path / "w")
    ca.issue(folder, "w", out=tmp_path / "w")
