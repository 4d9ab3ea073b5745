"""The frame of the drills: options, gates, bounded waits, the report, an end that leaves nothing.

The whole drill, with its two nodes, is `.ci/run ha`. Here its frame runs phases of the test's own.
"""

import json
import os
import re
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from scripts.ha_audit import FOLDER, LISTS, sum_of, wanted
from tests.server import ROOT

DRILL = ROOT / "scripts" / "ha_drill.sh"
GATES = "first\tinfra\tThe first.\nsecond\tinfra\tThe second.\n# order: a b\n# limitation: Small.\n"


def run(*words: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", *words], env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


class Small:
    """A drill of two phases, `one` and `two`, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.report = folder, folder / "report.json"
        self.base = folder / "t"
        self.base.mkdir()
        (folder / "gates.txt").write_text(GATES)

    def script(self, one: str, two: str = "gate second true well", more: str = "") -> Path:
        path = self.folder / "drill.sh"
        path.write_text(
            f"set -euo pipefail\ndrill=small\ngates_file={self.folder}/gates.txt\n"
            f"source {FOLDER}/gate.sh\nphases=($'one\\tthe first' $'two\\tthe second')\n{more}\n"
            f"phase_one() {{ {one}\n}}\nphase_two() {{ {two}\n}}\n"
            'drill_usage() { echo usage; }\ndrill_main "$@"\n'
        )
        return path

    def run(self, one: str, *words: str, two: str = "gate second true well", more: str = "",
            code: int = 0) -> str:  # fmt: skip
        done = run(self.script(one, two, more), "--report", self.report, *words,
                   env={"TMPDIR": str(self.base)})  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        assert "--keep" in words or list(self.base.iterdir()) == []
        return done.stdout + done.stderr

    def told(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.report.read_text())
        return found


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return Small(tmp_path)


# -- the drill's own words


def test_list_names_every_phase_gate_and_sabotage() -> None:
    said = run(DRILL, "--list")
    assert said.returncode == 0, said.stderr
    for word in ("nodes", "fence", "promote", "replay", "violationEmpty", "local-commit"):
        assert f" {word}" in said.stdout
    listed = [line for line in (FOLDER / "gates.txt").read_text().splitlines()
              if line and not line.startswith("#")]  # fmt: skip
    assert all(f"  {line.split(chr(9))[0]}\n" in said.stdout for line in listed)


def test_help_is_the_head_of_the_script() -> None:
    said = run(DRILL, "--help")
    assert said.returncode == 0
    assert said.stdout.startswith("The failover drill")
    assert "--sabotage NAME" in said.stdout
    assert "#" not in said.stdout


def test_each_gate_is_one_sentence_in_a_list_without_doubles() -> None:
    for path in FOLDER.glob("gates*.txt"):
        rows = [line.split("\t") for line in path.read_text().splitlines()
                if line and not line.startswith("#")]  # fmt: skip
        assert all(len(row) == 3 and row[2].endswith(".") for row in rows), path
        assert len({row[0] for row in rows}) == len(rows), path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nonsense"], "what is '--nonsense'?"),
        (["--only"], "--only needs a word"),
        (["--only", "lunch"], "no phase is called 'lunch'"),
        (["--sabotage", "lunch"], "no sabotage is called 'lunch'"),
        (["--rounds", "2"], "there is no --rounds in this drill"),
        (["--runs", "2"], "there is no --runs in this drill"),
        (["--failovers", "2"], "there is no --failovers in this drill"),
        (["--report", "/tmp"], "--report /tmp is a folder"),
        (["--report", "/tmp/none/"], "--report /tmp/none/ is a folder"),
        (["--report", "/proc/none.json"], "cannot write"),
        (["--bindir", "/nowhere"], "--bindir: no postgres psql"),
        (["--report", "/nowhere/at/all.json"], "cannot write into /nowhere/at"),
        (["--only", "cut", "--sabotage", "fresh-key"], "one of --only and --sabotage"),
    ],
)
def test_a_wrong_call_is_refused_before_anything_begins(words: list[str], said: str) -> None:
    done = run(DRILL, *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("drill", "words", "said"),
    [
        ("ha_clock", ["--only", "load"], "no --only here"),
        ("ha_clock", ["--runs", "0"], "--runs is a number from 1 on"),
        ("ha_partition", ["--only", "cut"], "no --only here"),
        ("ha_patroni", ["--runs", "2"], "there is no --runs in this drill"),
        ("ha_patroni", ["--failovers", "x"], "--failovers is a number from 1 on"),
    ],
)
def test_each_drill_knows_its_own_options(drill: str, words: list[str], said: str) -> None:
    done = run(ROOT / "scripts" / f"{drill}.sh", *words)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def programs(folder: Path, version: str) -> Path:
    """A folder of programs that know their names and nothing else."""
    for name in ("postgres", "psql", "initdb", "pg_basebackup", "pg_rewind", "pg_controldata"):
        (folder / name).write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {version}'\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize("version", ["9.6", "14.20", "19.1"])
@pytest.mark.parametrize("by", ["--bindir", "PG_BINDIR"])
def test_a_postgresql_that_is_too_old_or_too_new_is_a_wrong_call(
    tmp_path: Path, version: str, by: str
) -> None:
    folder = programs(tmp_path, version)
    done = run(DRILL, *(["--bindir", folder] if by == "--bindir" else []),
               env={"PG_BINDIR": str(folder)})  # fmt: skip
    assert done.returncode == 2
    assert f"{by}: {folder} has PostgreSQL {version}, not 15 to 18" in done.stderr


@pytest.mark.parametrize("product", ["/bin/true", "/bin/false", "/nowhere/qinglong-sql"])
def test_another_program_than_the_product_is_refused_at_once(product: str) -> None:
    done = run(DRILL, env={"QINGLONG_SQL": product})
    assert (done.returncode, done.stdout) == (2, "")
    assert f"QINGLONG_SQL={product} is no" in done.stderr


@pytest.mark.parametrize("name", ["/nowhere", "a'b", 'a"b', "a$b", "a:b", "a\\b", "a#b", "a\nb"])
def test_a_temporary_folder_that_cannot_be_is_told(small: Small, name: str) -> None:
    folder = small.base / name
    folder.mkdir(exist_ok=True) if name != "/nowhere" else None
    done = run(small.script("true"), env={"TMPDIR": str(folder)})
    assert done.returncode == 77
    assert f"small: cannot run here: TMPDIR={folder}" in done.stderr
    assert "none of 2 gates was reached" in done.stdout


def test_a_temporary_folder_with_a_blank_will_do(small: Small) -> None:
    (folder := small.base / "größer als 1").mkdir()
    done = run(small.script("gate first true 'so it is'"), env={"TMPDIR": str(folder)})
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("drill", LISTS)
def test_posix_sh_is_told_that_it_takes_bash(drill: str) -> None:
    done = subprocess.run(["sh", ROOT / "scripts" / f"{drill}.sh", "--list"], check=False,
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    if done.returncode != 0:  # else sh is bash
        assert (done.returncode, "needs bash" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("drill", LISTS)
def test_the_list_of_gates_names_the_phases_of_its_drill(drill: str) -> None:
    said = run(ROOT / "scripts" / f"{drill}.sh", "--list").stdout.partition("\nGates\n")[0]
    listed = [line.split()[1] for line in said.splitlines()[1:] if line]
    assert wanted(FOLDER / LISTS[drill]).phases == tuple(listed)


# -- gates and the report


def test_a_drill_whose_gates_are_all_true_passes(small: Small) -> None:
    said = small.run("gate first true 'so it is'; event a; figure runs 3")
    assert " 1 one: the first" in said
    assert "  ok    first: so it is" in said
    told = small.told()
    assert told["gates"] == {"first": True, "second": True}
    assert told["passed"] is True
    assert told["figures"] == {"runs": 3}
    assert told["limitations"] == ["Small."]
    assert stat.S_IMODE(small.report.stat().st_mode) == 0o600


def test_a_false_gate_fails_the_drill_and_stays_false(small: Small) -> None:
    said = small.run("gate first false; gate first true 'later'", code=1)
    assert "FALSE first" in said
    assert small.told()["gates"] == {"first": False, "second": True}
    assert small.told()["passed"] is False


def test_a_gate_that_was_not_reached_is_false(small: Small) -> None:
    assert "not reached: first" in small.run("true", code=1)
    assert small.told()["notReached"] == ["first"]
    assert small.told()["gates"] == {"first": False, "second": True}


@pytest.mark.parametrize("code", [2, 3, 77, 130, 143])
def test_what_a_program_inside_ended_with_is_not_how_the_drill_ends(
    small: Small, code: int
) -> None:
    said = small.run(f"gate first true\n(exit {code})", code=1)
    assert "(exit 1, phase one)" in said
    small.run(f"said=$(exit {code})", code=1)
    assert small.told()["passed"] is False


@pytest.mark.parametrize(("end", "code"), [("refuse x", 2), ("cannot x", 77), ("die x", 1)])
def test_an_early_end_counts_the_gates_instead_of_naming_them(
    small: Small, end: str, code: int
) -> None:
    said = small.run("true", more=f"drill_begin() {{ {end}; }}", code=code)
    assert f"(exit {code}, phase none): none of 2 gates was reached" in said
    assert "not reached:" not in said
    assert small.report.exists() == (code != 2)


def test_of_many_gates_that_were_not_reached_a_few_are_named(small: Small) -> None:
    more = "".join(f"g{number}\tinfra\tMore.\n" for number in range(9))
    script = small.script("die enough", more="drill_begin() { gate first true x; }")
    (small.folder / "gates.txt").write_text(GATES + more)
    done = run(script, env={"TMPDIR": str(small.base)})
    assert "not reached: second g0 g1 g2 g3 and 5 more\n" in done.stdout


def test_a_report_says_which_drill_made_it(small: Small) -> None:
    small.run("gate first true x")
    assert re.fullmatch("[0-9a-f]{64}", str(small.told()["drillSum"]))
    assert re.fullmatch("None|[0-9a-f]{40}", str(small.told()["commit"]))


def test_drill_and_audit_make_the_same_sum(small: Small) -> None:
    said = small.run("gate first true x; drill=ha_drill; which_drill; echo sum $drill_sum")
    assert f"sum {sum_of('ha_drill')}\n" in said


@pytest.mark.parametrize("one", ["gate third true x", "gate first maybe x", "die enough", "false"])
def test_a_drill_that_cannot_go_on_has_not_passed(small: Small, one: str) -> None:
    said = small.run(f"gate first true\n{one}", code=1)
    assert "the drill did not come to its end (exit 1, phase one)" in said
    assert small.told()["passed"] is False
    assert small.told()["notReached"] == ["second"]


def test_only_one_phase_asks_only_its_gates(small: Small) -> None:
    small.run("gate first true", "--only", "two", more="declare -A needs=([two]='')")
    assert small.told()["gates"] == {"second": True}
    assert small.told()["only"] == "two"


def test_judge_takes_the_exit_code_and_must_ends_a_wait_in_vain(small: Small) -> None:
    said = small.run("judge first same-words same a b\n must 1 'a thing' false", code=1)
    assert "FALSE first: same-words" in said
    assert "wanted a, found b" in said
    assert "in vain for 1 s: a thing" in said


def test_words_with_quotes_and_controls_stay_json(small: Small) -> None:
    small.run("gate first true $'a \"b\" \\\\ c\\td\\ne'")
    assert small.told()["seen"]["first"] == 'a "b" \\ c d e'  # type: ignore[index]


def test_a_report_with_a_password_is_not_published(small: Small) -> None:
    small.run("echo hunter2 >$scratch/secrets; gate first true 'it is hunter2'", code=1)
    assert not small.report.exists()


# -- the end


def as_a_terminal() -> None:
    """Signals as a shell at a terminal gives them to its programs; Python ignores PIPE."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_neither_child_nor_folder(small: Small, number: signal.Signals) -> None:
    script = small.script('spawn sleeper sleep 600; echo "${child[sleeper]}"; must 60 it false')
    with subprocess.Popen(
        ["bash", script, "--report", small.report], env={**os.environ, "TMPDIR": str(small.base)},
        stdout=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=as_a_terminal,
    ) as drill:  # fmt: skip
        assert drill.stdout is not None
        assert "one" in drill.stdout.readline()
        child = int(drill.stdout.readline())
        os.killpg(drill.pid, number)
        assert drill.wait(20) == 128 + number
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert list(small.base.iterdir()) == []
    assert small.told()["passed"] is False


@pytest.mark.parametrize("number", [0, signal.SIGINT])
def test_a_reader_that_has_gone_leaves_nothing_behind(small: Small, number: int) -> None:
    """Such as `| head`, or a `| tee` that Ctrl-C ends as well."""
    script = small.script("must 60 it false; echo more" if number else "sleep 0.3; echo more")
    with subprocess.Popen(
        ["bash", script, "--report", small.report], env={**os.environ, "TMPDIR": str(small.base)},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        preexec_fn=as_a_terminal,
    ) as drill:  # fmt: skip
        assert drill.stdout is not None
        assert "one" in drill.stdout.readline()
        drill.stdout.close()
        if number:
            os.killpg(drill.pid, number)
        assert drill.wait(20) in (1, 130, 141)  # whichever of its words was the first in vain
    assert list(small.base.iterdir()) == []
    assert small.told()["passed"] is False


def test_a_killed_drill_takes_its_children_along(small: Small) -> None:
    script = small.script('spawn sleeper sleep 600; echo "${child[sleeper]}"; must 60 it false')
    with subprocess.Popen(
        ["bash", script], env={**os.environ, "TMPDIR": str(small.base)},
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    ) as drill:  # fmt: skip
        assert drill.stdout is not None
        drill.stdout.readline()
        child = int(drill.stdout.readline())
        while Path(f"/proc/{child}/comm").read_text() != "sleep\n":
            time.sleep(0.01)  # it is only just forked
        os.killpg(drill.pid, signal.SIGKILL)
    end = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and time.monotonic() < end:
        if ") Z " in Path(f"/proc/{child}/stat").read_text():
            break
        time.sleep(0.02)
    else:
        assert not Path(f"/proc/{child}").exists()


def test_keep_keeps_the_folder(small: Small) -> None:
    said = small.run("gate first true; echo x >$scratch/x", "--keep")
    (kept,) = small.base.iterdir()
    assert f"kept: {kept}" in said
    assert (kept / "x").read_text() == "x\n"
