"""Certificates at the workers' door: revoked, ended, renewed, and another one of the ingress."""

import ssl
import time
from pathlib import Path
from typing import Any

import pytest

from qinglong_sql import ca
from qinglong_sql.certificate import holder_of
from qinglong_sql.tls import client_context
from tests.doors_remote import Client, Site


@pytest.fixture
def site(ingress_site: Site) -> Site:
    return ingress_site


def test_a_revoked_certificate_is_refused_on_a_connection_that_stands(site: Site) -> None:
    with site.client("gone") as client, site.client("stays") as other:
        assert client.ask("heartbeat", session_id="s")[0] == 404
        time.sleep(1)  # the list was looked at just now
        site.authority.revoke("gone")
        status, found = client.ask("heartbeat", session_id="s")
        assert (status, found["code"]) == (403, "certificate")
        assert client.headers["Connection"] == "close"
        assert client.ask("heartbeat", session_id="s")[0] == 403  # on a new one, too
        assert other.ask("heartbeat", session_id="s")[0] == 404
    assert site.count("refused_total", reason="revoked") == 2


def test_a_certificate_that_ends_is_refused_on_a_connection_that_stands(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.client("ends") as client:
        assert client.ask("heartbeat", session_id="s")[0] == 404
        until_s = holder_of(site.authority.worker("ends").certificate).not_after_ms / 1000
        answerer: Any = site.ingress._answerer
        monkeypatch.setattr(answerer, "_clock", lambda: until_s - 1)
        assert client.ask("heartbeat", session_id="s")[0] == 404
        monkeypatch.setattr(answerer, "_clock", lambda: until_s)
        assert client.ask("heartbeat", session_id="s")[1]["message"].startswith("the certificate")
    assert site.count("refused_total", reason="expired") == 1


def test_a_worker_renews_its_certificate(site: Site) -> None:
    key, csr = ca.new_request("renewing")
    with site.client("renewing") as client:
        status, found = client.ask("certificate", csr=csr.decode())
        assert status == 200 and found.keys() == {"certificate"}
        assert client.ask("certificate", csr=csr.decode()) == (status, found)  # repeated
        other = ca.new_request("w1")[1].decode()
        assert client.ask("certificate", csr=other)[0] == 400
        assert client.ask("certificate", csr="no request")[0] == 400
    fresh = site.settings.log_folder().parent / "fresh"
    fresh.with_suffix(".key").write_bytes(key)
    fresh.with_suffix(".crt").write_text(found["certificate"])
    papers = site.authority.worker("renewing")
    context = client_context(fresh.with_suffix(".crt"), fresh.with_suffix(".key"), papers.ca)
    with Client(site.ingress.port, context) as client:
        assert client.ask("heartbeat", session_id="s")[0] == 404


def test_another_certificate_of_the_ingress_is_shown_without_a_restart(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown() -> Any:
        with site.client("looks") as client:
            client.line.connect()
            assert isinstance(client.line.sock, ssl.SSLSocket)
            return client.line.sock.getpeercert()["serialNumber"]  # type: ignore[index]

    monkeypatch.setattr("qinglong_sql.ingress_papers.LOOK_S", 0.0)
    before, hosts = shown(), ["127.0.0.1"]
    made = ca.issue(
        site.authority.folder, "ingress", server=True, hosts=hosts, out=tmp_path, again=True
    )
    assert made.key is not None
    made.key.replace(site.settings.key)
    assert shown() == before  # half of it is there
    made.certificate.replace(site.settings.certificate)
    after = shown()
    assert before != after
    key = site.settings.key.read_bytes()
    site.settings.key.write_bytes(b"half a key")
    assert shown() == after
    assert "the one from before is shown on" in site.lines("trouble")[0]["message"]
    site.settings.key.write_bytes(key)
    assert shown() == after
