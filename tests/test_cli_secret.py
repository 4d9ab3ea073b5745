"""Secrets: passwords and what a step gets are in no output, event, error or file of ours."""

import json
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from qinglong_sql.cli.exits import without_secrets
from qinglong_sql.store import open_store
from tests.binaries import run_tool
from tests.engines import Engine
from tests.shell import Shell

PACKAGE = """\
package: nightly
workflows:
  etl:
    steps:
      one: {run: "pwd; echo one"}
      two: {run: "sleep 0.3; echo two", needs: [one]}
"""


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:Gehe1m@127.0.0.1:1/x",
        "postgresql://app:Gehe1m x@127.0.0.1:1/x",
        "postgresql://app:Gehe1m/x@127.0.0.1:1/x",
        "postgresql://app:Gehe1m@x@127.0.0.1:1/x",
        "postgresql://app:x@Gehe1m@127.0.0.1:1/x",
        "postgresql://app:Gehe1m#x@127.0.0.1:1/x",
        "postgresql://app:Gehe1m%zz@127.0.0.1:1/x",
        "postgresql://app@127.0.0.1:1/x?password=Gehe1m",
        "postgresql://app@127.0.0.1:1/x?password=Gehe1m&nope=1",
        "mysql://app:Gehe1m@127.0.0.1:1/x",
        "app:Gehe1m@127.0.0.1",
    ],
)
def test_a_password_is_in_no_message(tmp_path: Path, url: str) -> None:
    shell = Shell(tmp_path, url)
    shell.write("jobs.yaml", PACKAGE)
    for words in (("runs",), ("doctor",), ("migrate",), ("publish", "jobs.yaml")):
        for dsn_words in ((), ("--dsn", url)):
            done = shell(*words, *dsn_words)
            assert done.returncode == (6 if url.startswith("postgresql") else 2), done.stderr
            assert "Gehe1m" not in done.stdout + done.stderr, done.stderr
            assert done.stderr


def test_pieces_of_a_password_are_taken_out_of_a_drivers_words() -> None:
    told = "failed to resolve host 'ss@127.0.0.1'"
    assert without_secrets(told, "postgresql://a:pa@ss@127.0.0.1/x") == (
        "failed to resolve host '***@127.0.0.1'"
    )
    assert without_secrets("plain words", "postgresql://a@b/c") == "plain words"
    assert without_secrets("plain words", "sqlite:///a.db") == "plain words"


def test_secrets_reach_the_step_and_nothing_else(engine: Engine, tmp_path: Path) -> None:
    shell = Shell(tmp_path, engine.dsn, {"INHERITED": "Gehe1m-inherited"})
    shell.write("secret", "Gehe1m-file\n", mode=0o600)
    shell.write(
        "jobs.yaml",
        """\
package: secrets
workflows:
  w:
    steps:
      use: {run: "printf %s \\"$FROM_FILE$INHERITED$QINGLONG_DSN\\" | sha256sum > digest; exit 1",
            env: {FROM_FILE: {file: secret}}}
""",
    )
    said = []
    done = shell("run", "jobs.yaml")
    assert done.returncode == 1, done.stderr
    said.append(done)
    run_id = json.loads(shell("runs", "--json").stdout)[0]["run_id"]
    for words in (
        ("runs",), ("show", run_id), ("events", run_id), ("explain", run_id), ("logs", run_id),
        ("graph", run_id), ("doctor",), ("cancel", run_id), ("publish", "jobs.yaml"),
        ("start", "secrets"), ("check", "jobs.yaml"), ("migrate", "--sql"),
    ):  # fmt: skip
        said += [shell(*words), shell(*words, "--json")]
    password = engine.server.password if engine.server else "Gehe1m"
    for done in said:
        for secret in ("Gehe1m", password):
            assert secret not in done.stdout + done.stderr, done.args
    wanted = subprocess.run(
        ["sha256sum"], input="Gehe1m-fileGehe1m-inherited", capture_output=True, text=True
    )
    assert (tmp_path / "digest").read_text() == wanted.stdout  # and no DSN
    with closing(open_store(engine.dsn)) as store:
        assert store.read("violation") == []
    if engine.kind == "sqlite":
        for path in tmp_path.glob("qinglong.db*"):
            assert b"Gehe1m" not in path.read_bytes(), path
    else:
        dump = run_tool(engine.server.binaries.folder, "pg_dump", engine.dsn).stdout
        assert "Gehe1m" not in dump and "secrets" in dump
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "secret":
            assert b"Gehe1m-file" not in path.read_bytes(), path
