"""The wire as an OpenAPI 3.1 document, made from the table of wire.py.

`GET /v1/openapi.json` answers with it; worker_openapi.json beside this file is the same, so that it
can be read without an ingress (`python -m scripts.reference`).
"""

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

from qinglong_sql.wire import (
    JSON,
    LOG_HEADERS,
    LOG_OPTIONAL,
    OCTETS,
    PREFIX,
    ROUTES,
    VERSION,
    Route,
    Schema,
    closed,
)

FILE: Final = Path(__file__).with_name("worker_openapi.json")
ERROR: Final = closed({"code": {"type": "string"}, "message": {"type": "string"}})
RETRY: Final = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
REFUSALS: Final = {
    "400": "It is no request of this wire (QL400), or broke off.",
    "403": "The certificate is no worker's, has expired, or was revoked.",
    "404": "No such route, worker or attempt (QL404).",
    "405": "Another method.",
    "408": "The body did not come.",
    "409": "Somebody wrote what nobody else may write (QL409).",
    "410": "Session, fence or token is not current any more (QL410).",
    "411": "A body needs a Content-Length.",
    "413": "The body is longer than this route takes.",
    "415": "Another Content-Type, or a Content-Encoding.",
    "500": "A fault of the ingress (QL500).",
    "503": "Too much at once (busy), somebody else held it (contended), the database does not"
    " answer (QL503), or the ingress stops: ask again.",
}


@cache
def document() -> dict[str, Any]:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "qinglong-sql, the workers' door",
            "version": VERSION,
            "description": "JSON over mutual TLS 1.3. The subject of the client's certificate is"
            " the worker's id. Every call may be repeated when its answer was lost.",
        },
        "paths": {
            **{route.path: {"post": _operation(route)} for route in ROUTES.values()},
            f"{PREFIX}openapi.json": {"get": _own()},
        },
        "components": {
            "schemas": {"Error": ERROR},
            "responses": {
                f"E{status}": _refusal(status, words) for status, words in REFUSALS.items()
            },
            "securitySchemes": {"certificate": {"type": "mutualTLS"}},
        },
        "security": [{"certificate": []}],
    }


def text() -> str:
    """The document as its file has it."""
    return json.dumps(document(), indent=2) + "\n"


def _operation(route: Route) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.says,
        "description": f"At most {route.body_bytes} bytes."
        + (f" Longer lists of `{route.batch}` are asked for in parts." if route.batch else ""),
    }
    if route.name == "log":
        found["parameters"] = [
            {"name": name, "in": "header", "required": name not in LOG_OPTIONAL, "schema": schema}
            for name, schema in LOG_HEADERS.items()
        ]
    kind, schema = (OCTETS, {}) if route.name == "log" else (JSON, route.body)
    rows = {"type": "array", "items": route.row}
    return found | {
        "requestBody": {"required": True, "content": {kind: {"schema": schema}}},
        "responses": _responses(closed({"rows": rows}) if route.step else route.row),
    }


def _own() -> dict[str, Any]:
    return {
        "operationId": "openapi",
        "summary": "This document.",
        "responses": _responses({"type": "object", "required": ["openapi"]}),
    }


def _responses(schema: Schema) -> dict[str, Any]:
    good = {"description": "Done, now or before.", "content": {JSON: {"schema": schema}}}
    return {"200": good} | {
        status: {"$ref": f"#/components/responses/E{status}"} for status in REFUSALS
    }


def _refusal(status: str, words: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "description": words,
        "content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    return found | ({"headers": RETRY} if status == "503" else {})
