"""Days that pass on a clock of ours, in steps of ten minutes, for a trigger in every rule set.

What must have been fired says a scan that looks at each minute, by the offsets of the zone files;
it shares no code with what it judges.
"""

from bisect import bisect_right

from qinglong_sql.limits import PAGE_SIZE
from qinglong_sql.schedule import run_schedule
from qinglong_sql.store import Store
from tests import acting
from tests.crowds import quick
from tests.stores import FakeClock
from tests.test_cron_zones import END, EXPRESSIONS, MINUTE, rule_sets
from tests.tzfile import DAY, changes

STEP_MS = 600_000


def passed(store: Store, clock: FakeClock, expression: str, start: int, days: int) -> list[str]:
    """Zones whose fires of so many days, from `start` (seconds), are not what the scan says."""
    zones = {f"z{number:02}": names[0] for number, names in enumerate(rule_sets().values())}
    one = {"cron": expression, "kind": "task", "misfire": "fire_once", "overlap": "allow",
           "target": "work"}  # fmt: skip
    quick(store)
    clock.set(start * 1000 - 1)
    made = acting.model({"work": acting.task()})
    acting.publish_model(store, made | {"triggers": {k: one | {"tz": z} for k, z in zones.items()}})
    end = start + days * DAY
    for at_ms in range(start * 1000 - 1, end * 1000, STEP_MS):
        clock.set(at_ms)
        while run_schedule(store).scanned >= PAGE_SIZE:
            pass
    wrong = []
    for key, zone in zones.items():
        rows = store.read("run_state", trigger_key=key, order="scheduled_at_ms")
        found = [row["scheduled_at_ms"] // 1000 for row in rows]
        wanted = [at for at in scanned(zone, expression, start, end) if at < end - STEP_MS // 1000]
        if [at for at in found if at < end - STEP_MS // 1000] != wanted:
            wrong.append(f"{expression} in {zone}: {len(found)} fires, {len(wanted)} wanted")
    return wrong


def scanned(zone: str, expression: str, start: int, end: int) -> list[int]:
    """When the minutes from `start` to `end` say that it fires."""
    due, fixed = EXPRESSIONS[expression]
    first, found = changes(zone, END)
    edges, offsets = [one.at for one in found], [first, *(one.after for one in found)]
    fires, highest = list[int](), 0
    for at in range(start - DAY, end, MINUTE):  # a jump at the start belongs to it
        wall = at + offsets[bisect_right(edges, at)]
        news = range(wall, wall + MINUTE, MINUTE)
        if fixed and wall - highest <= 181 * MINUTE:
            news = range(highest + MINUTE, wall + MINUTE, MINUTE)
        highest = max(highest, wall)
        if at >= start and any(due(minute // MINUTE % 1_440) for minute in news):
            fires.append(at)
    return fires
