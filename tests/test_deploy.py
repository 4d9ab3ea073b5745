"""What is in scripts/deploy says what a control process understands, and keeps to the limits.

That the files are well formed is for the linters of `.ci/run deploy`.
"""

import re
from collections.abc import Iterator
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from qinglong_sql.cli.control import control
from qinglong_sql.cli.service import migrate
from qinglong_sql.settings import KEYS, PREFIX, load
from tests.server import ROOT

DEPLOY = ROOT / "scripts" / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
OTHERS = {f"{PREFIX}CONFIG", "QINGLONG_DSN"}
KNOWN = OTHERS | {PREFIX + key.upper() for key in KEYS}
SETTINGS = load(None, {"dsn": "postgresql://db/q"}, {})[0]
COMMANDS = {"control": control, "migrate": migrate}
# two drains, and the pool and the listener (qinglong_sql/control_stop.py)
STOP_S = 2 * (SETTINGS.drain_timeout + SETTINGS.stop_timeout) / 1000


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


class Unit(RawConfigParser):
    """A unit of systemd; of a key that is said several times, the last."""

    def __init__(self, name: str) -> None:
        super().__init__(strict=False, interpolation=None, delimiters=("=",))
        self.optionxform = str  # type: ignore[assignment, method-assign]
        self.read(DEPLOY / name, encoding="utf-8")


def objects() -> Iterator[dict[str, Any]]:
    for path in MANIFESTS:
        yield from yaml.safe_load_all(text_of(path))


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for one in objects():
        if one["kind"] in ("Deployment", "Job"):
            yield one["kind"], one["spec"]["template"]["spec"]


def only(kind: str) -> dict[str, Any]:
    (found,) = [one for one in objects() if one["kind"] == kind]
    return found


FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_setting_that_is_named_exists(path: Path) -> None:
    for name in re.findall(r"\bQINGLONG_[A-Z_]+\b", text_of(path)):
        assert name in KNOWN, name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_password_is_in_a_file(path: Path) -> None:
    assert not re.search(r"//[^/@\s]+:[^/@\s]+@", text_of(path))


def test_the_example_of_settings_is_taken() -> None:
    settings, origins = load(DEPLOY / "qinglong-control.toml", {}, {})
    assert settings.listen[0] == "127.0.0.1"
    assert origins["dsn"].endswith("qinglong-control.toml")


def test_the_unit() -> None:
    unit = Unit("qinglong-sql-control.service")
    service = unit["Service"]
    words = service["ExecStart"].split()[1:]
    COMMANDS[words[0]].make_context(words[0], words[1:])
    assert service["MemoryMax"] == "512M"
    assert service["TasksMax"] == "256"
    assert service["CPUQuota"] == "200%"
    assert service["DynamicUser"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert int(service["TimeoutStopSec"]) > STOP_S + 10
    assert service["Type"] == "exec", "it does not speak sd_notify"
    password = re.search(r"LoadCredential=(\w+):", text_of(DEPLOY / "qinglong-sql-control.service"))
    assert password
    line = f"Environment={PREFIX}PASSWORD_FILE=%d/{password[1]}\n"
    assert line in text_of(DEPLOY / "qinglong-sql-control.service")


@pytest.mark.parametrize(("kind", "pod"), list(pods()), ids=lambda value: str(value)[:10])
def test_a_pod_is_nobody_and_writes_nothing(kind: str, pod: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    user = re.search(r"^USER (\d+):\d+$", text_of(DEPLOY / "Containerfile"), re.M)
    assert user and pod["securityContext"]["runAsUser"] == int(user[1])
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    own = container["securityContext"]
    assert own["readOnlyRootFilesystem"] is True
    assert own["allowPrivilegeEscalation"] is False
    assert own["capabilities"] == {"drop": ["ALL"]}
    limits = container["resources"]["limits"]
    assert int(limits["memory"].removesuffix("Mi")) <= 512 and int(limits["cpu"]) <= 2
    COMMANDS[container["args"][0]].make_context(container["args"][0], container["args"][1:])
    secret = {"QINGLONG_DSN", f"{PREFIX}DSN", "PGPASSWORD"}
    for one in container["env"]:
        assert ("valueFrom" in one) == (one["name"] in secret), one["name"]


def test_the_deployment_can_be_asked_and_has_time_to_stop() -> None:
    pod = only("Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    env = {one["name"]: one.get("value", "postgresql://db/q") for one in container["env"]}
    settings, _ = load(None, {}, env)
    (port,) = container["ports"]
    assert settings.listen == ("0.0.0.0", port["containerPort"])
    for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}
    assert pod["terminationGracePeriodSeconds"] > STOP_S + 10
    (mount,) = container["volumeMounts"]
    assert str(settings.password_file).startswith(mount["mountPath"] + "/")
    assert only("Deployment")["spec"]["replicas"] > 1


def test_what_selects_the_pods_finds_them() -> None:
    spec = only("Deployment")["spec"]
    labels = spec["template"]["metadata"]["labels"]
    wanted = [
        spec["selector"]["matchLabels"],
        only("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        only("Service")["spec"]["selector"],
        spec["template"]["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
    ]
    assert all(one == labels for one in wanted)
    assert only("Job")["spec"]["template"]["metadata"]["labels"] != labels
    assert (
        spec["template"]["spec"]["serviceAccountName"] == only("ServiceAccount")["metadata"]["name"]
    )


def test_every_file_is_explained() -> None:
    page = text_of(DEPLOY / "README.md")
    for path in FILES:
        name = path.relative_to(DEPLOY).as_posix()
        assert path.name == "README.md" or f"`{name}`" in page, name
