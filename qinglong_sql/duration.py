"""Durations as people write them: 250ms, 30s, 15m, 2h, 1d, 1h30m."""

import re

UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
ORDER = ("d", "h", "m", "s", "ms")
PART = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)")
WHOLE = re.compile(rf"(?:{PART.pattern})+")


class DurationFault(ValueError):
    """A text that is no duration; its message is the reason."""


def read_duration(text: str, most_ms: int) -> int:
    """Milliseconds of `<int><unit>`, or several of them from the largest unit to the smallest.

    More than zero and at most `most_ms`. Raises DurationFault.
    """
    if not WHOLE.fullmatch(text):
        raise DurationFault(_why_not(text))
    parts = PART.findall(text)
    ranks = [ORDER.index(unit) for _, unit in parts]
    if ranks != sorted(set(ranks)):
        raise DurationFault("each unit once, from the largest to the smallest, such as 1h30m")
    total = sum(int(count) * UNIT_MS[unit] for count, unit in parts)
    if total == 0:
        raise DurationFault("must be more than zero")
    if total > most_ms:
        raise DurationFault(f"must be at most {write_duration(most_ms)}")
    return total


def write_duration(ms: int) -> str:
    """The shortest text that `read_duration` reads back, for ms > 0; `0ms` for nothing."""
    if ms <= 0:
        return "0ms"
    text = ""
    for unit in ORDER:
        count, ms = divmod(ms, UNIT_MS[unit])
        text += f"{count}{unit}" if count else ""
    return text


def _why_not(text: str) -> str:
    if re.fullmatch(r"[0-9]+", text):
        return f"a unit is missing: write {text[:12]}s for seconds"
    if re.fullmatch(r"[0-9]+\.[0-9]+(ms|s|m|h|d)", text):
        return "only whole numbers: write 1h30m for 1.5h"
    return "write a whole number and a unit: 250ms, 30s, 15m, 2h, 1d or 1h30m"
