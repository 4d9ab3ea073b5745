"""pgspot over what 0001 installs: unsafe search paths, unsafe creations. Nothing is allowed.

The decision views are looked at apart, because their names are unqualified on purpose: SQLite loads
the same bytes. They are resolved once, when ql_migrator makes them with `ql` in front; nobody else
may create anything in `ql`, so nothing of a stranger can stand before pg_catalog.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.freeze import frozen_text

UNQUALIFIED = ("PS001", "PS009", "PS016", "PS017")  # operator, case, function, object: see above


def main() -> int:
    head, *copies = frozen_text("postgres").split("-- from sql/")
    decision = [copy for copy in copies if copy.startswith("decision/")]
    mechanics = [copy for copy in copies if not copy.startswith("decision/")]
    if not decision or not mechanics:
        print("the manifest has no decision views or no mechanics")
        return 1
    ignored = [word for code in UNQUALIFIED for word in ("--ignore", code)]
    # the path that the manifest sets for the views stands behind the copy before them
    kept = re.sub(r"^set local search_path = ql,.*$", "", "-- ".join(mechanics), flags=re.MULTILINE)
    return max(
        _pgspot(f"{head}-- {kept}"),
        _pgspot("create schema ql;\n-- " + "-- ".join(decision), *ignored),
    )


def _pgspot(text: str, *words: str) -> int:
    program = Path(sys.executable).with_name("pgspot")
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".sql") as file:
        file.write(text)
        file.flush()
        done = subprocess.run(
            [program, *words, file.name], capture_output=True, encoding="utf-8", check=False
        )
    print(done.stdout + done.stderr, end="")
    clean = "Errors: 0 Warnings: 0 Unknown: 0" in done.stdout
    return 0 if clean and done.returncode == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
