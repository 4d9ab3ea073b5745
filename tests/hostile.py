"""Bad input: values that no door may take silently, and every step called with each of them.

The same call goes to both engines; the same answer, or the same code, must come back, and a refused
call leaves every row of every table as it was. tests.prove.inputs goes on with drawn values.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from qinglong_sql.canonical import canonical
from qinglong_sql.errors import QinglongError
from qinglong_sql.limits import LEASE_MAX_MS
from qinglong_sql.store import Store
from qinglong_sql.store.steps import STEPS
from tests import acting
from tests.engines import Engine

MIB = 1024 * 1024
NESTED = {depth: '{"a":' * depth + "1" + "}" * depth for depth in (63, 64, 65, 3_000, 100_000)}
TEXTS = (
    "", " ", "\0", "a\0b", "\ud800", "a\udfffb", "\ufeff", "\u202e\u0085", "x" * 201, "x" * MIB,
    "\U0001f600" * 200, "\U0001f600" * 201, "' or 1=1 --", "%s%n{}", "$1", "../../etc/passwd",
    "null", "nan", "-0", "é" * 63, "\x1b[2J", "a\nb", "9" * 400,
)  # fmt: skip
NUMBERS = (-(2**63) - 1, -(2**63), -1, 0, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 10**400)
VALUES = (
    "1e400", "-1e400", "1e308", "1.7976931348623159e308", "NaN", "Infinity", "-0", "-0.0", "01",
    "1e400000", str(2**63 - 1), str(2**63), str(-(2**63)), str(-(2**63) - 1), "9" * 5_000, "1.5",
    '"\\u0000"', '"\\ud800"', '"\\ud83d\\ude00"', '"\\u0061"', "[1,]", '"' + "x" * MIB + '"',
    '{"a":1,"a":2}', '{"a":[{"b":1,"\\u0062":2}]}', "{a:1}", "'a'", "/**/1", "\ufeff1", "true",
    "[" * 63 + "]" * 63, "[" * 64 + "]" * 64, "[" * 100_000, "null", "[]", "{}", "",
)  # fmt: skip
JSONS = (
    *VALUES, *NESTED.values(), *(f'{{"a":{value}}}' for value in VALUES), " {} ", "{}x", "\0{}",
)  # fmt: skip
BATCHES = (
    *VALUES, *NESTED.values(), "[null]", "[1]", '["x"]', "[[]]", "[{}]", "[{},{}]",
    "[" + ",".join(["{}"] * 129) + "]", '[{"attempt_id":null}]', '["\\u0000"]', '["\\ud800"]',
    '[""]', '["' + "x" * 200 + '"]', '["' + "x" * 201 + '"]', '["' + "x" * MIB + '"]',
    '["x"' + " " * MIB + "]",
    "[" + ",".join(['"q"'] * 128) + "]", "[" + ",".join(['"q"'] * 129) + "]",
    json.dumps([f"q{number}" for number in range(5_000)]),
)  # fmt: skip
SCRAPS = ('"', "{", "}", "[", "]", ",", ":", "\\", "\0", "\ud800", "\x1b", "null", '"a":1,')
OBJECTS = {"p_input", "p_manifest"}
LISTS = {"p_commands", "p_offers", "p_queues"}


@dataclass(frozen=True, slots=True)
class Place:
    """One engine with a run under way: step `a` started, `b` leased; and what is called there."""

    engine: Engine
    store: Store
    valid: dict[str, dict[str, Any]]


def prepared(engine: Engine, store: Store) -> Place:
    """Publish, start and lease; with the parameters that every step would take here."""
    run_id = acting.begun(store, {"a": [], "b": [], "c": ["a"]})
    held = acting.lease(store, "o1", "o2")
    acting.cross(store, held["a"])
    return Place(engine, store, dict(valid_calls(run_id, held["a"], held["b"])))


def valid_calls(
    run_id: str, crossed: acting.Held, held: acting.Held
) -> Iterator[tuple[str, dict[str, Any]]]:
    ended = {"how": "exit", "exit_code": 0, "output": None, "error": None}
    given: dict[str, Any] = {
        "p_package_key": "nightly", "p_base_dir": "/srv/nightly", "p_kind": "workflow",
        "p_target_key": "flow", "p_run_key": "two", "p_input": "{}", "p_run_id": run_id,
        "p_reason": "user", "p_actor": "ann", "p_stage": "frontier", "p_error": "it broke",
        "p_after_due_at_ms": -1, "p_after_run_id": "", "p_limit": 32, "p_worker_id": "w1",
        "p_session_id": "s1", "p_queues": '["default"]', "p_slots": 4, "p_self_fencing": 1,
        "p_grace_ms": 2_000, "p_queue": "default", "p_lease_ms": 30_000, "p_follow": "fail",
        "p_attempt_id": crossed.attempt_id, "p_token": crossed.token, "p_trigger_key": "none",
        "p_owner": "me", "p_claim_version": 0, "p_state_version": 1, "p_cursor_ms": None,
        "p_due_at_ms": 7, "p_observed_at_ms": 8, "p_next_at_ms": 9,
        "p_before_ms": 1, "p_offers": acting.offers(["o3"]),
        "p_route": "lease", "p_certificate": "2a",
        "p_manifest": canonical(acting.model({"work": acting.task()})),
    }  # fmt: skip
    bodies: dict[str, tuple[acting.Held, dict[str, Any]]] = {
        "start_attempts": (held, {"identity": "pid 7"}),
        "report_attempts": (crossed, ended),
        "attest_attempts": (crossed, {"reason": "gone"}),
        "attempt_inputs": (held, {"worker_id": "w1"}),
        "attempt_standing": (crossed, {"worker_id": "w1"}),
    }
    for name, step in STEPS.items():
        one, fields = bodies.get(name, (crossed, {}))
        commands = {"p_commands": acting.commands(one, **fields)}
        yield name, {key: (given | commands)[key] for key in step.params}


def bad_calls() -> Iterator[tuple[str, str, object]]:
    """(step, parameter, value) for every parameter of every step; the others are valid."""
    for name, step in STEPS.items():
        for param in step.params:
            values: tuple[object, ...] = (None, *TEXTS)
            if param in OBJECTS:
                values = (None, *JSONS)
            elif param in LISTS:
                values = (None, *BATCHES)
            elif param.endswith(("_ms", "_limit", "_slots", "_fencing", "_version")):
                values = (None, *NUMBERS, LEASE_MAX_MS + 1)
            for value in values:
                yield name, param, value


def bad_bodies(valid: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(step, parameter, text): each field of a command or an offer in turn, as raw JSON.

    An output is given as text by our workers. As an object, PostgreSQL writes a large real number
    out in full and then refuses it as an integer beyond 64 bits; SQLite keeps it.
    """
    for name, step in STEPS.items():
        for param in LISTS.intersection(step.params) - {"p_queues"}:
            command = json.loads(valid[name][param])[0]
            for field in command:
                rest = json.dumps({key: value for key, value in command.items() if key != field})
                yield name, param, f"[{rest}]"
                for value in (*VALUES, *(f'{{"a":{one}}}' for one in VALUES)):
                    if field != "output" or "1e308" not in value:  # see bad_bodies
                        yield name, param, f'[{rest[:-1]}, "{field}": {value}}}]'


