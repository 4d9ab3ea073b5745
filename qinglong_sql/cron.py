"""Cron grammar and time zone names: what a trigger may say (DESIGN §11).

Five fields, or six with seconds first, or @hourly to @yearly; days by Debian's rule (day of month
and day of week are joined by `or` unless one starts with a star). What other dialects write is
refused with a reason, so nothing is ever scheduled at other times than its author meant.
"""

import re
from dataclasses import dataclass

from qinglong_sql.zones import zone_names

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
LONGEST_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
NUMBER = re.compile(r"[0-9]{1,9}")
# Names that the zone list has but that say less, or something else, than they seem to.
MISLEADING = re.compile(r"EST|MST|HST|Etc/GMT[+-][0-9]+")


@dataclass(frozen=True, slots=True)
class Field:
    """One field of an expression: its name for people, its range, and names for its numbers."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    # A step longer than a day field is the known trick `*/100,1-7` (day and weekday both hold);
    # in the other fields it never means what it says (`*/90` minutes runs hourly).
    long_step: bool = False


SECOND = Field("second", 0, 59)
FIELDS = (
    Field("minute", 0, 59),
    Field("hour", 0, 23),
    Field("day of month", 1, 31, long_step=True),
    Field("month", 1, 12, MONTHS),
    Field("day of week", 0, 7, WEEKDAYS, long_step=True),
)


class CronFault(ValueError):
    """An expression or a zone name that is refused; its message is the reason."""


def plain_cron(expr: str) -> str:
    """The expression in lower case with single blanks, macros written out as five fields."""
    expr = " ".join(expr.lower().split())
    return MACROS.get(expr, expr)


def check_cron(expr: str) -> None:
    """Raise CronFault, with every field's fault, unless the expression can be scheduled."""
    if expr.strip().lower() in MACROS:
        return
    if reason := _other_dialect(expr):
        raise CronFault(reason)
    texts = expr.lower().split()
    fields = FIELDS if len(texts) == 5 else (SECOND, *FIELDS)
    values: list[frozenset[int]] = []
    reasons = []
    for field, text in zip(fields, texts, strict=True):
        try:
            values.append(_field_values(field, text))
        except CronFault as fault:
            reasons.append(f"{field.name}: {fault}")
    if reasons:
        raise CronFault("; ".join(reasons))
    days, months = values[-3], values[-2]
    joined_by_or = not texts[-3].startswith("*") and not texts[-1].startswith("*")
    if not joined_by_or and min(days) > max(LONGEST_MONTH[month - 1] for month in months):
        raise CronFault("day of month: never fires, since none of these months has such a day")


def check_timezone(name: str) -> None:
    """Raise CronFault unless the name, in this very spelling, is in the tzdata package's list.

    The list comes from the installed package and never from the host, so that all hosts agree.
    """
    if name in zone_names():
        return
    raise CronFault(_why_no_zone(name))


def timezone_warning(name: str) -> str | None:
    """What a valid but misleading zone name really means, or None."""
    if not MISLEADING.fullmatch(name):
        return None
    if name.startswith("Etc/GMT"):
        sign = "-" if name[7] == "+" else "+"
        return f"{name} is UTC{sign}{name[8:]}: the sign in these names is turned round"
    return f"{name} has no summer time; a city such as America/New_York follows it"


def _other_dialect(expr: str) -> str | None:
    text = expr.strip()
    word = text.lower()
    if not text:
        return "is empty: five fields are needed, such as 30 2 * * *"
    if len(text.splitlines()) > 1:
        return "is more than one line: one expression a trigger"
    if not text.isascii():
        odd = next(character for character in text if not character.isascii())
        return f"holds {odd!a}, which is not ASCII: write ordinary digits and blanks"
    if word.startswith("@reboot"):
        return "@reboot is not a time: start the run when the host starts, by its own service"
    if word.startswith("@"):
        return f"{_short(text)} is not a macro: " + ", ".join(MACROS)
    if re.match(r"(cron_)?tz\s*=", word):
        return "a zone in front of the fields is not read: say it in tz"
    if re.match(r"(cron|rate)\s*\(", word):
        return "cron(…) and rate(…) are another system's form: write the fields alone"
    count = len(text.split())
    if count == 7:
        return "has 7 fields: years are not supported, write 5, or 6 with seconds first"
    if count not in (5, 6):
        return f"has {count} field{'s' * (count > 1)}: write 5, or 6 with seconds first"
    return None


