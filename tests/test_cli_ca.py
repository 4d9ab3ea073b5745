"""`ca`: from the first command to the last, and what it says when something is wrong."""

import importlib.util
import json
from pathlib import Path

import pytest

from qinglong_sql import ca
from tests.shell import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path, "sqlite:///never.db")


def test_commands_from_the_first_to_the_last(shell: Shell, tmp_path: Path) -> None:
    said = shell("ca", "init", "my ca").stdout
    assert said.startswith("made an authority in my ca, good until 20")
    assert "qinglong-sql ca issue 'my ca' ingress --server --host HOST" in said
    assert "no certificate yet" in shell("ca", "list", "my ca").stdout
    done = shell("ca", "issue", "my ca", "w1")
    assert done.returncode == 0 and done.stdout.startswith("issued w1 (client, ")
    assert "w1/w1.key (nobody else may read it)" in done.stdout
    host = ("--host", "localhost", "--host", "127.0.0.1")
    done = shell("ca", "issue", "my ca", "door", "--server", *host, "--out", "d", "--json")
    told = json.loads(done.stdout)
    assert told["kind"] == "server" and told["hosts"] == ["localhost", "127.0.0.1"]
    assert told["certificate"] == "d/door.crt" and (tmp_path / "d" / "door.key").exists()
    done = shell("ca", "issue", "my ca", "w1")
    assert done.returncode == 5 and "has a certificate that is good until" in done.stderr
    assert shell("ca", "renew", "my ca", "w1", "--days", "10").stdout.startswith("renewed w1")
    lines = shell("ca", "list", "my ca").stdout.splitlines()
    assert lines[0].split() == ["NAME", "KIND", "SERIAL", "UNTIL", "STANDING", "HOSTS"]
    assert len(lines) == 4, "a name with a certificate for longer needs nothing"
    shell("ca", "issue", "my ca", "w2", "--days", "10")
    (soon,) = [x for x in shell("ca", "list", "my ca").stdout.splitlines() if " ends " in x]
    assert soon.startswith("w2 ends ") and soon.endswith(": qinglong-sql ca renew 'my ca' w2")
    assert "copy it to where an ingress reads a copy" in shell("ca", "revoke", "my ca", "w2").stdout
    assert "revoked already" in shell("ca", "revoke", "my ca", "w2").stdout
    rows = json.loads(shell("ca", "list", "my ca", "--json").stdout)["certificates"]
    standing = {(row["name"], row["standing"], row["ends_soon"]) for row in rows}
    assert standing == {("w1", "good", False), ("door", "good", False), ("w2", "revoked", False)}
    done = shell("ca", "revoke", "my ca", told["serial"], "--json")
    assert json.loads(done.stdout)["certificates"][0]["name"] == "door"


def test_a_request_names_itself(shell: Shell, tmp_path: Path) -> None:
    shell("ca", "init", "ca")
    (tmp_path / "w.csr").write_bytes(ca.new_request("w")[1])
    done = shell("ca", "issue", "ca", "--csr", "w.csr", "--json")
    told = json.loads(done.stdout)
    assert (told["name"], told["key"]) == ("w", None)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("init", "ca"), 5, "refused: ca is there already"),
        (("issue", "none", "w"), 5, "refused: there is no authority in none"),
        (("list", "none"), 5, "refused: there is no authority in none"),
        (("issue", "ca"), 2, "NAME is missing"),
        (("issue", "ca", "../w"), 2, "'../w' is no name"),
        (("issue", "ca", "w", "--csr", "none.csr"), 2, "none.csr: No such file or directory"),
        (("issue", "ca", "w", "--csr", "ca/ca.crt"), 5, "refused: the request: it is no request"),
        (("issue", "ca", "w", "--days", "0"), 2, "0 is not in the range"),
        (("issue", "ca", "w", "--host", "h"), 2, "say --server"),
        (("issue", "ca", "i", "--server"), 2, "say --host HOST"),
        (("renew", "ca", "w"), 5, "refused: 'w' has no certificate"),
        (("revoke", "ca", "w"), 5, "refused: no certificate has the name"),
    ],
)
def test_what_goes_wrong_is_told_in_words(
    shell: Shell, words: tuple[str, ...], code: int, said: str
) -> None:
    shell("ca", "init", "ca")
    done = shell("ca", *words)
    assert done.returncode == code and said in done.stderr and done.stdout == ""


def test_a_harmed_file_and_a_library_that_is_not_there(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell("ca", "init", "ca")
    (tmp_path / "ca" / "issued.json").write_text("{")
    for words in (("list", "ca"), ("issue", "ca", "w"), ("revoke", "ca", "w")):
        done = shell("ca", *words)
        assert done.returncode == 2 and done.stderr.startswith("ca/issued.json: "), words
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = shell("ca", "list", "ca")
    assert done.returncode == 6
    assert "cryptography is not installed: pip install 'qinglong-sql[ingress]'" in done.stderr


def test_an_authority_without_its_certificate_is_told_to_put_it_back(
    shell: Shell, tmp_path: Path
) -> None:
    shell("ca", "init", "ca")
    (tmp_path / "ca" / "ca.crt").unlink()
    for words in (("list", "ca"), ("issue", "ca", "w"), ("revoke", "ca", "w")):
        done = shell("ca", *words)
        said = "ca/ca.crt is missing: put a backup of it back"
        assert done.returncode == 2 and said in done.stderr, words


def test_who_renews_after_a_revocation_is_told_of_another_folder(shell: Shell) -> None:
    for words in (("init", "ca"), ("issue", "ca", "w"), ("revoke", "ca", "w")):
        assert shell("ca", *words).returncode == 0
    done = shell("ca", "renew", "ca", "w")
    assert done.returncode == 5 and "`ca issue ca w --out FOLDER`" in done.stderr
    assert shell("ca", "issue", "ca", "w", "--out", "other").returncode == 0


def test_a_narrow_list_leaves_out_what_has_no_room(shell: Shell) -> None:
    shell("ca", "init", "ca")
    shell("ca", "issue", "ca", "w")
    narrow = shell("ca", "list", "ca", env={"COLUMNS": "30"}).stdout.splitlines()
    assert narrow[0].split() == ["NAME", "UNTIL"]
    assert narrow[2:] == ["    good"] and max(map(len, narrow)) <= 30
    assert "SERIAL" in shell("ca", "list", "ca", env={"COLUMNS": "80"}).stdout


def test_no_key_is_ever_told(shell: Shell, tmp_path: Path) -> None:
    said = shell("ca", "init", "ca").stdout
    for words in (("issue", "ca", "w"), ("renew", "ca", "w", "--json"), ("list", "ca", "--json")):
        done = shell("ca", *words)
        said += done.stdout + done.stderr
    for path in (tmp_path / "ca" / "ca.key", tmp_path / "w" / "w.key"):
        assert path.read_text().splitlines()[1] not in said
    assert "PRIVATE" not in said and "PRIVATE" not in (tmp_path / "ca" / "issued.json").read_text()
