"""The Helm chart: rendered by Helm, checked by Kubernetes' own schemas, and read as an operator would."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import kubernetes_validate.utils as kubernetes
import pytest
import yaml

from gateway import __version__
from gateway.access.keys import add_key
from gateway.errors import UpstreamUnavailable
from gateway.settings import PREFIX, Settings, load_settings
from gateway.triton.fake import FakeTriton
from gateway.triton.local import LocalTritonError, find_installation
from tests.deploy.charts import (
    CHART,
    EXAMPLES,
    Document,
    containers,
    environment,
    example,
    helm,
    matches,
    named,
    of_kind,
    pods,
    refusal,
    render,
)
from tests.servers import ROOT, running_gateway

# The oldest that the chart is for, one in the middle, and the newest whose schemas are at hand.
KUBERNETES = ("1.30", "1.34", "1.37")
CUSTOM = yaml.safe_load((Path(__file__).parent / "custom_resources.yaml").read_text())

URL = "http://prometheus.monitoring.svc:9090"
HTTPS_OUT: Document = {"ports": [{"port": 443, "protocol": "TCP"}]}
KEPT: Document = {"claim": {"existing": "models"}, "kind": "claim"}

CASES: dict[str, Mapping[str, Any]] = {
    "defaults": {},
    **{file.stem: example(file.stem) for file in EXAMPLES},
    "ingress": {
        "exposure": {
            "kind": "ingress",
            "hosts": ["a.example.com", "b.example.com"],
            "annotations": {"example.com/body-size": "64m"},
            "ingress": {"className": "public", "tls": [{"secretName": "tls", "hosts": ["a.example.com"]}]},
        }
    },
    "http-route": {"exposure": {"kind": "httpRoute", "httpRoute": {"parentRefs": [{"name": "public"}]}}},
    "hpa": {"gateway": {"autoscaling": {"kind": "hpa"}}, "triton": {"autoscaling": {"kind": "hpa"}}},
    "keda": {
        "prometheus": {"url": URL},
        "gateway": {"autoscaling": {"kind": "keda"}},
        "triton": {"autoscaling": {"kind": "keda"}, "stepModels": ["preprocessor", "classifier", "flowers_classifier"]},
    },
    "weights-from-a-hub": {**example("mig"), "networkPolicy": {"enginesEgress": [HTTPS_OUT]}},
    "weights-from-a-hub-in-a-job": {
        **example("several-gpus"),
        "networkPolicy": {"enginesEgress": [HTTPS_OUT], "gatewayEgress": [HTTPS_OUT]},
    },
    "no-policies": {"networkPolicy": {"enabled": False}, "topologySpread": False},
    "nobody-watches": {"networkPolicy": {"prometheus": [], "clients": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}},
    "a-claim-of-ones-own": {"device": "gpu", "modelRepository": KEPT, "triton": {"modelControl": "poll"}},
    "a-claim-on-cpus": {"modelRepository": {**KEPT, "folder": "a/b"}, "triton": {"replicas": 3}},
    "keys-and-metrics-apart": {
        "gateway": {"apiKeys": {"existingSecret": "photo-keys", "checkSecret": "check-key"}, "metricsPort": 9090},
        "prometheus": {"serviceMonitor": {"enabled": True}},
    },
    "everything-placed": {
        "fullnameOverride": "tide",
        "images": {"registry": "registry.example.com/team/", "pullSecrets": ["pull"], "pullPolicy": "Always"},
        "gateway": {
            "image": {"digest": f"sha256:{'ab' * 32}"},
            "settings": {"max_body_bytes": 134217728, "probe_interval_s": 2.5, "access_log": True, "workers": 2},
            "extraEnv": [{"name": "OTEL_SERVICE_NAME", "value": "tidegate"}],
            "service": {"type": "LoadBalancer", "port": 443, "annotations": {"a": "b"}},
            "podAnnotations": {"a": "b"},
            "podLabels": {"team": "photos"},
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "a", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "priorityClassName": "high",
        },
        "triton": {
            "image": {"tag": "2.0"},
            "extraArgs": ["--log-verbose=1"],
            "runtimeClassName": "nvidia",
            "podLabels": {"team": "photos"},
            "podAnnotations": {"a": "b"},
            "podDisruptionBudget": {"maxUnavailable": "20%"},
        },
    },
}


@functools.cache
def rendered(case: str) -> list[Document]:
    return render(CASES[case])


@pytest.fixture(params=CASES)
def documents(request: pytest.FixtureRequest) -> list[Document]:
    """The chart with each set of values."""
    return rendered(request.param)


@pytest.fixture(scope="module", autouse=True)
def schemas_are_read_once() -> Iterator[None]:
    """They are megabytes, and read anew for each document otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kubernetes, "schema_contents", functools.cache(kubernetes.schema_contents))
        yield


