"""Calls of every step, each on work that is due, in the session that is looked at."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from qinglong_sql.canonical import canonical
from qinglong_sql.store.steps import STEPS
from tests import acting
from tests.acting import Held, Row
from tests.plans import CALLS, CHAIN, FAR_MS, HOUR_MS, LIMIT, Look, Site, leased, start, started


def measured(site: Site, tag: str) -> dict[str, list[Look]]:
    """Prepare due work of every kind, then call every step CALLS times."""
    store, many = site.store, CALLS * LIMIT
    kinds = {kind: [start(site, "flow", f"{tag}.{kind}.{n}") for n in range(many)]
             for kind in ("ended", "failed", "silent", "gone", "held", "stopping")}  # fmt: skip
    kinds = {kind: sorted(run_ids) for kind, run_ids in kinds.items()}  # as pages take them
    for run_ids in kinds.values():
        for run_id in run_ids:
            acting.admit(store, run_id)
    held = {one.row["run_id"]: one for one in leased(site, many * len(kinds))}
    of = {kind: [held[run_id] for run_id in run_ids] for kind, run_ids in kinds.items()}
    acting.run(store, *held.values())
    acting.report(store, *of["ended"], output="{}")
    acting.report(store, *of["failed"], exit_code=1)
    tasks = [start(site, "work", f"{tag}.task.{n}") for n in range(many)]
    for run_id in tasks:
        acting.admit(store, run_id)
        acting.cancel(store, run_id)
    timed = sorted(start(site, "timed", f"{tag}.timed.{n}") for n in range(many))
    site.clock.advance(HOUR_MS)
    fresh = [start(site, "flow", f"{tag}.fresh.{n}") for n in range(many)]
    for run_id in fresh:
        acting.admit(store, run_id)

    found: dict[str, list[Look]] = defaultdict(list)

    def look(step: str, **params: Any) -> list[Row]:
        seen, rows = site.call(step, **params)
        found[step].append(seen)
        return rows

    def page(step: str) -> None:
        rows = look(step, p_after_due_at_ms=-1, p_after_run_id="", p_limit=LIMIT)
        assert [row["effects"] > 0 for row in rows] == [True] * LIMIT, (step, rows)

    for n in range(CALLS):
        look("due_page", p_stage="expiry", p_after_due_at_ms=-1, p_after_run_id="", p_limit=32)
        page("frontier_page")
        page("task_admission_page")
        page("retry_page")
        page("deadline_page")
        page("settle_task_cancellations")
        look("sweep_agenda", p_after_run_id=kinds["held"][n][:-1], p_limit=32)
        look("start_run", **started("flow", f"{tag}.started.{n}"))
        look("request_cancel", p_run_id=kinds["stopping"][n], p_reason="user", p_actor="ann")
        for step, run_id in (
            ("advance_frontier", kinds["ended"][n]), ("admit_tasks", kinds["ended"][n]),
            ("retry_run", kinds["ended"][n]), ("deadline_run", timed[n]),
            ("recover_run", kinds["silent"][n]), ("converge_cancellation", kinds["stopping"][n]),
        ):  # fmt: skip
            look(step, p_run_id=run_id)
        fault = {"p_run_id": fresh[n], "p_stage": "frontier"}
        look("record_fault", **fault, p_error="poison")
        look("release_fault", **fault)
        worker(site, look)
        some = of["gone"][n * LIMIT : (n + 1) * LIMIT]
        look("attest_attempts", p_commands=acting.commands(*some, reason="gone"))
        look("declare_stopped", p_attempt_id=of["held"][n].attempt_id, p_reason="gone",
             p_actor="ann", p_follow=None)  # fmt: skip
    for n in range(CALLS):
        scheduled(site, look, tag, n)
    for row in store.read("trigger_state", package_key="crons", state="paused"):
        if row["trigger_key"].startswith("t"):
            store.call("resume_trigger", p_package_key="crons", p_trigger_key=row["trigger_key"])
    for n in range(CALLS):
        session = {"p_worker_id": f"w{tag}{n}", "p_session_id": "s1"}
        look("register_worker", **session, p_queues='["default"]', p_slots=4,
             p_self_fencing=1, p_grace_ms=2_000)  # fmt: skip
        look("heartbeat_worker", **session)
        look("drain_worker", p_worker_id=f"w{tag}{n}")
        look("undrain_worker", p_worker_id=f"w{tag}{n}")
        look("end_session", **session)
        look("audit_worker", p_worker_id="w1", p_route="lease", p_certificate=f"{tag}{n}")
        look("publish_package", p_package_key="other", p_manifest=other(tag, n), p_base_dir="/srv")
        look("withdraw_package", p_package_key="other")
    clear(site)
    for n in range(CALLS):  # cancelled by now; `a` has succeeded
        (row,) = look("start_retry", p_run_id=kinds["ended"][n], p_run_key=None)
        assert row["outcome"] == "created" and row["taken_over_count"] > 0
    clear(site)
    return found


def scheduled(site: Site, look: Callable[..., list[Row]], tag: str, n: int) -> None:
    """Two of the triggers that are due: one fires, one raises; and what an operator does."""
    rows = look("claim_schedule", p_owner="me", p_token=f"{tag}{n}", p_limit=LIMIT)
    assert len(rows) == LIMIT
    fires, raises = rows
    due_ms = fires["next_fire_at_ms"] or fires["since_ms"]
    (told,) = look(
        "commit_schedule", p_package_key="crons", p_trigger_key=fires["trigger_key"],
        p_owner="me", p_token=f"{tag}{n}", p_claim_version=fires["claim_version"],
        p_state_version=fires["state_version"], p_cursor_ms=fires["next_fire_at_ms"],
        p_due_at_ms=due_ms, p_observed_at_ms=fires["observed_at_ms"],
        p_next_at_ms=fires["observed_at_ms"] + HOUR_MS, p_grace_ms=30_000,
    )  # fmt: skip
    assert told["disposition"] == "admit"
    name = {"p_package_key": "crons", "p_trigger_key": raises["trigger_key"]}
    look("record_trigger_fault", **name, p_state_version=raises["state_version"], p_error="poison")
    look("sweep_schedule", p_limit=32)
    look("fire_trigger", **name, p_run_key=f"{tag}.{n}")
    look("pause_trigger", **name)
    look("resume_trigger", **name)
    site.store.call("pause_trigger", **name)  # out of the way until all have been looked at


def other(tag: str, n: int) -> str:
    """The manifest of a package that is published again and again, each time a little different."""
    model = acting.model({"work": acting.task(queue=f"{tag}{n}")}, {"flow": acting.workflow(CHAIN)})
    return canonical(model | {"package": "other"})


def worker(site: Site, look: Callable[..., list[Row]]) -> None:
    """What a worker does with an execution, from the lease to the report."""
    names = [f"o{site.offers + number}" for number in range(LIMIT)]
    site.offers += LIMIT
    rows = look(
        "lease_attempts", p_worker_id="w1", p_session_id="s1", p_queue="default",
        p_offers=acting.offers(names), p_lease_ms=acting.LEASE_MS, p_run_id=None,
    )  # fmt: skip
    held = [Held(row["attempt_id"], row["fence"], acting.token(row["offer_id"]), row)
            for row in rows]  # fmt: skip
    assert len(held) == LIMIT
    plain, mine = acting.commands(*held), acting.commands(*held, worker_id="w1")
    look("attempt_input", p_attempt_id=held[0].attempt_id, p_token=held[0].token)
    for step in ("attempt_inputs", "attempt_standing"):
        rows = look(step, p_commands=acting.commands(*held, worker_id="w1"))
        assert [row["outcome"] for row in rows] == ["applied"] * LIMIT
    ended = {"how": "exit", "exit_code": 0, "output": "{}", "error": None}
    for rows in (
        look("start_attempts", p_commands=acting.commands(*held, identity="pid 7")),
        look("running_attempts", p_commands=plain),
        look("renew_attempts", p_commands=mine, p_lease_ms=acting.LEASE_MS),
        look("report_attempts", p_commands=acting.commands(*held, **ended)),
    ):
        assert [row["outcome"] for row in rows] == ["applied"] * LIMIT


def clear(site: Site) -> None:
    """End all runs, so that the next moment begins with no due work."""
    site.clock.advance(HOUR_MS)
    for row in site.store.read("run_state", status="running"):
        acting.cancel(site.store, row["run_id"])
        acting.recover(site.store, row["run_id"])
        acting.converge(site.store, row["run_id"])
    first = site.store.read("agenda_state", order="due_at_ms", limit=1)
    assert [row for row in first if row["due_at_ms"] < FAR_MS] == []
    assert site.store.read("run_state", status="running") == []


def idle(site: Site) -> dict[str, list[Look]]:
    """The pages when nothing is due."""
    pages = [name for name in STEPS if name.endswith("_page") or name.startswith("settle_")]
    keys = {"p_after_due_at_ms": -1, "p_after_run_id": "", "p_limit": 32}
    claims = {"p_owner": "me", "p_limit": 32}
    site.store.call("claim_schedule", **claims, p_token="what is due")
    return {
        "claim_schedule": [
            site.call("claim_schedule", **claims, p_token=f"idle {number}")[0]
            for number in range(2)
        ]
    } | {
        name: [
            site.call(name, **keys, **({"p_stage": "expiry"} if name == "due_page" else {}))[0]
            for _ in range(2)
        ]
        for name in pages
    }


def purged(site: Site) -> dict[str, list[Look]]:
    """The purge when nothing is old enough, and then of the oldest runs."""
    found: dict[str, list[Look]] = defaultdict(list)
    for before_ms, name in ((1, "nothing"), (FAR_MS, "some")):
        for _ in range(CALLS):
            seen, rows = site.call("purge_runs", p_before_ms=before_ms, p_limit=LIMIT)
            assert len(rows) == (LIMIT if name == "some" else 0)
            found[name].append(seen)
            seen, rows = site.call("purge_audit", p_before_ms=before_ms, p_limit=LIMIT)
            assert rows == [{"purged": LIMIT if name == "some" else 0}]
            found[f"{name} of the audit"].append(seen)
    return found
