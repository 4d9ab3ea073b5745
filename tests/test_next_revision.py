"""A revision after the first: what is released stays, what changed is frozen anew (DESIGN §10)."""

import shutil
from pathlib import Path

import pytest

from qinglong_sql import migrate
from scripts import freeze
from scripts.freeze import VERSIONS
from scripts.frozen import HAND, SQL_ROOT, frozen_files
from tests import engines
from tests.catalog import catalog
from tests.server import Server, tool
from tests.test_migration import psql, schema

TABLE = """
create table {schema}widget (
  widget_id text {collate}primary key
){strict};
"""
VIEW = "\ncreate view widget_state as\nselect w.widget_id\nfrom widget as w;\n"
GRANT = "\ngrant select on ql.widget_state to ql_reader;\n"


NEXT = f"{int(engines.NEWEST) + 1:04}"


class Tree:
    """A copy of sql/ and of the released revisions, to be changed."""

    def __init__(self, folder: Path) -> None:
        self.sql, self.versions = folder / "sql", folder / "versions"
        shutil.copytree(SQL_ROOT, self.sql)
        shutil.copytree(VERSIONS, self.versions)

    def freeze(self, *words: str) -> int:
        return freeze.main([*words, "--sql-root", str(self.sql), "--versions", str(self.versions)])

    def add(self, name: str, text: str) -> None:
        path = self.sql / name
        path.write_text(path.read_text() + text)

    def by_hand(self, engine: str, text: str) -> None:
        path = self.versions / f"{NEXT}_widget.{engine}.sql"
        path.write_text(path.read_text().replace(f"{HAND}\n", f"{HAND}\n{text}"))

    def text(self, name: str) -> str:
        return (self.versions / name).read_text()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path)
    assert made.freeze("--release") == 0
    return made


@pytest.fixture
def widget(tree: Tree) -> Tree:
    """A second revision with a table, a view, a changed function and a changed trigger."""
    of = {
        "postgres": TABLE.format(schema="ql.", collate='collate "C" ', strict=""),
        "sqlite": TABLE.format(schema="", collate="", strict=" strict"),
    }
    for engine, text in of.items():
        tree.add(f"{engine}/table.sql", text)
    tree.add("decision/reading.sql", VIEW)
    tree.add("postgres/grant.sql", GRANT)
    function = tree.sql / "postgres" / "frontier.sql"
    function.write_text(function.read_text().replace("begin\n", "begin\n  -- looked at twice\n"))
    assert tree.freeze("--next", "widget") == 0
    for engine, text in of.items():
        tree.by_hand(engine, text)
    assert tree.freeze() == 0  # what is by hand stays
    return tree


def test_a_released_revision_is_never_written_again(
    tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tree.freeze("--check") == 0
    assert tree.freeze() == 2
    assert "--next" in capsys.readouterr().err
    path = tree.versions / "0001_core.sqlite.sql"
    path.write_text(path.read_text() + "-- late\n")
    assert tree.freeze("--check") == 1
    assert "0001_core.sqlite.sql is released and was changed" in capsys.readouterr().out


def test_sql_that_changed_after_the_release_asks_for_a_revision(
    tree: Tree, capsys: pytest.CaptureFixture[str]
) -> None:
    tree.add("postgres/frontier.sql", "-- later\n")
    assert tree.freeze("--check") == 1
    assert "sql/postgres/frontier.sql changed after the release" in capsys.readouterr().out
    assert tree.freeze("--next", "later") == 0
    assert tree.freeze("--check") == 0
    text = tree.text(f"{NEXT}_later.postgres.sql")
    assert "-- from sql/postgres/frontier.sql" in text
    assert "-- from sql/postgres/grant.sql" in text
    assert "drop view" not in text
    assert tree.freeze("--next", "another") == 2
    assert "belongs into it" in capsys.readouterr().err


def test_the_second_revision_gives_what_the_changed_tree_gives_on_sqlite(
    widget: Tree, tmp_path: Path
) -> None:
    upgraded, fresh = tmp_path / "upgraded.db", engines.sqlite_template(tmp_path, widget.sql)
    for path in frozen_files("sqlite", widget.versions):
        migrate.install_sqlite(upgraded, path.read_text(), path.name[:4])
    assert schema(upgraded) == schema(fresh)
    assert widget.freeze("--check") == 0


@pytest.mark.all_versions
def test_the_second_revision_gives_what_the_changed_tree_gives_on_postgres(
    postgres_server: Server, widget: Tree, tmp_path: Path
) -> None:
    upgraded, fresh = (engines.fresh_postgres(postgres_server, template=None) for _ in "ab")
    try:
        psql(postgres_server, upgraded, SQL_ROOT / "postgres" / "role.sql")
        script = tmp_path / "upgrade.sql"
        for path in frozen_files("postgres", widget.versions):
            text = path.read_text()
            script.write_text(f"begin;\nset local role ql_migrator;\n{text}\ncommit;\n")
            psql(postgres_server, upgraded, script)
        for file in ("postgres/role.sql", "postgres.psql"):
            psql(postgres_server, fresh, widget.sql / file)
        found, wanted = catalog(upgraded), catalog(fresh)
        assert found["relation"] == wanted["relation"]
        assert found == wanted
        said = tool(postgres_server, "psql", "-XAtd", upgraded, "-c", "table ql.widget_state")
        assert said.stdout == ""
    finally:
        for url in (upgraded, fresh):
            engines.drop_postgres(postgres_server, url)
