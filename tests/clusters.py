"""A PostgreSQL server whose folder lies on a file system of our own, killed and started again."""

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psycopg

from tests import server
from tests.binaries import default

UP_S = 30


class Cluster:
    """`address` leads to it as long as it is up; `restart` makes it so again."""

    def __init__(self, folder: Path, options: Mapping[str, str]) -> None:
        before, tempfile.tempdir = tempfile.tempdir, str(folder)
        try:
            self.made = server.start(default(), durable=True, options=options)
        finally:
            tempfile.tempdir = before
        with Path(os.devnull).open("rb") as nothing:  # a file on the mount would hold it
            os.dup2(nothing.fileno(), self.made.alive, inheritable=False)
        self.settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.made.scratch / "socket"),
            "port": str(self.made.port),
            **options,
        }

    @property
    def address(self) -> str:
        return server.dsn(self.made)

    def is_up(self) -> bool:
        return self.made.child.poll() is None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.made.child.pid, signal.SIGKILL)
        self.made.child.wait()

    def restart(self) -> None:
        """Start it again after its end, and wait until it answers. Raises server.NoServer."""
        made = self.made
        child = server._spawn(made.binaries, made.scratch, server._server_user(), self.settings)
        self.made = server.Server(
            made.binaries, made.scratch, made.port, made.password, child, made.alive, made.owner
        )
        self.until_it_answers()

    def until_it_answers(self) -> None:
        """Wait until a recovery is over. Raises server.NoServer."""
        end = time.monotonic() + UP_S
        while self.is_up() and time.monotonic() < end:  # postmaster.pid may be an old one
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.address).close()
                return
            time.sleep(0.05)
        raise server.NoServer(f"it does not come up again: {server.log(self.made)[-500:]}")

    def log_elsewhere(self, folder: Path) -> None:
        """Move its write-ahead log to another file system. It is down meanwhile."""
        self.made.child.send_signal(signal.SIGINT)
        self.made.child.wait(UP_S)
        wal, new = self.made.scratch / "data" / "pg_wal", folder / "wal"
        seen = wal.stat()
        shutil.copytree(wal, new)
        for path in (folder, new, *new.rglob("*")):
            os.chown(path, seen.st_uid, seen.st_gid)
        new.chmod(0o700)
        shutil.rmtree(wal)
        wal.symlink_to(new)
        self.restart()


@contextlib.contextmanager
def cluster(folder: Path, **options: str) -> Iterator[Cluster]:
    """A server with the schema; `options` are its settings, beside fsync and full_page_writes."""
    made = Cluster(folder, options)
    try:
        server.install(made.address, folder=made.made.binaries.folder)
        yield made
    finally:
        made.kill()
        with contextlib.suppress(OSError):
            server.stop(made.made)