# Helm and the schemas


@pytest.mark.parametrize("case", CASES)
def test_helm_finds_nothing_to_complain_of(case: str) -> None:
    """helm lint --strict, with every set of values."""
    done = helm("lint", "--strict", str(CHART), values=CASES[case])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_knows_every_field(documents: list[Document], version: str) -> None:
    """Strictly: a field that does not exist is an error; other projects' resources fit what is written of them here."""
    assert len(documents) > 8
    for document in documents:
        kind = f"{document['apiVersion']} {document['kind']}"
        if kind in CUSTOM:
            definitions = CUSTOM["$defs"]
            jsonschema.validate(document["metadata"], {"$defs": definitions, **definitions["metadata"]})
            jsonschema.validate(document["spec"], {"$defs": definitions, **CUSTOM[kind]})
        else:
            kubernetes.validate(document, version, strict=True)


def test_a_field_that_does_not_exist_is_noticed() -> None:
    """The schemas are strict indeed."""
    document = json.loads(json.dumps(named(rendered("defaults"), "Deployment", "-gateway")))
    document["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes.ValidationError, match="readynessProbe"):
        kubernetes.validate(document, KUBERNETES[-1], strict=True)


def test_names_are_unique(documents: list[Document]) -> None:
    """No document takes another's place."""
    names = [(d["kind"], d["metadata"]["name"]) for d in documents]
    assert len(names) == len(set(names))


def test_the_notes_can_be_written() -> None:
    """What helm install prints, for every example."""
    for file in EXAMPLES:
        values = example(file.stem)
        done = helm("install", "photos", str(CHART), "--dry-run=client", "--namespace", "shop", values=values)
        assert done.returncode == 0, done.stderr
        notes = done.stdout.partition("NOTES:")[2]
        assert "helm -n shop test photos" in notes
        assert ("interrupt" in notes or "503" in notes) == (file.stem == "one-gpu")


# Values


def test_every_value_is_in_the_schema_and_explained() -> None:
    """values.yaml and its schema name the same things, and every name has a comment above it or above its group."""
    schema = json.loads((CHART / "values.schema.json").read_text())

    def compare(values: Document, schema: Document, path: str) -> None:
        if "$ref" in schema:
            return
        assert schema["additionalProperties"] is False, path
        if path != ".gateway.settings":
            assert values.keys() == schema["properties"].keys() - {"global"}, path
        for key, value in values.items():
            if isinstance(value, dict) and value and "properties" in schema["properties"][key]:
                compare(value, schema["properties"][key], f"{path}.{key}")

    text = (CHART / "values.yaml").read_text()
    compare(yaml.safe_load(text), schema, "")
    before = ""
    for line in text.splitlines():
        if re.match(r" *[A-Za-z_]+: .", line) and line.split()[0] not in ("requests:", "limits:", "podSelector:"):
            assert before.lstrip().startswith("#"), f"{line.strip()!r} has no comment"
        before = line


def test_the_schema_knows_the_gateways_settings() -> None:
    """Every one that a person may set, with its limits; deploy/helm/settings_schema.py writes them."""
    done = subprocess.run([sys.executable, CHART.parent / "settings_schema.py", "--check"], check=False)
    assert done.returncode == 0, "the settings have changed: run python deploy/helm/settings_schema.py"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"gatway": {}}, "gatway"),
        ({"gateway": {"replica": 3}}, "replica"),
        ({"gateway": {"settings": {"max_imags": 3}}}, "max_imags"),
        ({"gateway": {"settings": {"max_images": 0}}}, "max_images"),
        ({"gateway": {"settings": {"triton_url": "elsewhere:8001"}}}, "triton_url"),
        ({"gateway": {"image": {"tag": "latest"}}}, "tag"),
        ({"gateway": {"image": {"repository": "tidegate-gateway:latest"}}}, "repository"),
        ({"gateway": {"replicas": 0}}, "replicas"),
        ({"gateway": {"settings": {"api_keys_file": "/keys.json"}}}, "api_keys_file"),
        ({"gateway": {"settings": {"tls_cert_file": "/cert.pem"}}}, "tls_cert_file"),
        ({"gateway": {"metricsPort": 8080}}, "metricsPort"),
        ({"triton": {"autoscaling": {"kind": "vpa"}}}, "kind"),
        ({"device": "tpu"}, "device"),
        ({"networkPolicy": {"dns": []}}, "dns"),
        ({"device": "gpu"}, "needs engines for its GPU"),
        ({"engines": {"mode": "job"}}, "none for device cpu"),
        ({"modelRepository": {"kind": "claim"}}, "existing claim"),
        ({**example("mig"), "engines": {"mode": "job"}}, "kind claim"),
        ({**example("one-gpu"), "triton": {}}, "same time"),
        ({**example("several-gpus"), "modelRepository": {"kind": "claim"}}, "ReadWriteMany"),
        ({"triton": {"gpu": {"resource": "nvidia.com/mig-1g.10gb", "count": 2}}}, "MIG"),
        ({"gateway": {"autoscaling": {"kind": "keda"}}}, "prometheus.url"),
        ({"gateway": {"autoscaling": {"minReplicas": 9}}}, "above"),
        ({"exposure": {"kind": "httpRoute"}}, "parentRefs"),
        ({"exposure": {"kind": "ingress"}}, "hosts"),
        ({"triton": {"drain": {"delaySeconds": 30}}}, "at least 93"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_meant_is_refused(values: Mapping[str, Any], words: str) -> None:
    """Misspelt names, values out of range, and choices that do not go together, with a sentence that names them."""
    assert words in refusal(values)


def test_old_clusters_are_refused() -> None:
    """Before 1.30 a pod could not sleep before it ends."""
    done = helm("template", "photos", str(CHART), "--kube-version", "1.29.0")
    assert "1.29" in done.stderr
    assert done.returncode != 0


def test_the_chart_is_of_this_version() -> None:
    """Its images' default tags are those of the sources beside it."""
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__


# Pods


def test_pods_are_restricted(documents: list[Document]) -> None:
    """Pod Security Standard "restricted", a root file system that nobody writes to, and no token of the cluster's."""
    for name, _, spec in pods(documents):
        assert spec["automountServiceAccountToken"] is False, name
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["runAsUser"] > 0, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for volume in spec["volumes"]:
            assert volume.keys() - {"name"} <= {"emptyDir", "configMap", "persistentVolumeClaim", "secret"}, name
        for container in containers(spec):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "hostPort" not in str(container.get("ports"))


def test_containers_are_bounded_and_pinned(documents: list[Document]) -> None:
    """Requests for scheduling, a limit of memory, and an image that is one version."""
    for name, _, spec in pods(documents):
        for container in containers(spec):
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}, name
            assert "memory" in container["resources"]["limits"], name
            assert re.fullmatch(r"[a-z0-9./-]+(:(?!latest$)[\w.-]+|@sha256:[0-9a-f]{64})", container["image"]), name


