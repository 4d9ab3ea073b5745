"""A store in front of another one, for tests that break what goes through it."""

from collections.abc import Sequence
from typing import Any

from qinglong_sql.errors import QinglongError
from qinglong_sql.store import Call, Row, Store


class Wrapped:
    """Passes everything on; subclasses say what happens before a step, and after its commit.

    A store that fuses is one that fuses: what `before` refuses undoes its whole transaction, and
    what `after` raises comes when all of it was committed.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.engine = store.engine
        if hasattr(store, "fuse"):
            self.fuse = self._fuse

    def before(self, step: str, params: Any) -> None:
        pass

    def after(self, step: str, rows: list[Row]) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def call(self, step: str, /, **params: Any) -> list[Row]:
        self.before(step, params)
        rows = self.store.call(step, **params)
        self.after(step, rows)
        return rows

    def _fuse(self, calls: Sequence[Call]) -> list[list[Row]] | None:
        try:
            for step, params in calls:
                self.before(step, params)
        except QinglongError:
            return None
        answers: list[list[Row]] | None = self.store.fuse(calls)  # type: ignore[attr-defined]
        for (step, _), rows in zip(calls, answers or [], strict=False):
            self.after(step, rows)
        return answers
