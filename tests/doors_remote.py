"""An ingress in a thread of the test, an authority beside it, and workers that come through it."""

import http.client
import io
import json
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from prometheus_client import generate_latest

from qinglong_sql import ca
from qinglong_sql.control_log import Log
from qinglong_sql.ingress import Ingress
from qinglong_sql.ingress_settings import IngressSettings
from qinglong_sql.tls import client_context
from qinglong_sql.wire import JSON, OF_STEP, body_of, encoded
from tests.controls import login_of

LOGIN = "ingress_login"
WORKER = "ql_worker"
Answer = tuple[int, dict[str, Any]]


@dataclass
class Papers:
    """An authority, the ingress' certificate, and one for each worker that is asked for."""

    folder: Path
    made: dict[str, ca.Made] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ca.init(self.authority)
        self.made[""] = ca.issue(
            self.authority,
            "door",
            server=True,
            hosts=["localhost", "127.0.0.1"],
            out=self.folder / "door",
        )

    @property
    def authority(self) -> Path:
        return self.folder / "ca"

    def of(self, worker: str, **changes: Any) -> ca.Made:
        if worker not in self.made:
            out = self.folder / "papers" / worker
            self.made[worker] = ca.issue(self.authority, worker, out=out, **changes)
        return self.made[worker]

    def context(self, worker: str, **changes: Any) -> ssl.SSLContext:
        made = self.of(worker, **changes)
        assert made.key is not None
        return client_context(made.certificate, made.key, made.ca)

    def settings(self, dsn: str, **changes: Any) -> IngressSettings:
        """What an ingress on loopback is told, of this authority and with its list."""
        door = self.made[""]
        assert door.key is not None
        told = IngressSettings(
            dsn=dsn, password_file=None, listen=("127.0.0.1", 0), certificate=door.certificate,
            key=door.key, client_ca=self.authority / "ca.crt", crl=self.authority / "revoked.pem",
            ca_dir=self.authority, log_dir=self.folder / "log", health_listen=("127.0.0.1", 0),
            boot_timeout=10_000, drain_timeout=5_000, stop_timeout=3_000, log_format="json",
            log_level="debug",
        )  # fmt: skip
        return replace(told, **changes)


class Client:
    """One connection of a worker that is kept; nothing is repeated by itself."""

    def __init__(self, port: int, context: ssl.SSLContext, timeout: float = 10) -> None:
        self.line = http.client.HTTPSConnection("127.0.0.1", port, timeout=timeout, context=context)

    def send(
        self, path: str, body: bytes | None = b"{}", method: str = "POST", **headers: str
    ) -> Answer:
        """Send bytes as they are; status and what the answer's JSON says."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.line.request(method, path, body, {"Content-Type": JSON} | named)
        answer = self.line.getresponse()
        self.headers: Mapping[str, str] = answer.headers
        return answer.status, json.loads(answer.read())

    def ask(self, route: str, **body: Any) -> Answer:
        return self.send(f"/v1/{route}", encoded(body))

    def call(self, step: str, /, **params: Any) -> list[dict[str, Any]]:
        """A step as a store calls it; fails when the answer is not 200."""
        route = OF_STEP[step]
        status, found = self.send(route.path, encoded(body_of(route, params)))
        assert status == 200, (status, found)
        rows: list[dict[str, Any]] = found["rows"]
        return rows

    def close(self) -> None:
        self.line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Site:
    """A running ingress and who comes through it."""

    def __init__(self, papers: Papers, settings: IngressSettings) -> None:
        self.papers, self.settings = papers, settings
        self.out = io.StringIO()
        self.ingress = Ingress(settings, Log("json", "debug", self.out))

    def client(self, worker: str = "w1", **changes: Any) -> Client:
        return Client(self.ingress.port, self.papers.context(worker, **changes))

    def lines(self, event: str = "") -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.out.getvalue().splitlines()]
        return [one for one in found if event in ("", one["event"])]

    def count(self, name: str, **labels: str) -> float:
        """The value of one series of its metrics; 0 when there is none."""
        text = generate_latest(self.ingress.meter.registry).decode()
        said = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        line = f"qinglong_sql_ingress_{name}" + (f"{{{said}}}" if said else "")
        found = re.search(rf"^{re.escape(line)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0


@contextmanager
def site_of(dsn: str, folder: Path, **changes: Any) -> Iterator[Site]:
    """An ingress on a database that the DSN's superuser owns, by a login of its own."""
    papers = Papers(folder)
    with login_of(dsn, LOGIN, WORKER) as login:
        site = Site(papers, papers.settings(login, **changes))
        site.ingress.start()
        try:
            yield site
        finally:
            assert site.ingress.stop(5), site.out.getvalue()
