"""What `run` shows while it runs: a live table on a terminal, plain lines elsewhere."""

import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

import click

from qinglong_sql.cli import cells
from qinglong_sql.cli.reread import the_run
from qinglong_sql.cli.steps import CODES, by_run
from qinglong_sql.cli.terminal import calm
from qinglong_sql.cli.words import COLOURS, Row, clock, hush, plain_signs, say, sign_of, span
from qinglong_sql.store import Store

RECENT_MS = 5_000  # what began longer before the first look is not told as started
SOON_MS = 1_000  # what is handed out within it has not waited
SAME_AS_STATUS = ("execution_failed", "execution_timed_out", "execution_cancelled")
ORDER = ("running", "lost", "retry_wait", "ready", "waiting_approval", "pending")


class View(Protocol):
    """Something that shows a run's steps whenever they changed."""

    def changed(self, run: Row, steps: list[Row], now_ms: int) -> None: ...
    def tick(self, now_ms: int) -> None: ...
    def note(self, words: str) -> None: ...
    def close(self) -> None: ...


class Silent:
    """Nothing, for `--json` and `--quiet`."""

    def changed(self, run: Row, steps: list[Row], now_ms: int) -> None: ...
    def tick(self, now_ms: int) -> None: ...
    def note(self, words: str) -> None: ...
    def close(self) -> None: ...


class Lines:
    """One line whenever a step starts or its state changes; for pipes, files and logs.

    Lines of one look stand in the order in which things happened, by the clock of the database.
    """

    def __init__(self) -> None:
        self.seen: dict[str, tuple[str, int]] = {}
        self.begun: dict[str, int] = {}  # the last try that was told as started, by step

    def changed(self, run: Row, steps: list[Row], now_ms: int) -> None:
        first, found = not self.seen, []
        for step in steps:
            state = (step["status"], step["version"])
            before = self.seen.get(step["step_key"])
            self.seen[step["step_key"]] = state
            if before == state or step["status"] in ("pending", "ready"):
                continue
            found += self.news(step, now_ms, first)
        for at_ms, _, key, words in sorted(found, key=lambda line: line[:2]):
            say(f"{clock(at_ms)[11:19]}  {key}  {words}")

    def news(self, step: Row, now_ms: int, first: bool) -> list[tuple[int, int, str, str]]:
        """(when, rank in that instant, step, words) of what is new in a step."""
        key, began = step["step_key"], step["started_at_ms"]
        found, ran = [], step["status"] == "running"
        fresh = self.begun.get(key, 0) < step["attempt_count"] and began is not None
        if fresh and not (first and now_ms - began > RECENT_MS):
            found.append((began, 1, key, f"started{tries(step)}"))
        self.begun[key] = step["attempt_count"]
        if not ran or not found or step.get("stopping"):
            at = now_ms if step["finished_at_ms"] is None else step["finished_at_ms"]
            # what never began follows from an end of the same instant
            rank = 3 if began is None else 2 if at == began else 0
            found.append((at, rank, key, said(step, now_ms)))
        return found

    def tick(self, now_ms: int) -> None: ...

    def note(self, words: str) -> None:
        say(words)

    def close(self) -> None: ...


