"""The steps of a run as a table, and what went wrong in words."""

import re
import signal
import sys
from collections.abc import Mapping, Sequence

from qinglong_sql.cli import cells, declared
from qinglong_sql.cli.timebar import LEAST, MOST, Axis
from qinglong_sql.cli.words import Row, now_ms, sign_of, span, table
from qinglong_sql.graph import depths

Needs = Mapping[str, Sequence[str]]
NAMED = 6
ONCE = ((60, 3), (30, 8))  # a sentence longer than this, of so many steps, is told once
BAD = ("failed", "timed_out")
ENDED_BADLY = (*BAD, "cancelled")
OF_RUN_TIMEOUT = {  # what a step says of its end, as the run's own timeout explains it
    "execution_timed_out": "stopped_by_run_timeout",
    "workflow_cancelled": "workflow_timed_out",
}
EXITS = {  # what a shell and env say of their command
    126: " (not executable)",
    127: " (command not found)",
    137: " (killed by KILL; out of memory?)",
}
CODES = {
    "execution_failed": "it ended with a failure",
    "execution_timed_out": "it ran longer than its timeout",
    "execution_cancelled": "it was stopped, since the run was cancelled",
    "execution_stopped": "it was stopped",
    "execution_lost": "its worker fell silent, and nobody knows how it ended",
    "executor_start_failed": "it could not be started",
    "bad_output": "what it wrote to $QL_OUTPUT is no JSON object of the allowed size",
    "claim_budget_exhausted": "workers took it 64 times and never started it",
    "attempt_budget_exhausted": "the run has used all of its attempts",
    "workflow_cancelled": "the run was cancelled",
    "workflow_timed_out": "the run's own timeout passed",
    "stopped_by_run_timeout": "it was stopped, since the run's own timeout passed",
    "dependency_not_succeeded": "a step that it needs did not succeed",
    "taken_over": "taken over from the run that this one retries",
    "workflow_step_failed": "a step failed",
    "workflow_step_timed_out": "a step ran longer than its timeout",
    "workflow_step_cancelled": "a step was cancelled",
}


def by_run(run: Row, steps: list[Row]) -> list[Row]:
    """The steps with codes for people: those that the run's own timeout ended say so.

    What had ended before it keeps its own.
    """
    if run["cancel_reason"] != "timeout":
        return steps
    at = run["cancel_requested_at_ms"]
    return [
        {**one, "result_code": OF_RUN_TIMEOUT.get(one["result_code"], one["result_code"])}
        if (one["finished_at_ms"] or 0) >= at
        else one
        for one in steps
    ]


def needs_of(pairs: Sequence[Row]) -> dict[str, list[str]]:
    """{step: its direct needs} from the rows of `step_need`."""
    needs: dict[str, list[str]] = {}
    for pair in pairs:
        needs.setdefault(pair["step_key"], []).append(pair["need_key"])
    return needs


def in_flow(steps: list[Row], needs: Needs) -> list[Row]:
    """The steps in the order in which work flows: by depth, then by start."""
    depth = depths([step["step_key"] for step in steps], needs)
    return sorted(
        steps,
        key=lambda s: (depth[s["step_key"]], s["started_at_ms"] or sys.maxsize, s["step_key"]),
    )


def step_table(steps: list[Row], attempts: list[Row]) -> str:
    """One line a step by its start: state, tries, duration, why it is so."""
    last = {attempt["step_key"]: attempt for attempt in attempts}
    ordered = sorted(steps, key=lambda s: (s["started_at_ms"] or sys.maxsize, s["step_key"]))
    told = once([(one["step_key"], why(one, last.get(one["step_key"]))) for one in ordered])
    rows = [
        [step["step_key"], *state_of(step), words]
        for step, words in zip(ordered, told, strict=True)
    ]
    head = ["STEP", "STATUS", "TRIES", "TOOK", "WHY"]
    return table(head, rows, wide=cells.room(), drop=("TRIES", "TOOK"))


def once(reasons: Sequence[tuple[str, str]]) -> list[str]:
    """The reasons of steps, where a sentence that many of them share is told by the first alone."""
    alike: dict[str, list[str]] = {}
    for key, words in reasons:
        alike.setdefault(words, []).append(key)
    told = []
    for key, words in reasons:
        same = alike[words]
        if any(len(words) > brief and len(same) >= many for brief, many in ONCE):
            told.append(f"{words} ({len(same)} steps)" if key == same[0] else f"as {same[0]}")
        else:
            told.append(words)
    return told


def shortened(text: str, most: int) -> str:
    """About so many characters of a text in one line, to the end of a word."""
    text = " ".join(text.split())
    end = text.find(" ", most)
    if len(text) <= most or (end < 0 and len(text) <= 4 * most):
        return text
    return f"{text[:end]} …" if 0 <= end <= 4 * most else f"{text[:most]}…"


