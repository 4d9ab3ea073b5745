"""Why a run does not move, in words, and what to type about it (the view `explain`)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from qinglong_sql.cli import declared
from qinglong_sql.cli.sessions import crew, is_drained, is_of_a_run, serving, sessions
from qinglong_sql.cli.steps import CODES
from qinglong_sql.cli.words import Row, age, moment, now_ms
from qinglong_sql.store import Store

GRACE_MS = (
    5 * 60_000
)  # the longest that a worker may be silent after its lease (README, --grace-ms)
OVERDUE_MS = 60_000  # what is due is done within a cadence; a minute means that nobody does it
ORDER = ("fault", "hold", "evidence", "report", "lease", "worker", "queue", "retry", "intent",
         "admission", "need")  # fmt: skip
QUEUES = 1000
NAMED = 3
AT_ONCE = {"need": "frontier", "admission": "task_admission", "intent": "cancellation"}
BY_ITSELF = "the next cycle of a scheduler; when none works on this database, start one"


@dataclass(frozen=True, slots=True)
class Screen:
    """What all words of a screen depend on: its time and zone, the engine and what to repeat.

    `more` is the ` --dsn …` that commands need. `busy` are queues from which somebody takes work;
    None when that is not known. `workers` are the rows of `sessions`, as far as they are known.
    """

    now: int
    utc: bool
    engine: str
    more: str = ""
    busy: Collection[str] | None = None
    workers: Mapping[str, Row] = field(default_factory=dict)

    def at(self, at_ms: int | None) -> str:
        return moment(at_ms, self.now, utc=self.utc)

    def since(self, at_ms: int | None) -> str:
        return "" if at_ms is None else age(self.now - at_ms)

    def command(self, words: str) -> str:
        return f"qinglong-sql {words}{self.more}"

    def driver(self, run_id: str) -> str:
        """What does the work of the scheduler, for one run at least.

        Where workers of machines are known it does no more: their work is not for this one.
        """
        cluster = self.engine != "sqlite" and any(not is_of_a_run(one) for one in self.workers)
        return self.command("control") if cluster else self.executor(run_id)

    def executor(self, run_id: str) -> str:
        """What does the work of a worker as well, on this machine."""
        return self.command("edge" if self.engine == "sqlite" else f"resume {short(run_id)}")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something waits, what ends that, and what to type; `stuck` when it needs a person.

    `silent`: its worker has not renewed its lease in time.
    """

    words: str
    then: str
    command: str = ""
    stuck: bool = False
    silent: bool = False


def waits(store: Store, run_id: str) -> list[Row]:
    """The rows of `explain`, with what a silent worker means once its lease is over.

    The view has no clock (DESIGN §4), so `after_due` is applied here. What a clock put off that was
    set back since has as `due_at_ms` when it would be done, were nobody to bring it near.
    """
    now = now_ms()
    ahead = {
        row["stage"]: row["due_at_ms"]
        for row in store.read("agenda_ahead", run_id=run_id)
        if row["since_ms"] - now > OVERDUE_MS and row["due_at_ms"] - now > OVERDUE_MS
    }
    rows = store.read("explain", order="step_key, attempt_id, waits_for, waits_on", run_id=run_id)
    for row in rows:
        after = row.pop("after_due")
        if after is not None and row["due_at_ms"] is not None and row["due_at_ms"] < now:
            row["waits_for"] = after
        stage = AT_ONCE.get(row["waits_for"])
        if stage in ahead and (stage != "frontier" or row["waits_on"] == stage):
            row["due_at_ms"] = ahead[stage]
    return rows


def screen_of(store: Store, dsn: str, utc: bool, more: str) -> Screen:
    """The screen of one run, with the workers that are registered and the queues they serve."""
    now = now_ms()
    workers = sessions(store, dsn, now)
    busy = serving(workers, store.read("queue_state", limit=QUEUES))
    return Screen(now, utc, store.engine, more, busy, workers)


def short(id_: str) -> str:
    """Enough of a run's id, or of an attempt's, to name it in a command."""
    run, dash, number = id_.partition("-")
    return run[:12] + dash + number


def reason_of(row: Row, screen: Screen) -> Reason:
    """The words for one row of `waits`."""
    kind, run = row["waits_for"], short(row["run_id"])
    look = screen.command(f"logs {run} {row['step_key']}")
    if kind in ("hold", "evidence"):
        return _unknown(row, screen)
    if kind == "fault":
        return Reason(
            f"the {row['waits_on']} stage fails since {screen.at(row['since_ms'])}:"
            f" {row['resolved_by']}",
            f"tried again at {screen.at(row['due_at_ms'])}; or give the run up",
            screen.command(f"cancel {run}"),
            stuck=True,
        )
    if kind == "report":
        at = f"at worker {row['waits_on']} for {screen.since(row['since_ms'])}"
        then = f"its end; its lease ends at {screen.at(row['due_at_ms'])} unless it is renewed"
        if "declare-stopped" in row["resolved_by"]:
            vouch = f"attempt declare-stopped {short(row['attempt_id'])}"
            then += f", and then nothing but its worker or {vouch}"
        return (
            _undriven(row, screen, GRACE_MS)
            or _late(row, screen, "lost")
            or Reason(f"runs {at}", then, look)
        )
    if kind == "lease":
        late = _late(row, screen, "not started, and offer it again")
        return (
            _undriven(row, screen)
            or late
            or Reason(
                f"worker {row['waits_on']} has it for {screen.since(row['since_ms'])}",
                f"the worker starts it, or it goes back at {screen.at(row['due_at_ms'])}",
            )
        )
    if kind in ("worker", "queue"):
        return _queued(row, screen)
    if kind == "retry":
        on = row["waits_on"]
        words = declared.words_of(row, on) or CODES.get(on, str(on))
        at = screen.at(row["due_at_ms"])
        return _undriven(row, screen) or Reason(
            f"{words}; again at {at}", f"tried again at {at}", look
        )
    if kind == "need" and row["waits_on"] != "frontier":
        return Reason(f"waits for {row['waits_on']}", "the end of that step")
    words = intent_words(row["waits_on"]) if kind == "intent" else "could go on"
    if row["due_at_ms"] is not None and row["due_at_ms"] > screen.now:
        at = screen.at(row["due_at_ms"])
        return Reason(
            f"{words}, but put off to {at} by a clock that was set back since",
            "a process that drives the run brings that near within a minute",
            screen.driver(row["run_id"]),
            stuck=True,
        )
    since = None if kind == "need" else row["since_ms"]
    return _undriven({**row, "due_at_ms": since}, screen) or Reason(
        words, BY_ITSELF, screen.driver(row["run_id"])
    )


