"""The workers' wire: what SQL knows, what the document says and what is checked are the same."""

import copy
import json
from typing import Any

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qinglong_sql import wire_document
from qinglong_sql.limits import ERROR_BYTES, OUTPUT_BYTES, QUEUE_CHARS, WORKER_BATCH
from qinglong_sql.port import WORKER_STEPS
from qinglong_sql.store.steps import STEPS
from qinglong_sql.wire import OF_STEP, ROUTES, Route, body_of, encoded, params_of
from qinglong_sql.wire_check import Unlike, checked
from tests.test_style import functions

WORDS = frozenset({
    "type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems",
    "minLength", "maxLength", "pattern", "enum", "minimum", "maximum", "description", "format",
})  # fmt: skip
# what a port may call and the wire does not offer: an older form, and the ingress' own
NOT_OFFERED = {"attempt_input", "audit_worker"}
SPOKEN = [route for route in ROUTES.values() if route.name != "log"]
TOKEN = "5" * 64
COMMAND = {"attempt_id": f"ru{'a' * 24}-8192", "fence": 64, "token": TOKEN}
SAID: dict[str, dict[str, Any]] = {  # a body of each route, and what of it is optional
    "register": {"session_id": "s", "queues": ["default"], "slots": 4, "self_fencing": 1,
                 "grace_ms": 1000},
    "heartbeat": {"session_id": "s"},
    "lease": {"session_id": "s", "queue": "default", "lease_ms": 30_000, "run_id": None,
              "offers": [{"offer_id": "o", "token_digest": TOKEN}]},
    "inputs": {"commands": [COMMAND]},
    "start": {"commands": [{**COMMAND, "identity": "pid 1"}]},
    "running": {"commands": [COMMAND]},
    "renew": {"commands": [COMMAND], "lease_ms": 30_000},
    "report": {"commands": [
        {**COMMAND, "how": "exit", "exit_code": 0, "output": "{}", "error": None},
    ]},
    "attest": {"commands": [{**COMMAND, "reason": "gone"}]},
    "standing": {"commands": [COMMAND]},
    "end": {"session_id": "s"},
    "certificate": {"csr": "-----BEGIN"},
}  # fmt: skip


def said(route: Route) -> dict[str, Any]:
    return SAID[route.name]


@pytest.mark.parametrize("route", OF_STEP.values(), ids=lambda route: route.name)
def test_a_route_has_the_parameters_and_the_columns_of_its_step(route: Route) -> None:
    assert route.step is not None
    schema, params, columns = functions()[route.step]
    assert schema == "ql_worker"
    assert {f"p_{name}" for name in route.body["properties"]} | {"p_worker_id"} == {
        *params, "p_worker_id",
    }  # fmt: skip
    assert tuple(route.row["properties"]) == columns
    assert route.row["required"] == list(columns)
    assert not route.row["additionalProperties"]


def test_every_step_of_a_worker_is_offered() -> None:
    assert OF_STEP.keys() | NOT_OFFERED == WORKER_STEPS
    assert ROUTES.keys() - {one.name for one in OF_STEP.values()} == {"log", "certificate"}


@pytest.mark.parametrize("route", OF_STEP.values(), ids=lambda route: route.name)
def test_what_one_end_says_the_other_hears_as_the_certificate_s_worker(route: Route) -> None:
    assert route.step is not None
    body = said(route)
    params = params_of(route, checked(body | {"worker_id": "liar"}, route.body), "w1")
    assert params.keys() == set(STEPS[route.step].params)
    assert "liar" not in str(params)
    assert params.get("p_worker_id", "w1") == "w1"
    again = body_of(route, params)
    if "commands" in body:
        assert [one.pop("worker_id") for one in again["commands"]] == ["w1"]  # type: ignore[attr-defined]
    assert again == {name: value for name, value in body.items() if value is not None}
    liar = [{**one, "worker_id": "liar"} for one in body.get("commands", ())]
    lied = params_of(route, {**body, **({"commands": liar} if liar else {})}, "w1")
    assert lied == params


@pytest.mark.parametrize("route", SPOKEN, ids=lambda route: route.name)
def test_a_whole_batch_of_ordinary_entries_is_below_the_cap(route: Route) -> None:
    body = dict(said(route))
    if route.batch:
        body[route.batch] = body[route.batch] * route.most
        checked(body, route.body)
        with pytest.raises(Unlike, match=rf"^{route.batch}: it has 0 to {route.most} entries$"):
            checked({**body, route.batch: [*body[route.batch], {}]}, route.body)
    assert len(encoded(body)) <= route.body_bytes


