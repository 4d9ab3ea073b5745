"""import-crontab: what a crontab becomes, what is told about the rest, and that no value leaks.

`crontabs/*.crontab` are whole lists as people have them; their package files and messages are kept
in `golden/crontab`; `QINGLONG_GOLDEN=write` writes them anew.
"""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qinglong_sql.crontab import Crontab, Job, read_crontab
from qinglong_sql.crontab_file import check, package_text
from qinglong_sql.limits import ARGUMENT_BYTES, NAME_CHARS, PACKAGE_BYTES, YAML_ALIASES
from tests.shell import Shell, command

LISTS = Path(__file__).parent / "crontabs"
GOLDEN = Path(__file__).parent / "golden" / "crontab"
ZONE = "Europe/Berlin"


def read(text: str | bytes, **options: Any) -> Crontab:
    raw = text if isinstance(text, bytes) else text.encode()
    return read_crontab(raw, tz=ZONE, **options)


def job(line: str, **options: Any) -> Job:
    """The only job of a crontab in which nothing is left out."""
    crontab = read(line, **options)
    assert not crontab.left_out, crontab.left_out
    (only,) = crontab.jobs
    return only


def left(text: str | bytes) -> str:
    return "\n".join(told.words() for told in read(text).left_out)


def notes(text: str | bytes) -> str:
    return "\n".join(told.words() for told in read(text).notes)


def package(crontab: Crontab) -> dict[str, Any]:
    return check(package_text(crontab, package="crontab", source="test")).model


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path, "sqlite:///never.db", env={"TZ": ZONE})


# --- whole lists


@pytest.mark.parametrize("path", sorted(LISTS.glob("*.crontab")), ids=lambda path: path.stem)
def test_a_whole_list_and_what_is_told_about_it(path: Path, shell: Shell) -> None:
    done = shell("import-crontab", path)
    found = {f"{path.stem}.yaml": done.stdout, f"{path.stem}.txt": done.stderr}
    for name, text in found.items():
        if os.environ.get("QINGLONG_GOLDEN") == "write":
            (GOLDEN / name).write_text(text)
        assert text == (GOLDEN / name).read_text(), name
    assert done.returncode == (1 if "left out: " in done.stderr else 0)
    assert shell("import-crontab", path).stdout == done.stdout
    shell.write("jobs.yaml", done.stdout)
    assert shell("check", "jobs.yaml").stdout == "ok\n"


def test_every_line_of_the_lists_is_a_job_or_is_told() -> None:
    count = 0
    for path in LISTS.glob("*.crontab"):
        crontab = read(path.read_bytes())
        jobs = {job.line for job in crontab.jobs}
        told = {n for one in (*crontab.left_out, *crontab.notes) for n in one.lines}
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            variable = re.match(r"[A-Z_]+ *=", line) and number not in told
            if line.strip() and not line.startswith("#") and not variable:
                assert number in jobs | told, line
                count += 1
    assert count > 250


# --- times