class Table:
    """A table that is drawn again as steps move; it never grows past the terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self.plain = plain_signs()
        ctx = click.get_current_context(silent=True)
        colourless = ctx is not None and ctx.color is False
        self.console = Console(highlight=False, no_color=colourless or None)
        self.live = Live(console=self.console, auto_refresh=False, transient=True)
        self.live.start()
        self.run: Row = {}
        self.steps: list[Row] = []
        self.drawn_ms = 0

    def changed(self, run: Row, steps: list[Row], now_ms: int) -> None:
        self.run, self.steps = run, steps
        self.draw(now_ms)

    def tick(self, now_ms: int) -> None:
        if now_ms - self.drawn_ms >= 200:
            self.draw(now_ms)

    def draw(self, now_ms: int) -> None:
        self.drawn_ms = now_ms
        if self.run:
            self.live.update(self.table(now_ms), refresh=True)

    def table(self, now_ms: int) -> Any:
        from rich.text import Text

        shown = chosen(self.steps, max(3, self.console.height - 4))
        drawn = Text(no_wrap=True, overflow="crop")
        for line, status in self.lines(shown, now_ms, self.console.width):
            drawn.append(f"{line}\n", style=COLOURS.get(status, "dim"))
        left = len(self.steps) - len(shown)
        ended = sum(step["finished_at_ms"] is not None for step in self.steps)
        more = f", {left} not shown" if left else ""
        took = span(self.run["admitted_at_ms"], now_ms)
        drawn.append(f"{ended} of {len(self.steps)} steps ended{more}, {took}")
        return drawn

    def lines(self, steps: list[Row], now_ms: int, wide: int) -> list[tuple[str, str]]:
        """(line, status) of each step, within a width: long keys and words are cut."""
        mark = "~" if self.plain else "…"
        names = [f"{self.sign(step['status'])} {step['step_key']}" for step in steps]
        room = min(max(map(cells.cells, names), default=0), wide // 2)
        return [
            (
                cells.padded(cells.cut(name, room, mark), room)
                + "  "
                + cells.cut(said(step, now_ms), wide - room - 2, mark),
                step["status"],
            )
            for name, step in zip(names, steps, strict=True)
        ]

    def sign(self, status: str) -> str:
        return sign_of(status, plain=self.plain)

    def note(self, words: str) -> None:
        self.console.print(calm(words), markup=False)

    def close(self) -> None:
        self.live.stop()


def chosen(steps: list[Row], room: int) -> list[Row]:
    """The steps worth showing in `room` lines: what moves first, then the last that ended."""

    def weight(step: Row) -> tuple[int, int, str]:
        if step["finished_at_ms"] is None:
            return (ORDER.index(step["status"]), step["started_at_ms"] or 0, step["step_key"])
        return (len(ORDER), -step["finished_at_ms"], step["step_key"])

    kept = {step["step_key"] for step in sorted(steps, key=weight)[:room]}
    return [step for step in steps if step["step_key"] in kept]


def said(step: Row, now_ms: int) -> str:
    """The state of a step in words: how long, which try, until when."""
    status = str(step["status"])
    if status == "running":
        stopping = ", being stopped" if step.get("stopping") else ""
        return f"running {span(step['started_at_ms'], now_ms)}{tries(step)}{stopping}"
    if status == "pending" and step.get("needs"):
        return f"waits for {', '.join(step['needs'])}"
    if status == "ready":
        soon = now_ms - (step["ready_at_ms"] or now_ms) < SOON_MS
        return "ready" if soon else "waits for a free slot"
    code = step["result_code"]
    words = CODES.get(code, code)
    if status == "retry_wait":
        return f"again in {span(now_ms, step['due_at_ms'])}: {words}"
    if step["finished_at_ms"] is None:
        return status
    if status == "skipped":
        return "skipped, a step it needs did not succeed"
    status = status.replace("_", " ")
    if step["attempt_count"]:  # else it never ran
        status += f" after {span(step['started_at_ms'], step['finished_at_ms'])}{tries(step)}"
    return f"{status}: {words}" if code and code not in SAME_AS_STATUS else status


def tries(step: Row) -> str:
    """Which try it is, from the second on."""
    return f", try {step['attempt_count']}" if step["attempt_count"] > 1 else ""


class Kept:
    """A view whose output may fail, by a closed pipe or a full disk, without harm to the run."""

    def __init__(self, view: View) -> None:
        self.view = view

    def changed(self, run: Row, steps: list[Row], now_ms: int) -> None:
        self.attempt(lambda: self.view.changed(run, steps, now_ms))

    def tick(self, now_ms: int) -> None:
        self.attempt(lambda: self.view.tick(now_ms))

    def note(self, words: str) -> None:
        self.attempt(lambda: self.view.note(words))

    def close(self) -> None:
        self.attempt(self.view.close)

    def attempt(self, show: Callable[[], None]) -> None:
        try:
            show()
        except OSError:
            self.view = Silent()
            hush()


def view_for(as_json: bool, quiet: bool) -> View:
    """The view that suits where standard output goes."""
    if as_json or quiet or sys.stdout is None:
        return Silent()
    live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return Kept(Table() if live else Lines())


class Watch:
    """Reads a run when its version moved, and tells the view."""

    def __init__(self, store: Store, run_id: str, view: View) -> None:
        self.store = store
        self.run_id = run_id
        self.view = view
        self.run: Row = {}
        self.needs: dict[str, list[str]] = {}
        for pair in store.read("step_need", order="step_key, need_key", run_id=run_id):
            self.needs.setdefault(pair["step_key"], []).append(pair["need_key"])

    def look(self, now_ms: int) -> Row:
        """The run as it is now; the view is told when something changed."""
        run = the_run(self.store, self.run_id)
        changed = run["version"] != self.run.get("version")
        self.run = run
        if changed:
            self.view.changed(run, self.steps(), now_ms)
        else:
            self.view.tick(now_ms)
        return run

    def steps(self) -> list[Row]:
        """The steps as they are now, with what each of them still waits for."""
        steps = self.store.read("step_state", order="step_key", run_id=self.run_id)
        status = {step["step_key"]: step["status"] for step in steps}
        for step in steps:
            needs = self.needs.get(step["step_key"], [])
            step["needs"] = [need for need in needs if status[need] != "succeeded"]
            step["stopping"] = self.run["cancel_requested_at_ms"] is not None
        return by_run(self.run, steps)
