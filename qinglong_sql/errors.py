"""What SQL refuses, as Python errors: one class a code, the same from both engines (DESIGN §6)."""

from typing import ClassVar, Final

MESSAGE_CHARS: Final = 1_000
WAY_TO_PRIMARY: Final = (
    "let the DSN name every node, postgresql://db1,db2/database: the one that takes writes is used"
)


class QinglongError(Exception):
    """A promise was broken or a command refused; `code` is QL and three digits."""

    code: ClassVar[str] = "QL500"

    def __init__(self, message: str) -> None:
        if len(message) > MESSAGE_CHARS:  # it quotes an argument, however long that was
            message = f"{message[: MESSAGE_CHARS - 2]} …"
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"{self.code} {self.message}"


class Malformed(QinglongError):
    """QL400: a definition or an argument that no state could make right."""

    code = "QL400"


class Unknown(QinglongError):
    """QL404: no such package, run, attempt or worker."""

    code = "QL404"


class Conflict(QinglongError):
    """QL409: compare-and-swap lost under our own lock: a bug or a foreign writer."""

    code = "QL409"


class Fenced(QinglongError):
    """QL410: fence, session or epoch no longer current; whoever asked has lost its authority."""

    code = "QL410"


class Violated(QinglongError):
    """QL500: an invariant would be violated."""

    code = "QL500"


class NotReady(QinglongError):
    """QL503: not the shipped schema, not migrated, or the wrong isolation."""

    code = "QL503"


class Displaced(NotReady):
    """QL503: the file that is open is no longer the one at its path, and waiting cannot help."""


BY_CODE: dict[str, type[QinglongError]] = {
    kind.code: kind for kind in (Malformed, Unknown, Conflict, Fenced, Violated, NotReady)
}


def error_of(code: str, message: str) -> QinglongError:
    """The error of a code; an unknown code is a Violated that names it."""
    kind = BY_CODE.get(code)
    return kind(message) if kind else Violated(f"{code} {message}")
