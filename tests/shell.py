"""The command line as its users have it: a process of its own, in a folder of its own."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from qinglong_sql.cli import main
from tests.site import kill_all_of, processes_of, wait

HOME = Path(__file__).resolve().parent.parent
WITHIN_S = 90.0
Done = subprocess.CompletedProcess[str]


@dataclass(slots=True)
class Shell:
    """A folder to call commands in, with the database they use; its workers are below it."""

    folder: Path
    dsn: str
    env: dict[str, str] = field(default_factory=dict)

    def write(self, name: str, text: str, mode: int = 0o644) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def environment(self, **more: str) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("QINGLONG_", "LC_", "LANG", "PYTHON", "COV", "QL_"))
        }
        ours = {"PYTHONPATH": str(HOME), "LANG": "C.UTF-8", "QINGLONG_DSN": self.dsn}
        return {**kept, **ours, **self.env, **more}

    def __call__(self, *words: object, env: dict[str, str] | None = None) -> Done:
        """Run one command to its end; whatever it is told, it never ends in a traceback.

        A command that only looks is called in this process, which is quicker.
        """
        if words[0] in ("run", "resume"):
            return self.process(*words, env=env)
        environ = dict.fromkeys(os.environ, None) | self.environment(**(env or {}))
        with contextlib.chdir(self.folder):
            done = _runner().invoke(main, list(map(str, words)), env=environ)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Done(list(map(str, words)), done.exit_code, done.stdout, done.stderr)

    def process(
        self, *words: object, env: dict[str, str] | None = None, within_s: float = WITHIN_S
    ) -> Done:
        """The same in a process of its own."""
        done = subprocess.run(
            command(*words),
            cwd=self.folder,
            env=self.environment(**(env or {})),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=within_s,
            check=False,
        )
        assert "Traceback" not in done.stderr + done.stdout, done.stderr
        assert "Exception ignored" not in done.stderr, done.stderr
        return done

    def begin(self, *words: object, output: Path) -> subprocess.Popen[bytes]:
        """Start a command whose standard output and error go to one file."""
        with output.open("ab") as sink:
            return subprocess.Popen(
                command(*words),
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def nothing_is_left(self) -> None:
        """Assert that no process of this folder lives, soon; otherwise end them."""
        try:
            wait(lambda: not processes_of(self.folder), "nothing runs", 8)
        except AssertionError:
            left = processes_of(self.folder)
            kill_all_of(self.folder)
            raise AssertionError(f"still running: {left}") from None


def _runner() -> CliRunner:
    try:
        return CliRunner(mix_stderr=False)  # type: ignore[call-arg]
    except TypeError:  # click 8.2 and newer keep them apart always
        return CliRunner()


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "qinglong_sql", *map(str, words)]


def ended(process: subprocess.Popen[Any], within_s: float = WITHIN_S) -> int:
    """Its exit code; a process that does not end is killed and fails the test."""
    try:
        return process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


def until(true: Callable[[], object], process: subprocess.Popen[Any], what: str) -> None:
    """Wait until it is so while the process runs."""
    end = time.monotonic() + WITHIN_S
    while not true():
        assert process.poll() is None, f"it ended ({process.returncode}) before {what}"
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.005)
