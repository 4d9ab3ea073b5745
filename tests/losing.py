"""A whole life on PostgreSQL in which every command, or its answer, is lost once and repeated.

Two databases at the same time: one behind a proxy that loses, one without faults. After every act
their rows must be equal, and so must the answers.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import psycopg

from qinglong_sql.errors import QinglongError
from qinglong_sql.stage import STAGES, START, Stage
from qinglong_sql.store import Call, Row
from qinglong_sql.store.postgres import PostgresStore
from tests import engines
from tests.lives import Lived, title
from tests.proxy import Loss, in_front_of
from tests.server import Server
from tests.stores import FakeClock, ServerClock


class Clocks(FakeClock):
    """One time for several."""

    def __init__(self, *clocks: FakeClock) -> None:
        super().__init__()
        self.clocks = clocks

    def set(self, ms: int) -> None:
        super().set(ms)
        for clock in self.clocks:
            clock.set(ms)


class Rows:
    """Every row of every table of a database, in one look."""

    def __init__(self, dsn: str) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)
        listed = "select tablename from pg_tables where schemaname = 'ql' order by tablename"
        names = [name for (name,) in self.connection.execute(listed).fetchall()]
        self.text = " union all ".join(
            f"select '{one}', t::text from ql.{one} as t" for one in names
        )

    def all(self) -> set[tuple[str, str]]:
        return set(self.connection.execute(self.text).fetchall())  # type: ignore[arg-type]

    def close(self) -> None:
        self.connection.close()


@dataclass(frozen=True, slots=True)
class Spoilt:
    """In a function of the database that loses, the one place `old` becomes `new`."""

    function: str
    old: str
    new: str

    def apply(self, dsn: str) -> None:
        with psycopg.connect(dsn) as connection:
            asked = "select pg_get_functiondef(%s::regproc)"
            ((text,),) = connection.execute(asked, [self.function]).fetchall()
            assert text.count(self.old) == 1, f"{self.function} has no single {self.old!r}"
            connection.execute(text.replace(self.old, self.new))


class Pair:
    """A store behind the proxy, one beside it, one without faults, and what the databases hold."""

    def __init__(self, server: Server, stack: ExitStack, prepare_threshold: int | None) -> None:
        found = [engines.fresh_postgres(server) for _ in range(2)]
        for dsn in found:
            stack.callback(engines.drop_postgres, server, dsn)
        self.dsn = found[0]
        self.proxy, behind = in_front_of(found[0])
        stack.callback(self.proxy.close)
        self.losing = PostgresStore(behind, prepare_threshold=prepare_threshold)
        self.direct = PostgresStore(found[0], prepare_threshold=prepare_threshold)
        self.calm = PostgresStore(found[1])
        self.rows = [Rows(dsn) for dsn in found]
        clocks = [ServerClock(dsn) for dsn in found]
        self.clock = Clocks(*clocks)
        for one in (self.losing, self.direct, self.calm, *self.rows, *clocks):
            stack.callback(one.close)

    def parted(self) -> str:
        """The rows that one has and the other lacks; nothing when they are equal."""
        there, wanted = (rows.all() for rows in self.rows)
        return "" if there == wanted else f"-{sorted(wanted - there)} +{sorted(there - wanted)}"


def compared(
    server: Server,
    loss: Loss,
    prepare_threshold: int | None,
    *,
    paged: bool = False,
    spoilt: Spoilt | None = None,
) -> Iterator[str]:
    """Act by act, what was wrong about it: nothing, or a sentence. Every act yields once.

    paged: what stages do is asked for by page, as the scheduler does. spoilt: a rule that is broken
    where commands are lost; the test that it is noticed.
    """
    with ExitStack() as stack:
        pair = Pair(server, stack, prepare_threshold)
        if spoilt:
            spoilt.apply(pair.dsn)
        life = Lived(pair.clock)
        for act, call in life.acts():
            stage = staged(act.step) if paged else None
            where = f"{title(act)}, {loss} lost, prepared from {prepare_threshold}"
            if stage:
                wrong = page_once(pair, loss, stage)
            else:
                first, wrong = call_once(pair, loss, call)
                life.learn(act, first)
            wrong = wrong or pair.parted()
            yield f"{where}: {wrong}" if wrong else ""


def staged(step: str) -> Stage | None:
    return next((one for one in STAGES.values() if step in (one.page_step, one.run_step)), None)


def call_once(pair: Pair, loss: Loss, call: Call) -> tuple[list[Row], str]:
    """Lose it and repeat it; the first answer without faults, and what was wrong."""
    step, params = call
    first = wanted = pair.calm.call(step, **params)
    if loss != "command":
        wanted = pair.calm.call(step, **params)
    pair.proxy.lose(loss)
    try:
        return first, f"nothing was lost: {pair.losing.call(step, **params)}"
    except psycopg.OperationalError:
        try:
            answer = pair.losing.call(step, **params)
        except (QinglongError, psycopg.Error) as error:
            return first, f"the repetition raises {error!r}"
    return first, "" if answer == wanted else f"the repetition answers {answer}, not {wanted}"


def page_once(pair: Pair, loss: Loss, stage: Stage) -> str:
    """Lose each command of a page in turn, then let the page be; what was wrong."""
    pair.calm.page(stage, START, 32)
    for after in range(1 if stage.page_step else 2):
        pair.proxy.lose(loss, after)
        before = pair.proxy.lost
        try:
            page = pair.losing.page(stage, START, 32)
        except psycopg.OperationalError:
            continue
        if pair.proxy.lost != before:
            return f"a lost {loss} was swallowed: {page}"
        pair.proxy.lose(None)  # nothing was due any more
    pair.losing.page(stage, START, 32)
    if faults := pair.losing.read("fault_state"):
        return f"a lost {loss} became a fault: {faults}"
    return ""
