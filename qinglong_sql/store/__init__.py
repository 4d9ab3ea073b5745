"""Stores: call a step, read a view; nothing else speaks SQL (DESIGN §3).

Rules live in the database. A store runs one step in one transaction and hands back its rows.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from qinglong_sql.errors import (
    Conflict,
    Fenced,
    Malformed,
    NotReady,
    QinglongError,
    Unknown,
    Violated,
    error_of,
)
from qinglong_sql.store.span import Span
from qinglong_sql.store.steps import Contended

if TYPE_CHECKING:
    from qinglong_sql.stage import Stage

__all__ = [
    "VIEWS",
    "Call",
    "Conflict",
    "Contended",
    "Fenced",
    "Malformed",
    "NotReady",
    "QinglongError",
    "Row",
    "Span",
    "Store",
    "Unknown",
    "Violated",
    "error_of",
    "open_store",
]

Row = dict[str, Any]
Call = tuple[str, Mapping[str, object]]  # a step and its parameters

SQLITE = "sqlite:///"
POSTGRES = ("postgresql://", "postgres://")

# what `read` may name: the reading views, and the decision views by the order of their files
_READING = (
    "package_state target_state trigger_state run_state open_run intent_state input_state"
    " step_state step_need attempt_state event_log attestation_state refused_state agenda_state"
    " fault_state worker_state worker_hold worker_audit_log queue_state"
)
_DECISION = (
    "state_transition run_admission task_attempt_admission step_run_mutation live_attempt"
    " takeover_node takeover_alone takeover admission_effect"
    " schedule_decision schedule_blocked schedule_due"
    " frontier_ready frontier_skip frontier_effect frontier_blocked"
    " task_admission_effect dispatch_effect completion_end completion_effect"
    " recovery_due recovery_blocked recovery_end recovery_effect retry_longest"
    " retry_effect"
    " intent_effect cancellation_blocked cancellation_effect retention_due explain agenda_missing"
    " agenda_ahead violation"
)
VIEWS = frozenset(f"{_READING} {_DECISION}".split())


class Store(Protocol):
    """A database with the schema in it. Errors are those of qinglong_sql.errors, and Contended."""

    engine: Literal["sqlite", "postgres"]

    def call(self, step: str, /, **params: object) -> list[Row]:
        """Run one step in one transaction, committed on return; its rows.

        Raises KeyError for an unknown step, TypeError when its parameters are others, and
        QinglongError for what the step refuses.
        """

    def page(self, stage: "Stage", after: tuple[int, str], limit: int) -> list[Row]:
        """Do what is due in a stage: at most `limit` runs, in key order after (due_at_ms, run_id).

        Rows have run_id, due_at_ms, outcome, effects, settled_attempts and blocked_count. A run
        that raises is recorded as a fault and answers `faulted`.
        """

    def read(self, view: str, /, *, order: str = "", limit: int = 0, **equals: object) -> list[Row]:
        """Rows of one of VIEWS whose columns equal `equals`; None is null, a Span a range.

        `order` is columns with an optional " desc"; limit 0 is all. Raises KeyError for an unknown
        view or column, in the order as well.
        """

    def clock(self) -> int:
        """The database's time, which is its machine's: milliseconds since 1970."""

    def ends_cycle(self, error: Exception) -> bool:
        """Whether an error is the machine's or the database's trouble, and no one candidate's."""

    def close(self) -> None:
        """Let the database go."""


def open_store(dsn: str, *, create: bool = False) -> Store:
    """The store of `sqlite:///path`, `sqlite:////absolute/path` or `postgresql://…`.

    With `create`, a SQLite file is made and brought to the newest revision. Raises NotReady
    (QL503), with the way out, when the schema is not there or not the shipped one, and Malformed
    (QL400) for another kind of DSN.
    """
    if dsn.startswith(SQLITE):
        from qinglong_sql.store.sqlite import open_sqlite

        return open_sqlite(Path(dsn.removeprefix(SQLITE)), create=create)
    if dsn.startswith(POSTGRES):
        from qinglong_sql.store.postgres import open_postgres_store

        return open_postgres_store(dsn)
    raise Malformed(f"a DSN is sqlite:///path or postgresql://…, not {dsn.partition(':')[0]}:…")


def select_text(
    view: str,
    columns: Collection[str],
    order: str,
    limit: int,
    equals: Mapping[str, object],
) -> tuple[str, list[object]]:
    """What follows `select * from view`, with `{}` for each value, and the values.

    Every name is checked against the view's own columns, so none comes from input. Raises KeyError.
    """
    terms: list[str] = []
    values: list[object] = []
    for name, value in equals.items():
        if name not in columns:
            raise KeyError(f"{view} has no column {name}")
        if isinstance(value, Span):
            terms.append(f"{name} >= {{}} and {name} < {{}}")
            values += [value.first, value.past]
        elif value is None:
            terms.append(f"{name} is null")
        else:
            terms.append(f"{name} = {{}}")
            values.append(value)
    text = f" where {' and '.join(terms)}" if terms else ""
    words = [part.split() for part in order.split(",")] if order else []
    for word in words:
        if not word or word[0] not in columns or word[1:] not in ([], ["desc"]):
            raise KeyError(f"{view} cannot be ordered by {order!r}")
    if words:
        text += f" order by {', '.join(' '.join(word) for word in words)}"
    return text + (f" limit {int(limit)}" if limit else ""), values
