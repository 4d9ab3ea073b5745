"""How lines of logs are shown: as they are, with the step in front, or as JSON."""

import sys
from collections.abc import Sequence
from typing import Protocol

import click
from click.globals import resolve_color_default

from qinglong_sql.cli.cells import cells, padded, room
from qinglong_sql.cli.tail import Tail, for_terminal
from qinglong_sql.cli.words import Row, plain_signs, print_json, say, say_bytes
from qinglong_sql.graph import middle_cut

PREFIX_CELLS = 24
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_cyan", "bright_magenta",
           "bright_yellow", "bright_green", "bright_blue")  # fmt: skip


class Show(Protocol):
    """Shows what is new in a log; `last` when no more comes."""

    def rest(self, tail: Tail, last: bool) -> None: ...


class AsItIs:
    """Byte by byte."""

    def rest(self, tail: Tail, last: bool) -> None:
        for block in tail.blocks():
            say_bytes(block, flush=False)
        say_bytes(b"")


class OnTerminal:
    """Whole lines without what would move or erase; the last one gets its end."""

    def __init__(self) -> None:
        self.colours = resolve_color_default() is not False

    def rest(self, tail: Tail, last: bool) -> None:
        for line in tail.lines(last):
            say(for_terminal(line, self.colours))


class AsJson:
    """One JSON document a line."""

    def rest(self, tail: Tail, last: bool) -> None:
        one = tail.attempt
        for line in tail.lines(last):
            print_json(
                {
                    "step_key": one["step_key"],
                    "number": one["number"],
                    "line": line.decode("utf-8", "replace"),
                }
            )


class Prefixed:
    """Whole lines behind the name of their step, in columns; colours of its own on terminals."""

    def __init__(self, steps: Sequence[str], terminal: bool) -> None:
        self.terminal = terminal
        wanted = resolve_color_default()
        self.colours = self.terminal if wanted is None else wanted
        self.bound = min(PREFIX_CELLS, room() // 3)
        self.wide = min(self.bound, max(map(cells, steps), default=0))
        self.bar = "|" if plain_signs() else "│"
        self.colour_of = {key: COLOURS[n % len(COLOURS)] for n, key in enumerate(steps)}
        self.first: dict[str, int] = {}

    def rest(self, tail: Tail, last: bool) -> None:
        prefix = self.prefix(tail.attempt)
        if self.terminal:
            for line in tail.lines(last):
                say(prefix + for_terminal(line, self.colours))
            return
        lead = prefix.encode(getattr(sys.stdout, "encoding", None) or "ascii", "backslashreplace")
        for line in tail.lines(last):
            say_bytes(lead + line + b"\n", flush=False)
        say_bytes(b"")

    def prefix(self, attempt: Row) -> str:
        key, number = attempt["step_key"], attempt["number"]
        first = self.first.setdefault(key, number)
        again = "" if number == first else f"#{number}"
        name = key
        if self.terminal:
            name = middle_cut(key, self.bound - len(again), cells, "…" if self.bar == "│" else "..")
        text = f"{padded(name + again, self.wide)} {self.bar if self.terminal else '|'} "
        return click.style(text, fg=self.colour_of[key]) if self.colours else text


def show_for(steps: Sequence[str] | None, as_json: bool, raw: bool = False) -> Show:
    """Prefixes when there are `steps` to tell apart; `raw`: a terminal gets what a pipe gets."""
    if as_json:
        return AsJson()
    terminal = sys.stdout is not None and sys.stdout.isatty() and not raw
    if steps is not None:
        return Prefixed(steps, terminal)
    return OnTerminal() if terminal else AsItIs()