def intent_words(reason: str) -> str:
    """Why a run is being ended: somebody asked, or its own time is over."""
    late = CODES["workflow_timed_out"]
    return late if reason == "timeout" else f"cancellation requested ({reason})"


def _unknown(row: Row, screen: Screen) -> Reason:
    """A lease that is over proves nothing by itself, wherever its worker is."""
    worker = screen.workers.get(row["waits_on"])
    at, standing = screen.at(row["due_at_ms"]), worker["standing"] if worker else "silent"
    silent = f"worker {row['waits_on']} is silent since {at}"
    if worker and standing == "offline":
        silent = f"worker {row['waits_on']} has left (offline), and the lease ended {at}"
    elif worker and standing != "silent":
        seen = f" (seen {screen.since(worker['seen_at_ms'])} ago)" * (worker["seen_by"] == "itself")
        silent = f"worker {row['waits_on']} is {standing}{seen}, but lets the lease lie since {at}"
    held = ", and the task says on_lost: hold" if row["waits_for"] == "hold" else ""
    vouch = f"attempt declare-stopped {short(row['attempt_id'])} --reason 'how you know'"
    return Reason(
        f"{silent}{held}: nobody knows whether it still runs",
        "its worker comes back; or look yourself, and vouch that it has stopped",
        screen.command(vouch),
        stuck=True,
    )


def _late(row: Row, screen: Screen, what: str) -> Reason | None:
    """What an ended lease means before somebody has acted on it: views have no clock."""
    due = row["due_at_ms"]
    if due is None or due >= screen.now:
        return None
    return Reason(
        f"its worker {row['waits_on']} has been silent; its lease ended {screen.at(due)}",
        f"whoever drives the database will record it as {what}",
        screen.driver(row["run_id"]),
        silent=True,
    )


def _queued(row: Row, screen: Screen) -> Reason:
    since = screen.since(row["since_ms"])
    late = screen.now - row["since_ms"] > OVERDUE_MS
    nobody = row["waits_for"] == "worker" if screen.busy is None else (
        row["waits_on"] not in screen.busy
    )  # fmt: skip
    known = crew(screen.workers, row["waits_on"]) if nobody else []
    online = any(one["standing"] == "online" for one in known)
    if nobody and (late or (not online and any(map(is_drained, known)))):
        return _abandoned(row, known, screen)
    words, then = f"in queue {row['waits_on']} for {since}", "a worker of that queue"
    if known:  # their work is not for this machine
        return Reason(words, f"{then}: {_standings(known)}", screen.command("workers"))
    if nobody:
        return Reason(words, then + _here(screen), screen.executor(row["run_id"]))
    return Reason(words, f"{then} with a free slot", screen.command("status"))


def _here(screen: Screen) -> str:
    """What the command for want of a worker does: steps of others would run where it is typed."""
    return "" if screen.engine == "sqlite" else "; or `resume`, which executes on this machine"


def _standings(known: list[Row]) -> str:
    """The first workers, each with how it is."""
    words = {"silent": "is silent", "draining": "is ending", "online": "is online",
             "offline": "has left"}  # fmt: skip
    some = [
        f"{one['worker_id']} {'is drained' if is_drained(one) else words[one['standing']]}"
        for one in known[:NAMED]
    ]
    return ", ".join(some) + f", and {len(known) - NAMED} more" * (len(known) > NAMED)


def _abandoned(row: Row, known: list[Row], screen: Screen) -> Reason:
    """Nobody takes from a queue; those who would are named."""
    words = (
        f"no worker takes anything from queue {row['waits_on']} for {screen.since(row['since_ms'])}"
    )
    if not known:
        then = "a worker of that queue" + _here(screen)
        return Reason(words, then, screen.executor(row["run_id"]), stuck=True)
    then, command = "one of them that comes back", "workers"
    if is_drained(known[0]):
        then, command = "that it may lease again", f"worker undrain {known[0]['worker_id']}"
    return Reason(
        f"{words}: {_standings(known)}",
        f"{then}, or another worker of that queue",
        screen.command(command),
        stuck=True,
    )


def _undriven(row: Row, screen: Screen, grace_ms: int = 0) -> Reason | None:
    """What is long due and was not done: nobody drives the run."""
    due = row["due_at_ms"]
    if due is None or screen.now - due <= OVERDUE_MS + grace_ms:
        return None
    return Reason(
        f"due for {screen.since(due)}, and nobody does it: no scheduler works on this database",
        "a process that drives it",
        screen.driver(row["run_id"]),
        stuck=True,
    )
