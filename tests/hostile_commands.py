"""Bad arguments of every command, asked of the command itself (see tests.hostile for the steps).

A refused command says so in bounded words and with its exit code, never in a traceback, and leaves
every row of every table. NUL and most lone surrogates cannot stand in an argument: the kernel ends
it there, and Python reads bytes that are not UTF-8 as the low ones.
"""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from qinglong_sql.cli import COMMANDS, main
from qinglong_sql.cli.words import LINE_CHARS
from qinglong_sql.store import open_store
from tests import acting
from tests.engines import Engine
from tests.shell import Shell

SECRET = "hunter2-secret"
CODES = range(7)
PATIENCE_S = 5.0
PACKAGE = f"""\
package: nightly
tasks:
  hello: {{run: "true", env: {{T: {SECRET}}}}}
workflows:
  etl: {{steps: {{a: {{run: "true"}}, b: {{run: "true", needs: [a]}}}}}}
"""
VALUES = (
    "", " ", "\udcff\udcfe", "\x1b[2J", "x" * 100_000, "\U0001f600" * 300, "-1", "0", "1e400",
    "nan", "inf", "99999999999999999999999", "-0", "--", "-", "--json", "../../../etc/hostname",
    "/dev/null", "/dev/full", "/dev/zero", "/proc/self/mem", "/", ".", "jobs.yaml/x", "a=b", "=",
    "a", '{"a":', "%s%n", "' or 1=1", "sqlite://", "sqlite:///", "sqlite:////dev/null",
    "sqlite:////etc/hostname", "postgresql://u:pw@127.0.0.1:1/x", "postgresql://[", "mysql://x",
    "2d", "1e9d", "999999999999d", "-5m", "\u0663d", "yesterday", "0000-00-00", "9999-12-31",
    "2026-02-30T25:00", "10000-01-01", "\u202e", "null", "RUN", "RUN-1", "ru", "nightly", "etl",
    "9" * 5_000, "auto", "text",
)  # fmt: skip
# what makes a command wait or serve, and so never refuses
SERVES = {
    "edge": {"", ".", "/", "-", "--", "--json"},
    "run": {"", ".", "/", "-", "--", "--json"},
    "resume": {"RUN"},
    "watch": {"", "RUN", "ru"},
}
WORDS = {
    "init": ["x.yaml"], "check": ["jobs.yaml"], "import-crontab": ["tab"], "run": ["none.yaml"],
    "edge": ["--packages", "/none"], "publish": ["jobs.yaml"], "start": ["nightly", "etl"],
    "cancel": ["RUN"], "resume": ["none"], "retry": ["RUN"],
    "attempt declare-stopped": ["RUN-1"], "show": ["RUN"],
    "watch": ["none"], "events": ["RUN"], "explain": ["RUN"], "logs": ["RUN"],
    "graph": ["jobs.yaml", "etl"], "purge": ["--older-than", "1d"], "backup": ["b.db"],
    "restore": ["none.db"], "completion": ["bash"], "cron next": ["@daily"],
    "schedules": ["nightly"], "trigger pause": ["nightly", "t"],
    "trigger resume": ["nightly", "t"], "trigger fire": ["nightly", "t"],
}  # fmt: skip


class Hangs(BaseException):
    """Not an Exception, which a command may take for trouble of its own."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """End what takes longer. Raises Hangs; in the main thread only."""

    def end(*_: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True, slots=True)
class Desk:
    """A folder with a package, a database and an open run in it."""

    shell: Shell
    engine: Engine
    run_id: str

    def ask(self, words: list[str]) -> str:
        """Give a command; what is wrong with how it took it, or nothing."""
        words = [word.replace("RUN", self.run_id) for word in words]
        told = " ".join(word if len(word) < 60 else f"{word[:30]}… ({len(word)})" for word in words)
        before, began = acting.everything(self.engine), time.process_time()
        try:
            with within(10 * PATIENCE_S):
                done = self.shell(*words)
        except (Exception, Hangs) as error:
            return f"{told}: {type(error).__name__}: {error}"
        if done.returncode not in CODES:
            return f"{told}: exit {done.returncode}"
        if "Traceback" in done.stderr or SECRET in done.stderr + done.stdout:
            return f"{told}: a traceback or a secret"
        if max(map(len, done.stderr.split("\n"))) > LINE_CHARS + 200 or "\x1b" in done.stderr:
            return f"{told}: beyond bounds, or an escape: {done.stderr[:80]!r}"
        if done.returncode == 0 and done.stderr.startswith(("refused", "not ready", "Error")):
            return f"{told}: exit 0 on a refusal"
        if done.returncode != 0 and acting.everything(self.engine) != before:
            return f"{told}: exit {done.returncode}, and yet rows have changed"
        if time.process_time() - began > PATIENCE_S:
            return f"{told}: took {time.process_time() - began:.1f} s"
        return ""


def desk(folder: Path, engine: Engine) -> Desk:
    shell = Shell(folder, engine.dsn)
    shell.write("jobs.yaml", PACKAGE)
    shell.write("tab", "* * * * * true\n")
    assert shell("publish", "jobs.yaml").returncode == 0
    run_id = str(
        json.loads(shell("start", "nightly", "etl", "--key", "k", "--json").stdout)["run_id"]
    )
    store = open_store(engine.dsn)
    acting.admit(store, run_id)
    store.close()
    return Desk(shell, engine, run_id)


def every_command() -> Iterator[tuple[str, click.Command]]:
    """Each command by its words; of a group those in it."""
    context = click.Context(main)
    for name in COMMANDS:
        command = main.get_command(context, name)  # type: ignore[attr-defined]
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", one) for inner, one in command.commands.items())
        else:
            yield name, command


def bad_words() -> Iterator[list[str]]:
    """Each parameter of each command with each of VALUES in its place."""
    for name, command in every_command():
        places = [one for one in command.params if isinstance(one, click.Argument)]
        for parameter in command.params:
            if parameter.name in ("follow", "wait") or (name, parameter.name) == (
                "edge",
                "packages",
            ):
                continue
            for value in VALUES:
                if value in SERVES.get(name, ()):
                    continue
                words = list(WORDS.get(name, ()))
                if isinstance(parameter, click.Option):
                    words += [max(parameter.opts, key=len), *([] if parameter.is_flag else [value])]
                else:
                    words += ["x"] * (len(places) - len(words))
                    words[places.index(parameter)] = value
                yield [*name.split(), *words]
                if isinstance(parameter, click.Option) and parameter.is_flag:
                    break


def environment_dsns() -> tuple[str, ...]:
    return ("", "nonsense", "sqlite://", "postgresql://", "postgresql://[", "\udcff", "http://x/y")
