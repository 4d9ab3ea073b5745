"""How runs begin: `start`, and what other commands share of that."""

import getpass
import shlex
from pathlib import Path
from typing import Any

import click

from qinglong_sql.canonical import canonical, derived_id, read_json
from qinglong_sql.cli.alone import nobody_drives
from qinglong_sql.cli.exits import BadFile, Refused, repeatable, reported
from qinglong_sql.cli.options import opened, poke, same_dsn, with_dsn, with_json
from qinglong_sql.cli.reread import the_run
from qinglong_sql.cli.spelling import MOST, did_you_mean
from qinglong_sql.cli.waiting import check_wait, wait_and_leave, with_wait
from qinglong_sql.cli.words import complain, moment, now_ms, print_json, say
from qinglong_sql.limits import ACTOR_BYTES, INPUT_BYTES
from qinglong_sql.store import Store

INPUT_SHOWN = 200  # characters of an input that a command on a screen may have
INPUT_FILE_BYTES = 16 * INPUT_BYTES  # however much of it is space

with_input = click.option(
    "--input", "pairs", multiple=True, metavar="K=V", help="One value of the run's input."
)
with_input_file = click.option(
    "--input-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A JSON object with the run's input; --input goes on top.",
)


def run_input(pairs: tuple[str, ...], file: Path | None) -> str:
    """Canonical JSON text of a run's input. Raises BadFile, BadParameter or Refused."""
    value: Any = {}
    if file is not None:
        try:
            with file.open("rb") as opened_file:
                said = opened_file.read(INPUT_FILE_BYTES + 1)
            if len(said) > INPUT_FILE_BYTES:
                raise BadFile(f"{file}: larger than {INPUT_FILE_BYTES // 1024} KiB")
            value = read_json(said)
        except OSError as error:
            raise BadFile(f"{file}: {error.strerror}") from error
        except ValueError as error:
            raise BadFile(f"{file}: not the JSON of an input: {error}") from error
        if not isinstance(value, dict):
            raise BadFile(f"{file}: the input must be a JSON object")
    given = set()
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key:
            raise click.BadParameter(f"{pair!r}: write key=value", param_hint="'--input'")
        if key in given:
            raise click.BadParameter(f"{key!r} is given twice", param_hint="'--input'")
        given.add(key)
        value[key] = text
    try:
        text = canonical(value)
    except ValueError as error:
        raise Refused(f"the input cannot be stored: {error}") from error
    if len(text.encode()) > INPUT_BYTES:
        raise Refused(f"the input is larger than {INPUT_BYTES} bytes; give a path instead")
    return text


def input_of(store: Store, run_id: str) -> dict[str, Any]:
    """The input of a run. Raises Refused for a run that is gone."""
    rows = store.read("input_state", run_id=run_id)
    if not rows:
        the_run(store, run_id)
    found: dict[str, Any] = read_json(rows[0]["input"].encode())
    return found


def same_run(store: Store, run: dict[str, Any], file: str, more: str) -> str:
    """The `run` command that goes on with an open run, whatever its input is.

    `file` is quoted; `more` is the ` --dsn …` that commands need.
    """
    given = input_of(store, run["run_id"])
    command = f"qinglong-sql run {file} {run['target_key']}{more}"
    plain = all(isinstance(text, str) and key and "=" not in key for key, text in given.items())
    words = [shlex.quote(f"{key}={text}") for key, text in given.items()] if plain else []
    if plain and len(" ".join(words)) <= INPUT_SHOWN and all(map(str.isprintable, words)):
        return command + "".join(f" --input {word}" for word in words)
    shown = f"qinglong-sql show {run['run_id'][:12]} --input{more}"
    return f"{shown} | {command} --input-file /dev/stdin"


def start_run(
    store: Store, package: str, kind: str, target: str, key: str | None, text: str
) -> dict[str, Any]:
    """Admit a run; the same key and input again is the same run. Raises Refused on a conflict."""
    with repeatable(key) as said:
        row = store.call(
            "start_run",
            p_package_key=package,
            p_kind=kind,
            p_target_key=target,
            p_run_key=said,
            p_input=text,
        )[0]
    if row["outcome"] == "conflict":
        other = the_run(store, row["run_id"])
        how = "for a retry" if other["retry_of_run_id"] else "with another input"
        raise Refused(f"key {key!r} was used before {how}: run {row['run_id']}")
    return row


