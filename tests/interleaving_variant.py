"""What is explored: steps of a kind, and bounds that can be reached.

The package bounds tries by `retry.attempts`. Claims that come back and retries that people declare
have 64 as their bound in the decision views; here the views say less, so that no state lies beyond.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from qinglong_sql.limits import MAX_ATTEMPTS, MAX_CLAIM_RETURNS
from tests import facts
from tests.mutants import Mutant, changed

# Multiples of one unit, without jitter: moments that differ in what they lead to meet often enough
# for the space to stay small, and every order of two of them occurs.
UNIT_MS = 10_000
LEASE_MS, GRACE_MS, BACKOFF_MS, TIMEOUT_MS = 2 * UNIT_MS, UNIT_MS, UNIT_MS, 3 * UNIT_MS


@dataclass(frozen=True, slots=True)
class Variant:
    """What the steps are like, and who works on them.

    tries: retry.attempts. returns: after so many claims that came back a step fails. declared: so
    many further tries may be declared by people. alike: the steps may change places.
    """

    name: str
    needs: dict[str, list[str]] = field(default_factory=lambda: {"a": []})
    on_lost: str = "fail"
    self_fencing: int = 1
    kind: str = "workflow"
    run_timeout_ms: int | None = None
    timeout_ms: int | None = None
    tries: int = 1
    returns: int = 1
    declared: int = 0
    alike: bool = False

    @property
    def policy(self) -> dict[str, Any]:
        on = ["failed", "timed_out"]
        backoff = {"backoff_ms": BACKOFF_MS, "max_backoff_ms": BACKOFF_MS}
        return {
            "on_lost": self.on_lost,
            "timeout_ms": self.timeout_ms,
            "retry": {"attempts": self.tries, "on": on, **backoff},
        }

    def decisions(self, mutant: Mutant | None) -> dict[str, str]:
        """The decision files that differ, by word: a mutant, and bounds that can be reached."""
        texts = {word: facts.decision(word) for word in ("completion", "recovery")}
        texts |= changed(mutant) if mutant else {}
        bounds = (
            ("claim_return_count <", 4, MAX_CLAIM_RETURNS - self.returns),
            ("started_count >=", 1, MAX_ATTEMPTS - self.tries - self.declared),
        )
        for bound, places, less in bounds:
            parts = re.split(rf"{bound} (\d+)", "\0".join(texts.values()))
            assert len(parts) == 2 * places + 1, f"{bound} stands {len(parts) // 2} times"
            parts[1::2] = [f"{bound} {int(number) - less}" for number in parts[1::2]]
            texts = dict(zip(texts, "".join(parts).split("\0"), strict=True))
        return texts
