"""The house style as checks that can fail (DESIGN §3, §12; STYLE).

Numbers that stand in several places agree, a word of the grid has its files, both engines answer
with the same columns, headers do not lie, and imports bring no more than they should.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path

import pytest

import qinglong_sql
from qinglong_sql import limits
from qinglong_sql.cli import COMMANDS
from qinglong_sql.store.sqlfiles import WORDS, Part, sqlite_steps
from qinglong_sql.store.steps import STEPS
from tests import sqltext
from tests.server import ROOT, SQL_ROOT
from tests.sqltext import Section
from tests.stores import FakeClock, sqlite_store

PACKAGE = Path(qinglong_sql.__file__).parent
SQL = sorted([*SQL_ROOT.rglob("*.sql"), *SQL_ROOT.glob("*.psql")])
PYTHON = sorted(PACKAGE.rglob("*.py"))
POSTGRES, SQLITE = sqltext.sections("postgres"), sqltext.sections("sqlite")
TABLES = sqltext.tables("postgres")


def told(path: Path) -> str:
    return str(path.relative_to(ROOT))


# -- numbers

KIB = 1024
MINUTE = 60_000
BOTH = "sql/{postgres,sqlite}"
# What a pattern finds, in each of the files, is these numbers, wherever it is found.
NUMBERS: list[tuple[tuple[int, ...], str, str]] = [
    ((limits.MAX_STEPS,), f"{BOTH}/table.sql", r"step_count between 1 and (\d+)"),
    ((limits.MAX_STEPS,), f"{BOTH}/publication_manifest.sql",
     r"step_count not between 1 and (\d+)"),
    ((limits.MAX_STEPS,), f"{BOTH}/publication_manifest.sql", r"steps, not 1 to (\d+)"),
    ((limits.MAX_STEPS,), "sql/README.md", r"(\d+) steps a workflow"),
    ((limits.MAX_NEEDS,), f"{BOTH}/table.sql", r"need_count between 0 and (\d+)"),
    ((limits.MAX_STEPS - 1,), f"{BOTH}/table.sql", r"distance between 1 and (\d+)"),
    ((limits.MAX_NEEDS,), "sql/README.md", r"(\d+) needs a step"),
    ((limits.MAX_ATTEMPTS,), f"{BOTH}/table.sql", r"retry_attempts between 1 and (\d+)"),
    ((limits.MAX_ATTEMPTS,), f"{BOTH}/table.sql",
     r"step_attempts.*attempt_count between 0 and (\d+)"),
    ((limits.MAX_ATTEMPTS,), "sql/decision/recovery.sql", r"started_count >= (\d+)"),
    ((limits.MAX_ATTEMPTS,), "sql/README.md", r"(\d+) started attempts"),
    ((limits.MAX_CLAIM_RETURNS,), f"{BOTH}/table.sql", r"claim_return_count between 0 and (\d+)"),
    ((limits.MAX_CLAIM_RETURNS - 1,), "sql/decision/{completion,recovery}.sql",
     r"claim_return_count < (\d+)"),
    ((limits.MAX_CLAIM_RETURNS,), "sql/README.md", r"(\d+) claim returns"),
    ((limits.MAX_RUN_ATTEMPTS,), f"{BOTH}/table.sql",
     r"run_attempts.*attempt_count between 0 and (\d+)"),
    ((limits.MAX_RUN_ATTEMPTS,), f"{BOTH}/table.sql", r"number between 1 and (\d+)"),
    ((limits.MAX_RUN_ATTEMPTS,), "sql/decision/task_admission.sql", r"number (?:<=|>) (\d+)"),
    ((limits.MAX_RUN_ATTEMPTS,), "sql/README.md", r"(\d+) attempts\s+a run"),
    ((limits.ID_CHARS,), f"{BOTH}/table.sql", r"length\(run_id\) between 1 and (\d+)"),
    *(((limits.ID_CHARS,), f"{BOTH}/{file}.sql", r"_id['\w]*\), 0\) not between 1 and (\d+)")
      for file in ("dispatch_session", "dispatch", "audit")),
    ((limits.ID_CHARS,), "sql/README.md", r"ids ≤ (\d+)"),
    ((limits.PACKAGE_BYTES,), f"{BOTH}/table.sql", r"manifest_fits.*<= (\d+)"),
    ((limits.PACKAGE_BYTES // KIB,), "sql/README.md", r"manifest ≤ (\d+) KiB"),
    ((limits.INPUT_BYTES,), f"{BOTH}/table.sql", r" input_fits.*<= (\d+)"),
    ((limits.INPUT_BYTES,), f"{BOTH}/admission.sql", r"length\(.*p_input\b.*> (\d+)"),
    ((limits.INPUT_BYTES // KIB,), "sql/README.md", r"input and output ≤ (\d+) KiB"),
    ((limits.OUTPUT_BYTES,), f"{BOTH}/table.sql", r"output_fits.*<= (\d+)"),
    ((limits.OUTPUT_BYTES,), "sql/{postgres/authority,sqlite/completion}.sql",
     r"length\(.*output\b.*> (\d+)"),
    ((limits.OUTPUT_BYTES // KIB,), "README.md", r"JSON object of at most (\d+) KiB"),
    ((limits.OUTPUT_BYTES // KIB,), "sql/README.md", r"input and output ≤ (\d+) KiB"),
    ((limits.ERROR_BYTES,), f"{BOTH}/table.sql", r"error_fits.*<= (\d+)"),
    ((limits.ERROR_BYTES,), "sql/{postgres/authority,sqlite/completion}.sql",
     r"length\(.*error\b.*> (\d+)"),
    ((limits.ERROR_BYTES,), f"{BOTH}/agenda.sql", r"length\(.*p_error\b.*<= (\d+)"),
    ((limits.ERROR_BYTES // KIB,), "sql/README.md", r"error text\s+≤ (\d+) KiB"),
    ((limits.PAGE_SIZE, limits.PAGE_SIZE), "sql/postgres/{agenda,cancellation}.sql",
     r"between 1 and (\d+) then\s+raise exception 'a page has 1 to (\d+)"),
    ((limits.PAGE_SIZE, limits.PAGE_SIZE), "sql/sqlite/agenda.sql",
     r"a page has 1 to (\d+)[^;]* between 1 and (\d+)"),
    ((limits.PAGE_SIZE, limits.PAGES), "sql/README.md", r"pages of (\d+), (\d+) a stage"),
    ((limits.ADMISSIONS_PER_CALL,), "sql/postgres/task_admission.sql",
     r"cardinality\(v_effects\) > (\d+)"),
    ((limits.ADMISSIONS_PER_CALL,), f"{BOTH}/task_admission.sql", r"\.admi\w+ (?:<=|>) (\d+)"),
    ((limits.ADMISSIONS_PER_CALL,), "sql/README.md", r"(\d+) admissions a call"),
    ((limits.WORKER_BATCH,), f"{BOTH}/authority.sql", r"array_length\(.*> (\d+)"),
    ((limits.WORKER_BATCH,), "sql/sqlite/dispatch.sql", r"array_length\(:p_offers\) > (\d+)"),
    ((limits.WORKER_QUEUES,), "sql/sqlite/dispatch_session.sql",
     r"p_queues\) not between 1 and (\d+)"),
    ((limits.WORKER_BATCH,), "sql/README.md", r"worker batches of (\d+)"),
    ((limits.LEASE_MIN_MS, limits.LEASE_MAX_MS), f"{BOTH}/dispatch.sql",
     r"p_lease_ms not between (\d+) and (\d+)"),
    ((limits.LEASE_MIN_MS, limits.LEASE_MAX_MS), "sql/sqlite/dispatch_start.sql",
     r"p_lease_ms not between (\d+) and (\d+)"),
    ((limits.LEASE_MS // 1000, limits.LEASE_MIN_MS // 1000, limits.LEASE_MAX_MS // MINUTE),
     "sql/README.md", r"lease (\d+) s\s+\((\d+) s to (\d+) min\), renewed at a third"),
    ((limits.FAULT_BACKOFF_MAX_MS,), f"{BOTH}/agenda.sql",
     r"(?:least|min)\((\d+), 1000 "),
    ((limits.FAULT_BACKOFF_MAX_MS,), f"{BOTH}/agenda.sql", r"next_try_at_ms (?:>|=) .*\+ (\d+)"),
    ((limits.FAULT_BACKOFF_MAX_MS,), "sql/decision/violation.sql",
     r"faults > 0 then (?:a\.due_at_ms - )?(\d+)"),
    ((limits.SQLITE_BUSY_MS,), "sql/sqlite/connection.sql", r"busy_timeout = (\d+)"),
    ((limits.SQLITE_PAGE_BYTES,), "sql/sqlite/connection.sql", r"page_size = (\d+)"),
]  # fmt: skip


def spread(places: str) -> list[str]:
    """`a/{b,c}.sql` as its two paths."""
    found = re.fullmatch(r"(.*)\{(.*)\}(.*)", places)
    return [found[1] + one + found[3] for one in found[2].split(",")] if found else [places]


@pytest.mark.parametrize(("numbers", "places", "pattern"), NUMBERS)
def test_a_limit_is_the_same_number_everywhere(
    numbers: tuple[int, ...], places: str, pattern: str
) -> None:
    for place in spread(places):
        found = [match.groups() for match in re.finditer(pattern, (ROOT / place).read_text())]
        assert found, f"{place} says nothing like {pattern!r}"
        wanted = tuple(map(str, numbers))
        assert set(found) == {wanted}, f"{place} says {found}, limits.py {wanted}"


def test_a_lease_is_renewed_at_a_third() -> None:
    assert limits.LEASE_RENEWALS == 3, "sql/README.md says `renewed at a third`"


# -- the grid

FLOW = [
    "publication", "admission", "schedule", "agenda", "frontier", "task_admission", "dispatch",
    "completion", "recovery", "cancellation", "retention",
]  # fmt: skip
ABSENT = {
    "sql/decision/publication.sql": "a manifest is checked, nothing is decided",
    "sql/decision/agenda.sql": "`agenda_missing` is one of the violations",
}


@pytest.mark.parametrize("word", FLOW)
def test_a_word_of_the_grid_has_its_files(word: str) -> None:
    folders = [f"sql/{folder}/{word}.sql" for folder in ("decision", "postgres", "sqlite")]
    for place in [*folders, f"tests/test_{word}.py"]:
        there = (ROOT / place).exists()
        assert there != (place in ABSENT), (
            f"{place} is there, although {ABSENT[place]}" if there else f"{place} is missing"
        )


def test_both_engines_have_the_same_files_and_tables() -> None:
    apart = {"role", "schema", "grant", "connection", "trigger"}
    names = [{path.stem for path in sqltext.files(one)} - apart for one in ("postgres", "sqlite")]
    assert names[0] == names[1]
    assert names[1] - {"table"} == set(WORDS) - apart, "sqlfiles.WORDS is not sql/sqlite"
    assert sqltext.tables("sqlite") == TABLES, "columns, their order, or the line `-- moves`"
    assert len(TABLES) > 20


# -- steps, the same in both engines

FUNCTION = re.compile(
    r"create or replace function (\w+)\.(\w+) \((.*?)\)\nreturns (.*?)\nlanguage", re.DOTALL
)


def functions() -> dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Schema, parameters and result columns of each function of a capability schema."""
    found = {}
    for schema, name, params, result in FUNCTION.findall("".join(one.body for one in POSTGRES)):
        if schema != "ql":
            columns = re.findall(r"(\w+) (?:text|bigint|int)\b", result)
            found[name] = (schema, tuple(re.findall(r"\b(p_\w+) ", params)), tuple(columns))
    return found


