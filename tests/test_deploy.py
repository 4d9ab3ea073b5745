"""What is in scripts/deploy says what the processes understand, and keeps to the limits.

That the files are well formed is for the linters of `.ci/run deploy`.
"""

import re
from collections.abc import Iterator
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from qinglong_sql import ingress_settings, worker_settings
from qinglong_sql.cli.control import control
from qinglong_sql.cli.ingress import ingress
from qinglong_sql.cli.service import migrate
from qinglong_sql.cli.worker import worker_command
from qinglong_sql.settings import KEYS, PREFIX, load
from tests.server import ROOT

DEPLOY = ROOT / "scripts" / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
OF_PREFIX = {
    PREFIX: KEYS,
    ingress_settings.PREFIX: ingress_settings.KEYS,
    worker_settings.PREFIX: worker_settings.KEYS,
}
OTHERS = {"QINGLONG_DSN", "QINGLONG_STATE_DIR", *(f"{prefix}CONFIG" for prefix in OF_PREFIX)}
KNOWN = OTHERS | {prefix + key.upper() for prefix, keys in OF_PREFIX.items() for key in keys}
SETTINGS = load(None, {"dsn": "postgresql://db/q"}, {})[0]
COMMANDS = {
    "control": control,
    "migrate": migrate,
    "ingress": ingress,
    "worker": worker_command,
}
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
        if one["kind"] in ("Deployment", "Job", "StatefulSet"):
            yield part(one), one["spec"]["template"]["spec"]


def part(one: dict[str, Any]) -> str:
    return str(one["metadata"]["labels"]["app.kubernetes.io/component"])


def only(kind: str, component: str = "control") -> dict[str, Any]:
    (found,) = [one for one in objects() if (one["kind"], part(one)) == (kind, component)]
    return found


def environment(container: dict[str, Any]) -> dict[str, str]:
    """What a container is told; of a secret, some DSN."""
    return {one["name"]: one.get("value", "postgresql://db/q") for one in container["env"]}


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


def test_the_examples_for_workers_and_their_door_are_taken() -> None:
    door = ingress_settings.load(DEPLOY / "qinglong-ingress.toml", {"key": "k"}, {})[0]
    assert door.health_listen[0] == "127.0.0.1" and door.listen == ("0.0.0.0", 8272)
    assert door.crl is not None and door.ca_dir is None
    worker = worker_settings.load(DEPLOY / "qinglong-worker.toml", {}, {})[0]
    assert worker.ingress == f"https://ingress.example.org:{door.listen[1]}"


