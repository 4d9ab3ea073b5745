"""`watch`: a run that somebody else drives, as `run` shows its own."""

import time

import click

from qinglong_sql.cli.alone import Lookout
from qinglong_sql.cli.exits import OF_STATUS, leave, reported
from qinglong_sql.cli.options import opened, resolve_run, same_dsn, with_dsn, with_json
from qinglong_sql.cli.pause import Patience, pause, until_interrupted
from qinglong_sql.cli.progress import View, Watch, view_for
from qinglong_sql.cli.reasons import Screen, reason_of, short, waits
from qinglong_sql.cli.run import show_end
from qinglong_sql.cli.words import Row, now_ms, with_color
from qinglong_sql.store import Store

STILL_S = 10.0
NAMED = 3
# What other steps and the clock end by themselves is no news.
NO_NEWS = ("need", "report", "retry")


@click.command()
@click.argument("run")
@with_color
@with_dsn
@with_json
@reported
def watch(run: str, dsn: str, as_json: bool) -> None:
    """Watch a RUN until it ends; the exit code is the run's.

    Somebody else drives it: an edge, or `run` in another terminal. Ctrl-C stops the watching and
    nothing else.
    """
    with opened(dsn) as store:
        row = resolve_run(store, run)
        view = view_for(as_json, quiet=False)
        again = f"qinglong-sql watch {short(row['run_id'])}{same_dsn(dsn)}"
        try:
            with until_interrupted(f"the run goes on; look again: {again}"):
                ended = Watcher(store, row["run_id"], view, dsn).to_the_end()
        finally:
            view.close()
        show_end(store, ended, as_json, same_dsn(dsn))
    leave(OF_STATUS[ended["status"]])


class Watcher:
    """Shows how a run moves, and explains one that stands still for STILL_S."""

    def __init__(self, store: Store, run_id: str, view: View, dsn: str) -> None:
        self.store = store
        self.run_id = run_id
        self.view = view
        self.more = same_dsn(dsn)
        self.patience = Patience(dsn, view.note)
        self.lookout = Lookout(store, dsn, run_id, view.note)
        self.watch: Watch | None = None
        self.moved_at = time.monotonic()
        self.explained = False

    def to_the_end(self) -> Row:
        """The run, when it has ended. A database that is away is waited for."""
        while True:
            run = self.patience.of(self.look)
            if run is not None and run["status"] != "running":
                return run
            pause()

    def look(self) -> Row:
        """Show what is new since the last look."""
        self.watch = self.watch or Watch(self.store, self.run_id, self.view)
        before = self.watch.run.get("version")
        run = self.watch.look(now_ms())
        if run["status"] == "running":
            self.lookout.look()
        if run["version"] != before:
            self.moved_at, self.explained = time.monotonic(), False
        elif not self.explained and time.monotonic() - self.moved_at >= STILL_S:
            self.explained = True
            for line in self.reasons():
                self.view.note(line)
        return run

    def reasons(self) -> list[str]:
        """Why it stands still, unless a step simply takes its time."""
        rows = waits(self.store, self.run_id)
        if any(row["waits_for"] == "report" for row in rows):
            return []
        screen = Screen(now_ms(), False, self.store.engine, self.more)
        told: dict[str, list[str]] = {}
        for row in rows:
            if row["waits_for"] not in NO_NEWS:
                reason = reason_of(row, screen)
                command = f": {reason.command}" if reason.command else ""
                words = f"{reason.words}; it needs {reason.then}{command}"
                told.setdefault(words, []).append(row["step_key"] or "the run")
        return [f"{shortened(names)} {words}" for words, names in list(told.items())[:3]]


def shortened(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" * (len(names) > NAMED)
    return ", ".join(names[:NAMED]) + more
