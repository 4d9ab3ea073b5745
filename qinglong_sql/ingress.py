"""The workers' door: mutual TLS 1.3 in front of the worker capability (DESIGN §8, DOMAIN §6).

A thread with an event loop of its own, four threads that call steps, and four connections of a
login that may do what workers may, and nothing else. It decides nothing: importing it brings no
stage, no scheduler and no frontier. `control --ingress` has one as its application; the command
`ingress` has one alone (ingress_process.py).
"""

import asyncio
import contextlib
import threading
import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry

from qinglong_sql.control_log import Log
from qinglong_sql.errors import NotReady
from qinglong_sql.ingress_answer import THREADS, Answerer
from qinglong_sql.ingress_calls import Calls
from qinglong_sql.ingress_logs import LogFolder
from qinglong_sql.ingress_metrics import IngressMetrics
from qinglong_sql.ingress_papers import Papers, papers_of
from qinglong_sql.ingress_refusal import AWAY, Told
from qinglong_sql.ingress_settings import IngressSettings
from qinglong_sql.ingress_visitor import Door
from qinglong_sql.log_store import FileLogStore
from qinglong_sql.readiness import assert_ready
from qinglong_sql.revocations import Revoked
from qinglong_sql.store.pooled import Pool, PooledStore, open_pool
from qinglong_sql.wire import encoded
from qinglong_sql.wire_document import document

GROUPS: Final = ("ql_worker",)
BORROW_S: Final = 2.0
PROBE_S: Final = 5.0
PROBE_AWAY_S: Final = 1.0
ORDER_S: Final = 0.5  # of a stop, for all but what is being answered


