"""What a worker needs of the database, whichever way leads there (DESIGN §8).

A store of this machine is a port, and so are the worker's own login (port_postgres) and the
workers' door (remote). Behind one that is not a store there are the steps of ql_worker alone.
"""

from typing import Final, Protocol

from qinglong_sql.errors import QinglongError
from qinglong_sql.store import Row
from qinglong_sql.store.steps import STEPS

WORKER_STEPS: Final = frozenset(name for name, step in STEPS.items() if step.schema == "ql_worker")
CONNECT_S: Final = 3.0
ANSWER_S: Final = 5.0
LEASE_SHARE: Final = 6  # no call takes longer than this part of a lease: a third is for renewals


class Port(Protocol):
    """Calls steps. Errors are those of qinglong_sql.errors, Contended, Away and Shut."""

    def call(self, step: str, /, **params: object) -> list[Row]:
        """Run one step in one transaction, committed on return; its rows.

        Raises Away when no answer came: whether it was committed is unknown, it is to be repeated.
        """

    def close(self) -> None:
        """Let the way go. May be repeated."""


class Away(ConnectionError):
    """No answer: nobody is there, or it came too late. In words for people, without a secret."""


class Shut(QinglongError):
    """The door is there and lets this worker not in: no certificate that it takes, no right."""

    code = "QL403"


def within_s(lease_ms: int) -> tuple[float, float]:
    """Seconds for a connection, and for an answer, of a worker whose leases last so long."""
    share = lease_ms / 1000 / LEASE_SHARE
    return min(CONNECT_S, share), min(ANSWER_S, share)


def only_worker_steps(step: str) -> None:
    """Raise KeyError for a step that no worker may call."""
    if step not in WORKER_STEPS:
        raise KeyError(step)
