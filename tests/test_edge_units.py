"""The units of an edge that are shipped: systemd takes them, and each calls it as it is."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from qinglong_sql.cli.edge import edge as edge_command
from tests.shell import HOME

UNITS = sorted((HOME / "scripts" / "deploy").glob("qinglong-sql-edge.*"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_calls_the_edge_with_options_that_it_has(unit: Path) -> None:
    text = unit.read_text().replace("\\\n", " ")
    found = re.search(r"qinglong-sql edge (.*)", text)
    assert found, text
    words = re.sub(r"[\"$]|%h", "", found[1]).split()
    edge_command.make_context("edge", words)
    assert "KillMode=process" in text or "USE_PROCD=1" in text


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not here")
    name = "qinglong-sql-edge.service"
    text = (HOME / "scripts" / "deploy" / name).read_text()
    (tmp_path / name).write_text(text.replace("/usr/local/bin/qinglong-sql", "/bin/true"))
    done = subprocess.run(
        [tool, "verify", str(tmp_path / name)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
