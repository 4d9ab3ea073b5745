"""What a YAML parser complains of, in words for people: no word of a grammar, no value of the file.

The parser knows where it could not go on; the lines before that place mostly say why.
"""

import re

import yaml

from qinglong_sql.package_node import START, Place
from qinglong_sql.package_source import LINE_END

Told = tuple[Place, str, str]
KEY_WITH_VALUE = re.compile(r"\s*(?:- +)*[\"']?[\w.-]+[\"']?\s*: +[^\s#]")
KEY_WITHOUT_BLANK = re.compile(r"\s*(?:- +)*[\w.-]+:[^\s:]")
WORD_ALONE = re.compile(r"\s*(?:- +)*[\w.-]+\s*(?:#.*)?$")
TOKENS = {
    "<block mapping start>": "a key", "<block sequence start>": "a list", "-": "a list item",
    "<scalar>": "text", "<stream end>": "the end of the file", "<block end>": "the end of a part",
    "<document start>": "---", "<document end>": "...", "?": "a key", "<alias>": "an alias",
    "<anchor>": "an anchor", "<tag>": "a tag", "[": "a list", "{": "a mapping",
}  # fmt: skip
OPENS = {"mapping": "{", "sequence": "["}
CLOSES = {"{": "}", "[": "]"}
FOUND = re.compile(r"(?:but found|but got|did not find expected) '?(.*?)'?$")
ALIKE = "keys that belong together begin in the same column"


def explained(error: yaml.MarkedYAMLError, text: str) -> Told:
    """Place, message and hint of a parser's error."""
    mark = error.problem_mark or error.context_mark
    at = Place(mark.line + 1, mark.column + 1) if mark else START
    begin = error.context_mark
    began = Place(begin.line + 1, begin.column + 1) if begin else at
    problem, context = str(error.problem or "not YAML"), str(error.context or "")
    lines = LINE_END.split(text)
    token = FOUND.search(problem)
    found = token[1] if token else ""
    if "end of stream" in problem and "quoted" in context:
        return began, "a quoted text begins here and does not end", "close it with the same quote"
    if "cannot start any token" in problem:
        return at, *_no_token(problem, lines[at.line - 1][: at.column - 1])
    if problem.startswith("mapping values"):
        return at, *_second_colon(lines, at)
    if "expected <block end>" in problem:
        return at, *_block(lines, at, found)
    if "could not find expected ':'" in problem:
        return at, *_no_colon(lines, began, at)
    if "flow" in context:
        return _flow(at, began, context, found)
    if "scanning a block scalar" in context:
        words = "behind the > or | of a text in several lines there is nothing more in its line"
        return at, words, "quote the whole text when > or | is a part of it"
    if "scanning an alias" in context or "scanning an anchor" in context:
        return at, "a name is expected behind this sign", quoted_sign(context)
    if "unknown escape" in problem:
        words = f"{problem.replace('found unknown escape character', 'there is no escape')}"
        return at, words, r"write \\ for one stroke, or use single quotes: '...'"
    if "tag handle" in problem:
        return at, "a tag is not supported", "leave it out, or quote text that begins with !"
    for name, plain in TOKENS.items():
        problem = problem.replace(f"'{name}'", plain)
    return at, problem.replace("the node content", "a value"), ""


def quoted_sign(context: str) -> str:
    """How to write text that begins with the sign of an alias or an anchor."""
    if "anchor" in context:
        return "text that begins with & is quoted"
    return 'text that begins with * is quoted: cron: "*/5 * * * *"'


def _no_token(problem: str, before: str) -> tuple[str, str]:
    if r"'\t'" in problem:
        where = "begins with" if not before.strip() else "holds"
        return f"this line {where} a tab", "indent with blanks, never with tabs"
    sign = problem.removeprefix("found character ").split(" that cannot")[0]
    return f"text cannot begin with {sign}", "quote the text"


