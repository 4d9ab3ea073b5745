"""What is wrong with one object, in words that name it and the way out."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from qinglong_sql.store.catalog import Facts
from qinglong_sql.store.sqlfiles import sql_folder

DIGEST = re.compile(r"[0-9a-f]{64}")
SIMPLE = re.compile(r"[a-z_][a-z0-9_$]*")
UNSET = "unset"
MOVABLE = ("table", "view", "function", "procedure", "aggregate", "type", "sequence")
OPTION = " with grant option"


@dataclass(frozen=True, slots=True)
class Known:
    """What an object is as shipped, on the major at hand; a print that is not known is None."""

    stored: Mapping[str, str]
    may: Mapping[str, str]
    printed: Mapping[str, str | None]


def wrong_of_object(name: str, found: Facts | None, wanted: Known | None) -> Iterator[str]:
    """Each difference of one object; None is an object that is not there."""
    if found is None:
        yield f"{name} is missing: {_again(name)}"
    elif wanted is None:
        yield f"{name} is not ours: {_away(name)}"
    else:
        yield from _changed(name, found, wanted)
        yield from _rights(name, found["may"], wanted.may)


def _changed(name: str, found: Facts, wanted: Known) -> Iterator[str]:
    stored, printed = found["is"], found["printed"]
    for word in sorted(stored.keys() | wanted.stored.keys()):
        yield from _one(name, word, stored.get(word), wanted.stored.get(word))
    for word in sorted(printed.keys() | wanted.printed.keys()):
        if word in printed and word in wanted.printed and wanted.printed[word] is None:
            continue
        yield from _one(name, word, printed.get(word), wanted.printed.get(word))


def _one(name: str, word: str, found: str | None, wanted: str | None) -> Iterator[str]:
    if found == wanted:
        return
    part = word.startswith(("column ", "default of "))
    if part and found is None:
        said = f"{word} is missing"
    elif part and wanted is None:
        said = f"{word} is not ours"
    elif DIGEST.fullmatch(found or wanted or ""):
        said = f"{word} is changed"
    else:
        said = f"{word} is {found or UNSET}, not {wanted or UNSET}"
    yield f"{name}: {said}: {_again(name)}"


def _rights(name: str, found: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[str]:
    kind, _, rest = name.partition(" ")
    on = f"on {rest}" if kind in ("table", "view") else f"on {kind} {rest}"
    for grantee in sorted(found.keys() | wanted.keys()):
        has, should = _split(found.get(grantee)), _split(wanted.get(grantee))
        who = quoted(grantee)
        for right in sorted(has - should):
            what = right.removesuffix(OPTION).lower()
            undo = (
                f"grant option for {what}"
                if right.endswith(OPTION) and (right.removesuffix(OPTION) in should)
                else what
            )
            yield f"{name}: {grantee} has {right} too many: revoke {undo} {on} from {who}"
        for right in sorted(should - has):
            if right + OPTION not in has:
                yield f"{name}: {grantee} lacks {right}: grant {right.lower()} {on} to {who}"


def _split(rights: str | None) -> set[str]:
    return set(rights.split(", ")) if rights else set()


def _away(name: str) -> str:
    if name.startswith("row type"):
        return "no one has rights on it as shipped, revoke them"
    if name.startswith("default privileges"):
        return "take them back with alter default privileges"
    if name.startswith("schema"):
        return "drop or rename it, ql and ql_… are our names"
    return "drop it, or move it to another schema" if name.split()[0] in MOVABLE else "drop it"


def quoted(role: str) -> str:
    """A role as SQL takes it."""
    doubled = role.replace('"', '""')
    return role if role == "PUBLIC" or SIMPLE.fullmatch(role) else f'"{doubled}"'


def _again(name: str) -> str:
    """Where an object is written, so that it can be put back."""
    kind = name.split()[0]
    if kind == "role":
        return "make it as sql/postgres/role.sql has it"
    if kind == "schema":
        return "make it as sql/postgres/schema.sql has it"
    key = " ".join(name.split("(")[0].split()[:2])
    if kind in ("constraint", "index"):
        return "make it as sql/postgres/table.sql has it"
    written = sources().get(key)
    return f"make it as sql/{written} has it" if written else "put it back as it was"


@cache
def sources() -> dict[str, str]:
    """The file under sql/ that makes a function, view, table or type: {"view ql.run_state": …}."""
    made = re.compile(
        r"^create (?:or replace )?(function|view|table|type) (?:ql\.)?([\w.]+)", re.MULTILINE
    )
    root = sql_folder()
    found: dict[str, str] = {}
    for path in sorted([*root.glob("postgres/*.sql"), *root.glob("decision/*.sql")]):
        for kind, name in made.findall(path.read_text(encoding="utf-8")):
            full = name if "." in name else f"ql.{name}"
            found[f"{kind} {full}"] = str(path.relative_to(root))
    return found
