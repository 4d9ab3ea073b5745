"""The workers' wire, version 1, as rows of a table: what may be said, and what is answered.

`POST /v1/<route>` takes a JSON object and answers 200 with {"rows": […]}: exactly the columns of
the route's step. Names are those of the step without `p_`, and lists are arrays of JSON. Who asks
is told by the certificate: a `worker_id` in the body, or in a command of it, counts for nothing.
Both ends read this table: the ingress, and the worker's port (qinglong_sql/remote.py).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from qinglong_sql.limits import (
    ERROR_BYTES,
    GRACE_MAX_MS,
    ID_CHARS,
    LEASE_MAX_MS,
    LEASE_MIN_MS,
    OUTPUT_BYTES,
    QUEUE_CHARS,
    WORKER_BATCH,
    WORKER_QUEUES,
)

Schema = dict[str, Any]

VERSION: Final = "1"
PREFIX: Final = f"/v{VERSION}/"
JSON: Final = "application/json"
OCTETS: Final = "application/octet-stream"
KIB: Final = 1024
LOG_BYTES: Final = 256 * KIB
# an answer is held whole, so what may be long is asked for in smaller batches; inputs bound theirs
LEASE_BATCH: Final = 32
FENCE_MAX: Final = 10**18 - 1
EXIT_MAX: Final = 999_999_999
TOKEN_CHARS: Final = 512
ENDS: Final = ("exit", "signal", "stop", "deadline", "start_failed", "bad_output", "not_started")


@dataclass(frozen=True, slots=True)
class Route:
    """One route. `body_bytes` is the cap of a request; `most` of its list's entries.

    `body` and `row` are JSON Schemas of the request's object and of one row of the answer; a route
    without a step is answered by the ingress itself, with one object that `row` describes.
    """

    name: str
    step: str | None
    says: str
    body: Schema
    row: Schema
    body_bytes: int
    batch: str = ""  # the name of the list that a caller may split
    most: int = 0

    @property
    def path(self) -> str:
        return PREFIX + self.name


def text(least: int, most: int) -> Schema:
    """Text without NUL, by its length in characters."""
    return {"type": "string", "minLength": least, "maxLength": most, "pattern": "^[^\\u0000]*$"}


def whole(least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def listed(items: Schema, least: int, most: int) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def nullable(schema: Schema) -> Schema:
    return schema | {"type": [schema["type"], "null"]}


def closed(properties: Mapping[str, Schema], *optional: str) -> Schema:
    """An object that has these keys and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


ID: Final = text(1, ID_CHARS)
DIGEST: Final = {"type": "string", "pattern": "^[0-9a-f]{64}$", "minLength": 64, "maxLength": 64}
UNSAID: Final = {"type": ["string", "null"], "maxLength": ID_CHARS, "description": "Not looked at."}
COMMAND: Final = {
    "attempt_id": ID,
    "fence": whole(1, FENCE_MAX),
    "token": text(1, TOKEN_CHARS),
}
TEXT: Final[Schema] = {"type": "string"}
NUMBER: Final[Schema] = {"type": "integer"}
# columns of answers; the ones that may be null say so
COLUMNS: Final[dict[str, Schema]] = {
    "code": nullable(TEXT),
    "status": nullable(TEXT),
    "lease_status": nullable(TEXT),
    "expires_at_ms": nullable(NUMBER),
    "deadline_at_ms": nullable(NUMBER),
    "stop_reason": nullable(TEXT),
    "timeout_ms": nullable(NUMBER),
    "input": nullable(TEXT),
    "run_id": nullable(TEXT),
    "step_key": nullable(TEXT),
    "number": nullable(NUMBER),
    "session_id": nullable(TEXT),
    "generation": NUMBER,
    "fence": NUMBER,
    "lease_ms": NUMBER,
    "try_number": NUMBER,
    "outcome": {"type": "string", "enum": ["applied", "blocked", "contended"]},
}


def _row(columns: str) -> Schema:
    return closed({name: COLUMNS.get(name, TEXT) for name in columns.split()})


def _body(properties: Mapping[str, Schema], *optional: str) -> Schema:
    return closed({**properties, "worker_id": UNSAID}, *optional, "worker_id")


def _commands(most: int, *optional: str, **more: Schema) -> Schema:
    return listed(_body({**COMMAND, **more}, *optional), 0, most)


def _batch(
    name: str,
    step: str,
    says: str,
    columns: str,
    *,
    kib: int,
    most: int = WORKER_BATCH,
    commands: Schema | None = None,
    **more: Schema,
) -> Route:
    body = _body({"commands": commands or _commands(most), **more})
    row = _row(f"attempt_id outcome code {columns}")
    return Route(name, step, says, body, row, kib * KIB, "commands", most)


