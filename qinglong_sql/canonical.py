"""Canonical JSON, digests and derived ids: the same text from every engine (DESIGN §4)."""

import hashlib
import json
import math
import os
import re
from typing import Any

from qinglong_sql.limits import JSON_DEPTH

INT_MIN, INT_MAX = -(2**63), 2**63 - 1
INT_CHARS = len(str(INT_MIN))
TOO_LARGE = "integer beyond 64 bits"
DERIVED_DIGITS = 24
SURROGATE = re.compile("[\ud800-\udfff]")


def canonical(value: object) -> str:
    """JSON text with sorted keys, no insignificant space, and UTF-8 kept as it is.

    Raises ValueError for what a database would refuse or change: non-finite numbers, integers
    beyond signed 64 bit, NUL, lone surrogates, keys that are not text, values that JSON does not
    know, and nesting deeper than JSON_DEPTH.
    """
    _refuse_unstorable(value)
    return json.dumps(
        value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
    )


def read_json(text: str | bytes) -> Any:
    """Parse JSON from outside, refusing what `canonical` refuses, and duplicate keys as well.

    Raises ValueError, for bytes that are not UTF-8 too; it names keys, never values.
    """
    value = parse_json(text)
    _refuse_unstorable(value)
    return value


def parse_json(text: str | bytes) -> Any:
    """As `read_json`, without a look at each value: for who checks them against a schema.

    What may be in it nevertheless: NUL, lone surrogates, 1e400, and integers a little too long.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    try:
        return json.loads(
            text, object_pairs_hook=_unique, parse_constant=_constant, parse_int=_integer
        )
    except RecursionError:
        raise ValueError(f"nested deeper than {JSON_DEPTH} levels") from None


def digest(text: str) -> str:
    """SHA-256 of the text's UTF-8 bytes, 64 hex digits."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def derived_id(prefix: str, *parts: str | int) -> str:
    """Two letters and the first 24 hex digits of SHA-256 over the parts (DESIGN §4).

    Each part is its UTF-8 bytes preceded by `<byte length>:`, so no two lists of parts run
    together; an integer is its decimal text. Raises ValueError for another kind of prefix or part.
    """
    if not (len(prefix) == 2 and prefix.isascii() and prefix.isalpha() and prefix.islower()):
        raise ValueError(f"a prefix is two lower-case letters, not {prefix!r}")
    hashed = hashlib.sha256()
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, str | int):
            raise ValueError(f"a part is text or an integer, not {part!r}")
        text = str(part).encode("utf-8")
        hashed.update(b"%d:%b" % (len(text), text))
    return prefix + hashed.hexdigest()[:DERIVED_DIGITS]


def refuse_text(text: str) -> str | None:
    """Why no database would store this text, or None (DESIGN §12)."""
    if "\0" in text:
        return "holds a NUL character"
    if SURROGATE.search(text):
        return "holds a lone surrogate"
    return None


def storable(text: str) -> str:
    """The text with a question mark for what `refuse_text` would refuse, so that it is kept."""
    return SURROGATE.sub("?", text.replace("\0", "?"))


def utf8_text(text: str) -> str:
    """Text of the system, such as a path, as its bytes read as UTF-8, whatever the locale is.

    Only then a process under another locale names the same file. Bytes that are not UTF-8 become
    lone surrogates, as in Python's own paths; `refuse_text` finds them.
    """
    return os.fsencode(text).decode("utf-8", "surrogateescape")


def _refuse_unstorable(value: object) -> None:
    waiting: list[tuple[object, int]] = [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        if depth > JSON_DEPTH:
            raise ValueError(f"nested deeper than {JSON_DEPTH} levels")
        match item:
            case None | bool():
                pass
            case str():
                if reason := refuse_text(item):
                    raise ValueError(f"text {reason}")
            case int():
                if not INT_MIN <= item <= INT_MAX:
                    raise ValueError(TOO_LARGE)
            case float():
                if not math.isfinite(item):
                    raise ValueError(f"number is not finite: {item}")
            case dict():
                for key in item:
                    if not isinstance(key, str):
                        raise ValueError(f"a key must be text, not {key!r}")
                waiting.extend((key, depth) for key in item)
                waiting.extend((inner, depth + 1) for inner in item.values())
            case list() | tuple():
                waiting.extend((inner, depth + 1) for inner in item)
            case _:
                raise ValueError(f"not a JSON value: {type(item).__name__}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise ValueError(f"duplicate key {key!r}")
        seen[key] = value
    return seen


def _constant(name: str) -> None:
    raise ValueError(f"number is not finite: {name}")


def _integer(text: str) -> int:
    if len(text) > INT_CHARS:  # Python would give its own settings as the way out
        raise ValueError(TOO_LARGE)
    return int(text)
