"""A stand-in for TensorRT that is as strict as the real one: made from the names and signatures of a release.

An attribute that the release does not have is an AttributeError, an argument of another type a TypeError. Every
call is written down. Nothing is built.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from tests.build_engines.targets.api_walk import RETURNS, Api

_EMPTY = inspect.Parameter.empty


class StrictTensorRT:
    """What `import tensorrt` gives. `answers` has results, or functions of the arguments, by "Class.method"."""

    __version__ = "11.2.1"

    def __init__(self, api: Api, answers: dict[str, Any] | None = None, real: ModuleType | None = None) -> None:
        self.api = api
        self.answers = answers or {}
        self.calls: list[str] = []
        self.arguments: dict[str, list[tuple[Any, ...]]] = {}
        self.set: dict[str, Any] = {}
        self._real = real
        self._made: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in self.api:
            raise AttributeError(f"this TensorRT has no {name}")
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> Any:
        members = self.api[name]
        if name in ("ILogger", "IProgressMonitor") or "value" in members:
            if self._real is not None:
                return getattr(self._real, name)
            if "value" in members:
                return _enum(name, members)
            return type(name, (), {"Severity": _enum("Severity", members)})
        return lambda *arguments, **named: self.construct(name, *arguments, **named)

    def construct(self, name: str, *arguments: Any, **named: Any) -> Any:
        self.calls.append(name)
        self.check(f"{name}.__init__", self.api[name]["__init__"], arguments, named)
        if f"{name}.__init__" in self.answers:
            return self.answers[f"{name}.__init__"](*arguments)
        return StrictObject(self, name)

    def call(self, name: str, signature: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        self.calls.append(name)
        self.arguments.setdefault(name, []).append(arguments)
        returned = RETURNS.get(name) or self.check(name, signature, arguments, named)
        if name in self.answers:
            answer = self.answers[name]
            return answer(*arguments) if callable(answer) else answer
        kind = returned.removeprefix("tensorrt.")
        if kind in self.api:
            return StrictObject(self, kind)
        return {"bool": True, "int": 0}.get(kind)

    def check(self, name: str, signature: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> str:
        """Raises TypeError where the arguments do not fit; returns what the signature says is returned."""
        parsed = re.fullmatch(r"\w+\((.*)\)(?: -> (.+))?", signature)
        if parsed is None or parsed[1].startswith("*args"):
            return ""
        parameters = [part.partition(": ") for part in re.split(r", (?=\w+: )", parsed[1])][1:]
        defaults = [kind.partition(" = ") for _, _, kind in parameters]
        bound = inspect.Signature(
            [
                inspect.Parameter(
                    each[0], inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default[2] if default[1] else _EMPTY
                )
                for each, default in zip(parameters, defaults, strict=True)
            ]
        ).bind(*arguments, **named)
        kinds = {each[0]: default[0] for each, default in zip(parameters, defaults, strict=True)}
        for parameter, value in bound.arguments.items():
            if not self.fits(value, kinds[parameter]):
                raise TypeError(f"{name}: {parameter} is {value!r}, not {kinds[parameter]}")
        return parsed[2] or ""

    def fits(self, value: Any, kind: str) -> bool:
        if kind == "tensorrt.Dims":
            return isinstance(value, tuple) and all(isinstance(size, int) for size in value)
        if kind.startswith("tensorrt.") and kind.removeprefix("tensorrt.") in self.api:
            name = kind.removeprefix("tensorrt.")
            if isinstance(value, StrictObject):
                return bool(value._name == name)
            own = self.__getattr__(name)
            return isinstance(value, own) if isinstance(own, type) else False
        known: dict[str, Callable[[], bool]] = {
            "str": lambda: isinstance(value, str),
            "bool": lambda: isinstance(value, bool),
            "typing.SupportsInt": lambda: isinstance(value, int) and not isinstance(value, bool),
            "typing_extensions.Buffer": lambda: isinstance(value, bytes),
        }
        return known[kind]() if kind in known else True


class StrictObject:
    """An object of one class: it has that class's members and no others."""

    def __init__(self, module: StrictTensorRT, name: str) -> None:
        self.__dict__.update(_module=module, _name=name)

    def __getattr__(self, attribute: str) -> Any:
        signature = self._module.api[self._name].get(attribute)
        name = f"{self._name}.{attribute}"
        if signature is None:
            raise AttributeError(f"this TensorRT has no {name}")
        if signature.startswith(f"{attribute}("):
            return lambda *arguments, **named: self._module.call(name, signature, arguments, named)
        return self._module.answers.get(name, self._module.set.get(name))

    def __setattr__(self, attribute: str, value: Any) -> None:
        if attribute not in self._module.api[self._name]:
            raise AttributeError(f"this TensorRT has no {self._name}.{attribute}")
        self._module.calls.append(f"{self._name}.{attribute} =")
        self._module.set[f"{self._name}.{attribute}"] = value

    def __bytes__(self) -> bytes:
        return str(self._name).encode()


def _enum(name: str, members: Mapping[str, str]) -> Any:
    kind = type(name, (int,), {})
    for number, member in enumerate(sorted(member for member in members if member.isupper())):
        setattr(kind, member, kind(number))
    return kind
