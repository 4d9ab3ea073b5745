"""What a worker knows of one attempt that it holds, from the lease to the report (DESIGN §9)."""

import json
import os
import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from qinglong_sql.canonical import canonical, digest
from qinglong_sql.execution import (
    Execution,
    RecordBroken,
    adopt,
    evidence,
    read_journal,
    read_receipt,
    write_journal,
)
from qinglong_sql.limits import LEASE_RENEWALS
from qinglong_sql.workplace import End, Gone, end_of

REJOIN_MS = 2_000

# leased: ours, without a launcher · waiting: a launcher waits for "go", the start is unanswered ·
# live: "go" was said · parted: no connection to its launcher, a receipt may come · ended: to be
# reported · unproven: nothing will ever be known, recovery decides by the fence
Phase = Literal["leased", "waiting", "live", "parted", "ended", "unproven"]


@dataclass(frozen=True, slots=True)
class Offer:
    """What an attempt may be leased with; a repeated offer gets the answer of the first.

    `sent_ms` is before it was first sent (CLOCK_BOOTTIME); 0 is not known.
    """

    offer_id: str
    token: str
    sent_ms: int

    def row(self) -> dict[str, str]:
        return {"offer_id": self.offer_id, "token_digest": digest(self.token)}


@dataclass(slots=True)
class Held:
    """One attempt; times are CLOCK_BOOTTIME milliseconds, except `expires_at_ms`."""

    attempt_id: str
    run_id: str
    step_key: str
    number: int
    offer_id: str
    fence: int
    token: str
    folder: Path
    phase: Phase
    lease: Mapping[str, Any] | None = None  # the row of lease_attempts; None once it was journaled
    timeout_ms: int | None = None
    lease_end_ms: int = 0
    expires_at_ms: int = 0  # the same by the database's clock; 0 is not known
    renew_at_ms: int = 0
    execution: Execution | None = None
    started: bool = False
    told_running: bool = False
    start_unsure: bool = False  # a start was sent and its answer was lost
    parted_ms: int = 0  # when it was first seen without its launcher
    refused: bool = False  # its report broke a promise, and would again
    lost: bool = False  # the database has taken the lease away
    survived: bool = False  # something of it lives that nobody guards, and it cannot be killed
    end: End | Gone | None = None

    def renewable(self) -> bool:
        """Whether its lease is still ours and still needed."""
        kept = self.phase in ("leased", "waiting", "live") or self.survived
        return kept and not self.lost

    def command(self, **more: Any) -> dict[str, Any]:
        """The command of this attempt, with its authority."""
        return {
            "attempt_id": self.attempt_id, "fence": self.fence, "token": self.token, **more,
        }  # fmt: skip

    def start(self) -> dict[str, Any]:
        """The starting ACK; the same identity whenever it is repeated."""
        assert self.execution is not None
        known = self.execution.identity
        named = {key: known[key] for key in ("boot_id", "launcher_pid", "launcher_ticks")}
        return self.command(identity=canonical(named))

    def report(self) -> dict[str, Any]:
        """The report of an end."""
        end = self.end
        assert isinstance(end, End)
        return self.command(
            how=end.how, exit_code=end.exit_code, output=end.output, error=end.error
        )

    def attestation(self) -> dict[str, Any]:
        """The word that nothing of it runs any more."""
        assert isinstance(self.end, Gone)
        return self.command(reason=self.end.reason)

    def journal(self, execution: Execution) -> None:
        """Make durable what a later worker needs to take this over. Raises OSError."""
        record = {
            "attempt": self.attempt_id,
            "run_id": self.run_id,
            "step_key": self.step_key,
            "number": self.number,
            "offer": self.offer_id,
            "fence": self.fence,
            "token": self.token,
            "folder": str(self.folder),
        }
        write_journal(self.folder, record | execution.identity)

    def part(self) -> None:
        """Close the connection; a launcher that still waits for "go" ends as not_started."""
        if self.execution:
            self.execution.close()
            self.execution = None

    def hear(self) -> None:
        """Take what its launcher has said."""
        while self.execution and (said := self.execution.poll()):
            self.started = self.started or said == "started"
            if said == "ended":
                self.part()
                self.phase = "parted"

    def look(self) -> Literal["alive", "known", "none"]:
        """See what the folder of a parted execution proves, and set `end` when it is known."""
        try:
            seen = evidence(self.folder)
            receipt = read_receipt(self.folder) if seen == "receipt" else None
        except RecordBroken:
            return "none"
        if receipt and receipt.attempt != self.attempt_id:
            return "none"
        if receipt:
            self.end = end_of(receipt, self.folder)
        elif seen == "other_boot":
            self.end = Gone("other_boot")
        else:
            return "alive" if seen == "alive" else "none"
        return "known"

    def take_proof(self, now_ms: int) -> None:
        """Go on by what the folder of a parted execution proves."""
        match self.look():
            case "known":
                self.phase = "ended"
            case "none":
                self.phase = "unproven"
            case "alive":
                self.rejoin(now_ms)

    def rejoin(self, now_ms: int) -> None:
        """Connect to a launcher that lives; one that never got its "go" is let go instead."""
        if now_ms < self.renew_at_ms:
            return
        self.renew_at_ms = now_ms + REJOIN_MS  # one that hangs must not hold up every tick
        try:
            execution = adopt(self.folder)
        except RecordBroken:
            return
        if execution and execution.child is None:
            execution.close()
        elif execution:
            self.execution, self.phase, self.started = execution, "live", True
            self.renew_at_ms = self.parted_ms = 0


