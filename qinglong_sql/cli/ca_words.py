"""How `ca` tells of certificates."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qinglong_sql.ca import Issued

DAY_MS = 24 * 3600 * 1000
SOON_MS = 14 * DAY_MS


def answer_of(one: "Issued", now: int) -> dict[str, Any]:
    """One certificate as `--json` has it."""
    return {
        "name": one.name,
        "kind": one.kind,
        "serial": one.serial,
        "hosts": list(one.hosts),
        "issued_at_ms": one.issued_at_ms,
        "until_ms": one.not_after_ms,
        "revoked_at_ms": one.revoked_at_ms,
        "standing": standing(one, now).partition(" ")[0],
    }


def standing(one: "Issued", now: int) -> str:
    """`good`, `ended`, or `revoked` and when."""
    if one.revoked_at_ms is not None:
        return f"revoked {day(one.revoked_at_ms)}"
    return "good" if one.live(now) else "ended"


def ending(found: "list[Issued]", now: int) -> "list[Issued]":
    """The last certificate of each name that ends within a fortnight, or has ended."""
    last = {}
    for one in sorted(found, key=lambda one: one.not_after_ms):
        if one.revoked_at_ms is None:
            last[one.name] = one
    return [one for one in last.values() if one.not_after_ms < now + SOON_MS]


def day(at_ms: int) -> str:
    """A day in UTC."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d}"