@pytest.mark.parametrize(
    ("line", "cron", "run"),
    [
        ("0 3 * * * backup", "0 3 * * *", "backup"),
        (" 0\t3  * *\t* \tbackup -x  ", "0 3 * * *", "backup -x"),
        ("*/5 8-17/2 1,15 JAN-mar,Dec Mon-fri x", "*/5 8-17/2 1,15 JAN-mar,Dec Mon-fri", "x"),
        ("0 4 * * 7 x", "0 4 * * 7", "x"),
        ("00 04 * * 07 x", "00 04 * * 07", "x"),
        ("@Daily x", "@Daily", "x"),
        ("@midnight x y", "@midnight", "x y"),
        ("0 30 8 * * * task x.js", "0 30 8 * * *", "task x.js"),
        ("58 59 23 * * * task x.js", "58 59 23 * * *", "task x.js"),
        ("* * * * * 7z a x.7z", "* * * * *", "7z a x.7z"),
        ("1 1 * * * lw -x", "1 1 * * *", "lw -x"),
        ("-*/15 * * * * x", "*/15 * * * *", "x"),
        ("0 0 1 * 5 x=1 y", "0 0 1 * 5", "x=1 y"),
    ],
)
def test_times_are_told_from_the_command(line: str, cron: str, run: str) -> None:
    found = job(line)
    assert (found.cron, found.run) == (cron, run)
    trigger = package(read(line))["triggers"][found.key]
    assert trigger | {"cron": cron, "tz": ZONE, "overlap": "allow", "misfire": "skip"} == trigger


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("@reboot x", "@reboot is not a time"),
        ("@every 5m x", "not a macro"),
        ("@daily", "no command"),
        ("* * * * *", "no command"),
        ("* * * * /x", "4 fields"),
        ("* * * * run x", "day of week: 'run'"),
        ("0 0 L * * x", "day of month: L"),
        ("1/4 * * * * x", "write 1-59/4"),
        ("0 0 31 2 * x", "never fires"),
        ("* * * * * * * x", "7 fields"),
        ("* * * * * 9 x", "day of week: 9"),
        ("hello world", "no comment"),
        ("export A=b", "no comment"),
        ("* * * * * %x", "no command in front"),
        ("０ 9 * * * x", "ASCII"),
        ("CRON_TZ=Asia/Tokyo 30 4 * * * x", "line of its own"),
        ("QL_X=1", "no name for a variable"),
        ("A-B=1", "no name for a variable"),
        ("LOGNAME=ann", "cron's own"),
        (b"0 1 * * * caf\xe9", "not UTF-8"),
        (b"0 1 * * * x\0y", "NUL"),
        (f"0 1 * * * {'x' * ARGUMENT_BYTES} y", "longer than"),
    ],
)
def test_what_cannot_be_carried_over_is_told_with_its_line_and_why(
    line: str | bytes, why: str
) -> None:
    before = "\n# a comment\n"
    words = left(before.encode() + line if isinstance(line, bytes) else before + line)
    assert words.startswith("line 3: ") and why in words
    assert len(words) < 400


def test_six_fields_that_could_be_five_and_a_command_are_told() -> None:
    assert job("0 0 * * 1 sun x").cron == "0 0 * * 1 sun"
    assert "taken as seconds" in notes("0 0 * * 1 sun x")
    assert job("30 0 1 1 2 mon x").cron == "30 0 1 1 2 mon"
    assert (job("0 0 * * 0 jan x").cron, job("0 0 * * 0 jan x").run) == ("0 0 * * 0", "jan x")
    assert "jan is taken as the command" in notes("0 0 * * 0 jan x")
    assert "taken" not in notes("0 30 8 * * * task x.js")


# --- commands


@pytest.mark.parametrize(
    ("text", "run"),
    [
        (r"date +\%F", "date +%F"),
        (r"date +\\%F", "{ date +\\\\\n} <<'END'\nF\nEND"),
        ("mail ann%Hello%END%", "{ mail ann\n} <<'END_'\nHello\nEND\nEND_"),
        ("x #%y", "{ x #\n} <<'END'\ny\nEND"),
        ("x \\", "x \\"),
    ],
)
def test_a_percent_sign_is_cron_s_line_end(text: str, run: str) -> None:
    assert job(f"0 1 * * * {text}").run == run
    assert ("%" in notes(f"0 1 * * * {text}")) == ("END" in run)