def test_every_mount_has_its_volume(documents: list[Document]) -> None:
    """And every volume is mounted; where anything writes, there is one."""
    for name, _, spec in pods(documents):
        mounted = {mount["name"] for c in containers(spec) for mount in c["volumeMounts"]}
        assert mounted == {volume["name"] for volume in spec["volumes"]}, name
    for component in ("gateway", "triton"):
        spec = named(documents, "Deployment", f"-{component}")["spec"]["template"]["spec"]
        assert "/tmp" in {mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}


def test_what_is_in_memory_fits_into_the_limit(documents: list[Document]) -> None:
    """Volumes in memory count as the pod's own."""
    for component, least in (("gateway", 64), ("triton", 1024)):
        spec = named(documents, "Deployment", f"-{component}")["spec"]["template"]["spec"]
        in_memory = [v["emptyDir"]["sizeLimit"] for v in spec["volumes"] if v.get("emptyDir", {}).get("medium")]
        assert sum(map(mib, in_memory)) >= least
        assert sum(map(mib, in_memory)) <= mib(spec["containers"][0]["resources"]["limits"]["memory"]) / 2


def mib(quantity: str) -> float:
    """Of a quantity of bytes such as 4Gi."""
    return float(quantity[:-2]) * {"Mi": 1, "Gi": 1024}[quantity[-2:]]