def test_steps_of_python_are_the_functions_of_postgres() -> None:
    shipped = {name: (schema, params) for name, (schema, params, _) in functions().items()}
    assert shipped == {step.name: (step.schema, step.params) for step in STEPS.values()}


def test_a_step_answers_with_the_same_columns_in_both_engines(tmp_path: Path) -> None:
    """SQLite's columns are asked of the last select of each step, on an empty database."""
    shipped = {name: columns for name, (_, _, columns) in functions().items()}
    with closing(sqlite_store(tmp_path, FakeClock())) as store:
        for name in STEPS:
            text = [*answers(sqlite_steps()[name].parts)][-1]
            values = dict.fromkeys(re.findall(r":(\w+)", text), 0)
            cursor = store._connection.execute(text, values)
            columns = tuple(one[0] for one in cursor.description)
            cursor.close()
            assert columns == shipped[name], f"{name}: SQLite answers {columns}"


def answers(parts: tuple[Part, ...]) -> Iterator[str]:
    for part in parts:
        plain = re.sub(r"--.*", "", part.text).strip()
        if part.kind == "STATEMENT" and re.match(r"(select|with)\b|(?s:.*\breturning\b)", plain):
            yield part.text
        yield from answers(part.parts)


# -- headers


def test_every_function_and_step_has_its_header() -> None:
    for path in sqltext.files("postgres"):
        made = re.findall(r"create or replace function \w+\.(\w+)", path.read_text())
        headed = [one.name for one in POSTGRES if one.file == path.stem]
        assert made == headed, f"{told(path)}: functions and their headers"
    for name, (schema, _, _) in functions().items():
        header = next(one for one in POSTGRES if one.name == name)
        assert header.kind == "STEP", f"{header.where} is in {schema}, so it is a STEP"
        assert all(map(header.told, ("READS", "RETURNS"))) or header.told("WRITES"), header.where
    assert {one.name for one in SQLITE if one.kind == "STEP"} >= STEPS.keys()


