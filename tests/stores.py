"""A store on a fresh SQLite file with the living SQL, and a clock that stands until it is moved."""

from pathlib import Path

from qinglong_sql.migrate import install_sqlite
from qinglong_sql.store.sqlfiles import manifest_text
from qinglong_sql.store.sqlite import Profile, SqliteStore

DAWN_MS = 1_700_000_000_000


class FakeClock:
    """Milliseconds since 1970 that pass only when a test says so."""

    def __init__(self, now_ms: int = DAWN_MS) -> None:
        self.now_ms = now_ms

    def now(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> int:
        """Let time pass, or go back when negative; the time then."""
        self.now_ms += ms
        return self.now_ms

    def set(self, ms: int) -> None:
        self.now_ms = ms


def install(path: Path) -> None:
    """Make a file with the tables and the decision views of the `sql/` tree."""
    install_sqlite(path, manifest_text())


def sqlite_store(
    tmp_path: Path, clock: FakeClock, *, profile: Profile = "standalone", name: str = "qinglong.db"
) -> SqliteStore:
    """A store on `tmp_path/name`, installed when it is not there yet. Close it."""
    path = tmp_path / name
    if not path.exists():
        install(path)
    return SqliteStore(path, profile=profile, clock=clock.now)
