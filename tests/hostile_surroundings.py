"""Every command where it can hardly live: no standard streams or full ones, strange variables.

The exit code still tells the truth: 0 only if all was told, or nobody was there to be told; what
cannot be written is no traceback, and what was refused stores nothing.
"""

import json
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests import acting
from tests.hostile_commands import COMMANDS, PATIENCE_S, SECRET, WORDS, Desk
from tests.shell import command

FULL = "standard output: No space left on device"
# what a shell does with the three streams, and whether words on standard output are lost by it
STREAMS = {
    ">&-": False, "2>&-": False, "<&-": False, ">&- 2>&- <&-": False, "> /dev/full": True,
    "2> /dev/full": False, "> /dev/full 2> /dev/full": True, "| true": False,
}  # fmt: skip
# words that succeed here and print something; `serves` are tested where they can be stopped
GOOD = WORDS | {
    "init": ["new.yaml", "--force"], "import-crontab": ["tab"], "run": ["jobs.yaml", "hello"],
    "cancel": ["--package", "nightly", "--workflow", "hello"],
    "attempt": ["declare-stopped", "RUN-1", "--reason", "seen"], "workers": [],
    "show": ["RUN"], "logs": ["RUN"], "backup": ["b.db", "--force"], "restore": ["b.db"],
    "cron": ["next", "@daily"], "schedules": [], "trigger": ["pause", "nightly", "none"],
    "purge": ["--older-than", "1d", "--preview"], "retry": ["RUN", "--preview"],
    "ca": ["list", "none"], "withdraw": ["none"],
}  # fmt: skip
# nothing has run or failed, nobody can be asked, and no cluster is on SQLite
REFUSED = {
    "control": 2, "ingress": 2, "worker": 2, "ca": 5, "trigger": 5, "attempt": 5, "retry": 5,
    "logs": 5, "restore": 2, "withdraw": 5,
}  # fmt: skip
SERVES = {"edge", "watch", "resume"}
BYTES = "\udcff\udcfe\x1b[2J"
VARIABLES: tuple[dict[str, str | None], ...] = (
    {"HOME": None, "USER": None, "LOGNAME": None},
    {"HOME": BYTES, "USER": BYTES, "LOGNAME": BYTES},
    {"LOGNAME": "x" * 100_000},
    {"PATH": ""},
    {"PATH": None},
    {"TZ": BYTES},
    {"TZ": ":/etc/passwd"},
    {"LANG": "C", "LC_ALL": "C"},
    {"LANG": "xx_YY.bogus", "LC_ALL": "tr_TR.ISO-8859-9", "PYTHONUTF8": "0"},
    {"QINGLONG_STATE_DIR": "/proc/none", "QINGLONG_SLOTS": BYTES, "QINGLONG_": "x"},
    {"QL_RUN_ID": BYTES, "QL_OUTPUT": "/", "QL_ATTEMPT": "-1"},
    {"FORCE_COLOR": "zz", "COLUMNS": "-5", "LINES": "x", "TERM": BYTES},
    {"TMPDIR": "/none", "XDG_CONFIG_HOME": "/none", "PAGER": "/none", "EDITOR": "/none"},
    {"PGPORT": "x", "PGHOST": BYTES, "SQLITE_TMPDIR": "/none", "PGOPTIONS": "-c x=y"},
)


@dataclass(frozen=True, slots=True)
class Case:
    """One command there."""

    name: str
    stream: str = ""
    env: dict[str, str | None] = field(default_factory=dict)
    gone: bool = False  # the folder that it works in

    def __str__(self) -> str:
        shown = {name: str(value)[:20] for name, value in self.env.items()}
        return f"{self.name} {self.stream} {shown or ''} {'(folder gone)' if self.gone else ''}"


def cases() -> Iterator[Case]:
    for name in COMMANDS:
        if name not in SERVES:
            yield from (Case(name, stream) for stream in STREAMS)
            yield from (Case(name, env=env) for env in VARIABLES)
            yield Case(name, gone=True)


def fault_of(desk: Desk, case: Case) -> str:
    """What is wrong with how a command lives there; nothing when all is well."""
    words = [word.replace("RUN", desk.run_id) for word in GOOD.get(case.name, ())]
    line = shlex.join(command(case.name, *words))
    script = f'mkdir gone && cd gone && rmdir "$PWD" && {line}' if case.gone else line
    env = desk.shell.environment() | case.env
    before = acting.everything(desk.engine)
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", f"{script} {case.stream}"],
            cwd=desk.shell.folder,
            env={name: value for name, value in env.items() if value is not None},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10 * PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{case}: does not end"
    told = (done.stdout + done.stderr).decode("utf-8", "replace")
    if done.returncode not in range(7):
        return f"{case}: exit {done.returncode}: {told[-500:]}"
    if "Traceback" in told or "Exception ignored" in told or SECRET in told:
        return f"{case}: a traceback or a secret: {told[-500:]}"
    if done.returncode not in (0, 6) and acting.everything(desk.engine) != before:
        return f"{case}: exit {done.returncode}, and yet rows have changed"
    return _lie(desk, case, done.returncode, told)


def _lie(desk: Desk, case: Case, code: int, told: str) -> str:
    """An exit code that says other than what happened."""
    expected = REFUSED.get(case.name, 0)
    if STREAMS.get(case.stream) and case.name != "run" and expected == 0:
        expected = 6
        if case.stream == "> /dev/full" and FULL not in told:
            return f"{case}: does not say why: {told!r}"
    if case.gone:
        return "" if code in (0, 2, 5, 6) and told else f"{case}: exit {code} without a word"
    if case.stream == "| true":  # the exit code is that of `true`
        return ""
    return "" if code == expected else f"{case}: exit {code}, not {expected}: {told[-300:]}"


def made_ready(desk: Desk) -> Desk:
    """A backup to look at, and answers that are the same every time."""
    assert desk.shell("backup", "b.db").returncode == 0
    assert json.loads(desk.shell("runs", "--json").stdout)
    return desk
