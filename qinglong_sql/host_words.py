"""What the hosts of a DSN answered, in one line for people; nothing of it is secret."""

import re

from qinglong_sql.errors import WAY_TO_PRIMARY

# psycopg's, of each host that it tried
OF_HOST = re.compile(r"- host: '?([^',]*)'?, port: '?([^',]*)'?, hostaddr: [^:]*: (.*)")
FAILED = re.compile(r"^connection failed: (connection to server .* failed: )?")
REFUSES_WRITES = ("session is read-only", "server is in hot standby mode")
NO_WRITES = f"a standby, or a server that was made read-only, takes no writes; {WAY_TO_PRIMARY}"
NOBODY_WRITES = "none of these nodes takes writes now: one has to be promoted, or to be named"


def words_of_hosts(text: str) -> str:
    """What each host answered, when there were several; else the first line; then the way out.

    text: of a psycopg.Error.
    """
    lines = text.strip().splitlines()
    answers = [
        f"{one[1]}:{one[2] or 5432}: {FAILED.sub('', one[3])}"
        for one in map(OF_HOST.match, lines)
        if one
    ]
    # where a name has several addresses, each of them was asked
    several = len(answers) > 1
    said = "; ".join(dict.fromkeys(answers)) if several else next(iter(lines), "")
    if not any(one in text for one in REFUSES_WRITES):
        return said
    return f"{said}; {NOBODY_WRITES if several else NO_WRITES}"
