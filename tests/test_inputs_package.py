"""Package files by chance and of bad will: all of them refused in words, or good packages."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qinglong_sql.canonical import canonical
from qinglong_sql.errors import QinglongError
from qinglong_sql.package import PackageFaults, parse_package
from qinglong_sql.store import open_store
from tests import acting, hostile_packages
from tests.engines import Engine
from tests.hostile_packages import fault_of, mutated

FILES = hostile_packages.real_files()
HEAD = "package: p\ntasks: {a: {run: x}}\n"
BOMB = "x-a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"x-{new}: &{new} [*{old},*{old},*{old},*{old},*{old},*{old},*{old},*{old},*{old}]\n"
    for old, new in zip("abcdefghi", "bcdefghij", strict=True)
)
BAD = {
    "nothing": b"",
    "not UTF-8": b"\xff\xfe" + HEAD.encode("utf-16-le"),
    "UTF-16": HEAD.encode("utf-16"),
    "UTF-32": HEAD.encode("utf-32"),
    "Latin 1": "package: p\ntasks: {a: {run: é}}\n".encode("latin-1"),
    "NUL": b"package: p\0\ntasks: {a: {run: x}}\n",
    "half a character": b'package: p\ntasks: {a: {run: "\\ud800"}}\n',
    "aliases that explode": (BOMB + HEAD).encode(),
    "an alias of itself": b"x-a: &a [*a]\n" + HEAD.encode(),
    "deep lists": b"[" * 100_000,
    "deep mappings": b"{a: " * 50_000,
    "deep blocks": "".join(f"{' ' * depth}a:\n" for depth in range(400)).encode(),
    "1 MiB of text": b"package: p\ntasks: {a: {run: " + b"x" * 2**20 + b"}}\n",
    "1 MiB of a key": b"package: p\ntasks: {" + b"x" * 2**20 + b": {run: x}}\n",
    "many keys": b"package: p\ntasks: {" + b"a: {run: x}, " * 20_000 + b"}\n",
    "a tag": b"package: p\ntasks: {a: {run: !!python/object/apply:os.system [id]}}\n",
    "a key twice": b"package: p\npackage: q\ntasks: {a: {run: x}}\n",
    "a key twice, written otherwise": b'package: p\n"pack\\x61ge": q\ntasks: {a: {run: x}}\n',
    "two documents": (HEAD + "---\n" + HEAD).encode(),
    "a huge number": b"package: p\ntasks: {a: {run: x, retry: {attempts: "
    + b"9" * 5_000
    + b"}}}\n",
    "beyond 64 bits": b"package: p\ntasks: {a: {run: x, retry: {attempts: %d}}}\n" % (2**64 + 1),
    "infinity": b"package: p\ntasks: {a: {run: x, retry: {attempts: .inf}}}\n",
    "no number": b"package: p\ntasks: {a: {run: x, retry: {attempts: .nan}}}\n",
    "1e400": b"package: p\ntasks: {a: {run: x, retry: {attempts: 1e400}}}\n",
    "minus zero": b"package: p\ntasks: {a: {run: x, retry: {attempts: -0}}}\n",
    "a huge exponent": b"package: p\ntasks: {a: {run: x, timeout: 1e999999999}}\n",
    "a long time": b"package: p\ntasks: {a: {run: x, timeout: 999999999999999999999d}}\n",
}


@pytest.mark.parametrize("file", BAD)
def test_a_bad_file_is_refused_in_words(file: str) -> None:
    assert fault_of(BAD[file]) == ""
    with pytest.raises(PackageFaults):
        parse_package(BAD[file], "jobs.yaml")


@pytest.mark.parametrize(
    "file", [b"\xef\xbb\xbf" + HEAD.encode(), HEAD.replace("\n", "\r\n").encode()]
)
def test_a_mark_of_the_encoding_and_line_ends_of_elsewhere_change_nothing(file: bytes) -> None:
    plain = parse_package(HEAD.encode(), "jobs.yaml")
    assert parse_package(file, "jobs.yaml").digest == plain.digest


def test_real_files_with_slips_are_packages_or_refused() -> None:
    random = Random(4)
    for _ in range(150):
        file = mutated(random, random.choice(FILES))
        assert fault_of(file) == "", file


@settings(derandomize=True, deadline=None, max_examples=150, database=None)
@given(
    st.binary(max_size=300)
    | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))
)
def test_any_bytes_are_refused_in_words(file: bytes) -> None:
    assert fault_of(file) == ""
    assert fault_of(b"package: p\ntasks: {a: {run: x, env: {A: " + file) == ""


def test_a_package_that_the_check_takes_both_engines_take(
    sqlite_dsn: str, postgres_dsn: str
) -> None:
    """Slips that leave a package: the doors of SQL find nothing that the check has not found."""
    random, taken = Random(11), 0
    stores = [open_store(sqlite_dsn), open_store(postgres_dsn)]
    for _ in range(300):
        try:
            found = parse_package(mutated(random, random.choice(FILES[:9])), "jobs.yaml")
        except PackageFaults:
            continue
        taken += 1
        rows = [
            store.call("publish_package", p_package_key=found.key, p_manifest=found.manifest,
                       p_base_dir="/srv")[0] for store in stores
        ]  # fmt: skip
        assert rows[0] == rows[1]
        assert rows[0]["digest"] == found.digest
    for store in stores:
        store.close()
    assert taken > 20


def test_a_manifest_that_no_check_has_seen_stores_nothing(
    sqlite_dsn: str, postgres_dsn: str
) -> None:
    """As from another client: cut short, or with a step that needs itself or nobody."""
    good = acting.model({"work": acting.task()}, {"flow": acting.workflow({"a": [], "b": ["a"]})})
    text = canonical(good)
    bad = [text[:-1], text.replace('["a"]', '["b"]'), text.replace('["a"]', '["z"]'), "[]", "null"]
    bad += [
        text.replace('"task":"work"', '"task":"rest"'),
        text.replace('"timeout_ms":null', '"x":1e400'),
    ]
    for kind, dsn in (("sqlite", sqlite_dsn), ("postgres", postgres_dsn)):
        engine = Engine(kind, dsn, None)  # type: ignore[arg-type]
        before, store = acting.everything(engine), open_store(dsn)
        for manifest in bad:
            with pytest.raises(QinglongError):
                store.call(
                    "publish_package", p_package_key="p", p_manifest=manifest, p_base_dir="/srv"
                )
        store.close()
        assert acting.everything(engine) == before


def test_what_is_told_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check has teeth: a reader that repeats what it read, and one that breaks."""

    def tells(file: bytes, name: str) -> None:
        raise ValueError("no")

    monkeypatch.setattr(hostile_packages, "parse_package", tells)
    assert fault_of(b"") == "ValueError: no"