def test_probes(documents: list[Document]) -> None:
    """Liveness asks nobody else, readiness is the real thing, and a slow start is not a death."""
    wanted = {
        "gateway": ("/livez", "/livez", "/readyz"),
        "triton": ("/v2/health/ready", "/v2/health/live", "/v2/health/ready"),
    }
    for component, paths in wanted.items():
        (container,) = named(documents, "Deployment", f"-{component}")["spec"]["template"]["spec"]["containers"]
        probes = [container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")]
        assert tuple(probe["httpGet"]["path"] for probe in probes) == paths
        ports = {port["name"] for port in container["ports"]}
        assert {probe["httpGet"]["port"] for probe in probes} <= ports
        startup, liveness, readiness = (probe["periodSeconds"] * probe["failureThreshold"] for probe in probes)
        assert startup >= 60
        assert liveness > readiness


def test_an_upgrade_takes_nobody_away_before_a_successor_is_ready() -> None:
    """maxUnavailable 0; only with one GPU, where there is no place for a successor, does the old one go first."""
    for case in CASES:
        for component in ("gateway", "triton"):
            strategy = named(rendered(case), "Deployment", f"-{component}")["spec"]["strategy"]["rollingUpdate"]
            alone = case == "one-gpu" and component == "triton"
            assert strategy == {"maxSurge": int(not alone), "maxUnavailable": int(alone)}


def test_nobody_is_killed_while_draining(documents: list[Document]) -> None:
    """The grace that Kubernetes gives is longer than the delay and the drain together, with some seconds left."""
    spec = named(documents, "Deployment", "-gateway")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    delay = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = int(environment(container)["TIDEGATE_SHUTDOWN_GRACE_S"])
    assert spec["terminationGracePeriodSeconds"] >= delay + drain + 5
    assert drain > settings_of(documents).request_timeout_s  # who was admitted is answered or refused by then
    assert delay > container["readinessProbe"]["periodSeconds"]

    spec = named(documents, "Deployment", "-triton")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    delay = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = int(option(container, "exit-timeout-secs"))
    assert spec["terminationGracePeriodSeconds"] >= delay + drain + 5
    assert drain > settings_of(documents).request_timeout_s
    if named(documents, "Deployment", "-triton")["spec"]["strategy"]["rollingUpdate"]["maxSurge"]:
        assert delay >= 1.1 * int(option(container, "grpc-max-connection-age")) / 1000 + 60


def option(container: Document, name: str) -> str:
    (value,) = [a.partition("=")[2] for a in container["args"] if a.startswith(f"--{name}=")]
    return str(value)


def test_pods_are_spread_and_not_all_taken_away(documents: list[Document]) -> None:
    """Each Deployment has a disruption budget that still lets a node be drained, and pods of its own to spread."""
    for deployment in of_kind(documents, "Deployment"):
        metadata, spec = (deployment["spec"]["template"][key] for key in ("metadata", "spec"))
        budgets = [b for b in of_kind(documents, "PodDisruptionBudget") if matches(b["spec"]["selector"], metadata)]
        assert [budget["spec"]["maxUnavailable"] for budget in budgets] in ([1], ["20%"])
        for constraint in spec.get("topologySpreadConstraints", []):
            assert matches(constraint["labelSelector"], metadata)
            assert constraint["whenUnsatisfiable"] == "ScheduleAnyway"


def test_selectors_select_what_is_meant(documents: list[Document]) -> None:
    """Deployments, services, budgets, monitors and policies meet exactly the pods of their component."""
    metadata = {name: data for name, data, _ in pods(documents)}
    for deployment in of_kind(documents, "Deployment"):
        selected = [name for name, data in metadata.items() if matches(deployment["spec"]["selector"], data)]
        assert selected == [f"Deployment {deployment['metadata']['name']}"]
    for service in of_kind(documents, "Service"):
        selected = [name for name, data in metadata.items() if matches(service["spec"]["selector"], data)]
        assert selected == [f"Deployment {service['metadata']['name']}"]
        (container,) = named(documents, "Deployment", service["metadata"]["name"])["spec"]["template"]["spec"][
            "containers"
        ]
        assert {p["targetPort"] for p in service["spec"]["ports"]} <= {p["name"] for p in container["ports"]}
    for monitor in of_kind(documents, "ServiceMonitor"):
        (service,) = [s for s in of_kind(documents, "Service") if matches(monitor["spec"]["selector"], s["metadata"])]
        assert {e["port"] for e in monitor["spec"]["endpoints"]} <= {p["name"] for p in service["spec"]["ports"]}
    for policy in of_kind(documents, "NetworkPolicy"):
        assert any(matches(policy["spec"]["podSelector"], data) for data in metadata.values())


def test_accounts_have_no_rights(documents: list[Document]) -> None:
    """Each Deployment has an account of its own, without a token and without a role."""
    accounts = {account["metadata"]["name"] for account in of_kind(documents, "ServiceAccount")}
    assert all(a["automountServiceAccountToken"] is False for a in of_kind(documents, "ServiceAccount"))
    assert {d["spec"]["template"]["spec"]["serviceAccountName"] for d in of_kind(documents, "Deployment")} == accounts
    assert not of_kind(documents, "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "Secret")


# The gateway


def settings_of(documents: list[Document]) -> Settings:
    """What the gateway makes of its container's environment; raises when it would not start."""
    (container,) = named(documents, "Deployment", "-gateway")["spec"]["template"]["spec"]["containers"]
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(PREFIX)]:
            patch.delenv(name)
        for name, value in environment(container).items():
            patch.setenv(name, value)
        with tempfile.TemporaryDirectory() as folder:
            if PREFIX + "API_KEYS_FILE" in environment(container):  # the secret's
                add_key(Path(folder) / "keys.json", "alice")
                patch.setenv(PREFIX + "API_KEYS_FILE", f"{folder}/keys.json")
            return load_settings(_env_file=None)


def test_the_gateway_accepts_its_environment(documents: list[Document]) -> None:
    """Every TIDEGATE_ variable is a setting with a value in its range, and it listens where its port is."""
    settings = settings_of(documents)
    (container,) = named(documents, "Deployment", "-gateway")["spec"]["template"]["spec"]["containers"]
    assert settings.host == "0.0.0.0"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports.pop("http") == settings.port
    assert ports == ({"metrics": settings.metrics_port} if settings.metrics_port else {})
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    assert {name for name in environment(container) if name.startswith(PREFIX)} <= known


def test_keys_come_from_a_secret() -> None:
    """As a folder, read-only, where the gateway looks; nobody's key is in the chart."""
    documents = rendered("keys-and-metrics-apart")
    spec = template(documents, "-gateway")["spec"]
    (container,) = spec["containers"]
    file = Path(environment(container)["TIDEGATE_API_KEYS_FILE"])
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "keys"]
    assert mount == {"name": "keys", "mountPath": str(file.parent), "readOnly": True}
    assert {"name": "keys", "secret": {"secretName": "photo-keys"}} in spec["volumes"]
    (check,) = named(documents, "Pod", "-check")["spec"]["containers"]
    assert check["env"] == [
        {"name": "TIDEGATE_KEY", "valueFrom": {"secretKeyRef": {"name": "check-key", "key": "key"}}}
    ]
    assert "TIDEGATE_API_KEYS_FILE" not in environment(
        template(rendered("defaults"), "-gateway")["spec"]["containers"][0]
    )