def outcome(place: Place, name: str, params: dict[str, Any]) -> tuple[object, ...]:
    """What a step says: its code, or the answers of its rows. Another kind of error is raised."""
    try:
        rows = place.store.call(name, **params)
    except QinglongError as error:
        assert len(error.message) < 2_000, "a message beyond bounds"
        return ("refused", error.code)
    return ("said", *(tuple(row.get(key) for key in ("outcome", "code", "status")) for row in rows))


def short(value: object) -> str:
    text = repr(value) if not isinstance(value, int) else f"{value.bit_length()} bits"
    return text if len(text) < 120 else f"{text[:50]} … {text[-40:]} ({len(text)})"


# -- both engines


Said = tuple[object, ...]
Call = tuple[str, str, object]


def groups(valid: dict[str, dict[str, Any]]) -> list[list[Call]]:
    """All bad calls, those of one parameter of one step together."""
    found: dict[tuple[str, str], list[Call]] = {}
    for call in (*bad_calls(), *bad_bodies(valid)):
        found.setdefault(call[:2], []).append(call)
    return list(found.values())


def drawn_group(random: Random, valid: dict[str, dict[str, Any]]) -> list[Call]:
    """A few calls of one parameter with values that are put together by chance."""
    name = random.choice(sorted(STEPS))
    param = random.choice(STEPS[name].params)
    return [(name, param, drawn(random, param, valid[name][param])) for _ in range(8)]


def drawn(random: Random, param: str, good: object) -> object:
    if param in LISTS | OBJECTS:
        text = mangled(random, str(good))
        if random.random() < 0.5:
            text = text.replace('"', random.choice(VALUES[:24]), 1)
        return text
    if isinstance(good, int):
        return random.choice([random.choice(NUMBERS), random.randrange(-(2**70), 2**70)])
    return mangled(random, random.choice([str(good), *TEXTS[:12]]))


def mangled(random: Random, text: str) -> str:
    """A text with a few of its places cut out, doubled, or overwritten by something hostile."""
    for _ in range(random.randrange(1, 4)):
        start = random.randrange(len(text) + 1)
        end = min(len(text), start + random.randrange(9))
        put = random.choice(["", text[start:end] * 2, *SCRAPS, random.choice(VALUES[:24])])
        text = text[:start] + put + text[end:]
    return text


def faults_of(places: Sequence[Place], calls: list[Call]) -> Iterator[str]:
    """What is wrong with a group: answers that differ, raw errors, rows of refused calls."""
    refused: list[Call] = []
    for name, param, value in calls:
        said = []
        for place in places:
            try:
                said.append(outcome(place, name, place.valid[name] | {param: value}))
            except Exception as error:  # whatever it is, it is no typed refusal
                said.append(("raised", f"{type(error).__name__}: {error}"[:200]))
        if len(set(said)) > 1 or said[0][0] == "raised":
            yield f"{name} {param}={short(value)}: {' and '.join(map(str, said))}"
        elif said[0][0] == "refused":
            refused.append((name, param, value))
    for place in places:
        before = acting.everything(place.engine)
        for name, param, value in refused:
            with suppress(QinglongError):
                place.store.call(name, **(place.valid[name] | {param: value}))
        if acting.everything(place.engine) != before:
            yield f"{refused[0][:2]} left rows on {place.engine.kind} though it was refused"
