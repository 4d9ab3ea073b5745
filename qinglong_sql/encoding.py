"""A PostgreSQL database is in UTF-8, so that every text fits into it and none is mistaken.

What goes over a connection is UTF-8 as well: see `Link.connect`.
"""

from typing import Final

from qinglong_sql.errors import NotReady
from qinglong_sql.store.link import connect

ENCODING: Final = "UTF8"
WAY_TO_UTF8: Final = "make one with `create database NAME encoding 'UTF8' template template0`"
_ASKED: Final = "select current_database()::text, current_setting('server_encoding')"


def wrong_encoding(database: str, encoding: str) -> str:
    """What is said of a database in another encoding."""
    return f"database {database} has the encoding {encoding}, into which not every text fits"


def assert_utf8(dsn: str) -> None:
    """Raises NotReady (QL503) for a database in another encoding, with the way out."""
    with connect(dsn, autocommit=True) as connection:
        database, encoding = connection.execute(_ASKED).fetchone() or ("", "")
    if encoding != ENCODING:
        raise NotReady(f"{wrong_encoding(database, encoding)}: {WAY_TO_UTF8}")
