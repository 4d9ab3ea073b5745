"""A crontab becomes jobs, and words about all that could not come along (crontab(5) of Debian).

A line of times and a command is a job; `NAME=value` holds for the lines after it, as cron has it.
What is left out changes what would happen and is told apart from notes, which do not. Neither ever
shows the value of a variable.
"""

from dataclasses import dataclass, field

from qinglong_sql.canonical import refuse_text
from qinglong_sql.cron import CronFault, check_timezone
from qinglong_sql.crontab_line import (
    WRAPPERS,
    behind,
    called,
    key_of,
    names_user,
    shown,
    split_environment,
    split_percent,
    split_times,
    with_input,
    zone_in_front,
)
from qinglong_sql.limits import ARGUMENT_BYTES, NAME_CHARS
from qinglong_sql.package_source import visible
from qinglong_sql.package_task import ENV_NAME, RESERVED_ENV

UTF8_MARK = b"\xef\xbb\xbf"
PLAIN_SHELLS = ("/bin/sh", "/usr/bin/sh", "sh")
POSIX_SHELLS = ("sh", "ash", "bash", "dash", "ksh", "zsh")
MAIL = ("MAILTO", "MAILFROM", "CONTENT_TYPE", "CONTENT_TRANSFER_ENCODING")
SECRET = ("TOKEN", "SECRET", "PASS", "COOKIE", "KEY", "CREDENTIAL")
# First words that make a crontab a system's, when every line has one: no program has such a name.
SYSTEM_USERS = {"root", "nobody", "www-data", "munin", "smmsp", "logcheck", "amavis"}
COMMENT_LINES = 3


@dataclass(frozen=True, slots=True)
class Told:
    """Something about lines: numbers from 1, what may be shown of them, and why."""

    lines: tuple[int, ...]
    shown: str
    why: str

    def words(self) -> str:
        more = f" and {len(self.lines) - 8} more" if len(self.lines) > 8 else ""
        numbers = ", ".join(map(str, self.lines[:8])) + more
        place = f"line{'s' * (len(self.lines) > 1)} {numbers}: " if self.lines else ""
        return f"{place}{self.shown}{': ' if self.shown else ''}{self.why}"


@dataclass(frozen=True, slots=True)
class Job:
    """One line that runs something; `env` is what was set above it, in the crontab's order."""

    line: int
    key: str
    name: str | None
    run: str | list[str]
    cwd: str | None
    env: dict[str, str]
    cron: str
    tz: str


@dataclass(frozen=True, slots=True)
class Crontab:
    jobs: tuple[Job, ...]
    left_out: tuple[Told, ...]
    notes: tuple[Told, ...]


@dataclass(slots=True)
class Reading:
    """What holds at the line that is being read."""

    tz: str | None
    first_tz: str
    system: bool
    cwd: str | None
    guess: bool = False  # nobody said whether lines name a user
    shell: str = "/bin/sh"
    env: dict[str, str] = field(default_factory=dict)
    comment: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    jobs: list[Job] = field(default_factory=list)
    left_out: list[Told] = field(default_factory=list)
    notes: dict[str, list[int]] = field(default_factory=dict)
    users: dict[str, list[int]] = field(default_factory=dict)

    def note(self, number: int, why: str) -> None:
        lines = self.notes.setdefault(why, [])
        if number not in lines:
            lines.append(number)

    def leave(self, number: int, line: str, why: str) -> None:
        self.left_out.append(Told((number,), shown(line), why))


