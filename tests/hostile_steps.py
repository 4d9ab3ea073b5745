"""Steps of bad will: what they write to QL_OUTPUT and to their log, and what becomes of it.

A bad output ends its step with `bad_output` and in words; a flood is cut where it is kept, counted,
and told by `logs`; no process of ours grows with it.
"""

import json
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from qinglong_sql.command import TAIL_BYTES
from qinglong_sql.evidence import LOG_CAP_BYTES, LOG_MAX_BYTES
from qinglong_sql.limits import OUTPUT_BYTES
from qinglong_sql.store import open_store
from tests import acting
from tests.shell import Shell, command

MIB = 1024 * 1024
# what a process may take of addresses: Python and its libraries do with a quarter of it
ADDRESSES = 512 * MIB
OUTPUTS = {
    "nothing": ": > $QL_OUTPUT",
    "text": "echo hello > $QL_OUTPUT",
    "two": "echo '{} {}' > $QL_OUTPUT",
    "list": "echo '[1]' > $QL_OUTPUT",
    "null": "echo null > $QL_OUTPUT",
    "mark": "printf '\\357\\273\\277{}' > $QL_OUTPUT",
    "utf-16": "printf '{\\0}\\0' > $QL_OUTPUT",
    "binary": "head -c 5000 /dev/urandom > $QL_OUTPUT",
    "nul": 'printf \'{"a":"\\0"}\' > $QL_OUTPUT',
    "escaped-nul": """echo '{"a":"\\u0000"}' > $QL_OUTPUT""",
    "surrogate": """echo '{"a":"\\ud800"}' > $QL_OUTPUT""",
    "latin-1": 'printf \'{"a":"\\351"}\' > $QL_OUTPUT',
    "number": """echo '{"a":9223372036854775808}' > $QL_OUTPUT""",
    "digits": """(printf '{"a":'; yes 9 | head -n 60000 | tr -d '\\n'; echo '}') > $QL_OUTPUT""",
    "infinite": """echo '{"a":1e400}' > $QL_OUTPUT""",
    "nan": """echo '{"a":NaN}' > $QL_OUTPUT""",
    "twice": """echo '{"a":1,"\\u0061":2}' > $QL_OUTPUT""",
    "deep": "yes '{\"a\":' | head -n 20000 | tr -d '\\n' > $QL_OUTPUT",
    "lists": "yes '[' | head -n 100000 | tr -d '\\n' > $QL_OUTPUT",
    "large": f'printf \'{{"a":"%{OUTPUT_BYTES}s"}}\' x > $QL_OUTPUT',
    "zeros": "head -c 3000000 /dev/zero > $QL_OUTPUT",
    "link": "echo '{}' > other.json; ln -s $PWD/other.json $QL_OUTPUT",
    "link-device": "ln -s /dev/zero $QL_OUTPUT",
    "link-self": "ln -s $QL_OUTPUT $QL_OUTPUT",
    "folder": "mkdir $QL_OUTPUT",
    "pipe": "mkfifo $QL_OUTPUT",
    "socket": f"exec {sys.executable} -c 'import os, socket;"
    ' os.chdir(os.path.dirname(os.environ["QL_OUTPUT"]));'
    ' socket.socket(socket.AF_UNIX).bind("output.json")\'',
}
DEVICE = "mknod $QL_OUTPUT c 1 5"  # root only
# a step that gets a secret may give it away itself, but no words of ours do
SECRET = "hunter2-secret"
OUTPUTS |= {
    "secret-text": """printf '{"a":"%s",}' $T > $QL_OUTPUT""",
    "secret-number": """printf '{"a":%s}' $N > $QL_OUTPUT""",
    "secret-bytes": 'printf \'{"a":"%s\\377"}\' $T > $QL_OUTPUT',
    "secret-twice": """printf '{"a":"%s","a":"%s"}' $T $T > $QL_OUTPUT""",
}
NUMBER = "12345678901234567890"
GOOD = """printf '{"a": "%s"}' x > $QL_OUTPUT"""
# logs of any bytes end nothing; the first is cut, and its size is known
LOGS = {
    "bytes": "head -c 300000 /dev/urandom",
    "line": "head -c 2000000 /dev/zero",
    "escapes": "printf '\\033]0;x\\007\\033[2J\\0\\377\\n'; printf '%s\\n' $QL_STEP",
    "closed": "exec >&- 2>&-; sleep 0",
    "left": "(setsid sh -c 'while :; do echo on; done' &) ; echo off",
}


def outputs() -> dict[str, str]:
    return OUTPUTS | ({"device": DEVICE} if os.geteuid() == 0 else {})


def flood(mib: int) -> dict[str, str]:
    """Steps that write so much: a log, an output, and an output that holds nothing."""
    return {
        "log": f"head -c {mib * MIB} /dev/zero",
        "output": f"head -c {mib * MIB} /dev/zero > $QL_OUTPUT",
        "object": f"(printf '{{\"a\":\"'; head -c {mib * MIB} /dev/zero | tr '\\0' x) > $QL_OUTPUT",
        "holes": f"truncate -s {1024 * mib * MIB} $QL_OUTPUT",
    }


