r"""Every command in a code block of a README is run, from top to bottom, as a reader would.

What the author of a page must keep to:

| In the page | Means here |
|---|---|
| a block ```` ``` ````, ```` ```sh ```` or ```` ```console ```` | commands, run in order in one empty folder a page |
| a bare block without a program of PROGRAMS at the start of a line | a picture, not run; ```` ```text ```` never is |
| in `sh` or bare: one command a line | `\` at the end joins lines, `<<EOF` works, `# words` are for people |
| in `console`: `$ command`, then what it prints | compared: `…` stands for anything in a line, a line `…` for any lines |
| `# exits 3` behind a command | its exit code, otherwise 0 |
| a block of any other language right below a line that ends in `` `name`: `` | that file |
| `RUN`, `ATTEMPT` | the newest run of the page (for `cancel` an open one, for `retry` one that failed), an attempt past the start barrier |
| `DATABASE`, `LOGIN`, `postgresql://…@host/…` | a fresh database of the tests' own server, a login of no rights |
| `qinglong-sql edge` alone on a line, or with `&` | stays until the next `## `, then gets a TERM and must exit with 0 |
| a command that no test can run | a row in NOT_RUN, with the reason; a row that nothing needs any more fails |

`sql/` and `migrations/` of the tree are in the folder, `crontab -l` prints CRONTAB, and the
environment is clean: PATH, HOME, LANG, TZ=UTC, COLUMNS=80. `cd` and `export` last to the page's end.
"""  # noqa: E501

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import psycopg
import pytest

from qinglong_sql.cli import main
from qinglong_sql.store import open_store
from tests import acting
from tests.server import ROOT, Server
from tests.shell import Done, Shell
from tests.site import kill_all_of