def written(engine: list[Section]) -> dict[str, set[str]]:
    """The tables that each section writes, itself or by what it calls; `apply_effects` is one."""
    known = {one.name: one for one in engine}
    calls = re.compile(r"\bql\.(\w+)\(|^-- (?:CALL|WHEN|EACH|REPEAT) +(\w+)", re.MULTILINE)

    def reach(name: str, above: frozenset[str]) -> set[str]:
        one = known[name]
        found = TABLES.keys() & set(sqltext.WRITE.findall(one.statements))
        for called in chain(*calls.findall(f"{one.header}\n{one.body}")):
            if called == "apply_effects":
                found |= {called}
            elif called in known and called not in above:
                found |= reach(called, above | {called})
        return found

    return {name: reach(name, frozenset({name})) for name in known}


@pytest.mark.parametrize("mirror", [False, True], ids=["postgres", "sqlite"])
def test_what_a_header_says_about_writes_is_what_the_body_does(mirror: bool) -> None:
    """Directly, or by what it calls. A header of SQLite may leave WRITES to its mirror."""
    found = SQLITE if mirror else POSTGRES
    does = written(found)
    for one in found:
        said = one.told("WRITES")
        if mirror and not said:
            continue
        named = {*TABLES, "apply_effects"} & set(re.findall(r"\w+", said))
        for other in re.findall(r"\bas (\w+)", said):
            named |= does[other]
        through = does["apply_effects"] if "apply_effects" in does[one.name] else set()
        silent, idle = does[one.name] - named, named - does[one.name] - through
        assert not silent, f"{one.where} writes {sorted(silent)} and does not say so"
        assert not idle, f"{one.where} says that it writes {sorted(idle)}, and does not"


