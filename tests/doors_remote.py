"""An ingress in a thread of the test, and workers that come to it with what they like to say.

Unlike the doors of tests/workers.py a client here repeats nothing, splits nothing, and may send
what no worker would.
"""

import http.client
import io
import itertools
import json
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from prometheus_client import generate_latest

from qinglong_sql.control_log import Log
from qinglong_sql.ingress import Ingress
from qinglong_sql.ingress_settings import IngressSettings, load
from qinglong_sql.tls import client_context
from qinglong_sql.wire import JSON, OF_STEP, body_of, encoded
from tests.controls import login_of
from tests.engines import drop_postgres, fresh_postgres
from tests.server import Server
from tests.workers import HOST, Authority, told

_number = itertools.count(1)
WORKER = "ql_worker"
Answer = tuple[int, dict[str, Any]]


class Client:
    """One connection of a worker that is kept; nothing is repeated by itself."""

    def __init__(self, port: int, context: ssl.SSLContext, timeout: float = 15) -> None:
        self.line = http.client.HTTPSConnection(HOST, port, timeout=timeout, context=context)
        self.headers: Mapping[str, str] = {}

    def send(
        self, path: str, body: bytes | None = b"{}", method: str = "POST", **headers: str
    ) -> Answer:
        """Send bytes as they are; status and what the answer's JSON says."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.line.request(method, path, body, {"Content-Type": JSON} | named)
        return self.heard()

    def heard(self) -> Answer:
        answer = self.line.getresponse()
        self.headers = answer.headers
        assert answer.headers["Content-Type"] == JSON
        return answer.status, json.loads(answer.read())

    def ask(self, route: str, **body: Any) -> Answer:
        return self.send(f"/v1/{route}", encoded(body))

    def log(self, held: Any, offset: int, chunk: bytes, **more: str) -> Answer:
        """Send a piece of a log of an attempt that acting.lease gave."""
        said = {"QL_Attempt": held.attempt_id, "QL_Fence": str(held.fence), "QL_Token": held.token,
                "QL_Offset": str(offset), "Content_Type": "application/octet-stream"}  # fmt: skip
        return self.send("/v1/log", chunk, **(said | more))

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
    """A running ingress and who comes to it."""

    def __init__(self, dsn: str, authority: Authority, settings: IngressSettings) -> None:
        self.dsn, self.authority, self.settings = dsn, authority, settings
        self.out = io.StringIO()
        self.ingress = Ingress(settings, Log("json", "debug", self.out))

    def context(self, worker: str) -> ssl.SSLContext:
        papers = self.authority.worker(worker)
        return client_context(papers.certificate, papers.key, papers.ca)

    def client(self, worker: str = "w1") -> Client:
        return Client(self.ingress.port, self.context(worker))

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
def site_of(dsn: str, authority: Authority, folder: Path, **changes: Any) -> Iterator[Site]:
    """An ingress on a database that the DSN's superuser owns, by a login of its own."""
    with login_of(dsn, f"door_login_{next(_number)}", WORKER) as login:
        settings, _ = load(None, {}, told(login, authority, folder))
        site = Site(dsn, authority, replace(settings, **changes))
        site.ingress.start()
        try:
            yield site
        finally:
            assert site.ingress.stop(5), site.out.getvalue()


@contextmanager
def site_on(server: Server, folder: Path) -> Iterator[Site]:
    """An ingress on a fresh database of that server, with an authority of its own."""
    url = fresh_postgres(server)
    with site_of(url, Authority(folder), folder) as site:
        yield site
    drop_postgres(server, url)
