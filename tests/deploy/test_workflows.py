"""GitHub's workflows: their schema, what they may do, what they name, and the script that certifies a checkpoint."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
RECERTIFY = GITHUB / "scripts" / "recertify.sh"
workflows = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def read(path: Path) -> dict[Any, Any]:
    document: dict[Any, Any] = yaml.safe_load(path.read_text())
    return document


def triggers(workflow: dict[Any, Any]) -> dict[str, Any]:
    on = workflow[True]  # YAML 1.1 reads the key `on` as true
    return dict.fromkeys(on) if isinstance(on, list) else on


def steps(workflow: dict[Any, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job["steps"]


def scripts(workflow: dict[Any, Any]) -> list[str]:
    return [step["run"] for step in steps(workflow) if "run" in step]


@pytest.mark.parametrize(
    ("schema", "files"),
    [("vendor.github-workflows", WORKFLOWS), ("vendor.dependabot", [GITHUB / "dependabot.yml"])],
)
def test_files_follow_their_schema(schema: str, files: list[Path]) -> None:
    """GitHub would read every file."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@workflows
def test_jobs_may_do_only_what_they_name(path: Path) -> None:
    """Nothing is permitted to a whole workflow; each job says what it needs, and how long it may take."""
    workflow = read(path)
    assert workflow["permissions"] == {}
    assert "concurrency" in workflow
    for name, job in workflow["jobs"].items():
        assert isinstance(job["permissions"], dict), name
        assert job["timeout-minutes"] <= 120, name


def test_few_jobs_may_write() -> None:
    """Packages are written for tags only, and the repository's releases after an approval only."""
    may = {
        (path.stem, name, scope)
        for path in WORKFLOWS
        for name, job in read(path)["jobs"].items()
        for scope, access in job["permissions"].items()
        if access == "write" and scope not in ("id-token", "attestations")
    }
    assert may == {("images", "publish", "packages"), ("recertify", "promote", "contents")}


