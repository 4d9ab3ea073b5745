"""Commands under locales that are not UTF-8: C as cron has it, and GBK."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.shell import Shell, command

JOBS = """\
package: nightly
workflows:
  etl:
    name: 夜间的 café
    steps:
      take: {name: 抽取, run: "printf '行 1\\n'"}
      check: {name: 检查, run: "echo 不好; exit 3", needs: [take]}
"""
C = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture(scope="module")
def gbk(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A GBK locale made for the test; where none can be made, only the streams are GBK."""
    folder = tmp_path_factory.mktemp("locale")
    name = "zh_CN.GBK"
    try:
        made = subprocess.run(
            ["localedef", "-i", "zh_CN", "-f", "GBK", folder / name], capture_output=True,
            check=False,
        ).returncode == 0 and (folder / name).exists()  # fmt: skip
    except OSError:
        made = False
    if made:
        return {**C, "LC_ALL": name, "LOCPATH": str(folder)}
    return {**C, "PYTHONIOENCODING": "gbk"}


@pytest.mark.parametrize("which", ["c", "gbk"])
def test_commands_under_a_locale_that_is_not_utf_8(
    tmp_path: Path, gbk: dict[str, str], which: str
) -> None:
    """In processes of their own, and never with a traceback; the texts stay whole."""
    env = C if which == "c" else gbk
    folder = tmp_path / "文件夹"
    folder.mkdir()
    (folder / "作业.yaml").write_text(JOBS, encoding="utf-8")

    def ask(*words: object) -> tuple[int, str]:
        shell = Shell(folder, f"sqlite:///{folder}/库.db")
        done = subprocess.run(
            command(*words), cwd=folder, env=shell.environment(**env), stdin=subprocess.DEVNULL,
            capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        text = (done.stdout + done.stderr).decode("gbk" if which == "gbk" else "ascii", "replace")
        assert "Traceback" not in text and "Error:" not in text, text
        return done.returncode, text

    code, said = ask("run", "作业.yaml")
    assert code == 1, said
    code, said = ask("runs", "--json")
    (run,) = json.loads(said)
    assert run["package_key"] == "nightly"
    run_id = run["run_id"]
    (folder / "bad.yaml").write_text(JOBS.replace("nightly", "夜间"), encoding="utf-8")
    code, said = ask("check", "bad.yaml")
    assert code == 2 and ("夜间" if which == "gbk" else r"\u591c\u95f4") in said
    for words in (["show", run_id], ["check", "作业.yaml"], ["graph", run_id],
                  ["retry", run_id, "--preview"], ["backup", "备份.db"]):  # fmt: skip
        code, said = ask(*words)
        assert code == 0, said
    code, said = ask("logs", run_id, "check")
    assert code == 0 and not said.isascii(), "bytes of a log are passed on as they are"
    code, said = ask("check", "没有.yaml")
    assert code == 2
