"""`ca`: a small certificate authority for workers and their door, in a folder."""

import importlib.util
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qinglong_sql.cli.ca_words import DAY_MS, SOON_MS, answer_of, day, ending, standing
from qinglong_sql.cli.cells import room
from qinglong_sql.cli.exits import BadFile, Refused, reported
from qinglong_sql.cli.options import with_json
from qinglong_sql.cli.words import complain, moment, now_ms, print_json, say, table, with_utc
from qinglong_sql.errors import NotReady

if TYPE_CHECKING:
    from qinglong_sql.ca import Made

MOST_DAYS = 3650
MOST_DAYS_CA = 36_500
REQUEST_BYTES = 16 * 1024
SERIAL_COLUMNS = 60  # fewer have no room for a serial number, which somebody copies
F = TypeVar("F", bound=Callable[..., Any])

folder = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
with_out = click.option(
    "--out", metavar="FOLDER", type=click.Path(path_type=Path),
    help="Where NAME.crt, NAME.key and ca.crt are written. Default: a folder NAME here.",
)  # fmt: skip
with_csr = click.option(
    "--csr", metavar="FILE", type=click.Path(dir_okay=False, readable=False, path_type=Path),
    help="A request (PEM) made where the key is to stay; no key is written.",
)  # fmt: skip


def with_days(most: int, words: str) -> Callable[[F], F]:
    """`--days`, with what it is without."""
    return click.option(
        "--days", type=click.IntRange(1, most), metavar="N", help=f"How long it is good. {words}"
    )


@click.group("ca")
def ca_command() -> None:
    """Say who may be a remote worker: a small certificate authority in a folder.

    `init` makes it, `issue` a certificate for each worker and one for the ingress, `revoke` takes
    one back. Who has an authority already needs none of this. DIR holds the key that everything
    rests on: keep it where only the operator is, with a backup. Install it with
    `pip install 'qinglong-sql[ingress]'`, or `[worker]`.
    """


@ca_command.command("init")
@folder
@with_days(MOST_DAYS_CA, "Default: 3650.")
@with_json
@reported
def ca_init(folder: Path, days: int | None, as_json: bool) -> None:
    """Make a new authority in DIR.

    DIR is not there yet, or empty. In it are ca.key (nobody else may read it), ca.crt for
    everybody who is to trust it, and revoked.pem, the list of what was revoked. What is there
    already is never written over.
    """
    with told():
        from qinglong_sql import ca

        until = ca.init(folder, validity_ms=(days or MOST_DAYS) * DAY_MS)
    if as_json:
        print_json({"folder": str(folder), "until_ms": until})
        return
    place = shlex.quote(str(folder))
    say(f"made an authority in {folder}, good until {day(until)}")
    say(f"next: qinglong-sql ca issue {place} ingress --server --host HOST")
    say(f"      qinglong-sql ca issue {place} WORKER, for each worker")


@ca_command.command("issue")
@folder
@click.argument("name", required=False)
@click.option("--server", is_flag=True, help="For an ingress, not for a worker.")
@click.option(
    "--host", "hosts", multiple=True, metavar="HOST",
    help="A name or address under which workers call this ingress; several times for several.",
)  # fmt: skip
@with_csr
@with_out
@with_days(MOST_DAYS, "Default: 90, and 365 with --server.")
@click.option("--again", is_flag=True, help="Also when NAME has a certificate that is good.")
@with_json
@reported
def ca_issue(
    folder: Path,
    name: str | None,
    server: bool,
    hosts: tuple[str, ...],
    csr: Path | None,
    out: Path | None,
    days: int | None,
    again: bool,
    as_json: bool,
) -> None:
    """Make a key and a certificate for NAME.

    NAME is the id of a worker, or with --server any name for an ingress. The files are for that
    machine alone; its key is nowhere else. With --csr the key stays where it was made, and NAME
    may be left out: it is the request's.
    """
    with told():
        from qinglong_sql import ca
        from qinglong_sql.ca_issue import name_requested, valid_name

        if server != bool(hosts):
            lacks = "--host HOST, as workers say it" if server else "--server: only it names hosts"
            raise click.UsageError(f"--server and --host go together: say {lacks}")
        if name is not None:
            try:
                valid_name(name)
            except ca.CaRefused as error:
                raise click.UsageError(str(error)) from None
        request = request_of(csr)
        name = name or (name_requested(request) if request else None)
        if name is None:
            raise click.UsageError("NAME is missing: the worker's id, or any name with --server")
        made = ca.issue(
            folder, name, out=out or Path(name), server=server, hosts=hosts, request=request,
            again=again, validity_ms=days * DAY_MS if days else None,
        )  # fmt: skip
    show_made(made, "issued", as_json=as_json)


