"""Reading again what a command has found before: it may be gone meanwhile, and its file too."""

from qinglong_sql.cli.exits import Refused
from qinglong_sql.cli.words import Row
from qinglong_sql.store import Store


def the_run(store: Store, run_id: str) -> Row:
    """The run as it is now, for everybody who reads it once more, and in each turn of a loop.

    Raises Refused for a run that is gone, NotReady and Displaced when the file of the store is.
    """
    still_there(store)
    rows = store.read("run_state", run_id=run_id)
    if not rows:
        raise Refused(f"run {run_id} is gone: purged, or another database was restored")
    return rows[0]


def steps_of(store: Store, run_id: str) -> list[Row]:
    """Its steps by their keys; every run has one. Raises Refused for a run that is gone."""
    steps = store.read("step_state", order="step_key", run_id=run_id)
    if not steps:
        the_run(store, run_id)
    return steps


def still_there(store: Store) -> None:
    """Raise NotReady when the store's file is away, Displaced when no time brings it back.

    A server has none.
    """
    look = getattr(store, "still_there", None)
    if look is not None:
        look()