def _field_values(field: Field, text: str) -> frozenset[int]:
    values: set[int] = set()
    for term in text.split(","):
        values.update(_term_values(field, term))
    return frozenset(values)


def _term_values(field: Field, term: str) -> range:
    if not term:
        raise CronFault("an entry is empty")
    body, slash, step_text = term.partition("/")
    low_text, dash, high_text = body.partition("-")
    if body == "*":
        low, high = field.low, field.high
    elif dash:
        low, high = _number(field, low_text, term), _number(field, high_text, term)
    else:
        low = high = _number(field, body, term)
    if low > high:
        raise CronFault(f"{_short(body)} runs backwards: write two ranges with a comma")
    if not slash:
        return range(low, high + 1)
    if not NUMBER.fullmatch(step_text):
        raise CronFault(f"{_short(term)} has no step: a whole number comes after /")
    step = int(step_text)
    if step == 0:
        raise CronFault(f"{_short(term)} has step 0")
    if body != "*" and low == high:
        raise CronFault(f"{_short(term)} steps without a range: write {low}-{field.high}/{step}")
    if step > field.high - field.low + 1 and not field.long_step:
        raise CronFault(f"step {step} is longer than {field.low}-{field.high}: it would mean {low}")
    return range(low, high + 1, step)


def _number(field: Field, text: str, term: str) -> int:
    if text in field.names:
        return field.names.index(text) + field.low
    if not NUMBER.fullmatch(text):
        raise CronFault(_why_no_number(field, text, term))
    number = int(text)
    if not field.low <= number <= field.high:
        raise CronFault(f"{number} is out of range {field.low}-{field.high}")
    return number


def _why_no_number(field: Field, text: str, term: str) -> str:
    if not text:
        return f"{_short(term)} lacks a number"
    if "?" in text:
        return "? is not supported: write *"
    if "#" in text:
        return "# (the n-th weekday of a month) is not supported"
    if re.fullmatch(r"h(\(.*\)?)?", text):
        return "H (a time chosen by hash) is not supported: write the number"
    if re.fullmatch(rf"l[0-9]*|lw|[0-9]+l|({'|'.join(WEEKDAYS)})l", text):
        return "L (the last one) is not supported"
    if re.fullmatch(r"[0-9]+w|w", text):
        return "W (the nearest working day) is not supported"
    if NUMBER.match(text) and text.isdigit():
        return f"{_short(text)} is out of range {field.low}-{field.high}"
    names = f" or a name such as {field.names[1]}" if field.names else ""
    return f"{_short(text)} is not a number{names}"


def _why_no_zone(name: str) -> str:
    if not name:
        return "is empty: name a zone such as Europe/Berlin, or UTC"
    if name != name.strip():
        return f"{_short(name)} has a blank before or after it"
    same = [zone for zone in zone_names() if zone.lower() == name.lower()]
    if same:
        return f"{_short(name)} is spelt {same[0]}"
    if re.fullmatch(r"(UTC|GMT)?[+-]?[0-9:.]+", name, re.IGNORECASE):
        return f"{_short(name)} is an offset: name a zone such as Asia/Shanghai"
    if re.fullmatch(r"[A-Z]{2,5}", name):
        return f"{_short(name)} is an abbreviation and can mean several zones: name a place"
    return f"{_short(name)} is not an IANA zone name such as Europe/Berlin"


def _short(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:37] + "...")