PAGES = [
    page
    for page in ("README.md", "sql/README.md", "migrations/README.md", "scripts/README.md")
    if (ROOT / page).exists()
]
# pattern of the whole command: why no test runs it
NOT_RUN = {
    r"scripts/demo": "makes a virtual environment of its own, which asks a package index",
    r"scripts/test": "the same, and it runs this test",
    r"scripts/ha_drill\.sh .*": "makes servers and takes a minute: the gate `ha` runs it",
    r"python3 scripts/ha_audit\.py .*": "reads the report of the line before it",
    r"python3 -m venv .*pip install .*": "asks a package index",
    r"\. \.venv/bin/activate": "the environment of the line before it",
}
PROGRAMS = (
    "qinglong-sql", "psql", "python", "python3", "pip", "scripts/", ".ci/", ". ", "git", "crontab",
    "cat", "cd", "cp", "curl", "export", "sudo", "systemctl", "apt", "sqlite3", "echo", "mkdir",
    "docker", "source", "issues", "ls", "install",
)  # fmt: skip
COMMANDS = ("", "sh", "bash", "shell")
CRONTAB = "MAILTO=ann\n# nightly backup\n0 3 * * * /usr/local/bin/backup --full\n"
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"`([\w./-]*\.\w+)`[^`\n]*:\s*$")  # `migrate` is no file
HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)")
SHELL_SIGNS = re.compile(r"[|&;<>()$`*?~\\]|^[A-Z_]+=")
STAYS = re.compile(
    r"qinglong-sql (edge|ingress|worker(?= --)|control(?!.*--print-settings))\b[^|;]*"
)
WITHIN_S = 90


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, the line of its text, the line above it, and its section."""

    page: str
    language: str
    line: int
    text: str
    above: str
    section: int


@dataclass(frozen=True, slots=True)
class Command:
    """What a reader types; `output` is what the page says it prints, None when it says nothing."""

    where: str
    text: str
    code: int = 0
    output: str | None = None

    @property
    def not_run(self) -> str:
        plain = re.sub(r"\s+# .*", "", self.text).strip()
        return next((pattern for pattern in NOT_RUN if re.fullmatch(pattern, plain)), "")


def blocks(page: str) -> Iterator[Block]:
    text = (ROOT / page).read_text()
    for found in FENCE.finditer(text):
        before = text[: found.start()].rstrip("\n")
        line = text.count("\n", 0, found.start(3)) + 1
        body = re.sub(rf"^{found[1]}", "", found[3], flags=re.MULTILINE)
        above, section = before.rpartition("\n")[2], before.count("\n## ")
        yield Block(page, found[2], line, body, above, section)


def named_file(block: Block) -> str:
    """The name of the file that the block is, or nothing."""
    found = NAMED.search(block.above)
    return found[1] if found and block.language not in ("sh", "bash", "console") else ""


def commands(block: Block) -> Iterator[Command]:
    if block.language == "console":
        yield from console(block)
    elif (
        block.language in COMMANDS
        and not named_file(block)
        and (block.language or any(map(is_program, block.text.splitlines())))
    ):
        yield from script(block)


def is_program(line: str) -> bool:
    first = line.split(" ")[0]
    return any(line.startswith(word) if word[-1] in "/ " else first == word for word in PROGRAMS)


def script(block: Block) -> Iterator[Command]:
    lines = iter(enumerate(block.text.splitlines(), start=block.line))
    for number, text in lines:
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        while text.endswith("\\"):
            text += "\n" + next(lines)[1]
        if heredoc := HEREDOC.search(text):
            for _, more in lines:
                text += "\n" + more
                if more.strip() == heredoc[1]:
                    break
        yield command(block, number, text, None)


def console(block: Block) -> Iterator[Command]:
    parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    number = block.line + parts[0].count("\n")
    for part in parts[1:]:
        text, _, output = part.partition("\n")
        yield command(block, number, text, output)
        number += part.count("\n")


def command(block: Block, number: int, text: str, output: str | None) -> Command:
    code = re.search(r"# .*\bexits (\d+)", text)
    return Command(f"{block.page}:{number}", text, int(code[1]) if code else 0, output)


@dataclass(slots=True)
class Reader:
    """Somebody who reads a page and types what it says."""

    folder: Path
    server: Server | None = None
    words: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    cwd: Path = Path()
    staying: list[tuple[str, "subprocess.Popen[bytes]"]] = field(default_factory=list)
    made: int = 0

    def prepare(self) -> None:
        """An empty folder with the tree's SQL in it, and a clean environment."""
        here = self.folder / "here"
        programs = self.folder / "bin"
        for folder in (here, programs, self.folder / "home"):
            folder.mkdir()
        for name in ("sql", "migrations"):
            (here / name).symlink_to(ROOT / name)
        self.program("qinglong-sql", f'exec {sys.executable} -m qinglong_sql "$@"')
        self.program("crontab", f"printf %s {shlex.quote(CRONTAB)}")
        path = [str(programs), "/usr/local/bin", "/usr/bin", "/bin"]
        self.env = {
            "HOME": str(self.folder / "home"),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "COLUMNS": "80",
            "PYTHONPATH": str(ROOT),
        }
        if self.server is not None:
            path.insert(1, str(self.server.binaries.folder))
            self.env |= {
                "PGHOST": "127.0.0.1",
                "PGPORT": str(self.server.entry or self.server.port),
                "PGUSER": "postgres",
                "PGPASSWORD": self.server.password,
            }
        self.env["PATH"] = ":".join(path)
        self.cwd = here

    def program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def follow(self, page: str) -> None:
        """Do all that the page says. Fails with the place of what went wrong."""
        section = 0
        for block in blocks(page):
            if block.section != section:
                section = block.section
                self.end()
            if name := named_file(block):
                path = self.cwd / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text)
            for one in commands(block):
                if not one.not_run:
                    self.type(one)
        self.end()

    def type(self, one: Command) -> None:
        text = self.substituted(one.text)
        if STAYS.fullmatch(re.sub(r"\s+# .*", "", text).strip()):
            self.stay(one.where, text)
            return
        done = self.called(text, merged=one.output is not None)
        told = f"{one.where}: {text}\n{done.stdout}{done.stderr}"
        assert done.returncode == one.code, f"exit {done.returncode}, not {one.code}: {told}"
        assert "Traceback" not in told, told
        if one.output is not None:
            assert like(one.output, done.stdout), f"{told}\nnot:\n{one.output}"

    def called(self, text: str, *, merged: bool) -> Done:
        """Run it in a shell; a plain command of ours that only looks is called in this process."""
        if not merged and not SHELL_SIGNS.search(text.partition(" #")[0]):
            words = shlex.split(text, comments=True)
            if words[0] == "qinglong-sql" and words[1:2] not in ([], ["run"], ["watch"]):
                return Shell(self.cwd, "", env=self.env | self.without_dsn())(*words[1:])
        state = self.folder / "state"
        ending = f"\n_code=$?; pwd > {state}.cwd; env -0 > {state}.env; exit $_code"
        done = subprocess.run(
            ["bash", "-c", text + ending], cwd=self.cwd, env=self.env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            text=True, timeout=WITHIN_S, check=False,
        )  # fmt: skip
        self.cwd = Path(Path(f"{state}.cwd").read_text().rstrip("\n"))
        pairs = Path(f"{state}.env").read_text().split("\0")
        self.env = dict(pair.split("=", 1) for pair in pairs if pair and not pair.startswith("_"))
        return Done(done.args, done.returncode, done.stdout, done.stderr or "")

    def without_dsn(self) -> dict[str, str]:
        """What `Shell` sets for tests and a reader does not have."""
        default = "sqlite:///.qinglong/qinglong.db"
        return {"QINGLONG_DSN": self.env.get("QINGLONG_DSN", default)}

    def stay(self, where: str, text: str) -> None:
        plain = re.sub(r"\s+# .*", "", text).strip().rstrip("&")
        said = self.folder / "stays"
        with said.open("ab") as sink:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {plain}"], cwd=self.cwd, env=self.env, stdout=sink,
                stderr=sink, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self.staying.append((f"{where}: {text}", process))
        size, until = said.stat().st_size, time.monotonic() + 20
        while said.stat().st_size == size and time.monotonic() < until:  # it greets, or not
            time.sleep(0.02)

    def end(self) -> None:
        """End what stays; it was still there and leaves in good order."""
        while self.staying:
            told, process = self.staying.pop()
            if process.poll() is None:
                process.terminate()
            code = process.wait(WITHIN_S)
            assert code == 0, f"exit {code}: {told}\n{(self.folder / 'stays').read_text()}"

    # -- placeholders

    def substituted(self, text: str) -> str:
        for word, meant in self.words.items():
            text = text.replace(word, meant)
        if re.search(r"\bATTEMPT\b", text):
            text = re.sub(r"\bATTEMPT\b", self.started_attempt(text), text)
        if re.search(r"\bRUN\b", text):
            text = re.sub(r"\bRUN\b", self.run_for(text), text)
        return text

    def dsn_of(self, text: str) -> str:
        found = re.search(r"--dsn[ =](\S+)", text)
        dsn = found[1] if found else self.without_dsn()["QINGLONG_DSN"]
        place = dsn.removeprefix("sqlite:///")
        return dsn if place == dsn else f"sqlite:///{self.cwd / place}"

    def run_for(self, text: str) -> str:
        """The newest run that the page made, as the command in which it stands wants it."""
        rows = self.runs(text)
        if re.search(r"\bretry RUN", text):
            rows = [row for row in rows if row["status"] == "failed"] or rows
        if re.search(r"\bcancel RUN", text):
            return self.open_run(text)
        assert rows, f"there is no run yet: {text}"
        return str(rows[0]["run_id"])

    def runs(self, text: str) -> list[dict[str, Any]]:
        with closing(open_store(self.dsn_of(text))) as store:
            rows = store.read("run_state", order="admitted_at_ms desc, run_id")
        return [row for row in rows if not row["run_key"].startswith("reader ")]

    def open_run(self, text: str) -> str:
        """Another run of what ran last, which nobody drives."""
        like_it = self.runs(text)[0]
        self.made += 1
        with closing(open_store(self.dsn_of(text))) as store:
            row = store.call(
                "start_run", p_package_key=like_it["package_key"], p_kind=like_it["kind"],
                p_target_key=like_it["target_key"], p_run_key=f"reader {self.made}", p_input="{}",
            )[0]  # fmt: skip
        return str(row["run_id"])

    def started_attempt(self, text: str) -> str:
        run_id = self.open_run(text)
        with closing(open_store(self.dsn_of(text))) as store:
            acting.admit(store, run_id)
            held = list(acting.lease(store, f"reader{self.made}", run_id=run_id).values())
            acting.cross(store, *held)
        return held[0].attempt_id