def test_what_follows_a_percent_sign_is_read_by_the_command() -> None:
    run = job("0 1 * * * tr a-z A-Z; exit 3%it's%  $HOME `x`%%last").run
    done = subprocess.run(["/bin/sh", "-c", str(run)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("IT'S\n  $HOME `X`\n\nLAST\n", 3)


def test_in_qinglong_s_six_fields_a_percent_sign_is_one() -> None:
    assert job("0 0 1 * * * date +%F").run == "date +%F"


def test_another_shell_is_an_argv_of_its_own() -> None:
    crontab = read("0 1 * * * a\nSHELL=/bin/bash\n0 2 * * * b 'c'\nSHELL=/bin/sh\n0 3 * * * d")
    assert [job.run for job in crontab.jobs] == ["a", ["/bin/bash", "-c", "b 'c'"], "d"]
    assert "POSIX" in left("SHELL=/usr/bin/fish\n0 1 * * * a%b")


def test_variables_hold_for_the_lines_after_them() -> None:
    text = """
0 1 * * * a
PATH = /usr/bin:/bin
"B" = ' two words '
C="unclosed   # no comment
0 2 * * * b
B=
HOME=/srv/ann
0 3 * * * c
"""
    first, second, third = read(text).jobs
    assert (first.env, first.cwd) == ({}, None)
    both = {"PATH": "/usr/bin:/bin", "C": '"unclosed   # no comment'}
    assert second.env == both | {"B": " two words "}
    assert third.env == both | {"B": "", "HOME": "/srv/ann"}
    assert third.cwd == "/srv/ann"
    tasks = package(read(text))["tasks"]
    assert [tasks[key]["env"] for key in "abc"] == [first.env, second.env, third.env]
    assert [tasks[key]["cwd"] for key in "abc"] == [".", ".", "/srv/ann"]
    assert job("0 1 * * * x", cwd="/opt").cwd == "/opt"


def test_cron_tz_is_the_zone_of_the_lines_after_it() -> None:
    text = (
        "0 1 * * * a\nCRON_TZ=Asia/Tokyo\n0 1 * * * b\nCRON_TZ=\n0 1 * * * c\nTZ=UTC\n0 1 * * * d"
    )
    jobs = read(text).jobs
    assert [job.tz for job in jobs] == [ZONE, "Asia/Tokyo", ZONE, ZONE]
    assert jobs[-1].env == {"TZ": "UTC"} and "line 6: TZ is for the commands" in notes(text)
    broken = "CRON_TZ=Nowhere/At-all\n0 1 * * * a\nCRON_TZ=UTC\n0 1 * * * b"
    assert [job.key for job in read(broken).jobs] == ["b"]
    assert "line 2: 0 1 * * * a: CRON_TZ above it names no zone" in left(broken)


def test_mail_is_not_carried_over_and_told_once() -> None:
    text = "MAILTO=ann\n0 1 * * * a\nMAILTO=bob\n0 2 * * * b\n"
    assert notes(text).count("MAILTO") == 1 and "lines 1, 3: MAILTO" in notes(text)
    assert not read(text).left_out and all(job.env == {} for job in read(text).jobs)


def test_lines_that_end_with_cr_or_with_nothing() -> None:
    crontab = read(b"\xef\xbb\xbf0 1 * * * a\r\nA=b\r\n\r\n0 2 * * * c d")
    assert [(job.run, job.env) for job in crontab.jobs] == [("a", {}), ("c d", {"A": "b"})]
    assert "CR LF" in "".join(told.why for told in crontab.notes)


# --- keys and names


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("/usr/local/bin/backup.sh --full", "backup"),
        ("cd /srv/app && ./run.sh > /dev/null 2>&1", "app-run"),
        ("/opt/billing/bin/run.sh", "run"),
        ("/opt/billing/main.py", "billing-main"),
        ("echo hello world", "echo-hello"),
        ("echo TOKEN=x", "echo"),
        ("find /var/spool -delete", "find-spool"),
        ("make -C /x all", "make"),
        ("python3 -u /x/job.py", "x-job"),
        ("python3 -m pkg.mod", "pkg.mod"),
        ("nice -n 19 ionice -c3 rsync -a /a /b", "rsync"),
        ("flock -n /tmp/lock /bin/sync-all", "sync-all"),
        ("sudo -u www-data php artisan schedule:run", "artisan"),
        ("timeout 30 bash -c 'cd /a && node b.js'", "b"),
        ("test -x /usr/sbin/x || ( cd / && run-parts /etc/cron.daily )", "cron.daily"),
        ("[ -x /a ] && /b/c.php", "c"),
        ("task shufflewzc_faker2/jd_x.js now", "jd_x"),
        ("ql repo https://example.org/x.git", "ql-repo"),
        ("TOKEN='a b' node x.js", "x"),
        ("TOKEN=$(cat /secret file) node x.js", "job"),
        (". /etc/profile; x", "profile"),
        ("京东.js", "job"),
        ("sh", "sh"),
        ("x" * 100, "x" * 48),
        ("'open", "job"),
    ],
)
def test_a_key_is_what_the_command_runs(text: str, key: str) -> None:
    assert job(f"0 1 * * * {text}").key == key


def test_keys_differ_by_more_than_case() -> None:
    crontab = read("\n".join(f"{n} 1 * * * {w}" for n, w in enumerate(("a", "A", "a", "a-2", "b"))))
    assert [job.key for job in crontab.jobs] == ["a", "A-2", "a-3", "a-2-2", "b"]
    assert package(crontab)["tasks"].keys() == {job.key for job in crontab.jobs}


