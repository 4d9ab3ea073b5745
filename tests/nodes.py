"""Two nodes, a primary and its standby, as what the clients of a failover lead to."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from qinglong_sql.migrate import upgrade
from tests import server, standby
from tests.binaries import default, run_tool
from tests.controls import GROUPS, LOGIN
from tests.server import Server

PACKAGE = "package: p\nworkflows:\n  w:\n    steps:\n      a: {run: 'true'}\n"


class Nodes:
    """A primary and a standby, or what has become of them."""

    def __init__(self, primary: Server, other: Server) -> None:
        self.primary, self.other = primary, other

    def dsn(self, login: str = "", *, first: str = "other") -> str:
        """Both nodes, the one that takes no writes in front."""
        names = (self.other, self.primary) if first == "other" else (self.primary, self.other)
        where = ",".join(f"127.0.0.1:{one.port}" for one in names)
        return f"postgresql://{login or f'postgres:{self.primary.password}'}@{where}/postgres"

    def caught_up(self) -> None:
        standby.caught_up(self.primary, self.other)

    def fail_over(self) -> None:
        """The primary is made read-only and the standby promoted: both answer all the time."""
        standby.make_read_only(self.primary)
        self.caught_up()  # nothing is lost: what was acknowledged is there
        standby.promote(self.other)
        self.primary, self.other = self.other, self.primary


@contextlib.contextmanager
def nodes_here() -> Iterator[Nodes]:
    with standby.pair(default()) as pair:
        nodes = Nodes(*pair)
        role = server.SQL_ROOT / "postgres" / "role.sql"
        run_tool(default().folder, "psql", "-Xq", "-d", server.dsn(nodes.primary), "-f", str(role))
        upgrade(nodes.dsn())
        standby.dba(nodes.primary, f"create role {LOGIN} login in role {GROUPS}")
        standby.dba(nodes.primary, "create role worker_login login in role ql_worker")
        nodes.caught_up()
        yield nodes


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    found: list[object] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, found