_LEASE_MS: Final = whole(LEASE_MIN_MS, LEASE_MAX_MS)
ROUTES: Final[dict[str, Route]] = {
    route.name: route
    for route in (
        Route(
            "register", "register_worker",
            "Begin a session of this worker; an older one ends by it.",
            _body({
                "session_id": ID,
                "queues": listed(text(1, QUEUE_CHARS), 1, WORKER_QUEUES),
                "slots": whole(1, 1024),
                "self_fencing": {"type": "integer", "enum": [0, 1]},
                "grace_ms": whole(0, GRACE_MAX_MS),
            }),
            _row("worker_id generation status"), 136 * KIB,
        ),
        Route(
            "heartbeat", "heartbeat_worker",
            "Say that this session lives; the answer is the session that is current now.",
            _body({"session_id": ID}), _row("worker_id session_id generation status"), KIB,
        ),
        Route(
            "lease", "lease_attempts",
            "Give offers to the oldest attempts of a queue; a row for each that holds a lease.",
            _body({
                "session_id": ID,
                "queue": text(1, QUEUE_CHARS),
                "offers": listed(
                    _body({"offer_id": ID, "token_digest": DIGEST}), 0, LEASE_BATCH
                ),
                "lease_ms": _LEASE_MS,
                "run_id": nullable(ID),
            }, "run_id"),
            _row(
                "attempt_id run_id step_key number offer_id fence expires_at_ms lease_ms"
                " timeout_ms package_key base_dir spec task_key try_number"
            ),
            16 * KIB, "offers", LEASE_BATCH,
        ),
        _batch(
            "inputs", "attempt_inputs",
            "What attempts are given, as canonical JSON text; what has no room in an answer is"
            " `contended`, and asked for again.", "input", kib=96,
        ),
        _batch(
            "start", "start_attempts",
            "Cross the start barrier: from this answer on a side effect is to be presumed.",
            "deadline_at_ms expires_at_ms", kib=128,
            commands=_commands(WORKER_BATCH, "identity", identity=nullable(text(0, 512))),
        ),
        _batch(
            "running", "running_attempts", "Say that executions run.", "", kib=96,
        ),
        _batch(
            "renew", "renew_attempts",
            "Keep leases alive, and hear whether to stop.",
            "expires_at_ms stop_reason", kib=96, lease_ms=_LEASE_MS,
        ),
        _batch(
            "report", "report_attempts", "Say how executions ended.", "status", kib=512,
            commands=_commands(
                WORKER_BATCH, "exit_code", "output", "error",
                how={"type": "string", "enum": list(ENDS)},
                exit_code=nullable(whole(-EXIT_MAX, EXIT_MAX)),
                output=nullable(text(0, OUTPUT_BYTES)),
                error=nullable(text(0, ERROR_BYTES)),
            ),
        ),
        _batch(
            "attest", "attest_attempts",
            "Say that executions are gone, and that nobody knows how they ended.",
            "status", kib=128, commands=_commands(WORKER_BATCH, reason=text(1, ERROR_BYTES)),
        ),
        _batch(
            "standing", "attempt_standing",
            "What became of attempts, for who held them at that fence.",
            "status lease_status expires_at_ms run_id step_key number", kib=96,
        ),
        Route(
            "end", "end_session", "End this session; what it holds stays its own.",
            _body({"session_id": ID}), _row("worker_id status"), KIB,
        ),
        Route(
            "log", None,
            "A piece of an attempt's log; what is held already, or would leave a gap, is not"
            " written. The answer is the size that is held. A token says which attempt it is.",
            {"type": "string", "format": "binary", "maxLength": LOG_BYTES},
            closed({"size": whole(0, 2**53)}), LOG_BYTES,
        ),
        Route(
            "certificate", None,
            "A new certificate for the same worker; where the ingress holds no authority, 404.",
            _body({"csr": text(1, 8 * KIB)}), closed({"certificate": TEXT}), 16 * KIB,
        ),
    )
}  # fmt: skip
OF_STEP: Final[dict[str, Route]] = {
    route.step: route for route in ROUTES.values() if route.step is not None
}
# headers of a piece of a log; the last one comes with the last piece
LOG_HEADERS: Final[dict[str, Schema]] = {
    "QL-Attempt": ID,
    "QL-Fence": COMMAND["fence"],
    "QL-Token": COMMAND["token"],
    "QL-Offset": whole(0, 2**53),
    "QL-Dropped": whole(0, 2**53),
}
LOG_OPTIONAL: Final = ("QL-Dropped",)


def encoded(value: object) -> bytes:
    """JSON as it goes over the wire, from both ends: UTF-8, no space. Caps count these bytes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def body_of(route: Route, params: Mapping[str, object]) -> dict[str, object]:
    """The body that says what a step's parameters say; of lists, their JSON text."""
    body: dict[str, object] = {}
    for name, schema in route.body["properties"].items():
        value = params.get(f"p_{name}")
        if name == "worker_id" or (value is None and name not in route.body["required"]):
            continue
        body[name] = json.loads(str(value)) if schema["type"] == "array" else value
    return body


def params_of(route: Route, body: Mapping[str, Any], worker_id: str) -> dict[str, object]:
    """The parameters of a step as a checked body says them, for the worker of the certificate.

    Every entry of `commands` names that worker, so that an attempt of another is none of it.
    """
    params: dict[str, object] = {}
    for name, schema in route.body["properties"].items():
        value = body.get(name)
        if name == "commands":
            value = [{**one, "worker_id": worker_id} for one in value or ()]
        elif name == "offers":
            value = [{k: one[k] for k in ("offer_id", "token_digest")} for one in value or ()]
        if name != "worker_id":
            params[f"p_{name}"] = encoded(value).decode() if schema["type"] == "array" else value
    if route.batch != "commands":
        params["p_worker_id"] = worker_id
    return params
