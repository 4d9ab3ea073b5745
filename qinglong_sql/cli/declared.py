"""What an operator has vouched for, with the attempts it is about: `declare-stopped`."""

from collections.abc import Iterable

from qinglong_sql.cli.words import Row
from qinglong_sql.store import Store

LOST = ("execution_lost", "execution_timed_out")


def attempts_with(store: Store, run_id: str) -> list[Row]:
    """The attempts of a run by number, each with `declared`: who vouched that it has stopped, why
    and when, and what was to follow; None for what nobody vouched for."""
    attempts = store.read("attempt_state", order="number", run_id=run_id)
    named = ("actor", "reason", "follow", "attested_at_ms")
    said = {
        row["attempt_id"]: {name: row[name] for name in named}
        for row in store.read("attestation_state", run_id=run_id, evidence="declared")
    }
    return [{**one, "declared": said.get(one["attempt_id"])} for one in attempts]


def words_of(attempt: Row | None, code: str | None = "execution_lost") -> str:
    """`declared stopped by ann: power cut`; nothing when an attempt's end has another cause."""
    declared = (attempt or {}).get("declared")
    if not declared or code not in LOST:
        return ""
    reason = " ".join(declared["reason"].split())
    return f"declared stopped by {declared['actor']}: {reason}"


def all_words(attempts: Iterable[Row]) -> list[str]:
    """A line for each attempt that was declared stopped."""
    return [
        f"{one['step_key']} #{one['number']} {words_of(one)}" for one in attempts if words_of(one)
    ]