def test_metrics_on_a_port_of_their_own_are_for_prometheus() -> None:
    """Its monitor asks there, the policy lets it in, and no Ingress or route leads there."""
    documents = rendered("keys-and-metrics-apart")
    monitor = named(documents, "ServiceMonitor", "-gateway")
    assert [endpoint["port"] for endpoint in monitor["spec"]["endpoints"]] == ["metrics"]
    callers, prometheus = named(documents, "NetworkPolicy", "-gateway")["spec"]["ingress"]
    assert callers["ports"] == [{"port": "http", "protocol": "TCP"}]
    assert prometheus["ports"] == [{"port": "metrics", "protocol": "TCP"}]
    assert prometheus["from"]


def test_numbers_stay_numbers() -> None:
    """Helm reads them as floats; 134217728 must not arrive as 1.34217728e+08."""
    settings = settings_of(rendered("everything-placed"))
    assert settings.max_body_bytes == 134217728
    assert (settings.probe_interval_s, settings.access_log, settings.workers) == (2.5, True, 2)


def test_what_a_pod_admits_fits_into_its_memory(documents: list[Document]) -> None:
    """Bodies, and the copy of them that goes to Triton, stay below the limit; it does not follow the node's cores."""
    settings = settings_of(documents)
    (container,) = named(documents, "Deployment", "-gateway")["spec"]["template"]["spec"]["containers"]
    if settings.workers == 1:
        assert 2 * settings.max_in_flight_bytes / 2**20 < mib(container["resources"]["limits"]["memory"])
    assert "TIDEGATE_MAX_IN_FLIGHT_IMAGES" in environment(container)


