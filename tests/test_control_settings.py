"""Settings of a control process: where they come from, what is refused, what is never shown."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from qinglong_sql.cli.control import control
from qinglong_sql.settings import (
    KEYS,
    ControlSettings,
    SettingFault,
    load,
    shown,
    without_password,
)
from tests.shell import Shell

DSN = "postgresql://ql@db/ql"
SECRET = "s3cr3t-word"


def refused(tmp_path: Path, text: str = "", environ: dict[str, str] | None = None,
            **flags: object) -> str:  # fmt: skip
    file = tmp_path / "control.toml"
    file.write_text(text)
    with pytest.raises(SettingFault) as raised:
        load(file, flags, environ or {})
    return str(raised.value)


def test_what_nobody_says_has_a_default() -> None:
    settings, origins = load(None, {"dsn": DSN}, {})
    assert settings == ControlSettings(
        dsn=DSN, password_file=None, listen=("127.0.0.1", 8271), pool_size=4,
        idle_ms=250, grace_ms=30_000, boot_timeout=30_000,
        recovery_timeout=60_000, drain_timeout=10_000, stop_timeout=3_000, log_format="text",
        log_level="info",
    )  # fmt: skip
    assert origins == {key: "--dsn" if key == "dsn" else "default" for key in KEYS}


def test_a_stop_has_time_within_what_kubernetes_gives() -> None:
    """terminationGracePeriodSeconds is 30: two lifecycles, the pool and the listener."""
    settings, _ = load(None, {"dsn": DSN}, {})
    assert 2 * settings.drain_timeout + 2 * settings.stop_timeout < 30_000


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "control.toml"
    file.write_text(f'dsn = "{DSN}"\nidle_ms = 1000\npool_size = 5\ngrace_ms = 7\n')
    environ = {"QINGLONG_CONTROL_IDLE_MS": "2000", "QINGLONG_CONTROL_POOL_SIZE": "6"}
    settings, origins = load(file, {"idle_ms": "3000", "grace_ms": None}, environ)
    assert (settings.idle_ms, settings.pool_size, settings.grace_ms) == (3000, 6, 7)
    assert origins["idle_ms"] == "--idle-ms"
    assert origins["pool_size"] == "QINGLONG_CONTROL_POOL_SIZE"
    assert origins["grace_ms"] == str(file)


def test_the_dsn_of_all_commands_is_taken_unless_there_is_one_of_its_own() -> None:
    environ = {"QINGLONG_DSN": DSN}
    assert load(None, {}, environ)[0].dsn == DSN
    environ["QINGLONG_CONTROL_DSN"] = "postgresql://other/ql"
    assert load(None, {}, environ)[0].dsn == "postgresql://other/ql"


def test_every_setting_may_be_said_in_each_of_three_places(tmp_path: Path) -> None:
    wanted: dict[str, object] = {
        "dsn": DSN, "password_file": "/run/pw", "listen": "[::1]:0", "pool_size": 9,
        "idle_ms": 11, "grace_ms": 12, "boot_timeout": "13s",
        "recovery_timeout": "1m30s", "drain_timeout": "500ms", "stop_timeout": "1s",
        "log_format": "json", "log_level": "debug",
    }  # fmt: skip
    assert wanted.keys() == KEYS.keys() == {one.name for one in fields(ControlSettings)}
    text = {key: str(value) for key, value in wanted.items()}
    file = tmp_path / "control.toml"
    file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in wanted.items()))
    by_file = load(file, {}, {})[0]
    by_environment = load(None, {}, {f"QINGLONG_CONTROL_{k.upper()}": v for k, v in text.items()})
    by_flags = load(None, text, {})[0]
    assert by_file == by_environment[0] == by_flags
    assert (by_flags.listen, by_flags.recovery_timeout) == (("::1", 0), 90_000)
    options = {name for one in control.params for name in one.opts}
    assert options >= {f"--{key.replace('_', '-')}" for key in KEYS}


def test_what_is_shown_is_a_file_that_says_the_same(tmp_path: Path) -> None:
    flags = {"dsn": DSN, "listen": "[::1]:80", "boot_timeout": "1m1s", "password_file": 'a"b\\c'}
    settings, origins = load(None, flags, {})
    file = tmp_path / "again.toml"
    file.write_text(shown(settings, origins), encoding="utf-8")
    assert load(file, {}, {})[0] == settings


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"listen": "8271"}, "write host:port, such as 127.0.0.1:8271"),
        ({"listen": "::1:80"}, "write host:port"),
        ({"listen": "h:65536"}, "write host:port"),
        ({"pool_size": "2"}, "it is a whole number from 3 to 32"),
        ({"pool_size": "many"}, "it is a whole number from 3 to 32"),
        ({"idle_ms": "9"}, "it is a whole number from 10 to 60000"),
        ({"boot_timeout": "30"}, "it is a time such as 30s: a unit is missing: write 30s"),
        ({"boot_timeout": "2h"}, "it is a time such as 30s: must be at most 1h"),
        ({"log_format": "xml"}, "it is one of text, json"),
        ({"log_level": "loud"}, "it is one of debug, info, warning, error"),
        ({"dsn": "sqlite:///q.db"}, "a control process works on PostgreSQL alone"),
    ],
)
def test_a_wrong_setting_is_told_with_its_place_and_the_way_out(
    tmp_path: Path, said: dict[str, str], wanted: str
) -> None:
    ((key, value),) = said.items()
    flag, name = f"--{key.replace('_', '-')}", f"QINGLONG_CONTROL_{key.upper()}"
    dsn = {"QINGLONG_CONTROL_DSN": DSN}
    assert refused(tmp_path, environ=dsn, **said).startswith(f"{flag}: {wanted}")
    assert refused(tmp_path, environ=dsn | {name: value}).startswith(f"{name}: {wanted}")
    other = {} if key == "dsn" else dsn
    in_file = refused(tmp_path, f"{key} = '{value}'\n", other)
    assert in_file.startswith(f"{tmp_path}/control.toml: {key}: {wanted}")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "dsn is missing: the database: postgresql://user@host/database; say --dsn"),
        ("pool_sice = 4", "no setting 'pool_sice'; did you mean pool_size?"),
        ("xyz = 4", "no setting 'xyz'; there are dsn, password_file"),
        ("pool_size = x", "it is no TOML: Invalid value (at line 1, column 13)"),
        ("pool_size = true", "pool_size: it is a whole number"),
        ("pool_size = 4.0", "pool_size: it is a whole number"),
        ("dsn = 4", "dsn: it is text"),
        ("[dsn]", "dsn: it is text"),
        ("#" * 65_537, "a file of settings is at most 64 KiB"),
    ],
)
def test_a_file_that_cannot_be_used_is_told(tmp_path: Path, text: str, wanted: str) -> None:
    environ = {} if not text or "dsn" in text else {"QINGLONG_DSN": DSN}
    assert wanted in refused(tmp_path, text, environ)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    for file, wanted in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(SettingFault, match=wanted):
            load(file, {"dsn": DSN}, {})
    (tmp_path / "latin").write_bytes(b"# \xe9")
    with pytest.raises(SettingFault, match="no UTF-8"):
        load(tmp_path / "latin", {"dsn": DSN}, {})


def test_names_that_kubernetes_puts_into_the_environment_are_left_alone() -> None:
    environ = {
        "QINGLONG_CONTROL_DSN": DSN,
        "QINGLONG_CONTROL_PORT": "tcp://10.0.0.1:8271",
        "QINGLONG_CONTROL_SERVICE_HOST": "10.0.0.1",
        "QINGLONG_CONTROL_PORT_8271_TCP_ADDR": "10.0.0.1",
    }
    assert load(None, {}, environ)[0].dsn == DSN
    assert not {"PORT", "SERVICE_HOST"} & {key.upper() for key in KEYS}


@pytest.mark.parametrize(
    ("dsn", "wanted"),
    [
        (f"postgresql://u:{SECRET}@h/d", "postgresql://u:***@h/d"),
        (f"postgresql://:{SECRET}@h/d", "postgresql://:***@h/d"),
        (f"postgresql://u:a@{SECRET}@h/d", "postgresql://u:***@h/d"),
        (f"postgresql://u:a?{SECRET}@h/d?x=y", "postgresql://u:***@h/d?x=y"),
        (f"postgresql://u:a/{SECRET}#@h/d", "postgresql://u:***@h/d"),
        (f"postgresql://u@h/d?password={SECRET}&sslmode=require",
         "postgresql://u@h/d?password=***&sslmode=require"),
        (f"postgresql://u@h/d?sslmode=require&pass%77ord={SECRET}",
         "postgresql://u@h/d?sslmode=require&pass%77ord=***"),
        (f"postgresql://u:{SECRET}@h/d?sslpassword={SECRET}",
         "postgresql://u:***@h/d?sslpassword=***"),
        ("postgresql://u@h:5432,[::1]:5433/d?a=b", "postgresql://u@h:5432,[::1]:5433/d?a=b"),
        ("postgresql:///d?host=/run/pg", "postgresql:///d?host=/run/pg"),
    ],
)  # fmt: skip
def test_a_password_in_a_dsn_is_never_shown(dsn: str, wanted: str) -> None:
    assert without_password(dsn) == wanted


def test_the_printed_settings_hold_no_secret(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text(f"{SECRET}\n")
    shell = Shell(tmp_path, f"postgresql://u:{SECRET}@h/d", {"QINGLONG_CONTROL_IDLE_MS": "99"})
    done = shell("control", "--print-settings", "--password-file", password)
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert 'dsn = "postgresql://u:***@h/d"  # QINGLONG_DSN;' in done.stdout
    assert "idle_ms = 99  # QINGLONG_CONTROL_IDLE_MS;" in done.stdout
    assert len(done.stdout.splitlines()) == len(KEYS)


def test_a_password_file_is_read_without_the_end_of_its_line(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text(f" {SECRET} \r\n")
    flags: dict[str, object] = {"dsn": DSN, "password_file": str(password)}
    assert load(None, flags, {})[0].password() == f" {SECRET} "
    for text, why in (("\n", "it is empty"), ("x" * 5_000, "it is longer than 4096 characters")):
        password.write_text(text)
        with pytest.raises(SettingFault, match=why):
            load(None, flags, {})[0].password()
    password.unlink()
    with pytest.raises(SettingFault, match=r"password_file .*: No such file"):
        load(None, flags, {})[0].password()


def test_wrong_settings_end_the_command_with_two(tmp_path: Path) -> None:
    shell = Shell(tmp_path, "sqlite:///q.db")
    for words, told in (
        ([], "QINGLONG_DSN: a control process works on PostgreSQL alone"),
        (["--dsn", DSN, "--pool-size", "1"], "--pool-size: it is a whole number from 3 to 32"),
        (["--config", "none.toml"], "none.toml: No such file or directory"),
        (["--dsn", DSN, "--password-file", "none"], "password_file none: No such file"),
    ):
        done = shell("control", *words)
        assert (done.returncode, told in done.stderr) == (2, True), done.stderr


def test_a_plain_install_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("psycopg", "psycopg_pool", "cheroot", "prometheus_client"):
        with monkeypatch.context() as patch:
            find = "qinglong_sql.cli.control.importlib.util.find_spec"
            patch.setattr(find, lambda one, name=name: None if one == name else True)
            done = Shell(tmp_path, DSN)("control")
        assert done.returncode == 6
        assert f"{name} is not installed: pip install 'qinglong-sql[control]'" in done.stderr
