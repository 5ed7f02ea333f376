"""The compose files keep the rules of a safe deployment. No Docker engine is needed: they are read, not run."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

OURS = ("migrate", "api", "worker-replay", "worker-control", "beat")
SERVERS = ("postgres", "redis")
SECRETS = ("POSTGRES_PASSWORD", "REDIS_PASSWORD", "CAPREPLAY_SECRET_KEY")
INTERPOLATION = re.compile(r"(?<!\$)\$\{([A-Z_]+)([^}]*)\}")


@pytest.fixture(scope="module")
def compose(project_root: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((project_root / "docker-compose.yml").read_text()))


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return dict(compose["services"])


def strings(node: Any) -> list[str]:
    """Every text inside a parsed YAML document."""
    if isinstance(node, dict):
        return [text for value in node.values() for text in strings(value)]
    if isinstance(node, list):
        return [text for value in node for text in strings(value)]
    return [node] if isinstance(node, str) else []


def test_the_services_are_those_of_the_design(services: dict[str, dict[str, Any]]) -> None:
    assert set(services) == {*OURS, *SERVERS}


def test_one_image_runs_all_our_services(services: dict[str, dict[str, Any]]) -> None:
    assert len({services[name]["image"] for name in OURS}) == 1


@pytest.mark.parametrize("name", [*OURS, *SERVERS])
def test_each_service_is_confined(services: dict[str, dict[str, Any]], name: str) -> None:
    service = services[name]
    assert service["user"] not in ("", "root", "0", "0:0")
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert "cap_add" not in service
    assert "privileged" not in service
    assert any(mount.split(":")[0] == "/tmp" for mount in service["tmpfs"])  # a tmpfs inside a container
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert 0 < service["pids_limit"] <= 1024


@pytest.mark.parametrize("name", [*OURS, *SERVERS])
def test_each_lasting_service_has_a_health_check_and_restarts(services: dict[str, dict[str, Any]], name: str) -> None:
    service = services[name]
    if name == "migrate":
        assert service["restart"] == "no"
        return
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    assert {"interval", "timeout", "retries"} <= set(service["healthcheck"])


def test_only_the_api_publishes_a_port_and_by_default_on_this_machine_alone(
    services: dict[str, dict[str, Any]],
) -> None:
    assert [name for name, service in services.items() if "ports" in service] == ["api"]
    assert services["api"]["ports"] == ["${CAPREPLAY_PUBLISH:-127.0.0.1:8000}:8000"]
    assert [name for name, service in services.items() if "outside" in service["networks"]] == ["api"]


def test_servers_are_on_a_network_without_a_way_out(compose: dict[str, Any]) -> None:
    assert compose["networks"]["inside"] == {"internal": True}
    for name in SERVERS:
        assert compose["services"][name]["networks"] == ["inside"]


def test_no_secret_has_a_default(compose: dict[str, Any]) -> None:
    uses = [match for text in strings(compose) for match in INTERPOLATION.findall(text)]
    named = {name for name, _ in uses}
    assert set(SECRETS) <= named
    for name, rest in uses:
        if name in SECRETS:
            assert rest.startswith(":?"), f"{name} must stop compose when it is absent"
            assert len(rest) > 2
        else:
            assert "PASSWORD" not in name
            assert "SECRET" not in name


def test_our_services_wait_for_the_migration_and_the_servers(services: dict[str, dict[str, Any]]) -> None:
    for name in OURS:
        waits = {other: how["condition"] for other, how in services[name]["depends_on"].items()}
        assert waits["postgres"] == "service_healthy"
        if name != "migrate":
            assert waits["migrate"] == "service_completed_successfully"
            assert waits["redis"] == "service_healthy"


def test_redis_keeps_what_it_took_and_asks_for_the_password(services: dict[str, dict[str, Any]]) -> None:
    script = services["redis"]["command"][2]
    for line in (
        "maxmemory-policy noeviction",
        "appendonly yes",
        "appendfsync everysec",
        "requirepass $$REDIS_PASSWORD",
    ):
        assert line in script


def test_every_setting_given_exists(services: dict[str, dict[str, Any]]) -> None:
    from models.settings import Settings

    known = {f"CAPREPLAY_{name.upper()}" for name in Settings.model_fields}
    given = {key for name in OURS for key in services[name]["environment"] if key.startswith("CAPREPLAY_")}
    assert given <= known


@pytest.mark.parametrize("name", [name for name in OURS if name != "migrate"])
def test_the_settings_of_each_service_are_accepted(
    services: dict[str, dict[str, Any]], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from models.settings import load_settings

    for key, value in services[name]["environment"].items():
        monkeypatch.setenv(key, INTERPOLATION.sub(_fill, str(value)))
    settings = load_settings()
    assert settings.embedded is False
    assert settings.auth_required is True
    if name.startswith("worker-"):
        assert settings.worker_queues == (name.removeprefix("worker-"),)


def _fill(match: re.Match[str]) -> str:
    default = match[2].removeprefix(":-") if match[2].startswith(":-") else ""
    return "long-random-text-of-a-test" if match[1] in SECRETS else default


def our_commands(root: Path) -> list[list[str]]:
    """The commands and health checks of our services, and the image's own."""
    services = yaml.safe_load((root / "docker-compose.yml").read_text())["services"]
    commands = [services[name]["command"] for name in OURS]
    commands += [test[1:] for name in OURS if (test := services[name]["healthcheck"].get("test"))]
    dockerfile = (root / "Dockerfile").read_text()
    commands += [
        shlex.split(line.removeprefix("RUN ")) for line in dockerfile.splitlines() if line == "RUN capreplay warmup"
    ]
    return [command for command in commands if command[0] == "capreplay"]


def test_each_command_is_one_of_the_program(project_root: Path) -> None:
    program = Path(sys.executable).with_name("capreplay")
    commands = our_commands(project_root)
    assert {"migrate", "serve", "worker", "beat", "warmup"} <= {command[1] for command in commands}
    helps: dict[str, str] = {}
    for _, verb, *options in commands:
        if verb not in helps:
            done = subprocess.run([str(program), verb, "--help"], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            helps[verb] = done.stdout
        for option in options:
            assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", helps[verb]), f"{verb} has no {option}"


def test_the_development_file_only_adds_to_services_that_exist(
    project_root: Path, services: dict[str, dict[str, Any]]
) -> None:
    extra = yaml.safe_load((project_root / "docker-compose.dev.yml").read_text())
    assert set(extra) == {"services"}
    assert set(extra["services"]) <= set(services)
    published = [port for service in extra["services"].values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_the_image_installs_by_hash_and_runs_as_nobody_special(project_root: Path) -> None:
    text = (project_root / "Dockerfile").read_text()
    installs = [line for line in text.splitlines() if "pip install" in line or "pip sync" in line]
    assert installs
    assert all("--require-hashes" in line or "--offline --no-deps" in line for line in installs)
    final = text.rsplit("\nFROM ", 1)[1]
    assert re.search(r"^USER 10001:10001$", final, re.MULTILINE)
    assert final.index("USER ") < final.index("RUN capreplay warmup")


def test_the_image_is_given_every_file_it_copies(project_root: Path) -> None:
    allowed = {
        line.removeprefix("!")
        for line in (project_root / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied: set[str] = set()
    for line in (project_root / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            copied |= set(line.split()[1:-1])
    assert copied == allowed
    assert all((project_root / name).exists() for name in copied)
