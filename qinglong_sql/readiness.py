"""Whether a PostgreSQL database is exactly what this release shipped, and the login what it should.

`assert_ready` is asked at boot, as the unprivileged login itself: primary and writable, server 15
to 18, newest revision, every object and body as shipped, rights neither too many nor too few
(DESIGN §7, §8). What is compared stands in shipped_postgres.json (scripts/shipped.py).

Majors print one view differently, so what a server prints is known for each major that it was
measured on; everything stored (columns, bodies, rights, what a view reads) is the same on all.
Left to the DBA: autovacuum options, tablespaces, comments, and objects outside our schemas.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import psycopg

from qinglong_sql.encoding import ENCODING, WAY_TO_UTF8, wrong_encoding
from qinglong_sql.errors import MESSAGE_CHARS, WAY_TO_PRIMARY, NotReady
from qinglong_sql.migrate import VERSION_SCHEMA
from qinglong_sql.readiness_login import wrong_of_login
from qinglong_sql.readiness_words import Known, wrong_of_object
from qinglong_sql.store.catalog import Catalog, Facts, Standing, reading

SHIPPED: Final = Path(__file__).with_name("shipped_postgres.json")
MAJORS: Final = range(15, 19)
CONTROL_GROUPS: Final = ("ql_scheduler", "ql_reader")
_STAMP = re.compile(rf"\b{VERSION_SCHEMA}\b")


class Unready(NotReady):
    """QL503: the database, or who asks, is not what it should be; `wrong` lists everything."""

    def __init__(self, wrong: Sequence[str], way_out: str = "") -> None:
        self.wrong = tuple(wrong)
        super().__init__(_told(self.wrong, way_out))


@dataclass(frozen=True, slots=True)
class Found:
    """What was seen to be right."""

    server: str  # "18.6"
    writable: bool
    revision: str | None  # as stamped; None: no stamp, or this login may not see it
    object_count: int
    not_compared: tuple[str, ...]  # views of which it is not known how this major prints them

    def __str__(self) -> str:
        said = f"{self.object_count} objects, bodies and rights are the shipped ones"
        if not self.not_compared:
            return said
        return (
            f"{said}; of {len(self.not_compared)} only columns, rights and what they read was"
            f" compared, since their text on this server is not known: {self.not_compared[0]}, …"
        )


def assert_ready(connection: psycopg.Connection[Any], groups: Sequence[str]) -> Found:
    """See that a process with the rights of exactly these groups may start.

    groups: such as CONTROL_GROUPS. Raises Unready, a NotReady (QL503), that names what is wrong
    and the way out, in this order: not a writable primary; server; revision; objects, their rights
    and the roles; this login. Lets psycopg.Error through when the connection is lost.
    """
    with reading(connection) as catalog:
        here = catalog.standing
        if here.in_recovery:
            raise Unready(
                ["the server is in recovery, a standby"],
                WAY_TO_PRIMARY,
            )
        if here.read_only:
            raise Unready(
                ["sessions are read-only here (default_transaction_read_only)"],
                f"reset it: {way_to_reset(here.database, 'default_transaction_read_only')}",
            )
        found, wrong = _compared(catalog)
        wrong += wrong_of_login(catalog, groups)
    if wrong:
        raise Unready(wrong)
    return found


def assert_shipped(connection: psycopg.Connection[Any]) -> Found:
    """Compare the database, for people: a standby will do, and any login.

    Raises as `assert_ready`.
    """
    with reading(connection) as catalog:
        found, wrong = _compared(catalog)
    if wrong:
        raise Unready(wrong)
    return found


def _compared(catalog: Catalog) -> tuple[Found, list[str]]:
    """What is there and what is wrong with it. Raises Unready when looking makes no sense."""
    here = catalog.standing
    if here.major not in MAJORS:
        raise Unready(
            [f"the server is PostgreSQL {_version(here)}"],
            f"use one from {MAJORS[0]} to {MAJORS[-1]}",
        )
    if here.encoding != ENCODING:
        raise Unready([wrong_encoding(here.database, here.encoding)], WAY_TO_UTF8)
    if here.isolation != "read committed":
        raise Unready(
            [f"sessions are {here.isolation} here (default_transaction_isolation)"],
            f"reset it: {way_to_reset(here.database, 'default_transaction_isolation')}",
        )
    stamp = catalog.revision()
    shipped = shipped_state()
    _assert_newest(stamp, shipped)
    objects = catalog.objects()
    if "schema ql" not in objects:
        raise Unready([f"database {here.database} has no schema of ours"], "`qinglong-sql migrate`")
    wrong, unknown = differences(objects, shipped["objects"], here.major)
    if wrong:
        older = {digest: revision for revision, digest in shipped["revisions"].items()}
        _assert_newest(older.get(digest_of(objects)), shipped)
    found = Found(
        server=_version(here),
        writable=not (here.in_recovery or here.read_only),
        revision=stamp,
        object_count=len(objects),
        not_compared=tuple(unknown),
    )
    return found, wrong


def way_to_reset(database: str, setting: str) -> str:
    """Where a setting may come from that is not PostgreSQL's own default."""
    return (
        f"alter database {database} reset {setting}, the same for the role, or in postgresql.conf"
    )


