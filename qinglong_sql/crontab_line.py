"""One line of a crontab: its times, its command, and what to call it.

The grammar of times is `qinglong_sql.cron`; what a line means otherwise is crontab(5) of Debian,
and for six fields (seconds first) Qinglong 2. No message here ever holds what follows a `=`.
"""

import pwd
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from qinglong_sql.cron import MONTHS, WEEKDAYS, CronFault, check_cron
from qinglong_sql.limits import KEY_PATTERN
from qinglong_sql.package_source import visible

SHOWN_CHARS = 72
KEY_CHARS = 48  # of the longest key's 63, so that a number still fits behind
WORD = re.compile(r"[^ \t]+")
# What looks like a field, right or wrong: `*/5`, `1,2`, `mon-fri`, `L`, `?`, `H(0-7)`, `1#2`.
TERM = rf"(?:\*|\?|h(?:\([0-9-]*\))?|lw?|[0-9]+[lw]?|(?:{'|'.join(MONTHS + WEEKDAYS)})l?)"
TERM += r"(?:[-/#~][0-9a-z*]*)*"
FIELD = re.compile(rf"{TERM}(?:,(?:{TERM})?)*", re.IGNORECASE)
NAMED = re.compile(r"[a-z]{3}|[0-9]+", re.IGNORECASE)
COMMAND = re.compile(r"[./~]|[A-Za-z_-]{4}")  # no field was meant
ENVIRONMENT = re.compile(
    r"""[ \t]*(?:"([^"]*)"|'([^']*)'|([^\s="']+))[ \t]*=[ \t]*(.*)""", re.DOTALL
)
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
EXTENSION = re.compile(r"(?<=.)\.(?:bash|cjs|exe|jar|js|mjs|php|pl|py|rb|sh|ts|zsh)$")
NO_JOB = "is no comment, no NAME=value, and no five fields with a command behind"
# Programs that only run another one, with the words before its name; their own name says little.
RUNNERS = {
    "bash": 0, "chronic": 0, "chroot": 1, "dash": 0, "env": 0, "exec": 0, "flock": 1,
    "ionice": 0, "java": 0, "ksh": 0, "nice": 0, "node": 0, "nohup": 0, "perl": 0, "php": 0,
    "run-parts": 0, "ruby": 0, "setsid": 0, "sh": 0, "source": 0, "sudo": 0, "systemd-cat": 0,
    "task": 0, "time": 0, "timeout": 0, "ts-node": 0, "zsh": 0, ".": 0,
}  # fmt: skip
WITH_WORD = ("-u", "-g", "-w", "-k", "--signal", "--user")
# What many jobs share as a name: the folder of the script says more, or the first word behind it.
PLAIN_SCRIPTS = {"cron", "index", "job", "main", "run", "script", "start", "task"}
PLAIN_FOLDERS = {"", ".", "..", "~", "bin", "cron", "root", "sbin", "scripts", "src", "tmp"}
PLAIN_PROGRAMS = {"echo", "find", "git", "make", "npm", "rm", "service", "systemctl", "touch"}
SUBJECT = re.compile(r"[A-Za-z0-9_./-]{1,64}")
SEPARATORS = ("&&", "||", ";", "(", ")", "{", "!", "&", "|")
WRAPPERS = ("task", "ql")


@dataclass(frozen=True, slots=True)
class Timed:
    """The times of a line and what stands behind them; `note` says what was not certain."""

    cron: str
    rest: str
    seconds: bool = False
    note: str = ""


def split_times(line: str) -> Timed:
    """Cut a line behind its times. Raises CronFault with the reason when it has none.

    Six fields are told from five by their look: a sixth word that is a field, too, makes the first
    one seconds, as in Qinglong 2.
    """
    words = list(WORD.finditer(line))
    if not words:
        raise CronFault(NO_JOB)
    texts = [word[0] for word in words]
    note = ""
    if texts[0].startswith("-") and FIELD.fullmatch(texts[0][1:]):
        texts[0], note = texts[0][1:], "the - in front (no line in the system's log) is left away"
    if texts[0].startswith("@"):
        _check(texts[0])
        count = 1
    else:
        count, note = _field_count(texts, note)
    rest = line[words[count - 1].end() :].lstrip(" \t") if len(words) > count else ""
    if not rest:
        raise CronFault("has no command behind its times")
    return Timed(" ".join(texts[:count]), rest, count == 6, note)


def _field_count(texts: list[str], note: str) -> tuple[int, str]:
    """Five or six, and a note. Raises CronFault for times that cannot be scheduled."""
    alike = len(list(takewhile(FIELD.fullmatch, texts)))
    if not any(FIELD.fullmatch(text) for text in texts[:5]):
        raise CronFault(NO_JOB)
    if alike >= 7:
        _check(" ".join(texts[:7]))
    if alike == 6:
        five, six = " ".join(texts[:5]), " ".join(texts[:6])
        if texts[5].isalpha() and not _accepted(six) and _accepted(five):
            return 5, f"{texts[5]} is taken as the command, since six fields would not be valid"
        _check(six)
        if NAMED.fullmatch(texts[5]) and _accepted(five):
            note = f"six fields: the first is taken as seconds, and {texts[5]} as a day of the week"
        return 6, note
    if len(texts) < 5 or (alike == 4 and COMMAND.match(texts[4])):
        raise CronFault(
            f"has {alike} field{'s' * (alike > 1)} of times: write 5, or 6 with seconds"
        )
    _check(" ".join(texts[:5]))
    return 5, note


