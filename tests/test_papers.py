"""A worker's certificate and key: renewed in time, both or neither, by whoever may."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from qinglong_sql import ca
from qinglong_sql import papers as module
from qinglong_sql.ca_sign import new_request
from qinglong_sql.certificate import holder_of
from qinglong_sql.control_log import Log
from qinglong_sql.papers import DAY_MS, Renewal, life_of, mended, put
from qinglong_sql.remote import Remote
from qinglong_sql.tls import TlsFault
from tests.workers import HOST, Authority, ingress_here

LEASE_MS = 6_000


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def remote(postgres_dsn: str, authority: Authority, tmp_path: Path) -> Iterator[Remote]:
    with ingress_here(postgres_dsn, authority, tmp_path) as ingress:
        url = f"https://{HOST}:{ingress.port}"
        made = Remote(url, authority.worker("w3"), lease_ms=LEASE_MS)
        yield made
        made.close()


def test_papers_are_renewed_at_a_third_of_their_life_and_used_without_a_restart(
    remote: Remote, authority: Authority, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    papers, out = authority.worker("w3"), io.StringIO()
    remote.call("attempt_standing", p_commands="[]")
    begins, ends = life_of(papers.certificate)
    now = [begins + (ends - begins) // 2]
    ticks = iter(range(0, DAY_MS * 100, DAY_MS))
    renewal = Renewal(
        papers, "w3", remote.certificate, Log("text", "info", out), wall=lambda: now[0],
        clock=lambda: next(ticks),
    )  # fmt: skip
    before = holder_of(papers.certificate).serial
    renewal.look()
    assert holder_of(papers.certificate).serial == before and out.getvalue() == ""
    now[0] = ends - (ends - begins) // 3
    renewal.look()
    after = holder_of(papers.certificate)
    assert after.serial != before and after.worker_id == "w3"
    assert [oct(path.stat().st_mode)[-3:] for path in (papers.certificate, papers.key)] == [
        "600"
    ] * 2
    assert "certificate renewed, good until" in out.getvalue()
    assert not list(papers.certificate.parent.glob("*.new"))
    monkeypatch.setattr(remote, "_look_at_s", 0.0)
    remote.call("attempt_standing", p_commands="[]")
    assert {before, after.serial} <= audited(postgres_dsn)


def audited(dsn: str) -> set[str]:
    with psycopg.connect(dsn) as dba:
        return {row[0] for row in dba.execute("select certificate from ql.worker_audit_log")}


def test_a_clock_that_is_ahead_does_not_ask_for_ever(authority: Authority) -> None:
    papers, out, asked = authority.worker("w8"), io.StringIO(), []
    _, ends = life_of(papers.certificate)
    now = [0]

    def ask(request: str) -> str:
        asked.append(now[0])
        shown = holder_of(papers.certificate)
        at_ms = ends - 90 * DAY_MS + now[0]
        return ca.sign_renewal(authority.folder, request.encode(), shown, at_ms).decode()

    renewal = Renewal(
        papers, "w8", ask, Log("text", "info", out), wall=lambda: ends - 5 * DAY_MS + now[0],
        clock=lambda: now[0],
    )  # fmt: skip
    for now[0] in range(0, 3 * DAY_MS, 5 * 60_000):
        renewal.look()
    assert asked == [0, DAY_MS, 2 * DAY_MS]
    assert out.getvalue().count("this machine's clock seems wrong") == 1


def test_where_nobody_renews_it_is_told_once_a_day(authority: Authority) -> None:
    papers, out = authority.worker("w4"), io.StringIO()
    _, ends = life_of(papers.certificate)
    now, asked = [0], []

    def ask(request: str) -> None:
        asked.append(request)

    renewal = Renewal(
        papers, "w4", ask, Log("text", "info", out), wall=lambda: ends - DAY_MS,
        clock=lambda: now[0],
    )  # fmt: skip
    for now[0] in range(0, DAY_MS + 1, DAY_MS // 24):
        renewal.look()
    said = out.getvalue().splitlines()
    assert len(said) == len(asked) == 2
    assert "ends in 1d," in said[0] and "ca renew DIR w4" in said[0]
    now[0] += 2 * DAY_MS
    renewal = Renewal(
        papers, "w4", ask, Log("text", "info", out), wall=lambda: ends + DAY_MS,
        clock=lambda: now[0],
    )  # fmt: skip
    renewal.look()
    assert "ended 1d ago" in out.getvalue()


def test_who_was_killed_between_the_two_files_of_a_renewal_finds_both(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    papers = authority.worker("w5")
    key, request = new_request("w5")
    pem = ca.sign_renewal(authority.folder, request, holder_of(papers.certificate))
    assert not mended(papers)
    real, beside = module.write_whole, papers.certificate.with_name("w5.crt.new")

    class Killed(BaseException):
        pass

    def write(path: Path, raw: bytes, **options: Any) -> None:
        if path == papers.certificate:
            beside.rename(beside.with_suffix(".kept"))  # a killed process removes nothing
            raise Killed
        real(path, raw, **options)

    monkeypatch.setattr(module, "write_whole", write)
    with pytest.raises(Killed):
        put(papers, key, pem)
    beside.with_suffix(".kept").rename(beside)
    monkeypatch.setattr(module, "write_whole", real)
    with pytest.raises(TlsFault, match="it is not the key of"):
        Remote(f"https://{HOST}:1", papers, lease_ms=LEASE_MS)
    assert mended(papers) and papers.certificate.read_bytes() == pem
    Remote(f"https://{HOST}:1", papers, lease_ms=LEASE_MS)
    assert not beside.exists()


def test_a_pair_that_does_not_fit_changes_nothing(authority: Authority) -> None:
    papers, other = authority.worker("w6"), authority.worker("w7")
    before = papers.key.read_bytes()
    with pytest.raises(TlsFault, match="it is not the key of"):
        put(papers, new_request("w6")[0], other.certificate.read_bytes())
    assert papers.key.read_bytes() == before
    assert not list(papers.key.parent.glob("*.new"))
