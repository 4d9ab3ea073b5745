"""`events`: the history of a run, as it is or as it grows."""

from collections.abc import Callable

import click

from qinglong_sql.cli.cells import cells, cut, padded, room
from qinglong_sql.cli.declared import LOST, attempts_with, words_of
from qinglong_sql.cli.exits import Refused, reported
from qinglong_sql.cli.options import opened, resolve_run, with_dsn, with_json
from qinglong_sql.cli.pause import Patience, pause, until_interrupted
from qinglong_sql.cli.reread import the_run
from qinglong_sql.cli.words import (
    Row,
    clock,
    coloured,
    plain_signs,
    print_json,
    say,
    with_color,
    with_utc,
)
from qinglong_sql.store import Span, Store

NEVER = 2**62
FULL_TIMES = 100  # from so many columns on, each time is told with its date and zone
NARROW = 60
TYPE_CELLS, MIDDLE_CELLS, SHORT_CELLS, OF_CELLS = 34, 22, 10, 24


@click.command()
@click.argument("run")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@click.option("--since", type=int, default=0, metavar="N", help="Only events after number N.")
@click.option("--step", metavar="STEP", help="Only events of this step and its attempts.")
@with_utc
@with_color
@with_dsn
@with_json
@reported
def events(
    run: str, follow: bool, since: int, step: str | None, utc: bool, dsn: str, as_json: bool
) -> None:
    """Print the history of a RUN, one line an event.

    With -f, events are printed as they come; with --json as well, one document a line.
    """
    with opened(dsn) as store:
        row = resolve_run(store, run)
        history = History(store, row["run_id"], since, step)
        if step is not None and not store.read("step_state", run_id=row["run_id"], step_key=step):
            raise Refused(f"no step {step!r} in this run")
        if as_json and not follow:
            print_json([without_names(event) for event in history.more()])
            return
        show = shown_as_json if as_json else lines(utc)
        if follow:
            with until_interrupted():
                history.follow(show, Patience(dsn))
            return
        found = history.more()
        for event in found:
            show(event)
        if not found:
            say("no events")


class History:
    """The events of a run after a number, with what they are of in words."""

    def __init__(self, store: Store, run_id: str, since: int, step: str | None) -> None:
        self.store = store
        self.run_id = run_id
        self.since = since
        self.step = step
        self.attempts: dict[str, Row] = {}

    def more(self) -> list[Row]:
        """What came since the last call, in order."""
        rows = self.store.read(
            "event_log", order="sequence", run_id=self.run_id, sequence=Span(self.since + 1, NEVER)
        )
        if any(self.unknown(row) for row in rows if of_attempt(row)):
            found = attempts_with(self.store, self.run_id)
            self.attempts = {one["attempt_id"]: one for one in found}
            if not found:
                the_run(self.store, self.run_id)
        for row in rows:
            self.since = row["sequence"]
            row["what"], row["why"] = self.what(row), self.why(row)
        return [row for row in rows if self.step in (None, self.step_of(row))]

    def unknown(self, event: Row) -> bool:
        """Whether something is to be read for it; what is lost may have been declared stopped."""
        return event["entity_id"] not in self.attempts or event["result_code"] in LOST

    def step_of(self, event: Row) -> str | None:
        if of_attempt(event):
            return str(self.attempts[event["entity_id"]]["step_key"])
        return event["entity_id"] if event["entity"] == "step" else None

    def what(self, event: Row) -> str:
        if event["entity"] == "run":
            return ""
        if of_attempt(event):
            one = self.attempts[event["entity_id"]]
            return f"{one['step_key']} #{one['number']}"
        return str(event["entity_id"])

    def why(self, event: Row) -> str:
        """The code of an event, or who vouched for the end that it tells."""
        if event["entity"] == "attempt":
            attempt, code = self.attempts[event["entity_id"]], event["result_code"]
            return words_of(attempt, code) or code or ""
        return event["result_code"] or ""

    def follow(self, show: Callable[[Row], None], patience: Patience) -> None:
        """Show what comes until the run has ended. The run is read first: its end comes last."""
        while True:
            run = patience.of(lambda: the_run(self.store, self.run_id))
            if run is not None and run["version"] > self.since:
                for event in patience.of(self.more) or []:
                    show(event)
            if run is not None and run["status"] != "running" and run["version"] <= self.since:
                return
            pause()


def of_attempt(event: Row) -> bool:
    return event["entity"] in ("attempt", "lease")


def without_names(event: Row) -> Row:
    return {name: value for name, value in event.items() if name not in ("what", "why")}


def shown_as_json(event: Row) -> None:
    print_json(without_names(event))


def lines(utc: bool) -> Callable[[Row], None]:
    """Shows events below a head, in columns that do not depend on what is still to come.

    Narrower screens have the time of day alone, and less of the event's name.
    """
    wide = room()
    head = False

    def show(event: Row) -> None:
        nonlocal head
        at = clock(event["created_at_ms"], utc=utc)
        at = at if wide >= FULL_TIMES else at[11:19]
        if not head:
            head = True
            zone = "" if wide >= FULL_TIMES else clock(event["created_at_ms"], utc=utc)[19:]
            named = padded(f"AT {zone}".strip(), len(at))
            say(line(["#", named, "EVENT", "OF", "WHY"], "", wide))
        texts = [
            str(event["sequence"]),
            at,
            event["type"],
            event["what"],
            event["why"],
        ]
        say(line(texts, event["to_status"] or "", wide))

    return show


def line(texts: list[str], state: str, wide: int) -> str:
    """Number, time, type, what it is of and why, as a line of a screen."""
    number, at, kind, what, why = texts
    mark = ".." if plain_signs() else "…"
    if wide >= FULL_TIMES:
        kind_wide, rest = TYPE_CELLS, f"{padded(what, OF_CELLS)}  {why}"
    else:
        kind_wide, rest = MIDDLE_CELLS, " ".join(filter(None, (what, why)))
        kind = kind.removeprefix("workflow.task_")
    if wide < NARROW:
        kind_wide = SHORT_CELLS
        kind = kind.rpartition(".")[2].removeprefix("attempt_").removeprefix("dispatch_")
        rest = cut(rest, max(4, wide - SHORT_CELLS - 18), mark)
    kind = cut(kind, kind_wide, mark)
    shown = (coloured(state, kind) if state else kind) + " " * (kind_wide - cells(kind))
    return f"{number:>4}  {at}  {shown}  {rest}".rstrip()
