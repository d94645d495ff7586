"""Dockerfiles and docker-compose.yml: their tools' opinion, and what the documentation promises of them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from build_engines.targets.modelopt import ENVIRONMENT as MODELOPT
from gateway import __version__
from gateway.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
DOCKERFILES = [ROOT / "Dockerfile.gateway", ROOT / "Dockerfile.triton"]
COMPOSE = ROOT / "docker-compose.yml"
GPU = {"engines", "triton", "gateway"}
CPU = {"triton-cpu", "gateway"}
MONITORING = {"prometheus", "grafana"}
OURS = GPU | CPU


def compose() -> dict[str, Any]:
    """The file as Docker reads it where no variable is set."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", COMPOSE.read_text())
    assert "$" not in text
    document: dict[str, Any] = yaml.safe_load(text)
    return document


SERVICES: dict[str, dict[str, Any]] = compose()["services"]
services = pytest.mark.parametrize("name", SERVICES)


def started_by(*profiles: str) -> set[str]:
    return {name for name, service in SERVICES.items() if set(service["profiles"]) & set(profiles)}


def mounts() -> Iterator[tuple[str, str]]:
    """(service, source) of every mount."""
    for name, service in SERVICES.items():
        for mount in service.get("volumes", ()):
            yield name, mount.split(":")[0]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_has_nothing_to_say(path: Path) -> None:
    """No warning, not even one of style."""
    hadolint = Path(sys.executable).with_name("hadolint")
    result = subprocess.run([hadolint, path], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_images_are_pinned_and_not_roots(path: Path) -> None:
    """Bases have an exact tag; what is run has a number for a user, a check of its health, and exec forms only."""
    text = path.read_text()
    bases = dict(re.findall(r"^ARG (\w+)=(\S+[:@]\S+)$", text, re.MULTILINE))
    assert set(re.findall(r"^FROM \$\{(\w+)\}", text, re.MULTILINE)) == set(bases)
    for image in bases.values():
        assert re.search(r":\d+\.\d+[^:@]*(@sha256:[0-9a-f]{64})?$", image), image
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    run = [stage for stage in stages if re.search(r"^CMD", stage, re.MULTILINE)]
    for stage in run:
        assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", stage, re.MULTILINE)
        assert "HEALTHCHECK" in stage or "AS engines" in stage
        assert not re.search(r"^\s*(CMD|ENTRYPOINT) [^\[]", stage, re.MULTILINE)
        assert all(line.count("--no-cache-dir") for line in stage.splitlines() if " install " in line and "pip" in line)


def test_versions_go_together() -> None:
    """One Python base; Triton and TensorRT of one month; images and labels with the version of the package."""
    gateway, triton = (path.read_text() for path in DOCKERFILES)
    assert re.findall(r"^ARG BASE=.*", gateway, re.MULTILINE) == re.findall(r"^ARG BASE=.*", triton, re.MULTILINE)
    assert len(set(re.findall(r"nvcr\.io/nvidia/\w+:(\S+)", triton))) == 1
    assert set(re.findall(r"ARG VERSION=(\S+)", gateway + triton)) == {__version__}
    for name in OURS:
        assert re.fullmatch(rf"[a-z-]+:{re.escape(__version__)}(-gpu|-cpu)?", SERVICES[name]["image"])


def test_the_build_context_has_what_is_copied() -> None:
    """Every file that a Dockerfile copies is there and let through by .dockerignore."""
    let_through = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for path in DOCKERFILES:
        for line in re.findall(r"^COPY (?!--from)(.*)$", path.read_text(), re.MULTILINE):
            for source in line.split()[:-1]:
                assert (ROOT / source).exists()
                assert any((f"{source}/").startswith(f"{one}/") or one.startswith(f"{source}/") for one in let_through)


def test_compose_follows_its_schema() -> None:
    """Docker would read the file."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_profiles_start_what_they_are_named_after() -> None:
    """`docker compose up` is the GPU's stack, by .env; the CPU's has nothing that asks for a GPU."""
    assert "COMPOSE_PROFILES=gpu" in (ROOT / ".env").read_text().splitlines()
    assert started_by("gpu") == GPU
    assert started_by("cpu") == CPU
    assert started_by("monitoring") == MONITORING
    assert set(SERVICES) == GPU | CPU | MONITORING


def test_gpus_are_reserved_where_they_are_needed() -> None:
    """The builder and the GPU's Triton ask for one; nobody else does."""
    for name, service in SERVICES.items():
        devices = service["deploy"]["resources"].get("reservations", {}).get("devices", [])
        wanted = [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}] if name in ("engines", "triton") else []
        assert devices == wanted


