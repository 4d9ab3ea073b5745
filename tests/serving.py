"""An edge in a folder whose disk makes trouble, and what must be so when the trouble is over.

Every execution leaves a mark outside of that folder, so what ran twice is seen.
"""

import json
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qinglong_sql.door import ask
from tests.shell import Done, Shell, command, ended
from tests.site import kill_all_of, processes_of, wait

WORKFLOW = """\
package: disk
workflows:
  calm:
    steps:
      a: {{run: "echo $QL_RUN_ID.a >> {marks}; sleep 0.2"}}
      b: {{run: "echo $QL_RUN_ID.b >> {marks}; yes 0123456789 | head -c 50000", needs: [a]}}
      c: {{run: "echo $QL_RUN_ID.c >> {marks}; sleep 0.2", needs: [b]}}
"""
STEPS = 3
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


class Serving:
    """An edge of `folder`; its log and marks are in `outside`."""

    def __init__(self, folder: Path, outside: Path, profile: str, slots: int) -> None:
        self.folder, self.profile, self.slots = folder, profile, slots
        self.state = folder / "ql.db.worker"
        self.log, self.marks = outside / "log", outside / "marks"
        self.log.write_text("")
        self.marks.write_text("")
        self.shell = Shell(folder, f"sqlite:///{folder}/ql.db")
        self.shell.write("jobs.yaml", WORKFLOW.format(marks=self.marks))
        for words in (("migrate",), ("publish", "jobs.yaml")):
            done = self.shell(*words)
            assert done.returncode == 0, done.stderr
        self.answered: set[str] = set()
        self.begin()

    def begin(self) -> None:
        self.process = self.shell.begin(
            "edge", "--profile", self.profile, "--lease-ms", "5000", "--slots", self.slots,
            output=self.log,
        )  # fmt: skip
        wait(lambda: self.process.poll() is not None or self.status(), "the edge answers")

    def status(self) -> dict[str, Any]:
        return ask(self.state, "status", 1.0) or {}

    def start(self, key: str) -> Done:
        """Ask for a run; one that was answered is promised from then on."""
        done = self.shell("start", "disk", "calm", "--key", key, "--json")
        if done.returncode == 0:
            self.answered.add(json.loads(done.stdout)["run_id"])
        return done

    def runs(self) -> dict[str, str]:
        done = self.shell("runs", "--json", "--limit", "1000")
        assert done.returncode == 0, done.stderr
        return {row["run_id"]: row["status"] for row in json.loads(done.stdout)}

    def forkserver(self) -> int:
        """The parent of the launchers."""
        found: list[int] = []

        def there() -> list[int]:
            found[:] = [
                p for p, line in processes_of(self.folder).items() if "launchers of" in line
            ]
            return found

        wait(there, "there is a fork server")
        return found[0]

    def wrong(self, statuses: tuple[str, ...] = ("succeeded",), within_s: float = 60) -> list[str]:
        """What is not as it should be once there is no trouble any more."""

        def over() -> bool:
            ask(self.state, "wake")
            return self.process.poll() is not None or "running" not in self.runs().values()

        try:
            wait(over, "every run ends", within_s)
        except AssertionError as error:
            return [f"{error}: {Counter(self.runs().values())}; {self.said()}"]
        if self.process.poll() is not None:
            return [f"the edge has ended with {self.process.returncode}: {self.said()}"]
        runs, marks = self.runs(), Counter(self.marks.read_text().split())
        wrong = [f"{one} was answered and is lost" for one in self.answered - runs.keys()]
        wrong += [f"{one} {status}" for one, status in runs.items() if status not in statuses]
        wrong += [f"{mark} ran {count} times" for mark, count in marks.items() if count > 1]
        if statuses == ("succeeded",) and len(marks) != STEPS * len(runs):
            wrong.append(f"{len(marks)} marks of {len(runs)} runs")
        listed = json.loads(self.shell("status", "--check", "--json").stdout)
        wrong += [f"violation {row}" for row in listed.get("violations", ())]
        return wrong

    def said(self) -> str:
        return self.log.read_text()[-1_500:]

    def times(self, words: str) -> int:
        """How often it has said that, since it began."""
        return self.log.read_text().count(words)

    def troubles(self) -> list[str]:
        """Every line in which it says that something is wrong, without its time."""
        lines = self.log.read_text().splitlines()
        return [line[25:] for line in lines if "trying again" in line]

    def stop(self) -> int:
        self.process.terminate()
        return ended(self.process, 30)


@contextmanager
def serving(
    folder: Path, outside: Path, profile: str = "edge", slots: int = 4
) -> Iterator[Serving]:
    """At its end nothing of it runs."""
    made = Serving(folder, outside, profile, slots)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.send_signal(signal.SIGKILL)
            made.process.wait()
        kill_all_of(folder)


def steadily(served: Serving, draw: random.Random, prefix: str, seconds: float) -> list[str]:
    """Start runs meanwhile; what is answered otherwise than it may be."""
    wrong, end, number = [], time.monotonic() + seconds, 0
    while time.monotonic() < end:
        done = served.start(f"{prefix}.{number}")
        if done.returncode not in (0, 6) or "Traceback" in done.stderr:
            wrong.append(f"start: {done}")
        number += 1
        time.sleep(draw.uniform(0.1, 0.5))
    return wrong


def as_nobody(shell: Shell, *words: object) -> Done:
    """A command of a user without any rights; only root may ask for it."""
    return subprocess.run(
        [*NOBODY, *command(*words)],
        cwd="/", env=shell.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip


def nobody_may(shell: Shell) -> bool:
    """Whether such a user may run this Python and this tree."""
    return as_nobody(shell, "--version").returncode == 0
