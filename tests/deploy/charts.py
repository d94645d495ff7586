"""Renders the chart with Helm itself, and picks things out of what comes."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from tests.servers import ROOT

CHART = ROOT / "deploy" / "helm" / "tidegate"
EXAMPLES = sorted((ROOT / "deploy" / "helm" / "values").glob("*.yaml"))

Document = dict[str, Any]


def find_helm() -> str:
    """The program; skips the test when it is nowhere."""
    own = ROOT / ".tools" / "helm"
    found = os.environ.get("HELM") or (str(own) if own.is_file() else shutil.which("helm"))
    if not found:
        pytest.skip("Helm is not here: deploy/helm/get_helm.sh puts it into .tools/")
    return found


def helm(*arguments: str, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs it, with `values` as a file of values on its standard input."""
    command = [find_helm(), *arguments, *(["--values", "-"] if values is not None else [])]
    return subprocess.run(
        command,
        input=yaml.safe_dump(values) if values is not None else None,
        capture_output=True,
        text=True,
        check=False,
    )


def render(values: Mapping[str, Any]) -> list[Document]:
    """Every document of the chart with `values`, as release `photos` in the namespace `shop`."""
    done = helm("template", "photos", str(CHART), "--namespace", "shop", values=values)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.load_all(done.stdout, StrictLoader) if document]


def refusal(values: Mapping[str, Any]) -> str:
    """What Helm says of values that it refuses."""
    done = helm("template", "photos", str(CHART), values=values)
    assert done.returncode != 0
    return done.stderr


class StrictLoader(yaml.SafeLoader):
    """Refuses a key that is there twice, as Kubernetes does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"twice in {node.start_mark}: {keys}"
        return super().construct_mapping(node, deep)


@functools.cache
def example(name: str) -> Mapping[str, Any]:
    """The values of an example."""
    return dict(yaml.safe_load((CHART.parent / "values" / f"{name}.yaml").read_text()))


def of_kind(documents: list[Document], *kinds: str) -> list[Document]:
    return [document for document in documents if document["kind"] in kinds]


def named(documents: list[Document], kind: str, name: str) -> Document:
    """The one whose name ends with `name`."""
    (found,) = [d for d in of_kind(documents, kind) if d["metadata"]["name"].endswith(name)]
    return found


def pods(documents: list[Document]) -> Iterator[tuple[str, Document, Document]]:
    """Name, metadata and spec of every pod that the documents make."""
    for document in documents:
        name = f"{document['kind']} {document['metadata']['name']}"
        if document["kind"] == "Pod":
            yield name, document["metadata"], document["spec"]
        elif document["kind"] in ("Deployment", "Job"):
            template = document["spec"]["template"]
            yield name, template["metadata"], template["spec"]


def containers(spec: Document) -> list[Document]:
    """Of a pod, those included that run before the others."""
    return [*spec.get("initContainers", []), *spec["containers"]]


def matches(selector: Document, metadata: Document) -> bool:
    """Whether a selector of labels (`matchLabels`, or a service's plain labels) selects an object."""
    wanted = selector.get("matchLabels", selector)
    return bool(wanted) and wanted.items() <= metadata.get("labels", {}).items()


def environment(container: Document) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in container.get("env", [])}
