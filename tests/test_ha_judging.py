"""The drills' judges: who wants to hear nothing does not take a failure for it.

The fixtures' own judging functions, in front of a psql of the test's own, which answers a file with
the words of its name or fails.
"""

import os
import subprocess
from pathlib import Path

import pytest

from scripts.ha_audit import FOLDER

PSQL = """#!/usr/bin/env bash
file=none judge=no
while [ $# -gt 0 ]; do
  case $1 in
    file=*) file=${1#file=} ;;
    */judge.sql) judge=yes ;;
  esac
  shift
done
text=$(cat)
[ ! -e "$ANSWERS/$file" ] || cat "$ANSWERS/$file"
case $HOW in
  error) echo "psql:/x/$file:3: ERROR:  42P01: no such view" >&2; exit 3 ;;
  gone) echo "psql: error: connection refused" >&2; exit 2 ;;
  early) exit 0 ;;
  late) echo asked; exit 3 ;;
esac
[ $judge = no ] && [[ $text != *'\\echo asked' ]] || echo asked
"""
ROWS = "run|9|0123456789abcdef\n"
FAILURES = ["error", "gone", "early", "late"]


def judged(folder: Path, phase: str, how: str = "well", answers: dict[str, str] | None = None,
           gate: str = "first") -> tuple[str, str]:  # fmt: skip
    """How the gate was judged, and the words beside it."""
    psql = folder / "psql"
    psql.write_text(PSQL)
    psql.chmod(0o755)
    for file, words in (answers or {}).items():
        (folder / file).write_text(words)
    script = folder / "drill.sh"
    (folder / "gates.txt").write_text(f"{gate}\tinfra\tA gate.\n")
    script.write_text(
        f"set -euo pipefail\ndrill=small\ngates_file={folder}/gates.txt\nsource {FOLDER}/gate.sh\n"
        f"source {FOLDER}/node.sh\nsource {FOLDER}/fixture.sh\nphases=($'one\\tthe only one')\n"
        f"drill_begin() {{ bin={folder} pg_env=(env); node_at alpha 127.0.0.1 1\n"
        "  fixture_folder=$scratch/fixture; mkdir $fixture_folder; }\n"
        f'eval "told_now() $(declare -f told | sed 1d)"\n'
        f'phase_one() {{ {phase}\ntold_now {gate} well; }}\ndrill_main "$@"\n'
    )
    done = subprocess.run(
        ["bash", script], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        env={**os.environ, "TMPDIR": str(folder), "ANSWERS": str(folder), "HOW": how}, timeout=60,
    )  # fmt: skip
    line = next(s for s in done.stdout.splitlines() if f" {gate}: " in s)
    assert done.returncode == (0 if "ok" in line else 1), done.stdout + done.stderr
    return line.split()[0], line.partition(": ")[2]


FINDS = "finds first 'violations on alpha' nothing alpha violation"
ALIKE = 'rows_now=""; look alpha; unmoved first alpha "a torn start"'


def test_a_judge_that_finds_nothing_has_been_asked(tmp_path: Path) -> None:
    assert judged(tmp_path, FINDS) == ("ok", "well")


def test_a_judge_that_finds_something_is_false(tmp_path: Path) -> None:
    said = judged(tmp_path, FINDS, answers={"violation.sql": "two_heads ru1\n"})
    assert said == ("FALSE", "violations on alpha: wanted 'nothing', found 'two_heads ru1'")


@pytest.mark.parametrize("how", FAILURES)
def test_a_judge_that_fails_is_false_and_says_why(tmp_path: Path, how: str) -> None:
    truth, words = judged(tmp_path, FINDS, how)
    assert truth == "FALSE"
    assert words.startswith("violations on alpha could not be asked (exit ")
    assert how != "error" or "42P01" in words


def test_a_question_in_words_that_fails_is_no_answer(tmp_path: Path) -> None:
    words = "finds first 'the claim' nothing alpha -c 'select 1 where false'"
    assert judged(tmp_path, words) == ("ok", "well")
    assert judged(tmp_path, words, "late")[0] == "FALSE"


def test_rows_that_are_as_they_were_have_not_moved(tmp_path: Path) -> None:
    assert judged(tmp_path, ALIKE, answers={"digest.sql": ROWS}) == ("ok", "well")


@pytest.mark.parametrize("how", FAILURES)
def test_two_digests_that_failed_are_not_alike(tmp_path: Path, how: str) -> None:
    truth, words = judged(tmp_path, ALIKE, how, {"digest.sql": ROWS})
    assert truth == "FALSE"
    assert "a torn start: the digest could not be asked" in words


def test_two_digests_of_nothing_are_not_alike(tmp_path: Path) -> None:
    assert judged(tmp_path, ALIKE)[0] == "FALSE"
    assert judged(tmp_path, "alike first 'the promotion' '' ''")[0] == "FALSE"


def test_an_empty_answer_is_never_what_was_wanted(tmp_path: Path) -> None:
    assert judged(tmp_path, 'expect first "settle, repeated" "" ""')[0] == "FALSE"


@pytest.mark.parametrize("gate", ["violationEmpty", "replayAddsNothing"])
def test_no_count_and_no_violation_is_true_by_a_failure(tmp_path: Path, gate: str) -> None:
    # the other of the two is in no list here: it is told to nobody
    counts = "told() { :; }\nfixture_counts alpha"
    assert judged(tmp_path, counts, gate=gate)[0] == "ok"
    assert judged(tmp_path, counts, "error", gate=gate)[0] == "FALSE"
