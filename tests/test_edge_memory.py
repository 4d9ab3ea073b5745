"""What an edge needs on a small device: memory after ten runs, and no heavy module."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from qinglong_sql.door import ask
from tests.shell import Shell, ended
from tests.site import wait

AIM_KIB = 48 * 1024
RUNS, STEPS = 10, 20
HEAVY = {"psycopg", "psycopg_pool", "sqlalchemy", "alembic", "rich", "asyncio", "cronsim"}


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    one = Shell(tmp_path, "sqlite:///q.db")
    yield one
    one.nothing_is_left()


def test_memory_after_ten_runs_of_twenty_steps(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = "\n".join(
        f"      s{n}: {{run: 'true'{f', needs: [s{(n - 1) // 4}]' if n else ''}}}"
        for n in range(STEPS)
    )
    shell.write("packages/p.yaml", f"package: p\nworkflows:\n  w:\n    steps:\n{steps}\n")
    state = shell.folder / "q.db.worker"
    process = shell.begin("edge", "--packages", "packages", output=shell.folder / "log")
    try:
        wait(lambda: ask(state, "wake") and shell("start", "p", "w").returncode == 0,
             "it is published")  # fmt: skip
        for _ in range(RUNS - 1):
            assert shell("start", "p", "w").returncode == 0
        wait(lambda: (ask(state, "status") or {}).get("runs_ended") == RUNS, "all have ended")
        used = memory(process.pid)
        server = sum(memory(pid) for pid in children(process.pid))
        modules = set((ask(state, "modules") or {})["modules"])
    finally:
        process.terminate()
        code = ended(process)
    assert code == 0, (shell.folder / "log").read_text()
    with capsys.disabled():
        print(f"\nedge after {RUNS} runs of {STEPS} steps: {used / 1024:.1f} MiB,"
              f" its fork server {server / 1024:.1f} MiB")  # fmt: skip
    assert used < AIM_KIB
    assert "sqlite3" in modules and not modules & HEAVY


def memory(pid: int) -> int:
    """Resident KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def children(pid: int) -> list[int]:
    texts = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for text in texts for child in text.read_text().split()]
