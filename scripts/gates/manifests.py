"""Install both manifests as their readers would: psql on every PostgreSQL here, sqlite3's shell."""

import shutil
import subprocess
import sys
import tempfile

from scripts.frozen import MANIFEST
from tests import engines
from tests.binaries import find
from tests.server import SQL_ROOT, running


def main() -> int:
    found, refused = find()
    for line in refused:
        print(f"not used: {line}")
    for binaries in found:
        with running(binaries) as server:
            engines.postgres_template(server)
        print(f"PostgreSQL {binaries.version}: installed")
    shell = shutil.which("sqlite3")
    if not found or shell is None:
        print("no PostgreSQL found" if not found else "no sqlite3 shell: apt-get install sqlite3")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        script = f".read {MANIFEST['sqlite']}\n"
        words = [shell, "-bail", f"{folder}/manifest.db"]
        done = subprocess.run(words, cwd=SQL_ROOT, input=script, encoding="utf-8", check=False)
    print(f"SQLite: {'installed' if done.returncode == 0 else 'failed'}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
