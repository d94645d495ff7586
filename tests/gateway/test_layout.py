"""The rules of the layout: imports point one way."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.servers import ROOT

GATEWAY = sorted((ROOT / "gateway").rglob("*.py"))
BUILDER = sorted((ROOT / "build_engines").rglob("*.py"))


def imports(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def importers(files: list[Path], *names: str) -> set[str]:
    def of(file: Path) -> bool:
        return any(i == name or i.startswith(f"{name}.") for i in imports(file) for name in names)

    return {str(file.relative_to(ROOT)) for file in files if of(file)}


def test_the_gateway_decodes_and_computes_nothing() -> None:
    """Pixels are the model repository's business, networks the builder's."""
    heavy = ("torch", "onnx", "onnxruntime", "openvino", "cv2", "PIL", "simplejpeg", "build_engines")
    assert importers(GATEWAY, *heavy) == set()


def test_the_builder_does_not_know_the_gateway() -> None:
    """Engines are built without a gateway."""
    assert importers(BUILDER, "gateway", "fastapi") == set()


def test_one_module_speaks_grpc() -> None:
    """Only the client imports tritonclient and grpc."""
    assert importers(GATEWAY, "tritonclient", "grpc") == {"gateway/triton/client.py"}


def test_one_module_goes_out() -> None:
    """Only the fetcher goes where a caller says, and it is imported only where that is turned on."""
    assert importers(GATEWAY, "httpcore") == {"gateway/fetch/fetcher.py"}
    assert importers(GATEWAY, "gateway.fetch.fetcher") == {"gateway/app.py", "gateway/settings.py"}


def test_one_module_counts_elsewhere() -> None:
    """Only the storage of rates imports limits and redis, and it is imported only where a rate is set."""
    assert importers(GATEWAY, "limits", "redis") == {"gateway/access/storage.py"}
    assert importers(GATEWAY, "gateway.access.storage") == {"gateway/app.py", "gateway/settings.py"}


def test_only_web_knows_http() -> None:
    """Frameworks stay in web/, in the place where the parts are joined, and in the command that serves."""
    inside = importers(GATEWAY, "fastapi", "starlette", "uvicorn", "multipart")
    outside = {file for file in inside if not file.startswith("gateway/web/")}
    assert outside == {"gateway/app.py", "gateway/cli/serve.py"}


@pytest.mark.parametrize(
    ("below", "above"),
    [
        ("errors.py", "gateway."),
        ("images.py", "gateway.web"),
        ("batches.py", "gateway.web"),
        ("inference.py", "gateway.web"),
        ("fetch/__init__.py", "gateway.web"),
        ("fetch/fetcher.py", "gateway.web"),
        ("fetch/guard.py", "gateway.fetch.fetcher"),
        ("access/__init__.py", "gateway."),
        ("access/keys.py", "gateway."),
        ("access/callers.py", "gateway."),
        ("access/rates.py", "gateway.web"),
        ("triton/client.py", "gateway.web"),
        ("triton/discovery.py", "gateway.web"),
        ("triton/discovery.py", "gateway.inference"),
    ],
)
def test_a_photo_travels_one_way(below: str, above: str) -> None:
    """A later part of the way does not import an earlier one."""
    assert not any(name.startswith(above) for name in imports(ROOT / "gateway" / below))