def _check(times: str) -> None:
    if not times.isprintable():  # such as U+0085, which Python takes for a blank and cron does not
        raise CronFault(NO_JOB)
    try:
        check_cron(times)
    except CronFault as fault:
        raise CronFault(NO_JOB if "=" in times else str(fault)) from None


def _accepted(times: str) -> bool:
    try:
        _check(times)
    except CronFault:
        return False
    return True


def split_environment(line: str) -> tuple[str, str] | None:
    """(name, value) of `NAME = value`, one pair of quotes taken off the value; None otherwise."""
    found = ENVIRONMENT.fullmatch(line)
    if found is None:
        return None
    name = found[1] or found[2] or found[3] or ""
    text = found[4].rstrip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1]
    return name, text


def zone_in_front(value: str) -> bool:
    """Whether the value of CRON_TZ or TZ is followed by times, as in robfig/cron."""
    _, _, rest = value.replace("\t", " ").partition(" ")
    try:
        split_times(rest.strip())
    except CronFault:
        return False
    return True


def split_percent(text: str) -> tuple[str, str | None]:
    r"""The command, and the standard input that follows an unescaped `%`, None for none.

    crontab(5): `\%` is a percent sign, every later `%` a line end, and a last one is added.
    """
    parts = [""]
    for piece in re.finditer(r"\\.|.", text, re.DOTALL):
        if piece[0] == "%":
            parts.append("")
        else:
            parts[-1] += "%" if piece[0] == "\\%" else piece[0]
    command, *lines = parts
    if not lines:
        return command, None
    given = "\n".join(lines)
    return command, given if given.endswith("\n") else f"{given}\n"


def with_input(command: str, given: str) -> str:
    """A command for a POSIX shell that reads `given` as its standard input."""
    lines, end = given.split("\n"), "END"
    while end in lines:
        end += "_"
    return f"{{ {command}\n}} <<'{end}'\n{given}{end}"


def shown(line: str) -> str:
    """A line for people, short and without what follows its first `=`, which may be a secret."""
    head, equals, _ = " ".join(line.split()).partition("=")
    text = visible(head)
    return (text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}...") + (
        "=..." if equals else ""
    )


def behind(command: str) -> str:
    """The comment that a shell would see at the end of a command, or nothing."""
    quote = ""
    for place, sign in enumerate(command):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign == "#" and command[place - 1 : place] in (" ", "\t"):
            return command[place:].strip("# \t")
    return ""


def called(command: str) -> str:
    """The name of what a command runs, past shells and other runners; nothing when unclear."""
    last = at = ""
    words = iter(_words(command))
    for word in words:
        name = word.rpartition("/")[2]
        if word in SEPARATORS or word.isdigit() or ASSIGNMENT.match(word):
            continue
        if word in ("cd", "test", "[", "command", "umask", "export", "ulimit"):
            for skipped in words:
                if skipped in ("&&", "||", ";"):
                    break
                at = skipped if word == "cd" else at
        elif word.startswith("-"):
            if word in WITH_WORD and not last.startswith("python"):
                next(words, "")
        elif name == "ql" or word == ".":
            following = next(words, "")
            return f"ql-{following}" if name == "ql" else EXTENSION.sub("", _base(following))
        elif name in RUNNERS or re.fullmatch(r"python[0-9.]*", name):
            last = name
            for _ in range(RUNNERS.get(name, 0)):
                while next(words, "").startswith("-"):
                    pass
        elif " " in word:  # what a shell gets behind -c
            return called(word) or last
        elif "=" not in word:
            return _telling(word, next(words, ""), at)
    return last


def _telling(word: str, following: str, at: str) -> str:
    """The name of a program, with what tells it from others of that name; `at`: where it runs."""
    name = EXTENSION.sub("", _base(word))
    folder = _base(word.rstrip("/").rpartition("/")[0])
    if folder in ("", "."):
        folder = _base(at)
    if name in PLAIN_SCRIPTS and folder not in PLAIN_FOLDERS:
        return f"{folder}-{name}"
    if name in PLAIN_PROGRAMS and not following.startswith("-") and SUBJECT.fullmatch(following):
        return f"{name}-{_base(following)}"
    return name


def names_user(command: str) -> bool:
    """Whether it begins with a user of this machine that is no program, and a program follows."""
    first, _, rest = command.replace("\t", " ").partition(" ")
    second = (rest.split() or [""])[0]
    try:
        pwd.getpwnam(first)
    except (KeyError, ValueError):
        return False
    return not shutil.which(first) and bool(second.startswith("/") or shutil.which(second))


def _words(command: str) -> Iterator[str]:
    """Words without their quotes; nothing where an assignment may spread over several of them."""
    if re.search(r"=[^ ]*[`$]\(?", command.split("#")[0][:200]) or "`" in command:
        return
    lexer = shlex.shlex(command, posix=True, punctuation_chars=";()|&")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        yield from lexer
    except ValueError:  # an open quote
        return


def _base(word: str) -> str:
    return word.rstrip("/").rpartition("/")[2]


def key_of(name: str, taken: set[str]) -> str:
    """A valid key like the name that differs from the taken ones (in lower case), and take it."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[:KEY_CHARS].strip("-.") or "job"
    assert re.fullmatch(KEY_PATTERN, plain), plain
    key, number = plain, 1
    while key.lower() in taken:
        number += 1
        key = f"{plain}-{number}"
    taken.add(key.lower())
    return key