class Ingress:
    """See qinglong_sql.control.Application. `start` and `stop` it once.

    registry: where its metrics go; None: a registry of its own, for `text`.
    """

    name = "ingress"

    def __init__(
        self, settings: IngressSettings, log: Log, registry: CollectorRegistry | None = None
    ) -> None:
        self.meter = IngressMetrics(registry)
        self.port = settings.listen[1]
        self._settings, self._log = settings, log
        self._told = Told(log)
        self._logs = LogFolder(settings.log_folder(), log, self.meter.log_failed)
        self._papers: Papers | None = None
        self._pool: Pool | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self._answerer: Answerer | None = None
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="ingress")
        self._within_s = 0.0
        self._ended = True

    def start(self) -> str:
        """Read the papers, connect, see that the database is as shipped, and let workers in.

        Says in words where. Raises NotReady (QL503), psycopg.OperationalError, OSError; then
        nothing is left of it.
        """
        try:
            self.read_papers()
            return f"{self.connect()}; {self.check()}; {self.serve()}"
        except BaseException:
            self.stop(ORDER_S)
            raise

    def stop(self, within_s: float) -> bool:
        """Let nobody in, end what is answered, hang up; whether that came in time."""
        end = time.monotonic() + within_s
        ended = self.halt(within_s)
        self.hang_up(max(0.0, end - time.monotonic()))
        return ended

    def read_papers(self) -> str:
        """Read the files of TLS, before anything waits. Raises NotReady with all that is wrong."""
        self._papers = papers_of(self._settings, self._trouble)
        return self._papers.words

    def connect(self) -> str:
        """Open the pool of the worker's login. Raises psycopg.OperationalError."""
        setting = self._settings
        self._pool = open_pool(
            setting.dsn,
            size=THREADS,
            within_s=setting.boot_timeout / 1000,
            password=setting.password(),
            program="ingress",
            borrow_s=BORROW_S,
        )
        return f"{THREADS} connections"

    def check(self) -> str:
        """See that it is the shipped schema, and a login with a worker's rights alone.

        Raises NotReady (QL503).
        """
        assert self._pool is not None
        with self._pool.connection() as connection:
            found = assert_ready(connection, GROUPS)
        return f"PostgreSQL {found.server}; {found}"

    def serve(self) -> str:
        """Let workers in, from now on. Raises NotReady for files of TLS, OSError."""
        papers = self._papers or papers_of(self._settings, self._trouble)
        listens: Future[int] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(papers, listens)),
            name="ingress",
            daemon=True,
        )
        self._thread.start()
        host, port = self._settings.listen
        try:
            self.port = listens.result()
        except OSError as error:
            raise OSError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        if papers.revoked is None:
            self._log.say("warning", "boot", "no crl is set: revoked certificates are let in")
        return f"on {host} port {self.port}"

    def halt(self, within_s: float) -> bool:
        """Let nobody in any more and end what is answered; whether that came in time."""
        self._within_s = within_s
        loop, over, thread = self._loop, self._over, self._thread
        if loop is not None and over is not None:
            with contextlib.suppress(RuntimeError):  # it is over
                loop.call_soon_threadsafe(over.set)
        if thread is not None:
            thread.join(within_s + ORDER_S)
            self._ended = self._ended and not thread.is_alive()
        self._threads.shutdown(wait=False, cancel_futures=True)
        return self._ended

    def hang_up(self, within_s: float) -> bool:
        """Close the pool."""
        if self._pool is not None:
            self._pool.close(timeout=within_s)
        return True

    def refusal(self) -> str | None:
        """Why workers are not served now; None when they are. Never waits."""
        answerer = self._answerer
        if answerer is None:
            return "it does not listen yet"
        return AWAY.partition(";")[0] if answerer.away else None

    def sample(self) -> None:
        """Look at the pool, for the metrics."""
        if self._pool is not None:
            self.meter.pool(self._pool.get_stats())

    async def _serve(self, papers: Papers, listens: "Future[int]") -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(self._loop_trouble)
        try:
            assert self._pool is not None
            store = PooledStore(self._pool)
            answerer = self._made(store, papers.revoked)
            door = Door(papers.shown.context, answerer, self.meter, self._refused)
            port = await door.listen(*self._settings.listen)
        except BaseException as error:
            listens.set_exception(error)
            return
        self._loop, self._over, self._answerer = loop, over, answerer
        listens.set_result(port)
        probing = loop.create_task(self._probe(answerer, store))
        await over.wait()
        answerer.stopping = True
        probing.cancel()
        ended = await door.close(self._within_s)
        self._ended = ended and answerer.idle()

    def _made(self, store: PooledStore, revoked: Revoked | None) -> Answerer:
        ca_dir = self._settings.ca_dir
        logs = FileLogStore(self._settings.log_folder(), tell=self._logs)
        return Answerer(
            Calls(store, logs, self._fault, ca_dir, self.meter.logged),
            self._threads,
            self.meter,
            self._told,
            self._fault,
            document=encoded(document()),
            renews=ca_dir is not None,
            revoked=revoked,
        )

    async def _probe(self, answerer: Answerer, store: PooledStore) -> None:
        """Ask the database even when nobody asks: who looks at /readyz sends no workers else."""
        while True:
            await answerer.probe(store.clock)
            self._logs.look()
            if answerer.away:
                self._log.trouble("ingress", AWAY.partition(";")[0])
            else:
                self._log.well("ingress")
            await asyncio.sleep(PROBE_AWAY_S if answerer.away else PROBE_S)

    def _refused(self, reason: str, words: str, address: str) -> None:
        self.meter.refused(reason)
        place = f" from {address}" if address else ""
        self._told.say("info", f"a connection{place}: {words}", address=address, reason=reason)

    def _trouble(self, words: str) -> None:
        self._log.trouble("certificates", words)

    def _fault(self, error: Exception) -> None:
        """Where a fault of ours is; its words are not told, they may hold what a worker sent."""
        if isinstance(error, NotReady):
            self._log.trouble("ingress", error.message)
            return
        at = traceback.extract_tb(error.__traceback__)[-1]
        state = getattr(error, "sqlstate", None)
        self._log.trouble(
            "fault",
            f"{type(error).__name__}{f' {state}' if state else ''}"
            f" at {Path(at.filename).name}:{at.lineno}",
        )

    def _loop_trouble(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception) and not isinstance(error, OSError):
            self._fault(error)