@click.command()
@click.argument("package")
@click.argument("target", metavar="WORKFLOW|TASK", required=False)
@with_input
@with_input_file
@click.option("--key", help="The run's own key: the same key and input again is the same run.")
@with_wait
@with_dsn
@with_json
@reported
def start(
    package: str,
    target: str | None,
    pairs: tuple[str, ...],
    input_file: Path | None,
    key: str | None,
    wait: bool,
    timeout: int | None,
    dsn: str,
    as_json: bool,
) -> None:
    """Start a run of a published PACKAGE.

    An edge drives it, or `qinglong-sql resume` with its id. With --wait the exit code is the
    run's, as `run` has it; Ctrl-C ends the waiting and leaves the run alone. A --key
    that a run has already is no error: the line says how that run stands, and the exit code is 0.
    """
    check_wait(wait, timeout)
    text = run_input(pairs, input_file)
    with opened(dsn, writes=True) as store:
        kind, name = published_target(store, package, target)
        row = start_run(store, package, kind, name, key, text)
        poke(dsn)
        run = the_run(store, row["run_id"])
        stands = f": {standing_of(store, run, same_dsn(dsn))}" * (row["outcome"] == "existing")
        if wait:
            complain(f"run {row['run_id']} {row['outcome']}{stands}")
            wait_and_leave(store, row["run_id"], dsn=dsn, timeout_ms=timeout, as_json=as_json)
        alone = nobody_drives(store, dsn, row["run_id"]) if run["status"] == "running" else ""
    if as_json:
        print_json(row)
    else:
        say(f"{row['run_id']} {row['outcome']}{stands}")
    if alone:
        complain(alone)


def standing_of(store: Store, run: dict[str, Any], more: str) -> str:
    """How a run stands that was there already, and what to type when it did not succeed."""
    now = now_ms()
    if run["status"] == "running":
        return f"running since {moment(run['admitted_at_ms'], now)}"
    words = f"{run['status']} at {moment(run['finished_at_ms'], now)}"
    if run["status"] == "succeeded":
        return words
    again = retry_of(store, run["run_id"])
    if again is not None:
        return f"{words}; retried as {again['run_id'][:12]}: {again['status']}"
    return f"{words}; again: qinglong-sql retry {run['run_id'][:12]}{more}"


def retry_of(store: Store, run_id: str) -> dict[str, Any] | None:
    """The run that `retry` made of one; a retry with a key of its own is not found by it."""
    found = store.read("run_state", run_id=derived_id("ru", "retry", run_id))
    return found[0] if found else None


def published_target(store: Store, package: str, name: str | None) -> tuple[str, str]:
    """(kind, key) of what to start in the active generation. Raises Refused with the choices."""
    active = store.read("package_state", package_key=package, state="active")
    if not active:
        known = store.read("package_state", order="package_key", limit=MOST, state="active")
        near = did_you_mean(package, (row["package_key"] for row in known))
        way = near or "; `qinglong-sql publish FILE` makes one"
        raise Refused(f"no active package {package!r}{way}")
    rows = store.read(
        "target_state",
        order="kind desc, target_key",
        package_key=package,
        generation=active[0]["generation"],
    )
    found = [row for row in rows if "/" not in row["target_key"]]
    if name is None:
        workflows = [row for row in found if row["kind"] == "workflow"]
        found = workflows or found
        if len(found) == 1:
            name = str(found[0]["target_key"])
    for row in found:
        if row["target_key"] == name:
            return str(row["kind"]), str(row["target_key"])
    from qinglong_sql.cli.package import choices_of  # no package is read without it

    kinds: dict[str, list[str]] = {"workflow": [], "task": []}
    for row in found:
        kinds[row["kind"]].append(row["target_key"])
    choices = choices_of(kinds["workflow"], kinds["task"])
    if name is None:
        raise Refused(f"say which one to start, of: {choices}")
    near = did_you_mean(name, (row["target_key"] for row in found))
    raise Refused(
        f"package {package!r} has no workflow or task {name!r}; there are: {choices}{near}"
    )


def request_cancel(store: Store, run_id: str, actor: str = "") -> dict[str, Any]:
    """Write the intent; the first one wins (DESIGN §5)."""
    return store.call(
        "request_cancel", p_run_id=run_id, p_reason="user", p_actor=actor or user_name()
    )[0]


def user_name() -> str:
    """Who asks, for the history, as much as it keeps; without a user name it is `unknown`."""
    try:
        said = getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
    plain = "".join(sign if sign.isprintable() else "?" for sign in said)
    return plain.encode("utf-8", "replace")[:ACTOR_BYTES].decode("utf-8", "ignore") or "unknown"
