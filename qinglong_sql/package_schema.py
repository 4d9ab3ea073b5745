"""The JSON Schema of a package file (draft 2020-12), made of package_keys.

It knows shapes, patterns and limits; what one part of a file says about another (needs, cycles,
names of tasks), `check` alone knows. It takes values as an editor reads YAML 1.2.
"""

import json
import re
from typing import Any

import yaml

from qinglong_sql.package_keys import ENV_NAME, FILE, SCALARS, TEXT, THINGS, Key, Shape, Thing

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class CoreLoader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML 1.2's core schema, as editors have it: `on` and `no` are text, and so are dates."""


CoreLoader.yaml_implicit_resolvers = {}
for tag, pattern, first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("merge", "<<", ["<"]),
):
    CoreLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), first
    )
CoreLoader.add_constructor(
    "tag:yaml.org,2002:int",
    lambda loader, node: int(node.value, 0) if node.value.startswith("0x") else int(node.value),
)


def yaml_value(text: str) -> Any:
    """YAML as an editor reads it, to be held against the schema."""
    return yaml.load(text, Loader=CoreLoader)  # a safe loader


def schema() -> dict[str, Any]:
    """The whole schema; the file's own mapping is the root."""
    defs = {thing.name: thing_shape(thing) for thing in THINGS if thing is not FILE}
    return {
        "$schema": DIALECT,
        "$comment": "Made by `python -m scripts.reference`; `qinglong-sql schema` prints it.",
        **thing_shape(FILE),
        "title": "A package file of qinglong-sql",
        "$defs": {**defs, "env": env_shape()},
    }


def schema_text() -> str:
    """The schema as its file has it."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def thing_shape(thing: Thing) -> Shape:
    """The shape of one mapping; what may be left empty in a file may be null."""
    optional = thing.name in ("defaults", "retry")
    found: Shape = {
        "title": thing.title,
        "description": thing.meaning.replace("`", ""),
        "type": ["object", "null"] if optional else "object",
        "properties": {key.name: key_shape(key) for key in thing.keys},
        "additionalProperties": False,
    }
    if thing.needed:
        found["required"] = list(thing.needed)
    return {**found, **thing.more}


def key_shape(key: Key) -> Shape:
    """The shape of one key, with the words that an editor shows."""
    words = [key.meaning.replace("`", "")]
    if key.limit:
        words.append(f"Limits: {key.limit.replace('`', '')}.")
    if key.default.startswith(("needed", "this or")):
        words.append(f"{key.default.replace('`', '').capitalize()}.")
    elif key.default:
        words.append(f"Default: {key.default.replace('`', '')}.")
    return {
        "description": " ".join(words),
        **key.shape,
        "examples": [yaml_value(key.example)[key.name]],
    }


def env_shape() -> Shape:
    """An environment: names to text, or to the file that holds it."""
    file = {
        "type": "object",
        "properties": {"file": {"description": "The path of a file with the value.", **TEXT}},
        "required": ["file"],
        "additionalProperties": False,
    }
    return {
        "type": ["object", "null"],
        "propertyNames": {"pattern": ENV_NAME},
        "additionalProperties": {"anyOf": [{"type": [*SCALARS, "null"]}, file]},
    }
