"""Workers behind their own door, as real processes: an authority, an ingress, workers, controls.

Each lives in a folder of its own below one scratch folder; certificates are from an authority that
is made there. `witness` holds tasks that say on their own, apart from the database, when each of
their executions was alive.
"""

import io
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from qinglong_sql import ca
from qinglong_sql.control_log import Log
from qinglong_sql.ingress import Ingress
from qinglong_sql.ingress_settings import load
from qinglong_sql.remote import Papers, Remote
from tests import controls
from tests.controls import HOME, login_of

HOST = "127.0.0.1"
INGRESS_LOGIN = "ingress_login"
LEASE_MS = 5_000


class Authority:
    """A certificate authority of its own, and papers of whoever is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "ca"
        self._papers = folder / "papers"
        self._papers.mkdir(parents=True, exist_ok=True)
        ca.init(self.folder)

    @property
    def crl(self) -> Path:
        return self.folder / "revoked.pem"

    def ingress(self, *hosts: str) -> Papers:
        """The papers of an ingress that is called so; by default at loopback."""
        return self._papers_of("ingress", server=True, hosts=hosts or (HOST,))

    def worker(self, name: str) -> Papers:
        """The papers of a worker."""
        return self._papers_of(name)

    def _papers_of(self, name: str, **wanted: Any) -> Papers:
        """Those that it has, or new ones."""
        out = self._papers / name
        if not (out / f"{name}.crt").exists():
            ca.issue(self.folder, name, out=out, **wanted)
        return Papers(out / f"{name}.crt", out / f"{name}.key", out / "ca.crt")

    def revoke(self, name: str) -> None:
        ca.revoke(self.folder, name)


def told(
    dsn: str, authority: Authority, folder: Path, port: int = 0, host: str = HOST
) -> dict[str, str]:
    """The settings of an ingress, as an environment."""
    papers = authority.ingress(host)
    said = {
        "dsn": dsn,
        "listen": f"{host}:{port}",
        "health_listen": f"{HOST}:0",
        "certificate": papers.certificate,
        "key": papers.key,
        "client_ca": papers.ca,
        "crl": authority.crl,
        "ca_dir": authority.folder,
        "log_dir": folder / "log",
    }
    return {f"QINGLONG_INGRESS_{key.upper()}": str(value) for key, value in said.items()}


@contextmanager
def ingress_here(dsn: str, authority: Authority, folder: Path) -> Iterator[Ingress]:
    """An ingress on threads of this process, for a database whose clock may be a test's."""
    with login_of(dsn, INGRESS_LOGIN, "ql_worker") as login:
        settings, _ = load(None, {}, told(login, authority, folder))
        ingress = Ingress(settings, Log("text", "info", io.StringIO()))
        try:
            ingress.connect()
            ingress.serve()
            yield ingress
        finally:
            ingress.stop(5.0)


@contextmanager
def doors(ingress: Ingress, authority: Authority) -> Iterator["Doors"]:
    """Ports to this ingress, one a worker."""
    with ExitStack() as stack:
        yield Doors(f"https://{HOST}:{ingress.port}", authority, stack)


class Doors:
    """Ports by worker, each made when it is first asked for."""

    def __init__(self, url: str, authority: Authority, stack: ExitStack) -> None:
        self.url, self.authority, self._stack = url, authority, stack
        self._made: dict[str, Remote] = {}

    def __call__(self, worker: str) -> Remote:
        if worker not in self._made:
            made = Remote(self.url, self.authority.worker(worker), lease_ms=300_000)
            self._stack.callback(made.close)
            self._made[worker] = made
        return self._made[worker]


# -- processes


class Served(controls.Process):
    """A process of any command, started at once, its log in JSON. Close it."""

    def __init__(self, name: str, folder: Path, *words: str, **env: str) -> None:
        self.name = name
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / f"{name}-{time.monotonic_ns()}.log"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("QINGLONG_", "PG"))}
        with self.log.open("wb") as sink:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "qinglong_sql", *words],
                env={**kept, "PYTHONPATH": str(HOME), **env},
                cwd=folder, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
                start_new_session=True,
            )  # fmt: skip


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server((HOST, 0)) as found:
        return int(found.getsockname()[1])


def ingress_process(
    login: str, authority: Authority, folder: Path, port: int, host: str = HOST
) -> Served:
    """`qinglong-sql ingress` at a port."""
    return Served(
        "ingress", folder, "ingress", "--log-format", "json",
        **told(login, authority, folder, port, host),
    )  # fmt: skip


def worker_process(
    name: str,
    papers: Papers,
    folder: Path,
    url: str,
    *words: str,
    slots: int = 4,
    lease_ms: int = LEASE_MS,
    **env: str,
) -> Served:
    """`qinglong-sql worker` behind an ingress, its state in `folder/state`."""
    door = ("--ingress", url, "--certificate", str(papers.certificate), "--key", str(papers.key),
            "--ca", str(papers.ca))  # fmt: skip
    return _worker(name, folder, *door, *words, slots=slots, lease_ms=lease_ms, **env)


def worker_with_login(
    name: str, dsn: str, folder: Path, *words: str, slots: int = 4, lease_ms: int = LEASE_MS
) -> Served:
    """The same with a login of its own."""
    door = ("--name", name)
    return _worker(name, folder, *door, *words, slots=slots, lease_ms=lease_ms, dsn=dsn)


def _worker(
    name: str, folder: Path, *words: str, slots: int, lease_ms: int, dsn: str | None = None,
    **env: str,
) -> Served:  # fmt: skip
    env |= {"QINGLONG_WORKER_DSN": dsn} if dsn else {}
    queue = () if "--queue" in words else ("--queue", "default")
    return Served(
        name, folder, "worker", *queue, "--slots", str(slots), "--lease", f"{lease_ms // 1000}s",
        "--state", str(folder / "state"), "--log-format", "json", *words, **env,
    )  # fmt: skip
