"""KILL at every statement boundary of every step on SQLite: nothing before the commit, all after.

`tests.crashing` says how; the long proof (tests.prove.crashes) KILLs at each boundary by itself,
and inside of statements. What power failure adds is test_power's.
"""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from qinglong_sql.store.sqlite import Profile, SqliteStore
from qinglong_sql.store.steps import STEPS
from tests import crash_cases, crashing
from tests.crashing import Case, Spoil

PROFILES: tuple[Profile, ...] = ("edge", "standalone")
BOUNDARIES = 1_000  # of a life, at least: a count that falls says that something is not looked at


@pytest.fixture
def cheap_forks() -> Iterator[None]:
    """What this process has made so far is not looked at again, by a child either."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def told(cases: list[Case], folder: Path) -> list[str]:
    wrong, work = list[str](), folder / "work.db"
    for case in cases:
        chosen = crashing.moments(case, work, None)
        for at in chosen:
            wrong += crashing.killed(case, at, work, None)
        print(f"{case.profile:<11}{case.statements + 1:>4} boundaries, {len(chosen):>3} moments"
              f"  {case.name}")  # fmt: skip
    return wrong


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.usefixtures("cheap_forks")
def test_before_the_commit_nothing_is_durable_and_after_it_everything(
    profile: Profile, tmp_path: Path
) -> None:
    """The long proof does so with a cache that spills as well."""
    cases = [*crash_cases.lived(tmp_path, profile), crash_cases.fused(tmp_path, profile)]
    assert {step for case in cases for step, _ in case.calls} == STEPS.keys()
    assert sum(case.statements + 1 for case in cases) > BOUNDARIES
    assert told(cases, tmp_path) == []


@pytest.mark.parametrize("profile", PROFILES)
def test_boundaries_between_which_no_file_changes(profile: Profile, tmp_path: Path) -> None:
    case, work = crash_cases.fused(tmp_path, profile), tmp_path / "work.db"
    chosen = crashing.boundaries(case)[:: 3 if profile == "edge" else 9]
    assert [line for at in chosen for line in crashing.killed(case, at, work)] == []


# --- teeth


class Halved(crashing.Counted):
    """Commits after half of its statements, and goes on in another transaction."""

    half = 20

    def execute(self, *words: object) -> object:
        if self.count == self.half:
            self.cursor.execute("commit")
            self.cursor.execute("begin immediate")
        return super().execute(*words)


def halved(store: SqliteStore) -> None:
    store._cursor = Halved(store._cursor)  # type: ignore[assignment]


def forgetful(store: SqliteStore) -> None:
    """Answers before it has committed."""
    store._commit = lambda: None  # type: ignore[method-assign]


def unlogged(store: SqliteStore) -> None:
    """Keeps in memory what a rollback needs."""
    store._connection.execute("pragma journal_mode = memory")
    crashing.spilling(store)


@pytest.mark.parametrize(
    ("profile", "spoil", "word"),
    [
        ("edge", halved, "durable before the commit"),
        ("standalone", halved, "durable before the commit"),
        ("edge", forgetful, "lost"),
        ("standalone", forgetful, "lost"),
        ("edge", unlogged, "integrity_check"),
    ],
)
def test_a_broken_store_is_found(profile: Profile, spoil: Spoil, word: str, tmp_path: Path) -> None:
    case, work = crash_cases.fused(tmp_path, profile), tmp_path / "work.db"
    wrong = list[str]()
    for at in (case.statements, case.statements + 1):
        try:
            wrong += crashing.killed(case, at, work, spoil)
        except Exception as error:  # a file so broken that nothing can be asked
            wrong.append(f"integrity_check: {error}")
    assert any(word in line for line in wrong), wrong


@pytest.mark.parametrize(
    ("word", "value", "told"),
    [
        ("synchronous", "normal", "synchronous is 1, not 2"),
        ("journal_mode", "delete", "journal_mode is delete, not truncate"),
        ("foreign_keys", "off", "foreign_keys is 0, not 1"),
    ],
)
def test_a_weaker_setting_is_found(word: str, value: str, told: str, tmp_path: Path) -> None:
    case = crash_cases.fused(tmp_path, "edge")
    store = crashing.opened(case.file, "edge", case.now_ms)
    assert list(crashing.sound(store, "edge")) == []
    store._connection.execute(f"pragma {word} = {value}")
    assert list(crashing.sound(store, "edge")) == [told]
    store.close()