def flow_table(
    run: Row, steps: list[Row], attempts: list[Row], needs: Needs, wide: int
) -> tuple[str, bool]:
    """The steps that have begun, with a bar each when there is room; whether bars are drawn."""
    begun = [step for step in in_flow(steps, needs) if not waits_whole(step)]
    tries: dict[str, list[Row]] = {}
    for attempt in attempts:
        tries.setdefault(attempt["step_key"], []).append(attempt)
    rows = [[step["step_key"], *state_of(step)] for step in begun]
    head = ["STEP", "STATUS", "TRIES", "TOOK"]
    used = sum(max(map(cells.cells, column)) + 2 for column in zip(head, *rows, strict=True)) + 2
    axis = Axis(run["admitted_at_ms"], run["finished_at_ms"] or now_ms(), min(MOST, wide - used))
    if axis.wide < LEAST or not rows:
        return table(head, rows, wide=wide, drop=("TRIES", "TOOK")) if rows else "", False
    for row, step in zip(rows, begun, strict=True):
        row.append(axis.bar(step, tries.get(step["step_key"], [])))
    return table([*head, axis.title()], rows), True


def state_of(step: Row) -> list[str]:
    """Status with its sign, tries, duration."""
    end = step["finished_at_ms"] or (now_ms() if step["status"] == "running" else None)
    return [
        f"{sign_of(step['status'])} {step['status']}",
        str(step["attempt_count"]),
        span(step["started_at_ms"], end),
    ]


def waits_whole(step: Row) -> bool:
    """Whether nothing has happened to a step yet, or ever will: such steps are told in groups."""
    return step["ready_at_ms"] is None


def groups(steps: list[Row], needs: Needs) -> list[str]:
    """A line for all steps that never began for the same reason."""
    found: dict[tuple[str, str], list[str]] = {}
    status = {step["step_key"]: step for step in steps}
    for step in in_flow(steps, needs):
        if waits_whole(step):
            cause = cause_of(step, status, needs)
            found.setdefault((step["status"], cause), []).append(step["step_key"])
    told = []
    for (state, cause), keys in found.items():
        some = ", ".join(keys[:NAMED]) + (f" and {len(keys) - NAMED} more" * (len(keys) > NAMED))
        words = f"{state}: {cause}" if cause else state
        told.append(f"{sign_of(state)} {some}  {words}")
    return told


def cause_of(step: Row, status: Mapping[str, Row], needs: Needs) -> str:
    """Why a step never began: the steps that stand in its way, or what its code says."""
    if step["status"] != "skipped":
        code = step["result_code"]
        return CODES.get(code, str(code)) if code else ""
    seen, queue, found = set(), [step["step_key"]], []
    while queue:
        for need in needs.get(queue.pop(0), ()):
            if need in seen:
                continue
            seen.add(need)
            if status[need]["status"] == "skipped":
                queue.append(need)
            elif status[need]["status"] in ENDED_BADLY:
                found.append(f"{need} {status[need]['status']}")
    return ", ".join(found[:NAMED])


def why(step: Row, attempt: Row | None) -> str:
    """Why a step is as it is, in the words of `show`; nothing for what went well."""
    if step["result_code"] is None:
        return ""
    if step["status"] not in ("failed", "retry_wait"):
        return CODES.get(step["result_code"], str(step["result_code"]))
    words, said = ending(str(step["result_code"]), attempt)
    return f"{words}: {shortened(said.splitlines()[0], 200)}" if said else words


def in_words(step: Row, attempt: Row | None) -> str:
    """What went wrong in a step, in words for people."""
    words, said = ending(str(step["result_code"]), attempt)
    if step["attempt_count"] > 1:
        words += f", after {step['attempt_count']} tries"
    return f"{words}: {shortened(said, 400)}" if said else words


def ending(code: str, attempt: Row | None) -> tuple[str, str]:
    """How an attempt ended, in words, and what its worker said beyond that."""
    if vouched := declared.words_of(attempt, code):
        words, _, said = vouched.partition(": ")
        return words, said
    words = CODES.get(code, code)
    said = str((attempt or {}).get("error") or "").strip()
    if attempt is None or code != "execution_failed":
        return words, said
    if attempt["exit_code"] is not None:
        number = attempt["exit_code"]
        return f"it ended with exit code {number}{EXITS.get(number, '')}", said
    if killed := re.fullmatch(r"ended by signal (\d+)", said):
        return f"it was killed by signal {killed[1]}{signal_name(int(killed[1]))}", ""
    return words, said


def signal_name(number: int) -> str:
    """` (KILL; out of memory?)` for 9; nothing for a number without a name."""
    try:
        name = signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return ""
    return f" ({name}; out of memory?)" if number == signal.SIGKILL else f" ({name})"