def read_crontab(
    raw: bytes, *, tz: str, system: bool | None = None, cwd: str | None = None
) -> Crontab:
    """Read a crontab. tz: zone of lines without CRON_TZ. cwd: where commands start, unless HOME.

    system: lines have a user between times and command; None to find out. Never raises: what
    cannot be read is left out and told.
    """
    pieces = [piece.removesuffix(b"\r") for piece in raw.removeprefix(UTF8_MARK).split(b"\n")]
    texts = [piece.decode("utf-8", "replace") for piece in pieces]
    guessed = looks_like_system(texts) if system is None else system
    state = Reading(tz, tz, guessed, cwd, guess=system is None)
    if guessed and system is None:
        state.notes["every line names a user in front of its command: read as a system's crontab;"
                    " --no-system reads that word as the command"] = []  # fmt: skip
    if b"\r\n" in raw:
        state.notes["lines end with CR LF: the CR is left away"] = []
    for number, (piece, text) in enumerate(zip(pieces, texts, strict=True), start=1):
        _read_line(state, number, piece, text.strip(" \t"))
    for user, lines in state.users.items():
        why = "is not carried over: commands run as the worker's own user"
        state.left_out.append(Told(tuple(lines), f"user {visible(user)[:40]}", why))
    notes = [Told(tuple(lines), "", why) for why, lines in state.notes.items()]
    return Crontab(tuple(state.jobs), tuple(state.left_out), tuple(notes))


def _read_line(state: Reading, number: int, piece: bytes, text: str) -> None:
    if not text:
        state.comment.clear()
        return
    if text.startswith("#"):
        _read_comment(state, number, text.lstrip("# \t"))
        return
    said, state.comment = state.comment, []
    try:
        piece.decode("utf-8")
    except UnicodeDecodeError:
        state.leave(number, text, "holds a byte that is not UTF-8")
        return
    if reason := refuse_text(text):
        state.leave(number, text, reason)
    elif (pair := split_environment(text)) is not None:
        _read_variable(state, number, text, *pair)
    else:
        try:
            state.jobs.append(_read_job(state, number, text, said))
        except CronFault as fault:
            state.leave(number, text, str(fault))


def _read_comment(state: Reading, number: int, text: str) -> None:
    """Keep a comment that may be a name; one that was a job or a variable is none."""
    if is_header(text):
        state.comment.clear()
        return
    try:
        split_times(text)
    except CronFault:
        if any(c.isalnum() for c in text) and "=" not in text:
            state.comment.append(text)
        else:
            state.comment.clear()
    else:
        state.comment.clear()
        state.note(number, "a job that is commented out stays out")


def _read_variable(state: Reading, number: int, text: str, name: str, value: str) -> None:
    if name in MAIL:
        state.note(number, f"{name} is not carried over: what commands write is kept as their log")
    elif name in ("CRON_TZ", "TZ") and zone_in_front(value):
        why = f"{name} in front of times is not cron's: give it a line of its own above them"
        state.leave(number, text, why)
    elif name == "CRON_TZ":
        _read_zone(state, number, text, value)
    elif name == "SHELL":
        state.shell = value or "/bin/sh"
    elif name in ("LOGNAME", "RANDOM_DELAY"):
        state.leave(number, text, f"{name} is cron's own matter")
    elif not ENV_NAME.fullmatch(name) or name.startswith(RESERVED_ENV):
        state.leave(number, text, "is no name for a variable of a command")
    elif len(value.encode()) + len(name) >= ARGUMENT_BYTES:
        state.leave(number, text, "the value is too long for a variable")
    else:
        state.env = {**state.env, name: value}
        if name == "HOME" and value.startswith("/"):
            state.cwd = value
        if name == "TZ":
            state.note(number, "TZ is for the commands alone, as in cron; times follow CRON_TZ")
        if any(word in name.upper() for word in SECRET):
            state.note(number, f"{name}: a value in the file is stored with the package; if it is"
                       f" secret, keep it in a file and write {name}: {{file: path}}")  # fmt: skip


def _read_zone(state: Reading, number: int, text: str, value: str) -> None:
    state.tz = value.strip() or state.first_tz
    try:
        check_timezone(state.tz)
    except CronFault:
        state.tz = None
        state.leave(number, text, "CRON_TZ names no zone of the IANA list (such as Europe/Berlin),"
                    " so the times of the lines after it are not known")  # fmt: skip


