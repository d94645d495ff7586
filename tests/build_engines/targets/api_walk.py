"""Which names of TensorRT a piece of Python uses, found by reading it: the calls that no test here can make."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

Api = Mapping[str, Mapping[str, str]]
"""Classes, their members, and the first line of each member's docstring: a signature, or nothing."""

RECORDED = Path(__file__).parents[4] / "shared" / "data" / "tensorrt_api"
VERSIONS = ("10.16.1.11", "11.2.1.2", "11.4.0.106")

# What objects are where the source does not say it: parameters, and methods whose docstrings give no signature.
_VARIABLES = {"config": "IBuilderConfig"}
RETURNS = {
    "Builder.build_serialized_network": "IHostMemory",
    "ICudaEngine.create_execution_context": "IExecutionContext",
    "Runtime.deserialize_cuda_engine": "ICudaEngine",
}


def recorded(version: str) -> Api:
    """The names of one release, or a skipped test where the recordings are not at hand."""
    path = RECORDED / f"tensorrt-{version}.json"
    if not path.is_file():
        pytest.skip(f"the recorded names of TensorRT {version} are not in ../shared")
    document = json.loads(path.read_text())
    return {name: members for name, members in document.items() if isinstance(members, dict)}


def living(module: ModuleType) -> Api:
    """The same from bindings that are installed."""
    classes = {name: value for name, value in vars(module).items() if isinstance(value, type)}
    return {name: {member: _signature(getattr(cls, member)) for member in dir(cls)} for name, cls in classes.items()}


def _signature(member: object) -> str:
    """The first line of a docstring, with the module's name as the recordings have it."""
    return (member.__doc__ or "").partition("\n")[0].replace("tensorrt_bindings.tensorrt.", "tensorrt.")


def used(source: str, api: Api) -> set[str]:
    """Names used of the module `trt` ("Builder", "BuilderFlag.TF32") and of the objects made with it."""
    walk = _Walk(api)
    tree = ast.parse(source)
    walk.visit(tree)  # twice: a method may stand above the one that makes its object
    walk.visit(tree)
    return walk.found


def missing(names: set[str], api: Api) -> set[str]:
    """Those of the names that a release does not have."""
    return {name for name in names if not _has(name, api)}


def _has(name: str, api: Api) -> bool:
    owner, _, member = name.partition(".")
    return owner in api and (not member or member in api[owner])


class _Walk(ast.NodeVisitor):
    def __init__(self, api: Api) -> None:
        self.api = api
        self.types: dict[str, str] = dict(_VARIABLES)
        self.found: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outside = dict(self.types)
        self.generic_visit(node)
        members = {name: kind for name, kind in self.types.items() if name.startswith("self.")}
        self.types = {**outside, **members}

    def visit_Assign(self, node: ast.Assign) -> None:
        kind = self._type(node.value)
        if kind:
            self.types.update({ast.unparse(target): kind for target in node.targets})
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        owner = self._type(node.value)
        if _is_module(node.value) and not node.attr.startswith("__"):
            self.found.add(node.attr)
        elif owner:
            self.found.add(f"{owner}.{node.attr}")
        self.generic_visit(node)

    def _type(self, node: ast.expr) -> str | None:
        """The class of TensorRT that an expression is, or is an object of."""
        if isinstance(node, ast.Attribute) and _is_module(node.value):
            return node.attr
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = self._type(node.func.value)
            if _is_module(node.func.value):
                return node.func.attr
            name = f"{owner}.{node.func.attr}"
            signature = self.api.get(owner or "", {}).get(node.func.attr, "")
            returned = re.search(r"-> tensorrt\.(\w+)$", signature)
            return RETURNS.get(name) or (returned[1] if returned else None)
        return self.types.get(ast.unparse(node))


def _is_module(node: ast.expr) -> bool:
    return ast.unparse(node) in ("trt", "self._trt")
