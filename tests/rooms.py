"""An ingress and workers on two networks: real processes, and the line between them (netns)."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from qinglong_sql.canonical import canonical
from qinglong_sql.store.postgres import PostgresStore, open_postgres_store
from tests import acting, controls, engines, netns, witness, workers
from tests.controls import login_of
from tests.netns import Line, Room
from tests.prove import Setting, Verdict
from tests.server import Server
from tests.workers import Authority, Served

PORT = 8272
PATIENCE_S = 90.0


@dataclass(slots=True)
class Site:
    """A database, an ingress in a room of its own, and a room for workers."""

    setting: Setting
    verdict: Verdict
    dsn: str
    store: PostgresStore
    folder: Path
    authority: Authority
    here: Room
    there: Room
    line: Line
    ingress: Callable[[], Served]
    lives: Served
    stack: ExitStack

    @property
    def url(self) -> str:
        return f"https://{self.there.address}:{PORT}"

    def check(self, holds: object, words: str) -> None:
        self.verdict.check(holds, f"network, seed {self.setting.seed}: {words}")

    def worker(self, name: str, lease_ms: int) -> Served:
        """A worker process in its room; it is ready."""
        made = self.here.inside(lambda: workers.worker_process(
            name, self.authority.worker(name), self.folder / name, self.url, "--queue", name,
            lease_ms=lease_ms,
        ))  # fmt: skip
        self.stack.enter_context(closing(made))
        made.ready()
        return made

    def again(self) -> None:
        """Kill the ingress, and start another one."""
        self.lives.close()
        self.lives = self.there.inside(self.ingress)
        self.stack.enter_context(closing(self.lives))
        self.lives.ready()


@contextmanager
def site(setting: Setting, verdict: Verdict, server: Server) -> Iterator[Site]:
    """A control at the server, an ingress that comes by its socket, both rooms, and the line."""
    folder = setting.folder / "network"
    (folder / "control").mkdir(parents=True)
    dsn = engines.fresh_postgres(server)
    with ExitStack() as stack:
        here, there, line = stack.enter_context(netns.two_rooms(setting.seed))
        login = stack.enter_context(login_of(dsn, "control_there"))
        door = stack.enter_context(login_of(dsn, "ingress_there", "ql_worker"))
        socket = server.scratch / "socket"
        by_socket = re.sub(r"@[^/]*/(\w+)$", rf"@/\1?host={socket}&port={server.port}", door)
        authority = Authority(folder)

        def ingress() -> Served:
            return workers.ingress_process(
                by_socket, authority, folder / "ingress", PORT, there.address
            )

        lives = stack.enter_context(closing(there.inside(ingress)))
        control = stack.enter_context(closing(controls.Process(login, folder / "control")))
        store = stack.enter_context(closing(open_postgres_store(dsn)))
        lives.ready()
        control.ready()
        yield Site(
            setting, verdict, dsn, store, folder, authority, here, there, line, ingress, lives,
            stack,
        )  # fmt: skip


def published(site: Site, queue: str, flow: dict[str, str], key: str = "k") -> str:
    """Publish and start a flow of witness tasks for one worker; the run."""
    witnesses = site.folder / f"witness-{queue}"
    witnesses.mkdir(exist_ok=True)
    tasks = {name: task | {"queue": queue} for name, task in witness.tasks(witnesses).items()}
    steps = {step: {"needs": [], "task": task} for step, task in flow.items()}
    model = acting.model(tasks, {"flow": {"steps": steps, "timeout_ms": None}})
    site.store.call(
        "publish_package", p_package_key=queue, p_manifest=canonical(model | {"package": queue}),
        p_base_dir=str(site.folder),
    )  # fmt: skip
    (row,) = site.store.call(
        "start_run", p_package_key=queue, p_kind="workflow", p_target_key="flow", p_run_key=key,
        p_input="{}",
    )  # fmt: skip
    return str(row["run_id"])


def started(site: Site, run_id: str) -> int:
    """How many came past the start barrier: what is short may end before it is said to run."""
    rows = site.store.read("attempt_state", run_id=run_id)
    return sum(row["starting_at_ms"] is not None for row in rows)


def ended(site: Site, runs: list[str]) -> None:
    """Wait for the end of all, and hold the database against what executions said."""
    store = site.store
    try:
        wait(lambda: all(acting.ended(store, one)[0] != "running" for one in runs), "all end")
    except AssertionError as error:
        waits = [row for one in runs for row in store.read("explain", run_id=one)]
        site.check(False, f"{error}: {waits[:4]}")
        return
    attempts = [row for one in runs for row in store.read("attempt_state", run_id=one)]
    package = acting.run_row(store, runs[0])["package_key"]
    found = witness.lives(site.folder / f"witness-{package}")
    kinds = ("retry", "fail", "hold")
    on_lost = {
        (row["run_id"], row["step_key"]): next(
            (kind for kind in kinds if row["step_key"].startswith(kind)), "fail"
        )
        for row in attempts
    }
    for _, words in list(witness.judged(found, attempts, on_lost))[:5]:
        site.check(False, words)


def wait(true: Callable[[], object], words: str, within_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, f"in vain until {words}"
        time.sleep(0.05)