@ca_command.command("renew")
@folder
@click.argument("name")
@with_csr
@with_out
@with_days(MOST_DAYS, "Default: 90, and 365 for an ingress.")
@with_json
@reported
def ca_renew(
    folder: Path, name: str, csr: Path | None, out: Path | None, days: int | None, as_json: bool
) -> None:
    """Make a new certificate for NAME.

    It is of the kind and hosts of its last one. A key that is in the folder of --out stays, so
    that a worker or an ingress may run meanwhile; without one a new key is made. The certificate
    before is good until its end. Workers renew by themselves when their ingress can sign.
    """
    with told():
        from qinglong_sql import ca

        made = ca.renew(
            folder, name, out=out or Path(name), request=request_of(csr),
            validity_ms=days * DAY_MS if days else None,
        )  # fmt: skip
    show_made(made, "renewed", as_json=as_json)


@ca_command.command("revoke")
@folder
@click.argument("what", metavar="NAME|SERIAL")
@with_json
@reported
def ca_revoke(folder: Path, what: str, as_json: bool) -> None:
    """Revoke the certificates of NAME, for ever.

    Or the one with a serial number, as `ca list` shows it. revoked.pem in DIR is written again. An
    ingress that reads it refuses them within seconds; one that reads a copy needs the new one.
    """
    with told():
        from qinglong_sql import ca

        found, changed = ca.revoke(folder, what)
    if as_json:
        print_json({
            "outcome": "applied" if changed else "existing",
            "certificates": [answer_of(one, now_ms()) for one in found],
            "list": str(folder / "revoked.pem"),
        })  # fmt: skip
        return
    for one in found:
        say(f"{one.name} ({one.kind}, {one.serial}): revoked {day(one.revoked_at_ms or 0)}")
    if not changed:
        say("nothing changed: they were revoked already")
    else:
        say(f"wrote {folder / 'revoked.pem'}: copy it to where an ingress reads a copy")
    if any(one.kind == "server" for one in found):
        complain("workers read no list: a door whose key is lost needs a new authority")


@ca_command.command("list")
@folder
@with_utc
@with_json
@reported
def ca_list(folder: Path, utc: bool, as_json: bool) -> None:
    """Show every certificate, and what ends soon.

    Name, kind, serial number, until when, and whether it was revoked. What ends within 14 days is
    told below, when its name has none that is good for longer.
    """
    with told():
        from qinglong_sql import ca

        until, found = ca.listed(folder)
    now = now_ms()
    soon = ending(found, now)
    if as_json:
        rows = [answer_of(one, now) | {"ends_soon": one in soon} for one in found]
        itself = {"folder": str(folder), "until_ms": until, "ends_soon": until < now + SOON_MS}
        print_json({"authority": itself, "certificates": rows})
        return
    if not found:
        say(f"no certificate yet: qinglong-sql ca issue {shlex.quote(str(folder))} NAME")
    else:
        lines = [
            [one.name, one.kind, one.serial, moment(one.not_after_ms, now, utc=utc),
             standing(one, now), " ".join(one.hosts)]
            for one in sorted(found, key=lambda one: (one.name, one.issued_at_ms))
        ]  # fmt: skip
        drop = ["HOSTS", "KIND", *(["SERIAL"] if room() < SERIAL_COLUMNS else [])]
        head = ["NAME", "KIND", "SERIAL", "UNTIL", "STANDING", "HOSTS"]
        say(table(head, lines, wide=room(), drop=drop))
    for one in soon:
        when = "ended" if one.not_after_ms <= now else "ends"
        way = f"qinglong-sql ca renew {shlex.quote(str(folder))} {one.name}"
        say(f"{one.name} {when} {day(one.not_after_ms)}: {way}")
    if until < now + SOON_MS:
        say(f"the authority itself ends {day(until)}: everything it signed ends with it")


@contextmanager
def told() -> Iterator[None]:
    """What the authority says, as the command line's errors. Raises NotReady without its library.

    Raises Refused and BadFile.
    """
    if importlib.util.find_spec("cryptography") is None:
        raise NotReady("cryptography is not installed: pip install 'qinglong-sql[ingress]'")
    from qinglong_sql.ca import CaFault, CaRefused

    try:
        yield
    except CaRefused as error:
        raise Refused(str(error)) from None
    except CaFault as error:
        raise BadFile(str(error)) from None
    except FileExistsError as error:
        raise Refused(f"{error.filename} is there already, and is not written over") from None


def request_of(path: Path | None) -> bytes | None:
    """The request in a file; None without one. Raises BadFile."""
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            return file.read(REQUEST_BYTES + 1)
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror}") from None


def show_made(made: "Made", verb: str, *, as_json: bool) -> None:
    one = made.issued
    if as_json:
        key_place = None if made.key is None else str(made.key)
        places = {"certificate": str(made.certificate), "key": key_place, "ca": str(made.ca)}
        print_json(answer_of(one, now_ms()) | places)
        return
    say(f"{verb} {one.name} ({one.kind}, {one.serial}), good until {day(one.not_after_ms)}")
    key = f"{made.key} (nobody else may read it), " if made.key else ""
    say(f"wrote {made.certificate}, {key}{made.ca}")
