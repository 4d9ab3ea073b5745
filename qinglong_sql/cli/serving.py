"""A process that serves, from its first line to its exit code: control and ingress alike."""

import os
import sys
from collections.abc import Callable
from typing import Final, Protocol

import qinglong_sql
from qinglong_sql.cli.exits import Exit, told_as, without_secrets
from qinglong_sql.cli.interrupts import Interrupts
from qinglong_sql.control_log import Log
from qinglong_sql.control_stop import Ending

LEAVE_WITHIN_S: Final = 1.0  # after a second interrupt
Words = Callable[[BaseException], str]
PLACE: Final = ("host", "hostaddr", "port", "dbname", "user", "service")


class Served(Protocol):
    """What runs: qinglong_sql.control.Control, qinglong_sql.ingress_process.Alone."""

    def run(self) -> Ending:
        """Boot, serve until asked to stop, stop. Raises BootFailed."""

    def ask(self, reason: str) -> None:
        """Stop soon; never waits."""


def serve(
    name: str, served: Served, dsn: str, log: Log, words: Callable[[BaseException], str]
) -> Exit:
    """Be that process until it is over; how it ended."""
    from qinglong_sql.control_boot import BootFailed

    with Interrupts(lambda: served.ask("asked to stop"), leave_at_once, LEAVE_WITHIN_S) as signals:
        log.say(
            "info",
            "begin",
            f"{name} {qinglong_sql.__version__} as pid {os.getpid()}: {place_of(dsn)}",
            pid=os.getpid(),
            version=qinglong_sql.__version__,
        )
        try:
            ending = served.run()
        except BootFailed as error:
            cause = error.__cause__ or error
            log.say("error", "boot", f"not ready: {error.step}: {words(cause)}", part=error.step)
            if told_as(cause) is None:  # a bug of ours: all of it
                raise cause from None
            return Exit.NOT_READY
        signals.over()
        return told(ending, log)


def place_of(dsn: str) -> str:
    """Which database a DSN means, without what is secret."""
    from psycopg.conninfo import conninfo_to_dict

    said = conninfo_to_dict(dsn)
    return " ".join(f"{name}={said[name]}" for name in PLACE if said.get(name))


def words_without(*secrets: str) -> Words:
    """An error in words for a line of the log, without what is secret in these DSNs."""

    def words(error: BaseException) -> str:
        found = words_of(error)
        for secret in secrets:
            found = without_secrets(found, secret)
        return found

    return words


def secret_of(password: str | None) -> str:
    """A password as `words_without` finds it."""
    return "" if password is None else f"password={password}"


def told(ending: Ending, log: Log) -> Exit:
    """The exit code of an ending, and the last line of its log."""
    if ending.late:
        late = ", ".join(ending.late)
        log.say("error", "end", f"stopped, although not in time: {late}", late=ending.late)
    else:
        log.say("info", "end", "stopped")
    code = Exit.NOT_READY if ending.tripped else Exit.FAILED if ending.late else Exit.OK
    if ending.late:  # what hangs must not keep the interpreter from its end
        sys.stderr.flush()
        os._exit(code)
    return code


def leave_at_once() -> None:
    """Nothing of this process is lost: what it began is committed, or is begun again."""
    os._exit(Exit.KILLED)


def words_of(error: BaseException) -> str:
    """An error in words for a line of the log."""
    if isinstance(error, OSError) and error.strerror is None and error.args:
        return str(error)  # one that was said in words already
    found = told_as(error)
    if found is None:
        return f"{type(error).__name__}: {error}"
    return found[1].removeprefix("not ready: ").removesuffix("; try again")
