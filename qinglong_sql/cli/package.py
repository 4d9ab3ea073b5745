"""Commands about a package file: check, publish."""

from pathlib import Path
from typing import Any

import click

from qinglong_sql.cli.exits import Exit, Refused, leave, painted_fault, reported
from qinglong_sql.cli.options import opened, package_file, with_dsn, with_json
from qinglong_sql.cli.words import complain, print_json, say
from qinglong_sql.package import Package, load_package
from qinglong_sql.package_fault import PackageFaults
from qinglong_sql.store import Store


@click.command()
@package_file
@with_json
@reported
def check(file: Path, as_json: bool) -> None:
    """Check a package FILE: `ok`, or all its faults (exit 2)."""
    try:
        package = load_package(file)
    except PackageFaults as faults:
        if not as_json:
            raise
        print_json({"ok": False, "errors": [fault.as_json() for fault in faults.faults]})
        leave(Exit.BAD_FILE)
    warnings = [fault.as_json() for fault in package.warnings]
    if as_json:
        print_json({"ok": True, "errors": [], "warnings": warnings, "digest": package.digest})
        return
    for fault in package.warnings:
        complain(f"warning: {fault.render(str(file), package.source, painted_fault)}")
    say("ok")


@click.command()
@package_file
@with_dsn
@with_json
@reported
def publish(file: Path, dsn: str, as_json: bool) -> None:
    """Publish a package FILE for new runs.

    Runs that are open keep the definition that they started with.
    """
    package = load_package(file)
    with opened(dsn, create=True) as store:
        row = publish_package(store, package)
    if as_json:
        print_json(row)
        return
    said = "published" if row["outcome"] == "published" else "already active"
    say(f"{row['package_key']} generation {row['generation']} {said}")


def publish_package(store: Store, package: Package) -> dict[str, Any]:
    """Publish a checked package; the same content again is a replay (DESIGN §5)."""
    return store.call(
        "publish_package",
        p_package_key=package.key,
        p_manifest=package.manifest,
        p_base_dir=str(package.base_dir),
    )[0]


def choose_target(package: Package, name: str | None) -> tuple[str, str]:
    """(kind, key) of what to run: the named one, or the only one there is.

    Raises Refused with the choices when the name is unknown or missing.
    """
    workflows = package.model["workflows"]
    tasks = {key: task for key, task in package.model["tasks"].items() if "/" not in key}
    if name is None:
        found = workflows or tasks
        if len(found) == 1:
            return ("workflow" if workflows else "task"), next(iter(found))
        raise Refused(f"say which one to run: {', '.join(found)}")
    if name in workflows:
        return "workflow", name
    if name in tasks:
        return "task", name
    raise Refused(f"no workflow or task {name!r}; there are: {', '.join([*workflows, *tasks])}")
