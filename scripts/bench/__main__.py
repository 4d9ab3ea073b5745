"""The command line of the measurement; see the package."""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts import bench
from scripts.bench import bound, load, postgres, profile, sqlite, table
from tests.server import dsn

SYNC = ("pragma page_size = 1024", "pragma synchronous = full", "pragma cache_size = -16384")
PRAGMAS = {
    "standalone": ("pragma journal_mode = wal", *SYNC),
    "edge": ("pragma journal_mode = truncate", *SYNC),
}


def main(words: Sequence[str] | None = None) -> int:
    wish = _parser().parse_args(words)
    if wish.quick:
        wish.graphs, wish.seconds, wish.batches, wish.slots = 6, 0.2, [32], [4]
    with tempfile.TemporaryDirectory(prefix="ql-bench-", dir=wish.folder) as folder:
        if wish.profile:
            _profiles(wish, Path(folder))
            return 0
        results = []
        for one in _results(wish, Path(folder)):
            results.append(one)
            print(f"# {one['engine']}, {one['variant']}, {one['batch']}:"
                  f" {one['steps_per_s']:,.0f} steps/s", file=sys.stderr, flush=True)  # fmt: skip
    print(table.rendered(results))
    print("\nRow writes a step\n" + table.rows(results))
    if wish.json:
        told = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "cpus": os.cpu_count(),
            "load": os.getloadavg(),
            "graphs": wish.graphs,
            "steps_per_graph": load.STEPS,
            "settings": postgres.SETTINGS | {"fsync": "on", "synchronous_commit": "on"},
            "results": results,
        }
        wish.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench",
        description=bench.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--engine", choices=("postgres", "sqlite", "both"), default="both")
    add("--postgres", type=int, metavar="MAJOR", help="which server (default: the first found)")
    add("--graphs", type=int, default=300, help="how many graphs of ten steps")
    add("--batches", type=_numbers, default=[32, 64, 128], help="of a PostgreSQL worker: 32,64,128")
    add("--slots", type=_numbers, default=[1, 4, 16], help="executions a SQLite transaction")
    add("--connections", type=_numbers, default=[1, 2], help="to PostgreSQL: 1,2")
    add("--seconds", type=float, default=2.0, help="how long each bound is measured")
    add("--limit", type=Path, metavar="PATH", help="a script whose staged bound is taken instead")
    add("--folder", type=Path, help="where SQLite's files are made (default: the temporary folder)")
    add("--profile", action="store_true", help="tell where the time goes instead")
    add("--json", type=Path, metavar="FILE", help="write all that was measured there")
    add("--quick", action="store_true", help="a smoke test: few graphs, one batch each")
    return parser


def _numbers(text: str) -> list[int]:
    found = [int(one) for one in text.split(",")]
    if min(found) < 1 or max(found) > 128:
        raise argparse.ArgumentTypeError("numbers from 1 to 128, with commas between")
    return found


def _results(wish: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    if wish.engine != "sqlite":
        yield from _of_postgres(wish)
    if wish.engine != "postgres":
        for kind, pragmas in PRAGMAS.items():
            bounds = bound.sqlite(pragmas, wish.slots, wish.seconds, folder)
            for slots in wish.slots:
                one = sqlite.measure(folder, graphs=wish.graphs, profile=kind, slots=slots)
                yield one | {"bound": bounds[slots]}


def _of_postgres(wish: argparse.Namespace) -> Iterator[dict[str, Any]]:
    with postgres.server(wish.postgres) as running:
        if not wish.quick:
            postgres.warm(running, 64)
        if wish.limit:
            bounds = bound.outside(wish.limit, dsn(running), wish.seconds)
        else:
            bounds = bound.postgres(dsn(running), wish.batches, wish.seconds)
        for connections in wish.connections:
            for batch in wish.batches:
                one = postgres.measure(
                    running, graphs=wish.graphs, batch=batch, connections=connections
                )
                yield one | {"bound": bound.nearest(bounds, batch)}


def _profiles(wish: argparse.Namespace, folder: Path) -> None:
    if wish.engine != "sqlite":
        with postgres.server(wish.postgres, track_functions="all") as running:
            postgres.warm(running, 64)
            lines = profile.postgres(running, graphs=wish.graphs, batch=wish.batches[0])
            print("\n".join([*lines, ""]))
    if wish.engine != "postgres":
        for kind in PRAGMAS:
            lines = profile.sqlite(folder, graphs=wish.graphs, profile=kind, slots=wish.slots[0])
            print("\n".join([*lines, ""]))


if __name__ == "__main__":
    sys.exit(main())
