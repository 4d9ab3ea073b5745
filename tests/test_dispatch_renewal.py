"""The renewal of a lease: what it moves, what it tells, and when it is refused (DOMAIN §3.5)."""

from collections.abc import Iterator

import pytest

from tests import acting
from tests.acting import GRACE_MS, LEASE_MS, Store


@pytest.fixture(autouse=True)
def _nothing_broken(store: Store) -> Iterator[None]:
    yield
    assert acting.unbroken(store)


def test_a_renewal_moves_the_expiry_and_writes_no_history(store: Store, clock) -> None:
    run_id = acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    acting.run(store, held)
    before = acting.run_row(store, run_id)["version"]
    clock.advance(10_000)
    (row,) = acting.renew(store, held)
    assert row == {
        "attempt_id": held.attempt_id,
        "outcome": "applied",
        "code": None,
        "expires_at_ms": clock.now_ms + LEASE_MS,
        "stop_reason": None,
    }
    assert acting.run_row(store, run_id)["version"] == before
    assert acting.attempt(store, held.attempt_id)["lease_expires_at_ms"] == row["expires_at_ms"]


def test_a_renewal_never_shortens_a_lease(store: Store) -> None:
    acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    (row,) = acting.renew(store, held, lease_ms=5_000)
    assert row["expires_at_ms"] == held.row["expires_at_ms"]


def test_a_renewal_hears_of_the_intent_and_keeps_authority(store: Store, clock) -> None:
    run_id = acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    acting.run(store, held)
    acting.cancel(store, run_id, reason="policy")
    clock.advance(1_000)
    (row,) = acting.renew(store, held)
    assert (row["stop_reason"], row["expires_at_ms"]) == ("policy", clock.now_ms + LEASE_MS)


def test_past_deadline_and_grace_the_lease_is_not_renewed(store: Store, clock) -> None:
    acting.begun(store, {"a": []}, timeout_ms=10_000)
    held = acting.lease(store)["a"]
    acting.run(store, held)
    clock.advance(10_000 + GRACE_MS - 1)
    (row,) = acting.renew(store, held)
    assert (row["stop_reason"], row["expires_at_ms"]) == (None, clock.now_ms + LEASE_MS)
    expires = row["expires_at_ms"]
    clock.advance(1)
    (row,) = acting.renew(store, held)
    assert (row["outcome"], row["stop_reason"]) == ("applied", "deadline")
    assert row["expires_at_ms"] == expires


def test_an_expired_lease_is_not_renewed(store: Store, clock) -> None:
    acting.begun(store, {"a": []})
    held = acting.lease(store)["a"]
    clock.advance(LEASE_MS)
    (row,) = acting.renew(store, held)
    assert (row["outcome"], row["code"], row["expires_at_ms"]) == ("blocked", "QL410", None)
