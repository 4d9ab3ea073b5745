"""What a worker says of its attempts, and what each answer does (DESIGN §6, §9).

A `Command` is one step for many attempts, not yet sent. Its calls may share a transaction with
others, and its answers are acted upon only after the commit: what is rolled back was no answer.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qinglong_sql.canonical import canonical
from qinglong_sql.errors import NotReady, QinglongError
from qinglong_sql.holding import Held, Phase
from qinglong_sql.leftover import Leftovers
from qinglong_sql.limits import LEASE_RENEWALS, WORKER_BATCH
from qinglong_sql.port import Port, Shut
from qinglong_sql.store import Call, Row
from qinglong_sql.workplace import End, Gone

# Runs what is said, then frontier and task admission of the runs named, then what is offered, all
# in one transaction; the answers of the first and the last, or None when each has to be sent alone.
Fuse = Callable[[Sequence[Call], Sequence[str], Sequence[Call]], list[list[Row]] | None]


@dataclass(frozen=True, slots=True)
class Command:
    """One step for several attempts; `of` is the command of each, `take` does what it is answered.

    The answer `contended` is none: it is asked for again.
    """

    step: str
    held: Sequence[Held]
    of: Callable[[Held], Mapping[str, Any]]
    take: Callable[[Held, Row], None]
    params: Mapping[str, object] = field(default_factory=dict)

    def calls(self) -> list[Call]:
        """At most WORKER_BATCH attempts a call."""
        return [self._call(batch) for batch in self._batches()]

    def alone(self, port: Port) -> tuple[list[Row], Exception | None]:
        """Send it by itself; the answers, which were done, and the first error.

        A batch that breaks a promise is sent again one by one, so that one attempt cannot hold up
        the others.
        """
        rows: list[Row] = []
        first: Exception | None = None
        batches = self._batches()
        while batches:
            batch = batches.pop(0)
            step, params = self._call(batch)
            try:
                rows += port.call(step, **params)
            except (Shut, NotReady) as error:  # of whatever is asked
                first = first or error
                break
            except QinglongError as error:
                if len(batch) > 1:
                    batches += [[one] for one in batch]
                else:
                    batch[0].refused = batch[0].phase == "ended"
                first = first or error
            except Exception as error:
                first = first or error
                break
        return self.answered(rows), first

    def answered(self, rows: Iterable[Row]) -> list[Row]:
        """Do what the rows say; gives them back without those that say nothing."""
        found = {row["attempt_id"]: row for row in rows if row["outcome"] != "contended"}
        for held in self.held:
            if held.attempt_id in found:
                self.take(held, found[held.attempt_id])
        return list(found.values())

    def unsure(self) -> None:
        """Of starts without an answer: they may have been committed."""
        for held in self.held:
            held.start_unsure = held.start_unsure or held.phase == "waiting"

    def _batches(self) -> list[Sequence[Held]]:
        return [self.held[at : at + WORKER_BATCH] for at in range(0, len(self.held), WORKER_BATCH)]

    def _call(self, batch: Sequence[Held]) -> Call:
        return self.step, {"p_commands": canonical([self.of(one) for one in batch]), **self.params}


class Asking:
    """The commands that are due for what a worker holds; it alone acts upon their answers.

    `clock` gives CLOCK_BOOTTIME in milliseconds; a lease is counted from before it is asked for.
    """

    def __init__(
        self,
        held: Mapping[str, Held],
        leftovers: Leftovers,
        lease_ms: int,
        clock: Callable[[], int],
    ) -> None:
        self._held = held
        self._leftovers = leftovers
        self._lease_ms = lease_ms
        self._clock = clock

    def within(self, *phases: Phase) -> list[Held]:
        """What is in one of these phases."""
        return [held for held in self._held.values() if held.phase in phases]

    def signs(self) -> list[object]:
        """What is other when something was heard of an execution."""
        return [(held.phase, held.started) for held in self._held.values()]

    def starts(self) -> Command:
        """The starting ACKs; the answer is the "go"."""
        sent_ms = self._clock()

        def take(held: Held, row: Row) -> None:
            if row["outcome"] != "applied":
                self._leftovers.lose(held)
                return
            assert held.execution is not None
            deadline_ms = None if held.timeout_ms is None else sent_ms + held.timeout_ms
            held.execution.go(held.lease_end_ms, deadline_ms)
            held.phase = "live"

        # Where the lease is over for all that we know, it has to be renewed first.
        waiting = [held for held in self.within("waiting") if held.lease_end_ms > sent_ms]
        return Command("start_attempts", waiting, Held.start, take)

    def ends(self) -> list[Command]:
        """What ended, with its end or only as gone."""
        ended = self.within("ended")
        reports = [held for held in ended if isinstance(held.end, End)]
        attests = [held for held in ended if isinstance(held.end, Gone)]
        return [
            Command("report_attempts", reports, Held.report, self._reported),
            Command("attest_attempts", attests, Held.attestation, self._reported),
        ]

    def running(self) -> Command:
        """What runs, once each."""

        def take(held: Held, row: Row) -> None:
            held.told_running = True

        news = [held for held in self.within("live") if held.started and not held.told_running]
        return Command("running_attempts", news, Held.command, take)

    def renewals(self, *, every: bool) -> Command:
        """What is to be renewed now; soon again unless it is answered."""
        sent_ms = self._clock()
        due = [
            held
            for held in self._held.values()
            if held.renewable() and (every or held.renew_at_ms <= sent_ms)
        ]
        for held in due:
            held.renew_at_ms = sent_ms + self._lease_ms // (5 * LEASE_RENEWALS)

        def take(held: Held, row: Row) -> None:
            self._renewed(held, row, sent_ms)

        lease = {"p_lease_ms": self._lease_ms}
        return Command("renew_attempts", due, Held.command, take, lease)

    def _reported(self, held: Held, row: Row) -> None:
        if row["code"] == "QL400" and isinstance(held.end, End) and held.end.output is not None:
            held.end = End("bad_output", held.end.exit_code, error="QL_OUTPUT was refused")
        else:
            self._leftovers.finish(held)

    def _renewed(self, held: Held, row: Row, sent_ms: int) -> None:
        if row["outcome"] != "applied":
            self._leftovers.lose(held)
            return
        held.renew_at_ms = sent_ms + self._lease_ms // LEASE_RENEWALS
        # Past its deadline and grace a lease is not prolonged, whatever the reason to stop.
        if row["stop_reason"] is None or row["expires_at_ms"] > held.expires_at_ms > 0:
            held.lease_end_ms = max(held.lease_end_ms, sent_ms + self._lease_ms)
        held.expires_at_ms = row["expires_at_ms"]
        if held.execution and held.phase == "live":
            held.execution.renew(held.lease_end_ms)
            if row["stop_reason"]:
                held.execution.stop(row["stop_reason"])