FOLDER: Callable[[Held], Path] = attrgetter("folder")


def new_offer(now_ms: int) -> Offer:
    """An offer with 256 bits of its own; only the token's digest is sent with it."""
    return Offer("of" + uuid.uuid4().hex[:24], secrets.token_hex(32), now_ms)


def save_offers(state_dir: Path, offers: Mapping[str, Sequence[Offer]], saved: str) -> str:
    """Keep what is about to be offered, by queue, and return its text; `saved` is what is there.

    A worker that is killed after its lease and before its journal finds its authority here. A
    machine that stops may lose it, and then the lease runs out. Raises OSError.
    """
    text = canonical({q: [[one.offer_id, one.token] for one in offers[q]] for q in offers})
    if text != saved:
        new = state_dir / "offers.new"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
        new.replace(state_dir / "offers.json")
    return text


def load_offers(state_dir: Path) -> dict[str, list[Offer]]:
    """What an earlier worker offered last, by queue; nothing when that cannot be read."""
    try:
        found = json.loads((state_dir / "offers.json").read_text(encoding="utf-8"))
        return {
            q: [Offer(str(i), str(token), 0) for i, token in found[q]] for q in found if found[q]
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def held_of_lease(row: Mapping[str, Any], offer: Offer, folder: Path, lease_ms: int) -> Held:
    """What a row of `lease_attempts` says, its lease counted from before the request.

    When that is not known, it has to be renewed before it can be started.
    """
    return Held(
        attempt_id=row["attempt_id"],
        run_id=row["run_id"],
        step_key=row["step_key"],
        number=row["number"],
        offer_id=offer.offer_id,
        fence=row["fence"],
        token=offer.token,
        folder=folder,
        phase="leased",
        lease=row,
        timeout_ms=row["timeout_ms"],
        lease_end_ms=offer.sent_ms + lease_ms if offer.sent_ms else 0,
        expires_at_ms=row["expires_at_ms"],
        renew_at_ms=offer.sent_ms + lease_ms // LEASE_RENEWALS if offer.sent_ms else 0,
    )


def held_of_journal(folder: Path) -> Held | None:
    """What an earlier worker journaled of an execution; None without a journal.

    Raises RecordBroken for a journal that is not one of ours.
    """
    record = read_journal(folder)
    if record is None:
        return None
    try:
        _check(record, folder)
        return Held(
            attempt_id=record["attempt"],
            run_id=record["run_id"],
            step_key=record["step_key"],
            number=record["number"],
            offer_id=record["offer"],
            fence=record["fence"],
            token=record["token"],
            folder=folder,
            phase="parted",
        )
    except KeyError as error:
        raise RecordBroken(f"{folder}/journal.json: no {error}") from error


def _check(record: Mapping[str, Any], folder: Path) -> None:
    """Its command can write there: nothing but what we can have written goes to the database."""
    texts = [record[name] for name in ("attempt", "run_id", "step_key", "offer", "token")]
    numbers = [record[name] for name in ("number", "fence")]
    if (
        not all(isinstance(text, str) and text.isprintable() for text in texts)
        or not all(type(number) is int and 0 <= number < 2**31 for number in numbers)
        or record["offer"] != folder.name
    ):
        raise RecordBroken(f"{folder}/journal.json: not one of ours")