@pytest.mark.parametrize("name", ["control", "ingress"])
def test_the_unit(name: str) -> None:
    file = f"qinglong-sql-{name}.service"
    unit = Unit(file)
    service = unit["Service"]
    words = service["ExecStart"].split()[1:]
    COMMANDS[words[0]].make_context(words[0], words[1:])
    assert words[0] == name and words[-1] == f"/etc/qinglong-sql/qinglong-{name}.toml"
    assert service["MemoryMax"] == "512M"
    assert service["TasksMax"] == "256"
    assert service["CPUQuota"] == "200%"
    assert service["DynamicUser"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert int(service["TimeoutStopSec"]) > STOP_S + 10
    assert service["Type"] == "exec", "it does not speak sd_notify"
    text = text_of(DEPLOY / file)
    secrets = re.findall(r"LoadCredential=(\w+):", text)
    assert secrets == ["password"] if name == "control" else ["password", "key"]
    for secret in secrets:
        assert re.search(rf"^Environment=QINGLONG_{name.upper()}_\w+=%d/{secret}$", text, re.M)


def test_the_unit_of_a_worker_leaves_its_launchers_alone() -> None:
    """DESIGN §9: the fork server outlives the worker until its last launcher is gone."""
    service = Unit("qinglong-sql-worker.service")["Service"]
    words = service["ExecStart"].split()[1:]
    worker_command.make_context(words[0], words[1:])
    assert service["KillMode"] == "process"
    assert "DynamicUser" not in service, "who comes back must be who left"
    assert not {"PrivatePIDs", "PrivateUsers", "MemoryMax", "TasksMax"} & set(service)
    assert service.get("ProtectProc", "default") == "default"
    worker = worker_settings.load(DEPLOY / "qinglong-worker.toml", {}, {})[0]
    assert int(service["TimeoutStopSec"]) >= worker.drain_timeout / 1000 + 10
    state = f"/var/lib/{service['StateDirectory']}"
    assert service["ReadWritePaths"] == state
    assert f"Environment=QINGLONG_STATE_DIR={state}\n" in text_of(
        DEPLOY / "qinglong-sql-worker.service"
    )
    for paper in (worker.certificate, worker.key, worker.ca):
        assert str(paper).startswith(f"{state}/papers/"), "it renews them"


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
    most = 2048 if kind == "worker" else 512  # a worker's are what its steps need
    memory = int(limits["memory"].removesuffix("Mi").replace("Gi", "000"))
    assert memory <= most and int(limits["cpu"]) <= 2
    COMMANDS[container["args"][0]].make_context(container["args"][0], container["args"][1:])
    secret = {"QINGLONG_DSN", "PGPASSWORD", *(f"{prefix}DSN" for prefix in OF_PREFIX)}
    for one in container["env"]:
        assert ("valueFrom" in one) == (one["name"] in secret), one["name"]


def test_the_deployment_can_be_asked_and_has_time_to_stop() -> None:
    pod = only("Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    settings, _ = load(None, {}, environment(container))
    (port,) = container["ports"]
    assert settings.listen == ("0.0.0.0", port["containerPort"])
    for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}
    assert pod["terminationGracePeriodSeconds"] > STOP_S + 10
    (mount,) = container["volumeMounts"]
    assert str(settings.password_file).startswith(mount["mountPath"] + "/")
    assert only("Deployment")["spec"]["replicas"] > 1


def mounted(pod: dict[str, Any], path: Path | None) -> str:
    """The volume that a file of a container is on."""
    (container,) = pod["containers"]
    assert path is not None
    found = [one for one in container["volumeMounts"] if f"{path}/".startswith(one["mountPath"])]
    assert found and "subPath" not in found[0], path
    return str(found[0]["name"])


def test_the_door_in_a_cluster() -> None:
    pod = only("Deployment", "ingress")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    settings = ingress_settings.load(None, {}, environment(container))[0]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert settings.listen == ("0.0.0.0", ports["workers"])
    assert settings.health_listen == ("0.0.0.0", ports["metrics"])
    for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "metrics"}
    for file in (settings.certificate, settings.key, settings.client_ca, settings.crl):
        assert mounted(pod, file) == "tls"
    assert mounted(pod, settings.password_file) == "password"
    assert mounted(pod, settings.log_dir) == "logs"
    stop_s = (settings.drain_timeout + 2 * settings.stop_timeout) / 1000
    assert pod["terminationGracePeriodSeconds"] > stop_s + 10
    spec = only("Deployment", "ingress")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"}), "one writes its logs"


def test_a_worker_in_a_cluster() -> None:
    spec = only("StatefulSet", "worker")["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    settings = worker_settings.load(None, {}, environment(container))[0]
    for file in (settings.certificate, settings.key, settings.ca):
        assert mounted(pod, file) == "tls"
    assert mounted(pod, settings.state) == mounted(pod, settings.base_dir) == "state"
    assert pod["terminationGracePeriodSeconds"] >= settings.drain_timeout / 1000 + 10
    assert spec["replicas"] == 1
    door = only("Service", "ingress")
    (port,) = door["spec"]["ports"]
    name = door["metadata"]["name"]
    assert settings.ingress == f"https://{name}.qinglong.svc:{port['port']}"
    assert f"--host {name}.qinglong.svc" in text_of(DEPLOY / "kubernetes" / "ingress.yaml")


@pytest.mark.parametrize(("kind", "part"), [("Deployment", "ingress"), ("StatefulSet", "worker")])
def test_what_selects_the_pods_of_a_part_finds_them(kind: str, part: str) -> None:
    spec = only(kind, part)["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    if part == "ingress":
        assert only("Service", part)["spec"]["selector"] == labels
    account = spec["template"]["spec"]["serviceAccountName"]
    assert account == only("ServiceAccount", part)["metadata"]["name"]


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
    assert only("Job", "migrate")["spec"]["template"]["metadata"]["labels"] != labels
    assert (
        spec["template"]["spec"]["serviceAccountName"] == only("ServiceAccount")["metadata"]["name"]
    )


def test_every_file_is_explained() -> None:
    page = text_of(DEPLOY / "README.md")
    for path in FILES:
        name = path.relative_to(DEPLOY).as_posix()
        assert path.name == "README.md" or f"`{name}`" in page, name