LOCK = {"run": "2", "task_attempt": "3", "attempt_lease": "4", "step_run": "5"}
LOCKED = re.compile(r"\bfor (?:no key update|update|share)\b")
INNER = re.compile(rf"\((?:(?!{LOCKED.pattern})[^()])*\)")  # brackets that lock nothing themselves


def test_what_a_header_says_about_locks_is_what_the_body_takes() -> None:
    for one in POSTGRES:
        said = one.told("LOCKS")
        if "pg_try_advisory" in one.body:
            assert "1" in said, f"{one.where} takes lock 1 and does not say so"
        code, left = one.statements, ""
        while code != left:
            code, left = INNER.sub("", code), code
        for lock in LOCKED.finditer(code):
            table = re.findall(r"from ql\.(\w+) as", code[: lock.start()])[-1]
            wanted = LOCK.get(table, table)
            assert wanted in said, f"{one.where} locks {table} and does not say so"


def test_no_function_that_reads_a_table_is_stable() -> None:
    """STYLE, warnings: such a function reads with its caller's snapshot, from before the locks."""
    views = "|".join(re.findall(r"create view (\w+)", "".join(map(Path.read_text, SQL))))
    relation = re.compile(rf"\bql\.({'|'.join(TABLES)}|{views})\b(?!\()")
    count = 0
    for one in POSTGRES:
        if re.search(r"^(stable|immutable)$", one.body, re.MULTILINE):
            count += 1
            found = relation.search(one.statements.partition("as $$")[2])
            assert not found, f"{one.where} is not volatile and reads {found and found[0]}"
    assert count > 5


# -- the form of files

