"""Every step by name: the schema whose role may call it, and its parameters in order (DESIGN §8).

Both stores look steps up here; a name that is not here is a KeyError, so no name ever comes from
input. SQLite has no schemas and takes the parameters only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from qinglong_sql.canonical import INT_MAX, INT_MIN, read_json, refuse_text
from qinglong_sql.errors import Malformed, QinglongError


class Contended(QinglongError):
    """Someone else held what a single command waited for; nothing changed, it may be repeated."""

    code: ClassVar[str] = "contended"


@dataclass(frozen=True, slots=True)
class Step:
    """One step: `schema` is also the capability, `params` are the names as SQL knows them."""

    name: str
    schema: str
    params: tuple[str, ...]


_PAGE = "p_after_due_at_ms p_after_run_id p_limit"
_SIGNATURES: Final = {
    "ql_admission": {
        "publish_package": "p_package_key p_manifest p_base_dir",
        "withdraw_package": "p_package_key",
        "start_run": "p_package_key p_kind p_target_key p_run_key p_input",
        "start_retry": "p_run_id p_run_key",
        "request_cancel": "p_run_id p_reason p_actor",
    },
    "ql_scheduler": {
        "claim_schedule": "p_owner p_token p_limit",
        "commit_schedule": "p_package_key p_trigger_key p_owner p_token p_claim_version"
        " p_state_version p_cursor_ms p_due_at_ms p_observed_at_ms p_next_at_ms p_grace_ms",
        "sweep_schedule": "p_limit",
        "record_trigger_fault": "p_package_key p_trigger_key p_state_version p_error",
        "due_page": f"p_stage {_PAGE}",
        "frontier_page": _PAGE,
        "advance_frontier": "p_run_id",
        "task_admission_page": _PAGE,
        "admit_tasks": "p_run_id",
        "retry_page": _PAGE,
        "retry_run": "p_run_id",
        "deadline_page": _PAGE,
        "deadline_run": "p_run_id",
        "recover_run": "p_run_id",
        "converge_cancellation": "p_run_id",
        "settle_task_cancellations": _PAGE,
        "sweep_agenda": "p_after_run_id p_limit",
        "record_fault": "p_run_id p_stage p_error",
    },
    "ql_worker": {
        "register_worker": "p_worker_id p_session_id p_queues p_slots p_self_fencing p_grace_ms",
        "heartbeat_worker": "p_worker_id p_session_id",
        "lease_attempts": "p_worker_id p_session_id p_queue p_offers p_lease_ms p_run_id",
        "attempt_input": "p_attempt_id p_token",
        "attempt_inputs": "p_commands",
        "attempt_standing": "p_commands",
        "start_attempts": "p_commands",
        "running_attempts": "p_commands",
        "renew_attempts": "p_commands p_lease_ms",
        "report_attempts": "p_commands",
        "attest_attempts": "p_commands",
        "end_session": "p_worker_id p_session_id",
        "audit_worker": "p_worker_id p_route p_certificate",
    },
    "ql_operator": {
        "declare_stopped": "p_attempt_id p_reason p_actor p_follow",
        "release_fault": "p_run_id p_stage",
        "drain_worker": "p_worker_id",
        "undrain_worker": "p_worker_id",
        "pause_trigger": "p_package_key p_trigger_key",
        "resume_trigger": "p_package_key p_trigger_key",
        "fire_trigger": "p_package_key p_trigger_key p_run_key",
    },
    "ql_retention": {
        "purge_runs": "p_before_ms p_limit",
        "purge_audit": "p_before_ms p_limit",
    },
}

STEPS: Final[dict[str, Step]] = {
    name: Step(name, schema, tuple(params.split()))
    for schema, steps in _SIGNATURES.items()
    for name, params in steps.items()
}

_MAY_BE_NULL: Final = {
    ("start_retry", "p_run_key"),
    ("commit_schedule", "p_cursor_ms"),
    ("lease_attempts", "p_run_id"),
    ("declare_stopped", "p_follow"),
}
_SMALL: Final = frozenset({"p_limit", "p_slots", "p_self_fencing"})  # `int` in PostgreSQL
_SMALL_MAX: Final = 2**31 - 1
_LISTS: Final = frozenset({"p_commands", "p_offers", "p_queues"})


def lacking(found: Mapping[tuple[str, str], list[str]]) -> str:
    """Words for the steps that a database lacks; nothing when it has all.

    found: parameters by schema and name.
    """
    missing = [
        f"{step.schema}.{step.name}"
        for step in STEPS.values()
        if found.get((step.schema, step.name)) != list(step.params)
    ]
    if not missing:
        return ""
    many = f"{len(missing)} of {len(STEPS)} steps"
    return f"lacks {many}, such as {missing[0]}: run `qinglong-sql migrate`"


def check_params(step: str, params: Mapping[str, object]) -> None:
    """Refuse what one engine would take otherwise than the other, before SQL sees it.

    Raises KeyError for an unknown step, TypeError when its parameters are others, Malformed (QL400)
    for null, NUL, lone surrogates, numbers out of bounds, and batches that `read_json` refuses; the
    words never quote a value, which may be a token.
    """
    names = STEPS[step].params
    if params.keys() != set(names):
        raise TypeError(f"{step} takes {', '.join(names)}, not {', '.join(params)}")
    for name, value in params.items():
        if value is None and (step, name) not in _MAY_BE_NULL:
            raise Malformed(f"{name[2:]} is missing")
        if isinstance(value, str):
            if reason := refuse_text(value):
                raise Malformed(f"{name[2:]} {reason}")
            if name in _LISTS:
                _check_list(name, value)
        elif isinstance(value, int):
            least, most = (-_SMALL_MAX, _SMALL_MAX) if name in _SMALL else (INT_MIN, INT_MAX)
            if not least <= value <= most:
                raise Malformed(f"{name[2:]} is a number out of bounds")


def _check_list(name: str, text: str) -> None:
    try:
        found = read_json(text)
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise Malformed(f"{name[2:]} is not a JSON array that every reader takes alike")
    if name == "p_offers" and not all(
        isinstance(one, dict) and all(isinstance(said, str) for said in one.values())
        for one in found
    ):
        raise Malformed("an offer is an object, and what it says is text")
