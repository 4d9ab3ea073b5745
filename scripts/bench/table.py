"""The measurements as text."""

from collections.abc import Iterable, Sequence
from typing import Any

Result = dict[str, Any]

HEADS = (
    "engine", "how", "batch", "steps/s", "bound", "ratio", "rows/step", "buffers/step", "KB/step",
    "commits/step", "server ms/step", "Python ms/step",
)  # fmt: skip


def rendered(results: Iterable[Result]) -> str:
    """One line a measurement; the bound is that of the same writes, in steps/s."""
    lines = [HEADS, *(_cells(one) for one in results)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(HEADS))]
    return "\n".join(_line(line, widths) for line in lines)


def rows(results: Sequence[Result]) -> str:
    """Row writes a step by table, of the first measurement of each engine."""
    seen: set[str] = set()
    lines = []
    for one in results:
        if one["engine"] not in seen:
            seen.add(one["engine"])
            counts = ", ".join(f"{name} {count:.2f}" for name, count in one["rows"].items())
            lines.append(f"{one['engine']}, batch {one['batch']}: {counts}")
    return "\n".join(lines)


def _cells(one: Result) -> tuple[str, ...]:
    bound, server = one.get("bound"), one["database_ms_per_step"]
    return (
        one["engine"],
        one["variant"],
        str(one["batch"]),
        f"{one['steps_per_s']:,.0f}",
        f"{bound:,.0f}" if bound else "-",
        f"{one['steps_per_s'] / bound:.2f}" if bound else "-",
        f"{one['rows_per_step']:.1f}",
        f"{one['reads']['buffers']:.0f}" if "reads" in one else "-",
        f"{one['bytes_per_step'] / 1000:.1f}",
        f"{one['commits_per_step']:.2f}",
        f"{server:.2f}" if server is not None else "in Python",
        f"{one['python_ms_per_step']:.2f}",
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    left = [cells[at].ljust(widths[at]) for at in (0, 1)]
    return "  ".join([*left, *(cells[at].rjust(widths[at]) for at in range(2, len(cells)))])
