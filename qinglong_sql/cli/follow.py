"""Following the logs of a run until it has ended."""

from qinglong_sql.cli.alone import Lookout
from qinglong_sql.cli.log_lack import barred, named, not_here
from qinglong_sql.cli.log_lines import Show
from qinglong_sql.cli.pause import Patience, pause
from qinglong_sql.cli.reread import the_run
from qinglong_sql.cli.tail import Places, Tail, live
from qinglong_sql.cli.words import Row, complain
from qinglong_sql.store import Store

LOOKS_A_READ = 2  # the database is asked at every second look at the files
LOOKS_FOR_A_LOG = 10
LOOKS_FOR_THE_REST = 100  # 10 s: a worker ships what an attempt wrote last within seconds


class Follower:
    """Shows what all attempts of a run write, whole lines as they come.

    A log moves when its attempt has ended; an open one goes on being read, so nothing is lost.
    """

    def __init__(
        self, store: Store, run_id: str, where: Places, show: Show, patience: Patience,
        lookout: Lookout,
    ) -> None:  # fmt: skip
        self.store = store
        self.run_id = run_id
        self.where = where
        self.show = show
        self.patience = patience
        self.lookout = lookout
        self.tails: dict[str, Tail] = {}  # in the order in which their attempts started
        self.misses: dict[str, int] = {}
        self.done: set[str] = set()
        self.lacking: list[Row] = []
        self.version = -1
        self.over = False

    def to_the_end(self, step: str | None, number: int | None, keep: int | None) -> None:
        """Return when the run, the step or the attempt with this number has ended."""
        while True:
            self.patience.of(lambda: self.look(step, number, keep))
            over = self.over
            for looked in range(LOOKS_A_READ):
                self.read(keep)
                if over and not self.tails:
                    if self.lacking:
                        there = len(self.done) - len(self.lacking)
                        complain(not_here(self.lacking, there, barred(self.where), self.where))
                    return
                if looked + 1 < LOOKS_A_READ or not over:
                    pause()

    def look(self, step: str | None, number: int | None, keep: int | None) -> None:
        """Ask the database what has started and ended, when its run has moved."""
        run = the_run(self.store, self.run_id)
        if run["status"] == "running":
            self.lookout.look()
        if run["version"] == self.version:
            return
        steps = self.store.read("step_state", run_id=self.run_id)
        steps = [one for one in steps if step in (None, one["step_key"])]
        attempts = self.store.read("attempt_state", order="number", run_id=self.run_id)
        mine = [
            one
            for one in attempts
            if step in (None, one["step_key"]) and number in (None, one["number"])
        ]
        if number is None and step is not None and self.version < 0:
            self.done.update(one["attempt_id"] for one in live(mine)[:-1])
        ended = all(one["finished_at_ms"] is not None for one in mine)
        whole = all(one["finished_at_ms"] is not None for one in steps)
        self.over = run["status"] != "running" or (ended if number and mine else whole)
        for one in live(mine):
            self.take(one, tell=step is not None and self.version >= 0)
        self.version = run["version"]

    def take(self, attempt: Row, tell: bool) -> None:
        """Follow an attempt; one that is followed has its newest state."""
        key = attempt["attempt_id"]
        if key in self.tails:
            self.tails[key].attempt = attempt
        elif key not in self.done:
            self.tails[key] = Tail(self.where, attempt)
            if tell:
                complain(f"{named(attempt)}:")

    def read(self, keep: int | None) -> None:
        """Show what is new; let go what has ended."""
        for key, tail in list(self.tails.items()):
            ended = tail.attempt["finished_at_ms"] is not None
            before = tail.path
            if tail.found():
                if before is None:
                    tail.skip(keep)
                late = tail.more_comes() and self.missed(key) < LOOKS_FOR_THE_REST
                self.show.rest(tail, last=ended and not late)
                if ended and late:
                    self.misses[key] += 1
                    continue
                missing = tail.missing() if ended else None
                if missing:
                    complain(f"the log of {named(tail.attempt)} {missing}")
            elif ended:
                self.misses[key] = self.missed(key) + 1
                patient = LOOKS_FOR_THE_REST if self.where.kept() else LOOKS_FOR_A_LOG
                if self.misses[key] < patient:
                    continue
                self.lacking.append(tail.attempt)
            if ended:
                tail.close()
                del self.tails[key]
                self.done.add(key)

    def missed(self, key: str) -> int:
        """How many looks have waited for what is still to be shipped."""
        return self.misses.setdefault(key, 0)
