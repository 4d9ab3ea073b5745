"""One execution's folder can be made anything by its command; the others must not feel it.

What is read, removed and put aside here is taken for what it is, never for what it should be: no
link is followed, no pipe is waited for, no descriptor stays. Nothing here speaks SQL (DESIGN §9).
"""

import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
Note = Callable[[str], object]


class NotPlain(OSError):
    """There is something, and it is not a regular file."""


class Apart:
    """Works on one execution at a time: what one raises is told once, and the others go on."""

    def __init__(self, note: Note | None = None) -> None:
        self._note: Note = note or logging.getLogger("qinglong_sql").warning
        self._told: set[tuple[Path, str]] = set()

    def each(self, ones: Iterable[T], folder: Callable[[T], Path], work: Callable[[T], object]
             ) -> None:  # fmt: skip
        """Do it for each; tried again by whoever calls again."""
        for one in ones:
            try:
                work(one)
            except Exception as error:
                self.tell(folder(one), f"{type(error).__name__}: {error}")

    def tell(self, folder: Path, words: str) -> None:
        """Say what is wrong with a folder, once, and the way out."""
        if (folder, words) not in self._told:
            self._told.add((folder, words))
            self._note(f"{folder}: {words}; the others go on (way out: rm -r '{folder}')")

    def put_aside(self, folder: Path, why: str) -> bool:
        """Move a folder of `exec` to `aside`, where nobody looks but people; False if it stays."""
        new = folder.parent.parent / "aside" / folder.name
        try:
            new.parent.mkdir(mode=0o700, exist_ok=True)
            folder.rename(new)
        except OSError as error:
            self.tell(folder, f"{why}, and cannot be put aside: {error.strerror}")
            return False
        self.tell(new, f"{why}, put aside")
        return True


def read_plain(path: Path, limit: int) -> bytes:
    """At most `limit` + 1 bytes of a regular file in the folder of an execution. Raises OSError.

    Rights that its owner took away are given back first.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags)
    except PermissionError:
        open_up(path.parent)
        _let_owner(path, 0)
        fd = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise NotPlain(0, "not a file", str(path))
        parts, left = [], limit + 1
        while left > 0 and (part := os.read(fd, left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def there(path: Path) -> bool:
    """Whether there is anything; True also when that cannot be seen."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        open_up(path.parent)
        return os.path.lexists(path) or not os.access(path.parent, os.X_OK)
    except OSError:
        return True
    return True


def open_up(folder: Path) -> None:
    """Give the owner of an execution's folder, and of the two around it, all rights again."""
    for path in (folder.parent.parent, folder.parent, folder):
        _let_owner(path, os.O_DIRECTORY)


def _let_owner(path: Path, kind: int) -> None:
    with suppress(OSError):
        at = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC | kind)
        try:
            mode = stat.S_IMODE(os.fstat(at).st_mode)
            if mode & 0o700 != 0o700 and not stat.S_ISLNK(os.fstat(at).st_mode):
                Path(f"/proc/self/fd/{at}").chmod(mode | 0o700)
        finally:
            os.close(at)


def remove(folder: Path) -> bool:
    """Remove what is there, a link as a link; whether nothing is there any more."""
    with suppress(OSError):
        if not stat.S_ISDIR(folder.lstat().st_mode):
            folder.unlink()
            return True
        for entry in folder.iterdir():
            entry.unlink()
        folder.rmdir()
    if there(folder):  # a command may have made folders here, or taken rights away
        with suppress(OSError, RecursionError):
            open_up(folder)
            for at, inner, _ in os.walk(folder):
                for name in inner:
                    _let_owner(Path(at, name), os.O_DIRECTORY)
            shutil.rmtree(folder, ignore_errors=True)
    return not there(folder)