def test_each_waits_for_the_one_before() -> None:
    """The builder has ended well, then Triton's models are ready, then the gateway starts, and can answer."""
    assert SERVICES["triton"]["depends_on"] == {"engines": {"condition": "service_completed_successfully"}}
    assert SERVICES["gateway"]["depends_on"] == {
        name: {"condition": "service_healthy", "required": False} for name in ("triton", "triton-cpu")
    }
    for name, path in (("triton", "/v2/health/ready"), ("triton-cpu", "/v2/health/ready"), ("gateway", "/readyz")):
        assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"
        assert SERVICES[name]["healthcheck"]["test"][-1].endswith(path)
    assert "restart" not in SERVICES["engines"]
    assert "--strict-readiness=true" in (ROOT / "Dockerfile.triton").read_text()


def test_the_gateway_alone_can_be_reached() -> None:
    """Its port is the service's only one, and like that of Grafana for this machine only."""
    ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert ports == {"gateway": ["127.0.0.1:8080:8080"], "grafana": ["127.0.0.1:3000:3000"]}


def test_networks_are_apart() -> None:
    """Triton is in a network without a way out, the builder in none; dashboards do not see the service."""
    assert compose()["networks"]["back"] == {"internal": True}
    assert SERVICES["engines"]["network_mode"] == "none"
    joined = {name: set(service["networks"]) for name, service in SERVICES.items() if "networks" in service}
    assert joined == {
        "triton": {"back"},
        "triton-cpu": {"back"},
        "gateway": {"front", "back"},
        "prometheus": {"back", "monitoring"},
        "grafana": {"monitoring"},
    }
    assert SERVICES["triton-cpu"]["networks"]["back"]["aliases"] == ["triton"]


@services
def test_a_container_may_do_little(name: str) -> None:
    """A read-only root, no capability, no new privilege, and a limit for memory and logs."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert re.fullmatch(r"\d+[mg]", service["deploy"]["resources"]["limits"]["memory"])
    assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}
    assert any(mount.split(":")[0] == "/tmp" for mount in service["tmpfs"])


@services
def test_nothing_is_latest(name: str) -> None:
    """Every image has a version, and those of others a digest."""
    image = SERVICES[name]["image"]
    assert re.search(r":v?\d+\.\d+\.\d+", image)
    assert name in OURS or re.search(r"@sha256:[0-9a-f]{64}$", image)


@pytest.mark.parametrize("name", ["triton", "triton-cpu"])
def test_triton_has_shared_memory_and_pinned_memory(name: str) -> None:
    """Docker's own limits are too small for tensors."""
    assert SERVICES[name]["shm_size"] == "1g"
    assert SERVICES[name]["ulimits"] == {"memlock": -1, "stack": 67108864}


def test_triton_arranges_its_backend_where_it_may_run() -> None:
    """Docker mounts a tmpfs noexec unless told otherwise, and `tidegate triton` runs the Python backend from /tmp."""
    assert SERVICES["triton-cpu"]["tmpfs"] == ["/tmp:exec"]


@pytest.mark.parametrize("name", ["triton", "triton-cpu", "gateway"])
def test_what_serves_is_restarted_and_may_finish(name: str) -> None:
    """It comes back by itself, and has longer to stop than its requests have to finish."""
    assert SERVICES[name]["restart"] == "unless-stopped"
    assert (
        int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > Settings.model_fields["shutdown_grace_s"].default
    )


def test_what_is_mounted_is_there() -> None:
    """Files of the project exist and are mounted read-only; volumes are declared."""
    for name, source in mounts():
        if source.startswith("."):
            assert (ROOT / source).exists(), f"{name} mounts {source}"
            assert f"{source}:" in str(SERVICES[name]["volumes"])
        else:
            assert source in compose()["volumes"]
    assert [mount for mount in SERVICES["triton"]["volumes"] if not mount.endswith(":ro")] == []


def test_every_variable_is_a_setting() -> None:
    """The gateway refuses to start with a TIDEGATE_ variable that it does not know."""
    files = [*DOCKERFILES, COMPOSE]
    used = {name for file in files for name in re.findall(rf"\b{PREFIX}\w+", file.read_text())}
    assert used - {MODELOPT} <= {PREFIX + name.upper() for name in Settings.model_fields}
    assert MODELOPT not in COMPOSE.read_text() + DOCKERFILES[0].read_text()


def test_the_documentation_names_every_variable() -> None:
    """What can be set from outside is in docs/containers.md."""
    documentation = (ROOT / "docs" / "containers.md").read_text()
    for name in re.findall(r"\$\{(\w+):-", COMPOSE.read_text()):
        assert f"`{name}`" in documentation
