"""What becomes of an occurrence, once more in plain Python, from DOMAIN.md §3.10 and issue 5."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Told:
    """What a decision says: why nothing starts, the cursor, and whether a run does."""

    disposition: str
    cause: str | None
    cursor: int
    runs: int


def arrival(due_ms: int, observed_ms: int, grace_ms: int) -> str:
    """How an occurrence is found; as late as its grace is not late."""
    if due_ms > observed_ms:
        return "early"
    return "late" if observed_ms - due_ms > grace_ms else "on_time"


def owner(
    run_id: str, retry_of: dict[str, str | None], started: dict[str, str | None]
) -> str | None:
    """The trigger in whose way a run is while it is open: what it retries tells, if not itself."""
    told: str | None = run_id
    while told is not None and started[told] is None:
        told = retry_of[told]
    return None if told is None else started[told]


def decide(found: str, misfire: str, overlap: str, is_open: bool) -> tuple[str, str | None]:
    """Disposition and cause, for an active trigger of an active generation.

    `is_open` says that a run is open of which the trigger is the owner.
    """
    if found == "early":
        return "initialize", None
    if found == "late" and misfire == "skip":
        return "skip", "misfire"
    if is_open and overlap == "skip":
        return "skip", "overlap"
    return "admit", None


def occurrence(
    due_ms: int, next_ms: int, observed_ms: int, grace_ms: int, misfire: str, overlap: str,
    is_open: bool,
) -> Told:  # fmt: skip
    """All of it: `next_ms` is the first time after what was observed."""
    found = arrival(due_ms, observed_ms, grace_ms)
    disposition, cause = decide(found, misfire, overlap, is_open)
    cursor = due_ms if disposition == "initialize" else next_ms
    return Told(disposition, cause, cursor, int(disposition == "admit"))


def due_at(
    state: str, cursor: int | None, expires_ms: int | None, next_try_ms: int | None
) -> int | None:
    """When a trigger is looked at: not while it is paused, held, or in its back-off."""
    if state != "active":
        return None
    if expires_ms is not None:
        return expires_ms
    if next_try_ms is not None:
        return next_try_ms
    return 0 if cursor is None else cursor