def _read_job(state: Reading, number: int, text: str, said: list[str]) -> Job:
    """The job of a line. Raises CronFault with the reason why there is none."""
    times = split_times(text)
    command, user = times.rest, ""
    if state.system:
        user, _, command = command.replace("\t", " ", 1).partition(" ")
        if not (command := command.lstrip(" \t")):
            raise CronFault("has a user and no command behind it")
    if state.tz is None:
        raise CronFault("CRON_TZ above it names no zone")
    given = None
    if not times.seconds:  # six fields are Qinglong's, where a percent sign is one
        command, given = split_percent(command)
    run = _command(state, command, given)
    name = _name(said, behind(command))
    word = called(command)
    if name is None and not word.isascii():
        name = _name([], word)
    if user:
        state.users.setdefault(user, []).append(number)
    _note_job(state, number, times.note, command, given)
    key = key_of(word, state.taken)
    return Job(number, key, name, run, state.cwd, state.env, times.cron, state.tz)


def _command(state: Reading, command: str, given: str | None) -> str | list[str]:
    if not command.strip():
        raise CronFault("has no command in front of its %")
    if given is not None:
        if state.shell.rpartition("/")[2] not in POSIX_SHELLS:
            raise CronFault("has standard input behind a %, and SHELL is no POSIX shell")
        command = with_input(command, given)
    if len(command.encode()) > ARGUMENT_BYTES:
        raise CronFault(f"the command is longer than {ARGUMENT_BYTES} bytes")
    return command if state.shell in PLAIN_SHELLS else [state.shell, "-c", command]


def _note_job(state: Reading, number: int, note: str, command: str, given: str | None) -> None:
    if note and "=" not in note:
        state.note(number, note)
    if given is not None:
        state.note(number, "a % is cron's line end, and what follows the first one is standard"
                   r" input; \% would be a percent sign")  # fmt: skip
    if command.endswith("\\"):
        state.note(number, "cron does not join lines: the \\ at the end is part of the command")
    first = command.split(maxsplit=1)[0]
    if state.guess and not state.system and names_user(command):
        state.note(number, "looks as if it named a user in front of its command: --system?")
    if first in WRAPPERS:
        state.note(number, f"`{first}` is a program of Qinglong 2: carried over as it is, and must"
                   " be found on PATH")  # fmt: skip
    if state.cwd is None:
        state.notes.setdefault("cron starts commands in the home folder, a package beside its file:"
                               " --cwd DIR says where", [])  # fmt: skip


def _name(said: list[str], behind_it: str) -> str | None:
    """A comment as a name: behind the command, or the few lines above it, or the nearest one."""
    text = " ".join(said) if len(said) <= COMMENT_LINES else said[-1]
    for found in (behind_it, text):
        plain = " ".join("".join(c if c.isprintable() else " " for c in found).split())
        if plain and "=" not in plain:
            return plain if len(plain) <= NAME_CHARS else f"{plain[: NAME_CHARS - 3]}..."
    return None


def looks_like_system(texts: list[str]) -> bool:
    """Whether a user stands in front of each command: by the header, or by well-known users."""
    if any(is_header(text.lstrip("# \t")) and "user" in text.split() for text in texts):
        return True
    firsts = []
    for text in texts:
        if not text.strip() or text.lstrip().startswith("#") or split_environment(text):
            continue
        try:
            words = split_times(text.strip(" \t")).rest.split()
        except CronFault:
            continue
        firsts.append(words[0] if len(words) > 1 else "")
    return bool(firsts) and SYSTEM_USERS.issuperset(firsts)


def is_header(text: str) -> bool:
    """Whether a comment is crontab's own table head, or a picture of the fields."""
    words = text.lower().split()
    table = words[:5] == ["m", "h", "dom", "mon", "dow"] or "command to be executed" in text
    return table or text.startswith((".", "|", "+", "-"))
