"""File systems of our own in a file, whose power can fail. Root only; always unmounted again."""

import contextlib
import ctypes
import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.prove import CannotRun

Kind = Literal["ext4", "xfs"]
MIB = 1 << 20
SIZES: dict[str, int] = {"ext4": 256 * MIB, "xfs": 320 * MIB}  # xfs is never smaller than 300
PACKAGES = {"ext4": "e2fsprogs", "xfs": "xfsprogs"}
SHUTDOWN = 0x8004587D  # of XFS, which ext4 has taken over
NO_LOG_FLUSH = 2
PATIENCE_S = 30


@dataclass(frozen=True, slots=True)
class Mount:
    """A file system in `image`, seen at `folder`."""

    kind: str
    image: Path
    folder: Path

    def attach(self) -> None:
        """Mount. Raises CannotRun.

        The loop device of a time before may take a moment to go, and a mount namespace that another
        process made meanwhile keeps the file system whose power was lost for as long as it lives.
        """
        words = ("mount", "-o", "loop", "-t", self.kind, self.image, self.folder)
        end = time.monotonic() + PATIENCE_S
        while (done := _asked(*words)).returncode or not self.answers():
            if not done.returncode:
                self.detach()
            elif "already mounted" not in done.stderr:
                end = 0.0
            if time.monotonic() > end:
                words_of_mount = done.stderr.strip() or "what was lost is still held"
                raise CannotRun(f"no loop device can be mounted here: {words_of_mount}")
            time.sleep(0.05)

    def answers(self) -> bool:
        """Whether it is not one whose power was lost."""
        try:
            next(self.folder.iterdir(), None)
            return True
        except OSError:
            return False

    def detach(self) -> None:
        """Unmount; what still holds a file there may take a moment to go. Raises OSError.

        umount itself says when there is nothing to do, since a look at the folder fails when its
        power is lost.
        """
        end = time.monotonic() + PATIENCE_S
        while (done := _asked("umount", self.folder)).returncode:
            if "not mounted" in done.stderr:
                return
            if time.monotonic() > end:
                raise OSError(done.stderr.strip())
            time.sleep(0.05)

    def lose_power(self) -> None:
        """From now on nothing reaches the disk, the file system's own journal neither."""
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, bytes(ctypes.c_uint32(NO_LOG_FLUSH)))
        finally:
            os.close(fd)


@contextlib.contextmanager
def mounted(folder: Path, kind: str, size: int | None = None) -> Iterator[Mount]:
    """A fresh file system below `folder`, which any user may traverse. Raises CannotRun."""
    if os.geteuid() != 0:
        raise CannotRun("only root may mount: run it as root")
    if shutil.which(f"mkfs.{kind}") is None:
        raise CannotRun(f"no mkfs.{kind}: apt-get install {PACKAGES[kind]}")
    made = Mount(kind, folder / f"{kind}.image", folder / kind)
    with made.image.open("wb") as image:
        image.truncate(size or SIZES[kind])
    subprocess.run([f"mkfs.{kind}", "-q", made.image], check=True, capture_output=True)
    made.folder.mkdir()
    made.attach()
    try:
        made.folder.chmod(0o755)
        yield made
    finally:
        try:
            made.detach()
        except OSError:
            _asked("umount", "-l", made.folder)
        made.image.unlink()


def _asked(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, words)),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"LC_ALL": "C"},
    )
