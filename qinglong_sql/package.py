"""A package file becomes a checked, digested model (DESIGN §2, §12).

The manifest is the model as canonical JSON with all defaults written out, so its digest depends on
neither the order of the file, its comments, nor the folder it lies in.
"""

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qinglong_sql.canonical import canonical, digest, refuse_text, utf8_text
from qinglong_sql.limits import PACKAGE_BYTES
from qinglong_sql.package_check import package_model
from qinglong_sql.package_fault import Fault, Faults, PackageFaults, in_order
from qinglong_sql.package_node import START
from qinglong_sql.package_source import Source
from qinglong_sql.package_yaml import Unreadable, compose, decode

__all__ = ["Fault", "Package", "PackageFaults", "load_package", "parse_package"]


@dataclass(frozen=True, slots=True)
class Package:
    """A checked package.

    `manifest` is canonical JSON of `model`, `digest` its SHA-256 in hex; `base_dir` is the absolute
    folder of the file, from which relative `cwd` and file paths start, and no part of the digest.
    """

    key: str
    model: dict[str, Any]
    manifest: str
    digest: str
    base_dir: Path
    warnings: tuple[Fault, ...] = ()
    source: Source = field(default_factory=Source, repr=False, compare=False)


def load_package(path: Path) -> Package:
    """Read and check a package file. Raises PackageFaults, for a file that cannot be read too."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(PACKAGE_BYTES + 1)
    except OSError as error:
        faults = Faults()
        faults.add("unreadable", "", START, error.strerror or str(error))
        raise PackageFaults(faults.found, str(path)) from error
    return parse_package(raw, str(path))


def parse_package(text_bytes: bytes, filename: str) -> Package:
    """Check a package file's bytes. Raises PackageFaults with all faults in the file's order."""
    faults = Faults()
    text = manifest = ""
    model: dict[str, Any] = {}
    with contextlib.suppress(Unreadable):
        text = decode(text_bytes, faults)
        model = package_model(compose(text, faults), faults)
    folder = Path(utf8_text(os.path.abspath(filename))).parent  # noqa: PTH100 - a link's own folder
    if refuse_text(str(folder)):
        message = "the name of its folder is not UTF-8, and steps have to find it in every locale"
        faults.add("unreadable", "", START, message, hint="rename the folder")
    if not faults.found:
        manifest = canonical(model)
        if len(manifest.encode("utf-8")) > PACKAGE_BYTES:
            message = f"with all defaults it is larger than {PACKAGE_BYTES // 1024} KiB"
            faults.add("too_large", "", START, message)
    if faults.found:
        raise PackageFaults(faults.in_order(), filename, faults.source(text))
    return Package(
        key=model["package"],
        model=model,
        manifest=manifest,
        digest=digest(manifest),
        base_dir=folder,
        warnings=in_order(faults.warnings),
        source=faults.source(text),
    )
