"""What is in a folder that others empty meanwhile: what has gone is not there.

`Path.glob` raises for a folder that goes while it looks (Python 3.11: all but PermissionError).
"""

from pathlib import Path


def listed(folder: Path) -> list[Path]:
    """The entries of a folder; none when it is gone, is none, or may not be read."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []
