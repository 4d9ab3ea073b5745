"""The JSON Schema accepts what `check` accepts, and refuses what a schema can know to be wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from qinglong_sql.cli.init import TEMPLATE
from qinglong_sql.package import PackageFaults, parse_package
from qinglong_sql.package_keys import THINGS, Key, Thing
from qinglong_sql.package_schema import schema, schema_text, yaml_value
from tests.shell import Shell
from tests.test_cases_dags import FILES, load
from tests.test_package import BAD, GOOD, HEAD, TASK

HOME = Path(__file__).resolve().parent.parent
SCHEMA = schema()
VALIDATOR = Draft202012Validator(SCHEMA)
# What one part of a file says about another, sums, and what YAML itself refuses.
BEYOND = {
    "the same task twice", "tasks that differ by case", "the same field twice",
    "a need that is no step", "a step that needs itself", "two steps in a cycle",
    "an unknown need beside a cycle", "a step of an unknown task",
    "a trigger of an unknown workflow", "a trigger of an unknown task",
    "a timeout beyond 30 days", "a back-off beyond a day", "a back-off above its top",
    "retry after lost work by a task that may not", "lost work without a second attempt",
    "lost work by default, of tasks that may not run twice",
    "a task that may not run twice, against the defaults",
    "lost work without a second attempt by the defaults",
    "a trigger at a time that is none", "a trigger in a zone that is none",
    "010 is no count",  # a number to an editor
    "a default of null",  # an empty text to an editor, as `KEY:` is
    "a NUL in a command", "half a character", "a command that no kernel takes",
    "two merge keys", "a merge of a mapping that is not finished",
}  # fmt: skip
DEEP = "brackets beyond reason"  # YAML's own reader takes seconds to give up


def reasons(text: str) -> list[str]:
    found = VALIDATOR.iter_errors(yaml_value(text))
    return [f"{error.json_path}: {error.message}" for error in found]


def test_it_is_a_schema_and_says_of_what_dialect() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize(
    "file", [*GOOD, HOME / "scripts/examples/demo.yaml"], ids=lambda file: file.stem
)
def test_it_accepts_the_good_files(file: Path) -> None:
    assert not reasons(file.read_text(encoding="utf-8"))


def test_it_accepts_every_real_flow_that_is_accepted() -> None:
    for file in FILES:
        case = load(file)
        if case["expect"] == "accept":
            steps = {one["key"]: {"run": "true", "needs": one["needs"]} for one in case["steps"]}
            flow = {"package": "case", "workflows": {"flow": {"steps": steps}}}
            assert VALIDATOR.is_valid(flow), file.stem


ODD = {
    "sections that are empty": HEAD + "tasks:\nworkflows: {w: {steps: {a: {run: x}}}}\n",
    "words that an editor types": TASK + "  1.5: {run: [010, no, ~, 1e3, 2024-01-01], cwd: 2024}\n",
    "an environment of anything": TASK + "  a: {run: x, env: {A: 1, B: true, C: , D: ~, E: no}}\n",
    "quoted numbers": TASK + "  a: {run: x, idempotent: 'true', retry: {attempts: '3'}}\n",
    "programs that look like values": TASK + "  a: {run: true}\n  b: {run: [true]}\n",
    "needs of nothing": HEAD + "workflows: {w: {steps: {a: {run: x, needs: }}}}\n",
    "nothing of a retry": TASK + "  a: {run: x, retry: , env: }\n",
    "all keys of defaults": HEAD
    + "defaults: {timeout: 1d1h1m1s1ms, retry: {on: failed}, env: {A: b}, cwd: x, queue: q, "
    + "idempotent: true, on_lost: hold}\ntasks: {a: {run: x}}\n",
    "defaults of nothing": HEAD + "defaults:\ntasks: {a: {run: x}}\n",
    "anchors and merges": HEAD + "x-a: &a {timeout: 1ms}\ntasks: {a: {<<: *a, run: x}}\n",
    "a cron of six fields": HEAD
    + "tasks: {t: {run: x}}\ntriggers: {c: {cron: 0 0 2 * * 1-5, tz: Etc/GMT+5, task: t}}\n",
    "what init writes": TEMPLATE.format(file="jobs.yaml", package="p"),
}  # fmt: skip


@pytest.mark.parametrize("case", ODD)
def test_it_accepts_odd_files_that_are_good(case: str) -> None:
    parse_package(ODD[case].encode(), "jobs.yaml")
    assert not reasons(ODD[case])


@pytest.mark.parametrize("case", [case for case in BAD if case not in {*BEYOND, DEEP}])
def test_it_refuses_what_a_schema_can_know(case: str) -> None:
    try:
        value = yaml_value(BAD[case])
    except (yaml.YAMLError, ValueError):
        return  # an editor tells that by itself
    assert not VALIDATOR.is_valid(value)


def test_what_it_cannot_know_is_accepted_by_it() -> None:
    """So that a case leaves BEYOND when the schema learns of it."""
    assert BAD.keys() >= BEYOND
    known = [case for case in BEYOND if BAD[case].count("\n") < 50 and reasons(BAD[case])]
    assert not known


BASES: dict[str, dict[str, Any]] = {
    "file": {"package": "p", "tasks": {"extract": {"run": "x"}}},
    "task": {"run": "x"},
    "defaults": {},
    "retry": {},
    "workflow": {"steps": {"clean": {"run": "x"}}},
    "step": {"run": "x"},
    "trigger": {"cron": "@daily", "tz": "UTC", "task": "extract"},
}


def example(thing: Thing, key: Key) -> dict[str, Any]:
    """A whole file with the example of one key in its place."""
    inner = {**BASES[thing.name], **yaml_value(key.example)}
    if key.name == "on_lost" and inner["on_lost"] == "retry":
        inner["idempotent"] = True
    if thing.name == "step" and key.name == "task":
        del inner["run"]
    if thing.name == "trigger" and key.name == "workflow":
        del inner["task"]
    steps = {"extract": {"run": "x"}, "clean": {"run": "x"}}
    file: dict[str, Any] = {
        "package": "p",
        "tasks": {"extract": {"run": "x"}},
        "workflows": {"etl": {"steps": dict(steps)}},
    }
    match thing.name:
        case "file":
            file |= inner
        case "defaults":
            file["defaults"] = inner
        case "task":
            file["tasks"]["t"] = inner
        case "retry":
            file["tasks"]["t"] = {"run": "x", "retry": inner}
        case "workflow":
            file["workflows"]["w"] = inner
        case "step":
            file["workflows"]["w"] = {"steps": steps | {"s": inner}}
        case "trigger":
            file["triggers"] = {"t": inner}
    return file


@pytest.mark.parametrize(
    ("thing", "key"),
    [pytest.param(thing, key, id=f"{thing.name}-{key.name}") for thing in THINGS
     for key in thing.keys],
)  # fmt: skip
def test_the_example_of_a_key_is_good_and_the_key_is_described(thing: Thing, key: Key) -> None:
    file = example(thing, key)
    parse_package(json.dumps(file).encode(), "jobs.yaml")
    assert VALIDATOR.is_valid(file)
    shape = SCHEMA if thing.name == "file" else SCHEMA["$defs"][thing.name]
    told = shape["properties"][key.name]
    assert told["description"].startswith(key.meaning.replace("`", "")[:20])
    assert told["examples"] == [yaml_value(key.example)[key.name]]


def test_an_unknown_key_is_refused_everywhere() -> None:
    for thing in THINGS:
        file = example(thing, thing.keys[0])
        assert VALIDATOR.is_valid(file)
        known = f'"{thing.keys[0].name}":'
        text = json.dumps(file).replace(known, f'"unheard-of": 1, {known}')
        assert not VALIDATOR.is_valid(json.loads(text)), thing.name
        with pytest.raises(PackageFaults):
            parse_package(text.encode(), "jobs.yaml")


def test_the_defaults_that_are_told_are_the_model_s() -> None:
    """A task with every default written out is the task without."""
    told = {key.name: key.default.strip("`") for thing in THINGS if thing.name in ("task", "retry")
            for key in thing.keys}  # fmt: skip
    assert told["attempts"].startswith("1`;") and told["max_backoff"].startswith("5m`,")
    assert (told["timeout"], told["env"], told["cwd"]) == (
        "none",
        "none",
        "the package file's folder",
    )
    written = (
        f"retry: {{attempts: 1, backoff: {told['backoff']}, max_backoff: 5m, on: {told['on']}}}, "
        f"idempotent: {told['idempotent']}, on_lost: {told['on_lost']}, queue: {told['queue']}, "
        "cwd: ."
    )
    short, long = (
        parse_package((TASK + f"  a: {{run: x{more}}}\n").encode(), "jobs.yaml").digest
        for more in ("", f", {written}")
    )
    assert short == long


def test_the_command_prints_the_file_that_is_shipped(tmp_path: Path) -> None:
    done = Shell(tmp_path, "sqlite:///none.db")("schema")
    assert done.returncode == 0 and done.stdout == schema_text()
    assert not list(tmp_path.iterdir())