def test_a_comment_above_or_behind_is_the_name() -> None:
    text = """
# m h  dom mon dow   command
0 1 * * * a
# nightly
# backup
0 2 * * * b

# not this one

0 3 * * * c
# A long story
# that is told
# in four lines,
# so the last one counts
0 4 * * * d
0 5 * * * e   # what e does
0 6 * * * f "# no comment"
# PASSWORD=hunter2
0 7 * * * g # KEY=hunter2
# ---------
0 8 * * * 京东.js
"""
    names = {job.key: job.name for job in read(text).jobs}
    assert names == {
        "a": None, "b": "nightly backup", "c": None, "d": "so the last one counts",
        "e": "what e does", "f": None, "g": None, "job": "京东",
    }  # fmt: skip
    long = job(f"# {'n' * 300}\n0 1 * * * a").name
    assert long is not None and len(long) == NAME_CHARS


def test_a_job_that_is_commented_out_is_noted_and_names_nothing() -> None:
    assert read("# 0 1 * * * a\n0 2 * * * b").jobs[0].name is None
    assert "line 1: a job that is commented out" in notes("# 0 1 * * * a\n0 2 * * * b")


# --- a system's crontab


def test_the_user_column_is_found_taken_off_and_told() -> None:
    text = "17 * * * * root\trun-parts /etc/cron.hourly\n@daily www-data x y\n"
    crontab = read(text)
    assert [job.run for job in crontab.jobs] == ["run-parts /etc/cron.hourly", "x y"]
    assert [told.shown for told in crontab.left_out] == ["user root", "user www-data"]
    assert "--no-system" in notes(text)
    assert read(text, system=False).jobs[1].run == "www-data x y"
    assert read("0 1 * * * ann x", system=True).jobs[0].run == "x"
    assert "no command behind it" in read("0 1 * * * ann", system=True).left_out[0].why
    for plain in ("0 1 * * * root", "0 1 * * * root x\n0 2 * * * run me", "0 1 * * * backup /a"):
        assert not read(plain).left_out


def test_a_user_in_a_user_s_crontab_is_asked_about() -> None:
    asked = "line 2: looks as if it named a user in front of its command: --system?"
    assert asked in notes("0 1 * * * x\n15 14 1 * * root /usr/bin/monthly\n")
    assert "looks as if" not in notes("0 1 * * * x\n15 14 1 * * nobodyx /usr/bin/monthly\n")
    assert "looks as if" not in notes("0 1 * * * x\n15 14 1 * * root says\n")
    told = read("0 1 * * * x\n15 14 1 * * root /usr/bin/monthly\n", system=False).notes
    assert not any("looks as if" in one.why for one in told)


# --- the command line


def test_standard_input_and_output_file_and_exit_codes(shell: Shell, tmp_path: Path) -> None:
    shell.write("some", "0 1 * * * a\n@reboot b\n")
    done = shell("import-crontab", "some", "-o", "out.yaml", "--tz", "UTC", "--package", "mine")
    assert done.returncode == 1 and done.stdout == ""
    assert "left out: line 2: @reboot b: @reboot is not a time" in done.stderr
    assert done.stderr.endswith("1 job carried over, 1 left out\n")
    made = tmp_path / "out.yaml"
    assert made.stat().st_mode & 0o777 == 0o600
    assert "package: mine" in made.read_text() and "tz: UTC" in made.read_text()
    before = made.read_text()
    done = shell("import-crontab", "some", "--output", "out.yaml")
    assert done.returncode == 5 and "--force" in done.stderr and made.read_text() == before
    assert shell("import-crontab", "some", "-o", "out.yaml", "--force").returncode == 1
    assert made.read_text() != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.yaml", "some"]
    piped = subprocess.run(
        command("import-crontab", "-"), input=b"0 1 * * * a \xe4\xba\xac\n", cwd=tmp_path,
        env=shell.environment(LANG="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0"),
        capture_output=True, check=False,
    )  # fmt: skip
    assert piped.returncode == 0, piped.stderr
    assert "a 京" in piped.stdout.decode() and b"zone of this machine" in piped.stderr
    assert ZONE in piped.stdout.decode()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nowhere",), "nowhere: No such file"),
        ((".",), "Is a directory"),
        (("empty",), "no line of it could become a job"),
        (("some", "--tz", "CST"), "abbreviation"),
        (("some", "--package", ".x"), "--package"),
        (("some", "--cwd", " "), "--cwd"),
        (("some", "-o", "no/such/folder"), "no/such"),
    ],
)
def test_what_makes_no_package(shell: Shell, words: tuple[str, ...], told: str) -> None:
    shell.write("some", "0 1 * * * a\n")
    shell.write("empty", "# nothing\nMAILTO=ann\n")
    done = shell("import-crontab", *words)
    assert done.returncode in (2, 6) and told in done.stderr and not done.stdout
    assert (done.returncode == 6) == ("-o" in words)


