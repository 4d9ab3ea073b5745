"""`resume`: an open run, whatever its generation, driven from here to its end."""

import click

from qinglong_sql.cli.exits import OF_STATUS, Exit, leave, reported
from qinglong_sql.cli.interrupts import Interrupts
from qinglong_sql.cli.joining import patiently
from qinglong_sql.cli.options import opened, resolve_run, same_dsn, with_dsn, with_json
from qinglong_sql.cli.progress import view_for
from qinglong_sql.cli.reread import steps_of
from qinglong_sql.cli.run import refuse_without_rights, show_end, to_the_end, with_driving
from qinglong_sql.cli.session import LEAVE_WITHIN_S


@click.command()
@click.argument("run")
@with_driving
@with_dsn
@with_json
@reported
def resume(
    run: str,
    slots: int | None,
    lease_ms: int,
    grace_ms: int,
    quiet: bool,
    dsn: str,
    as_json: bool,
) -> None:
    """Drive an open RUN to its end from here, as `run` does.

    It needs no package file: a run keeps the generation that it started with. Interrupts and exit
    codes are those of `run`; of a run that has ended its end is shown, with the exit code of it.
    """
    with opened(dsn) as store:
        view = view_for(as_json, quiet)
        killed = False
        try:
            row = patiently(lambda: resolve_run(store, run), view)
            run_id = row["run_id"]
            if row["status"] == "running":
                patiently(lambda: refuse_without_rights(store, "resume"), view)
                view.note(f"going on with run {run_id} of generation {row['generation']}")
                steps = patiently(lambda: steps_of(store, run_id), view)
                queues = {one["queue"] for one in steps}
                options = {"slots": slots, "lease_ms": lease_ms, "stop_grace_ms": grace_ms}
                with Interrupts(None, None, LEAVE_WITHIN_S) as signals:
                    row, killed = to_the_end(store, dsn, run_id, queues, view, signals, **options)
            else:
                view.note(f"run {run_id} has ended before")
        finally:
            view.close()
        show_end(store, row, as_json, same_dsn(dsn), quiet)
    leave(Exit.KILLED if killed else OF_STATUS[row["status"]])