LONG = {  # lines at most, and why they are one file
    "sql/decision/reading.sql": (310, "what people read, view by view"),
    "sql/postgres/table.sql": (520, "all tables at a glance"),
    "sql/sqlite/table.sql": (520, "the same"),
    "sql/sqlite/trigger.sql": (375, "what keeps them immutable, table by table"),
    "sql/decision/violation.sql": (400, "what must never be, rule by rule"),
    "sql/postgres/agenda.sql": (415, "every way to an agenda row, so that there is no other"),
    "sql/postgres/authority.sql": (390, "what batches share, read from top to bottom"),
    "sql/postgres/schema.sql": (360, "what all functions share: texts, ids, and the lock of a run"),
    "sql/postgres/cancellation.sql": (420, "the two roads alternate and are read together"),
    "sql/postgres/recovery.sql": (315, "every way back to ready"),
}
LINES = 300


@pytest.mark.parametrize("path", [*SQL, *PYTHON], ids=told)
def test_a_file_is_short(path: Path) -> None:
    """Tests are apart: a word has one test file, however long."""
    count = len(path.read_text().splitlines())
    most, reason = LONG.get(told(path), (LINES, "no reason given in LONG"))
    assert count <= most, f"{told(path)}: {count} lines, at most {most} ({reason})"
    assert most == LINES or count > LINES, f"{told(path)} needs no exception any more"


@pytest.mark.parametrize("path", SQL, ids=told)
def test_sql_is_lower_case_without_tabs_and_within_a_hundred_columns(path: Path) -> None:
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        where = f"{told(path)}:{number}"
        assert "\t" not in line, f"{where} holds a tab"
        assert len(line) <= 100, f"{where} has {len(line)} columns"
        assert line == line.rstrip(), f"{where} ends with a space"
        code = re.sub(r"^\\.*|--.*|'[^']*'|\"[^\"]*\"", "", line)
        assert not re.search(r"[A-Z]", code), f"{where} is not lower case: {code.strip()}"


def test_python_functions_are_short() -> None:
    for path, node in nodes():
        if isinstance(node, ast.FunctionDef):
            count = (node.end_lineno or 0) - node.lineno + 1
            assert count <= 70, f"{told(path)}: {node.name} has {count} lines, at most 70"


STATEMENT = re.compile(
    r"\s*(select\b.*\bfrom|insert into|update \w+ set|delete from|pragma|alter (table|role)"
    r"|create (or replace|table|view|function|role))\b",
    re.DOTALL | re.IGNORECASE,
)


def test_only_the_stores_and_the_migrator_speak_sql() -> None:
    speakers = set()
    for path, node in nodes():
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and STATEMENT.match(text):
            speakers.add((told(path), text.strip().splitlines()[0]))
    homes = ("qinglong_sql/store/", "qinglong_sql/migrate")  # and its migrate_*.py
    assert not [one for one in speakers if not one[0].startswith(homes)]
    assert len(speakers) > 5


AVOIDED = {"data", "info", "process", "handle", "manager", "util", "utils"}


def test_names_avoid_the_words_that_say_nothing() -> None:
    """STYLE §7.6. `process` is a verb at the beginning of a function's name only."""
    for path, name, is_function in names():
        words = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower().strip("_").split("_")
        nouns = {"process"} if not is_function or words[0] != "process" else set()
        found = AVOIDED.intersection(words) - nouns
        assert not found, f"{told(path)}: {name} says {found}"
    for path in SQL:
        text = re.sub(r"--.*|'[^']*'|\bdata_exception\b", "", path.read_text())
        found = AVOIDED.intersection(re.findall(r"[a-z]+", text))
        assert not found, f"{told(path)}: a name says {found}"


def nodes() -> Iterator[tuple[Path, ast.AST]]:
    for path in PYTHON:
        for node in ast.walk(ast.parse(path.read_text())):
            yield path, node


def names() -> Iterator[tuple[Path, str, bool]]:
    """Every name that our Python gives, and whether to a function."""
    for path in PYTHON:
        yield path, path.stem, False
    for path, node in nodes():
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield path, name, isinstance(node, ast.FunctionDef)
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield path, name, False
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield path, name, False


# -- encodings

TEXT_FILES = ("read_text", "write_text")  # of pathlib
OPENERS = ("open", "fdopen", "NamedTemporaryFile", "TemporaryFile")
BOTH_WAYS = ("text", "universal_newlines")  # of subprocess