def test_json_for_programs(shell: Shell) -> None:
    shell.write("some", "0 1 * * * a\n@reboot b\n")
    done = shell("import-crontab", "some", "--json")
    said = json.loads(done.stdout)
    assert done.returncode == 1 and not done.stderr
    assert said["jobs"] == 1 and said["package"].endswith("overlap: allow\n")
    assert said["left_out"][0]["lines"] == [2]


def test_a_crontab_that_is_too_large_says_how_to_split(shell: Shell) -> None:
    lines = [f"{n % 60} 1 * * * /opt/jobs/{n}.sh {'x' * 900}\n" for n in range(400)]
    shell.write("big", "".join(lines))
    done = shell("import-crontab", "big")
    assert done.returncode == 2 and not done.stdout
    found = re.search(r"split the crontab into (\d+) files", done.stderr)
    assert found, done.stderr
    shell.write("part", "".join(lines[: -(-len(lines) // int(found[1]))]))
    assert shell("import-crontab", "part").returncode == 0
    shell.write("huge", "#" * (PACKAGE_BYTES * 17))
    assert "no crontab" in shell("import-crontab", "huge").stderr


def test_more_jobs_than_aliases_may_share_their_variables() -> None:
    crontab = read("A=b\n" + "0 1 * * * x\n" * (YAML_ALIASES + 20))
    assert {str(task["env"]) for task in package(crontab)["tasks"].values()} == {"{'A': 'b'}"}


# --- any text

SECRET = "hunter2"
PIECES = st.sampled_from(
    ["*", "0", "7", "*/5", "mon", "@daily", "%", "\\%", "\\", "#", " ", "\t", "\n", "\r\n", "'",
     '"', "x.sh", "task", "root", "PATH=", "TZ=", "CRON_TZ=", "SHELL=/bin/bash\n", "0 1 * * * ",
     "京",
     "cd /a && ", "{", ": ", "- ", "&a", "\x85", "\u2028", "\ufeff", "\x07", "|", ">"]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=40).map("".join) | st.text(max_size=80)


@settings(max_examples=200, deadline=None)
@given(TEXTS.map(str.encode) | st.binary(max_size=80))
@example(b"\xc2\x850 1 * * * *")
@example(b"0 1 * * * " + "\x85 a\u2028\ufeff \U000f0000".encode())
@example(b"0 1 * * * - a: b #c\n0 1 * * *  null\n0 1 * * * ~\n0 1 * * * %")
def test_any_text_becomes_a_checked_package_of_the_same_jobs(raw: bytes) -> None:
    crontab = read(raw)
    if not crontab.jobs:
        return
    model = package(crontab)
    assert len(model["tasks"]) == len(crontab.jobs)
    for one in crontab.jobs:
        task, trigger = model["tasks"][one.key], model["triggers"][one.key]
        assert (task["run"], task["env"], task["name"]) == (one.run, one.env, one.name)
        assert (trigger["cron"], trigger["tz"], trigger["target"]) == (one.cron, one.tz, one.key)


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.sampled_from(["A", "API_TOKEN", "MAILTO", "CRON_TZ", "TZ", "SHELL", "LOGNAME",
                               "A B", "QL_A", "export A", "@x", "0 1 * * * A", "0 A", "# A",
                               "0 1 * * * x A", "* * * * * * * A"]),
       st.sampled_from(["=", " = ", "='", '="']), TEXTS)  # fmt: skip
def test_no_value_of_a_variable_is_ever_shown(
    before: str, name: str, equals: str, after: str
) -> None:
    crontab = read(f"{before}\n{name}{equals}{SECRET} {after}\n")
    for told in (*crontab.left_out, *crontab.notes):
        assert SECRET not in told.words()
    for one in crontab.jobs:
        assert SECRET not in f"{one.key} {one.name}"
