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


class Before(Wrapped):
    """A store that does something before a step is called for the first time."""

    def __init__(self, store: Store, step: str, work: Any) -> None:
        super().__init__(store)
        self.step, self.work = step, work

    def before(self, step: str, params: Any) -> None:
        if step == self.step and self.work and '"attempt_id"' in str(params):
            work, self.work = self.work, None
            work()


class Forgetful(Wrapped):
    """A store that commits and then loses the answer, the first `times` of each step."""

    def __init__(self, store: Store, *steps: str, times: int = 1) -> None:
        super().__init__(store)
        self.left = dict.fromkeys(steps, times)

    def after(self, step: str, rows: list[Row]) -> None:
        if self.left.get(step) and rows:
            self.left[step] -= 1
            raise ConnectionError(f"the answer of {step} was lost")


class Unsent(Wrapped):
    """A store that no start reaches."""

    def before(self, step: str, params: Any) -> None:
        if step == "start_attempts" and "identity" in params["p_commands"]:
            raise ConnectionError("not even sent")
