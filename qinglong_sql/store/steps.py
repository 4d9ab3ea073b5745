"""Every step by name: the schema whose role may call it, and its parameters in order (DESIGN §8).

Both stores look steps up here; a name that is not here is a KeyError, so no name ever comes from
input. SQLite has no schemas and takes the parameters only.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

from qinglong_sql.errors import QinglongError


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
        "lease_attempts": "p_worker_id p_session_id p_queue p_offers p_lease_ms p_run_id",
        "attempt_input": "p_attempt_id p_token",
        "start_attempts": "p_commands",
        "running_attempts": "p_commands",
        "renew_attempts": "p_commands p_lease_ms",
        "report_attempts": "p_commands",
        "attest_attempts": "p_commands",
        "end_session": "p_worker_id p_session_id",
    },
    "ql_operator": {
        "declare_stopped": "p_attempt_id p_reason p_actor p_follow",
        "release_fault": "p_run_id p_stage",
        "pause_trigger": "p_package_key p_trigger_key",
        "resume_trigger": "p_package_key p_trigger_key",
    },
    "ql_retention": {
        "purge_runs": "p_before_ms p_limit",
    },
}

STEPS: Final[dict[str, Step]] = {
    name: Step(name, schema, tuple(params.split()))
    for schema, steps in _SIGNATURES.items()
    for name, params in steps.items()
}