def like(wanted: str, found: str) -> bool:
    """Whether a command printed what the page shows, blanks at the ends of lines aside."""
    pattern = ""
    for line in wanted.rstrip("\n").split("\n"):
        if line.strip() == "…":
            pattern += r"(?:[^\n]*\n)*?"
        else:
            pattern += ".*".join(map(re.escape, line.rstrip().split("…"))) + r"[ \t]*\n"
    return re.fullmatch(pattern.replace(".*", r"[^\n]*"), found.rstrip("\n") + "\n") is not None


# --- the pages


def all_commands() -> list[Command]:
    return [one for page in PAGES for block in blocks(page) for one in commands(block)]


def needs_postgres(page: str) -> bool:
    texts = [one.text for block in blocks(page) for one in commands(block) if not one.not_run]
    return any("psql" in text or "postgresql://" in text for text in texts)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_does_what_the_page_says(
    page: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    reader = Reader(tmp_path)
    login = f"ql_reader_of_pages_{os.getpid()}"
    dsn = ""
    if needs_postgres(page):
        dsn = request.getfixturevalue("empty_dsn")
        reader.server = request.getfixturevalue("postgres_server")
        database = dsn.rpartition("/")[2]
        place = dsn.rpartition("@")[2]
        reader.words = {"@host/DATABASE": f"@{place}", "DATABASE": database, "LOGIN": login}
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"create role {login} login")  # type: ignore[arg-type]
    try:
        reader.prepare()
        reader.follow(page)
    finally:
        for _, process in reader.staying:
            process.kill()
        kill_all_of(tmp_path)
        if dsn:
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(f"drop role {login}")  # type: ignore[arg-type]
                connection.execute("drop role if exists qinglong_control, qinglong_ingress")


