"""Files that are written whole or not at all, and what may be replaced by one: files alone.

A device, a pipe or a socket that had a file put in its place would be gone for everybody. A
symbolic link is followed: what it leads to is replaced, and the link stays.
"""

import errno
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

MAX_LINKS = 40
SHOWN_BYTES = 100  # of a name, in the name of a part of it
KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISCHR, "a device"),
)


class NoFile(OSError):
    """What is at a path is no file, so no file is put there; `strerror` says what it is."""


def target_of(path: Path) -> Path:
    """Where a file of this path really is, whether it is there already or not.

    Raises NoFile when something else is there, OSError for links in a circle.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return Path(os.path.realpath(path))
    if _descriptor(path) is not None:
        raise _no_file(path, "what this command was started with")
    if not stat.S_ISREG(mode):
        said = next((words for is_one, words in KINDS if is_one(mode)), "something else")
        raise _no_file(path, said)
    return Path(os.path.realpath(path))


def write_whole(
    path: Path,
    raw: bytes,
    *,
    replace: bool,
    mode: int | None = None,
    streams: bool = False,
    durable: bool = True,
) -> None:
    """Write a file that is there, whole, when this returns; else what was there before is.

    `mode` is that of the file; without it, as the one that is replaced, or as any new file. With
    `streams`, a pipe or a terminal is written to as by the shell's `>`. Not `durable`: it may be
    lost with the power. Raises FileExistsError unless it may replace, NoFile, and OSError.
    """
    if streams and (sink := _stream(path)):
        with sink:
            sink.write(raw)
        return
    target = target_of(path)
    part = part_of(target)
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                     0o666 if mode is None else mode)  # fmt: skip
        with os.fdopen(fd, "wb") as file:
            file.write(raw)
            file.flush()
            if durable:
                os.fsync(fd)
        if mode is None and target.exists():
            like(part, target)
        put(part, target, replace=replace, durable=durable)
    finally:
        part.unlink(missing_ok=True)


def part_of(target: Path) -> Path:
    """A name beside a file for the unfinished one of this process, under which nothing is.

    Other names of that kind are free as well: what processes left that are gone is removed.
    """
    name = os.fsdecode(os.fsencode(target.name)[:SHOWN_BYTES])
    ours = re.compile(rf"\.{re.escape(name)}\.([0-9]+)\.part(?:-wal|-shm|-journal)?")
    with suppress(PermissionError):  # a folder that may be written and not be listed
        for path in target.parent.iterdir():
            found = ours.fullmatch(path.name)
            if found and (int(found[1]) == os.getpid() or not Path("/proc", found[1]).exists()):
                path.unlink(missing_ok=True)
    return target.with_name(f".{name}.{os.getpid()}.part")


def put(new: Path, path: Path, *, replace: bool, durable: bool = True) -> None:
    """Give a finished file its name. Raises FileExistsError unless it may replace a file."""
    if replace:
        new.replace(path)
    else:
        try:
            os.link(new, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without links, such as a memory stick's
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, "it is there already", str(path)) from None
            new.rename(path)
        new.unlink(missing_ok=True)
    if durable:
        synced(path.parent)


def like(new: Path, model: Path, most: int = 0o777) -> None:
    """Give a new file the mode and, where that is allowed, the owner of another."""
    seen = model.stat()
    new.chmod(seen.st_mode & most)
    if (seen.st_uid, seen.st_gid) != (new.stat().st_uid, new.stat().st_gid):
        with suppress(PermissionError):
            os.chown(new, seen.st_uid, seen.st_gid)


def owners_alone(new: Path) -> None:
    """Make a file of mode 0600; what hinders that is told by whoever opens it then."""
    with suppress(OSError):
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def synced(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _no_file(path: Path, said: str) -> NoFile:
    return NoFile(errno.EINVAL, f"it is {said}, not a file", str(path))


def _stream(path: Path) -> BinaryIO | None:
    """Open what is written through: a descriptor of this process, a pipe, a terminal."""
    fd = _descriptor(path)
    if fd is not None:
        return os.fdopen(os.dup(fd), "wb")
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return path.open("wb")
    return None


def _descriptor(path: Path) -> int | None:
    """The descriptor of this process that a path such as /dev/stdout names."""
    for _ in range(MAX_LINKS):
        folder = os.path.realpath(path.parent)
        if re.fullmatch(rf"/proc/{os.getpid()}(/task/[0-9]+)?/fd", folder):
            return int(path.name) if path.name.isdecimal() else None
        if not path.is_symlink():
            return None
        path = Path(folder) / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