def test_the_largest_entry_that_sql_takes_is_below_the_cap() -> None:
    """What is larger than a cap is split by the worker, down to one entry."""
    output = encoded({"k": '"' * (OUTPUT_BYTES // 2)}).decode()[:OUTPUT_BYTES]
    report = {**COMMAND, "how": "exit", "exit_code": 1, "output": output, "error": "\x01" * 2048}
    assert len(encoded({"commands": [report]})) <= ROUTES["report"].body_bytes
    gone = {**COMMAND, "reason": "\x01" * ERROR_BYTES}
    assert len(encoded({"commands": [gone]})) <= ROUTES["attest"].body_bytes
    start = {**COMMAND, "identity": "\x01" * 512}
    assert len(encoded({"commands": [start]})) <= ROUTES["start"].body_bytes
    queues = ["龘" * QUEUE_CHARS] * WORKER_BATCH
    assert len(encoded({**SAID["register"], "queues": queues})) <= ROUTES["register"].body_bytes


# --- the document


def test_the_document_in_its_file_is_the_one_that_is_served() -> None:
    assert wire_document.FILE.read_text() == wire_document.text(), "python -m scripts.reference"


def test_the_document_is_openapi_and_names_every_route_and_refusal() -> None:
    found = wire_document.document()
    schemathesis.openapi.from_dict(found).validate()
    assert set(found["paths"]) == {one.path for one in ROUTES.values()} | {"/v1/openapi.json"}
    for path in found["paths"].values():
        (operation,) = path.values()
        assert operation["responses"].keys() == {"200", *wire_document.REFUSALS}
    broken = {**found, "paths": {**found["paths"], "/v1/x": {"post": {"responses": 1}}}}
    with pytest.raises(Exception, match=r"1 is not of type .object."):
        schemathesis.openapi.from_dict(broken).validate()


@pytest.mark.parametrize("route", SPOKEN, ids=lambda route: route.name)
def test_the_schemas_are_json_schema_of_known_words(route: Route) -> None:
    for schema in (route.body, route.row):
        jsonschema.Draft202012Validator.check_schema(schema)
    for schema in schemas_of(route.body):
        assert schema.keys() <= WORDS, f"{route.name}: wire_check does not know a word of {schema}"


def schemas_of(schema: dict[str, Any]) -> list[dict[str, Any]]:
    inner = [*schema.get("properties", {}).values()]
    inner += [schema["items"]] if "items" in schema else []
    return [schema, *(found for one in inner for found in schemas_of(one))]


# --- the check, against a library that knows all of JSON Schema

ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=40), st.sampled_from(["", "\0", "a\n", f"{TOKEN}\n", "x" * 513, 0, 1, -1, 1.0,
    2.5, 10**18, "not_started", [], {}, [[]], [None]]),
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_the_check_says_the_same_as_the_library(data: st.DataObject) -> None:
    route = data.draw(st.sampled_from(SPOKEN))
    body = json.loads(json.dumps(said(route)))
    for _ in range(data.draw(st.integers(0, 3))):
        _spoil(data, body)
    library = jsonschema.Draft202012Validator(route.body)
    good = library.is_valid(body)
    try:
        found = checked(body, route.body)
    except Unlike as error:
        assert not good, f"{route.name}: {error}"
    else:
        assert good, next(library.iter_errors(body)).message
        assert found == body and library.is_valid(found)


def _spoil(data: st.DataObject, body: Any) -> None:
    """Change, take away or add something, anywhere."""
    places: list[Any] = [body]
    for one in places:
        inner = one.values() if isinstance(one, dict) else one
        places += [it for it in inner if isinstance(it, dict | list)]
    place = data.draw(st.sampled_from(places))
    odd = copy.deepcopy(data.draw(ODD))  # it may be spoiled in turn, and is drawn again
    keys = list(place) if isinstance(place, dict) else list(range(len(place)))
    what = data.draw(st.sampled_from(["change", "take", "add"]))
    if what == "add" or not keys:
        if isinstance(place, dict):
            place[data.draw(st.sampled_from(["x", "worker_id", "commands", ""]))] = odd
        else:
            place.append(odd)
    elif what == "take":
        del place[data.draw(st.sampled_from(keys))]
    else:
        place[data.draw(st.sampled_from(keys))] = odd


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "the body: it is an object"),
        ({}, "commands is missing"),
        ({"commands": [{}]}, "commands[0].attempt_id is missing"),
        ({"commands": [COMMAND | {"fence": "64"}]}, "commands[0].fence: it is an integer"),
        ({"commands": [COMMAND | {"fence": 0}]},
         "commands[0].fence: it is 1 to 999999999999999999"),
        ({"commands": [COMMAND | {"token": 7}]}, "commands[0].token: it is a string"),
        ({"commands": [COMMAND | {"token": ""}]},
         "commands[0].token: it has 1 to 512 characters"),
        ({"commands": [COMMAND, COMMAND | {"s3cret": 1}]},
         "commands[1] has a key that is not known here; it has attempt_id, fence, token,"
         " worker_id"),
        ({"commands": [COMMAND | {"attempt_id": "s3cr\0t"}]},
         "commands[0].attempt_id: it is not of the form ^[^\\u0000]*$"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_key_and_without_its_value(body: Any, words: str) -> None:
    with pytest.raises(Unlike) as raised:
        checked(body, ROUTES["standing"].body)
    assert str(raised.value) == words


def test_a_whole_number_may_be_written_as_a_fraction() -> None:
    found = checked({"commands": [COMMAND | {"fence": 64.0}]}, ROUTES["standing"].body)
    assert type(found["commands"][0]["fence"]) is int
