"""What PostgreSQL has as `ql.<name>`, registered by each SQLite connection.

Step statements call them; views and triggers of the file cannot, since it is not trusted to.
Null in, null out, as in PostgreSQL.
"""

from collections.abc import Callable

from qinglong_sql import canonical as texts


def _derived_id(*parts: str | int | None) -> str | None:
    if None in parts:
        return None
    prefix, *rest = parts
    return texts.derived_id(str(prefix), *(part for part in rest if part is not None))


def _jitter(run_id: str, step_key: str, number: int) -> int:
    return int(texts.derived_id("ji", run_id, step_key, number)[2:5], 16) % 1024


def _sha256_hex(text: str | None) -> str | None:
    return None if text is None else texts.digest(text)


def _canonical(text: str | None) -> str | None:
    return None if text is None else texts.canonical(texts.read_json(text))


def _is_object(text: str | None) -> int:
    try:
        return int(text is not None and isinstance(texts.read_json(text), dict))
    except ValueError:
        return 0


FUNCTIONS: tuple[tuple[str, int, Callable[..., str | int | None]], ...] = (
    ("derived_id", -1, _derived_id),
    ("jitter", 3, _jitter),
    ("sha256_hex", 1, _sha256_hex),
    ("canonical", 1, _canonical),
    ("is_object", 1, _is_object),
)
