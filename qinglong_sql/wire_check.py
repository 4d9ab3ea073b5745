"""Whether a value is as a schema of the wire says: the words of JSON Schema that wire.py uses.

Each means what JSON Schema 2020-12 says, and no text holds a lone surrogate; tests hold this
together with a library that knows all.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from qinglong_sql.canonical import SURROGATE

KINDS: Final[dict[str, type]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "null": type(None),
}


class Unlike(ValueError):
    """A value is not as the schema says; the words name its key, and quote nothing of it."""


def checked(value: Any, schema: Mapping[str, Any], place: str = "") -> Any:
    """The value, in which each integer is an int. Raises Unlike.

    place: the key that it stands under. A value is quoted nowhere: it may be a token.
    """
    said = schema["type"]
    kinds = [said] if isinstance(said, str) else said
    kind = next((one for one in kinds if _is(value, one)), None)
    if kind is None:
        raise Unlike(f"{place or 'the body'}: it is {_listed(kinds)}")
    if kind == "object":
        return _object(value, schema, place)
    if kind == "array":
        return _array(value, schema, place)
    if kind == "string":
        _string(value, schema, place)
    elif kind == "integer":
        value = int(value)
        if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            raise Unlike(f"{place}: it is {schema['minimum']} to {schema['maximum']}")
    if "enum" in schema and value not in schema["enum"]:
        raise Unlike(f"{place}: it is one of {', '.join(map(str, schema['enum']))}")
    return value


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):  # which Python takes for an integer
        return False
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()  # 1e400 is none
    return isinstance(value, KINDS[kind])


def _object(value: dict[str, Any], schema: Mapping[str, Any], place: str) -> dict[str, Any]:
    known = schema["properties"]
    for name in schema["required"]:
        if name not in value:
            raise Unlike(f"{_below(place, name)} is missing")
    for name in value:
        if name not in known:
            raise Unlike(f"{place or 'the body'} has a key that is not known here; it has"
                         f" {', '.join(known)}")  # fmt: skip
    return {name: checked(one, known[name], _below(place, name)) for name, one in value.items()}


def _array(value: list[Any], schema: Mapping[str, Any], place: str) -> list[Any]:
    least, most = schema.get("minItems", 0), schema["maxItems"]
    if not least <= len(value) <= most:
        raise Unlike(f"{place}: it has {least} to {most} entries")
    return [checked(one, schema["items"], f"{place}[{at}]") for at, one in enumerate(value)]


def _string(value: str, schema: Mapping[str, Any], place: str) -> None:
    if SURROGATE.search(value):  # JSON that is UTF-8 has none; escapes may say one
        raise Unlike(f"{place}: it holds a lone surrogate")
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if len(value) < least or (most is not None and len(value) > most):
        raise Unlike(f"{place}: it has {least} to {most} characters")
    if "pattern" in schema and not _pattern(schema["pattern"]).search(value):
        raise Unlike(f"{place}: it is not of the form {schema['pattern']}")


def _below(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _listed(kinds: list[str]) -> str:
    return " or ".join({"null": "null"}.get(one, f"an {one}" if one[0] in "aeio" else f"a {one}")
                       for one in kinds)  # fmt: skip


@cache
def _pattern(text: str) -> re.Pattern[str]:
    # `$` of JSON Schema is the very end
    return re.compile(re.sub(r"\$$", r"\\Z", text))
