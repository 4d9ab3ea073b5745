"""What an edge works with is replaced or removed, and commands that may not write: told in words.

Part of tests.prove.disks.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests import filling
from tests.prove import CannotRun, Setting, Verdict, needing
from tests.serving import Serving, as_nobody, nobody_may, serving
from tests.shell import Done, Shell, ended

PROFILES = ("edge", "standalone")
Way = Callable[[Serving], object]


def prove(setting: Setting, verdict: Verdict) -> None:
    for profile in PROFILES[setting.quick :]:
        _goes(setting, verdict, profile)
    with needing(verdict, "read-only and not permitted"):
        _refuses(setting, verdict)


def _replace(served: Serving) -> None:
    new = served.folder / "new.db"
    shutil.copy(served.folder / "ql.db", new)
    new.replace(served.folder / "ql.db")


def _remove(folder: Path) -> None:
    gone = folder.rename(folder.with_name("gone"))  # all of it at once
    shutil.rmtree(gone, ignore_errors=True)


WAYS: dict[str, tuple[Way, str]] = {
    "file replaced": (_replace, "has been replaced by another file; start again"),
    "file removed": (lambda served: (served.folder / "ql.db").unlink(), "it was there before"),
    "folder removed": (lambda served: _remove(served.folder), "it was there before"),
    "state folder removed": (lambda served: _remove(served.state), "it was there before"),
}


def _goes(setting: Setting, verdict: Verdict, profile: str) -> None:
    for name, (way, words) in WAYS.items():
        setting.say(f"disks: {profile} edge, {name}")
        folder = setting.folder / f"goes-{profile}"
        folder.mkdir()
        with serving(folder, setting.folder, profile) as served:
            served.start("one")
            time.sleep(setting.random("goes", profile, name).uniform(0, 0.8))
            way(served)
            code, where = ended(served.process, 30), f"{profile} edge, {name}"
            verdict.check(code == 6, f"{where}: exit {code}")
            verdict.check(words in served.said(), f"{where}: {served.said()}")
            verdict.check("Traceback" not in served.said(), f"{where}: {served.said()}")
            verdict.count("edges that left")
        shutil.rmtree(folder, ignore_errors=True)


def _refuses(setting: Setting, verdict: Verdict) -> None:
    with filling.small(setting.folder) as place:
        shell = Shell(place, f"sqlite:///{place}/ql.db")
        shell.write("jobs.yaml", filling.FLOWS)
        start = ("start", "disk", "calm", "--key", "one")  # what `cancel` is asked for
        for words in (("migrate",), ("publish", "jobs.yaml"), start):
            assert shell(*words).returncode == 0
        (run,) = json.loads(shell("runs", "--json").stdout)
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        _all_refused(verdict, shell.process, run["run_id"], place, "is mounted read-only")
        subprocess.run(["mount", "-o", "remount,rw", place], check=True)
        setting.folder.chmod(0o755)
        if not nobody_may(shell):
            raise CannotRun("user 65534 may not run this Python, so nothing can be forbidden to it")
        for path, mode, words in (
            (place / "ql.db", 0o444, "cannot write"),
            (place / "ql.db", 0o600, "cannot read"),
            (place, 0o555, "cannot make files in"),
            (place, 0o700, "ermission denied"),
        ):
            place.chmod(0o777)
            (place / "ql.db").chmod(0o666)
            path.chmod(mode)
            nobody = partial(as_nobody, shell)
            _all_refused(verdict, nobody, run["run_id"], place, words)


def _all_refused(
    verdict: Verdict, ask: Callable[..., Done], run_id: str, place: Path, words: str
) -> None:
    for command in (
        ("publish", place / "jobs.yaml"), ("start", "disk", "calm", "--key", "k"),
        ("cancel", run_id), ("edge",), ("purge", "--older-than", "1s"), ("migrate",),
    ):  # fmt: skip
        done = ask(*command)
        if done.returncode == 0 and command[0] == "migrate":  # it had nothing to do
            continue
        where = f"{words}: {command[0]}"
        known = (2, 6) if command[0] == "publish" else (6,)  # its file cannot be read either
        verdict.check(done.returncode in known, f"{where}: exit {done.returncode}: {done}")
        told = words in done.stderr or "ead-only file system" in done.stderr
        verdict.check(told, f"{where}: {done.stderr}")
        verdict.check("Traceback" not in done.stderr, f"{where}: {done.stderr}")
        verdict.count("refused")
