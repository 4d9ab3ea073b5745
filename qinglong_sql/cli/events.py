"""`events`: the history of a run."""

import click

from qinglong_sql.cli.exits import reported
from qinglong_sql.cli.options import opened, resolve_run, with_dsn, with_json
from qinglong_sql.cli.words import clock, print_json, print_rows

with_utc = click.option("--utc", is_flag=True, help="Times in UTC.")


@click.command()
@click.argument("run")
@with_utc
@with_dsn
@with_json
@reported
def events(run: str, utc: bool, dsn: str, as_json: bool) -> None:
    """Print the history of a RUN, one line an event."""
    with opened(dsn) as store:
        row = resolve_run(store, run)
        rows = store.read("event_log", order="sequence", run_id=row["run_id"])
        attempts = store.read("attempt_state", run_id=row["run_id"])
    if as_json:
        print_json(rows)
        return
    names = {one["attempt_id"]: f"{one['step_key']} #{one['number']}" for one in attempts}
    for event in rows:
        event["at"] = clock(event["created_at_ms"], utc=utc)
        what = "" if event["entity"] == "run" else event["entity_id"]
        event["what"] = names.get(what, what)
    print_rows(
        rows,
        [
            ("#", "sequence"),
            ("AT", "at"),
            ("EVENT", "type"),
            ("OF", "what"),
            ("WHY", "result_code"),
        ],
        "no events",
    )
