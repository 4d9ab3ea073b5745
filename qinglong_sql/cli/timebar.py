"""When a step waited, ran and was tried again, as a bar on the time axis of its run."""

from dataclasses import dataclass

from qinglong_sql.cli.words import Row, plain_signs, span

LEAST = 12
MOST = 40


@dataclass(frozen=True, slots=True)
class Strokes:
    """What a bar is drawn with."""

    waits: str
    again: str
    runs: str


BLOCKS = Strokes("·", "░", "█")
SIGNS = Strokes(".", "~", "#")


@dataclass(frozen=True, slots=True)
class Axis:
    """The time of a run in cells of equal length."""

    first_ms: int
    past_ms: int
    wide: int

    def bar(self, step: Row, attempts: list[Row]) -> str:
        """The bar of a step: where it waits, runs, and waits for another attempt."""
        strokes, drawn = strokes_of(), [" "] * self.wide
        for first_ms, past_ms, stroke in segments(step, attempts, self.past_ms, strokes):
            first = min(self.wide - 1, self.place(first_ms))
            if stroke == strokes.runs or self.place(past_ms) > first:
                for place in range(first, max(self.place(past_ms, up=True), first + 1)):
                    if stroke == strokes.runs or drawn[place] != strokes.runs:
                        drawn[place] = stroke
        return f"|{''.join(drawn)}|"

    def place(self, at_ms: int, *, up: bool = False) -> int:
        """The cell of a time; `up` is the one behind it."""
        whole = max(1, self.past_ms - self.first_ms)
        at = (at_ms - self.first_ms) * self.wide
        return max(0, min(self.wide, -(-at // whole) if up else at // whole))

    def title(self) -> str:
        """The two ends of the axis."""
        end = span(self.first_ms, self.past_ms)
        return f"|0{end:>{self.wide - 1}}|"


def segments(
    step: Row, attempts: list[Row], now: int, strokes: Strokes
) -> list[tuple[int, int, str]]:
    """Pieces (from, to, stroke) of a step's life; times are epoch milliseconds."""
    found = []
    begun = step["ready_at_ms"]
    stroke = strokes.waits
    for attempt in attempts:
        start = attempt["starting_at_ms"]
        if start is None:
            continue
        end = attempt["finished_at_ms"] or now
        if begun is not None:
            found.append((begun, start, stroke))
        found.append((start, end, strokes.runs))
        begun, stroke = end, strokes.again
    if begun is not None and step["finished_at_ms"] is None and step["status"] != "running":
        found.append((begun, now, stroke))
    return found


def strokes_of() -> Strokes:
    return SIGNS if plain_signs() else BLOCKS


def legend() -> str:
    """What the strokes mean, once a screen."""
    strokes = strokes_of()
    return f"{strokes.waits} waits  {strokes.runs} runs  {strokes.again} until it is tried again"