def test_pages_have_commands_and_no_exception_is_left_over() -> None:
    found = all_commands()
    assert sum(not one.not_run for one in found) >= 15
    unused = NOT_RUN.keys() - {one.not_run for one in found}
    assert not unused, f"NOT_RUN has rows that no page needs: {unused}"


@pytest.mark.parametrize("page", PAGES)
def test_a_command_inside_a_sentence_has_such_options(page: str) -> None:
    """Such a command is not run: it is a form, with FILE and DSN."""
    text = FENCE.sub("", (ROOT / page).read_text())
    for span in re.findall(r"`qinglong-sql ([^`]+)`", text):
        name, *words = shlex.split(span)
        if name.startswith("-"):
            continue
        found = main.get_command(click.Context(main), name)
        assert found, f"{page}: no command {name}"
        known = {"-h", "--help"}.union(
            *(option.opts + option.secondary_opts for option in found.params)
        )
        options = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert options - {"-"} <= known, f"{page}: {span}: no {options - known}"


# --- the harness itself, since a test that runs nothing is green

PAGE = """\
Words.

`a.yaml`:

```yaml
package: a
```

```sh
qinglong-sql check a.yaml   # ok
cat <<EOF \\
  > b
two  # lines
EOF
false   # exits 1
```

```
a ─▶ b
```

```console
$ echo one; echo two; echo three
one
…
thr…
$ exit 3   # exits 3
```
"""


def test_a_page_is_read_as_its_rules_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.test_readme.ROOT", tmp_path)
    (tmp_path / "page.md").write_text(PAGE)
    read = list(blocks("page.md"))
    assert [named_file(block) for block in read] == ["a.yaml", "", "", ""]
    found = [one for block in read for one in commands(block)]
    assert [(one.where, one.code, one.output) for one in found] == [
        ("page.md:10", 0, None), ("page.md:11", 0, None), ("page.md:15", 1, None),
        ("page.md:23", 0, "one\n…\nthr…\n"), ("page.md:27", 3, ""),
    ]  # fmt: skip
    assert found[1].text == "cat <<EOF \\\n  > b\ntwo  # lines\nEOF"
    for one, told in ((found[2], 0), (found[3], 1)):
        reader = Reader(tmp_path / str(told))
        reader.folder.mkdir()
        reader.prepare()
        reader.type(one)
        wrong = Command(one.where, one.text, 1 - one.code, "one\nthree\n" if told else None)
        with pytest.raises(AssertionError, match=one.where):
            reader.type(wrong)


@pytest.mark.parametrize(
    ("wanted", "found", "same"),
    [
        ("a\n", "a  \n", True),
        ("a…c\n", "abbbc\n", True),
        ("a…c\n", "ab\nc\n", False),
        ("a\n…\n", "a\n", True),
        ("…\nb\n", "a\na\nb\n", True),
        ("a.c\n", "abc\n", False),
        ("", "", True),
        ("", "a\n", False),
    ],
)
def test_output_is_compared_line_by_line(wanted: str, found: str, same: bool) -> None:
    assert like(wanted, found) == same
