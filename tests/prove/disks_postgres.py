"""PostgreSQL whose tables or whose write-ahead log lie on a disk that fills up, and `run` on it.

What it refuses is tried again; a server that ends for want of a log is started again, as its
operator would. Part of tests.prove.disks.
"""

import json
import time
from collections import Counter
from pathlib import Path

import psycopg

from tests import filling, mounts
from tests.clusters import Cluster, cluster
from tests.prove import Setting, Verdict
from tests.serving import STEPS, WORKFLOW
from tests.shell import Shell, ended

ROUNDS, QUICK_ROUNDS = 5, 1
HELD_S = 3
WORDS = ("No space left on device", "could not extend", "not accept", "server closed", "refused",
         "recovery mode", "shutting down", "starting up", "terminating", "PANIC")  # fmt: skip
OPTIONS = {"min_wal_size": "32MB", "max_wal_size": "32MB", "shared_buffers": "16MB"}


def prove(setting: Setting, verdict: Verdict) -> None:
    """Raises CannotRun."""
    with mounts.mounted(setting.folder, "ext4", 160 * mounts.MIB) as mount:
        with cluster(mount.folder, **OPTIONS) as up:
            _rounds(setting, verdict, mount.folder, up, "tables")
    mount.folder.rmdir()
    with mounts.mounted(setting.folder, "ext4", 96 * mounts.MIB) as mount:
        with cluster(setting.folder, **OPTIONS) as up:
            up.log_elsewhere(mount.folder)
            _rounds(setting, verdict, mount.folder, up, "log")


def _rounds(setting: Setting, verdict: Verdict, place: Path, up: Cluster, what: str) -> None:
    marks = setting.folder / f"marks-{what}"
    marks.write_text("")
    shell = Shell(setting.folder, up.address)
    shell.write("disk.yaml", WORKFLOW.format(marks=marks))
    with psycopg.connect(up.address, autocommit=True) as hog:
        hog.execute("create table public.hog (x text)")
    told = 0
    for number in range(QUICK_ROUNDS if setting.quick else ROUNDS):
        setting.say(f"disks: PostgreSQL, full {what}, round {number}")
        where = f"seed {setting.seed}, PostgreSQL, full {what}, round {number}"
        output = setting.folder / "run.out"
        output.write_text("")
        process = shell.begin("run", "disk.yaml", "calm", "--new", output=output)
        try:
            time.sleep(setting.random("postgres", what, number).uniform(0.3, 1.2))
            filler = filling.fill(place)
            refused = _refusals(up.address, HELD_S)
            filler.unlink()
            if not up.is_up():
                verdict.count(f"servers that ended for want of a {what}")
                up.restart()
            up.until_it_answers()
            code = ended(process, 90)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        said = output.read_text()
        if code == 6 and any(word in said for word in WORDS):  # not admitted: nothing was promised
            verdict.count("runs refused")
            done = shell.process("run", "disk.yaml", "calm")
            code, said = done.returncode, said + done.stdout + done.stderr
        told += int(any(word in said for word in WORDS))
        verdict.check(refused, f"{where}: the server refused nothing: this round has no teeth")
        verdict.check(code == 0, f"{where}: exit {code}: {said}")
        verdict.check("Traceback" not in said, f"{where}: {said}")
        verdict.count(f"rounds with a full {what}")
        with psycopg.connect(up.address, autocommit=True) as hog:
            hog.execute("truncate public.hog")
            hog.execute("checkpoint")
    verdict.count("told by run on PostgreSQL", told)
    counts = Counter(marks.read_text().split())
    runs = json.loads(shell("runs", "--json", "--limit", "1000").stdout)
    verdict.check(
        len(counts) == STEPS * len(runs) and set(counts.values()) == {1},
        f"PostgreSQL, full {what}: {len(runs)} runs left these marks: {counts}",
    )
    listed = json.loads(shell("status", "--check", "--json").stdout)
    verdict.check(listed["ok"], f"PostgreSQL, full {what}: {listed}")


def _refusals(address: str, seconds: float) -> int:
    """Write and write meanwhile; how often the server could not."""
    refused, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with psycopg.connect(address, autocommit=True, connect_timeout=2) as hog:
                for _ in range(20):
                    hog.execute(
                        "insert into public.hog select repeat(md5(g::text), 50)"
                        " from generate_series(1, 3000) as g"
                    )
                    hog.execute("select pg_switch_wal()")
        except psycopg.Error:
            refused += 1
            time.sleep(0.2)
    return refused
