"""The list of runs."""

import click

from qinglong_sql.cli.exits import OF_STATUS, reported
from qinglong_sql.cli.options import opened, with_dsn, with_json
from qinglong_sql.cli.words import clock, print_json, say, span, table


@click.command()
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=20,
    show_default=True,
    help="How many, newest first.",
)
@click.option(
    "--status", type=click.Choice(["running", *OF_STATUS]), help="Only runs with this status."
)
@click.option("--package", help="Only runs of this package.")
@click.option("--utc", is_flag=True, help="Times in UTC.")
@with_dsn
@with_json
@reported
def runs(
    limit: int, status: str | None, package: str | None, utc: bool, dsn: str, as_json: bool
) -> None:
    """List runs, newest first."""
    chosen = {"status": status, "package_key": package}
    with opened(dsn) as store:
        rows = store.read(
            "run_state",
            order="admitted_at_ms desc, run_id desc",
            limit=limit,
            **{name: value for name, value in chosen.items() if value is not None},
        )
    if as_json:
        print_json(rows)
        return
    if not rows:
        say("no runs")
        return
    say(
        table(
            ["RUN", "PACKAGE", "TARGET", "STATUS", "STARTED", "TOOK"],
            [
                [
                    row["run_id"],
                    row["package_key"],
                    row["target_key"],
                    row["status"],
                    clock(row["admitted_at_ms"], utc=utc),
                    span(row["admitted_at_ms"], row["finished_at_ms"]),
                ]
                for row in rows
            ],
        )
    )
