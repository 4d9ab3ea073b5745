"""Package files as they must not be: real ones with something cut, doubled, or put in between."""

import json
from pathlib import Path
from random import Random

from qinglong_sql.limits import PACKAGE_BYTES
from qinglong_sql.package import Package, PackageFaults, parse_package

HERE = Path(__file__).resolve().parent
SECRET = b"hunter2secret"
TOLD_CHARS = 200_000  # a file has many lines; each fault shows one
# neither control characters nor halves of a character are told
NEVER = frozenset(map(chr, range(32))) - {"\n", "\t"} | frozenset(map(chr, range(0xD800, 0xE000)))
PIECES = (
    b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\r\n", b"\r", b"\t", b"&a ", b"*a",
    b"!!python/object:os.system ", b"!x ", b"<<: ", b"? ", b"- ", b": ", b"{", b"}", b"[", b"]",
    b'"', b"'", b"|\n", b">\n", b"#",
    b"%YAML 9.9\n---\n", b"---\n", b"...\n", b"1e400", b".nan", b"-.inf", b"9" * 400, b"-0",
    b"0x7fffffffffffffffff", b"1_000", b"2026-01-01", b"~", b"\xed\xa0\x80", b'"\\ud800"', b'"\\0"',
    b"\xe2\x80\xa8", b"x" * 5_000, b"[" * 3_000, b"{a: " * 3_000, b"\x1b[31m", b"\xc2\x85",
    b"tasks:", b"package: q\n", b"needs: [zz]", b"env: {A: b}", b"\x07",
)  # fmt: skip
WITH_SECRETS = b"""\
package: p
tasks:
  a: {run: x, env: {T: "%b", U: %b}, retry: {attempts: 2, backoff: 1s}}
  b:
    run: [a, b]
    env:
      T: %b
      F: {file: /run/secret}
""" % (SECRET, SECRET, SECRET)


def real_files() -> list[bytes]:
    """The files of our own, flows from other systems, and one with values to be kept."""
    flows = [json.loads(file.read_text()) for file in sorted((HERE / "flows").glob("*.json"))]
    shared = HERE.parent.parent / "shared" / "cases" / "dags"
    flows += [json.loads(file.read_text()) for file in sorted(shared.glob("*.json"))]
    files = sorted((HERE / "golden").glob("*/*.yaml"))
    files.append(HERE.parent / "scripts" / "examples" / "demo.yaml")
    return [WITH_SECRETS, *(file.read_bytes() for file in files), *map(as_yaml, flows)]


def as_yaml(case: dict[str, list[dict[str, object]]]) -> bytes:
    lines = ["package: case", "workflows:", "  flow:", "    steps:"]
    for step in case["steps"]:
        key, needs = (json.dumps(step[one], ensure_ascii=False) for one in ("key", "needs"))
        lines.append(f"      {key}: {{run: 'true', needs: {needs}}}")
    return "\n".join(lines).encode() + b"\n"


def mutated(random: Random, file: bytes) -> bytes:
    """The file after one to four slips."""
    text = bytearray(file)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        start = random.randrange(len(text) + 1)
        end = min(len(text), start + random.randrange(12))
        match random.randrange(6):
            case 0:
                text[start:start] = random.choice(PIECES)
            case 1:
                text[start:end] = random.choice(PIECES)
            case 2:
                del text[start:end]
            case 3:
                text[start:start] = text[start : end + random.randrange(80)]
            case 4 if text:
                text[start % len(text)] = random.randrange(256)
            case _:
                lines = bytes(text).split(b"\n")
                lines.insert(random.randrange(len(lines)), random.choice(lines))
                text = bytearray(b"\n".join(lines))
    return bytes(text)


def fault_of(file: bytes) -> str:
    """What is wrong with how a file is read; nothing when it is a package or refused in words."""
    try:
        found = parse_package(file, "jobs.yaml")
    except PackageFaults as faults:
        return _fault_of_refusal(file, faults)
    except Exception as error:  # nothing else may come out
        return f"{type(error).__name__}: {error}"
    return _fault_of_package(found)


def _fault_of_refusal(file: bytes, faults: PackageFaults) -> str:
    words, listed = str(faults), json.dumps([one.as_json() for one in faults.faults])
    told = words + listed
    if not faults.faults:
        return "refused without a fault"
    if len(words) > TOLD_CHARS or len(listed) > 16 * PACKAGE_BYTES:
        return f"told in {len(words)} characters, or {len(listed)} for programs"
    if set(told) & NEVER:
        return "a control character or half a character is told"
    if b"env" in file and SECRET.decode() in told and file.count(SECRET) == 3:
        return "the value of a variable is told"
    return ""


def _fault_of_package(found: Package) -> str:
    if len(found.manifest.encode()) > PACKAGE_BYTES:
        return "a manifest beyond bounds"
    if json.dumps(json.loads(found.manifest), sort_keys=True) != json.dumps(
        found.model, sort_keys=True
    ):
        return "the manifest is not the model"
    return ""
