"""Time zones from one pinned database: the tzdata package of the version named here.

The host's /usr/share/zoneinfo and PYTHONTZPATH are never read, and a tzdata package of any other
version is refused, so a trigger fires at the same times in every process (DESIGN §11). pyproject
pins the same version; a newer one is a change of this file, of pyproject and of nothing else.
"""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qinglong_sql.errors import NotReady

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

TZDATA: Final = "2026.6"  # the version on PyPI, which holds IANA's release 2026f
TZ_RELEASE: Final = "2026f"


@functools.cache
def zone_names() -> frozenset[str]:
    """All zone names of the installed tzdata package, placeholders left out."""
    names = (_folder() / "zones").read_text(encoding="ascii").split()
    return frozenset(names) - {"Factory", "localtime", "posixrules"}


@functools.cache
def zone_of(name: str) -> "ZoneInfo":
    """The rules of a zone of `zone_names`.

    Raises KeyError for any other name, NotReady when tzdata is not the pinned version.
    """
    from zoneinfo import ZoneInfo

    assert_pinned()
    if name not in zone_names():
        raise KeyError(name)
    with (_folder() / "zoneinfo" / name).open("rb") as rules:
        return ZoneInfo.from_file(rules, key=name)


def assert_pinned() -> None:
    """Raise NotReady unless the installed tzdata package is the version that this release names."""
    import tzdata

    if (tzdata.__version__, tzdata.IANA_VERSION) != (TZDATA, TZ_RELEASE):
        raise NotReady(
            f"time zones are tzdata {tzdata.__version__}, and must be the same in every process:"
            f" pip install 'tzdata=={TZDATA}'"
        )


def _folder() -> Path:
    import tzdata

    return Path(tzdata.__file__).parent
