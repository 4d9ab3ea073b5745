"""Commands that look at a run: show, explain."""

import re

import click

from qinglong_sql.canonical import digest
from qinglong_sql.cli import COMMANDS, cells, declared
from qinglong_sql.cli.alone import nobody_drives
from qinglong_sql.cli.exits import reported
from qinglong_sql.cli.options import opened, resolve_run, same_dsn, with_dsn, with_json
from qinglong_sql.cli.reasons import (
    ORDER,
    Reason,
    Screen,
    intent_words,
    reason_of,
    screen_of,
    short,
    waits,
)
from qinglong_sql.cli.reread import steps_of, the_run
from qinglong_sql.cli.runs import input_of, retry_of
from qinglong_sql.cli.steps import BAD, CODES, NAMED, by_run, flow_table, groups, in_words, needs_of
from qinglong_sql.cli.timebar import legend
from qinglong_sql.cli.words import (
    COLOURS,
    Row,
    moment,
    one_zone,
    print_json,
    say,
    say_wrapped,
    sign_of,
    span,
    with_color,
    with_utc,
    zone,
)

WRONG = 8
MADE_KEY = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|ru[0-9a-f]{24}"  # nobody chose it
NO_INPUT = digest("{}")
TIMED_OUT = "workflow_timed_out"
LOOKING = ("logs", "status", "workers")
Pair = tuple[Row, Reason]  # a row of `explain`, and its words


@click.command()
@click.argument("run")
@click.option(
    "--input",
    "with_input",
    is_flag=True,
    help="Print its input alone, as JSON; with --json below `input` of the document.",
)
@with_utc
@with_color
@with_dsn
@with_json
@reported
def show(run: str, with_input: bool, utc: bool, dsn: str, as_json: bool) -> None:
    """Show a RUN: its state, its steps, what went wrong.

    Steps stand in the order in which work flows, each with a bar on the time axis of the run. Its
    input, which may hold what is not for everybody's eyes, is printed by --input only.
    """
    with opened(dsn) as store:
        row = resolve_run(store, run)
        run_id = row["run_id"]
        given = {"input": input_of(store, run_id)} if with_input else {}
        if given and not as_json:
            print_json(given["input"])
            return
        steps = steps_of(store, run_id)
        attempts = declared.attempts_with(store, run_id)
        pairs = store.read("step_need", order="step_key, need_key", run_id=run_id)
        intents = store.read("intent_state", run_id=run_id)
        screen = screen_of(store, dsn, utc, same_dsn(dsn))
        rows = waits(store, run_id)
        again = retry_of(store, run_id)
        alone = nobody_drives(store, dsn, run_id) if row["status"] == "running" else ""
    needs, intent = needs_of(pairs), intents[0] if intents else None
    if as_json:
        more = {"steps": steps, "attempts": attempts, "needs": needs, "intent": intent}
        print_json({**row, **more, **given})
        return
    wide, steps = cells.room(), by_run(row, steps)
    header(row, intent, screen, wide)
    vouched(attempts, wide)
    drawn, bars = flow_table(row, steps, attempts, needs, wide)
    if drawn:
        say("")
        say(drawn)
    for line in groups(steps, needs):
        say_wrapped(line, wide, 2)
    if bars:
        say(click.style(legend(), dim=True))
    wrong(row, steps, attempts, screen, wide)
    for together in alike([(one, reason_of(one, screen)) for one in rows]):
        if together[0][1].stuck or together[0][1].silent:
            say("")
            told(together, wide)
    if alone:
        say("")
        say_wrapped(f"! {alone}", wide, 2, fg="yellow")
    next_words(row, screen, again)


def header(row: Row, intent: Row | None, screen: Screen, wide: int) -> None:
    """What a run is, since when, and what somebody wants of it."""
    code = row["result_code"]
    times = (screen.now, row["admitted_at_ms"], row["finished_at_ms"])
    same = one_zone(times, utc=screen.utc)
    started, ended = (
        moment(at_ms, screen.now, utc=screen.utc, offset=not same) for at_ms in times[1:]
    )
    told = [
        ("run", row["run_id"]),
        ("target", f"{row['package_key']} / {row['target_key']}, generation {row['generation']}"),
        ("status", f"{sign_of(row['status'])} {row['status']}"
                   + (f": {CODES.get(code, code)}" if code else "")),
        ("started", f"{started} {zone(screen.now, utc=screen.utc)}" if same else started),
    ]  # fmt: skip
    if row["finished_at_ms"] is not None:
        took = span(row["admitted_at_ms"], row["finished_at_ms"])
        told.append(("ended", f"{ended}, after {took}"))
    elif row["deadline_at_ms"] is not None:
        told.append(("deadline", screen.at(row["deadline_at_ms"])))
    if row.get("retry_of_run_id"):
        told.append(("retry of", row["retry_of_run_id"]))
    if row["run_key"] and not re.fullmatch(MADE_KEY, row["run_key"]):
        told.append(("key", row["run_key"]))
    if row["input_digest"] != NO_INPUT:
        way = screen.command(f"show {short(row['run_id'])} --input")
        told.append(("input", f"sha256 {row['input_digest'][:12]}; {way}"))
    if intent is not None:
        by = f", by {intent['actor']}" if intent["actor"] else ""
        at = screen.at(intent["requested_at_ms"])
        told.append(("cancel", f"requested: {intent['reason']}{by}, at {at}"))
    for name, words in told:
        colour = COLOURS.get(row["status"]) if name == "status" else None
        say_wrapped(f"{name:<9}{words}", wide, 9, fg=colour)