def without_encoding(tree: ast.AST) -> Iterator[int]:
    """Lines of calls that read or write text as the locale has it: C, GBK, whatever it is."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        said = {one.arg: one.value for one in node.keywords}
        if "encoding" in said:
            continue
        places = [*node.args, *[value for key, value in said.items() if key == "mode"]]
        texts = [one.value for one in places if isinstance(one, ast.Constant)]
        modes = [x for x in texts if isinstance(x, str) and re.fullmatch("[rwxabt+]+", x)]
        owner = getattr(getattr(node.func, "value", None), "id", "")
        opens = name in OPENERS and (name, owner) != ("open", "os")
        binary = any("b" in x for x in modes) or (name.endswith("TemporaryFile") and not modes)
        if name in TEXT_FILES or (opens and not binary) or set(BOTH_WAYS) & said.keys():
            yield node.lineno


def test_every_file_of_text_is_utf_8_whatever_the_locale() -> None:
    bad = [
        "open('x')", "p.open('a')", "os.fdopen(3, 'w')", "p.read_text()", "p.write_text('x')",
        "NamedTemporaryFile('w')", "subprocess.run(x, text=True)", "open(x, mode='r')",
    ]  # fmt: skip
    good = [
        "open('x', 'rb')", "p.open('ab')", "os.open(p, f)", "p.read_text(encoding='utf-8')",
        "NamedTemporaryFile(suffix='.json')", "subprocess.run(x)", "p.read_bytes()",
    ]  # fmt: skip
    assert all([*without_encoding(ast.parse(text))] for text in bad)
    assert not any([*without_encoding(ast.parse(text))] for text in good)
    for path in [*PYTHON, *(ROOT / "scripts").rglob("*.py"), *(ROOT / "migrations").rglob("*.py")]:
        found = [*without_encoding(ast.parse(path.read_text(encoding="utf-8")))]
        assert not found, f"{told(path)}: lines {found} name no encoding"


# -- what an import brings

DEVICE = ("psycopg", "sqlalchemy", "alembic")
RULES = ("qinglong_sql.stage", "qinglong_sql.scheduler")
IMPORTS: dict[str, tuple[str, ...]] = {
    "qinglong_sql.cli": DEVICE,
    "qinglong_sql.migrate": DEVICE,
    "qinglong_sql.store.sqlite": DEVICE,
    "qinglong_sql.worker": RULES + DEVICE,  # DESIGN §8: no worker reaches frontier or admission
    "qinglong_sql.forkserver": (*RULES, *DEVICE, "sqlite3", "qinglong_sql.store"),
}


@pytest.mark.parametrize(("module", "unwanted"), IMPORTS.items(), ids=IMPORTS)
def test_an_import_brings_no_more_than_it_should(module: str, unwanted: tuple[str, ...]) -> None:
    assert not set(unwanted) & imported(module), module


def test_no_command_imports_a_server_s_driver_before_it_is_asked_for_one() -> None:
    commands = {f"qinglong_sql.cli.{module}" for module in COMMANDS.values()}
    assert not set(DEVICE) & imported(*sorted(commands))


def imported(*modules: str) -> set[str]:
    """What is loaded in a fresh Python after these imports."""
    text = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


# -- what the pages for people say

PAGES = ["README.md", "sql/README.md", "migrations/README.md"]


@pytest.mark.parametrize("page", PAGES)
def test_a_command_that_a_page_mentions_is_there(page: str) -> None:
    text = (ROOT / page).read_text()
    mentioned = set(re.findall(r"(?:^|`)qinglong-sql ([a-z-]+)", text, re.MULTILINE))
    assert mentioned <= COMMANDS.keys(), f"{page}: no command {mentioned - COMMANDS.keys()}"
    assert mentioned or page == "sql/README.md"
    for place in re.findall(r"`((?:sql|scripts|migrations|tests|qinglong_sql)/[\w./-]*)`", text):
        assert (ROOT / place).exists(), f"{page}: no {place}"


def test_the_map_of_the_sql_names_every_step_and_code() -> None:
    text = (SQL_ROOT / "README.md").read_text()
    missing = [name for name in STEPS if f"`{name}`" not in text]
    assert not missing, f"sql/README.md does not name {missing}"
    raised = set(re.findall(r"'(QL\d{3})'", "".join(map(Path.read_text, SQL))))
    assert raised <= set(re.findall(r"^\| (QL\d{3}) \|", text, re.MULTILINE))