def _assert_newest(revision: str | None, shipped: Mapping[str, Any]) -> None:
    newest = shipped["revision"]
    if revision is not None and revision < newest:
        raise Unready(
            [f"the database stands at revision {revision}, and {newest} is the newest"],
            "`qinglong-sql migrate`",
        )
    if revision is not None and revision > newest:
        raise Unready(
            [f"the database stands at revision {revision}, and this release knows {newest}"],
            "install the release that migrated it",
        )


@cache
def shipped_state() -> dict[str, Any]:
    """What the migrations install: revision, digests of older ones, and every object."""
    state: dict[str, Any] = json.loads(SHIPPED.read_text(encoding="utf-8"))
    return state


def differences(
    found: Mapping[str, Facts], shipped: Mapping[str, Any], major: int
) -> tuple[list[str], list[str]]:
    """Words for each object that differs, and the objects whose print is not known here."""
    wrong: list[str] = []
    unknown: list[str] = []
    stamped = f"schema {VERSION_SCHEMA}" in found  # psql with the manifest leaves no stamp
    for name in sorted(found.keys() | shipped.keys(), key=_order):
        wanted = shipped.get(name)
        if wanted is not None and _STAMP.search(name) and not stamped:
            continue
        known: Known | None = None
        if wanted is not None:
            known, complete = _on_major(wanted, major)
            if not complete:
                unknown.append(name)
        wrong += wrong_of_object(name, found.get(name), known)
    return wrong, unknown


def _on_major(wanted: Mapping[str, Any], major: int) -> tuple[Known, bool]:
    """What an object is on a major: a print is one digest for all, or one each."""
    printed: dict[str, str | None] = {
        word: one if isinstance(one, str) else one.get(str(major))
        for word, one in wanted.get("printed", {}).items()
    }
    known = Known(wanted.get("is", {}), wanted.get("may", {}), printed)
    return known, None not in printed.values()


def digest_of(objects: Mapping[str, Facts]) -> str:
    """One digest of all that no major prints differently, by which a revision is known again."""
    kept = {
        name: [facts["is"], facts["may"]]
        for name, facts in objects.items()
        if not _STAMP.search(name)
    }
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _order(name: str) -> tuple[int, str]:
    """Schemas, roles, and then the rest."""
    return {"schema": 0, "role": 1}.get(name.split()[0], 2), name


def _version(here: Standing) -> str:
    return f"{here.major}.{here.version % 10_000}"


def _told(wrong: Sequence[str], way_out: str) -> str:
    """As many of the words as a message holds, and how many more there are."""
    room = MESSAGE_CHARS - len(way_out) - 40
    kept: list[str] = []
    for words in wrong:
        if kept and sum(map(len, kept)) + 2 * len(kept) + len(words) > room:
            break
        kept.append(words)
    more = len(wrong) - len(kept)
    said = "; ".join([*kept, *([f"and {more} more"] if more else [])])
    return f"{said}: {way_out}" if way_out else said