def test_the_gateway_spreads_over_all_tritons(documents: list[Document]) -> None:
    """Its URL is the name of the headless service, which gives the addresses of the pods that are ready."""
    service = named(documents, "Service", "-triton")
    url = settings_of(documents).triton_url
    assert url == f"dns:///{service['metadata']['name']}.shop.svc.cluster.local:8001"
    assert service["spec"]["clusterIP"] == "None"
    assert "publishNotReadyAddresses" not in service["spec"]
    assert {"name": "grpc", "port": 8001, "targetPort": "grpc", "appProtocol": "kubernetes.io/h2c"} in service["spec"][
        "ports"
    ]


def test_requests_reach_the_gateways_service() -> None:
    """From an Ingress, and from a route of Gateway API."""
    (ingress,) = of_kind(rendered("ingress"), "Ingress")
    assert [rule["host"] for rule in ingress["spec"]["rules"]] == ["a.example.com", "b.example.com"]
    for rule in ingress["spec"]["rules"]:
        (path,) = rule["http"]["paths"]
        assert path["backend"]["service"] == {"name": "photos-tidegate-gateway", "port": {"name": "http"}}
    for case in ("http-route", "several-gpus"):
        (route,) = of_kind(rendered(case), "HTTPRoute")
        (rule,) = route["spec"]["rules"]
        service = named(rendered(case), "Service", "-gateway")
        assert rule["backendRefs"] == [
            {"name": service["metadata"]["name"], "port": service["spec"]["ports"][0]["port"]}
        ]


# Triton and its engines