def ran(shell: Shell, steps: dict[str, str]) -> tuple[int, str, str]:
    """Run these commands as steps of one run: its exit code, id, and what was said of it.

    Every process of the run has ADDRESSES, so nothing that is written is held in memory.
    """
    for name, text in steps.items():
        shell.write(f"{name}.sh", text + "\n")
    shell.write("secret", SECRET, mode=0o600)
    shell.write("number", NUMBER, mode=0o600)
    env = "env: {T: {file: secret}, N: {file: number}}"
    lines = [f"      {name}: {{run: [sh, {name}.sh], {env}}}" for name in steps]
    head = ["package: hostile", "workflows:", "  w:", "    steps:"]
    shell.write("hostile.yaml", "\n".join([*head, *lines, ""]))
    done = subprocess.run(
        command("run", "hostile.yaml", "--new"),
        cwd=shell.folder,
        env=shell.environment(),
        preexec_fn=partial(resource.setrlimit, resource.RLIMIT_AS, (ADDRESSES, ADDRESSES)),
        capture_output=True,
        timeout=600,
        check=False,
    )
    run_id = json.loads(shell("runs", "--limit", "1", "--json").stdout)[0]["run_id"]
    return done.returncode, run_id, (done.stdout + done.stderr).decode("utf-8", "replace")


def faults_of(shell: Shell, mib: int) -> Iterator[str]:
    """What is wrong with how bad outputs, logs and floods of so many MiB were taken.

    A database of SQLite, and so what its workers keep, is in the folder of the shell.
    """
    wanted = dict.fromkeys(outputs(), "failed") | {"good": "succeeded"}
    wanted |= dict.fromkeys(LOGS, "succeeded")
    floods = flood(mib)
    wanted |= dict.fromkeys(floods, "failed") | {"log": "succeeded"}
    code, run_id, told = ran(shell, outputs() | {"good": GOOD} | LOGS | floods)
    if code != 1 or "Traceback" in told or "MemoryError" in told:
        yield f"exit {code}: {told[-2_000:]}"
    shown = json.loads(shell("show", run_id, "--json").stdout)
    ended = {one["step_key"]: (one["status"], one["result_code"]) for one in shown["steps"]}
    for name, status in wanted.items():
        expected = (status, None if status == "succeeded" else "bad_output")
        if ended[name] != expected:
            yield f"{name} is {ended[name]}, not {expected}"
    yield from _untold(shell, run_id, wanted)
    yield from _given_away(shell, run_id, told)
    yield from _unkept(shell, run_id, mib)
    with closing(open_store(shell.dsn)) as store:
        if not acting.unbroken(store):
            yield "a violation"


def _untold(shell: Shell, run_id: str, wanted: dict[str, str]) -> Iterator[str]:
    for name in wanted:
        if wanted[name] == "failed":
            said = shell("logs", run_id, name).stderr
            if "no JSON object" not in said or len(said) > 1_000:
                yield f"logs says of {name}: {said[:500]!r}"
    explained = shell("explain", run_id)
    if explained.returncode != 0 or "has ended" not in explained.stdout + explained.stderr:
        yield f"explain: {explained.stdout[:200]!r} {explained.stderr[:200]!r}"


def _given_away(shell: Shell, run_id: str, told: str) -> Iterator[str]:
    """A secret in what is said of the run or stored of it."""
    looks = (
        ("show", run_id),
        ("events", run_id),
        ("explain", run_id),
        ("status",),
        ("logs", run_id),
    )
    said = [told]
    for words in looks:
        done = shell(*words, *(["--json"] if words[0] != "logs" else []))
        said += [done.stdout, done.stderr]
    with closing(open_store(shell.dsn)) as store:
        views = ("attempt_state", "step_state", "event_log", "fault_state", "run_state")
        said += [repr(store.read(view)) for view in views]
    for secret in (SECRET, NUMBER):
        if any(secret in one for one in said):
            yield f"{secret} is told"
        for path, _ in _files(shell.folder):
            if path.name not in ("secret", "number") and secret.encode() in path.read_bytes():
                yield f"{secret} is left in {path}"


def _unkept(shell: Shell, run_id: str, mib: int) -> Iterator[str]:
    """The flooded log is full, says so, and nothing else of the flood is left."""
    lacks = mib * MIB - LOG_CAP_BYTES - TAIL_BYTES
    said = shell("logs", run_id, "log", "--tail", "0").stderr
    if f"{lacks} bytes in it are not kept" not in said:
        yield f"logs says of the flood: {said!r}"
    for path, size in _files(shell.folder):
        if size > LOG_MAX_BYTES and path.suffix == ".log":
            yield f"{path} has {size} bytes"
        if path.name == "output.json":
            yield f"{path} was left"


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    for path in folder.rglob("*"):
        found = path.lstat()
        if stat.S_ISREG(found.st_mode):
            yield path, found.st_size
