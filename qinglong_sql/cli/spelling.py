"""`did you mean …?` for a word that was mistyped."""

from collections.abc import Iterable

LONGEST = 64
MOST = 1000


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`; did you mean X?` when one of the choices is close to the word, else nothing.

    Upper and lower case are the same here. Slow for many long words, so both are bounded.
    """
    import difflib
    import itertools

    by_lower = {one.lower()[:LONGEST]: one for one in itertools.islice(choices, MOST)}
    close = difflib.get_close_matches(word.lower()[:LONGEST], by_lower, n=1)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""


def no_worker(name: str, names: Iterable[str], more: str) -> str:
    """Words for a worker that never was; `more` is what a command for this database needs."""
    near = did_you_mean(name, names)
    return f"no worker {name!r}{near} (`qinglong-sql workers{more}` lists them)"
