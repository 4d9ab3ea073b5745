"""Every order of commands on one and on two steps (issue: exhaustive interleavings).

Breadth first over the states of `tests.interleaving`. In every state that is reached: `violation`
is empty, a run that ended stays as it ended and has nothing open, a refusal changes nothing, and
an open run that waits says for what. From every state some order ends the run; without worker and
without people it ends, or it waits for one of them, or for evidence.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests import engines
from tests.interleaving import OTHERS, SYSTEM, Bench, Command, Key, Variant
from tests.mutants import Mutant
from tests.prove import Setting, Verdict

CHAIN = {"a": [], "b": ["a"]}
PAIR = {"a": [], "b": []}
ONE_STEP = (
    Variant("fail"),
    Variant("retry", on_lost="retry"),
    Variant("hold", on_lost="hold"),
    Variant("no fence of its own", self_fencing=0),
    Variant("task", kind="task", timeout_ms=45_000),
    Variant("run with a deadline", run_timeout_ms=45_000),
)
TWO_STEPS = (
    Variant("chain", needs=CHAIN, tries=1),
    Variant("chain with a retry", needs=CHAIN, tries=2),
    Variant("two side by side", needs=PAIR, tries=1),
    Variant("chain, hold", needs=CHAIN, tries=1, on_lost="hold"),
    Variant("chain with a deadline", needs=CHAIN, tries=1, run_timeout_ms=45_000),
)
MOST_STATES = 400_000
DEEP = 10  # nested savepoints cost the more the deeper they are


@dataclass(slots=True)
class Explored:
    """The graph of one variant, by number of state."""

    states: int = 0
    ends: set[int] = field(default_factory=set)
    waits: set[int] = field(default_factory=set)  # for somebody else, or for evidence
    beyond: set[int] = field(default_factory=set)  # looked at, and not followed
    back: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    edges: int = 0
    refusals: int = 0
    failed: list[tuple[int, str]] = field(default_factory=list)
    whole: bool = True

    @property
    def failures(self) -> list[str]:
        """Each with the shortest way there that was seen."""
        return [f"{what}, after: {self.way(state)}" for state, what in self.failed[:5]]

    def way(self, state: int) -> str:
        seen, queue = {state: ""}, deque([state])
        while queue:
            here = queue.popleft()
            if here == 0:
                return seen[here] or "the start"
            for before, said in self.back.get(here, ()):
                if before not in seen:
                    seen[before] = f"{said} → {seen[here]}" if seen[here] else said
                    queue.append(before)
        raise AssertionError(state)

    def reaching(self, goals: Iterable[int], words: frozenset[str] | None = None) -> set[int]:
        """The states from which these words (all by default) lead to one of the goals."""
        seen = set(goals)
        queue = deque(seen)
        while queue:
            for before, said in self.back.get(queue.popleft(), ()):
                if before not in seen and (words is None or said.split(" ")[0] in words):
                    seen.add(before)
                    queue.append(before)
        return seen


def explore(
    template: Path,
    variant: Variant,
    mutant: Mutant | None = None,
    most: int = MOST_STATES,
    more: Callable[[], bool] = lambda: True,
) -> Explored:
    """Every state that can be reached, looked at once; `whole` says whether that was all.

    It stops when there are more than `most`, or when `more` says no between two walks.
    """
    bench, found = Bench(template, variant, mutant), Explored()
    numbers: dict[Key, int] = {bench.key(): 0}
    bench.store.raw.execute("begin")
    look(bench, found, 0)
    first_ms = bench.mark(0)
    seeds: deque[tuple[int, tuple[Command, ...]]] = deque([(0, ())])
    while seeds and found.whole and not found.failed:
        state, path = seeds.popleft()
        if not more():
            found.whole = False
            break
        bench.take_back(0, first_ms)
        for command in path:
            bench.do(command)
        walk(bench, found, numbers, seeds, enter(bench, 1, state, path), most)
    bench.close()
    found.states = len(numbers)
    if found.whole and not found.failed:
        judge(found)
    return found


def walk(
    bench: Bench,
    found: Explored,
    numbers: dict[Key, int],
    seeds: deque[tuple[int, tuple[Command, ...]]],
    first: "Here",
    most: int,
) -> None:
    """Depth first from one state; what lies deeper than DEEP is left for later."""
    stack = [first]
    while stack and found.whole and not found.failed:
        here = stack[-1]
        command = next(here.commands, None)
        if command is None:
            stack.pop()
        elif after := move(bench, found, here, command):
            is_new = after not in numbers
            number = numbers.setdefault(after, len(numbers))
            found.back.setdefault(number, []).append((here.state, str(command)))
            if number != here.state and here.state in found.ends:
                found.failed.append((number, "a run that had ended changed"))
            if is_new:
                look(bench, found, number)
                found.whole = len(numbers) <= most
                path = (*here.path, command)
                if bench.beyond():
                    found.beyond.add(number)
                elif len(stack) < DEEP:
                    stack.append(enter(bench, len(stack) + 1, number, path))
                    continue
                else:
                    seeds.append((number, path))
        if stack:
            bench.take_back(len(stack), stack[-1].now_ms)


@dataclass(slots=True)
class Here:
    """A state on the way that is being walked, and what is still to be tried in it."""

    state: int
    path: tuple[Command, ...]
    now_ms: int
    key: Key
    content: Key
    commands: Iterator[Command]


def enter(bench: Bench, level: int, state: int, path: tuple[Command, ...]) -> Here:
    now_ms = bench.mark(level)
    commands = iter(list(bench.commands()))
    return Here(state, path, now_ms, bench.key(), bench.content(), commands)


def move(bench: Bench, found: Explored, here: Here, command: Command) -> Key | None:
    """Do it; the state then, None when nothing changed, as after a refusal."""
    outcome = bench.do(command)
    if outcome in ("QL409", "QL500"):
        found.failed.append((here.state, f"{command} answers {outcome}"))
        return None
    if command.word != "time" and bench.content() == here.content:
        found.refusals += 1
        return None
    found.edges += 1
    after = bench.key()
    # a start under an intent gives its lease back; of a report that is refused only itself is kept
    if outcome.startswith("QL") and command.word != "start" and after != here.key:
        found.failed.append((here.state, f"{command} answers {outcome} and changes something"))
    intent = here.key[0][0][1]
    if intent and command.word == "start" and outcome == "applied" and after != here.key:
        found.failed.append((here.state, "something starts under an intent"))
    if broken := bench.rows("select * from violation"):
        found.failed.append((here.state, f"violation {broken[0]} by {command}"))
    return after


def look(bench: Bench, found: Explored, state: int) -> None:
    """What must hold in every state."""
    due = bench.rows(f"select 1 from agenda where due_at_ms <= {bench.clock.now_ms}")
    waits = {row[0] for row in bench.rows("select waits_for from explain")}
    if bench.ended():
        found.ends.add(state)
        open_rows = bench.rows(
            "select 'attempt' from task_attempt where finished_at_ms is null"
            " union all select 'lease' from attempt_lease where status = 'leased'"
            " union all select 'agenda' from agenda"
        )
        if open_rows:
            found.failed.append((state, f"an ended run has an open {open_rows[0][0]}"))
    elif waits & OTHERS:
        found.waits.add(state)
    elif not due and not waits:
        found.failed.append((state, "nothing is due, the run is open, and explain says nothing"))


def judge(found: Explored) -> None:
    """From every state some order ends the run; by itself it ends or waits for others."""
    everything = set(range(found.states))
    for state in sorted(everything - found.reaching(found.ends | found.beyond)):
        found.failed.append((state, "no order ends the run"))
    alone = found.reaching(found.ends | found.waits | found.beyond, SYSTEM)
    for state in sorted(everything - alone):
        found.failed.append((state, "by itself it neither ends nor waits for somebody"))
    if not found.ends:
        found.failed.append((0, "no end was ever reached"))


def prove(setting: Setting) -> Verdict:
    verdict = Verdict()
    template = engines.sqlite_template(setting.folder)
    more = setting.until()
    variants = [replace(one, tries=1, returns=1) for one in ONE_STEP]
    for variant in variants if setting.quick else (*variants, *TWO_STEPS, *ONE_STEP):
        name = f"{variant.name}, {variant.tries} tries"
        if not more():
            verdict.not_run.append(f"{name}: no time left")
            continue
        setting.say(f"interleavings: {name}")
        found = explore(template, variant, most=MOST_STATES, more=more)
        verdict.counts[name] = f"{found.states} states, {found.edges} moves"
        verdict.failures += [f"{name}: {failure}" for failure in found.failures]
        if not found.whole:
            verdict.not_run.append(f"{name}: {found.states} states, and then no time left")
    return verdict
