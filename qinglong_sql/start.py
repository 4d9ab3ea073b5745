"""The first thing that the command line does: until a command begins, Ctrl-C is one word.

Nothing is imported before that is settled, hence the module that `signal` itself is made of.
"""

import _signal as signal  # type: ignore[import-not-found]
import os

KILLED = 130  # exits.Exit, which is not imported yet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType


def main() -> None:
    """Be the command line, for a script and for `python -m`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # nohup and `&` ignore it
        signal.signal(signal.SIGINT, leave)
    from qinglong_sql.cli import main as command_line

    command_line(prog_name="qinglong-sql")


def leave(number: int, frame: "FrameType | None") -> None:
    """Nothing has begun that had to be ended, and an import may swallow what is raised in it."""
    try:  # noqa: SIM105  contextlib is not there yet
        os.write(2, b"interrupted\n")
    except OSError:
        pass
    os._exit(KILLED)


def begun() -> None:
    """From here on an interrupt is a KeyboardInterrupt, which the command answers."""
    if signal.getsignal(signal.SIGINT) is leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