@workflows
def test_actions_are_pinned_by_commit(path: Path) -> None:
    """A tag of an action can be moved to other code, a commit cannot; the version stands beside it for people."""
    lines = [line for line in path.read_text().splitlines() if re.search(r"\buses:", line)]
    assert lines
    for line in lines:
        assert re.search(r"uses: [\w-]+/[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


def test_an_action_has_one_version() -> None:
    """No workflow lags behind another."""
    used = {step["uses"] for path in WORKFLOWS for step in steps(read(path)) if "uses" in step}
    assert len(used) == len({action.partition("@")[0] for action in used})


@workflows
def test_scripts_hold_no_expressions(path: Path) -> None:
    """What comes from outside reaches a script as a variable's value: put into its text it could be commands."""
    for script in scripts(read(path)):
        assert "${{" not in script, script
        assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


@workflows
def test_strangers_code_meets_no_rights(path: Path) -> None:
    """Pull requests have no rights and no machines of the repository's own, and no checkout keeps a token."""
    workflow = read(path)
    assert "pull_request_target" not in triggers(workflow)
    if "pull_request" in triggers(workflow):
        assert "self-hosted" not in path.read_text()
    for step in steps(workflow):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@workflows
def test_make_targets_exist(path: Path) -> None:
    """Whatever a workflow makes, the Makefile has."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for script in scripts(read(path)):
        assert set(re.findall(r"\bmake ([a-z-]+)", script)) <= set(targets)


MADE = ("out/", "dist/", "checkpoint", "before", "builder/", "modelopt/", "try/", "gpu_check", "staged", "sbom.")
NAMED = re.compile(
    r"(?<![\w./$-])(?:Dockerfile\.\w+|\.?[\w-]+(?:/[\w.-]+)+|[\w.-]+\.(?:txt|toml|sh|json|yml))(?![\w/])"
)


def named_files(workflow: dict[Any, Any]) -> set[str]:
    """Files and folders of the project that scripts, inputs of actions and matrices name."""
    texts = scripts(workflow)
    for job in workflow["jobs"].values():
        texts += [str(entry["file"]) for entry in job.get("strategy", {}).get("matrix", {}).get("include", [])]
    texts += [str(step["with"].get("cache-dependency-path", "")) for step in steps(workflow) if "with" in step]
    for trigger in ("push", "pull_request"):
        paths = (triggers(workflow).get(trigger) or {}).get("paths", [])
        texts += [each.removesuffix("/**") for each in paths if "*" not in each[:-3]]
    text = re.sub(r"https?://\S+|--\w[\w-]*=\S+|/dev/null|/usr/\S+|/opt/\S+|bin/\w+", " ", "\n".join(texts))
    return {name for name in NAMED.findall(text) if not name.startswith(MADE)}


@workflows
def test_named_files_exist(path: Path) -> None:
    """Files that a workflow names are in the project, or are made by it."""
    missing = {name for name in named_files(read(path)) if not (ROOT / name).exists()}
    assert not missing


def test_named_files_are_seen() -> None:
    """The search for names finds those that matter."""
    found = set().union(*(named_files(read(path)) for path in WORKFLOWS))
    expected = {"Dockerfile.triton", "constraints.txt", ".github/scripts/recertify.sh", "deploy/helm/tidegate"}
    assert expected | {"build_engines/gpu_check.sh", "build_engines/targets/modelopt-requirements.txt"} <= found


def test_options_of_the_builder_exist() -> None:
    """Every option that a script gives to the builder is one that it has."""
    texts = [RECERTIFY.read_text(), *scripts(read(GITHUB / "workflows" / "recertify.yml"))]
    lines = [line for text in texts for line in text.splitlines()]
    given = {
        option
        for line in lines
        if re.search(r"build_engines |options\+?=|^photos \w+ --", line)
        for option in re.findall(r"(?<!\w)--[a-z][a-z-]+", line)
    }
    command = [sys.executable, "-m", "build_engines", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert {"--stage", "--promote", "--images", "--weights"} <= given
    assert given <= set(re.findall(r"--[a-z][a-z-]+", shown))


def test_one_month_of_nvidia_everywhere() -> None:
    """Engines are built with the TensorRT of the Triton image that serves them."""
    texts = [path.read_text() for path in (*WORKFLOWS, ROOT / "Dockerfile.triton")]
    months = {month for text in texts for month in re.findall(r"nvcr\.io/nvidia/\w+:(\d\d\.\d\d)-py3", text)}
    assert len(months) == 1


def test_promotion_waits_for_the_gate_and_a_person() -> None:
    """The job that publishes a model needs the job with the gate, and an environment that can ask for approval."""
    jobs = read(GITHUB / "workflows" / "recertify.yml")["jobs"]
    assert jobs["promote"]["needs"] == "build"
    assert jobs["promote"]["environment"] == "models"
    assert "if" not in jobs["promote"]  # `always()` would promote what was refused


def test_an_image_is_tagged_last() -> None:
    """An image is pushed without a tag, scanned, listed, signed, and only then can be found by its tag."""
    script = yaml.safe_dump(read(GITHUB / "workflows" / "images.yml")["jobs"]["publish"]["steps"], sort_keys=False)
    order = ["push-by-digest=true", "trivy-action", "sbom-action", "cosign sign", "cosign verify", "imagetools create"]
    places = [script.index(word) for word in order]
    assert places == sorted(places)


def test_dependabot_looks_everywhere() -> None:
    """Actions, Python packages and base images are all kept up to date."""
    updates = {update["package-ecosystem"] for update in read(GITHUB / "dependabot.yml")["updates"]}
    assert updates >= {"github-actions", "pip", "docker"}


def test_targets_of_images_exist() -> None:
    """Every stage that is built is one of its Dockerfile."""
    for job in read(GITHUB / "workflows" / "images.yml")["jobs"].values():
        for image in job["strategy"]["matrix"]["include"]:
            stages = re.findall(r"^FROM .+ AS (\S+)$", (ROOT / image["file"]).read_text(), re.MULTILINE)
            assert image.get("target", stages[-1]) in stages


def test_images_are_those_of_compose_and_the_chart() -> None:
    """What is published has the names that the deployments ask for."""
    images = read(GITHUB / "workflows" / "images.yml")["jobs"]["publish"]["strategy"]["matrix"]["include"]
    built = {(image["image"], image.get("tag", "")) for image in images}
    asked = re.findall(r"image: (tidegate-[a-z]+):[\d.]+(-[a-z]+)?$", (ROOT / "docker-compose.yml").read_text(), re.M)
    chart = read(ROOT / "deploy" / "helm" / "tidegate" / "values.yaml")
    assert built == set(asked)
    assert {name for name, _ in built} == {
        chart[part]["image"]["repository"] for part in ("gateway", "triton", "engines")
    }


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint with labels and the sums of its files."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "labels.txt").write_text("cat\ndog\n")
    sha256 = hashlib.sha256((folder / "labels.txt").read_bytes()).hexdigest()
    (folder / "SHA256SUMS").write_text(f"{sha256}  labels.txt\n")
    return folder


def recertify(checkpoint: Path, source: str = "efficientnet_lite0") -> subprocess.CompletedProcess[str]:
    """The script, with a builder that only says what it was asked."""
    builder = checkpoint.parent / "builder"
    builder.write_text(
        '#!/bin/sh\necho "$@"\nmkdir -p "${OUT}/model_repository/classifier/3"\n'
        'echo "{}" > "${OUT}/model_repository/classifier/3/certificate.json"\n'
    )
    builder.chmod(0o755)
    out = checkpoint.parent / "out"
    environment = {"SOURCE": source, "TARGET": "openvino", "PYTHON": str(builder), "OUT": str(out)}
    command = [str(RECERTIFY), str(checkpoint), str(out)]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)


def test_a_checkpoint_is_built_and_staged(checkpoint: Path) -> None:
    """The builder gets what the checkpoint has, serves nothing, and the certificate is laid out for people."""
    result = recertify(checkpoint)
    assert result.returncode == 0, result.stderr
    assert "-m build_engines efficientnet_lite0 --target openvino" in result.stdout
    assert f"--stage --labels {checkpoint}/labels.txt" in result.stdout
    assert (checkpoint.parent / "out" / "version").read_text() == "3\n"
    assert (checkpoint.parent / "out" / "certificate.json").exists()


@pytest.mark.parametrize("damage", ["changed", "added", "no sums"])
def test_a_checkpoint_of_other_files_is_refused(checkpoint: Path, damage: str) -> None:
    """Nothing is built from a file that is not the one in SHA256SUMS."""
    if damage == "changed":
        (checkpoint / "labels.txt").write_text("dog\ncat\n")
    elif damage == "added":
        (checkpoint / "weights.pth").write_text("")
    else:
        (checkpoint / "SHA256SUMS").unlink()
    result = recertify(checkpoint)
    assert result.returncode == 1
    assert "build_engines" not in result.stdout


@pytest.mark.parametrize("source", ["model.pt", "model.pt2", "--repository=/", "a b", "$(id)"])
def test_a_source_is_a_networks_name(checkpoint: Path, source: str) -> None:
    """Neither a program nor an option nor a command can be given for a network."""
    result = recertify(checkpoint, source)
    assert result.returncode == 1
    assert "build_engines" not in result.stdout
