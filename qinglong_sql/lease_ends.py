"""Executions whose lease ended while nobody could be told of it: said when it is seen."""

from collections.abc import Iterable

from qinglong_sql.control_log import Log
from qinglong_sql.holding import Held
from qinglong_sql.workplace import LEASE_LOST, Gone


class LeaseEnds:
    """Says each once; that it is reported, when somebody answers again, is said as ever."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._told: set[str] = set()

    def look(self, held: Iterable[Held]) -> None:
        """Say what is new."""
        over = {one.attempt_id: one for one in held if one.end == Gone(LEASE_LOST)}
        for attempt_id, one in over.items():
            if attempt_id in self._told:
                continue
            self._log.say(
                "warning",
                "lease",
                f"run {one.run_id}: {one.step_key} #{one.number}: its lease is over, ended",
                run_id=one.run_id,
                step_key=one.step_key,
                number=one.number,
            )
        self._told = set(over)
