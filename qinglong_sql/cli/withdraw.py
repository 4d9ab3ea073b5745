"""`withdraw`: the end of a package, for what is not started yet."""

import click

from qinglong_sql.cli.exits import reported
from qinglong_sql.cli.options import opened, same_dsn, with_dsn, with_json
from qinglong_sql.cli.words import complain, print_json, say


@click.command()
@click.argument("package")
@with_dsn
@with_json
@reported
def withdraw(package: str, dsn: str, as_json: bool) -> None:
    """Withdraw a PACKAGE: no new runs of it, and its triggers fire no more.

    Runs that are open go on to their end; `cancel --package` ends them. Publishing it again takes
    it back; an edge does so when the file changes, and when the edge starts with the file there.
    """
    with opened(dsn, writes=True) as store:
        row = store.call("withdraw_package", p_package_key=package)[0]
        going = store.read("open_run", limit=1, package_key=package, cancel_requested_at_ms=None)
    if going:
        way = f"qinglong-sql cancel --package {package}{same_dsn(dsn)}"
        complain(f"note: runs of it are still open and go on; to end them: {way}")
    if as_json:
        print_json(row)
        return
    was = "withdrawn" if row["outcome"] == "withdrawn" else "is already withdrawn"
    say(f"{row['package_key']} generation {row['generation']} {was}")
