"""Of several hosts a process asks the one first that answered it last, and the one it refused last.

A host that is gone without a word costs seconds each time it is asked, and an old primary that
nobody has fenced yet would be met again by each new connection.
"""

import os
from dataclasses import dataclass
from typing import Any, Final

from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict

VARIABLES: Final = {"host": "PGHOST", "hostaddr": "PGHOSTADDR", "port": "PGPORT"}
PORT: Final = "5432"
Place = tuple[str, ...]  # host, address and port, as they were written
_answered: dict[tuple[Place | str, ...], Place] = {}
_refused: dict[tuple[Place | str, ...], Place] = {}


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts that parameters name, in their order, and which kind of server is wanted."""

    places: tuple[Place, ...]
    wanted: str

    def in_order(self) -> dict[str, str]:
        """The parameters that name them in the order of asking; nothing when that is theirs."""
        good, bad = _answered.get(self._key), _refused.get(self._key)
        order = sorted(self.places, key=lambda place: (place == bad, place != good))
        if order == [*self.places]:
            return {}
        columns = zip(VARIABLES, zip(*order, strict=True), strict=True)
        return {name: ",".join(column) for name, column in columns if any(column)}

    def answered(self, connection: Connection[Any]) -> None:
        """The server at the other end takes connections of the kind that is wanted."""
        if found := self._place_of(connection):
            _answered[self._key] = found

    def refused(self, connection: Connection[Any]) -> None:
        """The server at the other end is not the one that decides, whatever it says of itself."""
        if found := self._place_of(connection):
            _refused[self._key] = found

    def _place_of(self, connection: Connection[Any]) -> Place | None:
        at = connection.info.host, str(connection.info.port)
        for place in self.places:
            host, address, port = place
            if (host or address, port or PORT) == at:
                return place
        return None

    @property
    def _key(self) -> tuple[Place | str, ...]:
        return (*self.places, self.wanted)


def several(conninfo: str, options: dict[str, Any]) -> Hosts | None:
    """What a connection's parameters name, when it is more than one host.

    Raises psycopg.ProgrammingError for a conninfo that is none.
    """
    asked = conninfo_to_dict(conninfo, **options)
    lists = [
        str(asked.get(name) or os.environ.get(variable, "")).split(",")
        for name, variable in VARIABLES.items()
    ]
    many = max(map(len, lists[:2]))
    lists = [words * many if len(words) == 1 else words for words in lists]
    if many == 1 or any(len(words) != many for words in lists):  # libpq says what is wrong
        return None
    return Hosts(tuple(zip(*lists, strict=True)), str(asked.get("target_session_attrs", "")))
