"""What a command makes of its own folder harms itself alone, and nothing of it stays."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qinglong_sql.apart import Apart, read_plain, remove, there
from qinglong_sql.evidence import RecordBroken, read_receipt
from qinglong_sql.holding import Held, held_of_journal
from qinglong_sql.worker import Worker
from tests.site import WORKER_PROGRAM, Site, descriptors, running, wait

ROOT = Path(__file__).parent.parent
# Root may read everything; without these two it is a user like any other.
AS_A_USER = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if not os.getuid() else []


def beside(site: Site, deed: str) -> str:
    """Start a run in which one step does the deed while another one runs."""
    site.path("deed.sh").write_text(f"D=$(dirname $QL_OUTPUT)\n{deed}\n")
    site.publish(
        """
        bad: {run: [sh, deed.sh]}
        other: {run: "sleep 0.5; echo other >> witness"}
        after: {run: "echo after >> witness", needs: [other]}
        """
    )
    return site.start()


@pytest.mark.parametrize(
    ("deed", "status", "code"),
    [
        ("mkdir $QL_OUTPUT", "failed", "bad_output"),
        ("ln -s /dev/zero $QL_OUTPUT", "failed", "bad_output"),
        ("rm $D/journal.json; mkdir $D/journal.json", "succeeded", None),
        ("rm $D/journal.json; mkfifo $D/journal.json", "succeeded", None),
        ("rm $D/journal.json; ln -s /dev/zero $D/journal.json", "succeeded", None),
        ("echo {} > $D/journal.json; mkdir -p $D/a/b; echo x > $D/a/b/c", "succeeded", None),
        ("rm $D/spec.json; mkfifo $D/spec.json", "succeeded", None),
        ("rm $D/launcher.sock; mkdir $D/launcher.sock", "succeeded", None),
        ("mkdir $D/receipt.json", "failed", "execution_lost"),
        ("mkfifo $D/receipt.json", "failed", "execution_lost"),
        ("echo '{\"attempt\": 1}' > $D/receipt.json", "failed", "execution_lost"),
        ("rm $D/spec.json; mkfifo $D/spec.json; kill -9 $PPID", "failed", "execution_lost"),
        ("rm -rf $D; mkdir -p kept; echo x > kept/x; ln -s $PWD/kept $D", "failed", None),
    ],
)
def test_what_a_step_breaks_harms_itself_alone(
    site: Site, deed: str, status: str, code: str | None
) -> None:
    run_id = beside(site, deed)
    run = site.finish(run_id, site.worker(lease_ms=5_000))
    assert site.errors == []
    assert site.step(run_id, "other")["status"] == "succeeded"
    assert site.lines("witness") == ["other", "after"]
    bad = site.step(run_id, "bad")
    assert (bad["status"], run["status"]) == (status, status)
    assert code is None or site.attempts(run_id)[0]["result_code"] == code
    assert not site.path("kept").exists() or site.lines("kept/x") == ["x"]
    site.drive(site.workers[0], lambda: site.folders() == [])


@pytest.mark.parametrize("deed", ["chmod 000 $D", "chmod 500 $D", "chmod 000 $D/..",
                                  "chmod 000 $D/../..", "mkdir $D/a; chmod 000 $D/a",
                                  "chmod 000 $D/journal.json"])  # fmt: skip
def test_rights_that_a_step_takes_away_are_given_back(site: Site, deed: str) -> None:
    argv = [*AS_A_USER, sys.executable, "-c", WORKER_PROGRAM, site.dsn, str(site.state), "5000"]
    run_id = beside(site, deed)
    one = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(ROOT)})
    site.processes.append(one)
    wait(lambda: site.run(run_id)["status"] != "running", "it ends")
    assert site.run(run_id)["status"] == "succeeded", site.told()
    wait(lambda: site.folders() == [], "all is removed")


def test_a_broken_folder_of_an_earlier_worker_is_put_aside_and_told_once(site: Site) -> None:
    folder = site.state / "exec" / "of-left"
    (folder / "journal.json").mkdir(parents=True)
    told: list[str] = []
    for _ in range(2):
        worker = site.worker(note=told.append)
        worker.settle()
        worker.close()
    assert site.folders() == [] and (site.state / "aside" / "of-left").exists()
    (words,) = told
    assert "aside/of-left" in words and "rm -r" in words


def test_a_folder_that_cannot_be_removed_is_put_aside_or_tried_rarely(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Path] = []

    def in_vain(folder: Path) -> bool:
        tries.append(folder)
        return False

    monkeypatch.setattr("qinglong_sql.leftover.remove", in_vain)
    told: list[str] = []
    site.publish("one: {run: 'true'}")
    run_id = site.start()
    assert site.finish(run_id, site.worker(note=told.append))["status"] == "succeeded"
    site.drive(site.workers[0], lambda: tries != [] and site.folders() == [])
    assert len(told) == len(tries) == 1
    shutil.rmtree(site.state / "aside")
    (site.state / "aside").write_text("in the way")
    run_id = site.start("again")
    assert site.finish(run_id, site.workers[0])["status"] == "succeeded"
    site.drive(site.workers[0], lambda: len(tries) == 2)
    for _ in range(5):
        site.workers[0].settle()
    assert len(tries) == len(told) == 2 and "cannot be put aside" in told[1]
    shutil.rmtree(site.state / "exec")


def test_an_error_about_one_execution_does_not_stop_the_others(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Held.look

    def short(held: Held) -> object:
        if held.step_key == "bad" and site.lines("witness") == []:
            raise OSError(24, "Too many open files")
        return look(held)

    monkeypatch.setattr(Held, "look", short)
    told: list[str] = []
    run_id = beside(site, "true")
    assert site.finish(run_id, site.worker(note=told.append))["status"] == "succeeded"
    assert site.errors == [] and len(told) == 1 and "Too many open files" in told[0]


def test_a_worker_that_could_not_take_over_is_none_and_tries_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object) -> None:
        raise OSError(28, "No space left on device")

    worker: Worker = site.worker()
    with monkeypatch.context() as patch:
        patch.setattr("qinglong_sql.leftover.Leftovers.take_over", refuse)
        with pytest.raises(OSError, match="No space"):
            worker.own()
    assert worker.own()


def test_a_receipt_that_was_there_before_is_believed_without_a_journal(site: Site) -> None:
    worker = site.worker()
    run_id = running(site, "one: {run: 'echo $$ > pid; sleep 0.3'}", worker)
    (held,) = worker.held.values()
    (held.folder / "journal.json").unlink()
    assert site.finish(run_id, worker)["status"] == "succeeded"


@pytest.mark.parametrize(
    "change",
    [{"offer": "another"}, {"fence": "1"}, {"number": True}, {"token": "\ud800"}, {"run_id": 1}],
)
def test_a_journal_that_we_cannot_have_written_is_not_believed(
    tmp_path: Path, change: dict[str, object]
) -> None:
    folder = tmp_path / "of1"
    folder.mkdir()
    record = {
        "attempt": "a", "run_id": "r", "step_key": "s", "number": 1, "offer": "of1",
        "fence": 1, "token": "t",
    }  # fmt: skip
    (folder / "journal.json").write_text(json.dumps(record))
    assert held_of_journal(folder)
    (folder / "journal.json").write_text(json.dumps(record | change))
    with pytest.raises(RecordBroken):
        held_of_journal(folder)
    for text in ("[" * 30_000, "x" * 100_000, "[]"):
        (folder / "receipt.json").write_text(text)
        with pytest.raises(RecordBroken):
            read_receipt(folder)


def test_reading_and_removing_leave_no_descriptor_and_follow_no_link(tmp_path: Path) -> None:
    before = descriptors()
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "x").write_text("x")
    (tmp_path / "link").symlink_to(kept)
    os.mkfifo(tmp_path / "pipe")
    for name in ("kept", "link", "pipe", "none"):
        with pytest.raises(OSError):
            read_plain(tmp_path / name, 10)
    assert read_plain(kept / "x", 10) == b"x"
    assert remove(tmp_path / "link") and remove(tmp_path / "pipe") and remove(tmp_path / "none")
    assert (kept / "x").exists() and not there(tmp_path / "link")
    assert descriptors() == before
    assert Apart(lambda words: None).put_aside(tmp_path / "exec" / "none", "gone") is False