def _before(lines: list[str], number: int) -> tuple[int, str]:
    """The last line before one that says something, by number from 1; (0, "") when none does."""
    for at in range(number - 1, 0, -1):
        if lines[at - 1].strip() and not lines[at - 1].lstrip().startswith("#"):
            return at, lines[at - 1]
    return 0, ""


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _second_colon(lines: list[str], at: Place) -> tuple[str, str]:
    """A colon stands where no key can be: a second one in a line, or the line before is wrong."""
    line = lines[at.line - 1]
    number, above = _before(lines, at.line)
    first = not re.search(r":(\s|$)", line[: at.column - 1])
    if not first or not number:
        return 'there is a second ": " in this line', 'quote text that holds ": "'
    if KEY_WITH_VALUE.match(above):
        words = f"this line is indented by {_indent(line)}, the line before it by {_indent(above)}"
        return words, f'{ALIKE}; text that goes on and holds ": " is quoted'
    if KEY_WITHOUT_BLANK.match(above):
        return f"no key can stand behind line {number}: there is no blank behind its colon", (
            "write KEY: VALUE"
        )
    if WORD_ALONE.match(above):
        return f"no key can stand behind line {number}", (
            f"a colon is missing at the end of line {number}?"
        )
    return f"no key can stand behind line {number}: it has no colon", "write KEY: VALUE"


def _no_colon(lines: list[str], began: Place, at: Place) -> tuple[str, str]:
    number = began.line
    if WORD_ALONE.match(lines[number - 1]):
        return f"line {number} is no KEY: VALUE", f"a colon is missing at the end of line {number}?"
    if KEY_WITHOUT_BLANK.match(lines[number - 1]):
        return f"there is no blank behind the colon of line {number}", "write KEY: VALUE"
    here = "this line" if number == at.line else f"line {number}"
    return f"{here} is no KEY: VALUE", "a colon and a blank are missing in it"


def _block(lines: list[str], at: Place, found: str) -> tuple[str, str]:
    line = lines[at.line - 1]
    blank = line[: at.column - 1]
    if blank.strip(" -"):
        return f"{TOKENS.get(found, 'more')} stands behind the end of a value", (
            "quote the whole text when it holds quotes, or begin a new line"
        )
    if found == "-":
        return "a list item stands among keys", 'a key has no "- " before it'
    if found == "?":
        return "a key stands among the items of a list", 'an item begins with "- "'
    indent = at.column - 1
    around = _around(lines, at.line, indent)
    if not around or indent in around:
        return f"{TOKENS.get(found, 'this')} cannot stand here", "check the indentation"
    return (
        f"this line is indented by {indent}, the lines before it by "
        + " or ".join(map(str, around)),
        ALIKE,
    )


def _around(lines: list[str], number: int, indent: int) -> list[int]:
    """Which indentations are open before a line: the nearest above, and the nearest below it."""
    chain: list[int] = []
    at, above = _before(lines, number)
    while at and (not chain or chain[-1] > 0):
        if not chain or _indent(above) < chain[-1]:
            chain.append(_indent(above))
        if chain[-1] <= indent:
            break
        at, above = _before(lines, at)
    return chain[-2:]


def _flow(at: Place, began: Place, context: str, found: str) -> Told:
    """Something is wrong between brackets; `began` is where they open."""
    opened = next((sign for name, sign in OPENS.items() if name in context), "[")
    closing = CLOSES[opened]
    ends = f"{closing} or a comma"
    if "flow node" in context and found == "<stream end>":
        return at, "the file ends within brackets", "write ] or } where they end"
    if found == "<stream end>":
        return began, f"the {opened} here is not closed", f"write {closing} where it ends"
    if found in ("]", "}"):
        place = f"column {began.column}" + (
            f" of line {began.line}" if began.line != at.line else ""
        )
        return at, f"{closing} is expected, for the {opened} of {place}", ""
    if found in ("[", "{"):
        return (
            at,
            f"{TOKENS[found]} begins where {ends} is expected",
            ("a colon and a blank are missing before it?"),
        )
    if found == ":":
        return at, 'there is a second ": " in a value', 'quote text that holds ": "'
    if at.line != began.line:
        return (
            at,
            f"{ends} is expected, for the {opened} of line {began.line}",
            (f"write {closing} where it ends"),
        )
    if found == ",":
        return at, "there is nothing before this comma", "leave it out"
    what = TOKENS.get(found, "something")
    return (
        at,
        f"{what} stands where {ends} is expected",
        ("put a comma before it, or quote the whole text"),
    )
