"""Every order of commands on one and on two steps (issue: exhaustive interleavings).

Breadth first over the states of `tests.interleaving`. Of every move: it does only what has a reason
(tests.interleaving_rules), `violation` stays empty, a refusal changes nothing, a stage that was due
is not due any more. Of every state: some order ends the run, also without people; the scheduler
alone never goes round in circles, and when it can do nothing more, the run has ended or `explain`
says for whom it waits, truly. What has ended hears every late word and does not move.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from tests import engines
from tests.interleaving import STAGES, Bench, Command
from tests.interleaving_graph import Explored, judge
from tests.interleaving_rules import Facts, Move, broken
from tests.interleaving_variant import TIMEOUT_MS, Variant
from tests.mutants import NAMED, Mutant
from tests.prove import Setting, Verdict

CHAIN: dict[str, list[str]] = {"a": [], "b": ["a"]}
PAIR: dict[str, list[str]] = {"a": [], "b": []}
ONE_STEP = (
    Variant("fail", returns=2),
    Variant("retry", on_lost="retry", tries=2),
    Variant("hold", on_lost="hold"),
    Variant("no fence of its own", self_fencing=0),
    Variant("task", kind="task", needs={"main": []}, timeout_ms=TIMEOUT_MS),
    Variant("run with a deadline", run_timeout_ms=TIMEOUT_MS),
)
TWO_STEPS = (
    Variant("chain", needs=CHAIN),
    Variant("chain with a retry", needs=CHAIN, on_lost="retry", tries=2),
    Variant("chain, hold", needs=CHAIN, on_lost="hold"),
    Variant("chain with a deadline", needs=CHAIN, run_timeout_ms=TIMEOUT_MS),
    Variant("two side by side", needs=PAIR, alike=True),
)
# Two steps that do not wait for each other multiply: first one bound after the other is two. By two
# at once nobody declares a third try: it multiplies once more, and the chains have it.
SIDE_BY_SIDE = (
    Variant("two side by side, given back twice", needs=PAIR, alike=True, returns=2),
    Variant("two side by side, tried twice", needs=PAIR, alike=True, tries=2),
    Variant("two side by side, by two", needs=PAIR, alike=True, tries=2, returns=2),
)
# Changed rules that the quick part leaves out, and where they are found.
TEETH = {
    "one retry too many after a loss": "retry, by two",
    "one claim return too few after an expiry": "fail",
    "a retry opens under an intent": "retry",
    "a held lease does not block once it is claimed only": "fail",
    "exit 0 beats the deadline": "task",
    "the deadline beats the intent": "task",
    "the last millisecond of the deadline is in time": "task",
    "pending times out": "chain with a deadline",
}
MOST_STATES = 400_000
AGAIN = 25  # one in so many moves to a known state looks whether it leads on as the first did
AGAIN_SIDE_BY_SIDE = 100


def explore(
    template: Path,
    variant: Variant,
    mutant: Mutant | None = None,
    most: int = MOST_STATES,
    more: Callable[[], bool] = lambda: True,
    again_in: int = AGAIN,
) -> Explored:
    """Every state that can be reached, looked at once; `whole` says whether that was all.

    It stops at the first failure, when there are more than `most`, or when `more` says no.
    """
    bench, found = Bench(template, variant, mutant), Explored()
    found.number(bench.key())
    look(bench, found, 0)
    queue = deque([(0, bench.image(), False)])
    while queue and found.whole and not found.failed:
        state, image, again = queue.popleft()
        bench.restore(image)
        leads: dict[str, int] = {}
        here = enter(bench, found, state)
        for command in list(bench.commands()):
            if after := move(bench, found, here, command):
                is_new = not found.knows(after)
                leads[str(command)] = number = found.number(after)
                if not again:
                    found.lead(state, str(command), number, alone=alone(here, command))
                if is_new:
                    look(bench, found, number)
                if is_new or (not again and found.moves % again_in == 0):
                    queue.append((number, bench.image(), not is_new))
            bench.take_back()
        if again:
            found.again.append((state, leads))
        found.whole = len(found) <= most and more()
    bench.close()
    if found.whole and not found.failed:
        judge(found, alike=variant.alike)
    return found


@dataclass(frozen=True, slots=True)
class Here:
    """A state that moves start from."""

    state: int
    now_ms: int
    due: set[str]
    facts: Facts
    content: tuple[object, ...]


def alone(here: Here, command: Command) -> bool:
    """Whether that comes without anybody: time, or a stage that is due."""
    return command.word == "time" or STAGES.get(command.word) in here.due


def enter(bench: Bench, found: Explored, state: int) -> Here:
    if moved := bench.late():
        found.fail(state, f"{moved}, said late about what has ended, moves something")
    bench.take_back()
    return Here(state, bench.clock.now_ms, bench.due(), bench.facts(), bench.content())


def move(bench: Bench, found: Explored, here: Here, command: Command) -> bytes | None:
    """Do it; the key then, None when nothing changed, as after a refusal."""
    outcome = bench.do(command)
    refused = outcome.startswith("QL")
    if refused and outcome != "QL410":
        found.fail(here.state, f"{command} answers {outcome}")
    stage = STAGES.get(command.word)
    if stage in here.due and stage in bench.due():
        found.fail(here.state, f"{command} leaves its stage due")
    if command.word != "time" and bench.content() == here.content:
        found.refusals += refused
        found.still += not refused
        return None
    found.moves += 1
    after, variant = bench.facts(), bench.variant
    # a start under an intent gives its lease back; nothing else is refused and changes something
    if refused and not (command.word == "start" and here.facts.intent):
        found.fail(here.state, f"{command} answers {outcome} and changes something")
    if command.word == "sweep":
        found.fail(here.state, "the sweep finds what no stage was told")
    done = Move(
        command.word, command.about, here.now_ms, here.facts, after, variant.on_lost,
        variant.tries, variant.returns, variant.declared, variant.needs,
    )  # fmt: skip
    for what in broken(done):
        found.fail(here.state, f"{command}: {what}")
    for row in bench.rows("select rule, entity_id from violation"):
        found.fail(here.state, f"{command}: violation {row}")
    return bench.key()


def look(bench: Bench, found: Explored, state: int) -> None:
    """What must hold in every state, and what is asked of all of them together later."""
    why = bench.why()
    if bench.facts().status != "running":
        found.ends.add(state)
        if why or bench.rows("select 1 from agenda"):
            found.fail(state, "a run that has ended waits for something")
        return
    found.waits[state] = frozenset(why)
    if not why and not bench.due():
        found.fail(state, "nothing is due, the run is open, and explain says nothing")


def by_two(variant: Variant) -> Variant:
    """Tried twice, given back twice, and once more when people declare so."""
    return replace(variant, name=f"{variant.name}, by two", tries=2, returns=2, declared=1)


def wanted(quick: bool) -> list[tuple[Variant, str | None]]:
    """What is explored, and under which changed rule."""
    first = [(one, None) for one in (*TWO_STEPS, *map(by_two, ONE_STEP))]
    if quick:
        return [*first]
    named = {one.name: one for one in (*ONE_STEP, *TWO_STEPS, *map(by_two, ONE_STEP))}
    teeth = [(named[on], mutant) for mutant, on in TEETH.items()]
    chains = [(by_two(one), None) for one in TWO_STEPS if not one.alike]
    return [*first, *teeth, *chains, *((one, None) for one in SIDE_BY_SIDE)]


def prove(setting: Setting) -> Verdict:
    """Two steps by one and one step by two; then, with time, rules that are changed, and more."""
    verdict = Verdict()
    template = engines.sqlite_template(setting.folder)
    until = time.monotonic() + setting.seconds
    asked = wanted(setting.quick)
    with ProcessPoolExecutor(2) as pool:
        runs = [pool.submit(explored, template, *one, until) for one in asked]
        for (variant, mutant), run in zip(asked, runs, strict=True):
            name = f"{variant.name}, {mutant}" if mutant else variant.name
            setting.say(f"interleavings: {name}")
            counts, failures, whole = run.result()
            if mutant:
                verdict.count("changed rules that were found", bool(failures))
                verdict.check(failures or not whole, f"{name}: nobody notices")
                continue
            verdict.counts[name] = counts
            verdict.failures += [f"{name}: {failure}" for failure in failures]
            if not whole:
                verdict.not_run.append(f"{name}: {counts}, and then no time left")
    return verdict


def explored(
    template: Path, variant: Variant, mutant: str | None, until: float
) -> tuple[str, list[str], bool]:
    """Explore in a process of its own: counts, failures, and whether that was all."""
    rule = NAMED[mutant] if mutant else None
    found = explore(
        template, variant, rule,
        more=lambda: time.monotonic() < until,
        again_in=AGAIN_SIDE_BY_SIDE if variant.alike else AGAIN,
    )  # fmt: skip
    return f"{len(found)} states, {found.moves} moves", found.failures, found.whole
