"""Signals before the first step runs: while modules are imported, and once a run is stored."""

from pathlib import Path

import pytest

from tests.shell import HOME, Shell

# Sends the signal when the module is looked for, as if it had come at that moment.
HOOK = """\
import os, signal, sys
class Interrupting:
    def find_spec(name, path=None, target=None):
        if name == os.environ["INTERRUPTED_AT"]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting)
"""


@pytest.fixture
def shell(sqlite_dsn: str, tmp_path: Path) -> Shell:
    shell = Shell(tmp_path, sqlite_dsn)
    shell.write("hook/sitecustomize.py", HOOK)
    shell.write("one.yaml", "package: one\nworkflows: {w: {steps: {a: {run: 'touch ran'}}}}\n")
    return shell


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("click", ("runs",)),
        ("qinglong_sql.cli.edge", ("edge",)),
        ("qinglong_sql.cli.run", ("run", "one.yaml")),
        ("qinglong_sql.store.sqlite", ("runs",)),
        ("qinglong_sql.cli.control", ("--help",)),
    ],
)
def test_ctrl_c_while_it_starts_is_one_word(
    shell: Shell, module: str, words: tuple[str, ...]
) -> None:
    path = f"{shell.folder / 'hook'}:{HOME}"
    done = shell.process(*words, env={"PYTHONPATH": path, "INTERRUPTED_AT": module})
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
    assert not (shell.folder / "ran").exists()