def vouched(attempts: list[Row], wide: int) -> None:
    """What somebody declared stopped: nothing else says why those attempts are lost."""
    lines = declared.all_words(attempts)
    for line in lines[:WRONG]:
        say_wrapped(f"{'declared':<9}{line.replace(' declared', '', 1)}", wide, 9)
    if len(lines) > WRONG:
        say(f"         and {len(lines) - WRONG} more")


def wrong(row: Row, steps: list[Row], attempts: list[Row], screen: Screen, wide: int) -> None:
    """What failed first stands first: it is mostly why the others did."""
    last, run = {attempt["step_key"]: attempt for attempt in attempts}, short(row["run_id"])
    bad = [s for s in steps if s["status"] in (*BAD, "retry_wait", "lost")]
    bad.sort(key=lambda step: (step["finished_at_ms"] or screen.now, step["step_key"]))
    for step in bad[:WRONG]:
        attempt = last.get(step["step_key"])
        if step is bad[0]:
            say("")
        key = step["step_key"]
        words = f"{sign_of(step['status'])} {key}: {in_words(step, attempt)}"
        say_wrapped(words, wide, 2, fg="red")
        if attempt is not None and step["result_code"] != "executor_start_failed":
            say(f"  look: {screen.command(f'logs {run} {key}')}")
    if len(bad) > WRONG:
        say(f"and {len(bad) - WRONG} more")


def next_words(row: Row, screen: Screen, again: Row | None) -> None:
    """What to type next."""
    run = short(row["run_id"])
    if row["status"] == "running":
        say("")
        say(f"what it waits for: {screen.command(f'explain {run}')}")
    elif again is not None:
        say(f"retried as {short(again['run_id'])}: {again['status']}")
    elif row["status"] != "succeeded" and "retry" in COMMANDS:
        say(f"again, without what succeeded: {screen.command(f'retry {run}')}")


@click.command()
@click.argument("run")
@with_utc
@with_color
@with_dsn
@with_json
@reported
def explain(run: str, utc: bool, dsn: str, as_json: bool) -> None:
    """Say what a RUN waits for, and what would resolve it.

    What needs a person comes first; every row ends with what to type.
    """
    with opened(dsn) as store:
        row = resolve_run(store, run)
        rows = waits(store, row["run_id"])
        attempts = declared.attempts_with(store, row["run_id"])
        last = {one["step_key"]: one for one in attempts}
        for one in rows:
            one["declared"] = (last.get(one["step_key"]) or {}).get("declared")
        row = row if rows else the_run(store, row["run_id"])
        screen = screen_of(store, dsn, utc, same_dsn(dsn))
        unseen = row["status"] != "running" or as_json
        alone = "" if unseen else nobody_drives(store, dsn, row["run_id"])
    reasons = [(one, reason_of(one, screen)) for one in rows]
    if as_json:
        print_json([{**one, "command": why.command, "stuck": why.stuck} for one, why in reasons])
        return
    if not rows:
        late = f": {CODES[TIMED_OUT]}" * (row["result_code"] == TIMED_OUT)
        ended = f"nothing: the run has ended, {row['status']}{late}"
        say(ended if row["status"] != "running" else "nothing: the next cycle moves it")
        if row["status"] not in ("running", "succeeded"):
            vouched(attempts, cells.room())
            say(f"  look: {screen.command('show ' + short(row['run_id']))}")
        return
    wide = cells.room()
    if row["cancel_requested_at_ms"] is not None:
        does = "nobody is there to carry it out" if alone else "what runs is being stopped"
        at = screen.at(row["cancel_requested_at_ms"])
        words = f"{intent_words(row['cancel_reason'])} at {at}: {does}"
        say_wrapped(words, wide, 2, fg="yellow")
    if alone:
        say_wrapped(f"! {alone}", wide, 2, fg="yellow")
    needs = [pair for pair in reasons if pair[0]["waits_for"] == "need" and not pair[1].command]
    rest = [pair for pair in reasons if pair not in needs]
    rest.sort(key=lambda pair: (not pair[1].stuck, ORDER.index(pair[0]["waits_for"])))
    for together in alike(rest):
        told(together, wide)
    after: dict[str, list[str]] = {}
    for key in dict.fromkeys(one["step_key"] for one, _ in needs):
        on = ", ".join(one["waits_on"] for one, _ in needs if one["step_key"] == key)
        after.setdefault(on, []).append(key)
    for on, keys in after.items():
        wait = "waits" if len(keys) == 1 else "wait"
        words = (
            f"{sign_of('pending')} {', '.join(keys)}, pending (need): {wait} for the end of {on}"
        )
        say_wrapped(words, wide, 2)
    if needs:
        say(f"  look: {screen.command('graph ' + short(row['run_id']))}")


def alike(pairs: list[Pair]) -> list[list[Pair]]:
    """Rows that wait for the same with the same words, together."""
    found: dict[tuple[str, Reason], list[Pair]] = {}
    for one, why in pairs:
        found.setdefault((one["waits_for"], why), []).append((one, why))
    return list(found.values())


def told(together: list[Pair], wide: int) -> None:
    """What waits, and for what in the word of the view; what ends it, and what to type."""
    row, why = together[0]
    keys = [one["step_key"] or "the run" for one, _ in together]
    some = ", ".join(keys[:NAMED]) + f" and {len(keys) - NAMED} more" * (len(keys) > NAMED)
    states = "/".join(dict.fromkeys(one["status"] for one, _ in together))
    mark = "STUCK " if why.stuck else ""
    words = f"{mark}{sign_of(row['status'])} {some}, {states} ({row['waits_for']}): {why.words}"
    say_wrapped(words, wide, 2, fg="red" if why.stuck else None)
    say_wrapped(f"  resolved by: {why.then}", wide, 4)
    if why.command:
        label = "look" if why.command.split()[1] in LOOKING else "type"
        say(f"  {label}: {click.style(why.command, bold=True)}")
