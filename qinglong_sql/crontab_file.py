"""Jobs of a crontab as the text of a package file, for people to read and go on with."""

import json
import re

from qinglong_sql.crontab import Crontab, Job
from qinglong_sql.limits import PACKAGE_BYTES, YAML_ALIASES
from qinglong_sql.package import Package, parse_package
from qinglong_sql.package_fault import PackageFaults
from qinglong_sql.package_source import visible

# Text that YAML reads as itself without quotes, in a block.
PLAIN = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_./@+-]*(?: [A-Za-z0-9_./@+=,-]+)*")
WORDS_OF_YAML = {"null", "true", "false", "yes", "no", "on", "off"}
ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}


class TooLarge(Exception):
    """The package would be larger than a package may be; its words say how to split."""


def package_text(crontab: Crontab, *, package: str, source: str) -> str:
    """The package file, checked. Raises TooLarge; a crontab without jobs has no package."""
    text = "\n".join(_lines(crontab, package, visible(source))) + "\n"
    try:
        check(text)
    except PackageFaults as faults:
        if {fault.code for fault in faults.faults} != {"too_large"}:
            raise
        files = max(2, -(-_bytes(crontab.jobs, text) // PACKAGE_BYTES))
        raise TooLarge(
            f"{len(crontab.jobs)} lines make a package larger than {PACKAGE_BYTES // 1024} KiB:"
            f" split the crontab into {files} files, and give each its own --package"
        ) from None
    return text


def check(text: str) -> Package:
    """The package that the text is. Raises PackageFaults."""
    return parse_package(text.encode(), "package")


def _bytes(jobs: tuple[Job, ...], text: str) -> int:
    """The size of the package, or a little more: as it is written, or with all defaults."""
    full = sum(350 + 3 * len(job.key) + len(json.dumps([job.run, job.env, job.name, job.cwd]))
               for job in jobs)  # fmt: skip
    return max(full, len(text.encode()))


def _lines(crontab: Crontab, package: str, source: str) -> list[str]:
    jobs = crontab.jobs
    lines = [
        f"# {len(jobs)} job{'s' * (len(jobs) != 1)} of {source}, by `qinglong-sql import-crontab`.",
        "# A run starts at its time even if the one before still runs, and a time that was missed",
        "# is skipped, both as in cron: `overlap: skip` and `misfire: fire_once` are the others.",
    ]
    for title, told in (("Left out", crontab.left_out), ("Notes", crontab.notes)):
        if told:
            lines += ["#", f"# {title}:", *(f"#   {one.words()}" for one in told)]
    lines += [f"package: {package}", "", "tasks:"]
    for job, env in zip(jobs, _env_blocks(jobs), strict=True):
        lines += [f"  {quoted_key(job.key)}:  # line {job.line}"]
        if job.name is not None:
            lines.append(f"    name: {scalar(job.name)}")
        lines += _run(job.run)
        if job.cwd is not None:
            lines.append(f"    cwd: {scalar(job.cwd)}")
        lines += env
    lines += ["", "triggers:"]
    for job in jobs:
        lines += [
            f"  {quoted_key(job.key)}:",
            f'    cron: "{job.cron}"',
            f"    tz: {scalar(job.tz)}",
            f"    task: {quoted_key(job.key)}",
            "    misfire: skip",
            "    overlap: allow",
        ]
    return lines


def _env_blocks(jobs: tuple[Job, ...]) -> list[list[str]]:
    """The `env` of each job: written out once, and referred to by the jobs that have the same."""
    names: dict[tuple[tuple[str, str], ...], str] = {}
    blocks: list[list[str]] = []
    aliases = 0
    for job in jobs:
        same = tuple(job.env.items())
        if not same:
            blocks.append([])
        elif same in names and aliases < YAML_ALIASES:
            aliases += 1
            blocks.append([f"    env: *{names[same]}"])
        else:
            anchor = "" if same in names else f" &env-{len(names) + 1}"
            names.setdefault(same, f"env-{len(names) + 1}")
            variables = [f"      {name}: {scalar(value)}" for name, value in same]
            blocks.append([f"    env:{anchor}", *variables])
    return blocks


def _run(run: str | list[str]) -> list[str]:
    if isinstance(run, list):
        return [f"    run: [{', '.join(map(double_quoted, run))}]"]
    lines = run.split("\n")
    readable = all(line.replace("\t", " ").isprintable() for line in lines)
    if len(lines) > 1 and readable and lines[-1] and not lines[0].startswith((" ", "\t")):
        return ["    run: |-", *(f"      {line}" if line else "" for line in lines)]
    return [f"    run: {scalar(run)}"]


def quoted_key(key: str) -> str:
    return scalar(key) if re.match("[A-Za-z0-9_]", key) else double_quoted(key)


def scalar(text: str) -> str:
    """Text as one line of YAML, with the fewest quotes that keep it."""
    if PLAIN.fullmatch(text) and text.lower() not in WORDS_OF_YAML:
        return text
    if ('"' in text or "\\" in text) and "'" not in text and text.isprintable():
        return f"'{text}'"
    return double_quoted(text)


def double_quoted(text: str) -> str:
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(sign: str) -> str:
    if sign in ESCAPES:
        return ESCAPES[sign]
    if sign.isprintable():
        return sign
    number = ord(sign)
    return (
        f"\\x{number:02x}"
        if number < 256
        else f"\\u{number:04x}"
        if number < 65536
        else (f"\\U{number:08x}")
    )