@functools.cache
def tritons_help() -> str:
    """All options of a real tritonserver."""
    try:
        installation = find_installation()
    except LocalTritonError as error:
        pytest.skip(str(error))
    libraries = {"LD_LIBRARY_PATH": str(installation.libraries)}
    done = subprocess.run([installation.server, "--help"], env=libraries, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("case", ["defaults", "one-gpu", "several-gpus", "everything-placed"])
def test_triton_knows_its_options(case: str) -> None:
    """Each is in the help of a real tritonserver; the CPU image starts it by the gateway's own command."""
    (container,) = named(rendered(case), "Deployment", "-triton")["spec"]["template"]["spec"]["containers"]
    start, options = container["args"][:1], [a for a in container["args"] if a.startswith("--") and a != "--"]
    assert start == (["tritonserver"] if CASES[case].get("device") == "gpu" else ["triton"])
    assert len(options) > 1
    for each in options:
        assert f"  {each.partition('=')[0]} <" in tritons_help() or f"  {each}\n" in tritons_help(), each


def test_gpus() -> None:
    """A GPU, or a slice of one, for Triton and for what builds its engine; none on CPUs."""
    for case, resource in {
        "one-gpu": "nvidia.com/gpu",
        "several-gpus": "nvidia.com/gpu",
        "mig": "nvidia.com/mig-2g.20gb",
    }.items():
        found = [
            container["name"]
            for name, _, spec in pods(rendered(case))
            for container in containers(spec)
            if container["resources"]["limits"].get(resource) == 1
        ]
        assert sorted(found) == ["engines", "triton"]
    assert "nvidia" not in json.dumps(rendered("cpu"))


@pytest.mark.parametrize("case", ["one-gpu", "several-gpus", "mig"])
def test_engines_come_before_triton(case: str, tmp_path: Path) -> None:
    """Triton waits for the builder or for its first result, and both mean the same folder of the same volume."""
    documents = rendered(case)
    triton = named(documents, "Deployment", "-triton")["spec"]["template"]["spec"]
    (first,) = triton["initContainers"]
    builder = (
        first
        if case != "several-gpus"
        else containers(next(s for n, _, s in pods(documents) if n.startswith("Job")))[0]
    )
    folder = option(triton["containers"][0], "model-repository")
    words = builder["args"]
    assert words[:3] == ["/opt/tidegate/venv/bin/python", "-m", "build_engines"]
    assert words[words.index("--repository") + 1] == folder == "/volume/models"
    for container in (first, builder, triton["containers"][0]):
        assert {"name": "models", "mountPath": "/volume"}.items() <= container["volumeMounts"][0].items()
    assert triton["containers"][0]["volumeMounts"][0]["readOnly"] is True
    if builder is not first:
        assert f"{folder}/ensemble_model/config.pbtxt" in first["args"][0]
    # The builder understands its order: asked only to list what is there, which is nothing.
    words = [word.replace("/volume", str(tmp_path)) for word in words[1:]]
    done = subprocess.run([sys.executable, *words, "--list"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "usage" not in done.stderr


def test_another_order_is_another_job() -> None:
    """A Job cannot be changed, so its name follows what it does."""
    values = example("several-gpus")
    other = {**values, "engines": {"mode": "job", "order": ["resnet50"]}}
    names = [named(render(each), "Job", "")["metadata"]["name"] for each in (values, other)]
    assert names[0] != names[1]
    assert named(render(values), "Job", "")["metadata"]["name"] == names[0]


def test_the_claim_outlives_the_chart() -> None:
    """Engines took minutes of a GPU; and a claim that was there already is used as it is."""
    claim = named(rendered("one-gpu"), "PersistentVolumeClaim", "-models")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert not of_kind(rendered("a-claim-of-ones-own"), "PersistentVolumeClaim")
    volumes = named(rendered("a-claim-of-ones-own"), "Deployment", "-triton")["spec"]["template"]["spec"]["volumes"]
    assert {"name": "models", "persistentVolumeClaim": {"claimName": "models"}} in volumes


# Scaling, watching, shutting off


def test_who_is_scaled_has_no_fixed_number() -> None:
    """An upgrade must not set back what the autoscaler chose; its target is there."""
    for case in CASES:
        targets = {
            scaler["spec"]["scaleTargetRef"]["name"]: scaler["spec"]
            for scaler in of_kind(rendered(case), "HorizontalPodAutoscaler", "ScaledObject")
        }
        deployments = {d["metadata"]["name"]: d["spec"] for d in of_kind(rendered(case), "Deployment")}
        assert targets.keys() <= deployments.keys()
        assert {name for name, spec in deployments.items() if "replicas" not in spec} == targets.keys()


def test_keda_asks_for_what_the_programs_export(gate: httpx.Client) -> None:
    """Triton's queue over the step models, and the gateway's own admission."""
    queries = {
        scaler["metadata"]["name"].rpartition("-")[2]: scaler["spec"]["triggers"][0]["metadata"]["query"]
        for scaler in of_kind(rendered("keda"), "ScaledObject")
    }
    assert queries == {
        "gateway": 'sum(tidegate_in_flight_images{namespace="shop",service="photos-tidegate-gateway"})',
        "triton": 'sum(nv_inference_pending_request_count{namespace="shop",service="photos-tidegate-triton",'
        'model=~"preprocessor|classifier|flowers_classifier"})',
    }
    assert re.search(r"^tidegate_in_flight_images ", gate.get("/metrics").text, re.MULTILINE)


def test_the_network_is_shut_but_for_what_is_needed() -> None:
    """Everything is denied; then the gateway may be called and call Triton, and Triton calls nobody."""
    documents = rendered("several-gpus")
    deny, gateway, triton = (named(documents, "NetworkPolicy", f"-{n}")["spec"] for n in ("deny", "gateway", "triton"))
    for _, metadata, _ in pods(documents):
        assert matches(deny["podSelector"], metadata)
    assert deny.keys() == {"podSelector", "policyTypes"}
    assert deny["policyTypes"] == ["Ingress", "Egress"]

    (http,) = gateway["ingress"]
    assert http["ports"] == [{"port": "http", "protocol": "TCP"}]
    assert [next(iter(peer)) for peer in http["from"]] == ["namespaceSelector", "namespaceSelector", "podSelector"]
    to_triton, dns = gateway["egress"]
    assert to_triton["ports"] == [{"port": "grpc", "protocol": "TCP"}]
    assert matches(to_triton["to"][0]["podSelector"], template(documents, "-triton")["metadata"])
    assert {(port["port"], port["protocol"]) for port in dns["ports"]} == {(53, "UDP"), (53, "TCP")}

    assert "egress" not in triton
    grpc, metrics = triton["ingress"]
    assert grpc["ports"] == [{"port": "grpc", "protocol": "TCP"}]
    assert matches(grpc["from"][0]["podSelector"], template(documents, "-gateway")["metadata"])
    assert metrics["ports"] == [{"port": "metrics", "protocol": "TCP"}]
    assert not of_kind(rendered("no-policies"), "NetworkPolicy")


def template(documents: list[Document], name: str) -> Document:
    return dict(named(documents, "Deployment", name)["spec"]["template"])


def test_the_engine_builder_reaches_a_hub_only_when_told_to() -> None:
    """In a job by a policy of its own, in an init container by that of Triton's pod."""
    assert not [p for p in rendered("several-gpus") if p["metadata"]["name"].endswith("-engines")]
    own = named(rendered("weights-from-a-hub-in-a-job"), "NetworkPolicy", "-engines")
    assert HTTPS_OUT in own["spec"]["egress"]
    assert "egress" not in named(rendered("weights-from-a-hub-in-a-job"), "NetworkPolicy", "-triton")["spec"]
    assert HTTPS_OUT in named(rendered("weights-from-a-hub"), "NetworkPolicy", "-triton")["spec"]["egress"]


# helm test


@pytest.mark.parametrize("broken", [False, True])
def test_the_check_of_helm_test(own_client: httpx.Client, fake: FakeTriton, broken: bool) -> None:
    """It passes on a gateway that classifies, and fails on one that cannot."""
    (config,) = [d for d in of_kind(rendered("defaults"), "ConfigMap") if "check.py" in d["data"]]
    scope: dict[str, Any] = {"__name__": "check"}
    exec(config["data"]["check.py"], scope)
    if broken:
        fake.failure = UpstreamUnavailable("gone")
    assert scope["main"](own_client.base_url.host, own_client.base_url.port, patience_s=0) == int(broken)
    pod = named(rendered("defaults"), "Pod", "-check")
    service = named(rendered("defaults"), "Service", "-gateway")
    assert pod["spec"]["containers"][0]["args"] == [service["metadata"]["name"], "80"]
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"


@pytest.mark.parametrize("sent", [True, False])
def test_the_check_shows_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bool) -> None:
    """Where the gateway wants one, it comes from a secret."""
    (config,) = [d for d in of_kind(rendered("defaults"), "ConfigMap") if "check.py" in d["data"]]
    scope: dict[str, Any] = {"__name__": "check"}
    exec(config["data"]["check.py"], scope)
    _, key = add_key(tmp_path / "keys.json", "check")
    if sent:
        monkeypatch.setenv("TIDEGATE_KEY", key)
    with running_gateway(Settings(api_keys_file=tmp_path / "keys.json"), FakeTriton()) as client:
        assert scope["main"](client.base_url.host, client.base_url.port, patience_s=5) == int(not sent)
